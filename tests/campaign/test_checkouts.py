"""A campaign over commits of a real repository, some of which cannot be checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, Clock
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome
from pytest_xlatune.studies.commit_check import CommitsRecord, CommitStudy
from pytest_xlatune.sweep import checkouts
from tests.helpers.repositories import Repository
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import OK, STEPS, FakeExecutor, Ticking, log, run


def lose(repository: Repository, commit: str) -> Path:
    """Remove the file of a commit, as a damaged or partial clone has it."""
    blob = repository.git("rev-parse", f"{commit}:train.py")
    path = repository.path / ".git" / "objects" / blob[:2] / blob[2:]
    path.unlink()
    return path


def commits(repository: Repository, count: int) -> list[str]:
    return [repository.commit(f"# {at}", train=f"# {at}\n") for at in range(count)]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "trainer")


def searching(repository: Repository, hashes: list[str], executor: FakeExecutor) -> Campaign:
    launcher = CheckoutLauncher(
        repository=str(repository.path),
        inner=CommandLauncher(argv=("python", "train.py", "{steps}"), cwd=str(repository.path)),
    )
    cell = Cell(
        model_tag="m", parallelism=Parallelism.parse("FSDP=1"), protocol=Protocol(steps=STEPS)
    )
    study = CommitStudy(
        cells=tuple(replace(cell, code=each) for each in hashes),
        labels=tuple(f"{each[:12]} change" for each in hashes),
        is_search=True,
        budget=80,
    )
    clock = Ticking()
    made = campaign_of(
        repository.path.parent / "commits",
        executor,
        study,
        launcher=launcher,
        clock=Clock(now=clock, ticks=clock),
    )
    made.open()
    return made


def test_a_search_goes_on_past_commits_that_cannot_be_checked_out(repository: Repository) -> None:
    hashes = commits(repository, 9)
    for at in (4, 5):
        lose(repository, hashes[at])
    short = [each[:12] for each in hashes]

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        at = short.index(trial_id.partition("-")[0])
        speed = 1000.0 if at < 6 else 950.0
        return log(speed * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)), OK

    executor = FakeExecutor(script)
    campaign = searching(repository, hashes, executor)
    run(campaign, turns=2000)
    conclusion = campaign.conclude()
    record = conclusion.record
    assert isinstance(record, CommitsRecord)
    assert not campaign.view().stopped
    assert record.skipped, "the search came by one of them"
    assert set(record.skipped) <= {short[4], short[5]}
    assert record.last == short[6]
    broken = conclusion.verdict(record.skipped[0])
    assert broken is not None
    assert (broken.kind, broken.can_run) == ("INVALID", False)
    assert f"checkout of {record.skipped[0]} cannot be made" in sentence(broken.reasons[0])
    assert "2 times in a row" in sentence(broken.reasons[0]), "it was tried again a minute later"
    assert not [each for each in executor.submitted if each.startswith((short[4], short[5]))]


def test_a_checkout_that_can_be_made_the_second_time_is_measured(repository: Repository) -> None:
    hashes = commits(repository, 3)
    lost = lose(repository, hashes[2])
    executor = FakeExecutor(lambda *_: (log(), OK))
    campaign = searching(repository, hashes, executor)
    repository.write(train="# 2\n")
    for _ in range(40):
        campaign.turn()
        if "checkout-fail" in campaign.ledger.path.read_text("utf-8") and not lost.exists():
            repository.git("hash-object", "-w", "train.py")
    assert lost.exists()
    run(campaign, turns=2000)
    record = campaign.conclude().record
    assert isinstance(record, CommitsRecord)
    assert record.found == "NO CHANGE"
    assert [each for each in executor.submitted if each.startswith(hashes[2][:12])]


def test_a_full_disk_is_no_commit_s_fault(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = commits(repository, 3)
    asked = checkouts._run

    def full(path: str, *words: str) -> subprocess.CompletedProcess[str]:
        done = asked(path, *words)
        if words[:2] == ("worktree", "add"):
            said = "fatal: cannot create directory: No space left on device"
            return subprocess.CompletedProcess(words, 128, "", said)
        return done

    monkeypatch.setattr(checkouts, "_run", full)
    campaign = searching(repository, hashes, FakeExecutor())
    run(campaign)
    assert "No space left on device" in sentence(campaign.view().stopped)
    assert all(each.can_run for each in campaign.conclude().verdicts)
