"""What a plan says of nodes on which others work: no fault, a note with whose job it is."""

from __future__ import annotations

import getpass

import pytest

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Reply
from tests.helpers.played import AWAY, Scripted

MINE = (getpass.getuser(), "xlt-fast-s.0-1a2b3c")
OTHER = ("alice", "train-70b")
BEHIND = (
    "trials wait in the queue behind other jobs: 40 (train-70b of alice on n1, at most until "
    "2026-11-20 12:00 UTC)"
)


@pytest.mark.parametrize(
    ("jobs", "note"),
    [
        pytest.param((), "", id="none"),
        pytest.param((MINE,), "", id="our own"),
        pytest.param((OTHER,), BEHIND, id="another's"),
        pytest.param((MINE, *(OTHER,) * 5), " and 2 more", id="many"),
    ],
)
def test_whose_job_runs_on_a_node_is_told(jobs: tuple[tuple[str, str], ...], note: str) -> None:
    lines = (SEPARATOR.join((f"{40 + i}", *job, "n1", "1795176000")) for i, job in enumerate(jobs))
    slurm = Scripted(squeue=Reply(code=0, out="\n".join(lines)))
    said = SlurmExecutor(run=slurm).busy_note(["n1", "n2"])
    assert said == note or (note.startswith(" and") and said.endswith(note))
    assert slurm.asked[0][slurm.asked[0].index("-w") + 1] == "n1,n2", "no job elsewhere"


def test_a_controller_that_is_away_says_nothing() -> None:
    assert SlurmExecutor(run=Scripted(squeue=AWAY)).busy_note(["n1"]) == ""
