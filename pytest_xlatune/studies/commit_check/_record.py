"""What a study of commits finds besides verdicts: its words, its record, what both halves share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies.cell_arms import OF_THE_NODES, CellWalk, is_excused
from pytest_xlatune.studies.trials import first_loss, median_loss

if TYPE_CHECKING:
    from pytest_xlatune.studies.commit_check import CommitStudy  # noqa: F401 - of CommitWalk

KIND = "commits"


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
        delta: the change, relative; None if unknown.
        excluded: the change that is excluded where none is shown.
        commits: all, as people read them, the first one first.
        skipped: those that could not be measured.
        losses: commits that compute something else.
        told: of a table: which arms are slower, cannot run, or cannot be told.
        left_out: of a table: what was not submitted.
        why: why nothing can be told; None where something is.
    """

    kind: ClassVar[str] = KIND
    found: str = ""
    first: str = ""
    last: str = ""
    delta: Real | None = None
    excluded: Real | None = None
    commits: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    losses: tuple[Message, ...] = ()
    told: Message | None = None
    left_out: tuple[Message, ...] = ()
    why: Message | None = None

    @property
    def summary(self) -> tuple[Message, ...]:
        """The answer, then what else was found."""
        return (self._answer, *self.left_out, *self.losses)

    def shown_name(self, arm: str) -> str:
        """Return an arm with the subject of its commit."""
        short = arm.rpartition("-")[2]
        subjects = (each.partition(" ")[2] for each in self.commits if each.startswith(short))
        return f"{arm} {next(subjects, '')}".strip()

    @property
    def _answer(self) -> Message:
        first, last, count = (self.shown_name(self.first), self.last, len(self.commits))
        change = None if self.delta is None else say(", {change:percent}", change=self.delta)
        match Found(self.found) if self.found else Found.NOT_YET:
            case Found.FIRST:
                return say("the first slower commit is {first}{change}", first=first, change=change)
            case Found.RANGE:
                skipped = say("; not measured: {commits}", commits=self.skipped)
                return say(
                    "the first slower commit lies after {first}, up to {last}{change} between the "
                    "ends{skipped}",
                    first=self.first,
                    last=last,
                    change=change,
                    skipped=skipped if self.skipped else None,
                )
            case Found.NO_CHANGE:
                return say(
                    "no change among {commits:+commit}: a loss of {excluded:size} or more is "
                    "excluded (95 %)",
                    commits=count,
                    excluded=self.excluded or 0.0,
                )
            case Found.CANNOT_TELL:
                return say("cannot tell: {why}", why=self.why)
            case Found.TABLE:
                return say("{commits:+commit}: {told}", commits=count, told=self.told)
            case _:
                return say("the search is not over")

    @property
    def objection(self) -> tuple[Message, ...]:
        """That a commit, or one of a range, made it slower; or that commits compute otherwise."""
        is_slower = self.found in (Found.FIRST, Found.RANGE)
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
