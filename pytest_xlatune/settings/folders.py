"""Whether a folder that is about to be written can be: told before hours are measured into nothing.

Nothing is made here. A disk that fills up later is told when it does.
"""

from __future__ import annotations

import os
from pathlib import Path

from pytest_xlatune.errors import ConfigError


def check_folder(path: Path, *, option: str) -> None:
    """Refuse a folder that is a file, lies below one, or where this user may not write.

    Args:
        path: absolute; need not exist yet.
        option: who named it, e.g. "--xlatune-reports".

    Raises:
        ConfigError: names the path, what stands in its way and what to do.
    """
    there = next(each for each in (path, *path.parents) if each.exists() or each == each.parent)
    if not there.is_dir():
        raise ConfigError(
            f"{option}: {path} cannot be made, for {there} is a file; name another folder"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{option}: {path} cannot be written, for {there} is not yours to write; name another "
            "folder"
        )
