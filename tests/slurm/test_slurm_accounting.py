"""The same cluster with slurmdbd: what sacct knows, and that its books show no secret."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import ModuleType

import pytest

from pytest_xlatune.executors import Request
from pytest_xlatune.executors.slurm._commands import run_command
from pytest_xlatune.model.result import State
from tests.helpers import secrets_planted as planted
from tests.helpers.waiting import until
from tests.slurm.on_lab import TRIALS, Faults, Project, Trials, slurm

pytestmark = pytest.mark.usefixtures("accounting")


def test_sacct_tells_the_end_of_jobs_that_the_controller_has_forgotten(
    trials: Trials, lab: ModuleType
) -> None:
    lab.change(MinJobAge=2)
    good = trials.submit("good", "true")
    down = trials.submit("down", "sleep 300", ("node003", "node004"))
    never = trials.submit("never", "true", options={"hold": ""})
    trials.running(down)
    slurm("scontrol", "update", "nodename=node004", "state=down", "reason=lab")
    slurm("scancel", never.job_id)
    assert trials.end(good).state is State.COMPLETED
    assert trials.end(down).state is State.NODE_FAIL
    until(lambda: not slurm("squeue", "-h", "-t", "all"))

    seen = trials.new_executor().poll([good, down, never], root=trials.root)
    assert seen[good.job_id].state is State.COMPLETED
    assert seen[down.job_id].state is State.NODE_FAIL
    assert seen[never.job_id].state is State.CANCELLED
    assert seen[never.job_id].reason.startswith("CANCELLED by 0")

    # the folder's own evidence gone, the books still know the attempt
    for path in (trials.folder(good) / "submitit").iterdir():
        path.unlink()
    assert trials.executor.find(Request(**trials.arguments("good"))) == good.job_id


@pytest.mark.parametrize("at_most", [1, 2])
def test_a_real_limit_on_submitted_jobs_is_full_and_not_refused(
    faults: Faults, at_most: int
) -> None:
    limit = ("sacctmgr", "-i", "modify", "user", "root", "set")
    slurm(*limit, f"MaxSubmitJobs={at_most}")
    faults.write(
        faults.profiles(), held=True
    )  # else a short trial may end before the next one is submitted
    try:
        session = faults.start()
        until(lambda: bool(faults.project.events("noted")))
        said = faults.released(session)
    finally:
        slurm(*limit, "MaxSubmitJobs=-1")
    assert "note: a limit on submitted jobs is reached; the next trial waits until a job" in said
    faults.assert_undisturbed(said)


def test_a_sweep_does_not_miss_slurmdbd(faults: Faults, lab: ModuleType) -> None:
    session = faults.start_held("-n2")
    os.kill(lab.pid_of("slurmdbd"), signal.SIGKILL)
    said = faults.released(session)
    assert run_command(["sacct"]).code != 0
    faults.assert_undisturbed(said)
    assert faults.project.jobs == TRIALS


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
