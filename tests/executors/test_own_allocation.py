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

ALLOCATION = scontrol("RUNNING").replace("EndTime=1795173260", "EndTime=Unknown")
INSIDE = {"SLURM_JOB_ID": "31", "SLURM_JOB_NODELIST": "node[002-003]"}
ENDS_S = 1795173260.0  # EndTime of a job, as `scontrol` says it


def executor(said: str | Reply = ALLOCATION, *, steps: str = "") -> AllocationExecutor:
    answer = said if isinstance(said, Reply) else Reply(code=0, out=said)
    run = Scripted(scontrol=answer, squeue=Reply(code=0, out=steps))
    return AllocationExecutor(environ=INSIDE, run=run, round_s=0.0)


def test_an_allocation_that_is_fit_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 600)
    for said in (ALLOCATION, scontrol("RUNNING")):
        found = executor(said).faults(nodelist=("node002",), resources=Resources(time_limit_s=600))
        assert found == ()


def test_a_plan_says_how_long_the_allocation_still_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 3 * 3600)
    said = executor(scontrol("RUNNING")).time_note()
    assert "allocation 31 ends in 3 h" in said
    assert AllocationExecutor(environ={}, run=Scripted()).time_note() == "", "outside of one"


@pytest.mark.parametrize(
    ("said", "nodelist", "expected"),
    [
        (scontrol("COMPLETED"), (), "allocation 31 .* does not run: "),
        (scontrol("COMPLETING"), (), "allocation 31 .* does not run: "),
        (AWAY, (), "scontrol does not show allocation 31: "),
        (ALLOCATION, ("node002", "node009"), r"node009 is not in .* has node\[002-003\]"),
        (ALLOCATION.replace("Subscribe=NO", "Subscribe=OK"), (), "salloc --exclusive"),
        (scontrol("RUNNING"), (), "ends in 5 min"),
    ],
    ids=["over", "ending", "away", "another node", "shared", "too short"],
)
def test_an_allocation_that_is_not_fit_is_told(
    monkeypatch: pytest.MonkeyPatch, said: str | Reply, nodelist: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 300)
    found = executor(said).faults(nodelist=nodelist, resources=Resources())
    assert re.search(expected, "; ".join(found))


# -- what is started ------------------------------------------------------------------------------


def request(run: Path, name: str = "t", **changed: Any) -> Request:
    said: dict[str, Any] = {"job_name": f"xlt-{name}", "comment": "xlatune:a"}
    said |= {"nodelist": ("node002",)}
    said |= {"resources": Resources(time_limit_s=600), "folder": run / f"{name}.1"}
    return Request(**said | changed)


def submission(run: Path, job_id: str, name: str = "t") -> Submission:
    return Submission(trial_id=name, attempt=1, executor="allocation", job_id=job_id,
                      folder=f"{run.name}/{name}.1")  # fmt: skip


@pytest.mark.parametrize(
    ("said", "longest_s", "refusal"),
    [
        (scontrol("CANCELLED"), 0, AllocationOver("31 takes no further trial: .*CANCELLED")),
        (scontrol("RUNNING"), 0, AllocationOver("no time is left .* Start another salloc")),
        (scontrol("RUNNING"), 225, AllocationOver("no time is left")),
        (scontrol("RUNNING"), 220, None),
        (ALLOCATION.replace("[002-003]", "003"), 0, SubmissionError("node002 is not in")),
        (AWAY, 0, SchedulerDown("does not show")),
    ],
    ids=["over", "limit", "a longer one", "a short one", "lost a node", "away"],
)
def test_an_allocation_takes_a_trial_while_it_runs_has_its_nodes_and_the_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str | Reply,
    longest_s: float,
    refusal: Exception | None,
) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 300)
    run = tmp_path / "run"
    if longest_s:  # the longest step so far
        standing_step(run, "before", at_s=1000.0, end={"code": 0, "end_s": 1000.0 + longest_s})
    if refusal is None:
        assert executor(said).submit(LaunchSpec(argv=("true",)), request(run)) == "step-2"
        return
    with pytest.raises(type(refusal), match=str(refusal)) as caught:
        executor(said).submit(LaunchSpec(argv=("true",)), request(run))
    assert type(caught.value) is type(refusal)
    assert not (run / "t.1").exists()


# -- how a step ended -----------------------------------------------------------------------------


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
    return submission(run, "step-1", name)


BEGUN = Outcome(state=State.RUNNING)
LIMIT = "slurmstepd: error: *** STEP 31.3 ON n1 CANCELLED AT 2026-11-23T09:12:01{} ***\n"
CANCELLED = ALLOCATION.replace("RUNNING", "CANCELLED").replace("=Unknown", "=100")
LISTED = f"31.0{SEPARATOR}xlt-t"


@pytest.mark.parametrize(
    ("known", "slurm", "steps", "expected"),
    [
        ({"end": {"code": 0, "end_s": 99.0}, "rank": OK}, UNKNOWN, "", (State.COMPLETED, "")),
        ({"pid": os.getpid()}, ALLOCATION, "", (State.PENDING, "starting")),
        ({"pid": os.getpid(), "rank": BEGUN}, ALLOCATION, "", (State.RUNNING, "RUNNING")),
        ({"rank": BEGUN}, ALLOCATION, LISTED, (State.RUNNING, "RUNNING")),
        ({"rank": OK}, ALLOCATION, "", (State.COMPLETED, "srun was lost")),
        ({}, ALLOCATION, "", (State.LOST, "script of its step was killed")),
        ({"end": {"code": 1, "end_s": 96.0}}, ALLOCATION, LISTED, (State.PENDING, "starting")),
        ({"end": {"code": 1, "end_s": 96.0}}, scontrol("COMPLETING"), "",
         (State.PENDING, "starting")),
        ({"end": {"code": 1, "end_s": 96.0}, "said": "srun: error: Socket timed out\n"},
         ALLOCATION, "", (State.LOST, "step did not begin, .*Socket timed out")),
        ({"end": {"code": 137, "end_s": 96.0}, "rank": BEGUN}, ALLOCATION, "",
         (State.FAILED, "srun ended with 137")),
        ({"end": {"code": 1, "end_s": 96.0}, "rank": BEGUN,
          "said": LIMIT.format(" DUE TO TIME LIMIT")},
         ALLOCATION, "", (State.TIMEOUT, "the step's limit")),
        ({"end": {"code": 1, "end_s": 96.0}, "rank": BEGUN, "said": LIMIT.format("")},
         ALLOCATION, "", (State.CANCELLED, "CANCELLED: STEP 31.3")),
        ({"end": {"code": 128, "end_s": 96.0}, "rank": rank(State.CANCELLED), "is_cancelled": True},
         ALLOCATION, "", (State.CANCELLED, "")),
        ({"end": {"code": 1, "end_s": 96.0}}, CANCELLED, "",
         (State.PREEMPTED, "allocation 31 ended before")),
        ({"end": {"code": 1, "end_s": 96.0}, "rank": BEGUN}, scontrol("PENDING"), "",
         (State.REQUEUED, "allocation 31 ended: PENDING, put back")),
        ({"end": {"code": 1, "end_s": 96.0}, "rank": BEGUN}, CANCELLED, "",
         (State.CANCELLED, "allocation 31 ended: CANCELLED")),
        ({"end": {"code": 1, "end_s": 60.0}, "rank": BEGUN}, CANCELLED, "",
         (State.FAILED, "srun ended with 1")),
        ({"rank": OK}, CANCELLED, "", (State.COMPLETED, "")),
    ],
    ids=[
        "ended well: Slurm is not asked",
        "its script waits",
        "runs",
        "runs on without its script",
        "ended without its script",
        "its script was killed before it began",
        "srun ended, its step has not",
        "srun ended, and so does the allocation",
        "srun could not begin it",
        "killed",
        "its own time limit",
        "a person cancels it",
        "we cancelled it before its trainer began",
        "the allocation was over before it began",
        "the allocation was put back",
        "cut off with the allocation",
        "failed before the allocation ended",
        "ended well before the allocation did",
    ],
)  # fmt: skip
def test_where_a_step_stands(
    tmp_path: Path,
    known: dict[str, Any],
    slurm: str | Reply,
    steps: str,
    expected: tuple[State, str],
) -> None:
    each = standing_step(tmp_path / "run", **known)
    found = executor(slurm, steps=steps).poll([each], root=tmp_path)["step-1"]
    assert (found.state, found.allocation) == (expected[0], "31"), found
    assert re.search(expected[1], found.reason)
    is_lost = found.state is State.LOST and not (tmp_path / each.folder / allocation.ENDED).exists()
    is_marked = is_lost or known.get("is_cancelled", False)
    assert (tmp_path / each.folder / payload.CANCEL).exists() is is_marked, "a late one runs not"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(137, (State.FAILED, 9)), (0, (State.COMPLETED, None))],
    ids=["killed", "well"],
)
def test_a_step_that_ends_while_slurm_is_asked_is_told_by_its_end(
    tmp_path: Path, code: int, expected: tuple[State, int | None]
) -> None:
    each = standing_step(tmp_path / "run", rank=BEGUN if code else OK)
    answers = Scripted(scontrol=Reply(code=0, out=ALLOCATION), squeue=Reply(code=0))

    def run(words: Sequence[str]) -> Reply:
        end = json.dumps({"code": code, "end_s": 96.0})
        (tmp_path / each.folder / allocation.ENDED).write_text(end)
        return answers(words)

    made = AllocationExecutor(environ=INSIDE, run=run, round_s=0.0)
    found = made.poll([each], root=tmp_path)["step-1"]
    assert (found.state, found.signal) == expected, found
    assert found.reason != "srun was lost"
