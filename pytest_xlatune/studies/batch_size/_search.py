"""Which size to try next: bracket the largest that fits, then refine around the best so far.

Pure numbers: sizes by their place in an ascending list, log scores, what did not fit. A larger size
is never tried after one that did not fit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

UP, DOWN = 1.5, 1.6  # factors while all sizes fit, while none does
BRACKET = 1.12  # ratio at which the largest that fits is known well enough
ASIDE = 1.35  # from the best down, where no smaller size is known
NEAR = 1.15  # ratio of the neighbours that must be known
STEPS_NEAR, STEPS_RATIO = 2, 1.25  # places beside the best that must be known, up to this ratio
START = 0.75  # of an estimated ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSizes:
    """The knowledge of sizes, by their places in the list.

    Attributes:
        sizes: all that may be tried, ascending.
        scores: log scores of those that ran.
        unfit: those that do not fit.
        lost: those of which no run tells anything.
        top: the largest place that may be tried at all.
    """

    sizes: Sequence[float]
    scores: Mapping[int, float]
    unfit: Collection[int]
    lost: Collection[int]
    top: int

    @property
    def end(self) -> int:
        """The smallest place that is known, or said, not to fit; it is not tried."""
        return min((*self.unfit, self.top + 1))

    def free(self, target: float, after: int, before: int) -> int | None:
        """Return the untried place strictly between two whose size is nearest to a target."""
        known = {*self.scores, *self.unfit, *self.lost}
        places = [at for at in range(max(after + 1, 0), min(before, self.end)) if at not in known]
        return min(
            places,
            key=lambda at: (abs(math.log(self.sizes[at] / target)), at),
            default=None,
        )

    def ratio(self, low: int, high: int) -> float:
        return self.sizes[high] / self.sizes[low]


def in_order(known: KnownSizes) -> int | None:
    """Return the smallest untried place below what does not fit: every size of a short list."""
    return known.free(known.sizes[0], -1, known.end)


def searched(known: KnownSizes, start: int) -> int | None:
    """Return the place to try next; None where the best is known well enough."""
    if not (known.scores or known.unfit):
        return known.free(known.sizes[min(start, known.top)], -1, known.end)
    found = _bracket(known)
    return _refine(known) if found is None else found


def _bracket(known: KnownSizes) -> int | None:
    end = known.end
    if not known.scores:
        return known.free(known.sizes[end] / DOWN, -1, end) if end < len(known.sizes) else None
    low = max(known.scores)
    if not known.unfit:
        # the largest that may be tried is tried where it is not far
        return known.free(known.sizes[low] * UP, low, end)
    if known.ratio(low, min(known.unfit)) <= BRACKET:
        return None
    middle = math.sqrt(known.sizes[low] * known.sizes[min(known.unfit)])
    return known.free(middle, low, end)


def _refine(known: KnownSizes) -> int | None:
    ran = sorted(known.scores)
    if not ran:
        return None
    best = max(ran, key=lambda at: (known.scores[at], -at))
    size = known.sizes[best]
    left = max((at for at in ran if at < best), default=None)
    right = min((at for at in ran if at > best), default=None)
    tries: list[tuple[float, int, int]] = []
    if left is None:
        tries.append((size / ASIDE, -1, best))
    elif known.ratio(left, best) > NEAR:
        tries.append((math.sqrt(known.sizes[left] * size), left, best))
    if right is not None and known.ratio(best, right) > NEAR:
        tries.append((math.sqrt(size * known.sizes[right]), best, right))
    # odd sizes dip: a step beside the best may be on the other side of that
    for step in range(1, STEPS_NEAR + 1):
        for at in (best - step, best + step):
            if not 0 <= at < len(known.sizes):
                continue
            if step == 1 or known.ratio(min(at, best), max(at, best)) <= STEPS_RATIO:
                tries.append((known.sizes[at], at - 1, at + 1))
    found = (known.free(*each) for each in tries)
    return next((each for each in found if each is not None), None)
