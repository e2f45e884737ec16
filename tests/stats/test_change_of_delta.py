"""How a delta changed between two sweeps: the interval covers what it says it covers."""

from __future__ import annotations

import math
from random import Random

import pytest

from pytest_xlatune.model.result import Verdict, VerdictKind, relative
from pytest_xlatune.stats.compare import change_of_delta
from pytest_xlatune.stats.design import t_quantile


def verdict(delta: float | None, ci95: tuple[float, float] | None) -> Verdict:
    return Verdict(arm="a", kind=VerdictKind.INCONCLUSIVE, delta=delta, ci95=ci95, n=3)


def measured(random: Random, effect: float, *, error: float, df: int) -> Verdict:
    """One sweep's verdict: an estimate and an interval by a variance that is estimated too."""
    estimate = random.gauss(effect, error)
    own = error * math.sqrt(random.gammavariate(df / 2, 2) / df)
    reach = t_quantile(0.975, df) * own
    return verdict(relative(estimate), (relative(estimate - reach), relative(estimate + reach)))


@pytest.mark.parametrize(
    ("errors", "dfs"),
    [
        pytest.param((0.004, 0.004), (6, 6), id="alike"),
        pytest.param((0.002, 0.008), (12, 4), id="the later one is short and noisy"),
        pytest.param((0.008, 0.002), (4, 12), id="the earlier one is"),
    ],
)
def test_the_interval_holds_the_change_in_95_of_100_pairs(
    errors: tuple[float, float], dfs: tuple[int, int]
) -> None:
    random, count, then, now = Random(18), 4000, 0.05, 0.02
    held = 0
    for _ in range(count):
        found = change_of_delta(
            measured(random, then, error=errors[0], df=dfs[0]),
            measured(random, now, error=errors[1], df=dfs[1]),
        )
        assert found is not None
        held += found[1] <= relative(now - then) <= found[2]
    assert 0.94 <= held / count <= 0.98


def test_a_single_run_gives_no_interval_and_order_turns_the_sign() -> None:
    one, other = verdict(0.05, (0.03, 0.07)), verdict(0.02, (0.01, 0.03))
    assert change_of_delta(one, verdict(0.02, None)) is None
    assert change_of_delta(verdict(None, None), one) is None
    forth, back = change_of_delta(one, other), change_of_delta(other, one)
    assert forth is not None
    assert back is not None
    assert forth[0] == pytest.approx(1.02 / 1.05 - 1)
    assert [1 + each for each in forth] == pytest.approx(
        [1 / (1 + back[0]), 1 / (1 + back[2]), 1 / (1 + back[1])]
    )
