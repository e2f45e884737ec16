"""Find the memory that a cell needs on a device by compiling it before a job is queued.

A study of batch sizes uses it. One step of the sweep's own trainer compiles the cell on this
machine, for this machine's device. The payload runs it under the machine's lock, so that it
disturbs no trial. The ledger keeps the result under a digest of everything that affects it: the
program's source, the cell's settings, the compiler's versions, the limit. With the same digest, the
cell is not compiled again.

This module does not know pytest.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.executors import machine_lock
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.executors.named import class_named
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.ledger import CellCompiled, Event, TrialEnded, TrialPlanned
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Action,
    Finding,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import CompiledMemory, LaunchSpec, Trial
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.declaration import CompileCheck
from pytest_xlatune.sweep.resolved import ResolvedSweep

# takes the state and the pending trials; returns the events for one of them, () if none is left
CompileStep = Callable[[LedgerState, Sequence[Trial]], tuple[Event, ...]]

_DEADLINE_S = 900  # seconds that a compilation may take
_MAX_SOURCE = 1 << 20  # most bytes of a source file of the program
_VERSIONS_TIMEOUT_S = 60.0
_VERSIONS = """
from importlib import metadata
for name in ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "libtpu", "maxtext"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""
_REFUSALS = frozenset({FailureClass.UNKNOWN_FLAG, FailureClass.BAD_FLAG_VALUE})
_OUT_OF_MEMORY = frozenset({FailureClass.OOM_GPU, FailureClass.OOM_HOST})
_RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"
_NO_OUTCOME = Outcome(state=State.LOST, reason="it was killed before it could report its end")
# signals that a person, a scheduler or a machine without memory sends
_OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# the beginning of a log line of XLA:  F1120 12:35:26.733076   24443 parse_flags_from_env.cc:234]
_PREFIX = re.compile(r"^[EFIW]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")


def step_for(resolved: ResolvedSweep, study: Study, folder: Path) -> CompileStep | None:
    """Return the function that compiles a study's cells; None if study or sweep has no check."""
    check, stage = resolved.compile_check, study.policy.compiled_stage
    if check is None or not stage:
        return None
    cells = {cell.digest: cell for cell in study.cells}
    return functools.partial(compile_next, resolved, check, cells=cells, stage=stage, folder=folder)


@functools.cache
def _compiler(python: str) -> str:
    """Return the versions with which a launcher's interpreter compiles, as a text.

    Raises:
        ConfigError: the interpreter cannot be run.
    """
    # an interpreter that this machine does not have is in a container, whose image is in the spec
    if not python or not shutil.which(python):
        return "an unknown jaxlib on this machine"
    try:
        done = subprocess.run(
            [python, "-c", _VERSIONS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSIONS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"compile check: {python} cannot be run ({error}); name an interpreter that has the "
            "JAX to compile with"
        ) from None
    return f"{', '.join(done.stdout.splitlines()) or 'an unknown jaxlib'} on this machine"


def _key(spec: LaunchSpec, launcher: Launcher, cell: Cell, *, limit_bytes: int, by: str) -> str:
    """Return the digest of everything that affects a result, including the source files."""
    paths = [path for path in map(Path, launcher.files(cell)) if path.is_file()]
    sources = [path for path in paths if path.stat().st_size <= _MAX_SOURCE]
    return digest(
        {
            "spec": spec.to_json(),
            "sources": [digest(path.read_bytes().hex()) for path in sources],
            "memory_limit_bytes": limit_bytes,
            "by": by,
        }
    )


def spec_for(resolved: ResolvedSweep, cell: Cell, profile: Profile) -> LaunchSpec:
    """Return a spec for one step of a cell's trainer with a profile, which dumps its program.

    Raises:
        ConfigError: the trainer runs on another machine.
    """
    executor = resolved.sweep.site.executor
    if not class_named(executor).is_here:
        raise ConfigError(
            f"compile check: these trials run by {executor}, and a trainer can only be compiled on "
            "this machine. Leave the compile check out: the trials find the ceiling, and what a "
            "compiler refuses"
        )
    protocol = msgspec.structs.replace(
        cell.protocol,
        steps=1,
        profiler="",
        eval_interval=0,
        deadline_s=_DEADLINE_S,
        metric="none",
        dump=True,
    )
    trial = Trial(
        cell_digest=cell.digest,
        profile=profile,
        protocol=protocol,
        study="compile-check",
        stage="compile-check",
    )
    return resolved.sweep.launcher.launch(trial, cell)


def compile_next(
    resolved: ResolvedSweep,
    check: CompileCheck,
    state: LedgerState,
    pending: Sequence[Trial],
    *,
    cells: Mapping[str, Cell],
    stage: str,
    folder: Path,
) -> tuple[Event, ...]:
    """Compile the first pending trial of a stage; return its events, () if there is none.

    If a cell cannot be compiled, nothing is raised: the result of the trial says why. The keys of
    `cells` are their digests.
    """
    trial = next((trial for trial in pending if trial.stage == stage), None)
    if trial is None:
        return ()
    cell, launcher = cells[trial.cell_digest], resolved.sweep.launcher
    try:
        spec, by = spec_for(resolved, cell, BASELINE), _compiler(launcher.interpreter)
    except ConfigError as error:
        return _result_events(trial, CompiledMemory(said=str(error)))
    if check.memory_limit_gib is None:
        text = "the memory of a device is not known; set CompileCheck(memory_limit_gib=...)"
        return _result_events(trial, CompiledMemory(said=text, by=by))
    limit_bytes = int(check.memory_limit_gib * 2**30)
    key = _key(spec, launcher, cell, limit_bytes=limit_bytes, by=by)
    known = state.compiled.get(trial.arm)
    if known is not None and known.key == key:
        return _result_events(trial, known.memory)
    with TemporaryDirectory(prefix="compiling-", dir=folder) as scratch:
        compilation = compiled(spec, Path(scratch) / trial.arm)
    text = compilation.trouble
    if compilation.needed_bytes is None and not compilation.is_out_of_memory:
        text = text or "the dump does not show the program's memory"
    memory = CompiledMemory(
        needed_bytes=compilation.needed_bytes,
        limit_bytes=limit_bytes,
        is_refused=compilation.is_out_of_memory,
        said=text,
        by=by,
    )
    if compilation.is_interrupted:
        return _result_events(trial, memory)  # a later session compiles the cell again
    event = CellCompiled(arm=trial.arm, key=key, memory=memory, took_s=round(compilation.took_s, 3))
    return (event, *_result_events(trial, memory))


def _result_events(trial: Trial, memory: CompiledMemory) -> tuple[Event, ...]:
    cls = FailureClass.COMPILE_CHECK
    result = TrialResult(
        trial=trial,
        status=TrialStatus.DROPPED,
        reason=say("compiled, not run: {memory}", memory=memory.text),
        findings=(Finding(cls=cls, action=Action.NONE, text=memory.text),),
        memory=memory,
    )
    return (TrialPlanned(trial=trial), TrialEnded(result=result))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The result of compiling a cell, or a profile of it.

    Attributes:
        program: the program of the step; None if none was dumped.
        needed_bytes: memory that the step's program needs on a device; None if unknown.
        trouble: the error message if something went wrong; "" otherwise.
        is_interrupted: whether it was ended from outside before a dump, so that nothing is known.
        is_ended_from_outside: whether it was ended from outside, before or after a dump.
        is_refused: whether the compiler did not know a flag, or refused a value.
        is_out_of_memory: whether it ran out of memory.
        took_s: seconds that it took.
    """

    program: Program | None = None
    needed_bytes: int | None = None
    trouble: str = ""
    is_interrupted: bool = False
    is_ended_from_outside: bool = False
    is_refused: bool = False
    is_out_of_memory: bool = False
    took_s: float = 0.0


def compiled(spec: LaunchSpec, folder: Path) -> Compiled:
    """Run a spec to its end in a new folder, and read its dump."""
    outcome = run_in(folder, spec)
    trouble, cls = _failure(folder, outcome)
    is_refused, is_out_of_memory = cls in _REFUSALS, cls in _OUT_OF_MEMORY
    program = None
    try:
        program = read_program(folder / DUMP_FOLDER)
    except XlatuneError as error:
        trouble = trouble or str(error)
    # what is ended from outside shows nothing about the cell
    is_over = outcome.state in (State.COMPLETED, State.FAILED)
    is_ended_from_outside = outcome.signal in _OUTSIDE_SIGNALS or not is_over
    return Compiled(
        program=program,
        needed_bytes=None if program is None else program.memory_bytes,
        trouble=trouble,
        is_interrupted=is_ended_from_outside and not (program or is_refused or is_out_of_memory),
        is_ended_from_outside=is_ended_from_outside,
        is_refused=is_refused,
        is_out_of_memory=is_out_of_memory,
        took_s=(outcome.end_s or 0) - (outcome.start_s or 0),
    )


def run_in(folder: Path, spec: LaunchSpec) -> Outcome:
    """Run a spec to its end in a new folder, with the payload that trials use."""
    submitted = write_spec(folder, spec)
    # inside a Slurm allocation, the payload would take itself for a rank of that job
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    subprocess.run(
        [sys.executable, "-c", _RUN, str(folder), str(machine_lock()), submitted],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return read_outcomes(folder).get(0, _NO_OUTCOME)


def _failure(folder: Path, outcome: Outcome) -> tuple[str, str]:
    """Return the root cause of a process that failed, and its failure class."""
    if outcome.state is State.COMPLETED:
        return "", ""
    report = read_log(secure_files.read_bytes(path) for path in log_files(folder).values())
    cause = primary(report.findings)
    if cause is not None:
        return _PREFIX.sub("", cause.text), cause.cls
    return outcome.reason or (report.tail or ("nothing",))[-1], ""
