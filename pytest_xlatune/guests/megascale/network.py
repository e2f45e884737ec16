"""The network figures of a multi-slice job, from its traces: latency, bursts, rates, pairs, slack.

The figures are computed exactly, in integers, from receive events. Their time is the arrival: a
message with a latency of L microseconds that arrived at t began at t - L. Only valid messages
count; the others are counted by kind. A host is a `slice-device` pair of ids. Names and units of
figures are those of the JSON document. What they mean is decided in `symptoms`.

Kinds, bursts and slack are defined as in the Megascale and DCN slack analyses of openxla/xprof.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.protobuf import Ints
from pytest_xlatune.evidence.trace import ABSENT
from pytest_xlatune.guests.megascale.traffic import IDS, Messages, Traffic, Transfer
from pytest_xlatune.model.errors import ParseError

Floats = NDArray[np.float64]
PS_OF_US, PS_OF_MS = 10**6, 10**9
# bins of 1 ms: nearly three hours; clocks of hosts that differ by more are wrong
_MOST_BINS = 10_000_000
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
# a pair is slow if it takes so many times as long as others for messages of the same size
_SLOW = 2
_LEAST_MESSAGES = 5  # messages that a pair must have to be called slow
# slow pairs that a host must have to be called slow; with one pair, the pair is
_LEAST_SLOW_PAIRS = 2
_TAIL_FACTOR, _TAIL_US = 10, 10_000
_SHORT_PER_MILLE = 1  # share of the trace that is spent on mapping buffers late
_BUSY_SHARE = 0.8  # share of the rate of the link


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A maximal span of time with messages in flight; in microseconds after the trace's base."""

    start_us: float
    end_us: float
    messages: int
    bytes: int
    max_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The messages from a device of one slice to a device of another.

    Attributes:
        ratio: the median latency over what all pairs take for that size; the pair is slow above 2.
        tail: the number of its messages with a latency far above the median of their size.
    """

    source: str
    destination: str
    n: int
    bytes: int
    p50_us: int
    max_us: int
    ratio: float
    tail: int

    @property
    def is_slow(self) -> bool:
        """Whether it takes more than twice as long as others, with enough messages to say so."""
        return self.ratio > _SLOW and self.n >= _LEAST_MESSAGES


@dataclass(slots=True, kw_only=True)
class HostTraffic:
    """What a host received (rx) and sent (tx); a peak is the largest rate in a bin of 1 ms.

    `busy` is the share of the bins with traffic above 80 % of the link, in the busier direction.
    """

    host: str
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_peak_gbit_s: float = 0.0
    tx_peak_gbit_s: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """The occurrences of a rendezvous on a core.

    An occurrence lasts from the start of its send to the end of its recv-done: the observed time.
    Slack is the time between the start of its send and the start of its recv-done in which the core
    ran anything but transfers. Stall is the time of its own transfers.
    """

    device: str
    rendezvous: str
    n: int
    min_slack_us: float
    mean_slack_us: float
    sum_stall_us: float
    mean_observed_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraffic:
    """All figures of a window; fields have the names of the JSON document.

    Attributes:
        messages: kind -> number of receive events; only valid ones enter a figure.
        map_dma: buffers that workers mapped, before and after the start of the first program.
    """

    messages: Mapping[str, int]
    bytes: int = 0
    latency_us: Mapping[str, int | None] = field(default_factory=lambda: dict.fromkeys(_SHARES))
    sizes: Mapping[str, int] = field(default_factory=dict)
    bursts: list[Burst] = field(default_factory=list)
    pending: Mapping[str, int] = field(default_factory=lambda: {"max_messages": 0, "max_bytes": 0})
    throughput_gbit_s: Mapping[str, float] = field(default_factory=lambda: {"peak": 0.0})
    hosts: list[HostTraffic] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    map_dma: Mapping[str, Any]
    memory_copies: Mapping[str, Any]
    slack: list[Slack]

    @property
    def has_traffic(self) -> bool:
        """Whether the traces have anything about the network between slices."""
        events = (*self.messages.values(), self.memory_copies["n"], self.map_dma["late"])
        return any(events) or bool(self.slack)

    @property
    def slow_pairs(self) -> tuple[Pair, ...]:
        """The pairs that take more than twice as long as all pairs."""
        return tuple(pair for pair in self.pairs if pair.is_slow)

    @property
    def slow_hosts(self) -> tuple[str, ...]:
        """The host that all slow pairs have in common, if most of its pairs are slow."""
        slow = self.slow_pairs
        hosts = []
        for end in ("source", "destination"):
            accused = {getattr(pair, end) for pair in slow}
            if len(slow) >= _LEAST_SLOW_PAIRS and len(accused) == 1:  # each slow pair has this host
                (host,) = accused
                if 2 * len(slow) > sum(getattr(pair, end) == host for pair in self.pairs):
                    hosts.append(host)
        return tuple(dict.fromkeys(hosts))


def measure(traffic: Traffic, *, link_gbit_s: float = 100.0) -> NetworkTraffic:
    """Return all figures; `link_gbit_s` is the rate of a host's link, in Gbit/s.

    Raises:
        ParseError: messages are hours apart.
    """
    counts, valid = _kinds(traffic.messages)
    slack = [row for device, ops in traffic.transfers.items() for row in slack_of(device, ops)]
    return NetworkTraffic(
        messages=counts,
        map_dma=_mapped(traffic),
        memory_copies=_copies(traffic),
        slack=sorted(slack, key=lambda row: -row.sum_stall_us),
        **(_message_figures(valid, link_gbit_s) if counts["valid"] else {}),
    )


def _kinds(messages: Messages) -> tuple[dict[str, int], Messages]:
    is_bad = ~messages.has_label
    for name in IDS:
        is_bad |= getattr(messages, name) == ABSENT
    is_skew = ~is_bad & (messages.latency_us <= 0)
    is_loop = ~is_bad & ~is_skew & (messages.source_slice == messages.to_slice)
    masks = {
        "valid": ~(is_bad | is_skew | is_loop),
        "loopback": is_loop,
        "skew": is_skew,
        "bad_key": is_bad,
    }
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    return counts, messages.where(masks["valid"])


def _message_figures(valid: Messages, link_gbit_s: float) -> dict[str, Any]:
    end, latency = valid.end_ps, valid.latency_us
    start = end - latency * PS_OF_US
    sizes, counts = np.unique(valid.size, return_counts=True)
    return {
        "bytes": int(valid.size.sum()),
        "latency_us": {name: int(rank(latency, share)) for name, share in _SHARES.items()},
        "sizes": dict(zip(map(str, sizes.tolist()), counts.tolist(), strict=True)),
        **_bursts(start, end, valid.size),
        "throughput_gbit_s": {"peak": float(_rates(start, end, valid.size).max())},
        "hosts": _hosts(valid, link_gbit_s),
        "pairs": _pairs(valid),
    }


def rank(values: NDArray[Any], share: float) -> Any:
    """Return the smallest value that is at least as large as this share of all values."""
    # 0.95 of 20 values is the 19th, though 0.95 * 20 is slightly more than 19 as a float
    place = math.ceil(round(share * len(values), 9)) - 1
    return np.sort(values)[max(place, 0)]


def _groups(*keys: Ints) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield each combination of keys that occurs, in order, with the indices of its rows."""
    combinations, which = np.unique(np.stack(keys), axis=1, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which))[:-1])
    for key, rows in zip(combinations.T.tolist(), parts, strict=True):
        yield tuple(key), rows


def _bursts(start: Ints, end: Ints, size: Ints) -> dict[str, Any]:
    """Return the bursts, and the most messages and bytes in flight.

    At equal times a start counts before an end, so messages that touch are one burst.
    """
    n = len(start)
    time = np.concatenate([start, end])
    order = np.lexsort((np.repeat([0, 1], n), time))
    step = np.repeat([1, -1], n)[order]
    in_flight = np.cumsum(step)
    in_flight_size = np.cumsum(step * np.tile(size, 2)[order])
    last = np.flatnonzero(in_flight == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    time = time[order]
    sizes = np.where(step > 0, np.tile(size, 2)[order], 0)
    counts = np.add.reduceat((step > 0).astype(np.int64), first)
    bytes_ = np.add.reduceat(sizes, first)
    most = np.maximum.reduceat(in_flight, first)
    columns = (time[first], time[last], counts, bytes_, most)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        "bursts": [
            Burst(start_us=a / PS_OF_US, end_us=b / PS_OF_US, messages=c, bytes=d, max_in_flight=e)
            for a, b, c, d, e in rows
        ],
        "pending": {
            "max_messages": int(in_flight.max()),
            "max_bytes": int(in_flight_size.max()),
        },
    }


def _rates(start: Ints, end: Ints, size: Ints) -> Floats:
    """Return the rate in each bin of 1 ms in Gbit/s; a message's bytes are spread over its time.

    Raises:
        ParseError: messages are hours apart.
    """
    first, last = start // PS_OF_MS, (end - 1) // PS_OF_MS
    low = int(first.min())
    count = int(last.max()) - low + 1
    if count > _MOST_BINS:
        raise ParseError(
            f"messages {count / 3_600_000:.1f} hours apart: the clocks of the hosts disagree; give "
            "the traces of one window"
        )
    per_ps = size / (end - start)
    is_one_bin = first == last
    head = np.where(is_one_bin, end - start, (first + 1) * PS_OF_MS - start) * per_ps
    tail = np.where(is_one_bin, 0, end - last * PS_OF_MS) * per_ps
    first, last = first - low, last - low
    rates = np.zeros(count)
    rates += np.bincount(first, head, count)
    rates += np.bincount(last, tail, count)
    inner = last - first > 1
    if inner.any():
        # the sums have extended precision, so the largest rate leaves nothing after its end
        change = np.zeros(count + 1, np.longdouble)
        np.add.at(change, first[inner] + 1, per_ps[inner] * PS_OF_MS)
        np.subtract.at(change, last[inner], per_ps[inner] * PS_OF_MS)
        rates += np.maximum(np.cumsum(change)[:count], 0).astype(np.float64)
    return rates * 8 / 1e6  # 8 bits, and bytes/ms to Gbit/s


def _name(slice_id: int, device: int) -> str:
    return f"{slice_id}-{device}"


def _hosts(valid: Messages, link_gbit_s: float) -> list[HostTraffic]:
    start = valid.end_ps - valid.latency_us * PS_OF_US
    ends = {
        "tx": (valid.source_slice, valid.source_device),
        "rx": (valid.to_slice, valid.to_device),
    }
    hosts: dict[tuple[int, ...], HostTraffic] = {}
    for way, keys in ends.items():
        for host, rows in _groups(*keys):
            rates = _rates(start[rows], valid.end_ps[rows], valid.size[rows])
            row = hosts.setdefault(host, HostTraffic(host=_name(*host)))
            setattr(row, f"{way}_bytes", int(valid.size[rows].sum()))
            setattr(row, f"{way}_peak_gbit_s", float(rates.max()))
            is_busy = rates[rates > 0] > _BUSY_SHARE * link_gbit_s
            row.busy = max(row.busy, float(is_busy.mean()))
    return [row for _, row in sorted(hosts.items())]


def _pairs(valid: Messages) -> list[Pair]:
    ends = (valid.source_slice, valid.source_device, valid.to_slice, valid.to_device)
    latency = valid.latency_us
    # what others take for a size is the median of the pairs' medians, so each pair weighs the same
    medians: dict[int, list[int]] = {}
    for (size, *_), rows in _groups(valid.size, *ends):
        medians.setdefault(size, []).append(rank(latency[rows], 0.5))
    expected, is_tail = np.zeros(len(latency)), np.zeros(len(latency), bool)
    for (size,), rows in _groups(valid.size):
        expected[rows] = rank(np.array(medians[size]), 0.5)
        p50 = rank(latency[rows], 0.5)
        is_tail[rows] = latency[rows] > max(_TAIL_FACTOR * p50, p50 + _TAIL_US)
    return [
        Pair(
            source=_name(a, b),
            destination=_name(c, d),
            n=len(rows),
            bytes=int(valid.size[rows].sum()),
            p50_us=int(rank(latency[rows], 0.5)),
            max_us=int(latency[rows].max()),
            ratio=float(rank(latency[rows] / expected[rows], 0.5)),
            tail=int(is_tail[rows].sum()),
        )
        for (a, b, c, d), rows in _groups(*ends)
    ]


def _copies(traffic: Traffic) -> dict[str, Any]:
    us = sum(event.ps for event in traffic.copies) / PS_OF_US
    size = sum(event.size for event in traffic.copies)
    return {"n": len(traffic.copies), "us": us, "bytes": size}


def _mapped(traffic: Traffic) -> dict[str, Any]:
    first = traffic.first_module_ps
    late = [event for event in traffic.mapped if first is not None and event.start_ps > first]
    late_ps = sum(event.ps for event in late)
    span_ps = traffic.span_ps[1] - traffic.span_ps[0]
    return {
        "early": len(traffic.mapped) - len(late),
        "late": len(late),
        "late_us": late_ps / PS_OF_US,
        "late_bytes": sum(event.size for event in late),
        "shortage": bool(late) and late_ps * 1000 > span_ps * _SHORT_PER_MILLE,
    }


@dataclass(slots=True)
class _Occurrence:
    send: Transfer
    recv_done: Transfer | None = None
    stall_ps: int = 0
    kinds: set[str] = field(default_factory=set)

    def takes(self, kind: str) -> bool:
        """Return whether an op can belong to it; a send-done may come after the recv-done."""
        return kind not in self.kinds and (kind == "send-done" or self.recv_done is None)


def slack_of(device: str, ops: Sequence[Transfer]) -> list[Slack]:
    """Return the slack of each rendezvous of a core, whose transfers are sorted by time.

    Occurrences that begin before or end after the trace are left out.
    """
    starts = [transfer.start_ps for transfer in ops]
    before = [0, *accumulate(transfer.ps for transfer in ops)]
    occurrences: dict[str, list[_Occurrence]] = {}
    early: dict[str, int] = {}  # rendezvous -> a recv that began before its send
    for op in ops:
        mine = occurrences.setdefault(op.rendezvous, [])
        if op.kind == "send":
            mine.append(_Occurrence(op, stall_ps=op.ps + early.pop(op.rendezvous, 0)))
        elif mine and mine[-1].takes(op.kind):
            mine[-1].kinds.add(op.kind)
            mine[-1].stall_ps += op.ps
            if op.kind == "recv-done":
                mine[-1].recv_done = op
        elif op.kind == "recv":
            early[op.rendezvous] = op.ps
    rows = []
    for rendezvous, transfers in occurrences.items():
        complete = [
            (o.send, done, o.stall_ps) for o in transfers if (done := o.recv_done) is not None
        ]
        if not complete:
            continue
        slack_ps = []
        for send, done, _ in complete:
            low, high = (bisect_left(starts, t) for t in (send.start_ps, done.start_ps))
            slack_ps.append(done.start_ps - send.start_ps - (before[high] - before[low]))
        n = len(complete)
        observed_ps = sum(done.start_ps + done.ps - send.start_ps for send, done, _ in complete)
        rows.append(
            Slack(
                device=device,
                rendezvous=rendezvous,
                n=n,
                min_slack_us=min(slack_ps) / PS_OF_US,
                mean_slack_us=sum(slack_ps) / n / PS_OF_US,
                sum_stall_us=sum(stall_ps for *_, stall_ps in complete) / PS_OF_US,
                mean_observed_us=observed_ps / n / PS_OF_US,
            )
        )
    return rows
