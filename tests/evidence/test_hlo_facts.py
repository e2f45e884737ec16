"""Facts of programs written by hand: executions, bytes, loops; bad ones end in one message."""

from __future__ import annotations

import json

import pytest

from pytest_xlatune.evidence.hlo import read_hlo
from pytest_xlatune.evidence.hlo.difference import size
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.programs import program_document, programs_json
from tests.helpers.hlo_programs import GATHER, body, entry, loop, made


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
    ],
    ids=["in what is started", "a fusion deeper", "two levels deeper"],
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


def test_numbers_that_count_nothing_are_read_over() -> None:
    long = "9" * 5000
    header = body("m", GATHER).replace("p: f32[4]", f"p: f32[{long}]")
    trips = loop("w", "m", 3).replace('"3"', f'"{long}"')
    (found,) = made(header, entry(trips)).collectives
    assert (found.executions, found.in_loop) == (1, True)


def test_loops_in_loops_come_to_a_number_that_can_be_written() -> None:
    rounds = 10**17
    bodies = [
        body("b0", GATHER),
        *(body(f"b{i}", loop("w", f"b{i - 1}", rounds)) for i in range(1, 300)),
    ]
    found = made(*bodies, entry(loop("w", "b299", rounds)))
    json.dumps(programs_json(found))
