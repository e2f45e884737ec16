"""What a ledger comes to: where each trial stands, and what may still be attempted."""

from __future__ import annotations

import pytest

from pytest_xlatune.ledger import CampaignOpened, Ledger, Noted, TrialEnded, TrialPlanned
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.result import State, TrialStatus
from tests.helpers.stories import CELL, OOM, STORY, ended, intended, result, trial


def story_until(ledger: Ledger, events: int) -> LedgerState:
    ledger.append(*STORY[:events], at_s=1.0)
    return replay(ledger.refresh())


@pytest.mark.parametrize(
    ("events", "statuses", "in_flight", "unresolved"),
    [
        pytest.param(3, ["planned", "planned"], [], [], id="planned"),
        pytest.param(4, ["running", "planned"], [], [1], id="intended, perhaps submitted"),
        pytest.param(5, ["running", "planned"], ["711"], [], id="submitted"),
        pytest.param(7, ["planned", "planned"], [], [], id="ended, to be tried again"),
        pytest.param(9, ["running", "planned"], ["712"], [], id="submitted again"),
        pytest.param(11, ["measured", "planned"], [], [], id="measured"),
    ],
)
def test_state_tells_where_each_trial_stands(
    ledger: Ledger, events: int, statuses: list[str], in_flight: list[str], unresolved: list[int]
) -> None:
    state = story_until(ledger, events)
    assert [each.status.value for each in state.history("tuning")] == statuses
    assert [each.trial for each in state.history("tuning")] == [trial(0), trial(1)]
    assert [each.job_id for each in state.in_flight()] == in_flight
    assert [attempt.number for _, attempt in state.unresolved()] == unresolved


def test_a_trial_without_a_result_tells_its_jobs_findings_and_last_outcome(ledger: Ledger) -> None:
    first = story_until(ledger, 9).history("tuning")[0]
    assert first.job_ids == ("711", "712")
    assert first.findings == (OOM,)
    assert first.outcome is not None
    assert first.outcome.state is State.NODE_FAIL


def test_state_keeps_sessions_decisions_and_notes(ledger: Ledger) -> None:
    state = story_until(ledger, len(STORY))
    assert [each.cells for each in state.opened] == [(CELL,)]
    assert [each.evidence for each in state.decisions] == ["node001 died"]
    assert state.nodes_of(CELL) == ("node001", "node002")
    assert [each.remark for each in state.remarks if isinstance(each, Noted)] == [
        verbatim("torn\nlines, \u2028 and ünïcode")
    ]


def test_history_is_of_one_study(ledger: Ledger) -> None:
    ledger.append(TrialPlanned(trial=trial(study="network")), at_s=0.0)
    ledger.append(TrialPlanned(trial=trial(study="tuning")), at_s=0.0)
    assert [each.trial.study for each in replay(ledger.refresh()).history("network")] == ["network"]


@pytest.mark.parametrize(
    ("first", "then", "stands"),
    [
        (TrialStatus.MEASURED, TrialStatus.UNMEASURED, TrialStatus.MEASURED),
        (TrialStatus.DROPPED, TrialStatus.MEASURED, TrialStatus.DROPPED),
        (TrialStatus.UNMEASURED, TrialStatus.MEASURED, TrialStatus.MEASURED),
    ],
    ids=["measured stays", "dropped stays", "unmeasured gives way"],
)
def test_a_later_result_replaces_only_a_missing_measurement(
    ledger: Ledger, first: TrialStatus, then: TrialStatus, stands: TrialStatus
) -> None:
    for status in (first, then):
        ledger.append(TrialEnded(result=result(trial(), status)), at_s=0.0)
    assert [each.status for each in replay(ledger.refresh()).history("tuning")] == [stands]


@pytest.mark.parametrize(
    ("status", "after"),
    [
        (TrialStatus.UNMEASURED, TrialStatus.RUNNING),
        (TrialStatus.MEASURED, TrialStatus.MEASURED),
    ],
    ids=["an unmeasured trial is open again", "a measured one keeps its score"],
)
def test_a_further_attempt_after_the_result(
    ledger: Ledger, status: TrialStatus, after: TrialStatus
) -> None:
    ledger.append(TrialPlanned(trial=trial()), intended(trial()), ended(trial()), at_s=0.0)
    ledger.append(TrialEnded(result=result(trial(), status)), at_s=0.0)
    ledger.append(intended(trial(), 2), at_s=0.0)
    assert replay(ledger.refresh()).history("tuning")[0].status is after


@pytest.mark.parametrize(
    ("session", "status", "decisions"),
    [("s2", TrialStatus.PLANNED, 0), ("s1", TrialStatus.UNMEASURED, 1)],
    ids=["a later session may try again", "another process of the same session does not"],
)
def test_what_was_never_measured_when_a_campaign_opens_again(
    ledger: Ledger, session: str, status: TrialStatus, decisions: int
) -> None:
    ledger.append(*STORY[:7], at_s=0.0)
    ledger.append(TrialEnded(result=result(trial(), TrialStatus.UNMEASURED)), at_s=0.0)
    ledger.append(CampaignOpened(cells=(CELL,), study="tuning", session=session), at_s=0.0)
    state = replay(ledger.refresh())
    assert state.history("tuning")[0].status is status
    assert len(state.decisions) == decisions


def test_an_attempt_of_an_unplanned_trial_is_refused(ledger: Ledger) -> None:
    ledger.append(intended(trial()), at_s=0.0)
    with pytest.raises(LedgerError, match=r"line 1: attempt-intended names trial .*never planned"):
        replay(ledger.refresh())
