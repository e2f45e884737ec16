"""A campaign on an executor that follows a script: journalled, retried, adopted, stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_xlatune.campaign.campaign import Campaign, CampaignStopped, Setup
from pytest_xlatune.campaign.jobs import (
    INTERRUPTED,
    LEDGER,
    cancel_unwaited,
    find_ledgers,
    list_jobs,
)
from pytest_xlatune.cells import Cell, LaunchSpec, Parallelism, Protocol, Resources, Stage
from pytest_xlatune.errors import ConfigError, SubmissionError
from pytest_xlatune.executors import Resumed
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import Ledger, replay
from pytest_xlatune.plugin import awaiting
from pytest_xlatune.profiles import BASELINE_ID, Profile, profile
from pytest_xlatune.publishing.publish import publish, read_known
from pytest_xlatune.results import Outcome, State, Submission, TrialStatus, VerdictKind
from pytest_xlatune.studies.tuning import TuningStudy

STEPS = 12
CELL = Cell(
    model_tag="pretend",
    parallelism=Parallelism.parse("FSDP=4"),
    protocol=Protocol(steps=STEPS),
    deployed={"XLA_FLAGS": "--xla_deployed=1"},
)
PROFILES = (
    profile("fast", "--xla_fast=1"),
    profile("same", "--xla_same=1"),
)
OK = Outcome(state=State.COMPLETED, exit_code=0, start_s=0.0, end_s=1.0)
FAILED = Outcome(state=State.FAILED, exit_code=1)
KILLED = Outcome(state=State.FAILED, signal=9)
UNKNOWN_FLAG = "F1120 09:03:25.888154 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --x"


def log(speed: float = 1000.0, *, steps: int = STEPS, loss: str = "7.1", last: str = "") -> str:
    lines = [
        f"completed step: {step}, seconds: {512 / speed:.6f}, TFLOP/s/device: 0.1, "
        f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: {loss}"
        for step in range(steps)
    ]
    return "\n".join([*lines, last, ""])


Script = Callable[[str, int], tuple[str, Outcome]]


def ordinary(trial_id: str, attempt: int) -> tuple[str, Outcome]:
    """Give a log whose speed is the profile's, with a little noise of the trial's own."""
    speed = 1100.0 if trial_id.startswith("fast") else 1000.0
    return log(speed * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)), OK


class ScriptedExecutor:
    """Runs nothing: writes the log that the script says and tells the outcome at the next poll."""

    name = "local"

    def __init__(self, script: Script = ordinary, *, max_in_flight: int = 1) -> None:
        self.script = script
        self.max_in_flight = max_in_flight
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.refusal = ""
        self.holds = False  # jobs go on running
        self.die_after_submit = False
        self.resumed: list[tuple[str, ...]] = []
        self.revival = Resumed(faults=("node001 is drained: bad nic",))
        self._jobs: dict[str, tuple[str, Outcome]] = {}

    def submit(
        self,
        spec: LaunchSpec,
        *,
        folder: Path,
        job_name: str,
        comment: str,
        nodelist: Sequence[str],
        resources: Resources,
    ) -> str:
        if self.refusal:
            raise SubmissionError(self.refusal)
        known = [job_id for job_id, (of, _) in self._jobs.items() if of == comment]
        if known:
            return known[0]
        folder.mkdir(parents=True)
        trial_id, _, attempt = folder.name.rpartition(".")
        text, outcome = self.script(trial_id, int(attempt))
        (folder / "log.0.txt").write_text(text, encoding="utf-8")
        job_id = f"{len(self._jobs) + 1}"
        self._jobs[job_id] = (comment, outcome)
        self.submitted.append(trial_id)
        if self.die_after_submit:
            raise KeyboardInterrupt
        return job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        return {
            each.job_id: Outcome(state=State.CANCELLED)
            if each.job_id in self.cancelled
            else Outcome(state=State.RUNNING)
            if self.holds
            else self._jobs[each.job_id][1]
            for each in submissions
        }

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        self.cancelled += [each.job_id for each in submissions]

    def resume(self, nodes: Sequence[str]) -> Resumed:
        self.resumed.append(tuple(nodes))
        return self.revival


def campaign(
    folder: Path,
    executor: ScriptedExecutor,
    *,
    session: str = "first",
    profiles: tuple[Profile, ...] = PROFILES,
    cell: Cell = CELL,
    fresh: bool = False,
    recover: bool | None = None,
    clocks: Mapping[str, Callable[[], float]] = MappingProxyType({}),
) -> Campaign:
    setup = Setup(
        sweep="pretend",
        cell=cell,
        launcher=CommandLauncher(argv=("trainer", "{steps}")),
        executor=executor,
        resources=Resources(),
        folder=folder / "pretend" / "cell",
        session=session,
        recover=None if recover is None else lambda *_: bool(recover),
    )
    study = TuningStudy(
        cell=cell, profiles=profiles, budget=40, screen_baselines=2, finalists=2, blocks=3,
        block_baselines=1,
    )  # fmt: skip
    made = Campaign(setup, study, **clocks)
    made.open(fresh=fresh)
    return made


def run(each: Campaign, *, turns: int = 200) -> None:
    """Take turns until nothing is left, without sleeping."""
    for _ in range(turns):
        view = each.view()
        if view.stopped or not view.pending:
            return
        each.turn()
    raise AssertionError("the sweep does not end")


def test_a_sweep_runs_to_its_conclusion_and_again_for_nothing(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    first = campaign(tmp_path, executor)
    run(first)
    conclusion = first.conclude()
    verdict = conclusion.verdict("fast")
    assert verdict is not None
    assert verdict.kind is VerdictKind.FASTER
    assert conclusion.complete
    count = len(executor.submitted)
    assert count == len(set(executor.submitted)) == 2 + 2 + 3 * 3

    again = campaign(tmp_path, executor, session="second")
    run(again)
    assert len(executor.submitted) == count
    assert again.conclude() == conclusion


def test_the_order_is_the_same_however_many_are_in_flight(tmp_path: Path) -> None:
    one, four = ScriptedExecutor(), ScriptedExecutor(max_in_flight=4)
    run(campaign(tmp_path / "one", one))
    run(campaign(tmp_path / "four", four))
    assert one.submitted == four.submitted


def test_an_attempt_is_in_the_ledger_before_it_is_submitted(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    executor.die_after_submit = True
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, executor).turn()
    executor.die_after_submit = False
    second = campaign(tmp_path, executor, session="second")
    run(second)
    assert len(executor.submitted) == len(set(executor.submitted))
    assert second.conclude().complete


def test_a_running_job_is_adopted_by_the_next_session(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    executor.holds = True
    campaign(tmp_path, executor).turn()
    assert len(executor.submitted) == 1
    executor.holds = False
    run(campaign(tmp_path, executor, session="second"))
    assert len(executor.submitted) == len(set(executor.submitted))


def failing(which: str, text: str, outcome: Outcome, *, times: int = 99) -> Script:
    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id.startswith(which) and attempt <= times:
            return text, outcome
        return ordinary(trial_id, attempt)

    return script


def test_a_killed_trial_is_run_again_and_counts_once(tmp_path: Path) -> None:
    executor = ScriptedExecutor(failing("same-s", log(steps=3), KILLED, times=1))
    each = campaign(tmp_path, executor)
    run(each)
    (result,) = (r for r in each.view().history if r.trial.id.startswith("same-s"))
    assert result.status is TrialStatus.MEASURED
    assert len(result.job_ids) == 2
    (decision,) = each.view().state.decisions
    assert (decision.next, decision.cls) == ("retry", "killed")


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        pytest.param(UNKNOWN_FLAG + "\n", FAILED, "unknown-flag", id="an unknown flag"),
        pytest.param(log(loss="nan"), OK, "numerical-failure", id="NaN though it exits with 0"),
        pytest.param(
            "XLA_FLAGS=--xla_deployed=1\n" + log(), OK, "flags-not-effective",
            id="flags that the log does not show",
        ),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_run_is_dropped_once(
    tmp_path: Path, text: str, outcome: Outcome, reason: str
) -> None:
    executor = ScriptedExecutor(failing("fast", text, outcome))
    each = campaign(tmp_path, executor)
    run(each)
    verdict = each.conclude().verdict("fast")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == (VerdictKind.INVALID, False)
    assert reason in " ".join(verdict.reasons)
    assert [trial for trial in executor.submitted if trial.startswith("fast")] == [
        executor.submitted[[t.startswith("fast") for t in executor.submitted].index(True)]
    ]


def test_what_nobody_could_measure_is_tried_again_by_the_next_session(tmp_path: Path) -> None:
    limit = Outcome(state=State.TIMEOUT, reason="DUE TO TIME LIMIT")
    executor = ScriptedExecutor(failing("same", log(steps=2), limit))
    each = campaign(tmp_path, executor)
    run(each)
    verdict = each.conclude().verdict("same")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == (VerdictKind.INVALID, True)
    with pytest.raises(awaiting.NotMeasured, match="time-limit"):
        awaiting.screened(each, PROFILES[1], lambda: None)

    executor.script = ordinary
    later = campaign(tmp_path, executor, session="second")
    run(later)
    again = later.conclude().verdict("same")
    assert again is not None
    assert again.kind is not VerdictKind.INVALID


def test_a_baseline_that_cannot_run_stops_the_sweep(tmp_path: Path) -> None:
    executor = ScriptedExecutor(failing(BASELINE_ID, UNKNOWN_FLAG + "\n", FAILED))
    each = campaign(tmp_path, executor)
    run(each)
    assert each.view().stopped.startswith("the cell as deployed cannot run: unknown-flag")
    with pytest.raises(CampaignStopped, match="cannot run"):
        awaiting.baseline(each, lambda: None)
    assert len(executor.submitted) == 1


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_a_retry_that_needs_the_site_waits_for_it(tmp_path: Path, *, is_done: bool) -> None:
    nic = "mlx5_0: IBV_WC_RETRY_EXC_ERR(12) vendor_err=129\n"
    executor = ScriptedExecutor(failing("same-s", nic, FAILED, times=1))
    each = campaign(tmp_path, executor, recover=is_done)
    run(each)
    assert bool(each.view().stopped) is not is_done


def test_a_refused_submission_stops_with_the_schedulers_words(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    executor.refusal = "Invalid account"
    each = campaign(tmp_path, executor)
    run(each)
    assert each.view().stopped == "submission-refused: Invalid account"
    executor.refusal = ""
    later = campaign(tmp_path, executor, session="second")
    run(later)
    assert later.conclude().complete


def test_other_nodes_are_refused_and_fresh_starts_over(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    run(campaign(tmp_path, executor))
    count = len(executor.submitted)
    moved = Cell.from_json(CELL.to_json() | {"nodelist": ["node002"]})
    with pytest.raises(
        ConfigError, match=r"nodelist was \[\], is \['node002'\].*--xlatune-new-baseline"
    ):
        campaign(tmp_path, executor, session="second", cell=moved)
    run(campaign(tmp_path, executor, session="third", cell=moved, fresh=True))
    assert len(executor.submitted) == 2 * count
    assert len(list(tmp_path.glob("pretend/cell/ledger*.jsonl"))) == 2
    # a later process of the same session does not start over again
    run(campaign(tmp_path, executor, session="third", cell=moved, fresh=True))
    assert len(executor.submitted) == 2 * count


class Stopped(BaseException):
    """The process is gone."""


def test_killed_between_our_cancel_and_writing_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = ScriptedExecutor()
    executor.holds = True
    campaign(tmp_path, executor).turn()
    (folder,) = find_ledgers(tmp_path)

    def gone(*_: object, **__: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(executor, "poll", gone)
        with pytest.raises(Stopped):
            cancel_unwaited(folder, executors=lambda _: executor)
    assert len(executor.cancelled) == 1
    executor.holds = False
    # the next session does not take it for somebody else's cancel: it measures all
    run(campaign(tmp_path, executor, session="second"))
    state = replay(Ledger(folder / LEDGER).refresh())
    assert [each.next for each in state.decisions] == [INTERRUPTED]
    assert read_known(folder).conclusion.complete


def test_the_ledger_alone_lists_ends_and_reports(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    executor.holds = True
    each = campaign(tmp_path, executor)
    each.turn()
    (folder,) = find_ledgers(tmp_path)
    state = replay(Ledger(folder / LEDGER).refresh())
    assert [job.outcome for job in list_jobs(state)] == [None]
    (ended,) = cancel_unwaited(folder, executors=lambda _: executor)
    assert executor.cancelled == [ended.job_id]
    assert not cancel_unwaited(folder, executors=lambda _: executor)

    # a trial that was ended so has no result: the next session runs it again
    executor.holds = False
    run(campaign(tmp_path, executor, session="second"))
    known = read_known(folder)
    assert known.conclusion.complete
    paths = publish(known, tmp_path / "reports")
    assert [path.relative_to(tmp_path / "reports").as_posix() for path in paths] == [
        "pretend/leaderboard.md",
        "pretend/leaderboard.json",
        "pretend-tuning.md",
        "pretend-tuning.json",
    ]
    assert all(BASELINE_ID in path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.parametrize(
    ("steps", "first_step", "said"),
    [
        pytest.param(20, 7, "the window of all trials starts at step 7", id="it moves"),
        pytest.param(12, None, "12 steps are too few, use steps=19", id="there is no room"),
    ],
)
def test_a_warm_up_that_reaches_into_the_window_moves_it_for_all_and_is_said(
    tmp_path: Path, steps: int, first_step: int | None, said: str
) -> None:
    def cold(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        speed = 1000.0 * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)
        warm, slow = log(speed, steps=steps), log(0.992 * speed)  # too near to be screened out
        return "\n".join([*slow.splitlines()[:7], *warm.splitlines()[7:], ""]), OK

    cell = Cell.from_json(CELL.to_json() | {"protocol": Protocol(steps=steps).to_json()})
    each = campaign(tmp_path, ScriptedExecutor(cold), cell=cell)
    run(each)
    conclusion = each.conclude()
    assert conclusion.first_step == first_step
    assert said in " ".join(conclusion.notes)
    (folder,) = find_ledgers(tmp_path)
    known = read_known(folder)
    assert known.conclusion == conclusion, "the ledger alone says the same"
    windows = {result.score.window for result in known.scored if result.score}
    assert windows == {(first_step or 5, steps - 1)}
    leaderboard = publish(known, tmp_path / "reports")[0].read_text(encoding="utf-8")
    assert said in leaderboard
    assert f"tokens over time of steps {first_step or 5} to {steps - 1}" in leaderboard


def test_screened_verdicts_stay_what_they_were_after_the_confirmation(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    each = campaign(tmp_path, executor)
    before = awaiting.screened(each, PROFILES[0], lambda: None)
    run(each)
    assert awaiting.screened(each, PROFILES[0], lambda: None) == before
    assert before.kind is VerdictKind.SCREENED
    assert each.view().is_over(Stage.CONFIRM)
    first = awaiting.finalist(each, 0, lambda: None)
    assert first is not None
    assert awaiting.confirmed(each, first, lambda: None).faster


@pytest.mark.parametrize("jump_s", [-7200.0, 0.0, 7200.0], ids=["back", "never", "forward"])
def test_a_back_off_lasts_as_long_whatever_the_days_clock_does(
    tmp_path: Path, jump_s: float
) -> None:
    outage = "error: RPC failed; HTTP 502 curl 22"
    shown = {"now": 1e9, "ticks": 0.0}

    def once(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        return (log(steps=0, last=outage), FAILED) if attempt == 1 else ordinary(trial_id, attempt)

    executor = ScriptedExecutor(once)
    clocks = {"now": lambda: shown["now"], "ticks": lambda: shown["ticks"]}
    each = campaign(tmp_path, executor, clocks=clocks)
    for _ in range(3):
        each.turn()
    first = executor.submitted[0]
    assert executor.submitted == [first]
    shown["now"] += jump_s
    for shown["ticks"] in (1.0, 299.0):
        each.turn()
        assert executor.submitted == [first], "the outage has 300 s to pass"
    shown["ticks"] = 301.0
    each.turn()
    assert executor.submitted == [first, first]
