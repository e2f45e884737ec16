"""The worker of rotations, on real JAX: what it finds, compiles, runs, writes down and survives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
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
}

TRAINER = """
import os, sys, time
import jax, jax.numpy as jnp
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
    print("completed step:", number, "loss:", float(loss), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """What a trainer and its rotation left."""

    status: int
    said: str
    read: RotationRead

    @property
    def losses(self) -> list[float]:
        words = (line.split() for line in self.said.splitlines())
        return [float(word[-1]) for word in words if word[:2] == ["completed", "step:"]]

    @property
    def turns(self) -> list[tuple[str, int, int]]:
        return [(each.program, each.first_call, each.calls) for each in self.read.turns]


def spec_of(*programs: RotatedProgram, **said: Any) -> RotationSpec:
    """Return a spec over the baseline and these: by default each has a turn of three steps."""
    order = tuple(range(len(programs) + 1))
    spec = RotationSpec(
        programs=(BASE, *programs), order=order, turn_steps=3, step_function="train_step",
        first_step=2,
    )  # fmt: skip
    return replace(spec, **said)


def write_trainer(folder: Path, step: str, *, before: str = "", in_loop: str = "") -> Path:
    """Write a trainer whose step is one of `STEPS`, or a text."""
    path = folder / "trainer.py"
    loop = in_loop or "    pass"
    text = TRAINER.format(step=STEPS.get(step, step), before=before, in_loop=loop)
    path.write_text(text, encoding="utf-8")
    return path


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "JAX_PLATFORMS": "cpu", **more}


def run_rotated(
    trainer: Path,
    spec: RotationSpec | None,
    *,
    steps: int = 11,
    env: Mapping[str, str] | None = None,
) -> Rotated:
    """Run a trainer below the worker, or without one; with `env` as its sitecustomize."""
    path = trainer.parent / "rotation.json"
    command = [sys.executable, str(trainer), str(steps)]
    if spec is not None:
        path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
        command[1:1] = [] if env else [str(ROTATE), str(path), "--"]
    done = subprocess.run(
        command, cwd=trainer.parent, env=environment(**(env or {})), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
    )  # fmt: skip
    return Rotated(status=done.returncode, said=done.stdout, read=journal_of(trainer.parent))


def journal_of(folder: Path, rank: int = 0) -> RotationRead:
    """Read a process's journal; one without a line where there is none."""
    path = folder / f"rotation.{rank}.jsonl"
    return read_rotation(path.read_text(encoding="utf-8") if path.exists() else "")


pytestmark = pytest.mark.jax
PROGRAMS = pytest.mark.part("programs")
TURNS = [(BASELINE_ID, 2, 3), ("opt-0", 5, 3), (f"{BASELINE_ID}~2", 8, 3)]
FAST = RotatedProgram(id="fast", options={"xla_cpu_enable_fast_math": "True"})


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[float]]:
    """What the trainer says without a rotation, for the two scales of its step."""
    texts = {}
    for is_scaled, kind in ((False, "called"), (True, "partial")):
        plain = run_rotated(write_trainer(tmp_path_factory.mktemp("plain"), kind), None)
        assert plain.status == 0, plain.said
        texts[is_scaled] = plain.losses
    return texts


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "called" else PROGRAMS) for kind in STEPS]
)
def test_each_kind_of_step(kind: str, losses: dict[bool, list[float]], tmp_path: Path) -> None:
    rotated = run_rotated(write_trainer(tmp_path, kind), spec_of(SLOWER, COPY))
    read = rotated.read
    assert (rotated.status, read.trouble, read.refused) == (0, "", {}), rotated.said
    assert (read.found, read.calls, read.odd_calls, rotated.turns) == ("train_step", 11, (), TURNS)
    same = {each.program: each.same_as for each in read.compiled}
    assert same == {BASELINE_ID: "", "opt-0": "", f"{BASELINE_ID}~2": BASELINE_ID}
    assert all(each.memory_bytes and each.compile_s > 0 for each in read.compiled)
    expected = losses[kind in ("partial", "static by name")]
    # the first steps are the trainer's own; later ones sum in another order
    assert rotated.losses[:2] == expected[:2]
    assert rotated.losses == pytest.approx(expected, rel=1e-4)


# --- trainers that end or do something else: what is read of their rotations ----------------------

FULL = """
    import resource
    room = os.path.getsize("rotation.0.jsonl") + 20 if number == 5 else resource.RLIM_INFINITY
    if number in (5, 8):  # in the turn of a profile, and not for ever
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
"""
MADE_ANEW = """
jitted = []
def step(state, batch):
    if number % 5 == 0:
        def anew(state, batch): return train_step(state, batch, 1.0 + number)
        anew.__name__ = "train_step"
        jitted.append(jax.jit(anew, donate_argnums=0))
    return jitted[-1](state, batch)
"""
BY_STATE = """
small = jax.jit(lambda batch: batch * 1.0)
loss_of = jax.jit(lambda state, batch: train_step(state, batch)[1])
def step_of(state, batch): return train_step(state, batch)
large = jax.jit(step_of)
step = lambda state, batch: (loss_of(state, batch), large(state, small(batch)))[1]
"""
# a call in front of the turns raises, and one within them
RAISED = """
inner = jax.jit(train_step)
raised = set()
def step(state, batch):
    if number in (1, 6) and number not in raised:
        raised.add(number)
        worker = inner._xlatune
        def fails(*args, **more): raise RuntimeError('INTERNAL: once')
        program, plain = worker._program, worker.plain
        worker._program = worker.plain = fails
        try: inner(state, batch)
        except RuntimeError: print('caught')
        worker._program, worker.plain = program, plain
    return inner(state, batch)
"""
OUTSIDE = """
loss_of = jax.jit(lambda state, batch: train_step(state, batch)[1])
def applied(state, gradient): return {'w': state['w'] - 0.1 * gradient['w']}
apply = jax.jit(applied)
def step(state, batch):
    loss, gradient = jax.value_and_grad(loss_of)(state, batch)
    return apply(state, gradient), loss
"""
PART = "inner = jax.jit(train_step)\nstep = jax.jit(lambda state, batch: inner(state, batch))"
# the call after the first ones is that of a short batch
MOSTLY_LONG = "    batch = jnp.ones((3 if number % 4 == 2 else 8, 32))"
ANY: dict[str, str] = {"step_function": ""}
SEVERAL = "several programs: <lambda>, applied"


FULL_DISK = "the journal ends with the first line that a full disk did not take"
# a trainer's step and loop, changes of the spec -> its status, turns, and what is read
ENDS: dict[str, tuple[str, str, dict[str, Any], int, Any, dict[str, Any]]] = {
    FULL_DISK: ("called", FULL, {"order": (0, 1, 2, 0)}, 0, TURNS[:1], {"calls": None}),
    "a process that dies in a turn names it and the one before": (
        "called", "    if number == 9: os._exit(3)", {}, 3, None,
        {"suspects": ("opt-0",), "calls": None, "is_over": False}),
    "programs are compiled for the arguments that come most often": (
        "called", MOSTLY_LONG, {}, 0, [(BASELINE_ID, 3, 2), ("opt-0", 5, 3), (COPY.id, 8, 3)],
        {"odd_calls": (6, 10)}),
    "a call that raises is no step, and ends the turns that have begun": (
        RAISED, "", {}, 0, [(BASELINE_ID, 2, 3), ("opt-0", 5, 1)],
        {"raised_call": 6, "calls": 12}),
    "without a name the function with the state is the step": (
        BY_STATE, "", ANY, 0, TURNS, {"found": "step_of"}),
    "another program of the same name is the trainer's own": (
        MADE_ANEW, "", {}, 0, [(BASELINE_ID, 2, 3)], {"calls": 5}),
    "a loss that is differentiated outside of any program": (
        OUTSIDE, "", ANY, 0, [], {"trouble": SEVERAL, "found": ""}),
    "a part of the step": (
        PART, "", {}, 0, [],
        {"turns": (), "compiled": (), "trouble": "was due; functions seen: train_step"}),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == FULL_DISK else PROGRAMS) for name in ENDS]
)
def test_a_trainer_runs_on_whatever_becomes_of_its_rotation(name: str, tmp_path: Path) -> None:
    step, in_loop, spec, status, turns, read = ENDS[name]
    trainer = write_trainer(tmp_path, step, in_loop=in_loop)
    rotated = run_rotated(trainer, spec_of(SLOWER, COPY, **spec))
    assert rotated.status == status, rotated.said
    assert status or len(rotated.losses) == 11
    assert turns is None or rotated.turns == turns
    assert read.get("trouble", "") in rotated.read.trouble
    for field, value in read.items():
        assert field == "trouble" or getattr(rotated.read, field) == value
    assert rotated.read.jax
    assert rotated.said.count("caught") == (2 if step is RAISED else 0)


@PROGRAMS
def test_a_sitecustomize_lets_the_next_one_run(tmp_path: Path) -> None:
    hook, behind = tmp_path / "hook", tmp_path / "behind"
    hook.mkdir()
    behind.mkdir()
    (hook / "sitecustomize.py").write_bytes(ROTATE.read_bytes())
    (behind / "sitecustomize.py").write_text("print('the next one')\n", encoding="utf-8")
    shows = "import sitecustomize as s; print(s.__file__)"
    trainer = write_trainer(tmp_path, "called", before=shows)
    spec, path = spec_of(SLOWER, COPY), f"{hook}:{behind}"
    env = {"PYTHONPATH": path, "XLATUNE_ROTATION": str(tmp_path / "rotation.json")}
    rotated = run_rotated(trainer, spec, env=env)
    assert (rotated.status, rotated.turns) == (0, TURNS), rotated.said
    assert rotated.said.splitlines()[:2] == ["the next one", f"{behind}/sitecustomize.py"]
    # without a rotation it does nothing
    trainer.write_text("print('runs')\n", encoding="utf-8")
    rotated = run_rotated(trainer, spec, env={**env, "XLATUNE_ROTATION": str(tmp_path / "gone")})
    assert "gone is no rotation" in rotated.said
    assert rotated.said.endswith("runs\n")


def test_a_journal_that_cannot_be_written_costs_only_the_rotation(tmp_path: Path) -> None:
    trainer = write_trainer(tmp_path, "called")
    (tmp_path / "rotation.0.jsonl").symlink_to(tmp_path / "elsewhere")
    rotated = run_rotated(trainer, spec_of(COPY))
    assert (rotated.status, len(rotated.losses)) == (0, 11)
    assert "nothing rotates: OSError" in rotated.said
    assert not (tmp_path / "elsewhere").exists()


@PROGRAMS
def test_what_a_compiler_refuses_costs_its_own_turns_only(tmp_path: Path) -> None:
    unknown = RotatedProgram(id="unknown", options={"xla_no_such_flag": "1"})
    wrong = RotatedProgram(id="wrong", options={"xla_backend_optimization_level": "zero"})
    large = replace(SLOWER, id="large")
    switch = RotatedProgram(id="switch", options={"xla_cpu_enable_fast_math": "true"})
    spec = spec_of(unknown, wrong, large, switch, memory_limit_bytes=12_000)
    read = run_rotated(write_trainer(tmp_path, "called"), spec, steps=17).read
    assert "No such compile option: 'xla_no_such_flag'" in read.refused.pop("unknown")
    assert "'zero' is not a valid int32 value" in read.refused.pop("wrong")
    assert read.refused == {}
    assert read.left_out.keys() == {"large"}
    assert read.left_out["large"] > 12_000
    assert [turn.program for turn in read.turns] == [BASELINE_ID] * 4 + ["switch"]


# a compiler that does something else where an option is on
COMPILER = """
from jax._src.interpreters import pxla
real = pxla.MeshComputation.compile
def compiling(self, compiler_options=None, **more):
    if "xla_cpu_enable_fast_math" in (compiler_options or {}): BEFORE
    return real(self, compiler_options, **more)
pxla.MeshComputation.compile = compiling
"""


@PROGRAMS
def test_a_compilation_that_ends_the_process_is_named(tmp_path: Path) -> None:
    trainer = write_trainer(tmp_path, "called", before=COMPILER.replace("BEFORE", "os.abort()"))
    spec = spec_of(COPY, SLOWER, replace(FAST, id="crash"))
    rotated = run_rotated(trainer, spec)
    assert (rotated.status, rotated.read.suspects) == (-6, ("crash",)), rotated.said
    # a copy cannot abort, and is compiled behind what can
    assert [each.program for each in rotated.read.compiled] == [BASELINE_ID, "opt-0"]
    # and again without it: each step stays in its turn
    again = run_rotated(trainer, spec.without(rotated.read.suspects), steps=14)
    turns = [(BASELINE_ID, 2, 3), (COPY.id, 5, 3), ("opt-0", 8, 3), (BASELINE_ID, 11, 3)]
    assert again.turns == turns


GLOO = """
jax.distributed.initialize("127.0.0.1:{port}", 2, int(os.environ["RANK"]))
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
"""
SHARDED = """
mesh = Mesh(jax.devices(), ("data",))
place = lambda spec, array: jax.make_array_from_callback(
    array.shape, NamedSharding(mesh, spec), lambda index: array[index])
state = {"w": place(P(), state["w"])}
batch = place(P("data"), batch)
step = jax.jit(train_step, donate_argnums=0)
"""


@PROGRAMS
@pytest.mark.parametrize("is_refused_by_one", [False, True])
def test_processes_over_gloo_stay_in_step(is_refused_by_one: bool, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        before = GLOO.replace("{port}", str(probe.getsockname()[1]))
    if is_refused_by_one:  # e.g. a node with another library
        dying = COMPILER.replace("BEFORE", "raise RuntimeError('not here')")
        before += f"if os.environ['RANK'] == '1':\n    exec({dying!r})\n"
    trainer = write_trainer(tmp_path, SHARDED, before=before)
    spec = tmp_path / "rotation.json"
    spec.write_text(json.dumps(spec_of(FAST, COPY).to_json()), encoding="utf-8")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROTATE), str(spec), "--", str(trainer), "11"],
            cwd=tmp_path, env=environment(RANK=str(rank)), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    said = [each.communicate(timeout=300)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], said
    reads = [journal_of(tmp_path, rank) for rank in (0, 1)]
    second = BASELINE_ID if is_refused_by_one else "fast"
    expected = [(BASELINE_ID, 2, 3), (second, 5, 3), (COPY.id, 8, 3)]
    for read in reads:
        assert [(each.program, each.first_call, each.calls) for each in read.turns] == expected
    if is_refused_by_one:
        assert "another process" in reads[0].refused["fast"]
        assert reads[1].refused == {"fast": "not here"}
    losses = [[each for each in text.splitlines() if "completed" in each] for text in said]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 11
