"""One attempt: what pins the nodes, what a queue that does not move asks for, who helps a retry."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.campaign.attempts import Attempts, compile_patience
from pytest_xlatune.campaign.sweep_run import Clock, SweepRun
from pytest_xlatune.executors import Resumed
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
    TrialPlanned,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Patience, Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers import scripted
from tests.helpers.scripted import on
from tests.helpers.tables import rows

NODES = ("node001", "node002")
CELL = on(*NODES)
FIT, DEAD = Resumed(), Resumed(faults=("node002 is down: bad nic",), unfit=("node002",))
BACK = Resumed(nodes=("node002",))
LOST_NODE = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)", nodes=NODES)
CUT = Outcome(state=State.CANCELLED, reason="CANCELLED by 0", nodes=NODES)
HANG = "HW Exception by GPU node-5 (Agent handle: 0x55) reason :GPU Hang"
TRIAL = Trial(
    cell_digest=CELL.digest,
    profile=scripted.PROFILES[0],
    protocol=CELL.protocol,
    study="tuning",
    stage="wave1",
)
JOB = Submission(trial_id=TRIAL.id, attempt=1, executor="slurm", job_id="7", folder="first/one.1")


def waiting(reason: str, **said: Any) -> Outcome:
    return Outcome(state=State.PENDING, reason=f"PENDING ({reason})", **said)


DRAINED = waiting("ReqNodeNotAvail, UnavailableNodes:node002", lacks_nodes=True)
BEHIND = waiting("Priority")
NEVER = waiting("PartitionTimeLimit", never_starts="ask for less time")


class Site(scripted.FakeExecutor):
    """Runs nothing, and says of its nodes what it is told to."""

    name = "slurm"

    def __init__(self, *answers: Resumed) -> None:
        super().__init__()
        self.answers = list(answers)

    def resume(self, nodes: Sequence[str]) -> Resumed:
        return self.answers.pop(0) if self.answers else DEAD


class Case:
    """One campaign's attempts with one job in flight, and a clock."""

    def __init__(
        self,
        folder: Path,
        *answers: Resumed,
        queue_limit_s: int = 0,
        recover: bool | None = None,
    ) -> None:
        self.site, self.now_s, self.folder = Site(*answers), 0.0, folder / JOB.folder
        sweep = Sweep(
            name="s",
            launcher=CommandLauncher(argv=("trainer",)),
            profiles=scripted.PROFILES,
            site=SiteSettings(resources=Resources(nodes=2, queue_limit_s=queue_limit_s)),
        )
        run = SweepRun(
            resolved=ResolvedSweep(sweep=sweep, cell=CELL),
            executor=self.site,
            folder=folder,
            cells={CELL.digest: CELL},
            clock=Clock(now=lambda: 1e9, ticks=lambda: self.now_s),
        )
        recovers = None if recover is None else lambda *_: bool(recover)
        self.attempts = Attempts(run, recover=recovers)
        self.state = LedgerState()
        self.write(
            CampaignOpened(cells=(CELL,), study="tuning", session="first"),
            TrialPlanned(trial=TRIAL),
            AttemptIntended(trial_id=TRIAL.id, attempt=1, comment="c"),
            AttemptSubmitted(submission=JOB),
        )

    def write(self, *events: Event) -> None:
        entries = [LedgerEntry(number=1, at_s=self.now_s, event=event) for event in events]
        self.state = replay(entries, onto=self.state)

    def wait(self, outcome: Outcome, at_s: float) -> str:
        """Look at a queue; return what was decided, "" is nothing."""
        self.now_s = at_s
        events = self.attempts.wait_in_queue(self.state, {JOB.job_id: outcome})
        self.write(*events)
        (event,) = events or (None,)
        return event.cls if isinstance(event, Decided) else "epoch" if event else ""

    def look(self, outcome: Outcome) -> tuple[Event, ...]:
        events = self.attempts.events_for(self.state, JOB, outcome)
        self.write(*events)
        return events

    def running(self, *lines: str, for_s: float = 0) -> tuple[Event, ...]:
        """Let the trainer write lines, and so much time pass."""
        self.now_s += for_s
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.0.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        return self.look(Outcome(state=State.RUNNING, nodes=NODES))


def only(kind: type[Any], events: tuple[Event, ...]) -> Any:
    (event,) = (event for event in events if isinstance(event, kind))
    return event


UNCLEAR = replace(NEVER, lacks_nodes=True)
RUNS = Outcome(state=State.RUNNING)


@rows(
    "answers, looks, words",
    {
        "a node is brought back twice and no more": (
            (BACK, BACK, BACK),
            [(DRAINED, 0, "epoch"), (DRAINED, 60, "epoch"), (DRAINED, 120, "node-drain")],
            "resumed 2 times without"),
        "the queue's budget begins anew where a trial ran in between": (
            (),
            [(BEHIND, 0, ""), (BEHIND, 99, ""), (RUNS, 99, ""), (BEHIND, 150, ""),
             (BEHIND, 251, "queue-limit")],
            "PENDING (Priority)"),
        "a controller that restarts may say for a moment that it never starts": (
            (),
            [(NEVER, 0, ""), (BEHIND, 59, ""), (NEVER, 60, ""), (NEVER, 121, "never-starts")],
            "never-starts (PENDING (PartitionTimeLimit): change what a job asks for"),
        "nodes that are away are told before a limit that may be none": (
            (DEAD,), [(UNCLEAR, 0, "node-drain")], "node002 is down: bad nic"),
        "a node that has just come back is looked at first": (
            (BACK, FIT, FIT, FIT, FIT),
            [(UNCLEAR, 0, "epoch"), (UNCLEAR, 61, ""), (UNCLEAR, 123, ""),
             (UNCLEAR, 123, "never-starts")], "change what a job asks for"),
    },
)  # fmt: skip
def test_what_a_queue_that_does_not_move_asks_for(
    tmp_path: Path, answers: tuple[Resumed, ...], looks: list[Any], words: str
) -> None:
    decided = [each for _, _, each in looks]
    case = Case(tmp_path, *answers, queue_limit_s=100 if "queue-limit" in decided else 0)
    assert [case.wait(said, at_s) for said, at_s, _ in looks] == decided
    stop = case.state.stop
    assert stop is not None
    assert words in f"{sentence(stop.why)} {stop.evidence}"


@rows(
    "answer, recover, following",
    {
        "resumed": (BACK, None, "retry"),
        "fit already": (FIT, None, "retry"),
        "the site helps where RESUME does not": (DEAD, True, "retry"),
        "no hook can": (DEAD, False, "stop"),
    },
)
def test_a_node_failure_is_retried_when_the_node_is_back(
    tmp_path: Path, answer: Resumed, recover: bool | None, following: str
) -> None:
    events = Case(tmp_path, answer, recover=recover).look(LOST_NODE)
    decided = only(Decided, events)
    assert only(AttemptEnded, events).outcome.state is State.NODE_FAIL
    assert (decided.next, decided.cls) == (following, "node-fail")
    assert sentence(decided.proof) == "NODE_FAIL (NodeDown); no step, before-memstats"
    began = [sentence(each.why) for each in events if isinstance(each, EpochBegan)]
    assert bool(began) is (following == "retry")
    assert ("node-fail: the site did" in "".join(began)) is bool(recover)
    assert ("node002 is down: bad nic" in sentence(decided.why)) is (following == "stop")


def test_a_lost_job_is_cancelled(tmp_path: Path) -> None:
    lost = Case(tmp_path)
    lost.look(Outcome(state=State.LOST))
    assert lost.site.cancelled == ["7"]


def test_a_fatal_line_is_in_the_ledger_before_the_job_is_ended(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert case.running("error: RPC failed; HTTP 502", HANG) == ()
    (cut,) = case.running(for_s=61)
    assert isinstance(cut, AttemptCutShort)
    assert (cut.fatal and cut.fatal.text, cut.still_s) == (HANG, 61)
    assert case.site.cancelled == []
    for for_s, times in ((0, 1), (29, 1), (1, 2)):  # an end takes time
        assert case.running(for_s=for_s) == ()
        assert case.site.cancelled == ["7"] * times
    events = case.look(CUT)
    decided = only(Decided, events)
    # not the outage before it, nor that the job was cancelled
    assert (decided.next, decided.cls, decided.evidence) == ("retry", "gpu-hardware", HANG)
    assert only(AttemptEnded, events).findings[0].cls == "gpu-hardware"


def looked(rank: int, **said: Any) -> str:
    process = {
        "pid": 9, "parent": 1, "name": "python", "rank": rank, "ranks": 2, "state": "S",
        "threads": 9, "call": "futex", "channel": "", "on": "",
        "stacks": [["/u/train.py:4 main"]], **said,
    }  # fmt: skip
    node = {"node": NODES[rank], "rank": rank, "at_s": 1e9, "quiet_s": 0.0}
    return json.dumps({**node, "processes": [process]})


BEHIND_RANK = (
    "rank 1 on node002 is behind: waits for 10.0.0.9:443 in train.py:4 main; 1 other rank "
    "waiting in train.py:4 main"
)


@rows("answers", {"both ranks have told what they do": True, "a node does not answer": False})
def test_a_job_that_hangs_is_ended_once(tmp_path: Path, answers: bool) -> None:
    case = Case(tmp_path)
    case.running()
    for name in ("started.json", "started.1.json"):
        (case.folder / name).write_text("{}")
    cut = only(AttemptCutShort, case.running(for_s=601))
    assert case.running() == ()
    assert (case.folder / "hung").exists()
    (case.folder / "hang.json").write_text(looked(0))
    for for_s in (0, 89):
        assert case.running(for_s=for_s) == ()
        assert case.site.cancelled == []
    if answers:
        (case.folder / "hang.1.json").write_text(looked(1, call="recvfrom", on="10.0.0.9:443"))
    assert case.running(for_s=0 if answers else 2) == ()
    assert case.site.cancelled == ["7"]
    another_process = Case(tmp_path)
    another_process.write(cut)
    events = another_process.look(CUT)
    decided = only(Decided, events)
    assert (decided.next, decided.cls) == ("retry", "hang-init")
    assert "601 s without a step" in sentence(decided.why), "it knows that the end was ours"
    if not answers:
        assert "rank 1 is behind: its node" in sentence(decided.proof)
        return
    proof = f"slurm: CANCELLED by 0; no step, before-memstats; {BEHIND_RANK}"
    assert sentence(decided.proof) == proof
    findings = {each.cls: each for each in only(AttemptEnded, events).findings}
    behind = findings["rank-behind"]
    assert (behind.action, behind.source) == ("none", "node002")
    assert sentence(behind.why) == BEHIND_RANK


def test_the_first_program_of_a_cell_may_compile_as_long_as_its_job_may(tmp_path: Path) -> None:
    made = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(made)
    known = read_cell_report(made.folder)
    trial, nothing = known.history[0].trial, LedgerState()
    assert compile_patience(nothing, trial, Patience()) == math.inf
    # a later one of the cell twice as long as those before, and the usual patience at least
    assert compile_patience(known.state, trial, Patience()) == 1.0
    assert compile_patience(nothing, trial, Patience(compiling_s=3)) == 1.0, "the site's word"
