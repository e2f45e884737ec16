"""What events tell: the reasons that they make of their fields."""

from __future__ import annotations

import json

import pytest

from pytest_xlatune.ledger import Decided, EpochBegan, EpochCause
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Action


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
            "why", "node-drain: resumed 2 times without a measured trial since: the sweep stops",
            id="nodes that were resumed in vain",
        ),
        pytest.param(
            EpochBegan(cause=EpochCause.HOOK, cls="nic-fault", nodes=("n1",), action=Action.HOOK,
                       faults=("n1 is down",)),
            "said",
            "nic-fault: the site did hook; after scontrol update State=RESUME: n1 is down: scores "
            "before and after are not compared",
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
    assert sentence(getattr(again, why)) == said
