"""Slack and stall of the transfers of a core, per rendezvous; what Megascale itself counts. Pure.

Of an occurrence, slack is the time between the begin of its send and the begin of its recv-done
in which the core ran anything but transfers.

Sources: openxla/xprof, dcn_slack_analysis, and trace_processor of megascale.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from pytest_xlatune.guests.megascale.network._reading import Counted, Transfer

MOST_GBIT_S = 200.0  # xprof takes a higher rate of one transfer for a wrong duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """The occurrences of a rendezvous on a core; picoseconds.

    Attributes:
        slack_ps: of each occurrence.
        sum_stall_ps: of its send, send-done, recv and recv-done.
        sum_observed_ps: from the begin of each send to the end of its recv-done.
        size: bytes that one occurrence sends over the network; None where the text of its ops does
            not tell their shape, what kind of transfer it is, or how many slices take part.
    """

    device: str
    rendezvous: str
    slack_ps: tuple[int, ...]
    sum_stall_ps: int
    sum_observed_ps: int
    size: float | None = None

    @property
    def n(self) -> int:
        """How many occurrences are whole in the trace."""
        return len(self.slack_ps)

    @property
    def p50_slack_ps(self) -> int:
        """Median by nearest rank."""
        return sorted(self.slack_ps)[(self.n + 1) // 2 - 1]

    @property
    def needed_gbit_s(self) -> float | None:
        """The rate at which its bytes fit into its mean slack, Gbit/s; infinite without slack."""
        if self.size is None:
            return None
        return self.size * 8000 / self.mean_slack_ps if self.mean_slack_ps > 0 else float("inf")

    @property
    def mean_slack_ps(self) -> float:
        """Mean over the occurrences."""
        return sum(self.slack_ps) / self.n

    @property
    def mean_observed_ps(self) -> float:
        """Mean time from the begin of a send to the end of its recv-done."""
        return self.sum_observed_ps / self.n


def transmitted(size: int, collective: str, group: int | None) -> float | None:
    """Return the bytes that a transfer with a result of `size` bytes sends; None where unknown.

    `group` is how many slices take part. Source: openxla/xprof, dcn_analysis.
    """
    if collective == "ONE_TO_ONE":
        return float(size)  # its group is one source and one destination
    if group is None:
        return None
    factors = {
        "ALL_GATHER": (group - 1) / group,
        "ALL_REDUCE": 2 * (group - 1) / group,
        "ALL_TO_ALL": (group - 1) / group,
        "REDUCE_SCATTER": group - 1,
    }
    return size * factors[collective] if collective in factors else None


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
    starts = [each.start_ps for each in ops]
    before = [0, *accumulate(each.duration_ps for each in ops)]
    occurrences: dict[str, list[_Occurrence]] = {}
    early: dict[str, int] = {}  # a recv that was posted before its send
    # which of its ops say these differs
    kinds = {op.rendezvous: op.collective for op in ops if op.collective}
    groups = {op.rendezvous: op.group for op in ops if op.group is not None}
    sizes = {op.rendezvous: op.size for op in ops if op.size is not None}
    for op in ops:
        mine = occurrences.setdefault(op.rendezvous, [])
        if op.kind == "send":
            mine.append(_Occurrence(op, stall_ps=op.duration_ps + early.pop(op.rendezvous, 0)))
        elif mine and mine[-1].takes(op.kind):
            mine[-1].kinds.add(op.kind)
            mine[-1].stall_ps += op.duration_ps
            if op.kind == "recv-done":
                mine[-1].recv_done = op
        elif op.kind == "recv":
            early[op.rendezvous] = op.duration_ps
    found = []
    for rendezvous, each in occurrences.items():
        whole = [(o, done) for o in each if (done := o.recv_done) is not None]
        if not whole:
            continue
        slack = []
        for o, done in whole:
            low, high = (bisect_left(starts, t) for t in (o.send.start_ps, done.start_ps))
            slack.append(done.start_ps - o.send.start_ps - (before[high] - before[low]))
        found.append(
            Slack(
                device=device,
                rendezvous=rendezvous,
                slack_ps=tuple(slack),
                sum_stall_ps=sum(o.stall_ps for o, _ in whole),
                sum_observed_ps=sum(d.start_ps + d.duration_ps - o.send.start_ps for o, d in whole),
                size=None
                if rendezvous not in sizes
                else transmitted(
                    sizes[rendezvous], kinds.get(rendezvous, ""), groups.get(rendezvous)
                ),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One direction.

    Attributes:
        n, size: transfers and their bytes.
        most_size: most bytes in flight at once.
        peak: most Gbit/s at once, each transfer at an even rate.
        dropped: transfers that count no rate: above 200 Gbit/s, or without a duration.
    """

    n: int = 0
    size: int = 0
    most_size: int = 0
    peak: float = 0.0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Both directions; how many collectives there were, and at most at once, with their bytes."""

    received: Flow
    sent: Flow
    collectives: int = 0
    most_collectives: int = 0
    most_size: int = 0


def counters_of(counted: Counted) -> Counters:
    """Return the figures; at equal times what begins counts before what ends."""
    spans = counted.collectives
    return Counters(
        received=_flow(counted.received),
        sent=_flow(counted.sent),
        collectives=len(spans),
        most_collectives=int(_most([(begin, end, 1) for begin, end, _ in spans])),
        most_size=int(_most(spans)),
    )


def _flow(spans: list[tuple[int, int, int]]) -> Flow:
    rates = [
        (begin, end, rate)
        for begin, end, size in spans
        if end > begin and (rate := size * 8000 / (end - begin)) <= MOST_GBIT_S
    ]
    return Flow(
        n=len(spans),
        size=sum(size for _, _, size in spans),
        most_size=int(_most(spans)),
        peak=float(_most(rates)),
        dropped=len(spans) - len(rates),
    )


def _most(spans: list[tuple[int, int, int]] | list[tuple[int, int, float]]) -> np.longdouble:
    """Return the most that is there at once of what comes and goes.

    In extended precision: what comes and goes must leave no trace of the largest.
    """
    if not spans:
        return np.longdouble(0)
    begin, end, amount = (np.array(column) for column in zip(*spans, strict=True))
    order = np.lexsort((np.repeat([0, 1], len(begin)), np.concatenate([begin, end])))
    steps = np.concatenate([amount, -amount]).astype(np.longdouble)[order]
    most: np.longdouble = np.cumsum(steps).max()
    return most
