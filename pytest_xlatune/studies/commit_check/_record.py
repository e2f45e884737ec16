"""What a study of commits finds besides verdicts: its words, its record, what both halves share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.model.sentences import COUNTED, WORD_FOR
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies.cell_arms import OF_THE_NODES, CellWalk, is_excused
from pytest_xlatune.studies.staged import FAILS, Words
from pytest_xlatune.studies.trials import first_loss, median_loss

if TYPE_CHECKING:
    from pytest_xlatune.studies.commit_check import CommitStudy  # noqa: F401 - of CommitWalk

KIND = "commits"


class CommitWord(Words):
    """What the study calls its verdicts; OK is no change that was found."""

    OK = "OK"
    SLOWER = "SLOWER", VerdictKind.SLOWER
    FASTER = "FASTER", VerdictKind.FASTER
    BROKEN = "BROKEN", VerdictKind.INVALID, FAILS
    BROKEN_BEFORE = "BROKEN BEFORE", VerdictKind.INVALID
    CANNOT_TELL = "CANNOT TELL", VerdictKind.INCONCLUSIVE
    FIRST_BAD = "FIRST BAD", VerdictKind.SLOWER
    FIRST_FASTER = "FIRST FASTER", VerdictKind.FASTER


class Found(StrEnum):
    """The answer of a search; of a table, that it is one."""

    FIRST = "FIRST"
    RANGE = "RANGE"
    NO_CHANGE = "NO CHANGE"
    CANNOT_TELL = "CANNOT TELL"
    NOT_YET = "NOT YET"
    TABLE = "TABLE"


class CommitsRecord(CellsRecord, frozen=True, kw_only=True):
    """What a study of commits found.

    Attributes:
        found: the answer's word.
        first, last: the commit that changed it, twice; of a range the last commit before it and the
            last that may have changed it.
        is_faster: whether a gain was sought.
        delta: the change, relative; None if unknown.
        excluded: the change that is excluded where none is shown.
        commits: all, as people read them, the first one first.
        skipped: those that could not be measured.
        losses: commits that compute something else.
        words: of a table: verdict -> how many.
        left_out: of a table: what was not submitted.
        why: why nothing can be told; None where something is.
        chances: of each commit, how likely it is the first that changed it; () before a search.
    """

    kind: ClassVar[str] = KIND
    found: str = ""
    first: str = ""
    last: str = ""
    is_faster: bool = False
    delta: Real | None = None
    excluded: Real | None = None
    commits: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    losses: tuple[Message, ...] = ()
    words: tuple[tuple[str, int], ...] = ()
    left_out: tuple[Message, ...] = ()
    why: Message | None = None
    chances: tuple[Real, ...] = ()

    @property
    def summary(self) -> tuple[Message, ...]:
        """The answer, then what else was found."""
        return (self._answer, *self.left_out, *self.losses)

    @property
    def _answer(self) -> Message:
        named = {each.partition(" ")[0]: each for each in self.commits}
        count = len(self.commits)
        change = None if self.delta is None else say(", {change:percent}", change=self.delta)
        match Found(self.found) if self.found else Found.NOT_YET:
            case Found.FIRST:
                text = (
                    "FIRST FASTER {commit}{change}"
                    if self.is_faster
                    else "FIRST BAD {commit}{change}"
                )
                return say(text, commit=named.get(self.first, self.first), change=change)
            case Found.RANGE:
                ends = {"first": self.first, "last": self.last, "change": change}
                skipped = say("; not measured: {commits}", commits=self.skipped)
                return say(
                    "RANGE {first}..{last}{change} between the ends{skipped}",
                    skipped=skipped if self.skipped else None,
                    **ends,
                )
            case Found.NO_CHANGE:
                text = (
                    (
                        "NO CHANGE among {commits:+commit}: a gain of {excluded:size} or more "
                        "is excluded (95 %)"
                    )
                    if self.is_faster
                    else (
                        "NO CHANGE among {commits:+commit}: a loss of {excluded:size} or more "
                        "is excluded (95 %)"
                    )
                )
                return say(text, commits=count, excluded=self.excluded or 0.0)
            case Found.CANNOT_TELL:
                return say(WORD_FOR, word=Found.CANNOT_TELL, why=self.why)
            case Found.TABLE:
                counts = [say(COUNTED, number=number, word=word) for word, number in self.words]
                if not counts:
                    return say("{commits:+commit}: no verdict", commits=count)
                return say("{commits:+commit}: {counts}", commits=count, counts=counts)
            case _:
                return say("the search is not over")

    @property
    def objection(self) -> tuple[Message, ...]:
        """That a commit, or one of a range, made it slower; or that commits compute otherwise."""
        is_slower = self.found in (Found.FIRST, Found.RANGE) and not self.is_faster
        return (*([self._answer] if is_slower else []), *self.losses)


class CommitWalk(CellWalk["CommitStudy"]):
    """What a search and a table have in common: a place is a commit, or a load on one."""

    def place_of(self, trial: Trial) -> int:
        """Return the place that a trial ran."""
        return self.study.places[trial.cell_digest]

    @cached_property
    def by_place(self) -> Mapping[int, Sequence[TrialResult]]:
        """The results of each place, as they came."""
        found: dict[int, list[TrialResult]] = {}
        for each in self.results.values():
            found.setdefault(self.place_of(each.trial), []).append(each)
        return found

    def is_excused(self, result: TrialResult) -> bool:
        """Whether a trial without a score says nothing of its commit."""
        return is_excused(result, OF_THE_NODES)

    def other_losses(self, pairs: Iterable[tuple[int, int]]) -> tuple[Message, ...]:
        """Return how the losses of places differ from those of the ones before."""
        found = []
        for before, after in pairs:
            trials = self.by_place.get(before, ())
            one, other = median_loss(trials), median_loss(self.by_place.get(after, ()))
            if one is None or other is None:
                continue
            tolerance, began = self.study.loss_tolerance, first_loss(trials)
            if different_loss(other, one, tolerance=tolerance, first=began):
                named = {"commit": self.study.ids[after], "before": self.study.ids[before]}
                found.append(
                    say(
                        "{commit} computes something else than {before}: its loss is "
                        "{loss:.6g}, not {loss_before:.6g}",
                        loss=other,
                        loss_before=one,
                        **named,
                    )
                )
        return tuple(found)
