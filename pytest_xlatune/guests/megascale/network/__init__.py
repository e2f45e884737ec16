"""Network figures of a multi-slice job from its traces: latency, bursts, throughput, pairs, slack.

Exact integer arithmetic on receive events, whose time is the arrival: a message of latency L
microseconds that arrived at t began at t - L. Only valid messages enter a figure; the others
are counted by kind. A host is a `slice-device` pair of ids. What the figures mean is
`symptoms`' business.

Definitions of kinds, bursts and slack: openxla/xprof, megascale and DCN slack analysis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.protobuf import Ints
from pytest_xlatune.evidence.trace import ABSENT
from pytest_xlatune.guests.megascale.network._reading import Amount, Messages, Traffic, read_traffic
from pytest_xlatune.guests.megascale.network._transfers import (
    Counters,
    Slack,
    counters_of,
    slack_of,
)
from pytest_xlatune.model.errors import ParseError

__all__ = [
    "Counters",
    "Latency",
    "NetworkTraffic",
    "Series",
    "Slack",
    "Traffic",
    "Way",
    "measure",
    "read_traffic",
    "series_of",
]

Floats = NDArray[np.float64]
Host = tuple[int, int]  # slice, device
PS_OF_US, PS_OF_MS = 10**6, 10**9
_MOST_BINS = (
    10_000_000  # milliseconds: nearly three hours; clocks of hosts that far apart are wrong
)
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
    """Microseconds of so many messages, by nearest rank."""

    n: int
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

    @property
    def mean_gbit_s(self) -> float:
        """Bytes over its length."""
        return self.size * 8000 / (self.end_ps - self.start_ps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Messages from one device of a slice to another one's; latencies in microseconds."""

    source: Host
    to: Host
    n: int
    size: int
    p50_us: int
    p95_us: int
    max_us: int
    ratio: float  # p50 of latency over what all pairs take for that size
    tail: int = 0  # its messages in the tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a host received, or sent: bytes, and Gbit/s in bins of 1 ms.

    Attributes:
        size: bytes.
        peak, p95, mean: over all bins from the first to the last with traffic; p95 by nearest rank.
        busy: share of the bins with traffic that are above 80 % of the link.
    """

    size: int = 0
    peak: float = 0.0
    p95: float = 0.0
    mean: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """Both directions of a host."""

    host: Host
    rx: Way
    tx: Way

    @property
    def busy(self) -> float:
        """Of the busier direction."""
        return max(self.rx.busy, self.tx.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Buffers that workers mapped, before and after the first program began."""

    early: int
    late: int
    late_ps: int
    late_size: int
    is_short: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraffic:
    """All figures of a window."""

    kinds: Kinds
    size: int
    latency: Latency | None
    by_label: Mapping[str, Latency] = field(default_factory=dict)
    by_source: Mapping[Host, Latency] = field(default_factory=dict)
    by_destination: Mapping[Host, Latency] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    rate_p50: float = 0.0  # Gbit/s of single messages
    rate_max: float = 0.0
    steps: int = 0
    bursts: tuple[Burst, ...] = ()
    most_pending: int = 0
    most_pending_size: int = 0
    mean_pending: float = 0.0  # over time, from the first begin to the last end
    mean_pending_size: float = 0.0
    peak: float = 0.0
    hosts: tuple[HostTraffic, ...] = ()
    pairs: tuple[Pair, ...] = ()
    slow_pairs: tuple[Pair, ...] = ()
    slow_hosts: tuple[Host, ...] = ()
    tail: int = 0
    tail_elsewhere: int = 0  # of them not on slow pairs
    mapped: Mapped
    copies: Amount
    slack: tuple[Slack, ...] = ()
    counters: Counters

    def devices_beside(self, device: str) -> int:
        """Return how many devices of the same host show transfers, this one included."""
        host = device.partition("/device")[0]
        return len({e.device for e in self.slack if e.device.partition("/device")[0] == host})

    @property
    def has_traffic(self) -> bool:
        """Whether anything in the traces is of the network between slices."""
        kinds, counters = self.kinds, self.counters
        messages = (kinds.valid, kinds.loopback, kinds.skew, kinds.bad_key, self.copies.n)
        flows = (counters.received.n, counters.sent.n, counters.collectives)
        return any((*messages, *flows, self.slack, self.mapped.late))

    @property
    def powers(self) -> dict[int, int]:
        """Messages by the power of two that their size reaches."""
        found: dict[int, int] = {}
        for size, n in self.sizes.items():
            power = 1 << max(size.bit_length() - 1, 0)
            found[power] = found.get(power, 0) + n
        return dict(sorted(found.items()))

    @property
    def small(self) -> tuple[float, float]:
        """Shares of messages and of bytes that are in messages below 1 MiB."""
        few = {size: n for size, n in self.sizes.items() if size < 1 << 20}
        n, size = self.kinds.valid, self.size
        part = sum(each * count for each, count in few.items())
        return sum(few.values()) / n if n else 0.0, part / size if size else 0.0

    @property
    def bytes_per_step(self) -> float | None:
        """None where no device shows its steps."""
        return self.size / self.steps if self.steps else None


def measure(traffic: Traffic, *, link_gbit_s: float = 100.0) -> NetworkTraffic:
    """Return all figures.

    `link_gbit_s` is the rate of a host's link, in Gbit/s.

    Raises:
        ParseError: messages that are hours apart.
    """
    kinds, valid = _kinds(traffic.messages)
    slack = tuple(each for name, ops in traffic.transfers.items() for each in slack_of(name, ops))
    found = NetworkTraffic(
        kinds=kinds,
        size=0,
        latency=None,
        mapped=_mapped(traffic),
        copies=traffic.copies,
        slack=tuple(sorted(slack, key=lambda each: -each.sum_stall_ps)),
        steps=traffic.steps,
        counters=counters_of(traffic.counted),
    )
    if not kinds.valid:
        return found
    end, latency = valid.end_ps, valid.latency_us
    start = end - latency * PS_OF_US
    bursts, most, most_size = _bursts(start, end, valid.size)
    bins = _Bins(start, end, valid.size)
    pairs, tail = _pairs(valid)
    slow = tuple(each for each in pairs if each.ratio > SLOW and each.n >= LEAST_MESSAGES)
    sizes, counts = np.unique(valid.size, return_counts=True)
    rates = valid.size / latency * 0.008
    window_ps = int(end.max() - start.min())
    known = np.unique(valid.label)
    by_label = _latencies(np.searchsorted(known, valid.label), latency)
    return dataclasses.replace(
        found,
        size=int(valid.size.sum()),
        latency=_latencies(np.zeros(len(latency), np.int64), latency)[0],
        by_label=dict(zip((traffic.labels[each] for each in known), by_label, strict=True)),
        by_source=_by_host(valid.source_slice, valid.source_device, latency),
        by_destination=_by_host(valid.to_slice, valid.to_device, latency),
        sizes=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
        rate_p50=float(_ranks(np.zeros(len(rates), np.int64), rates, 0.5)[0]),
        rate_max=float(rates.max()),
        bursts=bursts,
        most_pending=most,
        most_pending_size=most_size,
        mean_pending=int(latency.sum()) * PS_OF_US / window_ps,
        mean_pending_size=_dot(valid.size, latency) * PS_OF_US / window_ps,
        peak=float(bins.rates(None).max()),
        hosts=_hosts(valid, bins, link_gbit_s),
        pairs=pairs,
        slow_pairs=slow,
        slow_hosts=_slow_hosts(pairs, slow),
        tail=tail,
        tail_elsewhere=tail - sum(each.tail for each in slow),
    )


def _dot(a: Ints, b: Ints) -> int:
    """Return the sum of products; in halves, which no sum of overflows."""
    return (int((a >> 20) @ b) << 20) + int((a & ((1 << 20) - 1)) @ b)


def _latencies(group: Ints, latency: Ints) -> list[Latency]:
    """Return the latencies of each group; groups are numbered without a gap."""
    shares = (_ranks(group, latency, share) for share in (0.5, 0.95, 0.99, 1.0))
    columns = (np.bincount(group), *shares)
    return [
        Latency(n=n, p50=p50, p95=p95, p99=p99, max=last)
        for n, p50, p95, p99, last in zip(*(each.tolist() for each in columns), strict=True)
    ]


def _by_host(slices: Ints, devices: Ints, latency: Ints) -> dict[Host, Latency]:
    hosts, group = np.unique(np.stack((slices, devices)), axis=1, return_inverse=True)
    names = (cast("Host", tuple(each)) for each in hosts.T.tolist())
    return dict(zip(names, _latencies(group.reshape(-1), latency), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """For plots over time: of each valid message its arrival and latency; of each 1 ms a rate.

    Times count from the trace's base, as those of bursts do.
    """

    arrival_ms: Floats
    latency_us: Ints
    bin_ms: Ints  # where each bin begins
    gbit_s: Floats  # all hosts together


def series_of(traffic: Traffic) -> Series:
    """Return the series of a window; empty ones without a valid message.

    Raises:
        ParseError: messages that are hours apart.
    """
    kinds, valid = _kinds(traffic.messages)
    none = np.zeros(0, np.int64)
    if not kinds.valid:
        return Series(arrival_ms=none / 1, latency_us=none, bin_ms=none, gbit_s=none / 1)
    bins = _Bins(valid.end_ps - valid.latency_us * PS_OF_US, valid.end_ps, valid.size)
    rates = bins.rates(None)
    return Series(
        arrival_ms=valid.end_ps / PS_OF_MS,
        latency_us=valid.latency_us,
        bin_ms=bins.low + np.arange(len(rates)),
        gbit_s=rates,
    )


def _kinds(all_: Messages) -> tuple[Kinds, Messages]:
    ids = (all_.source_slice, all_.source_device, all_.to_slice, all_.to_device, all_.size)
    bad = all_.label == ABSENT
    for each in ids:
        bad |= each == ABSENT
    skew = ~bad & (all_.latency_us <= 0)
    loop = ~bad & ~skew & (all_.source_slice == all_.to_slice)
    valid = ~(bad | skew | loop)
    kinds = Kinds(
        valid=int(valid.sum()),
        loopback=int(loop.sum()),
        skew=int(skew.sum()),
        bad_key=int(bad.sum()),
    )
    return kinds, Messages(
        **{each: getattr(all_, each)[valid] for each in Messages.__dataclass_fields__}
    )


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
        for a, b, c, d, e in zip(*(each.tolist() for each in columns), strict=True)
    )
    return found, int(in_flight.max()), int(in_flight_size.max())


class _Bins:
    """Bytes of each message spread evenly over its time, in bins of 1 ms."""

    def __init__(self, start: Ints, end: Ints, size: Ints) -> None:
        first, last = start // PS_OF_MS, (end - 1) // PS_OF_MS
        self.low = int(first.min())
        self._count = int(last.max()) - self.low + 1
        if self._count > _MOST_BINS:
            hours = self._count / 3_600_000
            raise ParseError(
                f"messages {hours:.1f} hours apart: the clocks of the hosts disagree; give the "
                "traces of one window"
            )
        self._first, self._last = first - self.low, last - self.low
        per_ps = size / (end - start)
        one = self._first == self._last
        head = np.where(one, end - start, (first + 1) * PS_OF_MS - start)
        tail = np.where(one, 0, end - last * PS_OF_MS)
        self._per_ps, self._head, self._tail = per_ps, head * per_ps, tail * per_ps

    def rates(self, which: NDArray[np.bool_] | None) -> Floats:
        """Return Gbit/s of each bin, of the messages that the mask chooses."""
        chosen = slice(None) if which is None else which
        first, last = self._first[chosen], self._last[chosen]
        low = int(first.min())
        count = int(last.max()) - low + 1
        first, last = first - low, last - low
        size = np.zeros(count)
        size += np.bincount(first, self._head[chosen], count)
        size += np.bincount(last, self._tail[chosen], count)
        inner = last - first > 1
        if inner.any():
            size += _between(first[inner] + 1, last[inner], self._per_ps[chosen][inner], count)
        return size * 8 / 1e6  # bytes per millisecond


def _between(begin: Ints, end: Ints, per_ps: Floats, count: int) -> Floats:
    """Return the bytes of bins that messages fill: each in all bins of [begin, end).

    In extended precision: what comes and goes must leave no trace of the largest.
    """
    change = np.zeros(count + 1, np.longdouble)
    np.add.at(change, begin, per_ps * PS_OF_MS)
    np.subtract.at(change, end, per_ps * PS_OF_MS)
    return np.maximum(np.cumsum(change)[:count], 0).astype(np.float64)


def _hosts(valid: Messages, bins: _Bins, link_gbit_s: float) -> tuple[HostTraffic, ...]:
    ends = {
        "tx": (valid.source_slice, valid.source_device),
        "rx": (valid.to_slice, valid.to_device),
    }
    hosts = sorted(
        {
            host
            for pair in ends.values()
            for host in zip(
                *(each.tolist() for each in np.unique(np.stack(pair), axis=1)), strict=True
            )
        }
    )
    found = []
    for host in hosts:
        both: dict[str, Way] = {"rx": Way(), "tx": Way()}
        for way, (slices, devices) in ends.items():
            mine = (slices == host[0]) & (devices == host[1])
            if mine.any():
                rates = bins.rates(mine)
                both[way] = Way(
                    size=int(valid.size[mine].sum()),
                    peak=float(rates.max()),
                    p95=float(np.sort(rates)[max(math.ceil(0.95 * len(rates)) - 1, 0)]),
                    mean=float(rates.mean()),
                    busy=float((rates[rates > 0] > BUSY_SHARE * link_gbit_s).mean()),
                )
        found.append(HostTraffic(host=host, rx=both["rx"], tx=both["tx"]))
    return tuple(found)


def _pairs(valid: Messages) -> tuple[tuple[Pair, ...], int]:
    """Return the pairs, and how many messages are in the tail."""
    keys = np.stack((valid.source_slice, valid.source_device, valid.to_slice, valid.to_device))
    unique, which = np.unique(keys, axis=1, return_inverse=True)
    size_class = np.unique(valid.size, return_inverse=True)[1]
    which, size_class = which.reshape(-1), size_class.reshape(-1)
    latency = valid.latency_us
    # what others take for a size: the median of the pairs' medians, so that no pair weighs more
    both, group = np.unique(size_class * unique.shape[1] + which, return_inverse=True)
    medians = _ranks(group.reshape(-1), latency, 0.5)
    expected = _ranks(both // unique.shape[1], medians, 0.5)
    p50 = _ranks(size_class, latency, 0.5)[size_class]
    is_tail = latency > np.maximum(_TAIL_FACTOR * p50, p50 + _TAIL_US)
    columns = (
        np.bincount(which),
        _sums(which, valid.size),
        *(_ranks(which, latency, share) for share in (0.5, 0.95, 1.0)),
        _ranks(which, latency / expected[size_class], 0.5),
        np.bincount(which, is_tail).astype(np.int64),
    )
    found = []
    for (a, b, c, d), row in zip(
        unique.T.tolist(), zip(*(each.tolist() for each in columns), strict=True), strict=True
    ):
        n, size, half, most, last, ratio, tail = row
        pair = Pair(
            source=(a, b),
            to=(c, d),
            n=n,
            size=size,
            p50_us=half,
            p95_us=most,
            max_us=last,
            ratio=ratio,
            tail=tail,
        )
        found.append(pair)
    return tuple(found), int(is_tail.sum())


def _ranks(group: Ints, values: NDArray[Any], share: float) -> NDArray[Any]:
    """Return a quantile of each group: the smallest value that this share does not exceed.

    Groups are numbered without a gap.
    """
    ordered = values[np.lexsort((values, group))]
    counts = np.bincount(group)
    ends = np.cumsum(counts)
    # of 20 values 0.95 is the 19th, though 0.95 * 20 is a little more than 19 as a float
    place = np.ceil(np.round(share * counts, 9)).astype(np.int64) - 1
    result: NDArray[Any] = ordered[ends - counts + np.maximum(place, 0)]
    return result


def _sums(group: Ints, values: Ints) -> Ints:
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    return np.add.reduceat(values[order], np.cumsum(counts) - counts)


def _slow_hosts(pairs: Iterable[Pair], slow: tuple[Pair, ...]) -> tuple[Host, ...]:
    """Return the host that most of its pairs accuse, and no other pair."""
    if len(slow) < LEAST_SLOW_PAIRS:
        return ()
    all_ = list(pairs)
    found: dict[Host, None] = {}
    for end in ("source", "to"):
        accused = {getattr(each, end) for each in slow}
        if len(accused) == 1:  # every slow pair has it
            host = accused.pop()
            if 2 * len(slow) > sum(getattr(each, end) == host for each in all_):
                found[host] = None
    return tuple(found)


def _mapped(traffic: Traffic) -> Mapped:
    first = traffic.first_module_ps
    late = [each for each in traffic.mapped if first is not None and each[0] > first]
    late_ps = sum(duration for _, duration, _ in late)
    span_ps = traffic.span_ps[1] - traffic.span_ps[0]
    return Mapped(
        early=len(traffic.mapped) - len(late),
        late=len(late),
        late_ps=late_ps,
        late_size=sum(size for _, _, size in late),
        is_short=bool(late) and late_ps * 1000 > span_ps * _SHORT_PER_MILLE,
    )
