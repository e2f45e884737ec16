"""Facts of programs, those of four versions of jaxlib and some written by hand."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.evidence.hlo import read_hlo
from pytest_xlatune.evidence.hlo.difference import Change, difference
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.programs import program_document, programs_json
from tests.helpers.examples import tried
from tests.helpers.hlo_programs import GATHER, MIB, VERSIONS, body, entry, loop, made, program, text

A = body("a", GATHER)
CALL = "f32[4] call(%p), to_apply=%a"
BRANCH = "%x = f32[4] conditional(%i, %p, %p), branch_computations={%a, %b}"
FUSION = "%x = f32[4] fusion(%p), kind=kCustom, calls=%a"


@pytest.mark.parametrize(
    ("computations", "executions", "in_loop"),
    [
        pytest.param([entry(GATHER)], 1, False, id="at the top"),
        pytest.param([A, entry(loop("w", "a", 6))], 6, True, id="in a loop"),
        pytest.param(
            [A, body("b", loop("w", "a", 3)), entry(loop("v", "b", 4))], 12, True, id="in two loops"
        ),
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
    found = made(
        body("c", permute),
        body("b", "%x = f32[4] call(%p), to_apply=%c"),
        entry(GATHER, "%x = f32[4] conditional(%i, %p, %p), branch_computations={%b, %b}"),
    )
    assert {each.kind: each.in_branch for each in found.collectives} == {
        "all-gather": False,
        "collective-permute": True,
    }
    assert any("at most: in a branch" in line for line in terminal(program_document(found)))


@pytest.mark.parametrize(
    "inner",
    [
        ["%r = f32[8] all-reduce(%p), to_apply=%add"],
        ["%q = f32[8] fusion(%p), kind=kCustom, calls=%deep"],
        ["%q = f32[8] call(%p), to_apply=%middle"],
        ["%q = f32[8] call(%p), to_apply=%middle", "%r = f32[8] call(%q), to_apply=%middle"],
        ["%q = ((f32[8]), f32[8], u32[]) async-start(%p), calls=%middle"],
    ],
    ids=[
        "in what is started",
        "a fusion deeper",
        "two levels deeper",
        "by two calls",
        "in a start below the start",
    ],
)
def test_a_collective_below_an_asynchronous_start_is_asynchronous(inner: list[str]) -> None:
    reduce = "%r = f32[8] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add"
    found = made(
        body("deep", reduce),
        body("middle", "%q = f32[8] fusion(%p), kind=kCustom, calls=%deep"),
        body("a", *inner),
        entry(
            "%s = ((f32[8]), f32[8], u32[]) async-start(%p), calls=%a", "%d = f32[8] async-done(%s)"
        ),
    )
    (one,) = [each for each in found.collectives if each.executions]
    assert (one.kind, one.is_async, one.size_bytes) == ("all-reduce", True, 32)
    assert found.in_flight == 1


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
        pytest.param(
            f"HloModule m\n{entry(GATHER)}\n".replace("f32[8,4]", f"f32[{'9' * 5000},4]"),
            "an array of more than", id="a dimension of 5000 digits",
        ),
        pytest.param(
            f"HloModule m\n{entry(GATHER)}\n".replace("f32[8,4]", f"f32[{'9' * 18},{'9' * 18}]"),
            "an array of more than", id="an array larger than any memory",
        ),
    ],
)  # fmt: skip
def test_bad_hlo_is_one_clear_message(lines: str, says: str) -> None:
    with pytest.raises(ParseError, match=f"^bad.txt: no readable HLO: .*{says}"):
        read_hlo(lines.splitlines(keepends=True), "bad.txt")


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
def test_an_fsdp_step_has_the_same_collectives_in_every_dialect(version: str) -> None:
    found = program(version, "fsdp")
    assert (found.module, found.target) == ("jit_train_step", "sm_9.0")
    assert found.fingerprint is not None
    gathers = found.collectives_of("all-gather")
    assert [each.size_bytes for each in gathers] == [32 * MIB] * 4
    assert [each.executions for each in gathers] == [8] * 4
    assert all(each.in_loop for each in gathers)
    (scatter,) = found.collectives_of("reduce-scatter")
    assert (scatter.size_bytes, scatter.executions) == (8 * MIB, 8)  # two results of 4 MiB
    (reduce,) = found.collectives_of("all-reduce")
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
    assert (
        sum(each.is_async for each in program(version, name).collectives_of(kind)) == asynchronous
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_beside_a_program_are_read_with_it(version: str) -> None:
    found = program(version, "fsdp-ov")
    assert found.in_flight == (2 if version == "0.12.0" else 3)
    assert found.memory_bytes is not None
    assert 350 * MIB < found.memory_bytes < 420 * MIB
    assert found.options is not None
    assert found.options["xla_gpu_experimental_parallel_collective_overlap_limit"] == "4"
    assert "xla_dump_to" not in found.options


@pytest.mark.parametrize("version", VERSIONS)
def test_double_buffering_unrolls_a_loop_and_decomposed_permutes_are_send_and_recv(
    version: str,
) -> None:
    buffered, pipeline = program(version, "fsdp-db"), program(version, "pp-dec")
    assert [(loop.trips, loop.unrolled) for loop in buffered.loops] == [(4, 2), (4, 2)]
    assert sum(each.executions for each in buffered.collectives_of("all-gather")) == 32
    assert not pipeline.collectives_of("collective-permute")
    for kind in ("send", "recv"):
        assert [each.size_bytes for each in pipeline.collectives_of(kind)] == [4 * MIB] * 2
    assert pipeline.in_flight == 1


def test_a_windowed_einsum_sends_the_same_bytes_in_a_loop_of_its_own() -> None:
    plain, windowed = program("0.12.0", "fsdp"), program("0.12.0", "fsdp-we")
    assert sum(loop.is_windowed_einsum for loop in windowed.loops) == 4
    assert not windowed.collectives_of("all-gather")
    permutes = windowed.collectives_of("collective-permute")
    assert [(each.size_bytes, each.executions) for each in permutes] == [(4 * MIB, 64)] * 4
    assert sum(each.size_bytes * each.executions for each in permutes) == sum(
        each.size_bytes * each.executions for each in plain.collectives_of("all-gather")
    )


STRINGS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=20)


@settings(max_examples=tried(25), deadline=None)
@given(name=STRINGS.map(lambda s: s.replace('"', "").replace("\\", "")), line=st.integers(0, 9999))
def test_metadata_and_tables_never_make_a_difference(name: str, line: int) -> None:
    changed = re.sub(r"stack_frame_id=\d+", f"stack_frame_id={line}", text("0.12.0", "fsdp"))
    changed = re.sub(r'op_name="[^"]*"', lambda _: f'op_name="{name}"', changed)
    changed = re.sub(r"line=\d+", f"line={line}", changed)
    found = read_hlo(changed.splitlines(keepends=True), "other.txt")
    assert difference(program("0.12.0", "fsdp"), found).change is Change.IDENTICAL
