"""Blocks, the drift line, comparisons: against plain means, scipy and statements of symmetry."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_xlatune.model.result import Comparison, VerdictKind
from pytest_xlatune.stats.blocks import (
    BlockFit,
    BlockScore,
    combine,
    fit_blocks,
    fit_line,
    upper_bound,
)
from pytest_xlatune.stats.compare import (
    GateLayout,
    NoComparison,
    above,
    compare,
    decide,
    deciding,
    is_not_slower_than,
    is_within,
    stops,
    straggler_p,
)

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
    means = {
        arm: np.mean([s.value for s in scores if s.arm == arm]) for arm in ("a", "b", "c", BASE)
    }
    for arm in ("a", "b", "c"):
        assert fit.arms[arm].estimate == pytest.approx(means[arm] - means[BASE], abs=1e-12)
        assert fit.arms[arm].variance == pytest.approx((1 + 1 / 2) / 4)
    assert (fit.df, fit.control_weight, fit.n_control) == (13, 2.0, 8)


def test_a_block_effect_of_any_size_changes_nothing() -> None:
    scores = blocks(arms={"a": 0.02, "b": 0.0})
    moved = [replace(s, value=s.value + 0.3 * (s.block == 2)) for s in scores]
    assert compared(moved).ci95 == pytest.approx(compared(scores).ci95, abs=1e-10)


def test_one_arm_against_one_baseline_is_the_paired_t_test() -> None:
    scores = blocks(arms={"a": 0.02}, n=5, baselines=1)
    pairs = [
        [s.value for s in scores if s.block == b and s.arm == arm]
        for arm in ("a", BASE)
        for b in range(5)
    ]
    a, base = np.array(pairs[:5])[:, 0], np.array(pairs[5:])[:, 0]
    interval = stats.ttest_rel(a, base).confidence_interval(0.95)
    assert compared(scores, family=1).ci95 == pytest.approx(tuple(interval), abs=1e-9)


def test_missing_cells_are_left_out_and_bonferroni_takes_over() -> None:
    scores = blocks(arms={"a": 0.02, "b": 0.0, "c": 0.0})
    del scores[0]
    fit = fitted(scores)
    assert (fit.df, fit.control_weight, fit.arms["a"].n) == (12, None, 3)
    assert "Bonferroni" in compared(scores).method


def test_an_arm_that_no_block_links_to_a_baseline_is_not_compared() -> None:
    scores = [s for s in blocks(arms={"a": 0.02, "b": 0.0}) if s.arm != "b"]
    scores += [BlockScore(block=9, arm="b", value=8.0), BlockScore(block=9, arm="b", value=8.1)]
    found = compare(fitted(scores), "b", family=2, alpha=0.05)
    assert isinstance(found, NoComparison)
    assert "no block holds both" in found.reason


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        pytest.param(blocks(arms={"a": 0.1}, n=1), "1 degrees of freedom", id="one block"),
        pytest.param(blocks(arms={"a": 0.1}, noise=0.0), "do not vary", id="zero variance"),
        pytest.param(
            [*blocks(arms={"a": 0.1}), BlockScore(block=0, arm=BASE, value=math.nan)],
            "not finite",
            id="a score that is no number",
        ),
    ],
)
def test_what_cannot_be_computed_is_no_finding(scores: list[BlockScore], words: str) -> None:
    found = compare(fitted(scores), "a", family=1, alpha=0.05)
    assert isinstance(found, NoComparison)
    assert words in found.reason


def test_without_a_baseline_there_is_no_fit() -> None:
    assert fit_blocks([BlockScore(block=0, arm="a", value=7.0)], control=BASE) is None
    assert fit_blocks([BlockScore(block=0, arm=BASE, value=7.0)], control=BASE) is None


def comparison(estimate: float, error: float, *, df: int = 13, n: int = 4) -> Comparison:
    reach = float(stats.t.ppf(0.975, df)) * error
    return Comparison(
        estimate=estimate,
        ci95=(estimate - reach, estimate + reach),
        lower=estimate - 2.311 * error,
        n=n,
        n_baseline=8,
        df=df,
        sigma=error / 0.612,
        mde80=3.2 * error,
        method="a sample",
    )


@pytest.mark.parametrize(
    ("estimate", "error", "kind"),
    [
        (0.020, 0.004, VerdictKind.FASTER),
        (0.009, 0.004, VerdictKind.INCONCLUSIVE),
        (0.000, 0.004, VerdictKind.EQUIVALENT),
        (0.000, 0.008, VerdictKind.INCONCLUSIVE),
        (-0.020, 0.004, VerdictKind.SLOWER),
    ],
)
def test_decide(estimate: float, error: float, kind: VerdictKind) -> None:
    assert decide(comparison(estimate, error), equivalence=0.01) is kind
    alone = comparison(estimate, error, n=1)
    assert decide(alone, equivalence=0.01) is VerdictKind.INCONCLUSIVE


def test_margins() -> None:
    found = comparison(0.001, 0.003)
    assert is_within(found, margin=0.01)
    assert not is_within(found, margin=0.005)
    assert is_not_slower_than(found, margin=0.01)
    assert not is_not_slower_than(comparison(0.001, 0.008), margin=0.01)


@pytest.mark.parametrize("estimate", [-0.009, 0.009])
def test_no_difference_is_excluded_on_both_sides(estimate: float) -> None:
    assert is_within(comparison(estimate, 0.0005), margin=0.01)
    assert not is_within(comparison(estimate, 0.003), margin=0.01)


@pytest.mark.parametrize(("error", "expected"), [(0.0055, True), (0.0058, False)])
def test_non_inferiority_is_one_sided_at_5_percent(error: float, *, expected: bool) -> None:
    """The 95 % quantile of t with 13 degrees of freedom is 1.771; the margin is 1.005 % in logs."""
    assert is_not_slower_than(comparison(0.0, error), margin=0.01) is expected


def test_one_trial_shows_nothing() -> None:
    alone = comparison(math.log1p(0.08), 0.001, n=1)
    assert not stops(alone)
    assert not is_not_slower_than(alone, margin=0.01)


@pytest.mark.parametrize(
    ("distance", "kind"),
    [
        (2.2, VerdictKind.EQUIVALENT),
        (2.05, VerdictKind.INCONCLUSIVE),
        (-2.05, VerdictKind.INCONCLUSIVE),
        (-2.2, VerdictKind.SLOWER),
    ],
)
def test_a_floor_is_told_at_5_percent_either_way(distance: float, kind: VerdictKind) -> None:
    """Five scores, so many standard errors above the floor; the 95 % quantile is 2.132."""
    scores = np.array([7.01, 7.02, 6.99, 7.00, 6.98])
    floor = scores.mean() - distance * scores.std(ddof=1) / math.sqrt(5)
    assert above(list(scores), float(floor)) is kind


@pytest.mark.parametrize(
    "design",
    [
        pytest.param(GateLayout(arms=2, blocks=4, baselines=2), id="beside it"),
        pytest.param(GateLayout(arms=2, blocks=4, baselines=0, stored=8), id="stored"),
    ],
)
def test_a_design_promises_what_its_trials_then_give(design: GateLayout) -> None:
    arms = {"a": 0.0, "b": 0.0}
    scores = blocks(arms=arms, n=design.blocks, baselines=design.baselines)
    scores = [replace(each, block=0) if design.stored else each for each in scores]
    scores += [BlockScore(block=0, arm=BASE, value=7.0 + at) for at in range(design.stored)]
    fit = fitted(scores)
    assert fit.df == design.df
    assert fit.arms["a"].variance == pytest.approx(design.variance)


@pytest.mark.parametrize("change", [0.0, -0.004, -0.016, -0.02])
def test_what_would_tell_a_change_tells_it_in_four_of_five_runs(change: float) -> None:
    """By the noncentral t; the rule is a little simpler, hence the tolerance."""
    seen = replace(comparison(change, 0.01), sigma=0.008)
    start = GateLayout(arms=1, blocks=4, baselines=1)
    enough = deciding(seen, start, margin=0.01)
    assert enough is not None

    def power(design: GateLayout) -> float:
        error = seen.sigma * math.sqrt(design.variance)
        # what passes is told against the margin, what is slower against none at all
        far = change - math.log1p(-0.01) if change > math.log1p(-0.01) else -change
        return float(stats.nct.sf(stats.t.ppf(0.95, design.df), design.df, far / error))

    assert power(enough) >= 0.79
    assert power(replace(enough, blocks=enough.blocks - 1)) < 0.81


def test_a_change_close_to_the_margin_is_told_by_no_design() -> None:
    seen = replace(comparison(-0.0099, 0.01), sigma=0.008)
    assert deciding(seen, GateLayout(arms=1, blocks=4), margin=0.01) is None


@pytest.mark.parametrize(
    ("estimate", "error", "expected"),
    [(0.055, 0.003, True), (0.055, 0.010, False), (0.048, 0.001, False)],
)
def test_the_stop_rule_wants_5_percent_seen_and_4_excluded(
    estimate: float, error: float, *, expected: bool
) -> None:
    assert stops(comparison(math.log1p(estimate), error)) is expected


@given(
    noise=st.lists(st.floats(-0.02, 0.02), min_size=12, max_size=12),
    effect=st.floats(-0.05, 0.05),
)
def test_swapping_the_sides_inverts_the_ratio(noise: list[float], effect: float) -> None:
    sides = [
        BlockScore(block=at // 2, arm="ab"[at % 2], value=7 + (at % 2) * effect + e)
        for at, e in enumerate(noise)
    ]
    one = compare(_fit(sides, "a"), "b", family=1, alpha=0.05)
    other = compare(_fit(sides, "b"), "a", family=1, alpha=0.05)
    assert isinstance(one, NoComparison) == isinstance(other, NoComparison)
    if isinstance(one, Comparison) and isinstance(other, Comparison):
        assert one.estimate == pytest.approx(-other.estimate, abs=1e-9)
        assert one.ci95 == pytest.approx((-other.ci95[1], -other.ci95[0]), abs=1e-9)
        mirror = {VerdictKind.FASTER: VerdictKind.SLOWER, VerdictKind.SLOWER: VerdictKind.FASTER}
        kind, swapped = decide(one, equivalence=0.01), decide(other, equivalence=0.01)
        if kind in mirror:
            assert swapped is mirror[kind]
        else:
            assert swapped not in mirror


def _fit(scores: list[BlockScore], control: str) -> BlockFit:
    fit = fit_blocks(scores, control=control)
    assert fit is not None
    return fit


@given(
    effect=st.floats(-0.03, 0.03),
    noise=st.floats(0.001, 0.02),
    factor=st.floats(1.0, 10.0),
)
def test_more_noise_at_equal_means_never_makes_a_winner(
    effect: float, noise: float, factor: float
) -> None:
    # residuals that sum to nil over every arm and block: they scale, the means stay
    pattern = np.outer([1, -1, 1, -1], [1, -1, 0.5, -0.5])
    arms = ("a", "b", BASE, BASE)

    def kind(size: float) -> VerdictKind:
        scores = [
            BlockScore(
                block=b, arm=arm, value=7 + effect * (arm == "a") + size * float(pattern[b, at])
            )
            for b in range(4)
            for at, arm in enumerate(arms)
        ]
        found = compare(_fit(scores, BASE), "a", family=2, alpha=0.05)
        assert isinstance(found, Comparison)
        return decide(found, equivalence=0.01)

    if kind(noise) is not VerdictKind.FASTER:
        assert kind(noise * factor) is not VerdictKind.FASTER


@pytest.mark.parametrize(
    ("slow", "steps", "base_slow", "base_steps"), [(6, 40, 2, 80), (0, 40, 3, 80), (4, 40, 0, 10)]
)
def test_straggler_p_is_fishers(slow: int, steps: int, base_slow: int, base_steps: int) -> None:
    table = np.array([[slow, steps - slow], [base_slow, base_steps - base_slow]])
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert straggler_p(slow, steps, base_slow, base_steps) == pytest.approx(expected)


def test_without_steps_there_is_nothing_to_veto() -> None:
    assert straggler_p(0, 0, 3, 80) == 1.0


def test_the_line_is_least_squares() -> None:
    points = [(0.0, 7.01), (7.0, 7.00), (14.0, 7.03), (22.0, 7.02), (29.0, 7.05)]
    line = fit_line(points)
    assert line is not None
    expected = stats.linregress([x for x, _ in points], [y for _, y in points])
    assert line.slope == pytest.approx(expected.slope)
    assert line.at(10.0) == pytest.approx(expected.intercept + 10 * expected.slope)
    assert line.df == 3
    assert line.leverage(line.centre) == pytest.approx(1.2)
    assert line.leverage(29.0) > line.leverage(20.0)


def test_one_baseline_is_a_level_and_none_is_no_line() -> None:
    line = fit_line([(3.0, 7.0)])
    assert line is not None
    assert (line.at(20.0), line.leverage(20.0), line.df) == (7.0, 2.0, 0)
    assert fit_line([]) is None


def test_a_combination_is_tighter_than_its_parts() -> None:
    estimate, variance = combine([(0.02, 1.4), (0.00, 0.375)])
    assert estimate == pytest.approx(0.02 * 0.375 / 1.775)
    assert variance == pytest.approx(1 / (1 / 1.4 + 1 / 0.375))
    assert upper_bound(0.0, 1.0, sigma=0.01, df=16) == pytest.approx(0.0212, abs=1e-4)
