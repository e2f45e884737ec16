"""What a line of the ledger may say.

Pure values, one class for each kind of event; `kind` is its word in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pytest_xlatune.cells import Cell, Trial
from pytest_xlatune.records import Record
from pytest_xlatune.results import Finding, Outcome, Submission, TrialResult


class Event(Record):
    """Base of what a line says. `kind` is the word in the line."""

    __slots__ = ()
    kind: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOpened(Event):
    """A session began or resumed work on the cell.

    Attributes:
        cell: what is held fixed.
        study: the study's name.
        sweep: the sweep's name.
        session: id of the pytest session, shared by all its processes.
        declared: the study as JSON text, so that the ledger alone repeats every conclusion.
        versions: of the software, by name.
    """

    kind: ClassVar[str] = "campaign-opened"
    cell: Cell
    study: str
    sweep: str = ""
    session: str = ""
    declared: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlanned(Event):
    """A study proposed the trial; the first such line gives it its place in the plan."""

    kind: ClassVar[str] = "trial-planned"
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptIntended(Event):
    """About to be submitted; without an `AttemptSubmitted` after it, look for the comment."""

    kind: ClassVar[str] = "attempt-intended"
    trial_id: str
    attempt: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSubmitted(Event):
    """An executor took it and named the job."""

    kind: ClassVar[str] = "attempt-submitted"
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCutShort(Event):
    """A running attempt can measure nothing any more: whoever looks after it now ends it.

    Attributes:
        still_s: seconds without a step.
        fatal: the line after which it cannot go on; None where it hangs without a word.
    """

    kind: ClassVar[str] = "attempt-cut-short"
    trial_id: str
    attempt: int
    still_s: float
    fatal: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(Event):
    """How the attempt ended and what its log shows."""

    kind: ClassVar[str] = "attempt-ended"
    trial_id: str
    attempt: int
    outcome: Outcome
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded(Event):
    """The trial's final result."""

    kind: ClassVar[str] = "trial-ended"
    result: TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Event):
    """A recovery decision: what follows from the attempt, why, and on which evidence.

    Attributes:
        next: the decision's word, e.g. "retry" or "drop".
        cls: the failure class it was taken on.
        reason: one sentence.
        evidence: the line of the log, or the scheduler's words.
        not_before_s: time before which the next attempt must not start; 0 is at once.
    """

    kind: ClassVar[str] = "decided"
    trial_id: str
    attempt: int
    next: str
    cls: str = ""
    reason: str = ""
    evidence: str = ""
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPinned(Event):
    """The scheduler picked the nodes of the first trial; all others run on the same."""

    kind: ClassVar[str] = "nodes-pinned"
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """Anything a reader should know, e.g. what was done to bring a node back."""

    kind: ClassVar[str] = "noted"
    text: str


EVENTS: dict[str, type[Event]] = {
    each.kind: each
    for each in (
        CampaignOpened,
        TrialPlanned,
        AttemptIntended,
        AttemptSubmitted,
        AttemptCutShort,
        AttemptEnded,
        TrialEnded,
        Decided,
        NodesPinned,
        Noted,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event with its 1-based line number and its time in seconds since the epoch."""

    number: int
    at_s: float
    event: Event
