"""Least squares of fresh blocks: one estimate per arm against the control beside it.

Additive model, score = block + arm + error, so that whatever a block has in common (time of day,
drift, a node swap) drops out. Missing cells are allowed; complete blocks give differences of plain
means. This module must not know what an arm is or how its scores came about.

And the drift line through the baselines of a screen: a single job's distance from it ranks the job
and bounds it; it is never a verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pytest_xlatune.stats.design import t_quantile

IDENTICAL = 1e-9  # scores that agree to this were copied, not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScore:
    """The score of one job of an arm in a block."""

    block: Hashable
    arm: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFit:
    """An arm against the control: difference of log scores, its variance in units of sigma^2."""

    estimate: float
    variance: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFit:
    """What the blocks say."""

    # by name, the control left out; an arm that no block links to the control is absent
    arms: dict[str, ArmFit]
    sigma: float  # residual standard deviation of one job's score
    df: int  # residual degrees of freedom
    n_control: int  # control jobs
    n_blocks: int  # blocks
    # control jobs per job of an arm, where every block is complete; else None
    control_weight: float | None


def fit_blocks(scores: Sequence[BlockScore], *, control: str) -> BlockFit | None:
    """Fit block and arm effects; None where there is no control or nothing beside it."""
    counts = Counter(each.arm for each in scores)
    arms = sorted(counts.keys() - {control})
    if not arms or not counts[control]:
        return None
    import numpy as np

    blocks = list(dict.fromkeys(each.block for each in scores))
    column = {arm: at for at, arm in enumerate(arms)}
    row = {block: len(arms) + at for at, block in enumerate(blocks)}
    design = np.zeros((len(scores), len(arms) + len(blocks)))
    for at, each in enumerate(scores):
        design[at, row[each.block]] = 1.0
        if each.arm != control:
            design[at, column[each.arm]] = 1.0
    values = np.array([each.value for each in scores])
    # centred: a common factor of all TGS must not cost digits
    values -= values.mean()
    normal = design.T @ design
    inverse = np.linalg.pinv(normal, rcond=1e-10, hermitian=True)
    effects = inverse @ (design.T @ values)
    residual = values - design @ effects
    estimable = inverse @ normal
    df = len(scores) - round(float(np.trace(estimable)))
    squares = float(residual @ residual)
    fits = {
        arm: ArmFit(estimate=float(effects[at]), variance=float(inverse[at, at]), n=counts[arm])
        for arm, at in column.items()
        if abs(float(estimable[at, at]) - 1) < 1e-6  # noqa: PLR2004 - rounding of a projection
    }
    return BlockFit(
        arms=fits,
        sigma=math.sqrt(squares / df) if df > 0 else math.nan,
        df=df,
        n_control=counts[control],
        n_blocks=len(blocks),
        control_weight=_control_weight(scores, arms, control, len(blocks)),
    )


def _control_weight(
    scores: Sequence[BlockScore], arms: Sequence[str], control: str, blocks: int
) -> float | None:
    cells = Counter((each.block, each.arm) for each in scores)
    per_block = {block: cells[block, control] for block, _ in cells}
    complete = len(set(per_block.values())) == 1 and all(
        cells[block, arm] == 1 for block in per_block for arm in arms
    )
    weight = next(iter(per_block.values()))
    return float(weight) if complete and weight and len(per_block) == blocks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Least squares through (slot, score) of n baselines; one baseline is a level."""

    level: float  # the line at `centre`
    slope: float  # per slot; 0 with one baseline
    centre: float  # mean slot
    spread: float  # sum of squared distances of the slots from `centre`
    squares: float  # sum of squared residuals
    df: int  # their degrees of freedom
    n: int  # baselines

    def at(self, slot: float) -> float:
        """Return the baseline's score expected in a slot."""
        return self.level + self.slope * (slot - self.centre)

    def leverage(self, slot: float) -> float:
        """Return the variance of (one job - line) in a slot, in units of sigma^2."""
        tilt = (slot - self.centre) ** 2 / self.spread if self.spread else 0.0
        return 1 + 1 / self.n + tilt


def fit_line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Fit the line through (slot, score); None without a point."""
    if not points:
        return None
    n = len(points)
    ordered = sorted(points)
    centre = math.fsum(slot for slot, _ in ordered) / n
    level = math.fsum(score for _, score in ordered) / n
    spread = math.fsum((slot - centre) ** 2 for slot, _ in ordered)
    cross = math.fsum((slot - centre) * (score - level) for slot, score in ordered)
    slope = cross / spread if spread else 0.0
    squares = math.fsum((score - level - slope * (slot - centre)) ** 2 for slot, score in ordered)
    return Line(
        level=level,
        slope=slope,
        centre=centre,
        spread=spread,
        squares=squares,
        df=max(n - (2 if spread else 1), 0),
        n=n,
    )


def upper_bound(estimate: float, variance: float, *, sigma: float, df: int) -> float:
    """Return the bound that a log ratio exceeds with 2.5 % probability.

    Half of 5 %, for the smaller of two such bounds is taken (screen alone, screen with blocks).
    """
    return estimate + t_quantile(0.975, df) * sigma * math.sqrt(variance)


def combine(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (estimate, variance) of independent (estimate, variance), by inverse variance."""
    weight = math.fsum(1 / variance for _, variance in parts)
    return math.fsum(estimate / variance for estimate, variance in parts) / weight, 1 / weight
