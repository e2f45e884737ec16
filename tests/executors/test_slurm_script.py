"""A submission to Slurm: what its script has, what is refused, and an sbatch that tells nothing."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pytest_xlatune
from pytest_xlatune.executors import Request, SchedulerDown, payload
from pytest_xlatune.executors.slurm import LOGIN, SlurmExecutor, _commands
from pytest_xlatune.executors.slurm._commands import Reply, run_command
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers import golden
from tests.helpers.payloads import is_gone
from tests.helpers.played import ARGUMENTS, NO_ACCOUNTING, Scripted, row
from tests.helpers.tables import rows
from tests.helpers.waiting import until

RECORD = Path(__file__).parents[1] / "data" / "slurm" / "script.sh"
PACKAGE = Path(pytest_xlatune.__file__).parent


def with_options(**options: str) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return {"resources": Resources(options=named)}


def script_of(folder: Path, **changed: Any) -> str:
    return SlurmExecutor().preview("", Request(folder=folder, **{**ARGUMENTS, **changed}))[1]


def test_the_script_is_as_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    text = script_of(folder)
    golden.check(
        RECORD, text.replace(str(folder), "/shared/t1/1").replace(str(PACKAGE), "/package")
    )
    assert not list(folder.iterdir()), "a dry run writes nothing"


def test_options_for_srun_reach_srun_and_a_site_may_log_in_itself(folder: Path) -> None:
    options = {"cpus_per_task": "8", "srun__mpi": "none", "srun__label": "", "export": "NONE"}
    lines = script_of(folder, **with_options(**options)).splitlines()
    assert "#SBATCH --cpus-per-task=8" in lines
    (srun,) = (line for line in lines if line.startswith("srun "))
    assert " --cpus-per-task=8 --mpi=none --label " in srun
    assert "#SBATCH --export=NONE" in lines
    assert not {"#SBATCH --export=ALL", f". {LOGIN}"} & {*lines}


@rows(
    "changed, message",
    {
        "a space in the name": ({"job_name": "a b"}, "job name 'a b': expected"),
        "a line break in the comment": ({"comment": "a\nb"}, "job comment"),
        "pins": (with_options(nodelist="n1"), "'nodelist' is set by"),
        "secrets": (with_options(export="ALL"), "'export' is 'ALL', expected NONE"),
        "counts that differ": ({"resources": Resources(nodes=3)}, "3 nodes .* 2"),
    },
)
def test_what_cannot_be_submitted_is_refused(
    folder: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        script_of(folder, **changed)


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
    running = Reply(code=0, out=row("RUNNING", WorkDir=str(other)))
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
    running = row("RUNNING", WorkDir=f"/seen/otherwise{theirs}")
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
    assert run_command(["no-squeue"]).error == "no-squeue: command not found"
    # half an answer is none
    monkeypatch.setattr(_commands, "COMMAND_TIMEOUT_S", 0.5)
    late = run_command(["sh", "-c", "echo 31; exec sleep 60"])
    assert (late.is_late, late.out) == (True, "")


def test_an_sbatch_that_never_ends_is_a_scheduler_that_is_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_xlatune.executors.slurm._SBATCH_OVER_S", 0.1)
    (folder / "submitit").mkdir()
    with (folder / "submitit" / "sbatch.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SchedulerDown, match="of another session"):
            executor().submit(SPEC, request_of(folder))
    assert not list((folder / "submitit").glob("*submission*"))
