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

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from pytest_xlatune.evidence.trace import ABSENT, Columns

TAG = 4 << 3 | 2  # the tag of an event in a line, and of a stat in an event
OPENING = 1 << 3  # the tag of their first field, the id, which is missing if the id is 0
TABLES = 4 << 3 | 2, 5 << 3 | 2  # tags of the entries of a plane's name tables: events, stats


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
            if length < 0x80:  # noqa: PLR2004
                remember(at)
                at += length + 2
            elif data[at + 2] < 0x80:  # noqa: PLR2004
                remember(at)
                at += (length & 0x7F | data[at + 2] << 7) + 3
            else:
                break
    except IndexError:
        raise WireError("a message that is cut off", at) from None
    return np.frombuffer(tags, np.int64), at


BLOCK = 1 << 14  # events per turn: fewer need more turns, more do not fit in the cache
IDS = 1 << 20  # with a stat id beyond this, events are decoded one by one
LIMIT_PS = 1 << 61  # 26 days, in picoseconds; the sum of two does not overflow

# XEvent: the tag byte that each field is written with
_NAME, _OFFSET, _DURATION, _STATS = 0x08, 0x10, 0x18, 0x22
# XStat: the id, then one of these
_STAT_ID, _STAT_UINT, _STAT_INT, _STAT_REF = 0x08, 0x18, 0x20, 0x38
_STAT_STRING = 0x2A
_LONG = 0x80  # a varint of more than one byte
NOWHERE = 1 << 62  # marks the end of a field whose event is to be decoded alone
# field numbers: the name of an XLine and of metadata, XLine.timestamp_ns, XLine.events and
# XEvent.stats alike, XEvent.num_occurrences, XStat.str_value
_NAME_FIELD, _TIMESTAMP, _EVENTS, _OCCURRENCES, _STRING = 2, 3, 4, 5, 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceLine:
    """An XLine: its name, the time that its events count from, and the positions of their tags."""

    name: str
    timestamp_ns: int
    data: Bytes  # the bytes that the positions refer to; lines are large, and not copied
    tags: Ints
    end: int


def name_of(data: Bytes, start: int, end: int) -> str:
    """Return the name of the XLine or metadata between two positions; no event is decoded."""
    return text(data, *_name_at(data, start, end))


def _name_at(data: Bytes, start: int, end: int) -> tuple[int, int]:
    for number, kind, begin, stop in fields(data, start, end):
        if (number, kind) == (_NAME_FIELD, LENGTH):
            return begin, stop
        if number >= _EVENTS:
            break
    return start, start


def decode(
    line: TraceLine, wanted: Mapping[str, int], intern: Callable[[str], int]
) -> Iterator[Columns]:
    """Decode the timed events of a line, block by block; aggregates are left out.

    Columns are `name` (a metadata id), `offset_ps`, `duration_ps` and the wanted stats, which are
    ABSENT if an event has none.

    Args:
        line: a line that `line_parts` in `xplane` found.
        wanted: name of a column -> id of the stat that fills it.
        intern: returns the stat id that stands for a string value.

    Raises:
        WireError: an event is no message, or its time is out of range.
    """
    ids = tuple(wanted.values())
    slots = _slots(ids)
    for begin in range(0, len(line.tags), BLOCK):
        block = _Block(line, begin, len(ids))
        odd = np.arange(len(block.name)) if slots is None else block.lockstep(slots)
        block.take_strings(odd, intern)
        for row in odd:
            block.one_by_one(row, ids, intern)
        block.check_times()
        yield block.columns(wanted)


def _slots(ids: tuple[int, ...]) -> NDArray[np.int8] | None:
    """Return a table from stat id to row; ids beyond its end are not wanted.

    It is None if an id is not one that a profiler gives: profilers count from 0 or 1.
    """
    if any(not 0 <= name < IDS for name in ids):
        return None
    slots = np.full(max(ids, default=0) + 2, ABSENT, np.int8)
    slots[list(ids)] = range(len(ids))
    return slots


class _Block:
    """Some events of a line on their way into columns."""

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
        self.timed = np.ones(size, bool)
        self.stats = np.full((wanted, size), ABSENT, np.int64)
        self._strings: list[tuple[int, int]] = []  # where each begins and ends

    def columns(self, wanted: Iterable[str]) -> Columns:
        """Return what was read, without aggregates."""
        columns = Columns(name=self.name, offset_ps=self.offset_ps, duration_ps=self.duration_ps)
        columns |= zip(wanted, self.stats, strict=True)
        return columns if self.timed.all() else columns.where(self.timed)

    def take_strings(self, odd: Ints, intern: Callable[[str], int]) -> None:
        """Intern the strings that events hold in full; the `odd` events are decoded again later."""
        self.stats[:, odd] = ABSENT
        if not self._strings:
            return
        data, base = self._octets.data, self._octets.start
        known: dict[bytes, int] = {}
        slots, rows = np.nonzero(self.stats < ABSENT)
        ids = []
        for code in self.stats[slots, rows].tolist():
            begin, end = self._strings[-2 - code]
            raw = bytes(data[base + begin : base + end])
            if raw not in known:
                known[raw] = intern(raw.decode("utf-8", "replace"))
            ids.append(known[raw])
        self.stats[slots, rows] = ids

    def check_times(self) -> None:
        for column in (self.offset_ps, self.duration_ps):
            if column.size and (column.min() < 0 or column.max() > LIMIT_PS):
                raise WireError(f"event times from {column.min()} to {column.max()} ps")

    def lockstep(self, slots: NDArray[np.int8]) -> Ints:
        """Decode all events at once; return the rows that must be read one by one."""
        rows = np.flatnonzero(self._begins < self._ends)  # an empty message is an event of zeros
        at, stop = self._begins[rows], self._ends[rows]
        odd: list[Ints] = []
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
                odd.append(rows[end > stop])  # NOWHERE, or a length beyond the event
                rows, at, stop = rows[alive], end[alive], stop[alive]
        return np.concatenate(odd) if odd else np.zeros(0, np.int64)

    def _field(self, tag: int, at: Ints, rows: Ints, slots: NDArray[np.int8]) -> Ints:
        """Read a field that all rows have; return where it ends, or NOWHERE if that fails."""
        if tag == _STATS:
            return self._stat(at, rows, slots)
        column = {_NAME: self.name, _OFFSET: self.offset_ps, _DURATION: self.duration_ps}.get(tag)
        if column is None:
            return np.full(len(at), NOWHERE, np.int64)
        end = at + 1
        column[rows], size = self._octets.varints(end)
        end += size
        if not size.all():
            end[size == 0] = NOWHERE
        return end

    def _stat(self, at: Ints, rows: Ints, slots: NDArray[np.int8]) -> Ints:
        """Read an XStat of each row; return where it ends, or NOWHERE if that fails."""
        octets = self._octets
        # tag, length, tag of the id, id: nearly always a byte each
        length, ident = octets.byte(at, 1), octets.byte(at, 3)
        short = (octets.byte(at, 2) == _STAT_ID) & ((length | ident) < _LONG) & (length > 1)
        end = at + length
        end += 2
        slot = slots.take(ident, mode="clip")
        long = np.zeros(0, np.int64) if short.all() else np.flatnonzero(~short)
        if long.size:
            end[long], slot[long], of_long = self._long_stat(at[long], slots)
        wanted = slot != ABSENT
        if not wanted.any():
            return end
        value_at = at + 4
        if long.size:
            value_at[long] = of_long
        which = slice(None) if wanted.all() else np.flatnonzero(wanted)
        at, rows, limit, row = value_at[which], rows[which], end[which], slot[which]
        tag = octets.byte(at)
        at += 1
        value, size = octets.varints(at)
        at += size
        plain = (tag == _STAT_UINT) | (tag == _STAT_INT) | (tag == _STAT_REF)
        plain &= (size > 0) & (at == limit)
        string = tag == _STAT_STRING
        if string.any():
            string &= (size > 0) & (at + value == limit)
            place = np.flatnonzero(string)
            # until then, a code below ABSENT stands for the string, because no number is negative
            value[place] = -2 - len(self._strings) - np.arange(len(place))
            self._strings += zip(at[place].tolist(), limit[place].tolist(), strict=True)
            plain |= string
        if not plain.all():
            end[which] = np.where(plain, limit, NOWHERE)
        if (row == row[0]).all():
            self.stats[row[0]][rows] = value
        else:
            self.stats[row, rows] = value
        return end

    def _long_stat(self, at: Ints, slots: NDArray[np.int8]) -> tuple[Ints, NDArray[np.int8], Ints]:
        """Return end, slot and place of the value of each stat whose length or id is long."""
        length, size = self._octets.varints(at + 1)
        begin = at + 1 + size
        end = begin + length
        end[size == 0] = NOWHERE
        ident, size = self._octets.varints(begin + 1)
        value_at = begin + 1 + size
        odd = (self._octets.byte(begin) != _STAT_ID) | (size == 0) | (value_at > end)
        end[odd] = NOWHERE
        return end, slots.take(ident, mode="clip"), value_at

    def one_by_one(self, row: int, wanted: tuple[int, ...], intern: Callable[[str], int]) -> None:
        """Decode one event the slow way."""
        self.name[row] = self.offset_ps[row] = self.duration_ps[row] = 0
        self.stats[:, row] = ABSENT
        numbers = {1: self.name, 2: self.offset_ps, 3: self.duration_ps}
        octets = self._octets
        begin, end = (
            octets.start + int(positions[row]) for positions in (self._begins, self._ends)
        )
        for number, kind, start, stop in fields(octets.data, begin, end):
            if kind == VARINT and number in numbers:
                numbers[number][row] = signed(start)
            elif kind == VARINT and number == _OCCURRENCES:
                self.timed[row] = False
            elif kind == LENGTH and number == _EVENTS:
                ident, value = read_stat(octets.data, start, stop)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NameTable:
    """Names by id: of a plane's events, or of stats and the strings that they refer to.

    Attributes:
        data: the bytes that hold the names; a name is decoded only when it is asked for.
        ids: the ids in ascending order, without duplicates.
        begins, ends: the positions of each name in `data`.
    """

    data: Bytes
    ids: Ints
    begins: Ints
    ends: Ints

    def name(self, place: int) -> str:
        """Return a name by its place in the table."""
        return text(self.data, int(self.begins[place]), int(self.ends[place]))

    def ids_of(self, wanted: Collection[str]) -> dict[str, int]:
        """Return name -> id, for those names that are there."""
        sizes = [len(name.encode()) for name in wanted]
        near = np.flatnonzero(np.isin(self.ends - self.begins, sizes))
        ids = {self.name(place): int(self.ids[place]) for place in near.tolist()}
        return {name: ids[name] for name in wanted if name in ids}

    def places(self, wanted: Ints) -> Ints:
        """Return the place of each id in the table; the table's length if it is not there."""
        ids = self.ids
        if not len(ids) or not len(wanted):
            return np.full(len(wanted), len(ids), np.int64)
        if int(ids[-1]) - int(ids[0]) == len(ids) - 1:  # without a gap, as profilers number them
            place: Ints = wanted - ids[0]
            place[(place < 0) | (place >= len(ids))] = len(ids)
            return place
        place = np.searchsorted(ids, wanted).astype(np.int64, copy=False)
        place[ids[np.minimum(place, len(ids) - 1)] != wanted] = len(ids)
        return place


def entries(data: Bytes, tags: Ints) -> Ints:
    """Return where the message of each tag that `follow` found begins and ends, one row each."""
    if not tags.size:
        return np.zeros((0, 2), np.int64)
    octets = Octets(data, int(tags[0]), int(tags[-1]))
    length, width = octets.varints(tags - octets.start + 1)
    begins = tags + 1 + width
    return np.stack([begins, begins + length], axis=1)


def read_table(data: Bytes, where: Ints) -> NameTable:
    """Read a map from id to a metadata message; a row says where an entry begins and ends.

    Raises:
        WireError: an entry is no message.
    """
    begins, ends = where[:, 0], where[:, 1]
    if not begins.size:
        return NameTable(data=data, ids=begins, begins=begins, ends=ends)
    # as a profiler writes it:  08 id 12 size message, and that is:  08 id 12 size name ...
    octets = Octets(data, int(begins[0]), int(ends[-1]))
    begin, end = begins - octets.start, ends - octets.start
    # a read beyond the end of an entry shows that the entry is unusual
    last = end.copy()
    key, at, is_usual = _tagged(octets, begin, last, OPENING)
    size, at, is_sized = _tagged(octets, at, last, _NAMED)
    is_usual &= is_sized & (at + size == end)
    _, at, is_sized = _tagged(octets, at, last, OPENING)
    is_usual &= is_sized
    size, at, is_sized = _tagged(octets, at, last, _NAMED)
    is_usual &= is_sized & (at + size <= end)
    name, stop = at + octets.start, at + size + octets.start
    for row in np.flatnonzero(~is_usual).tolist():
        key[row], name[row], stop[row] = _entry(data, int(begins[row]), int(ends[row]))
    order = np.argsort(key, kind="stable")
    kept = order[np.flatnonzero(np.diff(key[order], append=key[order[-1]] - 1))]  # the last of each
    return NameTable(data=data, ids=key[kept], begins=name[kept], ends=stop[kept])


_NAMED = _NAME_FIELD << 3 | LENGTH


def _tagged(octets: Octets, at: Ints, last: Ints, tag: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Read a tag and a number at each position; return number, next position, and success."""
    at = np.minimum(at, last)
    value, width = octets.varints(at + 1)
    is_tagged = (octets.byte(at) == tag) & (width > 0)
    value[~is_tagged] = 0
    return value, at + 1 + width, is_tagged


def _entry(data: Bytes, start: int, end: int) -> tuple[int, int, int]:
    """Return the id of an unusual entry, and the begin and end of its name."""
    key, name = 0, (start, start)
    for number, kind, begin, stop in fields(data, start, end):
        if (number, kind) == (1, VARINT):
            key = signed(begin)
        elif (number, kind) == (2, LENGTH):
            name = _name_at(data, begin, stop)
    return key, *name
