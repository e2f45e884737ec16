"""What two programs differ in, and whether that proves that a flag acted."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from pytest_xlatune.catalog.entries import load as catalog
from pytest_xlatune.evidence.hlo.difference import (
    Acted,
    Below,
    Change,
    ProgramFact,
    difference,
    expectations,
    prove,
)
from tests.evidence.programs import VERSIONS, program

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
    assert says in "; ".join(found.sentences)


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
    assert known <= expectations().keys()


def test_every_expectation_names_a_fact_or_says_why_there_is_none() -> None:
    assert all((row.fact is None) == (row.below is not None) for row in expectations().values())


@pytest.mark.parametrize(
    ("flag", "fact", "kinds"),
    [
        ("all_gather_combine_threshold_bytes", ProgramFact.SIZES, ("all-gather",)),
        ("experimental_enable_heuristic_collective_combining", ProgramFact.SIZES, ()),
        ("enable_pipelined_reduce_scatter", ProgramFact.PIPELINED, ()),
        ("pipeline_all_reduce", ProgramFact.PIPELINED, ()),
        ("enable_while_loop_double_buffering", ProgramFact.UNROLLED, ()),
        ("experimental_parallel_collective_overlap_limit", ProgramFact.IN_FLIGHT, ()),
        ("enable_async_collective_permute", ProgramFact.ASYNC, ("collective-permute",)),
        ("enable_pipelined_p2p", ProgramFact.DECOMPOSED, ("collective-permute",)),
        ("threshold_for_windowed_einsum_mib", ProgramFact.WINDOWED, ()),
        ("experimental_enable_alltoall_windowed_einsum", ProgramFact.SPLIT, ("all-to-all",)),
        ("all_gather_mode", ProgramFact.MEMORY, ()),
        ("enable_triton_gemm", ProgramFact.PROGRAM, ()),
        ("enable_command_buffer", Below.RUN_TIME, ()),
        ("autotune_level", Below.MACHINE_CODE, ()),
    ],
)
def test_the_table_says_where_a_flag_is_seen(
    flag: str, fact: ProgramFact | Below, kinds: tuple[str, ...]
) -> None:
    row = expectations()[f"xla_gpu_{flag}"]
    assert (row.fact or row.below, row.kinds) == (fact, kinds)


def test_each_flag_stands_in_the_table_once() -> None:
    text = files("pytest_xlatune.evidence.hlo").joinpath("seen_in.toml").read_text("utf-8")
    rows = tomllib.loads(text)["seen"]
    assert sum(len(row["flags"]) for row in rows) == len(expectations())
    assert {row["fact"].upper() for row in rows if "fact" in row} == set(ProgramFact.__members__)
