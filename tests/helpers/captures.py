"""Captures made of known figures; their writer shares nothing with the reader."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

from pytest_xlatune.evidence.trace import Columns, Device, Trace, xplane
from pytest_xlatune.evidence.trace.breakdown import Drill


def uint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def num(field: int, value: int) -> bytes:
    return uint(field << 3) + uint(value)


def msg(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return uint(field << 3 | 2) + uint(len(body)) + body


def named(field: int, table: dict[int, str]) -> bytes:
    return b"".join(
        msg(field, num(1, key), msg(2, num(1, key), msg(2, name.encode())))
        for key, name in table.items()
    )


def read_xplane(data: bytes, source: str) -> Trace:
    return xplane.read_xplane(io.BytesIO(data), source)


class Space:
    """What a profiler writes: events of lines of planes, which name what they are by number.

    Attributes:
        begins_ns: of lines whose events are counted from a time of their own.
        longs: the text in full of a name, as a stat of its own.
        extra: what follows the planes.
    """

    STATS = {"correlation_id": 1, "hlo_op": 2, "hlo_module": 3, "step_num": 4, "x": 5}  # noqa: RUF012

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.stats = dict(self.STATS)
        self.lines: dict[str, dict[str, list[bytes]]] = {"/host:CPU": {"python": []}}
        self.begins_ns: dict[str, int] = {}
        self.longs: dict[str, str] = {}
        self.extra = b""

    def id(self, table: dict[str, int], name: str) -> int:
        return table.setdefault(name, len(table) + 1)

    def stat(self, name: str, value: int | str | bytes, *, field: int = 4, of: int = 4) -> bytes:
        """Make a stat of an event: a number, a text by its number, or a text in full."""
        head = num(1, self.id(self.stats, name))
        if isinstance(value, int):
            return msg(of, head, num(field, value))
        if isinstance(value, str):
            return msg(of, head, num(7, self.id(self.stats, value)))
        return msg(of, head, msg(5, value))

    def event(
        self, plane: str, line: str, name: str, start_ps: int, duration_ps: int, *stats: bytes
    ) -> None:
        self.lines.setdefault(plane, {}).setdefault(line, []).append(
            msg(4, num(1, self.id(self.names, name)), num(2, start_ps), num(3, duration_ps), *stats)
        )

    def kernel(
        self,
        gpu: int,
        stream: str,
        name: str,
        start_ps: int,
        duration_ps: int,
        *,
        op: str | None = None,
        correlation: int | None = None,
    ) -> None:
        stats = []
        if correlation is not None:
            stats.append(self.stat("correlation_id", correlation, field=3))
        if op is not None:
            stats += [self.stat("hlo_op", op), self.stat("hlo_module", "jit_f")]
        self.event(f"/device:GPU:{gpu}", stream, name, start_ps, duration_ps, *stats)

    def host(self, name: str, start_ps: int, duration_ps: int, stat: str, value: int) -> None:
        self.event("/host:CPU", "python", name, start_ps, duration_ps, self.stat(stat, value))

    def data(self) -> bytes:
        table = b""
        for name, key in self.names.items():
            long = self.longs.get(name)
            more = self.stat("long_name", long.encode(), of=5) if long else b""
            table += msg(4, num(1, key), msg(2, num(1, key), msg(2, name.encode()), more))
        table += named(5, {v: k for k, v in self.stats.items()})
        planes = []
        for plane, lines in self.lines.items():
            body = msg(2, plane.encode())
            for name, events in lines.items():
                begun = num(3, self.begins_ns[name]) if name in self.begins_ns else b""
                body += msg(3, msg(2, name.encode()), begun, *events)
            planes.append(msg(1, body, table))
        return b"".join(planes) + self.extra

    def trace(self, source: str = "a.xplane.pb") -> Trace:
        return read_xplane(self.data(), source)


def node(
    *, steps: int = 3, gpus: int = 2, launches: bool = True, late: int = 0, unit: int = 1
) -> Space:
    """Make a node with a gemm and a scatter on one stream, an all-gather beside the gemm.

    With `late` every kernel runs that much after the annotation that dispatched it. All figures are
    times `unit` picoseconds.
    """
    space = Space()
    correlation = 0
    for step in range(steps):
        at = step * 1000 * unit
        space.host("train", at, 900 * unit, "step_num", 5 + step)
        for gpu in range(gpus):
            for stream, name, begin, size in (
                ("Stream #1(Compute)", "nvjet_gemm", 0, 300),
                ("Stream #2(Compute)", "ncclDevKernel_AllGather", 200, 200 + gpu),
                ("Stream #1(Compute)", "input_scatter_fusion_2.kd", 500, 250),
                ("Stream #3(MemcpyD2D)", "MemcpyD2D", 390, 20),
            ):
                correlation += 1
                space.kernel(
                    gpu, stream, name, at + (begin + late) * unit, size * unit,
                    op=name, correlation=correlation,
                )  # fmt: skip
                if launches:
                    space.host("cuLaunchKernel", at + 1, 1, "correlation_id", correlation)
    return space


def session(start_ns: int, stop_ns: int) -> Space:
    """Make a node whose profiler says when it started and stopped."""
    space = node()
    stats = (msg(6, num(1, at), num(3, time)) for at, time in ((1, start_ns), (2, stop_ns)))
    names = named(5, {1: "profile_start_time", 2: "profile_stop_time"})
    space.extra = msg(1, msg(2, b"Task Environment"), *stats, names)
    return space


def on_stream(device: Device, name: str = "") -> Columns:
    """Return the kernels of a stream, the first if none is named."""
    at = device.streams.index(name) if name else 0
    return device.kernels.where(device.kernels["stream"] == at)


def reconciles(found: Drill) -> None:
    """Parts sum to totals to the picosecond."""
    total = found.total
    assert sum(row.sum_ps for row in found.families) == total.sum_ps
    assert sum(row.sum_ps for row in found.kernels) == total.sum_ps
    assert sum(row.count for row in found.kernels) == total.kernels
    assert sum(row.sum_ps for row in found.ops) == found.attributed_ps <= total.sum_ps
    assert total.busy_ps == (
        total.compute_ps + total.exposed_communication_ps + total.exposed_memory_ps
    )
    assert total.sum_ps == total.busy_ps + total.concurrency_ps
    assert total.span_ps == total.busy_ps + total.idle_ps


def lines_json(lines: dict[str, list[tuple[str, float, float]]], *, cut: bool = False) -> bytes:
    """A trace.json.gz of devices with a stream each: name, start and duration in microseconds."""
    events: list[dict[str, Any]] = []
    for pid, (device, kernels) in enumerate(lines.items(), 1):
        of = {"pid": pid, "tid": 7}
        events += [
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": device}},
            {"ph": "M", **of, "name": "thread_name", "args": {"name": "Stream #7"}},
            *({"ph": "X", **of, "ts": ts, "dur": dur, "name": name} for name, ts, dur in kernels),
        ]
    text = json.dumps({"traceEvents": [*events, {}]})
    return gzip.compress(text[: -30 if cut else None].encode())


def trace_json(count: int, *, cut: bool = False) -> bytes:
    kernels = [("fusion", at * 2.5, 1.25) for at in range(count)]
    return lines_json({"/device:GPU:0": kernels}, cut=cut)
