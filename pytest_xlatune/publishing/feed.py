"""The live lines of one cell: what has landed in its ledger since the last look.

It reads the ledger and says one line for each trial; it prints nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from pytest_xlatune.campaign.history import history_of
from pytest_xlatune.campaign.jobs import LEDGER
from pytest_xlatune.cells import Stage
from pytest_xlatune.hidden import hide
from pytest_xlatune.ledger import (
    AttemptIntended,
    CampaignOpened,
    Decided,
    Entry,
    EpochBegan,
    EvidenceRecorded,
    Ledger,
    LedgerState,
    NodesPinned,
    Noted,
    ProfileCompiled,
    TrialEnded,
    replay,
)
from pytest_xlatune.publishing.milestones import Milestones
from pytest_xlatune.report.jsonfile import secrets_in
from pytest_xlatune.report.lines import Progress, evidence_line, live_line
from pytest_xlatune.results import TrialResult
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.declared import study_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """One line, the trial that it is about, and what people are told of it."""

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
        self._opened: CampaignOpened | None = None
        self._studies: dict[str, Study] = {}
        self._began_s: dict[str, float] = {}
        self._took_s: list[float] = []
        self._milestones: dict[str, Milestones] = {}
        self._secrets: frozenset[str] = frozenset()

    def landed(self) -> Iterator[Landed]:
        """Give what has landed since the last call; no line shows a secret.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        for each in self._landed():
            line = hide(each.line, self._secrets)
            told = tuple(hide(message, self._secrets) for message in each.messages)
            yield replace(each, line=line, messages=told)

    def _landed(self) -> Iterator[Landed]:
        for entry in self._ledger.refresh():
            self._state = replay((entry,), onto=self._state)
            event = entry.event
            if isinstance(event, CampaignOpened) and event.session == self._session_id:
                self._opened = event
                study = self._studies[event.study] = study_of(event.study, event.declared)
                self._secrets |= secrets_in(study.cell, study.profiles)
                yield from self._reused(event)
                milestones = self._milestones[event.study] = Milestones(study)
                kickoff = milestones.begin(history_of(self._state, study))
                if kickoff:
                    yield Landed(line="", sweep=event.sweep, messages=(kickoff,))
            elif self._opened is not None:
                yield from self._line(entry, self._opened.sweep)

    def _line(self, entry: Entry, sweep: str) -> Iterator[Landed]:
        event = entry.event
        if isinstance(event, AttemptIntended):
            self._began_s[event.trial_id] = entry.at_s
        elif isinstance(event, TrialEnded) and event.result.trial.stage is Stage.EVIDENCE:
            for study in list(self._studies.values())[-1:]:
                yield Landed(line=evidence_line(event.result, cell=study.cell), sweep=sweep)
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
                cell=study.cell,
                verdict=conclusion.verdict(event.result.trial.profile.id),
                progress=Progress.of(history, left_s=left_s),
            )
            messages = self._milestones[study.name].landed(history, conclusion, left_s=left_s)
            # what was settled without a run is no trial that has come in
            landed = event.result if event.result.job_ids else None
            yield Landed(line=line, sweep=sweep, result=landed, messages=messages)
        elif isinstance(event, Decided) and event.next in ("retry", "stop", "interrupted"):
            yield Landed(line=f"{event.trial_id}: {event.reason}", sweep=sweep)
        elif isinstance(event, NodesPinned):
            yield Landed(line=f"pinned to {', '.join(event.nodes)}", sweep=sweep)
        elif isinstance(event, EpochBegan):
            yield Landed(line=f"a new epoch: {event.reason}", sweep=sweep)
        elif isinstance(event, ProfileCompiled):
            said = f"compiled: {event.cls}: {event.sentence}"
            line = f"{event.profile} {said} ({event.took_s:.1f} s)"
            yield Landed(line=line, sweep=sweep)
        elif isinstance(event, Noted):
            yield Landed(line=f"note: {event.text}", sweep=sweep)

    def _reused(self, opened: CampaignOpened) -> Iterator[Landed]:
        done = sum(each.status.is_final for each in self._state.history(opened.study))
        if done:
            line = f"{opened.cell.label}: {done} trials are reused from the ledger"
            yield Landed(line=line, sweep=opened.sweep)

    def _left_s(self, history: tuple[TrialResult, ...], study: Study) -> float | None:
        """Guess the rest from how long the trials of this session took, waiting included."""
        return median(self._took_s) * study.left(history) if self._took_s else None
