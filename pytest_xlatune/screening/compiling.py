"""Compile profiles in processes of their own, and read what each left behind.

Each runs in a folder of its own, below the payload that trials have, under the machine's lock, so
that no trial is disturbed. What a program says is judged in the evidence room.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_xlatune.cells import LaunchSpec
from pytest_xlatune.errors import ConfigError, XlatuneError
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.screened import Compiled, Screen, Screened
from pytest_xlatune.evidence_files import read_program
from pytest_xlatune.executors.folder import log_files, read_outcomes, write_spec
from pytest_xlatune.executors.local import machine_lock
from pytest_xlatune.launchers.program import DUMP_FOLDER
from pytest_xlatune.logs.reader import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.profiles import BASELINE, Profile
from pytest_xlatune.results import Outcome, State
from pytest_xlatune.screening.ways import Way

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
    deployed = compiled_baseline(way, folder, lock=lock)
    judge = Screen(baseline=deployed, memory_limit_bytes=memory_limit_bytes)
    for profile in profiles:
        if not profile.is_baseline:
            yield judge.judge(compiled(profile, way(profile), folder, lock=lock))


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
        raise ConfigError(f"{folder} exists; give a folder of its own to every screening")
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
