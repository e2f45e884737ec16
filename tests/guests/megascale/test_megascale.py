"""Digests that libtpu wrote, what a trial makes of them, and network figures of traces."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_xlatune.campaign.playbook import Facts, decide
from pytest_xlatune.cli import main
from pytest_xlatune.guests.megascale.digest import (
    Cause,
    Digest,
    FirstError,
    MegascaleReport,
    Trigger,
    causes,
)
from pytest_xlatune.guests.megascale.digests import MegascaleReader
from pytest_xlatune.guests.megascale.environment import check, settings_of_this_host
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import as_told, primary
from pytest_xlatune.model.failure import FAILURES, FailureClass
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Outcome, State
from tests.helpers.captures import Space
from tests.helpers.sessions import QuickExecutor

RECORDED = Path(__file__).parents[2] / "data" / "megascale.jsonl"
STEP = "completed step: 7, seconds: 1.234, TFLOP/s/device: 1.5, Tokens/s/device: 9.1, loss: 7.1"


def recorded() -> list[dict[str, Any]]:
    """Return the cases of libtpu 0.0.40 and 0.0.52: clusters with one injected fault each.

    Each is {"version", "fault", "reports", "truth", "text"}: the aggregator was given the reports,
    and logged the text.
    """
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


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
    is_told = (case["fault"], version) != ("order", "0.0.40")
    found: list[tuple[str, Any, Any]] = [
        ("cause", digest.cause, CAUSES[case["fault"]] if is_told else "UNKNOWN_CAUSE"),
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


# prints MaxText's lines, after two steps the file DIGEST, and hangs or fails as END says
TRAINER = """\
import os, pathlib, sys, time
print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
for step in range(12):
    if step == 2 and "DIGEST" in os.environ:
        sys.stderr.write(pathlib.Path(os.environ["DIGEST"]).read_text())
        sys.stderr.flush()
        time.sleep(100 if os.environ["END"] == "hang" else 0)
        sys.exit(1)
    print(f"completed step: {step}, seconds: 0.512, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: 1000.{step}, total_weights: 512, loss: 7.1", flush=True)
"""


@pytest.mark.parametrize("end", ["hang", "1"])
def test_a_chip_stops_the_sweep_and_its_host_is_named(
    folder: Any, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuickExecutor, "beside", "fast" if end == "hang" else "")
    (case,) = (e for e in recorded() if (e["fault"], e["version"]) == ("bad-chip", "0.0.52"))
    env = {"DIGEST": str(folder.put("digest.txt", case["text"])), "END": end}
    digest = f'        profile("fast", "--xla_fast=1", env={env!r}),\n'
    folder.write(profiles=f'{digest}        profile("same", "--xla_same=1"),\n')
    patient = "resources=Resources(patience=Patience(after_fatal_s=1))"
    site = ('executor="local"', f'executor="local", unseen=("xla_*",), {patient}')
    folder.edit("test_sweep.py", site)
    folder.put("trainer.py", TRAINER)
    result = folder.run("-m", "wave2")
    job, task, host = case["truth"][0]
    decided = [each for each in folder.events("decided") if each["cls"]]
    assert [(each["next"], each["cls"]) for each in decided] == [("stop", "tpu-chip")]
    assert decided[0]["detail"] == f"leave out {job}/{task}:{host}"
    assert f"leave out {job}/{task}:{host}" in result.stdout.str()
    assert len(folder.events("attempt-cut-short")) == (end == "hang")


OF_FAULT = {each["fault"]: each for each in recorded() if each["version"] == "0.0.52"}
CHIP = "{}/{}:{}".format(*OF_FAULT["bad-chip"]["truth"][0])


def test_a_folder_of_logs_is_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*words: str | Path, status: int = 0) -> str:
        assert main(["megascale", *map(str, words)]) == status
        out, err = capsys.readouterr()
        return out + err

    log, pod = tmp_path / "a.log", tmp_path / "pod-0"
    pod.mkdir()
    log.write_text(f"{STEP}\n{OF_FAULT['bad-chip']['text']}", encoding="utf-8")
    (pod / "b.log.gz").write_bytes(gzip.compress(OF_FAULT["link"]["text"].encode()))
    (pod / "c.log").write_text(f"{STEP}\n", encoding="utf-8")
    document = json.loads(shown(tmp_path, "--json"))
    assert [each["cause"] for each in document["digests"]] == ["BAD_TPU_CHIP", "NETWORKING_ISSUE"]
    assert document["digests"][0]["line"] == 2
    assert document["trigger"] is None
    text = shown(tmp_path)
    for words in (f"named by libtpu: {CHIP}", "broken link: ", "layout of libtpu 0.0.52"):
        assert words in text
    assert shown(pod / "c.log") == "no Megascale digest in 1 file\n"
    (tmp_path / "empty").mkdir()
    assert "the folder has no file" in shown(tmp_path / "empty", status=2)
    assert "no such file" in shown(tmp_path / "nowhere", status=2)
    # the error of each worker, with all its lines
    log.write_text(OF_FAULT["unrecoverable"]["text"], encoding="utf-8")
    text = shown(log)
    for worker, message in messages(OF_FAULT["unrecoverable"]).items():
        assert f"  {worker}: " + message.replace("\n", "\n      ") in text
    # one digest proves no chip; copies of one in the logs of two pods are one
    text = OF_FAULT["bad-chip"]["text"]
    (launch,) = set(re.findall(r"Launch ID: (\d+)", text))
    for number in range(4):
        other = text.replace(f"Launch ID: {launch}", f"Launch ID: {int(launch) + number}")
        (tmp_path / f"{number}.log").write_text(other, encoding="utf-8")
    log.write_text(text, encoding="utf-8")
    said = shown(tmp_path)
    assert "more than three digests" in said
    assert f"  {CHIP}: 4 digests\n" in said
    assert "more than three digests" not in shown(log)


# file -> a good value, a bad one
SETTINGS = {
    "proc/sys/net/ipv4/tcp_slow_start_after_idle": ("0", "1"),
    "proc/sys/net/core/default_qdisc": ("fq", "fq_codel"),
    "proc/sys/net/ipv4/tcp_rmem": ("4096 41943040 314572800", "4096 131072 6291456"),
    "proc/sys/net/ipv4/tcp_rto_min_us": ("5000", "200000"),
    "sys/module/tcp_cubic/parameters/hystart_detect": ("2", "3"),
    "sys/class/net/eth0/mtu": ("8896", "1460"),
}


def test_each_setting_of_a_host_is_judged_by_its_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at, is_good in enumerate((True, False)):
        for path, values in SETTINGS.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{values[at]}\n")
        items = [*check(settings_of_this_host(tmp_path))]
        assert {item.name for item in items} > {"mtu.eth0", "default_qdisc"}
        assert [item.is_good for item in items] == [is_good] * len(SETTINGS)
    assert {item.is_good for item in check(settings_of_this_host(tmp_path / "no"))} == {None}
    assert main(["megascale", "--check-env"]) in (0, 1)
    assert "source: " in capsys.readouterr().out
    assert main(["megascale"]) == 2


@pytest.mark.parametrize("version", ["0.0.40", "0.0.52"])
def test_the_end_of_a_cancelled_job_stays_a_cancel(version: str) -> None:
    [case] = [e for e in recorded() if (e["fault"], e["version"]) == ("cancelled", version)][:1]
    report = read_log([case["text"].encode()])
    assert [(each.cls, each.action) for each in report.findings] == [("cancelled", Action.NONE)]
    failed = Outcome(state=State.FAILED, exit_code=1)
    assert as_told(failed, report, is_ours=False).state is State.CANCELLED
    # what we ended, and what failed by itself, is none
    assert as_told(failed, report, is_ours=True) is failed
    oom = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory\n"
    told = read_log([f"{oom}{case['text']}".encode()])
    assert as_told(failed, told, is_ours=False) is failed


AFTER_ONE_AND_TWO = {
    "UNKNOWN_CAUSE": ("mxla-hang-unknown", Next.RETRY, Next.GIVE_UP),
    "BAD_TPU_CHIP": ("tpu-chip", Next.STOP, Next.STOP),
    "FINGERPRINT_MISMATCH": ("program-mismatch", Next.STOP, Next.STOP),
    "DATA_INPUT_STALL": ("data-stall", Next.STOP, Next.STOP),
    "UNRECOVERABLE_ERROR": ("mxla-error", Next.RETRY, Next.GIVE_UP),
    "DIFFERENT_MODULE": ("program-divergence", Next.STOP, Next.STOP),
    "NETWORKING_ISSUE": ("network-link", Next.RETRY, Next.STOP),
    "BAD_SC_CHIP": ("tpu-chip", Next.STOP, Next.STOP),
    "PROGRAM_NOT_QUEUED": ("host-stuck", Next.RETRY, Next.STOP),
    "LAUNCHES_ORDER_INCONSISTENT": ("program-divergence", Next.STOP, Next.STOP),
    "ICI_ERROR": ("ici-error", Next.STOP, Next.STOP),
}


@pytest.mark.parametrize("fault", ["bad-chip", "not-queued", "link", "star", "unrecoverable"])
def test_a_digest_is_the_finding_of_a_trial(fault: str) -> None:
    case = OF_FAULT[fault]
    found = primary(read_log([f"{STEP}\n{case['text']}".encode()]).findings)
    assert found is not None
    (cls, *_) = AFTER_ONE_AND_TWO[CAUSES[fault]]
    # an error of a worker is of its link
    assert found.cls == ("network-link" if fault == "unrecoverable" else cls)
    job, task, host = case["truth"][0]
    assert f"{job}/{task}:{host}" in found.detail


@pytest.mark.parametrize("cause", causes(), ids=lambda each: each.enum)
def test_the_playbook_knows_every_cause(cause: Cause) -> None:
    ended = Outcome(state=State.FAILED, exit_code=1)
    for word in (cause.enum, *cause.words):
        lines = (
            "  Full error digest: ",
            f"    Potential cause: {word}",
            "    Potential culprit workers: train/3:host-3@(0,0,1):0",
        )
        report = read_log(["".join(f"{PREFIX}{each}\n" for each in lines).encode()])
        [found] = report.findings
        cls, first, second = AFTER_ONE_AND_TWO[cause.enum]
        assert found.cls == cls
        assert "train/3:host-3" in found.detail
        assert decide(ended, found).next is first
        assert decide(ended, found, Facts(earlier=(cls,))).next is second


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


def name_of(host: tuple[int, int]) -> str:
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
        assert document["slow_hosts"] == [name_of(source)]
        assert pairs == {(name_of(source), name_of((1 - source[0], each))) for each in range(3)}
        assert found(document) == {"one_host"}
    else:
        assert document["slow_hosts"] == []
        assert pairs == {(name_of(source), name_of(to))}
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
