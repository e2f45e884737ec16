"""From a ledger to the files that people read.

What the terminal, the reports and the command line show of a cell is made here from its ledger
alone, so all of them say the same and anyone can make them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_xlatune.campaign.history import history_of
from pytest_xlatune.campaign.jobs import LEDGER
from pytest_xlatune.cells import Cell, Stage
from pytest_xlatune.errors import LedgerError
from pytest_xlatune.hidden import hide
from pytest_xlatune.ledger import Ledger, LedgerState, replay
from pytest_xlatune.profiles import Profile
from pytest_xlatune.publishing.elsewhere import elsewhere
from pytest_xlatune.publishing.explained import explain
from pytest_xlatune.publishing.remarks import remarks_of
from pytest_xlatune.publishing.settled import was_compiled
from pytest_xlatune.publishing.tuning_files import add_to_document, alone, write_all, writing
from pytest_xlatune.recovery import Next
from pytest_xlatune.report import jsonfile, markdown
from pytest_xlatune.report.bubbles import bubbles
from pytest_xlatune.report.calibration import calibration
from pytest_xlatune.report.covered import Covered, Explanation
from pytest_xlatune.report.document import Document, mapped
from pytest_xlatune.report.evidence import evidence
from pytest_xlatune.report.gate import gate
from pytest_xlatune.report.imported import imported
from pytest_xlatune.report.jsonfile import secrets_in, shown, shown_cell
from pytest_xlatune.report.leaderboard import leaderboard, winner
from pytest_xlatune.report.stop import stop_message
from pytest_xlatune.results import Conclusion, TrialResult
from pytest_xlatune.stats.warmup import Window
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.calibration import KIND as KIND_CALIBRATION
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.declared import study_of
from pytest_xlatune.studies.evidence import KIND as KIND_EVIDENCE
from pytest_xlatune.studies.evidence import EvidenceStudy
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.imported import ImportedStudy
from pytest_xlatune.studies.one_window import moved
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.earlier import read_calibration

_CELL = f"*/{LEDGER}"
_NAME_ONE = "name the ledger of a cell, .xlatune/SWEEP/CELL, or run the sweep first"
# what the files of a study are called
_NAMES = {
    TuningStudy: "leaderboard",
    GateStudy: "gate",
    CalibrationStudy: "calibration",
    EvidenceStudy: "evidence",
    ImportedStudy: "leaderboard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that a ledger knows of its cell.

    Attributes:
        folder: of the ledger.
        sweep: the sweep's name.
        study: as last declared, with nothing deselected.
        history: the results of its trials, in plan order.
        conclusion: what follows from them.
        remarks: job id -> why it has no score, where no result says so.
        at_s: time of the last event, seconds since the epoch.
    """

    folder: Path
    sweep: str
    study: Study
    state: LedgerState
    history: tuple[TrialResult, ...]
    conclusion: Conclusion
    remarks: dict[str, str]
    at_s: float

    @property
    def cell(self) -> Cell:
        """The cell that was measured, with the nodes that the scheduler picked for it if it did."""
        cell = self.study.cell
        return replace(cell, nodelist=cell.nodelist or self.state.pinned)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What was compared with the baseline, the profiles of derived waves included."""
        study = self.study
        return study.profiles_of(self.history) if isinstance(study, TuningStudy) else study.profiles

    @property
    def scored(self) -> tuple[TrialResult, ...]:
        """The history as it was compared: every score in the window of all trials."""
        first_step = self.conclusion.first_step
        if first_step is None:
            return self.history
        protocol = replace(self.cell.protocol, first_step=first_step)
        window = Window(protocol=protocol, is_moved=True)
        return tuple(moved(each, window) for each in self.history)

    @property
    def evidence(self) -> tuple[TrialResult, ...]:
        """The evidence trials of other studies on the same cell, in plan order."""
        own = {each.trial.id for each in self.history}
        return tuple(
            each.result
            for trial_id, each in self.state.trials.items()
            if each.trial.stage is Stage.EVIDENCE and trial_id not in own
        )

    @property
    def secrets(self) -> frozenset[str]:
        """The values that no text about the cell may show."""
        return secrets_in(self.cell, self.profiles)

    @property
    def stop_reason(self) -> str:
        """Why the sweep was stopped, by the playbook or a budget; "" where it was not."""
        stops = [each for each in self.state.decisions if each.next == Next.STOP]
        return hide(stops[0].reason, self.secrets) if stops else ""

    @property
    def stopped(self) -> str:
        """The message to people where the sweep was stopped, else ""."""
        stops = [each for each in self.state.decisions if each.next == Next.STOP]
        if not stops:
            return ""
        message = stop_message(
            cell=self.cell,
            nodes=self.cell.nodelist,
            reason=stops[0].reason,
            evidence=stops[0].evidence,
            recovery=self.state.notes,
            conclusion=self.conclusion,
            history=self.history,
            artifacts=str(self.folder),
        )
        return hide(message, self.secrets)

    @property
    def written(self) -> datetime:
        """When: the ledger says."""
        return datetime.fromtimestamp(self.at_s, UTC)


def read_known(path: Path) -> Known:
    """Read a ledger; `path` is its file or its folder.

    Raises:
        LedgerError: there is none, or it cannot be read.
    """
    path = _ledger_at(path)
    entries = Ledger(path).refresh()
    state = replay(entries)
    if not state.opened:
        raise LedgerError(f"{path} is no ledger of a sweep: nothing was begun; run the sweep first")
    # calibration and evidence are about the cell: they have the last word only where nothing was
    # asked of it
    about_cell = (KIND_CALIBRATION, KIND_EVIDENCE)
    asked = [each for each in state.opened if not each.study.startswith(about_cell)]
    last = (asked or state.opened)[-1]
    study = study_of(last.study, last.declared).whole()
    history = state.history(study.name)
    return Known(
        folder=path.parent,
        sweep=last.sweep,
        study=study,
        state=state,
        history=history,
        conclusion=study.conclude(history_of(state, study)),
        remarks=remarks_of(entries),
        at_s=entries[-1].at_s,
    )


def _ledger_at(path: Path) -> Path:
    """Return the file of the ledger that a user named; of a folder that holds several, none."""
    if not path.exists():
        raise LedgerError(f"{path} does not exist; {_NAME_ONE}")
    if not path.is_dir() or (path / LEDGER).is_file():
        return path / LEDGER if path.is_dir() else path
    below = sorted(str(each.parent) for each in (*path.glob(_CELL), *path.glob(f"*/{_CELL}")))
    if not below:
        raise LedgerError(f"{path} holds no {LEDGER}; {_NAME_ONE}")
    raise LedgerError(
        f"{path} holds no {LEDGER} itself, but below it {len(below)} cell"
        f"{'s do' if len(below) > 1 else ' does'}; name one of {', '.join(below)}"
    )


def document_of(known: Known) -> Document:
    """Return what is known as a document; dated by the ledger, so it is the same again."""
    return mapped(_document_of(known), lambda text: hide(text, known.secrets))


def _document_of(known: Known) -> Document:
    if isinstance(known.study, EvidenceStudy):
        said = {each.trial_id: each for each in known.state.recorded.values()}
        runs = [
            (each.result, (*said[name].facts, *said[name].problems) if name in said else ())
            for name, each in known.state.trials.items()
            if each.trial.stage is Stage.EVIDENCE
        ]
        return evidence(runs, cell=known.cell, now=known.written)
    if isinstance(known.study, CalibrationStudy):
        kept = read_calibration(known.folder, known.cell)
        return calibration(
            known.conclusion,
            cell=known.cell,
            history=known.scored,
            now=known.written,
            figures=kept.figures if kept else (),
        )
    if isinstance(known.study, ImportedStudy):
        return imported(
            known.conclusion,
            cell=known.cell,
            profiles=known.profiles,
            history=known.history,
            now=known.written,
        )
    render = gate if isinstance(known.study, GateStudy) else leaderboard
    stopped = {} if render is gate else {"stopped": known.stop_reason}
    document = render(
        known.conclusion,
        cell=known.cell,
        profiles=known.profiles,
        history=known.scored,
        now=known.written,
        **stopped,
    )
    shown_too = (
        was_compiled(known.state, known.profiles, known.history),
        bubbles(known.cell, known.profiles, files=known.state.files, conclusion=known.conclusion),
    )
    return replace(document, sections=(*document.sections, *filter(None, shown_too)))


def json_of(known: Known) -> str:
    """Return what is known as the text of one JSON document."""
    text = jsonfile.render(
        known.conclusion,
        cell=known.cell,
        profiles=known.profiles,
        history=known.history,
        now=known.written,
    )
    return hide(text, known.secrets)


def covered_by(known: Known) -> Covered:
    """Return what the tuning document says of the cell, without secrets."""
    best = winner(known.conclusion)
    recipe = next((each for each in known.profiles if best and each.id == best.profile), None)
    covered = Covered(
        sweep=known.sweep,
        cell_digest=known.cell.digest,
        written_s=known.at_s,
        cell=shown_cell(known.cell),
        profiles=tuple(each.shown for each in known.profiles),
        conclusion=known.conclusion,
        history=tuple(map(shown, (*known.scored, *known.evidence))),
        stopped=known.stop_reason,
        remarks=known.remarks,
        files=known.state.files,
        versions=known.state.opened[-1].versions,
        explanation=explain(known.state, known.folder, best.profile) if best else Explanation(),
        elsewhere=elsewhere(known.folder, known.study.cell, recipe) if recipe else (),
    )
    # what nobody knows the name of, such as a line of a log, is searched for the values themselves
    return Covered.from_json(json.loads(hide(json.dumps(covered.to_json()), known.secrets)))


def publish(folder: Path, reports: Path, *, zh: bool = False) -> tuple[Path, ...]:
    """Write `<sweep>/leaderboard.md` and `.json`, and add the cell to `<MODEL_TAG>-tuning.md`.

    Of a gate it is `<sweep>/gate.md` and `.json`, of a calibration `<sweep>/calibration.md` and so,
    and no tuning document.

    Sessions of one model may end at the same time: one of them writes at a time, and what it writes
    is what the ledger says then.

    Args:
        folder: of the cell's ledger.
        reports: where; made where there is no such directory.
        zh: whether the tuning document is asked for in Chinese too.

    Returns:
        The files that were written.

    Raises:
        LedgerError: the directory cannot be written; the ledger is whole and can be read again.
    """
    with writing(), alone(reports):
        known = read_known(folder)
        name = next(name for kind, name in _NAMES.items() if isinstance(known.study, kind))
        texts = {
            reports / known.sweep / f"{name}.md": markdown.render(document_of(known)),
            reports / known.sweep / f"{name}.json": json_of(known),
        }
        write_all(texts)
        if not isinstance(known.study, TuningStudy):
            return tuple(texts)
        return (*texts, *add_to_document(reports, covered_by(known), zh=zh))
