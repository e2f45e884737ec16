"""The sizes that go with one value of the second key; where there is none, all sizes.

Each lane has a ceiling of its own, by its own compiled memory, and is searched as the only one
would be. This module must not know of blocks or verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.batch_size._search import (
    START,
    CompiledSizes,
    KnownSizes,
    in_order,
    searched,
)

if TYPE_CHECKING:
    from pytest_xlatune.studies.batch_size import BatchWalk


class Lane:
    """One value of the second key in a walk. Its sizes are told by their places in their list.

    Args:
        walk: how far the study came.
        number: of the value.
    """

    def __init__(self, walk: BatchWalk, number: int) -> None:
        self.walk = walk
        self.study = walk.study
        self.number = number
        self.first = number * len(walk.study.values)  # its first place among all pairs

    def _own(self, places: Iterable[int]) -> set[int]:
        """Return the places of its sizes, of those among all pairs."""
        count = len(self.study.values)
        return {at - self.first for at in places if 0 <= at - self.first < count}

    @cached_property
    def scores(self) -> dict[int, float]:
        """Log scores of its first runs."""
        return {at: self.walk.scores[self.first + at] for at in self._own(self.walk.scores)}

    @cached_property
    def best(self) -> float | None:
        """The largest of them that is not too near to the ceiling; None before any."""
        unfit = self._own(self.walk.unfit)
        return max((each for at, each in self.scores.items() if at not in unfit), default=None)

    @cached_property
    def answered(self) -> set[int]:
        """Its sizes that were compiled."""
        return self._own(self.walk.answers)

    @cached_property
    def compiled(self) -> CompiledSizes:
        """What compiling says of its sizes together."""
        known = {at: self.walk.answers[self.first + at] for at in sorted(self.answered)}
        limits = [each.limit_bytes for each in known.values() if each.limit_bytes is not None]
        start, before = self.study.start, self.number - 1
        if before >= 0 and (top := self.walk.lanes[before].compiled.top) is not None:
            start = max(top, 0)  # about there
        return CompiledSizes(
            sizes=self.study.numbers,
            start=start,
            needed={
                at: float(each.needed_bytes)
                for at, each in known.items()
                if each.needed_bytes is not None and each.fits is not None
            },
            limit=limits[0] if limits else None,
            unfit=[at for at, each in known.items() if each.fits is False],
            is_over=any(each.fits is None for each in known.values()),
        )

    def takes_as(self, other: Lane) -> bool:
        """Whether each size that was compiled in both lanes takes the same memory; one at least."""
        both = self.compiled.needed.keys() & other.compiled.needed.keys()
        return bool(both) and all(
            self.compiled.needed[at] == other.compiled.needed[at] for at in both
        )

    @property
    def next_compiled(self) -> Trial | None:
        """The size that is to be compiled next; None where all is known, or cannot be."""
        found = self.compiled.next()
        return None if found is None else self.study.compiled(self.first + found)

    @cached_property
    def top(self) -> int:
        """The largest size that may be tried; -1 where none fits, and with another value some."""
        study, last = self.study, len(self.study.values) - 1
        if self.compiled.top is not None:
            # where none fits at all, a job says so
            others = (lane for lane in self.walk.lanes if lane is not self)
            is_out = any(lane.compiled.top != -1 for lane in others)
            return self.compiled.top if is_out else max(self.compiled.top, 0)
        limit = study.asked.compiled_ceiling
        if limit is None or not study.asked.grows:
            return last
        fitting = [at for at, each in enumerate(study.numbers) if each <= limit]
        return max(fitting, default=0)

    @property
    def start(self) -> int:
        """The first job: below the compiled ceiling where no size was asked for."""
        is_said = self.study.asked.start is not None and not self.study.by_values
        if self.compiled.top is None or is_said or self.top < 0:
            return min(self.study.start, self.top)
        wanted = START * self.study.numbers[self.top]
        return min(range(self.top + 1), key=lambda at: abs(self.study.numbers[at] - wanted))

    @cached_property
    def known(self) -> KnownSizes:
        """The knowledge of its sizes, by runs and by compiling."""
        grows, lost = self.study.asked.grows, self._own(self.walk.lost)
        # sizes that failed in a block were below the ceiling of the search
        probed = {at for at in self._own(self.walk.unfit) if at not in self.scores}
        return KnownSizes(
            sizes=self.study.numbers,
            scores=self.scores,
            unfit=probed if grows else (),
            lost=lost if grows else {*lost, *probed},
            top=self._top_after(probed),
            is_compiled=self.compiled.top is not None,
        )

    def _top_after(self, unfit: Collection[int]) -> int:
        """Return the largest size to try after jobs of these did not fit.

        One that a compiler said would fit shows that it does not see everything: the search came
        from below, and risks no further size beside it.
        """
        failed = min(unfit, default=None)
        ran = [at for at in self.scores if failed is not None and at < failed]
        if failed is None or not ran or self.compiled.top is None:
            return self.top
        return max(ran)

    @property
    def wanted(self) -> int | None:
        """The place among all pairs of the run that would tell more; None: there is none."""
        known = self.known
        found = in_order(known) if self.study.tries_all else searched(known, self.start)
        return None if found is None else self.first + found
