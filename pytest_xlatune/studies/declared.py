"""From a ledger's declaration back to the study that was declared."""

from __future__ import annotations

import json
from dataclasses import replace

from pytest_xlatune.errors import LedgerError
from pytest_xlatune.studies import Study, calibration, evidence, gate, imported
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.evidence import EvidenceStudy
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.imported import ImportedStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.studies.tuning_layout import STUDY

_Kind = TuningStudy | GateStudy | CalibrationStudy | EvidenceStudy | ImportedStudy
_STUDIES: dict[str, type[_Kind]] = {
    STUDY: TuningStudy,
    gate.KIND: GateStudy,
    calibration.KIND: CalibrationStudy,
    evidence.KIND: EvidenceStudy,
    imported.KIND: ImportedStudy,
}


def study_of(name: str, declared: str) -> Study:
    """Return the study of this name from its JSON text.

    Raises:
        LedgerError: it is none that is known here.
    """
    kind = name.partition("-")[0]
    if kind not in _STUDIES:
        raise LedgerError(
            f"the ledger holds a study {name!r}; known are {', '.join(sorted(_STUDIES))}. Was it "
            "written by a newer version?"
        )
    return _STUDIES[kind].from_json(json.loads(declared))


def agreed(study: Study, *, declared: str) -> Study:
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
