"""Compile profiles in processes of their own, for this machine or for a device that is not here.

Either the sweep's own trainer runs for one step on this machine, or a user's function is compiled
for a device that may not be here, in a process of `workers.compile_program`. Each runs in a folder
of its own, below the payload that trials have, under the machine's lock, so that no trial is
disturbed. `evidence.compiled` judges the program.

A device by name is a target configuration, the text of XLA's `GpuTargetConfigProto`. Those that
come with the package hold the fields that every jaxlib from 0.6 on reads, for each refuses the
fields of a later one; the file of a real dump (`*.gpu_target_config.pbtxt`) holds all that its own
jaxlib knows, and is to be preferred. No AMD device is among them: the ROCm compiler does not load
without a driver.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import (
    Compiled,
    CompileFinding,
    CompileJudge,
    Proof,
    prove_each,
)
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.executors.local import machine_lock
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.program import INHERIT
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import DUMP_FOLDER, Cell
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.profile import (
    BASELINE,
    Flag,
    Profile,
    append_flags,
    effective_values,
)
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.sweep.declaration import CPU, CompileCheck
from pytest_xlatune.sweep.resolved import ResolvedSweep

_FOLDER = Path(__file__).with_name("devices")
_SUFFIX = ".txtpb"
# in a target configuration:  device_memory_size: 84942979072
_MEMORY = re.compile(r"\bdevice_memory_size: *(\d{1,18})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTarget:
    """A device to compile for: the name or the path that was given, and its configuration."""

    name: str
    path: Path
    text: str

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device, None where the configuration does not tell."""
        found = _MEMORY.search(self.text)
        return int(found.group(1)) if found else None


def named_targets() -> Mapping[str, Path]:
    """Return the devices that come with the package, by name."""
    return {path.name.removesuffix(_SUFFIX): path for path in sorted(_FOLDER.glob(f"*{_SUFFIX}"))}


def find_target(said: str) -> CompileTarget:
    """Return the device of this name, or of this file.

    Raises:
        ConfigError: neither; names the nearest.
    """
    known = named_targets()
    path = known.get(said.lower(), Path(said))
    if not path.is_file():
        if re.fullmatch(r"\w+", said):
            raise ConfigError.unknown("target", said, valid=known, where="compile check")
        raise ConfigError(
            f"{said}: no such target configuration; keep a *.gpu_target_config.pbtxt of a dump, or "
            f"name one of {', '.join(known)}"
        )
    return CompileTarget(
        name=said, path=path.absolute(), text=path.read_text(encoding="utf-8", errors="replace")
    )


Way = Callable[[Profile], LaunchSpec]

DEADLINE_S = 900
_WORKER = Path(__file__).parents[1] / "workers" / "compile_program.py"
_MAX_SOURCE = 1 << 20  # bytes of a file that holds a program


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """How the profiles of one cell are compiled, and what the results rest on.

    Attributes:
        way: how one is compiled.
        python: the interpreter that compiles; "" is unknown.
        place: for which device, in words.
        target: the device that is not here, so that nothing is autotuned; None is this machine.
        sources: the files that hold the program.
        memory_limit_bytes: of one device; None is unknown.
    """

    way: Way
    python: str
    place: str
    target: CompileTarget | None = None
    sources: tuple[Path, ...] = ()
    memory_limit_bytes: int | None = None


def check_sweep(resolved: ResolvedSweep) -> None:
    """Spell every trial that can be named, and find the compiler, before anything runs.

    Raises:
        ConfigError: as of `ResolvedSweep.check`; or there is no compiler for the profiles.
    """
    resolved.check()
    if resolved.compile_check is not None and resolved.study().policy.compiles_first:
        compiler_for(resolved, resolved.compile_check)


def compiler_for(resolved: ResolvedSweep, check: CompileCheck) -> Compiler:
    """Return how the profiles of a sweep are compiled; errors are those of `compiler_of`."""
    launcher, cell = resolved.sweep.launcher, resolved.cell
    return compiler_of(check, launcher=launcher, cell=cell, executor=resolved.sweep.site.executor)


def compiler_of(check: CompileCheck, *, launcher: Launcher, cell: Cell, executor: str) -> Compiler:
    """Return how a sweep's profiles are compiled.

    Raises:
        ConfigError: no such target; or a trainer that would have to run on another machine.
    """
    limit = check.memory_limit_gib
    limit_bytes = None if limit is None else int(limit * 2**30)
    if not check.program:
        if executor != "local":
            raise ConfigError(
                "compile check: only a trainer of this machine compiles by running; these trials "
                f"run by {executor}. Name a program, module:function, and the target to compile it "
                "for"
            )
        named = (Path(each) for each in launcher.files(cell))
        interpreter = launcher.interpreter
        return Compiler(
            way=by_trainer(launcher, cell),
            # one that is not here is in a container, whose image the spec names
            python=interpreter if interpreter and shutil.which(interpreter) else "",
            place="this machine, by one step of the trainer",
            sources=tuple(path for path in named if _is_source(path)),
            memory_limit_bytes=limit_bytes,
        )
    target = None if check.target == CPU else find_target(check.target)
    python = check.python or sys.executable
    if shutil.which(python) is None:
        raise ConfigError(
            f"compile check: {python} is not on this machine; name an interpreter that has the JAX "
            "to compile with"
        )
    folder = Path(check.folder or Path.cwd())
    module = check.program.partition(":")[0].replace(".", "/")
    # the file of a module, or that of a package
    files = (folder / f"{module}.py", folder / module / "__init__.py")
    return Compiler(
        way=by_function(
            check.program,
            target=target,
            topology=check.topology,
            deployed=cell.deployed,
            python=python,
            folder=folder,
        ),
        python=python,
        place=f"{check.topology} {target.name if target else CPU}",
        target=target,
        sources=tuple(path for path in files if _is_source(path)),
        memory_limit_bytes=target.memory_bytes if limit_bytes is None and target else limit_bytes,
    )


def by_trainer(launcher: Launcher, cell: Cell) -> Way:
    """Compile by running the cell's trainer for one step on this machine."""
    protocol = dataclasses.replace(
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


def by_function(
    program: str,
    *,
    target: CompileTarget | None = None,
    topology: str = "1x1x1",
    deployed: Mapping[str, str] | None = None,
    python: str = sys.executable,
    folder: Path | None = None,
) -> Way:
    """Compile a user's `module:function`, as `workers.compile_program` describes it.

    Args:
        program: `module:function`.
        target: a GPU that is not here; None is the CPU.
        topology: partitions x hosts x devices.
        deployed: environment below every profile, XLA_FLAGS included.
        python: an interpreter with JAX, and for a GPU with the plugin's wheel of its version.
        folder: where its module is found; None is the working directory.

    Raises:
        ConfigError: malformed program or topology.
    """
    CompileCheck(program=program, target=target.name if target else CPU, topology=topology)
    # a CPU has as many devices as it is told; a GPU compiler that has no device cannot autotune
    devices = math.prod(map(int, topology.split("x")))
    own = Flag(name="xla_force_host_platform_device_count", value=str(devices))
    own = own if target is None else Flag(name="xla_gpu_autotune_level", value="0")
    base = dict(deployed or {})

    def spec(profile: Profile) -> LaunchSpec:
        dump = (
            Flag(name="xla_dump_to", value=f"{{xlatune.folder}}/{DUMP_FOLDER}"),
            Flag(name="xla_dump_hlo_as_text"),
        )
        where = str(target.path) if target else CPU
        return LaunchSpec(
            argv=(python, "-P", str(_WORKER), program, where, topology),
            env={
                **base,
                **profile.env,
                "XLA_FLAGS": append_flags(base.get("XLA_FLAGS", ""), (own, *profile.flags, *dump)),
                "JAX_ENABLE_COMPILATION_CACHE": "false",
            },
            inherit=(*INHERIT, "PYTHONPATH"),
            cwd=str((folder or Path.cwd()).absolute()),
            deadline_s=DEADLINE_S,
        )

    return spec


def _is_source(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MAX_SOURCE


_REFUSALS = frozenset({"unknown-flag", "bad-flag-value"})
_RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"
_NO_OUTCOME = Outcome(state=State.LOST, reason="it was killed before it could say how it ended")
# what others do to a process: a person, a scheduler, a machine without memory
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# in front of a line of XLA's:  F1120 12:35:26.733076   24443 parse_flags_from_env.cc:234] Unknown
_PREFIX = re.compile(r"^[EFIW]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")


def screen(
    profiles: Sequence[Profile],
    way: Way,
    *,
    folder: Path,
    memory_limit_bytes: int | None = None,
    lock: Path | None = None,
) -> Iterator[CompileFinding]:
    """Compile the baseline, then yield each profile's judgement as it is compiled.

    Args:
        profiles: in the order in which they are compared with each other.
        way: how one is compiled.
        folder: where the dumps and logs go; one folder for each profile.
        memory_limit_bytes: of one device; a program that needs more cannot run.
        lock: of the machine; None is the one that local trials take.

    Raises:
        ConfigError: the cell as deployed does not compile, or a folder is used already.
    """
    deployed = compiled_baseline(way, folder, lock=lock)
    judge = CompileJudge(baseline=deployed, memory_limit_bytes=memory_limit_bytes)
    for profile in profiles:
        if not profile.is_baseline:
            yield judge.judge(compiled(profile, way(profile), folder, lock=lock))


def proofs_of(
    profile: Profile, way: Way, *, folder: Path, lock: Path | None = None
) -> tuple[Proof, ...]:
    """Compile a profile whole and without each of its flags, and say which of them acted.

    That is one compilation for each flag, beside those of the profile and of the baseline.

    Raises:
        ConfigError: the cell as deployed or the whole profile does not compile.
    """
    before = compiled_baseline(way, folder, lock=lock)
    whole = compiled(profile, way(profile), folder, lock=lock)
    if whole.program is None:
        raise ConfigError(f"profile {profile.id!r} does not compile: {whole.said}")
    names = tuple(effective_values(profile.flags))
    without: dict[str, Program | None] = {}
    for number, name in enumerate(names if len(names) > 1 else (), 1):
        flags = tuple(each for each in profile.flags if each.name != name)
        less = dataclasses.replace(profile, id=f"without-{number}", flags=flags)
        found = compiled(less, way(less), folder, lock=lock)
        if not found.is_interrupted:
            without[name] = found.program
    asked = (*names, *profile.env)
    return prove_each(asked, before, whole.program, without)


def compiled_baseline(way: Way, root: Path, *, lock: Path | None = None) -> Program:
    """Compile the cell as deployed and return its program.

    Raises:
        ConfigError: it does not compile, or its folder is used already.
    """
    found = compiled(BASELINE, way(BASELINE), root, lock=lock)
    if found.program is None:
        raise ConfigError(f"the cell as deployed does not compile: {found.said}")
    return found.program


def compiled(
    profile: Profile, spec: LaunchSpec, root: Path, *, lock: Path | None = None
) -> Compiled:
    """Run a spec to its end in a folder below `root` and read what it dumped.

    Raises:
        ConfigError: the folder is used already.
    """
    folder = root.absolute() / profile.id
    if folder.exists():
        raise ConfigError(f"{folder} exists; give a folder of its own to every compile check")
    write_spec(folder, spec)
    held = lock or machine_lock()
    held.parent.mkdir(parents=True, exist_ok=True)
    # inside an allocation of Slurm the payload would take itself for one of its ranks
    own = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    subprocess.run(
        [sys.executable, "-c", _RUN, str(folder), str(held)],
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    outcome = read_outcomes(folder).get(0, _NO_OUTCOME)
    said, refused = _said(folder, outcome)
    took_s = (outcome.end_s or 0) - (outcome.start_s or 0)
    try:
        program = read_program(folder / DUMP_FOLDER)
    except XlatuneError as error:
        return Compiled(
            profile=profile,
            program=None,
            said=said or str(error),
            refused=refused,
            is_interrupted=_is_interrupted(outcome) and not refused,
            took_s=took_s,
        )
    return Compiled(profile=profile, program=program, said=said, took_s=took_s)


def _is_interrupted(outcome: Outcome) -> bool:
    """Whether it was ended from outside, which says nothing of the profile."""
    return outcome.signal in _FROM_OUTSIDE or outcome.state not in (State.COMPLETED, State.FAILED)


def _said(folder: Path, outcome: Outcome) -> tuple[str, bool]:
    """Return the root cause of a process that did not end well, and whether it is a flag."""
    if outcome.state is State.COMPLETED:
        return "", False
    report = read_log(path.read_bytes() for path in log_files(folder).values())
    cause = primary(report.findings)
    if cause is not None:
        return _PREFIX.sub("", cause.text), cause.cls in _REFUSALS
    return outcome.reason or (report.tail or ("nothing",))[-1], False
