"""The flagship sweeps over the lab's nodes, all their waves, to the tuning document.

`make slurm-flagships` runs all four, `make slurm-flagships FLAGSHIPS=hybrid` one of them; the
tests of the project leave them out. A trial is on two nodes with two devices each, or on four
nodes: `FLAGSHIP_NODES=4`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.slurm.on_lab import Project

pytestmark = [pytest.mark.part("sweeps"), pytest.mark.jax]

LAB_FLAGSHIP = str(Path(__file__).with_name("lab_flagship.py"))
ALL = ("pp8", "fsdp8", "tp8", "hybrid")
CHOSEN = os.environ.get("FLAGSHIPS", "")
WAVES = {"wave1", "wave2", "wave3", "wave4", "wave5", "wave5_5", "confirm", "evidence"}


@pytest.mark.skipif(not CHOSEN, reason="make slurm-flagships runs them")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [each for each in ALL if CHOSEN in ("", "all", each)])
def test_a_flagship_sweep_ends_in_its_document_on_the_lab(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FLAGSHIP", name)
    nodes = os.environ.get("FLAGSHIP_NODES", "2")
    assert nodes in {"2", "4"}, f"FLAGSHIP_NODES={nodes}: expected 2 or 4, of the lab's four nodes"
    monkeypatch.setenv("FLAGSHIP_NODES", nodes)
    slot = ("--xlatune-nodelist", f"node[001-00{nodes}]")
    said = project.run(LAB_FLAGSHIP, "-n", "2", "-rs", *slot, timeout_s=1700)
    assert " error" not in said, said
    planned = [line["trial"] for line in project.events("trial-planned")]
    assert {each["stage"] for each in planned} >= WAVES - {"wave5_5"}, said
    assert any(each["study"].startswith("gate") for each in planned), said
    assert len(project.submitted) == project.jobs
    recorded = project.events("evidence-recorded")
    of_baseline = [each["trial_id"].startswith("baseline-deployed-") for each in recorded]
    assert any(of_baseline)
    assert not all(of_baseline)
    assert [each["problems"] for each in recorded] == [[]] * len(recorded)

    reports = project.path / "reports"
    record = json.loads((reports / name / "leaderboard.json").read_text(encoding="utf-8"))
    assert record["conclusion"]["complete"]
    best = record["conclusion"]["record"]["recipe"]
    assert best, said
    tuning = (reports / "quickstart-tuning.md").read_text(encoding="utf-8")
    assert f"### Recipe: `{best['arm']}`" in tuning
    assert list(reports.glob(f"{name}-wide/gate.md"))
