"""Compile profiles by one step of the sweep's own trainer on this machine, each in its own process.

Each runs in a folder of its own, below the payload that trials have, under the machine's lock, so
that no trial is disturbed. `evidence.hlo.difference` judges the program.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.catalog.context import Shape, closes_ring, idle_variables
from pytest_xlatune.catalog.entries import compiled_in
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import (
    Compiled,
    CompileJudge,
)
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.executors import machine_lock
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.executors.named import class_named
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, sentence
from pytest_xlatune.model.profile import (
    BASELINE,
    PGLE,
    Profile,
    effective_values,
)
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.stats.validity import pgle_refused
from pytest_xlatune.sweep.declaration import CompileCheck
from pytest_xlatune.sweep.resolved import ResolvedSweep

Way = Callable[[Profile], LaunchSpec]

DEADLINE_S = 900
_MAX_SOURCE = 1 << 20  # bytes of a file that holds a program


_VERSIONS_TIMEOUT_S = 60.0
_VERSIONS = """
from importlib import metadata
for name in ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "libtpu", "maxtext"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


@functools.cache
def _versions(python: str) -> tuple[str, ...]:
    """Return what an interpreter compiles with; () where it is not known which one does.

    Raises:
        ConfigError: it cannot be run.
    """
    if not python:
        return ()
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
    return tuple(done.stdout.splitlines())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """How the profiles of one cell are compiled, and what the results rest on.

    Attributes:
        way: how one is compiled.
        python: the interpreter that compiles; "" is unknown.
        sources: the files that hold the program.
        memory_limit_bytes: of one device; None is unknown.
    """

    way: Way
    python: str
    sources: tuple[Path, ...] = ()
    memory_limit_bytes: int | None = None

    @property
    def by(self) -> str:
        """The versions that compile.

        Raises:
            ConfigError: the interpreter cannot be run.
        """
        return f"{', '.join(_versions(self.python)) or 'an unknown jaxlib'} on this machine"

    def key_of(self, profile: Profile) -> str:
        """Return the digest of all that the result of compiling a profile rests on."""
        return digest(
            {
                "baseline": self.way(BASELINE).to_json(),
                "profile": self.way(profile).to_json(),
                "sources": [digest(path.read_bytes().hex()) for path in self.sources],
                "memory_limit_bytes": self.memory_limit_bytes,
                "by": self.by,
            }
        )


def check_sweep(resolved: ResolvedSweep) -> None:
    """Spell every trial that can be named, and find the compiler, before anything runs.

    Raises:
        ConfigError: as of `ResolvedSweep.check`; or there is no compiler for the profiles.
    """
    resolved.check()
    if resolved.compile_check is not None and resolved.study().policy.compiles_first:
        compiler_for(resolved, resolved.compile_check, resolved.cell)


def compiler_for(resolved: ResolvedSweep, check: CompileCheck, cell: Cell) -> Compiler:
    """Return how the profiles of a sweep, or one cell of its study, are compiled.

    Raises:
        ConfigError: the trainer runs on another machine.
    """
    launcher, executor = resolved.sweep.launcher, resolved.sweep.site.executor
    if not class_named(executor).is_here:
        raise ConfigError(
            f"compile check: these trials run by {executor}, and only a trainer on this machine is "
            "compiled by running it. Leave the compile check out: a rotation's first job tells "
            "what its compiler refuses"
        )
    limit, interpreter = check.memory_limit_gib, launcher.interpreter
    return Compiler(
        way=by_trainer(launcher, cell),
        # one that is not here is in a container, whose image the spec names
        python=interpreter if interpreter and shutil.which(interpreter) else "",
        sources=tuple(path for path in map(Path, launcher.files(cell)) if _is_source(path)),
        memory_limit_bytes=None if limit is None else int(limit * 2**30),
    )


def by_trainer(launcher: Launcher, cell: Cell) -> Way:
    """Compile by running the cell's trainer for one step on this machine."""
    protocol = msgspec.structs.replace(
        cell.protocol,
        steps=1,
        profiler="",
        eval_interval=0,
        deadline_s=DEADLINE_S,
        metric="none",
        dump=True,
    )

    def spec(profile: Profile) -> LaunchSpec:
        trial = Trial(
            cell_digest=cell.digest,
            profile=profile,
            protocol=protocol,
            study="compile-check",
            stage="compile-check",
        )
        return launcher.launch(trial, cell)

    return spec


def _is_source(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MAX_SOURCE


_REFUSALS = frozenset({FailureClass.UNKNOWN_FLAG, FailureClass.BAD_FLAG_VALUE})
_OUT_OF_MEMORY = frozenset({FailureClass.OOM_GPU, FailureClass.OOM_HOST})
_RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"
_NO_OUTCOME = Outcome(state=State.LOST, reason="it was killed before it could say how it ended")
# what others do to a process: a person, a scheduler, a machine without memory
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# in front of a line of XLA's:  F1120 12:35:26.733076   24443 parse_flags_from_env.cc:234] Unknown
_PREFIX = re.compile(r"^[EFIW]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")


def judge_of(baseline: Program, *, memory_limit_bytes: int | None) -> CompileJudge:
    """Return the judge of profiles beside this baseline, which knows the catalog's variables."""
    shape, own = shape_of(baseline), compiled_in()

    def idle(env: Mapping[str, str]) -> Mapping[str, str]:
        said = "the compiler reads it, and the program is the same"
        read = {name: said for name in env if name in own}
        # one without any collective may be the program of one process of several
        return {**read, **(idle_variables(env, shape) if shape.groups else {})}

    return CompileJudge(baseline=baseline, memory_limit_bytes=memory_limit_bytes, idle=idle)


def shape_of(program: Program) -> Shape:
    """Return the facts of a dumped program that the rules ask for."""
    groups: dict[str, dict[str, list[int]]] = {}
    for collective in program.collectives:
        groups.setdefault(collective.kind, {}).setdefault(collective.computation, []).append(
            collective.size_bytes
        )
    permutes = [collective for collective in program.of("collective-permute") if collective.in_loop]
    return Shape(
        groups={
            kind: tuple(tuple(sizes) for sizes in computations.values())
            for kind, computations in groups.items()
        },
        loops=len(program.loops),
        loop_permutes=tuple(collective.size_bytes for collective in permutes),
        has_cycle=any(closes_ring(collective.groups) for collective in permutes),
    )


def compiled_baseline(way: Way, root: Path) -> Program:
    """Compile the cell as deployed and return its program.

    Raises:
        ConfigError: it gives none, or its folder is used already.
    """
    found = compiled(BASELINE, way(BASELINE), root)
    if found.program is None:
        raise ConfigError(f"the cell as deployed gives no program to compare: {found.said}")
    return found.program


def compiled(profile: Profile, spec: LaunchSpec, root: Path) -> Compiled:
    """Run a spec to its end in a folder below `root` and read what it dumped.

    Raises:
        ConfigError: the folder is used already.
    """
    folder = root.absolute() / profile.id
    outcome = run_in(folder, spec)
    said, cause = _said(folder, outcome)
    unused = _unused_pgle(folder, profile)
    said = said or sentence(unused)
    refused, no_memory = cause in _REFUSALS or unused is not None, cause in _OUT_OF_MEMORY
    took_s = (outcome.end_s or 0) - (outcome.start_s or 0)
    try:
        if unused is not None:  # XLA compiles on without it, and nothing is left to compare
            raise ParseError(said)
        program = read_program(folder / DUMP_FOLDER)
    except XlatuneError as error:
        return Compiled(
            profile=profile,
            program=None,
            said=said or str(error),
            refused=refused,
            is_interrupted=_is_interrupted(outcome) and not (refused or no_memory),
            is_out_of_memory=no_memory,
            took_s=took_s,
        )
    return Compiled(
        profile=profile,
        program=program,
        said=said,
        is_out_of_memory=no_memory,
        took_s=took_s,
    )


def _unused_pgle(folder: Path, profile: Profile) -> Message | None:
    """Return why XLA compiled without the profile for its scheduler that this one names."""
    file = effective_values(profile.flags).get(PGLE)
    if file is None:
        return None
    report = read_log(secure_files.read_bytes(path) for path in log_files(folder).values())
    return pgle_refused(file, report.pgle_found, report.pgle_unread)


def run_in(folder: Path, spec: LaunchSpec) -> Outcome:
    """Run a spec to its end below the payload that trials have.

    Raises:
        ConfigError: the folder is used already.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder for each compile check")
    submitted = write_spec(folder, spec)
    # inside an allocation of Slurm the payload would take itself for one of its ranks
    own = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    subprocess.run(
        [sys.executable, "-c", _RUN, str(folder), str(machine_lock()), submitted],
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return read_outcomes(folder).get(0, _NO_OUTCOME)


def _is_interrupted(outcome: Outcome) -> bool:
    """Whether it was ended from outside, which says nothing of the profile."""
    return outcome.signal in _FROM_OUTSIDE or outcome.state not in (State.COMPLETED, State.FAILED)


def _said(folder: Path, outcome: Outcome) -> tuple[str, str]:
    """Return the root cause of a process that did not end well, and its class."""
    if outcome.state is State.COMPLETED:
        return "", ""
    report = read_log(secure_files.read_bytes(path) for path in log_files(folder).values())
    cause = primary(report.findings)
    if cause is not None:
        return _PREFIX.sub("", cause.text), cause.cls
    return outcome.reason or (report.tail or ("nothing",))[-1], ""
