"""Two simulated cells whose settings change their sign: sweeps, patch, and what either then has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.benchmarks import load

load("simcluster")
flips: Any = load("sign_flips")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "error_rates.md"
LEAST = 100  # pairs of sweeps of a row


@pytest.mark.parametrize("pair", flips.PAIRS, ids=[each.name for each in flips.PAIRS])
def test_a_patch_applied_on_both_parallelisms_gains_and_harms_neither(pair: Any) -> None:
    """Before guards looked at a cell's own recipe, four of five pairs of the third row did harm."""
    found = [flips.simulate(pair, seed) for seed in range(2)]
    for each in found:
        assert each.recipes == 2
        assert not each.is_harmed
        assert min(each.gains) >= 0.019
        assert each.jobs == pair.plain.budget
    both, harmed, *_, verdict = flips.row(pair, found)
    assert (both, harmed, verdict) == ("100.0 (0.0)", "0.0 (0.0)", "ok")
    *_, verdict = flips.row(pair, [*found, flips.replace(found[0], is_harmed=True)])
    assert "missed" in verdict


def test_the_page_has_every_pair_and_none_is_harmed_more_often_than_allowed() -> None:
    page = flips.pages.part(PAGE, flips.TABLE.part)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    measured = [each for each in rows if len(each) == len(flips.COLUMNS) and each[1].isdigit()]
    assert [each[0] for each in measured] == [each.name for each in flips.PAIRS]
    for _, pairs, _, harmed, *_ in measured:
        assert int(pairs) >= LEAST
        assert float(harmed.partition(" ")[0]) <= 2
