"""A path that comes from a file stays below the folder that it is relative to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.executors import payload
from pytest_xlatune.ledger import (
    LEDGER,
    AttemptSubmitted,
    CampaignOpened,
    EvidenceRecorded,
    Ledger,
)
from pytest_xlatune.model.errors import Exit, LedgerError
from pytest_xlatune.model.result import Submission
from pytest_xlatune.tasks.artifacts import read_attempt
from tests.helpers.tables import rows

SUBMITTED = {"trial_id": "t", "attempt": 1, "executor": "local", "job_id": "1.1", "folder": "s/t.1"}
OPENED: dict[str, Any] = {"cells": [], "study": "tuning", "sweep": "quickstart", "run": "s"}
EVIDENCE: dict[str, Any] = {"trial_id": "t", "dump": "d", "captures": ["c"]}
UP = {"up": "../../..", "up after a folder": "s/../../t.1", "absolute": "/etc", "a NUL": "s/\0"}


@rows("path", UP)
@rows(
    "record, good, field",
    {
        "the folder of an attempt": (Submission, SUBMITTED, "folder"),
        "a dump": (EvidenceRecorded, EVIDENCE, "dump"),
        "captures": (EvidenceRecorded, EVIDENCE, "captures"),
        "the name of a sweep": (CampaignOpened, OPENED, "sweep"),
        "the name of a run": (CampaignOpened, OPENED, "run"),
    },
)
def test_a_path_of_a_record_lies_below_its_ledger(
    record: Any, good: dict[str, Any], field: str, path: str
) -> None:
    record.from_json(good)
    with pytest.raises(LedgerError, match=rf"leads out of the ledger.*{field}"):
        record.from_json({**good, field: [path] if field == "captures" else path})


def test_an_attempt_has_a_folder_and_its_job_s_id_is_no_option_of_scancel() -> None:
    with pytest.raises(LedgerError, match=r"leads out of the ledger.*folder`"):
        Submission.from_json({**SUBMITTED, "folder": ""})
    with pytest.raises(LedgerError, match=r"no name of a job - at `.*job_id`"):
        Submission.from_json({**SUBMITTED, "job_id": "--user=me"})


@pytest.mark.parametrize("command", ["jobs", "report"])
def test_a_ledger_that_leads_elsewhere_is_told_and_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "work" / "sweep" / "cell" / LEDGER
    Ledger(path).append(AttemptSubmitted(submission=Submission.from_json(SUBMITTED)), at_s=1.0)
    path.write_text(path.read_text().replace('"s/t.1"', '"../../.."'))
    assert main([command, "--workdir", str(tmp_path / "work")]) == Exit.INTERNAL
    said = capsys.readouterr()
    assert "a path that leads out" in said.out + said.err


def test_a_spec_s_file_lies_in_its_attempt_and_goes_through_no_link(tmp_path: Path) -> None:
    attempt, other = tmp_path / "attempt", tmp_path / "other"
    attempt.mkdir()
    other.mkdir()
    (attempt / "configs").symlink_to(other)
    with payload.Folder(attempt) as folder:
        for name in ("../a", "/tmp/a", "a/../../b"):
            with pytest.raises(ValueError, match="leads out of"):
                payload._write_file(folder, name, "text")
        with pytest.raises(PermissionError, match="is a link"):
            payload._write_file(folder, "configs/a.yml", "text")
    assert list(other.iterdir()) == []


def test_captures_and_a_dump_behind_a_link_are_told_and_not_read(tmp_path: Path) -> None:
    attempt, other = tmp_path / "s" / "t.1", tmp_path / "other"
    profile = attempt / "plugins" / "profile" / "1"
    for each in (profile, other):
        each.mkdir(parents=True)
    (other / "a.xplane.pb").write_bytes(b"")
    (profile / "a.xplane.pb").symlink_to(other / "a.xplane.pb")
    (attempt / "xla_dump").symlink_to(other)
    found = read_attempt("t", tmp_path, "s/t.1")
    assert (found.dump, found.captures) == ("", ())
    assert sum("leads out of its" in each for each in found.problems) == 2
