"""Profiles compiled before anything is queued on a real cluster: what never becomes a job.

The trainer only pretends; the compiler is JAX's, for four devices of a CPU.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.helpers.words import in_words

Faults = Any  # of pretend.py, which cannot be imported from here

pytestmark = [pytest.mark.part("sweeps"), pytest.mark.jax]

PROGRAM = """\
from pathlib import Path

import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

with open(Path(__file__).with_name("compiled.txt"), "a") as file:
    print("compiled", file=file)


def step(devices):
    mesh = Mesh(np.array(devices), ("x",))
    of_weights, of_rows = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x"))

    def loss(w, x):
        return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2)

    def train_step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    shapes = jax.ShapeDtypeStruct((2, 16, 16), "f4"), jax.ShapeDtypeStruct((8, 16), "f4")
    return jax.jit(train_step, in_shardings=(of_weights, of_rows), out_shardings=of_weights), shapes
"""
PROFILES = """\
        profile("unfused", "--xla_disable_hlo_passes=fusion"),
        profile("unfused-too", "--xla_disable_hlo_passes=fusion,no-such-pass"),
        profile("none-1", "--xla_gpu_all_gather_combine_threshold_bytes=1"),
        profile("none-2", "--xla_gpu_all_reduce_combine_threshold_bytes=1"),
        profile("nccl", env={"NCCL_ALGO": "Ring"}),
        profile("unknown", "--xla_cpu_enable_warp_drive=true")"""
CHECK = 'CompileCheck(program="programs:step", target="cpu", topology="1x1x4", folder=str(HERE))'
SAID = {
    "unfused": "program",
    "unfused-too": "program",
    "none-1": "identical",
    "none-2": "identical",
    "nccl": "unseen",
    "unknown": "refused",
}
NOT_RUN = {  # and why
    "unfused-too": "the same program and settings as unfused, which stands for both",
    "none-2": "identical to the baseline: keep one such profile",
    "unknown": "flag refused: Unknown flag in XLA_FLAGS: --xla_cpu_enable_warp_drive",
}
SLOT = ("--xlatune-nodelist", "node[001-004]")


@pytest.fixture
def sweep(faults: Faults) -> Faults:
    """The pretending sweep on four nodes, whose profiles are compiled first."""
    faults.write(PROFILES)
    (faults.path / "programs.py").write_text(PROGRAM)
    path = faults.path / "test_sweep.py"
    text = path.read_text()
    for before, after in (
        ("    CommandLauncher,\n", "    CommandLauncher,\n    CompileCheck,\n"),
        ("FSDP=2", "FSDP=4"),
        ("--xla_deployed=1", "--xla_cpu_enable_fast_math=false"),
        (
            "    design=",
            f"    compile_check={CHECK},\n    design=",
        ),
    ):
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    return faults


def test_what_compiling_decides_never_becomes_a_job(sweep: Faults, lab: ModuleType) -> None:
    project = sweep.project
    said = sweep.run("-n", "2", "-rx", slot=SLOT)
    assert "3 passed, 3 xfailed" in said, said

    found = project.events("profile-compiled")
    assert {each["profile"]: each["cls"] for each in found} == SAID
    assert len(found) == len(SAID)
    measured = sorted({"baseline-deployed", *SAID} - NOT_RUN.keys())
    assert sorted(project.measured) == measured
    assert sorted(trial.split("-wave2")[0] for trial in project.submitted) == measured
    assert {tuple(each["outcome"]["nodes"]) for each in project.events("attempt-ended")} == {
        ("node001", "node002", "node003", "node004")
    }
    dropped = {
        each["result"]["trial"]["profile"]["id"]: in_words(each["result"]["reason"])
        for each in project.events("trial-ended")
        if each["result"]["status"] == "dropped"
    }
    assert dropped.keys() == NOT_RUN.keys()
    for name, why in NOT_RUN.items():
        assert why in dropped[name]
    (board,) = (sweep.path / "reports").rglob("leaderboard.md")
    assert "3 of 6 profiles need no run" in board.read_text()
    # all were compiled before the first job was queued
    at = [each["at"] for each in found]
    assert max(at) <= min(each["at"] for each in project.events("attempt-submitted"))

    compiled = (sweep.path / "compiled.txt").read_text()
    said = sweep.run("-n", "0", slot=SLOT)
    assert "3 passed, 3 xfailed" in said, said
    assert (sweep.path / "compiled.txt").read_text() == compiled
    assert len(project.events("profile-compiled")) == len(SAID)
    assert project.jobs(lab) == len(project.submitted) == len(measured)
