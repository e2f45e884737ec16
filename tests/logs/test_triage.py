"""Log and outcome together: what went wrong, what is the root cause, and what commands say of it.

The lines of the world are those of `tests/data/world.txt`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.logs import LogReport, Phase, read_log
from pytest_xlatune.logs._signatures import Signature, table
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.logs.triage import diagnose, primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.result import Action, Finding, Outcome, Score, State
from pytest_xlatune.tasks.files import STDIN, UnreadableLogError
from pytest_xlatune.tasks.read_logs import JobLog, logs_of, read_one
from tests.helpers.log_lines import step, text_of

Triaged = Callable[..., tuple[Any, int]]
PROTOCOL = Protocol(steps=15)
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.00GiB."
NCCL = "n1:1:2 [0] NCCL WARN Timeout waiting for rank 3"
BEAT = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
SIGTERM = "W0112 07:08:09.4 80 preemption_notifier.cc:89] SIGTERM caught at 2026-01-12"
CANCELLED = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-12T07:08:09 ***"
TIME = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-12T07:08:09 DUE TO TIME LIMIT ***"
MEMSTATS = "Memstats: After params initialized:"
RAISED = ["Traceback (most recent call last):", "ValueError: a shape"]


def steps(first: int, last: int, loss: str = "7.0") -> list[str]:
    return [step(each, loss=loss) for each in range(first, last + 1)]


FIFTEEN = steps(0, 14)
DONE = Outcome(state=State.COMPLETED, exit_code=0)
FAILED = Outcome(state=State.FAILED, exit_code=1)
RUNNING, CANCEL, TIMEOUT, NODE_FAIL, LOST_JOB = (
    Outcome(state=each)
    for each in (State.RUNNING, State.CANCELLED, State.TIMEOUT, State.NODE_FAIL, State.LOST)
)


def failed(**how: Any) -> Outcome:
    return Outcome(state=State.FAILED, **how)


def report_of(lines: list[str]) -> LogReport:
    return read_log([text_of(lines)])


ENDED = [*steps(0, 6), SIGTERM]
CASES: dict[str, tuple[list[str], Outcome, str | None, Action]] = {
    "a good run has no cause": (FIFTEEN, DONE, None, Action.NONE),
    "all steps and exit 1": (FIFTEEN, FAILED, "soft-success", Action.SUCCESS),
    "all steps and a time limit": ([*FIFTEEN, TIME], TIMEOUT, "soft-success", Action.SUCCESS),
    "all steps, then a scancel": ([*FIFTEEN, CANCELLED], CANCEL, "soft-success", Action.SUCCESS),
    "all steps, but the last ones after a person's scancel": (
        [*ENDED, *steps(7, 14)], CANCEL, "cancelled", Action.NONE),
    "all steps, but the last ones after the time limit": (
        [*steps(0, 6), TIME, SIGTERM, *steps(7, 14)], TIMEOUT, "time-limit", Action.NONE),
    "a time limit, and what the ranks print while they die": (
        [*steps(0, 6), TIME, SIGTERM, *steps(7, 9), NCCL, *RAISED], TIMEOUT,
        "time-limit", Action.NONE),
    "a scancel, and what the ranks print while they die": (
        [*steps(0, 6), CANCELLED, SIGTERM, BEAT, *RAISED], CANCEL, "cancelled", Action.NONE),
    "a scancel of a run that hung after OOM": (
        [*steps(0, 0), OOM, CANCELLED], CANCEL, "oom-gpu", Action.DROP),
    "a scancel of a run with a sick adapter": (
        [*steps(0, 0), "mlx5_0: IBV_WC_RETRY_EXC_ERR(12)", CANCELLED], CANCEL,
        "cancelled", Action.NONE),
    "the last steps after a notice, with exit 0": (
        [*ENDED, *steps(7, 14)], DONE, "steps-after-cancel", Action.RETRY),
    "steps after a notice, for another rank was killed": (
        [*ENDED, *steps(7, 9)], failed(signal=9), "killed", Action.RETRY),
    "a node died, and what the other ranks print meanwhile": (
        [*ENDED, *steps(7, 9), NCCL, *RAISED], NODE_FAIL, "node-fail", Action.RESUME_NODE),
    "exit 0 with NaN": (steps(0, 14, "nan"), DONE, "numerical-failure", Action.DROP),
    "a logged exception in a good run": (
        [*RAISED, *FIFTEEN], DONE, "python-exception", Action.NONE),
    "OOM that a launcher reports as success": ([OOM], DONE, "oom-gpu", Action.DROP),
    "the cascade": ([*steps(0, 1), OOM, NCCL, BEAT, *RAISED], FAILED, "oom-gpu", Action.DROP),
    "the cascade, the cause flushed last": (
        [*steps(0, 1), BEAT, NCCL, *RAISED, OOM], FAILED, "oom-gpu", Action.DROP),
    "consequences only": (
        [*steps(0, 1), NCCL, BEAT, *RAISED], FAILED, "nccl-error", Action.RETRY),
    "an exception, its message before its header": (
        RAISED, FAILED, "python-exception", Action.RETRY),
    "a non-zero exit without a word": (
        ["so long"], failed(exit_code=3), "exit-code", Action.RETRY),
    "no exit code, no signal": ([], failed(), "unknown-death", Action.RETRY),
    "a program that is not there": (
        [], failed(reason="[Errno 2] No such file", is_started=False),
        "not-started", Action.RETRY),
    "a program that only says that another could not be started": (
        [], failed(exit_code=1, reason="x could not be started: no"), "exit-code", Action.RETRY),
    "SIGKILL": (steps(0, 3), failed(signal=9), "killed", Action.RETRY),
    "exit 137": (steps(0, 3), failed(exit_code=137), "killed", Action.RETRY),
    "SIGABRT": ([], failed(signal=6), "signal-kill", Action.RETRY),
    "exit 143 before the last step": (
        steps(0, 3), failed(exit_code=143), "cancelled", Action.NONE),
    "a job unknown to the scheduler": ([], LOST_JOB, "lost", Action.RETRY),
    "a time limit while compiling": ([MEMSTATS, TIME], TIMEOUT, "time-limit", Action.NONE),
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
    assert (cause and cause.cls, cause.action if cause else Action.NONE) == (cls, action)


@pytest.mark.parametrize(
    ("lines", "cls", "action"),
    [
        (["NCCL_DEBUG=INFO"], "hang-init", Action.RETRY),
        ([MEMSTATS], "hang-silent-oom", Action.DROP),
        (steps(0, 3), "hang-mid-training", Action.RETRY),
        (FIFTEEN, "soft-success", Action.SUCCESS),
        ([OOM], "oom-gpu", Action.DROP),
    ],
)
def test_a_hang_is_named_by_its_phase_unless_it_has_a_cause_or_all_steps(
    lines: list[str], cls: str, action: Action
) -> None:
    for outcome in [CANCEL] if lines is FIFTEEN else [RUNNING, CANCEL]:
        cause = primary(diagnose(report_of(lines), outcome, PROTOCOL, stalled_s=700.0))
        assert cause is not None
        assert (cause.cls, cause.action) == (cls, action)
        assert (cause.detail == "700 s without a step") == cls.startswith("hang-")


def test_all_findings_are_reported_and_an_unexplained_end_shows_the_last_lines() -> None:
    findings = diagnose(report_of([OOM, NCCL, BEAT]), FAILED, PROTOCOL)
    assert [each.cls for each in findings] == ["oom-gpu", "nccl-error", "heartbeat-timeout"]
    said = [f"line {at}" for at in range(9)]
    (finding,) = diagnose(report_of([*said, FIFTEEN[0]]), FAILED, PROTOCOL)
    assert (finding.text, finding.detail) == ("\n".join(said[-5:]), "exit 1")

    (finding,) = diagnose(
        report_of([" 12%|#2        | 12/100 [00:24<02:58,  2.01s/it]"]), DONE, PROTOCOL
    )
    assert finding.cls == "no-steps"
    assert "('tqdm' fits)" in finding.detail
    report = LogReport(size_bytes=600_000_000, phase=Phase.BEFORE_MEMSTATS)
    (runaway, _) = diagnose(report, CANCEL, PROTOCOL)
    assert (runaway.cls, runaway.detail) == ("runaway-log", "600 MB")


@pytest.mark.parametrize("state", [each for each in State if each.is_final])
def test_every_end_without_a_line_of_it_has_a_class(state: State) -> None:
    of_slurm = {State.PREEMPTED: "preempted", State.OUT_OF_MEMORY: "oom-host"}
    for signal, lines in itertools.product((None, 2, 9, 11, 15), ([], steps(0, 6))):
        outcome = Outcome(state=state, signal=signal, exit_code=None if signal else 1)
        found = diagnose(report_of(lines), outcome, PROTOCOL)
        assert found, (signal, lines)
        assert of_slurm.get(state) in (None, *(each.cls for each in found)), (signal, lines)


HEAD = ["I0112 07:08:09.000100 77 train.py:310] Config param steps: 20"]
STEPS = [*HEAD, *(step(each) for each in range(3))]
WHOLE = [*HEAD, *(step(each) for each in range(20))]
TRACE = ["Traceback (most recent call last):", '  File "t.py", line 7, in main', "    loop(config)"]
LACKS = "AttributeError: 'F' object has no attribute 'file'"
DATA = Path(__file__).parents[1] / "data" / "world.txt"


def cases(part: str) -> dict[str, list[list[str]]]:
    """Of each class the cases of a part of `tests/data/world.txt`; a line keeps its mark."""
    text = DATA.read_text(encoding="utf-8").partition(f"== {part}\n")[2].partition("\n== ")[0]
    found: dict[str, list[list[str]]] = {}
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        found.setdefault(head.strip("[]"), []).append(lines)
    return found


def plain(part: str) -> list[list[str]]:
    """The cases of a part without a class, as a program prints them."""
    return [[line[1:] for line in lines] for lines in cases(part)[""]]


SAID, LAUNCH = cases("in the middle of a run"), cases("before a line of the program")
SPELT = cases("with a figure or a name")  # `class: detail`
SCANCEL = SAID["cancelled"][1][0].strip()
LIMIT = SAID["time-limit"][1][0].strip()
ON_CPU = [line for (line,) in plain("in a run that falls back to the CPU")]
SURVIVED = plain("in the middle of a run that ends well")
LEFT = plain("at the end of a run that ends well")
(TEARDOWN,) = plain("in a teardown that fails")
(NOTES,) = plain("in a run of AXLearn that goes on")
((PEER, LOST),) = plain("what a rank says of another")
HALTED = next(lines[0][1:] for lines in SAID["tpu-chip"]).partition("; observed")[0]


@pytest.mark.parametrize(
    ("cls", "trained"),
    [
        *((cls, trained) for trained in (STEPS, HEAD) for cls in SAID),
        *((cls, []) for cls in LAUNCH),
    ],
)
def test_what_a_program_says_as_it_dies_has_its_class(
    cls: str, trained: list[str], triaged: Triaged
) -> None:
    for said in (SAID if trained else LAUNCH)[cls]:
        lines = [each[1:] for each in said]
        before = [*trained, *(TRACE if trained and "Error: " in lines[0][:60] else [])]
        entry, status = triaged([*before, *lines])
        assert (entry["status"], entry["health"], status) == (cls, "failed", 1), said
        root = next((at for at, each in enumerate(said) if each[0] == ">"), 0)
        first = next(each["line"] for each in entry["findings"] if each["class"] == cls)
        assert first == len(before) + root + 1, said


@pytest.mark.parametrize(("head", "said"), SPELT.items(), ids=SPELT)
def test_a_figure_or_a_name_of_a_line_is_told(head: str, said: list[list[str]]) -> None:
    for lines in said:
        (finding,) = read_log([text_of([lines[0][1:]])]).findings
        assert f"{finding.cls}: {finding.detail}" == head


@pytest.mark.parametrize("line", [lines[0] for lines in plain("in a run that goes on")])
def test_a_line_of_a_good_run_is_no_finding(line: str, triaged: Triaged) -> None:
    entry, status = triaged([*STEPS, line])
    assert (entry["status"], status) == ("unfinished", 3)
    assert [each["class"] for each in entry["findings"]] == ["unfinished"]


AXLEARN = "I0112 07:09:09.1 7 t.py:5] SpmdTrainer process 0 step {}] Average step time: 2.0 seconds"


# a line without an end, as a progress bar is -> its step pattern
WRITTEN = {
    step(3): "",
    step(3)[:70]: "",
    f"0: {step(3)}": "",
    "Epoch 0:  60%|######    | 12/20 [00:24<00:16,  0.49it/s, v_num=0]": "tqdm",
    "[rank0]: INFO - step:  4  loss:  7.1  tps: 7,012  tflops: 310.2  mfu: 31.3%": "torchtitan",
}
# what another program writes behind it -> the status
BEHIND = {
    LIMIT: "time-limit",
    f"\x1b[31m{SCANCEL}\x1b[0m": "cancelled",
    "F0112 07:08:09.2 77 gemm.cc:14] Check failed: a == b": "xla-check-fail",
    "*** SIGABRT received by PID 7 (TID 7) on cpu 2; stack trace: ***": "signal-kill",
    "srun: error: n1: task 0: Killed": "killed",
}


@pytest.mark.parametrize("said", BEHIND)
@pytest.mark.parametrize("line", WRITTEN)
def test_what_another_program_writes_behind_a_step_is_read(
    line: str, said: str, triaged: Triaged
) -> None:
    lines, pattern = [f"{line}{said}"], WRITTEN[line]
    if pattern:
        entry, _ = triaged(lines, "--step-pattern", pattern)
    else:
        entry, _ = triaged([*STEPS, *lines])
    assert (entry["status"], entry["last_step"] is None) == (BEHIND[said], False)


ARGUMENTS = 'PASSTHROUGH_ARGS="steps=15 dataset_type=synthetic _env_TUNE_PROFILE=a"'
EXITED = "srun: error: n2: task 1: Exited with exit code 3"
SUMMARY = "== Training FAILED (exit=1, 84s) =="
REQUEUE = SAID["requeued"][0][0].strip()
OF_SCRIPTS = (
    "/var/spool/slurmd/job00031/slurm_script: line 3: module: command not found",
    "[gpu-1:512] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229",
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
)
# what a log is called, and the exit status of `triage`
TOGETHER: dict[str, tuple[list[str], str, int]] = {
    "of a halt": ([*STEPS, f"{HALTED}: scheckne: ", "*****", PEER], "program-divergence", 1),
    "what a rank says of another": ([*STEPS, LOST], "heartbeat-timeout", 1),
    "a second start ends well": ([*STEPS, REQUEUE, *WHOLE], "ok", 0),
    **{f"survived: {each[0][:40]}": ([*STEPS, *each, *WHOLE[4:]], "ok", 0) for each in SURVIVED},
    **{f"at the end: {each[0][:60]}": ([*WHOLE[1:], *each], "ok", 0) for each in LEFT},
    "a teardown that fails": ([*WHOLE, *TEARDOWN], "soft-success", 0),
    "frames": (
        [each.replace("TFLOP", "Frames/s/device: 7.2, TFLOP") for each in WHOLE], "ok", 0),
    "an exception that Python ignores": (
        [*WHOLE, "Exception ignored in: <function F.__del__ at 0x7f>", *TRACE, LACKS], "ok", 0),
    "nothing tells how many steps there were to be": (FIFTEEN[:12], "ok", 0),
    "nor of a run that a person ended": ([*FIFTEEN[:12], SCANCEL], "cancelled", 1),
    "nor of one that ended itself": ([*FIFTEEN[:12], EXITED], "exit-code", 1),
    "the head of maxtext-slurm's log tells it": (
        [ARGUMENTS, *FIFTEEN, "NODE_EXIT host=n7 exit=1"], "soft-success", 0),
    "more steps were asked for": (
        [ARGUMENTS.replace("=15", "=100"), *FIFTEEN[:12]], "unfinished", 3),
    "an option of the program": (
        [ARGUMENTS.replace("steps=15", "--steps=100"), *FIFTEEN[:12], SCANCEL], "cancelled", 1),
    "the configuration is nearer": (
        [ARGUMENTS, "Config param steps: 12", *FIFTEEN[:12]], "ok", 0),
    **{f"on the CPU: {line}": ([line, *WHOLE], "no-gpu", 1) for line in ON_CPU},
    "on the CPU, as was asked for": (["Config param hardware: cpu", ON_CPU[0], *WHOLE], "ok", 0),
    **{f"a script goes on after {line[:30]} at {at}": ([*WHOLE[:at], line, *WHOLE[at:]], status, 0)
       for line in OF_SCRIPTS
       for at, status in ((0, "ok"), (7, "ok"), (len(WHOLE), "soft-success"))},
}  # fmt: skip
CONFIG = ["Config param steps: 15", "Config param profiler: "]
# lines, of which a `<` at the end of the last is cut off with the end of its line -> what the log
# is called, the exit status of `triage`, and what it says
ENDS: dict[str, tuple[list[str], str, int, str]] = {
    "all steps, and no word of an end": ([*CONFIG, *FIFTEEN], "ok", 0, "last step 14 of 15"),
    "all steps, and a teardown with 143": (
        [*CONFIG, *FIFTEEN, SUMMARY.replace("=1,", "=143,")], "soft-success", 0, "exit 143"),
    "all steps, and a failed summary": (
        [*CONFIG, *FIFTEEN, " Status:  FAILED (exit 1) - stage failed"], "soft-success", 0,
        "exit 1"),
    "the log ends at step 7": (
        [*CONFIG, *FIFTEEN[:8]], "unfinished", 3, "at step 7 of 15 without an end: killed, or st"),
    "a hang before Memstats": (
        CONFIG, "unfinished", 3, "before its first step of 15 without an end"),
    "a hang while compiling": ([*CONFIG, MEMSTATS], "unfinished", 3, "phase compiling"),
    "a time limit": ([*CONFIG, *FIFTEEN[:8], LIMIT], "time-limit", 1, "its end: timeout"),
    "a scancel": ([*CONFIG, *FIFTEEN[:8], SCANCEL], "cancelled", 1, "its end: cancelled"),
    "a scancel, as maxtext-slurm sums it up": (
        [*CONFIG, *FIFTEEN[:8], " Status: CANCELLED (scancel / SIGTERM)"], "cancelled", 1,
        "its end: cancelled"),
    "OOM": ([*CONFIG, *FIFTEEN[:2], OOM, SUMMARY], "oom-gpu", 1, "last step 1 of 15"),
    "a line of trouble that the job survived": (
        [*CONFIG, *FIFTEEN[:2], OOM, *FIFTEEN[2:9]], "unfinished", 3, "at step 8 of 15"),
    "srun's word alone": ([*CONFIG, EXITED], "exit-code", 1, "exit 3"),
    "a requeued job whose first start died": (
        [*CONFIG, OOM, *CONFIG, *FIFTEEN], "ok", 0, "last step 14 of 15"),
    "a requeued job whose second start goes on": (
        [*CONFIG, OOM, *CONFIG, *FIFTEEN[:3]], "unfinished", 3, "at step 2 of 15"),
    "NaN to the end": ([*CONFIG, *steps(0, 14, "nan")], "numerical-failure", 1, "14"),
    "fewer steps than a score needs": (
        ["Config param steps: 3", *FIFTEEN[:3], " Status: SUCCESS (exit 0)"], "no-score", 0,
        "completed (exit 0)"),
    "no line of it is a step": (
        ["XLA_FLAGS=--xla_a=true", "round 1, 3 ms"], "unfinished", 3,
        "--step-pattern reads those of"),
    "torn behind the word of an end": (
        [*FIFTEEN[:8], f"{SUMMARY.replace('=1,', '=143,')}<"], "stage-fail", 1,
        "stage-fail retry 9"),
    **{name: (*row, "") for name, row in TOGETHER.items()},
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDS)
def test_log_and_end_are_read_together(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, status, code, said = ENDS[ending]
    path = tmp_path / "job.log"
    path.write_bytes(text_of(lines).removesuffix(b"<\n"))
    assert main(["triage", str(path)]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert f"job.log: {status}" in shown
    assert said in shown
    # the head of a soft success names only what asks for something
    assert status != "soft-success" or "stage-fail" not in shown.partition("Findings")[0]
    assert main(["triage", "--json", str(path)]) == code
    (entry,) = json.loads(capsys.readouterr().out)["logs"]
    assert entry["status"] == status
    assert entry["health"] == {0: "healthy", 1: "failed", 3: "unfinished"}[code]
    assert status != "no-gpu" or "ran on the CPU" in entry["no_score_reason"]
    assert entry.pop("behind") is None  # which triage alone asks
    assert main(["steps", "--json", str(path)]) == (3 if code == 3 else 0)
    assert json.loads(capsys.readouterr().out)["logs"] == [entry]


def test_notes_of_axlearn_among_its_steps_end_nothing(triaged: Triaged) -> None:
    lines = [*(AXLEARN.format(at * 100) for at in range(1, 13)), *NOTES]
    entry, _ = triaged(lines, "--step-pattern", "axlearn")
    said = tuple(entry[key] for key in ("status", "health", "last_step", "steps_wanted"))
    assert said == ("no-score", "healthy", 1200, None)


def read(tmp_path: Path, *config: str, steps: int = 15, last: str = "") -> JobLog:
    path = tmp_path / "job.log"
    lines = [f"Config param {each}" for each in config]
    path.write_bytes(text_of([*lines, *(step(each) for each in range(steps)), last]))
    return read_one(path)


# of each MaxText -> the profiler
PROFILERS = {
    "profiler: ": "",  # 0.1: nothing
    "profiler: ProfilerType.NONE": "",  # 0.2: the enum's member
    "profiler: <ProfilerType.NONE: ''>": "",  # an enum as Python shows it
    "profiler: None": "",
    'profiler: ""': "",
    "profiler: xplane": "xplane",  # 0.1: on
    "profiler: ProfilerType.XPLANE": "xplane",  # 0.2: on
    "profiler: <ProfilerType.NSYS: 'nsys'>": "nsys",
}


@pytest.mark.parametrize(("said", "profiler"), PROFILERS.items())
def test_the_window_follows_the_real_profiler_setting(
    tmp_path: Path, said: str, profiler: str
) -> None:
    found = read(tmp_path, said, "skip_first_n_steps_for_profiler: 4", "profiler_steps: 2")
    assert found.protocol.profiler == profiler
    assert isinstance(found.score, Score)
    assert found.score.window == ((9, 14) if profiler else (5, 14))
    assert read(tmp_path, "skip_first_n_steps_for_profiler: 0").protocol.skip_first_steps == 0


@pytest.mark.parametrize(
    "config",
    [["steps: 15"], ["steps: -1", "learning_rate_schedule_steps: 15"], ["steps: nonsense"], []],
)
def test_steps_are_those_that_the_configuration_asks_for(tmp_path: Path, config: list[str]) -> None:
    assert read(tmp_path, *config).protocol.steps == 15


def test_of_a_log_without_an_end_the_last_lines_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    early = ["the first line of all", *(f"line {at} {'x' * 90}" for at in range(200))]
    end = ["HF_TOKEN=plant-1234567", FIFTEEN[7], "\x1b]0;title\x07 the last word"]
    path.write_bytes(text_of([*early, *CONFIG, *FIFTEEN[:7], *end]))
    assert main(["triage", str(path)]) == 3
    shown = capsys.readouterr().out
    for hidden in ("\x1b", "first line", "plant"):
        assert hidden not in shown
    last = [line.strip() for line in shown.partition("Last lines")[2].split("\n") if line.strip()]
    begins = ["completed step: 5,", "completed step: 6,", "", "completed step: 7,", ""]
    assert all(line.startswith(each) for line, each in zip(last, begins, strict=True)), last
    assert last[4].endswith("the last word")


def test_the_payloads_own_word_of_the_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.0.txt"
    path.write_bytes(text_of([*CONFIG, *FIFTEEN[:8]]))
    assert read_one(path).status == "unfinished"
    killed = Outcome(state=State.FAILED, signal=9, end_s=2.0)
    (tmp_path / "outcome.json").write_text(json.dumps(killed.to_json()), encoding="utf-8")
    found = read_one(path)
    assert (found.status, found.health) == ("killed", "failed")
    assert found.reached.endswith("its end: failed (signal 9)")


def test_several_logs_exit_by_the_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths: dict[str, Path] = {}
    for name, lines in (("good", FIFTEEN), ("half", FIFTEEN[:8]), ("bad", [*FIFTEEN[:2], OOM])):
        paths[name] = tmp_path / f"{name}.log"
        paths[name].write_bytes(text_of([*CONFIG, *lines]))
    good, half, bad = map(str, paths.values())
    assert main(["triage", good, half]) == 3
    assert main(["triage", good, half, bad]) == 1
    assert main(["triage", good, bad, str(tmp_path / "gone")]) == 2
    assert "gone cannot be read" in capsys.readouterr().err


def test_figures_that_are_no_numbers_are_words_in_json(triaged: Triaged) -> None:
    figures = "seconds: nan, TFLOP/s/device: inf, MFU: nan%, Tokens/s/device: inf"
    entry, _ = triaged([f"completed step: 0, {figures}, total_weights: 1, loss: -inf"])
    (record,) = entry["steps"]
    said = {name: record[name] for name in ("seconds", "tgs", "tflops", "mfu")}
    assert said == {"seconds": "nan", "tgs": "inf", "tflops": "inf", "mfu": "nan"}


@pytest.mark.parametrize("steps", ["100000000", "999999999999999", "9" * 4000])
def test_memory_is_bounded_by_the_log_and_not_by_a_number_in_it(tmp_path: Path, steps: str) -> None:
    read(tmp_path)  # what is loaded once
    tracemalloc.start()
    found = read(tmp_path, f"steps: {steps}", last=f"completed step: {'9' * 15}, seconds: 1.0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.report.last_step == int("9" * 15)
    assert peak < 10e6


# files of a folder, what is asked for -> the logs that are read
FOLDERS: dict[str, tuple[list[str], str, list[str]]] = {
    "an array by its number": (
        ["slurm-123_1.out", "slurm-123_2.out.gz", "slurm-1234_1.out", "notes.md"], "123",
        ["slurm-123_1.out", "slurm-123_2.out.gz"]),
    "a folder of several jobs": (
        ["slurm-123_1.out", "slurm-9.out"], "", ["slurm-123_1.out", "slurm-9.out"]),
    "submitit: rank 0 of each job": (
        ["88_1_log.out", "88_0_log.out", "88_0_log.err", "89_4_0_log.out"], "",
        ["88_0_log.out", "89_4_0_log.out"]),
    "one of them": (["88_1_log.out", "88_0_log.out"], "88", ["88_0_log.out"]),
    "an attempt": (["log.1.txt", "log.0.txt", "x.out"], "", ["log.0.txt"]),
    "maxtext-slurm": (["12-llama.log", "12-llama.out"], "12", ["12-llama.log"]),
    "a name that is none of a job": (["notes.log"], "note", ["note"]),
}  # fmt: skip


@pytest.mark.parametrize(("names", "asked", "found"), FOLDERS.values(), ids=FOLDERS)
def test_folders_of_jobs_and_arrays(
    tmp_path: Path, names: list[str], asked: str, found: list[str]
) -> None:
    for each in names:
        (tmp_path / each).write_bytes(b"completed step: 1, seconds: 0.5, loss: 7.0\n")
    assert [each.name for each in logs_of(tmp_path / asked)] == found


MANY = text_of([*CONFIG, *(f"{each} {'x' * 99}" for each in range(30_000)), *FIFTEEN])
PACKED = {
    "gzip": gzip.compress(MANY),
    "members with zeros between": (b"\0" * 700).join(map(gzip.compress, (MANY[:999], MANY[999:]))),
    "plain": MANY,
}


@pytest.mark.parametrize("is_piped", [False, True], ids=["a file", "the standard input"])
@pytest.mark.parametrize("packed", PACKED)
def test_gzip_and_the_standard_input_are_read_as_a_plain_file_is(
    packed: str, *, is_piped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(PACKED[packed])
    with path.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found = read_one(STDIN if is_piped else path)
    assert (found.status, found.report.last_step, found.report.size_bytes) == ("ok", 14, len(MANY))
    assert found.report.notes == ()


def test_a_gzipped_log_that_is_cut_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log.gz"
    noise = random.Random(3).randbytes(2_000_000).hex().encode()
    path.write_bytes(gzip.compress(text_of([*CONFIG, *FIFTEEN[:8]]) + noise)[:-1000])
    assert main(["triage", str(path)]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "last step 7 of 15; no end in the log * its gzip data is cut or damaged" in said
    assert main(["steps", str(path)]) == 3
    assert "its gzip data is cut or damaged: only the" in " ".join(capsys.readouterr().out.split())
    path.write_bytes(path.read_bytes()[:12] + b"?" * 99)
    with pytest.raises(UnreadableLogError, match="damaged from the first byte on"):
        read_one(path)


# text and pattern of a file that is no log -> what is told
NO_LOGS = {
    "nothing in it": ("", None, "is empty; name the log"),
    "no step of ours: the message says how to write a pattern": (
        "hello\n", None,
        r"1 line, none .*tqdm, json; .*put \(\?P<step>\\d\+\) in the place of its number"),
    "nor of the pattern": ("hello\n", "nemo", "the step pattern .* fits none"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "pattern", "said"), NO_LOGS.values(), ids=NO_LOGS)
def test_a_file_that_is_no_log_is_told_by_what_it_lacks(
    tmp_path: Path, text: str, pattern: str | None, said: str
) -> None:
    path = tmp_path / "a.md"
    path.write_text(text)
    with pytest.raises(UnreadableLogError, match=said):
        read_one(path, pattern=step_pattern(pattern) if pattern else None)
    with pytest.raises(UnreadableLogError, match="Is a directory; name the log of a job"):
        read_one(*logs_of(tmp_path))


TABLE = table()


def finding_of(line: str) -> Finding | None:
    findings = read_log([line.encode() + b"\n"]).findings
    assert len(findings) <= 1
    return findings[0] if findings else None


@pytest.mark.parametrize("each", TABLE.signatures, ids=lambda each: f"{each.cls}: {each.words[0]}")
def test_a_sample_is_named_by_its_own_signature(each: Signature) -> None:
    for prefix in ("", " 3: ", "0: (Actor pid=7, ip=10.0.0.9) "):
        finding = finding_of(prefix + each.sample)
        assert finding is not None, prefix
        assert (finding.cls, finding.action) == (each.cls, each.action), prefix
        assert finding.text == (prefix + each.sample).strip()
    # no earlier signature matches
    low = each.sample.lower()
    first = next(
        one
        for one in TABLE.signatures
        if any(word in low for word in one.words) and one.pattern.search(each.sample)
    )
    assert first is each


def test_harmless_lines_name_nothing() -> None:
    for line, pattern in TABLE.harmless.items():
        assert finding_of(line) is None, line
        assert re.search(pattern, line), line
    # lines that a signature would name if they were not listed
    for line in (
        "failed call to cuInit: CUDA_ERROR_UNKNOWN (303)",
        "n1:1:2 [0] NCCL INFO NCCL error 3",
        "bfc] ran out of memory trying to allocate 2GiB; this is not a failure",
    ):
        assert any(each.pattern.search(line) for each in TABLE.signatures)
        assert finding_of(line) is None
