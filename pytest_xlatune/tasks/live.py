"""The live lines of one cell, and the messages to people as it goes on.

`LiveLines` reads the ledger and gives one line for each trial that has landed. At most once a
minute it gives one about jobs in flight, where one of them has changed: waiting, started, its first
step, each quarter of its steps. That a person holds a job is told at once. `Milestones` gives the
messages: a session begins, a result is confirmed, the sweep is half way. The controller sends stop
and end itself, because it knows when a session is over. A milestone is crossed once in a session:
one that was crossed before the session is no news. Nothing is printed or sent here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.campaign import history_of
from pytest_xlatune.ledger import LEDGER, CampaignOpened, Ledger, LedgerEntry, TrialEnded
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import Message, sentence
from pytest_xlatune.model.result import Conclusion, State, TrialResult, VerdictKind
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.lines import (
    best_lines,
    evidence_line,
    live_line,
    paragraph,
    standing,
    tally,
    time_left,
)
from pytest_xlatune.studies import Outlook, Study
from pytest_xlatune.studies.trials import in_window
from pytest_xlatune.sweep.registry import study_of
from pytest_xlatune.tasks.running import Pace, Running, RunningJobs, event_lines

_CONFIRMED = frozenset({VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT})
_TAG = "[xla-tuning]"
_LOOK_S = 0.9  # a caller may look at the ledger more often than at the logs
_PACE_S = 60.0  # between two lines about what runs: 46 jobs once had 191 lines
_PENDING_S = 600.0  # and where all goes on waiting, for another reason or a later start
_FRESH_S = 10.0  # of a submission, in which the scheduler is asked
_PARTS = 4  # of a trial's steps, each with a line


@dataclass(slots=True)
class Milestones:
    """The milestones of one study in one session, counted from the session's start."""

    study: Study
    _known: dict[str, VerdictKind] = field(default_factory=dict)
    _is_past_half: bool = True

    def begin(self, history: Sequence[TrialResult]) -> str:
        """Return the message that the session begins; "" where no trial is left to run."""
        done, decision = _done(history), self.study.decide(history)
        outlook = self.study.outlook(history)
        self._known = _confirmed(decision.conclusion)
        self._is_past_half = done >= outlook.left
        if not outlook.left:
            return ""
        to_run = _to_run(outlook)
        cell = self.study.cells[0]
        names = dict.fromkeys(name for each in self.study.cells for name in each.nodelist)
        nodes = ",".join(names) or "this machine, or the scheduler's choice"
        reused = f", {counted(done, 'trial')} reused" if done else ""
        return "\n".join(
            [
                f"{_TAG} kickoff: {cell.label}",
                f"- {to_run} to run{reused}",
                f"- Profiles: {len(decision.profiles)} and the baseline",
                f"- Nodelist: {nodes}",
            ]
        )

    def landed(
        self,
        history: Sequence[TrialResult],
        conclusion: Conclusion,
        *,
        left_s: tuple[float, float] | None,
    ) -> tuple[str, ...]:
        """Return the messages that a landed trial causes."""
        messages = []
        now = _confirmed(conclusion)
        news = [each for each, kind in now.items() if self._known.get(each) is not kind]
        self._known = now
        label = self.study.cells[0].label
        if news:
            arm = conclusion.reference.arm if conclusion.reference else ""
            confirmed = (verdict for verdict in conclusion.verdicts if verdict.arm in news)
            said = [paragraph(verdict, reference=arm) for verdict in confirmed]
            messages.append("\n".join([f"{_TAG} {label}: confirmed", *said]))
        done, outlook = _done(history), self.study.outlook(history)
        total = done + outlook.left
        if not self._is_past_half and 2 * done >= total:
            self._is_past_half = True
            left = f", {time_left(*left_s)} left" if left_s is not None else ""
            most = done + outlook.at_most
            of = counted(total, "job") if most == total else f"{total} to {most} jobs"
            head = f"{_TAG} half way: {label}: {done} of {of}{left}"
            lines = [head, f"- {tally(conclusion.verdicts)}", *best_lines(conclusion)]
            messages.append("\n".join(lines))
        return tuple(messages)


def _to_run(outlook: Outlook) -> str:
    left, most = outlook.left, outlook.at_most
    return counted(left, "job") if most == left else f"{left} to {most} jobs"


def _done(history: Sequence[TrialResult]) -> int:
    return sum(result.status.is_final for result in history)


def _slot_of(study: Study, result: TrialResult) -> str:
    """Return which node slot a trial lies on, e.g. `slot 2`; "" where there is one."""
    digests = [cell.digest for cell in study.cells]
    if len(digests) == 1 or not study.traits.has_slots:
        return ""
    own = result.trial.cell_digest
    return f"slot {digests.index(own) + 1}" if own in digests else ""


def _confirmed(conclusion: Conclusion) -> dict[str, VerdictKind]:
    return {
        verdict.arm: verdict.kind for verdict in conclusion.verdicts if verdict.kind in _CONFIRMED
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """One line, its trial, and the messages to people about it.

    Attributes:
        line: the text to show; "" is nothing.
        sweep: name of the sweep.
        label: the cell in a few words.
        is_passing: of jobs in flight: a terminal that shows where jobs stand needs no such line.
        result: the result of the trial that landed, if one did.
        messages: to people.
    """

    line: str
    sweep: str
    label: str = ""
    is_passing: bool = False
    result: TrialResult | None = None
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waits:
    """A job waits or is suspended, for this reason and until then as far as the scheduler says."""

    reason: str
    is_held: bool
    is_suspended: bool
    starts_s: float | None


def _about(running: Running, now_s: float) -> object:
    """Return what a line would be about; None where none is needed.

    Two that are equal are one state of the job: of its steps each part is one. One that was just
    submitted has none.
    """
    is_bare = running.state is State.PENDING and not running.reason and running.starts_s is None
    if is_bare and now_s - running.since_s < _FRESH_S:
        return None
    if running.reason or running.state is State.PENDING:
        return _Waits(
            reason=running.reason,
            # one that was put back had run: ten minutes of silence would hide it
            is_held=running.is_held or running.is_back,
            is_suspended=running.state is not State.PENDING,
            starts_s=running.starts_s,
        )
    if running.step is None:
        return running.phase or "started"
    part = (running.step + 1) * _PARTS // max(running.trial.protocol.steps, 1)
    return part if part < _PARTS else None  # its landing is next


def _is_held(about: object) -> bool:
    """Whether a person keeps a job from running: it is held, was put back, or is stopped."""
    return isinstance(about, _Waits) and (about.is_held or about.is_suspended)


class LiveLines:
    """The lines of one ledger in one session.

    Attributes:
        is_alone: whether no other feed is shown beside it: its cell is named once then, not in each
            line.
    """

    def __init__(
        self, folder: Path, *, session_id: str, now: Callable[[], float] = time.time
    ) -> None:
        self.is_alone = True
        self._now = now
        self._flights = RunningJobs(folder)
        self._running: tuple[Running, ...] = ()
        self._looked_s = 0.0
        self._told: dict[str, object] = {}  # job -> what was told of it
        self._told_s = float("-inf")  # and when
        self._ledger = Ledger(folder / LEDGER)
        self._session_id = session_id
        self._state = LedgerState()
        self._broken: LedgerError | None = None
        self._opened: CampaignOpened | None = None
        self._studies: dict[str, Study] = {}
        self._pace = Pace()
        self._milestones: dict[str, Milestones] = {}
        self._has_landed = False
        self._added: dict[str, Message] = {}  # study -> what was told of trials that were added

    @property
    def is_idle(self) -> bool:
        """Whether all that the session asks was measured before it."""
        told = (study.outlook(history_of(self._state, study)) for study in self._studies.values())
        is_over = not self._has_landed and not any(outlook.at_most for outlook in told)
        return bool(self._studies) and is_over

    def landed(self) -> Iterator[SweepProgress]:
        """Give the trials that landed since the last call.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        for progress in self._landed():
            label = self._opened.cells[0].label if self._opened is not None else ""
            is_named = self.is_alone or not progress.line or progress.line.startswith(label)
            line = progress.line if is_named else f"{label} {progress.line}"
            yield dataclasses.replace(progress, line=line, label=label)

    def _landed(self) -> Iterator[SweepProgress]:
        if self._broken is not None:
            raise self._broken
        for entry in self._ledger.refresh():
            try:
                self._state = replay((entry,), onto=self._state)
            except LedgerError as error:
                self._broken = error
                raise
            self._pace.note(entry)
            event = entry.event
            if isinstance(event, CampaignOpened) and event.session == self._session_id:
                self._opened = event
                study = self._studies[event.study] = study_of(event.study, event.declared)
                yield self._opening(event, study)
                milestones = self._milestones[event.study] = Milestones(study)
                kickoff = milestones.begin(history_of(self._state, study))
                if kickoff:
                    yield SweepProgress(line="", sweep=event.sweep, messages=(kickoff,))
            elif self._opened is not None:
                yield from self._line(entry, self._opened.sweep)
        if self._opened is not None:
            yield from self._changes(self._opened.sweep)

    def _line(self, entry: LedgerEntry, sweep: str) -> Iterator[SweepProgress]:
        if isinstance(entry.event, TrialEnded):
            yield from self._ended(entry.event.result, sweep)
        for line in event_lines(entry.event):
            yield SweepProgress(line=line, sweep=sweep)

    def _ended(self, result: TrialResult, sweep: str) -> Iterator[SweepProgress]:
        self._has_landed = True
        study = self._studies.get(result.trial.study)
        if result.trial.protocol.dump:
            if self._studies:
                yield SweepProgress(line=evidence_line(result), sweep=sweep)
        elif result.memory is not None:  # what compiling said is a line of its own
            if result.memory.fits is None:
                line = f"{result.trial.arm} has no compiled memory: {result.memory.said}"
                yield SweepProgress(line=line, sweep=sweep)
        elif study is not None:
            history = history_of(self._state, study)
            decision, outlook = study.decide(history), study.outlook(history)
            conclusion, left_s = decision.conclusion, self._left_s(outlook)
            line = live_line(
                in_window((result,), conclusion.first_step)[0],
                verdict=conclusion.verdict(result.trial.arm),
                progress=self._progress(history, outlook),
                place=outlook.places.get(result.trial.id),
                slot=_slot_of(study, result),
            )
            messages = self._milestones[study.name].landed(history, conclusion, left_s=left_s)
            # a profile that needs no run has no job, so no trial has landed
            landed = result if result.not_run is None else None
            yield SweepProgress(line=line, sweep=sweep, result=landed, messages=messages)
            added = decision.added
            if added and added != self._added.get(study.name):
                self._added[study.name] = added
                yield SweepProgress(line=f"{study.cells[0].label}: {sentence(added)}", sweep=sweep)

    def _opening(self, opened: CampaignOpened, study: Study) -> SweepProgress:
        """Name the cell once, and say how many jobs follow."""
        history = history_of(self._state, study)
        done, outlook = _done(history), study.outlook(history)
        parts = [f"{_to_run(outlook)} to run"] if outlook.left else []
        if done:
            parts.append(
                f"{counted(done, 'trial')} {'is' if done == 1 else 'are'} reused from the ledger"
            )
        return SweepProgress(
            line=f"{opened.cells[0].label}: {'; '.join(parts) or 'nothing is to run'}",
            sweep=opened.sweep,
        )

    def _changes(self, sweep: str) -> Iterator[SweepProgress]:
        """Tell what runs now where that has changed since it was last told."""
        now_s = self._now()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._running = self._flights.look(self._state, self._pace.submitted_s)
        abouts = {each.job_id: _about(each, now_s) for each in self._running}
        news = {job for job, about in abouts.items() if about not in (None, self._told.get(job))}
        if not news:
            return
        persons = {job for job in news if _is_held(abouts[job]) != _is_held(self._told.get(job))}
        goes_on = all(
            isinstance(abouts[job], _Waits) and isinstance(self._told.get(job), _Waits)
            for job in news
        )
        pace_s = 0.0 if persons else _PENDING_S if goes_on else _PACE_S
        if now_s - self._told_s >= pace_s and (said := self.status(persons)):
            self._told, self._told_s = abouts, now_s
            yield SweepProgress(line=f"now: {said}", sweep=sweep, is_passing=True)

    def status(self, named: Collection[str] = ()) -> str:
        """Return where the cell stands now, for a line that is rewritten; "" where nothing runs.

        It names one job, and counts the others: one of `named`, else one that runs.
        """
        if not self._running or self._opened is None:
            return ""
        order = sorted(
            self._running,
            key=lambda each: (each.job_id not in named, each.state is State.PENDING),
        )
        first, others = order[0], len(order) - 1
        more = f", {others} more in flight" if others else ""
        study = self._studies.get(first.trial.study)
        if study is None:
            return ""
        history = history_of(self._state, study)
        progress = self._progress(history, study.outlook(history))
        job = f"{first.trial.called} (job {first.job_id})"
        return f"{job} {first.words}{more} | {progress}"

    def standing(self) -> tuple[str, tuple[str, ...]]:
        """Return how far the sweep is, and a line of each job in flight, the running ones first."""
        studies = list(self._studies.values())
        if not studies:
            return "", ()
        order = sorted(self._running, key=lambda each: each.state is State.PENDING)
        told = (f"{job.trial.called} (job {job.job_id}) {job.words}" for job in order)
        history = history_of(self._state, studies[-1])
        progress = self._progress(history, studies[-1].outlook(history))
        return progress, tuple(map(plain, told))

    def _progress(self, history: tuple[TrialResult, ...], outlook: Outlook) -> str:
        left = outlook.left, outlook.at_most
        return standing(history, left_s=self._left_s(outlook), left=left)

    def _left_s(self, outlook: Outlook) -> tuple[float, float] | None:
        # a job that has landed since the last look runs no more
        flying = {submission.job_id for submission in self._state.in_flight()}
        running = [job for job in self._running if job.job_id in flying]
        left = outlook.left, outlook.at_most
        return self._pace.range_s(left, self._now(), running=running)
