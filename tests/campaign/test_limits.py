"""What a sweep may cost: counted from the ledger over all sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign import CampaignStopped
from pytest_xlatune.campaign.sweep_run import Spending
from pytest_xlatune.ledger import AttemptEnded, AttemptIntended, LedgerEntry, Noted
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.sweep.groups import Limits
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.scripted import FakeExecutor, campaign, ordinary, run
from tests.helpers.tables import rows

HOUR_S = 3600.0


def spent(*events: tuple[float, AttemptIntended | AttemptEnded | Noted]) -> Spending:
    """What a cell on eight nodes has spent, by the hours of its events."""
    spending = Spending(nodes=8)
    spending.feed(
        LedgerEntry(number=number, at_s=at_h * HOUR_S, event=event)
        for number, (at_h, event) in enumerate(events, start=1)
    )
    return spending


def began(trial: str) -> AttemptIntended:
    return AttemptIntended(trial_id=trial, attempt=1, comment="c")


def ended(
    trial: str, *nodes: str, start_h: float | None = None, end_h: float | None = None
) -> AttemptEnded:
    start_s, end_s = (None if hour is None else hour * HOUR_S for hour in (start_h, end_h))
    outcome = Outcome(state=State.COMPLETED, nodes=nodes, start_s=start_s, end_s=end_s)
    return AttemptEnded(trial_id=trial, attempt=1, outcome=outcome)


def test_node_hours_are_those_that_ran_and_hours_those_with_the_scheduler() -> None:
    spending = spent(
        (0, began("a")),
        (0, began("a")),  # it is told twice
        (1, began("b")),
        (2, ended("a", "n1", "n2", start_h=0.5, end_h=1)),
        (10, Noted(text="a session after a night away")),
        (10, ended("b", start_h=1, end_h=3)),
        (11, began("c")),
        (12, ended("c")),  # when it ran is unknown: from its submission, on all nodes
        (12, began("d")),
        (12, ended("d", start_h=12, end_h=11)),  # by a clock that ran back
        (12, ended("d", start_h=1, end_h=12)),  # it is told twice
        (13, began("e")),
        (14, Noted(text="it waits")),
    )
    assert spending.node_s == pytest.approx((1 + 16 + 8) * HOUR_S)
    assert spending.busy_s == (3 + 1 + 1) * HOUR_S


@rows(
    "limits, reason",
    {
        "none": (Limits(), ""),
        "20 node-hours": (Limits(node_hours=20.0), ""),
        "16 node-hours": (Limits(node_hours=16.0), "16 of 16 node-hours are spent"),
        "2.5 hours": (Limits(hours=2.5), ""),
        "2 hours": (Limits(hours=2.0), "2 of 2 hours are spent"),
    },
)
def test_a_limit_that_is_spent_is_named(limits: Limits, reason: str) -> None:
    spending = spent((0, began("a")), (1, ended("a")), (1, began("b")), (2, ended("b")))
    found = spending.exhausted(limits)
    assert (found is None) == (not reason)
    assert found is None or sentence(found).startswith(reason)


def test_a_budget_stops_the_sweep_with_its_reason_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    """Every trial runs one hour on one node, by the node's clock."""
    hour = Outcome(state=State.COMPLETED, exit_code=0, nodes=("n1",), start_s=0.0, end_s=HOUR_S)
    executor = FakeExecutor(lambda trial_id, attempt: (ordinary(trial_id, attempt)[0], hour))
    for session in ("first", "second"):  # what was spent in another session is spent
        made = campaign(tmp_path, executor, session=session, limits=Limits(node_hours=3))
        run(made)
        assert len(executor.submitted) == 3
    with pytest.raises(CampaignStopped, match=r"budget \(3 of 3 node-hours are spent"):
        made.wait(lambda _: False)
    known = read_cell_report(made.folder)
    assert known.stop_reason.startswith("budget (3 of 3 node-hours")
    assert "halted" in known.stopped
    assert not known.conclusion.complete
    more = campaign(tmp_path, executor, session="third", limits=Limits(node_hours=100))
    run(more)
    assert more.conclude().complete
    assert read_cell_report(more.folder).stopped == ""
