"""What compiling a step says: the memory of a cell, and which profiles change the program."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import Event, TrialEnded
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.trial import CompiledMemory, LaunchSpec
from pytest_xlatune.prepare import compile_check as compiling
from pytest_xlatune.prepare.compile_check import Compiled, compiled, judged, step_for
from pytest_xlatune.sweep.declaration import CompileCheck
from tests.helpers.history import trial_of
from tests.helpers.hlo_programs import program, text
from tests.helpers.probes import make_cell
from tests.helpers.tables import rows

GIB = 1 << 30
OF_SIZE = {size: make_cell(per_device_batch_size=float(size)) for size in (8, 16)}
STUDY: Any = SimpleNamespace(
    policy=SimpleNamespace(compiled_stage="compiled"), cells=tuple(OF_SIZE.values())
)


class Machine:
    """A compiler of cells, and how often it was started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.site = folder, SimpleNamespace(executor="local")
        self.made: list[str] = []
        self.answers: dict[str, Compiled] = {}
        monkeypatch.setattr(compiling, "compiled", self._compiled)

    def _compiled(self, spec: LaunchSpec, folder: Path) -> Compiled:
        size = spec.argv[-1]
        self.made.append(size)
        return self.answers.get(size, Compiled(program=needing(int(size) * GIB)))

    def answered(self, size: int, stage: str = "compiled") -> tuple[Event, ...]:
        argv = (sys.executable, "/train/step.py", "{per_device_batch_size}")
        sweep = SimpleNamespace(launcher=CommandLauncher(argv=argv), site=self.site)
        check = CompileCheck(memory_limit_gib=10)
        resolved: Any = SimpleNamespace(sweep=sweep, compile_check=check)
        step = step_for(resolved, STUDY, self.folder)
        assert step is not None
        return step([trial_of(OF_SIZE[size], study="batch", stage=stage)])

    def memory(self, size: int) -> CompiledMemory:
        _, ended = self.answered(size)
        assert isinstance(ended, TrialEnded)
        assert ended.result.memory is not None
        assert not ended.result.job_ids
        return ended.result.memory


def needing(memory_bytes: int | None) -> Program:
    return msgspec.structs.replace(program("0.12.0", "fsdp"), memory_bytes=memory_bytes)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_each_cell_is_answered_with_what_it_needs(machine: Machine) -> None:
    memory = machine.memory(8)
    assert (memory.needed_bytes, memory.limit_bytes, memory.fits) == (8 * GIB, 10 * GIB, True)
    assert memory.text == "8 of 10 GiB"
    assert machine.memory(16).fits is False
    assert machine.made == ["8", "16"]
    assert not list(machine.folder.glob("compiling-*")), "no dump is left lying about"
    assert machine.answered(8, stage="probe") == ()


def test_a_step_that_had_no_memory_does_not_fit_whatever_it_compiled_to(machine: Machine) -> None:
    trouble = "RESOURCE_EXHAUSTED"
    for made in (None, needing(1)):
        machine.answers["8"] = Compiled(program=made, trouble=trouble, is_out_of_memory=True)
        memory = machine.memory(8)
        assert (memory.fits, memory.said) == (False, trouble)


def test_where_none_can_answer_it_says_why_and_starts_nothing(machine: Machine) -> None:
    machine.site.executor = "slurm"
    assert "the trials find the ceiling" in machine.memory(8).said
    assert machine.made == []


NO_MEMORY = "print('E0112 07:08:09.1 77 a.cc:234] RESOURCE_EXHAUSTED: Out of memory while trying "
NO_MEMORY += "to allocate 9 bytes'); raise SystemExit(1)"


@rows(
    "trainer, trouble, has_no_memory",
    {
        "it ended for want of memory": (NO_MEMORY, "RESOURCE_EXHAUSTED", True),
        "it was killed": ("import os; os.kill(os.getpid(), 9)", "nothing", False),
        "it dumped no program": ("print('done')", "xla_dump", False),
    },
)
def test_what_a_step_of_the_trainer_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, trouble: str, has_no_memory: bool
) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))
    spec = LaunchSpec(argv=(sys.executable, "-c", trainer), inherit=("PATH",), deadline_s=60)
    compilation = compiled(spec, tmp_path / "step")
    assert compilation.program is None
    assert compilation.is_out_of_memory is has_no_memory
    assert trouble in compilation.trouble


GATHER = "xla_gpu_all_gather_combine_threshold_bytes"


@functools.cache
def kept(name: str) -> Program:
    return read_hlo(text("0.12.0", name).splitlines(keepends=True), name)


def made(name: str, options: dict[str, str] | None = None, *, trouble: str = "") -> Compiled:
    program = msgspec.structs.replace(kept(name), options=options)
    return Compiled(program=program, trouble=trouble)


EARLIER = msgspec.structs.replace(kept("fsdp"), module="jit_init")


@rows(
    "compilation, result, reason",
    {
        "a control": (made("fsdp", {GATHER: "1"}), f"same program as {BASELINE_ID}", "run time"),
        "a twin": (made("fsdp-ag", {GATHER: "2"}), "same program as first", "run time"),
        "another schedule": (made("fsdp-ov", {"xla_x": "1"}), "compiles", "other schedule"),
        "it failed after it": (made("fsdp-ov", {}, trouble="no file"), "compiles", "; then: no"),
        "it failed before its step": (
            Compiled(program=EARLIER, trouble="no luck"), "does not compile", "no luck"),
        "a flag that is refused": (
            Compiled(trouble="Unknown flag"), "does not compile", "Unknown flag"),
    },
)  # fmt: skip
def test_each_profile_has_its_class_and_reason(
    compilation: Compiled, result: str, reason: str
) -> None:
    deployed = made("fsdp", {}).program
    assert deployed is not None
    compilations = [("first", made("fsdp-ag", {GATHER: "1"})), ("p", compilation)]
    first, second = judged(deployed, compilations)
    assert (first[1], "2 of 64 MiB" in first[2]) == ("compiles", True)
    assert second[:2] == ("p", result)
    assert reason in second[2]
