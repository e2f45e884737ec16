"""Evidence found from ledgers by the names that people type."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_xlatune.ledger import (
    CampaignOpened,
    Event,
    EvidenceRecorded,
    Ledger,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.tasks.recorded import recorded_files

ONE = profile("overlap-2", "--xla_a=2")


def cell(axes: str) -> Cell:
    return Cell(model_tag="m", parallelism=Parallelism.parse(axes))


def write(workdir: Path, axes: str, *events: Event) -> Path:
    folder = workdir / "pp8" / axes
    opened = CampaignOpened(cells=(cell(axes),), study="tuning", sweep="pp8", session="s")
    Ledger(folder / "ledger.jsonl").append(opened, *events, at_s=1.0)
    return folder


def recorded(axes: str, of: Profile, number: int = 0, **shares: float) -> tuple[Event, ...]:
    subject = cell(axes)
    if number:  # recorded again, with a longer window
        longer = msgspec.structs.replace(subject.protocol, profiler_steps=3 + number)
        subject = msgspec.structs.replace(subject, protocol=longer)
    trial = EvidenceStudy(cell=subject, profile=of).trial
    ended = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=("7",))
    event = EvidenceRecorded(
        trial_id=trial.id,
        dump=f"run/{number}/xla_dump",
        captures=(f"run/{number}/a.xplane.pb",),
        shares=Shares(of_step=shares),
    )
    return TrialPlanned(trial=trial), TrialEnded(result=ended), event


def test_a_profile_of_a_sweep_or_a_trial_stands_for_its_last_evidence(tmp_path: Path) -> None:
    once, again = recorded("PP=8", BASELINE), recorded("PP=8", BASELINE, 1)
    folder = write(tmp_path, "PP=8", *once, *again, *recorded("PP=8", ONE))
    assert recorded_files("pp8:baseline-deployed", tmp_path, "dump") == (folder / "run/1/xla_dump",)
    first = once[-1]
    assert isinstance(first, EvidenceRecorded)
    assert recorded_files(first.trial_id, tmp_path, "dump") == (folder / "run/0/xla_dump",)
    captures = recorded_files("pp8:overlap-2", tmp_path, "capture")
    assert captures == (folder / "run/0/a.xplane.pb",)
    # what a name does not say is asked for
    assert recorded_files("pp8", tmp_path, "dump") == (Path("pp8"),)
    write(tmp_path, "FSDP=8", *recorded("FSDP=8", ONE))
    with pytest.raises(ConfigError, match="recorded in 2 cells; name the trial: overlap-2-e"):
        recorded_files("pp8:overlap-2", tmp_path, "dump")
    with pytest.raises(ConfigError, match=r"recorded are .*overlap-2.*\. Record it"):
        recorded_files("pp8:slow", tmp_path, "dump")
    with pytest.raises(ConfigError, match="no evidence of it below"):
        recorded_files("pp8:overlap-2", tmp_path / "elsewhere", "dump")
