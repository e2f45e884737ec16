"""Compile one step of a sweep's own trainer on this machine, for this machine's device.

So a study of batch sizes finds which sizes fit before a job is queued. The result of a trial keeps
what was compiled for it, so it is not compiled again. A plan compares the program of each
profile with those of the deployed cell and of the profiles before it, and stores nothing.

The payload runs the step under the machine's lock, so that it disturbs no trial. This module does
not know pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Change, change, difference
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.executors import class_named, machine_lock
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.ledger import Event, TrialEnded, TrialPlanned
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.result import Action, Finding, Outcome, State, TrialResult, TrialStatus
from pytest_xlatune.model.trial import CompiledMemory, LaunchSpec, Trial
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.resolved import ResolvedSweep

# takes the pending trials; returns the events for one of them, () if none is left
CompileStep = Callable[[Sequence[Trial]], tuple[Event, ...]]

_DEADLINE_S = 900  # seconds that a compilation may take
_OUT_OF_MEMORY = frozenset({FailureClass.OOM_GPU, FailureClass.OOM_HOST})
_RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"
_NO_OUTCOME = Outcome(state=State.LOST, reason="it was killed before it could report its end")


def step_for(resolved: ResolvedSweep, study: Study, folder: Path) -> CompileStep | None:
    """Return the function that compiles a study's cells; None if study or sweep has no check.

    It compiles the first pending trial of the study's stage, and returns its events; () if there is
    none. If a cell cannot be compiled, nothing is raised: the result of the trial says why.
    """
    check, stage = resolved.compile_check, study.policy.compiled_stage
    if check is None or not stage:
        return None
    limit_bytes = int(check.memory_limit_gib * 2**30)
    cells = {cell.digest: cell for cell in study.cells}

    def compile_next(pending: Sequence[Trial]) -> tuple[Event, ...]:
        trial = next((trial for trial in pending if trial.stage == stage), None)
        if trial is None:
            return ()
        try:
            spec = _spec_for(resolved, cells[trial.cell_digest], BASELINE)
        except ConfigError as error:
            memory = CompiledMemory(said=str(error))
        else:
            with TemporaryDirectory(prefix="compiling-", dir=folder) as scratch:
                compilation = compiled(spec, Path(scratch) / trial.arm)
            needed_bytes = compilation.program.memory_bytes if compilation.program else None
            is_unknown = needed_bytes is None and not compilation.is_out_of_memory
            unknown = "the dump does not show the program's memory" if is_unknown else ""
            memory = CompiledMemory(
                needed_bytes=needed_bytes,
                limit_bytes=limit_bytes,
                is_refused=compilation.is_out_of_memory,
                said=compilation.trouble or unknown,
            )
        cls = FailureClass.COMPILE_CHECK
        result = TrialResult(
            trial=trial,
            status=TrialStatus.DROPPED,
            reason=say("compiled, not run: {memory}", memory=memory.text),
            findings=(Finding(cls=cls, action=Action.NONE, text=memory.text),),
            memory=memory,
        )
        return (TrialPlanned(trial=trial), TrialEnded(result=result))

    return compile_next


def _spec_for(resolved: ResolvedSweep, cell: Cell, profile: Profile) -> LaunchSpec:
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
    one_step = {"steps": 1, "eval_interval": 0, "deadline_s": _DEADLINE_S, "metric": "none"}
    trial = Trial(
        cell_digest=cell.digest,
        profile=profile,
        protocol=msgspec.structs.replace(cell.protocol, profiler="", dump=True, **one_step),
        study="compile-check",
        stage="compile-check",
    )
    return resolved.sweep.launcher.launch(trial, cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The result of compiling a cell, or a profile of it.

    Attributes:
        program: the program of the step; None if none was dumped.
        trouble: the root cause if the step failed; "" otherwise.
        is_out_of_memory: whether it ran out of memory.
    """

    program: Program | None = None
    trouble: str = ""
    is_out_of_memory: bool = False


def compiled(spec: LaunchSpec, folder: Path) -> Compiled:
    """Run a spec to its end in a new folder, and read its dump."""
    outcome = run_in(folder, spec)
    trouble, is_out_of_memory = "", False
    if outcome.state is not State.COMPLETED:
        report = read_log(secure_files.read_bytes(path) for path in log_files(folder).values())
        cause = primary(report.findings)
        trouble = outcome.reason or (report.tail or ("nothing",))[-1]
        if cause is not None:
            trouble, is_out_of_memory = cause.text, cause.cls in _OUT_OF_MEMORY
    program = None
    try:
        program = read_program(folder / DUMP_FOLDER)
    except XlatuneError as error:
        trouble = trouble or str(error)
    return Compiled(program=program, trouble=trouble, is_out_of_memory=is_out_of_memory)


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


def compile_profiles(resolved: ResolvedSweep) -> tuple[tuple[str, str, str], ...]:
    """Compile the profiles of a sweep in order and return the rows of `judged`.

    Raises:
        ConfigError: the trainer runs on another machine, or the deployed cell yields no program.
    """
    profiles = [profile for profile in resolved.sweep.profiles if not profile.is_baseline]
    with TemporaryDirectory(prefix="compiling-") as scratch:

        def compilation_of(profile: Profile) -> Compiled:
            spec = _spec_for(resolved, resolved.cell, profile)
            return compiled(spec, Path(scratch) / profile.id)

        deployed = compilation_of(BASELINE)
        if deployed.program is None:
            raise ConfigError(
                f"the cell as deployed gives no program to compare: {deployed.trouble}. Does the "
                "trainer compile its step with XLA?"
            )
        compilations = ((profile.id, compilation_of(profile)) for profile in profiles)
        return tuple(judged(deployed.program, compilations))


def judged(
    deployed: Program, compilations: Iterable[tuple[str, Compiled]]
) -> Iterator[tuple[str, str, str]]:
    """Yield for each profile its id, the result of compiling it, and the reason; pure."""
    programs = {BASELINE_ID: deployed}
    for name, compilation in compilations:
        program, trouble = compilation.program, compilation.trouble
        # if the modules differ, the trainer ended before its step was compiled
        if program is None or (trouble and program.module != deployed.module):
            yield name, "does not compile", trouble
            continue
        twins = (
            twin for twin, other in programs.items() if change(other, program) is Change.IDENTICAL
        )
        if twin := next(twins, ""):
            result = f"same program as {twin}"
            reason = "its effect, if any, is below the program or at run time"
        else:
            result = "compiles"
            reason = "; ".join(map(sentence, difference(deployed, program).facts))
        programs[name] = program
        yield name, result, reason + (f"; then: {trouble}" if trouble else "")
