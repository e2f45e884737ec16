"""Limits of a study on several nodes: what has begun counts, and what still fits goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_xlatune.campaign._limits import Spending
from pytest_xlatune.ledger import AttemptIntended, LedgerEntry
from pytest_xlatune.sweep.groups import Limits
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run

TWENTY = tuple(on(f"node{n:03d}") for n in range(1, 21))


@pytest.mark.parametrize(
    ("nodes", "trials"),
    [(1, 12), (4, 12), (20, 20)],
    # before the first end the cost is unknown: every node gets one trial, and none ahead
    ids=["one node", "four nodes", "the first wave"],
)
def test_trials_that_have_begun_count_against_the_node_hours(
    nodes: int, trials: int, tmp_path: Path
) -> None:
    cluster = Cluster(took_s=60.0)
    study = CellsStudy(cells=TWENTY[:nodes], repeats=20)
    each = campaign(tmp_path, cluster, study, limits=Limits(node_hours=0.201))  # twelve trials
    run(each, cluster)
    assert len(cluster.submitted) == trials
    assert each.view().stopped.startswith("budget: ")


@pytest.mark.parametrize("nodes", [1, 3])
def test_hours_with_the_scheduler_pass_while_trials_are_in_flight(
    nodes: int, tmp_path: Path
) -> None:
    cluster = Cluster(took_s=60.0)
    study = CellsStudy(cells=TWENTY[:nodes], repeats=40)
    each = campaign(tmp_path, cluster, study, limits=Limits(queue_hours=0.12))  # 432 s
    took_s = run(each, cluster)
    assert 300.0 < took_s <= 432.0
    assert "hours with the scheduler are spent" in each.view().stopped


def test_a_clock_that_goes_back_while_a_trial_runs_counts_no_time_twice() -> None:
    spending = Spending()
    times = (0.0, 100.0, 50.0, 150.0)
    spending.feed(
        LedgerEntry(
            number=n, at_s=at_s, event=AttemptIntended(trial_id=f"t{n}", attempt=1, comment="c")
        )
        for n, at_s in enumerate(times)
    )
    assert spending.queue_s == 150.0


def test_a_cell_that_no_longer_fits_stops_no_smaller_one(tmp_path: Path) -> None:
    big = on(*(f"node{n:03d}" for n in range(1, 17)))
    cells = (TWENTY[0], big, TWENTY[19])
    cluster = Cluster(took_s=60.0)
    limits = Limits(node_hours=0.6)  # 36 minutes of a node; a trial of the big cell takes 16
    each = campaign(tmp_path, cluster, CellsStudy(cells=cells, repeats=6), limits=limits)
    run(each, cluster)
    ran = Counter(nodes for _, nodes in cluster.submitted)
    assert ran[TWENTY[0].nodelist] == ran[TWENTY[19].nodelist] == 6
    assert ran[big.nodelist] == 1
    assert each.view().stopped.startswith("budget: ")
    used_h = sum(count * len(nodes) for nodes, count in ran.items()) / 60
    assert used_h <= 0.6
