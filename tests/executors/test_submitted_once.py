"""An attempt that two processes submit, or that is cancelled before it has begun: one job, once.

A session that is killed leaves behind what it had started to submit with; the next session submits
the same attempt again, maybe while that is still at it. `tests/slurm/` submits to a real Slurm:
here an sbatch is a site's own, or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_xlatune.executors import Request, SchedulerDown, payload
from pytest_xlatune.executors.folder import read_claim, read_outcomes, write_spec
from pytest_xlatune.executors.slurm import SlurmExecutor, _commands
from pytest_xlatune.executors.slurm._commands import Reply, run_command
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.machine import SLEEP, Machine
from tests.helpers.payloads import PATH, Start, is_gone
from tests.helpers.played import ARGUMENTS, NO_ACCOUNTING, Scripted, row
from tests.helpers.waiting import LIMIT_S, until


def processes_of(folder: Path) -> list[int]:
    """The processes that have an attempt's folder in their command."""
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdigit() and os.fsencode(folder) in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return found


def test_of_two_submissions_at_once_one_job_comes(machine: Machine) -> None:
    folder = machine.root / "one"
    words = (write_spec(folder, SLEEP), str(machine.root / "lock"), "one")
    both = [subprocess.Popen(payload.payload_argv(folder, *words)) for _ in range(2)]
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
        ended = until(lambda: read_outcomes(folder).get(0))
    assert (ended.state, ended.reason) == ("cancelled", "cancelled before the start")
    assert not (folder / "ran").exists()


SPEC = LaunchSpec(argv=("true",), inherit=("PATH",))


def request_of(folder: Path, comment: str = "xlatune:cell:t1:1") -> Request:
    return Request(folder=folder, **{**ARGUMENTS, "comment": comment})


def executor(**changed: Reply | Sequence[Reply]) -> SlurmExecutor:
    answers = {"squeue": Reply(code=0), "sacct": NO_ACCOUNTING, **changed}
    return SlurmExecutor(run=Scripted(**answers), sleep=lambda _: None)


def put_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Put an sbatch first on PATH; return its folder."""
    wrapper = folder / "wrapper" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/bash\n{text}")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return wrapper.parent


def test_an_sbatch_that_says_nothing_and_takes_nothing_is_told_and_nothing_trains_later(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_sbatch(tmp_path, monkeypatch, "exit 0\n")
    with pytest.raises(SubmissionError, match=r"sbatch ended with 0.*\(tried 6 times\)") as caught:
        executor().submit(SPEC, request_of(folder))
    assert not isinstance(caught.value, SchedulerDown)
    # where it was taken after all, it starts no trainer beside the next attempt
    assert (folder / payload.CANCEL).exists()
    other = tmp_path / "taken" / "cell" / "session" / "t1.1"
    running = Reply(code=0, out=row("RUNNING", WorkDir=str(other), Comment="c"))
    taken = executor(sacct=[Reply(code=0), running])
    assert taken.submit(SPEC, request_of(other, "c")) == "31", "it was seen to be taken"


def test_an_sbatch_that_hangs_is_ended_with_what_it_started_and_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commands, "COMMAND_TIMEOUT_S", 0.5)
    # as a shell's script does: what hangs is a child that keeps the pipe open
    place = put_sbatch(tmp_path, monkeypatch, 'sleep 1000 &\necho $! > "${0%/*}/pid"\nwait\n')
    none = executor()

    def told() -> bool:
        with pytest.raises(SchedulerDown, match=r"sbatch did not answer in \S+ s"):
            none.submit(SPEC, request_of(folder))
        return (place / "pid").exists()

    until(told)
    pid = int((place / "pid").read_text())
    until(lambda: is_gone(pid))


def test_the_baseline_of_another_sweep_on_the_same_cell_is_another_job(tmp_path: Path) -> None:
    # one session, one trial id, so one comment: the folders differ
    ours, theirs = (tmp_path / name / "cell" / "session" / "t1.1" for name in ("one", "two"))
    running = row("RUNNING", WorkDir=f"/seen/otherwise{theirs}", Comment="c")
    slurm = executor(sacct=Reply(code=0, out=running))
    assert slurm.find(request_of(ours, "c")) == ""
    assert slurm.find(request_of(theirs, "c")) == "31"
    with pytest.raises(SchedulerDown, match="squeue does not say whether"):
        executor(squeue=Reply(code=0, out="\001\377 garbage")).find(request_of(ours, "c"))


def test_a_command_of_slurms_finds_its_cluster_and_prints_what_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
    for name in (*kept, "SLURM_TIME_FORMAT", "LC_ALL", "SQUEUE_FORMAT", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "ours")
    found = dict(line.partition("=")[::2] for line in run_command(["env"]).out.splitlines())
    assert (found["SLURM_TIME_FORMAT"], found["LC_ALL"]) == ("%s", "C")
    assert {name for name, value in found.items() if value == "ours"} == {*kept}
    # half an answer is none
    monkeypatch.setattr(_commands, "COMMAND_TIMEOUT_S", 0.5)
    late = run_command(["sh", "-c", "echo 31; exec sleep 60"])
    assert (late.is_late, late.out) == (True, "")


ROOT = Path(__file__).parents[2]
SLURM = ROOT / "tests" / "slurm"


@pytest.mark.parametrize(("file", "folder"), [("faults", ROOT), ("sample", SLURM)])
def test_every_test_that_make_slurm_faults_and_the_sample_name_is_there(
    file: str, folder: Path
) -> None:
    spec = importlib.util.spec_from_file_location("xlatune_table", SLURM / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in vars(module)[file.upper()]:
        path, _, test = name.partition("[")[0].partition("::")
        assert f"def {test}(" in (folder / path).read_text(encoding="utf-8"), name
