"""The live lines of one cell, and the messages to people as it goes on.

`Feed` reads the ledger and gives one line for each trial that has landed. `Milestones` gives the
messages: a session begins, a result is confirmed, the sweep is half way. The controller sends stop
and end itself, because it knows when a session is over. A milestone is crossed once in a session:
one that was crossed before the session is no news. Nothing is printed or sent here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from pytest_xlatune.campaign import history_of
from pytest_xlatune.ledger import (
    LEDGER,
    AttemptIntended,
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
from pytest_xlatune.model.cell import Cell, secrets_in
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.redact import hide
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Conclusion, TrialResult, VerdictKind
from pytest_xlatune.model.text import counted, duration
from pytest_xlatune.report.lines import (
    best_lines,
    evidence_line,
    live_line,
    paragraph,
    standing,
    tally,
)
from pytest_xlatune.studies import Study, profiles_in
from pytest_xlatune.sweep.registry import study_of

_CONFIRMED = frozenset({VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT})
_TAG = "[xla-tuning]"


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
        cell = self.study.cells[0]
        nodes = ",".join(cell.nodelist) or "this machine, or the scheduler's choice"
        reused = f", {counted(done, 'trial')} reused" if done else ""
        return "\n".join(
            [
                f"{_TAG} kickoff: {cell.label}",
                f"- {counted(left, 'trial')} to run{reused}",
                f"- Profiles: {len(profiles_in(self.study, history))} and the baseline",
                f"- Nodelist: {nodes}",
            ]
        )

    def landed(
        self, history: Sequence[TrialResult], conclusion: Conclusion, *, left_s: float | None
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
            left = f", about {duration(left_s)} left" if left_s is not None else ""
            head = f"{_TAG} half way: {label}: {done} of {counted(total, 'trial')}{left}"
            lines = [head, f"- {tally(conclusion.verdicts)}", *best_lines(conclusion)]
            messages.append("\n".join(lines))
        return tuple(messages)


def _done(history: Sequence[TrialResult]) -> int:
    return sum(each.status.is_final for each in history)


def _cell_of(study: Study, result: TrialResult) -> Cell:
    """Return the cell of a trial; the study's first where it is of another study."""
    found = (each for each in study.cells if each.digest == result.trial.cell_digest)
    return next(found, study.cells[0])


def _confirmed(conclusion: Conclusion) -> dict[str, VerdictKind]:
    return {each.arm: each.kind for each in conclusion.verdicts if each.kind in _CONFIRMED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """One line, its trial, and the messages to people about it."""

    line: str
    sweep: str
    result: TrialResult | None = None
    messages: tuple[str, ...] = ()


class Feed:
    """The lines of one ledger in one session."""

    def __init__(self, folder: Path, *, session_id: str) -> None:
        self._ledger = Ledger(folder / LEDGER)
        self._session_id = session_id
        self._state = LedgerState()
        self._broken: LedgerError | None = None
        self._opened: CampaignOpened | None = None
        self._studies: dict[str, Study] = {}
        self._began_s: dict[str, float] = {}
        self._took_s: list[float] = []
        self._milestones: dict[str, Milestones] = {}
        self._secrets: frozenset[str] = frozenset()

    def landed(self) -> Iterator[Landed]:
        """Give the trials that landed since the last call; no line shows a secret.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        for each in self._landed():
            line = hide(each.line, self._secrets)
            told = tuple(hide(message, self._secrets) for message in each.messages)
            yield replace(each, line=line, messages=told)

    def _landed(self) -> Iterator[Landed]:
        if self._broken is not None:
            raise self._broken
        for entry in self._ledger.refresh():
            try:
                self._state = replay((entry,), onto=self._state)
            except LedgerError as error:
                self._broken = error
                raise
            event = entry.event
            if isinstance(event, CampaignOpened) and event.session == self._session_id:
                self._opened = event
                study = self._studies[event.study] = study_of(event.study, event.declared)
                for cell in study.cells:
                    self._secrets |= secrets_in(cell, profiles_in(study, ()))
                yield from self._reused(event)
                milestones = self._milestones[event.study] = Milestones(study)
                kickoff = milestones.begin(history_of(self._state, study))
                if kickoff:
                    yield Landed(line="", sweep=event.sweep, messages=(kickoff,))
            elif self._opened is not None:
                yield from self._line(entry, self._opened.sweep)

    def _line(self, entry: LedgerEntry, sweep: str) -> Iterator[Landed]:
        event = entry.event
        if isinstance(event, AttemptIntended):
            self._began_s[event.trial_id] = entry.at_s
        elif isinstance(event, TrialEnded) and event.result.trial.protocol.dump:
            for study in list(self._studies.values())[-1:]:
                yield Landed(
                    line=evidence_line(event.result, cell=_cell_of(study, event.result)),
                    sweep=sweep,
                )
        elif isinstance(event, EvidenceRecorded):
            for said in (*event.facts, *event.problems):
                yield Landed(line=f"{event.trial_id}: {said}", sweep=sweep)
        elif isinstance(event, TrialEnded) and event.result.trial.study in self._studies:
            study = self._studies[event.result.trial.study]
            trial_id = event.result.trial.id
            if trial_id in self._began_s:
                self._took_s.append(entry.at_s - self._began_s.pop(trial_id))
            history = history_of(self._state, study)
            conclusion = study.conclude(history)
            left_s = self._left_s(history, study)
            line = live_line(
                event.result,
                cell=_cell_of(study, event.result),
                verdict=conclusion.verdict(event.result.trial.arm),
                progress=standing(history, left_s=left_s),
            )
            messages = self._milestones[study.name].landed(history, conclusion, left_s=left_s)
            # a profile that needs no run has no job, so no trial has landed
            landed = event.result if event.result.not_run is None else None
            yield Landed(line=line, sweep=sweep, result=landed, messages=messages)
        elif isinstance(event, Decided) and event.next in (Next.RETRY, Next.STOP, Next.INTERRUPTED):
            yield Landed(line=f"{event.trial_id}: {event.reason}", sweep=sweep)
        elif isinstance(event, NodesPinned):
            yield Landed(line=f"pinned to {', '.join(event.nodes)}", sweep=sweep)
        elif isinstance(event, EpochBegan):
            yield Landed(line=f"a new epoch: {event.reason}", sweep=sweep)
        elif isinstance(event, ProfileCompiled):
            said = f"compiled: {event.cls.meaning}: {event.sentence}"
            line = f"{event.profile} {said} ({event.took_s:.1f} s)"
            yield Landed(line=line, sweep=sweep)
        elif isinstance(event, Noted):
            yield Landed(line=f"note: {event.text}", sweep=sweep)

    def _reused(self, opened: CampaignOpened) -> Iterator[Landed]:
        done = sum(each.status.is_final for each in self._state.history(opened.study))
        if done:
            line = f"{opened.cells[0].label}: {done} trials are reused from the ledger"
            yield Landed(line=line, sweep=opened.sweep)

    def _left_s(self, history: tuple[TrialResult, ...], study: Study) -> float | None:
        """Estimate the rest from the trials of this session, their time in the queue included."""
        return median(self._took_s) * study.left(history) if self._took_s else None
