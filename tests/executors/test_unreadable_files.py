"""Whatever stands in a file that an attempt left, it is that attempt's trouble and no other's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.executors import folder as folders
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import (
    keep_unreadable,
    read_claim,
    read_environments,
    read_outcomes,
    read_spec,
    read_started,
)
from pytest_xlatune.executors.slurm._commands import merge
from pytest_xlatune.executors.slurm.allocation import ENDED, STEP, AllocationExecutor
from pytest_xlatune.model.result import Outcome, State, Submission
from tests.helpers.played import Scripted

GOOD = {"state": "completed", "exit_code": 0, "signal": None, "nodes": ["n1"], "start_s": 1.0,
        "end_s": 2.0, "reason": ""}  # fmt: skip


def put(**changed: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps({**GOOD, **changed}), encoding="utf-8")


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": text(""),
    "torn": text('{"state": "compl'),
    "no JSON": lambda path: path.write_bytes(bytes(range(256))),
    "a list": text("[1, 2]"),
    "a number": text("7"),
    "null": text("null"),
    "100,000 brackets": text("[" * 100_000),
    "100,000 names": text('{"a":' * 100_000),
    "an integer of 5,000 digits": text('{"exit_code": ' + "9" * 5000 + "}"),
    "another field": put(verdict="FASTER"),
    "a state that does not exist": put(state="won"),
    "a state of another kind": put(state=["completed"]),
    "nodes of another kind": put(nodes={"n1": 1}),
    "an end that is no number": put(end_s=float("nan")),
    "an end that is the text nan": put(end_s="nan"),
    "an end that never comes": put(end_s=float("inf")),
    "an end of the year 30 million": put(end_s=1e15),
    "an end beyond all floats": text('{"state": "completed", "end_s": 1e999}'),
    "a begin before time": put(start_s=-1e9),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_outcome_that_cannot_be_read_is_a_failure_and_is_kept(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "outcome.json"
    DAMAGES[damage](path)
    (tmp_path / "outcome.1.json").write_text(json.dumps(GOOD), encoding="utf-8")
    found = read_outcomes(tmp_path)
    assert found[1].state is State.COMPLETED
    assert (found[0].state, found[0].is_unreadable) == (State.FAILED, True)
    assert str(path) in found[0].reason
    assert Outcome.from_json(json.loads(json.dumps(found[0].to_json()))) == found[0]

    keep_unreadable(tmp_path)
    aside = tmp_path / "outcome.json.unreadable"
    assert not path.is_symlink()
    assert not path.exists()
    assert aside.is_symlink() or aside.exists()
    assert read_outcomes(tmp_path)[0].is_unreadable
    keep_unreadable(tmp_path)  # by another process
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert read_outcomes(tmp_path)[0].state is State.COMPLETED


def test_a_file_without_end_is_read_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_MOST_BYTES", 64)
    (tmp_path / "outcome.json").write_text(json.dumps(GOOD) + " " * 64, encoding="utf-8")
    assert read_outcomes(tmp_path)[0].is_unreadable


def test_a_file_that_may_not_be_read_is_told_by_the_systems_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(secure_files.Folder, "open", refuse)
    assert "outcome.json: Permission denied" in read_outcomes(tmp_path)[0].reason

    def away(*_: object, **__: object) -> None:
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(secure_files.Folder, "open", away)
    with pytest.raises(OSError, match="Stale"):  # which is waited for
        read_outcomes(tmp_path)


PROCESS = {"host": "h", "boot_id": "b", "pid": 4711, "start_ticks": 7, "at_s": 1.0}


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGES,
        *({"pid": -1}, {"pid": 0}, {"at_s": float("nan")}, {"at_s": 1e300}, {"pid": "4711"}),
    ],
    ids=str,
)
def test_no_other_file_of_an_attempt_ends_a_session(tmp_path: Path, damage: Any) -> None:
    said = json.dumps({**PROCESS, **damage}) if isinstance(damage, dict) else ""
    names = ("claimed", "started", "environment", "spec", "held")
    for name in names:
        (text(said) if said else DAMAGES[damage])(tmp_path / f"{name}.json")
    assert read_claim(tmp_path) is None
    assert read_started(tmp_path) is None
    assert read_environments(tmp_path) == ()
    assert read_spec(tmp_path) is None
    payload.forget_secrets(tmp_path)


@pytest.mark.parametrize("damage", [*DAMAGES, "an id of another kind"])
def test_a_job_that_cannot_be_read_is_none(tmp_path: Path, damage: str) -> None:
    job = {"job_id": "4711.12", "comment": "c"}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    assert payload.read_job(tmp_path) == job
    path.unlink()
    of_another_kind = text(json.dumps({**job, "job_id": "../../x"}))
    DAMAGES.get(damage, of_another_kind)(path)
    assert payload.read_job(tmp_path) is None


@pytest.mark.parametrize("damage", [*DAMAGES, "no file"])
def test_a_step_of_which_nothing_can_be_read_fails_and_another_goes_on(
    tmp_path: Path, damage: str
) -> None:
    """`step.json` says in which allocation it is, `ended.json` how srun ended."""
    folder = tmp_path / "run" / "a-wave2.0-0123456789.1"
    folder.mkdir(parents=True)
    if damage in DAMAGES:
        DAMAGES[damage](folder / STEP)
        DAMAGES[damage](folder / ENDED)
    each = Submission(trial_id="a", attempt=1, executor="allocation", job_id="step-1",
                      folder=str(folder.relative_to(tmp_path)))  # fmt: skip
    executor = AllocationExecutor(environ={}, run=Scripted())
    executor.cancel([each], root=tmp_path)
    found = executor.poll([each], root=tmp_path)["step-1"]
    assert (found.state, found.is_unreadable) == (State.FAILED, True)
    assert (folder / payload.CANCEL).exists()


def test_a_rank_that_says_why_it_failed_explains_more_than_one_that_cannot_be_read() -> None:
    slurm = Outcome(state=State.COMPLETED, nodes=("n1",))
    bad = Outcome(state=State.FAILED, reason="cannot be read", is_unreadable=True)
    why = Outcome(state=State.FAILED, exit_code=3, end_s=9.0)
    assert merge(slurm, [bad, why]).exit_code == 3
    assert not merge(slurm, [bad, why]).is_unreadable
    assert merge(slurm, [bad]).is_unreadable
    assert merge(slurm, [bad]).state is State.FAILED
    limit = Outcome(state=State.TIMEOUT)
    assert (merge(limit, [bad]).state, merge(limit, [bad]).is_unreadable) == (State.TIMEOUT, False)
