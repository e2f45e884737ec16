"""What people and other jobs do to a sweep's jobs on a real cluster; their word stands."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_xlatune.campaign.playbook import decide
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import State
from tests.helpers.waiting import until
from tests.slurm.on_lab import BUSY, TRIALS, Faults, Trials, slurm


def strangers_job() -> str:
    """Let a job of another run on one of the nodes; return its id."""
    where = ("--nodelist=node001", "--exclusive", "--output=/dev/null")
    job = slurm("sbatch", "--parsable", *where, "--job-name=stranger", "--wrap", "sleep 300")
    number = job.strip()
    until(lambda: slurm("squeue", "-h", "-j", number, "-o", "%T") == "RUNNING\n")
    return number


def test_a_job_that_a_person_holds_is_waited_for(faults: Faults) -> None:
    faults.write(faults.profiles(), conftest=BUSY)
    stranger = strangers_job()
    session = faults.start()
    until(lambda: faults.project.events("attempt-submitted"))
    job = faults.project.events("attempt-submitted")[0]["submission"]["job_id"]
    slurm("scontrol", "hold", job)
    held = f"(job {job}) waits, PENDING (JobHeld"
    until(lambda: held in faults.project.said)
    slurm("scancel", stranger)
    assert "JobHeldAdmin" in slurm("squeue", "-h", "-j", job, "-o", "%r"), "it stands"
    slurm("scontrol", "release", job)
    faults.assert_undisturbed(faults.finished(session))


def test_a_suspended_trial_is_told_and_its_time_does_not_count(faults: Faults) -> None:
    faults.write(faults.profiles(HOLD=str(faults.go)), patience="before_memstats_s=8")
    session = faults.start()
    faults.victim()
    slurm("scontrol", "suspend", faults.job())
    until(lambda: "stands still, SUSPENDED" in faults.project.said)
    slurm("scontrol", "resume", faults.job())
    faults.assert_undisturbed(faults.released(session))
    assert faults.project.events("attempt-cut-short") == []


@pytest.mark.parametrize("verb", ["requeue", "requeuehold"])
def test_a_trial_that_a_person_puts_back_is_waited_for_and_run_again(
    faults: Faults, verb: str
) -> None:
    # a person is quicker, on a busy machine too
    session = faults.start_held(patience="before_memstats_s=300")
    job = faults.job()
    slurm("scontrol", "update", f"jobid={job}", "Requeue=1")  # ours ask not to be
    slurm("scontrol", verb, job)
    back = "put back into the queue after it had begun"
    until(lambda: f"(job {job}) waits, PENDING (" in faults.project.said)
    until(lambda: back in faults.project.said)
    faults.go.touch()
    if verb == "requeuehold":
        assert "held" in slurm("squeue", "-h", "-j", job, "-o", "%r"), "it stands"
        slurm("scontrol", "release", job)
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")  # else in two minutes
    faults.assert_run_again(faults.finished(session), state="requeued", cls="requeued")
    assert faults.project.events("attempt-cut-short") == []
    assert len(faults.project.submitted) == TRIALS + 1


@pytest.mark.parametrize(
    ("reason", "limit", "none"),
    [
        ("PartitionTimeLimit", "MaxTime=1", "MaxTime=INFINITE"),
        ("PartitionNodeLimit", "MaxNodes=1", "MaxNodes=UNLIMITED"),
    ],
)
def test_a_job_that_never_starts_stops_the_sweep_with_the_remedy(
    faults: Faults, reason: str, limit: str, none: str
) -> None:
    soon = "from pytest_xlatune.campaign import attempts\nattempts._NEVER_STARTS_S = 1\n"
    faults.write(faults.profiles(), conftest=BUSY + soon)
    partition = ("--xlatune-partition", "half")
    slurm("scontrol", "update", "partitionname=half", limit)
    try:
        said = faults.run(*partition)
        jobs = slurm("squeue", "-h", "-o", "%i").split()
    finally:
        slurm("scontrol", "update", "partitionname=half", none)
    assert f"never-starts (PENDING ({reason}): " in said, said
    assert faults.decided()[0] == ("stop", "never-starts")
    assert jobs == [], "none is left in the queue"
    said = faults.run(*partition)
    faults.assert_complete(said)


def test_a_preempted_trial_is_run_again(faults: Faults) -> None:
    session = faults.start_held()
    urgent = ("--partition=urgent", "--nodelist=node[001-002]", "--exclusive", "--output=/dev/null")
    slurm("sbatch", *urgent, "--job-name=urgent", "--wrap", "sleep 1")
    until(lambda: faults.states() == ["preempted"])
    said = faults.released(session)
    faults.assert_run_again(said, state="preempted", cls="preempted")
    assert "PREEMPTED" in faults.project.events("decided")[0]["evidence"]
    assert "preempted" in said
    assert len(faults.project.submitted) == TRIALS + 1


def test_a_sweep_queues_behind_the_job_of_another_and_names_it(faults: Faults) -> None:
    faults.write(faults.profiles(), conftest=BUSY)
    job = strangers_job()
    session = faults.start()
    until(lambda: faults.project.submitted)
    behind = "note: trials wait in the queue behind other jobs: "
    until(lambda: f"{behind}{job} (stranger of " in faults.project.said)
    slurm("scancel", job)
    faults.assert_undisturbed(faults.finished(session))
    assert faults.project.events("epoch-began") == []


def test_a_number_that_the_controller_gave_away_again_is_no_longer_ours(
    trials: Trials, lab: ModuleType
) -> None:
    """A controller that has lost its state begins to count anew."""
    lab.restart_controller_without_state()
    ours = trials.submit("first", "exit 7")
    assert trials.end(ours).exit_code == 7
    lab.restart_controller_without_state()
    stranger = slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 300").strip()
    assert stranger == ours.job_id
    afresh = trials.new_executor(round_s=0)
    outcome = afresh.poll([ours], root=trials.root)[ours.job_id]
    assert (outcome.state, outcome.exit_code) == (State.FAILED, 7)
    afresh.cancel([ours], root=trials.root)
    assert slurm("squeue", "-h", "-j", stranger, "-o", "%T").strip() in ("PENDING", "RUNNING")


# the kernel ends it, and Slurm says so, where a job is given 100 MB
GREEDY = (sys.executable, "-c", "import time; x = b'x' * (300 << 20); time.sleep(60)")


def test_a_trial_that_takes_more_memory_than_its_job_may_is_out_of_memory(
    lab: ModuleType, trials: Trials
) -> None:
    if not lab.MEMORY_CGROUP.exists():
        pytest.skip("this kernel keeps no limit of memory that Slurm 22.05 can set (cgroup v1)")
    lab.start(memory=True)
    try:
        outcome = trials.end(trials.submit("greedy", GREEDY, options={"mem": "100"}))
    finally:
        lab.start()
    assert outcome.state is State.OUT_OF_MEMORY
    decision = decide(outcome, None)
    assert (decision.next, decision.cls) == (Next.RETRY, FailureClass.OOM_HOST)
    assert "OUT_OF_MEMORY" in decision.evidence


def test_a_work_directory_that_is_away_is_waited_for_and_told(faults: Faults) -> None:
    soon = "from pytest_xlatune import campaign\ncampaign._NOTIFY_AFTER_S = 1\n"
    session = faults.start_held(conftest=soon)
    work, gone = faults.path / "work", faults.path / "gone"
    (log,) = work.glob("*/*/*/victim-*/log.0.txt")
    until(lambda: "XLA_FLAGS=" in log.read_text())  # it makes no folder any more
    work.rename(gone)
    until(lambda: "waiting for it" in faults.project.said)
    gone.rename(work)
    faults.assert_undisturbed(faults.released(session))
    assert faults.project.jobs == TRIALS
