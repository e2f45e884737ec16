"""The network figures of a multi-slice job, from its traces: latency, bursts, rates, pairs, slack.

The figures are computed from receive events. The time of an event is the arrival: a message with a
latency of L microseconds that arrived at t began at t - L. Only valid messages enter the figures;
of the others only the number is given, by kind. A host is a pair of ids, `slice-device`. Names and
units of figures are those of the JSON document. `network_command` judges the figures.

Kinds, bursts and slack are defined as in the Megascale and DCN slack analyses of openxla/xprof.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
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
# The most bins of 1 ms, nearly three hours. If messages are further apart, a clock is wrong.
_MOST_BINS = 10_000_000
_LATENCY_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_SLOW_RATIO = 2  # a pair is slow if its `ratio` is above this
_LEAST_MESSAGES = 5  # a pair with fewer messages is not called slow
_LEAST_SLOW_PAIRS = 2  # a host with fewer slow pairs is not called slow, only its pair is
# a message is in the tail if it took more than this factor times the median of its size, and more
# than these microseconds above that median
_TAIL_FACTOR, _TAIL_US = 10, 10_000
_SHORTAGE_PER_MILLE = 1  # there is a shortage if late mapping takes more than this of the trace
_BUSY_SHARE = 0.8  # a link is busy in a bin with more than this share of its rate


Row = dict[str, Any]


def measure(traffic: Traffic, *, link_gbit_s: float = 100.0) -> dict[str, Any]:
    """Return all figures, as the JSON document has them.

    * messages: kind -> number of receive events; only valid ones enter the figures
    * bytes: the sum of the messages' sizes
    * latency_us: `p50`, `p95`, `p99` and `max`; None if there is no message
    * sizes: size of a message in bytes -> number of messages
    * bursts: the spans of time with messages in flight, see `_bursts`
    * pending: the most messages, and the most bytes, in flight at a time
    * throughput_gbit_s: the largest rate of all messages in a bin of 1 ms
    * hosts: the traffic of each host, see `_hosts`
    * pairs: the messages of each pair of hosts, see `_pairs`
    * map_dma: the buffers that workers mapped, before and after the start of the first program
    * memory_copies: number, time and bytes of the copies of memory by workers
    * slack: the slack of each rendezvous, that with the most stall first, see `slack_of`
    * slow_pairs, slow_hosts: the pairs with `is_slow`, and the hosts that explain them

    Args:
        traffic: what the traces contain.
        link_gbit_s: the rate of a host's link, in Gbit/s.

    Raises:
        ParseError: messages are hours apart.
    """
    counts, valid = _split_by_kind(traffic.messages)
    slack = [row for device, ops in traffic.transfers.items() for row in slack_of(device, ops)]
    figures: dict[str, Any] = {
        "messages": counts,
        "bytes": 0,
        "latency_us": dict.fromkeys(_LATENCY_SHARES),
        "sizes": {},
        "bursts": [],
        "pending": {"max_messages": 0, "max_bytes": 0},
        "throughput_gbit_s": {"peak": 0.0},
        "hosts": [],
        "pairs": [],
        "map_dma": _mapping_figures(traffic),
        "memory_copies": _copy_figures(traffic),
        "slack": sorted(slack, key=lambda row: -row["sum_stall_us"]),
    }
    if counts["valid"]:
        figures |= _message_figures(valid, link_gbit_s)
    slow = [row for row in figures["pairs"] if row["is_slow"]]
    figures["slow_pairs"] = [[row["source"], row["destination"]] for row in slow]
    figures["slow_hosts"] = _slow_hosts(figures["pairs"])
    return figures


def _slow_hosts(pairs: Sequence[Row]) -> list[str]:
    """Return the hosts that all slow pairs have at one end, if most pairs of such a host are slow.

    There are two at most: one as the source, and one as the destination.
    """
    slow = [row for row in pairs if row["is_slow"]]
    hosts: list[str] = []
    for end in ("source", "destination"):
        slow_ends = {row[end] for row in slow}
        if len(slow) >= _LEAST_SLOW_PAIRS and len(slow_ends) == 1:
            (host,) = slow_ends
            pairs_of_host = sum(row[end] == host for row in pairs)
            if 2 * len(slow) > pairs_of_host:
                hosts.append(host)
    return list(dict.fromkeys(hosts))


def _split_by_kind(messages: Messages) -> tuple[dict[str, int], Messages]:
    """Return kind -> number of messages, and the valid messages.

    The other kinds are: within a slice (loopback), without a positive latency (skew), and without a
    label or an id (bad_key).
    """
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
    """Return the figures of `measure` that depend on messages."""
    end, latency = valid.end_ps, valid.latency_us
    start = end - latency * PS_OF_US
    sizes, counts = np.unique(valid.size, return_counts=True)
    return {
        "bytes": int(valid.size.sum()),
        "latency_us": {
            name: int(quantile(latency, share)) for name, share in _LATENCY_SHARES.items()
        },
        "sizes": dict(zip(map(str, sizes.tolist()), counts.tolist(), strict=True)),
        **_bursts(start, end, valid.size),
        "throughput_gbit_s": {"peak": float(_rates(start, end, valid.size).max())},
        "hosts": _hosts(valid, link_gbit_s),
        "pairs": _pairs(valid),
    }


def quantile(values: NDArray[Any], share: float) -> Any:
    """Return the smallest value that is at least as large as this share of all values."""
    # rounded, because 0.95 * 20 is slightly more than 19 as a float
    place = math.ceil(round(share * len(values), 9)) - 1
    return np.sort(values)[max(place, 0)]


def _rows_by_key(*keys: Ints) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield each combination of keys that occurs, in order, with the indices of its rows."""
    combinations, number_of_row = np.unique(np.stack(keys), axis=1, return_inverse=True)
    number_of_row = number_of_row.reshape(-1)
    order = np.argsort(number_of_row, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(number_of_row))[:-1])
    for key, rows in zip(combinations.T.tolist(), parts, strict=True):
        yield tuple(key), rows


def _bursts(start: Ints, end: Ints, size: Ints) -> dict[str, Any]:
    """Return the bursts, and the most messages and bytes in flight.

    A burst is a span of time in which messages are in flight without a gap. Its times are counted
    from the least timestamp of the trace. At equal times a start counts before an end, so messages
    that touch are one burst.
    """
    n = len(start)
    # the starts and ends of all messages, in the order of time
    time = np.concatenate([start, end])
    order = np.lexsort((np.repeat([0, 1], n), time))
    time = time[order]
    change = np.repeat([1, -1], n)[order]  # of the number of messages in flight
    size_of_event = np.tile(size, 2)[order]
    in_flight = np.cumsum(change)
    in_flight_size = np.cumsum(change * size_of_event)
    # the indices of the first and the last event of each burst
    last = np.flatnonzero(in_flight == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    messages = np.add.reduceat((change > 0).astype(np.int64), first)
    sizes = np.add.reduceat(np.where(change > 0, size_of_event, 0), first)
    most_in_flight = np.maximum.reduceat(in_flight, first)
    return {
        "bursts": [
            {
                "start_us": int(time[first[at]]) / PS_OF_US,
                "end_us": int(time[last[at]]) / PS_OF_US,
                "messages": int(messages[at]),
                "bytes": int(sizes[at]),
                "max_in_flight": int(most_in_flight[at]),
            }
            for at in range(len(first))
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
    bytes_per_ps = size / (end - start)
    # the bytes of each message in its first bin, and in its last
    is_one_bin = first == last
    head = np.where(is_one_bin, end - start, (first + 1) * PS_OF_MS - start) * bytes_per_ps
    tail = np.where(is_one_bin, 0, end - last * PS_OF_MS) * bytes_per_ps
    first, last = first - low, last - low
    rates = np.zeros(count)
    rates += np.bincount(first, head, count)
    rates += np.bincount(last, tail, count)
    # the messages that fill further bins between these two
    for at in np.flatnonzero(last - first > 1).tolist():
        rates[first[at] + 1 : last[at]] += bytes_per_ps[at] * PS_OF_MS
    return rates * 8 / 1e6  # 8 bits, and bytes/ms to Gbit/s


_NO_TRAFFIC = {
    "rx_bytes": 0,
    "tx_bytes": 0,
    "rx_peak_gbit_s": 0.0,
    "tx_peak_gbit_s": 0.0,
    "busy": 0.0,
}


def _host_name(slice_id: int, device: int) -> str:
    return f"{slice_id}-{device}"


def _hosts(valid: Messages, link_gbit_s: float) -> list[Row]:
    """Return what each host received (rx) and sent (tx), sorted by the ids of the hosts.

    `busy` is, of the bins with traffic, the share with more than 80 % of the link's rate, in the
    busier direction.
    """
    start = valid.end_ps - valid.latency_us * PS_OF_US
    ends = {
        "tx": (valid.source_slice, valid.source_device),
        "rx": (valid.to_slice, valid.to_device),
    }
    hosts: dict[tuple[int, ...], Row] = {}
    for direction, keys in ends.items():
        for host, rows in _rows_by_key(*keys):
            rates = _rates(start[rows], valid.end_ps[rows], valid.size[rows])
            row = hosts.setdefault(host, {"host": _host_name(*host), **_NO_TRAFFIC})
            row[f"{direction}_bytes"] = int(valid.size[rows].sum())
            row[f"{direction}_peak_gbit_s"] = float(rates.max())
            is_busy = rates[rates > 0] > _BUSY_SHARE * link_gbit_s
            row["busy"] = max(row["busy"], float(is_busy.mean()))
    return [row for _, row in sorted(hosts.items())]


def _pairs(valid: Messages) -> list[Row]:
    """Return the figures of each pair of hosts that exchanged messages, sorted by their ids.

    `ratio` is the median, over the messages, of latency divided by what all pairs usually take for
    that size. `tail` is the number of messages with a latency far above the median of their size.
    """
    ends = (valid.source_slice, valid.source_device, valid.to_slice, valid.to_device)
    latency = valid.latency_us
    # The usual latency of a size is the median of the medians of all pairs, so that each pair has
    # the same weight.
    medians: dict[int, list[int]] = {}
    for (size, *_), rows in _rows_by_key(valid.size, *ends):
        medians.setdefault(size, []).append(quantile(latency[rows], 0.5))
    usual, is_tail = np.zeros(len(latency)), np.zeros(len(latency), bool)
    for (size,), rows in _rows_by_key(valid.size):
        usual[rows] = quantile(np.array(medians[size]), 0.5)
        p50 = quantile(latency[rows], 0.5)
        is_tail[rows] = latency[rows] > max(_TAIL_FACTOR * p50, p50 + _TAIL_US)
    pairs = []
    for ids, rows in _rows_by_key(*ends):
        ratio = float(quantile(latency[rows] / usual[rows], 0.5))
        pairs.append(
            {
                "source": _host_name(*ids[:2]),
                "destination": _host_name(*ids[2:]),
                "n": len(rows),
                "bytes": int(valid.size[rows].sum()),
                "p50_us": int(quantile(latency[rows], 0.5)),
                "max_us": int(latency[rows].max()),
                "ratio": ratio,
                "tail": int(is_tail[rows].sum()),
                "is_slow": ratio > _SLOW_RATIO and len(rows) >= _LEAST_MESSAGES,
            }
        )
    return pairs


def _copy_figures(traffic: Traffic) -> dict[str, Any]:
    """Return number, time and bytes of the copies of memory."""
    time_us = sum(event.ps for event in traffic.copies) / PS_OF_US
    size = sum(event.size for event in traffic.copies)
    return {"n": len(traffic.copies), "us": time_us, "bytes": size}


def _mapping_figures(traffic: Traffic) -> dict[str, Any]:
    """Return the numbers of buffers mapped early and late, and time and bytes of the late ones."""
    first = traffic.first_module_ps
    late = [event for event in traffic.mapped if first is not None and event.start_ps > first]
    late_ps = sum(event.ps for event in late)
    span_ps = traffic.span_ps[1] - traffic.span_ps[0]
    return {
        "early": len(traffic.mapped) - len(late),
        "late": len(late),
        "late_us": late_ps / PS_OF_US,
        "late_bytes": sum(event.size for event in late),
        "shortage": bool(late) and late_ps * 1000 > span_ps * _SHORTAGE_PER_MILLE,
    }


@dataclass(slots=True)
class _Occurrence:
    """One occurrence of a rendezvous while its ops are read."""

    send: Transfer
    recv_done: Transfer | None = None
    stall_ps: int = 0
    kinds: set[str] = field(default_factory=set)

    def lacks(self, kind: str) -> bool:
        """Return whether an op of this kind can still belong to it.

        After its recv-done only its send-done can.
        """
        return kind not in self.kinds and (kind == "send-done" or self.recv_done is None)


def slack_of(device: str, ops: Sequence[Transfer]) -> list[Row]:
    """Return the slack of each rendezvous of a core, whose transfers are sorted by time.

    The observed time of an occurrence is from the start of its send to the end of its recv-done.
    Its slack is the part of the time between the start of its send and the start of its recv-done
    in which the core ran no transfers. Its stall is the time of its own transfers.

    Occurrences that begin before or end after the trace are left out.
    """
    starts_ps = [op.start_ps for op in ops]
    total_ps = [0, *accumulate(op.ps for op in ops)]  # time of all transfers before each transfer
    occurrences: dict[str, list[_Occurrence]] = {}
    # rendezvous -> duration of a recv that began before its send
    early_recv_ps: dict[str, int] = {}
    for op in ops:
        of_rendezvous = occurrences.setdefault(op.rendezvous, [])
        if op.kind == "send":
            stall_ps = op.ps + early_recv_ps.pop(op.rendezvous, 0)
            of_rendezvous.append(_Occurrence(op, stall_ps=stall_ps))
        elif of_rendezvous and of_rendezvous[-1].lacks(op.kind):
            last = of_rendezvous[-1]
            last.kinds.add(op.kind)
            last.stall_ps += op.ps
            if op.kind == "recv-done":
                last.recv_done = op
        elif op.kind == "recv":
            early_recv_ps[op.rendezvous] = op.ps
    rows = []
    for rendezvous, of_rendezvous in occurrences.items():
        slacks_ps, observed_ps, stall_ps = [], 0, 0
        for occurrence in of_rendezvous:
            send, done = occurrence.send, occurrence.recv_done
            if done is None:
                continue
            low, high = (bisect_left(starts_ps, op.start_ps) for op in (send, done))
            transfers_ps = total_ps[high] - total_ps[low]
            slacks_ps.append(done.start_ps - send.start_ps - transfers_ps)
            observed_ps += done.start_ps + done.ps - send.start_ps
            stall_ps += occurrence.stall_ps
        n = len(slacks_ps)
        if n:
            rows.append(
                {
                    "device": device,
                    "rendezvous": rendezvous,
                    "n": n,
                    "min_slack_us": min(slacks_ps) / PS_OF_US,
                    "mean_slack_us": sum(slacks_ps) / n / PS_OF_US,
                    "sum_stall_us": stall_ps / PS_OF_US,
                    "mean_observed_us": observed_ps / n / PS_OF_US,
                }
            )
    return rows
