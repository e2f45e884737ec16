"""What a sweep will cost is said before it spends anything, and a person is asked above a limit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.tasks.cost import Cost, measured_elsewhere
from tests.plugin.conftest import Folder


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
