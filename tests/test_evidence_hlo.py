"""HLO text to facts, differences and proofs: real dumps of four dialects, made ones, bad ones."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import gzip
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.catalog.entries import load as catalog
from pytest_xlatune.errors import ConfigError, ParseError
from pytest_xlatune.evidence.comparison import compare
from pytest_xlatune.evidence.difference import Change, difference, size
from pytest_xlatune.evidence.drill import Drill, Gpu, Row
from pytest_xlatune.evidence.dumpfiles import choose_module
from pytest_xlatune.evidence.families import Kind
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlotext import read_hlo
from pytest_xlatune.evidence.proof import EXPECTATIONS, Acted, prove
from pytest_xlatune.evidence.render import drill_json, drill_lines, hlo_json, hlo_lines
from pytest_xlatune.evidence.steps import Rule
from pytest_xlatune.evidence.timeline import Timeline
from pytest_xlatune.evidence.trace import Backend

DATA = Path(__file__).parent / "data" / "evidence"
GOLDEN = DATA / "golden"
VERSIONS = ("0.6.2", "0.8.3", "0.10.2", "0.12.0")
MIB = 1 << 20


@functools.cache
def text(version: str, name: str) -> str:
    packed = (DATA / f"jaxlib-{version}" / f"{name}.txt.gz").read_bytes()
    return gzip.decompress(packed).decode()


@functools.cache
def program(version: str, name: str) -> Program:
    source = f"{name}.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    beside = DATA / f"jaxlib-{version}"

    def small(suffix: str) -> str | None:
        path = beside / f"{name}.{suffix}"
        return path.read_text() if path.exists() else None

    return read_hlo(
        text(version, name).splitlines(keepends=True),
        source,
        memory=small("memory-usage-report.txt"),
        options=small("debug_options"),
        thunks=small("thunk_sequence.txt"),
    )


# --- facts of real dumps --------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_an_fsdp_step_has_the_same_collectives_in_every_dialect(version: str) -> None:
    found = program(version, "fsdp")
    assert (found.module, found.target) == ("jit_train_step", "sm_9.0")
    assert found.fingerprint is not None
    gathers = found.of("all-gather")
    assert [each.size_bytes for each in gathers] == [32 * MIB] * 4
    assert [each.executions for each in gathers] == [8] * 4
    assert all(each.in_loop for each in gathers)
    (scatter,) = found.of("reduce-scatter")
    assert (scatter.size_bytes, scatter.executions) == (8 * MIB, 8)  # two results of 4 MiB
    (reduce,) = found.of("all-reduce")
    assert (reduce.size_bytes, reduce.executions, reduce.in_loop) == (4, 1, False)
    assert [loop.trips for loop in found.loops] == [8, 8]
    assert all("8" in each.groups for each in found.collectives)
    assert len(found.collectives) == 6


@pytest.mark.parametrize(
    ("version", "name", "kind", "asynchronous"),
    [
        pytest.param("0.6.2", "fsdp", "all-gather", 0, id="0.6 has no scheduler: synchronous"),
        pytest.param("0.6.2", "fsdp-ov", "all-gather", 4, id="0.6 with it: asynchronous"),
        pytest.param("0.8.3", "fsdp", "reduce-scatter", 1, id="0.8: wrapped in an async-start"),
        pytest.param("0.10.2", "fsdp-noasync", "all-gather", 0, id="0.10: switched off"),
        pytest.param("0.12.0", "fsdp", "all-gather", 4, id="0.12: everything wrapped"),
        pytest.param("0.12.0", "fsdp", "reduce-scatter", 0, id="0.12: a plain one is synchronous"),
        pytest.param("0.12.0", "fsdp-noasync", "all-gather", 0, id="0.12: switched off"),
        pytest.param("0.12.0", "pp", "collective-permute", 1, id="0.12: one of two permutes"),
    ],
)
def test_asynchronous_is_what_the_compiler_decided(
    version: str, name: str, kind: str, asynchronous: int
) -> None:
    assert sum(each.is_async for each in program(version, name).of(kind)) == asynchronous


@pytest.mark.parametrize("version", VERSIONS)
def test_the_launch_order_counts_the_same_as_the_text(version: str) -> None:
    found = program(version, "fsdp-ov")
    assert found.thunks is not None
    assert found.thunks.collectives == {"all-gather": 4, "all-reduce": 1, "reduce-scatter": 1}
    assert found.thunks.in_flight in {None, found.in_flight}
    assert found.in_flight == (2 if version == "0.12.0" else 3)
    assert found.memory_bytes is not None
    assert 350 * MIB < found.memory_bytes < 420 * MIB
    assert found.options is not None
    assert found.options["xla_gpu_experimental_parallel_collective_overlap_limit"] == "4"
    assert "xla_dump_to" not in found.options


@pytest.mark.parametrize("version", VERSIONS)
def test_double_buffering_unrolls_the_loop_and_keeps_the_executions(version: str) -> None:
    found = program(version, "fsdp-db")
    assert [(loop.trips, loop.unrolled) for loop in found.loops] == [(4, 2), (4, 2)]
    assert sum(each.executions for each in found.of("all-gather")) == 32


@pytest.mark.parametrize("version", VERSIONS)
def test_decomposed_permutes_are_pairs_of_send_and_recv(version: str) -> None:
    found = program(version, "pp-dec")
    assert not found.of("collective-permute")
    for kind in ("send", "recv"):
        assert [each.size_bytes for each in found.of(kind)] == [4 * MIB] * 2
    assert found.in_flight == 1


def test_a_windowed_einsum_sends_the_same_bytes_in_a_loop_of_its_own() -> None:
    plain, windowed = program("0.12.0", "fsdp"), program("0.12.0", "fsdp-we")
    assert sum(loop.is_windowed_einsum for loop in windowed.loops) == 4
    assert not windowed.of("all-gather")
    permutes = windowed.of("collective-permute")
    assert [(each.size_bytes, each.executions) for each in permutes] == [(4 * MIB, 64)] * 4
    assert sum(each.size_bytes * each.executions for each in permutes) == sum(
        each.size_bytes * each.executions for each in plain.of("all-gather")
    )


# --- differences and proofs -----------------------------------------------------------------------

AG = "all-gathers in the loop: 4 of 32 MiB -> 2 of 64 MiB, bytes unchanged (1 GiB a step), 32 -> 16"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        pytest.param("fsdp", Change.IDENTICAL, "cannot matter at compile time", id="the same"),
        pytest.param("fsdp-ag", Change.PROGRAM, AG, id="a combine threshold"),
        pytest.param(
            "fsdp-ov", Change.SCHEDULE, "collectives in flight instead of", id="an overlap limit"
        ),
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
    assert says in found.text


@pytest.mark.parametrize(
    ("flag", "version", "before", "after", "acted"),
    [
        pytest.param(
            "--xla_gpu_all_gather_combine_threshold_bytes=1073741824",
            "0.12.0", "fsdp", "fsdp-ag", Acted.ACTED, id="a threshold that combined",
        ),
        pytest.param(
            "xla_gpu_reduce_scatter_combine_threshold_bytes",
            "0.12.0", "fsdp", "fsdp-ag", Acted.DID_NOT_ACT, id="a threshold of another kind",
        ),
        pytest.param(
            "xla_gpu_experimental_parallel_collective_overlap_limit",
            "0.10.2", "fsdp", "fsdp-ov", Acted.ACTED, id="more collectives in flight",
        ),
        pytest.param(
            "xla_gpu_enable_pipelined_all_gather",
            "0.8.3", "fsdp", "fsdp-pipe", Acted.ACTED, id="pipelining by its peeled round",
        ),
        pytest.param(
            "xla_gpu_enable_while_loop_double_buffering",
            "0.6.2", "fsdp", "fsdp-db", Acted.ACTED, id="double buffering",
        ),
        pytest.param(
            "xla_gpu_disable_async_collectives",
            "0.6.2", "fsdp", "fsdp-noasync", Acted.DID_NOT_ACT, id="what was synchronous before",
        ),
        pytest.param(
            "xla_gpu_disable_async_collectives",
            "0.12.0", "fsdp", "fsdp-noasync", Acted.ACTED, id="what was asynchronous before",
        ),
        pytest.param(
            "xla_gpu_enable_pipelined_p2p",
            "0.8.3", "pp", "pp-dec", Acted.ACTED, id="permutes decomposed",
        ),
        pytest.param(
            "xla_gpu_threshold_for_windowed_einsum_mib",
            "0.12.0", "fsdp", "fsdp-we", Acted.ACTED, id="a windowed einsum",
        ),
        pytest.param(
            "xla_gpu_memory_limit_slop_factor",
            "0.12.0", "fsdp", "fsdp", Acted.DID_NOT_ACT, id="a limit that was never reached",
        ),
        pytest.param(
            "xla_gpu_enable_highest_priority_async_stream",
            "0.12.0", "fsdp", "fsdp", Acted.UNSEEN, id="a stream's priority",
        ),
        pytest.param("NCCL_BUFFSIZE", "0.12.0", "fsdp", "fsdp", Acted.UNSEEN, id="a variable"),
        pytest.param(
            "xla_backend_optimization_level",
            "0.12.0", "fsdp", "fsdp", Acted.UNSEEN, id="machine code",
        ),
        pytest.param("xla_new", "0.12.0", "fsdp", "fsdp", Acted.UNSEEN, id="unknown, identical"),
        pytest.param("xla_new", "0.12.0", "fsdp", "fsdp-db", Acted.ACTED, id="unknown, different"),
    ],
)  # fmt: skip
def test_the_program_proves_whether_a_flag_acted(
    flag: str, version: str, before: str, after: str, acted: Acted
) -> None:
    found = prove(flag, program(version, before), program(version, after))
    assert found.acted is acted
    assert found.sentence.startswith(f"{found.flag} {acted}")


def test_every_flag_of_the_catalog_has_an_expectation() -> None:
    known = {entry.name for entry in catalog().entries if entry.name.startswith("xla_")}
    assert len(known) > 40
    assert known <= EXPECTATIONS.keys()


def test_every_expectation_names_a_fact_or_says_why_there_is_none() -> None:
    assert all((row.fact is None) == bool(row.why) for row in EXPECTATIONS.values())


STRINGS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=20)


@settings(max_examples=25, deadline=None)
@given(name=STRINGS.map(lambda s: s.replace('"', "").replace("\\", "")), line=st.integers(0, 9999))
def test_metadata_and_tables_never_make_a_difference(name: str, line: int) -> None:
    changed = re.sub(r"stack_frame_id=\d+", f"stack_frame_id={line}", text("0.12.0", "fsdp"))
    changed = re.sub(r'op_name="[^"]*"', lambda _: f'op_name="{name}"', changed)
    changed = re.sub(r"line=\d+", f"line={line}", changed)
    found = read_hlo(changed.splitlines(keepends=True), "other.txt")
    assert difference(program("0.12.0", "fsdp"), found).change is Change.IDENTICAL


# --- made programs --------------------------------------------------------------------------------


def made(*computations: str, header: str = "") -> Program:
    lines = "\n".join([f"HloModule m, is_scheduled=true{header}", *computations]) + "\n"
    return read_hlo(lines.splitlines(keepends=True), "m.cpu_after_optimizations.txt")


def body(name: str, *instructions: str) -> str:
    return "\n".join([f"%{name} (p: f32[4]) -> f32[4] {{", *(f"  {i}" for i in instructions), "}"])


def entry(*instructions: str) -> str:
    return "ENTRY " + body("main", *instructions)


GATHER = "%ag = f32[8,4]{1,0} all-gather(%p), replica_groups={{0,1},{2,3}}, dimensions={0}"


def loop(name: str, target: str, trips: int | None) -> str:
    known = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}' if trips else ""
    return f"%{name} = (s32[], f32[4]) while(%t), condition=%c, body=%{target}{known}"


@pytest.mark.parametrize(
    ("computations", "executions", "in_loop"),
    [
        pytest.param([entry(GATHER)], 1, False, id="at the top"),
        pytest.param([body("a", GATHER), entry(loop("w", "a", 6))], 6, True, id="in a loop"),
        pytest.param(
            [body("a", GATHER), body("b", loop("w", "a", 3)), entry(loop("v", "b", 4))],
            12, True, id="in a loop in a loop",
        ),
        pytest.param(
            [body("a", GATHER), entry(loop("w", "a", None))], 1, True, id="of unknown length"
        ),
        pytest.param(
            [body("a", GATHER),
             entry("%x = f32[4] call(%p), to_apply=%a", "%y = f32[4] call(%p), to_apply=%a")],
            2, False, id="called twice",
        ),
        pytest.param(
            [body("a", GATHER),
             entry("%x = f32[4] conditional(%i, %p, %p), branch_computations={%a, %b}")],
            1, False, id="in a branch",
        ),
        pytest.param(
            [body("a", GATHER), entry("%x = f32[4] fusion(%p), kind=kCustom, calls=%a")],
            1, False, id="inside a fusion",
        ),
    ],
)  # fmt: skip
def test_executions_multiply_along_the_calls(
    computations: list[str], executions: int, in_loop: bool
) -> None:
    (found,) = made(*computations).collectives
    assert (found.executions, found.in_loop) == (executions, in_loop)
    assert (found.size_bytes, found.groups) == (128, "{{0,1},{2,3}}")
    assert not found.is_async


@pytest.mark.parametrize(
    ("shape", "size_bytes"),
    [
        pytest.param("f32[8,4]{1,0}", 128, id="an array"),
        pytest.param("bf16[3]", 6, id="two bytes each"),
        pytest.param("pred[5]", 5, id="booleans"),
        pytest.param("s4[8]{0:E(4)}", 4, id="half bytes"),
        pytest.param("f8e4m3fn[16]", 16, id="an eight-bit float"),
        pytest.param("f32[]", 4, id="a scalar"),
        pytest.param("f32[0,4]", 0, id="nothing"),
        pytest.param("f32[8]{0:S(1)}", 32, id="in another memory space"),
        pytest.param("(f32[2], /*index=1*/bf16[4])", 16, id="a tuple"),
        pytest.param("token[]", 0, id="a token"),
    ],
)
def test_bytes_are_those_of_the_result(shape: str, size_bytes: int) -> None:
    (found,) = made(entry(f"%r = {shape} all-reduce(%p), to_apply=%add")).collectives
    assert found.size_bytes == size_bytes


def test_a_start_whose_done_is_elsewhere_is_sized_by_its_own_shape() -> None:
    start = "%s = (f32[4]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%p)"
    (found,) = made(entry(start)).collectives
    assert (found.kind, found.size_bytes, found.is_async) == ("collective-permute", 32, True)


def test_windowed_einsum_and_unknown_trips_are_facts() -> None:
    found = made(body("windowed_dot_general_body_ag.1", "%x = f32[4] copy(%p)"),
                 entry(loop("w", "windowed_dot_general_body_ag.1", None)))  # fmt: skip
    assert found.loops[0].is_windowed_einsum
    assert found.unknown_trips == 1
    assert found.target == "cpu"


def test_asynchronous_copies_are_no_collectives() -> None:
    found = made(
        body("a", "ROOT %f = f32[4] copy(%p)"),
        entry(
            "%s = ((f32[4]), f32[4], u32[]) async-start(%p), calls=%a", "%d = f32[4] async-done(%s)"
        ),
    )
    assert not found.collectives
    assert found.in_flight == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(4, "4 B"), (32 << 20, "32 MiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1024 TiB")],
)
def test_sizes_read_as_people_write_them(value: int, shown: str) -> None:
    assert size(value) == shown


# --- a real CPU compiler --------------------------------------------------------------------------

COMPILE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
f = jax.jit(
    lambda x: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, jnp.ones((5, 8, 8)))[0].sum(),
    in_shardings=NamedSharding(mesh, P("d")),
)
compiled = f.lower(jax.ShapeDtypeStruct((4, 8), "float32")).compile()
open(sys.argv[1], "w").write(compiled.as_text())
"""


def test_a_real_cpu_dump_and_its_text_have_the_same_facts(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    flags = f"--xla_force_host_platform_device_count=2 --xla_dump_to={tmp_path / 'dump'}"
    subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path / "as_text")],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} --xla_dump_hlo_as_text"},
        check=True,
        timeout=300,
    )
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "dump").iterdir()}
    module = choose_module(sizes, where="dump")

    def beside(name: str | None) -> str:
        return (tmp_path / "dump" / str(name)).read_text()

    dump = read_hlo(
        beside(module.program).splitlines(keepends=True),
        module.program,
        memory=beside(module.memory),
        options=beside(module.options),
    )
    spoken = read_hlo((tmp_path / "as_text").read_text().splitlines(keepends=True), "as_text")
    assert (dump.target, spoken.target) == ("cpu", "unknown")
    assert dump.collectives == spoken.collectives
    assert [each.kind for each in dump.collectives] == ["all-reduce"]
    assert dump.loops == spoken.loops
    # from 0.11 on a dump names the element where it is used, %param#0, and a text takes it first
    operations = [
        {name: count for name, count in each.opcodes.items() if name != "get-tuple-element"}
        for each in (dump, spoken)
    ]
    assert operations[0] == operations[1]
    assert dump.memory_bytes
    assert not [name for name in dump.options or {} if "dump" in name]


def test_of_several_modules_the_largest_is_the_step() -> None:
    sizes = {
        "module_0001.jit_init.sm_9.0a_gpu_after_optimizations.txt": 10,
        "module_0002.jit_train_step.sm_9.0a_gpu_after_optimizations.txt": 99,
        "module_0002.jit_train_step.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt": 200,
        "module_0002.jit_train_step.before_optimizations.txt": 300,
        "module_0002.jit_train_step.debug_options": 1,
    }
    found = choose_module(sizes, where="dump")
    assert found.program == "module_0002.jit_train_step.sm_9.0a_gpu_after_optimizations.txt"
    assert found.options == "module_0002.jit_train_step.debug_options"
    assert (found.memory, found.thunks) == (None, None)
    with pytest.raises(ParseError, match=r"dump: no .* JAX_ENABLE_COMPILATION_CACHE=false"):
        choose_module({"module_0002.jit_train_step.before_optimizations.txt": 1}, where="dump")


@pytest.mark.parametrize(
    ("device", "target"),
    [
        pytest.param("sm_9.0_gpu", "sm_9.0", id="NVIDIA, jaxlib 0.6"),
        pytest.param("sm_9.0a_gpu", "sm_9.0a", id="NVIDIA, later"),
        pytest.param("gfx942_gpu", "gfx942", id="AMD MI300"),
        pytest.param("gfx950_gpu", "gfx950", id="AMD MI355"),
        pytest.param("cpu", "cpu", id="CPU"),
    ],
)
def test_the_device_is_read_off_the_name_of_the_program(device: str, target: str) -> None:
    stem = f"module_0001.jit_train_step.{device}_after_optimizations"
    beside = {
        f"{stem}-memory-usage-report.txt": 1,
        "module_0001.jit_train_step.debug_options": 1,
        "module_0001.jit_train_step.thunk_sequence.txt": 1,
    }
    found = choose_module({f"{stem}.txt": 9, **beside}, where="dump")
    assert (found.program, found.memory, found.options, found.thunks) == (f"{stem}.txt", *beside)
    lines = f"HloModule m\n{entry(GATHER)}".splitlines(keepends=True)
    assert read_hlo(lines, found.program).target == target


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param("", "no 'HloModule' line", id="an empty file"),
        pytest.param("\x7fELF\n\x00\x01\n", "no 'HloModule' line", id="a foreign file"),
        pytest.param("HloModule m\n", "no ENTRY", id="only the header"),
        pytest.param(f"HloModule m\n{entry(GATHER)[:-2]}\n", "ends inside %main", id="cut off"),
        pytest.param(
            "HloModule m\n" + body("a", loop("w", "b", 2)) + "\n" + body("b", loop("v", "a", 2))
            + "\n" + entry(loop("u", "a", 2)) + "\n",
            "in a ring", id="computations that call each other",
        ),
        pytest.param(
            "HloModule m\n  " + "x" * (1 << 24) + "\n", "a line of", id="a line without end"
        ),
    ],
)  # fmt: skip
def test_bad_hlo_is_one_clear_message(lines: str, says: str) -> None:
    with pytest.raises(ParseError, match=f"^bad.txt: no readable HLO: .*{says}"):
        read_hlo(lines.splitlines(keepends=True), "bad.txt")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mutated_hlo_reads_or_fails_with_one_error(data: st.DataObject) -> None:
    lines = text("0.12.0", "pp-dec").splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        cut = data.draw(st.integers(0, len(line)))
        lines[at] = line[:cut] + data.draw(
            st.sampled_from(["", "}", "{", '"', "((", "%", "9" * 30])
        )
    with suppress(ParseError):
        found = read_hlo(lines, "x")
        json.dumps(hlo_json(found, program("0.12.0", "pp")))


# --- what people see ------------------------------------------------------------------------------


def drilled(scatter_ps: int = 4_000_000_000, *, devices: int = 2) -> Drill:
    """Make a drill of two devices and two steps, with a scatter that blocks."""
    gemm, comm = 6_000_000_000, 3_000_000_000
    step = Timeline(
        kernels=3, sum_ps=gemm + comm + scatter_ps, span_ps=gemm + scatter_ps + 1_500_000_000,
        busy_ps=gemm + scatter_ps + 1_000_000_000, compute_ps=gemm + scatter_ps,
        communication_ps=comm, overlap_ps=2_000_000_000, exposed_communication_ps=1_000_000_000,
    )  # fmt: skip
    rows = [
        ("input_scatter_fusion_2.kd", "scatter fusions", Kind.COMPUTE, scatter_ps, scatter_ps),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", "gemm", Kind.COMPUTE, gemm, 4_000_000_000),
        ("ncclDevKernel_AllGather_RING_LL", "nccl, rccl", Kind.COMMUNICATION, comm, 1_000_000_000),
    ]
    count = 2 * devices
    kernels = tuple(
        Row(
            name=name, family=family, kind=kind, count=count, sum_ps=each * count,
            alone_ps=alone * count, longest_ps=each,
            main_ps=each * count if kind is Kind.COMPUTE else 0,
        )
        for name, family, kind, each, alone in rows
    )  # fmt: skip
    return Drill(
        sources=("node001.xplane.pb",),
        formats=("xplane",),
        backend=Backend.GPU,
        launcher=f"one process per node, {devices} GPUs each",
        rule=Rule.LAUNCH,
        even=True,
        steps=(5, 6),
        divided_by=2,
        gpus=tuple(
            Gpu(
                source="node001.xplane.pb",
                name=f"/device:GPU:{i}",
                main_stream="Stream #13(Compute)",
                steps=(step, step),
                outside=Timeline(),
            )
            for i in range(devices)
        ),
        planes_present=8,
        families=tuple(dataclasses.replace(row, name=row.family) for row in kernels),
        kernels=kernels,
        ops=kernels,
        attributed_ps=sum(row.sum_ps for row in kernels),
        step_s=0.0125,
    )


ARTEFACTS = {
    "hlo.txt": lambda: hlo_lines(program("0.10.2", "fsdp-ov")),
    "hlo-difference.txt": lambda: hlo_lines(
        program("0.12.0", "fsdp"), program("0.12.0", "fsdp-ag")
    ),
    "hlo-schedule.txt": lambda: hlo_lines(program("0.12.0", "fsdp"), program("0.12.0", "fsdp-ov")),
    "hlo-identical.txt": lambda: hlo_lines(
        program("0.6.2", "fsdp"), program("0.6.2", "fsdp-noasync")
    ),
    "drill.txt": lambda: drill_lines(drilled()),
    "drill-comparison.txt": lambda: drill_lines(drilled(), drilled(40_000_000)),
}


@pytest.mark.parametrize("name", ARTEFACTS)
def test_rendered_evidence_equals_its_golden_file(name: str) -> None:
    path, found = GOLDEN / name, "\n".join(ARTEFACTS[name]()) + "\n"
    if os.environ.get("XLATUNE_UPDATE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(found)
    expected = path.read_text()
    changed = difflib.unified_diff(expected.splitlines(), found.splitlines(), lineterm="")
    assert found == expected, "\n".join([*changed, "XLATUNE_UPDATE_GOLDEN=1 records the new text"])


def test_json_of_both_commands_holds_builtins_only() -> None:
    one, two = program("0.12.0", "fsdp-ov"), program("0.12.0", "fsdp")
    for value in (hlo_json(one), hlo_json(one, two), drill_json(drilled()),
                  drill_json(drilled(), drilled(1))):  # fmt: skip
        assert json.loads(json.dumps(value)) == value
        assert value["schema"] == 1


def test_flags_are_judged_where_both_option_files_are_known() -> None:
    two = program("0.12.0", "fsdp-ov")
    limit = "xla_gpu_experimental_parallel_collective_overlap_limit"
    options = {name: value for name, value in (two.options or {}).items() if name != limit}
    one = dataclasses.replace(program("0.12.0", "fsdp"), options=options)
    assert hlo_lines(one, two)[-1].endswith(f"{limit} acted: it changed collectives in flight")
    one = dataclasses.replace(one, options=options | {"xla_new": "1"})
    assert [each["flag"] for each in hlo_json(one, two)["proofs"]] == [limit]


def test_facts_survive_the_way_through_json() -> None:
    found = program("0.12.0", "fsdp-ov")
    assert Program.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Drill.from_json(json.loads(json.dumps(drilled().to_json()))) == drilled()


def test_variants_of_different_yardsticks_are_refused() -> None:
    with pytest.raises(ConfigError, match="launcher is one process per node, 2"):
        compare(drilled(), drilled(devices=4))


def test_the_parts_of_a_comparison_sum_to_its_span() -> None:
    found = compare(drilled(), drilled(40_000_000))
    assert sum(part.before_s for part in found.parts) == pytest.approx(found.span.before_s)
    assert sum(part.after_s for part in found.parts) == pytest.approx(found.span.after_s)
    assert "scatter fusions" in found.sentence
    assert "less (-34.4%): compute -3.960 ms" in found.sentence
