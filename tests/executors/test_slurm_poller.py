"""What the poller asks Slurm and decides, of jobs and of steps of an allocation."""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors import AllocationOver, Request, SchedulerDown, payload
from pytest_xlatune.executors.slurm import allocation
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Reply
from pytest_xlatune.executors.slurm._poller import Poller
from pytest_xlatune.executors.slurm.allocation import AllocationExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.executors.replies import (
    AWAY,
    NO_ACCOUNTING,
    OK,
    TOLD_TO_END,
    UNKNOWN,
    Scripted,
    rank,
    row,
    scontrol,
)
from tests.helpers.tables import rows

RUNS = Reply(code=0, out=scontrol("RUNNING"))


class Polled:
    """A poller, its clock, and the folder of its jobs 31 and 32."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.slurm: Callable[[Sequence[str]], Reply] = Scripted(
            scontrol=UNKNOWN, sacct=NO_ACCOUNTING
        )
        self.folder, self.other = folder, folder.parents[1] / "t2" / "1"
        self.poller = Poller(run=self.run, clock=lambda: self.now_s)

    def run(self, argv: Sequence[str]) -> Reply:
        return self.slurm(argv)

    def says(self, **answers: Reply | Sequence[Reply]) -> Scripted:
        self.slurm = scripted = Scripted(**answers)
        return scripted

    def look(self, *, after_s: float = 0.0) -> Outcome:
        self.now_s += after_s
        return self.poller.poll({"31": self.folder})["31"]

    def both(self, *, after_s: float) -> tuple[State, State]:
        self.now_s += after_s
        found = self.poller.poll({"31": self.folder, "32": self.other})
        return found["31"].state, found["32"].state

    def write(self, name: str, outcome: Outcome) -> None:
        (self.folder / name).write_text(json.dumps(outcome.to_json()), encoding="utf-8")


@pytest.fixture
def polled(folder: Path) -> Polled:
    return Polled(folder)


def test_one_request_of_the_controller_serves_all_jobs_and_all_askers(tmp_path: Path) -> None:
    lines = (row("RUNNING", JobID=str(31 + i), WorkDir=f"/w/pp8/cell/t{i}/1") for i in range(40))
    queue = "\n".join(each.rpartition(SEPARATOR)[0] for each in lines)
    slurm, now_s = Scripted(squeue=Reply(code=0, out=queue), sacct=NO_ACCOUNTING), 1000.0
    poller = Poller(run=slurm, clock=lambda: now_s, round_s=3)
    folders = {str(31 + i): tmp_path / "pp8" / "cell" / f"t{i}" / "1" for i in range(40)}
    for _ in range(50):
        assert poller.poll(folders)["31"].state is State.RUNNING
        now_s += 0.1
    assert len(slurm.asked) == 2, "5 s of asking, a round every 3 s"
    assert slurm.asked[0][slurm.asked[0].index("-u") + 1] == getpass.getuser()


def test_the_queue_behind_what_runs_is_asked_for_now_and_then(polled: Polled) -> None:
    """Slurm may have thousands of jobs of others: what we ask for does not grow with them."""
    waits = scontrol("PENDING", reason="Priority").replace("JobId=31", "JobId=32")
    state, asked = "RUNNING", list[str]()

    def slurm(argv: Sequence[str]) -> Reply:
        asked.append(argv[-1])
        said = waits.replace("t1/1", "t2/1") if argv[-1] == "32" else scontrol(state)
        return Reply(code=0, out=said)

    polled.slurm = slurm
    for _ in range(20):
        assert polled.both(after_s=3) == (State.RUNNING, State.PENDING)
    assert (asked.count("31"), asked.count("32")) == (20, 2)
    state = "COMPLETED"
    for _ in range(2):
        polled.both(after_s=3)
    assert asked[-2:] == ["31", "32"], "the next one may have started"


@rows(
    "said",
    {
        "garbage": Reply(code=0, out="\x00garbage \ufffd\n" * 20),
        "an error of its own": Reply(code=1, err="scontrol: fatal: read_slurm.conf: garbage"),
    },
)
def test_answers_without_our_jobs_are_a_scheduler_that_is_down(polled: Polled, said: Reply) -> None:
    polled.says(scontrol=[RUNS, *[said] * 290, RUNS], squeue=said, sacct=said)
    assert polled.look().state is State.RUNNING
    for _ in range(290):
        with pytest.raises(SchedulerDown):
            polled.look(after_s=3)
    assert polled.look(after_s=3).state is State.RUNNING


def test_a_controller_that_stays_away_ends_the_wait(polled: Polled) -> None:
    polled.says(scontrol=[*[AWAY] * 60, RUNS, AWAY])
    for _ in range(60):
        with pytest.raises(SchedulerDown, match="has not answered for"):
            polled.look(after_s=14)
    assert polled.look(after_s=14).state is State.RUNNING
    with pytest.raises(SchedulerDown):
        polled.look(after_s=14)
    with pytest.raises(SubmissionError, match="gave up after 900 s") as caught:
        polled.look(after_s=901)
    assert not isinstance(caught.value, SchedulerDown)


def test_empty_rounds_in_a_row_are_lost_unless_the_log_grows(polled: Polled) -> None:
    polled.says(scontrol=[RUNS, UNKNOWN, UNKNOWN, RUNS, UNKNOWN], sacct=NO_ACCOUNTING)
    seen = [polled.look(after_s=10) for _ in range(9)]
    assert "round 2 of 20" in seen[2].reason
    assert "round 1 of 20" in seen[4].reason, "an answer in between starts the count again"
    for step in range(60):
        with (polled.folder / "log.0.txt").open("a") as log:
            log.write(f"completed step: {step}\n")
        assert polled.look(after_s=3).state is State.RUNNING
    last = [polled.look(after_s=10).state for _ in range(19)]
    assert last == [State.RUNNING] * 18 + [State.LOST]


def test_what_the_controller_lost_is_lost_whatever_stays_open_in_the_books(polled: Polled) -> None:
    """Killed before it saved the job: slurmdbd knows its begin, and never hears of an end."""
    waits = Reply(code=0, out=scontrol("PENDING"))
    polled.says(scontrol=[waits, UNKNOWN], sacct=Reply(code=0, out=row("RUNNING")))
    seen = [polled.look(after_s=10).state for _ in range(21)]
    assert seen == [State.PENDING] * 20 + [State.LOST]


@rows(
    "in_books, last",
    {
        "it is in no books": (NO_ACCOUNTING, State.LOST),
        "its end is in the books": (
            Reply(code=0, out=row("TIMEOUT", JobID="32").replace("t1/1", "t2/1")), State.TIMEOUT),
        "its end may be on its way to the books": (
            Reply(code=0, out=row("RUNNING", JobID="32").replace("t1/1", "t2/1")), State.PENDING),
    },
)  # fmt: skip
def test_one_job_of_several_is_lost(polled: Polled, in_books: Reply, last: State) -> None:
    known = {"scontrol": RUNS, "sacct": in_books}
    polled.slurm = lambda argv: UNKNOWN if argv[-1] == "32" else known[argv[0]]
    states = [polled.both(after_s=31) for _ in range(4)]
    assert states[-1] == (State.RUNNING, last)
    assert {mine for mine, _ in states} == {State.RUNNING}


DIED = Outcome(state=State.FAILED, signal=9, end_s=20.0)
OF_CANCEL = Outcome(state=State.FAILED, signal=15, end_s=20.0)
OOM_KILL = "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=31.0. Some of your"
OOM_TASK = "srun: error: n2: task 1: Out Of Memory"


@rows(
    "slurm, ranks, outcomes, state",
    {
        "Slurm has forgotten, all ranks wrote": ("", 2, [OK, OK], "completed"),
        "Slurm has forgotten, a rank ended without a word": ("", 2, [OK], "failed"),
        "cancelled after both ranks had ended": ("CANCELLED", 2, [OK, OK], "completed"),
        "cancelled, and the second was told to end": (
            "CANCELLED", 2, [OK, TOLD_TO_END], "cancelled"),
        "cancelled before one had begun": ("CANCELLED", 0, [], "cancelled"),
        "it died of our cancel, and Slurm's word comes later": (
            "FAILED", 1, [OF_CANCEL], "cancelled"),
    },
)  # fmt: skip
def test_who_cancels_too_late_ends_nothing(
    polled: Polled, slurm: str, ranks: int, outcomes: list[Outcome], state: str
) -> None:
    for number in range(ranks):
        (polled.folder / payload.name_of("claimed", number)).write_text("{}")
    for number, outcome in enumerate(outcomes):
        polled.write(payload.name_of("outcome", number), outcome)
    if OF_CANCEL in outcomes:
        (polled.folder / payload.CANCEL).touch()
    if slurm:
        polled.says(scontrol=Reply(code=0, out=scontrol(slurm, "0:15")), sacct=NO_ACCOUNTING)
    found = polled.look()
    assert found.state == state
    assert (slurm or "Slurm has forgotten") in found.reason


@pytest.mark.parametrize("has_outcome", [True, False])
@pytest.mark.parametrize("said", [OOM_KILL, OOM_TASK])
def test_a_step_that_ran_out_of_memory_is_told_where_its_job_only_failed(
    polled: Polled, said: str, *, has_outcome: bool
) -> None:
    polled.says(scontrol=Reply(code=0, out=scontrol("FAILED", "0:9")))
    (polled.folder / "submitit").mkdir()
    (polled.folder / "submitit" / "31_0_log.err").write_text(f"srun: a line\n{said}\n")
    if has_outcome:
        polled.write("outcome.json", DIED)
    outcome = polled.look()
    assert (outcome.state, outcome.signal) == (State.OUT_OF_MEMORY, 9)
    assert outcome.reason.startswith(f"OUT_OF_MEMORY: {said}")


def begins(folder: Path, *, at_s: int) -> None:
    """The job's script begins, and says so as it does whenever it begins."""
    file = folder / "submitit" / "31_begun"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    os.utime(file, (at_s, at_s))


def claims(folder: Path, *, at_s: int, ranks: int = 2) -> None:
    for number in range(ranks):
        claim = folder / payload.name_of("claimed", number)
        claim.write_text("{}")
        os.utime(claim, (at_s, at_s))


def test_the_end_of_the_first_of_two_starts_is_requeued(polled: Polled) -> None:
    """Released at once, a job was FAILED before its script began again: `exit-code`, exit 1."""
    answers = [scontrol("FAILED", code="1:0"), *[scontrol("PENDING", reason="BeginTime")] * 2]

    def slurm(_: Sequence[str]) -> Reply:
        begins(polled.folder, at_s=100)
        return Reply(code=0, out=answers.pop())

    polled.slurm = slurm
    assert not polled.look().is_requeued, "it begins while Slurm is asked"
    claims(polled.folder, at_s=101, ranks=1)
    polled.write("outcome.json", TOLD_TO_END)
    assert polled.look(after_s=10).is_requeued
    assert polled.look(after_s=10).state is State.REQUEUED


@rows(
    "claimed_s, outcomes, state",
    {
        "put back before a rank claimed it": (250, [OK, OK], "completed"),
        "put back after the last step": (101, [OK, OK], "completed"),
        "failed by itself": (101, [rank(State.FAILED, code=41)], "failed"),
        "killed without a word": (101, [], "requeued"),
    },
)
def test_what_a_second_start_means_follows_from_the_first(
    polled: Polled, claimed_s: int, outcomes: list[Outcome], state: str
) -> None:
    claims(polled.folder, at_s=claimed_s)
    begins(polled.folder, at_s=240)
    for number, outcome in enumerate(outcomes):
        polled.write(payload.name_of("outcome", number), outcome)
    if outcomes:
        assert polled.look().state == state, "Slurm has forgotten"
    again = Polled(polled.folder)
    again.says(scontrol=Reply(code=0, out=scontrol("COMPLETED")))
    assert again.look().state == state


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
    *,
    pid: int = 1,
    end: dict[str, float] | None = None,
    said: str = "",
    rank: Outcome | None = None,
    is_cancelled: bool = False,
) -> Submission:
    """The folder of a step whose script is dead, or is the process `pid`."""
    folder = run / "t.1"
    (folder / "submitit").mkdir(parents=True)
    process = {**payload.identity(pid), "at_s": 95.0}
    if pid == 1:
        process["start_ticks"] = 0
    step = {"job_id": "step-1", "allocation": "31", "name": "xlt-t", "nodes": ["node002"]}
    files = {allocation.STEP: {**step, "process": process}, allocation.ENDED: end}
    if rank is not None:
        claim = {**payload.identity(os.getpid()), "at_s": 95.0}
        files |= {"claimed.json": claim, "started.json": claim}
        files["outcome.json"] = rank.to_json() if rank.state.is_final else None
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    (folder / "submitit" / "31_0_log.err").write_text(said)
    if is_cancelled:
        (folder / payload.CANCEL).touch()
    return Submission(
        trial_id="t", attempt=1, executor="allocation", job_id="step-1", folder="run/t.1"
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
                         AllocationOver(r"node009 is not in .* has node\[002-003\]")),
        "away": ("", 290, "node002", SchedulerDown("does not show allocation 31: ")),
    },
)  # fmt: skip
def test_what_an_allocation_takes(
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
        "its script was killed before it began": ({}, ENDLESS, "lost: .*script .* was killed"),
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
def test_steps(tmp_path: Path, known: dict[str, Any], slurm: str, expected: str) -> None:
    step = standing_step(tmp_path / "run", **known)
    steps, said = (LISTED, ENDLESS) if slurm == LISTED else ("", slurm)
    found = executor(said, steps=steps).poll([step], root=tmp_path)["step-1"]
    assert found.allocation == "31"
    assert re.match(expected, f"{found.state}: {found.reason}")
    # a late one runs not
    is_marked = not known or "is_cancelled" in known
    assert (tmp_path / step.folder / payload.CANCEL).exists() is is_marked


def test_a_step_that_ends_while_slurm_is_asked(tmp_path: Path) -> None:
    step = standing_step(tmp_path / "run", rank=BEGUN)
    answers = Scripted(scontrol=Reply(code=0, out=ENDLESS), squeue=Reply(code=0))

    def run(words: Sequence[str]) -> Reply:
        (tmp_path / step.folder / allocation.ENDED).write_text(json.dumps(ended(137)))
        return answers(words)

    made = AllocationExecutor(environ=INSIDE, run=run, round_s=0.0)
    found = made.poll([step], root=tmp_path)["step-1"]
    assert (found.state, found.signal) == ("failed", 9)
