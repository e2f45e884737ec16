"""The sizes that go with one value of the second key; where there is none, all sizes.

Each lane has a ceiling of its own, by its own compiled memory and its own runs. This module must
not know of blocks or verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_xlatune.studies.batch_size._search import (
    START,
    CompiledSizes,
    KnownSizes,
    in_order,
    searched,
)

if TYPE_CHECKING:
    from pytest_xlatune.studies.batch_size._walk import BatchWalk


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
        self.first = number * len(walk.study.values)  # its first place among all cells

    def _own(self, places: Iterable[int]) -> set[int]:
        """Return the places of its sizes, of those among all cells."""
        count = len(self.study.values)
        return {at - self.first for at in places if 0 <= at - self.first < count}

    @cached_property
    def scores(self) -> dict[int, float]:
        """Log scores of its first runs."""
        return {at: self.walk.scores[self.first + at] for at in self._own(self.walk.scores)}

    @cached_property
    def compiled(self) -> CompiledSizes:
        """What compiling says of its sizes together."""
        answers = self.walk.answers
        known = {at: answers[self.first + at] for at in sorted(self._own(answers))}
        limits = [each.limit_bytes for each in known.values() if each.limit_bytes is not None]
        return CompiledSizes(
            sizes=self.study.numbers,
            start=self.study.start,
            needed={
                at: float(each.needed_bytes)
                for at, each in known.items()
                if each.needed_bytes is not None and each.fits is not None
            },
            limit=limits[0] if limits else None,
            unfit=[at for at, each in known.items() if each.fits is False],
            is_over=any(each.fits is None for each in known.values()),
        )

    @property
    def is_answered(self) -> bool:
        """Whether compiling said anything of its sizes."""
        return bool(self.compiled.needed or self.compiled.unfit)

    @property
    def next_compiled(self) -> int | None:
        """The place among all cells to compile next; None where all is known, or cannot be."""
        found = self.compiled.next()
        return None if found is None else self.first + found

    @cached_property
    def top(self) -> int:
        """The largest size that may be tried; -1 where none fits, and with another value some."""
        if self.compiled.top is None:
            return len(self.study.values) - 1
        # where none fits at all, a job says so
        others = (lane for lane in self.walk.lanes if lane is not self)
        is_out = any(lane.compiled.top != -1 for lane in others)
        return self.compiled.top if is_out else max(self.compiled.top, 0)

    @property
    def _start(self) -> int:
        """The first job: below the compiled ceiling where no size was asked for."""
        if self.compiled.top is None or self.study.asked.start is not None:
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
        """The place among all cells of the run that would tell more; None: there is none."""
        is_listed = self.study.asked.names_arms
        found = in_order(self.known) if is_listed else searched(self.known, self._start)
        return None if found is None else self.first + found
