"""Cells that are compiled alone: the memory that each needs, answered and journalled once."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

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
from pytest_xlatune.prepare.compilers import Compiler, compiler_of_cell, find_target
from pytest_xlatune.sweep.declaration import CompileCheck
from pytest_xlatune.workers import compile_program
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

    def _compiled(
        self, each: Profile, spec: LaunchSpec, root: Path, *, lock: Path | None
    ) -> Compiled:
        (size,) = spec.argv
        self.made.append(size)
        program = dataclasses.replace(PROGRAM, memory_bytes=int(float(size) * GIB))
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
    assert "here" in memory.by
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


def test_what_was_cut_short_is_not_kept(machine: Machine) -> None:
    machine.answers["8"] = Compiled(
        profile=BASELINE, program=None, said="signal 15", is_interrupted=True
    )
    state, events = machine.asked(LedgerState(), 8)
    assert memory_in(events).fits is None
    assert "pdbs-8" not in state.compiled
    machine.answers.clear()
    _, events = machine.asked(again(state), 8)
    assert memory_in(events).fits is True


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
    other = dataclasses.replace(trial(8), stage="probe")
    assert step.next(LedgerState(), (other,), (), folder=tmp_path) == ()


@pytest.mark.parametrize(
    ("deployed", "limit_gib", "share"),
    [
        pytest.param({}, None, 0.75, id="the pool takes three quarters"),
        pytest.param({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".93"}, None, 0.93, id="as deployed"),
        pytest.param({"XLA_PYTHON_CLIENT_MEM_FRACTION": "?"}, None, 0.75, id="no number"),
        pytest.param({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".93"}, 60.0, None, id="as stated"),
    ],
)
def test_the_limit_is_what_the_pool_of_a_device_has(
    deployed: dict[str, str], limit_gib: float | None, share: float | None
) -> None:
    cell = dataclasses.replace(next(iter(CELLS.values())), deployed=deployed)
    launcher = CommandLauncher(argv=("python", "/opt/train.py"))
    sweep = SimpleNamespace(launcher=launcher, site=SimpleNamespace(executor="slurm"))
    check = CompileCheck(program="mine:step", target="h100", memory_limit_gib=limit_gib)
    found = compiler_of_cell(SimpleNamespace(sweep=sweep), check, cell)  # type: ignore[arg-type]
    whole = find_target("h100").memory_bytes or 0
    wanted = 60 * GIB if share is None else int(whole * share)
    assert found.memory_limit_bytes == wanted
    with pytest.raises(ConfigError, match="Name a program"):
        compiler_of_cell(SimpleNamespace(sweep=sweep), CompileCheck(), cell)  # type: ignore[arg-type]


def test_a_function_is_handed_what_it_has_arguments_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX is a stand-in here; the real one compiles in the test below."""
    handed: list[dict[str, Any]] = []

    def step(
        devices: list[str], per_device_batch_size: int = 1, width: int = 64, remat: str = ""
    ) -> tuple[Any, tuple[()]]:
        handed.append({"size": per_device_batch_size, "width": width, "remat": remat})
        return MagicMock(), ()

    jax = SimpleNamespace(devices=lambda: ["cpu:0"])
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(step=step))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(sys, "path", [*sys.path])
    cell = dataclasses.replace(
        CELLS[trial(16).cell_digest], overrides={"width": "512", "remat": "full", "other": "1"}
    )
    sweep = SimpleNamespace(
        launcher=CommandLauncher(argv=("python", "/opt/train.py")),
        site=SimpleNamespace(executor="slurm"),
    )
    check = CompileCheck(program="mine:step", target="cpu", memory_limit_gib=1)
    way = compiler_of_cell(SimpleNamespace(sweep=sweep), check, cell).way  # type: ignore[arg-type]
    words = way(BASELINE).argv
    compile_program.main(*words[words.index("mine:step") :])
    assert handed == [{"size": 16, "width": 512, "remat": "full"}]


STEP = """
import jax

def step(devices, per_device_batch_size=1, width=64):
    rows = per_device_batch_size * len(devices)
    shape = jax.ShapeDtypeStruct((rows, 1024, width), "float32")
    return jax.jit(lambda x: (x @ x.swapaxes(1, 2)).sum()), (shape,)

def alike(devices):
    return step(devices)
"""


@pytest.mark.jax
@pytest.mark.part("programs")
def test_a_function_is_handed_the_values_of_its_cell(tmp_path: Path) -> None:
    """Jobs that run by Slurm: nothing but a function can be compiled for them."""
    (tmp_path / "mine.py").write_text(STEP, encoding="utf-8")
    sweep = SimpleNamespace(
        launcher=CommandLauncher(argv=("python", "/opt/train.py")),
        site=SimpleNamespace(executor="slurm"),
    )

    def needed(function: str, size: int, **overrides: str) -> int:
        cell = dataclasses.replace(CELLS[trial(size).cell_digest], overrides=overrides)
        check = CompileCheck(
            program=f"mine:{function}", target="cpu", folder=str(tmp_path), memory_limit_gib=1
        )
        resolved: Any = SimpleNamespace(sweep=sweep)
        step = CellStep(
            lambda _: compiler_of_cell(resolved, check, cell),
            CELLS,
            stage="compiled",
            lock=tmp_path / "lock",
        )
        found = memory_in(step.next(LedgerState(), (trial(size),), (), folder=tmp_path))
        assert found.needed_bytes is not None, found.said
        return found.needed_bytes

    small, large = needed("step", 4), needed("step", 16)
    assert large == pytest.approx(4 * small, rel=0.05), "memory is a line through the sizes"
    assert needed("step", 4, width="512") > small, "an override that it has an argument for"
    assert needed("alike", 4) == needed("alike", 16)
