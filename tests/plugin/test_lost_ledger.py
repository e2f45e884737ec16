"""A ledger that was deleted or emptied beside its attempts: nothing is measured twice unsaid."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main

RANK = ("-m", "wave2")


def ledger_of(folder: Any) -> Path:
    (path,) = folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
    return Path(path)


def results(folder: Any) -> dict[str, Any]:
    """Every score of the ledger, by trial: to the last digit."""
    kept = ("score", "status", "findings", "job_ids", "outcome", "settings")
    ended = [each["result"] for each in folder.events("trial-ended")]
    return {each["trial"]["arm"] + str(each["trial"]["position"]): {n: each[n] for n in kept}
            for each in ended}  # fmt: skip


@pytest.mark.parametrize("gone", ["deleted", "emptied"])
def test_it_is_said_and_what_was_measured_is_read_again(
    folder: Any, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.run(*RANK)
    path = ledger_of(folder)
    before, submitted = results(folder), sorted(folder.submitted)
    assert before
    attempts = sorted(path.parent.glob("*/*/spec.json"))
    if gone == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"")

    if gone == "emptied":
        assert main(["jobs", "--workdir", str(folder.path / ".xlatune")]) == 3
        assert "finished attempts of session" in capsys.readouterr().err

    refused = folder.run(*RANK)
    said = " ".join(refused.stdout.str().split())
    assert f"holds {len(attempts)} finished attempts of session" in said
    assert "deleted or emptied" in said
    assert "--xlatune-rebuild" in said
    assert "--xlatune-fresh" in said
    assert sorted(path.parent.glob("*/*/spec.json")) == attempts, "nothing was started"

    rebuilt = folder.run(*RANK, "--xlatune-rebuild")
    assert results(folder) == before
    assert sorted(folder.submitted) == submitted
    assert sorted(path.parent.glob("*/*/spec.json")) == attempts, "nothing was started"
    assert "its attempts were read again" in " ".join(
        (folder.path / "reports" / "pretend" / "leaderboard.md").read_text("utf-8").split()
    )
    again = folder.run(*RANK)
    assert again.parseoutcomes() == rebuilt.parseoutcomes()
    assert sorted(folder.submitted) == submitted, "a later session goes on with it"


def test_a_last_attempt_counts_and_a_later_one_follows(folder: Any) -> None:
    folder.run(*RANK, "-k", "unknown or same")
    path = ledger_of(folder)
    run = next(path.parent.glob("*/same-*.1")).parent
    first = next(run.glob("same-*.1"))
    second = first.with_name(first.name.replace(".1", ".2"))
    shutil.copytree(first, second)
    comment = second / "job.json"
    comment.write_text(comment.read_text("utf-8").replace(f"{first.name}", second.name), "utf-8")
    path.unlink()
    folder.run(*RANK, "-k", "unknown or same", "--xlatune-rebuild")
    jobs = [each["submission"] for each in folder.events("attempt-submitted")]
    assert [each["attempt"] for each in jobs if each["trial_id"].startswith("same")] == [2]
