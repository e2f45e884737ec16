"""Log ratios to a baseline, lines through scores, and critical values, by the textbook."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts are loaded where they are used

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
    # arm -> critical values of the low ends of what is told of a winner, and of what is likely
    selected: Mapping[str, tuple[float, float]]

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

    def told(self, name: str) -> tuple[float, float]:
        """The interval of a winner: the low end for the best of all, and never below 0."""
        value = self.arms[name].value
        low = value - self.reach(name, self.selected[name][0])
        high = value + self.reach(name, t_quantile(0.95, self.freedom(name)))
        return (max(low, 0.0) if value > 0 else low), high

    def likely(self, name: str) -> tuple[float, float, float] | None:
        """The posterior mean and ends, effects being N(0, 1 %) before; None far beyond those."""
        value, error = self.arms[name].value, self.reach(name, 1.0)
        if abs(value) > 3 * math.hypot(0.01, error):
            return None
        share = 1 / (1 + (error / 0.01) ** 2)
        mean, spread = share * value, math.sqrt(share) * error
        high = t_quantile(0.95, self.freedom(name))
        return mean, mean - self.selected[name][1] * spread, mean + high * spread

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
    return float(scipy.stats.t.ppf(probability, df))


@functools.cache
def dunnett(arms: int, df: int, *, weight: int, alpha: float = ALPHA) -> float:
    """One-sided, `arms` against one control with `weight` times their jobs.

    P(max T <= c) = E_s E_z Phi((c s - sqrt(rho) z) / sqrt(1 - rho))^arms, rho = 1 / (1 + weight),
    df s^2 chi-squared (Dunnett, JASA 50, 1955), by the trapezoidal rule.
    """
    rho = 1 / (1 + weight)
    z = np.linspace(-9, 9, 301)  # 1201 places give the same to 1e-14
    s = np.linspace(1e-6, scipy.stats.chi.ppf(1 - 1e-12, df) / math.sqrt(df), 1201)
    weights, density = scipy.stats.norm.pdf(z), scipy.stats.chi.pdf(s * math.sqrt(df), df)
    density *= math.sqrt(df)

    def excess(c: float) -> float:
        places = (c * s[:, None] - math.sqrt(rho) * z) / math.sqrt(1 - rho)
        by_s = np.trapezoid(scipy.special.ndtr(places) ** arms * weights, z, axis=1)
        return float(np.trapezoid(by_s * density, s)) - (1 - alpha)

    return float(scipy.optimize.brentq(excess, 0.0, 60.0, xtol=1e-9))


def common_slope(points: Sequence[tuple[Any, Any]]) -> tuple[float, list[float], float, int]:
    """Slope, levels at the mean places, squares of the residuals and their degrees of freedom."""
    x = np.concatenate([own - own.mean() for own, _ in points])
    y = np.concatenate([own - own.mean() for _, own in points])
    spread = float(x @ x)
    slope = float(x @ y) / spread if spread else 0.0
    squares = float(np.sum((y - slope * x) ** 2))
    df = max(len(x) - len(points) - bool(spread), 0)
    return slope, [float(own.mean()) for _, own in points], squares, df


def slope_of_all(
    points: Sequence[tuple[Any, Any]], beside: Sequence[tuple[Any, Any]], slope: float
) -> tuple[float, float]:
    """The slope of baselines and profiles, those off the main group without weight; its spread."""
    x = np.concatenate([own for own, _ in (*points, *beside)])
    y = np.concatenate([own for _, own in (*points, *beside)])
    group = np.repeat(range(len(points) + len(beside)), [len(p[0]) for p in (*points, *beside)])
    is_other = group >= len(points)
    spread = 0.0
    for _ in range(5):
        weight = np.ones(len(x))
        weight[is_other] = weights_in_group((y - slope * x)[is_other], group[is_other])
        whole = np.bincount(group, weight)
        x0, y0 = np.bincount(group, weight * x) / whole, np.bincount(group, weight * y) / whole
        spread = float(np.sum(weight * (x - x0[group]) ** 2))
        slope = float(np.sum(weight * (x - x0[group]) * (y - y0[group]))) / spread
    return slope, spread


def weights_in_group(values: Any, group: Any) -> Any:
    """How much each value counts: 0 off the main group, less beyond 1.345 of its deviations.

    The main group of all: by the upper quartile of each group, within five times the distance of
    the nearest quarter; then five times the median of what lies within five deviations.
    """
    names, group = np.unique(group, return_inverse=True)
    own = [np.sort(values[group == g]) for g in range(len(names))]
    centres = np.array([each[3 * len(each) // 4] for each in own])

    def distances(kept: Any) -> Any:
        found = np.sort(np.abs(values - centres[group])[kept])[len(names) :]
        return found if len(found) else np.zeros(1)

    off = distances(np.ones(len(values), dtype=bool))
    sd = max(float(off[len(off) // 4]), 1e-9)
    for _ in range(5):
        kept = np.abs(values - centres[group]) <= 5 * sd
        for g in range(len(names)):
            inside = values[kept & (group == g)]
            centres[g] = np.median(inside) if len(inside) else centres[g]
        sd = max(1.4826 * float(np.median(distances(kept))), 1e-9)
    off = np.abs(values - centres[group])
    return np.where(off > 3 * sd, 0.0, 1.345 * sd / np.maximum(off, 1.345 * sd))


def ran_twice(
    second: Sequence[tuple[int, str, float]], once: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    """The mean of two runs, of (epoch, profile, score): the second are set on the mean of first."""
    found = {}
    for epoch in {each for each, _, _ in second}:
        own = {name: value for at, name, value in second if at == epoch and name in once}
        for name, value in own.items():
            off = (sum(own.values()) - sum(once[each].value for each in own)) / len(own)
            both = (once[name].value + value - off) / 2
            found[name] = Estimate(value=both, variance=once[name].variance - 0.5)
    return found


def is_apart(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether a two-sided 5 % test of an offset, beside a common slope, finds one."""
    if not len(one[0]) or not len(other[0]):
        return False
    x, y = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    late = np.concatenate([np.zeros(len(one[0])), np.ones(len(other[0]))])
    design = np.column_stack([np.ones(len(x)), x, late])
    df = len(x) - int(np.linalg.matrix_rank(design))
    if df < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return False
    effects, *_ = np.linalg.lstsq(design, y, rcond=None)
    squares = float(np.sum((y - design @ effects) ** 2))
    error = math.sqrt(squares / df * float(np.linalg.inv(design.T @ design)[2, 2]))
    return abs(float(effects[2])) > t_quantile(0.975, df) * error
