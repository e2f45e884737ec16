"""Log ratios to a baseline: their bounds, and the critical values behind them, by the textbook."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

ALPHA = 0.05
ENOUGH_DF = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A log ratio to the baseline, and its variance in units of sigma squared."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The least squares of the blocks, and what one look at them allows to say."""

    arms: Mapping[str, Estimate]
    kept: frozenset[str]  # to the last block
    family: int  # arms that entered the first
    sigma: float
    df: int
    criticals: Mapping[tuple[str, int], float]  # arm, arms that share alpha
    methods: Mapping[str, str]
    alone: Mapping[str, float]  # arm that stands on its own noise -> its standard error

    def reach(self, name: str, factor: float) -> float:
        pooled = self.sigma * math.sqrt(self.arms[name].variance)
        return factor * self.alone.get(name, pooled)

    def freedom(self, name: str) -> int:
        return min(self.df, 10) if name in self.alone else self.df

    def lower(self, name: str) -> float:
        """The bound that all arms of the family exceed at once."""
        return self.arms[name].value - self.reach(name, self.criticals[name, self.family])

    def upper(self, name: str) -> float:
        return self.arms[name].value + self.reach(name, self.criticals[name, self.family])

    def interval(self, name: str, probability: float = 0.95) -> tuple[float, float]:
        reach = self.reach(name, t_quantile((1 + probability) / 2, self.freedom(name)))
        return self.arms[name].value - reach, self.arms[name].value + reach

    def mde80(self, name: str) -> float:
        factor = self.criticals[name, self.family] + t_quantile(0.8, self.freedom(name))
        return math.expm1(self.reach(name, factor))

    def winners(self, control: str) -> set[str]:
        """The arms that pass one after the other, each against one arm less than the last."""
        own = sorted(
            self.kept - {control},
            key=lambda name: -self.arms[name].value / self.reach(name, 1),
        )
        passed: set[str] = set()
        for size, name in zip(range(self.family, 0, -1), own, strict=False):
            least = self.arms[name].value - self.reach(name, self.criticals[name, size])
            if min(least, self.interval(name)[0]) <= 0:
                break
            passed.add(name)
        return passed


def combined(parts: Sequence[Estimate]) -> Estimate:
    weight = sum(1 / each.variance for each in parts)
    value = sum(each.value / each.variance for each in parts) / weight
    return Estimate(value=value, variance=1 / weight)


def t_quantile(probability: float, df: int) -> float:
    return float(stats.t.ppf(probability, df))


@functools.cache
def dunnett(arms: int, df: int, *, weight: int) -> float:
    """One-sided, `arms` against one control with `weight` times their jobs.

    P(max T <= c) = E_s E_z Phi((c s - sqrt(rho) z) / sqrt(1 - rho))^arms, rho = 1 / (1 + weight),
    df s^2 chi-squared (Dunnett, JASA 50, 1955), by the trapezoidal rule.
    """
    rho = 1 / (1 + weight)
    z = np.linspace(-9, 9, 1201)
    s = np.linspace(1e-6, stats.chi.ppf(1 - 1e-12, df) / math.sqrt(df), 1201)
    density = stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)

    def excess(c: float) -> float:
        inner = stats.norm.cdf((c * s[:, None] - math.sqrt(rho) * z) / math.sqrt(1 - rho)) ** arms
        by_s = np.trapezoid(inner * stats.norm.pdf(z), z, axis=1)
        return float(np.trapezoid(by_s * density, s)) - (1 - ALPHA)

    return float(optimize.brentq(excess, 0.0, 60.0, xtol=1e-9))
