"""What a sweep stands on gives way: the work directory fills up, clocks jump, a log is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.waiting import until
from tests.slurm.on_lab import TRIALS, Faults

HOUR_S = 3600
PAGE_BYTES = 4096
SMALL = "from pytest_xlatune.prepare import preflight\npreflight.MIN_FREE_BYTES = 0\n"

# In every interpreter of the session and of its jobs: a clock that is put forward and back.
CLOCK = """\
import pathlib, sys, time
_real, _offset = time.time, pathlib.Path(__file__).with_name("offset")
time.time = lambda: _real() + float(_offset.read_text())
sys.executable = str(_offset.with_name("python"))
"""


class Disk:
    """A small file system of its own for the work directory."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self._is_sated, self._is_full = threading.Event(), threading.Event()
        self._glutton = threading.Thread(target=self._eat)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "lab", path], check=True)

    def fill(self) -> None:
        """Leave no byte free, as if another user had written, and take what is set free later."""
        self._glutton.start()
        assert self._is_full.wait(60), f"{self.path} takes more than its size"

    def _eat(self) -> None:
        # Only when nothing is left does it rest: a page set free between two bites would be a place
        # for the line that the test wants refused.
        with (self.path / "glutton").open("ab", buffering=0) as file:
            while not self._is_sated.is_set():
                try:
                    file.write(bytes(PAGE_BYTES))
                except OSError:
                    self._is_full.set()
                    self._is_sated.wait(0.001)

    def clear(self) -> None:
        self._is_sated.set()
        self._glutton.join()
        (self.path / "glutton").unlink()


@pytest.fixture
def disk(faults: Faults) -> Iterator[Disk]:
    try:
        made = Disk(faults.path / "work")
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield made
    made._is_sated.set()
    subprocess.run(["umount", "--lazy", made.path], check=True)


def test_a_full_work_directory_ends_the_session_and_the_next_goes_on(
    faults: Faults, disk: Disk
) -> None:
    # A full disk still takes a line that fits into the last page of a file. The victim's result,
    # which holds what it sets, does not fit.
    declared = faults.profiles(HOLD=str(faults.go), PADDING="x" * 8 * PAGE_BYTES)
    faults.write(declared, conftest=SMALL)
    session = faults.start("-n2")
    faults.victim()
    until(lambda: len(faults.project.submitted) == TRIALS)
    disk.fill()
    said = faults.released(session)
    assert "No space left on device" in said, said
    assert "with free space" in said
    assert "Traceback" not in said
    assert len(faults.project.measured) < TRIALS
    said = faults.run()
    assert "cannot begin, nothing was submitted" in said, said
    assert "cannot be written: No space left on device" in said
    disk.clear()
    said = faults.run()
    faults.assert_complete(said)
    # what could write its end was adopted, what could not was run again
    assert {following for following, _ in faults.decided()} <= {"retry", "interrupted"}
    assert len(faults.project.submitted) == faults.project.jobs


def test_clocks_that_jump_end_nothing_and_start_nothing(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = faults.path / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(CLOCK)
    (clock / "offset").write_text("0")
    # the payload is started with -I -S, which would keep our clock out
    (clock / "python").write_text(
        f'#!/bin/sh\n[ "$1" != -I ] || shift 2\nPYTHONPATH={clock} exec {sys.executable} "$@"\n'
    )
    (clock / "python").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(clock))
    session = faults.start_held("-n2")
    (beat,) = faults.path.glob("work/*/*/turn.beat")
    for hours in (5, -5):
        (clock / "part").write_text(str(hours * HOUR_S))
        (clock / "part").replace(clock / "offset")
        wait_for_turns(beat)
    faults.assert_undisturbed(faults.released(session))
    assert faults.project.events("epoch-began") == faults.project.events("attempt-cut-short") == []
    assert faults.project.jobs == TRIALS
    # the fault was there: by the node's clock the victim ended before it began
    (victim,) = (
        line["outcome"]
        for line in faults.project.events("attempt-ended")
        if line["trial_id"].startswith("victim")
    )
    assert victim["end_s"] < victim["start_s"] - 4 * HOUR_S


def wait_for_turns(beat: Path) -> None:
    """Wait until the process that drives has looked at the jobs several times more."""
    before_ns = beat.stat().st_mtime_ns
    until(lambda: beat.stat().st_mtime_ns > before_ns + 2_000_000_000)
