"""The same cluster with slurmdbd: what sacct knows after the controller has forgotten."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.executors import Request
from pytest_xlatune.model.result import State

Trials = Any  # of conftest.py, which cannot be imported from here


pytestmark = pytest.mark.usefixtures("accounting")


def test_sacct_tells_the_end_of_jobs_that_the_controller_has_forgotten(
    trials: Trials,
    lab: ModuleType,
    slurm: Callable[..., str],
    wait_until: Callable[..., None],
) -> None:
    lab.change(MinJobAge=2)
    good = trials.submit("good", "true")
    down = trials.submit("down", "sleep 300", ("node003", "node004"))
    never = trials.submit("never", "true", options={"hold": ""})
    trials.running(down)
    slurm("scontrol", "update", "nodename=node004", "state=down", "reason=lab")
    slurm("scancel", never.job_id)
    assert trials.end(good).state is State.COMPLETED
    assert trials.end(down).state is State.NODE_FAIL
    wait_until(lambda: not slurm("squeue", "-h", "-t", "all"))

    seen = trials.new_executor().poll([good, down, never], root=trials.root)
    assert seen[good.job_id].state is State.COMPLETED
    assert seen[down.job_id].state is State.NODE_FAIL
    assert seen[never.job_id].state is State.CANCELLED
    assert seen[never.job_id].reason.startswith("CANCELLED by 0")

    # the folder's own evidence gone, the books still know the attempt
    for path in (trials.folder(good) / "submitit").iterdir():
        path.unlink()
    assert trials.executor.find(Request(**trials.arguments("good"))) == good.job_id
