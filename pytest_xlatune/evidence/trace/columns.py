"""Find the events of a line, and decode their fields into columns.

An event gives its own length, which is the only way to find the next one. The events then become
numpy columns, a million of them in a fraction of a second: every event of a block has a cursor,
and one turn of the loop reads the next field of all of them. Events that do not look like a
profiler's output (field order, numbers above 56 bits, strings instead of numbers) are decoded again
one by one, which is slow but right. This module knows the wire format and the field numbers of
XLine, XEvent and XStat, but not what a stat means.

Format: tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.protobuf import (
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    Octets,
    WireError,
    fields,
    signed,
    text,
)
from pytest_xlatune.evidence.trace import ABSENT, Columns, Names

BLOCK = 1 << 14  # events per turn: fewer need more turns, more do not fit in the cache
LIMIT_PS = 1 << 61  # 26 days, in picoseconds; the sum of two does not overflow
_MAX_ID = 1 << 20  # limit of ids, because a profiler counts the names of a plane from 0 or 1
_LONG = 0x80  # from here on, a byte of a varint has another one after it
_NOWHERE = 1 << 62  # the end of a field whose event is to be decoded alone

# Tag bytes. TAG: an event in a line, or a stat in an event. ID: the id in each of these. TABLES:
# the entries in a plane's tables of events and of stats.
TAG, ID = 4 << 3 | LENGTH, 1 << 3 | VARINT
TABLES = 4 << 3 | LENGTH, 5 << 3 | LENGTH
_OFFSET, _DURATION = 2 << 3 | VARINT, 3 << 3 | VARINT  # of an event
_NUMBERS = (3 << 3 | VARINT, 4 << 3 | VARINT, 7 << 3 | VARINT)  # of a stat: uint64, int64, ref
_NAMED = 2 << 3 | LENGTH  # the name in metadata, and the metadata in an entry of a table
# field numbers: XEvent.stats, XEvent.num_occurrences, XStat.str_value
_STATS, _OCCURRENCES, _STRING = 4, 5, 5


# the beginning of an event: its tag and length, the tag and the id of its name, the next tag
_EVENT = re.compile(rb'"(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])\x08[\x80-\xff]{0,3}[\x00-\x7f]\x10')
_MANY_BYTES, _PLACES = 1 << 20, 1 << 10


def follow_events(data: Bytes, start: int, end: int) -> tuple[Ints, int]:
    """Follow events as `follow` does, but many of them from a thousand places at once.

    A place looks like the beginning of an event. It is one if the events from the place before it
    end there; from the first place at which they do not, events are followed one by one.
    """
    if end - start < _MANY_BYTES or data[start] != TAG:
        return follow(data, start, end)
    matches = (_EVENT.search(data, at, end) for at in range(start, end, (end - start) // _PLACES))
    places = np.array(sorted({start, *(match.start() for match in matches if match)}))
    octets = np.frombuffer(data[start : int(places[-1]) + 3], np.uint8)
    at, stops = places[:-1] - start, places[1:] - start
    rows = [at]
    while (is_going := at < stops).any():
        tag, length, more = (octets[by:].take(at, mode="clip") for by in range(3))
        is_long = length >> 7
        size = (length & 0x7F) + is_long * ((more.astype(np.int64) << 7) + 1) + 2
        size[(tag != TAG) | (is_long & more >> 7 > 0)] = _NOWHERE
        at = np.where(is_going, at + size, at)
        rows.append(at)
    count = int(np.append(at == stops, False).argmin())
    table = np.stack(rows, axis=1)[:count]
    positions = table[table < stops[:count, np.newaxis]] + start
    rest, last = follow(data, int(places[count]), end)
    return np.concatenate([positions, rest]), last


def follow(data: Bytes, at: int, end: int, tag: int = TAG) -> tuple[Ints, int]:
    """Return the positions of consecutive messages with one tag from `at` on, and their end.

    The end is `end`, or a later position if the last message is cut off. It is earlier at a byte
    that is another tag, or that begins a message of 16384 bytes or more.

    Raises:
        WireError: the last length is cut off by the end of the file.
    """
    tags = array("q")
    remember = tags.append
    try:
        while at < end and data[at] == tag:
            length = data[at + 1]
            if length < _LONG:
                remember(at)
                at += length + 2
            elif data[at + 2] < _LONG:
                remember(at)
                at += (length & 0x7F | data[at + 2] << 7) + 3
            else:
                break
    except IndexError:
        raise WireError(f"a message that is cut off at byte {at}") from None
    return np.frombuffer(tags, np.int64), at


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceLine:
    """An XLine: its name, the time that its events count from, and the positions of their tags."""

    name: str
    timestamp_ns: int
    data: Bytes  # the bytes that the positions refer to; lines are large, and not copied
    tags: Ints
    end: int  # the position after its last event


def decode(
    line: TraceLine, wanted: Mapping[str, int], intern: Callable[[str], int]
) -> Iterator[Columns]:
    """Decode the timed events of a line, block by block; aggregates are left out.

    Columns are `name` (a metadata id), `offset_ps`, `duration_ps` and the wanted stats, which are
    ABSENT if an event has none. `wanted` is name of a column -> id of the stat that fills it, and
    `intern` returns the stat id that stands for a string value.

    Raises:
        WireError: an event is no message, or its time is out of range.
    """
    ids = list(wanted.values())
    slots = _by_id(ids)
    slots[ids] = range(len(ids))
    for begin in range(0, len(line.tags), BLOCK):
        block = _Block(line, begin, len(ids))
        for row in block.lockstep(slots):
            block.one_by_one(row, ids, intern)
        columns = Columns(name=block.name, offset_ps=block.offset_ps, duration_ps=block.duration_ps)
        for time_ps in (block.offset_ps, block.duration_ps):
            if time_ps.min(initial=0) < 0 or time_ps.max(initial=0) > LIMIT_PS:
                raise WireError(f"event times from {time_ps.min()} to {time_ps.max()} ps")
        columns |= zip(wanted, block.stats, strict=True)
        yield columns if block.timed.all() else columns.where(block.timed)


def _by_id(ids: Collection[int]) -> NDArray[np.int32]:
    """Return a table with a place for each id, and a last one for all larger ids: all ABSENT."""
    low, high = min(ids, default=0), max(ids, default=0)
    if low < 0 or high >= _MAX_ID:
        raise WireError(f"ids of names from {low} to {high}")
    return np.full(high + 2, ABSENT, np.int32)


class _Block:
    def __init__(self, line: TraceLine, begin: int, wanted: int) -> None:
        tags = line.tags[begin : begin + BLOCK]
        stop, size = begin + len(tags), len(tags)
        until = int(line.tags[stop]) if stop < len(line.tags) else line.end
        self._octets = octets = Octets(line.data, int(tags[0]), until)
        at = tags - octets.start + 1
        length, width = octets.varints(at)
        self._begins = at + width
        self._ends = self._begins + length
        self.name, self.offset_ps, self.duration_ps = (np.zeros(size, np.int64) for _ in range(3))
        self.timed = np.ones(size, bool)  # False for an aggregate
        self.stats = np.full((wanted, size), ABSENT, np.int64)

    def lockstep(self, slots: NDArray[np.int32]) -> list[int]:
        """Decode all events at once; return the rows that must be read one by one."""
        rows = np.flatnonzero(self._begins < self._ends)  # an empty message is an event of zeros
        at, stop = self._begins[rows], self._ends[rows]
        odd: list[int] = []
        while rows.size:
            tag = self._octets.byte(at)
            if (tag == tag[0]).all():  # as a profiler writes them
                end = self._field(int(tag[0]), at, rows, slots)
            else:
                end = at.copy()
                for tag_byte in np.flatnonzero(np.bincount(tag)):
                    which = np.flatnonzero(tag == tag_byte)
                    end[which] = self._field(int(tag_byte), at[which], rows[which], slots)
            alive = end < stop
            if alive.all():
                at = end
            else:
                odd += rows[end > stop].tolist()  # _NOWHERE, or a length beyond the event
                rows, at, stop = rows[alive], end[alive], stop[alive]
        return odd

    def _field(self, tag: int, at: Ints, rows: Ints, slots: NDArray[np.int32]) -> Ints:
        """Read a field that all rows have; return where it ends, or _NOWHERE if that fails."""
        if tag == TAG:
            return self._stat(at, rows, slots)
        column = {ID: self.name, _OFFSET: self.offset_ps, _DURATION: self.duration_ps}.get(tag)
        if column is None:
            return np.full(len(at), _NOWHERE, np.int64)
        column[rows], size = self._octets.varints(at + 1)
        end = at + 1 + size
        end[size == 0] = _NOWHERE
        return end

    def _stat(self, at: Ints, rows: Ints, slots: NDArray[np.int32]) -> Ints:
        """Read an XStat of each row; return where it ends, or _NOWHERE if that fails."""
        octets = self._octets
        size_byte, id_tag, id_byte = (octets.byte(at + ahead) for ahead in (1, 2, 3))
        if ((size_byte | id_byte) < _LONG).all():  # as a profiler writes them
            end, value_at, ident = at + size_byte + 2, at + 4, id_byte.astype(np.int64)
            is_read = id_tag == ID
        else:
            length, size = octets.varints(at + 1)
            begin = at + 1 + size
            end = begin + length
            ident, id_size = octets.varints(begin + 1)
            value_at = begin + 1 + id_size
            is_read = (octets.byte(begin) == ID) & (size > 0) & (id_size > 0)
        is_read &= value_at <= end
        slot = slots.take(ident, mode="clip")
        wanted = slot != ABSENT
        if wanted.any():
            which = slice(None) if wanted.all() else np.flatnonzero(wanted)
            slot, rows, value_at = slot[which], rows[which], value_at[which]
            tag = octets.byte(value_at)
            value, size = octets.varints(value_at + 1)
            is_number = (tag == _NUMBERS[0]) | (tag == _NUMBERS[1]) | (tag == _NUMBERS[2])
            is_read[which] &= is_number & (size > 0) & (value_at + 1 + size == end[which])
            if (slot == slot[0]).all():
                self.stats[slot[0]][rows] = value
            else:
                self.stats[slot, rows] = value
        if not is_read.all():
            end[~is_read] = _NOWHERE
        return end

    def one_by_one(self, row: int, wanted: list[int], intern: Callable[[str], int]) -> None:
        numbers = {1: self.name, 2: self.offset_ps, 3: self.duration_ps}
        for column in (*numbers.values(), self.stats):
            column[..., row] = ABSENT if column is self.stats else 0
        data, start = self._octets.data, self._octets.start
        begin, end = start + int(self._begins[row]), start + int(self._ends[row])
        for number, kind, first, stop in fields(data, begin, end):
            if kind == VARINT and number in numbers:
                numbers[number][row] = signed(first)
            elif kind == VARINT and number == _OCCURRENCES:
                self.timed[row] = False
            elif kind == LENGTH and number == _STATS:
                ident, value = read_stat(data, first, stop)
                if ident in wanted and value is not None:
                    known = intern(value) if isinstance(value, str) else value
                    self.stats[wanted.index(ident), row] = known


def read_stat(data: Bytes, start: int, end: int) -> tuple[int, int | str | None]:
    """Return the id of an XStat and its value: a number, a string, a ref's id, or else None."""
    ident = 0
    value: int | str | None = None
    for number, kind, begin, stop in fields(data, start, end):
        if kind == VARINT and number == 1:
            ident = signed(begin)
        elif kind == VARINT:
            value = signed(begin)
        elif kind == LENGTH and number == _STRING:
            value = text(data, begin, stop)
    return ident, value


class NameTable:
    """The names of a plane's events, or of its stats and the strings that they refer to.

    The table of a profiler has the names of thousands of kernels. Only a name that an event refers
    to is decoded and added to the names of the trace.
    """

    def __init__(self, data: Bytes, tags: Ints, names: Names) -> None:
        """Read the ids of a table; `tags` are the positions of its entries."""
        self._data = data
        self._names = names
        ids, self._begins, self._ends = _entries(data, tags)
        self._row = _by_id(ids.tolist())  # id -> entry; the last one of an id counts
        self._row[ids] = np.arange(len(ids))
        self._index = np.full(len(self._row), ABSENT, np.int32)  # id -> name of the trace

    def name(self, ident: int) -> str:
        """Return the name of an id that the table has."""
        row = self._row[ident]
        return text(self._data, int(self._begins[row]), int(self._ends[row]))

    def wanted(self, **columns: str) -> dict[str, int]:
        """Return column -> id of a name, for those names that the table has."""
        sizes = [len(name.encode()) for name in columns.values()]
        has_size = np.append(np.isin(self._ends - self._begins, sizes), False)  # at ABSENT: False
        ids = {self.name(ident): ident for ident in np.flatnonzero(has_size[self._row]).tolist()}
        return {column: ids[name] for column, name in columns.items() if name in ids}

    def intern(self, string: str) -> int:
        """Return an id for a string that an event holds in full: a number below ABSENT."""
        return ABSENT - 1 - self._names[string]

    def index(self, ids: Ints) -> NDArray[np.int32]:
        """Return the index of the name of each id; ABSENT for one without."""
        last = len(self._row) - 1
        place = np.where((ids < 0) | (ids > last), last, ids)
        is_new = (self._row != ABSENT) & (self._index == ABSENT)
        is_new &= np.bincount(place, minlength=len(self._row)) > 0
        for ident in np.flatnonzero(is_new).tolist():
            self._index[ident] = self._names[self.name(ident)]
        indices: NDArray[np.int32] = self._index.take(place)
        strings = ids < ABSENT
        indices[strings] = ABSENT - 1 - ids[strings]
        return indices


def _entries(data: Bytes, tags: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the id of each entry of a table, and the begin and end of its name."""
    if not tags.size:
        return tags, tags, tags
    *_, last = next(fields(data, int(tags[-1]), len(data)))
    octets = Octets(data, int(tags[0]), last)
    length, width = octets.varints(tags - octets.start + 1)
    at = begin = tags - octets.start + 1 + width
    end = begin + length
    # as a profiler writes it:  08 id 12 size message, and that is:  08 id 12 size name ...
    is_usual = np.ones(len(at), bool)
    numbers, places = [], []
    for tag in (ID, _NAMED) * 2:
        # a read beyond the end of an entry shows that the entry is unusual
        at = np.minimum(at, end)
        is_usual &= octets.byte(at) == tag
        number, width = octets.varints(at + 1)
        is_usual &= width > 0
        at = at + 1 + width
        numbers.append(number)
        places.append(at)
    ids, size, _, name_size = numbers
    is_usual &= (places[1] + size == end) & (at + name_size <= end)
    name, stop = at + octets.start, at + name_size + octets.start
    for row in np.flatnonzero(~is_usual).tolist():
        start, until = octets.start + int(begin[row]), octets.start + int(end[row])
        ids[row], name[row], stop[row] = _entry(data, start, until)
    return ids, name, stop


def _entry(data: Bytes, start: int, end: int) -> tuple[int, int, int]:
    """Return the id of an unusual entry, and the begin and end of its name."""
    ident, name = 0, (start, start)
    for number, kind, begin, stop in fields(data, start, end):
        if (number, kind) == (1, VARINT):
            ident = signed(begin)
        elif (number, kind) == (2, LENGTH):
            # the last metadata of an entry counts, also one without a name
            parts = (part for part in fields(data, begin, stop) if part[:2] == (2, LENGTH))
            name = next(((first, last) for _, _, first, last in parts), (begin, begin))
    return ident, *name
