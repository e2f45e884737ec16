"""A sweep as a pytest run: the outcomes, the ledger, the exit codes, with and without workers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS

SCREEN, BLOCKS = 2 + 3, 3 * 3


def test_a_sweep_measures_once_and_concludes_the_same_again(folder: Any) -> None:
    first = folder.run("--junitxml=junit.xml")
    assert_concluded(folder, first)
    first.stdout.fnmatch_lines(["*fast (job *) * TGS * s/step screened +*% so far*"])
    assert_reused(folder)


@pytest.mark.part("sweeps")
def test_two_workers_share_what_is_left_and_one_process_reuses_it(folder: Any) -> None:
    """Real trials: none is run twice."""
    folder.run("-k", "fast").assert_outcomes(passed=1)
    begun = len(folder.submitted)
    assert_concluded(folder, folder.run_apart("-n2", "--junitxml=junit.xml"))
    assert begun == 2 + 1
    assert_reused(folder)


def assert_concluded(folder: Any, done: pytest.RunResult) -> None:
    done.assert_outcomes(passed=5, xfailed=1)
    assert done.ret == 0
    assert len(folder.submitted) == len(set(folder.submitted)) == SCREEN + BLOCKS
    conclusion = json.loads(folder.read("reports/pretend/leaderboard.json"))["conclusion"]
    assert [each["kind"] for each in conclusion["verdicts"]][:2] == ["FASTER", "EQUIVALENT"]
    assert conclusion["complete"]
    assert "FASTER" in folder.read("reports/pretend-tuning.md")


def assert_reused(folder: Any) -> None:
    before = json.loads(folder.read("reports/pretend/leaderboard.json"))["conclusion"]
    again = folder.run("-v")
    assert_concluded(folder, again)
    assert len(folder.events("attempt-ended")) == SCREEN + BLOCKS
    assert json.loads(folder.read("reports/pretend/leaderboard.json"))["conclusion"] == before
    again.stdout.fnmatch_lines(["*14 trials are reused from the ledger*"])
    again.stdout.fnmatch_lines(["*PASSED fast FASTER +1*.* %*"])


def test_junit_carries_the_figures(folder: Any) -> None:
    folder.run("-m", "wave2", "--junitxml=junit.xml")
    cases = ET.parse(folder.path / "junit.xml").iter("testcase")
    figures = {
        case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        for case in cases
    }
    fast = figures["test_flag[fast]"]
    assert fast["xlatune.verdict"] == "SCREENED"
    assert fast["xlatune.profile"] == "fast"
    assert float(fast["xlatune.delta_pct"]) == pytest.approx(10, abs=0.5)
    assert json.loads(fast["xlatune"])["n"] == int(fast["xlatune.n"]) == 1
    assert "ci95" not in fast
    assert figures["test_flag[unknown]"]["xlatune.verdict"] == "INVALID"


def test_a_selection_keeps_the_baselines_and_a_later_one_reuses(folder: Any) -> None:
    folder.run("-k", "fast").assert_outcomes(passed=1)
    names = [trial.split("-wave2")[0] for trial in folder.submitted]
    assert sorted(names) == ["baseline-deployed", "baseline-deployed", "fast"]
    folder.run("-m", "wave2").assert_outcomes(passed=2, xfailed=1)
    assert len(folder.submitted) == len(set(folder.submitted)) == SCREEN


def test_the_confirmation_alone_screens_what_is_missing(folder: Any) -> None:
    folder.run("-m", "confirm").assert_outcomes(passed=2)
    assert len(folder.submitted) == SCREEN + BLOCKS


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_fresh_measures_everything_again_and_deletes_nothing(folder: Any, run: str) -> None:
    folder.run("-k", "fast or same")
    before = folder.submitted
    # once, although each of two workers and their controller has the option
    getattr(folder, run)("-k", "fast or same", "--xlatune-fresh").assert_outcomes(passed=2)
    assert sorted(folder.submitted) == sorted([*before, *before])


def test_what_nothing_may_submit(folder: Any) -> None:
    collected = folder.run("--collect-only", "-q")
    collected.stdout.fnmatch_lines(["*test_flag?fast?*", "*test_finalist?finalist-1?*"])
    off = folder.run("--no-xlatune")
    off.assert_outcomes(deselected=6)
    plan = folder.run_with_workers("--xlatune-plan")
    plan.stdout.fnmatch_lines(
        [
            "*5 trials of the screen, then 2 finalists in 3 blocks*",
            "*--xla_deployed=1 --xla_fast=1*",
        ]
    )
    assert not folder.submitted
    assert not (folder.path / ".xlatune").exists()


def test_a_confirmed_loss_fails_or_xfails_as_asked(folder: Any) -> None:
    # it looked fast once: the screen's run of it was lucky
    folder.write(profiles='        profile("slow", "--xla_slow=1"),\n')
    text = folder.read("test_sweep.py").replace("blocks=3", "blocks=4")
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    trainer = folder.read("trainer.py").replace(
        "speed *= 1 +", 'speed *= 1.5 if sys.argv[2].startswith("slow-wave2") else 1\nspeed *= 1 +'
    )
    (folder.path / "trainer.py").write_text(trainer, encoding="utf-8")
    done = folder.run()
    done.assert_outcomes(passed=2, failed=1)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*AssertionError: slow SLOWER*"])
    folder.run("--xlatune-negative=xfail").assert_outcomes(passed=2, xfailed=1)


def test_what_was_not_measured_is_an_error_and_is_tried_again(folder: Any) -> None:
    late = (
        '        profile("late", env={"SLEEP_S": "60"}),\n        profile("fast", "--xla_fast"),\n'
    )
    folder.write(profiles=late)
    text = folder.read("test_sweep.py").replace("steps=12", "steps=12, deadline_s=10")
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    done = folder.run("-m", "wave2")
    done.assert_outcomes(passed=1, errors=1)
    assert done.ret == 11
    done.stdout.fnmatch_lines(["late INVALID *time-limit*"])
    folder.run("-m", "wave2").assert_outcomes(passed=1, errors=1)
    assert sum(trial.startswith("late") for trial in folder.submitted) == 2


if TYPE_CHECKING:
    from tests.plugin.conftest import Folder


def test_without_jinja2_a_session_says_so_in_one_line(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("jinja2", monkeypatch)
    result = folder.run()
    result.assert_outcomes(passed=5, xfailed=1)
    said = result.stdout.str()
    assert said.count("jinja2 is not installed") == 1
    assert "pytest-xlatune[page]" in said
    assert "written: reports/pretend/leaderboard.md" in said
    assert not list(folder.path.rglob("*.html"))


def test_an_export_that_cannot_be_had_is_told_at_the_end_as_well(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("mlflow", monkeypatch)
    said = folder.run("-q", "-k", "fast", "--xlatune-export", "csv,mlflow").stdout.str()
    assert said.count("xlatune: export mlflow: the client") == 1  # no header  # no header
    assert "written: reports/pretend/leaderboard.arms.csv" in said


def hide(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a module not installed."""
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == module else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)


if TYPE_CHECKING:
    from tests.plugin.conftest import Folder


@pytest.fixture
def reports(folder: Folder) -> Iterator[Path]:
    """A directory on a file system of its own with space for one small file."""
    path = folder.path / "reports"
    path.mkdir()
    options = ["-o", "size=8k"]
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "full", path], check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test and does not skip it, but nothing can be mounted")
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.part("sweeps"))])
def test_reports_that_cannot_be_written_lose_nothing(
    folder: Folder, reports: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder.run_with_workers if workers else folder.run
    result = run()
    said = result.stdout.str()
    assert "reports cannot be written: [Errno 28] No space left on device" in said
    assert "run `xlatune report`" in said
    assert "Traceback" not in said
    assert "fast is faster than baseline-deployed" in said, "the summary is there all the same"
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert not [path for path in reports.rglob("*") if path.name.startswith(".")], "no half a file"
    measured = len(folder.events("trial-ended"))
    jobs = len(folder.submitted)

    places = ["--workdir", str(folder.path / ".xlatune"), "--reports", str(reports)]
    capsys.readouterr()
    assert main(["report", "pretend", *places]) == 3, "still full"
    assert "No space left on device" in capsys.readouterr().err
    subprocess.run(["mount", "-o", "remount,size=16m", reports], check=True)
    assert main(["report", "pretend", *places]) == 0
    assert "fast" in (reports / "pretend" / "leaderboard.md").read_text(encoding="utf-8")
    assert "FASTER" in (reports / "pretend-tuning.md").read_text(encoding="utf-8")

    again = run()
    assert again.ret == pytest.ExitCode.OK
    assert len(folder.events("trial-ended")) == measured
    assert len(folder.submitted) == jobs, "nothing was measured twice"
