"""Network figures are those of the messages that a trace was made of."""

from __future__ import annotations

import contextlib
import io
import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.captures import Space

EPOCH_NS = 1_760_000_000_123_456_789
RECEIVE, COPY = "MegaScale: Communication Transport Receive", "MegaScale: Memory Copy"
HOST = "MegascaleEM2_Worker/101"
WORKERS = (
    *(HOST, "MegascaleEM2_Worker/102"),
    *("MegascaleEM2Numa0_Worker/7", "MegascaleEM2Numa1_Worker/8"),
)
MS = 10**6  # ns
Event = tuple[str, str, int, int, str]  # line, name, start, ns, size


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
    events: list[Event] = field(default_factory=list)
    ops: list[tuple[int, str, str, int, int]] = field(default_factory=list)
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
        for line, name, start, dur, size in self.events:
            event(line, name, start, dur, size=size)
        return space.data() + b"".join(map(self._tpu, sorted({op[0] for op in self.ops} | {0})))

    def _tpu(self, core: int) -> bytes:
        space, plane = Space(), f"/device:TPU:{core}"
        space.lines = {plane: {}}
        space.begins_ns = {"XLA Modules": EPOCH_NS, "XLA Ops": EPOCH_NS}
        space.event(plane, "XLA Modules", "jit_step(1)", 5 * MS * 1000, 9 * MS * 1000)
        for _, name, rendezvous, start, dur in (op for op in self.ops if op[0] == core):
            kind, _, channel = name.partition(".")
            attribute = f'frontend_attributes={{_xla_host_transfer_rendezvous="{rendezvous}"}}'
            has = "" if kind == "send-done" else attribute
            shape = "(f32[8]{0}, token[])"
            space.longs[name] = f"%{name} = {shape} {kind}(%p), channel_id={channel}, {has}"
            space.event(plane, "XLA Ops", name, start * 1000, dur * 1000)
        return space.data()


BAD: list[dict[str, Any]] = [
    {"label": None},
    {"drop": "dcn_source_slice_id"},
    {"drop": "payload_size_bytes"},
]


def traffic(
    rng: random.Random, *, count: int, slow: tuple[Any, Any] = (None, None)
) -> list[Message]:
    """Messages in bursts; those from `slow[0]`, and to `slow[1]` where that is given, come late."""
    ids = [(a, b) for a in range(2) for b in range(3)]
    made = []
    for at in range(count):
        source, to = rng.choice(ids), rng.choice(ids)
        is_late = source == slow[0] and slow[1] in (None, to)
        message = Message(
            end_ns=(1 + at // 40) * 90 * MS + rng.randrange(3 * MS),
            latency_us=rng.randint(300, 700) + (20_000 if is_late else 0),
            source=source,
            to=to,
            size=rng.choice((1 << 20, 1 << 16, 12345)),
        )
        spoilt: list[dict[str, Any]] = [{"latency_us": 0}, *BAD[:2]]
        made.append(replace(message, **rng.choice(spoilt)) if rng.random() < 0.03 else message)
    return made


def shown(tmp_path: Path, *made: Made, link: str = "100") -> dict[str, Any]:
    """What `xlatune network --json` says of traces."""
    for at, each in enumerate(made):
        (tmp_path / f"host-{at}.xplane.pb").write_bytes(each.data())
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["network", str(tmp_path), "--json", "--link", link]) == 0
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def name(host: tuple[int, int]) -> str:
    return f"{host[0]}-{host[1]}"


def found(document: dict[str, Any]) -> set[str]:
    return {each["symptom"] for each in document["symptoms"] if each["is_found"]}


# end in ms, latency in us, source, destination, bytes
MESSAGES = [
    (10.0, 1000, (0, 0), (1, 0), 1000),
    (10.5, 1000, (0, 0), (1, 0), 3000),
    (10.2, 400, (0, 1), (1, 1), 500),
    (30.0, 2000, (1, 0), (0, 0), 8000),
    (40.0, 700, (0, 0), (0, 1), 64),  # within a slice
    (50.0, 0, (0, 0), (1, 0), 64),  # of clocks that differ
]


@pytest.mark.parametrize("is_text", [False, True])
def test_figures_are_those_that_are_worked_out_by_hand(is_text: bool, tmp_path: Path) -> None:
    messages = [
        Message(end_ns=int(end * MS), latency_us=latency, source=source, to=to, size=size)
        for end, latency, source, to, size in MESSAGES
    ]
    one: Any = {"end_ns": 60 * MS, "latency_us": 9, "source": (0, 0), "to": (1, 0), "size": 64}
    messages += [Message(**one | bad) for bad in BAD]
    document = shown(tmp_path, Made(messages=messages, is_text=is_text))
    kinds = ("valid", "loopback", "skew", "bad_key")
    assert [document["messages"][each] for each in kinds] == [4, 1, 1, 3]
    assert document["bytes"] == 12_500
    assert document["latency_us"] == {"p50": 1000, "p95": 2000, "p99": 2000, "max": 2000}
    assert document["sizes"] == {"500": 1, "1000": 1, "3000": 1, "8000": 1}
    # lines of workers begin up to 52 ns after the first one
    columns = ("start_us", "end_us", "messages", "bytes", "max_in_flight")
    bursts = [tuple(burst[name] for name in columns) for burst in document["bursts"]]
    assert bursts[0] == pytest.approx((9000, 10_500, 3, 4500, 3), abs=0.1)
    assert bursts[1] == pytest.approx((28_000, 30_000, 1, 8000, 1), abs=0.1)
    assert document["pending"] == {"max_messages": 3, "max_bytes": 8000}
    assert document["throughput_gbit_s"]["peak"] == pytest.approx(0.032, rel=1e-4)
    # bytes, and of the millisecond with the most: 4000, 2500 and 250 bytes
    hosts = {each["host"]: each for each in document["hosts"]}
    for host, *figures in (
        ("0-0", 4000, 0.020, 8000, 0.032), ("0-1", 500, 0.002, 0, 0.0),
        ("1-0", 8000, 0.032, 4000, 0.020), ("1-1", 0, 0.0, 500, 0.002),
    ):  # fmt: skip
        names = ("tx_bytes", "tx_peak_gbit_s", "rx_bytes", "rx_peak_gbit_s")
        assert [hosts[host][each] for each in names] == pytest.approx(figures, rel=1e-3), host
    assert {tuple(each.values())[:6] for each in document["pairs"]} == {
        ("0-0", "1-0", 2, 4000, 1000, 1000),
        ("0-1", "1-1", 1, 500, 400, 400),
        ("1-0", "0-0", 1, 8000, 2000, 2000),
    }
    assert document["slow_pairs"] == document["slow_hosts"] == []
    assert not found(document)


@pytest.mark.parametrize("number", range(12))
def test_what_was_planted_is_found_and_nothing_else(number: int, tmp_path: Path) -> None:
    rng = random.Random(100 + number)
    source, to = (rng.randrange(2), rng.randrange(3)), None
    if number % 2:
        to = (1 - source[0], rng.randrange(3))
    document = shown(tmp_path, Made(messages=traffic(rng, count=1200, slow=(source, to))))
    pairs = {tuple(each) for each in document["slow_pairs"]}
    if to is None:
        assert document["slow_hosts"] == [name(source)]
        assert pairs == {(name(source), name((1 - source[0], each))) for each in range(3)}
        assert found(document) == {"one_host"}
    else:
        assert document["slow_hosts"] == []
        assert pairs == {(name(source), name(to))}
        assert found(document) == {"one_pair"}


def test_late_buffers_are_told_from_early_ones_and_from_those_of_other_lines(
    tmp_path: Path,
) -> None:
    messages = traffic(random.Random(3), count=60)
    early = [(HOST, "MapDmaBuffer", at, 1000, "1.07GB") for at in range(3)]
    other = "pjrt-tpu-tasks/9"
    early += [(other, "MapDmaBuffer", 8 * MS + at, 5 * MS, "32B") for at in range(40)]
    document = shown(tmp_path, Made(messages=messages, events=early))
    assert list(document["map_dma"].values()) == [3, 0, 0, 0, False]
    late = [(HOST, "MapDmaBuffer", 7 * MS + at, 400_000, "64.5MB") for at in range(2)]
    document = shown(tmp_path, Made(messages=messages, events=early + late))
    assert document["map_dma"] == {
        "early": 3, "late": 2, "late_us": 800, "late_bytes": 129_000_000, "shortage": True,
    }  # fmt: skip
    assert found(document) == {"buffers"}
    [told] = [each["action"] for each in document["symptoms"] if each["is_found"]]
    assert "--megascale_grpc_premap_memory_bytes by at least 129000000" in told


def test_copies_a_full_link_and_a_tail_are_found(tmp_path: Path) -> None:
    messages = traffic(random.Random(9), count=400)
    copies = [(HOST, COPY, 8 * MS, 2500, "4096B"), (HOST, COPY, 9 * MS, 500, "1KB")]
    document = shown(tmp_path, Made(messages=messages, events=copies))
    assert document["memory_copies"] == {"n": 2, "us": 3, "bytes": 5096}
    assert found(document) == {"copies"}
    assert "bandwidth" in found(shown(tmp_path, Made(messages=messages), link="0.01"))
    for each in messages[::29]:
        each.latency_us += 200_000
    assert "latency_tail" in found(shown(tmp_path, Made(messages=messages)))


def test_slack_and_stall_of_each_rendezvous(tmp_path: Path) -> None:
    ops = []
    for core in (0, 1):
        ops.append((core, "recv-done.1", "host_a", 0, 50))  # began before the trace
        for step in range(3):
            at = 1000 + step * 10_000
            ops += [
                (core, "send.1", "host_a", at, 100),
                (core, "recv.1", "host_a", at + 100, 30),
                (core, "send.2", "host_b", at + 200, 10),
                (core, "recv.2", "host_b", at + 210, 5),
                (core, "send-done.1", "host_a", at + 4000, 20),
                (core, "recv-done.1", "host_a", at + 5000 + step, 700),
                (core, "recv-done.2", "host_b", at + 6000, 40),
                (core, "send-done.2", "host_b", at + 6040, 3),
            ]
        ops.append((core, "send.1", "host_a", 90_000, 100))  # ends after it
    document = shown(tmp_path, Made(messages=traffic(random.Random(1), count=20), ops=ops))
    rows = [tuple(each.values()) for each in document["slack"]]
    # device, rendezvous, n, least and mean slack, sum of stalls, mean observed; the worst first.
    # In [send.2, recv-done.2) lie send.2, recv.2, send-done.1 and recv-done.1
    assert rows == [
        *((f"/device:TPU:{core}", "host_a", 3, 4.835, 4.836, 2.55, 5.701) for core in (0, 1)),
        *((f"/device:TPU:{core}", "host_b", 3, 5.065, 5.065, 0.174, 5.84) for core in (0, 1)),
    ]


def test_a_trace_without_messages_has_figures_of_none_and_what_is_no_trace_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = shown(tmp_path, Made())
    assert document["latency_us"] == dict.fromkeys(("p50", "p95", "p99", "max"))
    assert document["pairs"] == document["bursts"] == []
    assert not found(document)
    assert main(["network", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("no traffic")
    bad = tmp_path / "a.xplane.pb"
    whole = Made(messages=traffic(random.Random(1), count=9)).data()
    for data in (b"", b"no trace at all", whole[:-7]):
        bad.write_bytes(data)
        assert main(["network", str(bad)]) != 0
        assert "a.xplane.pb: no readable xplane.pb" in capsys.readouterr().err
    assert main(["network", str(tmp_path / "nowhere")]) == 2


def test_text_shows_symptoms_in_order_and_the_rows_of_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = shown(tmp_path, Made(messages=traffic(random.Random(2), count=300)))
    assert main(["network", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    lines = [line.split()[:6] for line in out.splitlines()]
    order = "buffers copies latency_tail bandwidth slack one_host one_pair"
    assert " ".join(line[1] for line in lines[:7]) == order
    assert f"p50 {document['latency_us']['p50']}, " in out
    slowest = max(document["pairs"], key=lambda row: row["p50_us"])
    assert [str(each) for each in slowest.values()][:6] in lines
