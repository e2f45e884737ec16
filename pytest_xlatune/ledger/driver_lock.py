"""Decide by files which process drives a campaign next, and whether any process waits for it.

Every process that waits for a campaign may drive it, one at a time and turn by turn. The process
that drove last keeps driving; when it stops, it says so in a file, and if it is killed, the age of
that file shows it. An flock ends with its process, so no lock is left behind. Every method raises
LedgerError if the folder cannot be written. This module knows nothing about the work in a turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.ledger import errors_explained, lock_held
from pytest_xlatune.model.errors import LedgerError

SILENCE_S = 1.5  # seconds without a turn of the driving process after which another one may drive
_NONE = 0  # instead of a process id: no process drives


class DriverLock:
    """Decides which process drives the campaign of a folder, turn by turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # the file with the id of the driving process, which is written in each turn
        self._driver_file = folder / "turn.beat"

    @contextlib.contextmanager
    def next(self) -> Iterator[bool]:
        """Yield whether the next turn is ours; if so, it lasts until the context ends."""
        with errors_explained(self._folder, what="used"):
            # This raises if the folder is missing, e.g. not mounted; the lock would create it.
            self._folder.stat()
        if self._is_driven_by_other():
            yield False
            return
        with lock_held(self._folder / "turn.lock", wait_s=0) as is_ours:
            if is_ours:
                self._write_driver(os.getpid())
            yield is_ours

    @contextlib.contextmanager
    def mine(self, *, wait_s: float) -> Iterator[None]:
        """Take the turn, after waiting for the present one to end.

        Raises:
            LedgerError: the present turn did not end in time.
        """
        with lock_held(self._folder / "turn.lock", wait_s=wait_s) as is_ours:
            if not is_ours:
                raise LedgerError(
                    f"{self._folder} has been in use by another process for {wait_s:.0f} s; end "
                    "that process (it may be stopped, or its disk full), then run again"
                )
            yield

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Register as waiting inside the context, and stop driving at its end."""
        try:
            with self.registered():
                yield
        finally:
            if self._driver() == os.getpid():
                # so that other processes can drive at once
                with contextlib.suppress(LedgerError):
                    self._write_driver(_NONE)

    @contextlib.contextmanager
    def registered(self) -> Iterator[None]:
        """Register as waiting inside the context, so that no process ends our jobs.

        A session does so for its whole time, also between the waits of its tests.
        """
        with contextlib.ExitStack() as stack:
            with errors_explained(self._folder, what="used"):
                waiters = secure_files.open_lock(self._folder / "waiters.lock")
                stack.callback(os.close, waiters)
                fcntl.flock(waiters, fcntl.LOCK_SH)
            yield

    def none_waits(self, *, patience_s: float = 3.0) -> AbstractContextManager[bool]:
        """Return whether no process waits, and keep others from registering inside the context.

        Processes of our own session that are about to end get `patience_s` seconds for that.
        """
        return lock_held(self._folder / "waiters.lock", wait_s=patience_s)

    def _is_driven_by_other(self) -> bool:
        if self._driver() in (_NONE, os.getpid()):
            return False
        with contextlib.suppress(OSError):
            # After a clock was set back, the age is negative, and must not count as young for ever.
            return 0 <= time.time() - self._driver_file.stat().st_mtime < SILENCE_S
        return False

    def _driver(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(secure_files.read_bytes(self._driver_file))
        return _NONE

    def _write_driver(self, driver: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with (
            errors_explained(self._folder, what="used"),
            os.fdopen(secure_files.open_file(self._driver_file, flags), "wb") as file,
        ):
            file.write(b"%d\n" % driver)
