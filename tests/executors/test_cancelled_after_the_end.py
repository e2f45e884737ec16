"""A cancel that comes when the trainer has ended takes nothing away from what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_xlatune.executors.slurm._commands import Reply
from pytest_xlatune.executors.slurm._poller import Poller
from pytest_xlatune.model.result import Outcome, State
from tests.helpers.played import NO_ACCOUNTING, OK, TOLD_TO_END, Scripted, scontrol


@pytest.mark.parametrize(
    ("ended", "claims", "state"),
    [
        pytest.param([OK, OK], 2, State.COMPLETED, id="both ranks had ended"),
        pytest.param([OK], 2, State.CANCELLED, id="the second had not"),
        pytest.param([OK, TOLD_TO_END], 2, State.CANCELLED, id="the second was told to"),
        pytest.param([], 0, State.CANCELLED, id="none had begun"),
    ],
)
def test_who_cancels_too_late_ends_nothing(
    folder: Path, ended: list[Outcome], claims: int, state: State
) -> None:
    names = ["", ".1"]
    for name in names[:claims]:
        (folder / f"claimed{name}.json").write_text("{}", encoding="utf-8")
    for name, outcome in zip(names, ended, strict=False):
        text = json.dumps(outcome.to_json())
        (folder / f"outcome{name}.json").write_text(text, encoding="utf-8")
    slurm = Scripted(scontrol=Reply(code=0, out=scontrol("CANCELLED", "0:15")), sacct=NO_ACCOUNTING)
    seen = Poller(run=slurm).poll({"31": folder})["31"]
    assert seen.state is state
    assert "CANCELLED" in seen.reason
