"""What a study's own rules make of failures: its trials and their logs through the campaign."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, Clock
from pytest_xlatune.ledger import AttemptCutShort, Ledger
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Outcome, State, Verdict, VerdictKind
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.batch_size import BatchSize
from pytest_xlatune.studies.commit_check import Commits, CommitStudy, Load
from tests.helpers.benchmarks import load
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import CELL, FAILED, KILLED, FakeExecutor, Ticking, failing, run

HOST_MEMORY = Outcome(state=State.OUT_OF_MEMORY, exit_code=1)
MISSING = "docker: Error response from daemon: manifest for trainer:v2 not found: manifest unknown."


def campaign(
    folder: Path,
    executor: FakeExecutor,
    study: Study,
    *,
    ticks: Callable[[], float] = time.monotonic,
) -> Campaign:
    made = campaign_of(folder / "cell", executor, study, clock=Clock(ticks=ticks))
    made.open()
    run(made, turns=2000)
    return made


def batch() -> Study:
    cell = replace(CELL, per_device_batch_size=4)
    return BatchSize(sizes=(4, 6, 8)).study(load("batch_rates").asked_of(cell, 30))


def attempts_of(executor: FakeExecutor, arm: str) -> int:
    return sum(each.startswith(arm) for each in executor.submitted)


def verdict(made: Campaign, arm: str) -> Verdict:
    view = made.view()
    assert not view.stopped
    found = view.study.decide(view.history).conclusion.verdict(arm)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("outcome", "tries"),
    [
        pytest.param(HOST_MEMORY, 1, id="the host's memory is not tried again"),
        pytest.param(KILLED, 2, id="SIGKILL is tried once more, and counts as memory then"),
    ],
)
def test_a_size_that_the_kernel_refuses_does_not_fit(
    tmp_path: Path, outcome: Outcome, tries: int
) -> None:
    executor = FakeExecutor(failing("pdbs-8", "", outcome))
    made = campaign(tmp_path, executor, batch())
    assert not verdict(made, "pdbs-8").can_run
    assert attempts_of(executor, "pdbs-8") == tries


def test_a_size_that_is_killed_once_is_measured(tmp_path: Path) -> None:
    executor = FakeExecutor(failing("pdbs-8", "", KILLED, times=1))
    made = campaign(tmp_path, executor, batch())
    assert verdict(made, "pdbs-8").n >= 1


def test_a_size_that_stands_still_before_its_first_step_gets_twice_the_patience(
    tmp_path: Path,
) -> None:
    text = "Memstats: After params initialized:\n"
    executor = FakeExecutor(failing("pdbs-8", text, Outcome(state=State.RUNNING)))
    made = campaign(tmp_path, executor, batch(), ticks=Ticking())
    assert not verdict(made, "pdbs-8").can_run
    assert attempts_of(executor, "pdbs-8") == 2
    cut = [each.event for each in Ledger(made.ledger.path).refresh()]
    waited_s = [each.still_s for each in cut if isinstance(each, AttemptCutShort)]
    patience_s = Patience().compiling_s
    assert len(waited_s) == 2
    assert patience_s < waited_s[0] < 1.5 * patience_s
    assert 2 * patience_s < waited_s[1] < 2.5 * patience_s


def test_a_missing_image_breaks_its_commit_and_the_others_go_on(tmp_path: Path) -> None:
    loads = (Load(model="a"), Load(model="b"))
    cells = [replace(CELL, code=f"{at + 1:012x}{0:028x}") for at in range(3)]
    study = CommitStudy(
        cells=tuple(each.cell(cell) for each in loads for cell in cells),
        labels=tuple(f"{at + 1:012x} change {at}" for at in range(3)),
        asked=Commits(loads=loads),
        budget=60,
    )
    middle = study.ids[1]
    executor = FakeExecutor(failing(middle, MISSING, FAILED))
    made = campaign(tmp_path, executor, study)
    assert not verdict(made, middle).can_run
    assert attempts_of(executor, middle) == 1
    others = [verdict(made, each) for each in study.ids if each != middle]
    assert {each.kind for each in others} <= {VerdictKind.EQUIVALENT, VerdictKind.SCREENED}
