"""Evidence found from ledgers by the names that people type."""

from __future__ import annotations

import argparse
import math
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
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.tasks.recorded import find_recorded, recorded_files
from tests.helpers import history

ONE = profile("overlap-2", "--xla_a=2")


def cell(axes: str) -> Cell:
    return Cell(model_tag="m", parallelism=Parallelism.parse(axes))


def measured(of: Cell, each: Profile, step_s: float, position: int = 0) -> TrialResult:
    trial = Trial(
        cell_digest=of.digest,
        profile=each,
        protocol=of.protocol,
        study="tuning",
        stage="wave1",
        position=position,
    )
    return history.measured(trial, -math.log(step_s), step_s=step_s)


def write(workdir: Path, *, sweep: str, axes: str, events: list[Event]) -> Path:
    folder = workdir / sweep / axes
    opened = CampaignOpened(cells=(cell(axes),), study="tuning", sweep=sweep, session="s")
    Ledger(folder / "ledger.jsonl").append(opened, *events, at_s=1.0)
    return folder


def recorded(axes: str, each: Profile, number: int = 0) -> list[Event]:
    of = cell(axes)
    if number:  # recorded again, with a longer window
        longer = msgspec.structs.replace(of.protocol, profiler_steps=3 + number)
        of = msgspec.structs.replace(of, protocol=longer)
    trial = EvidenceStudy(cell=of, profile=each).trial
    ended = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=("7",))
    event = EvidenceRecorded(
        trial_id=trial.id, dump=f"run/{number}/xla_dump", captures=(f"run/{number}/a.xplane.pb",)
    )
    return [TrialPlanned(trial=trial), TrialEnded(result=ended), event]


def test_a_profile_of_a_sweep_or_a_trial_stands_for_its_last_evidence(tmp_path: Path) -> None:
    events = [*recorded("PP=8", BASELINE), *recorded("PP=8", BASELINE, 1), *recorded("PP=8", ONE)]
    folder = write(tmp_path, sweep="pp8", axes="PP=8", events=events)
    assert recorded_files("pp8:baseline-deployed", tmp_path, "dump") == (folder / "run/1/xla_dump",)
    first = events[2]
    assert isinstance(first, EvidenceRecorded)
    assert recorded_files(first.trial_id, tmp_path, "dump") == (folder / "run/0/xla_dump",)
    captures = recorded_files("pp8:overlap-2", tmp_path, "capture")
    assert captures == (folder / "run/0/a.xplane.pb",)


def test_where_a_step_goes_is_told_by_evidence_of_the_cell_s_baseline(
    tmp_path: Path,
) -> None:
    def told(axes: str, of: Profile, share: float | None) -> list[Event]:
        *first, event = recorded(axes, of)
        assert isinstance(event, EvidenceRecorded)
        shares = Shares(of_step={} if share is None else {"idle": share})
        return [*first, msgspec.structs.replace(event, shares=shares)]

    events = [
        *told("PP=8", BASELINE, 0.2),
        *told("PP=8", ONE, 0.3),
        *told("FSDP=8", BASELINE, 0.4),
        *told("TP=8", BASELINE, None),  # its trace could not be read
    ]
    folder = write(tmp_path, sweep="pp8", axes="PP=8", events=events)
    state = replay(Ledger(folder / "ledger.jsonl").refresh())
    assert sentence(state.exposed(cell("PP=8"))) == "idle, 20.0 % of a step"
    assert state.exposed(cell("TP=8")) is None


def test_a_path_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, sweep="pp8", axes="PP=8", events=recorded("PP=8", ONE))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pp8:overlap-2").mkdir()
    arguments = argparse.Namespace(xlatune_workdir=str(tmp_path))
    for name in ("pp8:overlap-2", "gone/xla_dump", "gone"):
        for kind in ("dump", "capture"):
            assert evidence_files(arguments, name, kind) == (Path(name),)


def test_what_a_name_does_not_say_is_asked_for(tmp_path: Path) -> None:
    assert find_recorded("pp8", tmp_path) is None
    with pytest.raises(ConfigError, match="no evidence of it below"):
        find_recorded("pp8:overlap-2", tmp_path)
    for axes in ("PP=8", "FSDP=8"):
        write(tmp_path, sweep="pp8", axes=axes, events=recorded(axes, ONE))
    with pytest.raises(ConfigError, match="recorded in 2 cells; name the trial: overlap-2-e"):
        find_recorded("pp8:overlap-2", tmp_path)
    with pytest.raises(ConfigError, match=r"recorded are overlap-2\. Record it"):
        find_recorded("pp8:baseline-deployed", tmp_path)


def test_a_trial_that_was_only_measured_has_none(tmp_path: Path) -> None:
    result = measured(cell("PP=8"), ONE, 0.5)
    write(tmp_path, sweep="pp8", axes="PP=8", events=[TrialEnded(result=result)])
    with pytest.raises(ConfigError, match="left no dump"):
        find_recorded(result.trial.id, tmp_path)
