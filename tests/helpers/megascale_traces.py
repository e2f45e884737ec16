"""Traces of Megascale with known messages. The writer shares nothing with the reader."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.captures import msg, named, num

EPOCH_NS = 1_760_000_000_123_456_789
RECEIVE = "MegaScale: Communication Transport Receive"
STATS = (
    *("dcn_label", "dcn_source_slice_id", "dcn_source_per_slice_device_id"),
    *("dcn_destination_slice_id", "dcn_destination_per_slice_device_id", "dcn_chunk"),
    *("dcn_loop_index", "payload_size_bytes", "duration_us", "size", "long_name"),
)
MS = 10**6  # ns


@dataclass(kw_only=True)
class Message:
    end_ns: int  # after EPOCH_NS
    latency_us: int
    source: tuple[int, int]
    to: tuple[int, int]
    size: int
    label: str | None = "all-reduce.5"
    drop: str = ""  # a stat that is left out


@dataclass(kw_only=True)
class Made:
    messages: list[Message] = field(default_factory=list)
    mapped: list[tuple[str, int, int, str]] = field(default_factory=list)  # line, start, ns, size
    copies: list[tuple[int, int, str]] = field(default_factory=list)
    ops: list[tuple[int, str, str, int, int]] = field(default_factory=list)
    module_ns: int = 5 * MS
    is_text: bool = False  # labels in full, not by reference

    def data(self) -> bytes:
        names: dict[str, int] = {}
        refs = {name: at + 1 for at, name in enumerate(STATS)}
        lines: dict[str, list[bytes]] = defaultdict(list)
        workers = (
            *("MegascaleEM2_Worker/101", "MegascaleEM2_Worker/102"),
            *("MegascaleEM2Numa0_Worker/7", "MegascaleEM2Numa1_Worker/8"),
        )

        def stat(name: str, value: int | str) -> bytes:
            head = num(1, STATS.index(name) + 1)
            if isinstance(value, int):
                return msg(4, head, num(4, value))
            if self.is_text:
                return msg(4, head, msg(5, value.encode()))
            return msg(4, head, num(7, refs.setdefault(value, len(refs) + 100)))

        def event(name: str, start_ns: int, dur_ns: int, *stats: bytes) -> bytes:
            key = num(1, names.setdefault(name, len(names) + 1))
            return msg(4, key, num(2, start_ns * 1000), num(3, dur_ns * 1000), *stats)

        for at, each in enumerate(self.messages):
            values: dict[str, int | str | None] = {
                "dcn_label": each.label,
                "dcn_source_slice_id": each.source[0],
                "dcn_source_per_slice_device_id": each.source[1],
                "dcn_destination_slice_id": each.to[0],
                "dcn_destination_per_slice_device_id": each.to[1],
                "dcn_chunk": at % 4,
                "dcn_loop_index": 0,
                "payload_size_bytes": each.size,
                "duration_us": each.latency_us,
            }
            stats = [stat(k, v) for k, v in values.items() if v is not None and k != each.drop]
            lines[workers[at % 4]].append(event(RECEIVE, each.end_ns, 900, *stats))
        for line, start, dur, size in self.mapped:
            lines[line].append(event("MapDmaBuffer", start, dur, stat("size", size)))
        for start, dur, size in self.copies:
            copied = event("MegaScale: Memory Copy", start, dur, stat("size", size))
            lines[workers[0]].append(copied)
        stamps = {name: EPOCH_NS + 13 * at for at, name in enumerate(workers, 1)}
        body = msg(2, b"/host:CPU")
        for name, events in lines.items():
            shift = stamps.get(name, EPOCH_NS) - EPOCH_NS
            body += msg(3, msg(2, name.encode()), num(3, EPOCH_NS + shift), *events)
        body += named(4, {v: k for k, v in names.items()})
        body += named(5, {v: k for k, v in refs.items()})
        return msg(1, body) + self._tpus()

    def _tpus(self) -> bytes:
        planes = b""
        for core in sorted({op[0] for op in self.ops} | {0}):
            names: dict[str, int] = {"jit_step(1)": 1}
            longs: dict[int, str] = {}
            events = []
            for owner, name, rendezvous, start, dur in self.ops:
                if owner != core:
                    continue
                key = names.setdefault(name, len(names) + 1)
                channel = name.rpartition(".")[2]
                attribute = f'frontend_attributes={{_xla_host_transfer_rendezvous="{rendezvous}"}}'
                has = "" if name.startswith("send-done") else attribute
                kind = name.partition(".")[0]
                shape = "(f32[8]{0}, token[])"
                longs[key] = f"%{name} = {shape} {kind}(%p), channel_id={channel}, {has}"
                events.append(msg(4, num(1, key), num(2, start * 1000), num(3, dur * 1000)))
            table = b"".join(
                msg(4, num(1, key), msg(2, num(1, key), msg(2, name.encode()), *(
                    [msg(5, num(1, 11), msg(5, longs[key].encode()))] if key in longs else []
                )))
                for name, key in names.items()
            )  # fmt: skip
            module = msg(4, num(1, 1), num(2, self.module_ns * 1000), num(3, 9 * MS * 1000))
            planes += msg(
                1,
                msg(2, f"/device:TPU:{core}".encode()),
                msg(3, msg(2, b"XLA Modules"), num(3, EPOCH_NS), module),
                msg(3, msg(2, b"XLA Ops"), num(3, EPOCH_NS), *events),
                table,
                named(5, {at + 1: name for at, name in enumerate(STATS)}),
            )
        return planes


def traffic(
    rng: random.Random, *, count: int, slow: tuple[Any, Any] = (None, None)
) -> list[Message]:
    """Messages in bursts; those from `slow[0]`, and to `slow[1]` where that is given, come late."""
    ids = [(a, b) for a in range(2) for b in range(3)]
    made = []
    for at in range(count):
        source, to = rng.choice(ids), rng.choice(ids)
        latency = rng.randint(300, 700)
        if source == slow[0] and slow[1] in (None, to):
            latency += 20_000
        burst = 1 + at // 40
        made.append(
            Message(
                end_ns=burst * 90 * MS + rng.randrange(3 * MS),
                latency_us=0 if rng.random() < 0.01 else latency,
                source=source,
                to=to,
                size=rng.choice((1 << 20, 1 << 16, 12345)),
                label=None if rng.random() < 0.01 else "all-reduce.5",
                drop="dcn_source_slice_id" if rng.random() < 0.01 else "",
            )
        )
    return made
