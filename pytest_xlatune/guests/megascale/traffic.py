"""Read what a trace has about Megascale: messages, mapped buffers, copies, transfers of cores.

A message is a receive event of a Megascale worker: its time is the arrival, and a statistic has its
latency. Times are integers, in picoseconds after the least timestamp of a line; as floats, seconds
since 1970 would be wrong by 256 ns. The format is that of tsl/profiler/protobuf/xplane.proto; the
names of planes, lines and statistics are in xplane_schema.cc.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.protobuf import (
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    WireError,
    fields,
    signed,
    text,
)
from pytest_xlatune.evidence.trace import ABSENT, Columns
from pytest_xlatune.evidence.trace.columns import decode, read_stat
from pytest_xlatune.evidence.trace.xplane import (
    LIMIT_NS,
    CaptureFile,
    Plane,
    Range,
    read_line,
    read_plane,
    read_space,
)
from pytest_xlatune.model.errors import ParseError

WORKER = "Megascale"
RECEIVE = "MegaScale: Communication Transport Receive"
COPY = "MegaScale: Memory Copy"
MAP_DMA = "MapDmaBuffer"
TPU = re.compile(r"/device:TPU:\d+$")
MODULES, OPS = "XLA Modules", "XLA Ops"

IDS = {
    "source_slice": "dcn_source_slice_id",
    "source_device": "dcn_source_per_slice_device_id",
    "to_slice": "dcn_destination_slice_id",
    "to_device": "dcn_destination_per_slice_device_id",
    "size": "payload_size_bytes",
}
_STATS = {"label": "dcn_label", **IDS, "latency": "duration_us"}
_SIZES = ("size", "bytes", "size_bytes", "buffer_size", "payload_size_bytes")
_INTERNED = 1 << 40  # ids from here on are of texts that are in the events themselves
_TRANSFER = re.compile(
    r"%?(?P<kind>send-done|recv-done|send|recv)(?P<number>\.\d+)?(?: = .*|)$", re.DOTALL
)
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?(?P<name>[^",}]+)')
_CHANNEL = re.compile(r"channel_id=(?P<name>\d+)")
# amounts of bytes:  1.07GB   32B
_AMOUNT = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?) ?(?P<unit>[kKMGT]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Columns of receive events; ABSENT marks a statistic that an event lacks."""

    end_ps: Ints
    latency_us: Ints
    source_slice: Ints
    source_device: Ints
    to_slice: Ints
    to_device: Ints
    size: Ints
    has_label: NDArray[np.bool_]

    def where(self, mask: NDArray[np.bool_]) -> Messages:
        """Return the messages that a mask selects."""
        return Messages(**{column: getattr(self, column)[mask] for column in _COLUMNS})


_COLUMNS = tuple(Messages.__dataclass_fields__)


class WorkerEvent(NamedTuple):
    """An event of a worker: its start and duration in picoseconds, and its bytes."""

    start_ps: int
    ps: int
    size: int


class Transfer(NamedTuple):
    """A send or receive op of a core."""

    start_ps: int
    ps: int
    kind: str
    rendezvous: str


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What one or several traces have about Megascale; times are in picoseconds.

    Attributes:
        messages: all receive events.
        mapped: the buffers that workers mapped.
        copies: the copies of memory by workers.
        first_module_ps: the start of the first program on a TPU; None if there is none.
        span_ps: the first and the last time that was read.
        transfers: device -> its send and receive ops, sorted by time.
    """

    messages: Messages
    mapped: list[WorkerEvent] = field(default_factory=list)
    copies: list[WorkerEvent] = field(default_factory=list)
    first_module_ps: int | None = None
    span_ps: tuple[int, int] = (0, 0)
    transfers: dict[str, list[Transfer]] = field(default_factory=dict)


def read_traffic(paths: Iterable[Path]) -> Traffic:
    """Read the captures of one window, one file per host.

    Raises:
        ParseError: a file is no xplane.pb, or the clocks of its lines differ by days.
    """
    files = [(str(path), CaptureFile(io.BytesIO(path.read_bytes()))) for path in paths]
    try:
        opened = [
            (file, [read_plane(file, *plane) for plane in read_space(file)[0]]) for _, file in files
        ]
        stamps = [
            stamp
            for file, planes in opened
            for plane in planes
            for line in plane.lines
            if (stamp := _timestamp(file, *line))
        ]
        reader = _Reader(_base_of(stamps))
        for number, (file, planes) in enumerate(opened):
            host = "" if len(opened) == 1 else f"{number}:"
            for plane in planes:
                reader.plane(file, plane, host)
        return reader.traffic()
    except WireError as error:
        names = ", ".join(source for source, _ in files)
        raise ParseError(
            f"{names}: no readable xplane.pb: {error}; the file is truncated, damaged or of "
            "another format: copy it again"
        ) from None


def _base_of(stamps: list[int]) -> int:
    base = min(stamps, default=0)
    if stamps and max(stamps) - base > LIMIT_NS:
        raise WireError("lines whose clocks are more than 26 days apart")
    return base


def _timestamp(file: CaptureFile, begin: int, end: int) -> int:
    """Return the timestamp of an XLine; its events are read only if one precedes it."""
    for number, kind, value, _ in file.fields(begin, end):
        if (number, kind) == (3, VARINT):
            return signed(value)
        if number == 4:  # noqa: PLR2004  events follow what a profiler says of a line
            break
    return read_line(file, begin, end).timestamp_ns


class _Reader:
    def __init__(self, base_ns: int) -> None:
        self._base_ns = base_ns
        self._parts: list[Messages] = []
        self._events: dict[bool, list[WorkerEvent]] = {
            True: [],
            False: [],
        }  # whether the event is the mapping of a buffer
        self._modules: list[int] = []
        self._span: list[int] = []
        self._transfers: dict[str, list[Transfer]] = {}

    def traffic(self) -> Traffic:
        none = np.zeros(0, np.int64)
        columns = {
            column: np.concatenate([none, *(getattr(part, column) for part in self._parts)])
            for column in _COLUMNS
        }
        columns["has_label"] = columns["has_label"].astype(bool)
        return Traffic(
            messages=Messages(**columns),
            mapped=self._events[True],
            copies=self._events[False],
            first_module_ps=min(self._modules, default=None),
            span_ps=(min(self._span, default=0), max(self._span, default=0)),
            transfers={
                name: sorted(ops, key=lambda op: op.start_ps)
                for name, ops in sorted(self._transfers.items())
            },
        )

    def plane(self, file: CaptureFile, plane: Plane, host: str) -> None:
        """Read the lines of a plane about the network; `host` is put before its name."""
        is_tpu = TPU.match(plane.name) is not None
        if not is_tpu and not plane.name.startswith("/host:"):
            return
        wanted = (MODULES, OPS) if is_tpu else (WORKER,)
        named = [(file.name(*line), line) for line in plane.lines]
        lines = [(name, span) for name, span in named if name.startswith(wanted)]
        if not lines:
            return
        data = file.data
        metadata = dict(_metadata(data, plane.event_names))
        stats = {key: statistic.name for key, statistic in _metadata(data, plane.stat_names)}
        for name, span in lines:
            if not is_tpu:
                self._worker(file, span, metadata, dict(stats))
            elif name == MODULES:
                starts = (start for _, start in self._columns(file, span, {}, {}))
                self._modules += [int(start.min()) for start in starts]
            elif name == OPS:
                self._ops(file, span, metadata, stats, f"{host}{plane.name}")

    def _columns(
        self, file: CaptureFile, line: Range, wanted: Mapping[str, int], strings: dict[int, str]
    ) -> Iterator[tuple[Columns, Ints]]:
        known = {value: key for key, value in strings.items()}

        def intern(string: str) -> int:
            if string not in known:
                known[string] = _INTERNED + len(known)
                strings[known[string]] = string
            return known[string]

        header = read_line(file, *line)
        ahead_ps = (header.timestamp_ns - self._base_ns) * 1000 if header.timestamp_ns else 0
        for columns in decode(header, wanted, intern=intern):
            if len(columns["name"]):
                start = columns["offset_ps"] + ahead_ps
                self._span += [int(start.min()), int((start + columns["duration_ps"]).max())]
                yield columns, start

    def _worker(
        self,
        file: CaptureFile,
        line: Range,
        metadata: Mapping[int, Metadata],
        strings: dict[int, str],
    ) -> None:
        """Keep the receive events, the mapped buffers and the copies of a worker."""
        ids = {name: key for key, name in strings.items()}
        wanted = {column: ids[name] for column, name in _STATS.items() if name in ids}
        sizes = [ids[name] for name in _SIZES if name in ids and ids[name] not in wanted.values()]
        wanted |= {f"amount{at}": key for at, key in enumerate(sizes)}
        received = [key for key, event in metadata.items() if event.name == RECEIVE]
        maps = {key: event.name.startswith(MAP_DMA) for key, event in metadata.items()}
        others = [key for key, event in metadata.items() if maps[key] or event.name == COPY]
        for columns, start in self._columns(file, line, wanted, strings):
            is_received = np.isin(columns["name"], received)
            labels = [key for key, value in strings.items() if value]
            mine = columns.where(is_received)
            self._parts.append(
                Messages(
                    end_ps=start[is_received],
                    latency_us=mine["latency"],
                    has_label=np.isin(mine["label"], labels),
                    **{column: mine[column] for column in IDS},
                )
            )
            for row in np.flatnonzero(np.isin(columns["name"], others)).tolist():
                key = int(columns["name"][row])
                size = _amount(columns, row, strings, metadata[key].name)
                event = WorkerEvent(int(start[row]), int(columns["duration_ps"][row]), size)
                self._events[maps[key]].append(event)

    def _ops(
        self,
        file: CaptureFile,
        line: Range,
        metadata: Mapping[int, Metadata],
        stats: dict[int, str],
        device: str,
    ) -> None:
        """Keep the sends and receives of a core, each with the rendezvous that its text names."""
        long = next((key for key, name in stats.items() if name == "long_name"), None)
        kinds, texts = {}, {}
        for key, event in metadata.items():
            match = _TRANSFER.match(event.display) or _TRANSFER.match(event.name)
            if match:
                kinds[key] = match["kind"]
                more = (_stat_text(file.data, part, long, stats) for part in event.stats)
                texts[key] = " ".join((event.name, event.display, *filter(None, more)))
        if not kinds:
            return
        transfers: list[tuple[int, int, str, str]] = []
        strings = dict(stats)
        wanted = {} if long is None else {"long": long}
        for columns, start in self._columns(file, line, wanted, strings):
            for row in np.flatnonzero(np.isin(columns["name"], list(kinds))).tolist():
                key, text_key = int(columns["name"][row]), int(columns["long"][row])
                text = f"{texts[key]} {strings.get(text_key, '') if text_key != ABSENT else ''}"
                times = (int(start[row]), int(columns["duration_ps"][row]))
                transfers.append((*times, kinds[key], text))
        # a done op without a rendezvous in its text belongs to that of its channel
        of_channel = {
            channel: rendezvous
            for *_, text in transfers
            if (rendezvous := _named(_RENDEZVOUS, text)) and (channel := _named(_CHANNEL, text))
        }
        for start_ps, duration_ps, kind, text in transfers:
            rendezvous = _named(_RENDEZVOUS, text) or of_channel.get(_named(_CHANNEL, text), "")
            if rendezvous:
                op = Transfer(start_ps, duration_ps, kind, rendezvous)
                self._transfers.setdefault(device, []).append(op)


def _named(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match["name"] if match else ""


class Metadata(NamedTuple):
    """What a plane says about the id of an event or a statistic."""

    name: str
    display: str
    stats: list[Range]


def _metadata(data: Bytes, entries: Ints) -> Iterator[tuple[int, Metadata]]:
    for start, end in entries.tolist():
        key, texts = 0, {2: "", 4: ""}
        stats: list[Range] = []
        for number, kind, begin, stop in fields(data, start, end):
            if (number, kind) == (1, VARINT):
                key = signed(begin)
            elif (number, kind) == (2, LENGTH):
                for part, wire, at, to in fields(data, begin, stop):
                    if wire == LENGTH and part in texts:
                        texts[part] = text(data, at, to)
                    elif (part, wire) == (5, LENGTH):
                        stats.append((at, to))
        yield key, Metadata(texts[2], texts[4], stats)


def _stat_text(data: Bytes, part: Range, wanted: int | None, names: Mapping[int, str]) -> str:
    ident, value = read_stat(data, *part)
    if wanted is None or ident != wanted or value is None:
        return ""
    return value if isinstance(value, str) else names.get(value, "")


def _amount(columns: Columns, row: int, strings: Mapping[int, str], name: str) -> int:
    """Return the bytes of an event: a number, or a text such as `1.07GB`, or a part of its name."""
    for column, values in columns.items():
        value = int(values[row])
        if (column == "size" or column.startswith("amount")) and value != ABSENT:
            size_bytes = parse_bytes(strings[value]) if value in strings else None
            if size_bytes is not None or value < _INTERNED:
                return value if size_bytes is None else size_bytes
    inside = re.search(r"\((.+)\)", name)
    return (parse_bytes(inside[1]) if inside else None) or 0


def parse_bytes(text: str) -> int | None:
    """Return the bytes that a text such as `1.07GB` (decimal) or `1GiB` means; None if none."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    factor: int = (1024 if match["binary"] else 1000) ** _POWERS[match["unit"]]
    integer, _, part = match["number"].partition(".")
    size: int = int(integer + part) * factor // 10 ** len(part)
    return size
