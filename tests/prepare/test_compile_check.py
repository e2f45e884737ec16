"""Cells that are compiled alone: the memory that each needs is the result of its trial."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import Event, TrialEnded
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import CompiledMemory, LaunchSpec, Trial
from pytest_xlatune.prepare import compile_check as compiling
from pytest_xlatune.prepare.compile_check import Compiled, compiled, step_for
from pytest_xlatune.sweep.declaration import CompileCheck
from tests.helpers.hlo_programs import program

GIB = 1 << 30
AXES = Parallelism.parse("FSDP=1")
OF_SIZE = {
    size: Cell(model_tag="m", parallelism=AXES, per_device_batch_size=float(size))
    for size in (8, 16)
}
STUDY: Any = SimpleNamespace(
    policy=SimpleNamespace(compiled_stage="compiled"), cells=tuple(OF_SIZE.values())
)


def trial(size: int, stage: str = "compiled") -> Trial:
    cell = OF_SIZE[size]
    return Trial(
        arm=f"pdbs-{size}",
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=cell.protocol,
        study="batch",
        stage=stage,
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
        return self.answers.get(size, Compiled(program=needing(int(float(size) * GIB))))

    def answered(self, *pending: Trial) -> tuple[Event, ...]:
        argv = (sys.executable, "/train/step.py", "{per_device_batch_size}")
        sweep = SimpleNamespace(launcher=CommandLauncher(argv=argv), site=self.site)
        check = CompileCheck(memory_limit_gib=10)
        resolved: Any = SimpleNamespace(sweep=sweep, compile_check=check)
        step = step_for(resolved, STUDY, self.folder)
        assert step is not None
        return step(pending)

    def memory(self, size: int) -> CompiledMemory:
        events = self.answered(trial(size))
        (result,) = (event.result for event in events if isinstance(event, TrialEnded))
        assert result.memory is not None
        assert not result.job_ids
        return result.memory


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
    assert machine.answered(trial(8, stage="probe")) == ()


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


@pytest.mark.parametrize(
    ("trainer", "trouble", "is_out_of_memory"),
    [
        pytest.param(
            "print('E0112 07:08:09.1 77 a.cc:234] RESOURCE_EXHAUSTED: Out of memory while trying "
            "to allocate 9 bytes'); raise SystemExit(1)",
            "RESOURCE_EXHAUSTED", True, id="it ended for want of memory",
        ),
        pytest.param("import os; os.kill(os.getpid(), 9)", "nothing", False, id="it was killed"),
        pytest.param("print('done')", "xla_dump", False, id="it dumped no program"),
    ],
)  # fmt: skip
def test_what_a_step_of_the_trainer_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trainer: str,
    trouble: str,
    is_out_of_memory: bool,
) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))
    spec = LaunchSpec(argv=(sys.executable, "-c", trainer), inherit=("PATH",), deadline_s=60)
    compilation = compiled(spec, tmp_path / "step")
    assert compilation.program is None
    assert compilation.is_out_of_memory is is_out_of_memory
    assert trouble in compilation.trouble
