"""Choose the points of a space of settings to measure next.

A point says which value each setting takes. At most two settings take one; the others stay as
deployed. Half of a batch lies one step from the best points that were measured. The other half is
drawn at random, to find gains that are not next to a measured point.

This module only proposes points and decides nothing. It must not know of profiles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product

from pytest_xlatune.stats.rounds import shuffled

DEPLOYED = -1  # stands for the deployed value of a setting
# for each setting the index of a value on its ladder (the list of its values), or DEPLOYED
Point = tuple[int, ...]

MOST_POINTS = 20_000  # a larger space would take seconds to draw from


def all_points(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield all points of ladders with these lengths: first of one setting, then of two."""
    for setting_count in (1, 2):
        for chosen in combinations(range(len(sizes)), setting_count):
            for places in product(*(range(sizes[setting]) for setting in chosen)):
                place_of = dict(zip(chosen, places, strict=True))
                yield tuple(place_of.get(setting, DEPLOYED) for setting in range(len(sizes)))


def count_points(sizes: Sequence[int]) -> int:
    """Return how many points ladders with these lengths have."""
    return sum(sizes) + sum(one * other for one, other in combinations(sizes, 2))


def ask(
    sizes: Sequence[int],
    measured: Mapping[Point, float],
    *,
    excluded: Collection[Point] = (),
    count: int,
    rng_seed: str,
) -> tuple[Point, ...]:
    """Return at most `count` points to measure next; half of them lie next to the best ones.

    Args:
        sizes: how many values each setting has.
        measured: point -> its log ratio to the baseline; if it is empty, all points are drawn.
        excluded: other points that must not be returned.
        count: how many points the batch has at most.
        rng_seed: the seed of the order in which free points are taken.
    """
    unavailable = {*measured, *excluded}
    points = shuffled(list(all_points(sizes)), f"search {rng_seed}")
    free = [point for point in points if point not in unavailable]
    neighbours: dict[Point, None] = {}
    for best in sorted(measured, key=lambda point: (-measured[point], point)):
        if len(neighbours) >= count / 2:
            break
        neighbours.update(dict.fromkeys(point for point in free if _is_step(best, point)))
    chosen = list(neighbours)[: (count + 1) // 2]
    drawn = [point for point in free if point not in chosen]
    return (*chosen, *drawn[: count - len(chosen)])


def _is_step(one: Point, other: Point) -> bool:
    """Return whether two points differ in one setting by one step.

    A step goes to a neighbour on the ladder, or it adds or removes the setting.
    """
    different = [at for at, place in enumerate(one) if place != other[at]]
    if len(different) != 1:
        return False
    (at,) = different
    return DEPLOYED in (one[at], other[at]) or abs(one[at] - other[at]) == 1
