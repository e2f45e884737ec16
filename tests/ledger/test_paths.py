"""A path that comes from a file stays below the folder that it is relative to."""

from __future__ import annotations

import json
from pathlib import Path

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

SUBMITTED = {"trial_id": "t", "attempt": 1, "executor": "local", "job_id": "1.1", "folder": "s/t.1"}
OUT = ["../../..", "s/../../t.1", "/etc", "", "s/\0"]
OUT_IDS = ["up", "up after a folder", "absolute", "no name", "a NUL"]


@pytest.mark.parametrize("said", OUT, ids=OUT_IDS)
def test_an_attempt_s_folder_lies_below_its_ledger(said: str) -> None:
    assert Submission.from_json(SUBMITTED).folder == "s/t.1"
    with pytest.raises(LedgerError, match=r"Submission: .* leads out of the ledger.*folder`"):
        Submission.from_json({**SUBMITTED, "folder": said})


def test_a_job_s_id_is_no_option_of_scancel() -> None:
    with pytest.raises(LedgerError, match=r"no name of a job - at `.*job_id`"):
        Submission.from_json({**SUBMITTED, "job_id": "--user=me"})


@pytest.mark.parametrize("said", OUT[:3], ids=OUT_IDS[:3])
def test_recorded_evidence_lies_below_its_ledger(said: str) -> None:
    for field in ({"dump": said}, {"captures": [said]}):
        with pytest.raises(LedgerError, match="leads out of"):
            EvidenceRecorded.from_json({"trial_id": "t", **field})


@pytest.mark.parametrize("said", [*OUT[:3], OUT[4]], ids=[*OUT_IDS[:3], OUT_IDS[4]])
def test_the_folder_of_reports_that_a_sweep_s_name_names_lies_below_all_reports(said: str) -> None:
    opened = {"cells": [], "study": "tuning"}
    assert CampaignOpened.from_json({**opened, "sweep": "quickstart", "run": "s"}).run == "s"
    for field in ("sweep", "run"):
        with pytest.raises(LedgerError, match=rf"leads out of the ledger.*{field}"):
            CampaignOpened.from_json({**opened, field: said})


@pytest.mark.parametrize("command", ["jobs", "report"])
def test_a_ledger_that_leads_elsewhere_is_told_and_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    folder = tmp_path / "work" / "sweep" / "cell"
    path = folder / LEDGER
    Ledger(path).append(AttemptSubmitted(submission=Submission.from_json(SUBMITTED)), at_s=1.0)
    line = json.loads(path.read_text())
    line["submission"]["folder"] = "../../.."
    path.write_text(f"{json.dumps(line)}\n".replace('"schema": ', '"schema":'))
    assert main([command, "--workdir", str(tmp_path / "work")]) == Exit.INTERNAL
    said = capsys.readouterr()
    assert "a path that leads out" in said.out + said.err


@pytest.mark.parametrize("name", ["../a", "/tmp/a", "a/../../b"])
def test_a_spec_s_file_lies_in_its_attempt(tmp_path: Path, name: str) -> None:
    with payload.Folder(tmp_path) as folder, pytest.raises(ValueError, match="leads out of"):
        payload._write_file(folder, name, "text")


def test_a_spec_s_file_goes_through_no_link(tmp_path: Path) -> None:
    attempt, other = tmp_path / "attempt", tmp_path / "other"
    attempt.mkdir()
    other.mkdir()
    (attempt / "configs").symlink_to(other)
    with payload.Folder(attempt) as folder, pytest.raises(PermissionError, match="is a link"):
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
