"""What a line of the ledger may say.

Pure values, one class for each kind of event; `kind` is its word in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pytest_xlatune.cells import Cell, DeployedFile, Trial
from pytest_xlatune.records import Record
from pytest_xlatune.results import Finding, Outcome, Shares, Submission, TrialResult


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
        settings: what the user said, by name: where.
    """

    kind: ClassVar[str] = "campaign-opened"
    cell: Cell
    study: str
    sweep: str = ""
    session: str = ""
    declared: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


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
class AttemptLetGo(Event):
    """Nobody waits for a running attempt any more: it is ended next, and that is nobody's fault."""

    kind: ClassVar[str] = "attempt-let-go"
    trial_id: str
    attempt: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRead(Event):
    """The files that deploy the cell, as a session found them; the last such event counts."""

    kind: ClassVar[str] = "files-read"
    files: tuple[DeployedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCompiled(Event):
    """What compiling a profile said of it, before any of its trials was queued.

    Attributes:
        profile: which.
        key: digest of all that it rests on: program, settings, compiler, limits.
        cls: its class, e.g. "identical to the baseline".
        sentence: why.
        by: what compiled it, and for which device.
        setting: digest of its program and of what acts at run time; "" where there is no program.
        later: settings that may act at run time only.
        took_s: seconds of compiling.
    """

    kind: ClassVar[str] = "profile-compiled"
    profile: str
    key: str
    cls: str
    sentence: str
    by: str = ""
    setting: str = ""
    later: tuple[str, ...] = ()
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRecorded(Event):
    """Where the dump and the captures of an evidence trial lie.

    Attributes:
        trial_id: whose.
        dump: folder of the compiler's dump, relative to the ledger's folder; "" is none.
        captures: files of the profiler, relative to the ledger's folder.
        facts: what they say, one sentence each.
        problems: one sentence for each thing that could not be read.
        shares: where the time of a step went; None from an older writer, or without a trace.
    """

    kind: ClassVar[str] = "evidence-recorded"
    trial_id: str
    dump: str = ""
    captures: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    shares: Shares | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan(Event):
    """The nodes are not what they were: no score from here on compares with one before.

    Attributes:
        reason: what was done to them, or which others they are.
    """

    kind: ClassVar[str] = "epoch-began"
    reason: str


EVENTS: dict[str, type[Event]] = {
    each.kind: each
    for each in (
        CampaignOpened,
        TrialPlanned,
        AttemptIntended,
        AttemptSubmitted,
        AttemptCutShort,
        AttemptLetGo,
        AttemptEnded,
        TrialEnded,
        Decided,
        NodesPinned,
        Noted,
        EpochBegan,
        FilesRead,
        ProfileCompiled,
        EvidenceRecorded,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event with its 1-based line number and its time in seconds since the epoch."""

    number: int
    at_s: float
    event: Event
