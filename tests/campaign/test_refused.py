"""What the scheduler or the campaign refuses, and a work directory that is away for a while."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import QueueFull, Request, SchedulerDown
from pytest_xlatune.ledger import LEDGER, Ledger, Noted
from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.studies import Decision, History, OnNodeFailure
from tests.helpers.scripted import CellsStudy, Cluster, campaign, on, run
from tests.helpers.tables import rows

FOUR = tuple(on(f"node00{n}") for n in range(1, 5))
ONE = FOUR[:1]


def notes(made: Campaign) -> list[str]:
    """What people are told besides how trials end."""
    entries = Ledger(made.folder / LEDGER).refresh()
    return [sentence(entry.event.remark) for entry in entries if isinstance(entry.event, Noted)]


def statuses(made: Campaign) -> list[str]:
    return [each.status for each in made.view().history]


class Again(CellsStudy, frozen=True, kw_only=True):
    """A study of a stranger that never leaves out what is final."""

    def decide(self, history: History) -> Decision:
        return super().decide(())


@rows(
    "study, words",
    {
        "it never ends": (Again(cells=ONE), "it proposes .* again"),
    },
)
def test_a_faulty_study_is_refused_and_its_ledger_goes_on(
    tmp_path: Path, study: CellsStudy, words: str
) -> None:
    cluster, name = Cluster(), type(study).__name__
    with pytest.raises(ConfigError, match=rf"\({name}\) is faulty: .*{words}"):
        run(campaign(tmp_path, cluster, study), cluster)
    assert len(cluster.submitted) == isinstance(study, Again)
    made = campaign(tmp_path, cluster, CellsStudy(cells=ONE), session="second")
    run(made, cluster)
    assert statuses(made) == ["measured"]


class Interrupted(Cluster):
    """A cluster whose user says Ctrl-C so often while the first job is handed over."""

    def __init__(self, times: int, *, refuses: bool) -> None:
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


@rows(
    "times, refuses, in_flight",
    {
        "once: it is known, so that it can be ended": (1, False, 1),
        "a refusal that is none: the next run submits it": (1, True, 0),
        "twice: at once": (2, False, 0),
    },
)
def test_ctrl_c_while_a_job_is_handed_over(
    tmp_path: Path, times: int, refuses: bool, in_flight: int
) -> None:
    cluster, study = Interrupted(times, refuses=refuses), CellsStudy(cells=ONE)
    with pytest.raises(KeyboardInterrupt):
        run(campaign(tmp_path, cluster, study), cluster)
    after = campaign(tmp_path, cluster, study, session="second")
    assert len(after.view().state.in_flight()) == in_flight
    run(after, cluster)
    assert statuses(after) == ["measured"]
    assert len(cluster.submitted) == 1


class Hanging(Cluster):
    """A cluster whose sbatch hangs once a job is in its queue."""

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        if self.submitted:
            self.now_s += 60
            raise SchedulerDown("sbatch did not answer in 60 s and was ended")
        return super().submit(spec, request)


def test_what_runs_is_read_while_sbatch_hangs(tmp_path: Path) -> None:
    cluster = Hanging()
    made = campaign(tmp_path, cluster, CellsStudy(cells=ONE, repeats=2))
    for _ in range(3):
        made.turn()
    (said,) = notes(made)
    assert "did not answer in 60 s" in said, "told at once"
    assert statuses(made) == ["measured", "running"]


class Limited(Cluster):
    """A cluster whose user may have so many jobs at a time; others of theirs count too."""

    def __init__(self, at_most: int) -> None:
        super().__init__()
        self.at_most, self.others, self.asked = at_most, 0, 0

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.asked += 1
        standing = [self.standing(job_id).state for job_id in self._jobs]
        if self.others + sum(not state.is_final for state in standing) >= self.at_most:
            raise QueueFull("Job violates accounting/QOS policy (job submit limit)")
        return super().submit(spec, request)


def test_a_limit_that_others_hold_is_waited_out_for_a_while(tmp_path: Path) -> None:
    cluster = Limited(1)
    made = campaign(tmp_path, cluster, CellsStudy(cells=ONE, repeats=4))
    while not cluster.submitted:
        made.turn()
        cluster.now_s += 1
    cluster.others, until_s = 1, cluster.now_s + 600
    while cluster.now_s < until_s:
        made.turn()
        cluster.now_s += 1
    assert made.view().stopped is None
    assert len(cluster.submitted) == 1
    assert "waits until a job ends: Job violates" in notes(made)[-1]
    cluster.others = cluster.asked = 0
    assert run(made, cluster) < 3 * 60 + 40, "the next one follows as soon as a place is free"
    assert statuses(made) == ["measured"] * 4
    assert cluster.asked < 40, "sbatch is not called every second"
    never = Limited(0)
    refused = campaign(tmp_path / "never", never, CellsStudy(cells=ONE))
    assert 900 <= run(refused, never) < 930
    assert "job submit limit" in sentence(refused.view().stopped)


class Refusing(Cluster):
    """A cluster that takes no job for these nodes."""

    def __init__(self, words: str, *nodes: str) -> None:
        super().__init__()
        self.words, self.nodes, self.asked = words, {*nodes}, 0

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.asked += 1
        if self.nodes & {*request.nodelist}:
            raise SubmissionError(self.words)
        return super().submit(spec, request)


UNKNOWN = ("invalid node name specified: node002", "node002")
EVERY = ("Invalid account", *(f"node00{n}" for n in range(1, 5)))


@rows(
    "refused, stops",
    {
        "a node list, which is a verdict: the other nodes go on": (UNKNOWN, False),
        "what is not about the nodes": (EVERY, True),
    },
)
def test_a_refusal(tmp_path: Path, refused: tuple[str, ...], stops: bool) -> None:
    cluster = Refusing(*refused)
    study = CellsStudy(cells=FOUR, repeats=9, on_node_failure=OnNodeFailure.VERDICT)
    made = campaign(tmp_path, cluster, study)
    run(made, cluster)
    if stops:
        assert cluster.words in sentence(made.view().stopped)
        assert cluster.asked <= 4, "not once for each of 36 trials"
        return
    assert made.view().stopped is None
    for each in made.view().history:
        is_refused = each.trial.cell_digest == FOUR[1].digest
        assert each.status == ("unmeasured" if is_refused else "measured")
        assert (cluster.words in sentence(each.reason)) is is_refused


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_xlatune.campaign.TURN_S", 0.0)


def away(made: Campaign, cluster: Cluster, *, for_s: int) -> None:
    """Let the folder be away for so long, in the middle of the sweep."""
    folder, gone = made.folder, made.folder.with_name("gone")
    while not cluster.submitted:
        made.turn()
        cluster.now_s += 1
    folder.rename(gone)
    try:
        for _ in range(for_s):
            made.turn()
            cluster.now_s += 1
            assert not folder.exists(), "nothing is begun anew in its place"
    finally:
        gone.rename(folder)


@pytest.mark.parametrize("for_s", [10, 600])
def test_a_work_directory_that_is_away_is_waited_for(tmp_path: Path, for_s: int) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=3))
    away(made, cluster, for_s=for_s)
    run(made, cluster)
    assert made.view().stopped is None
    assert [result.status for result in made.view().history] == ["measured"] * 3
    assert len(cluster.submitted) == 3, "a trial that ended meanwhile is read, not run again"


def test_one_that_stays_away_ends_the_session_with_its_name(tmp_path: Path) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=3))
    with pytest.raises(LedgerError, match=str(made.folder)):
        away(made, cluster, for_s=1000)


def test_who_looks_at_each_turn_goes_on_looking_while_the_directory_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=1))
    made.turn()
    folder, gone = made.folder, made.folder.with_name("gone")
    looks: list[bool] = []

    def look() -> None:
        looks.append(folder.exists())
        if len(looks) == 1:
            folder.rename(gone)  # just after the campaign read on
        if len(looks) == 4:
            gone.rename(folder)

    def passes(_: float) -> None:
        cluster.now_s += 1

    monkeypatch.setattr("pytest_xlatune.campaign.time.sleep", passes)
    assert not made.wait(lambda view: not view.pending, on_turn=look).stopped
    assert looks[:5] == [True, False, False, False, True]
