"""From a ledger to the files that people read.

What the terminal, the reports and the command line show of a cell is made here from its ledger
alone, so all of them say the same and anyone can make them again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_xlatune.attempts import measured_steps
from pytest_xlatune.cells import Cell
from pytest_xlatune.earlier import read_calibration
from pytest_xlatune.errors import LedgerError
from pytest_xlatune.jobs import LEDGER
from pytest_xlatune.ledger import Ledger, LedgerState, replay
from pytest_xlatune.recovery import Next
from pytest_xlatune.report import jsonfile, markdown
from pytest_xlatune.report.calibration import calibration
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.gate import gate
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.stop import stop_message
from pytest_xlatune.report.tuning import tuning
from pytest_xlatune.results import Conclusion, TrialResult
from pytest_xlatune.stats.warmup import steady_start, window_advice
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.calibration import KIND as KIND_CALIBRATION
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.declared import study_of
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.tuning import TuningStudy

# what the files of a study are called
_NAMES = {TuningStudy: "leaderboard", GateStudy: "gate", CalibrationStudy: "calibration"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that a ledger knows of its cell.

    Attributes:
        folder: of the ledger.
        sweep: the sweep's name.
        study: as last declared, with nothing deselected.
        history: the results of its trials, in plan order.
        conclusion: what follows from them.
        at_s: time of the last event, seconds since the epoch.
    """

    folder: Path
    sweep: str
    study: Study
    state: LedgerState
    history: tuple[TrialResult, ...]
    conclusion: Conclusion
    at_s: float

    @property
    def cell(self) -> Cell:
        """The cell that was measured, with the nodes that the scheduler picked for it if it did."""
        cell = self.study.cell
        return replace(cell, nodelist=cell.nodelist or self.state.pinned)

    @property
    def stopped(self) -> str:
        """The message to people where the playbook stopped the sweep, else ""."""
        stops = [each for each in self.state.decisions if each.next == Next.STOP]
        if not stops:
            return ""
        return stop_message(
            cell=self.cell,
            nodes=self.cell.nodelist,
            reason=stops[0].reason,
            evidence=stops[0].evidence,
            recovery=self.state.notes,
            conclusion=self.conclusion,
            history=self.history,
            artifacts=str(self.folder),
        )

    @property
    def written(self) -> datetime:
        """When: the ledger says."""
        return datetime.fromtimestamp(self.at_s, UTC)


def read_known(path: Path) -> Known:
    """Read a ledger; `path` is its file or its folder.

    Raises:
        LedgerError: there is none, or it cannot be read.
    """
    path = path / LEDGER if path.is_dir() else path
    entries = Ledger(path).refresh()
    state = replay(entries)
    if not state.opened:
        raise LedgerError(f"{path} is no ledger of a sweep; run the sweep first")
    # a calibration is about the cell: it has the last word only where nothing was asked of it
    asked = [each for each in state.opened if each.study != KIND_CALIBRATION]
    last = (asked or state.opened)[-1]
    study = study_of(last.study, last.declared).whole()
    history = state.history(study.name)
    return Known(
        folder=path.parent,
        sweep=last.sweep,
        study=study,
        state=state,
        history=history,
        conclusion=study.conclude(history),
        at_s=entries[-1].at_s,
    )


def document_of(known: Known) -> Document:
    """Return what is known as a document; dated by the ledger, so it is the same again."""
    if isinstance(known.study, CalibrationStudy):
        kept = read_calibration(known.folder, known.cell)
        return calibration(
            known.conclusion,
            cell=known.cell,
            history=known.history,
            now=known.written,
            figures=kept.figures if kept else (),
        )
    render = gate if isinstance(known.study, GateStudy) else leaderboard
    document = render(
        known.conclusion,
        cell=known.cell,
        profiles=known.study.profiles,
        history=known.history,
        now=known.written,
    )
    advice = _warmup(known)
    return replace(document, header=(*document.header, advice)) if advice else document


def _warmup(known: Known) -> str:
    """Say where steady state begins over all jobs, if the declared window begins before it.

    The one figure that is not in the ledger: the steps are in the attempts' logs, and where those
    are gone nothing is said.
    """
    protocol = known.cell.protocol
    jobs = [
        measured_steps(each, known.state, known.folder)
        for each in known.history
        if each.score is not None and each.trial.protocol == protocol
    ]
    advice = window_advice(
        steady_start(jobs),
        first_step=protocol.first_step,
        steps=protocol.steps,
        min_steps=protocol.min_steps,
    )
    return f"Warm-up: {advice}" if advice else ""


def json_of(known: Known) -> str:
    """Return what is known as the text of one JSON document."""
    return jsonfile.render(
        known.conclusion,
        cell=known.cell,
        profiles=known.study.profiles,
        history=known.history,
        now=known.written,
    )


def publish(known: Known, reports: Path) -> tuple[Path, ...]:
    """Write `<sweep>/leaderboard.md`, `.json` and `<MODEL_TAG>-tuning.md`; return their paths.

    Of a gate it is `<sweep>/gate.md` and `.json`, of a calibration `<sweep>/calibration.md` and so.

    Raises:
        LedgerError: the directory cannot be written; the ledger is whole and can be read again.
    """
    name = next(name for kind, name in _NAMES.items() if isinstance(known.study, kind))
    texts = {
        reports / known.sweep / f"{name}.md": markdown.render(document_of(known)),
        reports / known.sweep / f"{name}.json": json_of(known),
    }
    if isinstance(known.study, TuningStudy):
        document = tuning(
            known.conclusion,
            cell=known.cell,
            profiles=known.study.profiles,
            history=known.history,
            now=known.written,
        )
        texts[reports / f"{known.cell.model_tag}-tuning.md"] = markdown.render(document)
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            aside.write_text(text, encoding="utf-8")
            aside.replace(path)
    except OSError as error:
        raise LedgerError(
            f"reports cannot be written: {error}; the ledger is whole, so after mending that "
            "`xlatune report` writes them"
        ) from error
    return tuple(texts)
