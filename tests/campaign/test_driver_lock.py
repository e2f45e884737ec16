"""Who takes the next turn: one process at a time, the next one when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.model.errors import LedgerError

HOLD = """
import sys, time
from pathlib import Path
from pytest_xlatune.ledger.driver_lock import DriverLock
turns = DriverLock(Path(sys.argv[1]))
with getattr(turns, sys.argv[2])(**({"wait_s": 60} if sys.argv[2] == "mine" else {})) as given:
    print("holding", given, flush=True)
    time.sleep(600)
"""


def other(folder: Path, what: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), what], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("holding")
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_only_process_always_has_the_next_turn(tmp_path: Path) -> None:
    turns = DriverLock(tmp_path)
    for _ in range(3):
        with turns.next() as is_mine:
            assert is_mine


def test_a_turn_that_is_being_taken_is_not_given_twice(tmp_path: Path) -> None:
    process = other(tmp_path, "next")
    try:
        with DriverLock(tmp_path).next() as is_mine:
            assert not is_mine
    finally:
        end(process)


def test_a_killed_driver_is_silent_and_then_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_s = 3600.0  # however long this machine takes to get here, it was a moment
    monkeypatch.setattr("pytest_xlatune.ledger.driver_lock.SILENCE_S", silence_s)
    process = other(tmp_path, "next")
    end(process)
    turns = DriverLock(tmp_path)
    with turns.next() as is_mine:
        assert not is_mine
    old_s = time.time() - silence_s - 1
    os.utime(tmp_path / "turn.beat", (old_s, old_s))
    with turns.next() as is_mine:
        assert is_mine


def test_a_clock_that_jumps_back_stops_no_process(tmp_path: Path) -> None:
    (tmp_path / "turn.beat").write_text("1\n", encoding="utf-8")
    future_s = time.time() + 3600
    os.utime(tmp_path / "turn.beat", (future_s, future_s))
    with DriverLock(tmp_path).next() as is_mine:
        assert is_mine


def test_who_stops_waiting_hands_over_at_once(tmp_path: Path) -> None:
    turns = DriverLock(tmp_path)
    with turns.waiting(), turns.next() as is_mine:
        assert is_mine
    assert (tmp_path / "turn.beat").read_text(encoding="utf-8") == "0\n"


def test_mine_waits_and_then_says_who_is_in_the_way(tmp_path: Path) -> None:
    process = other(tmp_path, "mine")
    try:
        with (
            pytest.raises(LedgerError, match="in use by"),
            DriverLock(tmp_path).mine(wait_s=0.2),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        with DriverLock(tmp_path).mine(wait_s=60):
            pass
    finally:
        end(process)


def test_an_unwritable_folder_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(LedgerError, match="choose a writable work directory"),
        DriverLock(tmp_path / "file" / "below").mine(wait_s=0.1),
    ):
        pass


def test_a_process_waits(tmp_path: Path) -> None:
    turns = DriverLock(tmp_path)
    process = other(tmp_path, "waiting")
    try:
        with turns.none_waits(patience_s=0.2) as alone:
            assert not alone
    finally:
        end(process)
    with turns.none_waits(patience_s=0.2) as alone:
        assert alone
