"""Whether a candidate is no worse than the baseline by a margin: pass, regression, or cannot tell.

Non-inferiority on job scores, three-valued like every rule here, and what it would take to settle
what cannot be told. This module must not know how a gate lays out its trials, only how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from pytest_xlatune.results import Comparison, VerdictKind
from pytest_xlatune.stats.blocks import IDENTICAL
from pytest_xlatune.stats.capacity import MIN_DF, SWEEP_ALPHA, design_df
from pytest_xlatune.stats.compare import decide, is_not_slower_than
from pytest_xlatune.stats.critical import bonferroni, dunnett, t_quantile

MOST_BLOCKS = 60  # beyond, the change is too close to the margin to be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How many trials a gate rests on.

    Attributes:
        arms: candidates.
        blocks: trials of each candidate.
        baselines: in each block; 0 where the baseline is stored.
        stored: baseline trials of an earlier time, used instead.
    """

    arms: int
    blocks: int
    baselines: int = 1
    stored: int = 0

    @property
    def trials(self) -> int:
        """Trials to be run."""
        return self.blocks * (self.arms + self.baselines)

    @property
    def df(self) -> int:
        """Residual degrees of freedom."""
        if self.stored:
            return self.stored + self.arms * self.blocks - self.arms - 1
        return design_df(self.arms, self.baselines, self.blocks)

    @property
    def variance(self) -> float:
        """Variance of a candidate's change, in units of the variance of one job's score."""
        if self.stored:
            return 1 / self.blocks + 1 / self.stored
        return (1 + 1 / self.baselines) / self.blocks

    def noise(self, margin: float) -> float:
        """Return the job noise at which an equal candidate passes with 80 % power."""
        reach = t_quantile(0.95, self.df) + t_quantile(0.8, self.df)
        return -math.log1p(-margin) / (reach * math.sqrt(self.variance))


def gate(comparison: Comparison, *, margin: float) -> VerdictKind:
    """Return the verdict of a gate: FASTER and EQUIVALENT pass.

    EQUIVALENT is "a loss of `margin` or more is excluded" (one-sided, 5 %), SLOWER "slower, and
    such a loss is not excluded"; everything else is INCONCLUSIVE.
    """
    kind = decide(comparison, equivalence=margin)
    if is_not_slower_than(comparison, margin=margin):
        return VerdictKind.FASTER if kind is VerdictKind.FASTER else VerdictKind.EQUIVALENT
    return VerdictKind.SLOWER if kind is VerdictKind.SLOWER else VerdictKind.INCONCLUSIVE


def above(values: Sequence[float], level: float) -> VerdictKind:
    """Return whether the mean of job scores is above a level, one-sided 5 % either way.

    EQUIVALENT is "above", SLOWER "below".
    """
    df = len(values) - 1
    spread = stdev(values) if df > 0 and all(map(math.isfinite, values)) else 0.0
    if df < MIN_DF or spread < IDENTICAL:
        return VerdictKind.INCONCLUSIVE
    reach = t_quantile(0.95, df) * spread / math.sqrt(len(values))
    distance = fmean(values) - level
    if distance > reach:
        return VerdictKind.EQUIVALENT
    return VerdictKind.SLOWER if distance < -reach else VerdictKind.INCONCLUSIVE


def settling(comparison: Comparison, design: Design, *, margin: float) -> Design | None:
    """Return the smallest design that tells with 80 % power, if change and noise are as seen.

    None where no reasonable one does: the change is too close to the margin.
    """
    to_margin = comparison.estimate - math.log1p(-margin)
    for blocks in range(2, MOST_BLOCKS + 1):
        larger = replace(design, blocks=blocks)
        if larger.df < MIN_DF:
            continue
        error = comparison.sigma * math.sqrt(larger.variance)
        power = t_quantile(0.8, larger.df)
        if to_margin > 0:
            is_told = to_margin > (t_quantile(0.95, larger.df) + power) * error
        else:
            is_told = -comparison.estimate > (_critical(larger) + power) * error
        if is_told:
            return larger
    return None


def _critical(design: Design) -> float:
    if design.stored:
        return bonferroni(design.arms, design.df, alpha=SWEEP_ALPHA)
    return dunnett(design.arms, design.df, control_weight=design.baselines, alpha=SWEEP_ALPHA)
