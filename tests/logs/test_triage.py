"""Log and outcome together: what went wrong, and which of it is the root cause."""

from __future__ import annotations

import itertools

import pytest

from pytest_xlatune.logs import LogReport, Phase, read_log
from pytest_xlatune.logs.triage import diagnose, end_of, ended_by, primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.result import Action, Finding, Outcome, State

PROTOCOL = Protocol(steps=15)
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.00GiB."
NCCL = "n1:1:2 [0] NCCL WARN Timeout waiting for rank 3"
BEAT = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
SIGTERM = "W0112 07:08:09.4 80 preemption_notifier.cc:89] SIGTERM caught at 2026-01-12"
CANCELLED = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-12T07:08:09 ***"
TIME = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-12T07:08:09 DUE TO TIME LIMIT ***"
RAISED = ["Traceback (most recent call last):", "ValueError: a shape"]


def steps(first: int, last: int, loss: str = "7.0") -> list[str]:
    return [
        f"completed step: {each}, seconds: 1.000, Tokens/s/device: 9.000, loss: {loss}"
        for each in range(first, last + 1)
    ]


ALL = steps(0, 14)
DONE = Outcome(state=State.COMPLETED, exit_code=0)
FAILED = Outcome(state=State.FAILED, exit_code=1)
RUNNING = Outcome(state=State.RUNNING)


def report_of(lines: list[str]) -> LogReport:
    return read_log(["".join(f"{each}\n" for each in lines).encode()])


CASES: dict[str, tuple[list[str], Outcome, str | None, Action]] = {
    "a good run has no cause": (ALL, DONE, None, Action.NONE),
    "all steps and exit 1": (ALL, FAILED, "soft-success", Action.SUCCESS),
    "all steps and exit 143": (
        ALL, Outcome(state=State.FAILED, exit_code=143), "soft-success", Action.SUCCESS),
    "all steps and a time limit": (
        [*ALL, TIME], Outcome(state=State.TIMEOUT), "soft-success", Action.SUCCESS),
    "all steps, then a crash at the end": (
        [*ALL, "Segmentation fault"], Outcome(state=State.FAILED, signal=11), "soft-success",
        Action.SUCCESS),
    "all steps, then a scancel": (
        [*ALL, CANCELLED], Outcome(state=State.CANCELLED), "soft-success", Action.SUCCESS),
    "all steps, but the last ones after a person's scancel": (
        [*steps(0, 6), SIGTERM, *steps(7, 14)], Outcome(state=State.CANCELLED),
        "cancelled", Action.NONE),
    "all steps, but the last ones after the time limit": (
        [*steps(0, 6), TIME, SIGTERM, *steps(7, 14)], Outcome(state=State.TIMEOUT),
        "time-limit", Action.NONE),
    "a time limit, and what the ranks print while they die": (
        [*steps(0, 6), TIME, SIGTERM, *steps(7, 9), NCCL, *RAISED],
        Outcome(state=State.TIMEOUT), "time-limit", Action.NONE),
    "a scancel, and what the ranks print while they die": (
        [*steps(0, 6), CANCELLED, SIGTERM, BEAT, *RAISED], Outcome(state=State.CANCELLED),
        "cancelled", Action.NONE),
    "a scancel of a run that hung after OOM": (
        [*steps(0, 0), OOM, CANCELLED], Outcome(state=State.CANCELLED), "oom-gpu", Action.DROP),
    "a scancel of a run with a sick adapter": (
        [*steps(0, 0), "mlx5_0: IBV_WC_RETRY_EXC_ERR(12)", CANCELLED],
        Outcome(state=State.CANCELLED), "cancelled", Action.NONE),
    "the last steps after a notice, with exit 0": (
        [*steps(0, 6), SIGTERM, *steps(7, 14)], DONE, "steps-after-cancel", Action.RETRY),
    "steps after a notice, for another rank was killed": (
        [*steps(0, 6), SIGTERM, *steps(7, 9)], Outcome(state=State.FAILED, signal=9),
        "killed", Action.RETRY),
    "a node died, and what the other ranks print meanwhile": (
        [*steps(0, 6), SIGTERM, *steps(7, 9), NCCL, *RAISED], Outcome(state=State.NODE_FAIL),
        "node-fail", Action.RESUME_NODE),
    "exit 0 with NaN": (steps(0, 14, "nan"), DONE, "numerical-failure", Action.DROP),
    "exit 1 with NaN in every step": (
        steps(0, 14, "nan"), FAILED, "numerical-failure", Action.DROP),
    "a logged exception in a good run": ([*RAISED, *ALL], DONE, "python-exception", Action.NONE),
    "a run that died of OOM": ([*steps(0, 0), OOM], FAILED, "oom-gpu", Action.DROP),
    "OOM that a launcher reports as success": ([OOM], DONE, "oom-gpu", Action.DROP),
    "the cascade": ([*steps(0, 1), OOM, NCCL, BEAT, *RAISED], FAILED, "oom-gpu", Action.DROP),
    "the cascade, the cause flushed last": (
        [*steps(0, 1), BEAT, NCCL, *RAISED, OOM], FAILED, "oom-gpu", Action.DROP),
    "consequences only": (
        [*steps(0, 1), NCCL, BEAT, *RAISED], FAILED, "nccl-error", Action.RETRY),
    "an exception, its message before its header": (
        RAISED, FAILED, "python-exception", Action.RETRY),
    "a non-zero exit without a word": (
        ["so long"], Outcome(state=State.FAILED, exit_code=3), "exit-code", Action.RETRY),
    "no exit code, no signal": (
        [], Outcome(state=State.FAILED), "unknown-death", Action.RETRY),
    "a program that is not there": (
        [], Outcome(state=State.FAILED, reason="[Errno 2] No such file", is_started=False),
        "not-started", Action.RETRY),
    "a program that only says that another could not be started": (
        [], Outcome(state=State.FAILED, exit_code=1, reason="x could not be started: no"),
        "exit-code", Action.RETRY),
    "SIGKILL": (steps(0, 3), Outcome(state=State.FAILED, signal=9), "killed", Action.RETRY),
    "exit 137": (
        steps(0, 3), Outcome(state=State.FAILED, exit_code=137), "killed", Action.RETRY),
    "SIGABRT": ([], Outcome(state=State.FAILED, signal=6), "signal-kill", Action.RETRY),
    "exit 143 before the last step": (
        steps(0, 3), Outcome(state=State.FAILED, exit_code=143), "cancelled", Action.NONE),
    "a node died": ([], Outcome(state=State.NODE_FAIL), "node-fail", Action.RESUME_NODE),
    "a job unknown to the scheduler": ([], Outcome(state=State.LOST), "lost", Action.RETRY),
    "a time limit while compiling": (
        ["Memstats: After params initialized:", TIME], Outcome(state=State.TIMEOUT),
        "time-limit", Action.NONE),
    "cancelled": (
        [*steps(0, 3), CANCELLED], Outcome(state=State.CANCELLED), "cancelled", Action.NONE),
    "exit 0 without a step": (["hello"], DONE, "no-steps", Action.DROP),
    "exit 0 with too few steps": (steps(0, 8), DONE, "too-few-steps", Action.RETRY),
    "exit 0, enough steps but not all": (steps(0, 12), DONE, None, Action.NONE),
    "OOM before the last step that a launcher reports as success": (
        [*steps(0, 12), OOM], DONE, "oom-gpu", Action.DROP),
    "still running": (steps(0, 3), RUNNING, None, Action.NONE),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "outcome", "cls", "action"), CASES.values(), ids=CASES.keys())
def test_the_root_cause(
    lines: list[str], outcome: Outcome, cls: str | None, action: Action
) -> None:
    cause = primary(diagnose(report_of(lines), outcome, PROTOCOL))
    assert (cause.cls if cause else None) == cls
    if cause is not None:
        assert cause.action is action


@pytest.mark.parametrize(
    ("lines", "cls", "action"),
    [
        (["NCCL_DEBUG=INFO"], "hang-init", Action.RETRY),
        (["Memstats: After params initialized:"], "hang-silent-oom", Action.DROP),
        (steps(0, 3), "hang-mid-training", Action.RETRY),
        (ALL, "soft-success", Action.SUCCESS),
        ([OOM], "oom-gpu", Action.DROP),
    ],
)
def test_a_hang_is_named_by_its_phase_unless_it_has_a_cause_or_all_steps(
    lines: list[str], cls: str, action: Action
) -> None:
    cancelled = Outcome(state=State.CANCELLED)
    for outcome in [cancelled] if lines is ALL else [RUNNING, cancelled]:
        cause = primary(diagnose(report_of(lines), outcome, PROTOCOL, stalled_s=700.0))
        assert cause is not None
        assert (cause.cls, cause.action) == (cls, action)
        assert (cause.detail == "700 s without a step") == cls.startswith("hang-")


def test_all_findings_are_reported_and_an_unexplained_end_shows_the_last_lines() -> None:
    findings = diagnose(report_of([OOM, NCCL, BEAT]), FAILED, PROTOCOL)
    assert [each.cls for each in findings] == ["oom-gpu", "nccl-error", "heartbeat-timeout"]
    said = [f"line {at}" for at in range(9)]
    (finding,) = diagnose(report_of([*said, ALL[0]]), FAILED, PROTOCOL)
    assert (finding.text, finding.detail) == ("\n".join(said[-5:]), "exit 1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (" 12%|#2        | 12/100 [00:24<02:58,  2.01s/it]", "('tqdm' fits)"),
        ("hello", "or step_pattern= in CellSettings"),
    ],
)
def test_a_log_without_a_step_names_the_pattern_that_fits(line: str, said: str) -> None:
    (found,) = diagnose(report_of([line]), DONE, PROTOCOL)
    assert found.cls == "no-steps"
    assert said in found.detail


def test_a_runaway_log_is_named() -> None:
    report = LogReport(size_bytes=600_000_000, phase=Phase.BEFORE_MEMSTATS)
    (runaway, _) = diagnose(report, Outcome(state=State.CANCELLED), PROTOCOL)
    assert (runaway.cls, runaway.detail) == ("runaway-log", "600 MB")


def test_primary_of_nothing_and_of_foreign_classes() -> None:
    assert primary(()) is None
    foreign = Finding(cls="flags-not-effective", action=Action.DROP)
    harmless = Finding(cls="cancelled", action=Action.NONE, line=1)
    assert primary((harmless, foreign)) is foreign


@pytest.mark.parametrize("state", [each for each in State if each.is_final])
def test_every_end_without_a_line_of_it_has_a_class(state: State) -> None:
    of_slurm = {State.PREEMPTED: "preempted", State.OUT_OF_MEMORY: "oom-host"}
    for signal, lines in itertools.product((None, 2, 9, 11, 15), ([], steps(0, 6))):
        outcome = Outcome(state=state, signal=signal, exit_code=None if signal else 1)
        found = diagnose(report_of(lines), outcome, PROTOCOL)
        assert found, (signal, lines)
        assert of_slurm.get(state) in (None, *(each.cls for each in found)), (signal, lines)


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([*ALL[:3], OOM], ""),
        ([*ALL[:3], TIME], "timeout"),
        (ALL[:3], ""),
    ],
    ids=["a finding is no end", "the scheduler's end", "it may still run"],
)
def test_a_log_shows_an_end_only_where_a_line_tells_it(lines: list[str], shown: str) -> None:
    assert ended_by(end_of(report_of(lines))) == shown
    assert ended_by(FAILED) == "failed (exit 1)"
