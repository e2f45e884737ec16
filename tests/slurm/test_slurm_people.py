"""What people and other jobs do to a sweep's jobs on a real cluster; their word stands."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.model.result import State

Faults = Any  # of pretend.py, which cannot be imported from here
Trials = Any  # of conftest.py, likewise
Slurm = Callable[..., str]

TRIALS = 3  # a baseline, the profile with the fault, one more


def strangers_job(faults: Faults, slurm: Slurm) -> str:
    """Let a job of another run on one of the nodes; return its id."""
    where = ("--nodelist=node001", "--exclusive", "--output=/dev/null")
    job = slurm("sbatch", "--parsable", *where, "--job-name=stranger", "--wrap", "sleep 300")
    number = job.strip()
    faults.wait_until(lambda: slurm("squeue", "-h", "-j", number, "-o", "%T") == "RUNNING\n")
    return number


def test_a_job_that_a_person_holds_is_waited_for(faults: Faults, slurm: Slurm) -> None:
    faults.write(faults.profiles(), conftest=faults.BUSY)
    stranger = strangers_job(faults, slurm)
    session = faults.start()
    faults.wait_until(lambda: faults.project.events("attempt-submitted"))
    job = faults.project.events("attempt-submitted")[0]["submission"]["job_id"]
    slurm("scontrol", "hold", job)
    faults.wait_until(
        lambda: f"(job {job}) waits in the queue, PENDING (JobHeld" in said_by(faults)
    )
    slurm("scancel", stranger)
    assert "JobHeldAdmin" in slurm("squeue", "-h", "-j", job, "-o", "%r"), "it stands"
    slurm("scontrol", "release", job)
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS


def said_by(faults: Faults) -> str:
    return str(faults.project.said)


def test_a_suspended_trial_is_told_and_its_time_does_not_count(
    faults: Faults, slurm: Slurm
) -> None:
    faults.write(faults.profiles(HOLD=str(faults.go)), patience="before_memstats_s=8")
    session = faults.start()
    faults.victim()
    slurm("scontrol", "suspend", faults.job())
    faults.wait_until(lambda: "stands still, SUSPENDED" in faults.project.said)
    slurm("scontrol", "resume", faults.job())
    faults.go.touch()
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == faults.project.events("attempt-cut-short") == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS


@pytest.mark.parametrize("verb", ["requeue", "requeuehold"])
def test_a_trial_that_a_person_puts_back_is_waited_for_and_run_again(
    faults: Faults, slurm: Slurm, verb: str
) -> None:
    faults.hold(patience="before_memstats_s=300")  # a person is quicker, on a busy machine too
    session = faults.start()
    faults.victim()
    job = faults.job()
    slurm("scontrol", "update", f"jobid={job}", "Requeue=1")  # ours ask not to be
    slurm("scontrol", verb, job)
    back = "put back into the queue after it had begun"
    faults.wait_until(lambda: f"(job {job}) waits in the queue, PENDING (" in said_by(faults))
    faults.wait_until(lambda: back in said_by(faults))
    faults.go.touch()
    if verb == "requeuehold":
        assert "held" in slurm("squeue", "-h", "-j", job, "-o", "%r"), "it stands"
        slurm("scontrol", "release", job)
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")  # else in two minutes
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == [("retry", "requeued")]
    assert faults.project.events("attempt-cut-short") == []
    assert faults.states() == ["requeued", "completed"]
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS + 1


def test_a_preempted_trial_is_run_again(faults: Faults, slurm: Slurm) -> None:
    faults.hold()
    session = faults.start()
    faults.victim()
    urgent = ("--partition=urgent", "--nodelist=node[001-002]", "--exclusive", "--output=/dev/null")
    slurm("sbatch", *urgent, "--job-name=urgent", "--wrap", "sleep 1")
    faults.wait_until(lambda: faults.states() == ["preempted"])
    faults.go.touch()
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == [("retry", "preempted")]
    assert "PREEMPTED" in faults.project.events("decided")[0]["evidence"]
    assert "preempted" in said
    assert faults.states() == ["preempted", "completed"]
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS + 1


def test_a_sweep_queues_behind_the_job_of_another_and_names_it(
    faults: Faults, slurm: Slurm
) -> None:
    faults.write(faults.profiles(), conftest=faults.BUSY)
    job = strangers_job(faults, slurm)
    session = faults.start()
    faults.wait_until(lambda: faults.project.submitted)
    behind = "behind other jobs: "
    faults.wait_until(lambda: f"{behind}{job} (stranger of " in faults.project.said)
    slurm("scancel", job)
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == faults.project.events("epoch-began") == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS


def test_a_number_that_the_controller_gave_away_again_is_no_longer_ours(
    trials: Trials, lab: ModuleType, slurm: Slurm
) -> None:
    """A controller that has lost its state begins to count anew."""
    lab.kill_controller()
    lab.forget_all()
    lab.start_controller()
    ours = trials.submit("first", "exit 7")
    assert trials.end(ours).exit_code == 7
    lab.kill_controller()
    lab.forget_all()
    lab.start_controller()
    stranger = slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 300").strip()
    assert stranger == ours.job_id
    afresh = trials.new_executor(round_s=0)
    outcome = afresh.poll([ours], root=trials.root)[ours.job_id]
    assert (outcome.state, outcome.exit_code) == (State.FAILED, 7)
    afresh.cancel([ours], root=trials.root)
    assert slurm("squeue", "-h", "-j", stranger, "-o", "%T").strip() in ("PENDING", "RUNNING")
