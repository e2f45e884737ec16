"""Compile one step of a sweep's own trainer on this machine, for this machine's device.

So a study of batch sizes finds which sizes fit before a job is queued. The result of a trial keeps
what was compiled for it, so it is not compiled again. A plan compares the program of each
profile with those of the deployed cell and of the profiles before it, and stores nothing. Equal
programs may still run differently, so settings that may act at run time are named.

The payload runs the step under the machine's lock, so that it disturbs no trial. This module does
not know pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Change, change, difference, expectations
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
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, effective_values
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
from pytest_xlatune.sweep.resolved import ResolvedSweep

# takes the pending trials; returns the events for one of them, () if none is left
CompileStep = Callable[[Sequence[Trial]], tuple[Event, ...]]

_DEADLINE_S = 900  # seconds that a compilation may take
_OUT_OF_MEMORY = frozenset({FailureClass.OOM_GPU, FailureClass.OOM_HOST})
_RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"
_NO_OUTCOME = Outcome(state=State.LOST, reason="it was killed before it could report its end")
# the beginning of a log line of XLA:  F1120 12:35:26.733076   24443 parse_flags_from_env.cc:234]
_PREFIX = re.compile(r"^[EFIW]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")


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
            spec = spec_for(resolved, cells[trial.cell_digest], BASELINE)
        except ConfigError as error:
            return _result_events(trial, CompiledMemory(said=str(error)))
        with TemporaryDirectory(prefix="compiling-", dir=folder) as scratch:
            compilation = compiled(spec, Path(scratch) / trial.arm)
        needed_bytes = None if compilation.program is None else compilation.program.memory_bytes
        text = compilation.trouble
        if needed_bytes is None and not compilation.is_out_of_memory:
            text = text or "the dump does not show the program's memory"
        memory = CompiledMemory(
            needed_bytes=needed_bytes,
            limit_bytes=limit_bytes,
            is_refused=compilation.is_out_of_memory,
            said=text,
        )
        return _result_events(trial, memory)

    return compile_next


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
            trouble, is_out_of_memory = _PREFIX.sub("", cause.text), cause.cls in _OUT_OF_MEMORY
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


class CompileClass(StrEnum):
    """The result of compiling a profile."""

    SAME = "same program"
    COMPILES = "compiles"
    FAILED = "does not compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProfile:
    """A profile and the result of compiling it.

    Attributes:
        profile: the id of the profile.
        cls: the class.
        same_as: the id of the profile with the same program; "" if there is none.
        reason: the reason for the class.
    """

    profile: str
    cls: CompileClass
    same_as: str = ""
    reason: str = ""


def compile_profiles(resolved: ResolvedSweep) -> tuple[CompiledProfile, ...]:
    """Compile the profiles of a sweep in order and return the results.

    Raises:
        ConfigError: the trainer runs on another machine, or the deployed cell yields no program.
    """
    profiles = [profile for profile in resolved.sweep.profiles if not profile.is_baseline]
    with TemporaryDirectory(prefix="compiling-") as scratch:

        def compilation_of(profile: Profile) -> Compiled:
            spec = spec_for(resolved, resolved.cell, profile)
            return compiled(spec, Path(scratch) / profile.id)

        deployed = compilation_of(BASELINE)
        if deployed.program is None:
            raise ConfigError(
                f"the cell as deployed gives no program to compare: {deployed.trouble}. Does the "
                "trainer compile its step with XLA?"
            )
        compilations = ((profile, compilation_of(profile)) for profile in profiles)
        return tuple(judged(deployed.program, compilations))


def judged(
    deployed: Program, compilations: Iterable[tuple[Profile, Compiled]]
) -> Iterator[CompiledProfile]:
    """Yield the result for each profile; pure."""
    # id of a profile -> its program, and its settings that may act at run time
    before: dict[str, tuple[Program, dict[str, str]]] = {BASELINE_ID: (deployed, {})}
    for profile, compilation in compilations:
        program, trouble = compilation.program, compilation.trouble
        # if the modules differ, the trainer ended before its step was compiled
        if program is None or (trouble and program.module != deployed.module):
            yield CompiledProfile(profile=profile.id, cls=CompileClass.FAILED, reason=trouble)
            continue
        settings = _run_time_settings(profile)
        same_as = next(
            (
                name
                for name, (other, _) in before.items()
                if change(other, program) is Change.IDENTICAL
            ),
            "",
        )
        if same_as:
            cls = CompileClass.SAME
            names = sorted({name for name, _ in settings.items() ^ before[same_as][1].items()})
            reason = "no setting is left that could act: a trial of it measures noise"
            if names:
                reason = f"{', '.join(names)} may act below the program, or at run time"
        else:
            cls = CompileClass.COMPILES
            reason = "; ".join(map(sentence, difference(deployed, program).facts))
        before[profile.id] = (program, settings)
        reason += f"; then: {trouble}" if trouble else ""
        yield CompiledProfile(profile=profile.id, cls=cls, same_as=same_as, reason=reason)


def _run_time_settings(profile: Profile) -> dict[str, str]:
    """Return the settings of a profile that may act without changing the program."""
    in_program = {name for name, expected in expectations().items() if not expected.below}
    flags = effective_values(profile.flags)
    return {
        **{f"--{name}": value for name, value in flags.items() if name not in in_program},
        **profile.env,
        **profile.overrides,
    }
