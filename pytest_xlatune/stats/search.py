"""What to try next of a space of settings: steps from the best points, and points that are drawn.

A point says which value each setting takes, two settings at most; the others stay as deployed. One
half of a batch lies one step from the best of the points that were measured. The other half is
drawn: it finds gains that lie beside no measured point.

Nothing here decides, and none of it is a verdict. This module must not know of profiles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product

from pytest_xlatune.stats.rounds import shuffled

DEPLOYED = -1  # the place of a setting that a point leaves alone
Point = tuple[int, ...]  # the place on its ladder of each setting, or DEPLOYED

MOST_POINTS = 20_000  # of a space; more would take seconds to draw from


def points_of(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield all points of ladders of these lengths: those of one setting, then those of two."""
    for many in (1, 2):
        for chosen in combinations(range(len(sizes)), many):
            for places in product(*(range(sizes[setting]) for setting in chosen)):
                at = dict(zip(chosen, places, strict=True))
                yield tuple(at.get(setting, DEPLOYED) for setting in range(len(sizes)))


def count_of(sizes: Sequence[int]) -> int:
    """Return how many points ladders of these lengths have."""
    return sum(sizes) + sum(one * other for one, other in combinations(sizes, 2))


def ask(
    sizes: Sequence[int],
    ordered: Sequence[bool],
    measured: Mapping[Point, float],
    *,
    without: Collection[Point] = (),
    count: int,
    rng_seed: str,
) -> tuple[Point, ...]:
    """Return the next points to measure, at most `count`: half are steps from the best ones.

    Args:
        sizes: values of each setting.
        ordered: whether values of a setting that lie close are alike, for each setting.
        measured: the log ratio to the baseline of each point that was measured so far; where none
            was, all points are drawn.
        without: further points that are never asked for.
        count: points of this batch.
        rng_seed: the seed of the draw, and of the order of equals.
    """
    tried = {*measured, *without}
    every = shuffled(list(points_of(sizes)), f"search {rng_seed}")
    free = [point for point in every if point not in tried]
    steps: dict[Point, None] = {}
    for best in sorted(measured, key=lambda point: (-measured[point], point)):
        if len(steps) >= count / 2:
            break
        steps.update(dict.fromkeys(point for point in free if _is_step(best, point, ordered)))
    chosen = list(steps)[: -(-count // 2)]
    drawn = [point for point in free if point not in chosen]
    return (*chosen, *drawn[: count - len(chosen)])


def _is_step(one: Point, other: Point, ordered: Sequence[bool]) -> bool:
    """Whether two points differ in one setting: by a neighbour on its ladder, or in having it."""
    unlike = [at for at, place in enumerate(one) if place != other[at]]
    if len(unlike) != 1:
        return False
    (at,) = unlike
    is_in_both = DEPLOYED not in (one[at], other[at])
    return not (ordered[at] and is_in_both) or abs(one[at] - other[at]) == 1
