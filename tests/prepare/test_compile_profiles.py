"""What compiling the profiles of a sweep says of each, by kept programs."""

from __future__ import annotations

import dataclasses
import functools

import msgspec
import pytest

from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.prepare.compile_check import CompileClass, Compiled, judged
from tests.helpers.hlo_programs import text

GATHER = "xla_gpu_all_gather_combine_threshold_bytes"
PRIORITY = "xla_gpu_enable_highest_priority_async_stream"


@functools.cache
def kept(name: str) -> Program:
    return read_hlo(text("0.12.0", name).splitlines(keepends=True), name)


def made(name: str, options: dict[str, str] | None = None, *, trouble: str = "") -> Compiled:
    program = msgspec.structs.replace(kept(name), options=options)
    return Compiled(program=program, trouble=trouble)


FIRST = (profile("first", f"--{GATHER}=1"), made("fsdp-ag", {GATHER: "1"}))
# name, flags and variables of the profile, what it came to; its class, whose program, the reason
Row = tuple[str, str, dict[str, str], Compiled, CompileClass, str, str]
SAME, COMPILES = CompileClass.SAME, CompileClass.COMPILES
ROWS: list[Row] = [
    ("a control", f"--{GATHER}=1", {}, made("fsdp", {GATHER: "1"}),
     SAME, BASELINE_ID, "no setting"),
    ("a flag of the run time", f"--{PRIORITY}=false", {}, made("fsdp", {PRIORITY: "false"}),
     SAME, BASELINE_ID, f"--{PRIORITY} may act"),
    ("a flag in no table", "--xla_new=1", {}, made("fsdp", {"xla_new": "1"}),
     SAME, BASELINE_ID, "--xla_new may act"),
    ("a twin but for a variable", f"--{GATHER}=2", {"NCCL_PROTO": "LL"},
     made("fsdp-ag", {GATHER: "2"}), SAME, "first", "NCCL_PROTO may act"),
    ("another schedule", "--xla_x=1", {}, made("fsdp-ov", {"xla_x": "1"}),
     COMPILES, "", "other schedule"),
    ("it failed after it", "", {}, made("fsdp-ov", {}, trouble="no file"),
     COMPILES, "", "; then: no"),
    ("it failed before its step", "", {}, dataclasses.replace(made("fsdp", {}, trouble="no luck"),
     program=msgspec.structs.replace(kept("fsdp"), module="jit_init")),
     CompileClass.FAILED, "", "no luck"),
    ("a flag that is refused", "", {}, Compiled(trouble="Unknown flag"),
     CompileClass.FAILED, "", "Unknown flag"),
]  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in ROWS])
def test_each_profile_has_its_class_and_reason(row: Row) -> None:
    _, flags, env, found, cls, of, reason = row
    asked = profile("p", flags, env=env)
    deployed = made("fsdp", {}).program
    assert deployed is not None
    first, second = judged(deployed, [FIRST, (asked, found)])
    assert (first.cls, "2 of 64 MiB" in first.reason) == (COMPILES, True)
    assert (second.profile, second.cls, second.same_as) == ("p", cls, of)
    assert reason in second.reason
