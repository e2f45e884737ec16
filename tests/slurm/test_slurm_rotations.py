"""Rotations on a real Slurm: two processes on two nodes, and a session that is killed.

With a trainer that only pretends; in the last test real JAX takes turns over two nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors.folder import journals, with_worker
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.resources import Patience, Resources
from pytest_xlatune.model.result import RotationResult, State, TrialResult, TrialStatus
from pytest_xlatune.model.rotation import read_rotation
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.scripted import campaign_of
from tests.helpers.turned import COPY, RotationsStudy, rotation_trial, spec_of
from tests.slurm.on_lab import Trials

NODES = ("node001", "node002")
SPEC = spec_of(("fast", {}), ("slow", {"xla_slow": "1"}), rounds=3)
PRETENDS = Path(__file__).with_name("rotated.py")
PATIENCE = Patience(before_memstats_s=60, compiling_s=8, training_s=8, after_fatal_s=4)


class Rotating:
    """A campaign of one rotation."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "work"
        launcher = CommandLauncher(argv=(sys.executable, "-u", str(PRETENDS), "{overrides}"))
        self.launcher: Launcher = launcher
        self.cell = Cell(
            model_tag="pretend",
            parallelism=Parallelism.parse("FSDP=2"),
            nodelist=NODES,
            protocol=Protocol(steps=12, deadline_s=240),
            launcher=launcher.describe(),
        )

    def session(self, name: str = "one") -> Campaign:
        study = RotationsStudy(cell=self.cell, specs=(SPEC,))
        made = campaign_of(
            self.folder,
            SlurmExecutor(),
            study,
            session=name,
            launcher=self.launcher,
            site={"resources": Resources(time_limit_s=300, patience=PATIENCE)},
        )
        made.open()
        return made

    def until(self, campaign: Campaign, is_ready: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 240
        while not is_ready():
            assert time.monotonic() < until_s, "it takes too long"
            campaign.turn()
            time.sleep(0.2)

    def run(self, campaign: Campaign) -> TrialResult:
        self.until(campaign, lambda: not campaign.view().pending)
        return campaign.view().history[0]

    def attempts(self) -> list[Path]:
        return sorted(each.parent for each in self.folder.glob("*/*/spec.json"))

    def says(self, text: str, *, rank: int = 0) -> bool:
        paths = self.folder.glob(f"*/*/rotation.{rank}.jsonl")
        return any(text in each.read_text(encoding="utf-8") for each in paths)


@pytest.fixture
def rotating(lab: ModuleType, tmp_path: Path) -> Rotating:
    del lab
    return Rotating(tmp_path)


def of(result: TrialResult) -> RotationResult:
    assert result.rotation is not None
    return result.rotation


def changes(result: TrialResult) -> dict[str, float]:
    score = of(result).score
    assert score is not None
    return {each.program: round(each.change, 2) for each in score.programs}


def test_two_processes_on_two_nodes_take_turns_in_step(rotating: Rotating) -> None:
    result = rotating.run(rotating.session())
    assert result.status is TrialStatus.MEASURED
    (attempt,) = rotating.attempts()
    read = [read_rotation(text) for text in journals(attempt)]
    assert len(read) == len(NODES)
    assert all(each.turns == read[0].turns for each in read)
    assert changes(result)["slow"] == pytest.approx(-0.4, abs=0.02)
    assert result.outcome is not None
    assert set(result.outcome.nodes) == set(NODES)


@pytest.mark.parametrize(
    "stage",
    ['"compile", "pid"', '"turn", "pid"'],
    ids=["while it compiles", "in the middle of its turns"],
)
def test_a_killed_session_loses_neither_job_nor_turns(rotating: Rotating, stage: str) -> None:
    first = rotating.session()
    rotating.until(first, lambda: rotating.says(stage))
    del first  # nothing of it is kept but its ledger
    result = rotating.run(rotating.session("two"))
    assert result.status is TrialStatus.MEASURED
    assert len(rotating.attempts()) == 1, "the job was adopted"
    assert of(result).blamed == ()
    assert changes(result)["slow"] == pytest.approx(-0.4, abs=0.02)


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
def test_real_jax_takes_turns_over_two_nodes(trials: Trials) -> None:
    """Both processes agree which programs can run, and stay in step."""
    launcher, cell = real_jax()
    trial = rotation_trial(cell, replace(spec_of(*REAL, rounds=2), turn_steps=4))
    launched = with_worker(launcher.launch(replace(trial, study="s"), cell))
    told = {
        name: getattr(launched, name) for name in ("argv", "env", "inherit", "files", "last_step")
    }
    done = trials.launch("rotation", LaunchSpec(**told), NODES)
    outcome = trials.end(done)
    logs = [trials.log(done, rank) for rank in (0, 1)]
    assert outcome.state is State.COMPLETED, (outcome, *logs)
    one, two = map(read_rotation, journals(trials.folder(done)))
    assert one.found == two.found == "train_step"
    assert one.turns == two.turns
    assert set(one.refused) == set(two.refused) == {"warp"}
    assert {each.program for each in one.turns} >= {"fusion-off", COPY}
    assert "completed step: 34" in logs[0]
