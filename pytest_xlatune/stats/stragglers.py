"""Find the ranks of a running job that take longer for their steps than the others do.

In each step, a rank's seconds are divided by the median of all ranks, and a rank's value is the
median of these ratios over a window of steps. So a pause of one step, or a checkpoint that one rank
writes, has little effect. How much ranks differ in a healthy job is estimated from the ranks
themselves: an outlier test on one value for each rank (generalized extreme studentized deviate,
Rosner, Technometrics 25, 1983, one-sided) finds at most a quarter of the ranks. A rank must stand
out in two windows without common steps, by 2 % or more in each. Windows begin at fixed steps, so
that looking more often does not raise the error rate. `benchmarks/straggler_rates.py` measures how
often a job without a straggler is accused.

A straggler cannot be seen if every step waits for all ranks: all then print the same seconds.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from pytest_xlatune.stats.quantiles import t_quantile

WINDOW = 16  # number of steps in a window
WINDOWS = 2  # number of windows in which a straggler stands out
LEAST_RANKS = 4  # with fewer ranks, the outlier test finds none
LEAST_LOSS = 0.02  # a straggler is at least so much slower than the median rank; 0.02 is 2 %
ALPHA = 0.005  # error rate of one window, over all ranks


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that takes longer than the others.

    Attributes:
        rank: the number of the rank.
        slower: how much slower it was than the median rank in the last two windows; 0.05 is 5 %.
    """

    rank: int
    slower: float


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How the seconds of all ranks compare.

    Attributes:
        ranks: number of ranks that were compared.
        first, last: the range of steps that was compared.
        stragglers: the ranks that take longer, the slowest first; () if none does.
        spread: standard deviation of the other ranks' log ratios; 0.01 is 1 %.
    """

    ranks: int
    first: int
    last: int
    stragglers: tuple[Straggler, ...]
    spread: float


def compare_ranks(
    seconds: Mapping[int, Mapping[int, float]], *, first_step: int = 0
) -> RankTimes | None:
    """Compare the ranks in the last two complete windows of steps that all of them printed.

    Args:
        seconds: rank -> step -> seconds of the step.
        first_step: windows are counted from it; earlier steps compile or warm up.

    Returns:
        The comparison; None if too few ranks or steps were printed, or a figure is not a time.
    """
    if len(seconds) < LEAST_RANKS:
        return None
    common = set.intersection(*({*rank_seconds} for rank_seconds in seconds.values()))
    last = max((step for step in common if step >= first_step), default=first_step)
    end = first_step + (last + 1 - first_step) // WINDOW * WINDOW
    steps = range(max(end - WINDOW * WINDOWS, first_step), end)
    if len(steps) < WINDOW * WINDOWS or not common.issuperset(steps):
        return None
    values = [[rank_seconds[step] for step in steps] for rank_seconds in seconds.values()]
    if not all(value > 0 and math.isfinite(value) for row in values for value in row):
        return None
    return _compared([*seconds], values, steps)


def _compared(ranks: Sequence[int], values: Sequence[Sequence[float]], steps: range) -> RankTimes:
    """Compare the ranks, given the seconds of each (a row) in each step (a column)."""
    medians = [statistics.median(column) for column in zip(*values, strict=True)]
    log_ratios = [
        [math.log(value / usual) for value, usual in zip(row, medians, strict=True)]
        for row in values
    ]
    windows = [
        [statistics.median(row[at : at + WINDOW]) for row in log_ratios]
        for at in range(0, len(steps), WINDOW)
    ]
    slower = [math.expm1(min(pair)) for pair in zip(*windows, strict=True)]
    slow = [at for at in range(len(ranks)) if slower[at] >= LEAST_LOSS]
    if slow:  # the test needs scipy, which takes longer to load than most logs to read
        outlying = set.intersection(*(outliers(window) for window in windows))
        slow = [at for at in slow if at in outlying]
    slow.sort(key=lambda at: (-slower[at], ranks[at]))
    others = [value for window in windows for at, value in enumerate(window) if at not in slow]
    return RankTimes(
        ranks=len(ranks),
        first=steps[0],
        last=steps[-1],
        stragglers=tuple(Straggler(rank=ranks[at], slower=slower[at]) for at in slow),
        spread=_spread(others),
    )


def outliers(values: Sequence[float]) -> set[int]:
    """Return the indices of values that are too large to belong with the others."""
    remaining = sorted(range(len(values)), key=lambda at: values[at])
    n_outliers, removed = 0, list[int]()
    for number in range(1, len(values) // 4 + 1):
        remaining_values = [values[at] for at in remaining]
        spread, largest = _spread(remaining_values), remaining_values[-1]
        mean = math.fsum(remaining_values) / len(remaining_values)
        distance = (largest - mean) / spread if spread else 0.0
        removed.append(remaining.pop())
        if distance > _critical(len(values), number):
            n_outliers = number
    return {*removed[:n_outliers]}


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation; the one of `statistics` is exact, but too slow here."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


@functools.lru_cache(maxsize=4096)
def _critical(size: int, number: int) -> float:
    """Return by how many deviations the largest remaining value may exceed the mean.

    `size` counts all values, and `number` is that of the outlier that is tested, from 1.
    """
    remaining = size - number + 1
    quantile = t_quantile(1 - ALPHA / remaining, remaining - 2)
    return (remaining - 1) * quantile / math.sqrt((remaining - 2 + quantile**2) * remaining)
