"""A trainer of its own kinds of steps, run below the worker of rotations, and its journal read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.rotation import RotatedProgram, RotationRead, RotationSpec, read_rotation

ROTATE = Path(__file__).parents[2] / "pytest_xlatune" / "workers" / "rotate.py"
BASE = RotatedProgram(id=BASELINE_ID)
COPY = RotatedProgram(id=f"{BASELINE_ID}~2")
SLOWER = RotatedProgram(
    id="opt-0", options={"xla_disable_hlo_passes": "fusion", "xla_backend_optimization_level": "0"}
)
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "COVERAGE_PROCESS_START")

# each kind of a step, as trainers make it; `step(state, batch) -> state` is what the loop calls
STEPS: Mapping[str, str] = {
    "called": "step = jax.jit(train_step, donate_argnums=0)",
    "decorated": "step = jax.jit(donate_argnums=0)(train_step)",
    "compiled": (
        "step = jax.jit(train_step, donate_argnums=0).lower(state, batch).compile("
        "{'xla_cpu_enable_fast_math': True})"
    ),
    "compiled and called": (
        "step = jax.jit(train_step, donate_argnums=0)\n"
        "print('temp', step.lower(state, batch).compile().memory_analysis().temp_size_in_bytes)"
    ),
    "partial": (
        "import functools\n"
        "def train_step_of(scale, state, batch): return train_step(state, batch, scale)\n"
        "train_step_of.__name__ = 'train_step'\n"
        "step = jax.jit(functools.partial(train_step_of, 2.0), donate_argnums=0)"
    ),
    "static by name": (
        "jitted = jax.jit(train_step, static_argnames='scale', donate_argnums=0)\n"
        "step = lambda state, batch: jitted(state, batch, scale=2.0)"
    ),
    "a method": (
        "class Model:\n"
        "    @jax.jit\n"
        "    def train_step(self, state, batch): return train_step(state, batch)\n"
        "jax.tree_util.register_static(Model)\n"
        "step = Model().train_step"
    ),
    "pjit": ("from jax.experimental.pjit import pjit\nstep = pjit(train_step, donate_argnums=0)"),
    "the name taken from jax": "step = jit(train_step, donate_argnums=0)",
}

TRAINER = '''
"""A trainer: {kind}."""
import os, sys, time
import jax, jax.numpy as jnp
from jax import jit
{before}

def train_step(state, batch, scale=1.0):
    def loss_of(state):
        return jnp.mean((jnp.tanh(batch @ state["w"]) * scale - batch) ** 2)
    loss, gradient = jax.value_and_grad(loss_of)(state)
    state = jax.tree_util.tree_map(lambda each, change: each - 0.1 * change, state, gradient)
    return state, loss

steps = int(sys.argv[1])
state = {{"w": jnp.eye(32) * 0.5}}
batch = jnp.sin(jnp.arange(8 * 32, dtype=jnp.float32)).reshape(8, 32)
{step}
for number in range(steps):
{in_loop}
    state, loss = step(state, batch)
    print("completed step:", number, "loss:", float(loss).hex(), flush=True)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """What a trainer and its rotation left."""

    status: int
    said: str
    read: RotationRead

    @property
    def losses(self) -> list[str]:
        lines = [each for each in self.said.splitlines() if each.startswith("completed step:")]
        return [each.rpartition(" ")[2] for each in lines]

    @property
    def turns(self) -> list[tuple[str, int, int]]:
        return [(each.program, each.first_call, each.calls) for each in self.read.turns]


def spec_of(*programs: RotatedProgram, **said: Any) -> RotationSpec:
    """Return a spec over the baseline and these: by default each has a turn of three steps."""
    every = (BASE, *programs)
    spec = RotationSpec(
        programs=every,
        order=tuple(range(len(every))),
        turn_steps=3,
        step_function="train_step",
        first_step=2,
    )
    return replace(spec, **said)


def write_trainer(folder: Path, step: str, *, before: str = "", in_loop: str = "") -> Path:
    """Write a trainer whose step is one of `STEPS`, or a text."""
    path = folder / "trainer.py"
    text = TRAINER.format(
        kind=step if step in STEPS else "one more kind",
        step=STEPS.get(step, step),
        before=before,
        in_loop=in_loop or "    pass",
    )
    path.write_text(text, encoding="utf-8")
    return path


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "JAX_PLATFORMS": "cpu", **more}


def run_plain(trainer: Path, *, env: Mapping[str, str] = {}) -> Rotated:
    return _ended([sys.executable, str(trainer), "11"], trainer.parent, environment(**env))


def run_rotated(
    trainer: Path,
    spec: RotationSpec,
    *,
    steps: int = 11,
    is_customized: bool = False,
    env: Mapping[str, str] = {},
) -> Rotated:
    """Run a trainer below the worker; with `is_customized` as the interpreter's sitecustomize."""
    folder = trainer.parent
    path = folder / "rotation.json"
    path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
    command = [sys.executable, str(ROTATE), str(path), "--", str(trainer), str(steps)]
    env = dict(env)
    if is_customized:
        custom = folder / "hook"
        custom.mkdir(exist_ok=True)
        (custom / "sitecustomize.py").write_bytes(ROTATE.read_bytes())
        behind = env.get("PYTHONPATH", "")
        env["PYTHONPATH"] = f"{custom}:{behind}" if behind else str(custom)
        env["XLATUNE_ROTATION"] = str(path)
        command = [sys.executable, str(trainer), str(steps)]
    return _ended(command, folder, environment(**env))


def _ended(command: list[str], folder: Path, env: Mapping[str, str]) -> Rotated:
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return Rotated(status=done.returncode, said=done.stdout, read=journal_of(folder))


def journal_of(folder: Path, rank: int = 0) -> RotationRead:
    """Read a process's journal; one without a line where there is none."""
    path = folder / f"rotation.{rank}.jsonl"
    return read_rotation(path.read_text(encoding="utf-8") if path.exists() else "")
