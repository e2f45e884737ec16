"""The drift line through the baselines of a screen, and what it says of a job measured once.

A single job's distance from the line ranks it and bounds it; it is never a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_xlatune.stats.critical import t_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Least squares through (slot, score) of n baselines; one baseline is a level.

    Attributes:
        level: the line at `centre`.
        slope: per slot; 0 with one baseline.
        centre: mean slot.
        spread: sum of squared distances of the slots from `centre`.
        squares: sum of squared residuals.
        df: their degrees of freedom.
        n: baselines.
    """

    level: float
    slope: float
    centre: float
    spread: float
    squares: float
    df: int
    n: int

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
