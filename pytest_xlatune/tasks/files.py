"""Write files for people: each whole or not at all; and whether a page can be made here."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Mapping
from pathlib import Path

NO_JINJA = "no HTML page: jinja2 is not installed here; install pytest-xlatune[page]"
NO_PAGES = f"{NO_JINJA}, then run `xlatune report`"


def write_all(texts: Mapping[Path, str]) -> None:
    """Write each file whole or not at all.

    Raises:
        OSError: a directory cannot be made or a file not be written.
    """
    for path, text in texts.items():
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_text(text, encoding="utf-8")  # a pipe or a device: nothing takes its place
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)  # the disk may be full
            raise


def has_pages() -> bool:
    """Whether an HTML page can be written here; `NO_PAGES` says what to do where it cannot."""
    return all(importlib.util.find_spec(name) is not None for name in ("jinja2", "markupsafe"))
