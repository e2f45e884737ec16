"""Node slots side by side on a real Slurm, and a session on them that is killed."""

from __future__ import annotations

import itertools
import os
import signal
from types import ModuleType
from typing import Any

import pytest

Faults = Any  # of pretend.py, which cannot be imported from here
Project = Any  # of conftest.py, likewise

pytestmark = pytest.mark.part("sweeps")

TWO = ("--xlatune-nodelist", "node[001-004]", "--xlatune-slots", "2")
MANY = '*(profile(f"p{{k}}", f"--xla_p{{k}}=1", env={env!r}) for k in range(8)),'
TRIALS = 8 + 2  # a baseline on each slot: profiles are screened where one is


def write(faults: Faults, declared: str) -> None:
    """Write the sweep of `pretend.py`, whose screen has one baseline, with one for each slot."""
    faults.write(declared)
    path = faults.path / "test_sweep.py"
    text = path.read_text()
    assert "screen_baselines=1," in text
    path.write_text(text.replace("screen_baselines=1,", "screen_baselines=2,"))


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


def test_a_killed_session_on_two_slots_loses_and_doubles_nothing(
    faults: Faults, lab: ModuleType
) -> None:
    write(faults, MANY.format(env={"HOLD": str(faults.go)}))
    session = faults.start("-n", "2", slot=TWO)

    def is_held_on_both() -> bool:
        held = {each.parent for each in faults.path.glob("work/*/*/*/p*/started.1.json")}
        return len(held) == 2  # each waits on its slot

    faults.wait_until(is_held_on_both)
    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    known = [line["result"] for line in faults.project.events("trial-ended")]
    faults.go.touch()
    said = faults.run("-n", "0", slot=TWO)
    assert "8 passed" in said, said
    assert [line["result"] for line in faults.project.events("trial-ended")][: len(known)] == known
    submitted = faults.project.submitted
    assert len(submitted) == len(set(submitted)) == TRIALS
    assert faults.project.losses() == (0, 0)
    assert faults.project.jobs(lab) == TRIALS
    assert_side_by_side(faults.project)
    assert "8 passed" in faults.run("-n", "0", slot=TWO)
    assert "on 2 node slots (node[001-002]; node[003-004])" in faults.run("-n", "0")
    assert len(faults.project.submitted) == TRIALS
