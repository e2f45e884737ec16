"""All waves over the lab's nodes: interrupted and resumed, to their documents."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.slurm.on_lab import Project, wait_until

pytestmark = [pytest.mark.part("sweeps"), pytest.mark.jax]

LAB_WAVES = str(Path(__file__).with_name("lab_waves.py"))
NODES = os.environ.get("FLAGSHIP_NODES", "2")  # as in lab_waves.py
OPTIONS = ("-n", "2", "-rs", "--xlatune-nodelist", f"node[001-00{NODES}]")
EARLY = ("-m", "wave1 or wave1_5 or wave2")
LONG_S = 1200  # of one session on a machine that does much else
# marker -> its tests, and the trials that it adds
LATER = {
    "wave3": (1, 2),
    "wave4": (1, 2),
    "wave5": (1, 2),
    "confirm": (2, 4 * 2 + 1),
    "wave6": (1, 4 * 2),
}
FIRST = 2 + 2 + 3  # baselines, runs without the deployed flags, evidence and wave 2


def trials_of(project: Project) -> set[str]:
    """The trials that were submitted: each once, and again only where it was decided so."""
    again = [line["trial_id"] for line in project.events("decided") if line["next"] == "retry"]
    submitted = list(project.submitted)
    for trial in again:
        submitted.remove(trial)
    assert len(submitted) == len(set(submitted))
    return set(submitted)


@pytest.mark.timeout(2400)
def test_all_waves_by_their_markers_interrupted_and_resumed(project: Project) -> None:
    first = project.start(LAB_WAVES, *EARLY, *OPTIONS)
    wait_until(lambda: len(project.measured) >= 2, timeout_s=LONG_S)
    os.killpg(first.pid, signal.SIGKILL)  # the controller and its workers
    first.wait()
    assert len(project.measured) < FIRST, project.said
    known = [line["result"] for line in project.events("trial-ended")]
    said = project.run(LAB_WAVES, *EARLY, *OPTIONS, timeout_s=LONG_S)
    assert re.search(r"\b5 passed", said), said
    assert [line["result"] for line in project.events("trial-ended")][: len(known)] == known
    assert len(trials_of(project)) == FIRST

    for marker, (tests, trials) in LATER.items():
        before = trials_of(project)
        said = project.run(LAB_WAVES, "-m", marker, *OPTIONS, timeout_s=LONG_S)
        # that a gate cannot tell, or tells of a loss, is an outcome too
        passed = "passed|failed" if marker == "wave6" else "passed"
        assert re.search(rf"\b{tests} ({passed})", said), said
        assert len(trials_of(project)) == len(before) + trials, said
    total = FIRST + sum(trials for _, trials in LATER.values())
    assert len(trials_of(project)) == total
    assert len(project.submitted) == project.jobs
    planned = [line["trial"] for line in project.events("trial-planned")]
    # a gate is named after what it demands:  gate-1f3a5c7e
    stages = {(each["study"].partition("-")[0], each["stage"]) for each in planned}
    waves = {("tuning", f"wave{number}") for number in range(1, 6)}
    assert waves | {("tuning", "confirm"), ("gate", "confirm")} <= stages
    one_by_four = {"look": 1, "looks": 1, "arms": 1, "blocks": 4, "baselines": 1}
    designs = [each["design"] for each in planned if each["block"]]
    assert [{key: each[key] for key in one_by_four} for each in designs] == [one_by_four] * 16

    reports = project.path / "reports"
    tuning = (reports / "labwaves-tuning.md").read_text(encoding="utf-8")
    assert "### Evidence: `baseline-deployed` to " in tuning
    record = json.loads((reports / "labwaves" / "leaderboard.json").read_text(encoding="utf-8"))
    best = record["conclusion"]["record"]["recipe"]["arm"]
    assert f"### Recipe: `{best}`" in tuning
    assert best in (reports / "labwaves-wide" / "gate.md").read_text(encoding="utf-8")
