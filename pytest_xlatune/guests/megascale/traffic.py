"""Read from traces what concerns Megascale: messages, mapped buffers, copies, transfers of cores.

A message is a receive event of a Megascale worker. Its time is the arrival, and a statistic of the
event is its latency. Times are integers, in picoseconds after the least timestamp of all lines,
because floats of seconds since 1970 would be wrong by up to 256 ns. The format is that of
tsl/profiler/protobuf/xplane.proto; the names of planes, lines and statistics are in
xplane_schema.cc.
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
from pytest_xlatune.evidence.trace.columns import TraceLine, decode, read_stat
from pytest_xlatune.evidence.trace.xplane import (
    LIMIT_NS,
    CaptureFile,
    Plane,
    Range,
    line_parts,
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

# column of `Messages` -> the statistic of a receive event that it holds
IDS = {
    "source_slice": "dcn_source_slice_id",
    "source_device": "dcn_source_per_slice_device_id",
    "to_slice": "dcn_destination_slice_id",
    "to_device": "dcn_destination_per_slice_device_id",
    "size": "payload_size_bytes",
}
_MESSAGE_STATS = {"label": "dcn_label", **IDS, "latency": "duration_us", "buffer": "size"}
_FIRST_INTERNED = 1 << 40  # the first id that is given to a text which an event itself contains
_TRANSFER = re.compile(
    r"%?(?P<kind>send-done|recv-done|send|recv)(?P<number>\.\d+)?(?: = .*|)$", re.DOTALL
)
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?(?P<name>[^",}]+)')
_CHANNEL = re.compile(r"channel_id=(?P<name>\d+)")
# amounts of bytes:  1.07GB   32B
_BYTES_TEXT = re.compile(r"(?P<number>\d{1,18})(?:\.(?P<decimals>\d{1,18}))? ?(?P<unit>[kKMGT]?)B?")
_POWERS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}
_ID, _METADATA = 1, 2  # numbers of the fields of a table's entry
_NAME, _DISPLAY_NAME, _STATS = 2, 4, 5  # numbers of the fields of metadata


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
    """A mapping of a buffer or a copy of memory by a worker."""

    start_ps: int
    ps: int  # its duration
    size: int  # in bytes; 0 if it is unknown


class Transfer(NamedTuple):
    """A send or receive op of a core."""

    start_ps: int
    ps: int  # its duration
    kind: str  # send, send-done, recv or recv-done
    rendezvous: str  # the name that the ops of one transfer share


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What one or several traces contain about Megascale; times are in picoseconds.

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
        ParseError: a file is not an xplane.pb, or the clocks of its lines differ by days.
    """
    sources = list(paths)
    reader = _Reader()
    try:
        for number, path in enumerate(sources):
            file = CaptureFile(io.BytesIO(path.read_bytes()))
            host = "" if len(sources) == 1 else f"{number}:"
            for plane in read_space(file)[0]:
                reader.add_plane(file, read_plane(file, *plane), host)
        return reader.traffic()
    except WireError as error:
        raise ParseError(
            f"{', '.join(map(str, sources))}: no readable xplane.pb: {error}; the file is cut off, "
            "damaged or of another format: copy it again"
        ) from None


class Metadata(NamedTuple):
    """What a plane says about the id of an event or a statistic."""

    name: str
    display: str  # the name for people; "" if there is none
    stats: list[Range]  # where its statistics are in the file


class _Line(NamedTuple):
    """A line that concerns the network, with the tables of its plane.

    `device` is the device of a TPU's line, and "" for a worker's line. `stats` is id -> text.
    """

    header: TraceLine
    name: str
    device: str
    data: Bytes
    metadata: Mapping[int, Metadata]
    stats: dict[int, str]


class _Reader:
    """What was read from captures."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._base_ns = 0  # the time from which times are counted
        self._parts: list[Messages] = []
        self._mapped: list[WorkerEvent] = []
        self._copies: list[WorkerEvent] = []
        self._modules: list[int] = []  # the first start of a program in each part of a line
        self._span: list[int] = []  # the first and last time of each part of a line
        self._transfers: dict[str, list[Transfer]] = {}

    def add_plane(self, file: CaptureFile, plane: Plane, host: str) -> None:
        """Find the lines of a plane that concern the network; `host` is put before its name."""
        is_tpu = TPU.match(plane.name) is not None
        if not is_tpu and not plane.name.startswith("/host:"):
            return
        prefixes = (MODULES, OPS) if is_tpu else (WORKER,)
        named = [(file.name(*span), span) for span in plane.lines]
        lines = [(name, span) for name, span in named if name.startswith(prefixes)]
        if not lines:
            return
        data = file.data
        metadata = dict(_read_metadata(data, plane.event_names))
        stats = {key: statistic.name for key, statistic in _read_metadata(data, plane.stat_names)}
        device = f"{host}{plane.name}" if is_tpu else ""
        for name, (begin, end) in lines:
            header = next(line_parts(file, begin, end, end - begin))
            self._lines.append(_Line(header, name, device, data, metadata, dict(stats)))

    def traffic(self) -> Traffic:
        """Read the lines."""
        timestamps = [line.header.timestamp_ns for line in self._lines if line.header.timestamp_ns]
        self._base_ns = min(timestamps, default=0)
        if max(timestamps, default=0) - self._base_ns > LIMIT_NS:
            raise WireError("lines whose clocks are more than 26 days apart")
        for line in self._lines:
            if not line.device:
                self._read_worker(line)
            elif line.name == MODULES:
                self._modules += [int(start.min()) for _, start in self._columns(line, {})]
            elif line.name == OPS:
                self._read_ops(line)
        empty = np.zeros(0, np.int64)
        columns = {
            column: np.concatenate([empty, *(getattr(part, column) for part in self._parts)])
            for column in _COLUMNS
        }
        columns["has_label"] = columns["has_label"].astype(bool)
        return Traffic(
            messages=Messages(**columns),
            mapped=self._mapped,
            copies=self._copies,
            first_module_ps=min(self._modules, default=None),
            span_ps=(min(self._span, default=0), max(self._span, default=0)),
            transfers={
                name: sorted(ops, key=lambda op: op.start_ps)
                for name, ops in sorted(self._transfers.items())
            },
        )

    def _columns(self, line: _Line, wanted: Mapping[str, int]) -> Iterator[tuple[Columns, Ints]]:
        """Yield the events of a line in parts, as columns, with the start of each event.

        `wanted` is column -> id of its statistic. Texts that events contain are added to the
        statistics of the line.
        """
        known = {text: key for key, text in line.stats.items()}

        def intern(string: str) -> int:
            if string not in known:
                known[string] = _FIRST_INTERNED + len(known)
                line.stats[known[string]] = string
            return known[string]

        timestamp_ns = line.header.timestamp_ns
        line_start_ps = (timestamp_ns - self._base_ns) * 1000 if timestamp_ns else 0
        for columns in decode(line.header, wanted, intern=intern):
            if len(columns["name"]):
                start = columns["offset_ps"] + line_start_ps
                self._span += [int(start.min()), int((start + columns["duration_ps"]).max())]
                yield columns, start

    def _read_worker(self, line: _Line) -> None:
        """Keep the receive events, the mapped buffers and the copies of a worker."""
        ids = {name: key for key, name in line.stats.items()}
        wanted = {column: ids[name] for column, name in _MESSAGE_STATS.items() if name in ids}
        names = {key: event.name for key, event in line.metadata.items()}
        received = [key for key, name in names.items() if name == RECEIVE]
        others = [key for key, name in names.items() if name == COPY or name.startswith(MAP_DMA)]
        for columns, start in self._columns(line, wanted):
            is_received = np.isin(columns["name"], received)
            labels = [key for key, text in line.stats.items() if text]
            received_columns = columns.where(is_received)
            self._parts.append(
                Messages(
                    end_ps=start[is_received],
                    latency_us=received_columns["latency"],
                    has_label=np.isin(received_columns["label"], labels),
                    **{column: received_columns[column] for column in IDS},
                )
            )
            for row in np.flatnonzero(np.isin(columns["name"], others)).tolist():
                name = names[int(columns["name"][row])]
                stated = int(columns["buffer"][row])
                text = name if stated == ABSENT else line.stats.get(stated, "")
                # `stated` is the id of a text with a size, or the size, which may equal some id
                size = _bytes_of(text) or (stated if 0 <= stated < _FIRST_INTERNED else 0)
                event = WorkerEvent(int(start[row]), int(columns["duration_ps"][row]), size)
                (self._copies if name == COPY else self._mapped).append(event)

    def _read_ops(self, line: _Line) -> None:
        """Keep the sends and receives of a core, each with the rendezvous that its text names."""
        kinds, texts = {}, {}
        for key, event in line.metadata.items():
            match = _TRANSFER.match(event.display) or _TRANSFER.match(event.name)
            if match:
                kinds[key] = match["kind"]
                more = (_stat_text(line, part) for part in event.stats)
                texts[key] = " ".join((event.name, event.display, *more))
        # a done op whose text has no rendezvous has the rendezvous of the other ops of its channel
        rendezvous_of_channel = {}
        for words in texts.values():
            rendezvous, channel = _name_in(_RENDEZVOUS, words), _name_in(_CHANNEL, words)
            if rendezvous and channel:
                rendezvous_of_channel[channel] = rendezvous
        for columns, start in self._columns(line, {}):
            for row in np.flatnonzero(np.isin(columns["name"], list(kinds))).tolist():
                key = int(columns["name"][row])
                channel = _name_in(_CHANNEL, texts[key])
                rendezvous = _name_in(_RENDEZVOUS, texts[key])
                rendezvous = rendezvous or rendezvous_of_channel.get(channel, "")
                if rendezvous:
                    duration_ps = int(columns["duration_ps"][row])
                    op = Transfer(int(start[row]), duration_ps, kinds[key], rendezvous)
                    self._transfers.setdefault(line.device, []).append(op)


def _name_in(pattern: re.Pattern[str], text: str) -> str:
    """Return the group `name` of a pattern in a text; "" if it does not match."""
    match = pattern.search(text)
    return match["name"] if match else ""


def _read_metadata(data: Bytes, tags: Ints) -> Iterator[tuple[int, Metadata]]:
    """Yield each id of a table of names, and its metadata; tags are where its entries begin."""
    for tag in tags.tolist():
        _, _, start, end = next(fields(data, tag, len(data)))
        key, names = 0, {_NAME: "", _DISPLAY_NAME: ""}
        stats: list[Range] = []
        for number, kind, begin, stop in fields(data, start, end):
            if (number, kind) == (_ID, VARINT):
                key = signed(begin)
            elif (number, kind) == (_METADATA, LENGTH):
                for part, wire, at, to in fields(data, begin, stop):
                    if wire == LENGTH and part in names:
                        names[part] = text(data, at, to)
                    elif (part, wire) == (_STATS, LENGTH):
                        stats.append((at, to))
        yield key, Metadata(names[_NAME], names[_DISPLAY_NAME], stats)


def _stat_text(line: _Line, part: Range) -> str:
    """Return the text of a statistic if it is a `long_name`; else ""."""
    ident, value = read_stat(line.data, *part)
    if value is None or line.stats.get(ident) != "long_name":
        return ""
    return value if isinstance(value, str) else line.stats.get(value, "")


def _bytes_of(text: str) -> int:
    """Return the bytes in a text such as `1.07GB` or `MapDmaBuffer(64MB)`; 0 if it has none."""
    match = _BYTES_TEXT.fullmatch(text.partition("(")[2].rstrip(")") or text)
    if match is None:
        return 0
    decimals = match["decimals"] or ""
    factor: int = 10 ** _POWERS[match["unit"]]
    size: int = int(match["number"] + decimals) * factor // 10 ** len(decimals)
    return size
