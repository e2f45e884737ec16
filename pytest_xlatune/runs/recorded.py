"""Recorded evidence, found from the ledger: a trial's dump and captures, by a name people type.

    quickstart:baseline-deployed      the sweep and the profile
    baseline-deployed-e.0-1a2b3c4d5e  the trial

Nothing is run here, and nothing of a dump is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.campaign.jobs import LEDGER, find_ledgers
from pytest_xlatune.cells import Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.ledger import EvidenceRecorded, Ledger, LedgerState, replay
from pytest_xlatune.results import TrialStatus

# a sweep's profile:  quickstart:baseline-deployed
_OF_SWEEP = re.compile(r"([a-z0-9][a-z0-9_-]*):([a-z0-9][a-z0-9._+-]{0,63})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What an evidence trial left behind.

    Attributes:
        profile: id of the profile.
        trial_id: of the trial.
        dump: the folder of the compiler's dump; None where there is none.
        captures: the profiler's files, one per process.
        facts: what they say, one sentence each.
        problems: one sentence for each thing that could not be read.
        step_s: seconds of a step in the trials of the same profile that ran without profiler;
            None where none was measured.
    """

    profile: str
    trial_id: str
    dump: Path | None = None
    captures: tuple[Path, ...] = ()
    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    step_s: float | None = None


def recorded_of(state: LedgerState, folder: Path) -> Iterator[Recorded]:
    """Yield the evidence of a ledger in the order it was recorded; `folder` is the ledger's."""
    for trial_id, event in state.recorded.items():
        progress = state.trials.get(trial_id)
        if progress is not None and progress.trial.stage is Stage.EVIDENCE:
            yield as_recorded(event, progress.trial, state, folder)


def as_recorded(
    event: EvidenceRecorded, trial: Trial, state: LedgerState, folder: Path
) -> Recorded:
    """Return an event with its paths below the ledger's folder."""
    return Recorded(
        profile=trial.profile.id,
        trial_id=event.trial_id,
        dump=folder / event.dump if event.dump else None,
        captures=tuple(folder / each for each in event.captures),
        facts=event.facts,
        problems=event.problems,
        step_s=_step_s(state, trial),
    )


def find_recorded(said: str, workdir: Path) -> Recorded | None:
    """Return the evidence that a name stands for; None where it is no such name.

    Raises:
        ConfigError: such a sweep or trial exists and was not recorded, or several cells have it.
        LedgerError: a ledger cannot be read.
    """
    if "/" in said:  # a path that is not there
        return None
    match = _OF_SWEEP.fullmatch(said)
    sweep, profile_id = match.groups() if match else ("", "")
    found: list[Recorded] = []
    known: list[str] = []
    for folder in find_ledgers(workdir):
        if sweep and folder.parent.name != sweep:
            continue
        state = replay(Ledger(folder / LEDGER).refresh())
        here = list(recorded_of(state, folder))
        known += [each.profile for each in here]
        # the last one: a profile may have been recorded under another protocol before
        wanted = [each for each in here if said == each.trial_id or profile_id == each.profile]
        found += wanted[-1:]
        if not match and said in state.trials and not wanted:
            raise ConfigError(
                f"{said}: this trial was measured, and left no dump and no capture; record its "
                "profile with `xlatune evidence SWEEP_FILE PROFILE`"
            )
    if len(found) > 1:
        raise ConfigError(
            f"{said}: recorded in {len(found)} cells; name the trial: "
            f"{', '.join(each.trial_id for each in found)}"
        )
    if match and not found:
        raise ConfigError(
            f"{said}: no evidence of it below {workdir}"
            + (f"; recorded are {', '.join(dict.fromkeys(known))}" if known else "")
            + ". Record it with `xlatune evidence SWEEP_FILE PROFILE`, or give a path"
        )
    return found[0] if found else None


def dump_of(said: str, workdir: Path) -> Path:
    """Return the dump that a path or a name of recorded evidence stands for.

    Raises:
        ConfigError: the evidence has no dump; see `find_recorded`.
    """
    found = None if Path(said).exists() else find_recorded(said, workdir)
    if found is None:
        return Path(said)
    if found.dump is None:
        raise ConfigError(f"{said}: trial {found.trial_id} left no dump{_why(found)}")
    return found.dump


def captures_of(said: str, workdir: Path) -> tuple[Sequence[Path], float | None]:
    """Return the captures that a path or a name of recorded evidence stands for.

    With the seconds of a step without profiler, where they are known.

    Raises:
        ConfigError: the evidence has no captures; see `find_recorded`.
    """
    found = None if Path(said).exists() else find_recorded(said, workdir)
    if found is None:
        return [Path(said)], None
    if not found.captures:
        raise ConfigError(f"{said}: trial {found.trial_id} left no capture{_why(found)}")
    return found.captures, found.step_s


def _why(found: Recorded) -> str:
    return f": {'; '.join(found.problems)}" if found.problems else ""


def _step_s(state: LedgerState, trial: Trial) -> float | None:
    """Return the median seconds of a step over the measured trials of the same settings."""
    steps = sorted(
        each.ended.score.step_s
        for each in state.trials.values()
        if each.ended is not None
        and each.ended.status is TrialStatus.MEASURED
        and each.ended.score is not None
        and each.trial.cell_digest == trial.cell_digest
        and each.trial.profile.to_json() | _UNREAD == trial.profile.to_json() | _UNREAD
    )
    return steps[len(steps) // 2] if steps else None


_UNREAD = {"wave": "", "note": ""}  # what does not make it another profile
