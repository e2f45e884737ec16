"""A study of gains as a pytest run: by a report, whose document is told, and by a config tag."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.report.study_documents import CARRY_RATES
from tests.helpers.ledger_lines import whole_lines
from tests.helpers.sessions import run_inside

# one flag gains in both cells, the other in the small one alone
GAINS = """\
if "--xla_narrow" in flags and "wide=1" not in sys.argv:
    speed *= 1.05
"""
PROFILES = """\
        profile("fast", "--xla_fast=1"),
        profile("narrow", "--xla_narrow=1"),
"""
WIDE = """\
from dataclasses import replace

from pytest_xlatune import Carry, DesignSettings, load_sweep, standard_tests

SMALL = load_sweep(__file__.replace("test_wide", "test_sweep"))
SWEEP = replace(
    SMALL,
    name="wide",
    cell=replace(SMALL.cell, config_tag="wide", overrides={"wide": "1"}),
    profiles=tuple(each for each in SMALL.profiles if each.id in NAMES),
    design=DesignSettings(budget=30),
    study=CARRY,
)
tests = standard_tests(SWEEP)
"""


@pytest.fixture
def project(folder: Any, sweep_file: str) -> Any:
    text = sweep_file.replace('"{trial}")', '"{trial}", "{overrides}")')
    folder.write(text=text, profiles=PROFILES)
    trainer = folder.read("trainer.py")
    changed = trainer.replace("# the same for every folder", f"{GAINS}# the same for every folder")
    assert changed != trainer
    (folder.path / "trainer.py").write_text(changed, encoding="utf-8")
    return folder


def wide(project: Any, *names: str, carry: str) -> None:
    text = WIDE.replace("NAMES", repr(names)).replace("CARRY", carry)
    (project.path / "test_wide.py").write_text(text, encoding="utf-8")


def run(project: Any, *args: str) -> pytest.RunResult:
    return run_inside(project.pytester, "test_wide.py", *args)


def submitted(project: Any) -> int:
    (ledger,) = project.path.glob(".xlatune/wide/*/ledger.jsonl")
    return sum(each["event"] == "attempt-submitted" for each in whole_lines(ledger))


def test_the_gain_of_a_report_is_asked_about_and_its_document_is_told(project: Any) -> None:
    wide(project, "fast", carry='Carry(small="reports/pretend/leaderboard.json")')
    refused = run(project)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stdout.fnmatch_lines(["*reports/pretend/leaderboard.json is no report of ours*"])
    project.run()
    done = run(project, "-v")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*test_carry?fast?*CARRIES*"])
    assert submitted(project) == 8, "told after the first look"
    report = project.read("reports/wide/carry.md")
    assert "* fast CARRIES: at least 50 % of the gain is here" in report
    assert "against baseline-deployed" in report
    assert CARRY_RATES in report
    record = json.loads(project.read("reports/wide/carry.json"))["conclusion"]["record"]
    assert [each["word"] for each in record["changes"]] == ["CARRIES"]
    told = project.read("reports/pretend-tuning.md")
    assert "Its gain carries to `FSDP=4 wide`: +" in told
    assert "(`wide/carry.md`)" in told
    project.run()
    again = project.read("reports/pretend-tuning.md")
    assert "Its gain carries to `FSDP=4 wide`: +" in again, "a report that is written again"


def test_a_gain_that_is_lost_ends_as_a_regression(project: Any) -> None:
    wide(project, "fast", "narrow", carry='Carry(small="small", blocks=4)')
    text = project.read("test_wide.py").replace(
        "    study=", '    config_tags={"small": {"wide": "0"}},\n    study='
    )
    (project.path / "test_wide.py").write_text(text, encoding="utf-8")
    done = run(project)
    done.assert_outcomes(passed=1, failed=1)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["E * AssertionError: LOST: narrow, delta *"])
    assert submitted(project) == 12 + 9, "all of the small cell, then up to the first look"
    assert "| small 4 |" in project.read("reports/wide/carry.md"), "the stage of a job"
    again = run(project)
    again.assert_outcomes(passed=1, failed=1)
    assert submitted(project) == 12 + 9


def test_the_example_of_the_page_asks_about_the_committed_quickstart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main(["plan", "sweeps/quickstart/carry.py"]) == 0
    plan = " ".join(capsys.readouterr().out.split())
    assert "16 trials of this cell at most: 8 blocks of 1 profile + 1 baseline" in plan
    assert re.search(r"opt-level-1: at a job noise of \S+ % \d+ blocks tell with 80 % power", plan)
