"""Node slots side by side on a real Slurm: the waves of a sweep.

`make slurm-flagships` runs the waves, from the screen to the document; the tests of the project
leave them out.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import pytest

from tests.slurm.on_lab import Project

pytestmark = pytest.mark.part("sweeps")

CHOSEN = os.environ.get("FLAGSHIPS", "")
WAVES = str(Path(__file__).with_name("lab_waves.py"))
TWO = ("--xlatune-nodelist", "node[001-004]", "--xlatune-slots", "2")
# the same nodes, which the session picks itself
PICKED = ("--xlatune-partition", "lab", "--xlatune-nodes", "2", "--xlatune-slots", "2")
# on each slot half the nodes of `lab_waves.py`
HALF = """\
parallelism = "PP=2"
devices = 2
pdbs = 8

[overrides]
base_num_decoder_layers = "2"
"""


def spans(project: Project) -> dict[str, list[tuple[float, float]]]:
    """Cell on a slot -> when its trials began and ended, in order."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in (line["result"] for line in project.events("trial-ended")):
        if each["status"] == "measured":
            at = (each["outcome"]["start_s"], each["outcome"]["end_s"])
            found.setdefault(each["trial"]["cell_digest"], []).append(at)
    return {name: sorted(each) for name, each in found.items()}


def assert_side_by_side(project: Project) -> None:
    of_slot = spans(project)
    assert len(of_slot) == 2
    for each in of_slot.values():
        assert all(one[1] <= other[0] + 0.5 for one, other in itertools.pairwise(each))
    one, other = of_slot.values()
    assert any(a < d and c < b for a, b in one for c, d in other), "none ran beside another"


@pytest.mark.jax
@pytest.mark.skipif(CHOSEN not in ("all", "slots"), reason="make slurm-flagships runs them")
@pytest.mark.timeout(900)
def test_the_waves_of_a_pipeline_run_on_two_slots_to_their_document(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGSHIP_NODES", "4")  # a device a node
    config = project.path / "half.toml"
    config.write_text(HALF)
    chosen = ("-n", "4", "-m", "not wave6", "-rs", "--xlatune-config", str(config))
    said = project.run(WAVES, *chosen, *PICKED, timeout_s=800)
    assert re.search(r"\b10 passed", said), said
    submitted = project.submitted
    again = [line["trial_id"] for line in project.events("decided") if line["next"] == "retry"]
    assert len(submitted) - len(again) == len(set(submitted)) == 7 + 3 * 2 + 4 * 2 + 1
    assert project.jobs == len(submitted)
    assert_side_by_side(project)

    reports = project.path / "reports"
    tuning = (reports / "labwaves-tuning.md").read_text(encoding="utf-8")
    assert "* Node slots: 1: node[001-002]; 2: node[003-004]" in tuning
    report = json.loads((reports / "labwaves" / "leaderboard.json").read_text(encoding="utf-8"))
    on = {each["cell_digest"]: each["nodes"] for each in report["slots"]}
    assert sorted(on.values()) == ["node[001-002]", "node[003-004]"]
    for each in report["trials"]:
        nodes = on[each["trial"]["cell_digest"]]
        assert all(name[-1] in nodes for name in each["outcome"]["nodes"])
