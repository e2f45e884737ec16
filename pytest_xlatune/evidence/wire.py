"""The protobuf wire format, read twice: message by message, and a million messages at once.

Small messages (planes, names) are walked in Python by `fields`. The events of a trace line are
decoded by numpy in lockstep: every event keeps a cursor, one turn reads the next field of all of
them. This module knows nothing of traces. It never trusts a length: whatever does not fit raises
`WireError`, a ValueError whose message says what and at which byte; the caller adds the file.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | memoryview
Ints = NDArray[np.int64]

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
PADDING: Final = 48  # bytes behind a stretch, so that two words at any cursor lie inside

_CONTINUE = np.uint64(0x8080808080808080)
_PAYLOAD = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES = np.uint64(0x0101010101010101)
# 7-bit groups of a varint move together in three steps: 8 groups -> 4 of 14 -> 2 of 28 -> 56 bits
_FOLDS = tuple(
    (np.uint64(high), np.uint64(low), np.uint64(shift))
    for high, low, shift in (
        (0x7F007F007F007F00, 0x007F007F007F007F, 1),
        (0x3FFF00003FFF0000, 0x00003FFF00003FFF, 2),
        (0x0FFFFFFF00000000, 0x000000000FFFFFFF, 4),
    )
)
_ONE, _TOP, _BITS = np.uint64(1), np.uint64(56), np.uint64(64)


class WireError(ValueError):
    """The bytes are no protobuf message; the text says what was found and at which byte."""


def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at` and the position behind it.

    Raises:
        WireError: it runs past `end` or past ten bytes.
    """
    value = shift = 0
    if at < end and data[at] < 0x80:  # noqa: PLR2004  nearly always
        return data[at], at + 1
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise WireError(f"a number that does not end at byte {at}")


def signed(value: int) -> int:
    """Return the int64 that an unsigned varint stands for."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Walk a message: (field number, wire type, begin, end) of each value.

    For a VARINT, `begin` is its value and `end` is where it stops.

    Raises:
        WireError: an unknown wire type, a length beyond `end`, a number that does not end.
    """
    at = start
    while at < end:
        begin = at
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"field number 0 at byte {begin}")
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield number, kind, value, at
            continue
        if kind == LENGTH:
            size, at = varint(data, at, end)
        elif kind in {FIXED64, FIXED32}:
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"wire type {kind} at byte {begin}")
        if size > end - at:
            raise WireError(f"a length of {size} at byte {begin}, where {end - at} are left")
        yield number, kind, at, at + size
        at += size


def text(data: Bytes, start: int, end: int) -> str:
    """Return the string between two positions; bytes that are no UTF-8 show as U+FFFD."""
    return bytes(data[start:end]).decode("utf-8", "replace")


class Octets:
    """Some bytes, read at many positions at once.

    Of a word at any position numpy reads two aligned ones and shifts: an unaligned read costs it
    more than that. No position lies more than 20 behind the end.

    Attributes:
        data: all that they are part of.
        start: positions count from here, a little before the begin that was asked for.
    """

    __slots__ = ("_ahead", "_words", "data", "start")

    def __init__(self, data: Bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start & ~7
        stop = end + PADDING
        part: Bytes = memoryview(data)[self.start : stop]
        if stop > len(data):
            part = b"".join((part, bytes(stop - len(data))))
        octets = np.frombuffer(part, np.uint8)
        self._ahead = tuple(octets[ahead:] for ahead in range(4))
        self._words = np.frombuffer(part, "<u8", count=len(part) // 8)

    def byte(self, at: Ints, ahead: int = 0) -> NDArray[np.uint8]:
        """Return the byte `ahead` (3 at most) of each position."""
        return self._ahead[ahead].take(at)

    def word(self, at: Ints) -> NDArray[np.uint64]:
        """Return the little-endian 64-bit word at each position."""
        place = at >> 3
        low = self._words.take(place)
        place += 1
        high = self._words.take(place)
        shift = ((at & 7) << 3).view(np.uint64)
        low >>= shift
        high <<= _BITS - shift  # numpy shifts 64 bits to 0
        low |= high
        return low

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Decode a varint at each position: values and sizes in bytes.

        A varint of more than 8 bytes (more than 56 bits) has size 0: the caller takes it alone.
        """
        first = self.byte(at)
        long = first >> 7
        if not long.any():  # one byte each: lengths and most ids
            return first.astype(np.int64), np.ones(len(at), np.int64)
        second = self.byte(at, 1)
        if not (long & second >> 7).any():  # two at most: names, references
            value = (second * long).astype(np.int64)
            value <<= 7
            value |= first & 0x7F
            return value, long + np.int64(1)
        return _varints(self.word(at))


def _varints(found: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Decode the varint with which each word begins; the words are overwritten."""
    stop = ~found
    stop &= _CONTINUE
    keep = stop - _ONE
    keep ^= stop  # all bits up to and with the first stop bit
    found &= keep
    found &= _PAYLOAD
    for high, low, shift in _FOLDS:
        found = ((found & high) >> shift) | (found & low)
    keep &= _ONES
    keep *= _ONES
    keep >>= _TOP
    keep[stop == 0] = 0
    return found.view(np.int64), keep.view(np.int64)
