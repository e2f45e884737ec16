"""Network figures of a multi-slice job from its traces: latency, bursts, throughput, pairs, slack.

Exact integer arithmetic on receive events, whose time is the arrival: a message of latency L
microseconds that arrived at t began at t - L. Only valid messages enter a figure; the others
are counted by kind. A host is a `slice-device` pair of ids. What the figures mean is
`symptoms`' business.

Definitions of kinds, bursts and slack: openxla/xprof, megascale and DCN slack analysis.
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
from pytest_xlatune.guests.megascale.traffic import IDS, Amount, Messages, Traffic, Transfer
from pytest_xlatune.model.errors import ParseError

Floats = NDArray[np.float64]
Host = tuple[int, int]  # slice, device
PS_OF_US, PS_OF_MS = 10**6, 10**9
# milliseconds: nearly three hours; clocks of hosts that far apart are wrong
_MOST_BINS = 10_000_000
SLOW = 2  # times what others take for messages of the same size
LEAST_MESSAGES = 5  # of a pair, to call it slow
LEAST_SLOW_PAIRS = 2  # of a host, to call it slow: with one, the pair is
_TAIL_FACTOR, _TAIL_US = 10, 10_000
_SHORT_PER_MILLE = 1  # of the trace, spent mapping buffers late
BUSY_SHARE = 0.8  # of the link rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """Receive events by kind; only valid ones enter a figure."""

    valid: int
    loopback: int
    skew: int
    bad_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Microseconds of all messages, by nearest rank."""

    p50: int
    p95: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A maximal time with a message in flight; picoseconds after the trace's base."""

    start_ps: int
    end_ps: int
    messages: int
    size: int
    most: int  # in flight at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Messages from one device of a slice to another one's; latencies in microseconds."""

    source: Host
    to: Host
    n: int
    size: int
    p50_us: int
    max_us: int
    ratio: float  # p50 of latency over what all pairs take for that size
    tail: int  # its messages in the tail

    @property
    def is_slow(self) -> bool:
        """Whether it takes more than twice as long, with enough messages to say so."""
        return self.ratio > SLOW and self.n >= LEAST_MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """What a host received, or sent: bytes, and Gbit/s in bins of 1 ms.

    Attributes:
        size: bytes.
        peak: the most in a bin.
        busy: share of the bins with traffic that are above 80 % of the link.
    """

    size: int = 0
    peak: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """Both directions of a host."""

    host: Host
    rx: Direction
    tx: Direction

    @property
    def busy(self) -> float:
        """Of the busier direction."""
        return max(self.rx.busy, self.tx.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Buffers that workers mapped, before and after the first program began."""

    early: int
    late: Amount
    is_short: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """The occurrences of a rendezvous on a core; picoseconds.

    Of an occurrence, slack is the time between the begin of its send and the begin of its recv-done
    in which the core ran anything but transfers.

    Attributes:
        slack_ps: of each occurrence.
        sum_stall_ps: of its send, send-done, recv and recv-done.
        sum_observed_ps: from the begin of each send to the end of its recv-done.
    """

    device: str
    rendezvous: str
    slack_ps: tuple[int, ...]
    sum_stall_ps: int
    sum_observed_ps: int

    @property
    def n(self) -> int:
        """How many occurrences are whole in the trace."""
        return len(self.slack_ps)

    @property
    def mean_slack_ps(self) -> float:
        """Mean over the occurrences."""
        return sum(self.slack_ps) / self.n

    @property
    def mean_observed_ps(self) -> float:
        """Mean time from the begin of a send to the end of its recv-done."""
        return self.sum_observed_ps / self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraffic:
    """All figures of a window."""

    kinds: Kinds
    size: int = 0
    latency: Latency | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)
    bursts: tuple[Burst, ...] = ()
    most_pending: int = 0
    most_pending_size: int = 0
    peak: float = 0.0
    hosts: tuple[HostTraffic, ...] = ()
    pairs: tuple[Pair, ...] = ()
    mapped: Mapped
    copies: Amount
    slack: tuple[Slack, ...] = ()

    @property
    def has_traffic(self) -> bool:
        """Whether anything in the traces is of the network between slices."""
        kinds = self.kinds
        messages = (kinds.valid, kinds.loopback, kinds.skew, kinds.bad_key, self.copies.n)
        return any((*messages, self.slack, self.mapped.late.n))

    @property
    def slow_pairs(self) -> tuple[Pair, ...]:
        """The pairs that take more than twice what all pairs take."""
        return tuple(pair for pair in self.pairs if pair.is_slow)

    @property
    def slow_hosts(self) -> tuple[Host, ...]:
        """The host that most of its pairs accuse, and no other pair."""
        slow = self.slow_pairs
        found = []
        for end in ("source", "to"):
            accused = {getattr(pair, end) for pair in slow}
            if len(slow) >= LEAST_SLOW_PAIRS and len(accused) == 1:  # every slow pair has it
                (host,) = accused
                if 2 * len(slow) > sum(getattr(pair, end) == host for pair in self.pairs):
                    found.append(host)
        return tuple(dict.fromkeys(found))

    @property
    def tail_elsewhere(self) -> int:
        """How many messages of the tail are not on slow pairs."""
        return sum(pair.tail for pair in self.pairs if not pair.is_slow)


def measure(traffic: Traffic, *, link_gbit_s: float = 100.0) -> NetworkTraffic:
    """Return all figures.

    `link_gbit_s` is the rate of a host's link, in Gbit/s.

    Raises:
        ParseError: messages that are hours apart.
    """
    kinds, valid = _kinds(traffic.messages)
    slack = [each for name, ops in traffic.transfers.items() for each in slack_of(name, ops)]
    of_messages = _message_figures(valid, link_gbit_s) if kinds.valid else {}
    return NetworkTraffic(
        kinds=kinds,
        mapped=_mapped(traffic),
        copies=Amount.of(traffic.copies),
        slack=tuple(sorted(slack, key=lambda each: -each.sum_stall_ps)),
        **of_messages,
    )


def _kinds(found: Messages) -> tuple[Kinds, Messages]:
    is_bad = ~found.has_label
    for each in IDS:
        is_bad |= getattr(found, each) == ABSENT
    is_skew = ~is_bad & (found.latency_us <= 0)
    is_loop = ~is_bad & ~is_skew & (found.source_slice == found.to_slice)
    is_valid = ~(is_bad | is_skew | is_loop)
    counts = (int(each.sum()) for each in (is_valid, is_loop, is_skew, is_bad))
    valid, loopback, skew, bad_key = counts
    kinds = Kinds(valid=valid, loopback=loopback, skew=skew, bad_key=bad_key)
    return kinds, found.where(is_valid)


def _message_figures(valid: Messages, link_gbit_s: float) -> dict[str, Any]:
    end, latency = valid.end_ps, valid.latency_us
    start = end - latency * PS_OF_US
    bursts, most, most_size = _bursts(start, end, valid.size)
    sizes, counts = np.unique(valid.size, return_counts=True)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        "size": int(valid.size.sum()),
        "latency": Latency(**{name: int(rank(latency, share)) for name, share in shares.items()}),
        "sizes": dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
        "bursts": bursts,
        "most_pending": most,
        "most_pending_size": most_size,
        "peak": float(_rates(start, end, valid.size).max()),
        "hosts": _hosts(valid, link_gbit_s),
        "pairs": _pairs(valid),
    }


def rank(values: NDArray[Any], share: float) -> Any:
    """Return the smallest value that this share of all values does not exceed."""
    # of 20 values 0.95 is the 19th, though 0.95 * 20 is a little more than 19 as a float
    place = math.ceil(round(share * len(values), 9)) - 1
    return np.sort(values)[max(place, 0)]


def _groups(*keys: Ints) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield each combination of keys that occurs, in their order, and where it stands."""
    found, which = np.unique(np.stack(keys), axis=1, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which))[:-1])
    for key, rows in zip(found.T.tolist(), parts, strict=True):
        yield tuple(key), rows


def _bursts(start: Ints, end: Ints, size: Ints) -> tuple[tuple[Burst, ...], int, int]:
    """Return bursts, and the most messages and bytes in flight.

    At equal times what arrives counts before what ends: touching messages are one burst.
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
    found = tuple(
        Burst(start_ps=a, end_ps=b, messages=c, size=d, most=e)
        for a, b, c, d, e in zip(*(column.tolist() for column in columns), strict=True)
    )
    return found, int(in_flight.max()), int(in_flight_size.max())


def _rates(start: Ints, end: Ints, size: Ints) -> Floats:
    """Return Gbit/s in bins of 1 ms, the bytes of each message spread evenly over its time.

    Raises:
        ParseError: messages that are hours apart.
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
    found = np.zeros(count)
    found += np.bincount(first, head, count)
    found += np.bincount(last, tail, count)
    inner = last - first > 1
    if inner.any():
        # in extended precision: what comes and goes must leave no trace of the largest
        change = np.zeros(count + 1, np.longdouble)
        np.add.at(change, first[inner] + 1, per_ps[inner] * PS_OF_MS)
        np.subtract.at(change, last[inner], per_ps[inner] * PS_OF_MS)
        found += np.maximum(np.cumsum(change)[:count], 0).astype(np.float64)
    return found * 8 / 1e6  # bytes per millisecond


def _hosts(valid: Messages, link_gbit_s: float) -> tuple[HostTraffic, ...]:
    start = valid.end_ps - valid.latency_us * PS_OF_US
    ends = {
        "tx": (valid.source_slice, valid.source_device),
        "rx": (valid.to_slice, valid.to_device),
    }
    found: dict[tuple[int, ...], dict[str, Direction]] = {}
    for name, keys in ends.items():
        for host, rows in _groups(*keys):
            rates = _rates(start[rows], valid.end_ps[rows], valid.size[rows])
            direction = Direction(
                size=int(valid.size[rows].sum()),
                peak=float(rates.max()),
                busy=float((rates[rates > 0] > BUSY_SHARE * link_gbit_s).mean()),
            )
            found.setdefault(host, {"rx": Direction(), "tx": Direction()})[name] = direction
    return tuple(
        HostTraffic(host=(host[0], host[1]), **both) for host, both in sorted(found.items())
    )


def _pairs(valid: Messages) -> tuple[Pair, ...]:
    ends = (valid.source_slice, valid.source_device, valid.to_slice, valid.to_device)
    latency = valid.latency_us
    # what others take for a size: the median of the pairs' medians, so that no pair weighs more
    medians: dict[int, list[int]] = {}
    for (size, *_), rows in _groups(valid.size, *ends):
        medians.setdefault(size, []).append(rank(latency[rows], 0.5))
    expected, is_tail = np.zeros(len(latency)), np.zeros(len(latency), bool)
    for (size,), rows in _groups(valid.size):
        expected[rows] = rank(np.array(medians[size]), 0.5)
        p50 = rank(latency[rows], 0.5)
        is_tail[rows] = latency[rows] > max(_TAIL_FACTOR * p50, p50 + _TAIL_US)
    return tuple(
        Pair(
            source=(a, b),
            to=(c, d),
            n=len(rows),
            size=int(valid.size[rows].sum()),
            p50_us=int(rank(latency[rows], 0.5)),
            max_us=int(latency[rows].max()),
            ratio=float(rank(latency[rows] / expected[rows], 0.5)),
            tail=int(is_tail[rows].sum()),
        )
        for (a, b, c, d), rows in _groups(*ends)
    )


def _mapped(traffic: Traffic) -> Mapped:
    first = traffic.first_module_ps
    late = Amount.of(e for e in traffic.mapped if first is not None and e.start_ps > first)
    span_ps = traffic.span_ps[1] - traffic.span_ps[0]
    is_short = late.n > 0 and late.ps * 1000 > span_ps * _SHORT_PER_MILLE
    return Mapped(early=len(traffic.mapped) - late.n, late=late, is_short=is_short)


@dataclass(slots=True)
class _Occurrence:
    send: Transfer
    recv_done: Transfer | None = None
    stall_ps: int = 0
    kinds: set[str] = field(default_factory=set)

    def takes(self, kind: str) -> bool:
        """Whether an op may be part of it: a send-done may come behind the recv-done."""
        return kind not in self.kinds and (kind == "send-done" or self.recv_done is None)


def slack_of(device: str, ops: Sequence[Transfer]) -> list[Slack]:
    """Return the slack of each rendezvous of a core, whose transfers are sorted by time.

    An occurrence that begins before or ends after the trace is left out.
    """
    starts = [transfer.start_ps for transfer in ops]
    before = [0, *accumulate(transfer.ps for transfer in ops)]
    occurrences: dict[str, list[_Occurrence]] = {}
    early: dict[str, int] = {}  # a recv that was posted before its send
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
    found = []
    for rendezvous, each in occurrences.items():
        whole = [(o.send, done, o.stall_ps) for o in each if (done := o.recv_done) is not None]
        slack = []
        for send, done, _ in whole:
            low, high = (bisect_left(starts, t) for t in (send.start_ps, done.start_ps))
            slack.append(done.start_ps - send.start_ps - (before[high] - before[low]))
        if whole:
            found.append(
                Slack(
                    device=device,
                    rendezvous=rendezvous,
                    slack_ps=tuple(slack),
                    sum_stall_ps=sum(stall_ps for *_, stall_ps in whole),
                    sum_observed_ps=sum(d.start_ps + d.ps - s.start_ps for s, d, _ in whole),
                )
            )
    return found
