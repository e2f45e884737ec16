"""What to try next of a space of settings: single values first, then what promises most.

A point says which value each setting takes, two settings at most; the others stay as deployed,
where the change is 0. A Gaussian process over the points that were measured says what the others
promise and how little is known of them. Its kernel is a sum over the settings, in which values that
lie close on a ladder are alike, and a smaller part for what two settings do together. A batch is
chosen one point after the other, each as if the ones before had been measured at what they promise
(D. Ginsbourger et al., Kriging is well-suited to parallelize optimization, 2010).

Nothing here decides, and none of it is a verdict. This module must not know of profiles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING

from pytest_xlatune.stats.rounds import shuffled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEPLOYED = -1  # the place of a setting that a point leaves alone
Point = tuple[int, ...]  # the place on its ladder of each setting, or DEPLOYED

MOST_POINTS = 20_000  # of a space; more would take seconds to weigh
_TOGETHER = 1.0  # of the variance of one setting, what two do beyond their sum
_BOLD = 1.0  # standard deviations that count in favour of a point
# each third point is where least is known: without, two settings that gain together alone, and harm
# by themselves, were never found
_CURIOUS = 3
_LENGTHS = (0.1, 0.2, 0.4)  # of a ladder, over which its values are alike
_NOISES = (0.05, 0.2, 0.5, 1.0, 3.0)  # variance of a measurement, by that of a setting's effects


def points_of(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield all points of ladders of these lengths: those of one setting, then those of two."""
    for many in (1, 2):
        for chosen in combinations(range(len(sizes)), many):
            for places in product(*(range(sizes[each]) for each in chosen)):
                at = dict(zip(chosen, places, strict=True))
                yield tuple(at.get(each, DEPLOYED) for each in range(len(sizes)))


def count_of(sizes: Sequence[int]) -> int:
    """Return how many points ladders of these lengths have."""
    return sum(sizes) + sum(one * other for one, other in combinations(sizes, 2))


def ask(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    told: Mapping[Point, float],
    *,
    without: Collection[Point] = (),
    count: int,
    rng_seed: str,
) -> tuple[Point, ...]:
    """Return the next points to measure, at most `count`, the most promising first.

    Args:
        sizes: values of each setting.
        ordered: for each setting whether values that lie close are alike.
        told: what was measured so far: log ratios to the baseline.
        without: further points that are never asked for.
        count: of this batch.
        rng_seed: of the order of equals.
    """
    tried = {*told, *without}
    every = shuffled(list(points_of(sizes)), f"search {rng_seed}")
    free = [each for each in every if each not in tried]
    if told:
        return _promising(sizes, ordered, told, free, count)
    # half of the first batch tells of each setting alone: a recipe is as small as it can be
    single = [each for each in free if _settings(each) == 1]
    first = _spread(sizes, ordered, single, -(-count // 2))
    others = [each for each in free if each not in first]
    return first + _spread(sizes, ordered, others, count - len(first))


def _settings(point: Point) -> int:
    return sum(each != DEPLOYED for each in point)


def _spread(
    sizes: Sequence[int], ordered: Sequence[bool], free: Sequence[Point], count: int
) -> tuple[Point, ...]:
    """Return points that say most of all others, before anything is measured."""
    return _batch(sizes, ordered, {}, free, count, length=_LENGTHS[1], noise=_NOISES[1])


def _promising(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    told: Mapping[Point, float],
    free: Sequence[Point],
    count: int,
) -> tuple[Point, ...]:
    """Return the points of the largest promise, as the likeliest kernel has it."""
    shapes = [(length, noise) for length in _LENGTHS for noise in _NOISES]
    best = max(shapes, key=lambda each: _likelihood(sizes, ordered, told, *each))
    return _batch(sizes, ordered, told, free, count, length=best[0], noise=best[1])


def _batch(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    told: Mapping[Point, float],
    free: Sequence[Point],
    count: int,
    *,
    length: float,
    noise: float,
) -> tuple[Point, ...]:
    """Return the points of one batch, by mean and standard deviation of what they promise."""
    import numpy as np

    if not free or count < 1:
        return ()
    mean, scale = np.zeros(len(free)), 1.0
    left = _kernel_of_one(free)  # the variance that is left of each point
    across: NDArray[np.floating] = np.zeros((len(free), 0))
    weights: NDArray[np.floating] = across
    if told:
        own, values = list(told), np.array(list(told.values()))
        known = _kernel(sizes, ordered, own, own, length) + noise * np.eye(len(own))
        across = _kernel(sizes, ordered, free, own, length)
        weights = np.linalg.solve(known, across.T).T
        mean = weights @ values
        left = left - (across * weights).sum(axis=1)
        scale = max(float(values @ np.linalg.solve(known, values)) / len(own), 1e-12) ** 0.5
    chosen: list[int] = []
    taken = np.zeros((len(free), 0))
    for _ in range(min(count, len(free))):
        unknown = np.sqrt(np.clip(left, 0.0, None))
        is_curious = len(chosen) % _CURIOUS == _CURIOUS - 1
        reach = scale * unknown if is_curious else mean + _BOLD * scale * unknown
        reach[chosen] = -np.inf
        # rounding may tell equals apart otherwise on another machine
        at = int(np.argmax(np.round(reach / scale, 6)))
        chosen.append(at)
        column = _kernel(sizes, ordered, free, [free[at]], length)[:, 0]
        column = column - across @ weights[at] - taken @ taken[at]
        column = column / np.sqrt(max(float(column[at]), 0.0) + noise)
        taken = np.column_stack([taken, column])
        left = left - column**2
    return tuple(free[each] for each in chosen)


def _likelihood(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    told: Mapping[Point, float],
    length: float,
    noise: float,
) -> float:
    """Return the log likelihood of what was measured, its scale chosen for the best."""
    import numpy as np

    own, values = list(told), np.array(list(told.values()))
    known = _kernel(sizes, ordered, own, own, length) + noise * np.eye(len(own))
    size = max(float(values @ np.linalg.solve(known, values)) / len(own), 1e-18)
    return -0.5 * len(own) * float(np.log(size)) - 0.5 * float(np.linalg.slogdet(known)[1])


def _kernel_of_one(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return how much each point varies by itself: 1 for a setting, and for two what they add."""
    import numpy as np

    many = np.array([_settings(each) for each in points], dtype=float)
    found: NDArray[np.float64] = many + _TOGETHER * many * (many - 1) / 2
    return found


def _kernel(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    rows: Sequence[Point],
    columns: Sequence[Point],
    length: float,
) -> NDArray[np.float64]:
    """Return how alike points are: rows x columns."""
    import numpy as np

    one, other = np.array(rows), np.array(columns)
    alone = np.zeros((len(sizes), len(rows), len(columns)))
    for at, size in enumerate(sizes):
        a, b = one[:, at, None], other[None, :, at]
        if ordered[at]:
            near = np.exp(-0.5 * ((a - b) / max(length * size, 0.5)) ** 2)
        else:
            near = (a == b).astype(float)
        alone[at] = np.where((a != DEPLOYED) & (b != DEPLOYED), near, 0.0)
    total: NDArray[np.float64] = alone.sum(axis=0)
    pairs = (total**2 - (alone**2).sum(axis=0)) / 2
    found: NDArray[np.float64] = total + _TOGETHER * pairs
    return found
