"""What a study of commits finds besides verdicts: its words, its record, what both halves share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import LATER
from pytest_xlatune.model.result import Action, State, TrialResult, VerdictKind
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies.staged import Words
from pytest_xlatune.studies.trials import usable

if TYPE_CHECKING:
    from pytest_xlatune.studies.commit_check import CommitStudy

KIND = "commits"


class CommitWord(StrEnum):
    """What the study calls its verdicts."""

    OK = "OK"
    SLOWER = "SLOWER"
    FASTER = "FASTER"
    BROKEN = "BROKEN"
    BROKEN_BEFORE = "BROKEN BEFORE"
    CANNOT_TELL = "CANNOT TELL"
    FIRST_BAD = "FIRST BAD"
    FIRST_FASTER = "FIRST FASTER"


# OK is no change that was found
WORDS = Words(
    kinds={
        CommitWord.OK: None,
        CommitWord.SLOWER: VerdictKind.SLOWER,
        CommitWord.FASTER: VerdictKind.FASTER,
        CommitWord.BROKEN: VerdictKind.INVALID,
        CommitWord.BROKEN_BEFORE: VerdictKind.INVALID,
        CommitWord.CANNOT_TELL: VerdictKind.INCONCLUSIVE,
        CommitWord.FIRST_BAD: VerdictKind.SLOWER,
        CommitWord.FIRST_FASTER: VerdictKind.FASTER,
    },
    cannot_run=(CommitWord.BROKEN,),
)


class Found(StrEnum):
    """The answer of a search; of a table, that it is one."""

    FIRST = "FIRST"
    RANGE = "RANGE"
    NO_CHANGE = "NO CHANGE"
    CANNOT_TELL = "CANNOT TELL"
    NOT_YET = "NOT YET"
    TABLE = "TABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsRecord(CellsRecord):
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
    delta: float | None = None
    excluded: float | None = None
    commits: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    losses: tuple[Reason, ...] = ()
    words: tuple[tuple[str, int], ...] = ()
    left_out: tuple[Reason, ...] = ()
    why: Reason | None = None
    chances: tuple[float, ...] = field(default=(), metadata=LATER)

    @property
    def summary(self) -> tuple[Reason, ...]:
        """The answer, then what else was found."""
        return (self._answer, *self.left_out, *self.losses)

    @property
    def _answer(self) -> Reason:
        named = {each.partition(" ")[0]: each for each in self.commits}
        count = len(self.commits)
        change = None if self.delta is None else Reason(Why.BY_CHANGE, change=self.delta)
        match Found(self.found) if self.found else Found.NOT_YET:
            case Found.FIRST:
                kind = Why.FIRST_FASTER if self.is_faster else Why.FIRST_BAD
                return Reason(kind, commit=named.get(self.first, self.first), change=change)
            case Found.RANGE:
                ends = {"first": self.first, "last": self.last, "change": change}
                skipped = Reason(Why.COMMITS_SKIPPED, commits=self.skipped)
                return Reason(Why.RANGE, skipped=skipped if self.skipped else None, **ends)
            case Found.NO_CHANGE:
                kind = Why.NO_GAIN_AMONG if self.is_faster else Why.NO_LOSS_AMONG
                return Reason(kind, commits=count, excluded=self.excluded or 0.0)
            case Found.CANNOT_TELL:
                return Reason(Why.WORD_FOR, word=Found.CANNOT_TELL, why=self.why)
            case Found.TABLE:
                counts = [
                    Reason(Why.COUNTED, number=number, word=word) for word, number in self.words
                ]
                if not counts:
                    return Reason(Why.COMMITS_OPEN, commits=count)
                return Reason(Why.COMMITS_COUNTED, commits=count, counts=counts)
            case _:
                return Reason(Why.SEARCH_NOT_OVER)

    @property
    def objection(self) -> tuple[Reason, ...]:
        """That a commit, or one of a range, made it slower; or that commits compute otherwise."""
        is_slower = self.found in (Found.FIRST, Found.RANGE) and not self.is_faster
        return (*([self._answer] if is_slower else []), *self.losses)


# a trial that ended so says nothing of its commit
_NOT_THE_COMMIT = frozenset(
    {
        *(FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.LOST),
        *(FailureClass.REQUEUED, FailureClass.NEVER_STARTS),
        *(FailureClass.HUB, FailureClass.GITHUB_5XX, FailureClass.SLURM_CONTROLLER_DOWN),
        *(FailureClass.QUEUE_LIMIT, FailureClass.SUBMISSION_REFUSED, FailureClass.BUDGET),
        *(FailureClass.LOG_UNREADABLE, FailureClass.OUTCOME_UNREADABLE),
        *(FailureClass.NODE_FAIL, FailureClass.NODE_DRAIN),
        *(FailureClass.GPU_HARDWARE, FailureClass.GPU_ECC, FailureClass.NIC_FAULT),
    }
)
_NOT_THE_COMMIT_STATES = (
    *(State.CANCELLED, State.PREEMPTED, State.LOST, State.REQUEUED),
    State.NODE_FAIL,
)


def is_of_the_site(result: TrialResult) -> bool:
    """Whether a trial without a score says nothing of its commit."""
    if result.outcome is not None and result.outcome.state in _NOT_THE_COMMIT_STATES:
        return True
    asked = [each for each in result.findings if each.action not in (Action.NONE, Action.SUCCESS)]
    found = asked or list(result.findings)
    return bool(found) and found[-1].cls in _NOT_THE_COMMIT


def median_of_losses(own: Sequence[TrialResult]) -> float | None:
    """Return the median loss of scored trials; None where none was printed."""
    losses = [s.loss for each in own if (s := usable(each)) and s.loss is not None]
    return median(losses) if losses else None


def loss_finding(
    study: CommitStudy, before: int, after: int, by_place: Mapping[int, Sequence[TrialResult]]
) -> Reason | None:
    """Return how the loss at a commit differs from that at another; None where it does not."""
    one, other = (median_of_losses(by_place.get(at, ())) for at in (before, after))
    if one is None or other is None:
        return None
    if not different_loss(other, one, tolerance=study.loss_tolerance):
        return None
    named = {"commit": study.ids[after], "before": study.ids[before]}
    return Reason(Why.COMMIT_OTHER_LOSS, loss=other, loss_before=one, **named)
