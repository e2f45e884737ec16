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
    read_claim,
    read_environments,
    read_outcomes,
    read_spec,
    read_started,
)
from pytest_xlatune.executors.slurm.allocation import ENDED, STEP, AllocationExecutor
from pytest_xlatune.model.result import Outcome, State, Submission
from tests.helpers.played import Scripted
from tests.helpers.tables import rows

GOOD = {"state": "completed", "exit_code": 0, "signal": None, "nodes": ["n1"], "start_s": 1.0,
        "end_s": 2.0, "reason": ""}  # fmt: skip
PROCESS = {"host": "h", "boot_id": "b", "pid": 4711, "start_ticks": 7, "at_s": 1.0}


def good(**changed: Any) -> str:
    return json.dumps({**GOOD, **changed})


Damage = Callable[[Path], object] | str  # what is done to a file, or its text
DAMAGES: dict[str, Damage] = {
    "empty": "",
    "torn": '{"state": "compl',
    "no JSON": lambda path: path.write_bytes(bytes(range(256))),
    "a list": "[1, 2]",
    "100,000 brackets": "[" * 100_000,
    "an integer of 5,000 digits": '{"exit_code": ' + "9" * 5000 + "}",
    "nodes of another kind": good(nodes={"n1": 1}),
    "an end of the year 30 million": good(end_s=1e15),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


def put(path: Path, damage: Damage) -> None:
    if isinstance(damage, str):
        path.write_text(damage, encoding="utf-8")
    else:
        damage(path)


@rows("damage", DAMAGES)
def test_an_outcome_that_cannot_be_read_is_a_failure_and_is_kept(
    tmp_path: Path, damage: Damage
) -> None:
    path = tmp_path / "outcome.json"
    put(path, damage)
    put(tmp_path / "outcome.1.json", good())
    found = read_outcomes(tmp_path)
    assert found[1].state is State.COMPLETED
    assert (found[0].state, found[0].is_unreadable) == (State.FAILED, True)
    assert str(path) in found[0].reason
    assert Outcome.from_json(json.loads(json.dumps(found[0].to_json()))) == found[0]


def test_a_file_that_is_too_long_or_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "outcome.json", good() + " " * 64)
    with monkeypatch.context() as patched:
        patched.setattr(folders, "_MOST_BYTES", 64)
        assert read_outcomes(tmp_path)[0].is_unreadable
    error: OSError = PermissionError(13, "Permission denied")

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(secure_files.Folder, "open", refuse)
    assert "outcome.json: Permission denied" in read_outcomes(tmp_path)[0].reason
    error = OSError(116, "Stale file handle")  # which is waited for
    with pytest.raises(OSError, match="Stale"):
        read_outcomes(tmp_path)


@rows(
    "damage",
    {
        **DAMAGES,
        "no process": json.dumps({**PROCESS, "pid": -1}),
        "no time of ours": json.dumps({**PROCESS, "at_s": 1e300}),
        "no file": lambda _: None,
    },
)
def test_no_other_file_of_an_attempt_ends_a_session(tmp_path: Path, damage: Damage) -> None:
    """`step.json` says in which allocation a step is, `ended.json` how its srun ended."""
    folder = tmp_path / "run" / "a.1"
    folder.mkdir(parents=True)
    for name in ("claimed", "started", "environment", "spec"):
        put(folder / f"{name}.json", damage)
    for name in (STEP, ENDED):
        put(folder / name, damage)
    assert (read_claim(folder), read_started(folder), read_spec(folder)) == (None, None, None)
    assert read_environments(folder) == ()
    payload.forget_secrets(folder)
    step = Submission(
        trial_id="a", attempt=1, executor="allocation", job_id="step-1", folder="run/a.1"
    )
    executor = AllocationExecutor(environ={}, run=Scripted())
    executor.cancel([step], root=tmp_path)
    found = executor.poll([step], root=tmp_path)["step-1"]
    assert (found.state, found.is_unreadable) == (State.FAILED, True)
    assert (folder / payload.CANCEL).exists()
