"""What a trace holds of Megascale: messages, buffers mapped, copies, transfers of each core.

A message is a receive event of a Megascale worker; its time is the arrival, and its latency a stat.
Times are integer picoseconds after the trace's least line timestamp: a float of nanoseconds
since 1970 would be wrong by 256 ns.

Format: tsl/profiler/protobuf/xplane.proto; names of planes, lines and stats: xplane_schema.cc.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytest_xlatune.evidence.protobuf import LENGTH, VARINT, Ints, WireError, fields, signed, text
from pytest_xlatune.evidence.trace import ABSENT
from pytest_xlatune.evidence.trace.columns import Columns, decode, name_of, read_line, read_stat
from pytest_xlatune.evidence.trace.xplane import LIMIT_NS, Plane, Range, read_plane
from pytest_xlatune.model.errors import ParseError

WORKER = "Megascale"
RECEIVE = "MegaScale: Communication Transport Receive"
COPY = "MegaScale: Memory Copy"
MAP_DMA = "MapDmaBuffer"
TPU = re.compile(r"/device:TPU:\d+$")
MODULES, OPS, STEPS = "XLA Modules", "XLA Ops", "Steps"
COUNTERS = "/device:CUSTOM:Megascale Trace"
RECEIVED, SENT = "NetworkReceive END", "NetworkSend END"

IDS = {
    "source_slice": "dcn_source_slice_id",
    "source_device": "dcn_source_per_slice_device_id",
    "to_slice": "dcn_destination_slice_id",
    "to_device": "dcn_destination_per_slice_device_id",
    "size": "payload_size_bytes",
}
_STATS = {"label": "dcn_label", **IDS, "latency": "duration_us"}
_SIZES = ("size", "bytes", "size_bytes", "buffer_size", "payload_size_bytes")
_INTERNED = 1 << 40  # ids of strings that events bear in full
_TRANSFER = re.compile(
    r"%?(?P<kind>send-done|recv-done|send|recv)(?P<number>\.\d+)?(?: = .*|)$", re.DOTALL
)
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?(?P<name>[^",}]+)')
_CHANNEL = re.compile(r"channel_id=(?P<name>\d+)")
_TYPE = re.compile(r'_xla_megascale_transfer_type="?(?P<name>[A-Z_]+)')
# _xla_megascale_target="{1,2}x{0:3}": slices, and devices of each
_TARGET = re.compile(r'_xla_megascale_target="?\{(?P<name>[\d,:]+)\}')
# %recv-done.1 = (bf16[8000,32000]{1,0:T(8,128)}, token[]) recv-done(
_SHAPES = re.compile(r"= (?P<shapes>.*?) ?\b(?:recv|send)-done\(", re.DOTALL)
_SHAPE = re.compile(r"\b(?P<kind>pred|[a-z]{1,2}\d{1,3})(?P<more>[a-z]\w*)?\[(?P<sizes>[\d,]*)\]")
# s100001->200001d|$c0=1000
_BUFFER = re.compile(r"s(?P<source>\d+)->\|?(?P<to>\d+)d\|\$c\d+=(?P<size>\d+)")
_GRAPH = re.compile(r"device_\d+_gid_[\w.-]+_\d+")
# 1.07GB, 32B
_AMOUNT = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?) ?(?P<unit>[kKMGT]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Columns of all receive events; ABSENT where one has no such stat, or an empty label."""

    end_ps: Ints
    latency_us: Ints
    source_slice: Ints
    source_device: Ints
    to_slice: Ints
    to_device: Ints
    size: Ints
    label: Ints  # index of `Traffic.labels`


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Some events: how many, how long, how many bytes."""

    n: int = 0
    ps: int = 0
    size: int = 0

    def plus(self, *, ps: int, size: int) -> Amount:
        """Return it with one event more."""
        return Amount(n=self.n + 1, ps=self.ps + ps, size=self.size + size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A send or receive op of a core.

    Attributes:
        size: bytes of the shape of a recv-done; None of other ops, or where its text has none.
        collective: Megascale's name of the transfer; "" where its text has none.
        group: how many slices take part; None where its text does not say.
    """

    kind: str
    rendezvous: str
    start_ps: int
    duration_ps: int
    size: int | None = None
    collective: str = ""
    group: int | None = None


@dataclass(slots=True, kw_only=True)
class Counted:
    """What Megascale's own plane tells: begin, end and bytes of each transfer and collective.

    Source: openxla/xprof, trace_processor of megascale. The time of a received one is its latency,
    that of a sent one how long sending took; what goes from a device to itself is left out.
    """

    received: list[tuple[int, int, int]] = field(default_factory=list)
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    collectives: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What one or many traces hold of Megascale.

    Attributes:
        messages: of all receive events.
        labels: of the messages.
        mapped: time, duration and bytes of each buffer that a worker mapped.
        copies: of memory, by workers.
        first_module_ps: start of the first program on a TPU; None without one.
        span_ps: first and last time of what was read.
        transfers: device -> its send and receive ops, by time.
        steps: how many steps a device shows; 0 where none does.
        counted: what the plane of Megascale's own counters tells.
    """

    messages: Messages
    labels: tuple[str, ...] = ()
    mapped: list[tuple[int, int, int]] = field(default_factory=list)
    copies: Amount = field(default_factory=Amount)
    first_module_ps: int | None = None
    span_ps: tuple[int, int] = (0, 0)
    transfers: dict[str, list[Transfer]] = field(default_factory=dict)
    steps: int = 0
    counted: Counted = field(default_factory=Counted)


def read_traffic(paths: Iterable[Path]) -> Traffic:
    """Read the captures of one window, one file per host.

    Raises:
        ParseError: a file is no xplane.pb, or the clocks of its lines are days apart.
    """
    files = [(str(path), path.read_bytes()) for path in paths]
    try:
        opened = [(source, data, list(_planes(data))) for source, data in files]
        stamps = [
            stamp
            for _, data, planes in opened
            for plane in planes
            for line in plane.lines
            if (stamp := _timestamp(data, *line)) is not None
        ]
        base = min((each for each in stamps if each), default=0)
        _check_clocks(stamps, base)
        reader = _Reader(base)
        for number, (_, data, planes) in enumerate(opened):
            for plane in planes:
                reader.plane(data, plane, number, is_one=len(opened) == 1)
        return reader.traffic()
    except WireError as error:
        names = ", ".join(source for source, _ in files)
        raise ParseError(
            f"{names}: no readable xplane.pb: {error}; the file is truncated, damaged or of "
            "another format: copy it again"
        ) from None


def _check_clocks(stamps: list[int], base: int) -> None:
    if stamps and max(stamps) - base > LIMIT_NS:
        raise WireError("lines whose clocks are more than 26 days apart")


def _planes(data: bytes) -> Iterator[Plane]:
    if not data:
        raise WireError("an empty file")
    for number, kind, begin, end in fields(data, 0, len(data)):
        if kind != LENGTH or number > 4:  # noqa: PLR2004
            raise WireError(f"field {number} of an XSpace")
        if number == 1:
            yield read_plane(data, begin, end)


def _timestamp(data: bytes, start: int, end: int) -> int | None:
    """Return the time of an XLine without a look at its events; they may come before it."""
    for number, kind, begin, _ in fields(data, start, end):
        if (number, kind) == (3, VARINT):
            return signed(begin)
        if number == 4:  # noqa: PLR2004  events follow what a profiler says of a line
            break
    return read_line(data, start, end).timestamp_ns


class _Reader:
    def __init__(self, base_ns: int) -> None:
        self._base_ns = base_ns
        self._parts: list[dict[str, Ints]] = []
        self._mapped: list[tuple[int, int, int]] = []
        self._copies = Amount()
        self._first_module: int | None = None
        self._span: list[int] = []
        self._transfers: dict[str, list[Transfer]] = {}
        self._labels: dict[str, int] = {}
        self._steps = 0
        self._counted = Counted()

    def traffic(self) -> Traffic:
        none = np.zeros(0, np.int64)
        columns = {
            each: np.concatenate([none, *(part[each] for part in self._parts)])
            for each in ("end_ps", "latency_us", *IDS, "label")
        }
        return Traffic(
            messages=Messages(**columns),
            labels=tuple(self._labels),
            mapped=self._mapped,
            copies=self._copies,
            first_module_ps=self._first_module,
            span_ps=(min(self._span, default=0), max(self._span, default=0)),
            transfers={
                name: sorted(each, key=lambda one: one.start_ps)
                for name, each in sorted(self._transfers.items())
            },
            steps=self._steps,
            counted=self._counted,
        )

    def plane(self, data: bytes, plane: Plane, number: int, *, is_one: bool) -> None:
        is_tpu, is_counted = TPU.match(plane.name) is not None, plane.name == COUNTERS
        wanted = (MODULES, OPS, STEPS) if is_tpu else ("",) if is_counted else (WORKER,)
        lines = [
            (name, each)
            for each in plane.lines
            if (name := name_of(data, *each)).startswith(wanted)
        ]
        if not lines or not (is_tpu or is_counted or plane.name.startswith("/host:")):
            return
        metadata = dict(_metadata(data, plane.event_names))
        stats = {key: name for key, (name, _, _) in _metadata(data, plane.stat_names)}
        for name, each in lines:
            if is_counted:
                self._counters(data, each, metadata, dict(stats))
            elif not is_tpu:
                self._worker(data, each, metadata, dict(stats))
            elif name == MODULES:
                self._modules(data, each)
            elif name == STEPS:
                count = sum(len(columns.name) for columns, _ in self._columns(data, each, {}, {}))
                self._steps = max(self._steps, count)
            elif name == OPS:
                device = plane.name if is_one else f"{number}:{plane.name}"
                self._ops(data, each, metadata, stats, device)

    def _columns(
        self, data: bytes, line: Range, wanted: Mapping[str, int], strings: dict[int, str]
    ) -> Iterator[tuple[Columns, Ints]]:
        """Yield blocks of events and their starts after the base."""
        known = {value: key for key, value in strings.items()}

        def intern(string: str) -> int:
            if string not in known:
                known[string] = _INTERNED + len(known)
                strings[known[string]] = string
            return known[string]

        found = read_line(data, *line)
        ahead_ps = (found.timestamp_ns - self._base_ns) * 1000 if found.timestamp_ns else 0
        for columns in decode(found, wanted, intern=intern):
            if len(columns.name):
                start = columns.offset_ps + ahead_ps
                self._span += [int(start.min()), int((start + columns.duration_ps).max())]
                yield columns, start

    def _worker(
        self, data: bytes, line: Range, metadata: Mapping[int, Metadata], stats: dict[int, str]
    ) -> None:
        ids = {name: key for key, name in stats.items()}
        wanted = {column: ids[name] for column, name in _STATS.items() if name in ids}
        sizes = [ids[each] for each in _SIZES if each in ids and ids[each] not in wanted.values()]
        wanted |= {f"amount{at}": each for at, each in enumerate(sizes)}
        of = {
            name: [k for k, (each, _, _) in metadata.items() if each == name]
            for name in (RECEIVE, COPY)
        }
        maps = {k: each for k, (each, _, _) in metadata.items() if each.startswith(MAP_DMA)}
        for columns, start in self._columns(data, line, wanted, stats):
            received = np.isin(columns.name, of[RECEIVE])
            if received.any():
                mine = columns.where(received)
                self._parts.append(self._messages(mine, start[received], stats))
            other = np.isin(columns.name, [*of[COPY], *maps])
            for row in np.flatnonzero(other):
                size = _amount(columns, int(row), stats, maps.get(int(columns.name[row]), ""))
                duration = int(columns.duration_ps[row])
                if int(columns.name[row]) in maps:
                    self._mapped.append((int(start[row]), duration, size))
                else:
                    self._copies = self._copies.plus(ps=duration, size=size)

    def _messages(self, mine: Columns, start: Ints, strings: Mapping[int, str]) -> dict[str, Ints]:
        found, place = np.unique(mine.stat("label"), return_inverse=True)
        names = ("" if each == ABSENT else strings.get(each, "") for each in found.tolist())
        labels = [
            self._labels.setdefault(name, len(self._labels)) if name else ABSENT for name in names
        ]
        return {
            "end_ps": start,
            "latency_us": mine.stat("latency"),
            "label": np.array(labels, np.int64)[place.reshape(-1)],
            **{each: mine.stat(each) for each in IDS},
        }

    def _counters(
        self, data: bytes, line: Range, metadata: Mapping[int, Metadata], stats: dict[int, str]
    ) -> None:
        ids = {name: key for key, name in stats.items()}
        named = {
            "latency": "network_transport_latency_us",
            "sizes": "buffer_sizes",
            "sending": "action_duration_ns",
            "input": "input_size",
        }
        wanted = {column: ids[name] for column, name in named.items() if name in ids}
        names = {key: name for key, (name, _, _) in metadata.items()}
        graphs = {key for key, name in names.items() if _GRAPH.fullmatch(name)}
        keys = [key for key, name in names.items() if key in graphs or name in (RECEIVED, SENT)]
        for columns, start in self._columns(data, line, wanted, stats):
            mine = np.flatnonzero(np.isin(columns.name, keys))
            for row in mine.tolist():
                key, begin = int(columns.name[row]), int(start[row])
                end = begin + int(columns.duration_ps[row])
                if key in graphs:
                    size = max(int(columns.stat("input")[row]), 0)
                    self._counted.collectives.append((begin, end, size))
                    continue
                is_in = names[key] == RECEIVED
                took = int(columns.stat("latency" if is_in else "sending")[row])
                told = _sizes_told(columns, row, stats)
                if took < 0 or not told:
                    continue
                begin = end - took * (10**6 if is_in else 1000)
                (self._counted.received if is_in else self._counted.sent).extend(
                    (begin, end, int(each["size"]))
                    for each in _BUFFER.finditer(told)
                    if each["source"] != each["to"]
                )

    def _modules(self, data: bytes, line: Range) -> None:
        for _, start in self._columns(data, line, {}, {}):
            first = int(start.min())
            if self._first_module is None or first < self._first_module:
                self._first_module = first

    def _ops(
        self,
        data: bytes,
        line: Range,
        metadata: Mapping[int, Metadata],
        stats: dict[int, str],
        device: str,
    ) -> None:
        """Keep sends and receives, each under the rendezvous that its text names."""
        long = next((key for key, name in stats.items() if name == "long_name"), None)
        kinds, texts = {}, {}
        for key, (name, display, parts) in metadata.items():
            match = _TRANSFER.match(display) or _TRANSFER.match(name)
            if match:
                kinds[key] = match["kind"]
                more = (_stat_text(data, each, long, stats) for each in parts)
                texts[key] = " ".join((name, display, *filter(None, more)))
        if not kinds:
            return
        found: list[tuple[str, str, int, int]] = []
        strings = dict(stats)
        wanted = {} if long is None else {"long": long}
        for columns, start in self._columns(data, line, wanted, strings):
            for row in np.flatnonzero(np.isin(columns.name, list(kinds))):
                key, own = int(columns.name[row]), int(columns.stat("long")[row])
                told = f"{texts[key]} {strings.get(own, '') if own != ABSENT else ''}"
                found.append((kinds[key], told, int(start[row]), int(columns.duration_ps[row])))
        of_channel = {
            channel: rendezvous
            for _, told, _, _ in found
            if (rendezvous := _named(_RENDEZVOUS, told)) and (channel := _named(_CHANNEL, told))
        }
        known: dict[tuple[str, str], tuple[str, int | None, str, int | None]] = {}
        for kind, told, start_ps, duration_ps in found:
            if (kind, told) not in known:
                known[kind, told] = (
                    _named(_RENDEZVOUS, told) or of_channel.get(_named(_CHANNEL, told), ""),
                    parse_shapes(told) if kind == "recv-done" else None,
                    _named(_TYPE, told),
                    _slices(_named(_TARGET, told)),
                )
            rendezvous, size, collective, group = known[kind, told]
            if rendezvous:
                self._transfers.setdefault(device, []).append(
                    Transfer(
                        kind=kind,
                        rendezvous=rendezvous,
                        start_ps=start_ps,
                        duration_ps=duration_ps,
                        size=size,
                        collective=collective,
                        group=group,
                    )
                )


def _sizes_told(columns: Columns, row: int, strings: Mapping[int, str]) -> str:
    """Return the text of the stat `sizes` of an event, "" where it has none."""
    return strings.get(int(columns.stat("sizes")[row]), "")


def _slices(told: str) -> int | None:
    """Return how many ids a set such as `1,2` or `0:3` names; None for none."""
    count = 0
    for each in filter(None, told.split(",")):
        first, _, last = each.partition(":")
        count += int(last) - int(first) + 1 if first and last else 1
    return count if count > 0 else None


def parse_shapes(told: str) -> int | None:
    """Return the bytes of the shapes in front of a done op's name; None where there is none.

    >>> parse_shapes("%recv-done.1 = (bf16[8,4]{1,0}, u32[], token[]) recv-done(%r), channel_id=1")
    68
    """
    head = _SHAPES.search(told)
    shapes = list(_SHAPE.finditer(head["shapes"])) if head else []
    if not shapes:
        return None
    bits = 0
    for each in shapes:
        width = 8 if each["kind"] == "pred" else int(re.sub(r"\D", "", each["kind"]))
        bits += width * math.prod(int(n) for n in each["sizes"].split(",") if n)
    return -(-bits // 8)


def _named(pattern: re.Pattern[str], told: str) -> str:
    match = pattern.search(told)
    return match["name"] if match else ""


Metadata = tuple[str, str, list[Range]]  # name, display name, stats


def _metadata(data: bytes, entries: Ints) -> Iterator[tuple[int, Metadata]]:
    for start, end in entries.tolist():
        key, name, display = 0, "", ""
        stats: list[Range] = []
        for number, kind, begin, stop in fields(data, start, end):
            if (number, kind) == (1, VARINT):
                key = signed(begin)
            elif (number, kind) == (2, LENGTH):
                for part, wire, at, to in fields(data, begin, stop):
                    if (part, wire) == (2, LENGTH):
                        name = text(data, at, to)
                    elif (part, wire) == (4, LENGTH):
                        display = text(data, at, to)
                    elif (part, wire) == (5, LENGTH):
                        stats.append((at, to))
        yield key, (name, display, stats)


def _stat_text(data: bytes, part: Range, wanted: int | None, names: Mapping[int, str]) -> str:
    """Return the text of a stat of an event's metadata, if it is the wanted one."""
    ident, value = read_stat(data, *part)
    if wanted is None or ident != wanted or value is None:
        return ""
    return value if isinstance(value, str) else names.get(value, "")


def _amount(columns: Columns, row: int, strings: Mapping[int, str], name: str) -> int:
    """Return the bytes of an event: a number, a text such as `1.07GB`, or in its name."""
    for column, values in columns.stats.items():
        value = int(values[row])
        if (column == "size" or column.startswith("amount")) and value != ABSENT:
            told = parse_bytes(strings[value]) if value in strings else None
            if told is not None or value < _INTERNED:
                return value if told is None else told
    inside = re.search(r"\((.+)\)", name)
    return (parse_bytes(inside[1]) if inside else None) or 0


def parse_bytes(said: str) -> int | None:
    """Return the bytes of a text such as `1.07GB` (decimal) or `1GiB`; None if it is none."""
    match = _AMOUNT.fullmatch(said.strip())
    if match is None:
        return None
    factor: int = (1024 if match["binary"] else 1000) ** _POWERS[match["unit"]]
    whole, _, part = match["number"].partition(".")
    size: int = int(whole + part) * factor // 10 ** len(part)
    return size
