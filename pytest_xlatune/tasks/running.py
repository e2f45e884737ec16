"""Show what runs at this moment: each job in flight and its current step.

The ledger says which jobs there are, the file next to it their states, and their logs the steps.
All of these are only read, so any machine with the file system can show them. No number of this
module decides anything: the score of a trial is made when the trial is over.
"""

from __future__ import annotations

import os
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_xlatune import secure_files
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.ledger import (
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    EpochBegan,
    Event,
    EvidenceRecorded,
    LedgerEntry,
    NodesPinned,
    Noted,
    TrialEnded,
)
from pytest_xlatune.ledger.now import Now, read_now
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import LogReader, Phase
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.text import rate
from pytest_xlatune.model.trial import Trial

_END_BYTES = 1 << 16  # bytes at the end of a log that are read for its last step


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One job in flight.

    Attributes:
        trial: the trial of the job.
        job_id: the executor's id of the job.
        is_pending: whether it has not started yet.
        reason: why it waits or is suspended, in the scheduler's words; "" while it runs.
        is_kept: whether a person prevents it from running: it is held, was put back, or is
            suspended.
        starts_s: the expected start, in seconds since the epoch; None if it is not known.
        nodes: the nodes on which it runs; () while it is pending.
        is_compiling: whether its program compiles.
        step: the id of its last step; None before the first step.
        tgs: the median TGS of the steps of the window so far; None before these.
    """

    trial: Trial
    job_id: str
    is_pending: bool
    reason: str = ""
    is_kept: bool = False
    starts_s: float | None = None
    nodes: tuple[str, ...] = ()
    is_compiling: bool = False
    step: int | None = None
    tgs: float | None = None

    @property
    def line(self) -> str:
        """Which job it is, and how far it has come, in one line."""
        return f"{self.trial.label} (job {self.job_id}) {self._progress_text}"

    @property
    def _progress_text(self) -> str:
        if self.is_pending and not self.reason:
            return "starting"
        if self.is_pending and self.starts_s is not None:
            when = time.strftime("%d %b %H:%M", time.localtime(self.starts_s))
            return f"waits, {self.reason}, start expected {when}"
        if self.reason:
            return f"{'waits' if self.is_pending else 'stands still'}, {self.reason}"
        if self.step is not None:
            speed = f", {rate(self.tgs)} TGS so far" if self.tgs is not None else ""
            return f"step {self.step}/{self.trial.protocol.steps}{speed}"
        at = f" on {compress(self.nodes)}" if self.nodes else ""
        return f"compiles{at}" if self.is_compiling else f"started{at}"


@dataclass(slots=True)
class Pace:
    """How fast the last session progresses: its time so far for each trial that has ended.

    The figure includes time in the queue; trials that run side by side make it smaller.
    """

    _session: str = ""  # id of the session; "" before the first one
    _began_s: float = 0.0  # first submission of the session, since the epoch; 0: none yet
    _ended_s: float = 0.0  # time at which the last trial ended
    _ended: int = 0  # number of trials that ended

    def note(self, entry: LedgerEntry) -> None:
        """Take an event into account; a new session starts from zero."""
        match entry.event:
            case CampaignOpened(session=session) if session != self._session:
                self._session, self._began_s, self._ended = session, 0.0, 0
            case AttemptSubmitted():
                self._began_s = self._began_s or entry.at_s
            case TrialEnded(result=result) if self._began_s and result.job_ids:
                self._ended_s, self._ended = entry.at_s, self._ended + 1
            case _:
                pass

    @property
    def trial_s(self) -> float | None:
        """The seconds for each trial; None before the first has ended."""
        return (self._ended_s - self._began_s) / self._ended if self._ended else None


def running_jobs(state: LedgerState, folder: Path) -> tuple[Running, ...]:
    """Return the jobs in flight in the order of their submission; `folder` has the ledger."""
    now = read_now(folder)
    return tuple(_running(state, submission, now, folder) for submission in state.in_flight())


def _running(state: LedgerState, submission: Submission, now: Now, folder: Path) -> Running:
    trial = state.trials[submission.trial_id].trial
    log = _end_of_log(folder / submission.folder, trial.protocol.step_pattern)
    outcome = now.jobs.get(submission.job_id)
    # A log shows that a job runs, even if its recorded state is still pending. The exception is a
    # job that was put back into the queue: it has a log, and waits.
    if outcome is None or (
        log is not None and outcome.state is State.PENDING and not outcome.is_requeued
    ):
        outcome = Outcome(state=State.PENDING if log is None else State.RUNNING)
    is_pending = outcome.state is State.PENDING
    is_suspended = outcome.is_suspended and not is_pending
    return Running(
        trial=trial,
        job_id=submission.job_id,
        is_pending=is_pending,
        reason=outcome.reason if is_pending or is_suspended else "",
        is_kept=outcome.is_held or is_suspended or (is_pending and outcome.is_requeued),
        starts_s=outcome.start_s if is_pending else None,
        nodes=() if is_pending else outcome.nodes,
        is_compiling=log is not None and log.phase is Phase.COMPILING,
        step=log.last_step if log is not None else None,
        tgs=_speed(trial, log) if log is not None else None,
    )


def _speed(trial: Trial, log: LogReader) -> float | None:
    """Return the median TGS of the steps that are in the window and in the end of a log."""
    steps = log.report().steps
    shown = [
        tgs
        for step, tgs in zip(steps.step, steps.tgs, strict=True)
        if step >= trial.protocol.first_step and tgs is not None and tgs > 0
    ]
    return median(shown) if shown else None


def _end_of_log(folder: Path, pattern: str) -> LogReader | None:
    """Read the end of the log of rank 0; return None if there is no log, or if it is gone."""
    reader = LogReader(step_pattern(pattern) if pattern else None)
    try:
        path = log_files(folder).get(0)
        if path is None:
            return None
        with os.fdopen(secure_files.open_shown(path), "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _END_BYTES, 0))
            reader.feed(file.read(_END_BYTES))
    except OSError:  # its file system does not answer now
        return None
    return reader


_MAX_STOP_CHARS = 120
_SHOWN_DECISIONS = frozenset({Next.RETRY, Next.STOP, Next.INTERRUPTED})


def event_lines(event: Event) -> tuple[str, ...]:
    """Return an event of a ledger as lines; () for an event that is not shown."""
    match event:
        case EvidenceRecorded(trial_id=trial_id, facts=facts, problems=problems):
            return tuple(f"{trial_id}: {line}" for line in (*facts, *problems))
        # If `cannot` is set, the trial cannot run, and the line about its result says so too.
        case Decided(trial_id=trial_id, next=decision, cannot=None, why=why) if (
            decision in _SHOWN_DECISIONS
        ):
            reason = sentence(why)
            if decision is Next.STOP:  # the test and the report show the whole message
                reason = textwrap.shorten(reason, _MAX_STOP_CHARS, placeholder=" ...")
            return (f"{trial_id}: {reason}",)
        case NodesPinned(nodes=nodes):
            return (f"pinned to {', '.join(nodes)}",)
        case EpochBegan(why=why):
            return (f"a new epoch: {sentence(why)}",)
        case Noted(remark=note):
            return (f"note: {sentence(note)}",)
        case _:
            return ()
