"""Compare two arms by the scores of their jobs, and conclude.

Every rule has three outcomes: what the data cannot decide is INCONCLUSIVE, never a pass. Steps
enter only as counts of stragglers. For gates, this module also decides whether a candidate is no
worse than the baseline by a margin (non-inferiority), and computes how many trials would decide it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.result import (
    MIN_TRIALS,
    Comparison,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import FEW_DF
from pytest_xlatune.stats.blocks import IDENTICAL, ArmFit, BlockFit
from pytest_xlatune.stats.design import (
    MIN_DF,
    SWEEP_ALPHA,
    bonferroni,
    design_df,
    dunnett,
    mde80,
)
from pytest_xlatune.stats.quantiles import t_quantile

_SCORES_COPIED = "all scores are exactly equal: copies are no measurements"
_SCORES_NOT_FINITE = "the scores are not finite"

# A sweep may stop if the estimate of a gain and its lower bound are so large. The estimate alone
# would stop half of all sweeps whose best profile gains just 5 %. With the bound, 0.5 % of sweeps
# stop if the best profile gains 4 %, and 95 % stop if it gains 6 % (docs/reference/error_rates.md).
STOP_ESTIMATE = 0.05
STOP_FLOOR = 0.04
VETO_P = 0.05  # Fisher's exact p below which lost trials or slow steps take a gain away

Change = tuple[float, float, float]  # log ratio, lower and upper end of its interval


@dataclass(frozen=True, slots=True, kw_only=True)
class NoComparison:
    """Why job scores cannot be compared."""

    reason: Message


def compare(
    fit: BlockFit | None, arm: str, *, family: int, alpha: float
) -> Comparison | NoComparison:
    """Compare an arm with the control; `family` arms share the one-sided `alpha`."""
    if fit is None:
        return NoComparison(reason=say("no block holds a scored baseline and another scored arm"))
    if fit.df < MIN_DF:
        return NoComparison(reason=say(FEW_DF, df=max(fit.df, 0), needed=MIN_DF))
    if not math.isfinite(fit.sigma):
        return NoComparison(reason=say(_SCORES_NOT_FINITE))
    if fit.sigma < IDENTICAL:
        return NoComparison(reason=say(_SCORES_COPIED))
    effect = fit.arms.get(arm)
    if effect is None:
        return NoComparison(reason=say("no block holds both this profile and a baseline"))
    error, df = fit.sigma * math.sqrt(effect.variance), fit.df
    uses_own_noise = is_noisier(effect)
    if uses_own_noise and effect.own_variance is not None:
        error, df = max(error, math.sqrt(effect.own_variance)), min(df, OWN_DF)
    critical = _simultaneous(effect, df, family=family, alpha=alpha)
    half_width = t_quantile(0.975, df) * error
    is_dunnett = effect.control_weight is not None
    rule = "Dunnett" if is_dunnett else "Bonferroni, cells missing"
    method = coded(
        MessageCode.DUNNETT if is_dunnett else None,
        rule + ", K={family}, {blocks} blocks, {baselines} baselines, alpha {alpha:g}{own}",
        family=family,
        blocks=fit.n_blocks,
        baselines=fit.n_control,
        alpha=alpha,
        own=coded(MessageCode.OWN_NOISE, ", its own noise") if uses_own_noise else None,
    )
    return Comparison(
        estimate=effect.estimate,
        ci95=(effect.estimate - half_width, effect.estimate + half_width),
        lower=effect.estimate - critical * error,
        n=effect.n,
        df=df,
        sigma=fit.sigma,
        mde80=math.log1p(mde80(1.0, critical=critical, df=df, variance=error**2)),
        method=method,
    )


def two_samples(
    reference: Sequence[float], candidate: Sequence[float], *, family: int = 1, alpha: float
) -> Comparison | NoComparison:
    """Compare the jobs of two sides that share no block, by Welch's t.

    Sides that ran at another time or place may differ in noise. A common variance would call the
    noisier side faster too often: in 14.5 % of cases instead of the nominal 5 %, for twelve old
    jobs against three new ones of twice the noise. Degrees of freedom follow F. E. Satterthwaite,
    Biometrics Bulletin 2, 1946, rounded down.
    """
    sides = (reference, candidate)
    total = sum(map(len, sides)) - len(sides)
    if total < MIN_DF or min(map(len, sides)) < MIN_TRIALS:
        return NoComparison(reason=say(FEW_DF, df=max(total, 0), needed=MIN_DF))
    if not all(math.isfinite(score) for side in sides for score in side):
        return NoComparison(reason=say(_SCORES_NOT_FINITE))
    variances = [stdev(side) ** 2 for side in sides]
    mean_variances = [variance / len(side) for variance, side in zip(variances, sides, strict=True)]
    error = math.sqrt(math.fsum(mean_variances))
    if error < IDENTICAL:
        return NoComparison(reason=say(_SCORES_COPIED))
    weights = [
        variance**2 / (len(side) - 1) for variance, side in zip(mean_variances, sides, strict=True)
    ]
    df = math.floor(error**4 / math.fsum(weights) + 1e-9)  # a rounding error must not cost 1 df
    estimate = fmean(candidate) - fmean(reference)
    critical = bonferroni(family, df, alpha=alpha)
    half_width = t_quantile(0.975, df) * error
    return Comparison(
        estimate=estimate,
        ci95=(estimate - half_width, estimate + half_width),
        lower=estimate - critical * error,
        n=len(candidate),
        df=df,
        sigma=math.sqrt(fmean(variances)),
        mde80=math.log1p(mde80(1.0, critical=critical, df=df, variance=error**2)),
        method=say(
            "two samples of {beside} and {own} jobs, Welch, K={family}, alpha {alpha:g}",
            beside=len(reference),
            own=len(candidate),
            family=family,
            alpha=alpha,
        ),
    )


# One variance for all arms would give 6.7 to 10.3 % false winners if some arms have 2 to 5 times
# the noise of the others. So an arm whose job variance exceeds that of all others by this factor is
# judged by its own variance, with at most so many degrees of freedom. Of the ten factors that were
# tried, this one keeps the error rate with such arms, and costs the least power.
OWN_EXCESS = 3.0
OWN_DF = 10


def is_noisier(effect: ArmFit) -> bool:
    """Return whether an arm's jobs vary so much more than others that its own variance is used."""
    return effect.excess is not None and effect.excess > OWN_EXCESS


def noise_of(effect: ArmFit | None, *, sigma: float, df: int) -> tuple[float, int]:
    """Return the noise of an arm's jobs, and its degrees of freedom.

    This is `sigma` and `df`, which describe all arms, unless the arm is noisier. `effect` is its
    result in blocks; None if it has none.
    """
    if effect is None or effect.own_variance is None or not is_noisier(effect):
        return sigma, df
    return max(sigma, math.sqrt(effect.own_variance / effect.variance)), min(df, OWN_DF)


def _simultaneous(effect: ArmFit, df: int, *, family: int, alpha: float) -> float:
    """Return the critical value of one of `family` arms that share `alpha`."""
    if effect.control_weight is None:
        return bonferroni(family, df, alpha=alpha)
    return dunnett(family, df, control_weight=effect.control_weight, alpha=alpha)


def winners(
    fit: BlockFit, comparisons: Mapping[str, Comparison], *, family: int, alpha: float
) -> tuple[str, ...]:
    """Return the arms that a step-down test shows to be faster, the clearest first.

    The clearest is compared with the critical value for `family` arms, the next with that for one
    arm less, until an arm fails (a closed test; Marcus, Peritz and Gabriel, Biometrika 63, 1976).
    An arm whose own 95 % interval contains 0, or that was measured once, is no winner.
    """

    def lower_end(arm: str, arms_left: int) -> float:
        """Return the lower end of the arm's interval, simultaneous for `arms_left` arms."""
        comparison = comparisons[arm]
        critical = _simultaneous(
            fit.arms[arm], comparison.df, family=max(arms_left, 1), alpha=alpha
        )
        lower = comparison.estimate - critical * standard_error(comparison)
        return min(lower, comparison.ci95[0])

    def clearness(arm: str) -> float:
        return comparisons[arm].estimate / standard_error(comparisons[arm])

    repeated = [arm for arm, comparison in comparisons.items() if comparison.n > 1]
    faster: list[str] = []
    for arm in sorted(repeated, key=clearness, reverse=True):
        if lower_end(arm, family - len(faster)) <= 0:
            break
        faster.append(arm)
    return tuple(faster)


EQUIVALENCE = 0.01  # a smaller relative change counts as none
SELECTED_ALPHA = 0.0125  # error rate of the lower end of a winner's interval
LIKELY_ALPHA = 0.025  # error rate of the lower end of the likely change
PRIOR = 0.01  # prior standard deviation of the effects of settings: log ratios around 0
# without this limit the likely change of a true +5 % is 0.7 points too low
_PLAUSIBLE = 3.0  # the prior is not used beyond so many of its standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerFigures:
    """The figures of an arm that won, as log ratios.

    Attributes:
        ci95: its interval, corrected for selection, which never includes values below 0.
        likely: its most likely change, then the lower and upper end of a 95 % interval of that;
            None if the change is too large for the prior of small effects.
    """

    ci95: tuple[float, float]
    likely: tuple[float, float, float] | None


def winner_figures(
    fit: BlockFit, comparison: Comparison, arm: str, *, family: int
) -> WinnerFigures:
    """Return the figures of a winner, whose plain estimate tends to be too high: it was selected.

    The lower end of the interval is simultaneous over the `family` at 1.25 %, the upper end is
    one-sided at 5 %. A plain interval contains the true effect of the best winner in 79 to 92 % of
    sweeps with weak effects, this one in 97 % (`benchmarks/sweep_rates.py`), and it is shorter
    than the interval conditional on passing the critical value. FASTER already excludes values
    below 0. The likely change is the mean of a normal posterior with the prior N(0, 1 %).
    """
    error, effect = standard_error(comparison), fit.arms[arm]
    upper_critical = t_quantile(0.95, comparison.df)

    def lower_critical(alpha: float) -> float:
        return _simultaneous(effect, comparison.df, family=family, alpha=alpha)

    low = comparison.estimate - lower_critical(SELECTED_ALPHA) * error
    # an estimate below 0 means that later blocks lowered it after the arm had won
    if comparison.estimate > 0:
        low = max(low, 0.0)
    ci95 = low, comparison.estimate + upper_critical * error
    shrinkage = PRIOR**2 / (PRIOR**2 + error**2)
    if abs(comparison.estimate) > _PLAUSIBLE * math.hypot(PRIOR, error):
        return WinnerFigures(ci95=ci95, likely=None)
    mean, spread = shrinkage * comparison.estimate, math.sqrt(shrinkage) * error
    likely = mean, mean - lower_critical(LIKELY_ALPHA) * spread, mean + upper_critical * spread
    return WinnerFigures(ci95=ci95, likely=likely)


def standard_error(comparison: Comparison) -> float:
    """Return the standard error of a comparison's estimate."""
    low, high = comparison.ci95
    return (high - low) / 2 / t_quantile(0.975, comparison.df)


def decide(comparison: Comparison, *, margin: float = EQUIVALENCE) -> VerdictKind:
    """Return the verdict of a comparison; a change inside `margin` is EQUIVALENT."""
    upper = 2 * comparison.estimate - comparison.lower
    if comparison.n < 2:  # noqa: PLR2004 - one slow job must not make a verdict
        return VerdictKind.INCONCLUSIVE
    if min(comparison.lower, comparison.ci95[0]) > 0:
        return VerdictKind.FASTER
    if max(upper, comparison.ci95[1]) < 0:
        return VerdictKind.SLOWER
    if is_within(comparison, margin=margin):
        return VerdictKind.EQUIVALENT
    return VerdictKind.INCONCLUSIVE


def interval90(comparison: Comparison) -> tuple[float, float]:
    """Return the 90 % interval of the log ratio, which matches two one-sided 5 % tests."""
    half_width = t_quantile(0.95, comparison.df) * standard_error(comparison)
    return comparison.estimate - half_width, comparison.estimate + half_width


def is_within(comparison: Comparison, *, margin: float) -> bool:
    """Return whether two one-sided 5 % tests put the change in -margin .. +margin (TOST)."""
    low, high = interval90(comparison)
    return math.log1p(-margin) < low and high < math.log1p(margin)


def is_not_slower_than(comparison: Comparison, *, margin: float) -> bool:
    """Return whether the one-sided 95 % bound excludes a loss of `margin` (non-inferiority)."""
    return comparison.n > 1 and interval90(comparison)[0] > math.log1p(-margin)


def may_stop(comparison: Comparison) -> bool:
    """Return whether the sweep may stop: the gain is +5 % or more, and its bound +4 % or more."""
    estimate, lower = relative(comparison.estimate), relative(comparison.lower)
    return comparison.n > 1 and estimate >= STOP_ESTIMATE and lower >= STOP_FLOOR


def straggler_p(slow: int, steps: int, baseline_slow: int, baseline_steps: int) -> float:
    """Return Fisher's exact p that an arm has no more slow steps than the baseline.

    The score leaves slow steps out, so a gain is checked with this p. It supports no finding that
    an arm is slow: steps of a job are correlated, so the p would be too small.
    """
    slow_in_all, in_all = slow + baseline_slow, steps + baseline_steps
    if not steps or not baseline_steps:
        return 1.0
    ways = sum(
        math.comb(steps, k) * math.comb(baseline_steps, slow_in_all - k)
        for k in range(slow, min(steps, slow_in_all) + 1)
    )
    return ways / math.comb(in_all, slow_in_all)


MOST_BLOCKS = 60  # if more are needed, the change is too close to the margin


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLayout:
    """The number of trials of a gate."""

    arms: int  # candidates
    blocks: int  # trials of each candidate
    baselines: int = 1  # baselines in each block

    @property
    def trials(self) -> int:
        """How many trials are run."""
        return self.blocks * (self.arms + self.baselines)

    @property
    def df(self) -> int:
        """Residual degrees of freedom."""
        return design_df(self.arms, self.baselines, self.blocks)

    @property
    def variance(self) -> float:
        """Variance of a candidate's change, in units of the variance of a job's score."""
        return (1 + 1 / self.baselines) / self.blocks

    def noise(self, margin: float) -> float:
        """Return the job noise at which an equal candidate passes with 80 % power."""
        quantiles = t_quantile(0.95, self.df) + t_quantile(0.8, self.df)
        return -math.log1p(-margin) / (quantiles * math.sqrt(self.variance))


def gate(comparison: Comparison, *, margin: float) -> VerdictKind:
    """Return the verdict of a gate: FASTER and EQUIVALENT pass.

    EQUIVALENT means that a loss of `margin` or more is excluded (one-sided, 5 %), SLOWER that the
    candidate is slower and such a loss is not excluded. All else is INCONCLUSIVE.
    """
    kind = decide(comparison, margin=margin)
    if is_not_slower_than(comparison, margin=margin):
        return VerdictKind.FASTER if kind is VerdictKind.FASTER else VerdictKind.EQUIVALENT
    return VerdictKind.SLOWER if kind is VerdictKind.SLOWER else VerdictKind.INCONCLUSIVE


def against_level(values: Sequence[float], level: float) -> VerdictKind:
    """Return whether the mean of job scores is above a level, with an error of 5 % on each side.

    EQUIVALENT means above the level, SLOWER below it, and INCONCLUSIVE that it cannot be decided.
    """
    half_width = half_width90(values)
    if half_width is None:
        return VerdictKind.INCONCLUSIVE
    distance = fmean(values) - level
    if distance > half_width:
        return VerdictKind.EQUIVALENT
    return VerdictKind.SLOWER if distance < -half_width else VerdictKind.INCONCLUSIVE


def half_width90(values: Sequence[float]) -> float | None:
    """Return half the width of the 90 % interval of a mean: t(0.95, n - 1) s / sqrt(n).

    None if there are too few jobs, or all are equal.
    """
    df = len(values) - 1
    spread = stdev(values) if df > 0 and all(map(math.isfinite, values)) else 0.0
    if df < MIN_DF or spread < IDENTICAL:
        return None
    return t_quantile(0.95, df) * spread / math.sqrt(len(values))


def deciding_layout(
    comparison: Comparison, layout: GateLayout, *, margin: float
) -> GateLayout | None:
    """Return the smallest layout that decides with 80 % power at the observed change and noise.

    None if no reasonable one does, because the change is too close to the margin.
    """
    to_margin = comparison.estimate - math.log1p(-margin)
    for blocks in range(2, MOST_BLOCKS + 1):
        larger = dataclasses.replace(layout, blocks=blocks)
        if larger.df < MIN_DF:
            continue
        error = comparison.sigma * math.sqrt(larger.variance)
        power = t_quantile(0.8, larger.df)
        if to_margin > 0:
            decides = to_margin > (t_quantile(0.95, larger.df) + power) * error
        else:
            decides = -comparison.estimate > (_critical(larger) + power) * error
        if decides:
            return larger
    return None


def _critical(layout: GateLayout) -> float:
    return dunnett(layout.arms, layout.df, control_weight=layout.baselines, alpha=SWEEP_ALPHA)
