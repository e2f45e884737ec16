"""Where the events of a line lie: a chain of lengths, followed from a thousand places at once.

An event says how long it is, so the next one is found from it and no other way. Followed one by one
this costs more than all that is read in them. But a chain that is entered anywhere soon falls into
step: the tag of a stat is that of an event, and behind the last stat of an event lies the next one.
So the stretch is cut into parts, each part's chain is followed from the first tag in it, and where
the chain of the part before arrives at a position that this one visited too, from there on both are
one. Where they never meet, and where anything but an event lies between, the rest is followed one
by one: the result is the same, always.

Format: repeated XEvent events = 4 in XLine, tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

from array import array

import numpy as np

from pytest_xlatune.evidence.wire import Bytes, Ints, WireError

TAG = 4 << 3 | 2  # of an event in a line, and of a stat in an event
OPENING = 1 << 3  # the tag of the id with which both begin, unless it is 0
PARTS = 1024
SHORT = 1 << 16  # bytes; below, one by one is quicker
STRETCH = 1 << 26  # bytes at a time: what is kept of them is up to half as much
TRIES = 16  # a file whose chains never meet is no profiler's
SMALL = 16  # bytes; fewer than an event has, unless the file is no profiler's
# size of an event with its tag, by the two bytes behind that; 0 where the length has three or more
_LENGTHS = np.arange(1 << 16)
_SIZES = np.where(
    _LENGTHS & 0x80,
    np.where(_LENGTHS & 0x8000, 0, (_LENGTHS & 0x7F | _LENGTHS >> 8 << 7) + 3),
    (_LENGTHS & 0x7F) + 2,
)


def follow(data: Bytes, start: int, end: int) -> tuple[Ints, int]:
    """Follow the events from `start`: the positions of their tags, and where they end.

    That is at `end` or behind it, if the last event is cut off, or at the first byte that is no tag
    of an event of less than 16384 bytes.

    Raises:
        WireError: the last length is cut off by the end of the file.
    """
    at = start
    found: list[Ints] = []
    for _ in range(TRIES):
        if end - at < SHORT or data[at] != TAG:
            break
        proved, at = _at_once(np.frombuffer(data, np.uint8), at, min(end, at + STRETCH))
        # past the part that did not fall into step
        some, at = _one_by_one(data, at, min(end, at + SHORT))
        found += [proved, some]
    rest, at = _one_by_one(data, at, end)
    return np.concatenate([*found, rest]), at


def _one_by_one(data: Bytes, at: int, end: int) -> tuple[Ints, int]:
    tags = array("q")
    remember = tags.append
    try:
        while at < end and data[at] == TAG:
            length = data[at + 1]
            if length < 0x80:  # noqa: PLR2004
                remember(at)
                at += length + 2
            elif data[at + 2] < 0x80:  # noqa: PLR2004
                remember(at)
                at += (length & 0x7F | data[at + 2] << 7) + 3
            else:
                break
    except IndexError:
        raise WireError(f"an event that is cut off at byte {at}") from None
    return np.frombuffer(tags, np.int64), at


def _at_once(
    octets: np.ndarray[tuple[int], np.dtype[np.uint8]], start: int, end: int
) -> tuple[Ints, int]:
    """Follow the chains of all parts, and return what is proved of the first one."""
    bounds = np.linspace(start, end, PARTS + 1).astype(np.int64)
    at, stop = bounds[:-1].copy(), bounds[1:]
    limit = np.minimum(stop, len(octets) - 4)
    ahead = [octets[by:] for by in range(4)]
    visited = []  # of each turn: where each chain is; the end once it has left its part
    steady = np.zeros(PARTS, np.int64)  # the turn since which a chain met tags only
    for turn in range((end - start) // PARTS // SMALL + PARTS):
        is_here = at < limit
        is_whole = bool(is_here.all())  # nearly always
        here = slice(None) if is_whole else np.flatnonzero(is_here)
        place = at[here]
        if not place.size:
            break
        tag, length, more, behind = (each.take(place) for each in ahead)
        key = more.astype(np.uint16)
        key <<= 8
        key |= length
        size = _SIZES.take(key)
        is_event = (tag == TAG) & (np.where(length >> 7, behind, more) == OPENING) & (size > 0)
        row = place
        if not is_event.all():
            row = np.where(is_event, place, end)
            size[~is_event] = 1
            steady[np.arange(PARTS)[here][~is_event]] = turn + 1
        if is_whole:
            at = place + size
        else:
            at[here] = place + size
            row, some = np.full(PARTS, end, np.int64), row
            row[here] = some
        visited.append(row)
    if not visited:
        return np.zeros(0, np.int64), start
    table = np.stack(visited, axis=1)  # a row for each part
    arrives = np.concatenate([[start], at[:-1]])
    meets = table == arrives[:, None]
    first = meets.argmax(axis=1)
    # a part that an event spans has no event: who arrives behind it goes on behind it
    proved = meets.any(axis=1) & (first >= steady) & (at >= limit)
    count = PARTS if proved.all() else int(proved.argmin())
    if not count:
        return np.zeros(0, np.int64), start
    kept = table[:count] < end
    kept &= np.arange(table.shape[1]) >= first[:count, None]
    return table[:count][kept], int(at[count - 1])
