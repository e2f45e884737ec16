"""What Slurm's commands print of a job, as values; and Slurm's state words, as ours.

Pure: text in, values out. It knows no command line, no clock and no file. Four commands say the
same in four ways, so each parser only names the fields and one function reads them. Times are
printed as seconds since the epoch because the caller asks for that (SLURM_TIME_FORMAT=%s).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.executors.hostlist import expand
from pytest_xlatune.results import Outcome, State

# a column separator that no name, comment or path holds
SEPARATOR = "\x1f"
SQUEUE_FIELDS = ("%i", "%T", "%N", "%S", "%e", "%r", "%j", "%Z", "%k")
SACCT_FIELDS = ("JobID", "State", "NodeList", "Start", "End", "Reason", "JobName", "WorkDir",
                "Comment", "ExitCode")  # fmt: skip
_COLUMNS = ("JobId", "JobState", "NodeList", "StartTime", "EndTime", "Reason", "JobName",
            "WorkDir", "Comment", "ExitCode")  # fmt: skip

# Every job state and job state flag of slurm.h, 22.05 to 25.05. Only a state without a flag that
# says otherwise is over: after COMPLETING the nodes still run the job's processes.
STATES: Mapping[str, State] = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,
    "POWER_UP_NODE": State.PENDING,
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "EXPEDITING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "STOPPED": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "UPDATE_DB": State.RUNNING,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "OUT_OF_MEMORY": State.FAILED,
    "DEADLINE": State.TIMEOUT,
    "TIMEOUT": State.TIMEOUT,
    "CANCELLED": State.CANCELLED,
    "PREEMPTED": State.CANCELLED,
    "REVOKED": State.CANCELLED,
    "BOOT_FAIL": State.NODE_FAIL,
    "NODE_FAIL": State.NODE_FAIL,
    "RECONFIG_FAIL": State.NODE_FAIL,
}

# `0:15` of ExitCode
_EXIT = re.compile(r"(\d+):(\d+)")
# a job state with what may follow it:  CANCELLED by 0    NODE_FAIL,COMPLETING    COMPLETI+
_WORD = re.compile(r"[A-Z_]+")
# one field of `scontrol show job -o`, up to the next:  JobName=ag combine WorkDir=
_FIELD = re.compile(r"(?:^| )([A-Z][\w:/]*)=(.*?)(?= [A-Z][\w:/]*=|\s*$)")
_SAYS_NOTHING = frozenset({"", "None", "(null)", "N/A", "Unknown", "none"})
_SHELL_SIGNAL_BASE = 128
_CUT = 4  # no command cuts a state shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one command says of one job.

    Attributes:
        job_id: Slurm's number.
        outcome: where it stands; `reason` holds Slurm's state word and reason.
        name: the job's name.
        folder: its working directory, "" where the command does not say.
        comment: its comment, "" where the command does not say.
    """

    job_id: str
    outcome: Outcome
    name: str = ""
    folder: str = ""
    comment: str = ""


def to_state(text: str) -> State:
    """Return our word for a job state as any Slurm command prints it.

    Suffixes (`CANCELLED by 0`), several words (`NODE_FAIL,COMPLETING`, `FAILED+REQUEUED`) and
    words cut short (`COMPLETI+`) are read; the job is over only when every word says so. A word
    that nobody knows is running: it is never a reason to think a job over.
    """
    words = _WORD.findall(text.split(" by ", maxsplit=1)[0])
    states = [_one_state(word, cut=text.rstrip().endswith("+")) for word in words]
    unfinished = [state for state in states if not state.is_final]
    return (unfinished or states or [State.RUNNING])[0]


def parse_scontrol(text: str) -> dict[str, Job]:
    """Read `scontrol show job -o`: one job a line, `Key=value` separated by spaces.

    The job completion file of `jobcomp/filetxt` has the same form and is read as well.
    """
    return _jobs(dict(_FIELD.findall(line)) for line in text.splitlines())


def parse_squeue(text: str) -> dict[str, Job]:
    """Read `squeue -h -o` with `SQUEUE_FIELDS` joined by `SEPARATOR`."""
    return _jobs(_row(line, SQUEUE_FIELDS) for line in text.splitlines())


def parse_sacct(text: str) -> dict[str, Job]:
    """Read `sacct -n -X -P` with `SACCT_FIELDS` and `SEPARATOR`."""
    return _jobs(_row(line, SACCT_FIELDS) for line in text.splitlines())


def merge(slurm: Outcome, ranks: Iterable[Outcome]) -> Outcome:
    """Return how an attempt ended: Slurm's word and that of every rank's payload.

    Slurm knows of dead nodes, time limits and cancels, and whether the nodes are free; the payload
    knows the trainer's exit code and signal. Where ranks differ, the one that failed first counts:
    the others died of it.

    Args:
        slurm: as any command told it.
        ranks: of the payloads that wrote one, rank 0 first.
    """
    words = list(ranks)
    if not slurm.state.is_final or not words:
        return slurm
    failed = [word for word in words if word.state in (State.FAILED, State.TIMEOUT)]
    ended = [word for word in words if word.state is not State.COMPLETED]
    word = min(failed, key=lambda each: each.end_s or 0.0) if failed else (ended or words)[0]
    own = slurm.state not in (State.COMPLETED, State.FAILED)
    # Slurm saw a rank die that could write nothing; the others were only told to end
    silent = slurm.state is State.FAILED and not failed
    starts = [each.start_s for each in words if each.start_s is not None]
    ends = [each.end_s for each in words if each.end_s is not None]
    return replace(
        slurm,
        state=slurm.state if own or silent else word.state,
        exit_code=slurm.exit_code if silent else word.exit_code,
        signal=slurm.signal if silent else word.signal,
        nodes=slurm.nodes or tuple(node for each in words for node in each.nodes),
        start_s=min(starts, default=slurm.start_s),
        end_s=max(ends, default=slurm.end_s),
        reason="; ".join(part for part in (slurm.reason, "" if silent else word.reason) if part),
    )


def _one_state(word: str, *, cut: bool) -> State:
    if word in STATES:
        return STATES[word]
    # a word cut short counts only where all that it may have been say the same
    begun = {state for name, state in STATES.items() if name.startswith(word)}
    return begun.pop() if cut and len(word) >= _CUT and len(begun) == 1 else State.RUNNING


def _row(line: str, fields: tuple[str, ...]) -> dict[str, str]:
    values = line.split(SEPARATOR)
    return dict(zip(_COLUMNS, values, strict=False)) if len(values) == len(fields) else {}


def _jobs(rows: Iterable[Mapping[str, str]]) -> dict[str, Job]:
    return {row["JobId"]: _job(row) for row in rows if row.keys() >= {"JobId", "JobState"}}


def _job(row: Mapping[str, str]) -> Job:
    state = to_state(row["JobState"])
    exit_code, signal = _exit(row.get("ExitCode", "")) if state.is_final else (None, None)
    said = _said(row, "Reason")
    return Job(
        job_id=row["JobId"],
        name=_said(row, "JobName") or _said(row, "Name"),
        folder=_said(row, "WorkDir"),
        comment=_said(row, "Comment"),
        outcome=Outcome(
            state=state,
            exit_code=exit_code,
            signal=signal,
            nodes=_nodes(_said(row, "NodeList")),
            start_s=_time(row.get("StartTime", "")),
            end_s=_time(row.get("EndTime", "")) if state.is_final else None,
            reason=f"{row['JobState'].strip()} ({said})" if said else row["JobState"].strip(),
        ),
    )


def _said(row: Mapping[str, str], key: str) -> str:
    value = row.get(key, "").strip()
    return "" if value in _SAYS_NOTHING else value


def _exit(text: str) -> tuple[int | None, int | None]:
    """Read `exit:signal`; a code above 128 is srun's way to tell a signal."""
    match = _EXIT.fullmatch(text.strip())
    if match is None:
        return None, None
    code, signal = int(match[1]), int(match[2])
    if not signal and code > _SHELL_SIGNAL_BASE:
        signal = code - _SHELL_SIGNAL_BASE
    return (None, signal) if signal else (code, None)


def _time(text: str) -> float | None:
    return float(text) if text.strip().isdecimal() else None


def _nodes(text: str) -> tuple[str, ...]:
    """Expand a node list; `None assigned` and the like are no nodes."""
    try:
        return expand(text) if text else ()
    except ConfigError:
        return ()
