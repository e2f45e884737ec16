"""The text of a log, piece by piece: of a file or of the standard input, gzipped or not."""

from __future__ import annotations

import functools
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

STDIN = Path("-")
DAMAGED = "its gzip data is cut or damaged: read as far as it goes"
_GZIP = b"\x1f\x8b"
_ANY_GZIP = zlib.MAX_WBITS | 16  # zlib: with a header of gzip
_CHUNK_BYTES = 1 << 20


def chunks_of(path: Path, notes: list[str]) -> Iterator[bytes]:
    """Give the text of a log: of a file or of the standard input, gzipped or not.

    Of gzip data that is cut or damaged it gives as much as can be read, and adds a note.

    Raises:
        OSError: it cannot be opened or read.
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
    yield from _plain(chunks, notes) if first.startswith(_GZIP) else chunks


def _plain(chunks: Iterable[bytes], notes: list[str]) -> Iterator[bytes]:
    """Give the text of gzip members, one after the other, zeros between them."""
    member, is_whole = zlib.decompressobj(_ANY_GZIP), True
    try:
        for chunk in chunks:
            packed, is_more = chunk.lstrip(b"\0") if is_whole else chunk, False
            while packed or is_more:
                text = member.decompress(packed, _CHUNK_BYTES)
                if text:
                    yield text
                packed, is_whole = member.unconsumed_tail, member.eof
                is_more = len(text) == _CHUNK_BYTES  # zlib may hold text back
                if is_whole:
                    packed, is_more = member.unused_data.lstrip(b"\0"), False
                    member = zlib.decompressobj(_ANY_GZIP)
    except zlib.error:
        is_whole = False
    if not is_whole:
        notes.append(DAMAGED)
