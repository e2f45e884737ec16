"""`xlatune megascale` and what `triage` and a campaign make of a digest."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from pytest_xlatune.campaign.playbook import Facts, decide
from pytest_xlatune.cli import main
from pytest_xlatune.guests.megascale.digest import Cause, causes
from pytest_xlatune.logs import LogReader, read_log
from pytest_xlatune.logs.triage import as_told, primary
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Outcome, State
from tests.guests.megascale.test_megascale import VERDICTS, messages
from tests.helpers.digests import STEP, recorded

CASES = {each["fault"]: each for each in recorded() if each["version"] == "0.0.52"}


def test_a_folder_of_logs_is_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pod-0").mkdir()
    (tmp_path / "a.log").write_text(f"{STEP}\n{CASES['bad-chip']['text']}", encoding="utf-8")
    packed = gzip.compress(CASES["link"]["text"].encode())
    (tmp_path / "pod-0" / "b.log.gz").write_bytes(packed)
    (tmp_path / "pod-0" / "c.log").write_text(f"{STEP}\n", encoding="utf-8")
    assert main(["megascale", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["cause"] for each in document["digests"]] == ["BAD_TPU_CHIP", "NETWORKING_ISSUE"]
    assert document["digests"][0]["line"] == 2
    assert document["trigger"] is None
    assert set(document) == {"schema", "digests", "trigger"}
    assert main(["megascale", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    [job, task, host] = CASES["bad-chip"]["truth"][0]
    assert f"named by libtpu: {job}/{task}:{host}" in said
    assert "named hosts out" in said
    assert "broken link: " in said
    assert main(["megascale", str(tmp_path / "pod-0" / "c.log")]) == 0
    assert capsys.readouterr().out == "no Megascale digest in 1 file\n"
    (tmp_path / "empty").mkdir()
    assert main(["megascale", str(tmp_path / "empty")]) == 2
    assert "the folder has no file" in capsys.readouterr().err
    assert main(["megascale", str(tmp_path / "nowhere")]) == 2
    assert "no such file" in capsys.readouterr().err
    log = str(tmp_path / "a.log")
    assert main(["triage", log]) == 1
    assert "tpu-chip" in capsys.readouterr().out
    assert main(["megascale", log]) == 0
    assert "layout of libtpu 0.0.52" in capsys.readouterr().out
    # the error of each worker, with all its lines
    case = CASES["unrecoverable"]
    (tmp_path / "a.log").write_text(case["text"], encoding="utf-8")
    assert main(["megascale", log]) == 0
    said = capsys.readouterr().out
    for worker, text in messages(case).items():
        assert f"  {worker}: " + text.replace("\n", "\n      ") in said


def test_the_chip_digests_of_a_host_are_counted_over_a_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One digest proves no chip; copies of one in the logs of two pods are one."""
    text = CASES["bad-chip"]["text"]
    (launch,) = set(re.findall(r"Launch ID: (\d+)", text))
    for number in range(4):
        other = text.replace(f"Launch ID: {launch}", f"Launch ID: {int(launch) + number}")
        (tmp_path / f"{number}.log").write_text(other, encoding="utf-8")
    (tmp_path / "copy.log").write_text(text, encoding="utf-8")
    assert main(["megascale", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    [job, task, host] = CASES["bad-chip"]["truth"][0]
    assert "more than three digests" in said
    assert f"  {job}/{task}:{host}: 4 digests\n" in said
    assert main(["megascale", str(tmp_path / "0.log")]) == 0
    assert "more than three digests" not in capsys.readouterr().out


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
    reader.feed(f"{STEP}\n{CASES['bad-chip']['text']}".encode())
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
NAMED = ("bad-chip", "not-queued", "link", "star", "unrecoverable")


@pytest.mark.parametrize("fault", [each for each in CASES if each not in ("cancelled", "silent")])
def test_a_digest_is_the_finding_of_a_trial(fault: str) -> None:
    case = CASES[fault]
    found = primary(read_log([f"{STEP}\n{case['text']}".encode()]).findings)
    assert found is not None
    (cls, *_) = AFTER_ONE_AND_TWO[VERDICTS[fault]["0.0.52"]]
    # an error of a worker is of its link
    assert found.cls == ("network-link" if fault == "unrecoverable" else cls)
    if fault in NAMED:
        job, task, host = case["truth"][0]
        assert f"{job}/{task}:{host}" in found.detail


@pytest.mark.parametrize("cause", causes(), ids=lambda each: each.enum)
def test_the_playbook_knows_every_cause(cause: Cause) -> None:
    prefix = "E0000 00:00:1795339599.810613   16729 megascale_error_aggregator.cc:1100] "
    ended = Outcome(state=State.FAILED, exit_code=1)
    for word in (cause.enum, *cause.words):
        lines = (
            "  Full error digest: ",
            f"    Potential cause: {word}",
            "    Potential culprit workers: train/3:host-3@(0,0,1):0",
        )
        report = read_log(["".join(f"{prefix}{each}\n" for each in lines).encode()])
        [found] = report.findings
        cls, first, second = AFTER_ONE_AND_TWO[cause.enum]
        assert found.cls == cls
        assert "train/3:host-3" in found.detail
        assert decide(ended, found).next is first
        assert decide(ended, found, Facts(earlier=(cls,))).next is second
