"""Read logs piece by piece, and write reports whole or not at all.

A log may be gzipped, or be the standard input. A report is read only if this user or a trusted user
owns it.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.redact import hide_kept

NO_PAGES = (
    "no HTML page: jinja2 is not installed here; install pytest-xlatune[page], then run "
    "`xlatune report`"
)


def read_ours(path: Path) -> str:
    """Return the text of a report that this user or a trusted user wrote.

    Raises:
        OSError: the file or its folder is not of such a user, or cannot be read.
    """
    with _folder(path.parent) as folder:
        return folder.read(path.name).decode("utf-8")


def write_all(texts: Mapping[Path, str]) -> None:
    """Write each file whole or not at all, readable for the users who may read its folder.

    Secrets that this process knows are hidden.

    Raises:
        OSError: a folder cannot be made or is not ours, or a file cannot be written.
    """
    for path, text in texts.items():
        with made_folder(path.parent) as folder:
            folder.write(path.name, hide_kept(text).encode(), mode=folder.mode & 0o644)


def made_folder(path: Path) -> secure_files.Folder:
    """Make a folder of reports if it is missing, and open it.

    Raises:
        OSError: the folder cannot be made, or another user owns it.
    """
    path.mkdir(mode=0o775, parents=True, exist_ok=True)  # no umask makes it writable for all users
    return _folder(path)


def _folder(path: Path) -> secure_files.Folder:
    """Open a folder of this user; a link to it is followed if a trusted user made the link."""
    is_link = path.is_symlink() and secure_files.is_trusted(path.lstat().st_uid)
    return secure_files.Folder(path.resolve() if is_link else path)


def has_pages() -> bool:
    """Return whether an HTML page can be made; `NO_PAGES` says what to do if not."""
    return all(importlib.util.find_spec(name) is not None for name in ("jinja2", "markupsafe"))


TEMPLATES = Path(__file__).with_name("templates")


def filled_in(template: str, **values: object) -> str:
    """Return a file of `templates/` with values filled in."""
    return (TEMPLATES / template).read_text(encoding="utf-8").format(**values)


STDIN = Path("-")
DAMAGED = "its gzip data is cut or damaged: only the part before that is read"
_CHUNK_BYTES = 1 << 20


class UnreadableLogError(ConfigError):
    """A file that is no log of a training job, or that cannot be opened; `reason` says which."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason


def chunks_of(path: Path, notes: list[str]) -> Iterator[bytes]:
    """Yield the text of a log, from a file or the standard input, gzipped or not.

    If gzip data is cut or damaged, yield as much as can be read, and add a note.

    Raises:
        UnreadableLogError: the file cannot be opened or read.
    """
    try:
        is_stdin = path == STDIN
        raw = io.FileIO(sys.stdin.fileno() if is_stdin else path, closefd=not is_stdin)
        with io.BufferedReader(raw, _CHUNK_BYTES) as file:
            yield from _unpacked(file, notes)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}; name the log of a job"
        raise UnreadableLogError(path, why) from None


def _unpacked(file: io.BufferedReader[io.FileIO], notes: list[str]) -> Iterator[bytes]:
    is_packed = file.peek(2).startswith(b"\x1f\x8b")
    stream = gzip.GzipFile(fileobj=file) if is_packed else file
    try:
        while chunk := stream.read1(_CHUNK_BYTES):
            yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile):
        notes.append(DAMAGED)
