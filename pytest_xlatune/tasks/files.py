"""Read logs piece by piece, and write reports whole or not at all.

A log may be gzipped, or be the standard input. Reports are opened as files of our own.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from pytest_xlatune import secure_files
from pytest_xlatune.model.redact import hide_kept

NO_JINJA = "no HTML page: jinja2 is not installed here; install pytest-xlatune[page]"
NO_PAGES = f"{NO_JINJA}, then run `xlatune report`"


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
        OSError: it cannot be made, or it is not ours.
    """
    path.mkdir(mode=0o775, parents=True, exist_ok=True)  # no umask makes it writable for all users
    return _folder(path)


def _folder(path: Path) -> secure_files.Folder:
    """Open a folder of this user; a link to it is followed if a trusted user made the link."""
    is_link = path.is_symlink() and secure_files.is_trusted(path.lstat().st_uid, path)
    return secure_files.Folder(path.resolve() if is_link else path)


def has_pages() -> bool:
    """Return whether an HTML page can be made; `NO_PAGES` says what to do if not."""
    return all(importlib.util.find_spec(name) is not None for name in ("jinja2", "markupsafe"))


def filled_in(template: str, **values: object) -> str:
    """Return a file of `templates/` with values filled in."""
    path = Path(__file__).with_name("templates") / template
    return path.read_text(encoding="utf-8").format(**values)


STDIN = Path("-")
DAMAGED = "its gzip data is cut or damaged: only the part before that is read"
_GZIP = b"\x1f\x8b"
_ANY_GZIP = zlib.MAX_WBITS | 16  # zlib: accept a header of gzip
_CHUNK_BYTES = 1 << 20


def chunks_of(path: Path, notes: list[str]) -> Iterator[bytes]:
    """Yield the text of a log, from a file or the standard input, gzipped or not.

    If gzip data is cut or damaged, yield as much as can be read, and add a note.

    Raises:
        OSError: the file cannot be opened or read.
    """
    if path == STDIN:
        yield from _unpacked(sys.stdin.buffer, notes)
    else:
        with path.open("rb") as file:
            yield from _unpacked(file, notes)


def _unpacked(file: BinaryIO, notes: list[str]) -> Iterator[bytes]:
    first = file.read(_CHUNK_BYTES)
    rest = iter(functools.partial(file.read, _CHUNK_BYTES), b"")
    chunks = itertools.chain([first], rest) if first else rest
    yield from _decompressed(chunks, notes) if first.startswith(_GZIP) else chunks


def _decompressed(chunks: Iterable[bytes], notes: list[str]) -> Iterator[bytes]:
    """Yield the text of gzip members, which may have zeros between them."""
    # `is_whole`: the last member has ended, or none has begun
    member, is_whole = zlib.decompressobj(_ANY_GZIP), True
    try:
        for chunk in chunks:
            packed, is_more = chunk.lstrip(b"\0") if is_whole else chunk, False
            while packed or is_more:
                text = member.decompress(packed, _CHUNK_BYTES)
                if text:
                    yield text
                packed, is_whole = member.unconsumed_tail, member.eof
                is_more = len(text) == _CHUNK_BYTES  # zlib may have text beyond this limit
                if is_whole:
                    packed, is_more = member.unused_data.lstrip(b"\0"), False
                    member = zlib.decompressobj(_ANY_GZIP)
    except zlib.error:
        is_whole = False
    if not is_whole:
        notes.append(DAMAGED)
