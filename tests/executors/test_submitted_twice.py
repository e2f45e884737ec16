"""An attempt that two processes submit, or that is cancelled before it has begun: one job, once.

A session that is killed leaves behind what it had started to submit with; the next session submits
the same attempt again, maybe while that is still at it. Every step here waits for the one before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.executors import Request, SchedulerDown, payload
from pytest_xlatune.executors.folder import read_claim, read_outcomes, write_spec
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.executors.slurm._commands import Reply
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.machine import SLEEP, Machine
from tests.helpers.payloads import PATH, Start
from tests.helpers.played import ARGUMENTS, Scripted, row
from tests.helpers.waiting import LIMIT_S, until


def test_of_two_submissions_at_once_one_job_comes(machine: Machine) -> None:
    folder = machine.root / "one"
    words = (write_spec(folder, SLEEP), str(machine.root / "lock"), "one")
    argv = payload.payload_argv(folder, *words)
    both = [subprocess.Popen(argv) for _ in range(2)]
    assert [each.wait(LIMIT_S) for each in both] == [0, 0]
    submission = machine.submit("one", SLEEP)
    claim, _ = machine.running(submission)
    assert submission.job_id == f"{claim.pid}.{claim.start_ticks}"
    assert processes_of(folder) == [claim.pid]


KILLED = """
import os, signal
from pytest_xlatune import secure_files
from pytest_xlatune.executors import payload
write = secure_files.write_json
def killed(*said):
    if {is_written}:
        write(*said)
    os.kill(os.getpid(), signal.SIGKILL)
secure_files.write_json = killed
payload.main()
"""


@pytest.mark.parametrize("is_written", [False, True])
def test_a_submission_that_is_killed_as_it_writes_its_job_down_starts_it_once_or_never(
    machine: Machine, is_written: bool
) -> None:
    folder = machine.root / "one"
    spec = LaunchSpec(argv=("sh", "-c", "echo ran >> runs; exec sleep 300"), env=PATH)
    words = (str(folder), write_spec(folder, spec), str(machine.root / "lock"), "one")
    argv = [sys.executable, "-c", KILLED.format(is_written=is_written), *words]
    assert subprocess.run(argv, timeout=LIMIT_S, check=False).returncode == -signal.SIGKILL
    before = payload.read_job(folder)
    assert (before is not None) == is_written
    if before is None:
        until(lambda: not processes_of(folder))  # it saw that it is no job
        assert read_claim(folder) is None
    submission = machine.submit("one", spec)
    claim, _ = machine.running(submission)
    assert submission.job_id == f"{claim.pid}.{claim.start_ticks}"
    assert before is None or submission.job_id == before["job_id"]
    until(lambda: (folder / "runs").exists() and processes_of(folder) == [claim.pid])
    assert (folder / "runs").read_text() == "ran\n"


def processes_of(folder: Path) -> list[int]:
    """The processes that have an attempt's folder in their command."""
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdigit() and os.fsencode(folder) in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return found


def test_cancelled_before_its_claim_it_does_not_wait_for_the_machine(
    folder: Path, start: Start, tmp_path: Path
) -> None:
    with (tmp_path / "lock").open("a") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        write_spec(folder, LaunchSpec(argv=("touch", "ran"), env=PATH))
        start(folder, lock=str(tmp_path / "lock"))
        until(lambda: read_claim(folder))
        # the cancelling process looked for a claim a moment too early: it had no process to signal
        (folder / payload.CANCEL).touch()
        ended: Outcome = until(lambda: read_outcomes(folder).get(0))
    assert (ended.state, ended.reason) == (State.CANCELLED, "cancelled before the start")
    assert not (folder / "ran").exists()


# -- Slurm ----------------------------------------------------------------------------------------


def test_an_sbatch_that_never_ends_is_a_scheduler_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_xlatune.executors.slurm._SBATCH_OVER_S", 0.1)
    scripts = tmp_path / "work" / "t1" / "1" / "submitit"
    scripts.mkdir(parents=True)
    with (scripts / "sbatch.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SchedulerDown, match="of another session"):
            SlurmExecutor(sleep=lambda _: None).submit(
                LaunchSpec(argv=("true",)), Request(folder=scripts.parent, **ARGUMENTS)
            )
    assert not list(scripts.glob("*submission*"))


def test_the_baseline_of_another_sweep_on_the_same_cell_is_another_job(tmp_path: Path) -> None:
    # one session, one trial id, so one comment: the folders differ
    ours, theirs = (tmp_path / name / "cell" / "session" / "t1.1" for name in ("one", "two"))
    slurm = Scripted(
        squeue=Reply(code=0),
        sacct=Reply(code=0, out=row("RUNNING", WorkDir=f"/seen/otherwise{theirs}", Comment="c")),
    )
    wanted = {**ARGUMENTS, "comment": "c"}
    assert SlurmExecutor(run=slurm).find(Request(folder=ours, **wanted)) == ""
    assert SlurmExecutor(run=slurm).find(Request(folder=theirs, **wanted)) == "31"
