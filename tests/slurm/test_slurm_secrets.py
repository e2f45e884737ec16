"""On a real cluster, Slurm's own records included, nothing shows a secret that trials need."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers import secrets_planted as planted
from tests.helpers.waiting import until
from tests.slurm.on_lab import Project, slurm

pytestmark = pytest.mark.usefixtures("accounting")


def test_no_record_of_slurm_and_no_file_of_a_run_shows_a_secret(
    project: Project, lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*planted.INHERITED)
    planted.write(project.path, executor="slurm")
    junit = project.path / "junit.xml"
    said = project.run(
        "test_sweep.py",
        "--xlatune-nodelist=node[001-002]",
        "--xlatune-yes",
        "-vv",
        f"--junitxml={junit}",
    )
    logs = list(planted.logs(project.path / "work", "secretive"))
    assert len(logs) == 1, said
    # what the submitter's shell exports is not the job's: a node's own login has it, or nothing
    assert f"got {planted.digest_of(has_profile=True, inherited='')}" in logs[0]
    # slurmctld hands its records to slurmdbd when it gets to it, later still after a restart
    until(lambda: "xlt-secretive" in slurm("sacct", "-P", "-o", "ALL"))
    records = [
        slurm("scontrol", "show", "job", "-dd"),
        slurm("sacct", "-P", "-o", "ALL"),
        Path(lab.FOLDER, "log", "jobcomp.txt").read_text(encoding="utf-8"),
    ]
    for text in (said, *records, junit.read_text(encoding="utf-8")):
        assert planted.shown_in(text) == []
    assert planted.leaks(project.path / "work") == {}
    assert planted.leaks(project.path / "reports") == {}
    assert planted.open_ones(project.path / "work" / "pretend") == []
