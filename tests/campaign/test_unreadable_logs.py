"""What one attempt left cannot be read: that attempt ends with its path, the others go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import Request
from pytest_xlatune.executors.folder import read_outcomes
from pytest_xlatune.launchers.program import METRICS_FILE
from pytest_xlatune.ledger import Decided
from pytest_xlatune.logs import LogReader
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Outcome, Submission, TrialResult, TrialSetting, TrialStatus
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from tests.helpers.scripted import (
    FAILED,
    OK,
    FakeExecutor,
    Script,
    campaign,
    log,
    ordinary,
    run,
)

BROKEN = "this reader does not read it"


def results(made: Campaign) -> list[TrialResult]:
    return [each.result for each in made.view().state.trials.values()]


def writing(which: str, text: str, outcome: Outcome = OK) -> Script:
    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        return (text, outcome) if trial_id.startswith(which) else ordinary(trial_id, attempt)

    return script


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        pytest.param(log() + "F0112 07:08:09.1 7 a.cc:2] Unknown flag in XLA_FLAGS:", FAILED,
                     id="a flag without a name"),
        pytest.param(log() + f"completed step: {'1' * 5000}, seconds: 1.0\n", OK,
                     id="a step of 5000 digits"),
        pytest.param(f"{'7' * 5000}: x\n[1,{'8' * 5000}]<stdout>: y\n" + log(), OK,
                     id="a rank of 5000 digits"),
        pytest.param("XLA_FLAGS=--xla_a='\n" + log(), OK, id="flags with an open quote"),
    ],
)  # fmt: skip
def test_no_line_of_a_log_stops_a_sweep(tmp_path: Path, text: str, outcome: Outcome) -> None:
    made = campaign(tmp_path, FakeExecutor(writing("fast", text, outcome)))
    run(made)
    assert not made.view().stopped
    assert all(each.status.is_final for each in results(made))
    assert {each.status for each in results(made) if each.trial.arm == "same"} == {
        TrialStatus.MEASURED
    }


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"step": 1%s}' % ("0" * 400), '{"step": 1, "learning/loss": 1%s}'
             % ("0" * 5000)],
    ids=["nested", "a step of 400 digits", "a loss of 5000 digits"],
)  # fmt: skip
def test_no_metrics_file_stops_a_sweep(tmp_path: Path, text: str) -> None:
    class Writing(FakeExecutor):
        def submit(self, spec: LaunchSpec, request: Request) -> str:
            job_id = super().submit(spec, request)
            (request.folder / METRICS_FILE).write_text(text, encoding="utf-8")
            return job_id

    made = campaign(tmp_path, Writing())
    run(made)
    assert {each.status for each in results(made)} == {TrialStatus.MEASURED}


def test_an_attempt_whose_log_breaks_the_reader_ends_with_reason_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LogReader.feed

    def feed(reader: LogReader, chunk: bytes) -> None:
        if b"POISON" in chunk:
            raise TypeError(BROKEN)
        real(reader, chunk)

    monkeypatch.setattr(LogReader, "feed", feed)
    made = campaign(tmp_path, FakeExecutor(writing("fast", log() + "POISON\n")))
    run(made)
    assert not made.view().stopped
    lost = [each for each in results(made) if each.trial.arm == "fast"]
    assert {each.status for each in lost} == {TrialStatus.UNMEASURED}
    for each in lost:
        assert sentence(each.reason).startswith(f"its log cannot be read: {BROKEN} ({tmp_path}")
        assert "log.0.txt" in sentence(each.reason)
    others = {each.status for each in results(made) if each.trial.arm != "fast"}
    assert others == {TrialStatus.MEASURED}


def test_a_log_that_cannot_be_assessed_is_that_attempts_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = judge_settings

    def breaking(asked: Profile, shown: Witnesses, **said: Any) -> tuple[TrialSetting, ...]:
        if asked.id == "fast" and shown.env:
            raise ZeroDivisionError(BROKEN)
        return real(asked, shown, **said)

    monkeypatch.setattr("pytest_xlatune.campaign.assess.judge_settings", breaking)
    made = campaign(tmp_path, FakeExecutor(writing("fast", "NCCL_DEBUG=INFO\n" + log())))
    run(made)
    assert not made.view().stopped
    lost = {each.reason for each in results(made) if each.trial.arm == "fast"}
    assert all(sentence(each).startswith(f"its log cannot be read: {BROKEN}") for each in lost)
    others = {each.status for each in results(made) if each.trial.arm != "fast"}
    assert others == {TrialStatus.MEASURED}


def test_a_trainer_whose_step_lines_cannot_be_read_is_told_what_is_expected(
    tmp_path: Path,
) -> None:
    made = campaign(tmp_path, FakeExecutor(lambda *_: ("epoch 1 done\nbye\n", OK)))
    run(made)
    said = sentence(made.view().stopped)
    assert "no step line" in said
    for part in ("`completed step: 7, seconds:", "epoch 1 done | bye", "log.0.txt", "trainer.md"):
        assert part in said
    assert "dropped" not in said


class Damaging(FakeExecutor):
    """Tells the outcome that stands in the folder of an attempt, where one stands there."""

    def __init__(self, content: str, *, times: int) -> None:
        super().__init__()
        self._content, self._times = content, times

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        found = dict(super().poll(submissions, root=root))
        for each in submissions:
            if each.trial_id.startswith("fast-wave2") and each.attempt <= self._times:
                path = root / each.folder / "outcome.json"
                if not path.with_name("outcome.json.unreadable").exists():
                    path.write_text(self._content, encoding="utf-8")
                found[each.job_id] = read_outcomes(root / each.folder)[0]
        return found


def test_where_it_comes_again_the_others_are_measured(tmp_path: Path) -> None:
    made = campaign(tmp_path, Damaging("torn", times=9))
    run(made)
    state = made.view().state
    lost = [each.result for each in state.trials.values() if each.trial.arm == "fast"]
    assert lost[0].status is TrialStatus.UNMEASURED
    assert "2 times in a row: not measured" in sentence(lost[0].reason)
    others = [each.result for each in state.trials.values() if each.trial.arm != "fast"]
    assert all(each.status is TrialStatus.MEASURED for each in others)
    assert isinstance(state.decisions[-1], Decided)
