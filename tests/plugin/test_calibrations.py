"""`xlatune calibrate` of node slots and of allocations; this machine stands for all their nodes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_xlatune import campaign
from pytest_xlatune.cli import main
from pytest_xlatune.executors import Request, slurm
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.prepare import preflight
from pytest_xlatune.tasks import runs
from tests.helpers.quick_trials import QuickExecutor

SLOTS = ("--nodelist", "node[001-004]", "--slots", "2")
ONE = ("--nodelist", "node[001-002]")


class OnNodes(QuickExecutor):
    """Every node is this one; a step says in which allocation it was."""

    max_in_flight = 0
    asked: ClassVar[Mapping[str, Any]] = {}  # of the last one
    names: ClassVar[dict[str, str]] = {}  # by job, as their allocations are
    turns: ClassVar[list[str]] = []  # trials that run one after the other, or as a pair
    handed_in: ClassVar[list[list[str]]] = [[]]  # trials, those between two polls together

    def submit(self, spec: Any, request: Request) -> str:
        told = {"FIRST_NODE": request.nodelist[0], "ALLOCATION": request.allocation}
        spec = dataclasses.replace(spec, env={**spec.env, **told})
        resources = dataclasses.replace(request.resources, nodes=1)
        here = dataclasses.replace(request, nodelist=(), resources=resources)
        job_id = super().submit(spec, here)
        self.names[job_id] = request.allocation
        self.handed_in[-1].append(request.folder.name)
        return job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        self.handed_in.append([])
        trials = {each.job_id: each.trial_id for each in submissions}
        return {
            job_id: dataclasses.replace(
                outcome, allocation=self.names.get(job_id, ""), **self._times(trials[job_id])
            )
            for job_id, outcome in super().poll(submissions, root=root).items()
        }

    def _times(self, trial_id: str) -> dict[str, Any]:
        """Say when a trial ran: those of a pair side by side, all others one after the other."""
        at = _busy_at(trial_id)
        turn = trial_id if at < 0 else f"pair {at // 2}"
        if turn not in self.turns:
            self.turns.append(turn)
        start_s = 1e9 + 10 * self.turns.index(turn)
        return {"start_s": start_s, "end_s": start_s + 8}


@pytest.fixture
def cluster(folder: Any, sweep_file: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sweep on nodes of a cluster that is only played, and the folder that it is in."""

    def named(name: str, **asked: Any) -> OnNodes:
        OnNodes.asked = {"name": name, **asked}
        return OnNodes()

    OnNodes.names, OnNodes.turns, OnNodes.handed_in = {}, [], [[]]
    monkeypatch.setattr(runs, "executor_named", named)
    monkeypatch.setattr(preflight, "_node_faults", lambda _site: ())
    monkeypatch.setattr(preflight, "_busy", lambda _site: [])
    monkeypatch.setattr(preflight, "_from_the_nodes", lambda *_: ([], []))
    monkeypatch.setattr(slurm, "expected_wait", lambda **_: 1800.0)
    monkeypatch.setattr(campaign, "TURN_S", 0.0)
    text = sweep_file.replace('executor="local"', 'executor="slurm"')
    folder.write(text=text.replace('"FSDP=4",\n', '"FSDP=2",\n'))
    monkeypatch.chdir(folder.path)
    return folder


def slowed(folder: Any, what: str) -> None:
    trainer = folder.path / "trainer.py"
    text = trainer.read_text("utf-8").replace("speed = 1000.0\n", f"speed = 1000.0\n{what}\n")
    trainer.write_text(text, encoding="utf-8")


def kept(folder: Any) -> dict[str, Any]:
    (path,) = folder.path.glob(".xlatune/pretend/*/calibration.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


# two trials of a round slow each other down
BUSY = """\
speed *= 0.6 if "-busy" in sys.argv[2] else 1.0
speed *= 0.7 if os.environ["FIRST_NODE"] == "node003" else 1.0
"""


def _busy_at(trial: str) -> int:
    """Return the number of a trial that runs beside another; -1 of one that runs alone."""
    # baseline-deployed-busy.3-0a1b2c3d4e.1
    return int(trial.partition("-busy.")[2].partition("-")[0] or -1)


def test_slots_are_calibrated_alone_and_busy(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    slowed(cluster, BUSY)
    assert main(["calibrate", "test_sweep.py", *SLOTS, "--starts", "3"]) == 0
    text = said(capsys)
    # three rounds of both slots, two trials alone in each round
    assert len(cluster.submitted) == 3 * 2 + 3 * 2
    together = [{_busy_at(each) for each in batch} - {-1} for batch in OnNodes.handed_in]
    assert [each for each in together if each] == [{0, 1}, {2, 3}, {4, 5}], "both slots of a round"
    assert "slot 2 (node[003-004]) is slower than the others by 30.0 %" in text
    assert "neighbours slow each other down: -40.0 % with all slots busy" in text
    found = kept(cluster)["slots"]
    assert found["busy_high"] < 0
    assert kept(cluster)["slot_nodes"] == ["node[001-002]", "node[003-004]"]

    # it is measured once, and the sweep on the same slots begins in the same ledger
    assert main(["calibrate", "test_sweep.py", *SLOTS, "--starts", "3"]) == 0
    assert len(cluster.submitted) == 12
    said(capsys)
    assert main(["plan", "test_sweep.py", *SLOTS]) == 0
    planned = said(capsys)
    assert "neighbours slow each other down" in planned
    # one slot of them in the same ledger, and none elsewhere
    assert main(["calibrate", "test_sweep.py", *ONE, "--jobs", "4"]) == 0
    assert kept(cluster)["slots"] == found, "an earlier answer stands"
    for others in ("node[005-008]", "node[003-006]"):
        capsys.readouterr()
        asked = ["calibrate", "test_sweep.py", "--nodelist", others, "--slots", "2"]
        assert main(asked) == Exit.USAGE - 2
        assert "Numbers of two cells cannot be compared" in capsys.readouterr().err
    assert len(cluster.submitted) == 12 + 4
    assert main(["plan", "test_sweep.py", *SLOTS]) == 0
    planned = said(capsys)
    assert "a job waits 30 min in the queue: sbatch --test-only" in planned


SHARED = """\
speed *= {"1": 1.0, "2": 0.8, "3": 1.1, "4": 0.9, "": 1.0}[os.environ["ALLOCATION"]]
"""


def test_what_allocations_share_chooses_the_way(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    slowed(cluster, SHARED)
    command = ["calibrate", "test_sweep.py", *ONE, "--allocations", "4", "--starts", "3"]
    assert main(command) == 0
    text = said(capsys)
    assert OnNodes.asked["name"] == "allocation"
    # three trials of 45 min at most, and some time beside
    assert OnNodes.asked["hold_s"] == 3 * 2700 + 300
    assert list(OnNodes.names.values()) == [each for each in "1234" for _ in range(3)]
    found = kept(cluster)["allocations"]
    assert found["rho_low"] > 0.9
    assert found["within"] < 0.01
    assert found["between"] > 0.1
    assert re.search(r"\d+ % of the variance of a trial is common to its allocation", text)
    assert re.search(r"allocations of 4 h[^*]*: finds most in an hour", text), text
    # one by one: kept for later plans, and not lost by another calibration
    assert main(["calibrate", "test_sweep.py", *ONE, "--jobs", "4"]) == 0
    assert kept(cluster)["allocations"] == found
    assert len(cluster.submitted) == 12 + 4
    said(capsys)
    assert main(["plan", "test_sweep.py", *ONE]) == 0
    planned = said(capsys)
    assert "hours for the same precision" in planned
    assert "finds most in an hour" in planned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*ONE, "--allocations", "4", "--executor", "local"), "no allocations to compare"),
        ((*ONE, "--allocations", "4", "--executor", "allocation"), "outside of salloc"),
        ((*ONE, "--starts", "4"), "--starts counts the trials"),
        ((*SLOTS, "--allocations", "4"), "--allocations and --slots"),
        ((*ONE, "--allocations", "1"), "1 allocation of 3 starts: too few"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused_in_one_message(
    cluster: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["calibrate", "test_sweep.py", *words]) == Exit.USAGE - 2
    assert message in capsys.readouterr().err
    assert not cluster.submitted
