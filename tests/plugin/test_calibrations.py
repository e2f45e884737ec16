"""`xlatune calibrate` of node slots; this machine stands for all their nodes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from pytest_xlatune import campaign
from pytest_xlatune.cli import main
from pytest_xlatune.executors import Request
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.prepare import preflight
from pytest_xlatune.tasks import runs
from tests.helpers.quick_trials import QuickExecutor

SLOTS = ("--nodelist", "node[001-004]", "--slots", "2")
ONE = ("--nodelist", "node[001-002]")


class OnNodes(QuickExecutor):
    """Every node is this one."""

    max_in_flight = 0
    turns: ClassVar[list[str]] = []  # trials that run one after the other, or as a pair
    handed_in: ClassVar[list[list[str]]] = [[]]  # trials, those between two polls together

    def submit(self, spec: Any, request: Request) -> str:
        spec = msgspec.structs.replace(spec, env={**spec.env, "FIRST_NODE": request.nodelist[0]})
        resources = msgspec.structs.replace(request.resources, nodes=1)
        here = dataclasses.replace(request, nodelist=(), resources=resources)
        job_id = super().submit(spec, here)
        self.handed_in[-1].append(request.folder.name)
        return job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        self.handed_in.append([])
        trials = {each.job_id: each.trial_id for each in submissions}
        return {
            job_id: msgspec.structs.replace(outcome, **self._times(trials[job_id]))
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

    OnNodes.turns, OnNodes.handed_in = [], [[]]
    monkeypatch.setattr(runs, "executor_named", lambda _: OnNodes())
    monkeypatch.setattr(preflight, "_node_faults", lambda _site: ())
    monkeypatch.setattr(preflight, "_busy", lambda _site: [])
    monkeypatch.setattr(preflight, "_from_the_nodes", lambda *_: ([], []))
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*ONE, "--starts", "4"), "--starts counts the rounds"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused_in_one_message(
    cluster: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["calibrate", "test_sweep.py", *words]) == Exit.USAGE - 2
    assert message in capsys.readouterr().err
    assert not cluster.submitted
