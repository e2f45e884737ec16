"""Two studies at once on disjoint nodes of the lab: both end, and no node runs two trainers."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Project = Any  # of conftest.py, which cannot be imported from here

pytestmark = pytest.mark.part("sweeps")

CHECKS = str(Path(__file__).with_name("lab_checks.py"))
LIMIT_S = 360
ENDS = ("began", "ended")  # of a trainer, in its log


def test_a_check_of_nodes_and_a_sweep_beside_it_both_end_and_share_no_node(
    project: Project, lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = project.start(CHECKS, "-m", "nodes", "--xlatune-nodelist", "node[001-003]")
    monkeypatch.setenv("LAB_CHECK", "beside")
    sweep = project.start(CHECKS, "-m", "wave1 or wave2", "--xlatune-nodelist", "node004")
    ends = [check.wait(LIMIT_S), sweep.wait(LIMIT_S)]
    said = [(project.path / f"session.{at}.txt").read_text("utf-8") for at in (0, 1)]
    assert ends == [1, 0], "\n".join(said)[-6000:]  # the slow node fails its test
    assert "node003 SLOWER" in said[0], said[0]
    assert "1 failed, 3 passed" in said[0], said[0]

    ended = project.events("trial-ended")
    assert {each["result"]["status"] for each in ended} == {"measured"}
    jobs = [each["submission"]["job_id"] for each in project.events("attempt-submitted")]
    assert len(set(jobs)) == len(jobs) == project.jobs(lab), "as many jobs as Slurm saw"
    assert project.losses() == (0, 0)

    spans: dict[str, list[tuple[float, float, str]]] = {}
    for path in project.path.glob("work/*/*/*/*/outcome.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["state"] != "completed":  # on a busy machine one may be tried again
            continue
        log = path.with_name("log.0.txt").read_text(encoding="utf-8")
        began, over = (float(re.findall(f"{word} ([0-9.]+)", log)[-1]) for word in ENDS)
        (node,) = told["nodes"]
        spans.setdefault(node, []).append((began, over, path.parent.name))
    assert sum(map(len, spans.values())) == len(ended)
    assert set(spans) == {"node001", "node002", "node003", "node004"}
    for node, own in spans.items():
        names = [name for _, _, name in own]
        is_check = {name.startswith(f"{node}-") for name in names}
        assert is_check == {node != "node004"}, f"{node} ran {names}"
        for (_, over, one), (began, _, other) in pairwise(sorted(own)):
            assert over <= began, f"{node}: {one} and {other} ran at once"
    first = min(began for began, _, _ in spans["node004"])
    last = max(over for _, over, _ in spans["node004"])
    checked = [each for node, own in spans.items() if node != "node004" for each in own]
    assert any(began < last and over > first for began, over, _ in checked), "side by side"
