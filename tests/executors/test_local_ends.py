"""A local job outlives its submitter, is found again, and ends when told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import read_started
from pytest_xlatune.model.result import State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.machine import HELD, SLEEP, Machine, job_id_of, submitter
from tests.helpers.payloads import PATH
from tests.helpers.waiting import LIMIT_S, until


def test_a_submitter_that_is_killed_leaves_a_job_that_others_see_to_its_end(
    machine: Machine,
) -> None:
    with submitter(machine, "a", "sh", "-c", HELD) as process:
        job = machine.submission("a", job_id_of(process))
        process.kill()
        process.wait(LIMIT_S)
    machine.running(job)
    (machine.root / "a" / "go").touch()
    assert machine.final(job).exit_code == 4


def test_ctrl_c_in_the_submitters_terminal_does_not_reach_the_job(machine: Machine) -> None:
    with submitter(machine, "a", "sleep", "300") as process:
        job = machine.submission("a", job_id_of(process))
        machine.running(job)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(LIMIT_S)
    claim, trainer = machine.running(job)
    assert claim.is_alive
    assert trainer.is_alive


def test_cancel_right_after_submission_starts_nothing_or_ends_it(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    machine.cancel(job)
    assert machine.final(job).state is State.CANCELLED
    started = read_started(machine.root / "a")
    assert started is None or not started.is_alive


def test_cancel_of_a_finished_trial_changes_nothing(machine: Machine) -> None:
    job = machine.submit("a", LaunchSpec(argv=("true",), env=PATH))
    before = machine.final(job)
    machine.cancel(job)
    assert machine.poll(job) == before
    assert not (machine.root / "a" / payload.CANCEL).exists()


def test_a_killed_payload_is_lost_and_its_trainer_dead(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    claim, trainer = machine.running(job)
    os.kill(claim.pid, signal.SIGKILL)
    found = machine.final(job)
    assert found.state is State.LOST
    assert found.start_s is not None
    until(lambda: not trainer.is_alive)


def test_cancel_of_a_lost_trial_ends_what_it_left(machine: Machine) -> None:
    script = "sleep 300 & echo $! > child; wait"
    job = machine.submit("a", LaunchSpec(argv=("sh", "-c", script), env=PATH))
    claim, _ = machine.running(job)
    file = machine.root / "a" / "child"
    child = int(until(lambda: file.read_text() if file.exists() else ""))
    os.kill(claim.pid, signal.SIGKILL)
    assert machine.final(job).state is State.LOST
    assert payload.start_ticks(child) is not None
    machine.cancel(job)
    assert payload.start_ticks(child) is None


def test_the_job_is_the_payload_in_a_session_of_its_own_and_nothing_stands_between(
    machine: Machine,
) -> None:
    job = machine.submit("a", SLEEP)
    claim, trainer = machine.running(job)
    assert job.job_id == f"{claim.pid}.{claim.start_ticks}"
    assert os.getsid(claim.pid) == claim.pid != os.getsid(0)
    parent = payload._stat(trainer.pid)
    assert parent is not None
    assert parent.parent == claim.pid


@pytest.mark.parametrize("job_id", [f"{os.getpid()}.1", "1.999999999"], ids=["ours", "init's"])
def test_a_reused_process_id_is_not_taken_for_the_job(machine: Machine, job_id: str) -> None:
    (machine.root / "a").mkdir()
    assert machine.poll(machine.submission("a", job_id)).state is State.LOST


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, State.RUNNING),
        ({"start_ticks": 1}, State.LOST),
        ({"boot_id": "the-last-boot"}, State.LOST),
        ({"host": "elsewhere"}, State.RUNNING),
    ],
    ids=["this process", "an id used again", "the machine was restarted", "on another machine"],
)
def test_a_payload_is_known_by_more_than_its_process_id(
    tmp_path: Path, change: dict[str, object], state: State
) -> None:
    host, boot_id = payload.boot()
    ticks = payload.start_ticks(os.getpid())
    process = {"host": host, "boot_id": boot_id, "pid": os.getpid(), "start_ticks": ticks}
    (tmp_path / "a").mkdir()
    for name in (payload.name_of("claimed"), payload.name_of("started")):
        secure_files.write_json(tmp_path / "a" / name, {**process, "at_s": 1.0, **change})
    found = Machine(tmp_path).poll(
        Submission(trial_id="t", attempt=1, executor="local", job_id="1.1", folder="a")
    )
    assert found.state is state
    assert ("only that machine" in found.reason) == ("host" in change)


def test_a_claim_that_is_being_written_is_no_error(machine: Machine) -> None:
    (machine.root / "a").mkdir()
    (machine.root / "a" / payload.name_of("claimed")).touch()
    me = f"{os.getpid()}.{payload.start_ticks(os.getpid())}"
    job = Submission(trial_id="a", attempt=1, executor="local", job_id=me, folder="a")
    assert machine.poll(job).state is State.PENDING
