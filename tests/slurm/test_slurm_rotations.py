"""Rotations on a real Slurm: real JAX takes turns in step, in two processes on two nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.rotating import read_journals
from pytest_xlatune.executors.folder import journals, with_worker
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.result import RotationResult, State, TrialResult
from tests.helpers.turned import COPY, rotation_trial, spec_of

NODES = ("node001", "node002")


def of(result: TrialResult) -> RotationResult:
    assert result.rotation is not None
    return result.rotation


def real_jax() -> tuple[MaxTextLauncher, Cell]:
    """The quickstart's trainer, a process per node over gloo."""
    home = Path(__file__).parents[2] / "sweeps" / "quickstart"
    overrides = {
        "hardware": "gpu_multiprocess",
        "log_config": "false",
        "base_emb_dim": "32",
        "base_mlp_dim": "64",
        "base_num_decoder_layers": "2",
        "head_dim": "8",
        "vocab_size": "64",
    }
    launcher = MaxTextLauncher(
        python=sys.executable,
        module=str(home / "train.py"),
        config=str(home / "configs" / "quickstart.yml"),
    )
    devices = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    return launcher, Cell(
        model_tag="quickstart",
        parallelism=Parallelism.parse("DP=2"),
        max_target_length=16,
        nodelist=NODES,
        overrides=overrides,
        deployed={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices},
        protocol=Protocol(steps=12, deadline_s=240),
        launcher=launcher.describe(),
    )


REAL = (
    ("fusion-off", {"xla_disable_hlo_passes": "fusion"}),
    ("warp", {"xla_cpu_enable_warp_drive": "true"}),
)


@pytest.mark.jax
def test_real_jax_takes_turns_over_two_nodes(trials: Any) -> None:
    """Both processes agree which programs can run, and stay in step."""
    launcher, cell = real_jax()
    trial = rotation_trial(cell, spec_of(*REAL, rounds=2, turn_steps=4))
    launched = with_worker(launcher.launch(replace(trial, study="s"), cell))
    told = {
        name: getattr(launched, name) for name in ("argv", "env", "inherit", "files", "last_step")
    }
    argv = told.pop("argv")
    done = trials.submit("rotation", argv, NODES, spec=told)
    outcome = trials.end(done)
    logs = [trials.log(done, rank) for rank in (0, 1)]
    assert outcome.state is State.COMPLETED, (outcome, *logs)
    read = [read_journals((text,)) for text in journals(trials.folder(done))]
    one, two = (each for each in read if each is not None)
    assert one.found == two.found == "train_step"
    assert one.turns == two.turns
    assert set(one.refused) == set(two.refused) == {"warp"}
    assert {each.program for each in one.turns} >= {"fusion-off", COPY}
    assert "completed step: 34" in logs[0]
