"""The measured part of docs/statistics.md: a few worlds may be measured anew, the rest stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import load

simcluster, simworlds, tallies = map(load, ("simcluster", "simworlds", "tallies"))
rates: Any = load("error_rates")
PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


@pytest.fixture
def measured() -> str:
    text = PAGE.read_text(encoding="utf-8").split(rates.BEGIN)[1].split(rates.END)[0]
    return text.lstrip()


def tally(**counts: int) -> Any:
    return tallies.Tally(
        **{"sweeps": 1000, "false_sweeps": 33, "confirmed": 3000, "covered": 2850, **counts}
    )


def changed(before: str, after: str) -> list[str]:
    assert len(before.splitlines()) == len(after.splitlines())
    lines = zip(before.splitlines(), after.splitlines(), strict=True)
    return [new for old, new in lines if old != new]


def test_the_page_has_each_bar_and_each_world_once_in_their_order(measured: str) -> None:
    assert rates.merged(measured, {}, 1000) == measured


def test_only_the_rows_of_what_was_measured_are_new(measured: str) -> None:
    name = simworlds.CHOSEN.name
    after = rates.merged(measured, {name: tally()}, 1000)
    assert changed(measured, after) == [
        "| 4c | false winner, slots by evidence | <= 7.0 % | 3.3 % | ok |",
        f"| {name} | 1000 | 3.3 (0.6) | - | - | 95.0 (0.4) | - | 0.0 | 0.0 |",
    ]


def test_a_bar_that_one_world_misses_is_told_and_one_of_many_worlds_stays(measured: str) -> None:
    name = simworlds.NULLS[1].name
    found = changed(measured, rates.merged(measured, {name: tally(false_sweeps=20)}, 1000))
    assert [each.split(" | ")[0] for each in found] == [f"| {name}"]
    worse = tally(false_sweeps=200, most_jobs=51)
    found = changed(measured, rates.merged(measured, {name: worse}, 1000))
    missed = [each.split(" | ")[0] for each in found if "**missed**" in each]
    assert missed == ["| 1", "| 11"]


def test_what_was_never_measured_is_not_left_out_in_silence(measured: str) -> None:
    name = simworlds.CHOSEN.name
    lines = [each for each in measured.splitlines() if not each.startswith(f"| {name} |")]
    with pytest.raises(SystemExit, match="is not on the page and was not measured"):
        rates.merged("\n".join(lines), {}, 1000)
    with pytest.raises(SystemExit, match="not of 500 sweeps a world"):
        rates.merged(measured, {}, 500)
