"""The state that follows from the events of a ledger.

Events give the same state, whether they are added at once or in parts. This module reads no file
and no clock, and decides nothing: the study decides which trial comes next, and the playbook what a
failure means. What is needed after every event is kept up to date.

An attempt is one submission of a trial. `TRANSITIONS` has the events that are allowed in each of
its states; another event means that the file was damaged, or that another program wrote it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from pytest_xlatune.ledger import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    EnvironmentSeen,
    EpochBegan,
    Event,
    EvidenceRecorded,
    FilesRead,
    LedgerEntry,
    NodesPinned,
    Noted,
    TrialEnded,
    TrialPlanned,
    word_of,
)
from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.errors import LedgerError, UnreadableLedgerError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Blamed,
    EvidenceResult,
    Finding,
    Outcome,
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial


class AttemptState(StrEnum):
    """The state of an attempt according to the ledger."""

    UNKNOWN = "unknown"  # no event mentions it
    INTENDED = "intended"  # it may or may not have been submitted
    SUBMITTED = "submitted"  # an executor returned its job id
    CUT_SHORT = "cut-short"  # it will measure nothing more, and is being ended
    LET_GO = "let-go"  # it is being ended, because no session waits for it
    ENDED = "ended"

    @property
    def is_in_flight(self) -> bool:
        """Whether it may have a running job, which must be polled."""
        return self in _IN_FLIGHT


_IN_FLIGHT = frozenset({AttemptState.SUBMITTED, AttemptState.CUT_SHORT, AttemptState.LET_GO})

# state -> event -> the state after it; no other event is allowed
TRANSITIONS: Mapping[AttemptState, Mapping[type[Event], AttemptState]] = {
    AttemptState.UNKNOWN: {
        AttemptIntended: AttemptState.INTENDED,
    },
    AttemptState.INTENDED: {
        AttemptSubmitted: AttemptState.SUBMITTED,
        AttemptEnded: AttemptState.ENDED,  # the scheduler refused it
    },
    AttemptState.SUBMITTED: {
        AttemptCutShort: AttemptState.CUT_SHORT,
        AttemptLetGo: AttemptState.LET_GO,
        AttemptEnded: AttemptState.ENDED,
    },
    AttemptState.CUT_SHORT: {
        AttemptLetGo: AttemptState.LET_GO,
        AttemptEnded: AttemptState.ENDED,
    },
    AttemptState.LET_GO: {
        # a job that could not be cancelled runs on, and the next session ends it
        AttemptLetGo: AttemptState.LET_GO,
        AttemptCutShort: AttemptState.LET_GO,
        AttemptEnded: AttemptState.ENDED,
    },
    AttemptState.ENDED: {},
}


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One submission of a trial according to the ledger."""

    number: int  # the number of the attempt, from 1
    state: AttemptState = AttemptState.UNKNOWN
    submission: Submission | None = None  # its job; None before an executor returned the id
    cut_short: AttemptCutShort | None = None  # why it will measure nothing more; else None
    outcome: Outcome | None = None  # how it ended; None before
    findings: tuple[Finding, ...] = ()  # what its log shows; () before it has ended
    blamed: Blamed | None = None  # the program of a rotation that ended it; None if none


class TrialProgress(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The progress of a trial; its result so far is cached, for it is needed after every event."""

    trial: Trial
    attempts: dict[int, Attempt] = msgspec.field(default_factory=dict)  # by number
    ended: TrialResult | None = None  # the final result; None if the trial has none

    @property
    def is_to_run(self) -> bool:
        """Whether it has neither a result nor an unfinished attempt."""
        return self.ended is None and all(
            attempt.state is AttemptState.ENDED for attempt in self.attempts.values()
        )

    @property
    def blamed(self) -> tuple[Blamed, ...]:
        """The programs that ended attempts of this rotation, or are suspected of it, in order."""
        return tuple(
            attempt.blamed for attempt in self.attempts.values() if attempt.blamed is not None
        )

    @property
    def as_run(self) -> Trial:
        """The trial as its next attempt runs it: without blamed programs."""
        blamed = self.blamed
        if not blamed or self.trial.rotation is None:
            return self.trial
        died_of = tuple(blame.program for blame in blamed if not blame.is_suspect)
        suspect = blamed[-1].program if blamed[-1].is_suspect else ""
        rotation = msgspec.structs.replace(self.trial.rotation, died_of=died_of, suspect=suspect)
        return msgspec.structs.replace(self.trial, rotation=rotation)

    @property
    def result(self) -> TrialResult:
        """The final result, or the result so far."""
        return self.ended if self.ended is not None else self._result_so_far

    @functools.cached_property
    def _result_so_far(self) -> TrialResult:
        findings: list[Finding] = []
        job_ids: list[str] = []
        outcome = None
        for attempt in self.attempts.values():
            findings += attempt.findings
            if attempt.submission:
                job_id = attempt.outcome.job if attempt.outcome else ""
                job_ids.append(job_id or attempt.submission.job_id)
            outcome = attempt.outcome or outcome
        return TrialResult(
            trial=self.trial,
            status=TrialStatus.PLANNED if self.is_to_run else TrialStatus.RUNNING,
            findings=tuple(findings),
            job_ids=tuple(job_ids),
            outcome=outcome,
        )


_Key = tuple[str, int]  # trial id, number of the attempt


@dataclass(slots=True, kw_only=True)
class LedgerState:
    """The state after the events so far; only `replay` changes it."""

    # the events with which sessions began or resumed work, one for each study
    opened: tuple[CampaignOpened, ...] = ()
    cells: dict[str, Cell] = field(default_factory=dict)  # every cell that was named, by digest
    trials: dict[str, TrialProgress] = field(default_factory=dict)  # by id, in plan order
    decisions: list[Decided] = field(default_factory=list)  # those of the last session, in order
    # what a reader should know, including epochs, in order
    remarks: list[Noted | EpochBegan] = field(default_factory=list)
    epochs: tuple[EpochBegan, ...] = ()
    # digest of a cell without named nodes -> the nodes that the scheduler picked
    pinned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # digest of a cell -> the nodes of its last measured trial
    measured_on: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files: tuple[DeployedFile, ...] = ()  # the files that deploy the cell
    # digest of a cell -> the environment of its last trial
    environments: dict[str, tuple[NodeEnvironment, ...]] = field(default_factory=dict)
    # digests of the cells whose devices were reported in the last session
    devices_known: set[str] = field(default_factory=set)
    # trial id -> what an evidence trial recorded
    recorded: dict[str, EvidenceRecorded] = field(default_factory=dict)
    changes: int = 0  # number of events that may change what a study proposes or concludes
    flying: dict[_Key, Submission] = field(default_factory=dict)  # those whose end is unknown
    intended: list[_Key] = field(default_factory=list)  # those that may have been submitted
    planned: dict[str, list[str]] = field(default_factory=dict)  # study -> ids of its trials
    evidence_ids: list[str] = field(default_factory=list)  # of evidence trials, in plan order
    # trial id -> number of an attempt -> the last session's last decision on it
    decided: dict[str, dict[int, Decided]] = field(default_factory=dict)
    stop: Decided | None = None  # the last session's first decision that stopped the sweep

    @property
    def run(self) -> str:
        """The name of the folder of the attempts; "" before a session has begun."""
        return self.opened[0].session if self.opened else ""

    @property
    def notes(self) -> tuple[Message, ...]:
        """What a reader of the results should know, in order."""
        return tuple(event.remark for event in self.remarks)

    def decided_on(self, trial_id: str) -> tuple[Decided, ...]:
        """Return the last session's decisions on a trial, the last one for each attempt."""
        return tuple(self.decided.get(trial_id, {}).values())

    def nodes_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the nodes of a cell's trials; () until the scheduler has picked them."""
        return cell.nodelist or self.pinned.get(cell.digest, ())

    def with_nodes(self, cell: Cell) -> Cell:
        """Return the cell with the nodes that the scheduler picked for it, if it did."""
        return msgspec.structs.replace(cell, nodelist=self.nodes_of(cell))

    def epoch_of(self, cell_digest: str, nodes: Sequence[str]) -> int:
        """Count the epochs that separate a trial of this cell on these nodes from earlier ones."""
        return sum(epoch.covers(cell_digest, tuple(nodes)) for epoch in self.epochs)

    def history(self, study: str, *, with_evidence: bool = False) -> tuple[TrialResult, ...]:
        """Return the results of a study's trials, final or not, in plan order.

        `with_evidence` adds the evidence trials of other studies at the end.
        """
        trials = (self.trials[trial_id] for trial_id in self.planned.get(study, ()))
        results = tuple(
            self._with_evidence(progress) if progress.trial.protocol.dump else progress.result
            for progress in trials
        )
        return (*results, *self.evidence()) if with_evidence else results

    def evidence(self) -> tuple[EvidenceResult, ...]:
        """Return the evidence trials of all studies in plan order, with what their files showed."""
        return tuple(self._with_evidence(self.trials[trial_id]) for trial_id in self.evidence_ids)

    def exposed(self, cell: Cell) -> Message | None:
        """Return how the time of a step is divided in the latest evidence of a cell's baseline."""
        for result in reversed(self.evidence()):
            trial = result.trial
            if trial.is_baseline and trial.cell_digest == cell.digest and result.shares:
                message = result.shares.exposed
                if message is not None:
                    return message
        return None

    def _with_evidence(self, progress: TrialProgress) -> EvidenceResult:
        result, record = progress.result, self.recorded.get(progress.trial.id)
        fields = {name: getattr(result, name) for name in TrialResult.__struct_fields__}
        if record is None:
            return EvidenceResult(**fields)
        return EvidenceResult(**fields, is_read=True, shares=record.shares, pgle=record.pgle)

    def in_flight(self) -> tuple[Submission, ...]:
        """Return the submissions whose end is not in the ledger, in the order of submission."""
        return tuple(self.flying.values())

    def unresolved(self) -> tuple[tuple[Trial, int], ...]:
        """Return the attempts that were intended and may or may not have been submitted."""
        return tuple((self.trials[trial_id].trial, number) for trial_id, number in self.intended)


def replay(entries: Iterable[LedgerEntry], *, onto: LedgerState | None = None) -> LedgerState:
    """Return the state after `entries`, continuing `onto`, which must not be used afterwards.

    A result is final and is not replaced by a later one; only a trial that could not be measured
    may get another attempt.

    Raises:
        LedgerError: an attempt belongs to a trial that was never planned, or its state does not
            allow an event; the message has the line number.
    """
    state = onto if onto is not None else LedgerState()
    for entry in entries:
        try:
            _add(state, entry.event)
        except (KeyError, LedgerError) as error:
            why = str(error)
            if isinstance(error, KeyError):
                why = f"{word_of(entry.event)} names trial {why}, which was never planned"
            advice = UnreadableLedgerError.ADVICE
            raise UnreadableLedgerError(f"ledger line {entry.number}: {why}; {advice}") from None
    return state


def _add(state: LedgerState, event: Event) -> None:
    match event:
        case AttemptSubmitted(submission=job):
            _attempt(state, event, (job.trial_id, job.attempt), submission=job)
        case AttemptCutShort(trial_id=name, attempt=number):
            _attempt(state, event, (name, number), cut_short=event)
        case AttemptIntended() | AttemptLetGo():
            _attempt(state, event, (event.trial_id, event.attempt))
        case AttemptEnded(trial_id=name, attempt=number, findings=findings, blamed=blamed):
            ended = {"outcome": event.outcome, "findings": findings, "blamed": blamed}
            _attempt(state, event, (name, number), **ended)
        case CampaignOpened():
            _open(state, event)
        case TrialPlanned():
            _plan(state, event.trial)
        case TrialEnded():
            _end(state, event.result)
        case _:
            _add_other(state, event)


def _add_other(state: LedgerState, event: Event) -> None:
    """Add an event that changes no trial."""
    match event:
        case Decided(trial_id=name, attempt=number):
            state.decisions.append(event)
            # The last decision on an attempt counts: if a process is killed between a decision and
            # its consequence, the next session decides again.
            state.decided.setdefault(name, {})[number] = event
            if event.next is Next.STOP and state.stop is None:
                state.stop = event
        case EvidenceRecorded():
            state.recorded[event.trial_id] = event
            state.changes += 1
        case FilesRead():
            state.files = event.files
        case EnvironmentSeen():
            state.environments[event.cell_digest] = event.nodes
            if event.is_whole:
                state.devices_known.add(event.cell_digest)
        case NodesPinned():
            state.pinned[event.cell_digest] = event.nodes
        case EpochBegan():
            state.epochs = (*state.epochs, event)
            state.remarks.append(event)
        case Noted():
            state.remarks.append(event)


def _open(state: LedgerState, event: CampaignOpened) -> None:
    """Open a session, which may retry trials that could not be measured in an earlier one.

    It also repeats compiled trials with an unknown memory limit. The open trials get the time limit
    and the step pattern of this session.
    """
    if event.session not in {opening.session for opening in state.opened}:
        for trial_id, progress in state.trials.items():
            ended = progress.ended
            if ended is None:
                continue
            is_uncompiled = ended.memory is not None and ended.memory.limit_bytes is None
            if is_uncompiled or ended.status is TrialStatus.UNMEASURED:
                state.trials[trial_id] = msgspec.structs.replace(progress, ended=None)
        state.decisions, state.decided, state.stop = [], {}, None
        state.devices_known = set()  # the devices may have changed since the last session
    state.opened = (*state.opened, event)
    state.cells.update((cell.digest, cell) for cell in event.cells)
    state.changes += 1
    # the open trials of each cell get the labels of the cell's new protocol
    protocols = {cell.digest: cell.protocol for cell in event.cells}
    for trial_id, progress in state.trials.items():
        trial, protocol = progress.trial, protocols.get(progress.trial.cell_digest)
        if progress.ended is None and protocol is not None:
            after = trial.protocol.with_labels_of(protocol)
            if after != trial.protocol:
                trial = msgspec.structs.replace(trial, protocol=after)
                state.trials[trial_id] = msgspec.structs.replace(progress, trial=trial)


def _plan(state: LedgerState, trial: Trial) -> str:
    """Add a trial to the plan unless it is there; return its id."""
    trial_id = trial.id
    if trial_id not in state.trials:
        state.trials[trial_id] = TrialProgress(trial=trial)
        state.planned.setdefault(trial.study, []).append(trial_id)
        if trial.protocol.dump:
            state.evidence_ids.append(trial_id)
        state.changes += 1
    return trial_id


def _attempt(state: LedgerState, event: Event, key: _Key, **changes: Any) -> None:
    trial_id, number = key
    progress = state.trials[trial_id]
    before = progress.attempts.get(number, Attempt(number=number))
    after = TRANSITIONS[before.state].get(type(event))
    if after is None:
        allowed = ", ".join(map(word_of, TRANSITIONS[before.state])) or "nothing"
        raise LedgerError(
            f"the attempt is {before.state}, where {word_of(event)} cannot follow ({allowed} can); "
            "the ledger was damaged, or another program wrote it"
        )
    attempt = msgspec.structs.replace(before, state=after, **changes)
    ended = progress.ended
    is_unmeasured = ended is not None and ended.status is TrialStatus.UNMEASURED
    if is_unmeasured and before.state is AttemptState.UNKNOWN:  # a new attempt opens the trial
        ended = None
        state.changes += 1
    attempts = {**progress.attempts, number: attempt}
    state.trials[trial_id] = TrialProgress(trial=progress.trial, attempts=attempts, ended=ended)
    if after is AttemptState.INTENDED:
        state.intended.append(key)
    elif key in state.intended:
        state.intended.remove(key)
    if after.is_in_flight and attempt.submission is not None:
        state.flying[key] = attempt.submission
    else:
        state.flying.pop(key, None)


def _end(state: LedgerState, result: TrialResult) -> None:
    trial_id = _plan(state, result.trial)
    progress = state.trials[trial_id]
    if progress.ended is None or progress.ended.status is TrialStatus.UNMEASURED:
        state.trials[trial_id] = msgspec.structs.replace(progress, ended=result)
    outcome = result.outcome
    if result.status is TrialStatus.MEASURED and outcome is not None and outcome.nodes:
        state.measured_on[result.trial.cell_digest] = tuple(sorted(outcome.nodes))
    state.changes += 1
