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


@rows(
    "said, left_s, nodelist, expected",
    {
        "fit, with the time of a trial": (TIMED, 600, "node002", ""),
        "over": (scontrol("COMPLETED"), 600, "", "allocation 31 .* does not run: "),
        "away": ("", 600, "", "scontrol does not show allocation 31: "),
        "another node": (ENDLESS, 600, "node009", r"node009 is not in .* has node\[002-003\]"),
        "shared": (ENDLESS.replace("ibe=NO", "ibe=OK"), 600, "", "salloc --exclusive"),
        "too short": (TIMED, 300, "", "ends in 5 min"),
    },
)
def test_an_allocation_that_is_not_fit_is_told(
    monkeypatch: pytest.MonkeyPatch, said: str, left_s: float, nodelist: str, expected: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - left_s)
    resources = Resources(time_limit_s=600)
    found = executor(said).faults(nodelist=tuple(nodelist.split()), resources=resources)
    assert bool(found) is bool(expected)
    assert re.search(expected, "; ".join(found))


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
    "said, limit_s, refusal",
    {
        "over": (
            scontrol("CANCELLED"), 290, AllocationOver("31 takes no further trial: .*CANCELLED")),
        "a longer one": (TIMED, 310, AllocationOver("no time is left")),
        "a short one": (TIMED, 290, None),
        "lost a node": (ENDLESS.replace("[002-003]", "003"), 290,
                        SubmissionError("node002 is not in")),
        "away": ("", 290, SchedulerDown("does not show")),
    },
)  # fmt: skip
def test_an_allocation_takes_a_trial_while_it_runs_has_its_nodes_and_the_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    limit_s: int,
    refusal: Exception | None,
) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 300)
    run = tmp_path / "run"
    request = Request(
        folder=run / "t.1",
        job_name="xlt-t",
        comment="xlatune:a",
        nodelist=("node002",),
        resources=Resources(time_limit_s=limit_s),
    )
    spec = LaunchSpec(argv=("true",))
    if refusal is None:
        assert executor(said).submit(spec, request) == "step-1"
        return
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
            "requeued: allocation 31 ended: PENDING, put back"),
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
