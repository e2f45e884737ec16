"""Trials on disjoint nodes run at the same time; those that share a node keep their order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Resources, RetryPolicy, RetryRule
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.studies import OnNodeFailure
from tests.helpers import scripted
from tests.helpers.scripted import CellsStudy, Cluster, campaign, on, run

FOUR = tuple(on(f"node00{n}") for n in range(1, 5))
TWENTY = tuple(on(f"node{n:03d}") for n in range(1, 21))
KILLED = Outcome(state=State.FAILED, signal=9)
NODE_FAIL = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)")


def nodes_of(cluster: Cluster) -> list[tuple[str, ...]]:
    return [nodes for _, nodes in cluster.ran]


def failing_once(study: CellsStudy, number: int, outcome: Outcome) -> Cluster:
    """A cluster on which the first attempt of a trial of the first cell fails."""
    victim = study.trial(study.cells[0], number).id
    return Cluster(scripted.failing(victim, scripted.log(steps=2), outcome, times=1))


def test_a_trial_that_backs_off_delays_its_own_nodes_only(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:2], repeats=4)
    cluster = failing_once(study, 0, KILLED)
    rules = RetryPolicy(rules={"killed": RetryRule(retries=2, backoff_s=500.0)})
    made = campaign(tmp_path, cluster, study, site={"retry_policy": rules})

    def measured() -> list[int]:
        done = Counter(
            each.trial.cell_digest for each in made.view().history if each.status == "measured"
        )
        return [done[cell.digest] for cell in study.cells]

    for _ in range(int(4.2 * cluster.took_s)):
        made.turn()
        cluster.now_s += 1
    # the other node goes on; what was submitted before the failure was known runs to its end
    assert measured() == [2, 4]
    run(made, cluster)
    assert measured() == [4, 4]
    order = [study.trial(study.cells[0], number).id for number in (0, 1, 2, 0, 3)]
    assert [name for name, nodes in cluster.ran if nodes == ("node001",)] == order


def test_a_cell_whose_nodes_are_still_picked_has_one_trial_until_they_are(tmp_path: Path) -> None:
    free, cluster = scripted.CELL, Cluster()
    study = CellsStudy(cells=(free, on("node003")), repeats=3)
    made = campaign(tmp_path, cluster, study, site={"resources": Resources(nodes=1)})
    made.turn()
    assert nodes_of(cluster) == [("any0",), ("node003",), ("node003",)]
    assert [*made.nodes] == ["node003"]
    cluster.now_s += 1
    made.turn()
    assert made.view().state.nodes_of(free) == ("any0",)
    assert [*made.nodes] == ["any0", "node003"]
    run(made, cluster)
    assert {*nodes_of(cluster)} == {("any0",), ("node003",)}


@pytest.mark.parametrize("wants", [OnNodeFailure.STOP, OnNodeFailure.VERDICT])
def test_a_node_that_takes_no_job_stops_the_study_or_is_a_verdict(
    tmp_path: Path, wants: OnNodeFailure
) -> None:
    cluster = Cluster()
    cluster.sick = {"node002"}
    made = campaign(tmp_path, cluster, CellsStudy(cells=FOUR, on_node_failure=wants))
    run(made, cluster)
    stop = made.view().state.stop
    if wants is OnNodeFailure.STOP:
        assert stop is not None
        assert (stop.cls, stop.nodes) == ("node-drain", ("node002",))
        assert stop.detail == "node002 is drained: bad nic"
        return
    assert stop is None
    nodes = {cell.digest: cell.nodelist[0] for cell in FOUR}
    results = {nodes[each.trial.cell_digest]: each for each in made.view().history}
    lost = results.pop("node002")
    assert (lost.status, lost.findings[-1].cls) == ("unmeasured", "node-drain")
    assert "node002 is drained: bad nic" in sentence(lost.reason)
    assert {each.status for each in results.values()} == {"measured"}
    made.turn()
    assert len(cluster.cancelled) == 1, "its job does not stay in the queue"
    made.turn()
    assert made.view().state.in_flight() == ()


def test_a_node_that_came_back_parts_its_own_trials_only(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:2], repeats=2)
    cluster = failing_once(study, 1, NODE_FAIL)
    made = campaign(tmp_path, cluster, study)
    run(made, cluster)
    (began,) = made.view().state.epochs
    assert (sentence(began.why), began.nodes) == ("node-fail: fit again: node001", ("node001",))
    epochs = {(r.trial.cell_digest, r.trial.block): r.epoch for r in made.view().history}
    assert [epochs[cell.digest, n] for cell in FOUR[:2] for n in (1, 2)] == [0, 1, 0, 0]
