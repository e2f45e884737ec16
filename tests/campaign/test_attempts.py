"""One attempt: its queue, its retries, its end and its cause; nodes and devices that changed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, Clock
from pytest_xlatune.campaign._follow import Follower
from pytest_xlatune.campaign.attempts import Attempts, compile_patience
from pytest_xlatune.executors import Request, Resumed, payload
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
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import OPTIONS_FOLDER, profile
from pytest_xlatune.model.resources import Patience, Resources
from pytest_xlatune.model.result import Conclusion, Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.report.document import markdown
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.run_record import record_of_study
from tests.helpers import scripted
from tests.helpers.scripted import line, on
from tests.helpers.tables import rows

NODES = ("node001", "node002")
CELL = on(*NODES)
FIT, BACK = Resumed(), Resumed(nodes=NODES[1:])
DEAD = Resumed(nodes=NODES[1:], faults=("node002 is down: bad nic",), unfit=NODES[1:])  # in vain
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
        recovers = None if recover is None else lambda *_: bool(recover)
        self.attempts = Attempts(
            ResolvedSweep(sweep=sweep, cell=CELL),
            self,
            folder,
            study=scripted.CellsStudy(cells=(CELL,)),
            clock=Clock(now=lambda: 1e9, ticks=lambda: self.now_s),
            recover=recovers,
        )
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
        "nodes that are fit are not resumed, and begin no epoch": (
            (FIT,), [(DRAINED, 0, ""), (DRAINED, 60, "node-drain")], "bad nic"),
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
    assert (stop.resumed == DEAD.nodes) is ("bad nic" in words)


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
    lost.folder.mkdir(parents=True, exist_ok=True)
    (lost.folder / payload.SECRETS).touch()
    lost.look(Outcome(state=State.LOST))
    assert lost.cancelled == ["7"], "what its trainer started may still run"
    assert not (lost.folder / payload.SECRETS).exists()
    assert (decided.next, decided.cls) == (following, "node-fail")
    assert sentence(decided.proof) == "NODE_FAIL (NodeDown); no step, before-memstats"
    began = [sentence(each.why) for each in events if isinstance(each, EpochBegan)]
    assert bool(began) is (following == "retry")
    assert ("node-fail: the site did" in "".join(began)) is bool(recover)
    assert ("node002 is down: bad nic" in sentence(decided.why)) is (following == "stop")
    assert decided.resumed == (DEAD.nodes if following == "stop" else ())


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


OLD, NEW = ("node001", "node002"), ("node001", "node009")
NODE_FAIL = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)", nodes=OLD)


def swept(folder: Path, change: int, *, fails: bool) -> Campaign:
    """Run a sweep whose trials are all alike, and 20 % faster from trial number `change` on."""
    count = 0

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        nonlocal count
        count += 1
        if fails and count == change:
            return scripted.log(steps=3), NODE_FAIL
        is_new = count >= change
        speed = 1000 * (1.2 if is_new else 1.0) * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)
        same = OLD if count % 2 else OLD[::-1]  # the same nodes, in another order
        nodes = NEW if is_new and not fails else same
        return scripted.log(speed), replace(scripted.OK, nodes=nodes, start_s=count, end_s=None)

    executor = scripted.FakeExecutor(script)
    executor.revival = Resumed(nodes=("node002",))
    made = scripted.campaign(folder, executor)
    scripted.run(made)
    assert made.conclude().complete
    return made


def largest_change(conclusion: Conclusion) -> float:
    return max(abs(each.delta) for each in conclusion.verdicts if each.delta is not None)


# 4 trials are the screen, 9 the three blocks
@rows("fails", {"a node was swapped": False, "a node came back": True})
def test_a_change_inside_a_block_parts_it_in_two(tmp_path: Path, *, fails: bool) -> None:
    made = swept(tmp_path, 9, fails=fails)
    history, conclusion = made.view().history, made.conclude()
    blocks = {(each.trial.block, each.epoch) for each in history if each.trial.block}
    assert blocks == {(1, 0), (2, 0), (2, 1), (3, 1)}
    assert all(verdict.kind != "FASTER" for verdict in conclusion.verdicts)
    assert largest_change(conclusion) < 0.005
    # what the same trials would say without epochs: they prevent just this
    as_one = made.study.decide([replace(result, epoch=0) for result in history]).conclusion
    assert largest_change(as_one) > 0.05
    # it is told, and concluded again from the ledger alone
    notes = " ".join(map(sentence, made.view().state.notes))
    assert ("node001, node009, were node001, node002" in notes) is not fails
    known = read_cell_report(made.folder)
    assert known.conclusion == conclusion
    assert "2 epochs" in markdown(known.document)


OTHER = profile("other", "--xla_other=1", env={"LD_LIBRARY_PATH": "/opt/other"})


def node(name: str, jaxlib: str) -> NodeEnvironment:
    return NodeEnvironment(name=name, node={"kernel": "6.8"}, packages={"jaxlib": jaxlib})


@rows("is_upgraded", {"n2, after it was silent once": True, "never": False})
def test_what_nodes_tell_begins_an_epoch_where_it_changed(
    tmp_path: Path, *, is_upgraded: bool
) -> None:
    """A profile of other libraries would be alone in an epoch, and so would all after it."""

    def tells(trial_id: str) -> Sequence[NodeEnvironment]:
        number, is_other = len(executor.submitted) + 1, trial_id.startswith("other")
        later = node("n2", "0.10" if is_upgraded and number > 3 else "0.9")
        first = node("n1", "0.11" if is_other else "0.9")
        return [first] if number == 3 else [first, later]

    changes = ["on n2 changed: jaxlib 0.9 -> 0.10"] * is_upgraded
    executor = scripted.FakeExecutor(
        lambda *trial: (scripted.ordinary(*trial)[0], replace(scripted.OK, nodes=("n1", "n2")))
    )
    executor.tells = tells
    made = scripted.campaign(tmp_path, executor, profiles=(*scripted.PROFILES, OTHER))
    scripted.run(made)
    record = record_of_study(made.view().state, made.study)
    assert [sentence(each) for each in record.changes] == changes
    assert {each.epoch for each in made.view().history} == ({0, 1} if changes else {0})


GPU = "sm_9.0a_gpu"
SMALL = "module_0000.jit_convert_element_type.{}_after_optimizations.txt"
Where = Callable[[str, int], str]  # of a trial and an attempt: the device as XLA writes it


class Somewhere(scripted.FakeExecutor):
    """Writes the files that XLA would write on the device of each attempt; "" is none."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self.where = where

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        job_id = super().submit(spec, request)
        trial_id, _, attempt = request.folder.name.rpartition(".")
        if device := self.where(trial_id, int(attempt)):
            folder = request.folder / OPTIONS_FOLDER
            folder.mkdir(exist_ok=True)
            (folder / SMALL.format(device)).write_text("HloModule jit_convert_element_type\n")
        return job_id


def device_of(which: str, device: str, *, attempts: int = 99) -> Where:
    return lambda trial_id, attempt: (
        device if trial_id.startswith(which) and attempt <= attempts else GPU
    )


@rows(
    "where, tries, has_score",
    {
        "no dump at all": (lambda *_: "", 1, True),
        "a baseline whose dump is missing": (device_of("baseline", ""), 1, True),
        "another GPU": (device_of("fast", "sm_8.0_gpu"), 1, True),
        "a profile that fell back once": (device_of("fast", "cpu", attempts=1), 2, True),
        "a profile that falls back": (device_of("fast", "cpu"), 2, False),
    },
)
def test_a_profile_that_runs_elsewhere_has_no_score(
    where: Where, tries: int, has_score: bool, tmp_path: Path
) -> None:
    executor = Somewhere(where)
    made = scripted.campaign(tmp_path, executor)
    scripted.run(made)
    results = [each.result for each in made.view().state.trials.values()]
    fast = next(each for each in results if each.trial.arm == "fast")
    assert executor.submitted.count(fast.trial.id) == tries
    assert ("other-device" in {finding.cls for finding in fast.findings}) is (tries > 1)
    assert (fast.status, fast.score is not None) == (
        "measured" if has_score else "dropped",
        has_score,
    )
    others = [each for each in results if each.trial.arm != "fast" and each.job_ids]
    assert all(each.score is not None for each in others)
    said = "it ran on cpu and baseline-deployed on cuda sm_9.0, as module jit_convert_"
    assert has_score or said in sentence(fast.reason)
