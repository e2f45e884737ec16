"""The live lines of one cell, and the messages to people while it runs.

`LiveLines` reads the ledger. It yields a line for each finished trial, and every ten minutes a line
about the jobs in flight. The messages of a session say that it begins, that a result is confirmed,
and that the sweep is half way; there is none about what was known before the session. The messages
about a stop and about the end come from the controller, which knows when a session is over. Nothing
is printed or sent here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.campaign import history_of
from pytest_xlatune.ledger import LEDGER, CampaignOpened, Ledger, LedgerEntry, TrialEnded
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import shared_label
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.result import Conclusion, TrialResult, VerdictKind
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.lines import (
    best_lines,
    evidence_line,
    live_line,
    paragraph,
    progress_text,
    tally,
)
from pytest_xlatune.studies import Outlook, Study
from pytest_xlatune.studies.trials import in_window
from pytest_xlatune.sweep.registry import study_of
from pytest_xlatune.tasks.cell_report import CellReport, identity_of, report_of
from pytest_xlatune.tasks.running import Pace, Running, event_lines, running_jobs

_CONFIRMED = frozenset({VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT})
_TAG = "[xla-tuning]"
_LOOK_S = 0.9  # seconds between looks at the logs of jobs; the ledger may be read more often
# seconds until the first line about running jobs, and between two such lines
_FIRST_LINE_S, _NEXT_LINE_S = 60.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """News of a sweep: a line to show, the trial that it is about, and messages to people.

    Attributes:
        line: the text to show; "" if there is none.
        sweep: the name of the sweep.
        is_passing: whether the line is about jobs in flight; a terminal that shows them in its
            status line omits it.
        result: the result of the trial that ended; None if the line is not about an ended trial.
        messages: the messages to people, one text each; () if there are none.
    """

    line: str
    sweep: str
    is_passing: bool = False
    result: TrialResult | None = None
    messages: tuple[str, ...] = ()


class _Session:
    """One study in one session: what was known at its start, and what was shown since.

    Attributes:
        study: the study.
        label: the cells of the study in a few words.
        opening: the line for the start of the session.
        kickoff: the message to people about the start; () if nothing is to run.
    """

    def __init__(self, study: Study, history: Sequence[TrialResult]) -> None:
        self.study = study
        decision, outlook = study.decide(history), study.outlook(history)
        done = _final_count(history)
        self._confirmed = _confirmed_kinds(decision.conclusion)
        self._is_past_half = done >= outlook.left
        parts = [f"{_jobs(outlook)} to run"] if outlook.left else []
        if done:
            parts.append(f"{counted(done, 'trial')} reused from the ledger")
        work = "; ".join(parts) or "nothing is to run"
        self.label = shared_label(study.cells)
        self.opening = f"{self.label}: {work}"
        names = dict.fromkeys(name for cell in study.cells for name in cell.nodelist)
        kickoff = (
            f"{_TAG} kickoff: {self.label}",
            f"- {work}",
            f"- Profiles: {len(decision.profiles)} and the baseline",
            f"- Nodelist: {','.join(names) or 'not pinned'}",
        )
        self.kickoff = ("\n".join(kickoff),) if outlook.left else ()

    def messages(
        self,
        history: Sequence[TrialResult],
        conclusion: Conclusion,
        outlook: Outlook,
        progress: str,
    ) -> Iterator[str]:
        """Yield the messages that a finished trial causes."""
        before, self._confirmed = self._confirmed, _confirmed_kinds(conclusion)
        news = {arm for arm, kind in self._confirmed.items() if before.get(arm) is not kind}
        if news:
            reference = conclusion.reference.arm if conclusion.reference else ""
            paragraphs = [
                paragraph(verdict, reference=reference)
                for verdict in conclusion.verdicts
                if verdict.arm in news
            ]
            yield "\n".join([f"{_TAG} {self.label}: confirmed", *paragraphs])
        done = _final_count(history)
        if self._is_past_half or done < outlook.left:
            return
        self._is_past_half = True
        head = f"{_TAG} half way: {self.label}: {progress}"
        yield "\n".join([head, f"- {tally(conclusion.verdicts)}", *best_lines(conclusion)])


def _jobs(outlook: Outlook) -> str:
    fewest, most = outlook.left, outlook.at_most
    return counted(fewest, "job") if most == fewest else f"{fewest} to {most} jobs"


def _final_count(history: Sequence[TrialResult]) -> int:
    return sum(result.status.is_final for result in history)


def _confirmed_kinds(conclusion: Conclusion) -> dict[str, VerdictKind]:
    return {
        verdict.arm: verdict.kind for verdict in conclusion.verdicts if verdict.kind in _CONFIRMED
    }


class LiveLines:
    """The lines of one ledger in one session.

    Attributes:
        is_alone: whether only this cell is shown; it is then named once, and not in each line.
    """

    def __init__(
        self, folder: Path, *, session_id: str, now: Callable[[], float] = time.time
    ) -> None:
        self.is_alone = True
        self._now = now
        self._folder = folder
        self._running: tuple[Running, ...] = ()
        self._looked_s = 0.0
        self._due_s = now() + _FIRST_LINE_S  # time of the next line about running jobs
        self._ledger = Ledger(folder / LEDGER)
        self._session_id = session_id
        self._entries: list[LedgerEntry] = []
        self._replayed = 0  # how many of the entries are in the state
        self._state = LedgerState()
        # identity of the ledger as last read to its end; () if there is more to read
        self._identity: tuple[int, ...] = ()
        self._cell_report: CellReport | None = None
        self._broken: LedgerError | None = None  # why replay failed; each later call raises it
        self._opened: CampaignOpened | None = None  # the event of this session; None before it
        self._sessions: dict[str, _Session] = {}  # study -> its session
        self._pace = Pace()

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
        for progress in self._unlabelled_news():
            label = shared_label(self._opened.cells) if self._opened is not None else ""
            is_named = self.is_alone or not progress.line or progress.line.startswith(label)
            line = progress.line if is_named else f"{label} {progress.line}"
            yield dataclasses.replace(progress, line=line)

    def _unlabelled_news(self) -> Iterator[SweepProgress]:
        if self._broken is not None:
            raise self._broken
        identity = identity_of(self._ledger.path)
        if identity != self._identity:
            self._identity, self._cell_report = (), None
        self._entries += self._ledger.refresh()
        # Ctrl-C or a hook of a project may end this loop between two lines. The ledger gives each
        # entry only once, so the next call has to continue with the entries that are not replayed.
        while self._replayed < len(self._entries):
            entry = self._entries[self._replayed]
            self._replayed += 1
            try:
                self._state = replay((entry,), onto=self._state)
            except LedgerError as error:
                self._broken = error
                raise
            self._pace.note(entry)
            event = entry.event
            if isinstance(event, CampaignOpened) and event.session == self._session_id:
                self._opened = event
                study = study_of(event.study, event.declared)
                session = _Session(study, history_of(self._state, study))
                self._sessions[event.study] = session
                yield SweepProgress(
                    line=session.opening, sweep=event.sweep, messages=session.kickoff
                )
            elif self._opened is not None:
                yield from self._entry_news(entry, self._opened.sweep)
        self._identity = identity
        if self._opened is not None:
            yield from self._now_line(self._opened.sweep)

    def _entry_news(self, entry: LedgerEntry, sweep: str) -> Iterator[SweepProgress]:
        if isinstance(entry.event, TrialEnded):
            yield from self._trial_news(entry.event.result, sweep)
        for line in event_lines(entry.event):
            yield SweepProgress(line=line, sweep=sweep)

    def _trial_news(self, result: TrialResult, sweep: str) -> Iterator[SweepProgress]:
        session = self._sessions.get(result.trial.study)
        if result.trial.protocol.dump:
            if self._sessions:
                yield SweepProgress(line=evidence_line(result), sweep=sweep)
        elif result.memory is not None:  # the trial was a compile check, which has no score
            if result.memory.fits is None:
                line = f"{result.trial.arm} has no compiled memory: {result.memory.said}"
                yield SweepProgress(line=line, sweep=sweep)
        elif session is not None:
            study = session.study
            history = history_of(self._state, study)
            decision, outlook = study.decide(history), study.outlook(history)
            conclusion, progress = decision.conclusion, self._progress(history, outlook)
            line = live_line(
                in_window((result,), conclusion.first_step)[0],
                verdict=conclusion.verdict(result.trial.arm),
                progress=progress,
                place=outlook.places.get(result.trial.id),
            )
            messages = tuple(session.messages(history, conclusion, outlook, progress))
            yield SweepProgress(line=line, sweep=sweep, result=result, messages=messages)

    def _now_line(self, sweep: str) -> Iterator[SweepProgress]:
        """Yield a line about running jobs, so that the log of a pipeline is not silent for long."""
        now_s = self._now()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._running = running_jobs(self._state, self._folder)
        if now_s >= self._due_s and (status := self.status()):
            self._due_s = now_s + _NEXT_LINE_S
            yield SweepProgress(line=f"now: {status}", sweep=sweep, is_passing=True)

    def status(self) -> str:
        """Return a text about the jobs in flight, for a line that is rewritten; "" without jobs."""
        progress, jobs = self.progress_and_jobs()
        if not jobs:
            return ""
        more = f", {len(jobs) - 1} more in flight" if jobs[1:] else ""
        return f"{jobs[0]}{more} | {progress}"

    def progress_and_jobs(self) -> tuple[str, tuple[str, ...]]:
        """Return how far the sweep is, and a line for each job in flight.

        Jobs that a person keeps from running come first, then those that run.
        """
        if not self._sessions:
            return "", ()
        study = list(self._sessions.values())[-1].study
        order = sorted(self._running, key=lambda job: (not job.is_kept, job.is_pending))
        history = history_of(self._state, study)
        progress = self._progress(history, study.outlook(history))
        return progress, tuple(plain(job.line) for job in order)

    def _progress(self, history: tuple[TrialResult, ...], outlook: Outlook) -> str:
        jobs_left = outlook.left, outlook.at_most
        return progress_text(history, left=jobs_left, trial_s=self._pace.trial_s)
