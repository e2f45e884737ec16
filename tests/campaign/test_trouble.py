"""A campaign in trouble: what is run again, dropped, refused, waited for, or stops the sweep."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, CampaignStopped, Clock, Spending
from pytest_xlatune.executors import QueueFull, Request, SchedulerDown
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    Ledger,
    LedgerEntry,
    Noted,
)
from pytest_xlatune.logs import LogReader
from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.resources import Patience, Resources, RetryPolicy, RetryRule
from pytest_xlatune.model.result import Outcome, State, TrialResult, TrialSetting
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.studies import Decision, History, OnNodeFailure, Study
from pytest_xlatune.studies.batch_size import BatchSize
from pytest_xlatune.studies.commit_check import CommitStudy
from pytest_xlatune.sweep import checkouts
from pytest_xlatune.sweep.groups import Limits
from pytest_xlatune.tasks import answers as awaiting
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.benchmarks import load
from tests.helpers.repositories import Repository
from tests.helpers.scripted import (
    CELL,
    FAILED,
    KILLED,
    OK,
    UNKNOWN_FLAG,
    CellsStudy,
    Cluster,
    FakeExecutor,
    campaign,
    campaign_of,
    failing,
    log,
    on,
    ordinary,
    run,
    ticking,
)
from tests.helpers.tables import rows

FOUR = tuple(on(f"node00{n}") for n in range(1, 5))
ONE = FOUR[:1]
RUNS = Outcome(state=State.RUNNING)
NODE_FAIL = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)")
MISSPELT = UNKNOWN_FLAG.replace("--x", "--xla_cpu_enable_fast_mth=1 --xla_nope=1")
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_xlatune.campaign.TURN_S", 0.0)


def swept(folder: Path, executor: FakeExecutor, study: Study | None = None) -> Campaign:
    made = campaign(folder, executor, study, clocks={"ticks": ticking()})
    run(made, turns=2000)
    return made


def results(made: Campaign, arm: str) -> list[TrialResult]:
    trials = made.view().state.trials.values()
    return [each.result for each in trials if each.trial.arm == arm and each.result.job_ids]


def statuses(made: Campaign) -> list[str]:
    return [each.status for each in made.view().history]


@rows(
    "text, outcome, words",
    {
        "a misspelt flag": (MISSPELT, FAILED, "): dropped"),
        "NaN though it exits with 0": (log(loss="nan"), OK, "numerical-failure"),
        "flags that the log does not show": (
            "XLA_FLAGS=--xla_deployed=1\n" + log(), OK, "flags-not-effective"),
        "a flag without a name": (
            f"{log()}F0112 07:08:09.1 7 a.cc:2] Unknown flag in XLA_FLAGS:", FAILED, ""),
        "a step of 5000 digits": (f"{log()}completed step: {'1' * 5000}, seconds: 1.0\n", OK, ""),
        "a rank of 5000 digits": (f"{'7' * 5000}: x\n[1,{'8' * 5000}]<stdout>: y\n{log()}", OK, ""),
        "flags with an open quote": ("XLA_FLAGS=--xla_a='\n" + log(), OK, ""),
    },
)  # fmt: skip
def test_a_profile_that_cannot_run_is_dropped_once_and_the_others_go_on(
    tmp_path: Path, text: str, outcome: Outcome, words: str
) -> None:
    made = swept(tmp_path, FakeExecutor(failing("fast", text, outcome)))
    assert not made.view().stopped
    assert {each.status for each in results(made, "same")} == {"measured"}
    if not words:
        assert {each.status for each in results(made, "fast")} == {"measured"}
        return
    verdict = made.conclude().verdict("fast")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == ("INVALID", False)
    assert words in " ".join(map(sentence, verdict.reasons))
    (dropped,) = results(made, "fast")
    assert len(dropped.job_ids) == 1


LOG = r"its log: /\S+/log\.0\.txt"
NOT_THERE = "nopython could not be started: No such file or directory"


@rows(
    "text, outcome, why",
    {
        "a program that is not there": (
            "", Outcome(state=State.FAILED, reason=NOT_THERE, is_started=False),
            rf"run: not-started \({NOT_THERE}\)"),
        "Tokens/s/device is never printed": (
            log().replace("Tokens/s/device", "words"), OK,
            r"be scored: no-score \([^)]*Tokens/s/device[^)]*\)(?!, 2 times)"),
        "no line is a step: it is told what is expected": (
            "epoch 1 done\nbye\n", OK,
            (r"(?!.*dropped)(?=.*`completed step: 7, seconds:)(?=.*epoch 1 done \| bye)"
             r"(?=.*log\.0\.txt)(?=.*trainer\.md)")),
        "an exit without a known line: the last line is told": (
            "no such file\n", Outcome(state=State.FAILED, exit_code=2),
            rf"run: exit-code \(exit 2: no such file; {LOG}\)"),
        "SIGKILL ends it": (
            log(steps=3), KILLED, rf"run: killed \(signal 9; {LOG}\), 2 times in a row"),
        "it stands still between two steps": (
            log(steps=3), RUNS, r"run: hang-mid-training \(.*\), 2 times in a row"),
    },
)  # fmt: skip
def test_a_baseline_that_never_has_a_score_stops_the_sweep_at_its_second_attempt(
    tmp_path: Path, text: str, outcome: Outcome, why: str
) -> None:
    executor = FakeExecutor(failing(BASELINE_ID, text, outcome))
    made = swept(tmp_path, executor)
    assert re.match(f"the cell as deployed cannot {why}", sentence(made.view().stopped))
    with pytest.raises(CampaignStopped, match=why):
        awaiting.baseline(made, lambda: None)
    assert len({*executor.submitted}) == 1
    tried = r"\S+ was retried 1 time" if len(executor.submitted) > 1 else "none"
    assert re.search(f"recovery attempted: {tried}; ", read_cell_report(made.folder).stopped)
    executor.script = ordinary
    later = campaign(tmp_path, executor, session="second")
    run(later)
    assert not later.view().stopped


@pytest.mark.parametrize(
    ("broken", "path"), [("the reader", "log.0.txt"), ("the assessment", "fast-")]
)
def test_an_attempt_whose_log_breaks_us_ends_with_reason_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, path: str
) -> None:
    read, said = LogReader.feed, "this reader does not read it"

    def feed(reader: LogReader, chunk: bytes) -> None:
        if b"POISON" in chunk:
            raise TypeError(said)
        read(reader, chunk)

    def judge(asked: Profile, shown: Witnesses, **facts: Any) -> tuple[TrialSetting, ...]:
        if asked.id == "fast" and shown.env:
            raise ZeroDivisionError(said)
        return judge_settings(asked, shown, **facts)

    if broken == "the reader":
        monkeypatch.setattr(LogReader, "feed", feed)
    else:
        monkeypatch.setattr("pytest_xlatune.campaign.assess.judge_settings", judge)
    made = swept(tmp_path, FakeExecutor(failing("fast", f"NCCL_DEBUG=INFO\n{log()}POISON\n", OK)))
    assert not made.view().stopped
    for each in results(made, "fast"):
        assert each.status == "unmeasured"
        assert f"its log cannot be read: {said} ({tmp_path}" in sentence(each.reason)
        assert path in sentence(each.reason)
    assert {each.status for each in results(made, "same")} == {"measured"}


def test_the_line_that_an_attempt_is_ended_for_is_written_without_the_secret(
    tmp_path: Path,
) -> None:
    secret = "hush-hush-9"
    text = log(steps=2, last=f"{UNKNOWN_FLAG} {secret}")
    executor = FakeExecutor(lambda *_: (text, OK))
    executor.holds = True
    cell = replace(CELL, deployed={**CELL.deployed, "HF_TOKEN": secret})
    made = campaign(tmp_path, executor, cell=cell, clocks={"ticks": ticking()})
    while not executor.cancelled:
        made.turn()
    events = [entry.event for entry in Ledger(made.ledger.path).refresh()]
    (cut,) = (event for event in events if isinstance(event, AttemptCutShort))
    assert cut.fatal is not None
    assert HIDDEN in cut.fatal.text
    executor.holds = False
    executor.cancelled.clear()
    made.turn()
    told = next(each for each in made.view().state.decisions if each.cls)
    assert told.cls == FailureClass.UNKNOWN_FLAG, "the same line, hidden on both sides"
    assert secret not in made.ledger.path.read_text(encoding="utf-8")


# ---- a study's own rules


@rows(
    "outcome, times, tries, fits",
    {
        "the host's memory is not tried again": (
            Outcome(state=State.OUT_OF_MEMORY, exit_code=1), 99, 1, False),
        "SIGKILL is tried once more, and counts as memory then": (KILLED, 99, 2, False),
        "a size that is killed once is measured": (KILLED, 1, 2, True),
        "a size that stands still before its first step": (RUNS, 99, 1, False),
    },
)  # fmt: skip
def test_a_size_that_the_kernel_refuses_does_not_fit(
    tmp_path: Path, outcome: Outcome, times: int, tries: int, *, fits: bool
) -> None:
    text = "Memstats: After params initialized:\n" if outcome is RUNS else ""
    executor = FakeExecutor(failing("pdbs-8", text, outcome, times=times))
    cell = replace(CELL, per_device_batch_size=4)
    study = BatchSize(sizes=(4, 6, 8)).study(load("batch_rates").asked_of(cell, 30))
    made = swept(tmp_path, executor, study)
    verdict = made.conclude().verdict("pdbs-8")
    assert verdict is not None
    assert verdict.can_run is fits
    submitted = [each for each in executor.submitted if each.startswith("pdbs-8")]
    assert submitted.count(submitted[0]) == tries
    if outcome is RUNS:  # it gets twice the patience
        events = [entry.event for entry in Ledger(made.ledger.path).refresh()]
        once_s, twice_s = (each.still_s for each in events if isinstance(each, AttemptCutShort))
        patience_s = Patience().compiling_s
        assert patience_s < once_s < 1.5 * patience_s
        assert 2 * patience_s < twice_s < 2.5 * patience_s


@pytest.mark.parametrize("fault", ["has submodules", "No space left on device"])
def test_what_keeps_a_commit_from_being_checked_out_is_no_commit_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    repository, git = Repository(tmp_path / "trainer"), checkouts._run
    if fault == "has submodules":
        path = repository.path / ".gitmodules"
        path.write_text("[submodule 'lib']\n\tpath = lib\n\turl = /nowhere\n", encoding="utf-8")

    def full(path: str, *words: str) -> subprocess.CompletedProcess[str]:
        if words[:2] != ("worktree", "add") or fault == "has submodules":
            return git(path, *words)
        return subprocess.CompletedProcess(words, 128, "", f"fatal: cannot create: {fault}")

    monkeypatch.setattr(checkouts, "_run", full)
    hashes = [repository.commit(f"# {at}", train=f"# {at}\n") for at in range(3)]
    inner = CommandLauncher(argv=("python", "train.py"), cwd=str(repository.path))
    study = CommitStudy(
        cells=tuple(replace(CELL, deployed={}, code=each) for each in hashes),
        labels=tuple(f"{each[:12]} change" for each in hashes),
        is_search=True,
        budget=80,
    )
    launcher = CheckoutLauncher(repository=str(repository.path), inner=inner)
    clock = Clock(ticks=ticking())
    folder = tmp_path / "commits"
    made = campaign_of(folder, FakeExecutor(), study, launcher=launcher, clock=clock)
    made.open()
    run(made)
    assert fault in sentence(made.view().stopped)
    assert all(each.can_run for each in made.conclude().verdicts)


class Again(CellsStudy, frozen=True, kw_only=True):
    """A study of a stranger that never leaves out what is final."""

    def decide(self, history: History) -> Decision:
        return super().decide(())


def test_a_faulty_study_is_refused_and_its_ledger_goes_on(tmp_path: Path) -> None:
    cluster = Cluster()
    with pytest.raises(ConfigError, match=r"\(Again\) is faulty: .*it proposes .* again"):
        run(campaign(tmp_path, cluster, Again(cells=ONE)), cluster)
    assert len(cluster.submitted) == 1
    made = campaign(tmp_path, cluster, CellsStudy(cells=ONE), session="second")
    run(made, cluster)
    assert statuses(made) == ["measured"]


# ---- what is refused, and what is away


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


def last_note(made: Campaign) -> str:
    """What people were told last besides how trials end."""
    events = [entry.event for entry in Ledger(made.ledger.path).refresh()]
    return sentence([event.remark for event in events if isinstance(event, Noted)][-1])


class Strict(Cluster):
    """A cluster that hangs, is full, or refuses jobs for these nodes."""

    def __init__(self, *, at_most: int = 99, hangs: bool = False, refuses: str = "") -> None:
        super().__init__()
        self.at_most, self.hangs, self.refuses = at_most, hangs, refuses
        self.others = self.asked = 0  # jobs of others that count too; calls of sbatch

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.asked += 1
        if self.hangs and self.submitted:
            self.now_s += 60
            raise SchedulerDown("sbatch did not answer in 60 s and was ended")
        if self.refuses and (set(request.nodelist) & set(self.refuses.split())):
            raise SubmissionError(self.refuses)
        standing = [self.standing(job_id).state for job_id in self._jobs]
        if self.others + sum(not state.is_final for state in standing) >= self.at_most:
            raise QueueFull("Job violates accounting/QOS policy (job submit limit)")
        return super().submit(spec, request)


def test_what_runs_is_read_while_sbatch_hangs(tmp_path: Path) -> None:
    made = campaign(tmp_path, Strict(hangs=True), CellsStudy(cells=ONE, repeats=2))
    for _ in range(3):
        made.turn()
    assert "did not answer in 60 s" in last_note(made), "told at once"
    assert statuses(made) == ["measured", "running"]


def test_a_limit_that_others_hold_is_waited_out_for_a_while(tmp_path: Path) -> None:
    cluster = Strict(at_most=1)
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
    assert "waits until a job ends: Job violates" in last_note(made)
    cluster.others = cluster.asked = 0
    assert run(made, cluster) < 3 * 60 + 40, "the next one follows as soon as a place is free"
    assert statuses(made) == ["measured"] * 4
    assert cluster.asked < 40, "sbatch is not called every second"
    never = Strict(at_most=0)
    refused = campaign(tmp_path / "never", never, CellsStudy(cells=ONE))
    assert 900 <= run(refused, never) < 930
    assert "job submit limit" in sentence(refused.view().stopped)


@rows(
    "words, at",
    {
        "a node list, which is a verdict: the other nodes go on": ("invalid node: node002", 1),
        "the first node list: the others go on": ("invalid node: node001", 0),
        "what is not about the nodes": ("Invalid account: node001 node002 node003 node004", None),
    },
)
def test_a_refusal(tmp_path: Path, words: str, at: int | None) -> None:
    cluster = Strict(refuses=words)
    study = CellsStudy(cells=FOUR, repeats=9, on_node_failure=OnNodeFailure.VERDICT)
    made = campaign(tmp_path, cluster, study)
    run(made, cluster)
    if at is None:
        assert words in sentence(made.view().stopped)
        assert cluster.asked <= 4, "not once for each of 36 trials"
        return
    assert made.view().stopped is None
    for each in made.view().history:
        is_refused = each.trial.cell_digest == FOUR[at].digest
        assert each.status == ("unmeasured" if is_refused else "measured")
        assert (words in sentence(each.reason)) is is_refused


@pytest.mark.parametrize("for_s", [10, 600, 1000])
def test_a_work_directory_that_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_s: int
) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=ONE, repeats=3))
    folder, gone = made.folder, made.folder.with_name("gone")
    looks: list[bool] = []

    def look() -> None:
        looks.append(folder.exists())
        if cluster.submitted and False not in looks and looks[-1]:
            folder.rename(gone)  # just after the campaign read on
        if not looks[-1] and looks.count(False) == for_s:
            gone.rename(folder)

    def passes(_: float) -> None:
        cluster.now_s += 1
        assert folder.exists() is not gone.exists(), "nothing is begun anew in its place"

    monkeypatch.setattr("pytest_xlatune.campaign.time.sleep", passes)
    if for_s > 900:
        with pytest.raises(LedgerError, match=str(folder)):
            made.wait(lambda view: not view.pending, on_turn=look)
        return
    assert not made.wait(lambda view: not view.pending, on_turn=look).stopped
    assert looks.count(False) == for_s
    assert statuses(made) == ["measured"] * 3
    assert len(cluster.submitted) == 3, "a trial that ended meanwhile is read, not run again"


# ---- several nodes


def failing_once(study: CellsStudy, number: int, outcome: Outcome) -> Cluster:
    """A cluster on which the first attempt of a trial of the first cell fails."""
    victim = study.trial(study.cells[0], number).id
    return Cluster(failing(victim, log(steps=2), outcome, times=1))


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
    cluster, study = Cluster(), CellsStudy(cells=(CELL, on("node003")), repeats=3)
    made = campaign(tmp_path, cluster, study, site={"resources": Resources(nodes=1)})
    made.turn()
    assert [nodes for _, nodes in cluster.ran] == [("any0",), ("node003",), ("node003",)]
    cluster.now_s += 1
    made.turn()
    assert made.view().state.nodes_of(CELL) == ("any0",)
    assert [*made.wait_for_nodes()] == ["any0", "node003"]
    run(made, cluster)
    assert {nodes for _, nodes in cluster.ran} == {("any0",), ("node003",)}


@pytest.mark.parametrize("wants", [OnNodeFailure.STOP, OnNodeFailure.VERDICT])
def test_a_node_that_takes_no_job_stops_the_study_or_is_a_verdict(
    tmp_path: Path, wants: OnNodeFailure
) -> None:
    cluster = Cluster()
    cluster.sick = {"node002"}
    made = campaign(tmp_path, cluster, CellsStudy(cells=FOUR, on_node_failure=wants))
    run(made, cluster)
    stop, detail = made.view().state.stop, "node002 is drained: bad nic"
    if wants is OnNodeFailure.STOP:
        assert stop is not None
        assert (stop.cls, stop.nodes, stop.detail) == ("node-drain", ("node002",), detail)
        return
    assert stop is None
    assert statuses(made) == ["measured", "unmeasured", "measured", "measured"]
    lost = made.view().history[1]
    assert lost.findings[-1].cls == "node-drain"
    assert detail in sentence(lost.reason)
    for _ in range(2):
        made.turn()
    assert len(cluster.cancelled) == 1, "its job does not stay in the queue"
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


# ---- what a sweep may cost, counted from the ledger over all sessions


def began(trial: str) -> AttemptIntended:
    return AttemptIntended(trial_id=trial, attempt=1, comment="c")


def ended(
    trial: str, *nodes: str, start_h: float | None = None, end_h: float | None = None
) -> AttemptEnded:
    start_s, end_s = (None if hour is None else hour * HOUR_S for hour in (start_h, end_h))
    outcome = Outcome(state=State.COMPLETED, nodes=nodes, start_s=start_s, end_s=end_s)
    return AttemptEnded(trial_id=trial, attempt=1, outcome=outcome)


def test_node_hours_are_those_that_ran_and_hours_those_with_the_scheduler() -> None:
    """Of a cell on eight nodes, by the hours of its events."""
    events = (
        (0, began("a")),
        (0, began("a")),  # it is told twice
        (1, began("b")),
        (2, ended("a", "n1", "n2", start_h=0.5, end_h=1)),
        (10, Noted(text="a session after a night away")),
        (10, ended("b", start_h=1, end_h=3)),
        (11, began("c")),
        (12, ended("c")),  # when it ran is unknown: from its submission, on all nodes
        (12, began("d")),
        (12, ended("d", start_h=12, end_h=11)),  # by a clock that ran back
        (12, ended("d", start_h=1, end_h=12)),  # it is told twice
        (13, began("e")),
        (14, Noted(text="it waits")),
    )
    spending = Spending(nodes=8)
    spending.feed(
        LedgerEntry(number=number, at_s=at_h * HOUR_S, event=event)
        for number, (at_h, event) in enumerate(events, start=1)
    )
    assert spending.node_s == pytest.approx((1 + 16 + 8) * HOUR_S)
    assert spending.busy_s == (3 + 1 + 1) * HOUR_S
    assert spending.exhausted(Limits()) is None
    assert spending.exhausted(Limits(hours=5.1, node_hours=25.1)) is None
    for limits, words in (
        (Limits(hours=5.0), "5 of 5 hours are spent"),
        (Limits(hours=9.0, node_hours=25.0), "25 of 25 node-hours are spent"),
    ):
        assert sentence(spending.exhausted(limits)).startswith(words)


def test_a_budget_stops_the_sweep_with_its_reason_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    """Every trial runs one hour on one node, by the node's clock."""
    hour = Outcome(state=State.COMPLETED, exit_code=0, nodes=("n1",), start_s=0.0, end_s=HOUR_S)
    executor = FakeExecutor(lambda trial_id, attempt: (ordinary(trial_id, attempt)[0], hour))
    for session in ("first", "second"):  # what was spent in another session is spent
        made = campaign(tmp_path, executor, session=session, limits=Limits(node_hours=3))
        run(made)
        assert len(executor.submitted) == 3
    with pytest.raises(CampaignStopped, match=r"budget \(3 of 3 node-hours are spent"):
        made.wait(lambda _: False)
    known = read_cell_report(made.folder)
    assert known.stop_reason.startswith("budget (3 of 3 node-hours")
    assert "halted" in known.stopped
    assert not known.conclusion.complete
    more = campaign(tmp_path, executor, session="third", limits=Limits(node_hours=100))
    run(more)
    assert more.conclude().complete
    assert read_cell_report(more.folder).stopped == ""
