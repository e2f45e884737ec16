"""A campaign in trouble: what is run again, dropped, waited for, unreadable, or stops the sweep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, CampaignStopped
from pytest_xlatune.ledger import AttemptCutShort, Ledger
from pytest_xlatune.logs import LogReader
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.result import (
    Outcome,
    State,
    TrialResult,
    TrialSetting,
)
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.tasks import answers as awaiting
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.scripted import (
    CELL,
    FAILED,
    KILLED,
    OK,
    UNKNOWN_FLAG,
    FakeExecutor,
    campaign,
    failing,
    log,
    ordinary,
    run,
    ticking,
)
from tests.helpers.tables import rows

RUNS = Outcome(state=State.RUNNING)
MISSPELT = UNKNOWN_FLAG.replace("--x", "--xla_cpu_enable_fast_mth=1 --xla_nope=1")


def swept(folder: Path, executor: FakeExecutor) -> Campaign:
    made = campaign(folder, executor)
    run(made)
    return made


def results(made: Campaign, arm: str) -> list[TrialResult]:
    trials = made.view().state.trials.values()
    return [each.result for each in trials if each.trial.arm == arm and each.result.job_ids]


@rows(
    "text, outcome, words",
    {
        "a misspelt flag": (MISSPELT, FAILED, "): dropped"),
        "NaN though it exits with 0": (log(loss="nan"), OK, "numerical-failure"),
        "flags that the log does not show": (
            "XLA_FLAGS=--xla_deployed=1\n" + log(), OK, "flags-not-effective"),
        "a flag without a name": (
            f"{log()}F0112 07:08:09.1 7 a.cc:2] Unknown flag in XLA_FLAGS:", FAILED, ""),
        "a step of 5000 digits": (f"{log()}completed step: {'1' * 5000}, seconds: 1.0\n", OK, ""),
        "a rank of 5000 digits": (
            f"{'7' * 5000}: x\n[1,{'8' * 5000}]<stdout>: y\n{log()}", OK, ""),
        "flags with an open quote": ("XLA_FLAGS=--xla_a='\n" + log(), OK, ""),
    },
)  # fmt: skip
def test_a_profile_that_cannot_run_is_dropped_once_and_the_others_go_on(
    tmp_path: Path, text: str, outcome: Outcome, words: str
) -> None:
    made = swept(tmp_path, FakeExecutor(failing("fast", text, outcome)))
    assert not made.view().stopped
    assert {each.status for each in results(made, "same")} == {"measured"}
    if not words:
        assert {each.status for each in results(made, "fast")} == {"measured"}
        return
    verdict = made.conclude().verdict("fast")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == ("INVALID", False)
    assert words in " ".join(map(sentence, verdict.reasons))
    (dropped,) = results(made, "fast")
    assert len(dropped.job_ids) == 1


LOG = r"its log: /\S+/log\.0\.txt"
NOT_THERE = "nopython could not be started: No such file or directory"


@rows(
    "text, outcome, why",
    {
        "a program that is not there": (
            "", Outcome(state=State.FAILED, reason=NOT_THERE, is_started=False),
            rf"run: not-started \({NOT_THERE}\)"),
        "Tokens/s/device is never printed": (
            log().replace("Tokens/s/device", "words"), OK,
            r"be scored: no-score \([^)]*Tokens/s/device[^)]*\)(?!, 2 times)"),
        "SIGKILL ends it": (
            log(steps=3), KILLED, rf"run: killed \(signal 9; {LOG}\), 2 times in a row"),
        "it stands still between two steps": (
            log(steps=3), RUNS, r"run: hang-mid-training \(.*\), 2 times in a row"),
    },
)  # fmt: skip
def test_a_baseline_that_never_has_a_score_stops_the_sweep_at_its_second_attempt(
    tmp_path: Path, text: str, outcome: Outcome, why: str
) -> None:
    executor = FakeExecutor(failing(BASELINE_ID, text, outcome))
    made = campaign(tmp_path, executor, clocks={"ticks": ticking()})
    run(made, turns=2000)
    assert re.match(f"the cell as deployed cannot {why}", sentence(made.view().stopped))
    with pytest.raises(CampaignStopped, match=why):
        awaiting.baseline(made, lambda: None)
    assert len({*executor.submitted}) == 1
    tried = r"\S+ was retried 1 time" if len(executor.submitted) > 1 else "none"
    assert re.search(f"recovery attempted: {tried}; ", read_cell_report(made.folder).stopped)
    executor.script = ordinary
    later = campaign(tmp_path, executor, session="second")
    run(later)
    assert not later.view().stopped


def test_a_trainer_whose_step_lines_cannot_be_read_is_told_what_is_expected(
    tmp_path: Path,
) -> None:
    made = swept(tmp_path, FakeExecutor(lambda *_: ("epoch 1 done\nbye\n", OK)))
    said = sentence(made.view().stopped)
    for part in ("`completed step: 7, seconds:", "epoch 1 done | bye", "log.0.txt", "trainer.md"):
        assert part in said
    assert "dropped" not in said


@pytest.mark.parametrize(
    ("broken", "path"), [("the reader", "log.0.txt"), ("the assessment", "fast-")]
)
def test_an_attempt_whose_log_breaks_us_ends_with_reason_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, path: str
) -> None:
    read, said = LogReader.feed, "this reader does not read it"

    def feed(reader: LogReader, chunk: bytes) -> None:
        if b"POISON" in chunk:
            raise TypeError(said)
        read(reader, chunk)

    def judge(asked: Profile, shown: Witnesses, **facts: Any) -> tuple[TrialSetting, ...]:
        if asked.id == "fast" and shown.env:
            raise ZeroDivisionError(said)
        return judge_settings(asked, shown, **facts)

    if broken == "the reader":
        monkeypatch.setattr(LogReader, "feed", feed)
    else:
        monkeypatch.setattr("pytest_xlatune.campaign.assess.judge_settings", judge)
    made = swept(tmp_path, FakeExecutor(failing("fast", f"NCCL_DEBUG=INFO\n{log()}POISON\n", OK)))
    assert not made.view().stopped
    for each in results(made, "fast"):
        assert each.status == "unmeasured"
        assert f"its log cannot be read: {said} ({tmp_path}" in sentence(each.reason)
        assert path in sentence(each.reason)
    assert {each.status for each in results(made, "same")} == {"measured"}


HUSH = "hush-hush-9"
SECRETIVE = replace(CELL, deployed={**CELL.deployed, "HF_TOKEN": HUSH})


def test_the_line_that_an_attempt_is_ended_for_is_written_without_the_secret(
    tmp_path: Path,
) -> None:
    text = log(steps=2, last=f"{UNKNOWN_FLAG} {HUSH}")
    executor = FakeExecutor(lambda *_: (text, OK))
    executor.holds = True
    ticks = iter(range(0, 10_000, 100))
    made = campaign(
        tmp_path, executor, cell=SECRETIVE, clocks={"ticks": lambda: float(next(ticks))}
    )
    while not executor.cancelled:
        made.turn()
    events = [entry.event for entry in Ledger(made.ledger.path).refresh()]
    (cut,) = (event for event in events if isinstance(event, AttemptCutShort))
    assert cut.fatal is not None
    assert HIDDEN in cut.fatal.text
    executor.holds = False
    executor.cancelled.clear()
    made.turn()
    told = next(each for each in made.view().state.decisions if each.cls)
    assert told.cls == FailureClass.UNKNOWN_FLAG, "the same line, hidden on both sides"
    assert HUSH not in made.ledger.path.read_text(encoding="utf-8")
