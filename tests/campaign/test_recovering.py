"""A campaign in trouble: what is run again, dropped, waited for, or stops the sweep."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import CampaignStopped
from pytest_xlatune.campaign.assess import settings_events
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.ledger.now import read_now
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.result import Effect, Outcome, State, VerdictKind
from pytest_xlatune.tasks import answers as awaiting
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.scripted import (
    CELL,
    FAILED,
    KILLED,
    OK,
    PROFILES,
    UNKNOWN_FLAG,
    FakeExecutor,
    Ticking,
    campaign,
    failing,
    log,
    ordinary,
    run,
)


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        pytest.param(UNKNOWN_FLAG + "\n", FAILED, "unknown-flag", id="an unknown flag"),
        pytest.param(log(loss="nan"), OK, "numerical-failure", id="NaN though it exits with 0"),
        pytest.param(
            "XLA_FLAGS=--xla_deployed=1\n" + log(), OK, "flags-not-effective",
            id="flags that the log does not show",
        ),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_run_is_dropped_once(
    tmp_path: Path, text: str, outcome: Outcome, reason: str
) -> None:
    executor = FakeExecutor(failing("fast", text, outcome))
    each = campaign(tmp_path, executor)
    run(each)
    verdict = each.conclude().verdict("fast")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == (VerdictKind.INVALID, False)
    assert reason in " ".join(map(sentence, verdict.reasons))
    assert [trial for trial in executor.submitted if trial.startswith("fast")] == [
        executor.submitted[[t.startswith("fast") for t in executor.submitted].index(True)]
    ]


def test_a_trial_that_could_not_be_measured_is_tried_again_by_the_next_session(
    tmp_path: Path,
) -> None:
    limit = Outcome(state=State.TIMEOUT, reason="DUE TO TIME LIMIT")
    executor = FakeExecutor(failing("same", log(steps=2), limit))
    each = campaign(tmp_path, executor)
    run(each)
    verdict = each.conclude().verdict("same")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == (VerdictKind.INVALID, True)
    with pytest.raises(awaiting.NotMeasured, match="time-limit"):
        awaiting.screened(each, PROFILES[1], lambda: None)

    executor.script = ordinary
    later = campaign(tmp_path, executor, session="second")
    run(later)
    again = later.conclude().verdict("same")
    assert again is not None
    assert again.kind is not VerdictKind.INVALID


def test_a_misspelt_flag_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    line = UNKNOWN_FLAG.replace("--x", "--xla_cpu_enable_fast_mth=1 --xla_nope=1")
    assert line != UNKNOWN_FLAG
    each = campaign(tmp_path, FakeExecutor(failing("fast", line + "\n", FAILED)))
    run(each)
    verdict = each.conclude().verdict("fast")
    assert verdict is not None
    assert "; did you mean --xla_cpu_enable_fast_math?): dropped" in " ".join(
        map(sentence, verdict.reasons)
    )


def test_of_a_profile_that_did_not_run_it_is_not_asked_whether_it_was_in_effect(
    tmp_path: Path,
) -> None:
    each = campaign(tmp_path, FakeExecutor(failing("fast", UNKNOWN_FLAG + "\n", FAILED)))
    run(each)
    own = {one.trial.arm: one for one in each.view().history if one.own_settings}
    said = []
    for arm in ("fast", "same"):
        unseen = [replace(one, effect=Effect.NOT_SEEN) for one in own[arm].own_settings]
        said.append(settings_events(LedgerState(), replace(own[arm], settings=tuple(unseen))))
    assert said[0] == ()
    assert len(said[1]) == 1, "measured, and nothing shows its flag"


def test_a_baseline_that_cannot_run_stops_the_sweep(tmp_path: Path) -> None:
    executor = FakeExecutor(failing(BASELINE_ID, UNKNOWN_FLAG + "\n", FAILED))
    each = campaign(tmp_path, executor)
    run(each)
    assert sentence(each.view().stopped).startswith("the cell as deployed cannot run: unknown-flag")
    with pytest.raises(CampaignStopped, match="cannot run"):
        awaiting.baseline(each, lambda: None)
    assert len(executor.submitted) == 1


@pytest.mark.parametrize(
    ("text", "outcome", "why"),
    [
        pytest.param(
            "",
            Outcome(
                state=State.FAILED,
                reason="nopython could not be started: No such file or directory",
                is_started=False,
            ),
            r"run: not-started \(nopython could not be started: No such file or directory\)",
            id="a program that is not there",
        ),
        pytest.param(
            "the trainer gives up\n",
            Outcome(state=State.FAILED, exit_code=2),
            r"run: exit-code \(exit 2: the trainer gives up;? ?.*its log: /\S+/log\.0\.txt\)",
            id="a trainer that gives up",
        ),
        pytest.param(
            log().replace("Tokens/s/device", "words"),
            OK,
            r"be scored: no-score \([^)]*Tokens/s/device[^)]*\)"
            "(?!, 2 times)",
            id="Tokens/s/device is never printed",
        ),
        pytest.param(
            log(steps=4),
            OK,
            r"be scored: too-few-steps \(0 of the 6 .* step 3, .* "
            r"\d+ steps .*/\S+/log\.0\.txt\)",
            id="the trainer ends early, and well",
        ),
        pytest.param(
            "Traceback (most recent call last):\nRuntimeError: the data is corrupt\n",
            Outcome(state=State.FAILED, exit_code=1),
            r"run: python-exception \(RuntimeError: the data is corrupt; its log: /\S+\)",
            id="the trainer raises",
        ),
        pytest.param(
            log(steps=3),
            KILLED,
            r"run: killed \(signal 9; its log: /\S+/log\.0\.txt\), 2 times in a row",
            id="SIGKILL ends it",
        ),
        pytest.param(
            log(steps=3),
            Outcome(state=State.FAILED, signal=11),
            r"run: signal-kill \(signal 11; its log: /\S+/log\.0\.txt\), 2 times in a row",
            id="another signal ends it",
        ),
        pytest.param(
            "",
            Outcome(state=State.RUNNING),
            r"run: hang-init \(.*\), 2 times in a row",
            id="it stands still before its first line",
        ),
        pytest.param(
            log(steps=3),
            Outcome(state=State.RUNNING),
            r"run: hang-mid-training \(.*\), 2 times in a row",
            id="it stands still between two steps",
        ),
    ],
)
def test_a_baseline_that_never_has_a_score_stops_the_sweep_at_its_second_attempt(
    tmp_path: Path, text: str, outcome: Outcome, why: str
) -> None:
    executor = FakeExecutor(failing(BASELINE_ID, text, outcome))
    each = campaign(tmp_path, executor, clocks={"ticks": Ticking()})
    run(each, turns=2000)
    assert re.match(f"the cell as deployed cannot {why}", sentence(each.view().stopped))
    with pytest.raises(CampaignStopped, match=why):
        awaiting.baseline(each, lambda: None)
    assert {trial.rpartition("-")[0] for trial in executor.submitted} == {
        executor.submitted[0].rpartition("-")[0]
    }
    tried = r"\S+ was retried 1 time" if len(executor.submitted) > 1 else "none"
    assert re.search(f"recovery attempted: {tried}; ", read_cell_report(each.folder).stopped)

    executor.script = ordinary
    later = campaign(tmp_path, executor, session="second")
    run(later)
    assert not later.view().stopped


def test_a_baseline_that_ran_before_and_then_fails_stops_nothing(tmp_path: Path) -> None:
    baselines: list[str] = []

    def once(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id.startswith(BASELINE_ID):
            baselines.append(trial_id)
            if trial_id != baselines[0]:
                return "no luck\n", Outcome(state=State.FAILED, exit_code=2)
        return ordinary(trial_id, attempt)

    each = campaign(tmp_path, FakeExecutor(once))
    run(each)
    assert len({*baselines}) > 1
    assert not each.view().stopped


def test_a_refused_submission_stops_with_the_schedulers_words(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.refusal = "Invalid account"
    each = campaign(tmp_path, executor)
    run(each)
    assert sentence(each.view().stopped) == "submission-refused (Invalid account): the sweep stops"
    executor.refusal = ""
    later = campaign(tmp_path, executor, session="second")
    run(later)
    assert later.conclude().complete


@pytest.mark.parametrize("jump_s", [-7200.0, 0.0, 7200.0], ids=["back", "never", "forward"])
def test_a_back_off_lasts_as_long_whatever_the_days_clock_does(
    tmp_path: Path, jump_s: float
) -> None:
    outage = "error: RPC failed; HTTP 502 curl 22"
    shown = {"now": 1e9, "ticks": 0.0}

    def once(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        return (log(steps=0, last=outage), FAILED) if attempt == 1 else ordinary(trial_id, attempt)

    executor = FakeExecutor(once)
    clocks = {"now": lambda: shown["now"], "ticks": lambda: shown["ticks"]}
    each = campaign(tmp_path, executor, clocks=clocks)
    for _ in range(3):
        each.turn()
    first = executor.submitted[0]
    assert executor.submitted == [first]
    shown["now"] += jump_s
    for shown["ticks"] in (1.0, 299.0):
        each.turn()
        assert executor.submitted == [first], "the outage has 300 s to pass"
    shown["ticks"] = 301.0
    each.turn()
    assert executor.submitted == [first, first]


HUSH = "hush-hush-9"
SECRETIVE = msgspec.structs.replace(CELL, deployed={**CELL.deployed, "HF_TOKEN": HUSH})


def test_the_line_that_an_attempt_is_ended_for_is_written_without_the_secret(
    tmp_path: Path,
) -> None:
    text = log(steps=2, last=f"{UNKNOWN_FLAG} {HUSH}")
    executor = FakeExecutor(lambda *_: (text, OK))
    executor.holds = True
    ticks = [0.0]
    made = campaign(tmp_path, executor, cell=SECRETIVE, clocks={"ticks": lambda: ticks[0]})
    for _ in range(4):
        made.turn()
        ticks[0] += 100.0
    (cut,) = [each.event for each in made.ledger.__class__(made.ledger.path).refresh()
              if isinstance(each.event, AttemptCutShort)]  # fmt: skip
    assert cut.fatal is not None
    assert HIDDEN in cut.fatal.text
    executor.holds = False
    executor.cancelled.clear()
    made.turn()
    (told,) = [each for each in made.view().state.decisions if each.cls][:1]
    assert told.cls == FailureClass.UNKNOWN_FLAG, "the same line, hidden on both sides"
    assert HUSH not in made.ledger.path.read_text(encoding="utf-8")


def test_neither_a_schedulers_refusal_nor_its_word_of_a_job_shows_one(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.holds = True
    waits = Outcome(state=State.PENDING, reason=f"held: comment {HUSH}")
    executor.poll = lambda these, **_: {each.job_id: waits for each in these}  # type: ignore[method-assign]
    made = campaign(tmp_path, executor, cell=SECRETIVE)
    made.turn()
    made.turn()
    (job,) = read_now(made.folder).jobs.values()
    assert job.reason == f"held: comment {HIDDEN}"
    assert str(SubmissionError(f"sbatch: {HUSH}")) == f"sbatch: {HIDDEN}"
