"""Killing anything at any moment loses no trial and measures none twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import PROBE_FILE
from tests.helpers.waiting import LIMIT_S, until
from tests.plugin.conftest import Folder

# they run as long as the file HOLD is there
PROFILES = """\
        profile("fast", "--xla_fast=1", env={"HOLD": "FOLDER/hold"}),
        profile("same", "--xla_other=1", env={"HOLD": "FOLDER/hold"}),
"""
SCREEN, SCREENED = ("-m", "wave1 or wave2"), 2 + 2
Start = Callable[..., "subprocess.Popen[bytes]"]


def held(folder: Folder) -> list[int]:
    """Return the trainers of this folder that run and go on only when they are told to."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            words = (path / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
        except OSError:
            continue
        # what asks for the environment beside the trainer has the trainer among its words
        is_probe = any(word.endswith(PROBE_FILE) for word in words)
        is_trainer = f"{folder.path}/trainer.py" in words and not is_probe
        if is_trainer and f"HOLD={folder.path}/hold".encode() in variables:
            pids.append(int(path.name))
    return pids


@pytest.fixture
def start(folder: Folder) -> Iterator[Start]:
    """Return a function that starts a session in the background; none outlives the test."""
    folder.write(profiles=PROFILES.replace("FOLDER", str(folder.path)))
    site = 'executor="local", unseen=("HOLD",)'  # nothing shows that a trainer waits for a file
    folder.edit("test_sweep.py", ('executor="local"', site))
    hold = folder.put("hold", "")
    started: list[subprocess.Popen[bytes]] = []

    def begin(*args: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-q"]
        with (folder.path / "said.txt").open("wb") as file:
            process = subprocess.Popen(
                [*argv, *SCREEN, *args], cwd=folder.path, stdout=file, start_new_session=True
            )
        started.append(process)
        return process

    yield begin
    hold.unlink(missing_ok=True)
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("args", "by", "ends"),
    [
        pytest.param((), signal.SIGKILL, False, id="killed"),
        pytest.param(
            ("-n2",), signal.SIGKILL, False, id="two workers", marks=pytest.mark.part("sweeps")
        ),
        pytest.param((), signal.SIGTERM, False, id="told to end", marks=pytest.mark.part("sweeps")),
        pytest.param(("--xlatune-keep-jobs",), signal.SIGINT, False, id="Ctrl-C that keeps jobs"),
        pytest.param((), signal.SIGINT, True, id="Ctrl-C ends jobs"),
    ],
)
def test_a_session_that_ends_early_is_gone_on_with(
    folder: Folder, start: Start, args: tuple[str, ...], by: signal.Signals, *, ends: bool
) -> None:
    session = start(*args)
    running = until(lambda: held(folder))
    until(lambda: len(folder.submitted) == len(folder.events("attempt-intended")))
    os.kill(session.pid, by)
    status = session.wait(LIMIT_S)
    if ends:
        assert status == pytest.ExitCode.INTERRUPTED
        shown = folder.read("said.txt")
        assert "Traceback" not in shown
        assert "interrupted. Jobs that no other session waits for are ended now" in shown
        assert "xlatune: ended " in shown
        (interrupted,) = folder.events("decided")
        assert interrupted["next"] == "interrupted"
    assert held(folder) == ([] if ends else running)
    (folder.path / "hold").unlink()
    go_on = folder.run_apart if "-n2" in args else folder.run
    go_on(*SCREEN, *(args if "-n2" in args else ())).assert_outcomes(passed=3)
    assert [result["status"] for result in folder.results] == ["measured"] * SCREENED
    assert ends or len(folder.submitted) == SCREENED
