"""The symptoms of a slow network in the order of the written procedure: found or excluded, and why.

The rules are ours; each says its threshold in its text. Of two variants: what moved between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_xlatune.guests.megascale.network import (
    PS_OF_MS,
    PS_OF_US,
    NetworkTraffic,
    Pair,
    measure,
    read_traffic,
)
from pytest_xlatune.model.text import counted

LINK_GBIT_S = 100.0  # 12.5 GB/s a host, as xprof assumes
PREMAP = "--megascale_grpc_premap_memory_bytes"
_TAIL_SHARE, _LEAST_TAIL = 0.001, 3
_BUSY = 0.1  # of a host's bins with traffic, above 80 % of the link
_NEAR_ZERO = 0.1  # slack over observed time
_SKEW = 0.01


class Symptom(StrEnum):
    """What can be wrong, in the order in which it is looked for."""

    BUFFERS = "buffers"
    COPIES = "copies"
    LATENCY_TAIL = "latency_tail"
    BANDWIDTH = "bandwidth"
    SLACK = "slack"
    ONE_HOST = "one_host"
    ONE_PAIR = "one_pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a symptom is there, the figures that say so, and what to do; "" where nothing."""

    symptom: Symptom
    is_found: bool
    text: str
    action: str = ""


def judge(network: NetworkTraffic, *, link_gbit_s: float) -> tuple[Judgement, ...]:
    """Return a verdict on each symptom, in the order of the procedure."""
    return (
        _buffers(network),
        _copies(network),
        _latency_tail(network),
        _bandwidth(network, link_gbit_s),
        _slack(network),
        _one_host(network),
        _one_pair(network),
    )


def _buffers(network: NetworkTraffic) -> Judgement:
    mapped = network.mapped
    late = f"{counted(mapped.late, 'buffer')} mapped after the first program began"
    return Judgement(
        symptom=Symptom.BUFFERS,
        is_found=mapped.is_short,
        text=f"{late}, {mapped.late_size} bytes, {mapped.late_ps / PS_OF_MS:.3f} ms; "
        "a shortage is more than 0.1 % of the trace",
        action=f"raise {PREMAP} by at least {mapped.late_size}, start again, and look again",
    )


def _copies(network: NetworkTraffic) -> Judgement:
    copies = network.copies
    share = copies.n / network.kinds.valid if network.kinds.valid else 0.0
    return Judgement(
        symptom=Symptom.COPIES,
        is_found=copies.n > 0,
        text=f"memory copied {counted(copies.n, 'time')} by workers, {copies.size} bytes, "
        f"{copies.ps / PS_OF_MS:.3f} ms, {100 * share:.1f} for 100 messages; transfers need none",
        action=f"raise {PREMAP} by at least {copies.size}, start again, and look again",
    )


def _latency_tail(network: NetworkTraffic) -> Judgement:
    n, far = network.kinds.valid, network.tail_elsewhere
    all_ = n + network.kinds.skew
    doubt = ""
    if all_ and network.kinds.skew > _SKEW * all_:
        doubt = "; more than 1 % of the messages have no latency: the clocks of hosts disagree"
    return Judgement(
        symptom=Symptom.LATENCY_TAIL,
        is_found=far >= _LEAST_TAIL and far > _TAIL_SHARE * n,
        text=f"{far} of {n} messages, those on slow pairs left out, are above 10 times and "
        f"10 ms over the median of their size; a tail is more than 0.1 %{doubt}",
        action="check the TCP settings of the hosts: `xlatune megascale --check-env`",
    )


def _bandwidth(network: NetworkTraffic, link_gbit_s: float) -> Judgement:
    busiest = max(network.hosts, key=lambda each: each.busy, default=None)
    told = "no traffic"
    if busiest is not None:
        name = f"{busiest.host[0]}-{busiest.host[1]}"
        told = f"host {name} is above 80 % of {link_gbit_s:g} Gbit/s in {100 * busiest.busy:.1f} %"
    return Judgement(
        symptom=Symptom.BANDWIDTH,
        is_found=busiest is not None and busiest.busy >= _BUSY,
        text=f"{told} of its milliseconds with traffic; 10 % are a full link",
        action="move fewer bytes between slices: sharding, batch size of each replica; "
        "then look at the slack",
    )


def _slack(network: NetworkTraffic) -> Judgement:
    tight = [
        each for each in network.slack if each.mean_slack_ps <= _NEAR_ZERO * each.mean_observed_ps
    ]
    told = "no rendezvous in the trace" if not network.slack else "every rendezvous overlaps"
    if tight:
        worst = tight[0]
        told = (
            f"{len(tight)} of {len(network.slack)} rendezvous with slack "
            f"below 10 % of their time; the worst is {worst.rendezvous} on {worst.device}: "
            f"{worst.mean_slack_ps / PS_OF_US:.1f} us of {worst.mean_observed_ps / PS_OF_US:.1f} us"
        )
    return Judgement(
        symptom=Symptom.SLACK,
        is_found=bool(tight),
        text=told,
        action="let more computation run beside these transfers: schedule, sharding",
    )


def _one_host(network: NetworkTraffic) -> Judgement:
    names = ", ".join(f"{a}-{b}" for a, b in network.slow_hosts)
    told = f"all slow pairs have {names}" if names else "the slow pairs have no host in common"
    if not network.slow_pairs:
        told = "no pair is slow"
    return Judgement(
        symptom=Symptom.ONE_HOST,
        is_found=bool(network.slow_hosts),
        text=f"{told}; a host is slow where more than half of its pairs are, and no other",
        action=f"test the host of {names}, or leave it out",
    )


def _one_pair(network: NetworkTraffic) -> Judgement:
    slow = network.slow_pairs if not network.slow_hosts else ()
    told = "; ".join(map(_pair, slow[:4])) or "the slow pairs are those of a slow host"
    if not network.slow_pairs:
        told = "no pair is slow"
    return Judgement(
        symptom=Symptom.ONE_PAIR,
        is_found=bool(slow),
        text=f"{told}; slow is twice what all take for a size, with 5 messages or more",
        action="test the path between the two hosts",
    )


def _pair(each: Pair) -> str:
    (a, b), (c, d) = each.source, each.to
    return f"{a}-{b} to {c}-{d} takes {each.ratio:.1f} times what others take"


_MARK = b"Megascale"


def network_of(captures: Sequence[Path]) -> NetworkTraffic | None:
    """Return the figures of a window; None where its files hold nothing of Megascale.

    Raises:
        ParseError: a file is no xplane.pb.
    """
    files = [each for each in captures if each.name.endswith(".pb")]
    if not any(_MARK in each.read_bytes() for each in files):
        return None
    found = measure(read_traffic(files), link_gbit_s=LINK_GBIT_S)
    return found if found.kinds.valid or found.slack else None


def network_fact(found: NetworkTraffic) -> str:
    """Describe the network figures of a capture in a sentence."""
    symptoms = [str(e.symptom) for e in judge(found, link_gbit_s=LINK_GBIT_S) if e.is_found]
    latency = found.latency
    told = f"p50 {latency.p50} us, max {latency.max} us" if latency else "no latency"
    return (
        f"network: {found.kinds.valid} messages between slices, {found.size} bytes, {told}, stall "
        f"of transfers {_stall_ms(found):.3f} ms; symptoms: {', '.join(symptoms) or 'none'}"
    )


def network_changes(before: NetworkTraffic, after: NetworkTraffic) -> Iterator[str]:
    """Yield what moved: latency, bytes, stall and slack of transfers, symptoms."""
    old, new = before.latency, after.latency
    if old and new:
        yield (
            f"messages between slices: p50 of latency {old.p50} -> {new.p50} us, "
            f"p99 {old.p99} -> {new.p99} us"
        )
    if before.size != after.size:
        yield f"bytes between slices: {before.size} -> {after.size}"
    if before.slack and after.slack:
        yield f"stall of transfers: {_stall_ms(before):.3f} -> {_stall_ms(after):.3f} ms in all"
        yield f"least slack of a transfer: {_least_ms(before):.3f} -> {_least_ms(after):.3f} ms"
    sides = [
        {str(each.symptom) for each in judge(side, link_gbit_s=LINK_GBIT_S) if each.is_found}
        for side in (before, after)
    ]
    for told, names in (("gone", sides[0] - sides[1]), ("new", sides[1] - sides[0])):
        if names:
            yield f"symptoms that are {told}: {', '.join(sorted(names))}"


def _stall_ms(found: NetworkTraffic) -> float:
    return sum(each.sum_stall_ps for each in found.slack) / PS_OF_MS


def _least_ms(found: NetworkTraffic) -> float:
    return min(min(each.slack_ps) for each in found.slack) / PS_OF_MS
