"""Facts of real dumps: four versions of jaxlib say the same in four dialects."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.evidence.hlo import read_hlo
from pytest_xlatune.evidence.hlo.difference import Change, difference
from tests.helpers.examples import tried
from tests.helpers.hlo_programs import MIB, VERSIONS, program, text


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
def test_the_files_beside_a_program_are_read_with_it(version: str) -> None:
    found = program(version, "fsdp-ov")
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


STRINGS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=20)


@settings(max_examples=tried(25), deadline=None)
@given(name=STRINGS.map(lambda s: s.replace('"', "").replace("\\", "")), line=st.integers(0, 9999))
def test_metadata_and_tables_never_make_a_difference(name: str, line: int) -> None:
    changed = re.sub(r"stack_frame_id=\d+", f"stack_frame_id={line}", text("0.12.0", "fsdp"))
    changed = re.sub(r'op_name="[^"]*"', lambda _: f'op_name="{name}"', changed)
    changed = re.sub(r"line=\d+", f"line={line}", changed)
    found = read_hlo(changed.splitlines(keepends=True), "other.txt")
    assert difference(program("0.12.0", "fsdp"), found).change is Change.IDENTICAL
