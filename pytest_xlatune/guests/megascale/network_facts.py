"""Facts about the network between slices, from captures of evidence runs; an entry point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_xlatune.evidence import CaptureFacts
from pytest_xlatune.guests.megascale.network import NetworkTraffic, measure
from pytest_xlatune.guests.megascale.symptoms import LINK_GBIT_S, judge
from pytest_xlatune.guests.megascale.traffic import read_traffic

_MARK = b"Megascale"  # a capture without it is not read


class NetworkFacts(CaptureFacts):
    """Facts about messages between slices, from captures that have any."""

    def facts(self, captures: Sequence[Path]) -> Iterable[str]:
        """Return facts about the network between slices in captures.

        Raises:
            ParseError: a file is not an xplane.pb.
        """
        traffic = _traffic_of(captures)
        if traffic is None:
            return ()
        return (_fact_text(traffic),)

    def changes(self, before: Sequence[Path], after: Sequence[Path]) -> Iterable[str]:
        """Return what changed between slices; nothing if one side has no messages.

        Raises:
            ParseError: a file is not an xplane.pb.
        """
        old, new = _traffic_of(before), _traffic_of(after)
        return () if old is None or new is None else _changes(old, new)


def _traffic_of(captures: Sequence[Path]) -> NetworkTraffic | None:
    """Return the figures of a window; None if its files contain nothing about Megascale."""
    files = [path for path in captures if path.name.endswith(".pb")]
    if not any(_MARK in path.read_bytes() for path in files):
        return None
    traffic = measure(read_traffic(files), link_gbit_s=LINK_GBIT_S)
    return traffic if traffic.messages["valid"] or traffic.slack else None


def _fact_text(traffic: NetworkTraffic) -> str:
    """Return the number of messages, their bytes and latency, the stall, and the symptoms."""
    latency = traffic.latency_us
    valid = traffic.messages["valid"]
    latency_text = f"p50 {latency['p50']} us, max {latency['max']} us" if valid else "no latency"
    return (
        f"network: {valid} messages between slices, {traffic.bytes} bytes, {latency_text}, "
        f"stall of transfers {_stall_ms(traffic):.3f} ms; symptoms: "
        f"{', '.join(_symptoms(traffic)) or 'none'}"
    )


def _changes(before: NetworkTraffic, after: NetworkTraffic) -> Iterator[str]:
    """Yield the changes of latency, bytes, stall, slack and symptoms."""
    old, new = before.latency_us, after.latency_us
    if before.messages["valid"] and after.messages["valid"]:
        yield (
            f"messages between slices: p50 of latency {old['p50']} -> {new['p50']} us, "
            f"p99 {old['p99']} -> {new['p99']} us"
        )
    if before.bytes != after.bytes:
        yield f"bytes between slices: {before.bytes} -> {after.bytes}"
    if before.slack and after.slack:
        yield f"stall of transfers: {_stall_ms(before):.3f} -> {_stall_ms(after):.3f} ms in all"
        old_slack_ms, new_slack_ms = _least_slack_ms(before), _least_slack_ms(after)
        yield f"least slack of a transfer: {old_slack_ms:.3f} -> {new_slack_ms:.3f} ms"
    old_symptoms, new_symptoms = set(_symptoms(before)), set(_symptoms(after))
    gone, added = old_symptoms - new_symptoms, new_symptoms - old_symptoms
    for change, names in (("gone", gone), ("new", added)):
        if names:
            yield f"symptoms that are {change}: {', '.join(sorted(names))}"


def _symptoms(traffic: NetworkTraffic) -> list[str]:
    """Return the names of the symptoms that were found."""
    return [
        judgement.symptom
        for judgement in judge(traffic, link_gbit_s=LINK_GBIT_S)
        if judgement.is_found
    ]


def _stall_ms(traffic: NetworkTraffic) -> float:
    return sum(slack.sum_stall_us for slack in traffic.slack) / 1000


def _least_slack_ms(traffic: NetworkTraffic) -> float:
    return min(slack.min_slack_us for slack in traffic.slack) / 1000
