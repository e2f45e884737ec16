"""Two arms on job scores: the comparison, and what may be concluded from it.

Every rule here is three-valued: what the data cannot tell is INCONCLUSIVE, never a pass, and a test
that cannot be computed is no finding. Steps do not enter, except as counts of stragglers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_xlatune.results import Comparison, VerdictKind, relative
from pytest_xlatune.stats.blocks import IDENTICAL, BlockFit
from pytest_xlatune.stats.capacity import MIN_DF, mde80
from pytest_xlatune.stats.critical import bonferroni, dunnett, t_quantile

STOP_ESTIMATE = 0.05
STOP_FLOOR = 0.04
VETO_P = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NoComparison:
    """Why job scores cannot be compared."""

    reason: str


def compare(fit: BlockFit, arm: str, *, family: int, alpha: float) -> Comparison | NoComparison:
    """Compare an arm with the control; `family` arms share `alpha` one-sidedly."""
    if fit.df < MIN_DF:
        return NoComparison(
            reason=f"{max(fit.df, 0)} degrees of freedom are left, {MIN_DF} needed: too few trials"
        )
    if not math.isfinite(fit.sigma):
        return NoComparison(reason="the scores are not finite")
    if fit.sigma < IDENTICAL:
        return NoComparison(reason="the scores do not vary at all: copies are no measurements")
    effect = fit.arms.get(arm)
    if effect is None:
        return NoComparison(reason="no block holds both this profile and a baseline")
    weight = fit.control_weight
    if weight is None:
        critical = bonferroni(family, fit.df, alpha=alpha)
    else:
        critical = dunnett(family, fit.df, control_weight=weight, alpha=alpha)
    error = fit.sigma * math.sqrt(effect.variance)
    reach = t_quantile(0.975, fit.df) * error
    rule = "Bonferroni, cells missing" if weight is None else "Dunnett"
    return Comparison(
        estimate=effect.estimate,
        ci95=(effect.estimate - reach, effect.estimate + reach),
        lower=effect.estimate - critical * error,
        n=effect.n,
        n_baseline=fit.n_control,
        df=fit.df,
        sigma=fit.sigma,
        mde80=math.log1p(mde80(fit.sigma, critical=critical, df=fit.df, variance=effect.variance)),
        method=f"{rule}, K={family}, {fit.n_blocks} blocks, {fit.n_control} baselines, "
        f"alpha {alpha:g}",
    )


def standard_error(comparison: Comparison) -> float:
    """Return the standard error of a comparison's estimate."""
    low, high = comparison.ci95
    return (high - low) / 2 / t_quantile(0.975, comparison.df)


def decide(comparison: Comparison, *, equivalence: float) -> VerdictKind:
    """Return the verdict of a comparison; `equivalence` is the margin of "no different"."""
    upper = 2 * comparison.estimate - comparison.lower
    if comparison.n < 2:  # noqa: PLR2004 - one slow job must not make a verdict
        return VerdictKind.INCONCLUSIVE
    if comparison.lower > 0:
        return VerdictKind.FASTER
    if upper < 0:
        return VerdictKind.SLOWER
    if is_within(comparison, margin=equivalence):
        return VerdictKind.EQUIVALENT
    return VerdictKind.INCONCLUSIVE


def interval90(comparison: Comparison) -> tuple[float, float]:
    """Return the 90 % interval of the log ratio: what two one-sided 5 % tests do not exclude."""
    reach = t_quantile(0.95, comparison.df) * standard_error(comparison)
    return comparison.estimate - reach, comparison.estimate + reach


def is_within(comparison: Comparison, *, margin: float) -> bool:
    """Whether two one-sided 5 % tests put the change inside -margin .. +margin (TOST)."""
    low, high = interval90(comparison)
    return math.log1p(-margin) < low and high < math.log1p(margin)


def is_not_slower_than(comparison: Comparison, *, margin: float) -> bool:
    """Whether the one-sided 95 % bound excludes a loss of `margin` or more (non-inferiority)."""
    return comparison.n > 1 and interval90(comparison)[0] > math.log1p(-margin)


def is_faster_by(comparison: Comparison, *, margin: float) -> bool:
    """Whether the simultaneous lower bound exceeds a gain of `margin`."""
    return comparison.n > 1 and comparison.lower > math.log1p(margin)


def stops(comparison: Comparison) -> bool:
    """Whether the sweep may stop: +5 % or more, and +4 % excluded from below."""
    estimate, lower = relative(comparison.estimate), relative(comparison.lower)
    return comparison.n > 1 and estimate >= STOP_ESTIMATE and lower >= STOP_FLOOR


def straggler_p(slow: int, steps: int, baseline_slow: int, baseline_steps: int) -> float:
    """Return Fisher's exact p that an arm has no more slow steps than the baseline.

    The screened score hides what causes slow steps; this does not. Guards a gain, never makes one:
    steps of a job are correlated, so as a finding of its own the p would be too small.
    """
    slow_in_all, in_all = slow + baseline_slow, steps + baseline_steps
    if not steps or not baseline_steps:
        return 1.0
    ways = sum(
        math.comb(steps, k) * math.comb(baseline_steps, slow_in_all - k)
        for k in range(slow, min(steps, slow_in_all) + 1)
    )
    return ways / math.comb(in_all, slow_in_all)
