"""Digests that libtpu wrote: read in any dress, shown, and what a trial makes of them."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable
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
from pytest_xlatune.logs import LogReader, read_log
from pytest_xlatune.logs.triage import as_told, primary
from pytest_xlatune.model.failure import FAILURES, FailureClass
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Outcome, State
from tests.helpers.digests import STEP, recorded
from tests.helpers.sessions import QuickExecutor

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
    (folder.path / "digest.txt").write_text(case["text"], encoding="utf-8")
    env = {"DIGEST": str(folder.path / "digest.txt"), "END": end}
    digest = f'        profile("fast", "--xla_fast=1", env={env!r}),\n'
    folder.write(profiles=f'{digest}        profile("same", "--xla_same=1"),\n')
    patient = "resources=Resources(patience=Patience(after_fatal_s=1))"
    sweep = folder.read("test_sweep.py").replace(
        'executor="local"', f'executor="local", unseen=("xla_*",), {patient}'
    )
    (folder.path / "test_sweep.py").write_text(sweep, encoding="utf-8")
    (folder.path / "trainer.py").write_text(TRAINER, encoding="utf-8")
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


def test_steps_after_a_digest_refute_it() -> None:
    reader = LogReader()
    reader.feed(f"{STEP}\n{OF_FAULT['bad-chip']['text']}".encode())
    fatal = reader.fatal
    assert fatal is not None
    assert fatal.cls == "tpu-chip"
    for step in (8, 9, 10):
        reader.feed(f"{STEP.replace('step: 7', f'step: {step}')}\n".encode())
    assert reader.fatal is None
    assert reader.report().steps_after_trouble == 3
    # another start of the program
    reader.feed(f"{STEP.replace('step: 7', 'step: 0')}\n".encode())
    [told] = reader.findings
    assert told.action is Action.NONE


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
