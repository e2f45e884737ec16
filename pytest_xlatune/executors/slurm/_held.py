"""Allocations that are held for trials: what their folders say, what keeps trials out, their end.

The folder of an allocation is listed in `driver`. This module asks for no allocation and starts no
trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
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
_SAID: driver.Kinds = MappingProxyType({"job_id": str, "work_dir": str, "session": str})
_AHEAD = 3.0  # trials that must fit, or the next allocation is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An allocation, as its folder tells it."""

    folder: Path
    job_id: str  # "" while it is asked for
    work_dir: str  # of a user's own allocation; "" of ours
    session: str  # that asked for it
    nodelist: tuple[str, ...]
    resources: Resources  # of the allocation: its time limit, its options
    wanted: str = ""  # by which name a study asked for it; "" is any of them
    asked_s: float = 0.0  # when it was asked for, seconds since the epoch; 0 is unknown
    submitted_s: float | None = None  # when a user's own was, by Slurm; it tells it from others

    @property
    def is_ours(self) -> bool:
        """Whether it was asked for by us."""
        return not self.work_dir

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
    """Return the allocations of a run of a ledger, in the order they were asked for."""
    found = []
    for folder in run.glob("held-*"):
        said = read(folder / driver.HELD_JSON, _SAID)
        if said is None or not _HELD.fullmatch(folder.name):
            continue
        try:
            said["resources"] = Resources.from_json(said["resources"])
            said["nodelist"] = tuple(map(str, said["nodelist"]))
            found.append((number_of(folder), Held(folder=folder, **said)))
        except (LedgerError, TypeError):
            continue
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def number_of(folder: Path) -> int:
    """Return the number of an allocation by its folder's name; 0 where that has none."""
    match = _HELD.fullmatch(folder.name)
    return int(match[1]) if match else 0


def let_go_unreadable(run: Path, known: Sequence[Held]) -> None:
    """Have each allocation take no further step whose folder does not say what it is.

    Its driver gives the nodes back once the steps that it has are over.
    """
    names = {each.folder.name for each in known}
    for folder in run.glob("held-*"):
        is_unknown = folder.name not in names and not (folder / driver.END).exists()
        if is_unknown and is_damaged(folder / driver.HELD_JSON, _SAID):
            _log.warning("%s cannot be read: it takes no further step", folder / driver.HELD_JSON)
            with contextlib.suppress(owned.NotOursError), owned.Folder(folder) as opened:
                opened.create(driver.END, b"")


def waits_in(root: Path) -> tuple[tuple[float, float, float], ...]:
    """Return when the allocations below a ledger's folder were asked for, began, and were over.

    Only those that we asked for and in which a trial began: its begin is that of the first trial,
    which the driver starts at once. One that is not over yet is over at the end of time.
    """
    found = []
    for run in {each.parent for each in root.glob("*/held-*")}:
        began: dict[str, float] = {}
        for path in run.glob(f"*/{driver.TAKEN}"):
            if (taken := read(path, driver.TOOK)) is not None:
                first_s = began.get(taken["held"], math.inf)
                began[taken["held"]] = min(first_s, taken["at_s"])
        for held in held_in(run):
            at_s = began.get(held.folder.name)
            if held.is_ours and held.asked_s and at_s is not None:
                end_s = held.over.end_s if held.over else None
                found.append((held.asked_s, at_s, math.inf if end_s is None else end_s))
    return tuple(sorted(found, key=lambda each: each[1]))


def release(root: Path, *, run: Run = run_command) -> tuple[str, ...]:
    """Give back every allocation below a ledger's folder that was asked for and is not over.

    One that runs no step ends at once; else its driver ends it after the step. In a user's own
    allocation only our driver ends. Returns the job ids of those that were ours.
    """
    ended_ids = []
    for folder in {each.parent for each in root.glob("*/held-*")}:
        for held in held_in(folder):
            if held.over is not None:
                continue
            if give_back(held, run=run):
                ended_ids.append(held.job_id)
    return tuple(ended_ids)


def give_back(held: Held, *, run: Run = run_command) -> bool:
    """Have an allocation take no further step; return whether it was ended at once."""
    (held.folder / driver.END).touch()
    if not (held.is_ours and held.job_id) or _has_step(held.folder.parent, held):
        return False
    _log.info("allocation %s is given back", held.job_id)
    job = parse_scontrol(run(["scontrol", "show", "job", "-o", held.job_id]).out)
    if held.job_id in job and not is_of(job[held.job_id], held.folder):
        return False
    run(["scancel", held.job_id])
    return True


def too_short(hold_s: int, resources: Resources) -> str:
    """Say that an allocation cannot hold a trial, and the time that it needs; "" where it can."""
    limit_s = resources.time_limit_s
    if hold_s >= limit_s:
        return ""
    minutes = math.ceil(limit_s / 60)
    return (
        f"an allocation of {duration(hold_s)} is shorter than a trial may take "
        f"({duration(limit_s)}, time_limit_s); ask for {minutes // 60}:{minutes % 60:02d}:00 or "
        "more by --xlatune-allocation, or limit trials by Resources(time_limit_s=...)"
    )


def faults(
    *,
    hold_s: int,
    nodelist: Sequence[str],
    resources: Resources,
    environ: Mapping[str, str],
    run: Run = run_command,
) -> tuple[str, ...]:
    """Return all that keeps trials from running in an allocation, one sentence each.

    Args:
        hold_s: time limit of an allocation that is to be asked for; 0 is the user's own.
        nodelist: of the trials.
        resources: of a trial.
        environ: of the session.
        run: runs a command of Slurm's.
    """
    limit_s = resources.time_limit_s
    if hold_s:
        said = too_short(hold_s, resources)
        return (said,) if said else ()
    job_id = environ.get(JOB_VARIABLE, "")
    if not job_id:
        said = (
            f"found no allocation ({JOB_VARIABLE} is not set) and no time to ask for one with; "
            "start pytest inside salloc or sbatch, or say --xlatune-allocation 4:00:00"
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


def _has_step(run: Path, held: Held) -> bool:
    """Whether a trial was taken by an allocation and has not ended."""
    for path in run.glob(f"*/{driver.TAKEN}"):
        if not (path.parent / driver.ENDED).exists():
            taken = read(path, driver.TOOK)
            if taken is not None and taken["held"] == held.folder.name:
                return True
    return False


def is_short(held: Held) -> bool:
    """Whether few trials still fit, so that the next allocation may queue already."""
    word = held.word
    until_s, longest_s = word.get("until_s") or 0.0, word.get("longest_s") or 0.0
    return bool(until_s and longest_s) and until_s - time.time() < _AHEAD * longest_s


def is_of(job: SlurmJob, folder: Path) -> bool:
    """Whether a job is the allocation of a folder; numbers are given away again."""
    said = read(folder / driver.HELD_JSON, _SAID) or {}
    if not said.get("work_dir"):
        return job.is_in(folder)
    # a user's own jobs have one working directory
    is_then = job.submitted_s is None or said.get("submitted_s") in (None, job.submitted_s)
    return job.folder in ("", said["work_dir"]) and is_then


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
