"""Compile profiles without measuring them, so that those that cannot matter are never queued.

A way to compile turns a profile into a launch spec whose process dumps the program: the sweep's own
trainer for one step, or a user's function for a device that may not be here. Each runs in a process
and a folder of its own, below the payload that trials have, under the machine's lock, so that no
trial is disturbed. What a program says is judged in the evidence room.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_xlatune.cells import Cell, LaunchSpec, Stage, Trial
from pytest_xlatune.errors import ConfigError, XlatuneError
from pytest_xlatune.evidence.screened import Compiled, Screen, Screened
from pytest_xlatune.evidence_files import read_program
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.executors.local import machine_lock
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.program import DUMP_FOLDER, INHERIT
from pytest_xlatune.logs.reader import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.profiles import BASELINE, Flag, Profile, append_flags
from pytest_xlatune.results import Outcome, State

Way = Callable[[Profile], LaunchSpec]

DEADLINE_S = 900
_WORKER = Path(__file__).with_name("screening_worker.py")
_REFUSALS = frozenset({"unknown-flag", "bad-flag-value"})
_RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"
_NO_OUTCOME = Outcome(state=State.LOST, reason="it was killed before it could say how it ended")
# in a target configuration:  device_memory_size: 84942979072
_MEMORY = re.compile(r"\bdevice_memory_size: *(\d{1,18})\b")
# in front of a line of XLA's:  F1120 12:35:26.733076   24443 parse_flags_from_env.cc:234] Unknown
_PREFIX = re.compile(r"^[EFIW]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")
# partitions x hosts x devices:  1x1x8
_TOPOLOGY = re.compile(r"[1-9]\d{0,4}(?:x[1-9]\d{0,4}){2}")


def by_trainer(launcher: Launcher, cell: Cell) -> Way:
    """Compile by running the cell's trainer for one step on this machine."""
    protocol = dataclasses.replace(
        cell.protocol, steps=1, profiler="", eval_interval=0, deadline_s=DEADLINE_S
    )

    def spec(profile: Profile) -> LaunchSpec:
        trial = Trial(
            cell_digest=cell.digest,
            profile=profile,
            protocol=protocol,
            study="screening",
            stage=Stage.EVIDENCE,
        )
        return launcher.launch(trial, cell)

    return spec


def by_function(
    program: str,
    *,
    target: Path | None = None,
    topology: str = "1x1x1",
    deployed: Mapping[str, str] | None = None,
    python: str = sys.executable,
    folder: Path | None = None,
) -> Way:
    """Compile a user's `module:function`, as `screening_worker` describes it.

    Args:
        program: `module:function`.
        target: configuration of a GPU, as `*.gpu_target_config.pbtxt` of a dump; None is the CPU.
        topology: partitions x hosts x devices.
        deployed: environment below every profile, XLA_FLAGS included.
        python: an interpreter with JAX, and for a GPU with the plugin's wheel of its version.
        folder: where its module is found; None is the working directory.

    Raises:
        ConfigError: malformed program or topology, or no such target.
    """
    if not re.fullmatch(r"[\w.]+:\w+", program):
        raise ConfigError(f"program {program!r}: expected module:function, e.g. programs:fsdp")
    if not _TOPOLOGY.fullmatch(topology):
        raise ConfigError(f"topology {topology!r}: expected partitions x hosts x devices: 1x1x8")
    if target is not None and not target.is_file():
        raise ConfigError(
            f"{target}: no such target configuration; keep a *.gpu_target_config.pbtxt of a dump"
        )
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
        where = str(target.absolute()) if target else "cpu"
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


def screen(
    profiles: Sequence[Profile],
    way: Way,
    *,
    folder: Path,
    memory_limit_bytes: int | None = None,
    lock: Path | None = None,
) -> Iterator[Screened]:
    """Compile the baseline, then yield each profile's judgement as it is compiled.

    Args:
        profiles: in the order in which they are compared with each other.
        way: how one is compiled.
        folder: where the dumps and logs go; one folder for each profile.
        memory_limit_bytes: of one device; a program that needs more is settled.
        lock: of the machine; None is the one that local trials take.

    Raises:
        ConfigError: the cell as deployed does not compile, or a folder is used already.
    """
    held = lock or machine_lock()
    deployed = _compiled(BASELINE, way(BASELINE), folder, held)
    if deployed.program is None:
        raise ConfigError(f"the cell as deployed does not compile: {deployed.said}")
    judge = Screen(baseline=deployed.program, memory_limit_bytes=memory_limit_bytes)
    for profile in profiles:
        if not profile.is_baseline:
            yield judge.judge(_compiled(profile, way(profile), folder, held))


def device_memory_bytes(target: Path) -> int | None:
    """Return the memory that a target configuration tells of a device."""
    found = _MEMORY.search(target.read_text(encoding="utf-8", errors="replace"))
    return int(found.group(1)) if found else None


def _compiled(profile: Profile, spec: LaunchSpec, root: Path, lock: Path) -> Compiled:
    """Run a spec to its end and read what it dumped."""
    folder = root.absolute() / profile.id
    if folder.exists():
        raise ConfigError(f"{folder} exists; give a folder of its own to every screening")
    write_spec(folder, spec)
    lock.parent.mkdir(parents=True, exist_ok=True)
    # inside an allocation of Slurm the payload would take itself for one of its ranks
    own = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    subprocess.run(
        [sys.executable, "-c", _RUN, str(folder), str(lock)],
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
        said = said or str(error)
        return Compiled(profile=profile, program=None, said=said, refused=refused, took_s=took_s)
    return Compiled(profile=profile, program=program, said=said, took_s=took_s)


def _said(folder: Path, outcome: Outcome) -> tuple[str, bool]:
    """Return the root cause of a process that did not end well, and whether it is a flag."""
    if outcome.state is State.COMPLETED:
        return "", False
    report = read_log(path.read_bytes() for path in log_files(folder).values())
    cause = primary(report.findings)
    if cause is not None:
        return _PREFIX.sub("", cause.text), cause.cls in _REFUSALS
    return outcome.reason or (report.tail or ("nothing",))[-1], False
