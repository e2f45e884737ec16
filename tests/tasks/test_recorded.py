"""Evidence found from ledgers by the names that people type."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from pytest_xlatune.cli.parsers import evidence_files
from pytest_xlatune.ledger import (
    CampaignOpened,
    Event,
    EvidenceRecorded,
    Ledger,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.tasks.recorded import recorded_files
from tests.helpers.history import measured, trial_of

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


def test_where_a_step_goes_is_told_by_evidence_of_the_cell_s_baseline(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "PP=8",
        *recorded("PP=8", BASELINE, idle=0.2),
        *recorded("PP=8", ONE, idle=0.3),
        *recorded("FSDP=8", BASELINE, idle=0.4),
        *recorded("TP=8", BASELINE),  # its trace could not be read
    )
    state = replay(Ledger(folder / "ledger.jsonl").refresh())
    assert sentence(state.exposed(cell("PP=8"))) == "idle, 20.0 % of a step"
    assert state.exposed(cell("TP=8")) is None


def test_a_path_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "PP=8", *recorded("PP=8", ONE))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pp8:overlap-2").mkdir()
    arguments = argparse.Namespace(xlatune_workdir=str(tmp_path))
    for name in ("pp8:overlap-2", "gone/xla_dump", "gone"):
        for kind in ("dump", "capture"):
            assert evidence_files(arguments, name, kind) == (Path(name),)


def test_a_trial_that_was_only_measured_has_none(tmp_path: Path) -> None:
    trial = trial_of(cell("PP=8"), ONE)
    write(tmp_path, "PP=8", TrialEnded(result=measured(trial, 0.7)))
    with pytest.raises(ConfigError, match="left no dump"):
        recorded_files(trial.id, tmp_path, "dump")
