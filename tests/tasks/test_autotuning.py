"""The record of a run says how GPU kernels were chosen."""

from __future__ import annotations

import pytest

from pytest_xlatune.ledger import CampaignOpened, EnvironmentSeen, Event, LedgerEntry, TrialEnded
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.tasks.run_record import record_of
from tests.helpers.history import measured

CACHE = "/shared/tuned"


@pytest.mark.parametrize(
    ("platform", "flags", "autotuning"),
    [
        pytest.param("gpu", "", "not pinned", id="a GPU"),
        pytest.param("gpu", "--xla_gpu_autotune_level=0", "off", id="switched off"),
        pytest.param("gpu", "--xla_gpu_per_fusion_autotune_cache_dir=/shared/autotune",
                     "pinned (--xla_gpu_per_fusion_autotune_cache_dir)",
                     id="pinned by a folder"),
        pytest.param("seen", "", "not pinned", id="a GPU that only its driver shows"),
        pytest.param("cpu", "", "", id="a CPU, which tunes none"),
    ],
)  # fmt: skip
def test_autotuning_is_recorded(platform: str, flags: str, autotuning: str) -> None:
    cell = Cell(
        model_tag="m",
        parallelism=Parallelism.parse("FSDP=8"),
        deployed={} if flags is CACHE else {"XLA_FLAGS": flags},
        protocol=Protocol(autotune_cache=CACHE if flags is CACHE else ""),
    )
    study = CalibrationStudy(cell=cell, jobs=6)
    node = NodeEnvironment(name="n1", devices={"platform": platform})
    if platform == "seen":
        node = NodeEnvironment(name="n1", node={"GPUs": "8 x gfx942"})
    trials = study.decide(()).due
    results = [measured(each, 7.0) for each in trials]
    events: list[Event] = [
        CampaignOpened(cells=(cell,), study=study.name),
        EnvironmentSeen(trial_id="", cell_digest=cell.digest, nodes=(node,)),
        *(TrialEnded(result=each) for each in results),
    ]
    entries = [LedgerEntry(number=k, at_s=k, event=each) for k, each in enumerate(events, 1)]
    found = record_of(replay(entries), study, cell)
    assert found.autotuning.startswith(autotuning)
    assert bool(found.autotuning) == bool(autotuning)
