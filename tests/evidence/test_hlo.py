"""HLO programs: their facts, what two differ in, and which files of a dump are the step's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.catalog.entries import load as catalog
from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.evidence.hlo.difference import Change, change, difference, expectations, prove
from pytest_xlatune.evidence.hlo.dump import keep_options, read_program, seen_devices, seen_options
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.report.document import terminal
from pytest_xlatune.tasks.programs import program_document, programs_json
from tests.helpers.hlo_programs import GATHER, MIB, VERSIONS, body, entry, loop, made, program, text
from tests.helpers.second_looks import tried


def read(lines: str, source: str = "x.txt") -> Program:
    return read_hlo(lines.splitlines(keepends=True), source)


A = body("a", GATHER)
CALL = "f32[4] call(%p), to_apply=%a"
BRANCH = "%x = f32[4] conditional(%i, %p, %p), branch_computations={%a, %b}"
FUSION = "%x = f32[4] fusion(%p), kind=kCustom, calls=%a"
NESTED = [A, body("b", loop("w", "a", 3)), entry(loop("v", "b", 4))]


@pytest.mark.parametrize(
    ("computations", "executions", "in_loop"),
    [
        pytest.param([entry(GATHER)], 1, False, id="at the top"),
        pytest.param(NESTED, 12, True, id="in two loops"),
        pytest.param([A, entry(loop("w", "a", None))], 1, True, id="of unknown length"),
        pytest.param([A, entry(f"%x = {CALL}", f"%y = {CALL}")], 2, False, id="called twice"),
        pytest.param([A, entry(BRANCH)], 1, False, id="in a branch"),
        pytest.param([A, entry(FUSION)], 1, False, id="inside a fusion"),
    ],
)
def test_executions_multiply_along_the_calls(
    computations: list[str], executions: int, in_loop: bool
) -> None:
    program = made(*computations)
    (found,) = program.collectives
    assert (found.executions, found.in_loop) == (executions, in_loop)
    assert sum(loop.trips is None for loop in program.loops) == (in_loop and executions == 1)
    assert (found.size_bytes, found.groups) == (128, "{{0,1},{2,3}}")
    assert not found.is_async


def test_what_a_conditional_may_run_is_told_from_what_always_runs() -> None:
    permute = "%cp = f32[4] collective-permute(%p), source_target_pairs={{0,1}}"
    below = body("b", "%x = f32[4] call(%p), to_apply=%c")
    found = made(body("c", permute), below, entry(GATHER, BRANCH.replace("%a, %b", "%b, %b")))
    in_branch = {each.kind: each.in_branch for each in found.collectives}
    assert in_branch == {"all-gather": False, "collective-permute": True}
    assert any("at most: in a branch" in line for line in terminal(program_document(found)))


START = "((f32[8]), f32[8], u32[]) async-start(%p), calls="


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(["%r = f32[8] all-reduce(%p), to_apply=%add"], id="in what is started"),
        pytest.param(["%q = f32[8] call(%p), to_apply=%middle"], id="two levels deeper"),
        pytest.param(
            [f"%{each} = f32[8] call(%p), to_apply=%middle" for each in "qr"], id="by two calls"
        ),
        pytest.param([f"%q = {START}%middle"], id="in a start below the start"),
        pytest.param(["ROOT %f = f32[4] copy(%p)"], id="a copy is no collective"),
    ],
)
def test_a_collective_below_an_asynchronous_start_is_asynchronous(inner: list[str]) -> None:
    found = made(
        body("deep", "%r = f32[8] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add"),
        body("middle", "%q = f32[8] fusion(%p), kind=kCustom, calls=%deep"),
        body("a", *inner),
        entry(f"%s = {START}%a", "%d = f32[8] async-done(%s)"),
    )
    run = [(each.kind, each.is_async, each.size_bytes)
           for each in found.collectives if each.executions]  # fmt: skip
    assert run == [("all-reduce", True, 32)] * found.in_flight
    assert found.in_flight == ("copy" not in inner[0])


PERMUTE_START = "(f32[4]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%p)"


@pytest.mark.parametrize(
    ("shape", "size_bytes"),
    [
        pytest.param("f32[8,4]{1,0}", 128, id="an array"),
        pytest.param("s4[8]{0:E(4)}", 4, id="half bytes"),
        pytest.param("f8e4m3fn[16]", 16, id="an eight-bit float"),
        pytest.param("f32[0,4]", 0, id="nothing"),
        pytest.param("f32[8]{0:S(1)}", 32, id="in another memory space"),
        pytest.param("(f32[2], /*index=1*/bf16[4])", 16, id="a tuple"),
        pytest.param("token[]", 0, id="a token"),
        pytest.param(PERMUTE_START, 32, id="a start whose done is elsewhere"),
    ],
)
def test_bytes_are_those_of_the_result(shape: str, size_bytes: int) -> None:
    operation = shape if "(%p)" in shape else f"{shape} all-reduce(%p), to_apply=%add"
    (found,) = made(entry(f"%r = {operation}")).collectives
    assert found.size_bytes == size_bytes


MODULE = f"HloModule m\n{entry(GATHER)}\n"
RING = (body("a", loop("w", "b", 2)), body("b", loop("v", "a", 2)), entry(loop("u", "a", 2)))
BAD = {
    "an empty file": ("", "no 'HloModule' line"),
    "only the header": ("HloModule m\n", "no ENTRY"),
    "cut off": (f"HloModule m\n{entry(GATHER)[:-2]}\n", "ends inside %main"),
    "computations that call each other": ("\n".join(["HloModule m", *RING, ""]), "in a ring"),
    "a line without end": (f"HloModule m\n  {'x' * (1 << 24)}\n", "a line of"),
    "a dimension of 5000 digits": (MODULE.replace("8,4", "9" * 5000), "an array of more than"),
    "an array larger than any memory": (
        MODULE.replace("8,4", f"{'9' * 18},{'9' * 18}"), "an array of more than"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "says"), BAD.values(), ids=BAD)
def test_bad_hlo_is_one_clear_message(lines: str, says: str) -> None:
    with pytest.raises(ParseError, match=f"^bad.txt: no readable HLO: .*{says}"):
        read(lines, "bad.txt")


def test_numbers_of_any_length_are_read_over_or_end_somewhere() -> None:
    long, rounds = "9" * 5000, 10**17
    header = body("m", GATHER).replace("p: f32[4]", f"p: f32[{long}]")
    trips = loop("w", "m", 3).replace('"3"', f'"{long}"')
    (found,) = made(header, entry(trips)).collectives
    assert (found.executions, found.in_loop) == (1, True)
    nested = (body(f"b{i}", loop("w", f"b{i - 1}", rounds)) for i in range(1, 300))
    deep = made(body("b0", GATHER), *nested, entry(loop("w", "b299", rounds)))
    json.dumps(programs_json(deep))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_fsdp_step_has_the_same_facts_in_every_dialect(version: str) -> None:
    found = program(version, "fsdp")
    assert (found.module, found.target) == ("jit_train_step", "sm_9.0")
    assert [
        (each.kind, each.size_bytes, each.executions, each.in_loop)
        for each in sorted(found.collectives, key=lambda each: each.kind)
    ] == [
        *[("all-gather", 32 * MIB, 8, True)] * 4,
        ("all-reduce", 4, 1, False),
        ("reduce-scatter", 8 * MIB, 8, True),  # two results of 4 MiB
    ]
    assert all("8" in each.groups for each in found.collectives)
    assert [loop.trips for loop in found.loops] == [8, 8]
    limited = program(version, "fsdp-ov")
    assert limited.in_flight == (2 if version == "0.12.0" else 3)
    assert limited.memory_bytes is not None
    assert 350 * MIB < limited.memory_bytes < 420 * MIB
    options = limited.options or {}
    assert options["xla_gpu_experimental_parallel_collective_overlap_limit"] == "4"
    assert "xla_dump_to" not in options
    buffered, pipeline = program(version, "fsdp-db"), program(version, "pp-dec")
    assert [(loop.trips, loop.unrolled) for loop in buffered.loops] == [(4, 2), (4, 2)]
    assert sum(each.executions for each in buffered.collectives_of("all-gather")) == 32
    assert not pipeline.collectives_of("collective-permute")
    for kind in ("send", "recv"):
        assert [each.size_bytes for each in pipeline.collectives_of(kind)] == [4 * MIB] * 2
    assert pipeline.in_flight == 1


# release, program, kind, how many are asynchronous; then why
ASYNCHRONOUS = """
0.6.2 fsdp all-gather 0 | 0.6 has no scheduler
0.6.2 fsdp-ov all-gather 4 | 0.6 with it
0.8.3 fsdp reduce-scatter 1 | wrapped in an async-start
0.12.0 fsdp all-gather 4 | everything wrapped
0.12.0 fsdp reduce-scatter 0 | a plain one is synchronous
0.12.0 fsdp-noasync all-gather 0 | switched off
0.12.0 pp collective-permute 1 | one of two permutes
"""


@pytest.mark.parametrize("row", ASYNCHRONOUS.strip().splitlines())
def test_asynchronous_is_what_the_compiler_decided(row: str) -> None:
    version, name, kind, count = row.partition(" |")[0].split()
    collectives = program(version, name).collectives_of(kind)
    assert sum(each.is_async for each in collectives) == int(count)


STRINGS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=20)


@settings(max_examples=tried(25), deadline=None)
@given(name=STRINGS.map(lambda s: s.replace('"', "").replace("\\", "")), line=st.integers(0, 9999))
def test_metadata_and_tables_never_make_a_difference(name: str, line: int) -> None:
    changed = re.sub(r"stack_frame_id=\d+", f"stack_frame_id={line}", text("0.12.0", "fsdp"))
    changed = re.sub(r'op_name="[^"]*"', lambda _: f'op_name="{name}"', changed)
    changed = re.sub(r"line=\d+", f"line={line}", changed)
    assert difference(program("0.12.0", "fsdp"), read(changed)).change is Change.IDENTICAL


# and no word of those that are asynchronous: it is the same share of fewer
AG = (
    "all-gathers in the loop: 4 of 32 MiB -> 2 of 64 MiB, bytes unchanged (1 GiB a step), "
    "32 -> 16 executions; "
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        pytest.param("fsdp", Change.IDENTICAL, "is below HLO or at run time", id="the same"),
        pytest.param("fsdp-ag", Change.PROGRAM, AG, id="a combine threshold"),
        pytest.param("fsdp-ov", Change.SCHEDULE, "collectives in flight: ", id="an overlap limit"),
        pytest.param("fsdp-pipe", Change.PROGRAM, "loops run 8, 8 -> 7, 7 rounds", id="pipelining"),
        pytest.param(
            "fsdp-db", Change.PROGRAM, "double-buffered loops: 0 -> 2", id="double buffering"
        ),
    ],
)
def test_a_difference_is_said_in_the_words_of_a_tuner(
    version: str, name: str, change: Change, says: str
) -> None:
    found = difference(program(version, "fsdp"), program(version, name))
    assert found.change is change
    assert says in "; ".join(map(sentence, found.facts))


# flag, release, programs before and after, what is said; then why
PROVED = """
xla_gpu_all_gather_combine_threshold_bytes 0.12.0 fsdp fsdp-ag | acted | a threshold that combined
xla_gpu_reduce_scatter_combine_threshold_bytes 0.12.0 fsdp fsdp-ag | acted | no other differs
xla_gpu_experimental_parallel_collective_overlap_limit 0.10.2 fsdp fsdp-ov | acted | more in flight
xla_gpu_enable_pipelined_all_gather 0.8.3 fsdp fsdp-pipe | acted | pipelining, by its peeled round
xla_gpu_enable_while_loop_double_buffering 0.6.2 fsdp fsdp-db | acted | double buffering
xla_gpu_disable_async_collectives 0.6.2 fsdp fsdp-noasync | did not act | synchronous before
xla_gpu_disable_async_collectives 0.12.0 fsdp fsdp-noasync | acted | asynchronous before
xla_gpu_enable_pipelined_p2p 0.8.3 pp pp-dec | acted | permutes decomposed
xla_gpu_threshold_for_windowed_einsum_mib 0.12.0 fsdp fsdp-we | acted | a windowed einsum
xla_gpu_memory_limit_slop_factor 0.12.0 fsdp fsdp | did not act | a limit that was never reached
xla_gpu_enable_highest_priority_async_stream 0.12.0 fsdp fsdp | cannot be seen in HLO | priority
xla_backend_optimization_level 0.12.0 fsdp fsdp | cannot be seen in HLO | machine code
xla_new 0.12.0 fsdp fsdp | cannot be seen in HLO | unknown, identical
xla_new 0.12.0 fsdp fsdp-db | acted | unknown, different
"""


@pytest.mark.parametrize("row", PROVED.strip().splitlines())
def test_the_program_proves_whether_a_flag_acted(row: str) -> None:
    case, acted, _ = (part.strip() for part in row.split("|"))
    flag, version, before, after = case.split()
    (found,) = prove([flag], program(version, before), program(version, after))
    assert sentence(found).startswith(f"{flag} {acted}: ")


def test_of_several_flags_none_is_said_to_have_acted_alone() -> None:
    flags = (
        "xla_gpu_all_gather_combine_threshold_bytes",
        "xla_gpu_enable_pipelined_p2p",
        "xla_never_compiled",
    )
    before = program("0.12.0", "fsdp")
    found = prove(flags, before, program("0.12.0", "fsdp-ag"))
    assert all(f"one of these acted, or several: {', '.join(flags)}" in sentence(m) for m in found)
    why = found[0].values["why"]
    assert sentence(why) == "number and sizes of its collectives (all-gather) changed"
    words = ("did not act", "did not act", "cannot be seen in HLO")
    for flag, word, proof in zip(flags, words, prove(flags, before, before), strict=True):
        assert f"{flag} {word}" in sentence(proof)


TEXT = """\
HloModule jit_f, is_scheduled=true

%fused (p.1: f32[8,8]) -> f32[8,8] {
  %p.1 = f32[8,8]{1,0} parameter(0)
  ROOT %neg.1 = f32[8,8]{1,0} negate(%p.1)
}

ENTRY %main.9 (a.1: f32[8,8], b.1: f32[8,8]) -> f32[8,8] {
  %a.1 = f32[8,8]{1,0} parameter(0)
  %b.1 = f32[8,8]{1,0} parameter(1)
  %gemm = (f32[8,8]{1,0}, s8[4096]{0}) custom-call(%a.1, %b.1), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"beta":0,"selected_algorithm":"3","autotune_workspace_size":"4096"}}
  %got.3 = f32[8,8]{1,0} get-tuple-element(%gemm), index=0
  %add.7 = f32[8,8]{1,0} all-reduce(%got.3), channel_id=4, replica_groups={{0,1}}, to_apply=%fused
  ROOT %end = f32[8,8]{1,0} fusion(%add.7), kind=kLoop, calls=%fused
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        pytest.param("got.3", "got.17", Change.IDENTICAL, id="another number"),
        pytest.param("%fused", "%fused_negate.4", Change.IDENTICAL, id="a computation's name"),
        pytest.param("channel_id=4", "channel_id=71", Change.IDENTICAL, id="another channel"),
        pytest.param("main.9", "main.12_spmd", Change.IDENTICAL, id="another entry"),
        pytest.param('algorithm":"3"', 'algorithm":"-1"', Change.TUNED, id="another algorithm"),
        pytest.param("4096", "33554432", Change.TUNED, id="more scratch for the algorithm"),
        pytest.param('"beta":0', '"beta":1', Change.PROGRAM, id="another operation"),
        pytest.param("negate(", "sine(", Change.PROGRAM, id="another fusion under the same name"),
        pytest.param("(%a.1, %b.1)", "(%b.1, %a.1)", Change.PROGRAM, id="other operands"),
        pytest.param("{{0,1}}", "{{0},{1}}", Change.PROGRAM, id="other devices"),
        pytest.param(
            "  %a.1 = f32[8,8]{1,0} parameter(0)\n  %b.1 = f32[8,8]{1,0} parameter(1)\n",
            "  %b.1 = f32[8,8]{1,0} parameter(1)\n  %a.1 = f32[8,8]{1,0} parameter(0)\n",
            Change.SCHEDULE, id="another order",
        ),
    ],
)  # fmt: skip
def test_names_numbers_and_autotuning_make_no_other_program(
    old: str, new: str, found: Change
) -> None:
    assert old in TEXT
    assert change(read(TEXT), read(TEXT.replace(old, new))) is found


def test_a_step_that_a_gpu_autotuned_twice_is_one_program() -> None:
    """Two processes on one H100: other tiles, and other emitters of two fusions."""
    before, after = program("0.11.2", "step"), program("0.11.2", "step-again")
    assert change(before, after) is Change.TUNED
    lines = text("0.11.2", "step-again").splitlines(keepends=True)
    (at,) = [each for each, line in enumerate(lines) if line.lstrip().startswith("%sub.11 =")]
    lines[at] = lines[at].replace(" subtract(", " add(")
    assert change(before, read_hlo(lines, before.source)) is Change.PROGRAM


def test_every_flag_of_the_catalog_stands_in_the_table_once() -> None:
    # a flag of another channel is seen in the log of the library that reads it
    known = {each.name for each in catalog().entries if each.is_flag and each.name[:4] == "xla_"}
    assert len(known) > 40
    assert known <= expectations().keys()
    table = tomllib.loads(files("pytest_xlatune.evidence.hlo").joinpath("seen_in.toml").read_text())
    assert sum(len(row["flags"]) for row in table["seen"]) == len(expectations())
    assert {row["fact"] for row in table["seen"]} == table["facts"].keys()


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


def test_a_folder_without_a_program_says_why_and_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="files, none of a dump"):
        read_program(tmp_path)
    for name in ("9.pmap_step.sm_9.0_gpu.config.pbtxt", "1.jit_init.x.txt"):
        (tmp_path / f"module_000{name}").write_text("x")
    (tmp_path / "module_0003.jit_other").mkdir()
    why = "modules jit_init, pmap_step;.* JAX_ENABLE_COMPILATION_CACHE=false"
    with pytest.raises(ParseError, match=why):
        read_program(tmp_path)


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
    for name, content in {
        f"{step}.after_optimizations.txt": MODULE,
        f"{step}.after_optimizations_before_buffer_assignment.txt": MODULE * 2,
        f"{step}.after_optimizations-memory-usage-report.txt": TPU_MEMORY,
        f"{step}.debug_options": "xla_a: 1",
    }.items():
        (tmp_path / name).write_text(content)
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
    for each, content in {**less, later: "  xla_later: 1\n", name: STEP_OPTIONS}.items():
        path = tmp_path / each
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if is_whole else content.replace("  ", ""))
    found = seen_options(tmp_path)
    expected = {"xla_step": "1", "xla_list": "2,3"}
    assert found == Options(values=expected, is_whole=is_whole)
    keep_options(tmp_path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [tmp_path / name]
    assert seen_options(tmp_path) == found


# what a dump holds -> the devices that it was compiled for
DEVICES: dict[str, tuple[list[str], dict[str, str]]] = {
    "one device, as two releases name it": (
        ["1.jit_a.sm_9.0a_gpu_after_optimizations.txt",
         "7.jit_a.sm_9.0_gpu_after_optimizations.txt"],
        {"module jit_a": "cuda sm_9.0"}),
    "a trainer for GPUs that compiles a part of itself for the CPU": (
        ["1.jit_a.cpu_after_optimizations.txt", "2.jit_b.gfx942_gpu_after_optimizations.txt"],
        {"module jit_a": "cpu", "module jit_b": "rocm gfx942"}),
    "one function for both tells nothing": (
        ["1.jit_a.cpu_after_optimizations.txt", "2.jit_a.gfx90a_gpu_after_optimizations.txt"], {}),
    "libtpu": (
        ["1.jit_a.cl_1014260217.after_optimizations.txt"], {"module jit_a": "tpu"}),
    "the step's topology, where its program is not dumped": (
        ["4.jit_train_step/topology.textproto", "5.jit_b/module.mlir"],
        {"topology of jit_train_step": "cuda"}),
    "no word of a device": (["1.jit_a.debug_options"], {}),
}  # fmt: skip


@pytest.mark.parametrize(("names", "devices"), DEVICES.values(), ids=DEVICES)
def test_where_modules_were_compiled_for(
    names: list[str], devices: dict[str, str], tmp_path: Path
) -> None:
    for name in names:
        path = tmp_path / f"module_000{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text('platform_id: 7\nplatform_name: "cuda"\nplatform_version: "x"')
    assert seen_devices(tmp_path) == devices
    keep_options(tmp_path)
    assert seen_devices(tmp_path) == devices, "what tells it is kept"
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) <= len(names)
    assert seen_devices(tmp_path / "nowhere") == {}
