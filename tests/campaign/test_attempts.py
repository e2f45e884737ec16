"""One attempt: what pins the nodes, what a queue that does not move asks for, who helps a retry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.attempts import Attempts, compile_patience
from pytest_xlatune.campaign.sweep_run import Clock, SweepRun
from pytest_xlatune.executors import Executor, Request, Resumed
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    EpochBegan,
    Event,
    LedgerEntry,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.resources import Patience, Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.scripted import FakeExecutor, campaign, run

NODES = ("node001", "node002")
FIT, DEAD = Resumed(), Resumed(faults=("node002 is down: bad nic",), unfit=("node002",))
BACK = Resumed(nodes=("node002",))
DRAINED = Outcome(
    state=State.PENDING,
    reason="PENDING (ReqNodeNotAvail, UnavailableNodes:node002)",
    lacks_nodes=True,
)
LOST_NODE = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)", nodes=NODES)
JOB = Submission(trial_id="", attempt=1, executor="slurm", job_id="7", folder="first/one.1")


class Site(Executor):
    """An executor that runs nothing and says of its nodes what it is told to."""

    name = "slurm"
    max_in_flight = 0

    def __init__(self, *answers: Resumed) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []
        self.cancelled: list[str] = []

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        return ",".join(request.nodelist) or "any"

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        return {}

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        self.cancelled += [each.job_id for each in submissions]

    def resume(self, nodes: Sequence[str]) -> Resumed:
        self.asked.append(tuple(nodes))
        return self.answers.pop(0) if self.answers else DEAD


class Case:
    """One campaign's attempts with one job in flight, and a clock."""

    def __init__(
        self,
        folder: Path,
        *answers: Resumed,
        nodelist: tuple[str, ...] = NODES,
        queue_limit_s: int = 0,
        recover: bool | None = None,
    ) -> None:
        self.site = Site(*answers)
        self.now_s = 0.0
        cell = Cell(
            model_tag="pretend",
            parallelism=Parallelism.parse("FSDP=2"),
            nodelist=nodelist,
            protocol=Protocol(steps=12),
        )
        sweep = Sweep(
            name="s",
            launcher=CommandLauncher(argv=("trainer",)),
            profiles=(profile("one", "--xla_a=1"),),
            site=SiteSettings(resources=Resources(nodes=2, queue_limit_s=queue_limit_s)),
        )
        self.folder = folder
        run = SweepRun(
            resolved=ResolvedSweep(sweep=sweep, cell=cell),
            executor=self.site,
            folder=folder,
            cells={cell.digest: cell},
            clock=Clock(now=lambda: 1e9, ticks=lambda: self.now_s),
        )
        recovers = None if recover is None else lambda *_: bool(recover)
        self.attempts = Attempts(run, recover=recovers)
        self.trial = Trial(
            cell_digest=cell.digest,
            profile=profile("one", "--xla_a=1"),
            protocol=cell.protocol,
            study="tuning",
            stage="wave1",
        )
        self.job = Submission.from_json(JOB.to_json() | {"trial_id": self.trial.id})
        self.state = LedgerState()
        self.write(
            CampaignOpened(cells=(cell,), study="tuning", session="first"),
            TrialPlanned(trial=self.trial),
            AttemptIntended(trial_id=self.trial.id, attempt=1, comment="c"),
            AttemptSubmitted(submission=self.job),
        )

    def write(self, *events: Event) -> None:
        entries = [LedgerEntry(number=1, at_s=self.now_s, event=event) for event in events]
        self.state = replay(entries, onto=self.state)

    def wait(self, outcome: Outcome) -> tuple[Event, ...]:
        events = self.attempts.wait_in_queue(self.state, {self.job.job_id: outcome})
        self.write(*events)
        return events

    def look(self, outcome: Outcome) -> tuple[Event, ...]:
        events = self.attempts.events_for(self.state, self.job, outcome)
        self.write(*events)
        return events


def test_a_node_is_brought_back_twice_and_no_more(tmp_path: Path) -> None:
    case = Case(tmp_path, BACK, BACK, BACK)
    for _ in range(2):
        assert isinstance(case.wait(DRAINED)[0], EpochBegan)
        case.now_s += 60
    (stop,) = case.wait(DRAINED)
    assert isinstance(stop, Decided)
    assert "resumed 2 times without" in sentence(stop.why)


def test_the_queues_budget_is_the_users(tmp_path: Path) -> None:
    case = Case(tmp_path, queue_limit_s=100)
    behind = Outcome(state=State.PENDING, reason="PENDING (Priority)")
    assert case.wait(behind) == ()
    case.now_s = 99
    assert case.wait(behind) == ()
    assert case.wait(Outcome(state=State.RUNNING)) == ()
    case.now_s = 150
    assert case.wait(behind) == (), "a trial that ran in between starts it anew"
    case.now_s = 251
    (stop,) = case.wait(behind)
    assert isinstance(stop, Decided)
    assert (stop.next, stop.cls) == ("stop", "queue-limit")
    assert stop.evidence == "PENDING (Priority)"


NEVER = Outcome(
    state=State.PENDING, reason="PENDING (PartitionTimeLimit)", never_starts="ask for less time"
)


def test_a_job_that_slurm_will_never_start_stops_the_sweep_with_the_remedy(tmp_path: Path) -> None:
    case = Case(tmp_path)
    behind = Outcome(state=State.PENDING, reason="PENDING (Priority)")
    assert case.wait(NEVER) == ()
    case.now_s = 59
    assert case.wait(behind) == (), "a controller that restarts may say so for a moment"
    case.now_s = 100
    assert case.wait(NEVER) == ()
    case.now_s = 161
    (stop,) = case.wait(NEVER)
    assert isinstance(stop, Decided)
    assert (stop.next, stop.cls) == ("stop", "never-starts")
    assert sentence(stop.why) == (
        "never-starts (PENDING (PartitionTimeLimit): ask for less time): the sweep stops"
    )


def test_nodes_that_are_away_are_told_before_a_limit_that_may_be_none(tmp_path: Path) -> None:
    unclear = replace(NEVER, reason="PENDING (PartitionNodeLimit)", lacks_nodes=True)
    (stop,) = Case(tmp_path, DEAD).wait(unclear)
    assert isinstance(stop, Decided)
    assert stop.cls == "node-drain"
    case = Case(tmp_path, BACK, FIT, FIT, FIT, FIT)
    (began,) = case.wait(unclear)
    assert isinstance(began, EpochBegan)
    case.now_s = 61
    assert case.wait(unclear) == (), "the node has just come back"
    case.now_s = 123
    assert case.wait(unclear) == (), "it is looked at first"
    (stop,) = case.wait(unclear)
    assert isinstance(stop, Decided)
    assert stop.cls == "never-starts"


@pytest.mark.parametrize(
    ("answers", "recover", "following"),
    [
        pytest.param((BACK,), None, "retry", id="resumed"),
        pytest.param((FIT,), None, "retry", id="fit already"),
        pytest.param((DEAD,), True, "retry", id="the site helps where RESUME does not"),
        pytest.param((DEAD,), False, "stop", id="no hook can"),
        pytest.param((DEAD,), None, "stop", id="no hook"),
    ],
)
def test_a_node_failure_is_retried_when_the_node_is_back(
    tmp_path: Path, answers: tuple[Resumed, ...], recover: bool | None, following: str
) -> None:
    events = Case(tmp_path, *answers, recover=recover).look(LOST_NODE)
    (ended,) = (each for each in events if isinstance(each, AttemptEnded))
    (decided,) = (each for each in events if isinstance(each, Decided))
    assert ended.outcome.state is State.NODE_FAIL
    assert (decided.next, decided.cls) == (following, "node-fail")
    assert sentence(decided.proof) == "NODE_FAIL (NodeDown); no step, before-memstats"
    assert any(isinstance(each, EpochBegan) for each in events) is (following == "retry")
    if following == "stop":
        assert "node002 is down: bad nic" in sentence(decided.why)


CUT = Outcome(state=State.CANCELLED, reason="CANCELLED by 0", nodes=NODES)
HANG = "HW Exception by GPU node-5 (Agent handle: 0x55) reason :GPU Hang"


def running(case: Case, *lines: str) -> tuple[Event, ...]:
    log = case.folder / JOB.folder / "log.0.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return case.look(Outcome(state=State.RUNNING, nodes=NODES))


def test_a_fatal_line_is_in_the_ledger_before_the_job_is_ended(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert running(case, "error: RPC failed; HTTP 502", HANG) == ()
    case.now_s += 61
    (cut,) = running(case)
    assert isinstance(cut, AttemptCutShort)
    assert (cut.fatal and cut.fatal.text, cut.still_s) == (HANG, 61)
    assert case.site.cancelled == []
    assert running(case) == ()
    assert case.site.cancelled == ["7"]
    case.now_s += 29
    assert running(case) == ()
    assert case.site.cancelled == ["7"], "an end takes time"
    case.now_s += 1
    assert running(case) == ()
    assert case.site.cancelled == ["7", "7"]

    decided, ended = case.look(CUT)
    assert isinstance(decided, Decided)
    # not the outage before it, nor that the job was cancelled
    assert (decided.next, decided.cls, decided.evidence) == ("retry", "gpu-hardware", HANG)
    assert isinstance(ended, AttemptEnded)
    assert ended.findings[0].cls == "gpu-hardware"


def test_a_process_that_takes_over_knows_that_the_end_was_ours(tmp_path: Path) -> None:
    first = Case(tmp_path)
    running(first)
    first.now_s += 601
    (cut,) = running(first)
    assert isinstance(cut, AttemptCutShort)
    assert cut.fatal is None
    second = Case(tmp_path)
    second.write(cut)
    decided, _ = second.look(CUT)
    assert isinstance(decided, Decided)
    assert (decided.next, decided.cls) == ("retry", "hang-init")
    assert "601 s without a step" in sentence(decided.why)


def test_a_job_that_was_ended_after_its_last_step_is_measured(tmp_path: Path) -> None:
    case = Case(tmp_path)
    lines = [
        f"completed step: {n}, seconds: 0.500, TFLOP/s/device: 1.0, Tokens/s/device: 1000.0, "
        "loss: 7.100"
        for n in range(12)
    ]
    running(case, *lines, HANG)
    case.now_s += 61
    assert isinstance(running(case)[0], AttemptCutShort)
    ended, *_ = case.look(CUT)
    assert isinstance(ended, TrialEnded)
    assert ended.result.status == "measured"


def looked(rank: int, **said: Any) -> str:
    process = {
        "pid": 9, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "futex", "channel": "", "on": "", "main_cores": 0.0,
        "stacks": [["/u/train.py:4 main"]], **said,
    }  # fmt: skip
    return json.dumps({
        "node": NODES[rank], "rank": rank, "at_s": 1e9, "quiet_s": 0.0, "processes": [process],
    })  # fmt: skip


def test_a_job_that_hangs_is_ended_once_its_ranks_have_told_what_they_do(tmp_path: Path) -> None:
    case = Case(tmp_path)
    running(case)
    folder = tmp_path / JOB.folder
    for name in ("started.json", "started.1.json"):
        (folder / name).write_text("{}")
    case.now_s += 601
    assert isinstance(running(case)[0], AttemptCutShort)
    assert running(case) == ()
    assert (folder / "hung").exists()
    (folder / "hang.json").write_text(looked(0))
    assert running(case) == ()
    assert case.site.cancelled == []
    (folder / "hang.1.json").write_text(looked(1, call="recvfrom", on="10.0.0.9:443"))
    assert running(case) == ()
    assert case.site.cancelled == ["7"]
    decided, ended = case.look(CUT)
    assert isinstance(decided, Decided)
    assert isinstance(ended, AttemptEnded)
    said = (
        "rank 1 on node002 is behind: waits for 10.0.0.9:443 in train.py:4 main; 1 other rank "
        "waiting in train.py:4 main"
    )
    assert (decided.next, decided.cls) == ("retry", "hang-init")
    assert sentence(decided.proof) == f"slurm: CANCELLED by 0; no step, before-memstats; {said}"
    (behind,) = (each for each in ended.findings if each.cls == "rank-behind")
    assert (behind.action, behind.source, sentence(behind.why)) == ("none", "node002", said)


def test_a_node_that_does_not_answer_keeps_no_job_from_its_end(tmp_path: Path) -> None:
    case = Case(tmp_path)
    running(case)
    folder = tmp_path / JOB.folder
    for name in ("started.json", "started.1.json"):
        (folder / name).write_text("{}")
    (folder / "hang.json").write_text(looked(0))
    case.now_s += 601
    running(case)
    for _ in range(2):
        assert running(case) == ()
        assert case.site.cancelled == []
        case.now_s += 89
    case.now_s += 1
    assert running(case) == ()
    assert case.site.cancelled == ["7"]
    decided = case.look(CUT)[0]
    assert isinstance(decided, Decided)
    assert "rank 1 is behind: its node" in sentence(decided.proof)


def test_the_first_program_of_a_cell_may_compile_as_long_as_its_job_may(tmp_path: Path) -> None:
    each = campaign(tmp_path, FakeExecutor())
    run(each)
    known = read_cell_report(each.folder)
    trial, ours = known.history[0].trial, Patience()
    assert compile_patience(LedgerState(), trial, ours) == math.inf
    # a later one of the cell twice as long as those before, and the usual patience at least
    assert compile_patience(known.state, trial, ours) == 1.0
    quick = Patience(compiling_s=3)
    assert compile_patience(LedgerState(), trial, quick) == 1.0, "the site's own word stands"
