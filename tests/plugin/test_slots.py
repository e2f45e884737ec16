"""A sweep on two node slots through pytest; this machine stands for the nodes of both."""

from __future__ import annotations

import itertools

import pytest

from tests.plugin.conftest import Folder

# Each pair of nodes takes its trials one after the other; a look at them is a tick of their clock.
CONFTEST = """\
import msgspec
import pytest
import time

from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.executors.slurm.nodes import OnSlurm
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.prepare import preflight
from pytest_xlatune.tasks import runs


class OnNodes(LocalExecutor):
    max_in_flight = 0
    began_s, ticks, free, spans = time.time(), 0, {}, {}

    def submit(self, spec, request):
        assert request.resources.nodes == len(request.nodelist) == 2
        resources = msgspec.structs.replace(request.resources, nodes=1)
        anywhere = msgspec.structs.replace(request, nodelist=(), resources=resources)
        job_id = super().submit(spec, anywhere)
        start = max(self.ticks, self.free.get(request.nodelist, 0))
        self.free[request.nodelist] = start + 2
        self.spans[job_id] = [start, start + 2]
        return job_id

    def poll(self, submissions, *, root):
        OnNodes.ticks += 1
        found = super().poll(submissions, root=root)
        return {each.job_id: self._at(each.job_id, found[each.job_id]) for each in submissions}

    def _at(self, job_id, outcome):
        start_s, end_s = (self.began_s + at / 100 for at in self.spans[job_id])
        if self.ticks < self.spans[job_id][0]:
            return Outcome(state=State.PENDING, reason="Resources")
        if self.ticks < self.spans[job_id][1]:
            return Outcome(state=State.RUNNING, nodes=outcome.nodes, start_s=start_s)
        return msgspec.structs.replace(outcome, start_s=start_s, end_s=end_s)


executor = OnNodes()
runs.executor_named = lambda name, **_: executor
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
def project(folder: Folder) -> Folder:
    folder.put("conftest.py", CONFTEST)
    folder.write(profiles=PROFILES)
    slurm = ('executor="local"', 'executor="slurm"')
    folder.edit("test_sweep.py", slurm, ("FSDP=4", "FSDP=2"), ("blocks=3", "blocks=4"))
    return folder


def test_a_sweep_runs_on_two_slots_side_by_side_and_says_so(project: Folder) -> None:
    done = project.run(*TWO)
    done.assert_outcomes(passed=1 + 4 + 2)
    done.stdout.fnmatch_lines(["* (job *) *TGS*"])
    done.stdout.fnmatch_lines(["*looked at node001,node002,node003,node004*"])
    # cell on a slot -> when its trials began and ended; block -> the cells of its trials
    spans: dict[str, list[tuple[float, float]]] = {}
    blocks: dict[int, set[str]] = {}
    for result in project.results:
        trial, outcome = result["trial"], result["outcome"]
        span = (outcome["start_s"], outcome["end_s"])
        spans.setdefault(trial["cell_digest"], []).append(span)
        blocks.setdefault(trial["block"], set()).add(trial["cell_digest"])
    for of_slot in spans.values():
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(of_slot)))
    one, other = spans.values()
    assert any(a < d and c < b for a, b in one for c, d in other), "none ran beside another"
    assert len(blocks.pop(0)) == 2, "the screen lies on both"
    assert all(len(cells) == 1 for cells in blocks.values())
    assert len(set.union(*blocks.values())) == 2

    board = project.read("reports/pretend/leaderboard.md")
    assert "* Node slots: 1: node[001-002]; 2: node[003-004]" in board
    report = project.json("reports/pretend/leaderboard.json")
    assert {slot["cell_digest"] for slot in report["slots"]} == spans.keys()
    hours = sum(end - begin for of_slot in spans.values() for begin, end in of_slot) / 3600
    assert report["record"]["node_hours"] == pytest.approx(hours)  # this machine is one node

    before = len(project.submitted)
    assert before == len(set(project.submitted))
    project.run(*TWO).assert_outcomes(passed=7)
    refused = project.run(*TWO[:2])
    refused.stdout.fnmatch_lines(["*2 node slots (node*001-002*; node*003-004*), *on *slot*"])
    assert refused.ret != 0
    assert len(project.submitted) == before
