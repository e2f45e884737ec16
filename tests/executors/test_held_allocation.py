"""An allocation for trials: what is told before the start, and what its driver takes."""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.slurm import driver
from pytest_xlatune.executors.slurm._commands import Reply
from pytest_xlatune.executors.slurm._held import OVER, Held, faults, held_in
from pytest_xlatune.executors.slurm._poller import ALL_EMPTY_ROUNDS
from pytest_xlatune.executors.slurm.allocation import AllocationExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from tests.helpers.played import Scripted, scontrol

ALLOCATION = scontrol("RUNNING").replace("EndTime=1795173260", "EndTime=Unknown")
INSIDE = {"SLURM_JOB_ID": "31"}


def told(said: str, *, nodelist: tuple[str, ...] = ("node002",), **options: int) -> str:
    found = faults(
        nodelist=nodelist,
        resources=Resources(**options),  # type: ignore[arg-type]
        environ=INSIDE,
        run=Scripted(scontrol=Reply(code=0, out=said)),
    )
    return "; ".join(found)


ENDS_S = 1795173260.0  # EndTime of a job, as `scontrol` says it


def test_an_allocation_that_is_fit_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not told(ALLOCATION)
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 600)
    assert not told(scontrol("RUNNING"), time_limit_s=600)


def test_a_plan_says_how_long_the_allocation_still_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 3 * 3600)
    run = Scripted(scontrol=Reply(code=0, out=scontrol("RUNNING")))
    said = AllocationExecutor(environ=INSIDE, run=run).time_note()
    assert said == "allocation 31 ends in 3 h; trials that have not run wait for another"
    assert AllocationExecutor(environ={}, run=run).time_note() == "", "outside of one"


@pytest.mark.parametrize(
    ("said", "nodelist", "expected"),
    [
        (scontrol("COMPLETED"), (), "allocation 31 .* does not run: "),
        (ALLOCATION, ("node002", "node009"), r"node009 is not in .* has node\[002-003\]"),
        (ALLOCATION.replace("Subscribe=NO", "Subscribe=OK"), (), "salloc --exclusive"),
        (scontrol("RUNNING"), (), "ends in 5 min, before a trial must be over"),
    ],
    ids=["over", "another node", "shared", "too short"],
)
def test_an_allocation_that_is_not_fit_is_told(
    monkeypatch: pytest.MonkeyPatch, said: str, nodelist: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: ENDS_S - 300)
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(told(said, nodelist=nodelist))


def allocation(run: Path, number: int = 1, **word: object) -> Held:
    """Write the folder of an allocation, and what its driver said last."""
    folder = run / f"held-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    said = {"job_id": f"{30 + number}", "work_dir": "/lustre"}
    (folder / driver.HELD_JSON).write_text(json.dumps(said))
    (folder / driver.DRIVER_JSON).write_text(json.dumps(word))
    return held_in(run)[-1]


def submission(run: Path, name: str, **files: object) -> Submission:
    """An attempt that was submitted, with these files in its folder."""
    folder = run / f"{name}.1"
    folder.mkdir(parents=True)
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return Submission(
        trial_id=name,
        attempt=1,
        executor="allocation",
        job_id=f"step-{name}",
        folder=f"{run.name}/{name}.1",
    )


@pytest.mark.parametrize(("begun", "expected"), [(False, State.PREEMPTED), (True, State.CANCELLED)])
def test_a_step_that_never_began_was_not_cancelled_by_a_person(
    tmp_path: Path, begun: bool, expected: State
) -> None:
    """Between a driver's look and its srun an allocation may end."""
    run = tmp_path / "run"
    folder = allocation(run).folder
    over = Outcome(state=State.CANCELLED, reason="CANCELLED by 1000", end_s=90.0)
    (folder / OVER).write_text(json.dumps(over.to_json()))
    taken = {"held": "held-1", "allocation": "31", "step": "xlt-t", "at_s": 95.0}
    late = submission(run, "t", taken=taken, ended={"code": 1, "end_s": 96.0})
    if begun:
        (tmp_path / late.folder / payload.name_of("claimed", 1)).touch()
    executor = AllocationExecutor(environ={}, run=Scripted())
    found = executor.poll([late], root=tmp_path)["step-t"]
    assert found.state is expected, found
    assert found.allocation == "31"


def test_no_time_for_what_waits_is_told_once_what_runs_is_over(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder = allocation(run, is_full=True, took=1).folder
    answer = re.sub(r"WorkDir=.* Comment", "WorkDir=/lustre Comment", ALLOCATION)
    executor = AllocationExecutor(
        environ=INSIDE, run=Scripted(scontrol=Reply(code=0, out=answer)), round_s=0.0
    )
    taken = {"held": "held-1", "allocation": "31", "step": "xlt-r", "at_s": 1.0}
    runs, waits = submission(run, "r", taken=taken), submission(run, "w")
    with (folder / driver.DRIVING).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its driver is there
        found = executor.poll([runs, waits], root=tmp_path)
        assert {each.state for each in found.values()} == {State.PENDING}
        (tmp_path / runs.folder / driver.ENDED).write_text('{"code": 1, "end_s": 2.0}')
        with pytest.raises(SubmissionError, match="takes no further trial: no time is left"):
            executor.poll([runs, waits], root=tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What Slurm says of the allocation; srun ends well."""
    monkeypatch.setattr(driver, "IDLE_S", 0.5)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def say(state: str) -> None:
        text = ALLOCATION.replace("JobState=RUNNING", f"JobState={state}") if state else ""
        monkeypatch.setattr(driver, "_run", lambda _: text)

    return say


def drive(
    run: Path,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    text: str = "#!/bin/sh\n",
    **said: object,
) -> Path:
    """Let a driver work off a queue of one trial; return the attempt's folder."""
    srun = path / "srun"
    srun.write_text(text)
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(path), prepend=":")
    folder = run / "t.1"
    (folder / "submitit").mkdir(parents=True, exist_ok=True)
    (run / driver.STEPS).mkdir(exist_ok=True)
    entry = {"folder": str(folder), "nodes": [], "step": "xlt-t", "limit_s": 60, "srun": []}
    entry |= said
    (run / driver.STEPS / "000001-t.1.json").write_text(json.dumps(entry))
    driver.main(str(allocation(run).folder))
    return folder


def test_a_driver_takes_what_waits_and_ends_when_nothing_does(
    tmp_path: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said("RUNNING")
    monkeypatch.setenv("SLURM_CONF", "/etc/lab/slurm.conf")
    monkeypatch.setenv("SRUN_PARTITION", "other")
    folder = drive(tmp_path / "run", tmp_path, monkeypatch, text="#!/bin/sh\nenv\n")
    assert json.loads((folder / driver.TAKEN).read_text())["allocation"] == "31"
    assert json.loads((folder / driver.ENDED).read_text())["code"] == 0
    seen = (folder / "submitit" / "31_0_log.err").read_text().splitlines()
    assert "SLURM_CONF=/etc/lab/slurm.conf" in seen, "it asks the cluster of its allocation"
    assert "SRUN_PARTITION=other" not in seen


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "SUSPENDED", "TIMEOUT", ""])
def test_a_driver_takes_nothing_in_an_allocation_that_does_not_run(
    tmp_path: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    said(state)
    folder = drive(tmp_path / "run", tmp_path, monkeypatch)
    assert not (folder / driver.TAKEN).exists()


def test_a_driver_takes_nothing_while_the_controller_is_away(
    tmp_path: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An srun would fail at once, and the whole queue with it."""
    said("RUNNING")
    run, answer = tmp_path / "run", driver._run
    asked: list[bool] = []

    def away_soon(argv: list[str]) -> str | None:
        asked.append((run / "t.1" / driver.TAKEN).exists())
        return None if 1 < len(asked) < 4 else answer(argv)

    monkeypatch.setattr(driver, "_run", away_soon)
    folder = drive(run, tmp_path, monkeypatch)
    assert len(asked) >= 4
    assert not any(asked[:4])
    assert json.loads((folder / driver.ENDED).read_text())["code"] == 0
    assert len(asked) < 8, "a controller that is away is not asked all the time"


def test_an_allocation_in_which_no_step_can_begin_takes_no_further_trial(
    tmp_path: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Memory required by task is not available`, after a restart of the controller."""
    said("RUNNING")
    monkeypatch.setattr(driver, "_AGAIN_S", 0.3)
    run = tmp_path / "run"
    steps = [run / f"{name}.1" for name in ("u", "v")]
    (run / driver.STEPS).mkdir(parents=True)
    for number, folder in enumerate(steps, 2):
        (folder / "submitit").mkdir(parents=True)
        entry = {"folder": str(folder), "nodes": [], "step": "xlt", "limit_s": 60, "srun": []}
        (run / driver.STEPS / f"{number:06d}-{folder.name}.json").write_text(json.dumps(entry))
    first = drive(run, tmp_path, monkeypatch, text="#!/bin/sh\nexit 1\n")
    at_s = [json.loads((each / driver.TAKEN).read_text())["at_s"] for each in (first, steps[0])]
    assert at_s[1] - at_s[0] >= 0.3
    assert not (steps[1] / driver.TAKEN).exists()
    word = held_in(run)[0].word
    assert word["is_full"]
    assert "could not start a step" in word["why"]


def test_a_step_that_srun_could_not_begin_says_nothing_of_its_profile(tmp_path: Path) -> None:
    run = tmp_path / "run"
    allocation(run)
    taken = {"held": "held-1", "allocation": "31", "step": "xlt-t", "at_s": 95.0}
    lost = submission(run, "t", taken=taken, ended={"code": 1, "end_s": 96.0})
    said = tmp_path / lost.folder / "submitit" / "31_0_log.err"
    said.parent.mkdir()
    said.write_text("srun: error: Unable to confirm allocation for job 31: Socket timed out\n")
    text = re.sub(r"WorkDir=\S*", "WorkDir=", ALLOCATION)
    slurm = Scripted(scontrol=Reply(code=0, out=text))
    executor = AllocationExecutor(environ={}, run=slurm, round_s=0.0)
    found = executor.poll([lost], root=tmp_path)["step-t"]
    assert found.state is State.LOST, found
    assert "did not begin" in found.reason
    assert "Socket timed out" in found.reason


@pytest.mark.parametrize(("ago_s", "expected"), [(0.0, True), (0.3, False)])
def test_a_step_that_ended_well_tells_of_that_moment_only(
    tmp_path: Path, said: Callable[[str], None], ago_s: float, expected: bool
) -> None:
    """Else the driver of an allocation that a person cancelled would take the next trial."""
    said("CANCELLED")
    now_s = time.monotonic()
    found = driver.Driver(held=tmp_path, job_id="31", payload=payload, state="RUNNING")
    found._asked_s, found._well_s, found.is_answered = now_s - 1, now_s - ago_s, True
    assert found._still_runs() is expected


def test_a_driver_takes_nothing_that_was_cancelled(
    tmp_path: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said("RUNNING")
    (tmp_path / "run" / "t.1").mkdir(parents=True)
    (tmp_path / "run" / "t.1" / payload.CANCEL).touch()
    folder = drive(tmp_path / "run", tmp_path, monkeypatch)
    assert not (folder / driver.TAKEN).exists()


def test_a_session_that_looks_whether_a_driver_runs_keeps_none_from_starting(
    tmp_path: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said("RUNNING")
    (tmp_path / "run" / "held-1").mkdir(parents=True)
    lock = (tmp_path / "run" / "held-1" / driver.DRIVING).open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    Timer(0.3, lock.close).start()
    folder = drive(tmp_path / "run", tmp_path, monkeypatch)
    assert (folder / driver.TAKEN).exists()


def at(said: str) -> str:
    """What Slurm says of the allocation, which the session was started in."""
    return re.sub(r"WorkDir=.* Comment", "WorkDir=/lustre Comment", said)


def test_an_allocation_whose_number_the_next_one_got_is_lost(tmp_path: Path) -> None:
    run = tmp_path / "pp8" / "cell" / "s1"
    for number in (1, 2):
        folder = allocation(run, number).folder
        said = {**json.loads((folder / driver.HELD_JSON).read_text()), "job_id": "31"}
        (folder / driver.HELD_JSON).write_text(json.dumps(said))
    answer = at(scontrol("RUNNING")).replace("held-1", "held-2")
    slurm = Scripted(scontrol=Reply(code=0, out=answer))
    executor = AllocationExecutor(environ={}, run=slurm, round_s=0.0)
    assert [said.state for _, said in executor._look(run)] == [State.LOST, State.RUNNING]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param("", State.RUNNING, id="itself"),
        pytest.param("SubmitTime=1795173999", State.LOST, id="another job of the same folder"),
    ],
)
def test_a_users_own_allocation_is_told_from_a_later_job_of_that_number(
    tmp_path: Path, changed: str, expected: State
) -> None:
    answer = re.sub(r"WorkDir=.* Comment", "WorkDir=/home/ada Comment", ALLOCATION)
    run = tmp_path / "run"
    slurm = Scripted(scontrol=Reply(code=0, out=answer))
    executor = AllocationExecutor(environ=INSIDE, run=slurm, round_s=0.0)
    executor._enter(run)
    said = re.sub(r"SubmitTime=\d+", changed, answer) if changed else answer
    slurm.answers["scontrol"] = [Reply(code=0, out=said)]
    for _ in range(ALL_EMPTY_ROUNDS):
        ((_, outcome),) = executor._look(run)
    assert outcome.state is expected
