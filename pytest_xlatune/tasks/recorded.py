"""The evidence that a ledger recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.ledger import EvidenceRecorded
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The artifacts and facts of an evidence trial."""

    profile: str  # the id of the profile
    trial_id: str
    dump: Path | None  # the folder of the compiler's dump; None if there is none
    captures: tuple[Path, ...]  # the profiler's files, one for each process
    pgle: Path | None  # the file for XLA's scheduler; None if the captures name no operation
    facts: tuple[str, ...]  # one sentence for each fact in the dump and the captures
    problems: tuple[str, ...]  # one sentence for each file that could not be read


def evidence_in(state: LedgerState) -> Iterator[tuple[EvidenceRecorded, Trial]]:
    """Yield the evidence of a ledger, with its trials, in the order of recording."""
    for trial_id, event in state.recorded.items():
        progress = state.trials.get(trial_id)
        if progress is not None and progress.trial.protocol.dump:
            yield event, progress.trial
