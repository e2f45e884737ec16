"""A sweep goes on in the way in which it began, and a session has one study of its ledger."""

from __future__ import annotations

import json
import sys

import pytest
from msgspec.structs import replace

from pytest_xlatune import CellSettings, CommandLauncher, Sweep, profile
from pytest_xlatune.model.result import Outcome, Score, State, TrialResult, TrialStatus
from pytest_xlatune.sweep.groups import UserOptions
from pytest_xlatune.sweep.registry import put_in_use, study_of
from tests.helpers.history import study


@pytest.mark.parametrize(
    ("status", "block", "rotates"),
    [
        pytest.param(TrialStatus.PLANNED, 0, False, id="a job of its screen is planned"),
        pytest.param(TrialStatus.MEASURED, 1, False, id="jobs of its blocks decide already"),
        pytest.param(TrialStatus.MEASURED, 0, True, id="its jobs are over: others may rotate"),
    ],
)
def test_a_screen_that_began_with_jobs_goes_on_with_jobs(
    status: TrialStatus, block: int, *, rotates: bool
) -> None:
    """A pace that is known by now made the rest of it a rotation, with one baseline left out."""
    flags = (profile(f"p{at}", f"--xla_gpu_autotune_level={at}") for at in range(2))
    knobs = (profile(f"k{at}", f"--xla_gpu_knob_{at}=1") for at in range(20))
    sweep = Sweep(
        name="resumed",
        cell=CellSettings(model_tag="m", parallelism="DP=1"),
        launcher=CommandLauncher(argv=(sys.executable, "train.py")),
        profiles=(*flags, *knobs),
    )
    resolved = sweep.resolve(UserOptions(values={"executor": "local"}))
    jobs = replace(resolved.tuning(), rotation=None).decide(()).due
    first, second = [trial for trial in jobs if not trial.is_baseline][:2]
    score = Score(value=6.0, tgs=400.0, step_s=0.1, n_steps=10, window=(5, 14))
    over = Outcome(state=State.COMPLETED, start_s=0.0, end_s=2.0)
    earlier = (
        TrialResult(trial=first, status=TrialStatus.MEASURED, score=score, outcome=over),
        TrialResult(trial=replace(second, block=block), status=status),
    )
    assert resolved.tuning().rotates
    assert resolved.tuning(earlier=earlier).rotates is rotates


def test_the_study_of_a_campaign_is_that_of_its_ledger() -> None:
    own = study(3, seed=7)
    put_in_use(own, own.to_json())
    assert study_of(own.name, json.loads(json.dumps(own.to_json()))) is own


def test_one_with_a_secret_that_no_ledger_has_is_not() -> None:
    own = study(profiles=(profile("token", env={"MY_TOKEN": "hunter2-long-and-secret"}),), seed=7)
    put_in_use(own, own.to_json())
    found = study_of(own.name, own.to_json())
    assert found is not own
    assert "hunter2" not in repr(found)
