"""Blocks, comparisons, critical values and plans: against scipy and statements of symmetry."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are loaded where they are used
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.result import Comparison, VerdictKind
from pytest_xlatune.stats.blocks import (
    IDENTICAL,
    ArmFit,
    BlockFit,
    BlockScore,
    Estimate,
    combine,
    fit_blocks,
    fit_lines,
    is_apart,
    main_group,
    upper_bound,
)
from pytest_xlatune.stats.compare import (
    GateLayout,
    NoComparison,
    against_level,
    compare,
    decide,
    deciding_layout,
    is_not_slower_than,
    is_within,
    may_stop,
    standard_error,
    straggler_p,
    two_samples,
    winners,
)
from pytest_xlatune.stats.design import (
    Plan,
    Refusal,
    bonferroni,
    design_df,
    dunnett,
    mde80,
    narrowed_df,
    plan,
)
from pytest_xlatune.stats.quantiles import t_quantile

BASE = "base"


def blocks(
    *, arms: dict[str, float], n: int = 4, baselines: int = 2, noise: float = 0.005, seed: int = 1
) -> list[BlockScore]:
    random = np.random.default_rng(seed)
    return [
        BlockScore(block=b, arm=arm, value=7 + b + effect + float(random.normal(0, noise)))
        for b in range(n)
        for arm, effect in [*arms.items(), *[(BASE, 0.0)] * baselines]
    ]


def fitted(scores: list[BlockScore]) -> BlockFit:
    fit = fit_blocks(scores, control=BASE)
    assert fit is not None
    return fit


def compared(scores: list[BlockScore], arm: str = "a", *, family: int = 3) -> Comparison:
    found = compare(fitted(scores), arm, family=family, alpha=0.05)
    assert isinstance(found, Comparison)
    return found


def test_complete_blocks_give_differences_of_means() -> None:
    scores = blocks(arms={"a": 0.02, "b": 0.0, "c": -0.01})
    fit = fitted(scores)
    means = {arm: np.mean([s.value for s in scores if s.arm == arm]) for arm in (*"abc", BASE)}
    for arm in "abc":
        assert fit.arms[arm].estimate == pytest.approx(means[arm] - means[BASE], abs=1e-12)
        assert fit.arms[arm].variance == pytest.approx((1 + 1 / 2) / 4)
    assert (fit.df, fit.arms["a"].control_weight, fit.n_control) == (13, 2.0, 8)


def test_one_arm_against_one_baseline_is_the_paired_t_test() -> None:
    scores = blocks(arms={"a": 0.02}, n=5, baselines=1)
    a, base = (np.array([s.value for s in scores if s.arm == arm]) for arm in ("a", BASE))
    interval = scipy.stats.ttest_rel(a, base).confidence_interval(0.95)
    assert compared(scores, family=1).ci95 == pytest.approx(tuple(interval), abs=1e-9)
    assert fitted(scores).arms["a"].excess is None, "there is nothing to be noisier than"


def test_missing_cells_are_left_out_and_an_arm_that_left_changes_nothing_for_the_others() -> None:
    scores = blocks(arms={"a": 0.02, "b": 0.0, "c": 0.03, "d": 0.03})
    fit = fitted(scores[1:])
    assert (fit.df, fit.arms["a"].control_weight, fit.arms["a"].n) == (15, None, 3)
    assert "Bonferroni" in sentence(compared(scores[1:]).method)
    assert "Dunnett" in sentence(compared(scores[1:], "b").method), "its own cells are all there"
    fit = fitted([s for s in scores if s.arm in {"a", "b", BASE} or s.block == 0])
    for arm in "ab":
        whole = fitted(scores).arms[arm]
        assert fit.arms[arm].estimate == pytest.approx(whole.estimate, abs=1e-12)
        assert fit.arms[arm].variance == pytest.approx((1 + 1 / 2) / 4)
        assert fit.arms[arm].control_weight == 2
    assert fit.arms["c"].control_weight is None
    assert fit.df == narrowed_df((4, 2, 2, 2), 2)


def noisy_arm(times: float) -> list[BlockScore]:
    usual = blocks(arms={"b": 0.0, "c": 0.0})
    return usual + blocks(arms={"a": 0.02}, baselines=0, noise=0.005 * times, seed=2)


def test_an_arm_that_is_far_noisier_stands_on_its_own_noise() -> None:
    own, others = compared(noisy_arm(6)), compared(noisy_arm(6), "b")
    assert (sentence(own.method).endswith("its own noise"), own.df) == (True, 10)
    assert own.ci95[1] - own.ci95[0] > 1.2 * (others.ci95[1] - others.ci95[0])
    for usual in (others, compared(noisy_arm(1))):
        assert "own noise" not in sentence(usual.method)
    scores = noisy_arm(6)
    differences = [
        s.value - np.mean([o.value for o in scores if (o.block, o.arm) == (s.block, BASE)])
        for s in scores
        if s.arm == "a"
    ]
    variance, found = np.var(differences, ddof=1), fitted(scores).arms["a"]
    assert found.own_variance == pytest.approx(variance / 4)
    assert standard_error(own) ** 2 == pytest.approx(found.own_variance)
    # the noise of everything else is that of a fit without the arm
    rest = fitted([s for s in scores if s.arm != "a"])
    assert found.excess == pytest.approx(variance / 1.5 / rest.sigma**2, rel=1e-6)


def test_stepping_down_finds_what_one_step_misses_and_stops_at_the_first_that_fails() -> None:
    found = {
        arm: Comparison(
            estimate=estimate, ci95=(estimate - 2.1604, estimate + 2.1604), lower=estimate - 2.5,
            n=4, df=13, sigma=1.0, mde80=1.0, method=verbatim(""),
        )
        for arm, estimate in (("a", 9.0), ("b", 2.45), ("c", 2.2), ("d", 0.5))
    }  # fmt: skip
    fit = BlockFit(
        arms={arm: ArmFit(estimate=e.estimate, variance=1.0, n=4, control_weight=2.0)
              for arm, e in found.items()},
        sigma=1.0, df=13, n_control=8, n_blocks=4,
    )  # fmt: skip
    assert winners(fit, found, family=5, alpha=0.05) == ("a", "b")
    assert winners(fit, {"b": found["b"]}, family=5, alpha=0.05) == ()
    low = {"a": found["a"], "d": found["d"], "c": replace(found["c"], n=1)}
    assert winners(fit, low, family=5, alpha=0.05) == ("a",)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (blocks(arms={"a": 0.1}, n=1), "1 degrees of freedom"),
        (blocks(arms={"a": 0.1}, noise=0.0), "exactly equal"),
        ([*blocks(arms={"a": 0.1}), BlockScore(block=0, arm=BASE, value=math.nan)], "not finite"),
        ([*blocks(arms={"b": 0.0}), BlockScore(block=9, arm="a", value=8)], "no block holds both"),
    ],
)
def test_what_cannot_be_computed_is_no_finding(scores: list[BlockScore], words: str) -> None:
    found = compare(fitted(scores), "a", family=1, alpha=0.05)
    assert isinstance(found, NoComparison)
    assert words in sentence(found.reason)


def comparison(estimate: float, error: float, *, df: int = 13, n: int = 4) -> Comparison:
    reach = float(scipy.stats.t.ppf(0.975, df)) * error
    return Comparison(
        estimate=estimate,
        ci95=(estimate - reach, estimate + reach),
        lower=estimate - 2.311 * error,
        n=n,
        df=df,
        sigma=error / 0.612,
        mde80=3.2 * error,
        method=verbatim("a sample"),
    )


def test_decide_and_margins() -> None:
    for estimate, error, kind in (
        (0.020, 0.004, VerdictKind.FASTER),
        (0.009, 0.004, VerdictKind.INCONCLUSIVE),
        (0.000, 0.004, VerdictKind.EQUIVALENT),
        (0.000, 0.008, VerdictKind.INCONCLUSIVE),
        (-0.020, 0.004, VerdictKind.SLOWER),
    ):
        assert decide(comparison(estimate, error)) is kind
        assert decide(comparison(estimate, error, n=1)) is VerdictKind.INCONCLUSIVE
    for estimate, error, margin, is_inside, is_passed in (
        (0.001, 0.003, 0.01, True, True),
        (0.001, 0.003, 0.005, False, True),  # a margin too narrow above
        (0.001, 0.008, 0.01, False, False),
        (0.009, 0.0005, 0.01, True, True),
        (-0.009, 0.003, 0.01, False, False),
        # the 95 % quantile of t with 13 degrees of freedom is 1.771, the margin 1.005 % in logs
        (0.0, 0.0055, 0.01, True, True),
        (0.0, 0.0058, 0.01, False, False),
    ):
        found = comparison(estimate, error)
        assert is_within(found, margin=margin) is is_inside
        assert is_not_slower_than(found, margin=margin) is is_passed
        assert not is_not_slower_than(replace(found, n=1), margin=margin), "one shows nothing"


def test_the_stop_rule_wants_5_percent_seen_and_4_excluded() -> None:
    for seen, error, n, expected in (
        (0.055, 0.003, 4, True),
        (0.055, 0.010, 4, False),
        (0.048, 0.001, 4, False),
        (0.08, 0.001, 1, False),
    ):
        assert may_stop(comparison(math.log1p(seen), error, n=n)) is expected


def test_a_floor_is_told_at_5_percent_either_way() -> None:
    """Five scores, so many standard errors above the floor; the 95 % quantile is 2.132."""
    scores = [7.01, 7.02, 6.99, 7.00, 6.98]
    error = float(np.std(scores, ddof=1)) / math.sqrt(5)
    kinds = {2.2: "EQUIVALENT", 2.05: "INCONCLUSIVE", -2.05: "INCONCLUSIVE", -2.2: "SLOWER"}
    for far, kind in kinds.items():
        assert str(against_level(scores, 7.0 - far * error)) == kind


@pytest.mark.parametrize("change", [-0.004, -0.016])
def test_what_would_tell_a_change_tells_it_in_four_of_five_runs(change: float) -> None:
    """By the noncentral t; the rule is a little simpler, hence the tolerance."""
    seen = replace(comparison(change, 0.01), sigma=0.008)
    start = GateLayout(arms=1, blocks=4, baselines=1)
    enough = deciding_layout(seen, start, margin=0.01)
    assert enough is not None
    # what passes is told against the margin, what is slower against none at all
    far = change - math.log1p(-0.01) if change > math.log1p(-0.01) else -change
    for blocks_more, least, most in ((0, 0.79, 1.0), (-1, 0.0, 0.81)):
        design = dataclasses.replace(enough, blocks=enough.blocks + blocks_more)
        shift = far / (seen.sigma * math.sqrt(design.variance))
        power = scipy.stats.nct.sf(scipy.stats.t.ppf(0.95, design.df), design.df, shift)
        assert least <= power <= most
    close = replace(seen, estimate=-0.0099)
    assert deciding_layout(close, start, margin=0.01) is None, "told by no design"
    fit, promised = fitted(blocks(arms={"a": 0, "b": 0})), GateLayout(arms=2, blocks=4, baselines=2)
    assert (fit.df, fit.arms["a"].variance) == pytest.approx((promised.df, promised.variance))


@given(
    noise=st.lists(st.floats(-0.02, 0.02), min_size=12, max_size=12),
    effect=st.floats(-0.05, 0.05),
)
def test_swapping_the_sides_inverts_the_ratio(noise: list[float], effect: float) -> None:
    sides = [
        BlockScore(block=at // 2, arm="ab"[at % 2], value=7 + (at % 2) * effect + e)
        for at, e in enumerate(noise)
    ]

    def compared_with(control: str, arm: str) -> Comparison | NoComparison:
        fit = fit_blocks(sides, control=control)
        assert fit is not None
        return compare(fit, arm, family=1, alpha=0.05)

    one, other = compared_with("a", "b"), compared_with("b", "a")
    assert isinstance(one, NoComparison) == isinstance(other, NoComparison)
    if isinstance(one, Comparison) and isinstance(other, Comparison):
        assert one.estimate == pytest.approx(-other.estimate, abs=1e-9)
        assert one.ci95 == pytest.approx((-other.ci95[1], -other.ci95[0]), abs=1e-9)
        kinds = {decide(one), decide(other)}
        changes = {VerdictKind.FASTER, VerdictKind.SLOWER}
        assert kinds == changes or not kinds & changes


def test_straggler_p_is_fishers() -> None:
    for slow, steps, base_slow, base_steps in ((6, 40, 2, 80), (4, 40, 0, 10), (0, 0, 3, 80)):
        table = np.array([[slow, steps - slow], [base_slow, base_steps - base_slow]])
        expected = scipy.stats.fisher_exact(table, alternative="greater").pvalue
        assert straggler_p(slow, steps, base_slow, base_steps) == pytest.approx(expected)


def test_the_line_is_least_squares_and_levels_share_its_slope() -> None:
    points = [(0.0, 7.01), (7.0, 7.00), (14.0, 7.03), (22.0, 7.02), (29.0, 7.05)]
    (line,) = fit_lines([points])
    expected = scipy.stats.linregress(*np.array(points).T)
    assert line.slope == pytest.approx(expected.slope)
    assert line.expected(10.0) == pytest.approx(expected.intercept + 10 * expected.slope)
    assert line.df == 3
    assert line.leverage(line.centre) == pytest.approx(1.2)
    assert line.leverage(29.0) > line.leverage(20.0)
    (level,) = fit_lines([[(3.0, 7.0)]])  # one baseline is a level, and none is no line
    assert (level.expected(20.0), level.leverage(20.0), level.df) == (7.0, 2.0, 0)
    assert fit_lines([[]]) == ()
    early, late = [(0.0, 1.0), (10.0, 2.0)], [(20.0, 8.0), (30.0, 9.0)]
    first, second = fit_lines([early, late])
    assert first.slope == second.slope == pytest.approx(0.1)
    assert (first.expected(5.0), second.expected(25.0)) == pytest.approx((1.5, 8.5))
    assert (first.df, second.df) == (1, 0)
    assert fit_lines([early, []]) == fit_lines([early])
    # a combination of estimates is tighter than its parts
    estimate, variance = combine([Estimate(0.02, 1.4), Estimate(0.00, 0.375)])
    assert (estimate, variance) == pytest.approx((0.02 * 0.375 / 1.775, 1 / (1 / 1.4 + 1 / 0.375)))
    assert upper_bound(Estimate(0.0, 1.0), sigma=0.01, df=16) == pytest.approx(0.0212, abs=1e-4)


def test_many_jobs_beside_a_few_baselines_tell_the_slope() -> None:
    """And three that are far faster at one end do not tilt it by much."""
    baselines = [(0.0, 7.006), (14.0, 7.0), (28.0, 7.003)]
    jobs = [(float(at), 6.99 + 0.0004 * at + 0.004 * (-1) ** at) for at in range(1, 28)]
    (alone,) = fit_lines([baselines])
    (line,) = fit_lines([baselines], others=[jobs])
    assert alone.slope < 0
    assert line.slope == pytest.approx(0.0003, abs=0.0001)
    assert line.leverage(28.0) < alone.leverage(28.0)
    assert (line.squares, line.df) == (alone.squares, alone.df), "the noise is the baselines' own"
    fast = [(at, value + 0.05 * (at > 24)) for at, value in jobs]
    (robust,) = fit_lines([baselines], others=[fast])
    assert robust.slope == pytest.approx(line.slope, abs=0.0003)
    # two waves of other settings, each with a level of its own, are no drift
    (apart,) = fit_lines([baselines], others=[jobs[:13], [(at, v + 0.05) for at, v in jobs[13:]]])
    assert apart.slope == pytest.approx(line.slope, abs=0.0002)
    assert fit_lines([baselines], others=[jobs[:9]]) == (alone,), "nine jobs are too few"


@pytest.mark.parametrize("many", [6, 10, 12])
@pytest.mark.parametrize("harm", [[0.1], [0.03, 0.11, 0.2, 0.3]])
def test_jobs_that_do_harm_do_not_bend_the_line(many: int, harm: list[float]) -> None:
    """Twelve of 25 flags that cost 3 to 30 % once made a good one look like any other."""
    baselines = [(0.0, 7.0), (13.0, 7.0039), (26.0, 7.0078)]
    jobs = [(float(at), 7 + 0.0003 * at + 0.004 * math.sin(7.0 * at)) for at in range(25)]
    # those at the end, as a random order may have them
    slow = [(at, value - harm[int(at) % len(harm)]) for at, value in jobs[25 - many :]]
    (line,) = fit_lines([baselines], others=[[*jobs[: 25 - many], *slow]])
    assert line.slope == pytest.approx(0.0003, abs=0.00015)


def test_the_main_group_is_where_most_of_what_does_no_harm_lies() -> None:
    idle = [0.006 * NormalDist().inv_cdf((at + 0.5) / 13) for at in range(13)]
    (centre,), sd = main_group([[*idle, *[-0.03 - 0.02 * at for at in range(12)]]])
    assert centre == pytest.approx(0.0, abs=0.003)
    assert sd == pytest.approx(0.006, rel=0.35)
    # each group about a centre of its own
    centres, sd = main_group([idle, [each + 0.5 for each in idle]])
    assert centres == pytest.approx([0.0, 0.5], abs=0.001)
    assert sd == pytest.approx(0.006, rel=0.2)
    assert main_group([[1.0, 1.0, 1.0]]) == ([1.0], IDENTICAL)
    with pytest.raises(ValueError, match="without values"):
        main_group([[1.0], []])


def test_groups_are_apart_where_a_test_says_so() -> None:
    early = [(at, 7.0 + 0.003 * (-1) ** at) for at in range(6)]
    for shift, is_found in ((0.0, False), (0.004, False), (0.05, True)):
        late = [(at, 7.0 + shift + 0.003 * (-1) ** at) for at in range(20, 24)]
        assert is_apart(early, late) is is_found
        assert not is_apart(early[:1], late[:1]), "two points say nothing"


def test_two_samples_are_welch() -> None:
    random = np.random.default_rng(3)
    old, new = random.normal(7, 0.004, 12), random.normal(7.01, 0.012, 5)
    found = two_samples(list(old), list(new), alpha=0.05)
    assert isinstance(found, Comparison)
    theirs = scipy.stats.ttest_ind(new, old, equal_var=False)
    assert found.df == math.floor(theirs.df)
    error = found.estimate / theirs.statistic
    low, lower, high = (found.estimate + scipy.stats.t.ppf(p, found.df) * error
                        for p in (0.025, 0.05, 0.975))  # fmt: skip
    assert (*found.ci95, found.lower) == pytest.approx((low, high, lower))
    for few, others in (
        ([7.0, 7.1, 7.2, 7.3], [7.1]),
        ([7.0] * 4, [7.0] * 4),
        ([7.0, 7.1, 7.2], [7.0, math.nan, 7.1]),
    ):
        assert isinstance(two_samples(few, others, alpha=0.05), NoComparison)


def test_the_reference_design_and_its_ends() -> None:
    assert dunnett(3, 13, control_weight=2, alpha=0.05) == pytest.approx(2.311, abs=1e-3)
    assert bonferroni(3, 13, alpha=0.05) == pytest.approx(2.380, abs=1e-3)
    assert design_df(3, 2, 4) == 13
    # JASA 50, 1955, table 1a
    assert dunnett(4, 10, control_weight=1, alpha=0.05) == pytest.approx(2.47, abs=0.006)
    assert dunnett(1, 7, control_weight=2, alpha=0.05) == t_quantile(0.95, 7), "Student's"
    assert math.isnan(t_quantile(0.95, 0))
    assert math.isnan(dunnett(3, 0, control_weight=1, alpha=0.05))
    for arms in (2, 3, 4):
        assert dunnett(arms, 9, control_weight=2, alpha=0.05) < bonferroni(arms, 9, alpha=0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.04, 0.01])
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
        (36, (2, 2, 2)), (50, (5, 3, 3, 3)), (65, (6, 4, 3, 3, 3)))),
    *((40, budget, {}, 0, widths, 0) for budget, widths in ((36, ()), (50, (2, 2, 2)))),
    # where one run tells too little the best of the screen run twice, and blocks follow
    (8, 25, {}, 0, (4, 3, 3), 25),
    (25, 70, {}, 0, (6, 4, 3, 3, 3, 3), 62),
    (25, 71, {}, 8, (5, 5, 4, 3, 3, 3), 71),
    (25, 150, {}, 25, (12, 8, 6, 5, 4, *[3] * 10), 148),
    # so they do where there are slots for all blocks; each slot but one of eight has a baseline
    (25, 65, {"slots": 8}, 8, (4,) * 5, 7 + 25 + 8 + 25),
    (25, 64, {"slots": 8}, 0, (6,) * 4, 7 + 25 + 4 * 8),
    (25, 90, {"slots": 5}, 8, (4,) * 5, 5 + 25 + 8 + 25),
    # behind rotations
    (25, 50, {"turned": 25, "rotations": 3}, 0, (6, 4, *[3] * 6), 47),
    (2, 20, {"turned": 2, "rotations": 3}, 0, (2,) * 4, 19),
    (25, 10, {"turned": 25, "rotations": 3}, 0, (), 0),
]  # fmt: skip


@pytest.mark.parametrize("row", PLANS, ids=str)
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
        assert found.jobs == profiles + found.screen_baselines + found.again + found.in_blocks
        # the second stage and stated blocks have layouts of their own
        assert plan(profiles, budget, may_repeat=False, **asked).again == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("asked", [{}, {"slots": 2}, {"turned": 12, "rotations": 3}])
@pytest.mark.parametrize("profiles", [12, 40])
def test_the_least_budget_that_a_refusal_names_is_enough(
    profiles: int, asked: dict[str, Any]
) -> None:
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


def test_what_a_whole_sweep_finds_is_more_than_what_its_finalists_show() -> None:
    """Two are both finalists; among a hundred one run must speak for it."""
    plans = {profiles: plan(profiles, profiles + 25) for profiles in (2, 25, 100)}
    factors = []
    for found in plans.values():
        assert isinstance(found, Plan)
        factors.append(found.from_start80(0.006) / found.mde80(0.006))
    assert 1 <= factors[0] < 1.12 < factors[1] < 1.25 < factors[2] < 1.5
    found = plans[25]
    assert isinstance(found, Plan)
    assert 100 * math.log1p(found.mde80(0.0066)) == pytest.approx(1.38, rel=0.01)


def test_mde80_is_found_with_80_percent_power() -> None:
    for df, c in ((13, 2.311), (9, 2.42), (4, 2.61)):
        shift = math.log1p(mde80(0.006, critical=c, df=df, variance=0.375)) / 0.006 / 0.375**0.5
        power = float(scipy.stats.nct.sf(c, df, shift))
        assert power == pytest.approx(0.80, abs=0.025 if df < 10 else 0.01)
