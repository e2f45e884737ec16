"""The live lines of one cell, and the messages to people as it goes on.

`Feed` reads the ledger and gives one line for each trial that has landed, and one for each change
of a job in flight: submitted, waiting, started, its first step, each quarter of its steps. A job
whose changes follow each other within seconds has one line for them. `Milestones` gives the
messages: a session begins, a result is confirmed, the sweep is half way. The controller sends stop
and end itself, because it knows when a session is over. A milestone is crossed once in a session:
one that was crossed before the session is no news. Nothing is printed or sent here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_xlatune.campaign import history_of
from pytest_xlatune.ledger import (
    LEDGER,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    EpochBegan,
    EvidenceRecorded,
    Ledger,
    LedgerEntry,
    NodesPinned,
    Noted,
    ProfileCompiled,
    TrialEnded,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.reason import Reason
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Conclusion, State, TrialResult, VerdictKind
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.lines import (
    best_lines,
    evidence_line,
    live_line,
    paragraph,
    running_line,
    standing,
    tally,
    time_left,
)
from pytest_xlatune.report.words import sentence
from pytest_xlatune.studies import Study, profiles_in
from pytest_xlatune.studies.trials import in_window
from pytest_xlatune.sweep.registry import study_of
from pytest_xlatune.tasks.running import Flights, Pace, Running

_CONFIRMED = frozenset({VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT})
_TAG = "[xla-tuning]"
_LOOK_S = 0.9  # a caller may look at the ledger more often than at the logs
_PACE_S = 10.0  # between two lines about one job
_PENDING_S = 600.0  # and about one that goes on waiting, for another reason or a later start
_PARTS = 4  # of a trial's steps, each with a line


@dataclass(slots=True)
class Milestones:
    """The milestones of one study in one session, counted from the session's start."""

    study: Study
    _known: dict[str, VerdictKind] = field(default_factory=dict)
    _is_past_half: bool = True

    def begin(self, history: Sequence[TrialResult]) -> str:
        """Return the message that the session begins; "" where no trial is left to run."""
        done, left = _done(history), self.study.left(history)
        self._known = _confirmed(self.study.conclude(history))
        self._is_past_half = done >= left
        if not left:
            return ""
        most = self.study.at_most(history)
        to_run = counted(left, "trial") if most == left else f"{left} to {most} trials"
        cell = self.study.cells[0]
        names = dict.fromkeys(name for each in self.study.cells for name in each.nodelist)
        nodes = ",".join(names) or "this machine, or the scheduler's choice"
        reused = f", {counted(done, 'trial')} reused" if done else ""
        return "\n".join(
            [
                f"{_TAG} kickoff: {cell.label}",
                f"- {to_run} to run{reused}",
                f"- Profiles: {len(profiles_in(self.study, history))} and the baseline",
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
            confirmed = (each for each in conclusion.verdicts if each.arm in news)
            said = [paragraph(each, reference=arm) for each in confirmed]
            messages.append("\n".join([f"{_TAG} {label}: confirmed", *said]))
        done = _done(history)
        total = done + self.study.left(history)
        if not self._is_past_half and 2 * done >= total:
            self._is_past_half = True
            left = f", {time_left(*left_s)} left" if left_s is not None else ""
            most = done + self.study.at_most(history)
            of = counted(total, "trial") if most == total else f"{total} to {most} trials"
            head = f"{_TAG} half way: {label}: {done} of {of}{left}"
            lines = [head, f"- {tally(conclusion.verdicts)}", *best_lines(conclusion)]
            messages.append("\n".join(lines))
        return tuple(messages)


def _done(history: Sequence[TrialResult]) -> int:
    return sum(each.status.is_final for each in history)


def _cell_of(study: Study, result: TrialResult) -> Cell:
    """Return the cell of a trial; the study's first where it is of another study."""
    found = (each for each in study.cells if each.digest == result.trial.cell_digest)
    return next(found, study.cells[0])


def _slot_of(study: Study, result: TrialResult) -> str:
    """Return which node slot a trial lies on, e.g. `slot 2`; "" where there is one."""
    digests = [each.digest for each in study.cells]
    if len(digests) == 1 or not study.traits.has_slots:
        return ""
    own = result.trial.cell_digest
    return f"slot {digests.index(own) + 1}" if own in digests else ""


def _confirmed(conclusion: Conclusion) -> dict[str, VerdictKind]:
    return {each.arm: each.kind for each in conclusion.verdicts if each.kind in _CONFIRMED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """One line, its trial, and the messages to people about it.

    Attributes:
        line: the text to show; "" is nothing.
        sweep: whose.
        is_passing: of a job in flight: a terminal that shows where jobs stand needs no such line.
        result: of the trial that landed, if one did.
        messages: to people.
    """

    line: str
    sweep: str
    is_passing: bool = False
    result: TrialResult | None = None
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waits:
    """A job waits or is suspended, for this reason and until then as far as the scheduler says."""

    reason: str
    is_held: bool
    starts_s: float | None


def _about(running: Running) -> object:
    """Return what a line would be about; None where none is needed.

    Two that are equal are one state of the job: of its steps each part is one.
    """
    if running.reason or running.state is State.PENDING:
        return _Waits(reason=running.reason, is_held=running.is_held, starts_s=running.starts_s)
    if running.step is None:
        return running.phase or "started"
    part = (running.step + 1) * _PARTS // max(running.trial.protocol.steps, 1)
    return part if part < _PARTS else None  # its landing is next


class Feed:
    """The lines of one ledger in one session."""

    def __init__(
        self, folder: Path, *, session_id: str, now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self._flights = Flights(folder)
        self._running: tuple[Running, ...] = ()
        self._looked_s = 0.0
        self._told: dict[str, tuple[object, float]] = {}  # job -> what was told of it, and when
        self._ledger = Ledger(folder / LEDGER)
        self._session_id = session_id
        self._state = LedgerState()
        self._broken: LedgerError | None = None
        self._opened: CampaignOpened | None = None
        self._studies: dict[str, Study] = {}
        self._pace = Pace()
        self._milestones: dict[str, Milestones] = {}
        self._added: dict[str, Reason] = {}  # study -> what was told of trials that were added

    def landed(self) -> Iterator[Landed]:
        """Give the trials that landed since the last call.

        No line shows a secret: neither the ledger nor the file beside it has one, and what looks
        like one is hidden here once more.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        for each in self._landed():
            yield replace(
                each, line=hide_kept(each.line), messages=tuple(map(hide_kept, each.messages))
            )

    def _landed(self) -> Iterator[Landed]:
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
                yield from self._reused(event)
                milestones = self._milestones[event.study] = Milestones(study)
                kickoff = milestones.begin(history_of(self._state, study))
                if kickoff:
                    yield Landed(line="", sweep=event.sweep, messages=(kickoff,))
            elif self._opened is not None:
                yield from self._line(entry, self._opened.sweep)
        if self._opened is not None:
            yield from self._changes(self._opened.sweep)

    def _line(self, entry: LedgerEntry, sweep: str) -> Iterator[Landed]:
        event = entry.event
        if isinstance(event, AttemptSubmitted):
            yield from self._submitted(event, sweep)
        elif isinstance(event, TrialEnded):
            yield from self._ended(event.result, sweep)
        elif isinstance(event, EvidenceRecorded):
            for said in (*event.facts, *event.problems):
                yield Landed(line=f"{event.trial_id}: {said}", sweep=sweep)
        elif isinstance(event, Decided) and event.next in (Next.RETRY, Next.STOP, Next.INTERRUPTED):
            if event.cannot is not None:  # the line of its trial, which follows, says the same
                return
            yield Landed(line=f"{event.trial_id}: {sentence(event.why)}", sweep=sweep)
        elif isinstance(event, NodesPinned):
            yield Landed(line=f"pinned to {', '.join(event.nodes)}", sweep=sweep)
        elif isinstance(event, EpochBegan):
            yield Landed(line=f"a new epoch: {sentence(event.why)}", sweep=sweep)
        elif isinstance(event, ProfileCompiled):
            said = f"compiled: {event.cls.meaning}: {event.sentence}"
            line = f"{event.profile} {said} ({event.took_s:.1f} s)"
            yield Landed(line=line, sweep=sweep)
        elif isinstance(event, Noted):
            yield Landed(line=f"note: {sentence(event.said)}", sweep=sweep)

    def _ended(self, result: TrialResult, sweep: str) -> Iterator[Landed]:
        study = self._studies.get(result.trial.study)
        if result.trial.protocol.dump:
            for last in list(self._studies.values())[-1:]:
                line = evidence_line(result, cell=_cell_of(last, result))
                yield Landed(line=line, sweep=sweep)
        elif result.memory is not None:  # what compiling said is a line of its own
            if result.memory.fits is None:
                line = f"{result.trial.arm} has no compiled memory: {result.memory.said}"
                yield Landed(line=line, sweep=sweep)
        elif study is not None:
            history = history_of(self._state, study)
            conclusion = study.conclude(history)
            left_s = self._left_s(history, study)
            line = live_line(
                in_window((result,), conclusion.first_step)[0],
                cell=_cell_of(study, result),
                verdict=conclusion.verdict(result.trial.arm),
                progress=self._progress(history, study),
                place=study.place(result.trial),
                slot=_slot_of(study, result),
            )
            messages = self._milestones[study.name].landed(history, conclusion, left_s=left_s)
            # a profile that needs no run has no job, so no trial has landed
            landed = result if result.not_run is None else None
            yield Landed(line=line, sweep=sweep, result=landed, messages=messages)
            added = study.why_more(history)
            if added and added != self._added.get(study.name):
                self._added[study.name] = added
                yield Landed(line=f"{study.cells[0].label}: {sentence(added)}", sweep=sweep)

    def _reused(self, opened: CampaignOpened) -> Iterator[Landed]:
        done = sum(each.status.is_final for each in self._state.history(opened.study))
        if done:
            line = f"{opened.cells[0].label}: {done} trials are reused from the ledger"
            yield Landed(line=line, sweep=opened.sweep)

    def _submitted(self, event: AttemptSubmitted, sweep: str) -> Iterator[Landed]:
        of = event.submission
        progress = self._state.trials[of.trial_id]
        self._told[of.job_id] = "submitted", self._now()
        again = f", attempt {of.attempt}" if of.attempt > 1 else ""
        study = self._studies.get(progress.trial.study)
        if study is not None:
            cell = _cell_of(study, progress.result)
            said = f"submitted{again}"
            job = ", ".join(filter(None, [of.job_id, _slot_of(study, progress.result)]))
            line = running_line(progress.trial, cell=cell, job_id=job, said=said)
            yield Landed(line=line, sweep=sweep, is_passing=True)

    def _changes(self, sweep: str) -> Iterator[Landed]:
        """Tell what has changed of the jobs in flight since it was last told."""
        now_s = self._now()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._running = self._flights.look(self._state, self._pace.submitted_s)
        flying = {each.job_id for each in self._running}
        self._told = {job: told for job, told in self._told.items() if job in flying}
        for each in self._running:
            study, about = self._studies.get(each.trial.study), _about(each)
            told, told_s = self._told.get(each.job_id, (None, 0.0))
            goes_on = (
                isinstance(told, _Waits)
                and isinstance(about, _Waits)
                and told.is_held == about.is_held
            )
            if (
                study is None
                or about in (None, told)
                or now_s - told_s < (_PENDING_S if goes_on else _PACE_S)
            ):
                continue
            self._told[each.job_id] = about, now_s
            history = history_of(self._state, study)
            result = self._state.trials[each.trial.id].result
            line = running_line(
                each.trial,
                cell=_cell_of(study, result),
                job_id=", ".join(filter(None, [each.job_id, _slot_of(study, result)])),
                said=each.words,
                progress=self._progress(history, study),
            )
            yield Landed(line=line, sweep=sweep, is_passing=True)

    def status(self) -> str:
        """Return where the cell stands now, for a line that is rewritten; "" where nothing runs."""
        if not self._running or self._opened is None:
            return ""
        order = sorted(self._running, key=lambda each: each.state is State.PENDING)
        first, others = order[0], len(order) - 1
        more = f" and {others} more" if others else ""
        study = self._studies.get(first.trial.study)
        if study is None:
            return ""
        history = history_of(self._state, study)
        progress = self._progress(history, study)
        job = f"{first.trial.profile.id} (job {first.job_id})"
        return hide_kept(f"{job} {first.words}{more} | {progress}")

    def _progress(self, history: tuple[TrialResult, ...], study: Study) -> str:
        ahead = study.ahead(history)
        return standing(
            history,
            left_s=self._left_s(history, study),
            ahead=ahead,
            left=(study.left(history), study.at_most(history)),
            is_placed=any(map(study.place, (*(each.trial for each in history), *ahead))),
        )

    def _left_s(self, history: tuple[TrialResult, ...], study: Study) -> tuple[float, float] | None:
        # a job that has landed since the last look runs no more
        flying = {each.job_id for each in self._state.in_flight()}
        running = [each for each in self._running if each.job_id in flying]
        left = study.left(history), study.at_most(history)
        return self._pace.range_s(left, self._now(), running=running)
