"""Digests that libtpu wrote are read as its reports were, in any dress; what only quotes is not."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pytest_xlatune.guests.megascale.digest import (
    Digest,
    FirstError,
    MegascaleReport,
    Trigger,
)
from pytest_xlatune.guests.megascale.digests import MegascaleReader
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.failure import FAILURES, FailureClass
from tests.helpers.digests import STEP, recorded

DECOY = 'I0112 07:08:09.000001 77 notes.cc:5] grep for "Megascale detects a hang that is likely"'
OTHER = "I0000 00:00:1795377644.564581   13901 transport.cc:77] peer t/9:h-9 is slow"

Case = dict[str, Any]


def read(text: str | bytes, *, piece: int = 1 << 20) -> MegascaleReport:
    reader = MegascaleReader()
    data = text.encode() if isinstance(text, str) else text
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
    reader.close()
    return reader.report()


FLAT = "without the indentation of the table"
DRESSES: dict[str, Callable[[list[str]], list[str]]] = {
    "plain": lambda lines: lines,
    "behind `srun -l`, among the lines of another rank": lambda lines: [
        dressed for each in lines for dressed in (f" 0: {each}", f"11: {STEP}")
    ],
    "one JSON object a line": lambda lines: [
        json.dumps({"insertId": 7, "textPayload": each, "severity": "ERROR"}) for each in lines
    ],
    FLAT: lambda lines: [re.sub(r"\] +", "] ", each, count=1).strip() for each in lines],
    "behind a container runtime's clock": lambda lines: [
        f"2026-01-12T07:08:{at % 60:02d}.123456Z stderr F {each}" for at, each in enumerate(lines)
    ],
    "amid the steps of a trainer and records of other threads": lambda lines: [
        *(DECOY, STEP),
        *(
            dressed
            for each in lines
            for dressed in ((OTHER, each, STEP) if each.startswith("E0000") else (each, STEP))
        ),
        DECOY,
    ],
}


def wrong(case: Case, digest: Digest, dress: str) -> list[str]:
    """What of a digest differs from the truth of its case."""
    version, truth = case["version"], {tuple(each) for each in case["truth"]}
    found: list[tuple[str, Any, Any]] = [
        ("cause", digest.cause, cause_of(case["fault"], version)),
    ]
    if digest.states or version != "0.0.40":  # else nothing tells it
        found.append(("layout", digest.layout, version))
    named = {(each.job, each.task, each.host) for each in digest.culprits}
    if case["fault"] in ("bad-chip", "unrecoverable", "link", "star", "not-queued"):
        found.append(("culprits", named, truth))
    elif case["fault"] in ("fingerprint", "module"):  # libtpu names two examples, one of them odd
        found.append(("examples", (bool(named & truth), len(named)), (True, 2)))
    else:
        found.append(("examples", named, set()))
    rows = {
        (launch.launch_id, row.tag, row.pc, row.hlo, row.computation): row
        for launch in digest.launches
        for row in launch.states
    }
    true_states = states(case)
    table = {place: row.cores for place, row in rows.items()}
    found.append(("states", table, {place: count for place, (count, _) in true_states.items()}))
    for place, row in rows.items():
        hosts = true_states.get(place, (0, set()))[1]
        is_right = set(row.hosts) <= hosts if row.is_cut else set(row.hosts) == hosts
        found.append(("hosts", is_right, True))
    pairs = {(str(link.src), str(link.dst)) for link in digest.links}
    found.append(("links", pairs, links(case)))
    said = {str(message.worker): message.text for message in digest.messages}
    true = messages(case)
    if dress == FLAT:  # the lines of a message lost their blanks too
        true = {who: "\n".join(each.strip() for each in t.split("\n")) for who, t in true.items()}
    found.append(("messages", said, true))
    if version == "0.0.52" and case["fault"] != "cancelled":
        found.append(("error", digest.first_error, FirstError(*first_error(case))))
    return [f"{what}: {is_} for {should}" for what, is_, should in found if is_ != should]


# what libtpu calls each fault
CAUSES = {
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
    "order": "LAUNCHES_ORDER_INCONSISTENT",
}


def cause_of(fault: str, version: str) -> str:
    return "UNKNOWN_CAUSE" if (fault, version) == ("order", "0.0.40") else CAUSES[fault]


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
    def of(kind: str) -> dict[str, str]:
        graphs = ((graph, each) for each in case["reports"] for graph in each.get("graphs", ()))
        return {graph["key"]: name(each) for graph, each in graphs if graph["kind"] == kind}

    sent, received = of("send"), of("receive")
    return {(sent[key], received[key]) for key in received}


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


CASES = recorded()
TRIGGER = (
    "Megascale hang detected: Timed out waiting for 4 graphs to complete at launch_id 13650. "
    "Already completed: 100. StepGloballyInProgress: true. Timeout: 1m"
)
INDUCED = "Induced error triggered by an hang detected error from worker of slice_id: 0 task_id: 3."
PREFIX = "E0000 00:00:1795339599.810613   16729 megascale_error_aggregator.cc:1100] "

# layout 0.0.24, as the documents show it; hosts in place of their examples
DOCUMENT = """\
Megascale detects a hang that is likely caused by running different modules on different devices. \
Please confirm that all workers is running the exact same program. It can also be caused by a hang.
Example hosts that have different HLO modules: job-a/0:h-0, job-a/1:h-1
Full error digest:
Potential cause: Different module
Potential culprit workers: job-a/0:h-0, job-a/1:h-1
TPU stats:
h-0: 77
TPU states:
Module: jit_loss_and_grad
Fingerprint: aa11
Launch ID: 193
9:777(all-reduce.5): job-a/0:h-0
Module: jit_optimizer_apply
Fingerprint: bb22
Launch ID: 194
3:12(fusion.2): job-a/1:h-1
"""
ROWS = (
    ("jit_loss_and_grad", "aa11", 193, 9, 777, "all-reduce.5"),
    ("jit_optimizer_apply", "bb22", 194, 3, 12, "fusion.2"),
)
OLDEST = f"""\
{PREFIX}Megascale detects a hang that is likely caused by bad TPU chips on the following hosts. \
Please remove the hosts from the fleet and restart the workload.
{PREFIX}  The host that have bad TPUs are: t1v-n-3
{PREFIX}Full error digest:{" "}
  Potential cause: BAD_TPU_CHIP
  Potential culprit workers: t1v-n-3
  TPU states:
t1v-n-0: 700
t1v-n-3: 0
  TPU program fingerprints:
t1v-n-0: abc1
t1v-n-3: abc1
"""


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{each['version']}-{each['fault']}" for each in CASES]
)
def test_a_digest_of_libtpu_is_read_as_its_reports_were_in_any_dress_and_cut(case: Case) -> None:
    lines = case["text"].splitlines()
    for dress, dressed in DRESSES.items():
        text = "\n".join(dressed(lines)) + "\n"
        report = read(text)
        assert [wrong(case, each, dress) for each in report.digests] == [[]], dress
        assert read(text, piece=7) == report, dress
    [whole] = read(case["text"]).digests
    for count in range(1, len(lines) - 1):
        for each in read("\n".join(lines[:count]) + "\n").digests:
            assert set(each.culprits) <= set(whole.culprits)
            assert set(each.links) <= set(whole.links)
            assert each.cause == whole.cause


def test_the_layouts_of_the_documents_are_read() -> None:
    report = read(f"{TRIGGER}\n7: {INDUCED}\n{PREFIX}{INDUCED}\n")
    assert report == MegascaleReport(trigger=Trigger(line=1, launch_id=13650))
    for text in (DOCUMENT, re.sub(r"(?m)^", "0: ", DOCUMENT)):
        [digest] = read(text).digests
        assert digest.layout == "0.0.24"
        assert digest.cause == "DIFFERENT_MODULE"
        assert [str(each) for each in digest.culprits] == ["job-a/0:h-0", "job-a/1:h-1"]
        for launch, row in zip(digest.launches, ROWS, strict=True):
            [program], [state] = launch.programs, launch.states
            found = (program.module, program.fingerprint, launch.launch_id, state.tag, state.pc)
            assert (*found, state.hlo) == row
        assert any("behind, at launch 193" in each for each in digest.notes)
    [oldest] = read(OLDEST).digests
    assert (oldest.layout, oldest.cause) == ("0.0.11", "BAD_TPU_CHIP")
    assert [str(each) for each in oldest.culprits] == ["t1v-n-3"]


@pytest.mark.parametrize(
    "text",
    [
        f'{STEP}\nnote: "Megascale detects a hang that is likely caused by bad TPU chips"\n',
        f"{PREFIX}{TRIGGER}",
        INDUCED,
        "Runtime cancelled the launch due to detected MXLA error on another device",
        "grep 'Potential cause: Bad TPU chips'\nPotential culprit workers: a/0:h-1\n",
        "Megascale detects a hang that is likely caused by bad TPU chips on the following hosts.\n",
        DOCUMENT.replace("job-a/0:h-0", "<host_name>").replace("job-a/1:h-1", "<host_name>"),
        next(c["text"] for c in CASES if c["fault"] == "cancelled"),
        "Some workers have halted with an unrecoverable error: train/0:h-0: INTERNAL: boom\n",
    ],
)
def test_a_decoy_names_nothing_and_is_no_finding(text: str) -> None:
    classes = {each.cls for each in read_log([f"{STEP}\n{text}\n".encode()]).findings}
    told = {FailureClass.MXLA_HANG_UNKNOWN} if TRIGGER in text else set()
    assert {each for each in classes if FAILURES[each].digest} == told
    assert [each.culprits for each in read(text).digests] in ([], [()])
    assert [each.links for each in read(text).digests] in ([], [()])


SPARSE = f"""\
{PREFIX}Megascale detects a hang that is likely caused by bad TPU sparse core chips on the \
following hosts. Please remove the hosts
{PREFIX}  The host that have bad TPU sparse cores are: t/2:h-2@(0,0,2):1
{PREFIX}  Full error digest:
{PREFIX}    Potential cause: Bad Sparse Core
{PREFIX}    Potential culprit workers: t/2:h-2@(0,0,2):1
{PREFIX}    First error timestamp: 2025-10-09T08:53:20.123+00:00
{PREFIX}    First error type: HANG_DETECTED
{PREFIX}    TPU states:
{PREFIX}    Sparse Core States:
      async-start.3:
        1@3:999: t/2:h-2@(0,0,2):1
        3@3:555: t/0:h-0@(0,0,0):1, t/1:h-1@(0,0,1):1, t/3:h-3@-1:0
"""


def test_different_modules_may_be_the_launch_order_and_sparse_cores_are_read() -> None:
    mismatch = DOCUMENT.replace("Different module", "Fingerprint mismatch")
    same = mismatch.replace("jit_optimizer_apply", "jit_loss_and_grad")
    for text, is_noted in ((mismatch, True), (same, False)):
        [digest] = read(text).digests
        assert (digest.cause, len(digest.culprits)) == ("FINGERPRINT_MISMATCH", 2)
        assert any("launch order" in each for each in digest.notes) is is_noted
    [digest] = read(SPARSE).digests
    rows = [(each.hlo, each.tag, each.pc, each.hosts, each.cores) for each in digest.sparse]
    assert rows == [
        ("async-start.3", 3, 999, ("h-2",), 1),
        ("async-start.3", 3, 555, ("h-0", "h-1", "h-3"), 3),
    ]
    assert [str(each) for each in digest.culprits] == ["t/2:h-2"]
    assert digest.cls is FailureClass.TPU_CHIP


def test_damaged_digests_raise_nothing_and_name_nothing_new() -> None:
    """A short run; XLATUNE_FUZZ_DIGESTS=100000 is the long one."""
    rng = random.Random(11)
    texts = [each["text"].encode() for each in CASES]
    for number in range(int(os.environ.get("XLATUNE_FUZZ_DIGESTS", "600"))):
        lines, other = (rng.choice(texts).splitlines(keepends=True) for _ in range(2))
        at, cut = rng.randrange(len(lines)), rng.randrange(len(other))
        mixed = [each for pair in zip(lines, other, strict=False) for each in pair]
        joined = [*lines[:at], *other[:cut], *lines[at:]]
        pieces = (lines[:at], lines[at:], joined, rng.sample(lines, len(lines)), mixed)
        noisy = bytearray(b"".join(rng.choice(pieces)))
        for _ in range(rng.choice((0, 3, 30)) if noisy else 0):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        for digest in read(bytes(noisy), piece=rng.choice((97, 1 << 20))).digests:
            ends = [end for link in digest.links for end in (link.src, link.dst)]
            for each in (*digest.culprits, *ends):
                assert str(each).encode() in noisy, (number, each)
            msgspec.to_builtins(digest)


# sentences that are broken into lines
BROKEN_LINES = {
    """\
Megascale detects a hang that is likely caused by data input stall on the
following hosts. Please check the workers to make sure the data input pipeline
is working properly.
The host that have data input stalls are: h-7, h-9
""": ("DATA_INPUT_STALL", ["h-7", "h-9"]),
    """\
Some workers have halted with an unrecoverable error:
job-a/3:h-3 : INTERNAL: failure to copy data from TPU to host
Please inspect the error log of these workers:
job-a/3:h-3
""": ("UNRECOVERABLE_ERROR", ["h-3"]),
    """\
Megascale detects a hang but cannot determine the root cause. Please inspect the
full digest below.
""": ("UNKNOWN_CAUSE", []),
}


def test_a_digest_whose_sentences_are_broken_into_lines_is_read() -> None:
    for text, (cause, hosts) in BROKEN_LINES.items():
        for dressed in (text, f"{STEP}\n{text}{STEP}\n"):
            (found,) = read(dressed).digests
            assert found.cause == cause
            assert [each.host for each in found.culprits] == hosts
