"""What the scheduler or the campaign refuses: one node list, all of them, an unknown cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.result import TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import History, OnNodeFailure
from tests.campaign.cluster import CellsStudy, Cluster, campaign, on, run

FOUR = tuple(on(f"node00{n}") for n in range(1, 5))


class Refusing(Cluster):
    """A cluster that takes no job for these nodes."""

    def __init__(self, *refused: str, words: str) -> None:
        super().__init__()
        self.refused = {*refused}
        self.words = words
        self.asked = 0

    def submit(self, *args: Any, **named: Any) -> str:
        self.asked += 1
        if self.refused & {*named["nodelist"]}:
            raise SubmissionError(self.words)
        return super().submit(*args, **named)


def test_a_refused_node_list_is_a_verdict_and_the_other_nodes_go_on(tmp_path: Path) -> None:
    cluster = Refusing("node002", words="invalid node name specified: node002")
    study = CellsStudy(cells=FOUR, rounds=3, on_node_failure=OnNodeFailure.VERDICT)
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    view = each.view()
    assert view.stopped == ""
    assert not view.pending
    for result in view.history:
        is_refused = result.trial.cell_digest == FOUR[1].digest
        status = TrialStatus.UNMEASURED if is_refused else TrialStatus.MEASURED
        assert result.status is status
        assert ("invalid node name specified: node002" in result.reason) == is_refused


def test_a_refusal_that_stops_a_study_without_the_policy_still_does(tmp_path: Path) -> None:
    cluster = Refusing("node002", words="invalid node name specified: node002")
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR, rounds=3))
    run(each, cluster)
    assert "invalid node name specified: node002" in each.view().stopped


def test_a_refusal_that_is_not_about_the_nodes_stops_the_study(tmp_path: Path) -> None:
    every = [node for cell in FOUR for node in cell.nodelist]
    cluster = Refusing(*every, words="Invalid account")
    study = CellsStudy(cells=FOUR, rounds=9, on_node_failure=OnNodeFailure.VERDICT)
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    assert "Invalid account" in each.view().stopped
    assert cluster.asked <= 4, "not once for each of 36 trials"


class Strange(CellsStudy):
    """A study that proposes a trial on a cell that is none of its own."""

    def propose(self, history: History) -> tuple[Trial, ...]:
        first, *others = super().propose(history)
        return (first, replace(first, cell_digest="deadbeef0000", position=7), *others)


def test_a_trial_of_an_unknown_cell_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    cluster = Cluster()
    with pytest.raises(ConfigError, match=r"study 'toy' \(Strange\) is wrong: .*deadbeef0000"):
        run(campaign(tmp_path, cluster, Strange(cells=FOUR)), cluster)
    assert cluster.submitted == []

    mended = campaign(tmp_path, cluster, CellsStudy(cells=FOUR), session="second")
    run(mended, cluster)
    assert {each.status for each in mended.view().history} == {TrialStatus.MEASURED}
    assert {each.cell_digest for each in mended.study.arms(())} == {
        each.trial.cell_digest for each in mended.view().history
    }
