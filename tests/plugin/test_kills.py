"""Killing anything at any moment loses no trial and measures none twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.launchers.program import PROBE_FILE
from tests.helpers.waiting import LIMIT_S, until
from tests.plugin.conftest import SWEEP_FILE

# they run as long as the file HOLD is there
PROFILES = """\
        profile("fast", "--xla_fast=1", env={"HOLD": "FOLDER/hold"}),
        profile("same", "--xla_other=1", env={"HOLD": "FOLDER/hold"}),
"""
SCREEN, SCREENED = ("-m", "wave1 or wave2"), 2 + 2
# of near twins one is in `make test`
LEFT = pytest.mark.part("sweeps")


def held(folder: Any) -> list[int]:
    """Return the trainers of this folder that run and go on only when they are told to."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        words = command_of(path.parent)
        # what asks for the environment beside the trainer has the trainer among its words
        is_probe = any(word.endswith(PROBE_FILE) for word in words)
        is_trainer = f"{folder.path}/trainer.py" in words and not is_probe
        if is_trainer and f"HOLD={folder.path}/hold".encode() in variables:
            found.append(int(path.parent.name))
    return found


def command_of(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []


def hold(folder: Any) -> None:
    (folder.path / "hold").touch()


def let_go(folder: Any) -> None:
    (folder.path / "hold").unlink()


@pytest.fixture
def start(folder: Any) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a session in the background; none outlives the test."""
    site = 'executor="local", unseen=("HOLD",)'  # nothing shows that a trainer waits for a file
    folder.write(
        profiles=PROFILES.replace("FOLDER", str(folder.path)),
        text=SWEEP_FILE.replace('executor="local"', site),
    )
    started: list[subprocess.Popen[bytes]] = []

    def begin(*args: str, stdout: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-q"]
        argv += args or SCREEN
        process = subprocess.Popen(argv, cwd=folder.path, stdout=stdout, start_new_session=True)
        started.append(process)
        return process

    yield begin
    (folder.path / "hold").unlink(missing_ok=True)
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(folder: Any) -> list[str]:
    return [line["result"]["trial"]["profile"]["id"] for line in folder.events("trial-ended")]


def assert_each_trial_once(folder: Any, trials: int = SCREENED) -> None:
    assert len(ended(folder)) == trials
    measured = [line["result"]["status"] for line in folder.events("trial-ended")]
    assert measured == ["measured"] * trials


def go_on(folder: Any, *args: str) -> None:
    """Run what is left, in another session."""
    run = folder.run_apart if args else folder.run
    run(*SCREEN, *args).assert_outcomes(passed=3)
    assert_each_trial_once(folder)


@pytest.mark.parametrize(
    ("workers", "by"),
    [
        pytest.param((), signal.SIGKILL, id="alone"),
        pytest.param(("-n2",), signal.SIGKILL, id="two workers", marks=LEFT),
        pytest.param((), signal.SIGTERM, id="told to end", marks=LEFT),
    ],
)
def test_a_killed_session_is_adopted(
    folder: Any, start: Any, workers: tuple[str, ...], by: signal.Signals
) -> None:
    hold(folder)
    session = start(*workers, *SCREEN)
    running = until(lambda: held(folder))
    os.kill(session.pid, by)
    session.wait()
    assert held(folder) == running  # a job outlives the session that submitted it
    let_go(folder)
    go_on(folder, *workers)
    assert len(folder.submitted) == SCREENED


def test_ctrl_c_ends_what_none_waits_for(folder: Any, start: Any) -> None:
    hold(folder)
    with (folder.path / "said.txt").open("wb") as file:
        session = start(stdout=file)
        until(lambda: held(folder))
        until(lambda: len(folder.submitted) == len(folder.events("attempt-intended")))
        os.kill(session.pid, signal.SIGINT)
        assert session.wait(LIMIT_S) == pytest.ExitCode.INTERRUPTED
    said = folder.read("said.txt")
    assert "Traceback" not in said
    assert "interrupted. Jobs that no other session waits for are ended now" in said
    assert "xlatune: ended " in said
    assert not held(folder)
    (interrupted,) = folder.events("decided")
    assert interrupted["next"] == "interrupted"
    let_go(folder)
    go_on(folder)


def test_ctrl_c_can_leave_it_running(folder: Any, start: Any) -> None:
    hold(folder)
    session = start("--xlatune-keep-jobs", *SCREEN)
    until(lambda: held(folder))
    os.kill(session.pid, signal.SIGINT)
    session.wait(LIMIT_S)
    assert held(folder)
    let_go(folder)
    go_on(folder)
    assert len(folder.submitted) == SCREENED
