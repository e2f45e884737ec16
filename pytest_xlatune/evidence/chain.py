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
        here = np.flatnonzero(at < limit)
        if not here.size:
            break
        place = at[here]
        tag, length, more, behind = (each.take(place) for each in ahead)
        long = length >> 7
        size = (length & 0x7F).astype(np.int64)
        size += (more * long).astype(np.int64) << 7
        size += long
        size += 2
        is_event = (tag == TAG) & (np.where(long, behind, more) == OPENING)
        is_event &= (length & more) < 0x80  # noqa: PLR2004
        row = np.full(PARTS, end, np.int64)
        if is_event.all():
            row[here] = place
        else:
            row[here[is_event]] = place[is_event]
            steady[here[~is_event]] = turn + 1
            size[~is_event] = 1
        visited.append(row)
        place += size
        at[here] = place
    if not visited:
        return np.zeros(0, np.int64), start
    table = np.stack(visited)
    arrives = np.concatenate([[start], at[:-1]])
    meets = table == arrives
    first = meets.argmax(axis=0)
    # a part that an event spans has no event: who arrives behind it goes on behind it
    proved = meets.any(axis=0) & (first >= steady) & (at >= limit)
    count = PARTS if proved.all() else int(proved.argmin())
    if not count:
        return np.zeros(0, np.int64), start
    turns = np.arange(len(table))[:, None]
    kept = (turns >= first) & (table < end)
    return table.T[:count][kept.T[:count]], int(at[count - 1])
