"""What a ledger comes to: where each trial stands, and what may still be attempted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Event,
    LedgerEntry,
    TrialEnded,
    TrialPlanned,
    word_of,
)
from pytest_xlatune.ledger.state import TRANSITIONS, AttemptState, LedgerState, replay
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.result import Outcome, State, TrialStatus
from tests.helpers.stories import CELL, STORY, ended, intended, result, submission, trial
from tests.helpers.tables import rows


def state_of(*events: Event) -> LedgerState:
    return replay(LedgerEntry(number=n, at_s=1.0, event=event) for n, event in enumerate(events, 1))


def with_result(status: str) -> TrialEnded:
    return TrialEnded(result=result(trial(), TrialStatus(status)))


ONCE = (TrialPlanned(trial=trial()), intended(trial()), ended(trial()))
OPENED = [CampaignOpened(cells=(CELL,), study="tuning", session=each) for each in ("s1", "s2")]


@rows(
    "events, status, decisions",
    {
        "dropped stays": ((with_result("dropped"), with_result("measured")), "dropped", 0),
        "unmeasured gives way": (
            (with_result("unmeasured"), with_result("measured")), "measured", 0),
        "an unmeasured trial is open again": (
            (*ONCE, with_result("unmeasured"), intended(trial(), 2)), "running", 0),
        "a measured one keeps its score": (
            (*ONCE, with_result("measured"), intended(trial(), 2)), "measured", 0),
        "a later session may try again": (
            (*STORY[:7], with_result("unmeasured"), OPENED[1]), "planned", 0),
        "another process of the same session does not": (
            (*STORY[:7], with_result("unmeasured"), OPENED[0]), "unmeasured", 1),
    },
)  # fmt: skip
def test_what_a_trial_comes_to(events: tuple[Event, ...], status: str, decisions: int) -> None:
    state = state_of(*events)
    assert state.history("tuning")[0].status == status
    assert len(state.decisions) == decisions


def test_open_trials_have_the_labels_of_the_protocol_of_today() -> None:
    today = replace(CELL, protocol=replace(CELL.protocol, deadline_s=60))
    later = CampaignOpened(cells=(today,), study="tuning", session="s2")
    state = state_of(OPENED[0], TrialPlanned(trial=trial()), later)
    assert state.history("tuning")[0].trial.protocol.deadline_s == 60
    with pytest.raises(LedgerError, match=r"line 1: attempt-intended names trial .*never planned"):
        state_of(intended(trial()))


OF = trial().id
OUTCOME = Outcome(state=State.COMPLETED, exit_code=0)
INTENDED = AttemptIntended(trial_id=OF, attempt=1, comment="c")
SUBMITTED = AttemptSubmitted(submission=submission(trial()))
CUT_SHORT = AttemptCutShort(trial_id=OF, attempt=1, still_s=9.0)
LET_GO = AttemptLetGo(trial_id=OF, attempt=1)
ENDED = AttemptEnded(trial_id=OF, attempt=1, outcome=OUTCOME)
EVENTS: tuple[Event, ...] = (INTENDED, SUBMITTED, CUT_SHORT, LET_GO, ENDED)
# the shortest way into each state
WAYS: dict[AttemptState, tuple[Event, ...]] = {
    AttemptState.UNKNOWN: (),
    AttemptState.INTENDED: (INTENDED,),
    AttemptState.SUBMITTED: (INTENDED, SUBMITTED),
    AttemptState.CUT_SHORT: (INTENDED, SUBMITTED, CUT_SHORT),
    AttemptState.LET_GO: (INTENDED, SUBMITTED, LET_GO),
    AttemptState.ENDED: (INTENDED, SUBMITTED, ENDED),
}
FOLLOWS = {AttemptState.UNKNOWN: "attempt-intended can", AttemptState.ENDED: "nothing can"}


@pytest.mark.parametrize("state", list(AttemptState))
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: word_of(type(event)))
def test_what_the_table_does_not_allow_is_refused_with_its_line(
    state: AttemptState, event: Event
) -> None:
    events = (TrialPlanned(trial=trial()), *WAYS[state], event)
    line = len(WAYS[state]) + 2
    allowed = TRANSITIONS[state].get(type(event))
    if allowed is None:
        why = rf"line {line}: the attempt is {state}, where.*\({FOLLOWS.get(state, '.*')}\)"
        with pytest.raises(LedgerError, match=why):
            state_of(*events)
        return
    found = state_of(*events)
    assert found.trials[OF].attempts[1].state is allowed
    assert [each.attempt for each in found.in_flight()] == [1] * allowed.is_in_flight
    assert len(found.unresolved()) == (allowed is AttemptState.INTENDED)
