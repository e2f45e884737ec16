"""Which size to try next: bracket the largest that fits, then refine around the best so far.

Pure numbers: sizes by their place in an ascending list, log scores, what did not fit. A larger size
is never tried after one that did not fit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

UP, DOWN = 1.5, 1.6  # factors while all sizes fit, while none does
# by halves more of the jobs ran out of memory, and none of those tells a speed
GAP = 1 / 3  # of the way from the largest that ran to the smallest that did not, as ratios
BRACKET = 1.12  # ratio at which the largest that fits is known well enough
ASIDE = 1.35  # from the best down, where no smaller size is known
NEAR = 1.15  # ratio of the neighbours that must be known
STEPS_NEAR, STEPS_RATIO = 2, 1.25  # places beside the best that must be known, up to this ratio
START = 0.75  # of an estimated ceiling
ALMOST = 1.05  # ratio to a compiled ceiling at which that itself is tried
MOST_COMPILED = 12  # sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSizes:
    """The knowledge of sizes, by their places in the list.

    Attributes:
        sizes: all that may be tried, ascending.
        scores: log scores of those that ran.
        unfit: those that do not fit.
        lost: those of which no run tells anything.
        top: the largest place that may be tried at all.
        is_compiled: whether a compiler says so, and may not see all that a job takes.
    """

    sizes: Sequence[float]
    scores: Mapping[int, float]
    unfit: Collection[int]
    lost: Collection[int]
    top: int
    is_compiled: bool = False

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSizes:
    """What compiling said of sizes, by their places in the list.

    Attributes:
        sizes: all that may be tried, ascending.
        start: the place that is expected to fit.
        needed: bytes of those that compiled.
        limit: bytes that there are; None is unknown.
        unfit: those that need more, or whose compiling ended for want of memory.
        is_over: whether something could not be answered, so that nothing more is asked.
    """

    sizes: Sequence[float]
    start: int
    needed: Mapping[int, float]
    limit: float | None
    unfit: Collection[int]
    is_over: bool = False

    @property
    def fit(self) -> list[int]:
        """The places that fit, ascending."""
        return sorted(set(self.needed) - set(self.unfit))

    @property
    def top(self) -> int | None:
        """The largest place that fits, once a larger one is known not to; None before, or -1."""
        return max(self.fit, default=-1) if self.unfit else None

    @property
    def grows(self) -> bool:
        """Whether memory grows along the sizes, as far as two of them tell."""
        least, most = (end(self.needed, default=0) for end in (min, max))
        return len(self.needed) < 2 or self.needed[most] > self.needed[least]  # noqa: PLR2004

    def _by_line(self) -> int | None:
        """Return the largest place below the ceiling, by the two compiled sizes nearest to it."""
        if len(self.needed) < 2 or self.limit is None:  # noqa: PLR2004
            return None
        nearest = sorted(self.needed, key=lambda at: abs(self.needed[at] - (self.limit or 0)))
        low, high = sorted(nearest[:2])
        slope = (self.needed[high] - self.needed[low]) / (self.sizes[high] - self.sizes[low])
        if slope <= 0:
            return None
        ceiling = self.sizes[low] + (self.limit - self.needed[low]) / slope
        return max((at for at, size in enumerate(self.sizes) if size <= ceiling), default=0)

    def next(self) -> int | None:
        """Return the place to compile next; None once the ceiling is known, or cannot be."""
        last = len(self.sizes) - 1
        if self.is_over or not self.grows or len(self.needed) + len(self.unfit) >= MOST_COMPILED:
            return None
        low, high = max(self.fit, default=-1), min(self.unfit, default=last + 1)
        if high - low <= 1:
            return None
        if not (self.needed or self.unfit):
            return self._nearest(self.sizes[self.start] / 2)
        if len(self.needed) == 1 and not self.unfit and low < self.start:
            return self.start
        found = self._by_line()
        if found is None or (found >= high and self.unfit):
            # no line, or one that a size without a figure belies: the middle, or twice as large
            ends = (
                self.sizes[max(low, 0)],
                self.sizes[high] if self.unfit else 4 * self.sizes[low],
            )
            found = self._nearest(math.sqrt(ends[0] * ends[1]) if low >= 0 else ends[1] / DOWN)
        # one that is known to fit already is followed by the next, to prove the ceiling
        return min(max(found, low + 1), high - 1)

    def _nearest(self, size: float) -> int:
        return min(range(len(self.sizes)), key=lambda at: (abs(self.sizes[at] - size), at))


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
        wanted = known.sizes[low] * UP
        if known.is_compiled and low < known.top and known.ratio(low, known.top) > ALMOST:
            # by halves: what fails then is near to what ran
            wanted = min(wanted, math.sqrt(known.sizes[low] * known.sizes[known.top]))
        return known.free(wanted, low, end)
    if known.ratio(low, min(known.unfit)) <= BRACKET:
        return None
    # nearer to what ran: a job that does not fit tells nothing of the speed
    wanted = known.sizes[low] * known.ratio(low, min(known.unfit)) ** GAP
    return known.free(wanted, low, end)


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
