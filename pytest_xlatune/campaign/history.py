"""What a study knows of a ledger: the results of its trials, and evidence where it reads that."""

from __future__ import annotations

from pytest_xlatune.ledger import LedgerState
from pytest_xlatune.results import TrialResult
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.tuning import TuningStudy


def history_of(state: LedgerState, study: Study) -> tuple[TrialResult, ...]:
    """Return the results that a study proposes and concludes from, in plan order."""
    reads_evidence = isinstance(study, TuningStudy) and study.reads_evidence
    return state.history(study.name, with_evidence=reads_evidence)
