"""Which files of a dump are the step's, and that a real CPU dump says what its text says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pytest_xlatune.evidence.hlo.dump import keep_options, read_program, seen_devices, seen_options
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.errors import ParseError
from tests.helpers.hlo_programs import GATHER, entry

COMPILE = """
import sys, jax
from jax.sharding import NamedSharding, PartitionSpec
def step(x):
    ones = jax.numpy.ones((5, 8, 8))
    return jax.lax.scan(lambda c, w: (jax.numpy.tanh(c @ w), None), x, ones)[0].sum()
shards = NamedSharding(jax.make_mesh((2,), ("d",)), PartitionSpec("d"))
shape = jax.ShapeDtypeStruct((4, 8), "float32")
compiled = jax.jit(step, in_shardings=shards).lower(shape).compile()
open(sys.argv[1], "w").write(compiled.as_text())
"""


@pytest.mark.jax
@pytest.mark.part("programs")
def test_a_real_cpu_dump_and_its_text_have_the_same_facts(tmp_path: Path) -> None:
    flags = f"--xla_force_host_platform_device_count=2 --xla_dump_to={tmp_path / 'dump'}"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} --xla_dump_hlo_as_text"
    }  # fmt: skip
    command = [sys.executable, "-c", COMPILE, str(tmp_path / "as_text")]
    subprocess.run(command, env=environment, check=True, timeout=300)
    dump, spoken = read_program(tmp_path / "dump"), read_program(tmp_path / "as_text")
    assert (dump.target, spoken.target) == ("cpu", "unknown")
    assert (dump.collectives, dump.loops) == (spoken.collectives, spoken.loops)
    assert [each.kind for each in dump.collectives] == ["all-reduce"]
    # from 0.11 on a dump names the element where it is used, %param#0, and a text takes it first
    operations = [Counter(each.opcodes) for each in (dump, spoken)]
    for counts in operations:
        del counts["get-tuple-element"]
    assert operations[0] == operations[1]
    assert dump.memory_bytes
    assert not [name for name in dump.options or {} if "dump" in name]


PROGRAM = f"HloModule m\n{entry(GATHER)}"


STATE, BATCH = "f32[9,9]{1,0}, /*index=1*/bf16[99]{0}", "s32[4]{0}"
MAKER, COPY = f"({BATCH})->({STATE})", f"({STATE})->({STATE})"
EVALUATION, STEP = f"({STATE}, {BATCH})->f32[]", f"({STATE}, {BATCH})->({STATE}, f32[])"


@pytest.mark.parametrize(
    ("modules", "step"),
    [
        pytest.param({"make": MAKER, "step": STEP}, "step", id="what makes the state is larger"),
        pytest.param({"eval": EVALUATION, "fit": STEP}, "fit", id="so is an evaluation"),
        pytest.param({"update": STEP, "copy": COPY}, "update", id="a copy is smaller"),
        pytest.param({"make": MAKER, "train_step": STEP}, "train_step", id="MaxText's"),
        pytest.param({"large": "(s32[])->s32[]", "small": ""}, "large", id="no state at all"),
    ],
)
def test_the_step_takes_the_state_and_returns_it_whatever_its_name(
    tmp_path: Path, modules: dict[str, str], step: str
) -> None:
    """The first of the modules has the largest text."""
    for number, (name, signature) in enumerate(modules.items()):
        said = f", is_scheduled=true, entry_computation_layout={{{signature}}}, num_partitions=8"
        text = f"HloModule jit_{name}{said if signature else ''}\n{entry(GATHER)}"
        path = tmp_path / f"module_{number:04}.jit_{name}.cpu_after_optimizations.txt"
        path.write_text(text + "\n" * (999 - 99 * number))
        path.with_name(f"module_{number:04}.jit_{name}.debug_options").write_text(f"xla_a: {name}")
        path.with_name(f"{path.stem}-buffer-assignment.txt").write_text("x" * 9999)
    found = read_program(tmp_path)
    assert (found.module, found.options) == (f"jit_{step}", {"xla_a": step})


TPU_MEMORY = """\
Memory Space: default (color=0)
Total bytes: 4802560 (4.58MiB)
Memory Space: vmem (color=1)
Total bytes: 5386752 (5.14MiB)
Memory Space: host (color=4)
Total bytes: 4096 (4.0KiB)
"""


def test_a_dump_of_libtpu_has_its_build_in_every_name(tmp_path: Path) -> None:
    step = "module_0000.jit_train_step.cl_1014260217"
    for name, text in {
        f"{step}.after_optimizations.txt": PROGRAM,
        f"{step}.after_optimizations_before_buffer_assignment.txt": PROGRAM * 2,
        f"{step}.after_optimizations-memory-usage-report.txt": TPU_MEMORY,
        f"{step}.debug_options": "xla_a: 1",
    }.items():
        (tmp_path / name).write_text(text)
    found = read_program(tmp_path)
    assert found.source.endswith(f"{step}.after_optimizations.txt")
    assert (found.target, found.options) == ("tpu", {"xla_a": "1"})
    assert found.memory_bytes == 4802560, "of the memory that a program runs out of"


STEP_OPTIONS = "debug_options {\n  xla_step: 1\n  xla_list: 2\n  xla_list: 3\n}\n"


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        pytest.param("module_0008.jit_train_step.config.pbtxt", True, id="of a GPU"),
        pytest.param("module_0008.jit_train_step/compile_options.textproto", True, id="of a CPU"),
        pytest.param("module_0008.jit_train_step.debug_options", False, id="of an older XLA"),
    ],
)
def test_the_options_of_the_step_are_those_of_a_trial(
    tmp_path: Path, name: str, is_whole: bool
) -> None:
    """Another module is compiled later, and a file that tells less lies beside it."""
    less = {"module_0008.jit_train_step.debug_options": "xla_less: 1\n"}
    later = name.replace("8.jit_train_step", "9.jit_later")
    for each, text in {**less, later: "  xla_later: 1\n", name: STEP_OPTIONS}.items():
        path = tmp_path / each
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if is_whole else text.replace("  ", ""))
    found = seen_options(tmp_path)
    expected = {"xla_step": "1", "xla_list": "2,3"}
    assert found == Options(values=expected, is_whole=is_whole)
    keep_options(tmp_path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [tmp_path / name]
    assert seen_options(tmp_path) == found


AFTER = "after_optimizations.txt"


@pytest.mark.parametrize(
    ("names", "devices"),
    [
        pytest.param(
            [f"module_0001.jit_a.sm_9.0a_gpu_{AFTER}", f"module_0007.jit_a.sm_9.0_gpu_{AFTER}"],
            {"module jit_a": "cuda sm_9.0"},
            id="one device, as two releases name it",
        ),
        pytest.param(
            [f"module_0001.jit_a.cpu_{AFTER}", f"module_0002.jit_b.gfx942_gpu_{AFTER}"],
            {"module jit_a": "cpu", "module jit_b": "rocm gfx942"},
            id="a trainer for GPUs that compiles a part of itself for the CPU",
        ),
        pytest.param(
            [f"module_0001.jit_a.cpu_{AFTER}", f"module_0002.jit_a.gfx90a_gpu_{AFTER}"],
            {},
            id="one function for both tells nothing",
        ),
        pytest.param(
            [f"module_0001.jit_a.cl_1014260217.{AFTER}"], {"module jit_a": "tpu"}, id="libtpu"
        ),
        pytest.param(
            ["module_0004.jit_train_step/topology.textproto", "module_0005.jit_b/module.mlir"],
            {"topology of jit_train_step": "cuda"},
            id="the step's topology, where its program is not dumped",
        ),
        pytest.param(
            ["module_0001.jit_a.debug_options", "notes.txt"], {}, id="no word of a device"
        ),
    ],
)
def test_where_modules_were_compiled_for(
    names: list[str], devices: dict[str, str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('platform_id: 7\nplatform_name: "cuda"\nplatform_version: "x"')
    assert seen_devices(tmp_path) == devices
    keep_options(tmp_path)
    assert seen_devices(tmp_path) == devices, "what tells it is kept"
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) <= len(names)
    assert seen_devices(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        pytest.param([], "none of a dump", id="an empty folder"),
        pytest.param(
            [
                "module_0009.pmap_step.sm_9.0_gpu.config.pbtxt",
                "module_0001.jit_init.x.txt",
                "module_0003.jit_other/module.mlir",
            ],
            "modules jit_init, pmap_step;",
            id="files of two modules, and a folder",
        ),
    ],
)
def test_a_folder_without_a_program_says_why_and_what_it_holds(
    tmp_path: Path, names: list[str], seen: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    why = rf"files, .*{seen}.* JAX_ENABLE_COMPILATION_CACHE=false"
    with pytest.raises(ParseError, match=why):
        read_program(tmp_path)
