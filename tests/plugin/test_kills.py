"""Killing anything at any moment loses no trial and measures none twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SLOW = """\
        profile("fast", "--xla_fast=1", env={"SLEEP_S": "1.5"}),
        profile("same", "--xla_other=1", env={"SLEEP_S": "1.5"}),
"""
TRIALS = 2 + 2 + 3 * 3
LIMIT_S = 150.0


def until(happens: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not happens():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text(encoding="ascii").split()]


def trainers(folder: Any) -> list[int]:
    """Return the running trainers of this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if f"{folder.path}/trainer.py".encode() in command.split(b"\0"):
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def start(folder: Any) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a session in the background; none outlives the test."""
    folder.write(profiles=SLOW)
    started: list[subprocess.Popen[bytes]] = []

    def begin(*args: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-q", *args]
        process = subprocess.Popen(
            argv, cwd=folder.path, stdout=subprocess.DEVNULL, start_new_session=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(folder: Any) -> list[str]:
    return [line["result"]["trial"]["profile"]["id"] for line in folder.events("trial-ended")]


def assert_each_trial_once(folder: Any) -> None:
    assert len(ended(folder)) == TRIALS
    measured = [line["result"]["status"] for line in folder.events("trial-ended")]
    assert measured == ["measured"] * TRIALS


def test_a_killed_worker_is_replaced_and_the_rest_goes_on(folder: Any, start: Any) -> None:
    session = start("-n2")
    until(lambda: len(ended(folder)) >= 2)
    workers = [
        pid
        for pid in children(session.pid)
        if b"exec(eval" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(workers[0], signal.SIGKILL)
    session.wait(LIMIT_S)
    folder.run().assert_outcomes(passed=5)
    assert_each_trial_once(folder)
    assert len(folder.submitted) == TRIALS


@pytest.mark.parametrize(
    ("workers", "by"),
    [
        pytest.param((), signal.SIGKILL, id="alone"),
        pytest.param(("-n2",), signal.SIGKILL, id="two workers"),
        pytest.param((), signal.SIGTERM, id="told to end"),
    ],
)
def test_a_killed_session_is_adopted(
    folder: Any, start: Any, workers: tuple[str, ...], by: signal.Signals
) -> None:
    session = start(*workers)
    until(lambda: len(ended(folder)) >= 2 and bool(trainers(folder)))
    (running,) = trainers(folder)
    os.kill(session.pid, by)
    session.wait()
    assert running in trainers(folder)  # a job outlives the session that submitted it
    folder.run("-n2").assert_outcomes(passed=5)
    assert_each_trial_once(folder)
    assert len(folder.submitted) == TRIALS


def test_a_killed_trainer_is_run_again(folder: Any, start: Any) -> None:
    session = start()
    until(lambda: bool(trainers(folder)) and len(folder.submitted) == 2)
    os.kill(trainers(folder)[0], signal.SIGKILL)
    assert session.wait(LIMIT_S) == 0
    assert_each_trial_once(folder)
    assert len(folder.submitted) == TRIALS + 1
    (retry,) = folder.events("decided")
    assert (retry["next"], retry["cls"]) == ("retry", "killed")


def test_ctrl_c_ends_what_nobody_waits_for(folder: Any, start: Any) -> None:
    session = start()
    until(lambda: bool(trainers(folder)) and len(folder.submitted) >= 2)
    os.kill(session.pid, signal.SIGINT)
    assert session.wait(LIMIT_S) == pytest.ExitCode.INTERRUPTED
    assert not trainers(folder)
    (interrupted,) = folder.events("decided")
    assert interrupted["next"] == "interrupted"
    folder.run().assert_outcomes(passed=5)
    assert_each_trial_once(folder)


def test_ctrl_c_can_leave_it_running(folder: Any, start: Any) -> None:
    session = start("--xlatune-keep-jobs")
    until(lambda: bool(trainers(folder)) and len(folder.submitted) >= 2)
    os.kill(session.pid, signal.SIGINT)
    session.wait(LIMIT_S)
    folder.run().assert_outcomes(passed=5)
    assert_each_trial_once(folder)
    assert len(folder.submitted) == TRIALS


def test_two_sessions_on_one_cell_share_the_work(folder: Any, start: Any) -> None:
    sessions = [start(), start("-n2")]
    assert [session.wait(LIMIT_S) for session in sessions] == [0, 0]
    assert_each_trial_once(folder)
    assert len(folder.submitted) == TRIALS
