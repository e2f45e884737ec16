"""Allocations in which trials are steps: what their folders say, what keeps trials out, their end.

The folder of an allocation is listed in `driver`. This module starts no trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_xlatune import owned
from pytest_xlatune.executors.slurm import driver
from pytest_xlatune.executors.slurm._commands import Run, SlurmJob, parse_scontrol, run_command
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.record import dataclass, read_json
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.text import duration

_log = logging.getLogger("pytest_xlatune.executors")
JOB_VARIABLE = "SLURM_JOB_ID"
_HELD = re.compile(r"held-(\d+)")
OVER = "over.json"  # how the allocation ended, once that is known
# what the folder of an allocation says at least
_SAID: driver.Kinds = MappingProxyType({"job_id": str, "work_dir": str})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An allocation, as its folder tells it."""

    folder: Path
    job_id: str
    work_dir: str  # of the job, by which it is told from a later one of the same number
    submitted_s: float | None = None  # by Slurm; tells it from others too

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to take no further trial."""
        return (self.folder / driver.END).exists()

    @property
    def over(self) -> Outcome | None:
        """How it ended; None as far as that is not known."""
        try:
            said = read(self.folder / OVER)
            return None if said is None else Outcome.from_json(said)
        except LedgerError:  # Slurm is asked again
            return None

    @property
    def word(self) -> Mapping[str, Any]:
        """What its driver said last."""
        said = read(self.folder / driver.DRIVER_JSON) or {}
        return {name: of for name, of in said.items() if isinstance(of, driver.WORD.get(name, ()))}

    @property
    def takes(self) -> bool:
        """Whether it may still take a trial, as far as is known."""
        return not (self.is_ending or self.over or self.word.get("is_full"))

    @property
    def is_driven(self) -> bool:
        """Whether a driver runs in it."""
        with os.fdopen(owned.open_lock(self.folder / driver.DRIVING)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def held_in(run: Path) -> list[Held]:
    """Return the allocations of a run of a ledger, in the order they were entered."""
    found = []
    for folder in run.glob("held-*"):
        said = read(folder / driver.HELD_JSON, _SAID)
        if said is None or not _HELD.fullmatch(folder.name):
            continue
        try:
            found.append((number_of(folder), Held(folder=folder, **said)))
        except TypeError:
            continue
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def number_of(folder: Path) -> int:
    """Return the number of an allocation by its folder's name; 0 where that has none."""
    match = _HELD.fullmatch(folder.name)
    return int(match[1]) if match else 0


def let_go_unreadable(run: Path, known: Sequence[Held]) -> None:
    """Have each allocation take no further step whose folder does not say what it is."""
    names = {each.folder.name for each in known}
    for folder in run.glob("held-*"):
        is_unknown = folder.name not in names and not (folder / driver.END).exists()
        if is_unknown and is_damaged(folder / driver.HELD_JSON, _SAID):
            _log.warning("%s cannot be read: it takes no further step", folder / driver.HELD_JSON)
            with contextlib.suppress(owned.NotOursError), owned.Folder(folder) as opened:
                opened.create(driver.END, b"")


def release(root: Path) -> None:
    """Have every driver below a ledger's folder take no further step; the nodes are the user's."""
    for folder in {each.parent for each in root.glob("*/held-*")}:
        for held in held_in(folder):
            if held.over is None:
                (held.folder / driver.END).touch()


def faults(
    *,
    nodelist: Sequence[str],
    resources: Resources,
    environ: Mapping[str, str],
    run: Run = run_command,
) -> tuple[str, ...]:
    """Return all that keeps trials from running in an allocation, one sentence each.

    Args:
        nodelist: of the trials.
        resources: of a trial.
        environ: of the session.
        run: runs a command of Slurm's.
    """
    limit_s = resources.time_limit_s
    job_id = environ.get(JOB_VARIABLE, "")
    if not job_id:
        said = (
            f"found no allocation ({JOB_VARIABLE} is not set); start pytest inside salloc or sbatch"
        )
        return (said,)
    answer = run(["scontrol", "show", "job", "-o", job_id])
    job = parse_scontrol(answer.out).get(job_id)
    if job is None or job.outcome.state is not State.RUNNING:
        why = answer.error or (job.outcome.reason if job else "Slurm does not know it")
        return (f"allocation {job_id} ({JOB_VARIABLE}) does not run: {why}; start another salloc",)
    found = []
    if absent := [name for name in nodelist if name not in job.outcome.nodes]:
        found.append(
            f"{compress(absent)} is not in allocation {job_id}, which has "
            f"{compress(job.outcome.nodes)}; name nodes of it, or leave the node list out to take "
            "all"
        )
    # OverSubscribe=NO    OverSubscribe=OK
    if "OverSubscribe=OK" in answer.out:
        found.append(
            f"allocation {job_id} may share its nodes with other jobs; ask for it with "
            "salloc --exclusive"
        )
    end_s = _end_of(answer.out)
    if end_s is not None and (left_s := max(end_s - time.time(), 0.0)) < limit_s:
        found.append(
            f"allocation {job_id} ends in {duration(left_s)}, before a trial must be over "
            f"({duration(limit_s)}, time_limit_s); ask for a longer one, or limit trials by "
            "Resources(time_limit_s=...)"
        )
    return tuple(found)


def is_of(job: SlurmJob, folder: Path) -> bool:
    """Whether a job is the allocation of a folder; numbers are given away again."""
    said = read(folder / driver.HELD_JSON, _SAID)
    if said is None:
        return False
    # a user's own jobs have one working directory
    is_then = job.submitted_s is None or said.get("submitted_s") in (None, job.submitted_s)
    return job.folder in ("", said["work_dir"]) and is_then


def time_note(job_id: str, *, run: Run = run_command) -> str:
    """Say how long an allocation still lasts, by Slurm; "" where that is not known."""
    end_s = _end_of(run(["scontrol", "show", "job", "-o", job_id]).out) if job_id else None
    if end_s is None:
        return ""
    left = duration(max(end_s - time.time(), 0.0))
    return f"allocation {job_id} ends in {left}; trials that have not run wait for another"


def _end_of(text: str) -> float | None:
    """Return when a job ends, in seconds since the epoch; None where it has no end."""
    # EndTime=1795173260    EndTime=Unknown
    match = re.search(r"\bEndTime=(\d+)\b", text)
    return float(match[1]) if match else None


def read(path: Path, kinds: driver.Kinds = MappingProxyType({})) -> Any:
    """Return a file's mapping; None where it has none with a value of each of these kinds.

    So it is where there is no file of ours, or its writer is at it.
    """
    try:
        found = read_json(owned.read_bytes(path), is_ours=True)
    except (OSError, ValueError):
        return None
    return found if driver.is_of(found, kinds) else None


def is_damaged(path: Path, kinds: driver.Kinds) -> bool:
    """Whether a file is there and does not hold what `read` wants; not where it cannot be told."""
    try:
        found = read_json(owned.read_bytes(path), is_ours=True)
    except (ValueError, owned.NotOursError):
        return True
    except OSError as error:
        return error.errno in owned.NO_FILE
    return not driver.is_of(found, kinds)
