"""Show what runs at this moment: each job in flight, its current step, its rate so far.

The ledger says which jobs there are, the file next to it their states, and their logs the steps.
All of these are only read, so any machine with the file system can show them. No number of this
module decides anything: the score of a trial is made when the trial is over.
"""

from __future__ import annotations

import functools
import math
import os
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.executors.named import class_named
from pytest_xlatune.ledger import (
    AttemptSubmitted,
    CampaignOpened,
    CellCompiled,
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
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import Steps
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.text import duration, rate
from pytest_xlatune.model.trial import Trial

_CHUNK_BYTES = 1 << 20
# A running trial without two steps counts as having at least this share of a trial before it.
# Otherwise "0 s left" would be shown while a job that takes longer than the others still runs.
_MIN_SHARE_LEFT = 0.25
_RECENT_TRIALS = 6  # the time of a trial is estimated from this many trials, the latest ones
_MIN_CONCURRENCY = 0.01  # least number of trials at once; it may be zero while all jobs wait
_MAX_LOG_BYTES = 1 << 28  # the steps after so many bytes of a log are not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One job in flight.

    Attributes:
        trial: the trial of the job.
        job_id: the executor's id of the job.
        state: pending or running.
        reason: why it waits or is suspended, in the scheduler's words; "" while it runs.
        has_queue: whether its executor has a queue.
        is_held: whether a person holds it in the queue.
        is_back: whether it was put back into the queue after its start.
        starts_s: the expected start, in seconds since the epoch; None if it is not known.
        nodes: the nodes on which it runs; () while it is pending.
        since_s: time of its submission, or of its start once it runs, in seconds since the epoch.
        phase: how far its program has come; None before its log begins.
        step: the id of its last step; None before the first step.
        tgs: tokens over time of the steps in the window so far; None before two such steps.
        left_s: the seconds that its remaining steps may take; None before two steps in the window.
    """

    trial: Trial
    job_id: str
    state: State
    reason: str = ""
    has_queue: bool = True
    is_held: bool = False
    is_back: bool = False
    starts_s: float | None = None
    nodes: tuple[str, ...] = ()
    since_s: float = 0.0
    phase: Phase | None = None
    step: int | None = None
    tgs: float | None = None
    left_s: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether a person prevents it from running: it is held, was put back, or is suspended."""
        is_suspended = self.state is not State.PENDING and bool(self.reason)
        return self.is_held or self.is_back or is_suspended

    @property
    def line(self) -> str:
        """Which job it is, and how far it has come, in one line."""
        return f"{self.trial.label} (job {self.job_id}) {self.progress_text}"

    @property
    def progress_text(self) -> str:
        """How far it has come, in a few words."""
        if self.state is State.PENDING:
            if not self.has_queue:
                return self.reason or "starting"
            parts = ["waits in the queue", self.reason]
            if self.starts_s is not None:
                when = time.strftime("%d %b %H:%M", time.localtime(self.starts_s))
                parts.append(f"start expected {when}")
            return ", ".join(filter(None, parts))
        if self.reason:
            return f"stands still, {self.reason}"
        if self.step is None:
            at = f" on {compress(self.nodes)}" if self.nodes else ""
            return f"compiles{at}" if self.phase is Phase.COMPILING else f"started{at}"
        text = f"step {self.step}/{self.trial.protocol.steps}"
        if self.tgs is not None:
            text += f", {rate(self.tgs)} TGS so far"
        text += f", about {duration(self.left_s)}" if self.left_s else ""
        return text


@dataclass(slots=True)
class Pace:
    """How fast the last session progresses.

    The duration of a trial is estimated from the trials that ended last, and from running trials
    with two steps or more. The mean number of trials at once is the time of all runs divided by the
    time since the first submission; it is below one if jobs wait in a queue or were lost.

    Attributes:
        submitted_s: id of a trial -> its last submission, in seconds since the epoch.
    """

    submitted_s: dict[str, float] = field(default_factory=dict)
    _first_s: float = 0.0  # first submission of the session, since the epoch; 0: none yet
    _runs_s: list[float] = field(default_factory=list)  # durations of the session's ended trials
    _session: str = ""  # id of the session; "" before the first one

    def note(self, entry: LedgerEntry) -> None:
        """Take an event into account; a new session starts from zero."""
        match entry.event:
            case CampaignOpened(session=session) if session != self._session:
                self._session, self._first_s, self._runs_s = session, 0.0, []
            case AttemptSubmitted(submission=submission):
                self.submitted_s[submission.trial_id] = entry.at_s
                self._first_s = self._first_s or entry.at_s
            case TrialEnded(result=result) if self._first_s and result.job_ids:
                began_s = max(self.submitted_s.get(result.trial.id, entry.at_s), self._first_s)
                outcome = result.outcome
                if outcome is not None and outcome.start_s is not None:
                    began_s = min(max(outcome.start_s, began_s), entry.at_s)
                self._runs_s.append(entry.at_s - began_s)
            case _:
                pass

    def range_s(
        self, left: tuple[int, int], now_s: float, *, running: Sequence[Running]
    ) -> tuple[float, float] | None:
        """Return the seconds that are left, as planned and at most; None if not known.

        `left` is the number of remaining trials, as planned and at most; `running` are the jobs in
        flight.
        """
        planned, most = (self.left_s(trials, now_s, running=running) for trials in left)
        return None if planned is None or most is None else (planned, most)

    def left_s(self, left: int, now_s: float, *, running: Sequence[Running]) -> float | None:
        """Return the seconds of the remaining trials; None if they cannot be estimated.

        `left` is the number of remaining trials; `running` are the jobs in flight.
        """
        if not self._runs_s or not left:
            return None
        jobs = [job for job in running if job.state is State.RUNNING]
        since_first_s = now_s - self._first_s
        ran_s = [min(max(now_s - job.since_s, 0.0), since_first_s) for job in jobs]
        predicted_s = [
            job_ran_s + job.left_s
            for job, job_ran_s in zip(jobs, ran_s, strict=True)
            if job.left_s is not None
        ]
        trial_s = _mean_without_extremes([*self._runs_s, *predicted_s][-_RECENT_TRIALS:])
        jobs_left_s = []
        for job, job_ran_s in zip(jobs, ran_s, strict=True):
            guess_s = max(trial_s - job_ran_s, trial_s * _MIN_SHARE_LEFT)
            jobs_left_s.append(guess_s if job.left_s is None else job.left_s)
        at_once = (math.fsum(self._runs_s) + math.fsum(ran_s)) / max(since_first_s, 1.0)
        waiting_s = trial_s * max(left - len(jobs), 0) / max(at_once, _MIN_CONCURRENCY)
        running_s = math.fsum(jobs_left_s) / max(at_once, 1.0)
        return max(waiting_s + running_s, *jobs_left_s, 1.0)


def _mean_without_extremes(seconds: Sequence[float]) -> float:
    """Return the mean without the longest and the shortest; one job may have compiled for long."""
    middle = sorted(seconds)[1:-1] or seconds
    return math.fsum(middle) / len(middle)


class RunningJobs:
    """The jobs in flight in one folder; it remembers how far their logs were read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # folder of an attempt -> its reader, and the offset up to which it has read
        self._readers: dict[str, tuple[LogReader, int]] = {}

    def poll(self, state: LedgerState, submitted_s: Mapping[str, float]) -> tuple[Running, ...]:
        """Return the jobs in flight, in the order of their submission.

        `submitted_s` maps the id of a trial to the submission of its attempt.
        """
        in_flight = state.in_flight()
        if not in_flight:
            self._readers.clear()
            return ()
        now = read_now(self._folder)
        folders = {submission.folder for submission in in_flight}
        self._readers = {
            folder: reading for folder, reading in self._readers.items() if folder in folders
        }
        return tuple(self._running(state, submission, now, submitted_s) for submission in in_flight)

    def _running(
        self,
        state: LedgerState,
        submission: Submission,
        now: Now,
        submitted_s: Mapping[str, float],
    ) -> Running:
        trial = state.trials[submission.trial_id].trial
        reader = self._read(submission, trial.protocol.step_pattern)
        outcome = now.jobs.get(submission.job_id)
        # A log shows that a job runs, even if its recorded state is still pending. The exception is
        # a job that was put back into the queue: it has a log, and waits.
        is_outdated = (
            reader is not None
            and outcome is not None
            and outcome.state is State.PENDING
            and not outcome.is_requeued
        )
        if outcome is None or is_outdated:
            outcome = Outcome(state=State.PENDING if reader is None else State.RUNNING)
        is_pending = outcome.state is State.PENDING
        began_s = None if is_pending else outcome.start_s
        steps = Steps() if reader is None else reader.report().steps
        tgs, step_s = _speed(trial, steps)
        last_step = reader.last_step if reader is not None else None
        steps_left = 0 if last_step is None else max(trial.protocol.steps - 1 - last_step, 0)
        return Running(
            trial=trial,
            job_id=submission.job_id,
            state=State.PENDING if is_pending else State.RUNNING,
            reason=outcome.reason if is_pending or outcome.is_suspended else "",
            has_queue=_has_queue(submission.executor),
            is_held=outcome.is_held,
            is_back=is_pending and outcome.is_requeued,
            starts_s=outcome.start_s if is_pending else None,
            nodes=() if is_pending else outcome.nodes,
            since_s=began_s or submitted_s.get(submission.trial_id, 0.0),
            phase=reader.phase if reader is not None else None,
            step=last_step,
            tgs=tgs,
            left_s=steps_left * step_s if step_s is not None else None,
        )

    def _read(self, submission: Submission, pattern: str) -> LogReader | None:
        """Read more of the log of rank 0; return None if there is no log yet."""
        fresh = LogReader(step_pattern(pattern) if pattern else None)
        reader, offset = self._readers.get(submission.folder, (fresh, 0))
        try:
            path = log_files(self._folder / submission.folder).get(0)
            if path is None:
                return None
            with os.fdopen(secure_files.open_shown(path), "rb") as file:
                file.seek(offset)
                while offset < _MAX_LOG_BYTES and (chunk := file.read(_CHUNK_BYTES)):
                    reader.feed(chunk)
                    offset += len(chunk)
        except OSError:  # the log is gone, or its file system does not answer now
            return reader
        self._readers[submission.folder] = reader, offset
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
        case CellCompiled(arm=arm, memory=memory, took_s=took_s):
            return (f"{arm} compiled: {memory.text} ({took_s:.1f} s)",)
        case Noted(remark=note):
            return (f"note: {sentence(note)}",)
        case _:
            return ()


@functools.cache
def _has_queue(executor: str) -> bool:
    """Return whether trials of an executor wait in a queue; True if it is not installed."""
    try:
        return class_named(executor).has_queue
    except ConfigError:
        return True


def _speed(trial: Trial, steps: Steps) -> tuple[float | None, float | None]:
    """Return mean TGS and mean seconds per step in the window; None before two steps."""
    pairs = list(_timed(trial.protocol.first_step, steps))
    if len(pairs) < 2:  # noqa: PLR2004 - a single step may be unusual
        return None, None
    total_s = sum(step_s for step_s, _ in pairs)
    return sum(step_s * tgs for step_s, tgs in pairs) / total_s, total_s / len(pairs)


def _timed(first_step: int, steps: Steps) -> Iterator[tuple[float, float]]:
    """Yield seconds and TGS of each step from `first_step` on that has both."""
    for step, step_s, tgs in zip(steps.step, steps.step_s, steps.tgs, strict=True):
        if step >= first_step and step_s and tgs:
            yield step_s, tgs
