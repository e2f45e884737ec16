"""Digests that libtpu itself wrote, what is true of them, and the dress of a log around them.

A recorded case is a cluster with one injected fault: {"version", "fault", "reports", "truth",
"text"}. The aggregator of libtpu 0.0.40 or 0.0.52 was given the reports, and logged the text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_xlatune.guests.megascale.digest import Digest, MegascaleReport
from pytest_xlatune.guests.megascale.digests import MegascaleReader

RECORDED = Path(__file__).parents[1] / "data" / "megascale.jsonl"
STEP = "completed step: 7, seconds: 1.234, TFLOP/s/device: 1.5, Tokens/s/device: 9.1, loss: 7.1"
DECOY = 'I0112 07:08:09.000001 77 notes.cc:5] grep for "Megascale detects a hang that is likely"'
OTHER = "I0000 00:00:1795377644.564581   13901 transport.cc:77] peer t/9:h-9 is slow"

Case = dict[str, Any]
Dress = Callable[[list[str], random.Random], list[str]]


def read(text: str | bytes, *, piece: int = 1 << 20) -> MegascaleReport:
    reader = MegascaleReader()
    data = text.encode() if isinstance(text, str) else text
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
    reader.close()
    return reader.report()


def recorded() -> list[dict[str, Any]]:
    """Cases of both versions: {"version", "fault", "reports", "truth", "text"}."""
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def plain(lines: list[str], rng: random.Random) -> list[str]:
    return lines


def labelled(lines: list[str], rng: random.Random) -> list[str]:
    """Behind `srun -l`, among the lines of another rank."""
    out = []
    for each in lines:
        out.append(f" 0: {each}")
        if rng.random() < 0.3:
            out.append(f"11: {STEP}")
    return out


def shipped(lines: list[str], rng: random.Random) -> list[str]:
    """One JSON object a line."""
    return [
        json.dumps({"insertId": rng.randrange(99), "textPayload": each, "severity": "ERROR"})
        for each in lines
    ]


def flat(lines: list[str], rng: random.Random) -> list[str]:
    """Without the indentation of the table."""
    return [re.sub(r"\] +", "] ", each, count=1).strip() for each in lines]


def stamped(lines: list[str], rng: random.Random) -> list[str]:
    """Behind a container runtime's clock."""
    return [
        f"2026-01-12T07:08:{at % 60:02d}.123456Z stderr F {each}" for at, each in enumerate(lines)
    ]


def amid(lines: list[str], rng: random.Random) -> list[str]:
    """Amid the steps of a trainer and records of other threads."""
    out = [DECOY, STEP]
    for each in lines:
        if each.startswith("E0000") and rng.random() < 0.5:
            out += [OTHER]
        out.append(each)
        if rng.random() < 0.3:
            out.append(STEP)
    return [*out, DECOY]


DRESSES: dict[str, Dress] = {
    each.__name__: each for each in (plain, labelled, shipped, flat, stamped, amid)
}


def wrong(case: dict[str, Any], digest: Digest, *, dress: str = "plain") -> list[str]:
    """What of a digest differs from the truth of its case."""
    version = case["version"]
    expected = VERDICTS[case["fault"]][version]
    found: list[tuple[str, Any, Any]] = [("cause", digest.cause and digest.cause.enum, expected)]
    if digest.states or dress != "flat" or version != "0.0.40":  # else nothing tells it
        found.append(("layout", str(digest.layout), version))
    if case["fault"] in ("bad-chip", "unrecoverable", "link", "star", "not-queued"):
        named = {(each.job, each.task, each.host) for each in digest.culprits}
        found.append(("culprits", named, {tuple(each) for each in case["truth"]}))
    else:
        hosts_named = {each.host for each in digest.culprits}
        # libtpu names two examples, one of which is odd
        is_example = case["fault"] in ("fingerprint", "module")
        odd = {host for *_, host in case["truth"]}
        found.append(("examples", bool(hosts_named & odd) and len(hosts_named) == 2, is_example))
    table = {
        (each.launch_id, each.tag, each.pc, each.hlo, each.computation): each.cores
        for each in digest.states
    }
    found.append(("states", table, {place: count for place, (count, _) in states(case).items()}))
    for each in digest.states:
        place = (each.launch_id, each.tag, each.pc, each.hlo, each.computation)
        hosts = states(case).get(place, (0, set()))[1]
        is_right = set(each.hosts) <= hosts if each.is_cut else set(each.hosts) == hosts
        found.append(("hosts", is_right, True))
    pairs = {(str(source), str(to)) for source, to in digest.links}
    found.append(("links", pairs, links(case)))
    said = {str(worker): text for worker, text in digest.messages}
    true = messages(case)
    if dress == "flat":  # the lines of a message lost their blanks too
        true = {who: "\n".join(each.strip() for each in t.split("\n")) for who, t in true.items()}
    found.append(("messages", said, true))
    if version == "0.0.52" and case["fault"] != "cancelled":
        found.append(("error", digest.first_error, first_error(case)))
    found.append(("truncated", digest.is_truncated, False))
    return [f"{what}: {is_} for {should}" for what, is_, should in found if is_ != should]


# what libtpu calls each fault; where its versions differ, by the layout
_SAME = {
    "alike": "UNKNOWN_CAUSE",
    "two-groups": "UNKNOWN_CAUSE",
    "bad-chip": "BAD_TPU_CHIP",
    "fingerprint": "FINGERPRINT_MISMATCH",
    "unrecoverable": "UNRECOVERABLE_ERROR",
    "module": "DIFFERENT_MODULE",
    "link": "NETWORKING_ISSUE",
    "star": "NETWORKING_ISSUE",
    "not-queued": "PROGRAM_NOT_QUEUED",
    "cancelled": "UNKNOWN_CAUSE",
    "silent": "UNKNOWN_CAUSE",
}
VERDICTS: dict[str, dict[str, str]] = {
    **{fault: dict.fromkeys(("0.0.40", "0.0.52"), cause) for fault, cause in _SAME.items()},
    "order": {"0.0.40": "UNKNOWN_CAUSE", "0.0.52": "LAUNCHES_ORDER_INCONSISTENT"},
}


def states(case: Case) -> dict[tuple[Any, ...], tuple[int, set[str]]]:
    """Return place -> cores and hosts, by the reports: what the table must say."""
    found: dict[tuple[Any, ...], tuple[int, set[str]]] = {}
    if case["fault"] == "cancelled":
        return found
    for each in case["reports"]:
        for one in each["cores"]:
            if one.get("active", 1):
                op = (one["hlo"], one["computation"] or None)
                place = (one["launch"], one["tag"], one["pc"], *op)
            else:
                place = (None, 0, 0, "(program completed)", None)
            count, hosts = found.get(place, (0, set()))
            found[place] = (count + 1, hosts | {each["host"]})
    return found


def links(case: Case) -> set[tuple[str, str]]:
    sent = {
        graph["key"]: name(each)
        for each in case["reports"]
        for graph in each.get("graphs", ())
        if graph["kind"] == "send"
    }
    return {
        (sent[graph["key"]], name(each))
        for each in case["reports"]
        for graph in each.get("graphs", ())
        if graph["kind"] == "receive"
    }


def messages(case: Case) -> dict[str, str]:
    return {name(each): each["message"] for each in case["reports"] if each["type"] == 2}


def name(of: Case) -> str:
    """Return a worker as libtpu writes it."""
    return f"{of['job']}/{of['task']}:{of['host']}"


def first_error(case: Case) -> tuple[str, str]:
    """Return type and time of the earliest report."""
    first = min(case["reports"], key=lambda each: int(each["time_ms"]))
    at = datetime.fromtimestamp(first["time_ms"] // 1000, tz=UTC)
    time = f"{at:%Y-%m-%dT%H:%M:%S}.{first['time_ms'] % 1000:03d}".rstrip("0").rstrip(".")
    return ("HANG_DETECTED", "UNRECOVERABLE_ERROR")[first["type"] - 1], f"{time}+00:00"
