"""Run Slurm's commands in a known environment, and parse their output into our values.

The function that runs a command is always an argument, so that a test can replace Slurm. The other
functions only turn texts into values. The commands describe a job in three formats, so each parser
only maps the fields to common names, and one function reads them. Times are in seconds since 1970,
because `run_command` sets SLURM_TIME_FORMAT=%s. Only this module interprets Slurm's words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.result import Outcome, State

COMMAND_TIMEOUT_S = 60.0
_CLOSE_S = 5.0  # how long to wait for the last output of a killed program
_log = logging.getLogger("pytest_xlatune.executors")

# The beginnings of variables that change what Slurm's commands ask and print. The user may have set
# them, or the allocation around the session.
_STEERING = ("SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_", "SRUN_", "SLURM_")
# variables with such a beginning that commands need to find or enter the cluster
_LOCATING = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"})

# All variables that sbatch gets if the job inherits its environment. sbatch needs them to find the
# cluster, load its libraries and name the user. The job's script removes them again.
_NEEDED = _LOCATING | {
    "HOME", "KRB5CCNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TZ",
    "USER",
}  # fmt: skip


class Trouble(StrEnum):
    """Why a command failed, as far as it matters for the next action."""

    NONE = ""
    AWAY = "away"  # the controller is down or busy: repeat the question later
    FULL = "full"  # a site's limit on jobs is reached: repeat it when other jobs have ended
    FOR_NOW = "for-now"  # a passing trouble: repeat it in a moment
    UNKNOWN_JOB = "unknown-job"  # the controller answers, and has no such job
    FOR_GOOD = "for-good"  # a lasting error: do not repeat the command


# What Slurm's error messages mean; the first row with a match decides. Munge's errors, `I/O error
# writing script` and `Unspecified error` pass by themselves, as tests with a real Slurm show.
_TROUBLES: tuple[tuple[Trouble, re.Pattern[str]], ...] = (
    # scancel: error: Kill job error on job id 4711: Invalid job id specified
    (Trouble.UNKNOWN_JOB, re.compile(r"invalid job id", re.IGNORECASE)),
    # slurm_load_jobs error: Unable to contact slurm controller (connect failure)
    # sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
    # sbatch: error: Slurm controller not responding, sleeping and retrying.
    (Trouble.AWAY, re.compile(
        r"unable to contact slurm controller|slurm controller not responding"
        r"|slurm backup controller in standby mode|unexpected message received"
        r"|socket timed out|connection refused|connection timed out"
        r"|zero bytes were transmitted or received|transport endpoint is not connected"
        # sbatch: error: If munged is up, restart with --num-threads=10
        # sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"
        r"|munge|invalid authentication credential|protocol authentication error",
        re.IGNORECASE)),
    # sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit
    # limit, user's size and/or time limits)
    (Trouble.FULL, re.compile(
        r"job violates accounting/qos policy|(?:qos|assoc|assocgrp|qosgrp)maxsubmitjob"
        r"|maxsubmitjobs|grpsubmitjob|too many pending jobs"
        # sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying (MaxJobCount)
        r"|slurm temporarily unable to accept job",
        re.IGNORECASE)),
    # sbatch: error: Batch job submission failed: I/O error writing script/environment to file
    # sbatch: error: Batch job submission failed: Unspecified error
    # sbatch ended with 0 and named no job (our own words)
    (Trouble.FOR_NOW, re.compile(
        r"resource temporarily unavailable|i/o error writing script|unspecified error"
        r"|unable to create (?:step|job)|stale file handle|input/output error|named no job",
        re.IGNORECASE)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply of a command."""

    code: int  # its exit status
    out: str = ""  # its standard output
    err: str = ""  # its standard error, or our reason why it failed
    is_late: bool = False  # whether it was ended because it took too long

    @property
    def error(self) -> str:
        """The error in one line; "" if the command succeeded."""
        return "" if self.code == 0 else " ".join((self.err or self.out).split())

    @property
    def trouble(self) -> Trouble:
        """Why it failed."""
        if self.code == 0:
            return Trouble.NONE
        if self.is_late:
            return Trouble.AWAY
        error = self.error
        troubles = (trouble for trouble, pattern in _TROUBLES if pattern.search(error))
        return next(troubles, Trouble.FOR_GOOD)


Run = Callable[[Sequence[str]], Reply]


def run_command(argv: Sequence[str]) -> Reply:
    """Run one of Slurm's commands in a known environment."""
    began_s = time.monotonic()
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _LOCATING or not name.startswith(_STEERING)
    }
    reply = run_program(argv, env={**inherited, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"})
    if reply.is_late:
        # jobs and nodes that an incomplete table lacks would be taken for gone
        reply = dataclasses.replace(reply, out="")
    took_s = time.monotonic() - began_s
    _log.debug("Slurm was asked by %s in %.2f s: %s", argv[0], took_s, reply.trouble or "answered")
    return reply


def run_program(argv: Sequence[str], *, env: Mapping[str, str], name: str = "") -> Reply:
    """Run a program and return its reply; for a missing or hanging program the reply says so.

    After the time limit the program is ended with all processes that it started: if a site's
    command is a script, the process that hangs, and that keeps the pipe open, is a child of the
    script. `name` is the program's name in messages.
    """
    name = name or argv[0]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Reply(code=127, err=f"{name}: command not found")
    with process:
        try:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise  # Ctrl-C
            out = ""
            with contextlib.suppress(subprocess.TimeoutExpired):  # another process keeps its pipe
                out, _ = process.communicate(timeout=_CLOSE_S)
            reason = f"{name} did not answer in {COMMAND_TIMEOUT_S:.0f} s and was ended"
            return Reply(code=1, out=out, err=reason, is_late=True)
    return Reply(code=process.returncode, out=out, err=err)


def needed() -> dict[str, str]:
    """Return our variables without those that sbatch can do without, of which some are secrets."""
    return {name: value for name, value in os.environ.items() if name in _NEEDED}


_PARTS = 4  # folders below the work directory: sweep, cell, session, attempt
SEPARATOR = "\x1f"  # between columns; no name, comment or path contains it
_SQUEUE_FIELDS = ("%i", "%T", "%N", "%S", "%e", "%r", "%Z")
SACCT_FIELDS = ("JobID", "State", "NodeList", "Start", "End", "Reason", "WorkDir",
                "ExitCode")  # fmt: skip
# the names of the same fields in `scontrol show job`, which the parsers use for all formats
_COLUMNS = ("JobId", "JobState", "NodeList", "StartTime", "EndTime", "Reason", "WorkDir",
            "ExitCode")  # fmt: skip

# The job states and state flags of slurm.h, 22.05 to 25.05, without those of a job that runs. Such
# a flag is COMPLETING: the nodes still run its processes. A job is over only if it has no flag that
# is missing here or means PENDING. (submitit takes SUSPENDED, CONFIGURING, RESIZING,
# SIGNALING and STAGE_OUT for the end of a job.)
STATES: Mapping[str, State] = {
    **dict.fromkeys(
        ("PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
         "RESV_DEL_HOLD", "SPECIAL_EXIT"),
        State.PENDING,
    ),
    "COMPLETED": State.COMPLETED,
    **dict.fromkeys(("FAILED", "LAUNCH_FAILED"), State.FAILED),
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
    "PREEMPTED": State.PREEMPTED,
    **dict.fromkeys(("DEADLINE", "TIMEOUT"), State.TIMEOUT),
    **dict.fromkeys(("CANCELLED", "REVOKED"), State.CANCELLED),
    **dict.fromkeys(("BOOT_FAIL", "NODE_FAIL", "RECONFIG_FAIL"), State.NODE_FAIL),
}  # fmt: skip

# exit code and signal, with few digits, because Python converts at most 4,300 to a number:  0:15
_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})")
# one word of a job state:  CANCELLED by 0    NODE_FAIL,COMPLETING
_WORD = re.compile(r"[A-Z_]+")
# The beginning of a field in `scontrol show job -o`:  JobName=ag combine WorkDir=
# The repetition is possessive, because backtracking in a long word would take seconds.
_FIELD = re.compile(r"(?:^| )([A-Z][\w:/]*+)=")
# reasons of jobs that wait for nodes that are drained, down or reserved:
# NodeDown    ReqNodeNotAvail, UnavailableNodes:node002
# Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions
_LACKS_NODES = re.compile(r"nodenotavail|nodes[ _]required|node_?down", re.IGNORECASE)
# reasons of jobs that are held:  JobHeldUser    job_requeued_in_held_state    JobHoldMaxRequeue
_HELD = re.compile(r"^JobH(?:eld|old)|requeued[ _](?:in[ _])?held", re.IGNORECASE)
# Reasons why Slurm never starts a job as it was requested: limits on a single job, and wrong names.
# Without them the campaign would wait forever for such a job. Limits on all jobs of a user, account
# or QOS are not here, because they pass when other jobs end. Slurm lists its reasons at
# slurm.schedmd.com/job_reason_codes.html:
# PartitionTimeLimit    QOSMaxWallDurationPerJobLimit    AssocMaxCpuMinutesPerJobLimit
# PartitionNodeLimit    PartitionConfig    QOSMaxNodePerJobLimit    QOSMinNode    QOSMaxGRESPerJob
# AssocMaxCpuPerNode    QOSMinCpuNotSatisfied    MaxMemPerLimit    InvalidQOS    AccountNotAllowed
# BadConstraints    DependencyNeverSatisfied    ReservationDeleted    ReservationInvalid
_NEVER_STARTS = re.compile(
    r"Partition(?:TimeLimit|NodeLimit|Config)|(?:QOS|Assoc)Max\w*(?:Wall|Minutes)\w*PerJob"
    r"|(?:QOS|Assoc)(?:Max\w+Per(?:Job|Node)|Min\w+)|MaxMemPerLimit|InvalidQOS|QOSNotAllowed"
    r"|InvalidAccount|AccountNotAllowed|Constraints|DependencyNeverSatisfied"
    r"|Reservation(?:Deleted|Invalid)"
)
# Slurm also gives these reasons while nodes of the job are down or drained.
_MAY_LACK_NODES = re.compile(r"PartitionNodeLimit|PartitionConfig|Constraints")
_SUSPENDED = re.compile(r"SUSPENDED|STOPPED")  # the job's processes exist but are stopped
_NO_VALUE = frozenset({"", "None", "(null)", "N/A", "Unknown", "none"})
_SHELL_SIGNAL_BASE = 128  # added to a signal's number in an exit status


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What one command says about a job."""

    job_id: str
    outcome: Outcome  # its `reason` has Slurm's state word and reason
    folder: str = ""  # its working directory; "" if the command does not print it

    def is_in(self, folder: Path) -> bool:
        """Return whether it may be the job of a folder; a job with a reused id is not.

        Hosts may mount the work directory at different paths, so only the folders below it count.
        """
        return not self.folder or Path(self.folder).parts[-_PARTS:] == folder.parts[-_PARTS:]


def squeue(*which: str) -> list[str]:
    """Return a call of squeue for `parse_squeue`; it includes jobs that have just ended."""
    return ["squeue", "-h", "-t", "all", *which, "-o", SEPARATOR.join(_SQUEUE_FIELDS)]


def sacct(*which: str) -> list[str]:
    """Return a call of sacct for `parse_sacct`."""
    form = ",".join(SACCT_FIELDS)
    return ["sacct", "-n", "-X", "-P", f"--delimiter={SEPARATOR}", *which, "-o", form]


def to_state(text: str) -> State:
    """Return our state for a job state in the output of any Slurm command.

    It reads suffixes (`CANCELLED by 0`) and several words (`NODE_FAIL,COMPLETING`,
    `FAILED+REQUEUED`). A job is over only if all words say so; an unknown word means that it runs.
    """
    words = _WORD.findall(text.split(" by ", maxsplit=1)[0])
    states = [STATES.get(word, State.RUNNING) for word in words] or [State.RUNNING]
    return next((state for state in states if not state.is_final), states[0])


def parse_scontrol(text: str) -> dict[str, SlurmJob]:
    """Parse `scontrol show job -o`: one job in each line, `Key=value` separated by spaces."""
    # a value ends where the next key begins
    parts = map(_FIELD.split, text.splitlines())
    return _jobs(dict(zip(part[1::2], part[2::2], strict=True)) for part in parts)


def parse_squeue(text: str) -> dict[str, SlurmJob]:
    """Return job id -> job, from the output of a `squeue` call."""
    return _jobs(_row(line, _SQUEUE_FIELDS) for line in text.splitlines())


def parse_sacct(text: str) -> dict[str, SlurmJob]:
    """Return job id -> job, from the output of an `sacct` call."""
    return _jobs(_row(line, SACCT_FIELDS) for line in text.splitlines())


def merge(slurm: Outcome, ranks: Iterable[Outcome]) -> Outcome:
    """Return how an attempt ended, from Slurm's outcome and those of the ranks' payloads.

    Slurm knows of dead nodes, time limits and cancels, and whether the nodes are free; the payload
    knows the trainer's exit code and signal. If the ranks ended differently, the one that failed
    first counts, because the others died of its failure. `ranks` begins with rank 0.
    """
    outcomes = list(ranks)
    if not slurm.state.is_final or not outcomes:
        return slurm
    failed = [outcome for outcome in outcomes if outcome.state in (State.FAILED, State.TIMEOUT)]
    incomplete = [outcome for outcome in outcomes if outcome.state is not State.COMPLETED]
    # an outcome that cannot be read explains less than any other
    failed.sort(key=lambda outcome: (outcome.is_unreadable, outcome.end_s or 0.0))
    rank = (failed or incomplete or outcomes)[0]
    is_by_slurm = slurm.state not in (State.COMPLETED, State.FAILED)
    # a rank died without an outcome, which only Slurm saw; the others ended because of it
    is_silent = slurm.state is State.FAILED and not failed
    codes = slurm if is_silent else rank
    starts_s = [outcome.start_s for outcome in outcomes if outcome.start_s is not None]
    ends_s = [outcome.end_s for outcome in outcomes if outcome.end_s is not None]
    reasons = (slurm.reason, "" if is_silent else rank.reason)
    return replace(
        slurm,
        state=slurm.state if is_by_slurm else codes.state,
        exit_code=codes.exit_code,
        signal=codes.signal,
        nodes=slurm.nodes or tuple(node for outcome in outcomes for node in outcome.nodes),
        start_s=min(starts_s, default=slurm.start_s),
        end_s=max(ends_s, default=slurm.end_s),
        reason="; ".join(reason for reason in reasons if reason),
        is_started=codes.is_started,
        is_unreadable=codes.is_unreadable and not is_by_slurm,
    )


def _row(line: str, fields: tuple[str, ...]) -> dict[str, str]:
    """Return the values of a line by `_COLUMNS`; {} if it does not have all the fields."""
    values = line.split(SEPARATOR)
    return dict(zip(_COLUMNS, values, strict=False)) if len(values) == len(fields) else {}


def _jobs(rows: Iterable[Mapping[str, str]]) -> dict[str, SlurmJob]:
    return {row["JobId"]: _job(row) for row in rows if row.keys() >= {"JobId", "JobState"}}


def _job(row: Mapping[str, str]) -> SlurmJob:
    state = to_state(row["JobState"])
    exit_code, signal = _parse_exit(row.get("ExitCode", "")) if state.is_final else (None, None)
    reason = _value(row, "Reason")
    is_waiting = state is State.PENDING
    nodes: tuple[str, ...] = ()
    with contextlib.suppress(ConfigError):  # `None assigned` and the like
        nodes = expand(_value(row, "NodeList"))
    may_lack_nodes = _LACKS_NODES.search(reason) or _MAY_LACK_NODES.search(reason)
    return SlurmJob(
        job_id=row["JobId"],
        folder=_value(row, "WorkDir"),
        outcome=Outcome(
            state=state,
            exit_code=exit_code,
            signal=signal,
            nodes=nodes,
            start_s=_parse_time(row.get("StartTime", "")),
            end_s=_parse_time(row.get("EndTime", "")) if state.is_final else None,
            reason=f"{row['JobState'].strip()} ({reason})" if reason else row["JobState"].strip(),
            lacks_nodes=is_waiting and bool(may_lack_nodes),
            is_suspended=bool(_SUSPENDED.search(row["JobState"])),
            is_held=is_waiting and bool(_HELD.search(reason)),
            never_starts=reason if is_waiting and _NEVER_STARTS.search(reason) else "",
        ),
    )


def _value(row: Mapping[str, str], key: str) -> str:
    value = row.get(key, "").strip()
    return "" if value in _NO_VALUE else value


def _parse_exit(text: str) -> tuple[int | None, int | None]:
    """Parse `exit:signal`; srun reports a signal as a code above 128."""
    match = _EXIT.fullmatch(text.strip())
    if match is None:
        return None, None
    code, signal = int(match[1]), int(match[2])
    if not signal:
        signal = max(code - _SHELL_SIGNAL_BASE, 0)
    return (None, signal) if signal else (code, None)


def _parse_time(text: str) -> float | None:
    # 1795173260    Unknown
    return float(text.strip()) if re.fullmatch(r"[0-9]{1,11}", text.strip()) else None
