"""Whole sweeps on the lab, as a user runs them: interrupted, resumed, with and without workers."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path

import pytest

from tests.slurm.on_lab import Project, Trials, wait_until

LAB_SWEEP = str(Path(__file__).with_name("lab_sweep.py"))
NODES = ("--xlatune-nodelist", "node[001-004]")
SCREEN = ("-m", "wave1 or wave2")
TRIALS = 4  # two baselines, two profiles; the unknown flag is dropped


@pytest.mark.part("sweeps")
@pytest.mark.jax
def test_a_killed_jax_sweep_over_four_nodes_is_resumed_without_a_further_job(
    project: Project,
) -> None:
    first = project.start(LAB_SWEEP, "-n", "2", *SCREEN, *NODES)
    wait_until(lambda: len(project.measured) == 1)
    os.killpg(first.pid, signal.SIGKILL)  # the controller and its workers
    first.wait()
    before, over = len(project.submitted), len(project.events("trial-ended"))
    said = project.run(LAB_SWEEP, "-n", "2", *SCREEN, *NODES)
    assert "2 passed" in said, said
    assert "1 xfailed" in said, said
    reused = "1 trial" if over == 1 else f"{over} trials"  # two may end together
    assert f"{reused} reused from the ledger" in said, said
    assert before >= 2
    assert len(project.submitted) == len(set(project.submitted)) == TRIALS
    assert sorted(project.measured) == ["baseline-deployed", "baseline-deployed", "opt-level-1"]
    nodes = {tuple(line["outcome"]["nodes"]) for line in project.events("attempt-ended")}
    assert nodes == {("node001", "node002", "node003", "node004")}

    said = project.run(LAB_SWEEP, "-n", "0", *SCREEN, *NODES)
    assert "2 passed" in said, said
    check_record(project.path / "reports" / "lab" / "leaderboard.json")
    said = project.run(LAB_SWEEP, "-n", "0", *SCREEN, "--xlatune-nodelist", "node[001-002]")
    assert "another cell: nodelist was" in said, said
    assert project.jobs == len(project.submitted) == TRIALS


def check_record(board: Path) -> None:
    """Four slurmd on one machine, each with a name, tell what their trainer ran on."""
    record = json.loads(board.read_text(encoding="utf-8"))["record"]
    assert [each["name"] for each in record["nodes"]] == [f"node00{at}" for at in range(1, 5)]
    for node in record["nodes"]:
        assert node["problems"] == []
        assert node["node"]["kernel"] == platform.release()
        assert node["packages"].keys() >= {"python", "jax", "jaxlib", "numpy"}
        assert node["devices"]["devices"] == "1 x cpu", "of one process"
        assert node["repositories"]
        assert node["code"]
    assert record["changes"] == [], "neither a restart nor the order of answers is a change"
    assert len(record["commands"]) == 2
    assert record["node_hours"] > 0


def test_every_node_learns_its_coordinator(trials: Trials) -> None:
    """`sweeps/maxtext/coordinator.env.sh` is what MaxText's hardware=gpu joins its processes by."""
    file = Path(__file__).parents[2] / "sweeps" / "maxtext" / "coordinator.env.sh"
    names = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT", "NNODES", "NODE_RANK")
    shown = " ".join(f"${name}" for name in names)
    nodes = ("node004", "node002", "node003")
    done = trials.submit(
        "join", f". {file}; echo {shown}", nodes, spec={"inherit": ("PATH", "SLURM_*")}
    )
    assert trials.end(done).state == "completed"
    port = 61440 + int(done.job_id) % 4096
    said = [trials.log(done, rank).split() for rank in range(3)]
    assert said == [["node002", str(port), "3", str(rank)] for rank in range(3)]
