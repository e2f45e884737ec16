"""What is shown of a cell while it runs: its lines, its page, and the messages to people.

The ledger says which jobs there are, the file next to it their states, and their logs the steps.
All of these are only read. No number of this module decides anything: the score of a trial is made
when the trial is over.

    LiveLines      a line for each finished trial, every ten minutes one about the jobs in flight
    running_jobs   a line for each job in flight, which any machine with the file system can make

The messages of a session say that it begins, that a profile is proved faster, and that the sweep is
half way; there is none about what was known before the session. The messages about a stop and about
the end come from the controller, which knows when a session is over. Nothing is printed or sent
here.
"""

from __future__ import annotations

import logging
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pytest_xlatune import secure_files
from pytest_xlatune.campaign import history_of
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.ledger import (
    LEDGER,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    EpochBegan,
    Event,
    EvidenceRecorded,
    Ledger,
    LedgerEntry,
    NodesPinned,
    Noted,
    Now,
    TrialEnded,
    read_now,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.logs import LogReader, Phase
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.cell import shared_label
from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Conclusion,
    Outcome,
    State,
    Submission,
    TrialResult,
    VerdictKind,
)
from pytest_xlatune.model.text import counted, rate
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.lines import (
    best_lines,
    evidence_line,
    live_line,
    paragraph,
    progress_text,
    tally,
)
from pytest_xlatune.report.page import Live
from pytest_xlatune.studies import Outlook, Study
from pytest_xlatune.studies.trials import in_window
from pytest_xlatune.sweep.registry import study_of
from pytest_xlatune.tasks.cell_report import CellReport, identity_of, report_of
from pytest_xlatune.tasks.reports import write_so_far

_LOG = logging.getLogger("pytest_xlatune.tasks")
_TAG = "[xla-tuning]"
_LOOK_S = 0.9  # seconds between looks at the logs of jobs; the ledger may be read more often
# seconds until the first line about running jobs, and between two such lines
_FIRST_LINE_S, _NEXT_LINE_S = 60.0, 600.0
# seconds between two writes of the page, which also shows readers that the session is alive; a
# write for a large ledger takes seconds
_PAGE_S = 60.0
_END_BYTES = 1 << 16  # bytes at the end of a log that are read for its last step
_MAX_STOP_CHARS = 120
_SHOWN_DECISIONS = frozenset({Next.RETRY, Next.STOP, Next.INTERRUPTED})


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


def running_jobs(state: LedgerState, folder: Path) -> tuple[str, ...]:
    """Return a line for each job in flight; `folder` has the ledger.

    Jobs that a person keeps from running come first (held, put back or suspended), then those that
    run.
    """
    now = read_now(folder)
    jobs = [_running(state, submission, now, folder) for submission in state.in_flight()]
    return tuple(line for _, line in sorted(jobs, key=lambda job: job[0]))


def _running(state: LedgerState, submission: Submission, now: Now, folder: Path) -> tuple[int, str]:
    """Return the place of a job among others, and its line."""
    trial = state.trials[submission.trial_id].trial
    log = _end_of_log(folder / submission.folder, trial.protocol.step_pattern)
    outcome = now.jobs.get(submission.job_id)
    # A log shows that a job runs, even if its recorded state is still pending. The exception is a
    # job that was put back into the queue: it has a log, and waits.
    if outcome is None or (
        log is not None and outcome.state is State.PENDING and not outcome.is_requeued
    ):
        outcome = Outcome(state=State.PENDING if log is None else State.RUNNING)
    if outcome.state is State.PENDING:
        place = 0 if outcome.is_held or outcome.is_requeued else 2
        text = f"waits, {outcome.reason}" if outcome.reason else "starting"
        if outcome.reason and outcome.start_s is not None:
            when = time.strftime("%d %b %H:%M", time.localtime(outcome.start_s))
            text += f", start expected {when}"
    elif outcome.is_suspended:
        place, text = 0, f"stands still, {outcome.reason}"
    else:
        place, text = 1, _progress_in(log, trial, outcome.nodes)
    return place, plain(f"{trial.label} (job {submission.job_id}) {text}")


def _progress_in(log: LogReader | None, trial: Trial, nodes: Sequence[str]) -> str:
    """Return the last step of a running job and the median TGS of its window so far, in words."""
    if log is None or log.last_step is None:
        verb = "compiles" if log is not None and log.phase is Phase.COMPILING else "started"
        return f"{verb} on {compress(nodes)}" if nodes else verb
    steps = log.report().steps
    shown = [
        tgs
        for step, tgs in zip(steps.step, steps.tgs, strict=True)
        if step >= trial.protocol.first_step and tgs is not None and tgs > 0
    ]
    speed = f", {rate(median(shown))} TGS so far" if shown else ""
    return f"step {log.last_step}/{trial.protocol.steps}{speed}"


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


class SweepProgress(NamedTuple):
    """News of a sweep: a line to show, the trial that it is about, and messages to people."""

    line: str = ""  # the text to show; "" if there is none
    result: TrialResult | None = None  # of the trial that ended; None if the line is about no trial
    messages: tuple[str, ...] = ()  # to people, one text each


@dataclass(slots=True, kw_only=True)
class _Announced:
    """What was said of a study: the arms that are faster, and whether it is past half."""

    study: Study
    faster: set[str]
    is_past_half: bool


class LiveLines:
    """The lines and the page of one ledger in one session.

    Attributes:
        sweep: the name of the sweep; "" before the session has opened it.
        label: its cells in a few words.
    """

    def __init__(
        self,
        folder: Path,
        reports: Path,
        *,
        session_id: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.sweep = self.label = ""
        self._now, self._folder, self._reports = now, folder, reports
        self._session_id = session_id
        self._ledger = Ledger(folder / LEDGER)
        self._entries: list[LedgerEntry] = []
        self._replayed = 0  # how many of the entries are in the state
        self._state = LedgerState()
        # identity of the ledger as last read to its end; () if there is more to read
        self._identity: tuple[int, ...] = ()
        self._cell_report: CellReport | None = None
        self._announced: dict[str, _Announced] = {}  # name of a study -> what was said of it
        self._pace = Pace()
        self._jobs: tuple[str, ...] = ()  # a line for each job in flight
        self._looked_s = 0.0
        self._due_s = now() + _FIRST_LINE_S  # time of the next line about running jobs
        self._written_s = now()  # time of the last write of the page
        self._last_problem = ""

    @property
    def is_over(self) -> bool:
        """Whether the ledger was read to its end, and has no job in flight."""
        is_read = bool(self._identity) and self._identity == identity_of(self._ledger.path)
        return is_read and not self._state.in_flight()

    def cell_report(self) -> CellReport | None:
        """Return the report of the cell as of the last read; None if there is more to read.

        Raises:
            LedgerError: the ledger is empty, or its study is of an unknown kind.
        """
        if self._cell_report is None and self._identity:
            self._cell_report = report_of(
                self._ledger.path, self._entries, self._state, identity=self._identity
            )
        return self._cell_report

    def news(self) -> Iterator[SweepProgress]:
        """Yield what happened since the last call: ended trials, and lines about other events.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        identity = identity_of(self._ledger.path)
        if identity != self._identity:
            self._identity, self._cell_report = (), None
        self._entries += self._ledger.refresh()
        # Ctrl-C or a hook of a project may end this loop between two lines. The ledger gives each
        # entry only once, so the next call has to continue with the entries that are not replayed.
        while self._replayed < len(self._entries):
            entry = self._entries[self._replayed]
            self._state = replay((entry,), onto=self._state)
            self._replayed += 1
            self._pace.note(entry)
            event = entry.event
            if isinstance(event, CampaignOpened) and event.session == self._session_id:
                yield self._opening(event)
            elif self.sweep:
                yield from self._event_news(event)
        self._identity = identity
        if self.sweep:
            yield from self._now_line()

    def _opening(self, event: CampaignOpened) -> SweepProgress:
        study = study_of(event.study, event.declared)
        history = history_of(self._state, study)
        decision, outlook = study.decide(history), study.outlook(history)
        done = _final_count(history)
        self.sweep, self.label = event.sweep, shared_label(study.cells)
        self._announced[event.study] = _Announced(
            study=study,
            faster=_faster(decision.conclusion),
            is_past_half=done >= outlook.left,
        )
        fewest, most = outlook.left, outlook.at_most
        jobs = counted(fewest, "job") if most == fewest else f"{fewest} to {most} jobs"
        parts = [f"{jobs} to run"] if fewest else []
        if done:
            parts.append(f"{counted(done, 'trial')} reused from the ledger")
        work = "; ".join(parts) or "nothing is to run"
        nodes = dict.fromkeys(name for cell in study.cells for name in cell.nodelist)
        kickoff = (
            f"{_TAG} kickoff: {self.label}",
            f"- {work}",
            f"- Profiles: {len(decision.profiles)} and the baseline",
            f"- Nodelist: {','.join(nodes) or 'not pinned'}",
        )
        messages = ("\n".join(kickoff),) if fewest else ()
        return SweepProgress(line=f"{self.label}: {work}", messages=messages)

    def _event_news(self, event: Event) -> Iterator[SweepProgress]:
        match event:
            case TrialEnded(result=result):
                yield from self._trial_news(result)
            case EvidenceRecorded(trial_id=trial_id, facts=facts, problems=problems):
                for line in (*facts, *problems):
                    yield SweepProgress(line=f"{trial_id}: {line}")
            # If `cannot` is set, the trial cannot run, and the line about its result says so too.
            case Decided(trial_id=trial_id, next=decision, cannot=None, why=why) if (
                decision in _SHOWN_DECISIONS
            ):
                reason = sentence(why)
                if decision is Next.STOP:  # the test and the report show the whole message
                    reason = textwrap.shorten(reason, _MAX_STOP_CHARS, placeholder=" ...")
                yield SweepProgress(line=f"{trial_id}: {reason}")
            case NodesPinned(nodes=nodes):
                yield SweepProgress(line=f"pinned to {', '.join(nodes)}")
            case EpochBegan(why=why):
                yield SweepProgress(line=f"a new epoch: {sentence(why)}")
            case Noted(remark=note):
                yield SweepProgress(line=f"note: {sentence(note)}")
            case _:
                pass

    def _trial_news(self, result: TrialResult) -> Iterator[SweepProgress]:
        if result.trial.protocol.dump:
            yield SweepProgress(line=evidence_line(result))
        elif result.memory is not None:  # the trial was a compile check, which has no score
            if result.memory.fits is None:
                line = f"{result.trial.arm} has no compiled memory: {result.memory.said}"
                yield SweepProgress(line=line)
        elif (announced := self._announced.get(result.trial.study)) is not None:
            study = announced.study
            history = history_of(self._state, study)
            conclusion, outlook = study.decide(history).conclusion, study.outlook(history)
            progress = self._progress(history, outlook)
            line = live_line(
                in_window((result,), conclusion.first_step)[0],
                verdict=conclusion.verdict(result.trial.arm),
                progress=progress,
                place=outlook.places.get(result.trial.id),
            )
            messages = []
            faster = _faster(conclusion) - announced.faster
            announced.faster = _faster(conclusion)
            if faster:
                reference = conclusion.reference.arm if conclusion.reference else ""
                paragraphs = [
                    paragraph(verdict, reference=reference)
                    for verdict in conclusion.verdicts
                    if verdict.arm in faster
                ]
                messages.append("\n".join([f"{_TAG} {self.label}: confirmed", *paragraphs]))
            if not announced.is_past_half and _final_count(history) >= outlook.left:
                announced.is_past_half = True
                head = f"{_TAG} half way: {self.label}: {progress}"
                lines = (head, f"- {tally(conclusion.verdicts)}", *best_lines(conclusion))
                messages.append("\n".join(lines))
            yield SweepProgress(line=line, result=result, messages=tuple(messages))

    def _now_line(self) -> Iterator[SweepProgress]:
        """Yield a line about running jobs, so that the log of a pipeline is not silent for long."""
        now_s = self._now()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._jobs = running_jobs(self._state, self._folder)
        if now_s >= self._due_s and (status := self.status()):
            self._due_s = now_s + _NEXT_LINE_S
            yield SweepProgress(line=f"now: {status}")

    def status(self) -> str:
        """Return a text about the jobs in flight; "" without jobs."""
        if not self._jobs:
            return ""
        more = f", {len(self._jobs) - 1} more in flight" if self._jobs[1:] else ""
        return f"{self._jobs[0]}{more} | {self._progress_now()}"

    def _progress_now(self) -> str:
        if not self._announced:
            return ""
        study = [*self._announced.values()][-1].study
        history = history_of(self._state, study)
        return self._progress(history, study.outlook(history))

    def _progress(self, history: tuple[TrialResult, ...], outlook: Outlook) -> str:
        jobs_left = outlook.left, outlook.at_most
        return progress_text(history, left=jobs_left, trial_s=self._pace.trial_s)

    def write_page(self) -> str:
        """Write the report of the running sweep if it is due, once a minute.

        A failure to write must not end the sweep. Return why the report cannot be written; "" if it
        can be, or if the last call said the same.
        """
        began_s = self._now()
        if began_s - self._written_s < _PAGE_S:
            return ""
        live = Live(at_s=began_s, progress=self._progress_now(), running=self._jobs)
        problem = ""
        try:
            write_so_far(self._folder, self._reports, live, self.cell_report())
        except XlatuneError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of a page must not end a sweep
            _LOG.exception("the report of %s cannot be made while it runs", self._folder)
            problem = f"the report of {self._folder} cannot be made while the sweep runs: {error!r}"
        self._written_s = self._now()
        is_new = problem != self._last_problem
        self._last_problem = problem or self._last_problem
        return problem if is_new else ""


def _final_count(history: Sequence[TrialResult]) -> int:
    return sum(result.status.is_final for result in history)


def _faster(conclusion: Conclusion) -> set[str]:
    return {verdict.arm for verdict in conclusion.verdicts if verdict.kind is VerdictKind.FASTER}
