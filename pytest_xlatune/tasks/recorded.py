"""Find the evidence that a ledger recorded, by the names that people type.

quickstart:baseline-deployed      the sweep and the profile
baseline-deployed-e.0-1a2b3c4d5e  the trial
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.ledger import LEDGER, EvidenceRecorded, Ledger, find_ledgers
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import Trial

# names of a sweep's profile:  quickstart:baseline-deployed
_OF_SWEEP = re.compile(r"([a-z0-9][a-z0-9_-]*):([a-z0-9][a-z0-9._+-]{0,63})")


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


def recorded_files(name: str, workdir: Path, kind: str) -> tuple[Path, ...]:
    """Return the files of a kind, "dump" or "capture", of the recorded evidence that a name means.

    A name that is neither a sweep's profile nor a trial is returned as a path.

    Raises:
        ConfigError: the sweep or trial exists without evidence, several cells have it, or the
            evidence has no file of the kind.
        LedgerError: a ledger cannot be read.
    """
    match = _OF_SWEEP.fullmatch(name)
    sweep, profile_id = match.groups() if match else ("", "")
    evidence: list[tuple[Path, EvidenceRecorded]] = []
    known: list[str] = []
    for folder in find_ledgers(workdir):
        if sweep and folder.parent.name != sweep:
            continue
        state = replay(Ledger(folder / LEDGER).refresh())
        wanted = []
        for event, trial in evidence_in(state):
            known.append(trial.profile.id)
            if name == event.trial_id or profile_id == trial.profile.id:
                wanted.append((folder, event))
        # take the last one: the profile may have been recorded under another protocol before
        evidence += wanted[-1:]
        if name in state.trials and not wanted:
            raise ConfigError(
                f"{name}: this trial left no dump and no capture; record its "
                "profile with `xlatune evidence SWEEP_FILE PROFILE`"
            )
    if len(evidence) > 1:
        raise ConfigError(
            f"{name}: recorded in {len(evidence)} cells; name the trial: "
            f"{', '.join(event.trial_id for _, event in evidence)}"
        )
    if match and not evidence:
        raise ConfigError(
            f"{name}: no evidence of it below {workdir}"
            + (f"; recorded are {', '.join(dict.fromkeys(known))}" if known else "")
            + ". Record it with `xlatune evidence SWEEP_FILE PROFILE`, or give a path"
        )
    if not evidence:
        return (Path(name),)
    ((folder, event),) = evidence
    files = event.captures if kind == "capture" else filter(None, (event.dump,))
    paths = tuple(folder / file for file in files)
    if not paths:
        why = f": {'; '.join(event.problems)}" if event.problems else ""
        raise ConfigError(f"{name}: trial {event.trial_id} left no {kind}{why}")
    return paths
