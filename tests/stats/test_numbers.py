"""Critical values, the planner's table, power: figures against independent sources."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are loaded where they are used

from pytest_xlatune.model.message import sentence
from pytest_xlatune.stats.design import (
    Plan,
    Refusal,
    bonferroni,
    design_df,
    dunnett,
    mde80,
    plan,
)
from pytest_xlatune.stats.quantiles import t_quantile

# Dunnett's one-sided 5 % points for equal groups (JASA 50, 1955, table 1a)
TABLE_1A = [(2, 5, 2.44), (3, 5, 2.68), (2, 10, 2.15), (3, 10, 2.34), (4, 10, 2.47), (3, 20, 2.19)]


@pytest.mark.parametrize(("arms", "df", "expected"), TABLE_1A)
def test_dunnett_is_the_published_table(arms: int, df: int, expected: float) -> None:
    assert dunnett(arms, df, control_weight=1, alpha=0.05) == pytest.approx(expected, abs=0.006)


ALPHAS = (0.05, 0.04, 0.01)


def test_the_reference_design_and_its_ends() -> None:
    assert dunnett(3, 13, control_weight=2, alpha=0.05) == pytest.approx(2.311, abs=1e-3)
    assert bonferroni(3, 13, alpha=0.05) == pytest.approx(2.380, abs=1e-3)
    assert design_df(3, 2, 4) == 13
    assert dunnett(1, 7, control_weight=2, alpha=0.05) == t_quantile(0.95, 7), "Student's"
    assert math.isnan(t_quantile(0.95, 0))
    assert math.isnan(dunnett(3, 0, control_weight=1, alpha=0.05))
    for arms in (2, 3, 4):
        assert dunnett(arms, 9, control_weight=2, alpha=0.05) < bonferroni(arms, 9, alpha=0.05)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 13, 40, 250, math.inf])
def test_students_quantile_has_the_digits_of_scipy(df: float) -> None:
    for probability in (0.025, 0.5, 0.8, 0.95, 0.975, 1 - 0.05 / 3, 0.9999):
        expected = float(scipy.stats.t.ppf(probability, df))
        found = t_quantile(probability, df)
        assert found == pytest.approx(expected, rel=1e-11, abs=1e-12), probability


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    "df", [3, 13, *(pytest.param(df, marks=pytest.mark.part("sweeps")) for df in (4, 6, 30, 60))]
)
def test_dunnett_leaves_alpha_by_scipys_densities(df: int, alpha: float) -> None:
    """Gauss and Legendre's rule in s and z, where the package sums over log s in equal steps."""
    points, weights = np.polynomial.legendre.leggauss(250)
    low, high = np.sqrt(
        [scipy.stats.chi2.ppf(1e-15, df) / df, scipy.stats.chi2.isf(1e-15, df) / df]
    )
    s, z = low + (points + 1) * (high - low) / 2, 9 * points
    of_s = weights * (high - low) / 2 * scipy.stats.chi2.pdf(df * s * s, df) * 2 * df * s
    of_z = weights * 9 * scipy.stats.norm.pdf(z)
    for arms, control_weight in itertools.product((1, 2, 3, 5, 8, 12), (0.5, 1, 2)):
        c = dunnett(arms, df, control_weight=control_weight, alpha=alpha)
        rho = 1 / (1 + control_weight)
        below = (
            scipy.stats.norm.cdf((c * s[:, None] - math.sqrt(rho) * z) / math.sqrt(1 - rho)) ** arms
        )
        left = 1 - of_s @ below @ of_z
        assert left == pytest.approx(alpha, abs=1e-11), (arms, control_weight)


# profiles, budget, and what else is asked -> second runs, arms of each block, jobs (0: not told)
PLANS: list[tuple[int, int, dict[str, int], int, tuple[int, ...], int]] = [
    (17, 65, {}, 8, (5, 5, 4, 3, 3, 3), 63),
    *((25, budget, {}, 0, widths, 0) for budget, widths in (
        (36, (2, 2, 2)), (50, (5, 3, 3, 3)), (60, (6, 4, 3, 3, 3)), (65, (6, 4, 3, 3, 3)))),
    *((40, budget, {}, 0, widths, 0) for budget, widths in (
        (36, ()), (50, (2, 2, 2)), (60, (4, 3, 3)), (65, (5, 3, 3, 3)))),
    # where one run tells too little the best of the screen run twice, and blocks follow
    (8, 25, {}, 0, (4, 3, 3), 25),
    (25, 70, {}, 0, (6, 4, 3, 3, 3, 3), 62),
    (25, 71, {}, 8, (5, 5, 4, 3, 3, 3), 71),
    (25, 100, {}, 16, (6, 5, 5, 3, 3, 3, 3, 3, 3), 96),
    (25, 150, {}, 25, (12, 8, 6, 5, 4, *[3] * 10), 148),
    (12, 90, {}, 0, (6, 4, *[3] * 10), 79),
    # so they do where there are slots for all blocks; each slot but one of eight has a baseline
    (25, 65, {"slots": 8}, 8, (4,) * 5, 7 + 25 + 8 + 25),
    (25, 64, {"slots": 8}, 0, (6,) * 4, 7 + 25 + 4 * 8),
    (25, 90, {"slots": 5}, 8, (4,) * 5, 5 + 25 + 8 + 25),
    (15, 65, {"slots": 8}, 0, (6,) * 5, 7 + 15 + 5 * 8),
    # behind rotations
    (25, 50, {"turned": 25, "rotations": 3}, 0, (6, 4, *[3] * 6), 47),
    (60, 25, {"turned": 60, "rotations": 3}, 0, (5, 3, 3, 3), 25),
    (2, 20, {"turned": 2, "rotations": 3}, 0, (2,) * 4, 19),
    (25, 10, {"turned": 25, "rotations": 3}, 0, (), 0),
]  # fmt: skip


def sentence_of(row: tuple[Any, ...]) -> str:
    more = "".join(f", {count} {what}" for what, count in row[2].items())
    return f"{row[0]} profiles in {row[1]} jobs{more}"


@pytest.mark.parametrize("row", PLANS, ids=sentence_of)
def test_a_plan_uses_its_budget(row: tuple[Any, ...]) -> None:
    profiles, budget, asked, again, widths, jobs = row
    found = plan(profiles, budget, **asked)
    if not widths:
        assert isinstance(found, Refusal)
        assert f"{budget} jobs" in sentence(found.why)
        return
    assert isinstance(found, Plan)
    assert (found.again, found.widths, found.jobs) == (again, widths, jobs or found.jobs)
    assert found.jobs <= budget
    assert found.df >= 3
    if not asked.get("turned"):
        screened = profiles + found.screen_baselines + found.again
        assert found.jobs == screened + found.in_blocks
        # the second stage and stated blocks have layouts of their own
        assert plan(profiles, budget, may_repeat=False, **asked).again == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("asked", [{}, {"slots": 2}, {"turned": 25, "rotations": 3}])
@pytest.mark.parametrize("profiles", [1, 2, 3, 12, 25, 40])
def test_the_least_budget_that_a_refusal_names_is_enough(
    profiles: int, asked: dict[str, Any]
) -> None:
    if asked.get("turned", profiles) > profiles:
        return
    refused = plan(profiles, 5, **asked)
    assert isinstance(refused, Refusal)
    said = re.search(r"ask for (\d+) jobs at least, (\d+) are recommended", sentence(refused.why))
    assert said is not None
    least, recommended = map(int, said.groups())
    assert isinstance(plan(profiles, least, **asked), Plan)
    assert isinstance(plan(profiles, least - 1, **asked), Refusal)
    found = plan(profiles, recommended, **asked)
    assert isinstance(found, Plan)
    assert least <= recommended == found.jobs


@pytest.mark.parametrize(("sigma", "expected"), [(0.0040, 0.84), (0.0066, 1.38), (0.0104, 2.17)])
def test_mde80_of_the_reference_plan(sigma: float, expected: float) -> None:
    found = plan(25, 50)
    assert isinstance(found, Plan)
    assert 100 * math.log1p(found.mde80(sigma)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("profiles", [2, 25, 100])
def test_a_whole_sweep_finds_less_than_its_finalists_show(profiles: int) -> None:
    found = plan(profiles, profiles + 25)
    assert isinstance(found, Plan)
    factor = found.from_start80(0.006) / found.mde80(0.006)
    assert 1 <= factor < 1.5
    # two are both finalists; among a hundred one run must speak for it
    assert (factor < 1.12, factor > 1.25) == (profiles == 2, profiles == 100)


@pytest.mark.parametrize(("df", "c"), [(13, 2.311), (9, 2.42), (4, 2.61)])
def test_mde80_is_found_with_80_percent_power(df: int, c: float) -> None:
    effect = math.log1p(mde80(0.006, critical=c, df=df, variance=0.375))
    shift = effect / (0.006 * math.sqrt(0.375))
    power = float(scipy.stats.nct.sf(c, df, shift))
    assert power == pytest.approx(0.80, abs=0.025 if df < 10 else 0.01)
