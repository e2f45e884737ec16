"""A sweep as a pytest run: the outcomes, the ledger, the reports, with and without workers."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.plugin.conftest import Folder

SCREEN, BLOCKS = 2 + 3, 3 * 3
LEFT = pytest.mark.part("sweeps")


def concluded(folder: Folder) -> dict[str, object]:
    assert len(folder.submitted) == len(set(folder.submitted)) == SCREEN + BLOCKS
    conclusion: dict[str, object] = folder.json("reports/pretend/leaderboard.json")["conclusion"]
    return conclusion


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_a_sweep_is_selected_in_parts_and_measures_each_trial_once(
    folder: Folder, run: str
) -> None:
    first = folder.run("-k", "fast")
    first.assert_outcomes(passed=1)
    names = sorted(trial.split("-wave2")[0] for trial in folder.submitted)
    assert names == ["baseline-deployed", "baseline-deployed", "fast"]
    text = first.stdout.str()
    assert "\x1b" not in text, "a file has no line that is rewritten"
    assert len(re.findall("pretend FSDP=4: .* to run", text)) == 1, "the cell is named once"
    assert len([line for line in text.splitlines() if "(job" in line and "TGS" in line]) == 3
    first.stdout.fnmatch_lines(["*fast (job *) * TGS * s/step screened +*% so far*"])

    folder.run("-m", "wave2", "--junitxml=junit.xml").assert_outcomes(passed=2, xfailed=1)
    assert len(folder.submitted) == SCREEN
    figures = {
        case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        for case in ET.parse(folder.path / "junit.xml").iter("testcase")
    }
    fast = figures["test_flag[fast]"]
    assert (fast["xlatune.verdict"], fast["xlatune.profile"]) == ("SCREENED", "fast")
    assert float(fast["xlatune.delta_pct"]) == pytest.approx(10, abs=0.5)
    assert json.loads(fast["xlatune"])["n"] == int(fast["xlatune.n"]) == 1
    assert "xlatune.ci95" not in fast
    (node,) = json.loads(fast["xlatune.record"])["nodes"]
    assert node["packages"]["python"] == platform.python_version()
    assert figures["test_flag[unknown]"]["xlatune.verdict"] == "INVALID"

    getattr(folder, run)("-m", "confirm").assert_outcomes(passed=2)
    conclusion = concluded(folder)
    kinds = [verdict["kind"] for verdict in conclusion["verdicts"]]  # type: ignore[attr-defined]
    assert kinds[:2] == ["FASTER", "EQUIVALENT"]
    assert conclusion["complete"]
    assert "FASTER" in folder.read("reports/pretend-tuning.md")

    again = folder.run("-v")
    again.assert_outcomes(passed=5, xfailed=1)
    assert again.ret == 0
    assert concluded(folder) == conclusion
    assert len(folder.events("attempt-ended")) == SCREEN + BLOCKS
    again.stdout.fnmatch_lines(["*14 trials reused from the ledger*"])
    again.stdout.fnmatch_lines(["*PASSED fast FASTER +1*.* %*"])


def test_what_nothing_may_submit(folder: Folder) -> None:
    collected = folder.run("--collect-only", "-q")
    collected.stdout.fnmatch_lines(["*test_flag?fast?*", "*test_finalist?finalist-1?*"])
    folder.run("--no-xlatune").assert_outcomes(deselected=6)
    plan = folder.run_with_workers("--xlatune-plan")
    screen = "*5 trials of the screen, then blocks of 2, 2, 2 arms*"
    plan.stdout.fnmatch_lines([screen, "*--xla_deployed=1 --xla_fast=1*"])
    assert not folder.submitted
    assert not (folder.path / ".xlatune").exists()


def test_a_confirmed_loss_fails_or_xfails_as_asked(folder: Folder) -> None:
    # it looked fast once: the screen's run of it was lucky
    folder.write(profiles='        profile("slow", "--xla_slow=1"),\n')
    folder.edit("test_sweep.py", ("blocks=3", "blocks=4"))
    lucky = 'speed *= 1.5 if sys.argv[2].startswith("slow-wave2") else 1\n'
    folder.edit("trainer.py", ("speed *= 1 + 0.002", f"{lucky}speed *= 1 + 0.002"))
    done = folder.run()
    done.assert_outcomes(passed=2, failed=1)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*AssertionError: slow SLOWER*"])
    folder.run("--xlatune-negative=xfail").assert_outcomes(passed=2, xfailed=1)


def test_what_was_not_measured_is_an_error_and_is_tried_again(folder: Folder) -> None:
    late = '        profile("late", env={"SLEEP_S": "60"}),\n'
    folder.write(profiles=f'{late}        profile("fast", "--xla_fast"),\n')
    folder.edit("test_sweep.py", ("steps=12", "steps=12, deadline_s=10"))
    done = folder.run("-m", "wave2")
    done.assert_outcomes(passed=1, errors=1)
    assert done.ret == 11
    done.stdout.fnmatch_lines(["late INVALID *time-limit*"])
    folder.run("-m", "wave2").assert_outcomes(passed=1, errors=1)
    assert sum(trial.startswith("late") for trial in folder.submitted) == 2


def test_extras_that_are_not_installed_are_told_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("jinja2", "mlflow") else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    refused = folder.run("-q", "-k", "fast", "--xlatune-export", "csv,mlflow")
    assert refused.ret == 4
    assert "export mlflow: the client" in refused.stderr.str()
    shown = folder.run("-q", "-k", "fast", "--xlatune-export", "csv").stdout.str()
    assert shown.count("jinja2 is not installed") == 1
    assert "written: reports/pretend/leaderboard.arms.csv" in shown
    assert not list(folder.path.rglob("*.html"))


@pytest.fixture
def small_disk(folder: Folder) -> Iterator[Path]:
    """The directory of reports, on a file system of its own with space for one small file."""
    path = folder.path / "reports"
    path.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=8k", "full", str(path)]
    if subprocess.run(argv, check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test and does not skip it, but nothing can be mounted")
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("run", ["run", pytest.param("run_with_workers", marks=LEFT)])
def test_reports_that_cannot_be_written_lose_nothing(
    folder: Folder, small_disk: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = getattr(folder, run)()
    shown = full.stdout.str()
    assert "reports cannot be written: No space left on device" in shown
    assert "Traceback" not in shown
    assert "fast is faster than baseline-deployed" in shown, "the summary is there all the same"
    assert full.ret == pytest.ExitCode.INTERNAL_ERROR
    assert not [path for path in small_disk.rglob("*") if path.name.startswith(".")]
    measured, jobs = len(folder.results), len(folder.submitted)
    monkeypatch.chdir(folder.path)
    assert main(["report", "pretend"]) == 3, "still full"
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    assert main(["report", "pretend"]) == 0
    assert "FASTER" in folder.read("reports/pretend-tuning.md")
    assert getattr(folder, run)().ret == pytest.ExitCode.OK
    assert (len(folder.results), len(folder.submitted)) == (measured, jobs)
