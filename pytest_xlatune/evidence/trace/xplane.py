"""Reads a `*.xplane.pb` file (XSpace) as a `Trace`, without protobuf, TensorFlow, xprof or JAX.

A kernel is an event on a stream line of a device plane; derived lines (XLA Ops, Framework Ops,
Steps) repeat the same time and are not read. On the CPU backend there is no device plane: host
events with `hlo_op` and `device_ordinal` are the kernels of that ordinal. This module does not
interpret what it reads: other modules know names, families and steps.

Format: tsl/profiler/protobuf/xplane.proto; names of planes, lines and stats: xplane_schema.cc.
"""

from __future__ import annotations

import io
import mmap
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from pytest_xlatune.evidence.protobuf import (
    LENGTH,
    VARINT,
    Bytes,
    WireError,
    fields,
    signed,
    text,
)
from pytest_xlatune.evidence.trace import (
    ABSENT,
    Backend,
    Columns,
    Device,
    Ints,
    Names,
    Trace,
    at_a_cap,
    by_id,
    by_start,
    narrow,
    other_device,
    without_containers,
)
from pytest_xlatune.evidence.trace.columns import (
    TABLES,
    NameTable,
    TraceLine,
    decode,
    entries,
    follow,
    name_of,
    read_stat,
    read_table,
)
from pytest_xlatune.model.errors import ParseError

GPU_PLANE = "/device:GPU:"
HOST_PLANE = "/host:CPU"
TASK_PLANE = "Task Environment"
STREAM_LINE = "Stream"

# without a name, the time of such a kernel was once missing from the tables
NO_NAME = "(no name)"  # a kernel whose metadata the file does not have

# more than any profiler writes; a file beyond them is hostile or damaged
MAX_PLANES = 4096
MAX_LINES = 1 << 16
MAX_NAMES = 1 << 20
MAX_EVENTS = 1 << 24  # most events in a file; a collector keeps two million per GPU

LIMIT_NS = 1 << 51  # 26 days between the clocks of two lines

_HEAD = 1 << 12  # the first bytes of a plane or a line, which hold its name
_AHEAD = 1 << 18  # bytes that are read at once if many small parts follow each other
_HEADER = 32  # bytes, more than two tags and lengths
_WINDOW = 1 << 23  # bytes of a line that are held in memory at once
_LONGEST = 1 << 15  # bytes, more than the longest event that `follow` accepts

_LAST_OF_SPACE = 4  # the fields of an XSpace: planes, errors, warnings, names of hosts
# fields of an XPlane, and of an XLine
_NAME, _LINE, _EVENT_NAME, _STAT_NAME, _STAT = 2, 3, 4, 5, 6
_STAMP, _EVENT = 3, 4

Range = tuple[int, int]
Read = TypeVar("Read")


@dataclass(slots=True, kw_only=True)
class Plane:
    """An XPlane, with the positions of its parts."""

    name: str
    lines: list[Range]
    event_names: Ints  # begin and end of each entry of a table, one row each
    stat_names: Ints
    stats: list[Range]


def read_plane(data: Bytes, start: int, end: int, loader: _File | None = None) -> Plane:
    """Find the parts of the XPlane that lies from `start` to `end`.

    With a `loader`, its lines are not in memory yet; None means that all of it is.

    Raises:
        WireError: more lines or names than any profiler writes.
    """
    name = ""
    lines: list[Range] = []
    stats: list[Range] = []
    none = np.zeros((0, 2), np.int64)
    tables = {_EVENT_NAME: [none], _STAT_NAME: [none]}
    at, count = start, 0
    while at < end:
        ready = end if loader is None else loader.reach(at)
        number = data[at] >> 3
        tags = none
        if data[at] in TABLES:  # thousands of entries, one behind the other
            tags, at = follow(data, at, ready, data[at])
            tables[number].append(entries(data, tags))
            if at > end:
                raise WireError(f"a table that ends {at - end} bytes behind its plane")
        if not tags.size:
            number, kind, begin, stop = next(fields(data, at, end))
            if loader is not None:
                (loader.skip if (number, kind) == (_LINE, LENGTH) else loader.reach)(stop)
            if kind == LENGTH and number == _NAME:
                name = text(data, begin, stop)
            elif kind == LENGTH and number in tables:
                tables[number].append(np.array([[begin, stop]], np.int64))
            elif kind == LENGTH and number in {_LINE, _STAT}:
                (lines if number == _LINE else stats).append((begin, stop))
            at = stop
        count += tags.size or 1
        if count > MAX_NAMES:
            raise WireError(f"more than {MAX_NAMES} parts in one plane")
    if len(lines) > MAX_LINES:
        raise WireError(f"more than {MAX_LINES} lines in one plane")
    event_names, stat_names = (np.concatenate(table) for table in tables.values())
    return Plane(
        name=name, lines=lines, event_names=event_names, stat_names=stat_names, stats=stats
    )


def line_parts(
    data: Bytes, start: int, end: int, loader: _File | None = None
) -> Iterator[TraceLine]:
    """Find the events of the XLine between two positions.

    A `loader` has one part of the line in memory at a time, so that there are several parts; the
    rest of the line is loaded once the next part is asked for.

    Raises:
        WireError: the bytes are no message, or the time of the line stands behind a part of it.
    """
    name, timestamp_ns, at = "", 0, start
    while True:
        begin, until = at, end if loader is None else loader.load_part(at, end)
        tags = [np.zeros(0, np.int64)]
        while at < until:
            positions, at = follow(data, at, until)
            tags.append(positions)
            if at >= until:
                break
            number, kind, first, stop = next(fields(data, at, end))
            if (number, kind) == (_NAME, LENGTH):
                name = text(data, first, stop)
            elif (number, kind) == (_STAMP, VARINT):
                timestamp_ns = signed(first)
                if begin > start:
                    raise WireError("the time of a line stands behind its first events")
            elif (number, kind) == (_EVENT, LENGTH):
                tags.append(np.array([at], np.int64))
                if loader is not None:
                    loader.load(first, stop)
            at = stop
        if at > end:
            raise WireError(f"an event that ends {at - end} bytes behind its line")
        yield TraceLine(
            name=name, timestamp_ns=timestamp_ns, data=data, tags=np.concatenate(tags), end=at
        )
        if loader is not None:
            loader.forget(begin, at)
        if at >= end:
            return


def read_line(data: Bytes, start: int, end: int) -> TraceLine:
    """Find the events of an XLine that is in memory.

    Raises:
        WireError: the bytes are no message.
    """
    return next(line_parts(data, start, end))


class _File:
    """A file of which one plane at a time is in memory, a part of it each at its own position.

    The file is read into a buffer and never mapped. If it is truncated meanwhile, that is an error
    and not a signal. The buffer is used again, so that it is in the cache and has no page faults.
    """

    def __init__(self, file: io.RawIOBase | io.BytesIO) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        # it is as large as the file, but only the part that is loaded takes memory
        self._map = mmap.mmap(-1, self.size or 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._space = memoryview(self._map)
        if sys.platform == "linux":
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)  # a sixth of the page faults
        self._begin = self._end = self._loaded = (
            0  # two positions in the file, and one in the plane
        )

    def part(self, begin: int, end: int) -> Bytes:
        """Return some bytes of the file; those returned before become invalid."""
        self._fill(0, begin, end - begin)
        return self._space[: end - begin]

    def plane(self, begin: int, end: int) -> Bytes:
        """Return the buffer for the bytes of a plane; nothing of it is loaded yet."""
        self.forget(0, self.size)
        self._begin, self._end, self._loaded = begin, end, 0
        return self._space[: end - begin]

    def reach(self, at: int) -> int:
        """Load all up to a position and some more; return how far the data can be followed."""
        size = self._end - self._begin
        wanted = min(at + _AHEAD, size)
        if min(at + _HEADER, size) > self._loaded:
            self.load(self._loaded, wanted)
            self._loaded = wanted
        return size if self._loaded == size else self._loaded - _HEADER

    def skip(self, at: int) -> None:
        """Continue at a position, because the bytes before it are not needed yet."""
        self._loaded = max(self._loaded, min(at, self._end - self._begin))

    def load(self, begin: int, end: int) -> None:
        """Load the bytes between two positions of the plane."""
        end = min(end, self._end - self._begin)
        self._fill(begin, self._begin + begin, end - begin)

    def load_part(self, at: int, end: int) -> int:
        """Load a window from a position of the plane on; return where it ends, at most `end`."""
        until = min(at + _WINDOW, end)
        self.load(at, min(until + _LONGEST, end))
        return until

    def _fill(self, at: int, begin: int, size: int) -> None:
        """Read `size` bytes of the file from `begin` on into the buffer at `at`."""
        view = self._space[at : at + size]
        self._file.seek(begin)
        done = 0
        while done < len(view):
            more = self._file.readinto(view[done:])
            if not more:
                left = self._file.seek(0, io.SEEK_END)
                raise WireError(f"it became shorter while it was read, {left} bytes are left")
            done += more

    def forget(self, at: int, end: int) -> None:
        """Return the memory between two positions of the buffer to the system."""
        begin = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
        size = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if size > 0 and sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED, begin, size)


def read_xplane(data: Bytes, source: str) -> Trace:
    """Decode an XSpace, the content of a file named `source`.

    Raises:
        ParseError: the file is empty, truncated, foreign or hostile.
    """
    return _XplaneReader(_File(io.BytesIO(data)), source).trace()


def read_xplane_file(path: str) -> Trace:
    """Decode a file, with one plane at a time in memory.

    Raises:
        OSError: the file cannot be read.
        ParseError: the file is empty, truncated, foreign or hostile.
    """
    with Path(path).open("rb", buffering=0) as file:
        return _XplaneReader(_File(file), path).trace()


class _XplaneReader:
    def __init__(self, file: _File, source: str) -> None:
        self._file = file
        self._data: Bytes = b""  # the plane that is being read; positions count from its begin
        self._source = source
        self._names = Names()
        self._origin_ns: int | None = None
        self._events_read = 0
        self._marks = [np.zeros((3, 0), np.int64)]
        none = np.zeros(0, np.int64)
        self._launches: list[tuple[Ints, Ints]] = [(narrow(none), none)]

    def trace(self) -> Trace:
        """Return what the file holds; an error about bytes that are no capture names the file."""
        size = self._file.size
        if not size:
            raise ParseError(
                f"{self._source}: the file is empty; expected an xplane.pb of the profiler"
            )
        try:
            return self._trace()
        except WireError as error:
            raise ParseError(
                f"{self._source}: no readable xplane.pb: {error}; the file ({size} bytes) is "
                "truncated, damaged or of another format: copy it again, or take the "
                "trace.json.gz beside it"
            ) from None

    def _trace(self) -> Trace:
        planes, warnings = self._space()
        if not planes:
            raise WireError("no plane in it")
        gpus = [at for name, at in planes if name.startswith(GPU_PLANE)]
        devices = [device for at in gpus for device in self._with(at, self._gpu)]
        on_gpu = bool(devices)
        task: dict[str, int] = {}
        for name, at in planes:
            if name == HOST_PLANE:
                devices += self._with(at, lambda plane: self._host(plane, on_gpu=on_gpu))
            elif name == TASK_PLANE:
                task |= self._with(at, self._task)
        return Trace(
            source=self._source,
            format="xplane",
            names=tuple(self._names),
            devices=tuple(devices),
            planes_present=len(gpus),
            marks=by_start(np.concatenate(self._marks, axis=1)),
            launches=by_id(*map(np.concatenate, zip(*self._launches, strict=True))),
            started_unix_ns=task.get("profile_start_time"),
            stopped_unix_ns=task.get("profile_stop_time"),
            truncated=next(filter(_LOST.search, warnings), None) or _capped(devices),
            warnings=tuple(warnings),
            foreign=other_device(name for name, _ in planes),
        )

    def _with(self, at: Range, read: Callable[[Plane], Read]) -> Read:
        """Read a plane while it is in memory."""
        begin, end = at
        self._data = self._file.plane(begin, end)
        try:
            return read(read_plane(self._data, 0, end - begin, self._file))
        except WireError as error:
            raise error.behind(begin) from None
        finally:
            self._data = b""

    def _space(self) -> tuple[list[tuple[str, Range]], list[str]]:
        """Return the planes by name and place, and the profiler's errors and warnings."""
        planes: list[tuple[str, Range]] = []
        warnings: list[str] = []
        at, size = 0, self._file.size
        while at < size:
            head = self._file.part(at, min(size, at + _HEAD))
            try:
                number, kind, begin, end = next(fields(head, 0, size - at))
            except WireError as error:
                raise error.behind(at) from None
            if kind != LENGTH or not 1 <= number <= _LAST_OF_SPACE:
                raise WireError(f"field {number} of an XSpace")
            begin, end = at + begin, at + end
            if number == 1:
                planes.append((self._plane_name(begin, end), (begin, end)))
            elif number < _LAST_OF_SPACE:  # errors and warnings; only the names of hosts follow
                warnings.append(text(self._file.part(begin, end), 0, end - begin))
            if len(planes) + len(warnings) > MAX_PLANES:
                raise WireError(f"more than {MAX_PLANES} planes")
            at = end
        return planes, warnings

    def _plane_name(self, begin: int, end: int) -> str:
        """Return the name of a plane; it usually precedes the lines, else read the full plane."""
        head = self._file.part(begin, min(end, begin + _HEAD))
        with suppress(WireError):  # a part longer than what was loaded
            for number, kind, start, stop in fields(head, 0, len(head)):
                if kind == LENGTH and number == _NAME:
                    return text(head, start, stop)
                if number > _NAME:
                    break
        return self._with((begin, end), lambda plane: plane.name)

    def _task(self, plane: Plane) -> dict[str, int]:
        stats = dict(read_stat(self._data, begin, end) for begin, end in plane.stats)
        ids = read_table(self._data, plane.stat_names).ids_of(_TIMES)
        numbers = ((name, stats.get(ident)) for name, ident in ids.items())
        return {name: value for name, value in numbers if isinstance(value, int)}

    def _gpu(self, plane: Plane) -> list[Device]:
        names, texts = (
            _Labels(read_table(self._data, table), self._names)
            for table in (plane.event_names, plane.stat_names)
        )
        wanted = texts.wanted(op="hlo_op", module="hlo_module", launch="correlation_id")
        streams = []
        for begin, end in plane.lines:
            # with its derived lines, a real trace had 4.7 times its kernel time
            name = self._name_of(begin, end)
            if not name.startswith(STREAM_LINE):
                continue
            parts = [
                self._kernels(line, columns, names, texts)
                for line in self._lines(begin, end)
                for columns in decode(line, wanted, texts.intern)
                if columns.size
            ]
            streams += [(name, parts)] if parts else []
        return [Device.of(plane.name, Backend.GPU, streams)] if streams else []

    def _name_of(self, begin: int, end: int) -> str:
        """Return the name of a line; it usually precedes the events, else read the full line."""
        if end - begin > _HEAD:
            self._file.load(begin, begin + _HEAD)
            for number, kind, start, stop in fields(self._data, begin, end):
                if stop > begin + _HEAD - _HEADER and number < _EVENT:
                    break
                if kind == LENGTH and number == _NAME:
                    return text(self._data, start, stop)
                if number >= _EVENT:
                    return ""
        self._file.load(begin, end)
        return name_of(self._data, begin, end)

    def _lines(self, begin: int, end: int) -> Iterator[TraceLine]:
        """Yield a line; a large one in parts, with one part in memory at a time."""
        for line in line_parts(self._data, begin, end, self._file):
            self._events_read += len(line.tags)
            if self._events_read > MAX_EVENTS:
                raise WireError(f"more than {MAX_EVENTS} events")
            yield line

    def _kernels(
        self, line: TraceLine, columns: Columns, names: _Labels, texts: _Labels
    ) -> Columns:
        name = names.index(columns["name"])
        if (unnamed := name == ABSENT).any():
            name[unnamed] = self._names[NO_NAME]
        return Columns(
            start_ps=columns["offset_ps"] + self._base_ps(line.timestamp_ns),
            duration_ps=columns["duration_ps"],
            name=name,
            op=texts.index(columns["op"]),
            module=texts.index(columns["module"]),
            launch=narrow(columns["launch"]),
        )

    def _base_ps(self, stamp_ns: int) -> int:
        if self._origin_ns is None:
            # session-relative clocks are kept; unix nanoseconds would overflow as picoseconds
            self._origin_ns = 0 if abs(stamp_ns) < LIMIT_NS else stamp_ns
        base_ns = stamp_ns - self._origin_ns
        if abs(base_ns) > LIMIT_NS:
            raise WireError(f"lines whose clocks are {base_ns} ns apart")
        return base_ns * 1000

    def _host(self, plane: Plane, *, on_gpu: bool) -> list[Device]:
        """Read step markers and launches, and the kernels where the CPU is the device."""
        texts = _Labels(read_table(self._data, plane.stat_names), self._names)
        of_kernels = {"ordinal": "device_ordinal", "op": "hlo_op", "module": "hlo_module"}
        by, more = ("correlation_id", {}) if on_gpu else ("run_id", of_kernels)
        wanted = texts.wanted(step="step_num", launch=by, **more)
        if not wanted.keys() & {"step", "ordinal", "launch"}:
            return []
        # a capture of a GPU has the names of thousands of Python frames here
        names = texts if on_gpu else _Labels(read_table(self._data, plane.event_names), self._names)
        streams: dict[int, list[tuple[str, Sequence[Columns]]]] = defaultdict(list)
        for begin, end in plane.lines:
            by_device: dict[int, list[Columns]] = defaultdict(list)
            for line in self._lines(begin, end):
                for columns in decode(line, wanted, texts.intern):
                    self._markers(line, columns)
                    if "ordinal" not in wanted:
                        continue
                    ordinal, operation = columns["ordinal"], columns["op"] != ABSENT
                    for device in np.unique(ordinal[(ordinal != ABSENT) & operation]).tolist():
                        mine = columns.where((ordinal == device) & operation)
                        by_device[device].append(self._kernels(line, mine, names, texts))
            for device, parts in by_device.items():
                kernels = without_containers(Columns.joined(parts))
                streams[device].append((line.name, [kernels]))
        return [
            Device.of(f"{HOST_PLANE}:{ordinal}", Backend.CPU, streams[ordinal])
            for ordinal in sorted(streams)
        ]

    def _markers(self, line: TraceLine, columns: Columns) -> None:
        """Record step markers, and launches: calls that have an id and are not kernels."""
        step, launch = columns["step"], columns["launch"]
        start_ps = columns["offset_ps"] + self._base_ps(line.timestamp_ns)
        marks = np.stack([step, start_ps, start_ps + columns["duration_ps"]])
        self._marks.append(marks[:, step != ABSENT])
        calls = launch != ABSENT
        if "ordinal" in columns:
            calls &= columns["ordinal"] == ABSENT
        self._launches.append((narrow(launch[calls]), start_ps[calls]))


_TIMES = ("profile_start_time", "profile_stop_time")  # stats of the task environment


# NVIDIA's collector drops all beyond two million events of a kind, and says so:
#   3 events dropped: buffer is full    Truncated host trace    Exceeded max number of events
_LOST = re.compile(
    r"\b(?:dropp(?:ed|ing)|discard\w*|lost|truncat\w*|overflow\w*|exceed\w*|incomplete"
    r"|(?:buffers? (?:is|are|was|were) )full)\b",
    re.IGNORECASE,
)


def _capped(devices: Sequence[Device]) -> str | None:
    """Return a warning if a collector (ROCm's) seems to have silently stopped at a limit."""
    gpus = [device.kernels.size for device in devices if device.backend is Backend.GPU]
    for count in (*gpus, sum(gpus)):
        if at_a_cap(count):
            return (
                f"{count} kernels, a number at which a collector stops: the end of the window is "
                "missing; profile fewer steps"
            )
    return None


class _Labels:
    """The names of a table as indices of the trace's names.

    The table of a profiler has the names of thousands of kernels. Only a name that an event refers
    to is decoded and added to the names of the trace.
    """

    def __init__(self, table: NameTable, names: Names) -> None:
        self._table = table
        self._names = names
        # the last one stands for names that the table lacks
        self._indices = narrow(np.full(len(table.ids) + 1, ABSENT, np.int64))

    def wanted(self, **columns: str) -> dict[str, int]:
        """Return column -> id of a name, for those names that the table has."""
        ids = self._table.ids_of(columns.values())
        return {column: ids[name] for column, name in columns.items() if name in ids}

    def intern(self, string: str) -> int:
        """Return an id for a string that an event holds in full: a number below ABSENT."""
        if len(self._names) > MAX_NAMES:
            raise WireError(f"more than {MAX_NAMES} strings in one file")
        return ABSENT - 1 - self._names[string]

    def index(self, ids: Ints) -> Ints:
        """Return the index of the name of each id; ABSENT for one without."""
        place = self._table.places(ids)
        borne = np.bincount(place, minlength=len(self._indices))[:-1]
        for row in np.flatnonzero((borne > 0) & (self._indices[:-1] == ABSENT)).tolist():
            self._indices[row] = self._names[self._table.name(row)]
        indices = self._indices.take(place)
        if ids.min(initial=0) < ABSENT:
            strings = (ids < ABSENT) & (indices == ABSENT)
            index = ABSENT - 1 - ids[strings]
            indices[strings] = np.where(index < len(self._names), index, ABSENT)
        return indices
