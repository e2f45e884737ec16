"""Traces of Megascale with known messages. The writer shares nothing with the reader."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.captures import Space

EPOCH_NS = 1_760_000_000_123_456_789
RECEIVE = "MegaScale: Communication Transport Receive"
WORKERS = (
    *("MegascaleEM2_Worker/101", "MegascaleEM2_Worker/102"),
    *("MegascaleEM2Numa0_Worker/7", "MegascaleEM2Numa1_Worker/8"),
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
        space = Space()
        space.lines = {"/host:CPU": {}}
        space.begins_ns = {name: EPOCH_NS + 13 * at for at, name in enumerate(WORKERS, 1)}

        def event(line: str, name: str, start_ns: int, dur_ns: int, **values: int | str) -> None:
            space.begins_ns.setdefault(line, EPOCH_NS)
            stats = [
                space.stat(k, v.encode() if self.is_text and isinstance(v, str) else v)
                for k, v in values.items()
            ]
            space.event("/host:CPU", line, name, start_ns * 1000, dur_ns * 1000, *stats)

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
            stats = {k: v for k, v in values.items() if v is not None and k != each.drop}
            event(WORKERS[at % 4], RECEIVE, each.end_ns, 900, **stats)
        for line, start, dur, size in self.mapped:
            event(line, "MapDmaBuffer", start, dur, size=size)
        for start, dur, size in self.copies:
            event(WORKERS[0], "MegaScale: Memory Copy", start, dur, size=size)
        return space.data() + b"".join(map(self._tpu, sorted({op[0] for op in self.ops} | {0})))

    def _tpu(self, core: int) -> bytes:
        space, plane = Space(), f"/device:TPU:{core}"
        space.lines = {plane: {}}
        space.begins_ns = {"XLA Modules": EPOCH_NS, "XLA Ops": EPOCH_NS}
        space.event(plane, "XLA Modules", "jit_step(1)", self.module_ns * 1000, 9 * MS * 1000)
        for _, name, rendezvous, start, dur in (op for op in self.ops if op[0] == core):
            kind, _, channel = name.partition(".")
            attribute = f'frontend_attributes={{_xla_host_transfer_rendezvous="{rendezvous}"}}'
            has = "" if kind == "send-done" else attribute
            shape = "(f32[8]{0}, token[])"
            space.longs[name] = f"%{name} = {shape} {kind}(%p), channel_id={channel}, {has}"
            space.event(plane, "XLA Ops", name, start * 1000, dur * 1000)
        return space.data()


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
