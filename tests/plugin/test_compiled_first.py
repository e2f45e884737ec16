"""Profiles that are compiled before anything is queued: what is left out, and what never is.

The trainer only pretends, but what it dumps is the program of a real compiler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main

KEPT = Path(__file__).parents[1] / "data" / "evidence" / "jaxlib-0.12.0"

# before the steps: what the compiler dumps, by the flags, and how it ends where it refuses them
DUMPING = f"""\
import gzip, os, pathlib, re, sys
flags = os.environ["XLA_FLAGS"]
with open(os.environ["COUNT"], "a") as file:
    print("compiled" if sys.argv[1] == "1" else "trained", file=file)
if "--xla_killed" in flags and sys.argv[1] == "1":
    os.kill(os.getpid(), 9)
if "--xla_broken" in flags:
    sys.exit("the compiler gives up")
dump = re.search('--xla_dump_to="?([^" ]+)', flags)
if dump and "--xla_bogus" not in flags:
    name = "fsdp-ag" if "combine_threshold" in flags else "fsdp"
    folder = pathlib.Path(dump.group(1)); folder.mkdir(parents=True)
    text = gzip.decompress((pathlib.Path({str(KEPT)!r}) / f"{{name}}.txt.gz").read_bytes())
    stem = "module_1.jit_train_step.sm_9.0_gpu_after_optimizations"
    (folder / f"{{stem}}.txt").write_bytes(text)
"""
PROFILES = """\
        profile("fast", "--xla_gpu_all_gather_combine_threshold_bytes=1"),
        profile("fast-too", "--xla_gpu_all_gather_combine_threshold_bytes=2"),
        profile("none-1", "--xla_gpu_enable_while_loop_double_buffering=true"),
        profile("none-2", "--xla_gpu_enable_pipelined_all_gather=true"),
        profile("nccl", env={"NCCL_ALGO": "Ring"}),
        profile("priority", "--xla_gpu_enable_highest_priority_async_stream=false"),
        profile("unknown", "--xla_bogus=1"),
        profile("broken", "--xla_broken=1"),
"""
NOT_RUN = {"fast-too", "none-2", "unknown", "broken"}


@pytest.fixture
def sweep(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    count = folder.path / "count.txt"
    folder.write(profiles=PROFILES)
    trainer = folder.read("trainer.py")
    (folder.path / "trainer.py").write_text(
        f"import os; os.environ.setdefault('COUNT', {str(count)!r})\n{DUMPING}{trainer}",
        encoding="utf-8",
    )
    text = folder.read("test_sweep.py").replace(
        "    site=", "    compile_check=CompileCheck(),\n    site="
    )
    text = text.replace("    DesignSettings,\n", "    CompileCheck,\n    DesignSettings,\n", 1)
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    return folder


def flat(run: pytest.RunResult) -> str:
    """What a run said, however wide its terminal."""
    return " ".join(run.stdout.str().split())


def compiled(folder: Any) -> int:
    text: str = folder.read("count.txt")
    return text.split().count("compiled")


@pytest.mark.part("sweeps")
def test_what_compiling_decides_is_not_run_and_not_compiled_again(
    sweep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    done = sweep.run_with_workers("-m", "wave2", "-rx")
    done.assert_outcomes(passed=4, xfailed=4)
    said = {each["profile"]: each["cls"] for each in sweep.events("profile-compiled")}
    assert said == {
        "fast": "program",
        "fast-too": "program",
        "none-1": "identical",
        "none-2": "identical",
        "nccl": "unseen",
        "priority": "unseen",
        "unknown": "refused",
        "broken": "failed",
    }
    jobs = sweep.submitted
    assert {trial.split("-wave2")[0] for trial in jobs} == {"baseline-deployed", *said} - NOT_RUN
    stands = "the same program and settings as fast, which stands for both"
    done.stdout.fnmatch_lines([f"*fast-too INVALID (not run): needs no run: {stands}*"])
    board = sweep.read("reports/pretend/leaderboard.md")
    assert "Not run: compiling decided them" in board
    assert "4 of 8 profiles need no run" in board
    assert "| `none-1`" in board.partition("Compile check")[2]

    plan = sweep.run("--xlatune-plan", "-m", "wave2")
    plan.stdout.fnmatch_lines(["*4 trials of the screen will not run*"])
    assert "will compile" not in flat(plan)
    trials = plan.stdout.str().partition("Trials")[2].partition("Commands")[0]
    assert "none-1-wave2" in trials
    assert "none-2-wave2" not in trials

    assert compiled(sweep) <= 2 + 8  # each profile once, the baseline by each process that drove
    before = compiled(sweep)
    sweep.run("-m", "wave2").assert_outcomes(passed=4, xfailed=4)
    assert (compiled(sweep), sweep.submitted) == (before, jobs)
    assert len(sweep.events("profile-compiled")) == len(said)

    for name in ("trainer.py", "test_sweep.py"):
        (sweep.path / name).unlink()
    ledger = next(sweep.path.glob(".xlatune/pretend/*/ledger.jsonl"))
    capsys.readouterr()  # what pytester printed
    assert main(["report", str(ledger), "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["conclusion"]["verdicts"]
    assert {each["arm"] for each in verdicts if not each["can_run"]} == NOT_RUN


SINGLE = """
from pytest_xlatune import Singles
import dataclasses
import msgspec

DESIGN = msgspec.structs.replace(SWEEP.design, budget=60)
SWEEP = msgspec.structs.replace(SWEEP, design=DESIGN, derived=(Singles(
    wave="wave3", slots=2, evidence=False,
    candidates=(
        profile("none-3", "--xla_gpu_enable_pipelined_reduce_scatter=true"),
        profile("fast-3", "--xla_gpu_all_gather_combine_threshold_bytes=3"),
    ),
),))


@pytest.mark.wave3
def test_single(measure, derived):
    assert measure(derived).not_slower
"""


def test_the_plan_shows_what_compiling_said_of_derived_profiles(sweep: Any) -> None:
    (sweep.path / "test_sweep.py").write_text(sweep.read("test_sweep.py") + SINGLE, "utf-8")
    plan = sweep.run("--xlatune-plan", "-m", "wave3")
    assert "will compile 2 profiles before the sweep queues them" in flat(plan)
    sweep.run("-m", "wave3").assert_outcomes(passed=2)
    plan = sweep.run("--xlatune-plan", "-m", "wave3")
    # in the order of the trials, which is drawn
    for said in ("fast-3*other program", "none-3*identical to the baseline"):
        plan.stdout.fnmatch_lines(["*Compile check*", f"*{said}*"])
    assert "will compile" not in flat(plan)


def test_no_control_and_no_compile_check_by_choice(sweep: Any) -> None:
    text = sweep.read("test_sweep.py").replace("CompileCheck()", "CompileCheck(controls=0)")
    (sweep.path / "test_sweep.py").write_text(text, encoding="utf-8")
    sweep.run("-k", "none-1").assert_outcomes(xfailed=1)
    # what was decided without a run is measured by a session that compiles nothing
    sweep.run("-k", "none-1", "--xlatune-compile-check", "off").assert_outcomes(passed=1)
    assert any(trial.startswith("none-1-") for trial in sweep.submitted)


def test_a_trainer_of_another_machine_is_refused_at_collection(sweep: Any) -> None:
    done = sweep.run("-k", "fast", "--xlatune-executor", "slurm", "--xlatune-nodes", "2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*Leave the compile check out*"])
    assert not (sweep.path / ".xlatune").exists()
