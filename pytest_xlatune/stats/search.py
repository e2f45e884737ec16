"""What to try next of a space of settings: what promises most, and points that are drawn.

A point says which value each setting takes, two settings at most; the others stay as deployed,
where the change is 0. A Gaussian process over the points that were measured says what the others
promise and how little is known of them. Its kernel has three equal parts: a sum over the settings,
in which values that lie close on a ladder are alike; the same of two settings together; and a part
that all points of the same settings share. Points are chosen one after the other, each as if the
ones before had been measured at what they promise (D. Ginsbourger et al., Kriging is well-suited to
parallelize optimization, 2010). Half of a batch is drawn: it finds gains that no point promises.

Nothing here decides, and none of it is a verdict. This module must not know of profiles.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.stats.rounds import shuffled

DEPLOYED = -1  # the place of a setting that a point leaves alone
Point = tuple[int, ...]  # the place on its ladder of each setting, or DEPLOYED

MOST_POINTS = 20_000  # of a space; more would take seconds to weigh
_LENGTHS = (0.1, 0.2, 0.4)  # of a ladder, over which its values are alike
_NOISES = (0.05, 0.2, 0.5, 1.0, 3.0)  # variance of a measurement, by that of a part of the kernel


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
    """Return the next points to measure, at most `count`: the promising half, then those drawn.

    Args:
        sizes: values of each setting.
        ordered: for each setting whether values that lie close are alike.
        told: what was measured so far: log ratios to the baseline; where none was, all are drawn.
        without: further points that are never asked for.
        count: of this batch.
        rng_seed: of the draw, and of the order of equals.
    """
    tried = {*told, *without}
    every = shuffled(list(points_of(sizes)), f"search {rng_seed}")
    free = [each for each in every if each not in tried]
    best = _promising(sizes, ordered, told, free, -(-count // 2)) if told else ()
    drawn = [each for each in free if each not in best]
    return (*best, *drawn[: count - len(best)])


def _promising(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    told: Mapping[Point, float],
    free: Sequence[Point],
    count: int,
) -> tuple[Point, ...]:
    """Return the points with the most promise, a standard deviation added, of the likeliest kernel.

    Means and deviations are in units of the kernel's own scale.
    """
    own, values = list(told), np.array(list(told.values()))
    shapes = []
    alike = [_kernel(sizes, ordered, own, own, length) for length in _LENGTHS]
    for (length, kernel), noise in product(zip(_LENGTHS, alike, strict=True), _NOISES):
        known = kernel + noise * np.eye(len(own))
        scale = max(float(values @ np.linalg.solve(known, values)) / len(own), 1e-18)
        unlikely = len(own) * math.log(scale) + float(np.linalg.slogdet(known)[1])
        shapes.append((unlikely, length, noise, scale, known))
    _, length, noise, scale, known = min(shapes, key=lambda each: each[0])
    across = _kernel(sizes, ordered, free, own, length)
    weights = np.linalg.solve(known, across.T).T
    mean = weights @ values / math.sqrt(scale)
    many = (np.array(free).reshape(len(free), len(sizes)) != DEPLOYED).sum(axis=1)
    left = 1 + many + many * (many - 1) / 2 - (across * weights).sum(axis=1)
    chosen: list[int] = []
    taken = np.zeros((len(free), 0))
    for _ in range(min(count, len(free))):
        reach = mean + np.sqrt(np.clip(left, 0.0, None))
        reach[chosen] = -np.inf
        # rounding may tell equals apart otherwise on another machine
        at = int(np.argmax(np.round(reach, 6)))
        chosen.append(at)
        column = _kernel(sizes, ordered, free, [free[at]], length)[:, 0]
        column = column - across @ weights[at] - taken @ taken[at]
        column = column / np.sqrt(max(float(column[at]), 0.0) + noise)
        taken = np.column_stack([taken, column])
        left = left - column**2
    return tuple(free[each] for each in chosen)


def _kernel(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    rows: Sequence[Point],
    columns: Sequence[Point],
    length: float,
) -> NDArray[np.float64]:
    """Return how alike points are: rows x columns."""
    one, other = (np.array(each).reshape(len(each), len(sizes)) for each in (rows, columns))
    total, squares = np.zeros((2, len(rows), len(columns)))
    is_alike = np.ones((len(rows), len(columns)), dtype=bool)
    for at, size in enumerate(sizes):
        a, b = one[:, at, None], other[None, :, at]
        if ordered[at]:
            near = np.exp(-0.5 * ((a - b) / max(length * size, 0.5)) ** 2)
        else:
            near = (a == b).astype(float)
        near = np.where((a != DEPLOYED) & (b != DEPLOYED), near, 0.0)
        total, squares = total + near, squares + near**2
        is_alike &= (a != DEPLOYED) == (b != DEPLOYED)
    found: NDArray[np.float64] = total + (total**2 - squares) / 2 + is_alike
    return found
