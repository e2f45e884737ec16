"""The record of a run: the node-hours of all its cells, and how GPU kernels were chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.tasks.run_record import record_of, record_of_study
from tests.helpers.scripted import CELL, CellsStudy, Cluster, campaign, on, run


def ran(folder: Path, study: CellsStudy, node: NodeEnvironment) -> LedgerState:
    """A trial of 360 s of each cell, whose nodes tell this of themselves."""
    cluster = Cluster()
    cluster.took_s = 360.0
    cluster.tells = lambda trial: (replace(node, name=trial.rpartition("-round")[0]),)
    made = campaign(folder, cluster, study)
    run(made, cluster)
    return made.view().state


def test_a_study_of_several_nodes_counts_the_hours_and_the_dates_of_all(tmp_path: Path) -> None:
    study = CellsStudy(cells=(on("node001"), on("node002")))
    state = ran(tmp_path, study, NodeEnvironment(name=""))
    record = record_of_study(state, study)
    assert record.node_hours == pytest.approx(0.2), "360 s of each node"
    assert record.started_s is not None
    assert record.ended_s is not None
    assert 360 <= record.ended_s - record.started_s < 720
    hours = [record_of(state, study, cell).node_hours for cell in study.cells]
    assert hours == pytest.approx([0.1, 0.1])


GPU = {"platform": "gpu"}
CACHE = "xla_gpu_per_fusion_autotune_cache_dir"


@pytest.mark.parametrize(
    ("flags", "told", "autotuning"),
    [
        pytest.param("", {"devices": GPU}, "not pinned", id="a GPU"),
        pytest.param("--xla_gpu_autotune_level=0", {"devices": GPU}, "off", id="switched off"),
        pytest.param(
            f"--{CACHE}=/shared", {"devices": GPU}, f"pinned (--{CACHE})", id="pinned by a folder"
        ),
        pytest.param(
            "", {"node": {"GPUs": "8 x gfx942"}}, "not pinned", id="a GPU that its driver shows"
        ),
        pytest.param("", {"devices": {"platform": "cpu"}}, "", id="a CPU, which tunes none"),
    ],
)
def test_autotuning_is_recorded(
    tmp_path: Path, flags: str, told: dict[str, dict[str, str]], autotuning: str
) -> None:
    study = CellsStudy(cells=(replace(CELL, deployed={"XLA_FLAGS": flags}),))
    state = ran(tmp_path, study, NodeEnvironment(name="", **told))  # type: ignore[arg-type]
    found = record_of_study(state, study).autotuning
    assert found.startswith(autotuning)
    assert bool(found) == bool(autotuning)
