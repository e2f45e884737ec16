"""Two simulated cells whose settings change their sign: sweeps, patch, and what either then has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from tests.helpers.benchmarks import load

load("simcluster")
flips: Any = load("sign_flips")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "error_rates.md"
LEAST = 100  # pairs of sweeps of a row


@pytest.mark.parametrize("pair", flips.PAIRS, ids=[each.name for each in flips.PAIRS])
def test_a_patch_applied_on_both_parallelisms_gains_and_harms_neither(pair: Any) -> None:
    """Before guards looked at a cell's own recipe, four of five pairs of the third row did harm."""
    found = [flips.one(pair, seed) for seed in range(2)]
    for each in found:
        assert each.recipes == 2
        assert not each.is_harmed
        assert min(each.gains) >= 0.019
        assert each.jobs == pair.plain.budget
    text, holds = flips.row(pair, found)
    assert holds
    assert text.startswith(f"| {pair.name} | 2 | 100.0 (0.0) | 0.0 (0.0) |")
    _, missed = flips.row(pair, [*found, flips.replace(found[0], is_harmed=True)])
    assert not missed


def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    whole = flips.Deployed(recipes=2, is_harmed=False, harmless=1, needless=1, won=1, missed=0,
                           gains=(0.02, 0.01), jobs=50)  # fmt: skip

    def once(_: Any, seed: int) -> Any:
        asked.append(seed)
        return whole

    class Pool:
        def __init__(self, _: int) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def map(self, do: Any, seeds: Sequence[int], chunksize: int) -> list[Any]:
            assert chunksize
            return [do(each) for each in seeds]

    monkeypatch.setattr(flips, "one", once)
    monkeypatch.setattr(flips, "ProcessPoolExecutor", Pool)
    first = flips.PAIRS[:1]
    for pairs, counts in ((60, 60), (60, 60), (61, 61)):
        found = flips.run(pairs, 1, first, tmp_path / "pairs.json")
        assert len(found[first[0].name]) == counts
    assert asked == list(range(61)), "none twice"
    text, _ = flips.table(found)
    assert "| +2.00 (0.00) of +6.1 | +1.00 (0.00) of +4.0 | 50 | ok |" in text


def test_the_page_has_every_pair_and_none_is_harmed_more_often_than_allowed() -> None:
    page = flips.pages.part(PAGE, flips.PART)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    measured = [each for each in rows if len(each) == len(flips.COLUMNS) and each[1].isdigit()]
    assert [each[0] for each in measured] == [each.name for each in flips.PAIRS]
    for _, pairs, _, harmed, *_ in measured:
        assert int(pairs) >= LEAST
        assert float(harmed.partition(" ")[0]) <= 2
