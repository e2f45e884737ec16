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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np

from pytest_xlatune.evidence.protobuf import LENGTH, VARINT, Part, WireError, fields, signed, text
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
    other_device,
    without_containers,
)
from pytest_xlatune.evidence.trace.columns import (
    TABLES,
    NameTable,
    TraceLine,
    decode,
    follow,
    follow_events,
    read_stat,
)
from pytest_xlatune.model.errors import ParseError

GPU_PLANE = "/device:GPU:"
HOST_PLANE = "/host:CPU"
NO_NAME = "(no name)"  # a kernel whose metadata the file does not have

MAX_PARTS = 1 << 24  # planes, lines, names and events; a collector keeps two million per GPU
LIMIT_NS = 1 << 51  # 26 days between the clocks of two lines

_AHEAD = 1 << 18  # bytes that are read at once if many small parts follow each other
_HEADER = 32  # bytes, more than two tags and lengths
_WINDOW = 1 << 23  # bytes of a line that are held in memory at once
_LONGEST = 1 << 15  # bytes, more than the longest event that `follow` accepts

# fields of an XSpace, an XPlane and an XLine
_PLANE, _HOSTNAMES = 1, 4  # between them are errors and warnings
_NAME, _LINE, _EVENT_NAME, _STAT_NAME, _PLANE_STAT = 2, 3, 4, 5, 6
_STAMP, _EVENT = 3, 4

Range = tuple[int, int]


class CaptureFile:
    """A file in a buffer of its size, of which only what was loaded takes memory.

    The file is read and never mapped. If it is truncated meanwhile, that is an error and not a
    signal. A position in the buffer is the position in the file.
    """

    def __init__(self, file: io.RawIOBase | io.BytesIO) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        self._map = mmap.mmap(-1, self.size or 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.data = memoryview(self._map)
        if sys.platform == "linux":
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)  # so that only a sixth as many pages fault
        self._ahead = (0, 0)  # begin and end of what `ahead` has loaded
        self._parts = 0

    def load(self, begin: int, end: int) -> None:
        """Load the bytes between two positions."""
        view = self.data[begin:end]
        self._file.seek(begin)
        done = 0
        while done < len(view):
            more = self._file.readinto(view[done:])
            if not more:
                left = self._file.seek(0, io.SEEK_END)
                raise WireError(f"it became shorter while it was read, {left} bytes are left")
            done += more

    def ahead(self, begin: int, end: int) -> int:
        """Load a range, and some more if it is not there yet; return how far bytes are loaded."""
        if not self._ahead[0] <= begin <= end <= self._ahead[1]:
            self._ahead = begin, min(max(end, begin + _AHEAD), self.size)
            self.load(*self._ahead)
        return self._ahead[1]

    def forget(self, begin: int, end: int) -> None:
        """Return the memory between two positions to the system."""
        self._ahead = (0, 0)
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        size = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if size > 0 and sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED, begin, size)

    def count(self, parts: int) -> None:
        """Add to the number of parts, and refuse more of them than any profiler writes."""
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise WireError(f"more than {MAX_PARTS} parts")

    def fields(self, begin: int, end: int) -> Iterator[Part]:
        """Yield the fields of a message; their values are not loaded."""
        while begin < end:
            self.ahead(begin, min(begin + _HEADER, end))
            self.count(1)
            part = next(fields(self.data, begin, end))
            yield part
            begin = part[3]

    def text(self, begin: int, end: int) -> str:
        """Load a string."""
        self.ahead(begin, end)
        return text(self.data, begin, end)

    def name(self, begin: int, end: int) -> str:
        """Return the name of a plane or a line, which precedes its events."""
        for number, kind, first, last in self.fields(begin, end):
            if (number, kind) == (_NAME, LENGTH):
                return self.text(first, last)
        return ""


def read_space(file: CaptureFile) -> tuple[list[Range], list[str]]:
    """Return where the planes of an XSpace are, and the profiler's errors and warnings.

    Raises:
        WireError: the file is no XSpace.
    """
    planes: list[Range] = []
    warnings: list[str] = []
    at = 0
    for number, kind, begin, end in file.fields(0, file.size):
        if kind != LENGTH or number > _HOSTNAMES:
            raise WireError(f"field {number} of an XSpace at byte {at}")
        if number == _PLANE:
            planes.append((begin, end))
        elif number < _HOSTNAMES:
            warnings.append(file.text(begin, end))
        at = end
    if not planes:
        raise WireError("no plane in it")
    return planes, warnings


@dataclass(slots=True, kw_only=True)
class Plane:
    """An XPlane, with the positions of its parts. The lines are not loaded."""

    name: str
    lines: list[Range]
    event_names: Ints  # positions of the entries of its table of event names
    stat_names: Ints  # the same for stats


def read_plane(file: CaptureFile, begin: int, end: int) -> Plane:
    """Find the parts of the XPlane between two positions.

    Raises:
        WireError: the bytes are no message.
    """
    name = ""
    lines: list[Range] = []
    none = np.zeros(0, np.int64)
    tables = {_EVENT_NAME: [none], _STAT_NAME: [none]}
    at = begin
    while at < end:
        ready = file.ahead(at, min(at + _HEADER, end))
        tag = file.data[at]
        if tag in TABLES:  # thousands of entries, one after the other
            loaded_end = end if ready >= end else ready - _HEADER
            positions, at = follow(file.data, at, loaded_end, tag)
            tables[tag >> 3].append(positions)
            file.count(len(positions))
            if at > end:
                raise WireError(f"a table that ends {at - end} bytes behind its plane")
            if positions.size:
                continue
        start = at
        number, kind, first, at = next(file.fields(start, end))
        if kind == LENGTH and number == _NAME:
            name = file.text(first, at)
        elif kind == LENGTH and number in tables:  # a long entry
            tables[number].append(np.array([start], np.int64))
        elif kind == LENGTH and number == _LINE:
            lines.append((first, at))
    event_names, stat_names = (np.concatenate(table) for table in tables.values())
    for table in (event_names, stat_names):
        if table.size:
            *_, last = next(file.fields(int(table[-1]), end))
            file.load(int(table[0]), last)
    return Plane(name=name, lines=lines, event_names=event_names, stat_names=stat_names)


def line_parts(
    file: CaptureFile, start: int, end: int, window: int | None = None
) -> Iterator[TraceLine]:
    """Find the events of the XLine between two positions.

    Yields one part of the line after the other, each of about `window` bytes; the memory of a part
    is returned to the system when the next one is asked for.

    Raises:
        WireError: the bytes are no message, or the time of the line comes after its first part.
    """
    data, window = file.data, window or _WINDOW
    name, timestamp_ns, at = "", 0, start
    while True:
        begin, until = at, min(at + window, end)
        file.load(at, min(until + _LONGEST, end))
        events = [np.zeros(0, np.int64)]
        while at < until:
            # only the first events are worth the search of `follow_events`
            follow_more = follow_events if len(events) == 1 else follow
            positions, at = follow_more(data, at, until)
            if positions.size:
                events.append(positions)
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
                events.append(np.array([at], np.int64))
                file.load(first, stop)
            at = stop
        if at > end:
            raise WireError(f"an event that ends {at - end} bytes behind its line")
        line = TraceLine(
            name=name, timestamp_ns=timestamp_ns, data=data, tags=np.concatenate(events), end=at
        )
        file.count(len(line.tags))
        yield line
        if at >= end:
            return
        file.forget(begin, at)


def read_xplane(file: io.RawIOBase | io.BytesIO, source: str) -> Trace:
    """Decode an XSpace, with one plane at a time in memory; `source` is the name of the file.

    Raises:
        OSError: the file cannot be read.
        ParseError: the file is empty, truncated, foreign or hostile.
    """
    capture = CaptureFile(file)
    if not capture.size:
        raise ParseError(f"{source}: the file is empty; expected an xplane.pb of the profiler")
    try:
        return _XplaneReader(capture).trace(source)
    except WireError as error:
        raise ParseError(
            f"{source}: no readable xplane.pb: {error}; the file ({capture.size} bytes) is "
            "truncated, damaged or of another format: copy it again, or take the trace.json.gz "
            "beside it"
        ) from None


def _narrow(column: Ints) -> Ints:
    """Return a column as 32-bit integers if its numbers fit, in half the memory."""
    kept = cast("Ints", column.astype(np.int32))
    return kept if (kept == column).all() else column


class _XplaneReader:
    def __init__(self, file: CaptureFile) -> None:
        self._file = file
        self._names = Names()
        self._origin_ns: int | None = None
        self._marks = [np.zeros((3, 0), np.int64)]
        none = np.zeros(0, np.int64)
        self._launches: list[tuple[Ints, Ints]] = [(_narrow(none), none)]

    def trace(self, source: str) -> Trace:
        planes, warnings = read_space(self._file)
        named = [(self._file.name(*plane), plane) for plane in planes]
        devices: list[Device] = []
        gpus = [plane for name, plane in named if name.startswith(GPU_PLANE)]
        for begin, end in gpus:
            devices += self._gpu(read_plane(self._file, begin, end))
            self._file.forget(begin, end)
        on_gpu = bool(devices)
        counts = [device.kernels.size for device in devices]
        # ROCm's collector stops at its limit in silence
        sizes = (*counts, sum(counts))
        caps = [at_a_cap(size, "kernels", "profile fewer steps") for size in sizes]
        losses = [warning for warning in warnings if _LOST.search(warning)]
        session_ns = None
        for name, plane in named:
            if name == HOST_PLANE:
                devices += self._host(read_plane(self._file, *plane), on_gpu=on_gpu)
                self._file.forget(*plane)
            elif name == "Task Environment":
                session_ns = self._session_ns(*plane)
        launch_ids, launched_ps = map(np.concatenate, zip(*self._launches, strict=True))
        return Trace(
            source=source,
            format="xplane",
            names=tuple(self._names),
            devices=tuple(devices),
            planes_present=len(gpus),
            marks=np.concatenate(self._marks, axis=1),
            launches=by_id(launch_ids, launched_ps),
            session_ns=session_ns,
            truncated=next(filter(None, [*losses, *caps]), None),
            warnings=tuple(warnings),
            foreign=other_device(name for name, _ in named),
        )

    def _table(self, where: Ints) -> NameTable:
        return NameTable(self._file.data, where, self._names)

    def _session_ns(self, begin: int, end: int) -> tuple[int, int] | None:
        texts = self._table(read_plane(self._file, begin, end).stat_names)
        self._file.load(begin, end)
        data = self._file.data
        parts = (part for part in fields(data, begin, end) if part[:2] == (_PLANE_STAT, LENGTH))
        values = dict(read_stat(data, first, last) for _, _, first, last in parts)
        ids = texts.wanted(start="profile_start_time", stop="profile_stop_time")
        start_ns, stop_ns = (values.get(ids.get(time, ABSENT)) for time in ("start", "stop"))
        if isinstance(start_ns, int) and isinstance(stop_ns, int) and start_ns and stop_ns:
            return start_ns, stop_ns
        return None

    def _gpu(self, plane: Plane) -> list[Device]:
        names, texts = self._table(plane.event_names), self._table(plane.stat_names)
        wanted = texts.wanted(op="hlo_op", module="hlo_module", launch="correlation_id")
        streams = []
        for begin, end in plane.lines:
            # with its derived lines, a real trace had 4.7 times its kernel time
            name = self._file.name(begin, end)
            if not name.startswith("Stream"):
                continue
            parts = [
                self._kernels(line, columns, names, texts)
                for line in line_parts(self._file, begin, end)
                for columns in decode(line, wanted, texts.intern)
                if columns.size
            ]
            streams += [(name, parts)] if parts else []
        return [Device.of(plane.name, Backend.GPU, streams)] if streams else []

    def _kernels(
        self, line: TraceLine, columns: Columns, names: NameTable, texts: NameTable
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
            launch=_narrow(columns["launch"]),
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
        texts = self._table(plane.stat_names)
        of_kernels = {"ordinal": "device_ordinal", "op": "hlo_op", "module": "hlo_module"}
        launch, more = ("correlation_id", {}) if on_gpu else ("run_id", of_kernels)
        wanted = texts.wanted(step="step_num", launch=launch, **more)
        if not wanted.keys() & {"step", "ordinal", "launch"}:
            return []
        # no event of a GPU's host needs one of the names, which are thousands of Python frames
        names = texts if on_gpu else self._table(plane.event_names)
        streams: dict[int, list[tuple[str, Sequence[Columns]]]] = defaultdict(list)
        for begin, end in plane.lines:
            by_device: dict[int, list[Columns]] = defaultdict(list)
            for line in line_parts(self._file, begin, end):
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
        calls = (launch != ABSENT) & (columns["ordinal"] == ABSENT)
        self._launches.append((_narrow(launch[calls]), start_ps[calls]))


# NVIDIA's collector drops all beyond two million events of a kind, and says so:
#   3 events dropped: buffer is full    Truncated host trace    Exceeded max number of events
_LOST = re.compile(
    r"\b(?:dropp(?:ed|ing)|discard\w*|lost|truncat\w*|overflow\w*|exceed\w*|incomplete"
    r"|(?:buffers? (?:is|are|was|were) )full)\b",
    re.IGNORECASE,
)
