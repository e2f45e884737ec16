"""Two processes at one campaign: nothing finished is lost, nothing is measured twice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.executors import Request
from pytest_xlatune.ledger import LEDGER, AttemptEnded, Decided, Event, Ledger
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import State, Submission, TrialStatus
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.cluster import CellsStudy, Cluster, on
from tests.helpers.cluster import campaign as on_cluster
from tests.helpers.resolved import again
from tests.helpers.scripted import (
    KILLED,
    FakeExecutor,
    campaign,
    failing,
    log,
    make_impatient,
    run,
)
from tests.helpers.second_looks import BESIDE_THE_LAB


class Quicker(FakeExecutor):
    """Its jobs are over when a process asks for their end."""

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        self.holds = False


class Killed(BaseException):
    """The process is gone."""


def state_of(each: Campaign) -> Any:
    return replay(Ledger(each.folder / LEDGER).refresh())


def test_a_trial_that_ends_before_our_cancel_keeps_its_result(tmp_path: Path) -> None:
    executor = Quicker()
    executor.holds = True
    first = campaign(tmp_path, executor)
    first.turn()
    assert cancel_unwaited(first.folder, executors=lambda _: executor) == ()
    assert not state_of(first).decisions, "no process interrupted it"

    second = campaign(tmp_path, executor, session="second")
    run(second)
    assert second.conclude().complete
    assert len(executor.submitted) == len(set(executor.submitted)), "measured once"


def test_no_process_ends_a_job_between_two_waits_of_another_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_impatient(monkeypatch)
    executor = FakeExecutor()
    executor.holds = True
    first = campaign(tmp_path, executor)
    first.turn()
    other = campaign(tmp_path, executor, session="second")
    with other.attending():  # it waits for nothing now: its next test has not begun
        assert cancel_unwaited(first.folder, executors=lambda _: executor) == ()
    assert executor.cancelled == []
    (ended,) = cancel_unwaited(first.folder, executors=lambda _: executor)
    assert executor.cancelled == [ended.job_id]


def test_a_ledger_in_use_is_not_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_impatient(monkeypatch)
    executor = FakeExecutor()
    executor.holds = True
    first = campaign(tmp_path, executor)
    first.turn()
    with (
        first.attending(),
        pytest.raises(LedgerError, match="another session is measuring"),
    ):
        campaign(tmp_path, executor, session="second", fresh=True)
    assert executor.cancelled == []
    assert len(first.view().state.in_flight()) == 1, "it goes on"


def test_what_still_runs_of_a_ledger_that_is_moved_aside_is_ended(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.holds = True
    first = campaign(tmp_path, executor)
    first.turn()
    campaign(tmp_path, executor, session="second", fresh=True)
    assert executor.cancelled == ["1"]
    (aside,) = first.folder.glob("ledger-*.jsonl")
    decisions = replay(Ledger(aside).refresh()).decisions
    assert [each.next for each in decisions] == [Next.INTERRUPTED]


def test_a_decision_that_is_written_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempts(folder: Path, *, is_cut: bool) -> int:
        """Count the attempts of a trial that never comes to its end."""
        executor = FakeExecutor(failing("same-wave", log(steps=3), KILLED))
        first = campaign(folder, executor)
        whole = Ledger.append

        def cut(self: Ledger, *batch: Event, at_s: float) -> None:
            """Write what a kill leaves of the one write: all lines but the last."""
            is_end = isinstance(batch[-1], AttemptEnded)
            if is_end and any(isinstance(each, Decided) for each in batch):
                whole(self, *batch[:-1], at_s=at_s)
                raise Killed
            whole(self, *batch, at_s=at_s)

        if is_cut:
            with monkeypatch.context() as patched:
                patched.setattr(Ledger, "append", cut)
                with pytest.raises(Killed):
                    run(first)
        run(campaign(folder, executor))  # another process of the same session
        return sum(each.startswith("same-wave") for each in executor.submitted)

    assert attempts(tmp_path / "cut", is_cut=True) == attempts(tmp_path / "whole", is_cut=False)


def test_all_processes_of_a_session_plan_with_what_its_first_one_knew(tmp_path: Path) -> None:
    executor = FakeExecutor()
    first = campaign(tmp_path, executor)
    study = first.study
    assert isinstance(study, TuningStudy)
    calibrated = replace(study, sigma_prior=0.05)  # a calibration ended before the second came

    second = again(first, calibrated, session="first", executor=executor)
    second.open()
    assert second.study == study
    later = again(first, calibrated, session="second", executor=executor)
    later.open()
    assert later.study == calibrated


def test_a_lost_job_that_was_let_go_is_run_again(tmp_path: Path) -> None:
    class Lost(FakeExecutor):
        def poll(self, submissions: Sequence[Submission], *, root: Path) -> Any:
            said = super().poll(submissions, root=root)
            return {
                job_id: replace(each, state=State.LOST) if each.state is State.CANCELLED else each
                for job_id, each in said.items()
            }

    executor = Lost()
    executor.holds = True
    first = campaign(tmp_path, executor)
    first.turn()
    assert len(cancel_unwaited(first.folder, executors=lambda _: executor)) == 1
    executor.holds = False
    second = campaign(tmp_path, executor, session="second")
    run(second)
    assert {each.status for each in second.view().history} == {TrialStatus.MEASURED}


@pytest.mark.parametrize(
    ("compiles", "at_least_s"), [(True, 1800.0), (False, 60.0)], ids=["compiles", "does not"]
)
def test_a_process_that_comes_while_another_compiles_waits_for_both_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: bool, at_least_s: float
) -> None:
    waits: list[float] = []
    first = campaign(tmp_path, FakeExecutor())

    @contextmanager
    def watched(self: DriverLock, *, wait_s: float) -> Iterator[None]:
        waits.append(wait_s)
        yield  # the turn is the first one's, and it is not over

    monkeypatch.setattr(DriverLock, "mine", watched)
    joining = again(first, first.study, session="first", executor=FakeExecutor())
    joining.compile_step = (lambda *_: ()) if compiles else None
    joining.open()
    (wait_s,) = waits
    assert at_least_s <= wait_s < 3 * at_least_s


class Shared(Cluster):
    """In the middle of a question or a submission another process gets on too, or ours is killed.

    `meanwhile` is the other process; `kills` are the submissions after which the process that asked
    for them is gone, before it could write down the job's name.
    """

    def __init__(self, *, kills: frozenset[int]) -> None:
        super().__init__()
        self.kills = set(kills)
        self.meanwhile: Callable[[], None] = lambda: None

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Any:
        self.meanwhile()
        return super().poll(submissions, root=root)

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.meanwhile()
        job_id = super().submit(spec, request)
        if len(self.submitted) in self.kills:
            self.kills.remove(len(self.submitted))
            raise Killed
        return job_id


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=BESIDE_THE_LAB) for each in range(2, 8))]
)
def test_two_processes_drive_all_cells_together_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    """Either may take any turn, tries to in the midst of the other's, and may be killed in it."""
    drawn = random.Random(seed)
    nodes = ("node001", "node002", "node003")
    study = CellsStudy(cells=(on(*nodes[:2]), *map(on, nodes)), repeats=4)
    cluster = Shared(kills=frozenset(drawn.sample(range(1, 17), 3)))
    sessions = (f"session{number}" for number in itertools.count(1))
    every = [on_cluster(tmp_path, cluster, study, session=next(sessions)) for _ in range(2)]
    began_s = cluster.now_s
    while every[0].view().pending or every[1].view().pending:
        mine = drawn.randrange(2)

        def other(each: Campaign = every[1 - mine]) -> None:
            cluster.meanwhile, before = lambda: None, len(cluster.submitted)
            each.turn()
            assert len(cluster.submitted) == before, "one at a time"
            cluster.meanwhile = other

        cluster.meanwhile = other
        try:
            every[mine].turn()
        except Killed:
            every[mine] = on_cluster(tmp_path, cluster, study, session=next(sessions))
        cluster.now_s += 1
        assert cluster.now_s - began_s < 9000, "the study does not end"

    assert not cluster.kills
    trials = [trial.id for trial in study.decide(()).due]
    assert sorted(cluster.submitted) == sorted(trials), "each once"
    for node in nodes:
        own = [name for name, used in cluster.ran if node in used]
        assert own == [name for name in trials if name in own], "in the order of the study"
    history = every[0].view().history
    assert {each.status for each in history} == {TrialStatus.MEASURED}
    assert history == every[1].view().history
    # four rounds of a trial on two nodes and of one on each node: two after another in each
    assert cluster.now_s - began_s <= 4 * 2 * cluster.took_s + 20
