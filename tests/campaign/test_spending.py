"""Limits of a study on several nodes: what has begun counts, and what still fits goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_xlatune.model.message import sentence
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
    assert sentence(each.view().stopped).startswith("budget: ")


def test_a_cell_that_no_longer_fits_stops_no_smaller_one(tmp_path: Path) -> None:
    big = on(*(f"node{n:03d}" for n in range(1, 17)))
    cells = (TWENTY[0], big, TWENTY[19])
    cluster = Cluster(took_s=60.0)
    limits = Limits(node_hours=0.6)  # 36 minutes of a node; a trial of the big cell takes 16
    each = campaign(tmp_path, cluster, CellsStudy(cells=cells, repeats=6), limits=limits)
    run(each, cluster)
    ran = Counter(nodes for _, nodes in cluster.ran)
    assert ran[TWENTY[0].nodelist] == ran[TWENTY[19].nodelist] == 6
    assert ran[big.nodelist] == 1
    assert sentence(each.view().stopped).startswith("budget: ")
    used_h = sum(count * len(nodes) for nodes, count in ran.items()) / 60
    assert used_h <= 0.6
