"""The protobuf wire format: single messages, or a million at once.

Single messages are read by `fields`, and numbers of many messages at once by `Octets`. This module
knows nothing of traces. It never trusts a length: malformed bytes raise `WireError`, a ValueError
with what was found and the position; the caller adds the file.

Format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | memoryview
Ints = NDArray[np.int64]
Part = tuple[int, int, int, int]  # part of a message: field number, wire type, begin, end

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
PADDING = 48  # bytes after a range, so that eight bytes can be read at any cursor

_CONTINUE, _PAYLOAD, _ONES = 0x8080808080808080, 0x7F7F7F7F7F7F7F7F, 0x0101010101010101
# the 7-bit groups of a varint are joined in three steps: 8 groups -> 4 of 14 -> 2 of 28 -> 56 bits
_FOLDS = (
    (0x7F007F007F007F00, 0x007F007F007F007F, 1),
    (0x3FFF00003FFF0000, 0x00003FFF00003FFF, 2),
    (0x0FFFFFFF00000000, 0x000000000FFFFFFF, 4),
)


class WireError(ValueError):
    """The bytes are no protobuf message; the text says what was found and at which byte."""


def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at` and the position after it.

    Raises:
        WireError: it extends beyond `end`, or has more than ten bytes.
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
    """Return the int64 that an unsigned varint represents."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: Bytes, start: int, end: int) -> Iterator[Part]:
    """Yield the fields of a message.

    For a VARINT, `begin` is its value and `end` is the position after it.

    Raises:
        WireError: an unknown wire type, a length beyond `end`, or a number without end.
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
            raise WireError(f"a length of {size} where {end - at} bytes are left, at byte {begin}")
        yield number, kind, at, at + size
        at += size


def text(data: Bytes, start: int, end: int) -> str:
    """Return the string between two positions; bytes that are no UTF-8 become U+FFFD."""
    return bytes(data[start:end]).decode("utf-8", "replace")


class Octets:
    """A range of bytes that is read at many positions at once.

    No position may be more than 20 bytes beyond the end. `start` is where position 0 is in the
    data: the begin of the range, rounded down to a multiple of 8.
    """

    def __init__(self, data: Bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start & ~7
        stop = end + PADDING
        part: Bytes = memoryview(data)[self.start : stop]
        if stop > len(data):
            part = b"".join((part, bytes(stop - len(data))))
        self._octets = np.frombuffer(part, np.uint8)
        self._next = self._octets[1:]
        self._words = np.ndarray((len(part) - 7,), "<u8", part, strides=(1,))

    def byte(self, at: Ints) -> NDArray[np.uint8]:
        """Return the byte at each position."""
        return self._octets.take(at)

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Decode a varint at each position: values and sizes in bytes.

        A varint of more than 8 bytes (56 bits) gets size 0, and the caller decodes it alone.
        """
        first = self.byte(at)
        long = first >> 7
        if not long.any():  # one byte each: lengths and most ids
            return first.astype(np.int64), np.ones(len(at), np.int64)
        second = self._next.take(at)
        if not (long & second >> 7).any():  # at most two bytes: names and references
            value = (second * long).astype(np.int64)
            value <<= 7
            value |= first & 0x7F
            return value, long + np.int64(1)
        return _varints(self._words[at])  # `take` would copy all words, because they overlap


def _varints(words: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Decode the varint at the beginning of each word; the words are overwritten."""
    stop = ~words
    stop &= _CONTINUE
    keep = stop - 1
    keep ^= stop  # all bits up to and including the first stop bit
    words &= keep
    words &= _PAYLOAD
    for high, low, shift in np.array(_FOLDS, np.uint64):
        words = ((words & high) >> shift) | (words & low)
    keep &= _ONES  # a bit for each byte of the varint, to be counted
    keep *= _ONES  # their sum is in the top byte
    keep >>= 56
    keep[stop == 0] = 0
    return words.view(np.int64), keep.view(np.int64)
