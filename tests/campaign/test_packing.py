"""Trials on disjoint nodes run at the same time; those that share a node keep their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.ledger import EpochCause, Ledger
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import folder_of_family, shared_label
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import RetryPolicy, RetryRule
from pytest_xlatune.model.result import Outcome, State, TrialStatus
from pytest_xlatune.studies import OnNodeFailure
from tests.helpers import scripted
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run

FOUR = tuple(on(f"node00{n}") for n in range(1, 5))
FAILED = Outcome(state=State.FAILED, signal=9)
BACK_OFF = RetryPolicy(rules={"killed": RetryRule(retries=2, backoff_s=500.0)})


def nodes_of(cluster: Cluster) -> list[tuple[str, ...]]:
    return [nodes for _, nodes in cluster.ran]


def failing_first(study: CellsStudy, cell_at: int) -> scripted.Script:
    """The first attempt of the first trial of a cell is killed."""
    victim = study.trial(study.cells[cell_at], 0).id

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id == victim and attempt == 1:
            return scripted.log(steps=2), FAILED
        return scripted.ordinary(trial_id, attempt)

    return script


def test_four_trials_on_four_nodes_take_as_long_as_one(tmp_path: Path) -> None:
    took_s = []
    for number in (1, 4):
        cluster = Cluster()
        each = campaign(tmp_path / str(number), cluster, CellsStudy(cells=FOUR[:number]))
        took_s.append(run(each, cluster))
        assert {result.status for result in each.view().history} == {TrialStatus.MEASURED}
        assert len(cluster.submitted) == number
    one_s, four_s = took_s
    assert one_s >= Cluster().took_s
    assert four_s <= 1.05 * one_s


def test_two_cells_on_one_node_run_one_after_the_other_in_order(tmp_path: Path) -> None:
    cells = (on("node001"), replace(on("node001"), per_device_batch_size=2.0))
    cluster = Cluster()
    study = CellsStudy(cells=cells, repeats=3)
    each = campaign(tmp_path, cluster, study)
    took_s = run(each, cluster)
    assert cluster.submitted == [trial.id for trial in study.decide(()).due]
    assert took_s >= 6 * cluster.took_s


def test_at_most_two_submissions_wait_behind_what_runs_on_a_node(tmp_path: Path) -> None:
    cluster = Cluster()
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:2], repeats=6))
    each.turn()
    assert len(cluster.submitted) == 2 * 2, "nothing is seen to run yet"
    cluster.now_s += 1
    each.turn()
    assert sorted(nodes_of(cluster)) == [("node001",)] * 3 + [("node002",)] * 3
    each.turn()
    assert len(cluster.submitted) == 2 * 3
    assert max_waiting(each, cluster) == 2
    run(each, cluster)
    assert len(cluster.submitted) == 2 * 6


def max_waiting(each: Campaign, cluster: Cluster) -> int:
    states = cluster.poll(each.view().state.in_flight(), root=each.folder).values()
    return max(
        sum(state.state is State.PENDING for state in states) // 2,
        sum(state.state is State.RUNNING for state in states) // 2,
    )


def test_a_trial_that_backs_off_delays_its_own_nodes_only(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:2], repeats=4)
    cluster = Cluster(failing_first(study, 0))
    each = campaign(tmp_path, cluster, study, rules=BACK_OFF)
    cells = [cell.digest for cell in study.cells]

    def measured(cell: int) -> int:
        own = (r for r in each.view().history if r.trial.cell_digest == cells[cell])
        return sum(result.status is TrialStatus.MEASURED for result in own)

    for _ in range(int(4.2 * cluster.took_s)):
        each.turn()
        cluster.now_s += 1
    assert measured(1) == 4, "the other node goes on"
    # what was submitted before the failure was known runs to its end, no later trial passes
    assert measured(0) == 2
    run(each, cluster)
    assert measured(0) == 4
    first = study.trial(study.cells[0], 0).id
    own = [name for name, nodes in cluster.ran if nodes == ("node001",)]
    assert own == [first, *(study.trial(study.cells[0], n).id for n in (1, 2)), first, own[-1]]


def test_a_cell_on_two_nodes_waits_for_both_and_is_not_passed(tmp_path: Path) -> None:
    pair = on("node001", "node002")
    study = CellsStudy(cells=(on("node001"), pair, on("node002"), on("node003")))
    cluster = Cluster()
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    assert nodes_of(cluster) == [("node001",), pair.nodelist, ("node002",), ("node003",)]
    starts = {r.outcome.nodes: r.outcome.start_s or 0.0 for r in each.view().history if r.outcome}
    assert starts[("node001",)] < starts[pair.nodelist] < starts[("node002",)]
    assert starts[("node003",)] == starts[("node001",)]


def test_a_cell_whose_nodes_are_still_picked_has_one_trial_until_they_are(tmp_path: Path) -> None:
    free = scripted.CELL
    study = CellsStudy(cells=(free, on("node003")), repeats=3)
    cluster = Cluster()
    each = campaign(tmp_path, cluster, study, nodes=1)
    each.turn()
    assert nodes_of(cluster) == [("any0",), ("node003",), ("node003",)]
    assert [*each.nodes] == ["node003"]
    cluster.now_s += 1
    each.turn()
    picked = each.view().state.nodes_of(free)
    assert picked == ("any0",)
    assert [*each.nodes] == ["any0", "node003"]
    run(each, cluster)
    assert set(nodes_of(cluster)) == {("any0",), ("node003",)}


@pytest.mark.parametrize("wants", [OnNodeFailure.STOP, OnNodeFailure.VERDICT])
def test_a_node_that_takes_no_job_stops_the_study_or_is_a_verdict(
    tmp_path: Path, wants: OnNodeFailure
) -> None:
    study = CellsStudy(cells=FOUR, on_node_failure=wants)
    cluster = Cluster()
    cluster.sick = {"node002"}
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    stop = each.view().state.stop
    nodes = {cell.digest: cell.nodelist[0] for cell in FOUR}
    status = {nodes[r.trial.cell_digest]: r.status for r in each.view().history}
    if wants is OnNodeFailure.STOP:
        assert stop is not None
        assert (stop.cls, stop.nodes) == ("node-drain", ("node002",))
        return
    assert stop is None
    assert status.pop("node002") is TrialStatus.UNMEASURED
    assert set(status.values()) == {TrialStatus.MEASURED}
    (lost,) = (r for r in each.view().history if r.status is TrialStatus.UNMEASURED)
    assert lost.findings[-1].cls == "node-drain"
    assert "node002 is drained: bad nic" in sentence(lost.reason)
    each.turn()
    assert len(cluster.cancelled) == 1, "its job does not stay in the queue"
    each.turn()
    assert each.view().state.in_flight() == ()


def test_a_node_that_came_back_parts_its_own_trials_only(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:2], repeats=2)
    lost = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)")
    victim = study.trial(FOUR[0], 1).id

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id == victim and attempt == 1:
            return scripted.log(steps=2), lost
        return scripted.ordinary(trial_id, attempt)

    cluster = Cluster(script)
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    (began,) = each.view().state.epochs
    assert (began.cause, began.nodes) == (EpochCause.FIT_AGAIN, ("node001",))
    assert sentence(began.why).endswith(": fit again: node001")
    found = {(r.trial.cell_digest, r.trial.block): r.epoch for r in each.view().history}
    assert [found[cell.digest, n] for cell in FOUR[:2] for n in (1, 2)] == [0, 1, 0, 0]


def test_other_cells_of_a_family_join_its_ledger_and_another_family_is_refused(
    tmp_path: Path,
) -> None:
    cluster = Cluster()
    run(campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:3])), cluster)
    later = campaign(tmp_path, cluster, CellsStudy(cells=FOUR), session="second")
    run(later, cluster)
    assert len(cluster.submitted) == 4, "three are reused"
    other = tuple(replace(cell, image="other.sif") for cell in FOUR)
    with pytest.raises(ConfigError, match=r"image was '', is 'other.sif'.*--xlatune-fresh"):
        campaign(tmp_path, cluster, CellsStudy(cells=other), session="third")


def test_the_folder_of_a_family_is_that_of_its_cell_where_it_has_one() -> None:
    one = replace(scripted.CELL, nodelist=("node001",))
    assert folder_of_family("s", (one,)) == folder_of_family("s", (scripted.CELL,))
    folders = {folder_of_family("s", each) for each in (FOUR, FOUR[:2], (one, FOUR[3]))}
    sizes = tuple(replace(one, per_device_batch_size=n) for n in (1.0, 2.0, 4.0))
    assert folder_of_family("s", sizes) == folder_of_family("s", sizes[1:])
    folders |= {folder_of_family("s", each) for each in (sizes, (one,), (replace(one, image="x"),))}
    assert len(folders) == 4
    assert "pdbs" not in str(folder_of_family("s", sizes))
    assert "pdbs" not in shared_label(sizes), "the first size is not the study's"
    assert shared_label(sizes[:1]) == sizes[0].label


def test_what_a_site_is_asked_to_mend_is_written_down_as_fields(tmp_path: Path) -> None:
    executor = scripted.FakeExecutor(
        scripted.failing(
            "same-wave", scripted.log(steps=2), Outcome(state=State.NODE_FAIL), times=1
        )
    )
    each = scripted.campaign(tmp_path, executor)
    scripted.run(each)
    state = replay(Ledger(each.ledger.path).refresh())
    assert state.stop is not None
    assert (state.stop.cls, state.stop.needed) == ("node-fail", "resume-node")
    assert state.stop.faults == ("node001 is drained: bad nic",)
