"""The unmodified executor where there is no Slurm: an sbatch that is a site's own, or none.

`tests/slurm/` submits to a real one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_xlatune.executors import Request, SchedulerDown
from pytest_xlatune.executors.slurm import SlurmExecutor, _commands
from pytest_xlatune.executors.slurm._commands import Reply, run_command
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.played import ARGUMENTS, NO_ACCOUNTING, Scripted
from tests.helpers.waiting import until

SPEC = LaunchSpec(argv=("true",), inherit=("PATH",))


@pytest.fixture
def request_of_a_trial(tmp_path: Path) -> Request:
    return Request(folder=tmp_path / "work" / "t1" / "1", **ARGUMENTS)


def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Put an sbatch on PATH; return it."""
    wrapper = tmp_path / "wrapper" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/bash\n{text}")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return wrapper


def test_an_sbatch_that_says_nothing_and_takes_nothing_is_told_and_nothing_trains_later(
    request_of_a_trial: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front(tmp_path, monkeypatch, "exit 0\n")
    nothing = Scripted(squeue=Reply(code=0), sacct=NO_ACCOUNTING)
    with pytest.raises(
        SubmissionError,
        match="sbatch ended with 0",
    ) as caught:
        SlurmExecutor(run=nothing, sleep=lambda _: None).submit(SPEC, request_of_a_trial)
    assert "(tried 6 times)" in str(caught.value)
    assert not isinstance(caught.value, SchedulerDown)
    # where it was taken after all, it starts no trainer beside the next attempt
    assert (request_of_a_trial.folder / "cancel").exists()


def test_an_sbatch_that_hangs_is_ended_with_what_it_started_and_told(
    request_of_a_trial: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commands, "COMMAND_TIMEOUT_S", 0.5)
    # as a shell's script does: what hangs is a child that keeps the pipe open
    wrapper = front(tmp_path, monkeypatch, 'sleep 1000 &\necho $! > "${0%/*}/pid"\nwait\n')
    none = Scripted(squeue=Reply(code=0), sacct=NO_ACCOUNTING)
    executor = SlurmExecutor(run=none, sleep=lambda _: pytest.fail("it waits in one turn"))
    said = r"sbatch did not answer in \S+ s"

    def told() -> bool:
        with pytest.raises(SchedulerDown, match=said):
            executor.submit(SPEC, request_of_a_trial)
        return wrapper.with_name("pid").exists()

    until(told)
    pid = int(wrapper.with_name("pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state_of(pid))


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_queue_that_cannot_be_read_submits_nothing_again(request_of_a_trial: Request) -> None:
    blind = Scripted(squeue=Reply(code=0, out="\001\377 garbage"))
    with pytest.raises(SchedulerDown, match="squeue does not say whether"):
        SlurmExecutor(run=blind).find(request_of_a_trial)


def test_submission_without_slurm_says_so(
    request_of_a_trial: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SubmissionError, match=r"sbatch.*No such file or directory"):
        SlurmExecutor().submit(SPEC, request_of_a_trial)
    assert run_command(["squeue"]).error == "squeue: command not found"


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
