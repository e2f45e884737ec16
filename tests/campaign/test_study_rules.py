"""What a study's own rules make of failures: its trials and their logs through the campaign."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, Clock
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import AttemptCutShort, Ledger
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Outcome, State, Verdict
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.batch_size import BatchSize
from pytest_xlatune.studies.commit_check import CommitStudy
from pytest_xlatune.sweep import checkouts
from tests.helpers.benchmarks import load
from tests.helpers.repositories import Repository
from tests.helpers.scripted import (
    CELL,
    KILLED,
    FakeExecutor,
    campaign_of,
    failing,
    run,
    ticking,
)
from tests.helpers.tables import rows

HOST_MEMORY = Outcome(state=State.OUT_OF_MEMORY, exit_code=1)


def swept(
    folder: Path,
    executor: FakeExecutor,
    study: Study,
    ticks: Callable[[], float] = time.monotonic,
) -> Campaign:
    made = campaign_of(folder / "cell", executor, study, clock=Clock(ticks=ticks))
    made.open()
    run(made, turns=2000)
    assert not made.view().stopped
    return made


def verdict(made: Campaign, arm: str) -> Verdict:
    found = made.conclude().verdict(arm)
    assert found is not None
    return found


def batch() -> Study:
    cell = replace(CELL, per_device_batch_size=4)
    return BatchSize(sizes=(4, 6, 8)).study(load("batch_rates").asked_of(cell, 30))


@rows(
    "outcome, times, tries, fits",
    {
        "the host's memory is not tried again": (HOST_MEMORY, 99, 1, False),
        "SIGKILL is tried once more, and counts as memory then": (KILLED, 99, 2, False),
        "a size that is killed once is measured": (KILLED, 1, 2, True),
    },
)
def test_a_size_that_the_kernel_refuses_does_not_fit(
    tmp_path: Path, outcome: Outcome, times: int, tries: int, *, fits: bool
) -> None:
    executor = FakeExecutor(failing("pdbs-8", "", outcome, times=times))
    made = swept(tmp_path, executor, batch())
    assert verdict(made, "pdbs-8").can_run is fits
    submitted = [each for each in executor.submitted if each.startswith("pdbs-8")]
    assert submitted.count(submitted[0]) == tries


def test_a_size_that_stands_still_before_its_first_step_gets_twice_the_patience(
    tmp_path: Path,
) -> None:
    text = "Memstats: After params initialized:\n"
    executor = FakeExecutor(failing("pdbs-8", text, Outcome(state=State.RUNNING)))
    made = swept(tmp_path, executor, batch(), ticking())
    assert not verdict(made, "pdbs-8").can_run
    events = [entry.event for entry in Ledger(made.ledger.path).refresh()]
    once_s, twice_s = (each.still_s for each in events if isinstance(each, AttemptCutShort))
    patience_s = Patience().compiling_s
    assert patience_s < once_s < 1.5 * patience_s
    assert 2 * patience_s < twice_s < 2.5 * patience_s


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "trainer")


def commits(repository: Repository, count: int) -> list[str]:
    return [repository.commit(f"# {at}", train=f"# {at}\n") for at in range(count)]


def searching(repository: Repository, hashes: list[str], executor: FakeExecutor) -> Campaign:
    argv = ("python", "train.py", "{steps}")
    launcher = CheckoutLauncher(
        repository=str(repository.path),
        inner=CommandLauncher(argv=argv, cwd=str(repository.path)),
    )
    cell = replace(CELL, deployed={})
    study = CommitStudy(
        cells=tuple(replace(cell, code=each) for each in hashes),
        labels=tuple(f"{each[:12]} change" for each in hashes),
        is_search=True,
        budget=80,
    )
    ticks = ticking()
    clock = Clock(now=ticks, ticks=ticks)
    folder = repository.path.parent / "commits"
    made = campaign_of(folder, executor, study, launcher=launcher, clock=clock)
    made.open()
    return made


SUBMODULES = "[submodule 'lib']\n\tpath = lib\n\turl = /nowhere\n"


def test_a_commit_with_submodules_is_refused(repository: Repository) -> None:
    (repository.path / ".gitmodules").write_text(SUBMODULES, encoding="utf-8")
    repository.git("add", ".gitmodules")
    made = searching(repository, commits(repository, 3), FakeExecutor())
    run(made)
    assert "has submodules" in sentence(made.view().stopped)


def test_a_full_disk_is_no_commit_s_fault(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkouts._run

    def full(path: str, *words: str) -> subprocess.CompletedProcess[str]:
        if words[:2] != ("worktree", "add"):
            return real(path, *words)
        said = "fatal: cannot create directory: No space left on device"
        return subprocess.CompletedProcess(words, 128, "", said)

    monkeypatch.setattr(checkouts, "_run", full)
    made = searching(repository, commits(repository, 3), FakeExecutor())
    run(made)
    assert "No space left on device" in sentence(made.view().stopped)
    assert all(each.can_run for each in made.conclude().verdicts)
