"""One attempt: what its queue asks for, who helps a retry, when it is ended, who is the cause."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign._follow import Follower
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
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Protocol
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
from tests.helpers.turned import line

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


class Case(scripted.FakeExecutor):
    """One campaign's attempts, one job in flight, a clock, and what a site says of its nodes."""

    name = "slurm"

    def __init__(
        self,
        folder: Path,
        *answers: Resumed,
        queue_limit_s: int = 0,
        recover: bool | None = None,
    ) -> None:
        super().__init__()
        self.answers, self.now_s, self.folder = list(answers), 0.0, folder / JOB.folder
        sweep = Sweep(
            name="s",
            launcher=CommandLauncher(argv=("trainer",)),
            profiles=scripted.PROFILES,
            site=SiteSettings(resources=Resources(nodes=2, queue_limit_s=queue_limit_s)),
        )
        run = SweepRun(
            resolved=ResolvedSweep(sweep=sweep, cell=CELL),
            executor=self,
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

    def resume(self, nodes: Sequence[str]) -> Resumed:
        return self.answers.pop(0) if self.answers else DEAD

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
    lost = Case(tmp_path)
    lost.look(Outcome(state=State.LOST))
    assert lost.cancelled == ["7"], "what its trainer started may still run"
    assert (decided.next, decided.cls) == (following, "node-fail")
    assert sentence(decided.proof) == "NODE_FAIL (NodeDown); no step, before-memstats"
    began = [sentence(each.why) for each in events if isinstance(each, EpochBegan)]
    assert bool(began) is (following == "retry")
    assert ("node-fail: the site did" in "".join(began)) is bool(recover)
    assert ("node002 is down: bad nic" in sentence(decided.why)) is (following == "stop")


def test_a_fatal_line_is_in_the_ledger_before_the_job_is_ended(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert case.running("error: RPC failed; HTTP 502", HANG) == ()
    (cut,) = case.running(for_s=61)
    assert isinstance(cut, AttemptCutShort)
    assert (cut.fatal and cut.fatal.text, cut.still_s) == (HANG, 61)
    assert case.cancelled == []
    for for_s, times in ((0, 1), (29, 1), (1, 2)):  # an end takes time
        assert case.running(for_s=for_s) == ()
        assert case.cancelled == ["7"] * times
    events = case.look(CUT)
    decided = only(Decided, events)
    # not the outage before it, nor that the job was cancelled
    assert (decided.next, decided.cls, decided.evidence) == ("retry", "gpu-hardware", HANG)
    assert only(AttemptEnded, events).findings[0].cls == "gpu-hardware"


@rows("answers", {"both ranks have told what they do": True, "a node does not answer": False})
def test_a_job_that_hangs_is_ended_once(tmp_path: Path, answers: bool) -> None:
    case = Case(tmp_path)
    case.running()
    for name in ("started.json", "started.1.json"):
        (case.folder / name).write_text("{}")
    cut = only(AttemptCutShort, case.running(for_s=601))
    assert case.running() == ()
    assert (case.folder / "hung").exists()
    look = {"node": NODES[0], "rank": 0, "at_s": 1e9, "quiet_s": 0.0, "processes": []}
    (case.folder / "hang.json").write_text(json.dumps(look))
    for for_s in (0, 89):
        assert case.running(for_s=for_s) == ()
        assert case.cancelled == []
    if answers:
        (case.folder / "hang.1.json").write_text(json.dumps({**look, "rank": 1}))
    assert case.running(for_s=0 if answers else 2) == ()
    assert case.cancelled == ["7"]
    another_process = Case(tmp_path)
    another_process.write(cut)
    decided = only(Decided, another_process.look(CUT))
    assert (decided.next, decided.cls) == ("retry", "hang-init")
    assert "601 s without a step" in sentence(decided.why), "it knows that the end was ours"
    assert "slurm: CANCELLED by 0; no step, before-memstats" in sentence(decided.proof)
    assert ("its node did not answer" in sentence(decided.proof)) is not answers


def test_the_first_program_of_a_cell_may_compile_as_long_as_its_job_may(tmp_path: Path) -> None:
    made = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(made)
    known = read_cell_report(made.folder)
    trial, nothing = known.history[0].trial, LedgerState()
    assert compile_patience(nothing, trial, Patience()) == math.inf
    # a later one of the cell twice as long as those before, and the usual patience at least
    assert compile_patience(known.state, trial, Patience()) == 1.0
    assert compile_patience(nothing, trial, Patience(compiling_s=3)) == 1.0, "the site's word"


PATIENCE = Patience(before_memstats_s=600, compiling_s=1800, training_s=500, after_fatal_s=60)
MEMSTATS = "Memstats: After params initialized:"
CHECK = "F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)"
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
RAISED = "jax.errors.JaxRuntimeError: INTERNAL: Failed to compile jit_train_step"
DYING = "F0112 07:08:09.2 77 client.h:80] UNAVAILABLE: stopped sending heartbeats"
NO_GRAIN = "ModuleNotFoundError: No module named 'grain'"
GLOO = "jax.errors.JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: Connection reset by peer"
OWN = "Traceback (most recent call last):\nKeyError: 'batch'"


def steps(first: int, end: int, step_s: float = 0.5) -> list[str]:
    return [f"completed step: {n}, seconds: {step_s:.3f}, loss: 7.100" for n in range(first, end)]


class Logs:
    def __init__(self, root: Path) -> None:
        self.folder = root / JOB.folder
        self.folder.mkdir(parents=True)
        self.follower = Follower(root, patience=PATIENCE)

    def say(self, *lines: str, rank: int = 0) -> None:
        with (self.folder / f"log.{rank}.txt").open("a", encoding="utf-8") as log:
            log.writelines(f"{line}\n" for line in lines)

    def look(self, at_s: float, *, rotates: bool = False) -> AttemptCutShort | None:
        return self.follower.reason_to_end(JOB, Protocol(), ticks_s=at_s, rotates=rotates)

    def ends_between(self, patient_s: float, late_s: float) -> AttemptCutShort:
        """Look twice; the attempt is ended at the second look."""
        assert self.look(patient_s) is None
        found = self.look(late_s)
        assert found is not None
        return found


@pytest.fixture
def case(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@rows(
    "lines, limit_s",
    {
        "before Memstats, without a log": ([], 600),
        "compiling": ([MEMSTATS], 1800),
        "training": ([MEMSTATS, *steps(0, 2)], 500),
        # what a program may survive: a line by which nothing is ended sooner
        "a failed try": (
            [MEMSTATS, "W0112 07:08:09.2 77 autotuner.cc:9] RESOURCE_EXHAUSTED: 9 bytes"],
            1800),
        "an exception": ([MEMSTATS, "Traceback (most recent call last):", NO_GRAIN], 1800),
    },
)  # fmt: skip
def test_a_hang_is_no_step_for_longer_than_the_phase_allows(
    case: Logs, lines: list[str], limit_s: float
) -> None:
    case.say(*lines)
    assert case.look(1000.0) is None
    case.say("NCCL INFO Channel 00/02 : 0 1", "still busy")
    found = case.ends_between(1000.0 + limit_s, 1001.0 + limit_s)
    assert found == AttemptCutShort(trial_id=TRIAL.id, attempt=1, still_s=1 + limit_s)


@rows("event, limit_s", {"compiling": ("compile", 1800), "in a turn": ("turn", 500)})
def test_a_rotation_has_the_patience_of_what_its_journal_says(
    case: Logs, event: str, limit_s: float
) -> None:
    case.say(MEMSTATS, *steps(0, 3))
    said = line("found", name="f") + line(event, program="fast", first_call=3)
    (case.folder / "rotation.0.jsonl").write_text(said, encoding="utf-8")
    looks = [case.look(at_s, rotates=True) for at_s in (0, limit_s, limit_s + 1)]
    assert [each is not None for each in looks] == [False, False, True]


@pytest.mark.parametrize("fatal", [HANG, CHECK, OOM, RAISED, DYING])
@pytest.mark.parametrize("phase", [[], [MEMSTATS, *steps(0, 9)]], ids=len)
def test_a_fatal_line_ends_a_trial_that_stands_still_after_it(
    case: Logs, fatal: str, phase: list[str]
) -> None:
    case.say(*phase)
    case.look(0)
    case.say(fatal, "and words that mean nothing")
    assert case.look(400) is None, "the grace begins with the line"
    case.say("more words")
    found = case.ends_between(460, 461)
    assert found.fatal is not None
    assert (found.fatal.text, found.fatal.line) == (fatal, len(phase) + 1)


def test_a_fatal_line_may_be_another_ranks(case: Logs) -> None:
    case.say(MEMSTATS, *steps(0, 5))
    case.say(MEMSTATS, *steps(0, 9), HANG, rank=3)
    case.look(0)
    found = case.ends_between(60, 61)
    assert found.fatal is not None
    assert (found.fatal.cls, found.fatal.source) == ("gpu-hardware", "log.3.txt")
    case.say(*steps(5, 8))
    assert case.look(62) is None
    assert case.look(560) is None, "rank 0 went on for three steps"
    assert case.follower.finish(JOB, Protocol()).report.last_step == 7, "steps are of rank 0"


@rows(
    "ranks, named",
    {
        "one that raised": ([GLOO, OWN], "python-exception log.1.txt"),
        "rank 0 raised": ([OWN, GLOO], "python-exception "),
        "one that raised for that": ([GLOO, f"{GLOO}\n{OWN}"], "peer-lost "),
        "a cause is a cause": ([GLOO, OWN, OOM], "oom-gpu log.2.txt"),
    },
)  # fmt: skip
def test_the_rank_that_failed_by_itself_names_the_failure(
    case: Logs, ranks: list[str], named: str
) -> None:
    for rank, text in enumerate(ranks):
        case.say(MEMSTATS, text, rank=rank)
    cause = primary(case.follower.finish(JOB, Protocol()).report.findings)
    assert cause is not None
    assert f"{cause.cls} {cause.source}" == named
