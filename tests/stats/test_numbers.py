"""Critical values, the planner's table, power: figures against independent sources."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

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
    narrowed_df,
    plan,
    selected80,
    unused,
)
from pytest_xlatune.stats.quantiles import t_quantile

# Dunnett's one-sided 5 % points for equal groups (JASA 50, 1955, table 1a)
TABLE_1A = [(2, 5, 2.44), (3, 5, 2.68), (2, 10, 2.15), (3, 10, 2.34), (4, 10, 2.47), (3, 20, 2.19)]


@pytest.mark.parametrize(("arms", "df", "expected"), TABLE_1A)
def test_dunnett_is_the_published_table(arms: int, df: int, expected: float) -> None:
    assert dunnett(arms, df, control_weight=1, alpha=0.05) == pytest.approx(expected, abs=0.006)


ALPHAS = (0.05, 0.04, 0.01)


@pytest.mark.parametrize(("arms", "df"), [(2, 4), (3, 13), (4, 9)])
def test_dunnett_leaves_alpha_of_the_multivariate_t(arms: int, df: int) -> None:
    for control_weight, alpha in itertools.product((1, 2, 5), ALPHAS):
        leaves_alpha(arms, df, control_weight, alpha)


def leaves_alpha(arms: int, df: int, control_weight: int, alpha: float) -> None:
    c = dunnett(arms, df, control_weight=control_weight, alpha=alpha)
    shape = np.full((arms, arms), 1 / (1 + control_weight))
    np.fill_diagonal(shape, 1)
    inside = scipy.stats.multivariate_t.cdf(
        np.full(arms, c), shape=shape, df=df, maxpts=200_000, random_state=7
    )
    slope = arms * scipy.stats.t.pdf(c, df)  # of the tail in c, at most
    assert (1 - inside) == pytest.approx(alpha, abs=1e-3 * slope), (control_weight, alpha)


def test_the_reference_design() -> None:
    assert dunnett(3, 13, control_weight=2, alpha=0.05) == pytest.approx(2.311, abs=1e-3)
    assert bonferroni(3, 13, alpha=0.05) == pytest.approx(2.380, abs=1e-3)
    assert design_df(3, 2, 4) == 13


def test_one_arm_is_student() -> None:
    assert dunnett(1, 7, control_weight=2, alpha=0.05) == t_quantile(0.95, 7)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 13, 40, 250, math.inf])
def test_students_quantile_has_the_digits_of_scipy(df: float) -> None:
    for probability in (0.025, 0.5, 0.8, 0.95, 0.975, 1 - 0.05 / 3, 0.9999):
        expected = float(scipy.stats.t.ppf(probability, df))
        found = t_quantile(probability, df)
        assert found == pytest.approx(expected, rel=1e-11, abs=1e-12), probability


@pytest.mark.parametrize("alpha", ALPHAS)
def test_bonferroni_has_the_digits_of_scipy_in_every_design(alpha: float) -> None:
    arms, df = np.meshgrid(np.arange(1, 13), np.arange(3, 61))
    found = [
        bonferroni(int(k), int(n), alpha=alpha) for k, n in zip(arms.flat, df.flat, strict=True)
    ]
    assert found == pytest.approx(scipy.stats.t.isf(alpha / arms.ravel(), df.ravel()), rel=1e-11)


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


def test_without_degrees_of_freedom_there_is_no_quantile() -> None:
    assert math.isnan(t_quantile(0.95, 0))
    assert math.isnan(dunnett(3, 0, control_weight=1, alpha=0.05))


def test_dunnett_lies_under_bonferroni() -> None:
    for arms in (2, 3, 4):
        assert dunnett(arms, 9, control_weight=2, alpha=0.05) < bonferroni(arms, 9, alpha=0.05)


# profiles -> arms of each block at 36, 50, 60 and 65 jobs, beside two baselines; None refuses
PLANNER: dict[int, list[tuple[int, ...] | None]] = {
    17: [(4, 3, 3), (6, 4, 3, 3, 3), (6, 4, 3, 3, 3), (5, 5, 4, 3, 3, 3)],
    20: [(3, 3, 3), (5, 3, 3, 3, 3), (6, 4, 3, 3, 3), (6, 4, 3, 3, 3, 3)],
    25: [(2, 2, 2), (5, 3, 3, 3), (6, 4, 3, 3, 3), (6, 4, 3, 3, 3)],
    30: [None, (4, 3, 3), (5, 3, 3, 3, 3), (6, 4, 3, 3, 3)],
    36: [None, (2, 2, 2, 2), (4, 3, 3, 3), (5, 3, 3, 3)],
    40: [None, (2, 2, 2), (4, 3, 3), (5, 3, 3, 3)],
}


@pytest.mark.parametrize("profiles", PLANNER)
def test_planner(profiles: int) -> None:
    for budget, expected in zip((36, 50, 60, 65), PLANNER[profiles], strict=True):
        found = plan(profiles, budget)
        if expected is None:
            assert isinstance(found, Refusal)
            assert f"{budget} jobs screen {profiles} profiles" in sentence(found.why)
        else:
            assert isinstance(found, Plan)
            assert found.widths == expected
            assert found.jobs <= budget


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("profiles", [1, 2, 3, 12, 40])
def test_the_least_budget_that_a_refusal_names_is_enough(profiles: int, slots: int) -> None:
    refused = plan(profiles, 5, slots=slots)
    assert isinstance(refused, Refusal)
    said = re.search(r"ask for (\d+) jobs at least, (\d+) are recommended", sentence(refused.why))
    assert said is not None
    least, recommended = map(int, said.groups())
    assert isinstance(plan(profiles, least, slots=slots), Plan)
    assert isinstance(plan(profiles, least - 1, slots=slots), Refusal)
    found = plan(profiles, recommended, slots=slots)
    assert isinstance(found, Plan)
    assert least <= recommended == found.jobs


def test_a_plan_says_its_blocks() -> None:
    found = plan(25, 50)
    assert isinstance(found, Plan)
    assert sentence(found.shape) == (
        "5 finalists in the first block, the best 3 in 3 more, 2 baselines in each"
    )
    alike = plan(25, 50, sigma=0.003)
    assert isinstance(alike, Plan)
    assert sentence(alike.shape) == "5 finalists in 3 blocks, 2 baselines in each"
    twice = plan(25, 65, slots=8)
    assert isinstance(twice, Plan)
    told = "the best 8 once more, then 4 finalists in 5 blocks, 1 baseline in each"
    assert sentence(twice.shape) == told


# profiles, budget -> second runs, arms of each block, jobs
OF_BUDGETS: dict[tuple[int, int], tuple[int, tuple[int, ...], int]] = {
    (8, 25): (0, (4, 3, 3), 25),
    (25, 70): (0, (6, 4, 3, 3, 3, 3), 62),
    (25, 71): (8, (5, 5, 4, 3, 3, 3), 71),
    (25, 78): (9, (6, 5, 4, 3, 3, 3, 3), 78),
    (25, 80): (11, (6, 5, 4, 3, 3, 3, 3), 80),
    (25, 100): (16, (6, 5, 5, 3, 3, 3, 3, 3, 3), 96),
    (25, 141): (25, (12, 8, 6, 5, 4, *[3] * 8), 138),
    (25, 150): (25, (12, 8, 6, 5, 4, *[3] * 10), 148),
    (60, 120): (16, (6, 5, 4, 3, 3, 3, 3), 120),
    (12, 60): (0, (6, 4, 3, 3, 3, 3), 49),
    (12, 90): (0, (6, 4, *[3] * 10), 79),
}


@pytest.mark.parametrize("asked", OF_BUDGETS)
def test_a_budget_is_used(asked: tuple[int, int]) -> None:
    """Where one run tells too little the best of the screen run twice, and blocks follow."""
    profiles, budget = asked
    found = plan(profiles, budget)
    assert isinstance(found, Plan)
    assert (found.again, found.widths, found.jobs) == OF_BUDGETS[asked]
    # the second stage and stated blocks have layouts of their own
    assert plan(profiles, budget, may_repeat=False).again == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((25, 50), "0 jobs"),
        ((25, 65), "8 jobs of 65 for spare"),
        ((25, 150), "2 jobs of 150 for spare"),
        ((25, 90), "one more block takes 5"),
        ((25, 87), "1 job of 87 for spare"),
        ((25, 300), "20 blocks are the most"),
    ],
)
def test_what_a_plan_leaves_of_its_budget_is_said(asked: tuple[int, int], said: str) -> None:
    found = plan(*asked)
    assert isinstance(found, Plan)
    assert said in (sentence(unused(found, asked[1])) or "0 jobs")


# profiles, budget, slots -> baselines of the screen, second runs, arms of each block
SLOTTED: dict[tuple[int, int, int], tuple[int, int, tuple[int, ...]]] = {
    (25, 65, 8): (7, 8, (4,) * 5),
    (25, 70, 8): (7, 8, (4,) * 6),
    (24, 65, 8): (8, 8, (4,) * 5),
    (25, 64, 8): (7, 0, (6,) * 4),
    (25, 65, 5): (5, 8, (4,) * 5),
    (25, 90, 5): (5, 8, (4,) * 5),
    (25, 90, 8): (7, 8, (4,) * 6),
    (25, 65, 4): (4, 0, (6,) * 4),
    (15, 65, 8): (7, 0, (6,) * 5),
}


@pytest.mark.parametrize("asked", SLOTTED)
def test_the_best_of_a_screen_run_again_where_there_are_slots_for_all_blocks(
    asked: tuple[int, int, int],
) -> None:
    profiles, budget, slots = asked
    found = plan(profiles, budget, slots=slots)
    assert isinstance(found, Plan)
    assert (found.screen_baselines, found.again, found.widths) == SLOTTED[asked]
    assert found.jobs == profiles + found.screen_baselines + found.again + found.in_blocks
    assert found.jobs <= budget
    once = plan(profiles, budget, slots=slots, may_repeat=False)
    assert isinstance(once, Plan)
    assert once.again == 0


def test_no_plan_costs_more_than_its_budget() -> None:
    for profiles, budget in itertools.product((1, 2, 3, 5, 8, 12), (10, 20, 36, 50)):
        found = plan(profiles, budget)
        if isinstance(found, Plan):
            assert found.jobs <= budget, (profiles, budget)
            assert found.df >= 3, (profiles, budget)
            assert found.finalists <= profiles, (profiles, budget)


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


def _is_found(
    random: np.random.Generator, effect: float, widths: Sequence[int], controls: int, again: int
) -> bool:
    """One sweep of 25 profiles by its definition; the best of the screen are measured `again`."""
    profiles = 25
    truth = np.zeros(profiles)
    truth[0] = effect
    screen = truth + random.standard_normal(profiles)
    if again:
        best = np.argsort(-screen)[:again]
        mean = (screen[best] + truth[best] + random.standard_normal(again)) / 2
        screen = np.full(profiles, -np.inf)
        screen[best] = mean
    arms = list(np.argsort(-screen)[: widths[0]])
    blocks = truth + random.standard_normal((len(widths), profiles))
    baselines = random.standard_normal((len(widths), controls)).mean(axis=1)
    for at, width in enumerate(widths):
        if at and width < widths[at - 1]:
            gain = (blocks[:at] - baselines[:at, None]).mean(axis=0)
            variance = (1 + 1 / controls) / at
            promise = (screen + gain / variance) / (1 + 1 / variance)
            arms = sorted(arms, key=lambda arm: -promise[arm])[:width]
    if 0 not in arms:
        return False
    df = narrowed_df(widths, controls)
    reach = dunnett(widths[0], df, control_weight=controls, alpha=0.05)
    seen = math.sqrt(random.chisquare(df) / df * (1 + 1 / controls) / len(widths))
    return float((blocks[:, 0] - baselines).mean()) > max(reach, t_quantile(0.975, df)) * seen


@pytest.mark.parametrize(
    ("widths", "controls", "again"),
    [((5, 3, 3, 3), 2, 0), ((2, 2, 2), 2, 0), ((4,) * 5, 1, 8), ((2, 2, 2), 2, 8)],
)
def test_what_a_whole_sweep_finds_it_finds_with_80_percent_power(
    widths: tuple[int, ...], controls: int, again: int
) -> None:
    effect = selected80(25, widths, controls, again=again)
    random = np.random.default_rng(7)
    hits = sum(_is_found(random, effect, widths, controls, again) for _ in range(4000))
    # the guards that this leaves out cost the difference
    assert hits / 4000 == pytest.approx(0.825, abs=0.03)


@pytest.mark.parametrize(("df", "c"), [(13, 2.311), (9, 2.42), (4, 2.61)])
def test_mde80_is_found_with_80_percent_power(df: int, c: float) -> None:
    effect = math.log1p(mde80(0.006, critical=c, df=df, variance=0.375))
    shift = effect / (0.006 * math.sqrt(0.375))
    power = float(scipy.stats.nct.sf(c, df, shift))
    assert power == pytest.approx(0.80, abs=0.025 if df < 10 else 0.01)
