"""Which ranks take longer for their steps than the others do."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.stats.stragglers import compare_ranks, outliers

STEPS = 40


def job(
    slow: Mapping[int, float], *, ranks: int = 8, noise: float = 0.005, seed: int = 1
) -> dict[int, dict[int, float]]:
    rng = random.Random(seed)
    return {
        rank: {
            step: 0.5 * (1 + slow.get(rank, 0.0)) * (1 + noise * rng.gauss(0, 1))
            for step in range(STEPS)
        }
        for rank in range(ranks)
    }


@pytest.mark.parametrize(
    ("slow", "ranks", "found"),
    [
        pytest.param({3: 0.05}, 8, [3], id="one of eight"),
        pytest.param({3: 0.05, 6: 0.10}, 8, [6, 3], id="two, the slower first"),
        pytest.param({}, 8, [], id="none"),
        pytest.param({3: -0.2}, 8, [], id="a fast rank is no straggler"),
        pytest.param(dict.fromkeys(range(4), 0.1), 8, [], id="half of them are no outliers"),
    ],
)
def test_a_rank_that_is_slower_than_its_like_stands_out(
    slow: dict[int, float], ranks: int, found: list[int]
) -> None:
    told = compare_ranks(job(slow, ranks=ranks))
    assert told is not None
    assert [each.rank for each in told.stragglers] == found
    assert (told.ranks, told.first, told.last) == (ranks, 0, 31)  # whole windows
    for each in told.stragglers:
        assert each.slower == pytest.approx(slow[each.rank], abs=0.01)


def test_too_few_ranks_or_steps_and_figures_that_are_no_time_tell_nothing() -> None:
    assert compare_ranks(job({}, ranks=3)) is None
    assert compare_ranks(job({}), first_step=10) is None
    assert compare_ranks({}) is None
    for bad in (0.0, -2.0, float("nan")):
        assert compare_ranks({**job({}), 3: dict.fromkeys(range(STEPS), bad)}) is None
    assert outliers([0.0, 0.0, 9.0]) == set()
    # equal to the digit
    told = compare_ranks({rank: dict.fromkeys(range(32), 0.512) for rank in range(8)})
    assert told is not None
    assert (told.stragglers, told.spread) == ((), 0.0)
    # slow for one window
    seconds = job({})
    seconds[3] |= dict.fromkeys(range(16, 32), 0.7)
    told = compare_ranks(seconds)
    assert told is not None
    assert told.stragglers == ()


@given(st.permutations(range(8)), st.floats(0.001, 1000))
def test_names_and_units_change_nothing(order: list[int], unit: float) -> None:
    seconds = job({3: 0.05})
    told = compare_ranks(
        {order[rank]: {s: v * unit for s, v in of.items()} for rank, of in seconds.items()}
    )
    assert told is not None
    assert [each.rank for each in told.stragglers] == [order[3]]
