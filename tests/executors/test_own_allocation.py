"""Trials in an allocation: what is told before the start, what is started, how a step ended."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors import AllocationOver, Request, SchedulerDown, payload
from pytest_xlatune.executors.slurm import allocation
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Reply
from pytest_xlatune.executors.slurm.allocation import AllocationExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.played import AWAY, OK, UNKNOWN, Scripted, rank, scontrol
from tests.helpers.tables import rows

TIMED = scontrol("RUNNING")
ENDLESS = TIMED.replace("EndTime=1795173260", "EndTime=Unknown")
ENDS_S = 1795173260.0
INSIDE = {"SLURM_JOB_ID": "31", "SLURM_JOB_NODELIST": "node[002-003]"}


def executor(said: str, *, steps: str = "") -> AllocationExecutor:
    answer = {"": AWAY, "unknown": UNKNOWN}.get(said, Reply(code=0, out=said))
    run = Scripted(scontrol=answer, squeue=Reply(code=0, out=steps))
    return AllocationExecutor(environ=INSIDE, run=run, round_s=0.0)


def standing_step(
    run: Path,
    name: str = "t",
    *,
    pid: int = 1,
    at_s: float = 95.0,
    end: dict[str, float] | None = None,
    said: str = "",
    rank: Outcome | None = None,
    is_cancelled: bool = False,
) -> Submission:
    """The folder of a step whose script is dead, or is the process `pid`."""
    folder = run / f"{name}.1"
    (folder / "submitit").mkdir(parents=True)
    process = {**payload.identity(pid), "at_s": at_s}
    if pid == 1:
        process["start_ticks"] = 0
    step = {"job_id": "step-1", "allocation": "31", "name": f"xlt-{name}", "nodes": ["node002"]}
    (folder / allocation.STEP).write_text(json.dumps({**step, "process": process}))
    if end is not None:
        (folder / allocation.ENDED).write_text(json.dumps(end))
    (folder / "submitit" / "31_0_log.err").write_text(said)
    if rank is not None:
        for stem in ("claimed", "started"):
            claim = {**payload.identity(os.getpid()), "at_s": at_s}
            (folder / payload.name_of(stem)).write_text(json.dumps(claim))
        if rank.state.is_final:
            (folder / payload.name_of("outcome")).write_text(json.dumps(rank.to_json()))
    if is_cancelled:
        (folder / payload.CANCEL).touch()
    return Submission(
        trial_id=name, attempt=1, executor="allocation", job_id="step-1", folder=f"run/{name}.1"
    )


@rows(
    "said, limit_s, nodes, refusal",
    {
        "fit, with the time of a trial": (TIMED, 300, "node002", None),
        "too short": (TIMED, 310, "node002", AllocationOver("31 ends in 5 min")),
        "over": (scontrol("COMPLETED"), 290, "node002",
                 AllocationOver("31 .* does not run: COMPLETED")),
        "shared": (ENDLESS.replace("ibe=NO", "ibe=OK"), 290, "node002",
                   AllocationOver("salloc --exclusive")),
        "another node": (ENDLESS, 290, "node009",
                         SubmissionError(r"node009 is not in .* has node\[002-003\]")),
        "away": ("", 290, "node002", SchedulerDown("does not show allocation 31: ")),
    },
)  # fmt: skip
def test_an_allocation_takes_a_trial_while_it_runs_has_its_nodes_and_the_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    said: str,
    limit_s: int,
    nodes: str,
    refusal: Exception | None,
) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 300)
    resources = Resources(time_limit_s=limit_s)
    request = Request(
        folder=tmp_path / "run" / "t.1",
        job_name="xlt-t",
        comment="xlatune:a",
        nodelist=(nodes,),
        resources=resources,
    )
    spec = LaunchSpec(argv=("true",))
    faults = "; ".join(executor(said).faults(nodelist=(nodes,), resources=resources))
    if refusal is None:
        assert executor(said).submit(spec, request) == "step-1"
        assert faults == ""
        return
    assert re.search(str(refusal), faults)
    with pytest.raises(type(refusal), match=str(refusal)) as caught:
        executor(said).submit(spec, request)
    assert type(caught.value) is type(refusal)
    assert not request.folder.exists()


BEGUN = Outcome(state=State.RUNNING)
LIMIT = "slurmstepd: error: *** STEP 31.3 ON n1 CANCELLED AT 2026-11-23T09:12:01{} ***\n"
CANCELLED = ENDLESS.replace("RUNNING", "CANCELLED").replace("=Unknown", "=100")
LISTED = f"31.0{SEPARATOR}xlt-t"
OURS = os.getpid()


def ended(code: int, end_s: float = 96.0) -> dict[str, float]:
    return {"code": code, "end_s": end_s}


@rows(
    "known, slurm, expected",
    {
        "ended well: Slurm is not asked": (
            {"end": ended(0), "rank": OK}, "unknown", "completed"),
        "its script waits": ({"pid": OURS}, ENDLESS, "pending: starting"),
        "runs": ({"pid": OURS, "rank": BEGUN}, ENDLESS, "running: RUNNING"),
        "runs on without its script": ({"rank": BEGUN}, LISTED, "running: RUNNING"),
        "ended without its script": ({"rank": OK}, ENDLESS, "completed: srun was lost"),
        "its script was killed before it began": (
            {}, ENDLESS, "lost: .*script of its step was killed"),
        "srun ended, its step has not": ({"end": ended(1)}, LISTED, "pending: starting"),
        "srun could not begin it": (
            {"end": ended(1), "said": "srun: error: Socket timed out\n"}, ENDLESS,
            "lost: .*step did not begin, .*Socket timed out"),
        "its own time limit": (
            {"end": ended(1), "rank": BEGUN, "said": LIMIT.format(" DUE TO TIME LIMIT")},
            ENDLESS, "timeout: .*the step's limit"),
        "a person cancels it": (
            {"end": ended(1), "rank": BEGUN, "said": LIMIT.format("")}, ENDLESS,
            "cancelled: CANCELLED: STEP 31.3"),
        "we cancelled it before its trainer began": (
            {"end": ended(128), "rank": rank(State.CANCELLED), "is_cancelled": True}, ENDLESS,
            "cancelled: "),
        "the allocation was over before it began": (
            {"end": ended(1)}, CANCELLED, "preempted: .*allocation 31 ended before"),
        "the allocation was put back": (
            {"end": ended(1), "rank": BEGUN}, scontrol("PENDING"),
            "requeued: allocation 31 ended: PENDING"),
        "cut off with the allocation": (
            {"end": ended(1), "rank": BEGUN}, CANCELLED,
            "cancelled: allocation 31 ended: CANCELLED"),
        "failed before the allocation ended": (
            {"end": ended(1, 60.0), "rank": BEGUN}, CANCELLED, "failed: .*srun ended with 1"),
    },
)  # fmt: skip
def test_where_a_step_stands(
    tmp_path: Path, known: dict[str, Any], slurm: str, expected: str
) -> None:
    step = standing_step(tmp_path / "run", **known)
    steps, said = (LISTED, ENDLESS) if slurm == LISTED else ("", slurm)
    found = executor(said, steps=steps).poll([step], root=tmp_path)["step-1"]
    assert found.allocation == "31"
    assert re.match(expected, f"{found.state}: {found.reason}")
    # a late one runs not
    is_marked = not known or "is_cancelled" in known
    assert (tmp_path / step.folder / payload.CANCEL).exists() is is_marked


@rows("code, expected", {"killed": (137, ("failed", 9)), "well": (0, ("completed", None))})
def test_a_step_that_ends_while_slurm_is_asked_is_told_by_its_end(
    tmp_path: Path, code: int, expected: tuple[str, int | None]
) -> None:
    step = standing_step(tmp_path / "run", rank=BEGUN if code else OK)
    answers = Scripted(scontrol=Reply(code=0, out=ENDLESS), squeue=Reply(code=0))

    def run(words: Sequence[str]) -> Reply:
        (tmp_path / step.folder / allocation.ENDED).write_text(json.dumps(ended(code)))
        return answers(words)

    made = AllocationExecutor(environ=INSIDE, run=run, round_s=0.0)
    found = made.poll([step], root=tmp_path)["step-1"]
    assert (found.state, found.signal) == expected
    assert found.reason != "srun was lost"
