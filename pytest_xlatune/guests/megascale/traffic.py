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
_MESSAGE_STATS = {"label": "dcn_label", **IDS, "latency": "duration_us"}
# names of the statistic with the size of a buffer or a copy
_SIZE_STATS = ("size", "bytes", "size_bytes", "buffer_size", "payload_size_bytes")
_FIRST_INTERNED = 1 << 40  # the first id that is given to a text which an event itself contains
_TRANSFER = re.compile(
    r"%?(?P<kind>send-done|recv-done|send|recv)(?P<number>\.\d+)?(?: = .*|)$", re.DOTALL
)
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?(?P<name>[^",}]+)')
_CHANNEL = re.compile(r"channel_id=(?P<name>\d+)")
# amounts of bytes:  1.07GB   32B
_BYTES_TEXT = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?) ?(?P<unit>[kKMGT]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_STAMP, _EVENT = 3, 4  # fields of an XLine
_ID, _METADATA = 1, 2  # of a table's entry
_NAME, _DISPLAY_NAME, _STATS = 2, 4, 5  # of metadata


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
    files = [(str(path), CaptureFile(io.BytesIO(path.read_bytes()))) for path in paths]
    try:
        planes_of = [
            (file, [read_plane(file, *plane) for plane in read_space(file)[0]]) for _, file in files
        ]
        timestamps: list[int] = []
        for file, planes in planes_of:
            for plane in planes:
                timestamps += filter(None, (_timestamp(file, *line) for line in plane.lines))
        reader = _Reader(_least_timestamp(timestamps))
        for number, (file, planes) in enumerate(planes_of):
            host = "" if len(planes_of) == 1 else f"{number}:"
            for plane in planes:
                reader.plane(file, plane, host)
        return reader.traffic()
    except WireError as error:
        names = ", ".join(source for source, _ in files)
        raise ParseError(
            f"{names}: no readable xplane.pb: {error}; the file is cut off, damaged or of "
            "another format: copy it again"
        ) from None


def _least_timestamp(timestamps: list[int]) -> int:
    """Return the time from which all times are counted; refuse times that lie too far apart."""
    base = min(timestamps, default=0)
    if timestamps and max(timestamps) - base > LIMIT_NS:
        raise WireError("lines whose clocks are more than 26 days apart")
    return base


def _timestamp(file: CaptureFile, begin: int, end: int) -> int:
    """Return the timestamp of an XLine; if its events come first, the whole line is read."""
    for number, kind, value, _ in file.fields(begin, end):
        if (number, kind) == (_STAMP, VARINT):
            return signed(value)
        if number == _EVENT:  # a profiler writes the timestamp before the events
            break
    return _whole_line(file, begin, end).timestamp_ns


def _whole_line(file: CaptureFile, begin: int, end: int) -> TraceLine:
    """Find the events of an XLine, all of which stays in memory."""
    return next(line_parts(file, begin, end, end - begin))


class _Reader:
    """What was read from the planes of a capture; `base_ns` is the time 0 of its times."""

    def __init__(self, base_ns: int) -> None:
        self._base_ns = base_ns
        self._parts: list[Messages] = []
        self._mapped: list[WorkerEvent] = []
        self._copies: list[WorkerEvent] = []
        self._modules: list[int] = []  # the first start of a program in each part of a line
        self._span: list[int] = []  # the first and last time of each part of a line
        self._transfers: dict[str, list[Transfer]] = {}

    def traffic(self) -> Traffic:
        """Return what was read so far."""
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

    def plane(self, file: CaptureFile, plane: Plane, host: str) -> None:
        """Read the lines of a plane that concern the network; `host` is put before its name."""
        is_tpu = TPU.match(plane.name) is not None
        if not is_tpu and not plane.name.startswith("/host:"):
            return
        prefixes = (MODULES, OPS) if is_tpu else (WORKER,)
        all_lines = [(file.name(*line), line) for line in plane.lines]
        lines = [(name, span) for name, span in all_lines if name.startswith(prefixes)]
        if not lines:
            return
        data = file.data
        metadata = dict(_read_metadata(data, plane.event_names))
        stats = {key: statistic.name for key, statistic in _read_metadata(data, plane.stat_names)}
        for name, span in lines:
            if not is_tpu:
                self._read_worker(file, span, metadata, dict(stats))
            elif name == MODULES:
                starts = (start for _, start in self._columns(file, span, {}, {}))
                self._modules += [int(start.min()) for start in starts]
            elif name == OPS:
                self._read_ops(file, span, metadata, stats, f"{host}{plane.name}")

    def _columns(
        self, file: CaptureFile, line: Range, wanted: Mapping[str, int], strings: dict[int, str]
    ) -> Iterator[tuple[Columns, Ints]]:
        """Yield the events of a line in parts, as columns, with the start of each event.

        `wanted` is column -> id of its statistic. `strings` is id -> text; texts that events
        contain are added to it.
        """
        known = {value: key for key, value in strings.items()}

        def intern(string: str) -> int:
            if string not in known:
                known[string] = _FIRST_INTERNED + len(known)
                strings[known[string]] = string
            return known[string]

        header = _whole_line(file, *line)
        line_start_ps = (header.timestamp_ns - self._base_ns) * 1000 if header.timestamp_ns else 0
        for columns in decode(header, wanted, intern=intern):
            if len(columns["name"]):
                start = columns["offset_ps"] + line_start_ps
                self._span += [int(start.min()), int((start + columns["duration_ps"]).max())]
                yield columns, start

    def _read_worker(
        self,
        file: CaptureFile,
        line: Range,
        metadata: Mapping[int, Metadata],
        strings: dict[int, str],
    ) -> None:
        """Keep the receive events, the mapped buffers and the copies of a worker."""
        ids = {name: key for key, name in strings.items()}
        wanted = {column: ids[name] for column, name in _MESSAGE_STATS.items() if name in ids}
        size_ids = [
            ids[name] for name in _SIZE_STATS if name in ids and ids[name] not in wanted.values()
        ]
        wanted |= {f"size{number}": key for number, key in enumerate(size_ids)}
        received = [key for key, event in metadata.items() if event.name == RECEIVE]
        is_mapping = {key: event.name.startswith(MAP_DMA) for key, event in metadata.items()}
        others = [key for key, event in metadata.items() if is_mapping[key] or event.name == COPY]
        for columns, start in self._columns(file, line, wanted, strings):
            is_received = np.isin(columns["name"], received)
            labels = [key for key, value in strings.items() if value]
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
                key = int(columns["name"][row])
                size = _event_bytes(columns, row, strings, metadata[key].name)
                event = WorkerEvent(int(start[row]), int(columns["duration_ps"][row]), size)
                (self._mapped if is_mapping[key] else self._copies).append(event)

    def _read_ops(
        self,
        file: CaptureFile,
        line: Range,
        metadata: Mapping[int, Metadata],
        stats: dict[int, str],
        device: str,
    ) -> None:
        """Keep the sends and receives of a core, each with the rendezvous that its text names."""
        long_name = next((key for key, name in stats.items() if name == "long_name"), None)
        kinds, texts = {}, {}
        for key, event in metadata.items():
            match = _TRANSFER.match(event.display) or _TRANSFER.match(event.name)
            if match:
                kinds[key] = match["kind"]
                more = (_stat_text(file.data, part, long_name, stats) for part in event.stats)
                texts[key] = " ".join((event.name, event.display, *filter(None, more)))
        if not kinds:
            return
        transfers: list[tuple[int, int, str, str]] = []
        strings = dict(stats)
        wanted = {} if long_name is None else {"long": long_name}
        for columns, start in self._columns(file, line, wanted, strings):
            for row in np.flatnonzero(np.isin(columns["name"], list(kinds))).tolist():
                key, text_key = int(columns["name"][row]), int(columns["long"][row])
                text = f"{texts[key]} {strings.get(text_key, '') if text_key != ABSENT else ''}"
                times = (int(start[row]), int(columns["duration_ps"][row]))
                transfers.append((*times, kinds[key], text))
        # a done op whose text has no rendezvous has the rendezvous of the other ops of its channel
        rendezvous_of_channel = {}
        for *_, text in transfers:
            rendezvous, channel = _name_in(_RENDEZVOUS, text), _name_in(_CHANNEL, text)
            if rendezvous and channel:
                rendezvous_of_channel[channel] = rendezvous
        for start_ps, duration_ps, kind, text in transfers:
            channel = _name_in(_CHANNEL, text)
            rendezvous = _name_in(_RENDEZVOUS, text) or rendezvous_of_channel.get(channel, "")
            if rendezvous:
                op = Transfer(start_ps, duration_ps, kind, rendezvous)
                self._transfers.setdefault(device, []).append(op)


def _name_in(pattern: re.Pattern[str], text: str) -> str:
    """Return the group `name` of a pattern in a text; "" if it does not match."""
    match = pattern.search(text)
    return match["name"] if match else ""


class Metadata(NamedTuple):
    """What a plane says about the id of an event or a statistic."""

    name: str
    display: str  # the name for people; "" if there is none
    stats: list[Range]  # where its statistics are in the file


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


def _stat_text(data: Bytes, part: Range, wanted: int | None, names: Mapping[int, str]) -> str:
    """Return the text of a statistic if its id is `wanted`; else ""."""
    ident, value = read_stat(data, *part)
    if wanted is None or ident != wanted or value is None:
        return ""
    return value if isinstance(value, str) else names.get(value, "")


def _event_bytes(columns: Columns, row: int, strings: Mapping[int, str], name: str) -> int:
    """Return the bytes of an event by its statistics, or else by its name; 0 if unknown.

    A statistic is a number or a text such as `1.07GB`.
    """
    for column, values in columns.items():
        value = int(values[row])
        if value == ABSENT or not column.startswith("size"):
            continue
        size_bytes = parse_bytes(strings[value]) if value in strings else None
        if size_bytes is not None:
            return size_bytes
        is_number = value < _FIRST_INTERNED
        if is_number:
            return value
    in_brackets = re.search(r"\((.+)\)", name)
    return (parse_bytes(in_brackets[1]) if in_brackets else None) or 0


def parse_bytes(text: str) -> int | None:
    """Return the bytes that a text such as `1.07GB` or `1GiB` means; None if it means none."""
    match = _BYTES_TEXT.fullmatch(text.strip())
    if match is None:
        return None
    factor: int = (1024 if match["binary"] else 1000) ** _POWERS[match["unit"]]
    integer, _, part = match["number"].partition(".")
    size: int = int(integer + part) * factor // 10 ** len(part)
    return size
