"""All that the rest of the code must know of a kind of study: one entry each.

A ledger or a report names a study by its kind; its class and its document are looked up here. A new
study adds one entry. Reports are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.studies import Study, calibration, evidence_run, gate, imported
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.imported import ImportedStudy
from pytest_xlatune.studies.trials import STUDY
from pytest_xlatune.studies.tuning import TuningStudy

if TYPE_CHECKING:
    from pytest_xlatune.report.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a document of a conclusion is made of.

    Attributes:
        conclusion: of the study.
        cells: as measured, the nodes that the scheduler picked included.
        profiles: what was compared with the baseline.
        history: the results, every score in the window of all trials.
        raw: the results as the ledger has them.
        now: when, as the ledger says.
        stopped: why the sweep was stopped; "" where it was not.
        figures: of a calibration that is kept for later plans, one line each.
        evidence: each evidence run with what was read of it, one line each.
    """

    conclusion: Conclusion
    cells: tuple[Cell, ...]
    profiles: tuple[Profile, ...]
    history: tuple[TrialResult, ...]
    raw: tuple[TrialResult, ...]
    now: datetime
    stopped: str = ""
    figures: tuple[str, ...] = ()
    evidence: tuple[tuple[TrialResult, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKind:
    """One kind of study.

    Attributes:
        study: its class.
        document: makes the document of a conclusion.
        file_name: of its reports, without suffix.
        marker: of the tests that run it, which the plugin registers; "" where they have several.
        about_cell: whether it tells of the cell itself: a report shows it only where nothing else
            was asked.
        compares_settings: whether a report adds what settings do to program and pipeline.
        is_deployed: whether the tuning document of the model covers it.
        is_gate: whether its verdicts say that a winner holds on another configuration.
    """

    study: Any
    document: Callable[[Subject], Document]
    file_name: str
    marker: str
    about_cell: bool = False
    compares_settings: bool = False
    is_deployed: bool = False
    is_gate: bool = False


def _tuning(subject: Subject) -> Document:
    from pytest_xlatune.report.leaderboard import leaderboard

    return leaderboard(subject.conclusion, stopped=subject.stopped, **_compared(subject))


def _gate(subject: Subject) -> Document:
    from pytest_xlatune.report.study_documents import gate

    return gate(subject.conclusion, **_compared(subject))


def _calibration(subject: Subject) -> Document:
    from pytest_xlatune.report.study_documents import calibration

    return calibration(
        subject.conclusion,
        cell=subject.cells[0],
        history=subject.history,
        now=subject.now,
        figures=subject.figures,
    )


def _evidence(subject: Subject) -> Document:
    from pytest_xlatune.report.study_documents import evidence

    return evidence(subject.evidence, cell=subject.cells[0], now=subject.now)


def _imported(subject: Subject) -> Document:
    from pytest_xlatune.report.study_documents import imported

    return imported(subject.conclusion, **{**_compared(subject), "history": subject.raw})


def _compared(subject: Subject) -> dict[str, Any]:
    """Return what the documents of profiles in one cell have in common."""
    cell, profiles = subject.cells[0], subject.profiles
    return {"cell": cell, "profiles": profiles, "history": subject.history, "now": subject.now}


KINDS: dict[str, StudyKind] = {
    STUDY: StudyKind(
        study=TuningStudy,
        document=_tuning,
        file_name="leaderboard",
        marker="",
        compares_settings=True,
        is_deployed=True,
    ),
    gate.KIND: StudyKind(
        study=GateStudy,
        document=_gate,
        file_name="gate",
        marker="gate",
        compares_settings=True,
        is_gate=True,
    ),
    calibration.KIND: StudyKind(
        study=CalibrationStudy,
        document=_calibration,
        file_name="calibration",
        marker="calibrate",
        about_cell=True,
    ),
    evidence_run.KIND: StudyKind(
        study=EvidenceStudy,
        document=_evidence,
        file_name="evidence",
        marker="wave1_5",
        about_cell=True,
    ),
    imported.KIND: StudyKind(
        study=ImportedStudy, document=_imported, file_name="leaderboard", marker=""
    ),
}


def kind_of(name: str) -> StudyKind:
    """Return the kind of the study of this name, e.g. of `gate-1f3a5c7e`.

    Raises:
        LedgerError: it is none that is known here.
    """
    kind = name.partition("-")[0]
    if kind not in KINDS:
        raise LedgerError(
            f"the ledger holds a study {name!r}; known are {', '.join(sorted(KINDS))}. Was it "
            "written by a newer version?"
        )
    return KINDS[kind]


def study_of(name: str, declared: Json) -> Study:
    """Return the study of this name from its builtins.

    Raises:
        LedgerError: it is none that is known here.
    """
    found: Study = kind_of(name).study.from_json(declared)
    return found


def agreed(study: Study, *, declared: Json) -> Study:
    """Return a study with the prior that its session began with.

    A calibration may end while a session runs; its processes would plan differently by when each of
    them came.

    Args:
        study: as this process has it.
        declared: the same, as the first process of the session declared it.
    """
    first = study_of(study.name, declared)
    if isinstance(study, TuningStudy) and isinstance(first, TuningStudy):
        return replace(study, sigma_prior=first.sigma_prior)
    return study
