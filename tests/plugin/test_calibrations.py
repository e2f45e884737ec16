"""`xlatune calibrate` of node slots and of allocations; this machine stands for all their nodes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import special

from pytest_xlatune.cli import main
from pytest_xlatune.executors import Request, slurm
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.prepare import preflight
from pytest_xlatune.tasks import runs

# loaded before pytester remembers which modules there are: numpy cannot be loaded again
assert np.__name__
assert special.__name__

SLOTS = ("--nodelist", "node[001-004]", "--slots", "2")
ONE = ("--nodelist", "node[001-002]")


class OnNodes(LocalExecutor):
    """Trials of one slot wait for each other; a step says in which allocation it was."""

    max_in_flight = 0
    here = Path()
    asked: ClassVar[Mapping[str, Any]] = {}  # of the last one
    names: ClassVar[dict[str, str]] = {}  # by job, as their allocations are
    turns: ClassVar[list[str] | None] = None  # trials that run one after the other, or as a pair

    def submit(self, spec: Any, request: Request) -> str:
        first = request.nodelist[0]
        self._lock = self.here / f"{first}.lock"
        spec = dataclasses.replace(spec, env={**spec.env, "FIRST_NODE": first})
        spec = dataclasses.replace(spec, env={**spec.env, "ALLOCATION": request.allocation})
        resources = dataclasses.replace(request.resources, nodes=1)
        here = dataclasses.replace(request, nodelist=(), resources=resources)
        job_id = super().submit(spec, here)
        self.names[job_id] = request.allocation
        return job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        trials = {each.job_id: each.trial_id for each in submissions}
        return {
            job_id: dataclasses.replace(
                outcome, allocation=self.names.get(job_id, ""), **self._times(trials[job_id])
            )
            for job_id, outcome in super().poll(submissions, root=root).items()
        }

    def _times(self, trial_id: str) -> dict[str, Any]:
        """Say when a trial ran, where `turns` decides it: a busy machine starts programs late."""
        if self.turns is None:
            return {}
        _, is_busy, rest = trial_id.partition("-busy.")
        turn = f"pair {int(rest.partition('-')[0]) // 2}" if is_busy else trial_id
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

    OnNodes.here, OnNodes.names, OnNodes.turns = folder.path, {}, None
    monkeypatch.setattr(runs, "executor_named", named)
    monkeypatch.setattr(preflight, "_node_faults", lambda _site: ())
    monkeypatch.setattr(preflight, "_busy", lambda _site: [])
    monkeypatch.setattr(preflight, "_from_the_nodes", lambda *_: ([], []))
    monkeypatch.setattr(slurm, "expected_wait", lambda **_: 1800.0)
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


# two trials of a round wait for each other, and slow each other down
BUSY = """\
if "-busy" in sys.argv[2]:
    at = int(sys.argv[2].partition("-busy.")[2].partition("-")[0])
    here = os.path.dirname(os.path.abspath(__file__))
    open(os.path.join(here, f"mark-{at}"), "w").close()
    until_s = time.time() + 100
    while not os.path.exists(os.path.join(here, f"mark-{at ^ 1}")) and time.time() < until_s:
        time.sleep(0.02)
    time.sleep(1.5)
    speed *= 0.6
speed *= 0.7 if os.environ["FIRST_NODE"] == "node003" else 1.0
"""


def test_slots_are_calibrated_alone_and_busy(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    slowed(cluster, BUSY)
    OnNodes.turns = []
    assert main(["calibrate", "test_sweep.py", *SLOTS, "--starts", "3"]) == 0
    text = said(capsys)
    # three rounds of both slots, two trials alone in each round
    assert len(cluster.submitted) == 3 * 2 + 3 * 2
    told = r"slot 2 \(node\[003-004\]\) is slower than the others by (2|3)\d.\d %"
    assert re.search(told, text), text
    # how much depends on how long the trials really ran beside each other
    assert re.search(r"neighbours slow each other down: -\d+", text), text
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
        ((*ONE, "--starts", "4"), "--starts says how many trials"),
        ((*SLOTS, "--allocations", "4"), "--allocations or --slots"),
        ((*ONE, "--allocations", "1"), "1 allocation of 3 starts tell no variance"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused_in_one_message(
    cluster: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["calibrate", "test_sweep.py", *words]) == Exit.USAGE - 2
    assert message in capsys.readouterr().err
    assert not cluster.submitted
