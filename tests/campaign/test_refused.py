"""What the scheduler or the campaign refuses: one node list, all of them, an unknown cell."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import AllocationOver, QueueFull, Request, SchedulerDown
from pytest_xlatune.ledger import LEDGER, Ledger, Noted
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import TrialStatus
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.studies import Decision, History, OnNodeFailure
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run

FOUR = tuple(on(f"node00{n}") for n in range(1, 5))


class Again(CellsStudy, frozen=True, kw_only=True):
    """A study that never leaves out what is final."""

    def decide(self, history: History) -> Decision:
        del history
        return super().decide(())


def test_a_study_that_never_ends_says_so_once_all_is_measured(tmp_path: Path) -> None:
    cluster = Cluster()
    each = campaign(tmp_path, cluster, Again(cells=FOUR[:1], repeats=2))
    with pytest.raises(ConfigError, match=r"\(Again\) is faulty: it proposes \S+ again") as caught:
        run(each, cluster)
    assert "can still run" in str(caught.value)
    mended = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1], repeats=2), session="second")
    assert [result.status for result in mended.view().history] == [TrialStatus.MEASURED] * 2


class Refusing(Cluster):
    """A cluster that takes no job for these nodes."""

    def __init__(self, *refused: str, words: str) -> None:
        super().__init__()
        self.refused = {*refused}
        self.words = words
        self.asked = 0

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.asked += 1
        if self.refused & {*request.nodelist}:
            raise SubmissionError(self.words)
        return super().submit(spec, request)


class Hanging(Cluster):
    """A cluster whose sbatch hangs once a job is in its queue."""

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        if self.submitted:
            self.now_s += 60
            raise SchedulerDown("sbatch did not answer in 60 s and was ended")
        return super().submit(spec, request)


def test_what_runs_is_read_while_sbatch_hangs(tmp_path: Path) -> None:
    cluster = Hanging()
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1], repeats=2))
    while not cluster.submitted:
        each.turn()
    each.turn()
    (said,) = notes(each)
    assert "did not answer in 60 s" in said, "told at once"
    each.turn()
    statuses = [result.status for result in each.view().history]
    assert statuses == [TrialStatus.MEASURED, TrialStatus.RUNNING]


class Ending(Cluster):
    """Nodes that take one trial only, as long as `is_over`."""

    is_over = True

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        if self.is_over and self.submitted:
            raise AllocationOver("no time is left for another trial")
        return super().submit(spec, request)


def test_what_runs_ends_where_no_time_is_left_and_the_next_session_goes_on(tmp_path: Path) -> None:
    cluster = Ending()
    study = CellsStudy(cells=FOUR[:2], repeats=1, on_node_failure=OnNodeFailure.VERDICT)
    with pytest.raises(AllocationOver, match="no time is left"):
        run(campaign(tmp_path, cluster, study), cluster)
    after = campaign(tmp_path, cluster, study, session="second")
    assert after.view().state.in_flight() == ()
    assert TrialStatus.MEASURED in {result.status for result in after.view().history}
    cluster.is_over = False
    run(after, cluster)
    assert [result.status for result in after.view().history] == [TrialStatus.MEASURED] * 2
    assert len(cluster.submitted) == 2


class Interrupted(Cluster):
    """A cluster whose user says Ctrl-C so often while the first job is handed over."""

    def __init__(self, times: int, *, refuses: bool = False) -> None:
        super().__init__()
        self.times, self.refuses = times, refuses

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        job_id, times = super().submit(spec, request), self.times
        self.times = 0
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        if times and self.refuses:
            raise SubmissionError("a program of the site's was interrupted")
        return job_id


@pytest.mark.parametrize(
    ("cluster", "in_flight"),
    [
        pytest.param(Interrupted(1), 1, id="known, so that it can be ended"),
        pytest.param(Interrupted(1, refuses=True), 0, id="no refusal: the next run submits it"),
        pytest.param(Interrupted(2), 0, id="twice: at once"),
    ],
)
def test_ctrl_c_while_a_job_is_handed_over(
    tmp_path: Path, cluster: Interrupted, in_flight: int
) -> None:
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1], repeats=1))
    with pytest.raises(KeyboardInterrupt):
        run(each, cluster)
    after = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1], repeats=1), session="second")
    assert len(after.view().state.in_flight()) == in_flight
    run(after, cluster)
    assert [result.status for result in after.view().history] == [TrialStatus.MEASURED]
    assert len(cluster.submitted) == 1


class Limited(Cluster):
    """A cluster whose user may have so many jobs at a time; others of theirs count too."""

    def __init__(self, at_most: int, *, others: int = 0) -> None:
        super().__init__()
        self.at_most = at_most
        self.others = others
        self.asked = 0

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.asked += 1
        standing = [self.standing(job_id).state for job_id in self._jobs]
        if self.others + sum(not each.is_final for each in standing) >= self.at_most:
            raise QueueFull("Job violates accounting/QOS policy (job submit limit)")
        return super().submit(spec, request)


@pytest.mark.parametrize("at_most", [1, 2])
def test_a_limit_on_submitted_jobs_is_polled_on_and_nothing_is_lost(
    tmp_path: Path, at_most: int
) -> None:
    cluster = Limited(at_most)
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1], repeats=4))
    took_s = run(each, cluster)
    assert each.view().stopped is None
    assert [result.status for result in each.view().history] == [TrialStatus.MEASURED] * 4
    assert len(cluster.submitted) == 4
    assert took_s < 4 * 60 + 10, "the next is submitted as soon as a place is free"
    assert cluster.asked < 40, "sbatch is not called every second"
    (said,) = notes(each)
    assert "limit on submitted jobs" in said
    assert said.endswith("(job submit limit)")


def notes(each: Campaign) -> list[str]:
    """What people are told besides how trials end."""
    entries = Ledger(each.folder / LEDGER).refresh()
    return [sentence(entry.event.remark) for entry in entries if isinstance(entry.event, Noted)]


def test_a_limit_that_others_hold_is_waited_out_for_a_while(tmp_path: Path) -> None:
    cluster = Limited(1)
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1], repeats=2))
    while not cluster.submitted:
        each.turn()
        cluster.now_s += 1
    cluster.others = 1
    for _ in range(600):
        each.turn()
        cluster.now_s += 1
    assert each.view().stopped is None
    assert len(cluster.submitted) == 1
    assert "waits until other jobs of yours end: Job violates" in notes(each)[-1]
    cluster.others = 0
    run(each, cluster)
    assert len(cluster.submitted) == 2
    cluster.others, cluster.at_most = 1, 1
    refused = Limited(0)
    never = campaign(tmp_path / "never", refused, CellsStudy(cells=FOUR[:1], repeats=1))
    assert run(never, refused) < 60, "a job that no limit allows is told at once"
    assert "job submit limit" in sentence(never.view().stopped)


def test_a_refused_node_list_is_a_verdict_and_the_other_nodes_go_on(tmp_path: Path) -> None:
    cluster = Refusing("node002", words="invalid node name specified: node002")
    study = CellsStudy(cells=FOUR, repeats=3, on_node_failure=OnNodeFailure.VERDICT)
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    view = each.view()
    assert view.stopped is None
    assert not view.pending
    for result in view.history:
        is_refused = result.trial.cell_digest == FOUR[1].digest
        status = TrialStatus.UNMEASURED if is_refused else TrialStatus.MEASURED
        assert result.status is status
        assert ("invalid node name specified: node002" in sentence(result.reason)) == is_refused


def test_a_refusal_that_stops_a_study_without_the_policy_still_does(tmp_path: Path) -> None:
    cluster = Refusing("node002", words="invalid node name specified: node002")
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR, repeats=3))
    run(each, cluster)
    assert "invalid node name specified: node002" in sentence(each.view().stopped)


def test_a_refusal_that_is_not_about_the_nodes_stops_the_study(tmp_path: Path) -> None:
    every = [node for cell in FOUR for node in cell.nodelist]
    cluster = Refusing(*every, words="Invalid account")
    study = CellsStudy(cells=FOUR, repeats=9, on_node_failure=OnNodeFailure.VERDICT)
    each = campaign(tmp_path, cluster, study)
    run(each, cluster)
    assert "Invalid account" in sentence(each.view().stopped)
    assert cluster.asked <= 4, "not once for each of 36 trials"


class Strange(CellsStudy, frozen=True, kw_only=True):
    """A study that proposes one more trial, which is like another but for this."""

    changed: dict[str, str]

    def decide(self, history: History) -> Decision:
        found = super().decide(history)
        first, *others = found.due
        due = (first, replace(first, position=7, **self.changed), *others)
        return dataclasses.replace(found, due=due)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"cell_digest": "deadbeef0000"}, "the cell deadbeef0000", id="another cell"),
        pytest.param({"arm": "../up"}, r"a trial the arm '../up', expected", id="no slug"),
        pytest.param({"stage": "wave 1"}, r"a trial the stage 'wave 1'", id="no slug either"),
    ],
)
def test_a_trial_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    cluster = Cluster()
    with pytest.raises(ConfigError, match=rf"study 'toy' \(Strange\) is faulty: .*{said}"):
        run(campaign(tmp_path, cluster, Strange(cells=FOUR, changed=changed)), cluster)
    assert cluster.submitted == []

    mended = campaign(tmp_path, cluster, CellsStudy(cells=FOUR), session="second")
    run(mended, cluster)
    assert {each.status for each in mended.view().history} == {TrialStatus.MEASURED}
    assert {each.cell_digest for each in mended.study.decide(()).arms} == {
        each.trial.cell_digest for each in mended.view().history
    }
