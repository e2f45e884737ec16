"""What compiling says of profiles: which need no run, which are twins; from kept programs."""

from __future__ import annotations

import dataclasses
import functools

import msgspec
import pytest

from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.evidence.hlo.difference import (
    Compiled,
    CompileFinding,
    CompileJudge,
)
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.prepare.compilers import judge_of
from tests.helpers.hlo_programs import text

GATHER = "xla_gpu_all_gather_combine_threshold_bytes"
PRIORITY = "xla_gpu_enable_highest_priority_async_stream"
GRAPHS = "xla_gpu_enable_command_buffer"
LIMIT = 80 << 30


@functools.cache
def kept(name: str) -> Program:
    return read_hlo(text("0.12.0", name).splitlines(keepends=True), name)


def program(name: str, options: dict[str, str] | None, memory: int | None = None) -> Program:
    return msgspec.structs.replace(kept(name), options=options, memory_bytes=memory)


def judged(*compiled: Compiled, baseline: Program | None = None) -> list[CompileFinding]:
    judge = CompileJudge(baseline=baseline or program("fsdp", {}), memory_limit_bytes=LIMIT)
    return [judge.judge(each) for each in compiled]


@pytest.mark.parametrize(
    ("flags", "found", "cls", "says"),
    [
        pytest.param(
            f"--{GATHER}=1", program("fsdp", {GATHER: "1"}), CompileClass.IDENTICAL, "A/A control",
            id="a flag of the compiler that changed nothing is a control",
        ),
        pytest.param(
            f"--{GATHER}=1", program("fsdp", {}),
            CompileClass.IDENTICAL, "a default, or silently dropped",
            id="a flag that XLA does not print is a default or dropped",
        ),
        pytest.param(
            f"--{PRIORITY}=false", program("fsdp", {PRIORITY: "false"}),
            CompileClass.UNSEEN, PRIORITY,
            id="a flag of the run time needs its run though the programs are equal",
        ),
        pytest.param(
            f"--{GRAPHS}=", program("fsdp", {}), CompileClass.UNSEEN, GRAPHS,
            id="a list that was emptied is not printed, and needs its run",
        ),
        pytest.param(
            f"--{PRIORITY}=false", program("fsdp", None), CompileClass.UNSEEN, PRIORITY,
            id="without XLA's options the profile's own are taken",
        ),
        pytest.param(
            "--xla_new=1", program("fsdp", {"xla_new": "1"}), CompileClass.UNSEEN, "xla_new",
            id="a flag in no table may act at run time",
        ),
        pytest.param(
            f"--{GATHER}=1", program("fsdp-ag", {GATHER: "1"}), CompileClass.PROGRAM, "2 of 64 MiB",
            id="another program is open, and says what changed",
        ),
        pytest.param(
            "--xla_x=1", program("fsdp-ov", {"xla_x": "1"}), CompileClass.SCHEDULE, "in flight",
            id="another schedule is open",
        ),
        pytest.param(
            f"--{GATHER}=1", program("fsdp-ag", {GATHER: "1"}, LIMIT + 1), CompileClass.MEMORY,
            "80 GiB of 80 GiB", id="more memory than there is",
        ),
    ],
)  # fmt: skip
def test_a_program_is_classed(flags: str, found: Program, cls: CompileClass, says: str) -> None:
    (one,) = judged(Compiled(profile=profile("p", flags), program=found))
    assert one.cls is cls
    assert says in one.sentence


@pytest.mark.parametrize(
    ("env", "says"),
    [
        pytest.param({"JAX_OPTIMIZATION_LEVEL": "O1"}, "the compiler reads it", id="compiled in"),
        pytest.param({"NVTE_FUSED_ATTN": "0"}, "the compiler reads it", id="a kernel's choice"),
        pytest.param(
            {"NCCL_NCHANNELS_PER_NET_PEER": "8"}, "no send, recv", id="of transfers it has not"
        ),
    ],
)
def test_a_variable_that_this_program_cannot_see_needs_no_run(
    env: dict[str, str], says: str
) -> None:
    baseline = program("fsdp", {})
    judge = judge_of(baseline, memory_limit_bytes=LIMIT)
    same = judge.judge(Compiled(profile=profile("p", env=env), program=baseline))
    assert same.cls is CompileClass.IDENTICAL
    assert says in same.sentence
    other = judge.judge(Compiled(profile=profile("q", env=env), program=kept("fsdp-ag")))
    assert other.cls is CompileClass.PROGRAM, "it acted"


@pytest.mark.parametrize(
    ("made", "later"),
    [
        pytest.param(profile("p", env={"NCCL_PROTO": "LL"}), "NCCL_PROTO", id="of its collectives"),
        pytest.param(
            profile("p", env={"JAX_ENABLE_PGLE": "true", "JAX_PGLE_PROFILING_RUNS": "5"}),
            "JAX_ENABLE_PGLE, JAX_PGLE_PROFILING_RUNS",
            id="PGLE compiles anew after some steps",
        ),
        pytest.param(
            profile("p", env={"NVTE_FUSED_ATTN": "0", "NCCL_BUFFSIZE": "8388608"}),
            "NCCL_BUFFSIZE",
            id="beside one that cannot act",
        ),
        pytest.param(
            profile("p", f"--{PRIORITY}=false", env={"NVTE_FUSED_ATTN": "0"}),
            f"--{PRIORITY}",
            id="beside a flag of the run time",
        ),
        pytest.param(
            profile("p", env={"NVTE_FUSED_ATTN": "0"}, overrides={"remat_policy": "minimal"}),
            "remat_policy",
            id="beside a key",
        ),
    ],
)
def test_what_may_act_later_needs_its_run(made: Profile, later: str) -> None:
    judge = judge_of(program("fsdp", {}), memory_limit_bytes=None)
    found = program("fsdp", {PRIORITY: "false"} if made.flags else {})
    one = judge.judge(Compiled(profile=made, program=found))
    assert one.cls is CompileClass.UNSEEN
    assert one.sentence == f"same program; {later} may act below it, or later"


@pytest.mark.parametrize("refused", [True, False])
def test_what_made_no_program_says_why(refused: bool) -> None:
    (one,) = judged(
        Compiled(profile=profile("p"), program=None, said="Check failed: x", refused=refused)
    )
    assert one.cls is (CompileClass.REFUSED if refused else CompileClass.FAILED)
    assert one.sentence == "Check failed: x"


def test_a_program_that_then_failed_is_judged_and_says_so() -> None:
    (one,) = judged(
        Compiled(profile=profile("p"), program=kept("fsdp-ag"), said="RESOURCE_EXHAUSTED: 9 GiB")
    )
    assert one.cls is CompileClass.PROGRAM
    assert one.sentence.endswith("; then: RESOURCE_EXHAUSTED: 9 GiB")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(profile("b", env={"NCCL_ALGO": "Ring"}), id="a variable"),
        pytest.param(profile("b", overrides={"scan_layers": "false"}), id="an override"),
        pytest.param(profile("b", f"--{PRIORITY}=false"), id="a flag of the run time"),
    ],
)
def test_what_differs_at_run_time_is_no_twin(other: Profile) -> None:
    flag = {GATHER: "1"}
    options = flag | ({PRIORITY: "false"} if other.flags else {})
    first = Compiled(profile=profile("a", f"--{GATHER}=1"), program=program("fsdp-ag", flag))
    same = dataclasses.replace(first, profile=profile("c", f"--{GATHER}=2"))
    found = judged(first, Compiled(profile=other, program=program("fsdp-ag", options)), same)
    assert found[0].setting == found[2].setting != found[1].setting
