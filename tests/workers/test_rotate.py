"""The worker of rotations, on real JAX: what it finds, compiles, runs, writes down and survives."""

from __future__ import annotations

import inspect
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.entries import history
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.rotation import RotatedProgram
from tests.helpers.rotating import (
    COPY,
    ROTATE,
    SLOWER,
    STEPS,
    environment,
    journal_of,
    run_plain,
    run_rotated,
    spec_of,
    write_trainer,
)

pytestmark = pytest.mark.jax
programs = pytest.mark.part("programs")


def version() -> str:
    from jaxlib import version

    return str(version.__version__)


def jit_decorates() -> bool:
    import jax

    return inspect.signature(jax.jit).parameters["fun"].default is not inspect.Parameter.empty


TURNS = [(BASELINE_ID, 2, 3), ("opt-0", 5, 3), (f"{BASELINE_ID}~2", 8, 3)]
KINDS = [pytest.param(kind, marks=() if kind == "called" else programs, id=kind) for kind in STEPS]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[str]]:
    """What the trainer says without a rotation, for the two scales of its step."""
    found = {}
    for is_scaled, kind in ((False, "called"), (True, "partial")):
        folder = tmp_path_factory.mktemp("plain")
        plain = run_plain(write_trainer(folder, kind))
        assert plain.status == 0, plain.said
        found[is_scaled] = plain.losses
    return found


def numbers(losses: list[str]) -> list[float]:
    return [float.fromhex(each) for each in losses]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_each_kind_takes_turns(
    kind: str, losses: dict[bool, list[str]], tmp_path: Path
) -> None:
    if kind == "decorated" and not jit_decorates():
        pytest.skip(f"jax.jit of {version()} makes no decorator of its keywords alone")
    rotated = run_rotated(write_trainer(tmp_path, kind), spec_of(SLOWER, COPY))
    read = rotated.read
    assert (rotated.status, read.trouble, read.refused) == (0, "", {}), rotated.said
    assert (read.found, read.calls, read.odd_calls, rotated.turns) == ("train_step", 11, (), TURNS)
    same = {each.program: each.same_as for each in read.compiled}
    assert same == {BASELINE_ID: "", "opt-0": "", f"{BASELINE_ID}~2": BASELINE_ID}
    assert all(each.memory_bytes for each in read.compiled)
    assert all(each.compile_s > 0 for each in read.compiled)
    expected = losses[kind in ("partial", "static by name", "static by place")]
    # the first steps are the trainer's own; later ones sum in another order
    assert rotated.losses[:2] == expected[:2]
    assert numbers(rotated.losses) == pytest.approx(numbers(expected), rel=1e-4)


FULL = """
    import resource
    room = os.path.getsize("rotation.0.jsonl") + 20 if number == 5 else resource.RLIM_INFINITY
    if number in (5, 8):  # in the turn of a profile, and not for ever
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
"""


def test_a_journal_ends_with_the_first_line_that_a_full_disk_did_not_take(tmp_path: Path) -> None:
    """The lines behind a lost one would give its steps to the program before."""
    rotated = run_rotated(
        write_trainer(tmp_path, "called", in_loop=FULL), spec_of(SLOWER, COPY, order=(0, 1, 2, 0))
    )
    assert (rotated.status, len(rotated.losses)) == (0, 11), rotated.said
    assert rotated.turns == TURNS[:1]
    assert rotated.read.calls is None


@programs
def test_a_sitecustomize_lets_the_next_one_run(tmp_path: Path) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "sitecustomize.py").write_text("print('the next one')\n", encoding="utf-8")
    trainer = write_trainer(
        tmp_path, "called", before="import sitecustomize as s; print(s.__file__)"
    )
    rotated = run_rotated(
        trainer, spec_of(SLOWER, COPY), is_customized=True, env={"PYTHONPATH": str(behind)}
    )
    assert (rotated.status, rotated.turns) == (0, TURNS), rotated.said
    assert rotated.said.splitlines()[:2] == ["the next one", f"{behind}/sitecustomize.py"]


def test_a_sitecustomize_without_a_rotation_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_bytes(ROTATE.read_bytes())
    for more in ({}, {"XLATUNE_ROTATION": str(tmp_path / "gone.json")}):
        done = subprocess.run(
            [sys.executable, "-c", "print('runs')"],
            env=environment(PYTHONPATH=str(tmp_path), **more),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "runs\n"
        assert ("gone.json is no rotation" in done.stderr) == bool(more)


def test_wrong_words_end_before_the_trainer_starts(tmp_path: Path) -> None:
    spec = tmp_path / "rotation.json"
    spec.write_text("{}", encoding="utf-8")
    for words, said in (
        ([], "usage: rotate.py"),
        ([str(spec), "--", "-m"], "usage: rotate.py"),
        ([str(spec), "trainer.py"], "usage: rotate.py"),
        ([str(spec), "--", "trainer.py"], "rotation.json is no rotation: KeyError"),
        ([str(tmp_path / "gone"), "--", "trainer.py"], "gone is no rotation: FileNotFound"),
    ):
        done = subprocess.run(
            [sys.executable, str(ROTATE), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@programs
def test_what_a_compiler_refuses_costs_its_own_turns_only(tmp_path: Path) -> None:
    unknown = RotatedProgram(id="unknown", options={"xla_no_such_flag": "1"})
    wrong = RotatedProgram(id="wrong", options={"xla_backend_optimization_level": "zero"})
    large = RotatedProgram(id="large", options=SLOWER.options)
    switch = RotatedProgram(id="switch", options={"xla_cpu_enable_fast_math": "true"})
    spec = spec_of(unknown, wrong, large, switch, memory_limit_bytes=12_000)
    read = run_rotated(write_trainer(tmp_path, "called"), spec, steps=17).read
    assert "No such compile option: 'xla_no_such_flag'" in read.refused.pop("unknown")
    assert "'zero' is not a valid int32 value" in read.refused.pop("wrong")
    assert read.refused == {}
    assert read.left_out.keys() == {"large"}
    assert read.left_out["large"] > 12_000
    assert [each.program for each in read.turns] == [BASELINE_ID] * 4 + ["switch"]


# a compiler that aborts where this option is on
ABORTS = """
from jax._src.interpreters import pxla
real = pxla.MeshComputation.compile
def dying(self, compiler_options=None, **more):
    if "xla_cpu_enable_fast_math" in (compiler_options or {}):
        os.abort()
    return real(self, compiler_options, **more)
pxla.MeshComputation.compile = dying
"""
FAST = RotatedProgram(id="fast", options={"xla_cpu_enable_fast_math": "True"})


# an option of XLA's own tests that makes every compilation here end with an F-line
CRASH = RotatedProgram(
    id="crash", options={"xla_unsupported_crash_on_hlo_pass_noop_change": "true"}
)


@programs
def test_a_compilation_that_ends_the_process_is_named(tmp_path: Path) -> None:
    is_real = history().is_accepted(next(iter(CRASH.options)), version())
    crash = CRASH if is_real else replace(FAST, id="crash")
    trainer = write_trainer(tmp_path, "called", before="" if is_real else ABORTS)
    spec = spec_of(COPY, SLOWER, crash)
    rotated = run_rotated(trainer, spec)
    assert rotated.status == -6, rotated.said
    assert rotated.read.suspects == ("crash",)
    # a copy cannot abort, and is compiled behind what can
    assert [each.program for each in rotated.read.compiled] == [BASELINE_ID, "opt-0"]
    # and again without it: each step stays in its turn
    again = run_rotated(trainer, spec.without(rotated.read.suspects), steps=14)
    assert again.turns == [
        (BASELINE_ID, 2, 3), (COPY.id, 5, 3), ("opt-0", 8, 3), (BASELINE_ID, 11, 3),
    ]  # fmt: skip


# a program of one option raises when it runs, as one that finds no memory does
RAISES = """
from jax._src.interpreters import pxla
real = pxla.MeshComputation.compile
class Raising:
    def __init__(self, program): self.program = program
    def __getattr__(self, name): return getattr(self.program, name)
    def create_cpp_call(self, *args): return self.call
    def call(self, *args, **more): raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
def compiling(self, compiler_options=None, **more):
    program = real(self, compiler_options, **more)
    return Raising(program) if "xla_cpu_enable_fast_math" in (compiler_options or {}) else program
pxla.MeshComputation.compile = compiling
"""


@programs
def test_a_program_that_raises_at_its_first_call_is_out_and_the_trainer_goes_on(
    losses: dict[bool, list[str]], tmp_path: Path
) -> None:
    trainer = write_trainer(tmp_path, "called", before=RAISES)
    rotated = run_rotated(trainer, spec_of(FAST, COPY))
    assert rotated.status == 0, rotated.said
    assert rotated.read.refused == {"fast": "its first call: RESOURCE_EXHAUSTED: Out of memory"}
    assert rotated.turns == [(BASELINE_ID, 2, 3), (BASELINE_ID, 5, 3), (COPY.id, 8, 3)]
    assert numbers(rotated.losses) == pytest.approx(numbers(losses[False]), rel=1e-4)


@programs
def test_a_process_that_dies_in_a_turn_names_it_and_the_one_before(tmp_path: Path) -> None:
    in_loop = "    if number == 9: os._exit(3)"
    rotated = run_rotated(write_trainer(tmp_path, "called", in_loop=in_loop), spec_of(SLOWER, COPY))
    assert rotated.status == 3
    assert rotated.read.suspects == ("opt-0",)
    assert rotated.read.calls is None
    assert not rotated.read.is_over


@programs
def test_other_arguments_run_the_trainers_own_program(tmp_path: Path) -> None:
    in_loop = "    batch = batch[:4] if number == 6 else jnp.concatenate([batch[:4]] * 2)"
    rotated = run_rotated(write_trainer(tmp_path, "called", in_loop=in_loop), spec_of(SLOWER, COPY))
    assert (rotated.status, rotated.turns) == (0, TURNS), rotated.said
    assert rotated.read.odd_calls == (6,)
    static = (
        "jitted = jax.jit(train_step, static_argnames='scale')\n"
        "step = lambda state, batch: jitted(state, batch, scale=1.0 + (number == 6))"
    )
    read = run_rotated(write_trainer(tmp_path, static), spec_of(SLOWER, COPY)).read
    assert read.odd_calls == (6,)


@programs
def test_a_call_that_raises_is_no_step_and_ends_the_turns(tmp_path: Path) -> None:
    step = (
        "inner = jax.jit(train_step)\n"
        "raised = set()\n"
        "def step(state, batch):\n"
        "    if number in (1, 6) and number not in raised:\n"
        "        raised.add(number)\n"
        "        kept, worker = batch, inner._xlatune\n"
        "        def fails(*args, **more): raise RuntimeError('INTERNAL: once')\n"
        "        program, plain = worker._program, worker.plain\n"
        "        worker._program = worker.plain = fails\n"
        "        try: inner(state, batch)\n"
        "        except RuntimeError: print('caught')\n"
        "        worker._program, worker.plain = program, plain\n"
        "    return inner(state, batch)"
    )
    rotated = run_rotated(write_trainer(tmp_path, step), spec_of(SLOWER, COPY))
    assert rotated.status == 0, rotated.said
    assert rotated.said.count("caught") == 2
    # the one before the turns is not counted, with the one in them they end
    assert rotated.turns == [(BASELINE_ID, 2, 3), ("opt-0", 5, 1)]
    assert (rotated.read.raised_call, rotated.read.calls) == (6, 12)


MADE_ANEW = """
jitted = []
def step(state, batch):
    if number % {every} == 0:
        def anew(state, batch): return train_step(state, batch, {scale})
        anew.__name__ = "train_step"
        jitted.append(jax.jit(anew, donate_argnums=0))
    return jitted[-1](state, batch)
"""


@programs
@pytest.mark.parametrize("every", [1, 5])
def test_a_step_that_is_made_anew_takes_turns_on(every: int, tmp_path: Path) -> None:
    trainer = write_trainer(tmp_path, MADE_ANEW.format(every=every, scale="1.0"))
    rotated = run_rotated(trainer, spec_of(SLOWER, COPY, step_function=""))
    assert (rotated.status, rotated.turns) == (0, TURNS), rotated.said
    assert (rotated.read.calls, rotated.read.another_call) == (11, None)


@programs
def test_another_program_of_the_same_name_is_the_trainers_own(tmp_path: Path) -> None:
    trainer = write_trainer(tmp_path, MADE_ANEW.format(every=5, scale="1.0 + number"))
    rotated = run_rotated(trainer, spec_of(SLOWER, COPY))
    assert (rotated.status, rotated.read.calls, rotated.read.another_call) == (0, 5, 5)
    assert rotated.losses[4:] == run_plain(trainer).losses[4:], "no stale program ran"


@programs
def test_programs_are_compiled_for_the_arguments_that_come_most_often(tmp_path: Path) -> None:
    # the call after the first ones is that of a short batch
    in_loop = "    batch = jnp.ones((3 if number % 4 == 2 else 8, 32))"
    read = run_rotated(write_trainer(tmp_path, "called", in_loop=in_loop), spec_of(SLOWER)).read
    assert [each.first_call for each in read.turns] == [3, 5, 8]
    assert read.odd_calls == (6, 10)
    assert read.odd_words == "argument [0][1] was float32[8,32], and is float32[3,32]"


@programs
@pytest.mark.parametrize(
    ("step", "said", "trouble"),
    [
        pytest.param(
            "step = jax.jit(lambda state, batch: train_step(state, batch))",
            {},
            "functions seen: none",
            id="another name",
        ),
        pytest.param(
            "step = jax.jit(train_step)",
            {"first_step": 20},
            "was due; functions seen: train_step",
            id="too few steps",
        ),
        pytest.param(
            "inner = jax.jit(train_step)\nstep = jax.jit(lambda state, batch: inner(state, batch))",
            {},
            "was due; functions seen: train_step",
            id="a part of the step",
        ),
        pytest.param("step = train_step", {}, "functions seen: none", id="no jit at all"),
        pytest.param(
            "pmapped = jax.pmap(train_step)\n"
            "one = lambda tree: jax.tree_util.tree_map(lambda each: each[0], tree)\n"
            "step = lambda s, b: one(pmapped({'w': s['w'][None]}, b[None]))",
            {},
            "made by jax.pmap",
            id="a pmap",
        ),
    ],
)
def test_a_step_that_is_not_found_is_said_and_the_trainer_runs(
    step: str, said: dict[str, int], trouble: str, tmp_path: Path
) -> None:
    rotated = run_rotated(write_trainer(tmp_path, step), spec_of(COPY, **said), steps=6)
    assert rotated.status == 0, rotated.said
    assert len(rotated.losses) == 6
    assert trouble in rotated.read.trouble
    assert (rotated.read.turns, rotated.read.compiled) == ((), ())
    assert rotated.read.jax


@programs
def test_without_a_name_the_function_with_the_state_is_the_step(tmp_path: Path) -> None:
    step = (
        "small = jax.jit(lambda batch: batch * 1.0)\n"
        "loss_of = jax.jit(lambda state, batch: train_step(state, batch)[1])\n"
        "def step_of(state, batch): return train_step(state, batch)\n"
        "large = jax.jit(step_of)\n"
        "step = lambda state, batch: (loss_of(state, batch), large(state, small(batch)))[1]"
    )
    rotated = run_rotated(write_trainer(tmp_path, step), spec_of(SLOWER, COPY, step_function=""))
    assert (rotated.read.found, rotated.turns) == ("step_of", TURNS), rotated.said


@programs
@pytest.mark.parametrize(
    ("step", "named"),
    [
        pytest.param(
            "grads = jax.jit(jax.value_and_grad(lambda s, b: train_step(s, b)[1]))\n"
            "def applied(state, gradient): return [state['w'] - 0.1 * gradient['w'], 0.0]\n"
            "apply = jax.jit(applied)\n"
            "def step(state, batch):\n"
            "    loss, gradient = grads(state, batch)\n"
            "    return {'w': apply(state, gradient)[0]}, loss",
            "<lambda>, applied",
            id="gradients that another program applies",
        ),
        pytest.param(
            "loss_of = jax.jit(lambda state, batch: train_step(state, batch)[1])\n"
            "def applied(state, gradient): return {'w': state['w'] - 0.1 * gradient['w']}\n"
            "apply = jax.jit(applied)\n"
            "def step(state, batch):\n"
            "    loss, gradient = jax.value_and_grad(loss_of)(state, batch)\n"
            "    return apply(state, gradient), loss",
            "<lambda>, applied",
            id="a loss that is differentiated outside of any program",
        ),
    ],
)
def test_a_step_of_several_programs_is_left_alone(step: str, named: str, tmp_path: Path) -> None:
    rotated = run_rotated(write_trainer(tmp_path, step), spec_of(SLOWER, COPY, step_function=""))
    assert (rotated.status, len(rotated.losses)) == (0, 11), rotated.said
    assert f"several programs: {named}" in rotated.read.trouble
    assert (rotated.read.found, rotated.turns) == ("", [])


@programs
def test_each_rotation_compiles_anew_and_leaves_the_cache_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    trainer = write_trainer(tmp_path, "compiled and called")
    assert run_plain(trainer, env=env).status == 0
    kept = sorted(each.name for each in cache.iterdir() if "train_step" in each.name)
    assert kept
    rotated = run_rotated(trainer, spec_of(SLOWER, COPY), env=env)
    assert rotated.turns == TURNS
    assert all(each.compile_s > 0 for each in rotated.read.compiled)
    assert kept == sorted(each.name for each in cache.iterdir() if "train_step" in each.name)


def test_a_journal_that_cannot_be_written_costs_the_rotation_and_not_the_trainer(
    tmp_path: Path,
) -> None:
    trainer = write_trainer(tmp_path, "called")
    (tmp_path / "rotation.0.jsonl").symlink_to(tmp_path / "elsewhere")
    rotated = run_rotated(trainer, spec_of(COPY))
    assert rotated.status == 0
    assert len(rotated.losses) == 11
    assert "nothing rotates: OSError" in rotated.said
    assert not (tmp_path / "elsewhere").exists()


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


@programs
@pytest.mark.parametrize("is_refused_by_one", [False, True])
def test_processes_over_gloo_stay_in_step(is_refused_by_one: bool, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        before = GLOO.replace("{port}", str(probe.getsockname()[1]))
    if is_refused_by_one:  # e.g. a node with another library
        dying = ABORTS.replace("os.abort()", "raise RuntimeError('not here')")
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
