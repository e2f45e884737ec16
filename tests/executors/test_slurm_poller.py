"""The poller where there is no Slurm: what it asks, how often, and what it decides."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_xlatune.executors import SchedulerDown, payload
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Reply
from pytest_xlatune.executors.slurm._poller import Poller
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.result import Outcome, State
from tests.helpers.played import (
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


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rounds(poller: Poller, clock: Clock, folder: Path, count: int) -> list[Outcome]:
    seen = []
    for _ in range(count):
        seen.append(poller.poll({"31": folder})["31"])
        clock.now += 10
    return seen


def test_one_request_of_the_controller_serves_all_jobs_and_all_askers(
    clock: Clock, tmp_path: Path
) -> None:
    rows = (row("RUNNING", JobID=str(31 + i), WorkDir=f"/w/pp8/cell/t{i + 1}/1") for i in range(40))
    queue = "\n".join(each.rpartition(SEPARATOR)[0] for each in rows)
    slurm = Scripted(squeue=Reply(code=0, out=queue), sacct=NO_ACCOUNTING)
    poller = Poller(run=slurm, clock=clock, round_s=3)
    folders = {str(31 + i): tmp_path / "pp8" / "cell" / f"t{i + 1}" / "1" for i in range(40)}
    for _ in range(50):
        assert poller.poll(folders)["31"].state is State.RUNNING
        clock.now += 0.1
    assert len(slurm.asked) == 2, "5 s of asking, a round every 3 s"
    assert slurm.asked[0][slurm.asked[0].index("-u") + 1] == getpass.getuser()


def test_a_job_that_no_round_has_asked_for_is_pending(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=Reply(code=0, out=scontrol("RUNNING")))
    poller = Poller(run=slurm, clock=clock)
    assert poller.poll({"31": folder})["31"].state is State.RUNNING
    assert poller.poll({"31": folder, "32": folder.parent / "2"})["32"].state is State.PENDING


def test_squeue_serves_where_scontrol_is_forbidden(clock: Clock, folder: Path) -> None:
    queue = row("TIMEOUT").rpartition(SEPARATOR)[0]
    slurm = Scripted(
        scontrol=Reply(code=1, err="scontrol: Permission denied"), squeue=Reply(code=0, out=queue)
    )
    (outcome,) = rounds(Poller(run=slurm, clock=clock), clock, folder, 1)
    assert outcome.state is State.TIMEOUT


def test_what_runs_is_asked_for_by_its_number_and_the_queue_behind_it_now_and_then(
    clock: Clock, folder: Path
) -> None:
    """Slurm may have thousands of jobs of others: what we ask for does not grow with them."""
    waiting = scontrol("PENDING", reason="Priority").replace("JobId=31", "JobId=32")
    waiting = waiting.replace("t1/1", "t2/1")
    ended = False

    def slurm(argv: Sequence[str]) -> Reply:
        asked.append(argv[-1])
        if argv[-1] == "32":
            return Reply(code=0, out=waiting)
        return Reply(code=0, out=scontrol("COMPLETED" if ended else "RUNNING"))

    asked: list[str] = []
    poller = Poller(run=slurm, clock=clock)
    both = {"31": folder, "32": folder.parents[1] / "t2" / "1"}
    for _ in range(20):
        assert poller.poll(both)["32"].reason == "PENDING (Priority)"
        clock.now += 3
    assert (asked.count("31"), asked.count("32")) == (20, 2)
    ended = True
    for _ in range(2):
        poller.poll(both)
        clock.now += 3
    assert asked[-2:] == ["31", "32"], "the next one may have started"


@pytest.mark.parametrize(
    "said",
    [
        Reply(code=0, out=""),
        Reply(code=0, out="\x00garbage \ufffd\n" * 20),
        Reply(code=1, err="scontrol: fatal: read_slurm.conf: garbage"),
        Reply(code=0, out="No jobs in the system\n"),
    ],
    ids=["nothing", "garbage", "an error of its own", "no jobs"],
)
@pytest.mark.parametrize("for_s", [9, 870])
def test_answers_without_a_word_of_our_jobs_are_a_scheduler_that_is_down(
    clock: Clock, folder: Path, said: Reply, for_s: int
) -> None:
    seen = [Reply(code=0, out=scontrol("RUNNING"))]
    back = [Reply(code=0, out=scontrol("RUNNING"))]
    slurm = Scripted(scontrol=[*seen, *[said] * (for_s // 3), *back], squeue=said, sacct=said)
    poller = Poller(run=slurm, clock=clock)
    states = []
    for _ in range(2 + for_s // 3):
        try:
            states.append(str(poller.poll({"31": folder})["31"].state))
        except SchedulerDown:
            states.append("down")
        clock.now += 3
    assert states == ["running", *["down"] * (for_s // 3), "running"]


def test_a_job_is_not_lost_while_its_log_grows(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=UNKNOWN, sacct=NO_ACCOUNTING)
    poller = Poller(run=slurm, clock=clock)
    for step in range(60):
        with (folder / "log.0.txt").open("a") as log:
            log.write(f"completed step: {step}\n")
        assert poller.poll({"31": folder})["31"].state is State.PENDING
        clock.now += 3


def test_one_job_is_lost_sooner_where_others_of_ours_are_known(clock: Clock, folder: Path) -> None:
    def slurm(argv: Sequence[str]) -> Reply:
        return Reply(code=0, out=scontrol("RUNNING")) if argv[-1] == "31" else UNKNOWN

    poller = Poller(run=slurm, clock=clock)
    states = []
    for _ in range(4):
        found = poller.poll({"31": folder, "32": folder.parents[1] / "t2" / "1"})
        states.append((found["31"].state, found["32"].state))
        clock.now += 31
    assert [each[1] for each in states][-1] is State.LOST
    assert {each[0] for each in states} == {State.RUNNING}


def test_a_trainer_that_dies_of_our_cancel_is_cancelled(clock: Clock, folder: Path) -> None:
    """The payload wrote signal 15 and Slurm says FAILED, just before its word CANCELLED comes."""
    (folder / "claimed.json").write_text("{}")
    died = Outcome(state=State.FAILED, signal=15, end_s=20.0)
    (folder / "outcome.json").write_text(json.dumps(died.to_json()))
    slurm = Scripted(scontrol=Reply(code=0, out=scontrol("FAILED", "0:15")))
    poller = Poller(run=slurm, clock=clock)
    (folder / "cancel").touch()
    assert poller.poll({"31": folder})["31"].state is State.CANCELLED


@pytest.mark.parametrize("has_outcome", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=31.0. Some of your processes",
        "srun: error: n2: task 1: Out Of Memory",
    ],
)
def test_a_step_that_ran_out_of_memory_is_told_where_its_job_only_failed(
    clock: Clock, folder: Path, said: str, *, has_outcome: bool
) -> None:
    (folder / "submitit").mkdir()
    (folder / "submitit" / "31_0_log.err").write_text(f"srun: a line\n{said}\n")
    if has_outcome:
        died = Outcome(state=State.FAILED, signal=9, end_s=20.0)
        (folder / "outcome.json").write_text(json.dumps(died.to_json()))
    slurm = Scripted(scontrol=Reply(code=0, out=scontrol("FAILED", "0:9")))
    outcome = Poller(run=slurm, clock=clock).poll({"31": folder})["31"]
    assert (outcome.state, outcome.signal) == (State.OUT_OF_MEMORY, 9)
    assert outcome.reason.startswith(f"OUT_OF_MEMORY: {said}")


def test_empty_rounds_in_a_row_are_lost(clock: Clock, folder: Path) -> None:
    slurm = Scripted(
        scontrol=[Reply(code=0, out=scontrol("RUNNING")), UNKNOWN, UNKNOWN,
                  Reply(code=0, out=scontrol("RUNNING")), UNKNOWN],
        sacct=NO_ACCOUNTING,
    )  # fmt: skip
    seen = rounds(Poller(run=slurm, clock=clock), clock, folder, 24)
    assert [each.state for each in seen] == [State.RUNNING] * 23 + [State.LOST]
    assert "round 2 of 20" in seen[2].reason
    assert "round 1 of 20" in seen[4].reason, "an answer in between starts the count again"


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        pytest.param({"outcome.json": OK, "outcome.1.json": OK}, State.COMPLETED, id="all wrote"),
        pytest.param({"outcome.json": OK}, State.FAILED, id="a rank ended without a word"),
        pytest.param({"outcome.json": TOLD_TO_END, "outcome.1.json": TOLD_TO_END},
                     State.CANCELLED, id="all were told to end"),
    ],
)  # fmt: skip
def test_the_payloads_word_stands_when_slurm_has_forgotten(
    clock: Clock, folder: Path, outcomes: Mapping[str, Outcome], state: State
) -> None:
    for name in ("claimed.json", "claimed.1.json"):
        (folder / name).write_text("{}")
    for name, outcome in outcomes.items():
        (folder / name).write_text(json.dumps(outcome.to_json()))
    slurm = Scripted(scontrol=UNKNOWN, sacct=NO_ACCOUNTING)
    (outcome,) = rounds(Poller(run=slurm, clock=clock), clock, folder, 1)
    assert outcome.state is state
    assert "Slurm has forgotten" in outcome.reason


@pytest.mark.parametrize(
    "error",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "scontrol: Socket timed out (60 s)",
    ],
    ids=["no connection", "no answer", "cut off", "the command hangs"],
)
def test_a_controller_that_is_away_is_waited_out_and_nothing_is_lost(
    clock: Clock, folder: Path, error: str
) -> None:
    slurm = Scripted(
        scontrol=[*[Reply(code=1, err=error)] * 60, Reply(code=0, out=scontrol("RUNNING"))]
    )
    poller = Poller(run=slurm, clock=clock, patience_s=900)
    for _ in range(60):
        with pytest.raises(SchedulerDown, match="has not answered for"):
            poller.poll({"31": folder})
        clock.now += 14
    assert poller.poll({"31": folder})["31"].state is State.RUNNING


def test_a_controller_that_stays_away_ends_the_wait(clock: Clock, folder: Path) -> None:
    poller = Poller(run=Scripted(scontrol=AWAY), clock=clock, patience_s=900)
    with pytest.raises(SchedulerDown):
        poller.poll({"31": folder})
    clock.now += 901
    with pytest.raises(SubmissionError, match="gave up after 900 s") as caught:
        poller.poll({"31": folder})
    assert not isinstance(caught.value, SchedulerDown)


def test_slurmdbd_that_is_absent_is_not_asked_every_round(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=UNKNOWN, sacct=NO_ACCOUNTING)
    rounds(Poller(run=slurm, clock=clock), clock, folder, 2)
    assert slurm.count("sacct") == 1


@pytest.mark.parametrize("in_books", ["PENDING", "RUNNING"])
def test_what_the_controller_lost_is_lost_whatever_stays_open_in_the_books(
    clock: Clock, folder: Path, in_books: str
) -> None:
    """Killed before it saved the job: slurmdbd knows its begin, and never hears of an end."""
    slurm = Scripted(
        scontrol=[Reply(code=0, out=scontrol("PENDING")), UNKNOWN],
        sacct=Reply(code=0, out=row(in_books)),
    )
    seen = rounds(Poller(run=slurm, clock=clock), clock, folder, 21)
    assert [each.state for each in seen] == [State.PENDING] * 20 + [State.LOST]


def test_open_books_alone_lose_no_job_in_three_rounds(clock: Clock, folder: Path) -> None:
    """The end of a job may be on its way to slurmdbd."""

    def slurm(argv: Sequence[str]) -> Reply:
        if argv[0] == "sacct":
            ended = "RUNNING" if clock.now < 1100 else "CANCELLED by 0"
            return Reply(code=0, out=row(ended, JobID="32").replace("t1/1", "t2/1"))
        return Reply(code=0, out=scontrol("RUNNING")) if argv[-1] == "31" else UNKNOWN

    poller, states = Poller(run=slurm, clock=clock), []
    for _ in range(12):
        found = poller.poll({"31": folder, "32": folder.parents[1] / "t2" / "1"})
        states.append(found["32"].state)
        clock.now += 10
    assert set(states[:10]) == {State.PENDING}
    assert states[-1] is State.CANCELLED


def begins(folder: Path, *, at_s: int) -> None:
    """The job's script begins, and says so as it does whenever it begins."""
    file = folder / "submitit" / "31_begun"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    os.utime(file, (at_s, at_s))


def claims(folder: Path, *, at_s: int, ranks: int = 2) -> None:
    for each in range(ranks):
        claim = folder / payload.name_of("claimed", each)
        claim.write_text("{}")
        os.utime(claim, (at_s, at_s))


def test_the_end_of_the_first_start_that_slurm_takes_for_the_second_s_is_requeued(
    clock: Clock, folder: Path
) -> None:
    """Released at once, a job was FAILED before its script began again: `exit-code`, exit 1."""
    answers = [scontrol("PENDING", reason="BeginTime"), scontrol("FAILED", code="1:0")]
    slurm = Scripted(scontrol=[Reply(code=0, out=each) for each in answers])
    begins(folder, at_s=100)
    claims(folder, at_s=101, ranks=1)
    (folder / "outcome.json").write_text(json.dumps(TOLD_TO_END.to_json()))
    poller = Poller(run=slurm, clock=clock)
    assert rounds(poller, clock, folder, 2)[-1].state is State.REQUEUED


@pytest.mark.parametrize(
    ("claimed_s", "outcomes", "state"),
    [
        pytest.param(250, (OK, OK), State.COMPLETED, id="put back before a rank claimed it"),
        pytest.param(101, (OK, OK), State.COMPLETED, id="put back after the last step"),
        pytest.param(101, (rank(State.FAILED, code=41),), State.FAILED, id="failed by itself"),
        pytest.param(101, (), State.REQUEUED, id="killed without a word"),
    ],
)
def test_what_a_second_start_means_follows_from_the_first(
    clock: Clock, folder: Path, claimed_s: int, outcomes: Sequence[Outcome], state: State
) -> None:
    claims(folder, at_s=claimed_s)
    begins(folder, at_s=240)
    for number, outcome in enumerate(outcomes):
        name = payload.name_of("outcome", number)
        (folder / name).write_text(json.dumps(outcome.to_json()))
    slurm = Scripted(scontrol=Reply(code=0, out=scontrol("COMPLETED")))
    assert Poller(run=slurm, clock=clock).poll({"31": folder})["31"].state is state
    if outcomes:
        gone = Scripted(scontrol=UNKNOWN, sacct=NO_ACCOUNTING)
        assert Poller(run=gone, clock=clock).poll({"31": folder})["31"].state is state


def test_a_job_that_begins_while_slurm_is_asked_was_not_put_back(
    clock: Clock, folder: Path
) -> None:
    def slurm(_: Sequence[str]) -> Reply:
        begins(folder, at_s=100)
        return Reply(code=0, out=scontrol("PENDING", reason="Resources"))

    assert not Poller(run=slurm, clock=clock).poll({"31": folder})["31"].is_requeued


@pytest.mark.parametrize(
    ("ended", "claims", "state"),
    [
        pytest.param([OK, OK], 2, State.COMPLETED, id="both ranks had ended"),
        pytest.param([OK], 2, State.CANCELLED, id="the second had not"),
        pytest.param([OK, TOLD_TO_END], 2, State.CANCELLED, id="the second was told to"),
        pytest.param([], 0, State.CANCELLED, id="none had begun"),
    ],
)
def test_who_cancels_too_late_ends_nothing(
    folder: Path, ended: list[Outcome], claims: int, state: State
) -> None:
    names = ["", ".1"]
    for name in names[:claims]:
        (folder / f"claimed{name}.json").write_text("{}", encoding="utf-8")
    for name, outcome in zip(names, ended, strict=False):
        text = json.dumps(outcome.to_json())
        (folder / f"outcome{name}.json").write_text(text, encoding="utf-8")
    slurm = Scripted(scontrol=Reply(code=0, out=scontrol("CANCELLED", "0:15")), sacct=NO_ACCOUNTING)
    seen = Poller(run=slurm).poll({"31": folder})["31"]
    assert seen.state is state
    assert "CANCELLED" in seen.reason
