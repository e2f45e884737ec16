"""A trial that ran on another platform or kind of device than its baseline is never scored.

On the campaign's own clock the dump's file names say where a module was compiled for; real JAX on
the CPU says it of itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.evidence.hlo.dump import keep_options, seen_devices
from pytest_xlatune.executors import Request
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import OPTIONS_FOLDER, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.trial import LaunchSpec, Trial
from tests.helpers import scripted
from tests.helpers.assessed import assess

GPU, CPU = "sm_9.0a_gpu", "cpu"
SMALL = "module_0000.jit_convert_element_type.{}_after_optimizations.txt"


class Somewhere(scripted.FakeExecutor):
    """Writes the files that XLA would write on the device of each attempt; "" is none."""

    def __init__(self, where: Callable[[str, int], str]) -> None:
        super().__init__()
        self.where = where

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        job_id = super().submit(spec, request)
        trial_id, _, attempt = request.folder.name.rpartition(".")
        device = self.where(trial_id, int(attempt))
        if device:
            folder = request.folder / OPTIONS_FOLDER
            folder.mkdir(exist_ok=True)
            (folder / SMALL.format(device)).write_text("HloModule jit_convert_element_type\n")
        return job_id


def swept(folder: Path, executor: scripted.FakeExecutor) -> tuple[Campaign, LedgerState]:
    made = scripted.campaign(folder, executor)
    scripted.run(made)
    return made, made.view().state


def results(state: LedgerState, arm: str) -> list[TrialResult]:
    return [each.result for each in state.trials.values() if each.trial.arm == arm]


def only(which: str, device: str, *, attempts: int = 99) -> Callable[[str, int], str]:
    def where(trial_id: str, attempt: int) -> str:
        return device if trial_id.startswith(which) and attempt <= attempts else GPU

    return where


@pytest.mark.parametrize(
    ("device", "shown"),
    [(CPU, "cpu"), ("sm_8.0_gpu", "cuda sm_8.0"), ("gfx942_gpu", "rocm gfx942")],
)
def test_a_profile_that_runs_elsewhere_has_no_score(
    device: str, shown: str, tmp_path: Path
) -> None:
    _, state = swept(tmp_path, Somewhere(only("fast", device)))
    fast = results(state, "fast")
    assert fast
    assert all(each.score is None for each in fast)
    (dropped,) = {each.status for each in fast if each.job_ids}
    assert dropped is TrialStatus.DROPPED
    told = next(each for each in fast if each.reason is not None)
    assert told.reason is not None
    assert (
        f"it ran on {shown} and baseline-deployed on cuda sm_9.0, as module "
        "jit_convert_element_type shows"
    ) in sentence(told.reason)
    assert any(each.score is not None for each in results(state, "same"))


def test_one_that_fell_back_once_is_measured_in_its_next_attempt(tmp_path: Path) -> None:
    _, state = swept(tmp_path, Somewhere(only("fast", CPU, attempts=1)))
    scored = [each for each in results(state, "fast") if each.score is not None]
    assert scored
    assert all(
        each.devices == {"module jit_convert_element_type": "cuda sm_9.0"} for each in scored
    )
    assert {each.cls for each in scored[0].findings} >= {"other-device"}


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(lambda *_: "", id="no dump at all"),
        pytest.param(lambda *_: CPU, id="a sweep of CPUs"),
        pytest.param(only("fast", ""), id="a profile whose dump is missing"),
        pytest.param(only("baseline", ""), id="a baseline whose dump is missing"),
        pytest.param(only("fast", "sm_9.0_gpu"), id="the device as an older release writes it"),
    ],
)
def test_no_run_is_refused_without_evidence(
    where: Callable[[str, int], str], tmp_path: Path
) -> None:
    executor = Somewhere(where)
    _, state = swept(tmp_path, executor)
    assert len(executor.submitted) == len({*executor.submitted}), "a trial was run again"
    ran = [each for each in state.trials.values() if each.result.job_ids]
    assert all(each.result.score is not None for each in ran)


def test_a_baseline_that_falls_back_later_stops_the_sweep_with_both_platforms(
    tmp_path: Path,
) -> None:
    seen: list[str] = []

    def where(trial_id: str, attempt: int) -> str:
        seen.append(trial_id)
        later = trial_id.startswith("baseline") and len({*seen}) > 1
        return CPU if later else GPU

    made, state = swept(tmp_path, Somewhere(where))
    said = [sentence(each.why) for each in state.decisions if each.cls == "other-device"]
    assert said
    assert "it ran on cpu" in said[-1]
    assert "cuda sm_9.0" in said[-1]
    assert made.view().stopped


def test_a_node_whose_gpus_were_replaced_begins_anew(tmp_path: Path) -> None:
    """What the kernel's files tell of a node is the node's; a fallback does not change it."""
    executor = Somewhere(lambda *_: GPU)
    executor.tells = lambda _: (NodeEnvironment(name="n1", node={"GPUs": "8 x H100"}),)
    swept(tmp_path, executor)
    later = Somewhere(lambda *_: "sm_10.0_gpu")
    later.tells = lambda _: (NodeEnvironment(name="n1", node={"GPUs": "8 x B200"}),)
    made = scripted.campaign(tmp_path, later, session="second", profiles=(
        *scripted.PROFILES, profile("third", "--xla_third=1"),
    ))  # fmt: skip
    scripted.run(made)
    assert later.submitted
    assert not [each for each in made.view().state.decisions if each.cls == "other-device"]


REAL = """
import jax, jax.numpy as jnp
@jax.jit
def train_step(x):
    return jnp.sin(x) @ x
for n in range(12):
    train_step(jnp.ones((8, 8)))
    print(f"completed step: {n}, seconds: 0.5, TFLOP/s/device: 0.1, "
          "Tokens/s/device: 1024.0, total_weights: 512, loss: 7.1")
"""


@pytest.mark.jax
def test_real_jax_tells_where_it_ran_and_a_gpu_beside_it_refuses_that(tmp_path: Path) -> None:
    cell, only_one = scripted.CELL, scripted.PROFILES[0]
    trial = Trial(
        cell_digest=cell.digest, profile=only_one, protocol=cell.protocol, study="tuning", stage="a"
    )
    launched = CommandLauncher(argv=("trainer", "{steps}")).launch(trial, cell)
    asked = launched.first_env["XLA_FLAGS"].partition(" --xla_deployed")[0]
    folder = tmp_path / OPTIONS_FOLDER
    flags = asked.replace("{xlatune.quoted_folder}", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        check=True,
        capture_output=True,
        timeout=240,
    )
    devices = seen_devices(folder)
    assert devices
    assert {*devices.values()} == {"cpu"}
    keep_options(folder)
    assert seen_devices(folder) == devices, "an attempt is assessed again to the same"

    def assessed(**beside: Mapping[str, str]) -> tuple[str, bool]:
        found = assess(
            *(trial, cell, scripted.OK, read_log([done.stdout])), devices=devices, ran_on=beside
        )
        return found.decision.cls, found.score is not None

    assert assessed(baseline=dict.fromkeys(devices, "cuda sm_9.0")) == ("other-device", False)
    assert assessed(baseline=devices) == ("", True)
    assert assessed(baseline={"module jit_of_another": "cuda sm_9.0"}) == ("", True)


def test_a_log_alone_tells_the_devices_of_jax(tmp_path: Path) -> None:
    cell, one = scripted.CELL, scripted.PROFILES[0]
    trial = Trial(
        cell_digest=cell.digest, profile=one, protocol=cell.protocol, study="tuning", stage="a"
    )

    def said(head: str) -> dict[str, str]:
        report = read_log([f"{head}\n{scripted.log()}".encode()])
        return assess(trial, cell, scripted.OK, report).devices

    line = "log:Devices"
    assert said("Devices: [CudaDevice(id=0), CudaDevice(id=1)]") == {line: "cuda"}
    assert said("Devices: [CpuDevice(id=0)]\nDevices: [CudaDevice(id=0)]") == {}
    assert said("System Information: Jax Backend: cpu") == {"log:Jax Backend": "cpu"}
    accelerator = {"log:Jax Backend": "an accelerator"}
    assert said("System Information: Jax Backend: PJRT C API\nrocm 60300") == accelerator
    report = read_log([f"Devices: [CpuDevice(id=0)]\n{scripted.log()}".encode()])
    refused = assess(*(trial, cell, scripted.OK, report), ran_on={"baseline": {line: "cuda"}})
    assert refused.score is None
    assert refused.why_none is not None
    assert "it ran on cpu and baseline on cuda, as log:Devices shows" in sentence(refused.why_none)
