"""Decide, by files, which process takes the next turn, and whether any process waits.

Every process that waits for a campaign may drive it, one at a time. The last one keeps driving; it
writes a file when it stops, and if it is killed, its silence shows that. flock ends with its
holder, so no lock is left behind. Every method raises LedgerError if the folder cannot be written.
This module knows nothing about the work in a turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune import locks, secure_files
from pytest_xlatune.model.errors import LedgerError

SILENCE_S = 1.5  # if the driving process has taken no turn for so many seconds, another one drives
_NONE = 0  # stands for no driving process
_LOG = logging.getLogger("pytest_xlatune.campaign")


class DriverLock:
    """Decides which process drives the campaign of a folder, turn by turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._beat = folder / "turn.beat"  # id of the driving process, written in each turn
        self._logged_driver = _NONE  # the driving process that was logged last
        self._attends = False  # whether this process is registered as waiting
        self._drove = False  # whether it has taken a turn since then

    @contextlib.contextmanager
    def next(self) -> Iterator[bool]:
        """Yield whether the next turn is ours; if so, it lasts until the context ends."""
        with self._explained():
            # raises if the folder is missing (not mounted), because a lock would create it
            self._folder.stat()
        if self._is_driven():
            self._log_driver(self._driver())
            yield False
            return
        with self._held("turn.lock", wait_s=0) as is_ours:
            if is_ours:
                with self._explained():
                    self._write_driver(os.getpid())
                self._drove = True
                self._log_driver(os.getpid())
            yield is_ours

    @contextlib.contextmanager
    def mine(self, *, wait_s: float) -> Iterator[None]:
        """Take the turn, after waiting for the present one to end.

        Raises:
            LedgerError: the present turn did not end in time.
        """
        with self._held("turn.lock", wait_s=wait_s) as is_ours:
            if not is_ours:
                raise LedgerError(
                    f"{self._folder} has been in use by another process for {wait_s:.0f} s; end it "
                    "(it may be stopped or out of disk), then run again"
                )
            yield

    @contextlib.contextmanager
    def _held(self, name: str, *, wait_s: float) -> Iterator[bool]:
        with contextlib.ExitStack() as held:
            with self._explained():
                lock = locks.held(self._folder / name, wait_s=wait_s)
                is_ours = held.enter_context(lock)
            yield is_ours

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count as waiting inside the context, and stop driving at its end."""
        try:
            with self.attending():
                yield
        finally:
            if self._drove and self._driver() == os.getpid():
                # so that others do not have to wait until they notice our silence
                with contextlib.suppress(OSError):
                    self._write_driver(_NONE)
            self._drove = False

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        """Count as waiting even between two waits, so that no process ends our jobs."""
        if self._attends:  # a test waits inside its session, which attends already
            yield
            return
        with self._explained():
            waiters = secure_files.open_lock(self._folder / "waiters.lock")
        try:
            with self._explained():
                fcntl.flock(waiters, fcntl.LOCK_SH)
            self._attends = True
            yield
        finally:
            self._attends = False
            os.close(waiters)

    @contextlib.contextmanager
    def none_waits(self, *, patience_s: float = 3.0) -> Iterator[bool]:
        """Yield whether no process waits, and keep it so until the context ends.

        `patience_s` is the time for processes of our own session that are about to end.
        """
        with self._held("waiters.lock", wait_s=patience_s) as is_alone:
            yield is_alone

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except secure_files.NotOursError as error:
            raise LedgerError(str(error)) from None
        except OSError as error:
            raise LedgerError(
                f"{self._folder} cannot be used: {error}; choose a work directory that can be "
                "written, with free space, on a file system with flock (--xlatune-workdir)"
            ) from error

    def _log_driver(self, driver: int) -> None:
        """Log which process drives, when that changes."""
        if driver not in (_NONE, self._logged_driver):
            ours = " (this one)" if driver == os.getpid() else ""
            _LOG.info("process %d%s drives the campaign in %s", driver, ours, self._folder)
            self._logged_driver = driver

    def _is_driven(self) -> bool:
        driver = self._driver()
        if driver in (_NONE, os.getpid()):
            return False
        try:
            age_s = time.time() - self._beat.stat().st_mtime
        except OSError:
            return False
        # after a clock jumped back, the file counts as old, not as new for ever
        return 0 <= age_s < SILENCE_S

    def _driver(self) -> int:
        try:
            return int(secure_files.read_bytes(self._beat))
        except (OSError, ValueError):
            return _NONE

    def _write_driver(self, driver: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(secure_files.open_file(self._beat, flags), "wb") as file:
            file.write(b"%d\n" % driver)
