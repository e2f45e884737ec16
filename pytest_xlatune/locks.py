"""Locks between processes of sessions: files of ours, below folders of ours.

The program on a node has the standard library alone, so it locks by flock itself.
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
    """Hold a lock of ours for the block; give False if another one holds it for so long.

    It is never a lock by the existence of a file: it ends with its holder, however that ends.
    Raises as `secure_files.open_lock`; OSError also where the file system has no flock.
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
