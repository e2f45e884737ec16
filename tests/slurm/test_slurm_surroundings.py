"""What a sweep stands on gives way: the work directory fills up, clocks jump, a log is damaged."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Faults = Any  # of pretend.py, which cannot be imported from here

TRIALS = 3  # a baseline, the profile with the fault, one more


PAGE_BYTES = 4096


class Disk:
    """A file system of its own for the work directory."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self._is_sated = threading.Event()
        self._is_full = threading.Event()
        self._glutton: threading.Thread | None = None
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "lab", path], check=True)

    def fill(self) -> None:
        """Leave no byte free, as if another user had written, and take what is set free later."""
        for _ in range(50):
            used = os.statvfs(self.path)
            # refused where something was written in between
            if self._resize((used.f_blocks - used.f_bfree) * used.f_frsize):
                self._glutton = threading.Thread(target=self._eat)
                self._glutton.start()
                assert self._is_full.wait(30), f"{self.path} takes more than its size"
                return
        raise AssertionError(f"{self.path} is being written all the time")

    def clear(self) -> None:
        self._is_sated.set()
        if self._glutton is not None:
            self._glutton.join()
        assert self._resize(2 << 30)

    def _eat(self) -> None:
        # Only when nothing is left does it rest: a page set free between two bites would be a place
        # for the line that the test wants refused.
        with (self.path / "glutton").open("ab", buffering=0) as file:
            while not self._is_sated.is_set():
                try:
                    file.write(bytes(4096))
                except OSError:
                    self._is_full.set()
                    self._is_sated.wait(0.001)

    def _resize(self, size_bytes: int) -> bool:
        options = f"remount,size={size_bytes // 1024}k"
        done = subprocess.run(["mount", "-o", options, self.path], capture_output=True, check=False)
        return done.returncode == 0

    def remove(self) -> None:
        self.clear()
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def disk(faults: Faults) -> Iterator[Disk]:
    try:
        made = Disk(faults.path / "work")
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield made
    made.remove()


def test_a_full_work_directory_ends_the_session_and_the_next_goes_on(
    faults: Faults, disk: Disk, lab: ModuleType
) -> None:
    # A full disk still takes a line that fits into the last page of a file. The victim's result,
    # which holds what it sets, does not fit.
    faults.write(faults.profiles(HOLD=str(faults.go), PADDING="x" * 8 * PAGE_BYTES))
    session = faults.start("-n2")
    faults.victim()
    faults.wait_until(lambda: len(faults.project.submitted) == TRIALS)
    disk.fill()
    faults.go.touch()
    said = faults.finished(session)
    assert "No space left on device" in said, said
    assert "with free space" in said
    assert "Traceback" not in said
    assert len(faults.project.measured) < TRIALS
    said = faults.run()
    assert "nothing was submitted" in said, said
    assert "cannot be written: No space left on device" in said
    disk.clear()
    said = faults.run()
    assert "2 passed" in said, said
    faults.assert_measured_once("victim")
    # what could write its end was adopted, what could not was run again
    assert {following for following, _ in faults.decided()} <= {"retry", "interrupted"}
    assert len(faults.project.submitted) == faults.project.jobs(lab)
