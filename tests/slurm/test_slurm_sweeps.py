"""Whole sweeps, a rotation and the flagship sweeps on the lab: killed, resumed, to their documents.

`make slurm-flagships` runs all four flagships, `make slurm-flagships FLAGSHIPS=hybrid` one of them;
the tests of the project leave them out. A trial of theirs is on two nodes with two devices each, or
on four nodes: `FLAGSHIP_NODES=4`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors.folder import journals
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import TrialStatus
from pytest_xlatune.model.rotation import read_rotation
from tests.helpers.scripted import COPY, RotationsStudy, campaign_of, spec_of
from tests.helpers.waiting import until
from tests.slurm import lab_sweep
from tests.slurm.on_lab import Project, Trials

LAB_SWEEP = lab_sweep.__file__
NODES = ("--xlatune-nodelist", "node[001-004]")
SCREEN = ("-m", "wave1 or wave2")
TRIALS = 4  # two baselines, two profiles; the unknown flag is dropped


@pytest.mark.part("sweeps")
@pytest.mark.jax
def test_a_killed_jax_sweep_over_four_nodes_is_resumed_without_a_further_job(
    project: Project,
) -> None:
    first = project.start(LAB_SWEEP, "-n", "2", *SCREEN, *NODES)
    until(lambda: len(project.measured) == 1)
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
    board = project.path / "reports" / "lab" / "leaderboard.json"
    record = json.loads(board.read_text(encoding="utf-8"))["record"]
    assert [each["name"] for each in record["nodes"]] == [f"node00{at}" for at in range(1, 5)]
    assert record["changes"] == [], "neither a restart nor the order of answers is a change"
    said = project.run(LAB_SWEEP, "-n", "0", *SCREEN, "--xlatune-nodelist", "node[001-002]")
    assert "another cell: nodelist was" in said, said
    assert project.jobs == len(project.submitted) == TRIALS


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


PAIR = ("node001", "node002")
ROTATION = spec_of(
    ("fusion-off", {"xla_disable_hlo_passes": "fusion"}),
    ("warp", {"xla_cpu_enable_warp_drive": "true"}),
    rounds=2,
)
ROTATING = Cell(
    model_tag="quickstart",
    parallelism=Parallelism.parse("DP=2"),
    max_target_length=16,
    nodelist=PAIR,
    overrides=lab_sweep.TINY,
    deployed={
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
    },
    protocol=Protocol(steps=12, deadline_s=240),
    launcher=lab_sweep.LAUNCHER.describe(),
)


@pytest.mark.jax
def test_real_jax_takes_turns_over_two_nodes_though_its_session_is_killed(
    lab: ModuleType, tmp_path: Path
) -> None:
    """Both processes agree which programs can run, and stay in step."""

    def session(name: str) -> Campaign:
        study = RotationsStudy(cell=ROTATING, spec=ROTATION)
        site = {"resources": Resources(time_limit_s=300)}
        launcher = lab_sweep.LAUNCHER
        made = campaign_of(
            tmp_path, SlurmExecutor(), study, session=name, launcher=launcher, site=site
        )
        made.open()
        return made

    def take_turns(campaign: Campaign, is_enough: Callable[[], bool]) -> None:
        def look() -> bool:
            campaign.turn()
            return is_enough()

        until(look)

    def begins() -> bool:
        return any('"turn"' in each.read_text() for each in tmp_path.glob("*/*/rotation.0.jsonl"))

    take_turns(session("one"), begins)  # nothing of it is kept but its ledger
    second = session("two")
    take_turns(second, lambda: not second.view().pending)
    (result,) = second.view().history
    (attempt,) = (each.parent for each in tmp_path.glob("*/*/spec.json"))
    logs = [(attempt / f"log.{rank}.txt").read_text() for rank in (0, 1)]
    assert result.status is TrialStatus.MEASURED, (result, *logs)
    assert result.outcome is not None
    assert {*result.outcome.nodes} == {*PAIR}
    assert result.rotation is not None
    assert result.rotation.blamed == ()
    one, two = map(read_rotation, journals(attempt))
    assert one.found == two.found == "train_step"
    assert one.turns == two.turns
    assert {*one.refused} == {*two.refused} == {"warp"}
    assert {each.program for each in one.turns} >= {"fusion-off", COPY}


LAB_FLAGSHIP = str(Path(__file__).with_name("lab_flagship.py"))
ALL = ("pp8", "fsdp8", "tp8", "hybrid")
CHOSEN = os.environ.get("FLAGSHIPS", "")
WAVES = {"wave1", "wave2", "wave3", "wave4", "wave5", "wave5_5", "confirm", "evidence"}


@pytest.mark.part("sweeps")
@pytest.mark.jax
@pytest.mark.skipif(not CHOSEN, reason="make slurm-flagships runs them")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [each for each in ALL if CHOSEN in ("", "all", each)])
def test_a_flagship_sweep_ends_in_its_document_on_the_lab(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FLAGSHIP", name)
    nodes = os.environ.get("FLAGSHIP_NODES", "2")
    assert nodes in {"2", "4"}, f"FLAGSHIP_NODES={nodes}: expected 2 or 4, of the lab's four nodes"
    monkeypatch.setenv("FLAGSHIP_NODES", nodes)
    slot = ("--xlatune-nodelist", f"node[001-00{nodes}]")
    said = project.run(LAB_FLAGSHIP, "-n", "2", "-rs", *slot, timeout_s=1700)
    assert " error" not in said, said
    planned = [line["trial"] for line in project.events("trial-planned")]
    assert {each["stage"] for each in planned} >= WAVES - {"wave5_5"}, said
    assert any(each["study"].startswith("gate") for each in planned), said
    assert len(project.submitted) == project.jobs
    recorded = project.events("evidence-recorded")
    of_baseline = [each["trial_id"].startswith("baseline-deployed-") for each in recorded]
    assert any(of_baseline)
    assert not all(of_baseline)
    assert [each["problems"] for each in recorded] == [[]] * len(recorded)

    reports = project.path / "reports"
    record = json.loads((reports / name / "leaderboard.json").read_text(encoding="utf-8"))
    assert record["conclusion"]["complete"]
    best = record["conclusion"]["record"]["recipe"]
    assert best, said
    tuning = (reports / "quickstart-tuning.md").read_text(encoding="utf-8")
    assert f"### Recipe: `{best['arm']}`" in tuning
    assert list(reports.glob(f"{name}-wide/gate.md"))
