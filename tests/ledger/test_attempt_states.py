"""The table of an attempt's states: what may follow what, and what is refused with its line."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from pytest_xlatune.ledger import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    Decided,
    EpochBegan,
    EpochCause,
    Event,
    Ledger,
    TrialPlanned,
    word_of,
)
from pytest_xlatune.ledger.state import TRANSITIONS, AttemptState, next_state, replay
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action, Outcome, State
from tests.helpers.stories import submission, trial

OF = trial().id
EVENTS: dict[type[Event], Event] = {
    AttemptIntended: AttemptIntended(trial_id=OF, attempt=1, comment="c"),
    AttemptSubmitted: AttemptSubmitted(submission=submission(trial())),
    AttemptCutShort: AttemptCutShort(trial_id=OF, attempt=1, still_s=9.0),
    AttemptLetGo: AttemptLetGo(trial_id=OF, attempt=1),
    AttemptEnded: AttemptEnded(
        trial_id=OF, attempt=1, outcome=Outcome(state=State.COMPLETED, exit_code=0)
    ),
}
# the shortest way into each state
WAYS: dict[AttemptState, tuple[type[Event], ...]] = {
    AttemptState.UNKNOWN: (),
    AttemptState.INTENDED: (AttemptIntended,),
    AttemptState.SUBMITTED: (AttemptIntended, AttemptSubmitted),
    AttemptState.CUT_SHORT: (AttemptIntended, AttemptSubmitted, AttemptCutShort),
    AttemptState.LET_GO: (AttemptIntended, AttemptSubmitted, AttemptLetGo),
    AttemptState.ENDED: (AttemptIntended, AttemptSubmitted, AttemptEnded),
}


def test_the_table_has_every_state_and_every_event_of_an_attempt() -> None:
    assert TRANSITIONS.keys() == WAYS.keys() == set(AttemptState)
    assert {event for row in TRANSITIONS.values() for event in row} == EVENTS.keys()
    assert set(itertools.chain(*(row.values() for row in TRANSITIONS.values()))) == (
        set(AttemptState) - {AttemptState.UNKNOWN}
    )


@pytest.mark.parametrize("state", list(AttemptState))
@pytest.mark.parametrize("event", list(EVENTS), ids=word_of)
def test_what_the_table_does_not_allow_is_refused_with_its_line(
    ledger: Ledger, state: AttemptState, event: type[Event]
) -> None:
    way = [EVENTS[each] for each in WAYS[state]]
    ledger.append(TrialPlanned(trial=trial()), *way, EVENTS[event], at_s=0.0)
    line = len(way) + 2
    allowed = TRANSITIONS[state].get(event)
    if allowed is None:
        with pytest.raises(LedgerError, match=f"line {line}: the attempt is {state}, where"):
            replay(ledger.refresh())
        return
    found = replay(ledger.refresh())
    assert found.trials[OF].attempts[1].state is allowed
    is_known = allowed.is_in_flight
    assert [each.attempt for each in found.in_flight()] == [1] * is_known
    assert len(found.unresolved()) == (allowed is AttemptState.INTENDED)


def test_an_event_that_is_refused_says_what_could_follow() -> None:
    with pytest.raises(LedgerError, match=r"\(attempt-intended can\)"):
        next_state(AttemptState.UNKNOWN, EVENTS[AttemptEnded])
    with pytest.raises(LedgerError, match=r"\(nothing can\)"):
        next_state(AttemptState.ENDED, EVENTS[AttemptEnded])


@pytest.mark.parametrize(
    ("event", "why", "said"),
    [
        pytest.param(
            Decided(trial_id="t", attempt=1, next=Next.RETRY, evidence="local: signal 9",
                    shown=say("the last step is {step} of {steps}", step=2, steps=15)),
            "proof", "local: signal 9; the last step is 2 of 15",
            id="a scheduler's words, and how far it came",
        ),
        pytest.param(
            Decided(trial_id="t", attempt=1, next=Next.STOP, cls="node-drain",
                    faults=("resumed 2 times without a measured trial since",)),
            "why", "node-drain: resumed 2 times",
            id="nodes that were resumed in vain",
        ),
        pytest.param(
            EpochBegan(cause=EpochCause.HOOK, cls="nic-fault", nodes=("n1",), action=Action.HOOK,
                       faults=("n1 is down",)),
            "remark",
            "nic-fault: the site did hook; .*n1 is down",
            id="what a site did",
        ),
        pytest.param(
            EpochBegan(cause=EpochCause.SWAPPED, nodes=("n2",), were=("n1",)),
            "why", "nodes are n2, were n1", id="other nodes",
        ),
    ],
)  # fmt: skip
def test_an_event_tells_reasons_and_is_the_same_after_a_way_through_json(
    event: Decided | EpochBegan, why: str, said: str
) -> None:
    again = type(event).from_json(json.loads(json.dumps(event.to_json())))
    assert again == event
    assert re.match(said, sentence(getattr(again, why)))
