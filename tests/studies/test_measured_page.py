"""The measured tables of a page: a few worlds may be measured anew, the rest stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.benchmarks import load

simcluster, simworlds, tallies = map(load, ("simcluster", "simworlds", "tallies"))
rates: Any = load("error_rates")
recipes: Any = load("recipes")
slots: Any = load("slot_rates")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "error_rates.md"


@pytest.fixture
def measured() -> str:
    text: str = rates.pages.part(PAGE)
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
        f"| {name} | 1000 | 3.3 (0.6) | - | - | 95.0 (0.4) | - |",
    ]


def first(cell: str) -> float:
    """The percentage of a cell, without its Monte-Carlo error."""
    return float(cell.partition(" ")[0])


def rows_of(text: str, columns: int) -> dict[str, list[str]]:
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {each[0]: each for each in found if len(each) == columns and each[1].isdigit()}


# world, percent, sweeps that it must have at least
POWERS = {
    "three at +2 %, noise 0.6 %": 90,
    "one at +2 %, noise 0.6 %": 93,
    "three at +2 %, four waves": 87.5,
    "three at +2 %, noise 0.3 %": 99,
    "three at +2 %, noise 1.0 %": 50,
    "three at +2 %, noise 1.0 %, 80 jobs": 84,
    "three at +2 %, noise 1.0 %, 100 jobs": 90,
    "three at +2 %, noise 1.0 %, 150 jobs": 96,
}


def test_every_demand_on_the_engine_is_met_by_a_figure_of_the_page(measured: str) -> None:
    """The figures themselves, and not the word that stands beside them."""
    worlds = rows_of(measured, len(rates.COLUMNS))
    for name, least in POWERS.items():
        _, sweeps, _, power, *_ = worlds[name]
        error = float(power.partition("(")[2].rstrip(")"))
        assert int(sweeps) >= 1000, name
        assert first(power) >= least - error, name
    quiet = (
        *((each, 5.5) for each in (*simworlds.NULLS, *simworlds.PERIODIC, simworlds.FOUR)),
        *((each, 5.5) for each in (simworlds.SPARE, simworlds.LOSING)),
        *((each, 6.0) for each in simworlds.NOISY),
        (simworlds.SLOW_LOST, 6.5),
    )
    for world, most in quiet:
        _, sweeps, false, *_ = worlds[world.name]
        assert int(sweeps) >= 1000, world.name
        assert first(false) <= most + 200 * (most / 100 * (1 - most / 100) / int(sweeps)) ** 0.5
    for world in rates.COVERED:
        assert 93 <= first(worlds[world.name][5]) <= 98.5, world.name
    bars = [line for line in measured.splitlines() if line.startswith(("| 5 |", "| 15 |"))]
    (wordless,) = (each for each in bars if "without a word of lost runs" in each)
    assert "| 0.0 % to 0.0 % | ok |" in wordless
    (bounded,) = (each for each in bars if "nothing helps, 65 jobs" in each)
    assert first(bounded.split("|")[4].strip()) >= 60
    page = PAGE.read_text(encoding="utf-8")
    table = rows_of(page.split("<!-- recipes: begin -->")[1].split("<!-- recipes: end -->")[0], 8)
    assert list(table) == [each.name for each in recipes.WORLDS]
    for _, sweeps, _, useless, harmful, gain, jobs, _ in table.values():
        assert (int(sweeps), int(jobs) <= recipes.PLAIN.budget) == (1000, True)
        assert first(useless) <= 8
        assert first(harmful) <= 2
        assert first(gain) >= 90


def test_slots_stand_on_the_page_with_the_jobs_of_one_slot_and_with_more() -> None:
    """Eight slots need more trials than one: the page has the figures of both."""
    table = slots.pages.part(PAGE, "node slots").strip()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    three = slots.TABLE.worlds[-1].name
    found = {
        (each[0], each[1]): (int(each[3]), first(each[7])) for each in rows[2:] if each[2] == three
    }
    spreads = [f"8, {100 * each:g} %" for each in slots.SPREADS]
    assert list(found) == [
        ("one", "50"),
        *((each, "65") for each in spreads),
        *((each, "50") for each in spreads),
    ]
    assert all(found[each, "50"][0] >= 1000 for each in spreads)
    assert all(found[each, "65"][1] > found[each, "50"][1] for each in spreads)
