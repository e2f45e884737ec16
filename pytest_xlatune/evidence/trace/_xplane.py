"""A `*.xplane.pb` file (XSpace) to a `Trace`, without protobuf, TensorFlow, xprof or JAX.

A kernel is what lies on a stream line of a device plane; derived lines (XLA Ops, Framework Ops,
Steps) repeat the same time and are not read. On the CPU backend there is no device plane: host
events with `hlo_op` and `device_ordinal` are the kernels of that ordinal. This module does not
judge what it reads: names, families and steps are others' business.

Format: tsl/profiler/protobuf/xplane.proto; names of planes, lines and stats: xplane_schema.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pytest_xlatune.evidence.protobuf import LENGTH, VARINT, Bytes, WireError, fields, signed, text
from pytest_xlatune.evidence.trace import (
    ABSENT,
    Annotation,
    Backend,
    Device,
    Events,
    Ints,
    Names,
    Stream,
    Trace,
    joined,
    launches,
    without_containers,
)
from pytest_xlatune.evidence.trace._columns import (
    Columns,
    TraceLine,
    decode,
    name_of,
    read_line,
    read_stat,
)
from pytest_xlatune.model.errors import ParseError

GPU_PLANE = "/device:GPU:"
HOST_PLANE = "/host:CPU"
TASK_PLANE = "Task Environment"
STREAM_LINE = "Stream"

# more than any profiler writes; a file beyond them is hostile or damaged
MAX_PLANES = 4096
MAX_LINES = 1 << 16
MAX_NAMES = 1 << 20
MAX_EVENTS = 1 << 24  # of a file; a collector keeps two million per GPU

LIMIT_NS = 1 << 51  # 26 days between the clocks of two lines

Range = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Plane:
    """An XPlane: where its parts lie; names only as far as asked for."""

    name: str = ""
    lines: list[Range] = field(default_factory=list)
    event_names: list[Range] = field(default_factory=list)
    stat_names: list[Range] = field(default_factory=list)
    stats: list[Range] = field(default_factory=list)


_PARTS = {3: "lines", 4: "event_names", 5: "stat_names", 6: "stats"}


def read_plane(data: Bytes, start: int, end: int) -> Plane:
    """Find the parts of the XPlane that lies from `start` to `end`.

    Raises:
        WireError: more lines or names than any profiler writes.
    """
    plane = Plane()
    count = 0
    for number, kind, begin, stop in fields(data, start, end):
        if kind == LENGTH and number == 2:  # noqa: PLR2004
            plane.name = text(data, begin, stop)
        elif kind == LENGTH and number in _PARTS:
            count += 1
            if count > MAX_NAMES:
                raise WireError(f"more than {MAX_NAMES} parts in one plane")
            getattr(plane, _PARTS[number]).append((begin, stop))
    if len(plane.lines) > MAX_LINES:
        raise WireError(f"more than {MAX_LINES} lines in one plane")
    return plane


def read_xplane(data: Bytes, source: str) -> Trace:
    """Decode an XSpace: a whole file, never copied as a whole; `source` is its name.

    Raises:
        ParseError: the file is empty, truncated, foreign or hostile.
    """
    if not len(data):
        raise ParseError(f"{source}: the file is empty; expected an xplane.pb of the profiler")
    try:
        return _XplaneReader(data, source).trace()
    except WireError as error:
        raise ParseError(
            f"{source}: no readable xplane.pb: {error}; the file ({len(data)} bytes) is truncated, "
            "damaged or of another format: copy it again, or take the trace.json.gz beside it"
        ) from None


class _XplaneReader:
    def __init__(self, data: Bytes, source: str) -> None:
        self._data = data
        self._source = source
        self._names = Names()
        self._origin_ns: int | None = None
        self._events_read = 0
        self._annotations: list[Annotation] = []
        self._launches: list[tuple[Ints, Ints]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]

    def trace(self) -> Trace:
        planes, warnings, hosts = self._space()
        if not planes:
            raise WireError("no plane in it")
        gpus = [plane for plane in planes if plane.name.startswith(GPU_PLANE)]
        devices = [device for plane in gpus if (device := self._gpu(plane)) is not None]
        for plane in planes:
            if plane.name == HOST_PLANE:
                devices += self._host(plane, on_gpu=bool(devices))
        task = self._task(planes)
        return Trace(
            source=self._source,
            format="xplane",
            has_all=True,
            host=hosts[0] if hosts else None,
            names=tuple(self._names),
            devices=tuple(devices),
            planes_present=len(gpus),
            annotations=tuple(sorted(self._annotations, key=lambda each: each.start_ps)),
            launches=launches(*map(np.concatenate, zip(*self._launches, strict=True))),
            started_unix_ns=task.get("profile_start_time"),
            stopped_unix_ns=task.get("profile_stop_time"),
            truncated=next((text for text in warnings if "dropped" in text), None),
            warnings=tuple(warnings),
        )

    def _space(self) -> tuple[list[Plane], list[str], list[str]]:
        planes: list[Plane] = []
        warnings: list[str] = []
        hosts: list[str] = []
        texts = {2: warnings, 3: warnings, 4: hosts}
        for number, kind, begin, end in fields(self._data, 0, len(self._data)):
            if kind != LENGTH or number not in {1, *texts}:
                raise WireError(f"field {number} of an XSpace")
            if number == 1:
                planes.append(read_plane(self._data, begin, end))
            else:
                texts[number].append(text(self._data, begin, end))
            if len(planes) + len(warnings) + len(hosts) > MAX_PLANES:
                raise WireError(f"more than {MAX_PLANES} planes")
        return planes, warnings, hosts

    def _table(self, entries: list[Range]) -> dict[int, str]:
        """Read a map from id to a metadata message: the name of each."""
        names: dict[int, str] = {}
        for start, end in entries:
            key = 0
            name = ""
            for number, kind, begin, stop in fields(self._data, start, end):
                if (number, kind) == (1, VARINT):
                    key = signed(begin)
                elif (number, kind) == (2, LENGTH):
                    name = name_of(self._data, begin, stop)
            names[key] = name
        return names

    def _task(self, planes: list[Plane]) -> dict[str, int]:
        found: dict[str, int] = {}
        for plane in planes:
            if plane.name == TASK_PLANE:
                names = self._table(plane.stat_names)
                for begin, end in plane.stats:
                    ident, value = read_stat(self._data, begin, end)
                    if isinstance(value, int):
                        found[names.get(ident, "")] = value
        return found

    def _gpu(self, plane: Plane) -> Device | None:
        stats = _Stats(self._table(plane.stat_names))
        wanted = stats.wanted(op="hlo_op", module="hlo_module", launch="correlation_id")
        names, attributes = self._index(self._table(plane.event_names)), self._index(stats.names)
        streams = []
        for begin, end in plane.lines:
            if not name_of(self._data, begin, end).startswith(STREAM_LINE):
                continue
            line = self._line(begin, end)
            parts = [
                self._events(line, columns, names, attributes)
                for columns in decode(line, wanted, intern=stats.intern)
                if len(columns.name)
            ]
            if parts:
                streams.append(Stream(name=line.name, events=joined(parts)))
        if not streams:
            return None
        return Device(name=plane.name, backend=Backend.GPU, streams=tuple(streams))

    def _line(self, begin: int, end: int) -> TraceLine:
        line = read_line(self._data, begin, end)
        self._events_read += len(line.tags)
        if self._events_read > MAX_EVENTS:
            raise WireError(f"more than {MAX_EVENTS} events")
        return line

    def _events(
        self,
        line: TraceLine,
        columns: Columns,
        names: Callable[[Ints], Ints],
        attributes: Callable[[Ints], Ints],
    ) -> Events:
        return Events(
            start_ps=columns.offset_ps + self._base_ps(line),
            duration_ps=columns.duration_ps,
            name=names(columns.name),
            op=attributes(columns.stat("op")),
            module=attributes(columns.stat("module")),
            launch=columns.stat("launch"),
        )

    def _base_ps(self, line: TraceLine) -> int:
        if self._origin_ns is None:
            # session-relative clocks are kept; unix nanoseconds would overflow as picoseconds
            self._origin_ns = 0 if abs(line.timestamp_ns) < LIMIT_NS else line.timestamp_ns
        base_ns = line.timestamp_ns - self._origin_ns
        if abs(base_ns) > LIMIT_NS:
            raise WireError(f"lines whose clocks are {base_ns} ns apart")
        return base_ns * 1000

    def _index(self, table: dict[int, str]) -> Callable[[Ints], Ints]:
        """Return the function from ids of this plane to indices of the trace's names."""
        ids = np.zeros(0, np.int64)
        indices = np.full(1, ABSENT, np.int64)  # of each id, and ABSENT for one not in the table

        def index(found: Ints) -> Ints:
            nonlocal ids, indices
            if len(ids) != len(table):  # at first, and after a string entered it
                ids = np.array(sorted(table), np.int64)
                indices = np.full(len(ids) + 1, ABSENT, np.int64)
            place = _places(ids, found)
            # only names that an event bears enter the table of the trace
            for each in np.flatnonzero(np.bincount(place, minlength=len(ids))[: len(ids)]):
                if indices[each] == ABSENT:
                    indices[each] = self._names[table[int(ids[each])]]
            return indices.take(place)

        return index

    def _host(self, plane: Plane, *, on_gpu: bool) -> list[Device]:
        """Read step markers and launches, and the kernels where the CPU is the device."""
        stats = _Stats(self._table(plane.stat_names))
        of_kernels = {"ordinal": "device_ordinal", "op": "hlo_op", "module": "hlo_module"}
        by, more = ("correlation_id", {}) if on_gpu else ("run_id", of_kernels)
        wanted = stats.wanted(step="step_num", launch=by, **more)
        if not ("step" in wanted or "ordinal" in wanted):
            return []
        names, attributes = self._index(self._table(plane.event_names)), self._index(stats.names)
        kernels: dict[int, list[Stream]] = {}
        for begin, end in plane.lines:
            line = self._line(begin, end)
            found: dict[int, list[Events]] = {}
            for columns in decode(line, wanted, intern=stats.intern, first=on_gpu):
                self._markers(line, columns)
                ordinal, operation = columns.stat("ordinal"), columns.stat("op") != ABSENT
                for device in np.unique(ordinal[(ordinal != ABSENT) & operation]):
                    mine = columns.where((ordinal == device) & operation)
                    events = self._events(line, mine, names, attributes)
                    found.setdefault(int(device), []).append(events)
            for device, parts in found.items():
                events = without_containers(joined(parts))
                kernels.setdefault(device, []).append(Stream(name=line.name, events=events))
        return [
            Device(name=f"{HOST_PLANE}:{ordinal}", backend=Backend.CPU, streams=tuple(streams))
            for ordinal, streams in sorted(kernels.items())
        ]

    def _markers(self, line: TraceLine, columns: Columns) -> None:
        """Keep step markers and launches: calls that bear an id and are no kernel themselves."""
        step, launch = columns.stat("step"), columns.stat("launch")
        start_ps = columns.offset_ps + self._base_ps(line)
        for row in np.flatnonzero(step != ABSENT):
            begin = int(start_ps[row])
            end = begin + int(columns.duration_ps[row])
            self._annotations.append(Annotation(step=int(step[row]), start_ps=begin, end_ps=end))
        calls = (launch != ABSENT) & (columns.stat("ordinal") == ABSENT)
        self._launches.append((launch[calls], start_ps[calls]))


def _places(ids: Ints, found: Ints) -> Ints:
    """Return where each id is in a sorted table without repeats; its length where it is not."""
    place: Ints
    if not len(ids) or not len(found):
        return np.full(len(found), len(ids), np.int64)
    if int(ids[-1]) - int(ids[0]) == len(ids) - 1:  # without a gap, as profilers number them
        place = found - ids[0]
        place[(place < 0) | (place >= len(ids))] = len(ids)
        return place
    place = np.searchsorted(ids, found).astype(np.int64, copy=False)
    place[ids[np.minimum(place, len(ids) - 1)] != found] = len(ids)
    return place


class _Stats:
    """The stat names of a plane, with strings that events bear in full added behind them."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self._ids = {name: ident for ident, name in names.items()}
        self._next = 1 << 40

    def wanted(self, **columns: str) -> dict[str, int]:
        """Return column -> stat id, for those stats that the plane has."""
        return {column: self._ids[name] for column, name in columns.items() if name in self._ids}

    def intern(self, string: str) -> int:
        """Return the id of a string, made where it has none."""
        if string not in self._ids:
            if len(self._ids) > MAX_NAMES:
                raise WireError(f"more than {MAX_NAMES} strings in one plane")
            self._next += 1
            self._ids[string] = self._next
            self.names[self._next] = string
        return self._ids[string]
