"""Two sweeps that are pinned to the same nodes: one waits for the other, none is refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

Faults = Any  # of pretend.py, which cannot be imported from here
TRIALS = 3  # of each sweep: a baseline, the profile that is held, one more


def test_a_sweep_begins_on_nodes_where_another_runs(faults: Faults, lab: ModuleType) -> None:
    faults.hold(conftest=faults.BUSY)
    text = (faults.path / "test_sweep.py").read_text(encoding="utf-8")
    (faults.path / "test_second.py").write_text(text.replace('name="faults"', 'name="second"'))
    first = faults.start("-n2")
    faults.victim()
    second = faults.project.start("test_second.py", "--xlatune-nodelist", "node[001-002]", "-n2")
    # its jobs are in the queue, behind one that holds the nodes until it is told to go on
    faults.wait_until(lambda: list(faults.path.glob("work/second/*/*/*/spec.json")))
    faults.go.touch()
    assert [first.wait(240), second.wait(240)] == [0, 0], faults.project.said
    assert faults.decided() == []
    assert len(faults.project.submitted) == faults.project.jobs(lab) == 2 * TRIALS
    assert len(faults.project.measured) == 2 * TRIALS
