"""What compiling says of profiles: which need no run, which are twins; from kept programs."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.evidence.hlo.difference import (
    Compiled,
    CompileFinding,
    CompileJudge,
    finding_line,
    summary_lines,
)
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import Profile, profile
from tests.evidence.programs import text

GATHER = "xla_gpu_all_gather_combine_threshold_bytes"
PRIORITY = "xla_gpu_enable_highest_priority_async_stream"
GRAPHS = "xla_gpu_enable_command_buffer"
LIMIT = 80 << 30


@functools.cache
def kept(name: str) -> Program:
    return read_hlo(text("0.12.0", name).splitlines(keepends=True), name)


def program(name: str, options: dict[str, str] | None, memory: int | None = None) -> Program:
    return dataclasses.replace(kept(name), options=options, memory_bytes=memory)


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
    assert one.twin is None
    assert one.needs_no_run == (cls in {CompileClass.IDENTICAL, CompileClass.MEMORY})


@pytest.mark.parametrize("refused", [True, False])
def test_what_made_no_program_says_why(refused: bool) -> None:
    (one,) = judged(
        Compiled(profile=profile("p"), program=None, said="Check failed: x", refused=refused)
    )
    assert one.cls is (CompileClass.REFUSED if refused else CompileClass.FAILED)
    assert (one.sentence, one.needs_no_run) == ("Check failed: x", True)


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
    assert [each.twin for each in found] == [None, None, "a"]
    assert [each.needs_no_run for each in found] == [False, False, True]
    assert finding_line(found[2], 3).startswith("c    the same as a: other program")


def test_the_summary_counts_what_needs_no_run() -> None:
    found = judged(
        Compiled(profile=profile("a"), program=program("fsdp", {}), took_s=2.0),
        Compiled(profile=profile("b"), program=program("fsdp-ag", {}), took_s=3.0),
    )
    first, limits = summary_lines(found)
    assert first.startswith("1 of 2 profiles need no run (")
    assert first.endswith("in 5 s")
    assert "What compiling cannot say" in limits
