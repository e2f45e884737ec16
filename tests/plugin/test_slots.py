"""A sweep on two node slots through pytest; this machine stands for the nodes of both."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest

# a lock a slot: trials of one wait for each other, those of two do not
CONFTEST = """\
import msgspec
import pytest
import time
from pathlib import Path

from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.executors.slurm.nodes import OnSlurm
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.prepare import preflight
from pytest_xlatune.tasks import runs

HERE = Path(__file__).parent


class OnNodes(LocalExecutor):
    max_in_flight = 0

    def submit(self, spec, request):
        first = request.nodelist[0]
        dead = HERE / "dead"
        if dead.exists() and dead.read_text() in request.nodelist:
            raise SubmissionError(f"{dead.read_text()} is down")
        self._lock = HERE / f"{first}.lock"
        spec = msgspec.structs.replace(spec, env={**spec.env, "FIRST_NODE": first})
        resources = msgspec.structs.replace(request.resources, nodes=1)
        assert request.resources.nodes == len(request.nodelist) == 2
        anywhere = msgspec.structs.replace(request, nodelist=(), resources=resources)
        return super().submit(spec, anywhere)


runs.executor_named = lambda name, **_: OnNodes()
asked_of_slurm = pytest.MonkeyPatch()
asked_of_slurm.setattr(OnSlurm, "node_faults", lambda *_, **__: ())
asked_of_slurm.setattr(OnSlurm, "busy_note", lambda *_: "")


def pytest_unconfigure():
    asked_of_slurm.undo()


preflight._ask_nodes = lambda site, *_: ([], [f"looked at {','.join(site.cell.nodelist)}"])
"""
PROFILES = """\
        profile("fast", "--xla_fast=1"),
        profile("same", "--xla_other=1"),
        profile("third", "--xla_third=1"),
        profile("fourth", "--xla_fourth=1"),
"""
TWO = ("--xlatune-nodelist", "node[001-004]", "--xlatune-slots", "2")


@pytest.fixture
def project(folder: Any, sweep_file: str) -> Any:
    (folder.path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    text = sweep_file.replace('executor="local"', 'executor="slurm"')
    text = text.replace('"FSDP=4",\n', '"FSDP=2",\n').replace("blocks=3", "blocks=4")
    folder.write(profiles=PROFILES, text=text)
    return folder


# Each pair of nodes takes its trials one after the other; a look at them is a tick of their clock.
PLAYED = """

class Played(OnNodes):
    began_s, ticks, free, spans = time.time(), 0, {}, {}

    def submit(self, spec, request):
        job_id = super().submit(spec, request)
        start = max(self.ticks, self.free.get(request.nodelist, 0))
        self.free[request.nodelist] = start + 2
        self.spans[job_id] = [start, start + 2]
        return job_id

    def poll(self, submissions, *, root):
        Played.ticks += 1
        found = super().poll(submissions, root=root)
        return {each.job_id: self._at(each.job_id, found[each.job_id]) for each in submissions}

    def _at(self, job_id, outcome):
        start_s, end_s = (self.began_s + at / 100 for at in self.spans[job_id])
        if self.ticks < self.spans[job_id][0]:
            return Outcome(state=State.PENDING, reason="Resources")
        if self.ticks < self.spans[job_id][1]:
            return Outcome(state=State.RUNNING, nodes=outcome.nodes, start_s=start_s)
        return msgspec.structs.replace(outcome, start_s=start_s, end_s=end_s)


executor = Played()
runs.executor_named = lambda name, **_: executor
"""


def results(folder: Any) -> list[dict[str, Any]]:
    return [each["result"] for each in folder.events("trial-ended")]


def spans(folder: Any) -> dict[str, list[tuple[float, float]]]:
    """Cell on a slot -> when its trials began and ended, in order."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in results(folder):
        at = (each["outcome"]["start_s"], each["outcome"]["end_s"])
        found.setdefault(each["trial"]["cell_digest"], []).append(at)
    return {name: sorted(each) for name, each in found.items()}


def test_a_calibration_runs_on_both_slots_and_says_what_they_differ_by(project: Any) -> None:
    noise = (
        "\n\n@pytest.mark.calibrate(jobs=6)\ndef test_noise(calibration):\n"
        "    assert calibration.noise.slot_sd is not None\n"
    )
    file = next(project.path.glob("test_*.py"))
    file.write_text(file.read_text("utf-8") + noise, encoding="utf-8")
    project.run(*TWO, "-m", "calibrate").assert_outcomes(passed=1)
    cells = Counter(each["trial"]["cell_digest"] for each in results(project))
    assert sorted(cells.values()) == [3, 3]
    assert "* in addition, node slots differ by" in project.read("reports/pretend/calibration.md")


def test_a_sweep_runs_on_two_slots_side_by_side_and_says_so(project: Any) -> None:
    (project.path / "conftest.py").write_text(CONFTEST + PLAYED, encoding="utf-8")
    done = project.run(*TWO)
    done.assert_outcomes(passed=1 + 4 + 2)
    done.stdout.fnmatch_lines(["* (job *, slot 2) *TGS*"])
    done.stdout.fnmatch_lines(["*looked at node001,node002,node003,node004*"])
    of_slot = spans(project)
    assert len(of_slot) == 2
    for each in of_slot.values():
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(each))
    one, other = of_slot.values()
    assert any(a < d and c < b for a, b in one for c, d in other), "none ran beside another"
    blocks: dict[int, set[str]] = {}
    for trial in (each["trial"] for each in results(project)):
        blocks.setdefault(trial["block"], set()).add(trial["cell_digest"])
    assert len(blocks.pop(0)) == 2, "the screen lies on both"
    assert all(len(each) == 1 for each in blocks.values())
    assert len(set.union(*blocks.values())) == 2

    board = project.read("reports/pretend/leaderboard.md")
    assert "2 node slots side" in board
    assert "* Node slots: 1: node[001-002]; 2: node[003-004]" in board
    assert "takes no trial" not in board
    report = json.loads(project.read("reports/pretend/leaderboard.json"))
    assert [each["nodes"] for each in report["slots"]] == ["node[001-002]", "node[003-004]"]
    names = {each["cell_digest"]: each["slot"] for each in report["slots"]}
    assert names.keys() == of_slot.keys()
    for each in report["trials"]:
        assert each["slot"] == names[each["trial"]["cell_digest"]]
    hours = sum(end - begin for each in of_slot.values() for begin, end in each) / 3600
    assert report["record"]["node_hours"] == pytest.approx(hours)  # this machine is one node
    document = project.read("reports/pretend-tuning.md")
    assert "| Job" in document
    assert " Slot |" in document

    before = len(project.submitted)
    assert before == len(set(project.submitted))
    again = project.run(*TWO)
    again.assert_outcomes(passed=7)
    for asked in (TWO[:2], ("--xlatune-nodelist", "node[005-008]", "--xlatune-slots", "2")):
        refused = project.run(*asked)
        refused.stdout.fnmatch_lines(
            [
                "*2 node slots (node*001-002*; node*003-004*), *on *node slot*",
            ]
        )
        assert refused.ret != 0
    assert len(project.submitted) == before
