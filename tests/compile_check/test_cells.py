"""Cells that are compiled alone: the memory that each needs, answered and journalled once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_xlatune.evidence.hlo.difference import Compiled
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import CampaignOpened, Event, LedgerEntry, ProfileCompiled, TrialEnded
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.result import NotRun
from pytest_xlatune.model.trial import CompiledMemory, LaunchSpec, Trial
from pytest_xlatune.prepare import compilers as compiling
from pytest_xlatune.prepare.compile_check import CellStep
from pytest_xlatune.prepare.compilers import Compiler, compiler_for
from pytest_xlatune.sweep.declaration import CompileCheck
from tests.compile_check.test_step import PROGRAM, compiler

SIZES = (4, 8, 16)
CELLS = {
    each.digest: each
    for size in SIZES
    for each in [
        Cell(
            model_tag="m",
            parallelism=Parallelism.parse("FSDP=1"),
            per_device_batch_size=float(size),
        )
    ]
}
GIB = 1 << 30


def trial(size: int) -> Trial:
    cell = next(each for each in CELLS.values() if each.per_device_batch_size == size)
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

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **said: Any) -> None:
        self.folder = folder
        self.said = {"memory_limit_bytes": 10 * GIB, **said}
        self.made: list[str] = []
        self.answers: dict[str, Compiled] = {}
        monkeypatch.setattr(compiling, "compiled", self._compiled)

    def _compiled(self, each: Profile, spec: LaunchSpec, root: Path) -> Compiled:
        (size,) = spec.argv
        self.made.append(size)
        program = msgspec.structs.replace(PROGRAM, memory_bytes=int(float(size) * GIB))
        return self.answers.get(size, Compiled(profile=each, program=program, took_s=1.5))

    def of(self, cell: Cell) -> Compiler:
        size = f"{cell.per_device_batch_size:g}"
        return compiler(self.folder, way=lambda _: LaunchSpec(argv=(size,)), **self.said)

    def asked(self, state: LedgerState, size: int) -> tuple[LedgerState, tuple[Event, ...]]:
        step = CellStep(self.of, CELLS, stage="compiled")
        events = step.next(state, (trial(size),), (), folder=self.folder)
        entries = [LedgerEntry(number=n, at_s=0.0, event=e) for n, e in enumerate(events)]
        return replay(entries, onto=state), events


def memory_in(events: tuple[Event, ...]) -> CompiledMemory:
    (found,) = (each.result for each in events if isinstance(each, TrialEnded))
    assert found.not_run is NotRun.COMPILED
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
    assert (told.cls, told.sentence, told.took_s) == (CompileClass.FITS, "8 GiB of 10 GiB", 1.5)
    _, events = machine.asked(state, 16)
    assert memory_in(events).fits is False
    assert machine.made == ["8", "16"]
    assert not list(machine.folder.glob("compiling-*")), "no dump is left lying about"


def test_a_resumed_session_compiles_nothing_again(machine: Machine) -> None:
    state, first = machine.asked(LedgerState(), 8)
    state = again(state)
    assert state.trials[trial(8).id].ended is None, "each session asks anew"
    state, events = machine.asked(state, 8)
    assert machine.made == ["8"]
    assert memory_in(events) == memory_in(first)
    assert not [each for each in events if isinstance(each, ProfileCompiled)]
    (machine.folder / "step.py").write_text("def step(): another\n", encoding="utf-8")
    machine.asked(again(state), 8)
    assert machine.made == ["8", "8"], "another program is compiled anew"


def test_another_limit_is_another_answer(machine: Machine) -> None:
    state, _ = machine.asked(LedgerState(), 8)
    machine.said["memory_limit_bytes"] = 7 * GIB
    _, events = machine.asked(again(state), 8)
    assert memory_in(events).fits is False


def test_a_step_that_had_no_memory_does_not_fit_whatever_it_compiled_to(machine: Machine) -> None:
    for program in (None, PROGRAM):
        machine.answers["8"] = Compiled(
            profile=BASELINE, program=program, said="RESOURCE_EXHAUSTED", is_out_of_memory=True
        )
        _, events = machine.asked(LedgerState(), 8)
        assert memory_in(events).fits is False
        assert memory_in(events).said == "RESOURCE_EXHAUSTED"


def test_where_none_can_answer_it_says_why_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, memory_limit_bytes=None)
    _, events = machine.asked(LedgerState(), 8)
    assert "CompileCheck(memory_limit_gib=...)" in memory_in(events).said

    def refused(_: Cell) -> Compiler:
        raise ConfigError("only a trainer of this machine compiles by running")

    step = CellStep(refused, CELLS, stage="compiled")
    events = step.next(LedgerState(), (trial(8),), (), folder=tmp_path)
    assert memory_in(events).said == "only a trainer of this machine compiles by running"
    assert machine.made == []
    other = msgspec.structs.replace(trial(8), stage="probe")
    assert step.next(LedgerState(), (other,), (), folder=tmp_path) == ()


@pytest.mark.parametrize(("limit_gib", "limit"), [(None, None), (60.0, 60 * GIB)])
def test_the_limit_is_what_the_sweep_says(limit_gib: float | None, limit: int | None) -> None:
    cell = next(iter(CELLS.values()))
    launcher = CommandLauncher(argv=("python", "/opt/train.py"))
    sweep = SimpleNamespace(launcher=launcher, site=SimpleNamespace(executor="local"))
    check = CompileCheck(memory_limit_gib=limit_gib)
    found = compiler_for(SimpleNamespace(sweep=sweep), check, cell)  # type: ignore[arg-type]
    assert found.memory_limit_bytes == limit
    sweep.site.executor = "slurm"
    with pytest.raises(ConfigError, match="a rotation's first job tells what its compiler refuses"):
        compiler_for(SimpleNamespace(sweep=sweep), check, cell)  # type: ignore[arg-type]
