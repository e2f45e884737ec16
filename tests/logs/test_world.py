"""Logs of the world: the right class for what people really see, each kind in two wordings or more.

The lines are those of `tests/data/world.txt`. `STEPS` are the first steps of a job of 20.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.logs import read_log
from tests.helpers.log_lines import step, text_of

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
SURVIVED = plain("in the middle of a run that ends well")
LEFT = plain("at the end of a run that ends well")
(TEARDOWN,) = plain("in a teardown that fails")
(NOTES,) = plain("in a run of AXLearn that goes on")
((PEER, LOST),) = plain("what a rank says of another")
HALTED = next(lines[0][1:] for lines in SAID["tpu-chip"]).partition("; observed")[0]


def triaged(
    path: Path, lines: tuple[str, ...] | list[str], capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[dict[str, object], int]:
    """The entry of a log in `triage --json`, and the exit status."""
    path.write_bytes(text_of(lines))
    status = main(["triage", "--json", *more, str(path)])
    (entry,) = json.loads(capsys.readouterr().out)["logs"]
    return entry, status


@pytest.mark.parametrize(
    ("cls", "trained"),
    [
        *((cls, trained) for trained in (STEPS, HEAD) for cls in SAID),
        *((cls, []) for cls in LAUNCH),
    ],
)
def test_what_a_program_says_as_it_dies_has_its_class(
    cls: str, trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for said in (SAID if trained else LAUNCH)[cls]:
        lines = [each[1:] for each in said]
        trace = TRACE if trained and "Error: " in lines[0][:60] else []
        entry, status = triaged(tmp_path / "job.log", [*trained, *trace, *lines], capsys)
        assert (entry["status"], entry["health"], status) == (cls, "failed", 1), said
        root = next((at for at, each in enumerate(said) if each[0] == ">"), 0)
        first = next(each["line"] for each in entry["findings"] if each["class"] == cls)  # type: ignore[attr-defined]
        assert first == len(trained) + len(trace) + root + 1, said


@pytest.mark.parametrize(("head", "said"), SPELT.items(), ids=SPELT)
def test_a_figure_or_a_name_of_a_line_is_told(head: str, said: list[list[str]]) -> None:
    for lines in said:
        (finding,) = read_log([text_of([lines[0][1:]])]).findings
        assert f"{finding.cls}: {finding.detail}" == head


REQUEUE = SAID["requeued"][0][0].strip()


@pytest.mark.parametrize("line", [lines[0] for lines in plain("in a run that goes on")])
def test_a_line_of_a_good_run_is_no_finding(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, status = triaged(tmp_path / "job.log", [*STEPS, line], capsys)
    assert (entry["status"], status) == ("unfinished", 3)
    assert [each["class"] for each in entry["findings"]] == ["unfinished"]  # type: ignore[attr-defined]


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
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = WRITTEN[line]
    lines = [*(STEPS if not pattern else []), f"{line}{said}"]
    more = ["--step-pattern", pattern] if pattern else []
    entry, _ = triaged(tmp_path / "job.log", lines, capsys, *more)
    assert (entry["status"], entry["last_step"] is None) == (BEHIND[said], False)


@pytest.mark.parametrize("line", [line for (line,) in plain("in a run that falls back to the CPU")])
def test_a_run_that_fell_back_to_the_cpu_has_no_score(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, status = triaged(tmp_path / "job.log", [line, *WHOLE], capsys)
    assert (entry["status"], entry["score"], status) == ("no-gpu", None, 1)
    assert "ran on the CPU" in str(entry["no_score_reason"])
    # a run that was to be one of a CPU is well
    wanted = ["Config param hardware: cpu", line, *WHOLE]
    entry, status = triaged(tmp_path / "job.log", wanted, capsys)
    assert (entry["status"], status) == ("ok", 0)


TITAN = (
    "[rank0]:2026-01-12 07:08:09,123 - root - INFO - step: {}  loss:  7.1  memory: 31.2GiB(39%)  "
    "tps: 7,012  tflops: 310.2  mfu: 31.3%"
)
ARGUMENTS = 'PASSTHROUGH_ARGS="steps=15 dataset_type=synthetic _env_TUNE_PROFILE=a"'
FIFTEEN = [step(each) for each in range(15)]
OF_SCRIPTS = (
    "/var/spool/slurmd/job00031/slurm_script: line 3: module: command not found",
    "[gpu-1:512] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229",
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy",
)
# what a log is called, and the exit status of `triage`
TOGETHER: dict[str, tuple[list[str], str, int]] = {
    "of a halt": ([*STEPS, f"{HALTED}: scheckne: ", "*****", PEER], "program-divergence", 1),
    "what a rank says of another": ([*STEPS, LOST], "heartbeat-timeout", 1),
    "a second start goes on": ([*STEPS, REQUEUE, *STEPS], "unfinished", 3),
    "a second start ends well": ([*STEPS, REQUEUE, *WHOLE], "ok", 0),
    **{f"survived: {each[0][:40]}": ([*STEPS, *each, *WHOLE[4:]], "ok", 0) for each in SURVIVED},
    **{f"at the end: {each[0][:60]}": ([*WHOLE[1:], *each], "ok", 0) for each in LEFT},
    "a teardown that fails": ([*WHOLE, *TEARDOWN], "soft-success", 0),
    "frames": (
        [each.replace("TFLOP", "Frames/s/device: 7.2, TFLOP") for each in WHOLE], "ok", 0),
    "rank 0 alone": ([*HEAD, *(f"0: {step(each)}" for each in range(20))], "ok", 0),
    "an exception that Python ignores": (
        [*WHOLE, "Exception ignored in: <function F.__del__ at 0x7f>", *TRACE, LACKS], "ok", 0),
    "nothing tells how many steps there were to be": (FIFTEEN[:12], "ok", 0),
    "nor of a run that a person ended": ([*FIFTEEN[:12], SCANCEL], "cancelled", 1),
    "nor of one that the time limit ended": ([*FIFTEEN[:12], LIMIT], "time-limit", 1),
    "nor of one that ended itself": (
        [*FIFTEEN[:12], "srun: error: n2: task 1: Exited with exit code 3"], "exit-code", 1),
    "the head of maxtext-slurm's log tells it": (
        [ARGUMENTS, *FIFTEEN, "NODE_EXIT host=n7 exit=1"], "soft-success", 0),
    "with a failed summary": (
        [ARGUMENTS, *FIFTEEN, "== Training FAILED (exit=1, 84s) =="], "soft-success", 0),
    "more steps were asked for": (
        [ARGUMENTS.replace("=15", "=100"), *FIFTEEN[:12]], "unfinished", 3),
    "an option of the program": (
        [ARGUMENTS.replace("steps=15", "--steps=100"), *FIFTEEN[:12], SCANCEL], "cancelled", 1),
    "the configuration is nearer": (
        [ARGUMENTS, "Config param steps: 12", *FIFTEEN[:12]], "ok", 0),
    **{f"a script goes on after {line[:30]} at {at}": ([*WHOLE[:at], line, *WHOLE[at:]], status, 0)
       for line in OF_SCRIPTS
       for at, status in ((0, "ok"), (7, "ok"), (len(WHOLE), "soft-success"))},
}  # fmt: skip
CONFIG = ["Config param steps: 15", "Config param profiler: "]
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.00GiB."
# lines, of which a `<` at the end of the last is cut off with the end of its line -> what the log
# is called, the exit status of `triage`, and what it says
ENDS: dict[str, tuple[list[str], str, int, str]] = {
    "all steps, and no word of an end": ([*CONFIG, *FIFTEEN], "ok", 0, "last step 14 of 15"),
    "all steps, and a teardown with 143": (
        [*CONFIG, *FIFTEEN, "== Training FAILED (exit=143, 84s) =="], "soft-success", 0,
        "exit 143"),
    "all steps, and a failed summary": (
        [*CONFIG, *FIFTEEN, " Status:  FAILED (exit 1) - stage failed"], "soft-success", 0,
        "exit 1"),
    "the log ends at step 7": (
        [*CONFIG, *FIFTEEN[:8]], "unfinished", 3, "at step 7 of 15 without an end: killed, or st"),
    "a hang before Memstats": (
        CONFIG, "unfinished", 3, "before its first step of 15 without an end"),
    "a hang while compiling": (
        [*CONFIG, "Memstats: After params initialized:"], "unfinished", 3, "phase compiling"),
    "a time limit": (
        [*CONFIG, *FIFTEEN[:8], LIMIT], "time-limit", 1, "its end: timeout"),
    "a time limit after the last step": (
        [*CONFIG, *FIFTEEN, LIMIT], "soft-success", 0, "its end: timeout"),
    "a scancel": ([*CONFIG, *FIFTEEN[:8], SCANCEL], "cancelled", 1, "its end: cancelled"),
    "a scancel, as maxtext-slurm sums it up": (
        [*CONFIG, *FIFTEEN[:8], " Status: CANCELLED (scancel / SIGTERM)"], "cancelled", 1,
        "its end: cancelled"),
    "OOM": (
        [*CONFIG, *FIFTEEN[:2], OOM, "== Training FAILED (exit=1, 84s) =="], "oom-gpu", 1,
        "last step 1 of 15"),
    "OOM without a configuration or an end": ([*FIFTEEN[:2], OOM], "oom-gpu", 1, "last step 1"),
    "a line of trouble that the job survived": (
        [*CONFIG, *FIFTEEN[:2], OOM, *FIFTEEN[2:9]], "unfinished", 3, "at step 8 of 15"),
    "srun's word alone": (
        [*CONFIG, "srun: error: n2: task 1: Exited with exit code 3"], "exit-code", 1, "exit 3"),
    "a requeued job whose first start died": (
        [*CONFIG, OOM, *CONFIG, *FIFTEEN], "ok", 0, "last step 14 of 15"),
    "a requeued job whose second start goes on": (
        [*CONFIG, OOM, *CONFIG, *FIFTEEN[:3]], "unfinished", 3, "at step 2 of 15"),
    "NaN to the end": (
        [*CONFIG, *(step(each, loss="nan") for each in range(15))], "numerical-failure", 1, "14"),
    "fewer steps than a score needs": (
        ["Config param steps: 3", *FIFTEEN[:3], " Status: SUCCESS (exit 0)"], "no-score", 0,
        "completed (exit 0)"),
    "no line of it is a step": (
        ["XLA_FLAGS=--xla_a=true", "round 1, 3 ms"], "unfinished", 3,
        "--step-pattern reads those of"),
    "torn behind the word of an end": (
        [*FIFTEEN[:8], "== Training FAILED (exit=143, 84s) ==<"], "stage-fail", 1,
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
    assert entry.pop("behind") is None  # which triage alone asks
    assert main(["steps", "--json", str(path)]) == (3 if code == 3 else 0)
    assert json.loads(capsys.readouterr().out)["logs"] == [entry]


@pytest.mark.parametrize(
    ("pattern", "lines", "said"),
    [
        ("axlearn", [*(AXLEARN.format(at * 100) for at in range(1, 13)), *NOTES],
         ("no-score", "healthy", 1200, None)),
        # as torchrun labels what torchtitan logs: a step is no name of a logger
        ("torchtitan", ["total steps 40 (warmup 8)", *(TITAN.format(at) for at in range(1, 13))],
         ("unfinished", "unfinished", 12, 40)),
    ],
)  # fmt: skip
def test_lines_of_other_trainers_together(
    pattern: str,
    lines: list[str],
    said: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry, _ = triaged(tmp_path / "job.log", lines, capsys, "--step-pattern", pattern)
    assert tuple(entry[key] for key in ("status", "health", "last_step", "steps_wanted")) == said
