"""Cells that are compiled alone: the memory that each needs, answered and journalled once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import CampaignOpened, CellCompiled, Event, LedgerEntry, TrialEnded
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import CompiledMemory, LaunchSpec, Trial
from pytest_xlatune.prepare import compile_check as compiling
from pytest_xlatune.prepare.compile_check import Compiled, compile_next, compiled
from pytest_xlatune.sweep.declaration import CompileCheck

GIB = 1 << 30
AXES = Parallelism.parse("FSDP=1")
OF_SIZE = {
    size: Cell(model_tag="m", parallelism=AXES, per_device_batch_size=float(size))
    for size in (4, 8, 16)
}
CELLS = {cell.digest: cell for cell in OF_SIZE.values()}


def trial(size: int) -> Trial:
    cell = OF_SIZE[size]
    return Trial(
        arm=f"pdbs-{size}",
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=cell.protocol,
        study="batch",
        stage="compiled",
    )


class Machine:
    """A compiler of cells, and how often it was started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.limit_gib: float | None = 10
        self.site = SimpleNamespace(executor="local")
        self.made: list[str] = []
        self.answers: dict[str, Compiled] = {}
        (folder / "step.py").write_text("def step(): ...\n", encoding="utf-8")
        monkeypatch.setattr(compiling, "compiled", self._compiled)

    def _compiled(self, spec: LaunchSpec, folder: Path) -> Compiled:
        size = spec.argv[-1]
        self.made.append(size)
        needed = int(float(size) * GIB)
        return self.answers.get(size, Compiled(needed_bytes=needed, took_s=1.5))

    def answered(self, state: LedgerState, pending: Sequence[Trial]) -> tuple[Event, ...]:
        argv = (sys.executable, str(self.folder / "step.py"), "{per_device_batch_size}")
        sweep = SimpleNamespace(launcher=CommandLauncher(argv=argv), site=self.site)
        resolved: Any = SimpleNamespace(sweep=sweep)
        check = CompileCheck(memory_limit_gib=self.limit_gib)
        return compile_next(
            *(resolved, check, state, pending), cells=CELLS, stage="compiled", folder=self.folder
        )

    def asked(self, state: LedgerState, size: int) -> tuple[LedgerState, tuple[Event, ...]]:
        events = self.answered(state, (trial(size),))
        entries = [LedgerEntry(number=n, at_s=0.0, event=e) for n, e in enumerate(events)]
        return replay(entries, onto=state), events


def memory_in(events: tuple[Event, ...]) -> CompiledMemory:
    (found,) = (each.result for each in events if isinstance(each, TrialEnded))
    assert found.memory is not None
    assert not found.job_ids
    return found.memory


def again(state: LedgerState) -> LedgerState:
    """Return the state that another session finds."""
    opened = CampaignOpened(
        cells=tuple(CELLS.values()), study="batch", sweep="s", session="later", declared={}
    )
    return replay([LedgerEntry(number=99, at_s=1.0, event=opened)], onto=state)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_each_cell_is_answered_with_what_it_needs(machine: Machine) -> None:
    state, events = machine.asked(LedgerState(), 8)
    memory = memory_in(events)
    assert (memory.needed_bytes, memory.limit_bytes, memory.fits) == (8 * GIB, 10 * GIB, True)
    assert memory.by.endswith("on this machine")
    told = state.compiled["pdbs-8"]
    assert (told.memory.text, told.took_s) == ("8 of 10 GiB", 1.5)
    _, events = machine.asked(state, 16)
    assert memory_in(events).fits is False
    assert machine.made == ["8", "16"]
    assert not list(machine.folder.glob("compiling-*")), "no dump is left lying about"
    assert machine.answered(state, (msgspec.structs.replace(trial(8), stage="probe"),)) == ()


def test_a_resumed_session_compiles_nothing_again(machine: Machine) -> None:
    state, first = machine.asked(LedgerState(), 8)
    state = again(state)
    assert state.trials[trial(8).id].ended is None, "each session asks anew"
    state, events = machine.asked(state, 8)
    assert machine.made == ["8"]
    assert memory_in(events) == memory_in(first)
    assert not [each for each in events if isinstance(each, CellCompiled)]
    (machine.folder / "step.py").write_text("def step(): another\n", encoding="utf-8")
    machine.asked(again(state), 8)
    assert machine.made == ["8", "8"], "another program is compiled anew"
    machine.limit_gib = 7
    _, events = machine.asked(again(state), 8)
    assert memory_in(events).fits is False, "another limit is another answer"


def test_a_step_that_had_no_memory_does_not_fit_whatever_it_compiled_to(machine: Machine) -> None:
    trouble = "RESOURCE_EXHAUSTED"
    for needed in (None, 1):
        machine.answers["8"] = Compiled(needed_bytes=needed, trouble=trouble, is_out_of_memory=True)
        memory = memory_in(machine.asked(LedgerState(), 8)[1])
        assert (memory.fits, memory.said) == (False, trouble)


def test_where_none_can_answer_it_says_why_and_starts_nothing(machine: Machine) -> None:
    machine.limit_gib = None
    _, events = machine.asked(LedgerState(), 8)
    assert "CompileCheck(memory_limit_gib=...)" in memory_in(events).said

    machine.site.executor = "slurm"
    _, events = machine.asked(LedgerState(), 8)
    assert "the trials find the ceiling" in memory_in(events).said
    assert machine.made == []


@pytest.mark.parametrize(
    ("program", "told"),
    [
        pytest.param(
            "print('E0112 07:08:09.1 77 a.cc:234] RESOURCE_EXHAUSTED: Out of memory while trying "
            "to allocate 9 bytes'); raise SystemExit(1)",
            ("RESOURCE_EXHAUSTED", True, False), id="it ended for want of memory",
        ),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)", ("nothing", False, True), id="it was killed"
        ),
        pytest.param("print('done')", ("xla_dump", False, False), id="it dumped no program"),
    ],
)  # fmt: skip
def test_what_a_step_of_the_trainer_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, told: tuple[str, bool, bool]
) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))
    spec = LaunchSpec(argv=(sys.executable, "-c", program), inherit=("PATH",), deadline_s=60)
    found = compiled(spec, tmp_path / "step")
    said, *flags = told
    assert [found.is_out_of_memory, found.is_interrupted] == flags
    assert found.needed_bytes is None
    assert said in found.trouble
