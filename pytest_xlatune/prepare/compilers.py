"""Compile profiles in processes of their own, for this machine or for a device that is not here.

Either the sweep's own trainer runs for one step on this machine, or a user's function is compiled
for a device that may not be here, in a process of `workers.compile_program`. Each runs in a folder
of its own, below the payload that trials have, under the machine's lock, so that no trial is
disturbed. `evidence.compiled` judges the program.

A device by name is a target configuration, the text of XLA's `GpuTargetConfigProto`. Those that
come with the package hold the fields that every jaxlib from 0.6 on reads, for each refuses the
fields of a later one; the file of a real dump (`*.gpu_target_config.pbtxt`) holds all that its own
jaxlib knows, and is to be preferred. No AMD device is among them: the ROCm compiler does not load
without a driver. A TPU is named as JAX describes it, v5e:2x4, and libtpu knows the rest.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_xlatune import owned
from pytest_xlatune.catalog.context import Shape, closes_ring, idle_variables
from pytest_xlatune.catalog.entries import compiled_in
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import (
    Compiled,
    CompileFinding,
    CompileJudge,
    Proof,
    prove_each,
)
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.executors import machine_lock
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.executors.named import class_named
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.program import FOLDER, INHERIT, QUOTED_WORD
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import DUMP_FOLDER, on_top
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.profile import (
    BASELINE,
    PGLE,
    Flag,
    Profile,
    append_flags,
    effective_values,
)
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import dataclass
from pytest_xlatune.model.redact import hide_quoted, secrets_of, secrets_of_command
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.report.words import sentence
from pytest_xlatune.stats.validity import pgle_refused
from pytest_xlatune.sweep.declaration import CPU, TRAIN_COMPILE, CompileCheck
from pytest_xlatune.sweep.resolved import ResolvedSweep

_FOLDER = Path(__file__).with_name("devices")
_SUFFIX = ".txtpb"
# in a target configuration:  device_memory_size: 84942979072
_MEMORY = re.compile(r"\bdevice_memory_size: *(\d{1,18})\b")
# a TPU and how its chips lie in a slice:  v5e:2x4    v5p:2x2x1
_TPU = re.compile(r"v\d{1,2}[a-z]{0,4}:\d{1,3}(?:x\d{1,3}){1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTarget:
    """A device to compile for: the name or the path that was given, and its configuration.

    That of a TPU is "".
    """

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
    if _TPU.fullmatch(said.lower()):
        return CompileTarget(name=said.lower(), path=Path(said), text="")
    known = named_targets()
    path = known.get(said.lower(), Path(said))
    if not path.is_file():
        others = "a TPU with its chips, e.g. v5e:2x4", "the *.gpu_target_config.pbtxt of a dump"
        valid = (CPU, *known, *others)
        raise ConfigError.unknown("target", said, valid=valid, where="compile check")
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
        device: its name, where that tells which library's flags act on it.
    """

    way: Way
    python: str
    place: str
    target: CompileTarget | None = None
    sources: tuple[Path, ...] = ()
    memory_limit_bytes: int | None = None
    device: str = ""


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


# the share of a device's memory that XLA's pool takes, where no variable says it
_POOL_SHARE = 0.75
_SHARE_OF_POOL = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


def compiler_of_cell(resolved: ResolvedSweep, check: CompileCheck, cell: Cell) -> Compiler:
    """Return how one cell of a study is compiled, and the memory that its devices' pool has.

    Without a limit of its own that is the target's memory times the deployed fraction.

    Raises:
        ConfigError: as of `compiler_of`.
    """
    found = compiler_of(
        check,
        launcher=resolved.sweep.launcher,
        cell=cell,
        executor=resolved.sweep.site.executor,
        is_of_cell=True,
    )
    if found.memory_limit_bytes is None or check.memory_limit_gib is not None:
        return found
    shares = [cell.environment[name] for name in _SHARE_OF_POOL if name in cell.environment]
    try:
        share = float(shares[0]) if shares else _POOL_SHARE
    except ValueError:
        share = _POOL_SHARE
    limit = int(found.memory_limit_bytes * min(share, 1.0))
    return dataclasses.replace(found, memory_limit_bytes=limit)


def _values(cell: Cell) -> dict[str, str]:
    """Return what a cell says to its program, as a worker's words have it."""
    own = {
        "per_device_batch_size": cell.per_device_batch_size,
        "max_target_length": cell.max_target_length,
    }
    told = {name: f"{value:.12g}" for name, value in own.items() if value is not None}
    return {**cell.overrides, **told}


def compiler_of(
    check: CompileCheck, *, launcher: Launcher, cell: Cell, executor: str, is_of_cell: bool = False
) -> Compiler:
    """Return how a sweep's profiles are compiled.

    With `is_of_cell` a program is handed the cell's own values, such as its batch size.

    Raises:
        ConfigError: no such target; or a trainer that would have to run on another machine.
    """
    limit = check.memory_limit_gib
    limit_bytes = None if limit is None else int(limit * 2**30)
    if not check.program:
        if not class_named(executor).is_here:
            raise ConfigError(
                f"compile check: these trials run by {executor}, and only a trainer on this "
                "machine is compiled by running it. Name a program (module:function) and the "
                "target to compile it for"
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
    if check.program == TRAIN_COMPILE:
        return _by_train_compile(check, launcher, cell, limit_bytes)
    target = None if check.target == CPU else find_target(check.target)
    python = _on_this_machine(check.python or sys.executable)
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
            values=_values(cell) if is_of_cell else {},
        ),
        python=python,
        place=f"{check.topology} {target.name if target else CPU}",
        device=target.name.partition(":")[0] if target and not target.text else "",
        target=target,
        sources=tuple(path for path in files if _is_source(path)),
        memory_limit_bytes=target.memory_bytes if limit_bytes is None and target else limit_bytes,
    )


def _on_this_machine(python: str) -> str:
    if shutil.which(python) is None:
        raise ConfigError(
            f"compile check: {python} is not on this machine; name an interpreter that has the JAX "
            "to compile with"
        )
    return python


# MaxText's name of a host of eight GPUs: it compiles for the devices that JAX has, of any kind
_GPU_HOST, _GPUS = "a3", 8
# what keeps libtpu from looking for a TPU, for the service that would describe it, and for the lock
# of the machine's TPU, which a trial may have
_NO_DEVICE = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def _by_train_compile(
    check: CompileCheck, launcher: Launcher, cell: Cell, limit_bytes: int | None
) -> Compiler:
    """Compile by MaxText's own program, with the arguments of a trial and a topology of its names.

    It needs libtpu beside MaxText for the names of a TPU. For "cpu" it takes its name of a host of
    eight GPUs, over so many devices of this machine's processor.

    Raises:
        ConfigError: the trainer is no MaxText, or its interpreter is not on this machine.
    """
    if not isinstance(launcher, MaxTextLauncher) or not launcher.package:
        raise ConfigError(
            f"compile check: {TRAIN_COMPILE} is a program of MaxText, and this sweep starts its "
            f"trainer by {launcher.describe()}; name a program of its own (module:function)"
        )
    python = _on_this_machine(check.python or launcher.python)
    slices = int(check.topology.partition("x")[0])
    own, topology = dict(cell.deployed), check.target
    if topology == CPU:
        flag = Flag(name="xla_force_host_platform_device_count", value=str(_GPUS * slices))
        own["XLA_FLAGS"] = append_flags(own.get("XLA_FLAGS", ""), (flag,))
        topology = _GPU_HOST
    keys = {"compile_topology": topology, "compile_topology_num_slices": str(slices)}
    cell = dataclasses.replace(
        cell, deployed={**own, **_NO_DEVICE}, overrides={**cell.overrides, **keys}
    )
    module = f"{launcher.module.rpartition('.')[0]}.{TRAIN_COMPILE}"
    launcher = dataclasses.replace(launcher, python=python, module=module)
    return Compiler(
        way=by_trainer(launcher, cell),
        python=python,
        place=f"{slices} x {check.target}, by MaxText's {TRAIN_COMPILE}",
        device=check.target,
        sources=tuple(each for each in map(Path, launcher.files(cell)) if _is_source(each)),
        memory_limit_bytes=limit_bytes,
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
    values: Mapping[str, str] | None = None,
) -> Way:
    """Compile a user's `module:function`, as `workers.compile_program` describes it.

    Args:
        program: `module:function`.
        target: a GPU or a TPU that is not here; None is the CPU.
        topology: partitions x hosts x devices; of a TPU the first number counts slices.
        deployed: environment below every profile, XLA_FLAGS included.
        python: an interpreter with JAX, and for a GPU with the plugin's wheel of its version, for a
            TPU with libtpu.
        folder: where its module is found; None is the working directory.
        values: handed to the function where it has arguments of these names.

    Raises:
        ConfigError: malformed program or topology.
    """
    CompileCheck(program=program, target=target.name if target else CPU, topology=topology)
    # a CPU has as many devices as it is told; a GPU compiler that has no device cannot autotune
    devices = math.prod(map(int, topology.split("x")))
    own = [Flag(name="xla_force_host_platform_device_count", value=str(devices))]
    base = dict(deployed or {})
    if target is not None:
        own = [Flag(name="xla_gpu_autotune_level", value="0")] if target.text else []
        base |= {} if target.text else _NO_DEVICE
    words = tuple(f"{name}={value}" for name, value in sorted((values or {}).items()))

    def spec(profile: Profile) -> LaunchSpec:
        dump = (
            Flag(name="xla_dump_to", value=f"{FOLDER}/{DUMP_FOLDER}"),
            Flag(name="xla_dump_hlo_as_text"),
        )
        flags = append_flags(base.get("XLA_FLAGS", ""), (*own, *profile.flags, *dump))
        where = str(target.path) if target else CPU
        return LaunchSpec(
            argv=(python, "-P", str(_WORKER), program, where, topology, *words),
            env={
                **on_top(base, profile.env),
                "XLA_FLAGS": flags.replace(FOLDER, QUOTED_WORD),
                "JAX_ENABLE_COMPILATION_CACHE": "false",
            },
            inherit=(*INHERIT, "PYTHONPATH"),
            cwd=str((folder or Path.cwd()).absolute()),
            deadline_s=DEADLINE_S,
        )

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


def screen(
    profiles: Sequence[Profile],
    way: Way,
    *,
    folder: Path,
    memory_limit_bytes: int | None = None,
    is_away: bool = False,
    lock: Path | None = None,
) -> Iterator[CompileFinding]:
    """Compile the baseline, then yield each profile's judgement as it is compiled.

    One that sets variables of NCCL alone is not compiled where the device is not here.

    Args:
        profiles: in the order in which they are compared with each other.
        way: how one is compiled.
        folder: where the dumps and logs go; one folder for each profile.
        memory_limit_bytes: of one device; a program that needs more cannot run.
        is_away: whether the device is not here.
        lock: of the machine; None is the one that local trials take.

    Raises:
        ConfigError: the cell as deployed does not compile, or a folder is used already.
    """
    deployed = compiled_baseline(way, folder, lock=lock)
    judge = judge_of(deployed, memory_limit_bytes=memory_limit_bytes, is_away=is_away)
    for profile in profiles:
        if not profile.is_baseline:
            if is_away and sets_nccl_alone(profile):
                yield judge.judge(Compiled(profile=profile, program=deployed))
                continue
            yield judge.judge(compiled(profile, way(profile), folder, lock=lock))


_OF_NCCL = ("NCCL_", "RCCL_")


def sets_nccl_alone(profile: Profile) -> bool:
    """Whether all that a profile sets are variables of NCCL, which no compiler reads.

    Compiled for a device that is not here its program is the baseline's. Here it is compiled: one
    step of the trainer may end by what it sets.
    """
    return not (profile.flags or profile.overrides) and all(
        each.startswith(_OF_NCCL) for each in profile.env
    )


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


# what a compiler decides by the device: autotuned kernels, the links and estimates of their speed
# without the device jaxlib 0.8.3 and 0.10.2 make no windowed einsum, whatever the threshold says
_BY_DEVICE = ("autotun", "cublas", "cudnn", "einsum", "gemm", "latency_estimator", "perf_table",
              "pgle", "triton")  # fmt: skip


def chooses_by_device(flag: str) -> bool:
    """Whether a flag may act on a device although it does not where the device is missing."""
    return any(part in flag for part in _BY_DEVICE)


def judge_of(
    baseline: Program, *, memory_limit_bytes: int | None, is_away: bool = False
) -> CompileJudge:
    """Return the judge of profiles beside this baseline, which knows the catalog's variables.

    `is_away` is whether the device is not here.
    """
    shape, own = shape_of(baseline), compiled_in()

    def idle(env: Mapping[str, str]) -> Mapping[str, str]:
        said = "the compiler reads it, and the program is the same"
        read = {name: said for name in env if name in own}
        # one without any collective may be the program of one process of several
        return {**read, **(idle_variables(env, shape) if shape.groups else {})}

    return CompileJudge(
        baseline=baseline,
        memory_limit_bytes=memory_limit_bytes,
        idle=idle,
        by_device=chooses_by_device if is_away else lambda _: False,
    )


def shape_of(program: Program) -> Shape:
    """Return the facts of a dumped program that the rules ask for."""
    groups: dict[str, dict[str, list[int]]] = {}
    for each in program.collectives:
        groups.setdefault(each.kind, {}).setdefault(each.computation, []).append(each.size_bytes)
    permutes = [each for each in program.of("collective-permute") if each.in_loop]
    return Shape(
        groups={
            kind: tuple(tuple(sizes) for sizes in computations.values())
            for kind, computations in groups.items()
        },
        loops=len(program.loops),
        loop_permutes=tuple(each.size_bytes for each in permutes),
        has_cycle=any(closes_ring(each.groups) for each in permutes),
    )


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
    outcome = run_in(folder, spec, lock=lock)
    said, cause = _said(folder, outcome)
    unused = _unused_pgle(folder, profile)
    is_unread = (
        unused is not None
        and unused.kind is Why.PGLE_UNREAD
        and Path(str(unused.fields["file"])).is_file()  # else the nodes alone may see it
    )
    said = said or sentence(unused)
    of_profile = secrets_of(spec.env, profile.env, profile.overrides)
    said = hide_quoted(said, of_profile | secrets_of_command(shlex.join(spec.argv)))
    refused, no_memory = cause in _REFUSALS or is_unread, cause in _OUT_OF_MEMORY
    took_s = (outcome.end_s or 0) - (outcome.start_s or 0)
    try:
        if is_unread:  # XLA compiles on without it, and nothing is left to compare
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
        is_of_another=unused is not None,
    )


def _unused_pgle(folder: Path, profile: Profile) -> Reason | None:
    """Return why XLA compiled without the profile for its scheduler that this one names."""
    file = effective_values(profile.flags).get(PGLE)
    if file is None:
        return None
    report = read_log(owned.read_bytes(path) for path in log_files(folder).values())
    return pgle_refused(file, report.pgle_found, report.pgle_unread)


def run_in(folder: Path, spec: LaunchSpec, *, lock: Path | None = None) -> Outcome:
    """Run a spec to its end below the payload that trials have.

    Raises:
        ConfigError: the folder is used already.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder for each compile check")
    held = lock or machine_lock()
    digest = write_spec(folder, spec)
    # inside an allocation of Slurm the payload would take itself for one of its ranks
    own = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    subprocess.run(
        [sys.executable, "-c", _RUN, str(folder), str(held), digest],
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
    report = read_log(owned.read_bytes(path) for path in log_files(folder).values())
    cause = primary(report.findings)
    if cause is not None:
        return _PREFIX.sub("", cause.text), cause.cls
    return outcome.reason or (report.tail or ("nothing",))[-1], ""
