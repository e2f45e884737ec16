"""A sweep as a pytest run: the plan, the outcomes, the ledger, the reports."""

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
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.tasks.cost import Cost, measured_elsewhere
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.plugin.conftest import STANDARD, Folder


def cost(**changes: Any) -> Cost:
    values: dict[str, Any] = {"jobs": 38, "measured": 12, "nodes": 8, "trial_s": 1680.0}
    return Cost(**{**values, **changes})


def test_a_plan_names_jobs_node_hours_and_wall_time() -> None:
    known = cost(known=12, queue_s=720.0)
    assert known.node_hours == pytest.approx(38 * 8 * 1680 / 3600)
    jobs, hours, wall = known.lines
    assert jobs.startswith("38 jobs to run, each on 8 nodes; 12 trials")
    assert re.match("about 142 node-hours: .* 28 min, .* of 12", hours)
    assert re.search("about 17 h 44 min one after.*waited 12 min", wall)
    assert "at most 142 node-hours" in cost(measured=0).lines[1]
    (none,) = cost(jobs=0).lines
    assert none.startswith("0 jobs to run, each on 8 nodes; 12 trials")
    assert cost(trial_s=None).node_hours_text == "unknown node-hours"
    assert cost(nodes=3.75, measured=0).lines[0] == "38 jobs to run, on 3.8 nodes each on average"
    assert "2 h 20 min in 5 waves, jobs on other nodes" in cost(known=12, rounds=5).lines[2]


def test_a_plan_takes_what_trials_have_taken_and_the_noise_that_they_have_shown(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned() -> str:
        capsys.readouterr()
        assert main(["plan", "test_sweep.py"]) == 0
        return " ".join(capsys.readouterr().out.split())

    monkeypatch.chdir(folder.path)
    folder.run("-m", "wave2").assert_outcomes(passed=2, xfailed=1)
    plan = planned()
    assert re.search(r"\d+ jobs to run, each on 1 node; 5 trials measured", plan)
    assert re.search(r"about 0.\d node-hours: .* \d+ s, .* of \d+ here", plan)
    assert "a job noise of" not in plan, "single runs show none"
    folder.run()
    assert "a job noise of " in planned()


def test_a_budget_that_can_only_rank_is_refused(folder: Folder) -> None:
    text = folder.read("test_sweep.py")
    design = text[text.index("        screen_baselines") : text.index("    ),\n)\n")]
    finalist = ("def test_finalist", "def not_test_finalist")
    folder.edit("test_sweep.py", (design, "        budget=8,\n"), finalist)
    refused = folder.run("-m", "wave2")
    assert refused.ret == Exit.USAGE
    refused.stdout.fnmatch_lines(["*only rank *: 8 jobs screen 3 profiles*"])
    assert not folder.submitted
    folder.run("--xlatune-plan").stdout.fnmatch_lines(["*ranking only*"])
    folder.run("-m", "wave2", "--xlatune-yes").assert_outcomes(passed=2, xfailed=1)


def test_trials_measured_from_another_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, cell = tmp_path, Path("pretend/cell")  # few folders lie in it, unlike in pytest's own
    project = above / "project"
    kept, below = project / ".xlatune", project / "sweeps"
    (kept / cell).mkdir(parents=True)
    (kept / cell / "ledger.jsonl").write_text("{}\n")
    below.mkdir()
    for here, workdir in ((below, below / ".xlatune"), (above, project / "x/.xlatune")):
        monkeypatch.chdir(here)
        (note,) = measured_elsewhere(cell, workdir)
        assert f"--xlatune-workdir={kept}" in note
    monkeypatch.chdir(project)
    assert measured_elsewhere(cell, kept) == ()
    assert measured_elsewhere(Path("pretend/other"), below / ".xlatune") == ()


TWO = """\
        profile("early", "--xla_early=1", wave="wave1"),
        profile("fast", "--xla_fast=1"),
"""
MORE = '        profile("more", overrides={"num_pipeline_microbatches": "16"}, wave="wave5"),\n'
WAVES = """\
    no_env=NoEnv(defaults={"xla_deployed": "0"}),
    derived=(
        Stacks(wave="wave3", slots=1),
        Around(wave="wave4", slots=1, ladders={"xla_width": ("1", "2", "4", "8")}),
    ),
    config_tags={"dense": {"mode": "dense"}},
    site="""
OVERRIDES = 'overrides={"mode": "plain", "num_pipeline_repeats": "1"},\n        protocol='


def collected(folder: Folder, *options: str) -> list[str]:
    lines = folder.run("--collect-only", "-q", *options).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_each_wave_is_a_test_that_names_wave_and_profile_or_slot(folder: Folder) -> None:
    folder.write(profiles=TWO, text=STANDARD)
    finalists = ["test_finalist[finalist-1]", "test_finalist[finalist-2]"]
    plain = ["test_baseline", "test_wave1[early]", "test_wave2[fast]", *finalists]
    assert collected(folder) == plain
    assert collected(folder, "-m", "wave1") == ["test_baseline", "test_wave1[early]"]
    assert collected(folder, "-k", "fast") == ["test_wave2[fast]"]
    folder.write(profiles=TWO + MORE, text=STANDARD)
    folder.edit(
        "test_sweep.py",
        ("FSDP=4", "PP=4"),
        ("    site=", WAVES),
        ("protocol=", OVERRIDES),
        ('"{trial}")', '"{trial}", "{overrides}")'),
        ("tests(SWEEP)", "tests(SWEEP, evidence=True)"),
    )
    assert collected(folder) == [
        *("test_baseline", "test_without_env", "test_wave1[early]", "test_evidence"),
        *("test_wave2[fast]", "test_wave3_derived[stack-1]", "test_wave4_derived[around-1]"),
        *("test_wave5[more]", *finalists, "test_why_the_winner_wins", "test_elsewhere[dense]"),
    ]
    assert collected(folder, "-m", "wave1_5") == ["test_evidence"]
    folder.run("--xlatune-plan").stdout.fnmatch_lines(
        [
            "*wave3: 1 slot for stacks of 2 or 3*",
            "*wave4: 1 slot for values beside*xla_width*",
            "*Pipeline bubble*",
            "*more * 4 * 16 * 1 * 15.8 % * +47.4*",
        ]
    )
    assert not folder.submitted
    done = folder.run("-m", "wave3 or wave4", "-rs")
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines(["*SKIPPED*stack-1 stayed empty*"])


WAITS = """\
import time
from pytest_xlatune.plugin.fixtures import untimed
def test_waits(request):
    with untimed(request.config):
        time.sleep(0.8)

def test_works_too_long(request):
    with untimed(request.config):
        time.sleep(0.1)
    time.sleep(5)
"""


@pytest.mark.parametrize("more", [(), ("-o", "timeout_func_only=true")], ids=["all", "func only"])
def test_waiting_does_not_count_against_a_limit_of_a_test(
    pytester: pytest.Pytester, more: tuple[str, ...]
) -> None:
    pytester.makepyfile(WAITS)
    done = pytester.runpytest_subprocess("-p", "xlatune", "-o", "timeout=0.4", *more)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*Timeout (>0.4s) from pytest-timeout*"])


def test_a_sweep_without_the_plugin_is_left_out_in_a_line(folder: Folder) -> None:
    folder.put("test_other.py", "def test_one(): pass\n")
    argv = ("-p", "no:xlatune", "test_sweep.py", "test_other.py")
    done = folder.pytester.runpytest_subprocess(*argv)
    assert done.parseoutcomes()["passed"] == 1
    assert "errors" not in done.parseoutcomes()
    done.stdout.fnmatch_lines(["xlatune: the plugin is off*test_sweep.py*"])


def test_an_expression_that_selects_nothing_names_the_tests(folder: Folder) -> None:
    done = folder.run("-k", "fsat")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    done.stdout.fnmatch_lines(["xlatune: no test of a sweep is selected; known: *fast*"])
    folder.put("test_other.py", "def test_nothing(): pass\n")
    done = folder.run("-k", "nothing", "test_sweep.py", "test_other.py")
    assert done.ret == 0
    assert "no test of a sweep" not in done.stdout.str()


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
