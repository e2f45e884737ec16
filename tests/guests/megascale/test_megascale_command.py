"""`xlatune megascale`, and what `triage` and a campaign make of a digest."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from pytest_xlatune.campaign.playbook import Facts, decide
from pytest_xlatune.cli import main
from pytest_xlatune.guests.megascale.digest import Cause, causes
from pytest_xlatune.guests.megascale.environment import check, settings_of_this_host
from pytest_xlatune.logs import LogReader, read_log
from pytest_xlatune.logs.triage import as_told, primary
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Outcome, State
from tests.guests.megascale.test_megascale import CAUSES, PREFIX, messages
from tests.helpers.digests import STEP, recorded

CASES = {each["fault"]: each for each in recorded() if each["version"] == "0.0.52"}
CHIP = "{}/{}:{}".format(*CASES["bad-chip"]["truth"][0])


def test_a_folder_of_logs_is_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*words: str | Path, status: int = 0) -> str:
        assert main(["megascale", *map(str, words)]) == status
        out, err = capsys.readouterr()
        return out + err

    log, pod = tmp_path / "a.log", tmp_path / "pod-0"
    pod.mkdir()
    log.write_text(f"{STEP}\n{CASES['bad-chip']['text']}", encoding="utf-8")
    (pod / "b.log.gz").write_bytes(gzip.compress(CASES["link"]["text"].encode()))
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
    log.write_text(CASES["unrecoverable"]["text"], encoding="utf-8")
    text = shown(log)
    for worker, message in messages(CASES["unrecoverable"]).items():
        assert f"  {worker}: " + message.replace("\n", "\n      ") in text
    # one digest proves no chip; copies of one in the logs of two pods are one
    text = CASES["bad-chip"]["text"]
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


@pytest.mark.parametrize("fault", ["bad-chip", "not-queued", "link", "star", "unrecoverable"])
def test_a_digest_is_the_finding_of_a_trial(fault: str) -> None:
    case = CASES[fault]
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
