"""An arm with two speeds is told from a noisy one, and autotuning is named where it may be why."""

from __future__ import annotations

import math
import random

import pytest

from pytest_xlatune.ledger import CampaignOpened, EnvironmentSeen, Event, LedgerEntry, TrialEnded
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.stats.noise import two_groups
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.tasks.run_record import record_of
from tests.helpers.history import measured

TWO = (1000.0, 1001.0, 1020.0, 1000.5, 1021.0, 1020.4)


@pytest.mark.parametrize(
    ("tgs", "groups"),
    [
        pytest.param(TWO, (3, 3), id="two speeds"),
        pytest.param((1000, 1000.2, 1000.4, 1000.1, 1050), None, id="one that fell out"),
        pytest.param((1000, 1001, 1020, 1021), None, id="too few"),
    ],
)
def test_runs_that_fall_in_two_groups(
    tgs: tuple[float, ...], groups: tuple[int, int] | None
) -> None:
    found = two_groups([math.log(each) for each in tgs])
    assert (found[1:] if found else None) == groups


@pytest.mark.parametrize(("n", "most"), [(5, 0.015), (6, 0.005), (12, 0.001)])
def test_noise_alone_is_seldom_taken_for_two_groups(n: int, most: float) -> None:
    drawn = random.Random(1)
    taken = [two_groups([drawn.gauss(0, 0.02) for _ in range(n)]) for _ in range(4000)]
    assert sum(each is not None for each in taken) / 4000 <= most


CACHE = "/shared/tuned"


@pytest.mark.parametrize(
    ("platform", "flags", "autotuning", "is_cause"),
    [
        pytest.param("gpu", "", "not pinned", True, id="a GPU"),
        pytest.param("gpu", "--xla_gpu_autotune_level=0", "off", False, id="switched off"),
        pytest.param("gpu", "--xla_gpu_per_fusion_autotune_cache_dir=/shared/autotune",
                     "pinned (--xla_gpu_per_fusion_autotune_cache_dir)", False,
                     id="pinned by a folder"),
        pytest.param("seen", "", "not pinned", True, id="a GPU that only its driver shows"),
        pytest.param("cpu", "", "", False, id="a CPU, which tunes none"),
    ],
)  # fmt: skip
def test_autotuning_is_recorded_and_named_where_it_may_be_the_cause(
    platform: str, flags: str, autotuning: str, is_cause: bool
) -> None:
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
    results = [measured(each, math.log(tgs)) for each, tgs in zip(trials, TWO, strict=True)]
    events: list[Event] = [
        CampaignOpened(cells=(cell,), study=study.name),
        EnvironmentSeen(trial_id="", cell_digest=cell.digest, nodes=(node,)),
        *(TrialEnded(result=each) for each in results),
    ]
    entries = [LedgerEntry(number=k, at_s=k, event=each) for k, each in enumerate(events, 1)]
    found = record_of(replay(entries), study, cell)
    assert found.autotuning.startswith(autotuning)
    assert bool(found.autotuning) == bool(autotuning)
    (said,) = found.two_speeds
    assert said.startswith("baseline-deployed: 3 runs and 3 runs are 1.9 % apart")
    assert ("candidate cause is autotuning" in said) is is_cause
