"""The unmodified executor on a Slurm of one file, whose commands are on PATH.

`tests/slurm/` does the same on a real one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors import Executor, Request, SchedulerDown, slurm
from pytest_xlatune.executors.slurm import SlurmExecutor, _script
from pytest_xlatune.executors.slurm._commands import run_command
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.played import ARGUMENTS
from tests.helpers.waiting import until

FAKE = Path(__file__).parents[1] / "data" / "slurm" / "fake_slurm.py"
COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands on PATH, and the folder that is their state."""
    commands, state = tmp_path / "bin", tmp_path / "slurm"
    commands.mkdir()
    state.mkdir()
    for name in COMMANDS:
        (commands / name).write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return state


@pytest.mark.parametrize(
    ("options", "is_given"),
    [
        pytest.param({}, False, id="for the job is given what sbatch is given"),
        pytest.param({"export": "NONE"}, True, id="for Slurm gives the job none of it"),
    ],
)
def test_what_sbatch_is_given(
    fake: Path, root: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], is_given: bool
) -> None:
    for name in ("HF_TOKEN", "SLURM_NTASKS", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("BASH_FUNC_which%%", "() { true; }")
    executor = SlurmExecutor(round_s=0)
    end(executor, root, submit(executor, root, "true", resources=Resources(options=options)))
    given = set((fake / "given").read_text().splitlines())
    assert given >= {"PATH", "HOME", "SLURM_CONF"}
    assert "SLURM_NTASKS" not in given, "it would steer sbatch"
    assert ({"HF_TOKEN", "BASH_FUNC_which%%"} <= given) is is_given


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "work"


def submit(
    executor: SlurmExecutor,
    root: Path,
    *argv: str,
    name: str = "t1",
    **changed: Any,
) -> Submission:
    arguments = {**ARGUMENTS, "job_name": f"xl-{name}", "comment": f"xlatune:{name}:1", **changed}
    job_id = executor.submit(
        LaunchSpec(argv=argv, env={"XLA_FLAGS": "--a=1,2 --b='x y'"}, inherit=("PATH",)),
        Request(folder=root / name / "1", **arguments),
    )
    return Submission(trial_id=name, attempt=1, executor="slurm", job_id=job_id, folder=f"{name}/1")


def end(executor: SlurmExecutor, root: Path, submission: Submission) -> Outcome:
    def look() -> Outcome | None:
        found = executor.poll([submission], root=root)[submission.job_id]
        return found if found.state.is_final else None

    return until(look)


def calls(fake: Path, name: str) -> int:
    return (fake / "calls").read_text().split().count(name)


def test_a_trial_from_submission_to_outcome(fake: Path, root: Path) -> None:
    executor = SlurmExecutor(round_s=0)
    contract: Executor = executor
    assert contract.name == "slurm"
    done = submit(executor, root, "bash", "-c", 'printf %s "$XLA_FLAGS"')
    outcome = end(executor, root, done)
    assert (outcome.state, outcome.exit_code) == (State.COMPLETED, 0)
    assert outcome.nodes == ("node001", "node002")
    for each in (0, 1):
        assert (root / done.folder / f"log.{each}.txt").read_text() == "--a=1,2 --b='x y'"
    assert submit(executor, root, "false") == done, "the same attempt again is the same job"
    assert calls(fake, "sbatch") == 1


def test_the_log_says_what_was_done_and_asked(
    fake: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="pytest_xlatune.executors")
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    executor = SlurmExecutor(round_s=0)
    sent = submit(executor, root, "sleep", "300")
    executor.cancel([sent], root=root)
    end(executor, root, sent)
    done = [each.getMessage() for each in caplog.records if each.levelname == "INFO"]
    assert done == [
        f"xl-t1 is job {sent.job_id} on node[001-002]",
        f"Slurm is asked to cancel {sent.job_id}",
    ]
    asked = [each.getMessage() for each in caplog.records if each.levelname == "DEBUG"]
    assert any(re.match(r"Slurm was asked 'scancel' in \d+\.\d\d s: answered; ", each)
               for each in asked)  # fmt: skip
    assert any("'scontrol show job -o' in" in each for each in asked)
    assert re.search(r"; scontrol has run [1-9]\d* times$", asked[-1])
    assert "hush-hush" not in caplog.text


# what an sbatch does that is a site's own: {real} is the one that it calls
ACCEPTED = {
    "its answer is lost": '{real} "$@" >/dev/null\necho "sbatch: error: Batch job submission '
    'failed: Socket timed out on send/recv operation" >&2\nexit 1\n',
    "nothing": '{real} "$@" >/dev/null\n',
    "garbage": '{real} "$@" >/dev/null\nprintf "\\001\\377 job 9 \\n"\n',
    "a bare number": '{real} "$@" >/dev/null\necho 4711\n',
    "an error of its own": '{real} "$@" >/dev/null\necho "wrapper: line 3: quota?" >&2\nexit 1\n',
    "killed": '{real} "$@" >/dev/null\nkill -9 $$\n',
    "it hangs": '{real} "$@" >/dev/null\nsleep 1000\n',
    "it hangs once it has said it": '{real} "$@"\nsleep 1000\n',
}


def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Put an sbatch before the fake one on PATH; return it."""
    wrapper = tmp_path / "wrapper" / "sbatch"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text("#!/bin/bash\n" + text.format(real=tmp_path / "bin" / "sbatch"))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return wrapper


@pytest.mark.parametrize("says", ACCEPTED)
def test_a_job_that_was_taken_is_found_whatever_sbatch_says(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    root = tmp_path / "work"
    monkeypatch.setattr(_script, "COMMAND_TIMEOUT_S", 3.0 if "hangs" in says else 60.0)
    front(tmp_path, monkeypatch, ACCEPTED[says])
    waits: list[float] = []
    executor = SlurmExecutor(sleep=waits.append, round_s=0)

    def submitted() -> str | None:
        with contextlib.suppress(SchedulerDown):  # on a busy machine it hangs before it asks
            return submit(executor, root, "true").job_id
        return None

    found = until(submitted)
    assert [path.stem for path in fake.glob("*.json")] == [found]
    assert calls(fake, "sbatch") == 1
    assert max(waits, default=1.0) == 1.0


def test_an_sbatch_that_says_nothing_and_takes_nothing_is_told_and_nothing_trains_later(
    fake: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = front(tmp_path, monkeypatch, "exit 0\n")
    executor = SlurmExecutor(sleep=lambda _: None, round_s=0)
    with pytest.raises(
        SubmissionError,
        match="Slurm has no such job: sbatch ended with 0 and named no job, it said",
    ) as caught:
        submit(executor, root, "true")
    assert "(tried 6 times)" in str(caught.value)
    assert not isinstance(caught.value, SchedulerDown)
    # where it was taken after all, it starts no trainer beside the next attempt
    assert (root / "t1" / "1" / "cancel").exists()
    wrapper.unlink()
    assert end(executor, root, submit(executor, root, "true")).state is State.COMPLETED
    assert len(list(fake.glob("*.json"))) == 1


def test_an_sbatch_that_hangs_is_ended_with_what_it_started_and_told(
    fake: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_script, "COMMAND_TIMEOUT_S", 0.5)
    # as a shell's script does: what hangs is a child that keeps the pipe open
    front(tmp_path, monkeypatch, 'sleep 1000 &\necho $! > "${{0%/*}}/pid"\nwait\n')
    executor = SlurmExecutor(sleep=lambda _: pytest.fail("it waits in one turn"), round_s=0)
    said = r"sbatch did not answer in \S+ s and was ended; Slurm is asked for it before"

    def told() -> bool:
        with pytest.raises(SchedulerDown, match=said):
            submit(executor, root, "true")
        return (tmp_path / "wrapper" / "pid").exists()

    until(told)
    pid = int((tmp_path / "wrapper" / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state_of(pid))
    (tmp_path / "wrapper" / "sbatch").unlink()
    monkeypatch.setattr(_script, "COMMAND_TIMEOUT_S", 60.0)
    assert end(executor, root, submit(executor, root, "true")).state is State.COMPLETED


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_queue_that_cannot_be_read_submits_nothing_again(
    fake: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = front(tmp_path, monkeypatch, ACCEPTED["nothing"])
    blind = wrapper.with_name("squeue")
    blind.write_text('#!/bin/sh\nprintf "\\001\\377 garbage"\n')
    blind.chmod(0o755)
    executor = SlurmExecutor(sleep=lambda _: None, round_s=0)
    scripts = root / "t1" / "1" / "submitit"
    monkeypatch.setattr(slurm, "_ACCEPTED", re.compile("never"))  # the folder tells nothing
    with pytest.raises(SchedulerDown, match="squeue does not say whether xl-t1 runs"):
        submit(executor, root, "true")
    blind.unlink()
    submit(executor, root, "true")
    assert calls(fake, "sbatch") == 1
    assert scripts.is_dir()


def test_submission_without_slurm_says_so(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SubmissionError, match=r"sbatch.*No such file or directory"):
        submit(SlurmExecutor(), root, "true")
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
