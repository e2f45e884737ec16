"""What a sweep may cost: counted from the ledger over all sessions, never exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign import CampaignStopped
from pytest_xlatune.campaign._limits import Spending
from pytest_xlatune.ledger import AttemptEnded, AttemptIntended, LedgerEntry, Noted
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.sweep.groups import Limits, UserOptions
from pytest_xlatune.sweep.settings import resolve_options
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.scripted import FakeExecutor, campaign, ordinary, run

HOUR_S = 3600.0


def spent(*events: tuple[float, AttemptIntended | AttemptEnded | Noted]) -> Spending:
    spending = Spending(nodes=8)
    spending.feed(
        LedgerEntry(number=number, at_s=at_s, event=event)
        for number, (at_s, event) in enumerate(events, start=1)
    )
    return spending


def began(trial: str, attempt: int = 1) -> AttemptIntended:
    return AttemptIntended(trial_id=trial, attempt=attempt, comment="c")


def ended(
    trial: str,
    attempt: int = 1,
    *,
    nodes: tuple[str, ...] = (),
    start_s: float | None = None,
    end_s: float | None = None,
) -> AttemptEnded:
    outcome = Outcome(state=State.COMPLETED, nodes=nodes, start_s=start_s, end_s=end_s)
    return AttemptEnded(trial_id=trial, attempt=attempt, outcome=outcome)


def test_node_hours_are_those_that_ran() -> None:
    spending = spent(
        (0.0, began("a")),
        (HOUR_S, ended("a", nodes=("n1", "n2"), start_s=HOUR_S / 2, end_s=HOUR_S)),
        (10 * HOUR_S, began("b")),  # between them nothing was with the scheduler
        (11 * HOUR_S, ended("b")),  # when it ran is unknown: from its submission, on all nodes
    )
    assert spending.node_s == pytest.approx(1 * HOUR_S + 8 * HOUR_S)
    assert spending.ended == 2


def test_hours_of_the_clock_are_those_in_which_a_trial_was_with_the_scheduler() -> None:
    spending = spent(
        (0.0, began("a")),
        (HOUR_S, began("b")),
        (2 * HOUR_S, ended("a")),
        (10 * HOUR_S, Noted(text="a session after a night away")),
        (10 * HOUR_S, ended("b", start_s=HOUR_S, end_s=3 * HOUR_S)),
        (12 * HOUR_S, began("c")),
        (13 * HOUR_S, Noted(text="it waits")),
    )
    assert spending.busy_s == 4 * HOUR_S


def test_an_event_that_is_told_twice_and_a_clock_that_runs_back_cost_nothing() -> None:
    spending = spent(
        (HOUR_S, began("a")),
        (HOUR_S, began("a")),
        (0.0, ended("a", start_s=HOUR_S, end_s=0.0)),
        (9 * HOUR_S, ended("a")),
    )
    assert spending.node_s == 0.0


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(), ""),
        (
            Limits(node_hours=20.0),
            "16 of 20 node-hours are spent",
        ),
        (Limits(node_hours=24.0), ""),
        (Limits(hours=2.5), "2 of 2.5 hours are spent"),
        (Limits(hours=3.0), ""),
    ],
)
def test_another_trial_must_fit(limits: Limits, reason: str) -> None:
    spending = spent(
        (0.0, began("a")), (HOUR_S, ended("a")), (HOUR_S, began("b")), (2 * HOUR_S, ended("b"))
    )
    found = spending.exhausted(limits)
    assert (found is None) == (not reason)
    assert found is None or sentence(found).startswith(reason)


def test_before_the_first_trial_has_ended_nothing_is_known() -> None:
    assert spent((0.0, began("a"))).exhausted(Limits(node_hours=0.001)) is None


def test_limits_of_the_user_go_over_those_of_the_sweep() -> None:
    sweep = Limits(node_hours=10.0)
    assert UserOptions(values={"node_hours": 2.0}).applied_to(sweep) == Limits(node_hours=2.0)
    assert UserOptions(values={"budget": 2}).applied_to(sweep) == sweep


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(hours: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node_hours is .*, expected more than 0 hours"):
        Limits(node_hours=hours)
    with pytest.raises(
        ConfigError, match=r"--xlatune-node-hours: found .* expected more than 0 hours"
    ):
        resolve_options({"xlatune_node_hours": str(hours)}, {}, {}, root=tmp_path)


# -- through a campaign ----------------------------------------------------------------------------

ONE_HOUR = Outcome(state=State.COMPLETED, exit_code=0, nodes=("n1",), start_s=0.0, end_s=HOUR_S)


def one_hour(trial_id: str, attempt: int) -> tuple[str, Outcome]:
    """Every trial ran one hour on one node, by the node's clock."""
    return ordinary(trial_id, attempt)[0], ONE_HOUR


def test_a_budget_stops_the_sweep_with_its_reason_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    executor = FakeExecutor(one_hour)
    first = campaign(tmp_path, executor, session="first", limits=Limits(node_hours=3.5))
    run(first)
    assert len(executor.submitted) == 3, "the fourth would cost 4 of 3.5 node-hours"
    with pytest.raises(CampaignStopped, match=r"budget: 3 of 3\.5 node-hours are spent"):
        first.wait(lambda _: False)
    known = read_cell_report(first.folder)
    assert known.stop_reason.startswith("budget: 3 of 3.5 node-hours")
    assert "halted" in known.stopped
    assert not known.conclusion.complete

    again = campaign(tmp_path, executor, session="second", limits=Limits(node_hours=3.5))
    run(again)
    assert len(executor.submitted) == 3, "spent in another session is spent"

    more = campaign(tmp_path, executor, session="third", limits=Limits(node_hours=100))
    run(more)
    assert more.conclude().complete
    assert read_cell_report(more.folder).stopped == ""
