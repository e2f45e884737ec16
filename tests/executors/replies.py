"""Recorded texts of Slurm's commands, and a function that answers with them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.executors.slurm._commands import SACCT_FIELDS, SEPARATOR, Reply
from pytest_xlatune.model.result import Outcome, State

AWAY = Reply(
    code=1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
)
UNKNOWN = Reply(code=1, err="slurm_load_jobs error: Invalid job id specified")
NO_ACCOUNTING = Reply(code=1, err="Slurm accounting storage is disabled")

SCONTROL = (
    "JobId=31 JobName=xl-overlap-2 UserId=lab(1001) GroupId=lab(1001) MCS_label=N/A Priority=42 "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts=0 "
    "ExitCode={exit} RunTime=00:00:09 StartTime=1795173251 EndTime=1795173260 Deadline=N/A "
    "SubmitTime=1795173240 AllocNode:Sid=login:77 ReqNodeList=node[002-003] ExcNodeList=(null) "
    "NodeList=node[002-003] BatchHost=node002 NumNodes=2 TRES=cpu=4,node=2 OverSubscribe=NO "
    "WorkDir=/lustre/my sweeps/pp8/cell/t1/1 Comment=xlatune:a b=c|d  StdErr=/dev/null Power= "
)


def scontrol(state: str, code: str = "0:0", *, reason: str = "None") -> str:
    return SCONTROL.format(state=state, exit=code, reason=reason)


def row(state: str, code: str = "0:0", **changed: str) -> str:
    values = {
        "JobID": "31", "State": state, "NodeList": "node[002-003]", "Start": "1795173251",
        "End": "1795173260", "Reason": "None", "JobName": "xl-overlap-2",
        "WorkDir": "/lustre/my sweeps/pp8/cell/t1/1",
        "ExitCode": code,
    }  # fmt: skip
    return SEPARATOR.join({**values, **changed}[key] for key in SACCT_FIELDS)


def rank(
    state: State, *, code: int | None = None, signal: int | None = None, end_s: float = 20.0
) -> Outcome:
    return Outcome(state=state, exit_code=code, signal=signal, start_s=10.0, end_s=end_s)


OK = rank(State.COMPLETED, code=0)
TOLD_TO_END = rank(State.CANCELLED, signal=15, end_s=30.0)


class Scripted:
    """Answers a command with its replies in turn, the last one again; keeps what was asked."""

    def __init__(self, **answers: Reply | Sequence[Reply]) -> None:
        self.answers = {
            name: [given] if isinstance(given, Reply) else list(given)
            for name, given in answers.items()
        }
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> Reply:
        self.asked.append(list(argv))
        left = self.answers.get(argv[0], [Reply(code=127, err=f"{argv[0]}: command not found")])
        return left.pop(0) if len(left) > 1 else left[0]
