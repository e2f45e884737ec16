"""Show what runs at this moment: each job in flight, its current step, its figure so far.

The facts come from the ledger (which jobs), the file next to it (their states) and their logs
(steps). All are only read, so any machine with the file system can show them. No number of this
module decides anything: the score of a trial is made when it is over.
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
# This share of a trial is left while a trial runs that has not had two steps. Without it, a session
# once said "0 s left" 32 s before its end.
_AT_LEAST = 0.25
_LAST = 6  # the latest trials, whose durations are used
_LEAST = 0.01  # the least number of trials that run at once; a session may do nothing but wait
_MOST_BYTES = 1 << 28  # bytes of a log; the steps of a longer one are not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One job in flight.

    Attributes:
        trial: the trial of the job.
        job_id: the executor's id of the job.
        state: pending or running.
        reason: why it waits or stands still, in the scheduler's words; "" while it runs.
        has_queue: whether its executor has a queue.
        is_held: whether a person holds it in the queue.
        is_back: whether it was put back into the queue after its start.
        starts_s: the expected start, in seconds since the epoch; None if it is not known.
        nodes: the nodes on which it runs.
        since_s: time of its submission, or of its start once it runs, in seconds since the epoch.
        phase: how far its program has come; None before its log begins.
        step: the id of its last step; None before the first one.
        tgs: tokens over time of the steps in the window so far; None before the second one.
        left_s: the seconds that its steps may still take; None before the second one.
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
        """Whether a person keeps it from running: it is held, was put back, or is suspended."""
        is_suspended = self.state is not State.PENDING and bool(self.reason)
        return self.is_held or self.is_back or is_suspended

    @property
    def line(self) -> str:
        """Which job it is, and how far it has come, in one line."""
        return f"{self.trial.called} (job {self.job_id}) {self.words}"

    @property
    def words(self) -> str:
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

    The duration of a trial is estimated from the trials that ended last, and from those that have
    run steps. The number of trials at once is the time of all runs over that of the session; it is
    below one if jobs wait in a queue or were lost.

    Attributes:
        submitted_s: id of a trial -> its last submission, in seconds since the epoch.
    """

    submitted_s: dict[str, float] = field(default_factory=dict)
    _first_s: float = 0.0  # the first submission of the session
    _runs_s: list[float] = field(default_factory=list)
    _session: str = ""

    def note(self, entry: LedgerEntry) -> None:
        """Take an event into account; a new session starts from zero."""
        match entry.event:
            case CampaignOpened(session=session) if session != self._session:
                self._session, self._first_s, self._runs_s = session, 0.0, []
            case AttemptSubmitted(submission=of):
                self.submitted_s[of.trial_id] = entry.at_s
                self._first_s = self._first_s or entry.at_s
            case TrialEnded(result=result) if self._first_s and result.job_ids:
                began_s = max(self.submitted_s.get(result.trial.id, entry.at_s), self._first_s)
                ran = result.outcome
                if ran is not None and ran.start_s is not None:
                    began_s = min(max(ran.start_s, began_s), entry.at_s)
                self._runs_s.append(entry.at_s - began_s)
            case _:
                pass

    def range_s(
        self, left: tuple[int, int], now_s: float, *, running: Sequence[Running]
    ) -> tuple[float, float] | None:
        """Return the seconds that are left, as planned and at most; None if not known.

        `left` is the number of remaining trials, as planned and at most; `running`: see `left_s`.
        """
        fewest, most = (self.left_s(jobs, now_s, running=running) for jobs in left)
        return None if fewest is None or most is None else (fewest, most)

    def left_s(self, left: int, now_s: float, *, running: Sequence[Running]) -> float | None:
        """Return the seconds of the remaining trials; None if they cannot be estimated.

        `running` are the jobs in flight. A job that takes longer than the others, and has run no
        step, does not lower the estimate: some time is left while a job runs.
        """
        if not self._runs_s or not left:
            return None
        on_nodes = [job for job in running if job.state is State.RUNNING]
        begun_s = [min(max(now_s - job.since_s, 0.0), now_s - self._first_s) for job in on_nodes]
        seen_s = [
            ran_s + job.left_s
            for job, ran_s in zip(on_nodes, begun_s, strict=True)
            if job.left_s is not None
        ]
        each_s = _usual([*self._runs_s, *seen_s][-_LAST:])
        ahead_s = [
            max(each_s - ran_s, each_s * _AT_LEAST) if job.left_s is None else job.left_s
            for job, ran_s in zip(on_nodes, begun_s, strict=True)
        ]
        passed_s = max(now_s - self._first_s, 1.0)
        at_once = (math.fsum(self._runs_s) + math.fsum(begun_s)) / passed_s
        later_s = each_s * max(left - len(on_nodes), 0) / max(at_once, _LEAST)
        now_left_s = math.fsum(ahead_s) / max(at_once, 1.0)
        return max(later_s + now_left_s, *ahead_s, 1.0)


def _usual(seconds: Sequence[float]) -> float:
    """Return the mean without the longest and the shortest; one job may have compiled for long."""
    kept = sorted(seconds)[1:-1] or seconds
    return math.fsum(kept) / len(kept)


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
        flying = state.in_flight()
        if not flying:
            self._readers.clear()
            return ()
        now = read_now(self._folder)
        self._readers = {
            submission.folder: self._readers[submission.folder]
            for submission in flying
            if submission.folder in self._readers
        }
        return tuple(self._running(state, submission, now, submitted_s) for submission in flying)

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
        # a job that was put back into the queue has a log, and waits
        is_old = outcome is not None and outcome.state is State.PENDING and not outcome.is_requeued
        if outcome is None or (reader is not None and is_old):
            outcome = Outcome(state=State.PENDING if reader is None else State.RUNNING)
        is_pending = outcome.state is State.PENDING
        began_s = None if is_pending else outcome.start_s
        steps = Steps() if reader is None else reader.report().steps
        tgs, step_s = _speed(trial, steps)
        last = reader.last_step if reader is not None else None
        ahead = 0 if last is None else max(trial.protocol.steps - 1 - last, 0)
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
            step=last,
            tgs=tgs,
            left_s=ahead * step_s if step_s is not None else None,
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
                while offset < _MOST_BYTES and (chunk := file.read(_CHUNK_BYTES)):
                    reader.feed(chunk)
                    offset += len(chunk)
        except OSError:  # it is gone, or its file system is away; it is shown when it is back
            return reader
        self._readers[submission.folder] = reader, offset
        return reader


_STOP_CHARS = 120
_SHOWN = frozenset({Next.RETRY, Next.STOP, Next.INTERRUPTED})


def event_lines(event: Event) -> tuple[str, ...]:
    """Return an event of a ledger as lines; () for an event that is not shown."""
    match event:
        case EvidenceRecorded(trial_id=trial_id, facts=facts, problems=problems):
            return tuple(f"{trial_id}: {line}" for line in (*facts, *problems))
        # if the reference cannot run, the line of its trial, which follows, says the same
        case Decided(trial_id=trial_id, next=follows, cannot=None, why=why) if follows in _SHOWN:
            reason = sentence(why)
            if follows is Next.STOP:  # a test and the report have the whole message
                reason = textwrap.shorten(reason, _STOP_CHARS, placeholder=" ...")
            return (f"{trial_id}: {reason}",)
        case NodesPinned(nodes=nodes):
            return (f"pinned to {', '.join(nodes)}",)
        case EpochBegan(why=why):
            return (f"a new epoch: {sentence(why)}",)
        case CellCompiled(arm=arm, memory=memory, took_s=took_s):
            return (f"{arm} compiled: {memory.text} ({took_s:.1f} s)",)
        case Noted(said=said):
            return (f"note: {sentence(said)}",)
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
    """Return tokens over time and seconds per step for the steps in the window; None before two."""
    pairs = list(_timed(trial.protocol.first_step, steps))
    if len(pairs) < 2:  # noqa: PLR2004 - one step is no speed
        return None, None
    total_s = sum(step_s for step_s, _ in pairs)
    return sum(step_s * tgs for step_s, tgs in pairs) / total_s, total_s / len(pairs)


def _timed(first_step: int, steps: Steps) -> Iterator[tuple[float, float]]:
    for step, step_s, tgs in zip(steps.step, steps.step_s, steps.tgs, strict=True):
        if step >= first_step and step_s and tgs:
            yield step_s, tgs
