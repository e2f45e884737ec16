"""Compare runs with those that ran beside them at the same time; bad jobs hardly count.

A few percent of all jobs are slow for no lasting reason. Such a job must neither cause an
accusation nor prevent one. So means are trimmed, and outliers in the pooled noise are cut back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pytest_xlatune.stats.quantiles import t_quantile

MAD = 1.4826  # standard deviation of normal values, in median absolute deviations
LEAST_REPEATS = 2  # fewer differences than this give no estimate
LEAST_LOSS = math.log1p(-0.01)  # the smallest loss that is an accusation, as a log ratio
ALPHA = 0.005  # error rate of an accusation, one-sided
# The standard error of the mean of n normal values without the smallest and the largest, divided by
# that of the plain mean, for n = 0, 1, 2, ... (order statistics, 4 million draws each).
TRIMMED = (1.0, 1.0, 1.0, 1.160, 1.092, 1.066, 1.051, 1.042, 1.035)
FAR = 3.5  # a value beyond so many robust standard deviations is a bad job


def spread_of(values: Sequence[float]) -> float:
    """Return the robust standard deviation of the values; outliers hardly count."""
    level = median(values)
    return MAD * median(abs(value - level) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """How much slower fresh runs are than those beside them; a loss is a negative log ratio.

    Attributes:
        estimate: mean of the differences; with three or more, without the smallest and the largest.
        error: the standard error of the estimate.
        df: degrees of freedom of the pooled noise.
        bound: upper confidence bound of the log ratio; comparisons share its error rate `ALPHA`.
        n: how many fresh runs there are, each paired with one beside it.
        second_loss: the second largest loss of a pair, so that one bad run alone cannot accuse.
    """

    estimate: float
    error: float
    df: int
    bound: float
    n: int
    second_loss: float

    @property
    def accuses(self) -> bool:
        """Whether a loss of at least 1 % is shown, by more than a single run."""
        return self.bound < 0 and max(self.estimate, self.second_loss) <= LEAST_LOSS

    @property
    def is_open(self) -> bool:
        """Whether a loss is neither shown nor unlikely."""
        return not self.accuses and self.estimate <= LEAST_LOSS

    @property
    def ci95(self) -> tuple[float, float]:
        """The two-sided 95 % interval of the estimate."""
        half_width = t_quantile(0.975, self.df) * self.error
        return self.estimate - half_width, self.estimate + half_width


def paired(scores: Iterable[float | None], neighbours: Iterable[float | None]) -> list[float]:
    """Return the differences between runs and those beside them, where both have a score."""
    both = zip(scores, neighbours, strict=True)
    return [a - b for a, b in both if a is not None and b is not None]


def slower(
    differences: Sequence[float],
    others: Sequence[Sequence[float]],
    *,
    family: int = 1,
    jobs: float = 2.0,
) -> Slower | None:
    """Return the loss that pairs of runs show; None with fewer than two.

    Args:
        differences: log ratio of each run to the run beside it.
        others: groups of log scores that contribute to the noise.
        family: number of comparisons, which share the error rate.
        jobs: variance of a difference, divided by that of a job's score: 2 for a pair of runs.
    """
    n = len(differences)
    if n < LEAST_REPEATS:
        return None
    ordered = sorted(differences)
    squares, df = pooled([*others, [difference / math.sqrt(jobs) for difference in ordered]])
    estimate = fmean(ordered[1:-1] or ordered)
    error = TRIMMED[n] * math.sqrt(squares / df * jobs / n)
    return Slower(
        estimate=estimate,
        error=error,
        df=df,
        bound=estimate + t_quantile(1 - ALPHA / family, df) * error,
        n=n,
        second_loss=ordered[1],
    )


def pooled(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return sum of squares and degrees of freedom within groups; bad jobs hardly count.

    A value farther than `FAR` robust standard deviations from the mean of its group counts as if it
    were at that distance. In each group the farthest value is removed first, because it moves the
    mean of the others.
    """
    near = [sorted(group) for group in groups if len(group) > 1]
    total_df = sum(map(len, near)) - len(near)
    while True:
        means = [fmean(group) for group in near]
        distances = [
            abs(value - mean) for group, mean in zip(near, means, strict=True) for value in group
        ]
        df = len(distances) - len(near)
        squares = math.fsum(distance * distance for distance in distances)
        if df < 1:
            return squares, max(df, 0)
        limit = FAR * MAD * median(distances) * math.sqrt(len(distances) / df)
        was_removed = False
        for group, mean in zip(near, means, strict=True):
            farthest = 0 if mean - group[0] >= group[-1] - mean else -1
            # a value of a small group is near the mean, because the mean contains it
            distance = abs(group[farthest] - mean) * math.sqrt(len(group) / (len(group) - 1))
            if len(group) > LEAST_REPEATS and distance > limit > 0:
                del group[farthest]
                was_removed = True
        if not was_removed:
            return squares + (total_df - df) * limit**2, total_df
