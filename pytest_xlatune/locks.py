"""Locks between the processes of sessions: lock files of ours, in folders of ours.

The program on a node has only the standard library, so it locks by flock itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_xlatune import secure_files


@contextlib.contextmanager
def held(path: Path, *, wait_s: float) -> Iterator[bool]:
    """Hold a lock during the block; yield False if another process holds it for `wait_s` seconds.

    The lock is an flock, never the existence of a file, so it ends with the process that holds it.
    It raises as `secure_files.open_lock` does, and OSError if the file system has no flock.
    """
    os.close(secure_files.open_lock(path))
    lock = FileLock(path, timeout=wait_s, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, str(error), str(path)) from None
    try:
        yield True
    finally:
        lock.release()
