"""What the events of a ledger add up to: pure, and the same in one go or bit by bit.

It reads no file and no clock, and decides nothing: which trial comes next is the study's business,
what a failure asks for is the playbook's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_xlatune.cells import DeployedFile, Stage, Trial
from pytest_xlatune.errors import LedgerError
from pytest_xlatune.ledger.events import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Entry,
    EpochBegan,
    Event,
    EvidenceRecorded,
    FilesRead,
    NodesPinned,
    Noted,
    ProfileCompiled,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.results import (
    EvidenceResult,
    Finding,
    Outcome,
    Submission,
    TrialResult,
    TrialStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One submission of a trial as far as the ledger knows it."""

    number: int
    comment: str = ""
    submission: Submission | None = None
    cut_short: AttemptCutShort | None = None
    is_let_go: bool = False
    outcome: Outcome | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a trial is: its attempts by number, and its result once it has one."""

    trial: Trial
    attempts: dict[int, Attempt] = field(default_factory=dict)
    ended: TrialResult | None = None

    @property
    def result(self) -> TrialResult:
        """The final result, or what can be said before there is one."""
        if self.ended is not None:
            return self.ended
        tries = self.attempts.values()
        outcomes = [each.outcome for each in tries if each.outcome is not None]
        return TrialResult(
            trial=self.trial,
            status=(
                TrialStatus.RUNNING
                if any(each.outcome is None for each in tries)
                else TrialStatus.PLANNED
            ),
            findings=tuple(finding for each in tries for finding in each.findings),
            job_ids=tuple(each.submission.job_id for each in tries if each.submission),
            outcome=outcomes[-1] if outcomes else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What the events so far add up to; trials in plan order, decisions of the last session.

    `pinned` are the nodes that the scheduler picked for a cell that names none; `epoch` counts the
    times since which they are not what they were, and `nodes` are those of the last measured trial.
    """

    opened: tuple[CampaignOpened, ...] = ()
    trials: dict[str, Progress] = field(default_factory=dict)
    decisions: tuple[Decided, ...] = ()
    notes: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    files: tuple[DeployedFile, ...] = ()
    epoch: int = 0
    nodes: tuple[str, ...] = ()
    compiled: dict[str, ProfileCompiled] = field(default_factory=dict)
    recorded: dict[str, EvidenceRecorded] = field(default_factory=dict)

    def history(self, study: str, *, with_evidence: bool = False) -> tuple[TrialResult, ...]:
        """Return the results of a study's trials, final or not, in plan order.

        With the evidence trials of other studies behind them, for a study that reads those.
        """
        own = tuple(
            self._evidence(each) if each.trial.stage is Stage.EVIDENCE else each.result
            for each in self.trials.values()
            if each.trial.study == study
        )
        return (*own, *self.evidence()) if with_evidence else own

    def evidence(self) -> tuple[EvidenceResult, ...]:
        """Return the evidence trials of all studies, in plan order, with what was read of them."""
        return tuple(
            self._evidence(each)
            for each in self.trials.values()
            if each.trial.stage is Stage.EVIDENCE
        )

    def _evidence(self, progress: Progress) -> EvidenceResult:
        result, said = progress.result, self.recorded.get(progress.trial.id)
        known = {each.name: getattr(result, each.name) for each in dataclasses.fields(TrialResult)}
        shares = said.shares if said is not None else None
        return EvidenceResult(**known, is_read=said is not None, shares=shares)

    def in_flight(self) -> tuple[Submission, ...]:
        """Return the submissions whose end is not in the ledger: to be polled, or adopted."""
        return tuple(
            attempt.submission
            for each in self.trials.values()
            for attempt in each.attempts.values()
            if attempt.submission is not None and attempt.outcome is None
        )

    def unresolved(self) -> tuple[tuple[Trial, Attempt], ...]:
        """Return the attempts that were intended and may or may not have been submitted."""
        return tuple(
            (each.trial, attempt)
            for each in self.trials.values()
            for attempt in each.attempts.values()
            if attempt.submission is None and attempt.outcome is None
        )


def replay(entries: Iterable[Entry], *, onto: LedgerState | None = None) -> LedgerState:
    """Return the state after `entries`, starting from `onto`: replaying in parts is the same.

    A result stands, and a later one does not replace it; only a trial that nobody could measure is
    open again for a further attempt.

    Raises:
        LedgerError: an attempt of a trial that was never planned.
    """
    state = onto or LedgerState()
    state = dataclasses.replace(state, trials=dict(state.trials))
    for entry in entries:
        try:
            state = _RULES[type(entry.event)](state, entry.event)
        except KeyError as error:
            raise LedgerError(
                f"ledger line {entry.number}: {entry.event.kind} names trial {error}, which was "
                "never planned"
            ) from None
    return state


def _open(state: LedgerState, event: CampaignOpened) -> LedgerState:
    """A new session may try again what nobody could measure in an earlier one."""
    if event.session not in {each.session for each in state.opened}:
        for trial_id, progress in state.trials.items():
            if progress.ended and _is_open_again(progress.ended):
                state.trials[trial_id] = dataclasses.replace(progress, ended=None)
        state = dataclasses.replace(state, decisions=())
    return dataclasses.replace(state, opened=(*state.opened, event))


def _is_open_again(ended: TrialResult) -> bool:
    """Whether a new session may try it: nobody could measure it, or it was settled without a run.

    What compiling settles is settled anew by each session, from what the ledger knows.
    """
    is_settled = ended.status is TrialStatus.DROPPED and not ended.job_ids
    return is_settled or ended.status is TrialStatus.UNMEASURED


def _plan(state: LedgerState, event: TrialPlanned) -> LedgerState:
    state.trials.setdefault(event.trial.id, Progress(trial=event.trial))
    return state


def _attempt(state: LedgerState, trial_id: str, number: int, **known: Any) -> LedgerState:
    progress = state.trials[trial_id]
    attempt = dataclasses.replace(progress.attempts.get(number, Attempt(number=number)), **known)
    unmeasured = progress.ended and progress.ended.status is TrialStatus.UNMEASURED
    is_new = number not in progress.attempts
    state.trials[trial_id] = dataclasses.replace(
        progress,
        attempts={**progress.attempts, number: attempt},
        ended=None if unmeasured and is_new else progress.ended,
    )
    return state


def _submit(state: LedgerState, event: AttemptSubmitted) -> LedgerState:
    submission = event.submission
    return _attempt(state, submission.trial_id, submission.attempt, submission=submission)


def _end(state: LedgerState, event: TrialEnded) -> LedgerState:
    trial = event.result.trial
    progress = state.trials.get(trial.id, Progress(trial=trial))
    if progress.ended is None or progress.ended.status is TrialStatus.UNMEASURED:
        state.trials[trial.id] = dataclasses.replace(progress, ended=event.result)
    outcome = event.result.outcome
    if event.result.status is TrialStatus.MEASURED and outcome is not None and outcome.nodes:
        return dataclasses.replace(state, nodes=tuple(sorted(outcome.nodes)))
    return state


def _begin_epoch(state: LedgerState, event: EpochBegan) -> LedgerState:
    notes = (*state.notes, f"{event.reason}: scores before and after are not compared")
    return dataclasses.replace(state, epoch=state.epoch + 1, notes=notes)


_RULES: dict[type[Event], Callable[[LedgerState, Any], LedgerState]] = {
    CampaignOpened: _open,
    TrialPlanned: _plan,
    AttemptIntended: lambda state, event: _attempt(
        state, event.trial_id, event.attempt, comment=event.comment
    ),
    AttemptSubmitted: _submit,
    AttemptCutShort: lambda state, event: _attempt(
        state, event.trial_id, event.attempt, cut_short=event
    ),
    AttemptLetGo: lambda state, event: _attempt(
        state, event.trial_id, event.attempt, is_let_go=True
    ),
    AttemptEnded: lambda state, event: _attempt(
        state, event.trial_id, event.attempt, outcome=event.outcome, findings=event.findings
    ),
    TrialEnded: _end,
    Decided: lambda state, event: dataclasses.replace(state, decisions=(*state.decisions, event)),
    FilesRead: lambda state, event: dataclasses.replace(state, files=event.files),
    NodesPinned: lambda state, event: dataclasses.replace(state, pinned=event.nodes),
    ProfileCompiled: lambda state, event: dataclasses.replace(
        state, compiled={**state.compiled, event.profile: event}
    ),
    EvidenceRecorded: lambda state, event: dataclasses.replace(
        state, recorded={**state.recorded, event.trial_id: event}
    ),
    EpochBegan: _begin_epoch,
    Noted: lambda state, event: dataclasses.replace(state, notes=(*state.notes, event.text)),
}
