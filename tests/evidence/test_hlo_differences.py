"""What two programs differ in, and whether that proves that a flag acted."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from pytest_xlatune.catalog.entries import load as catalog
from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.evidence.hlo.difference import Change, change, difference, expectations, prove
from pytest_xlatune.model.message import sentence
from tests.helpers.hlo_programs import VERSIONS, program, text

DID_NOT, UNSEEN = "did not act", "cannot be seen in HLO"

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
xla_gpu_enable_highest_priority_async_stream 0.12.0 fsdp fsdp | UNSEEN | a stream's priority
xla_backend_optimization_level 0.12.0 fsdp fsdp | UNSEEN | machine code
xla_new 0.12.0 fsdp fsdp | UNSEEN | unknown, identical
xla_new 0.12.0 fsdp fsdp-db | acted | unknown, different
"""


@pytest.mark.parametrize("row", PROVED.strip().splitlines())
def test_the_program_proves_whether_a_flag_acted(row: str) -> None:
    case, acted, _ = (part.strip() for part in row.split("|"))
    flag, version, before, after = case.split()
    (found,) = prove([flag], program(version, before), program(version, after))
    assert sentence(found).startswith(f"{flag} {acted.replace('UNSEEN', UNSEEN)}: ")


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
    same = [sentence(each) for each in prove(flags, before, before)]
    words = (DID_NOT, DID_NOT, UNSEEN)
    assert all(
        f"{flag} {word}" in text for flag, word, text in zip(flags, words, same, strict=True)
    )


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


def read(text: str) -> Program:
    return read_hlo(text.splitlines(keepends=True), "x.txt")


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


def test_every_flag_of_the_catalog_has_an_expectation() -> None:
    # a flag of another channel is seen in the log of the library that reads it
    known = {each.name for each in catalog().entries if each.is_flag and each.name[:4] == "xla_"}
    assert len(known) > 40
    assert known <= expectations().keys()


def test_each_flag_stands_in_the_table_once() -> None:
    text = files("pytest_xlatune.evidence.hlo").joinpath("seen_in.toml").read_text("utf-8")
    table = tomllib.loads(text)
    rows = table["seen"]
    assert sum(len(row["flags"]) for row in rows) == len(expectations())
    assert {row["fact"] for row in rows} == table["facts"].keys()
