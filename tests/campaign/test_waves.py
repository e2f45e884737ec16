"""A campaign whose waves follow from earlier ones: in order, resumed, compiled first."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.studies.derived import Stacks
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.resolved import again
from tests.helpers.scripted import FakeExecutor, campaign, log, run

SINGLES = (
    profile("fast", "--xla_fast=1"),
    profile("quick", "--xla_quick=1"),
    profile("idle", "--xla_idle=1"),
)
STACK = "fast+quick"
OK = Outcome(state=State.COMPLETED, exit_code=0)  # without a start time: as planned


def arm_of(trial_id: str) -> str:
    """The arm of a trial:  fast+quick-wave3.0-52f01478cd"""
    return re.split(r"-(?:wave|confirm)\d", trial_id)[0]


def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
    name = arm_of(trial_id)
    gain = 0.03 * ("fast" in name) + 0.02 * ("quick" in name)
    return log(1000 * (1 + gain + (sum(trial_id.encode()) % 7 - 3) / 10000)), OK


def deriving(folder: Path, executor: FakeExecutor, *, session: str = "first") -> Campaign:
    made = campaign(folder, executor, session=session, profiles=SINGLES)
    study = made.study
    assert isinstance(study, TuningStudy)
    deep = msgspec.structs.replace(study, stacks=(Stacks(slots=1),))
    deeper = again(made, deep, session=session, executor=executor)
    deeper.open()
    return deeper


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_derived_wave_runs_after_what_it_reads(tmp_path: Path, in_flight: int) -> None:
    executor = FakeExecutor(script, max_in_flight=in_flight)
    each = deriving(tmp_path, executor)
    run(each)
    waves = [name.removeprefix(arm_of(name))[1:6] for name in executor.submitted[: 3 + 2 + 1 + 2]]
    assert waves == ["wave2"] * 5 + ["wave3"] * 3
    assert each.conclude().complete
    assert STACK in each.conclude().tuning.finalists


def test_a_resumed_campaign_makes_the_same_stack(tmp_path: Path) -> None:
    executor = FakeExecutor(script)
    first = deriving(tmp_path, executor)
    for _ in range(20):
        if not any(name.startswith(STACK) for name in executor.submitted):
            first.turn()
    run(deriving(tmp_path, executor, session="second"))
    assert len(executor.submitted) == len(set(executor.submitted))
    screened = {name for name in executor.submitted if "-wave3" in name and "+" in name}
    assert {arm_of(name) for name in screened} == {STACK}
