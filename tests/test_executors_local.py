"""The local executor: a job outlives its submitter, is found again, and ends when told to."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_xlatune.cells import LaunchSpec, Resources
from pytest_xlatune.errors import SubmissionError
from pytest_xlatune.executors import Executor, payload
from pytest_xlatune.executors.folder import (
    ProcessRecord,
    read_claim,
    read_outcomes,
    read_started,
)
from pytest_xlatune.executors.local import LOCK_VARIABLE, LocalExecutor, machine_lock
from pytest_xlatune.results import Outcome, State, Submission

PATH = {"PATH": os.environ["PATH"]}
SLEEP = LaunchSpec(argv=("sleep", "300"), env=PATH)
SUBMIT = """
import sys, time
from pathlib import Path
from pytest_xlatune.cells import LaunchSpec, Resources
from pytest_xlatune.executors.local import LocalExecutor
root, name, *argv = sys.argv[1:]
job_id = LocalExecutor(lock=Path(root, "lock")).submit(
    LaunchSpec(argv=tuple(argv)), folder=Path(root, name), job_name=name, comment=name,
    nodelist=(), resources=Resources())
print(job_id, flush=True)
time.sleep(300)
"""
TIMED = "import time; a = time.monotonic(); time.sleep(0.2); print(a, time.monotonic())"
HELD = "while [ ! -e go ]; do sleep 0.05; done; exit 4"
T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    """Return the first truthy value of `look`; fail after half a minute."""
    limit_s = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < limit_s, "nothing came within 30 s"
        time.sleep(0.02)
    return found


class Machine:
    """A work directory with a lock of its own, and the local executor over it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.executor = LocalExecutor(lock=root / "lock")
        self.submissions: list[Submission] = []

    def submission(self, name: str, job_id: str) -> Submission:
        made = Submission(trial_id=name, attempt=1, executor="local", job_id=job_id, folder=name)
        self.submissions.append(made)
        return made

    def submit(self, name: str, spec: LaunchSpec) -> Submission:
        job_id = self.executor.submit(
            spec,
            folder=self.root / name,
            job_name=name,
            comment=name,
            nodelist=(),
            resources=Resources(),
        )
        return self.submission(name, job_id)

    def poll(self, of: Submission) -> Outcome:
        # a fresh executor each time: nothing may be kept in the object
        return LocalExecutor().poll([of], root=self.root)[of.job_id]

    def cancel(self, *these: Submission) -> None:
        LocalExecutor().cancel(these, root=self.root)

    def final(self, of: Submission) -> Outcome:
        def look() -> Outcome | None:
            found = self.poll(of)
            return found if found.state.is_final else None

        return until(look)

    def running(self, of: Submission) -> tuple[ProcessRecord, ProcessRecord]:
        """Wait for the trainer; return the payload and the trainer."""
        trainer = until(lambda: read_started(self.root / of.folder))
        claim = read_claim(self.root / of.folder)
        assert claim is not None
        assert self.poll(of).state is State.RUNNING
        return claim, trainer


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.cancel(*made.submissions)
    for each in made.submissions:
        made.final(each)


@contextlib.contextmanager
def submitter(machine: Machine, name: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SUBMIT, str(machine.root), name, *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def job_id_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def log(machine: Machine, of: Submission) -> str:
    return (machine.root / of.folder / "log.0.txt").read_text(encoding="utf-8")


def test_it_is_an_executor_of_one_trial_at_a_time() -> None:
    executor: Executor = LocalExecutor()
    assert (executor.name, executor.max_in_flight) == ("local", 1)


@pytest.mark.parametrize(
    ("script", "state", "exit_code"),
    [("echo done", State.COMPLETED, 0), ("echo done; exit 5", State.FAILED, 5)],
    ids=["exit 0", "exit 5"],
)
def test_a_trial_runs_and_its_outcome_is_seen(
    machine: Machine, script: str, state: State, exit_code: int
) -> None:
    job = machine.submit("a", LaunchSpec(argv=("sh", "-c", script), env=PATH))
    found = machine.final(job)
    assert (found.state, found.exit_code) == (state, exit_code)
    assert found.nodes == (payload.boot()[0],)
    assert log(machine, job) == "done\n"


def test_a_running_trial_tells_where_and_since_when(machine: Machine) -> None:
    before_s = time.time()
    job = machine.submit("a", SLEEP)
    machine.running(job)
    found = machine.poll(job)
    assert found.nodes == (socket.gethostname(),)
    assert found.start_s is not None
    assert before_s <= found.start_s <= time.time()


def test_the_environment_of_the_submitter_stays_with_the_submitter(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("SITE_A", "a b,c")
    spec = LaunchSpec(
        argv=("sh", "-c", "env -0; sleep 300"), inherit=("PATH", "SITE_*"), env={"B": "x,'y' ^z"}
    )
    job = machine.submit("a", spec)
    claim, _ = machine.running(job)
    until(lambda: "PATH" in log(machine, job))
    names = dict(line.split("=", 1) for line in log(machine, job).split("\0") if line)
    assert names["SITE_A"] == "a b,c"
    assert names["B"] == "x,'y' ^z"
    assert "SECRET_TOKEN" not in names
    assert b"s3cret" not in Path(f"/proc/{claim.pid}/environ").read_bytes()
    assert all(
        b"s3cret" not in path.read_bytes()
        for path in (machine.root / "a").rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize(
    ("ours", "spec", "seen"),
    [
        ("0,3", {"inherit": ("CUDA_*",)}, "0,3"),
        (None, {"inherit": ("CUDA_VISIBLE_DEVICES",)}, "unset"),
        ("0,3", {}, "unset"),
        ("0,3", {"inherit": ("CUDA_*",), "env": {**PATH, "CUDA_VISIBLE_DEVICES": "1"}}, "1"),
        ("0,3", {"inherit": ("CUDA_*",), "unset": ("CUDA_VISIBLE_DEVICES",)}, "unset"),
    ],
    ids=[
        "inherited as the submitter has it",
        "all of them where the submitter has none",
        "not inherited",
        "the spec's own",
        "taken away",
    ],
)
def test_the_trainer_sees_the_gpus_that_the_spec_says(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    ours: str | None,
    spec: dict[str, object],
    seen: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if ours is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ours)
    argv = ("sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}")
    job = machine.submit("a", dataclasses.replace(LaunchSpec(argv=argv, env=PATH), **spec))  # type: ignore[arg-type]
    machine.final(job)
    assert log(machine, job) == f"{seen}\n"


def test_a_folder_is_submitted_once(machine: Machine) -> None:
    spec = LaunchSpec(argv=("sh", "-c", "echo run >> runs"), env=PATH)
    first = machine.submit("a", spec)
    assert machine.submit("a", spec) == first
    machine.final(first)
    assert machine.submit("a", spec) == first
    assert (machine.root / "a" / "runs").read_text() == "run\n"


def test_a_folder_of_another_attempt_is_refused(machine: Machine) -> None:
    machine.submit("a", LaunchSpec(argv=("true",), env=PATH))
    with pytest.raises(SubmissionError, match=r"already holds the attempt 'a', expected 'b'"):
        machine.executor.submit(
            SLEEP,
            folder=machine.root / "a",
            job_name="b",
            comment="b",
            nodelist=(),
            resources=Resources(),
        )


@pytest.mark.parametrize(
    ("nodelist", "resources"),
    [(("node001",), Resources()), ((), Resources(nodes=2))],
    ids=["another node", "two nodes"],
)
def test_what_needs_another_machine_is_refused(
    machine: Machine, nodelist: tuple[str, ...], resources: Resources
) -> None:
    with pytest.raises(SubmissionError, match=r"the local executor runs on .* use Slurm"):
        machine.executor.submit(
            SLEEP,
            folder=machine.root / "a",
            job_name="a",
            comment="a",
            nodelist=nodelist,
            resources=resources,
        )
    assert not (machine.root / "a").exists()


def test_a_submission_that_fails_says_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = machine.root / "python"
    broken.write_text("#!/bin/sh\necho no submitit here\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(SubmissionError, match=r"exit status 9, 'no submitit here'"):
        machine.submit("a", SLEEP)


def test_a_submitter_that_is_killed_leaves_a_job_that_others_see_to_its_end(
    machine: Machine,
) -> None:
    with submitter(machine, "a", "sh", "-c", HELD) as process:
        job = machine.submission("a", job_id_of(process))
        process.kill()
        process.wait(30)
    machine.running(job)
    (machine.root / "a" / "go").touch()
    assert machine.final(job).exit_code == 4


def test_ctrl_c_in_the_submitters_terminal_does_not_reach_the_job(machine: Machine) -> None:
    with submitter(machine, "a", "sleep", "300") as process:
        job = machine.submission("a", job_id_of(process))
        machine.running(job)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
    claim, trainer = machine.running(job)
    assert claim.is_alive
    assert trainer.is_alive


def test_cancel_ends_a_running_trial(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    _, trainer = machine.running(job)
    machine.cancel(job)
    assert machine.final(job).state is State.CANCELLED
    assert not trainer.is_alive


def test_cancel_right_after_submission_starts_nothing_or_ends_it(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    machine.cancel(job)
    assert machine.final(job).state is State.CANCELLED
    started = read_started(machine.root / "a")
    assert started is None or not started.is_alive


def test_cancel_of_a_finished_trial_changes_nothing(machine: Machine) -> None:
    job = machine.submit("a", LaunchSpec(argv=("true",), env=PATH))
    before = machine.final(job)
    machine.cancel(job)
    assert machine.poll(job) == before
    assert not (machine.root / "a" / payload.CANCEL).exists()


def test_a_killed_payload_is_lost_and_its_trainer_dead(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    claim, trainer = machine.running(job)
    os.kill(claim.pid, signal.SIGKILL)
    found = machine.final(job)
    assert found.state is State.LOST
    assert found.start_s is not None
    until(lambda: not trainer.is_alive)


def test_cancel_of_a_lost_trial_ends_what_it_left(machine: Machine) -> None:
    script = "sleep 300 & echo $! > child; wait"
    job = machine.submit("a", LaunchSpec(argv=("sh", "-c", script), env=PATH))
    claim, _ = machine.running(job)
    file = machine.root / "a" / "child"
    child = int(until(lambda: file.read_text() if file.exists() else ""))
    os.kill(claim.pid, signal.SIGKILL)
    assert machine.final(job).state is State.LOST
    assert payload.start_ticks(child) is not None
    machine.cancel(job)
    assert payload.start_ticks(child) is None


def test_a_killed_trainer_has_failed_with_its_signal(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    _, trainer = machine.running(job)
    os.kill(trainer.pid, signal.SIGKILL)
    found = machine.final(job)
    assert (found.state, found.signal) == (State.FAILED, 9)


def test_submitit_s_own_timeout_never_ends_a_trial(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    machine.running(job)
    environ = Path(f"/proc/{job.job_id.split('.')[0]}/environ").read_bytes().split(b"\0")
    timeouts_s = [int(each.split(b"=")[1]) for each in environ if b"LOCAL_TIMEOUT_S=" in each]
    assert len(timeouts_s) == 1
    assert timeouts_s[0] > 365 * 24 * 3600


def test_a_killed_submitit_controller_costs_no_trial(machine: Machine) -> None:
    job = machine.submit("a", LaunchSpec(argv=("sh", "-c", HELD), env=PATH))
    machine.running(job)
    os.kill(int(job.job_id.split(".")[0]), signal.SIGKILL)
    (machine.root / "a" / "go").touch()
    assert machine.final(job).exit_code == 4


@pytest.mark.parametrize("job_id", [f"{os.getpid()}.1", "1.999999999"], ids=["ours", "init's"])
def test_a_reused_process_id_is_not_taken_for_the_job(machine: Machine, job_id: str) -> None:
    (machine.root / "a").mkdir()
    assert machine.poll(machine.submission("a", job_id)).state is State.LOST


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, State.RUNNING),
        ({"start_ticks": 1}, State.LOST),
        ({"boot_id": "the-last-boot"}, State.LOST),
        ({"host": "elsewhere"}, State.RUNNING),
    ],
    ids=["this process", "an id used again", "the machine was restarted", "on another machine"],
)
def test_a_payload_is_known_by_more_than_its_process_id(
    tmp_path: Path, change: dict[str, object], state: State
) -> None:
    host, boot_id = payload.boot()
    ticks = payload.start_ticks(os.getpid())
    process = {"host": host, "boot_id": boot_id, "pid": os.getpid(), "start_ticks": ticks}
    (tmp_path / "a").mkdir()
    for name in (payload.claimed_name(), payload.started_name()):
        payload.write_json(tmp_path / "a" / name, {**process, "at_s": 1.0, **change})
    found = Machine(tmp_path).poll(
        Submission(trial_id="t", attempt=1, executor="local", job_id="1.1", folder="a")
    )
    assert found.state is state
    assert ("only that machine" in found.reason) == ("host" in change)


def test_a_claim_that_is_being_written_is_no_error(machine: Machine) -> None:
    (machine.root / "a").mkdir()
    (machine.root / "a" / payload.claimed_name()).touch()
    me = f"{os.getpid()}.{payload.start_ticks(os.getpid())}"
    job = Submission(trial_id="a", attempt=1, executor="local", job_id=me, folder="a")
    assert machine.poll(job).state is State.PENDING


def test_two_sessions_at_once_never_run_two_trials_at_once(machine: Machine) -> None:
    argv = (sys.executable, "-S", "-c", TIMED)
    with submitter(machine, "a", *argv) as first, submitter(machine, "b", *argv) as second:
        jobs = [
            machine.submission("a", job_id_of(first)),
            machine.submission("b", job_id_of(second)),
        ]
        spans = []
        for job in jobs:
            assert machine.final(job).state is State.COMPLETED
            spans.append(tuple(map(float, log(machine, job).split())))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(spans)))


def test_a_trial_that_waits_for_the_machine_is_pending(machine: Machine) -> None:
    first = machine.submit("a", SLEEP)
    machine.running(first)
    second = machine.submit("b", SLEEP)
    until(lambda: machine.poll(second).reason == "waits for the machine")
    assert machine.poll(second).state is State.PENDING
    machine.cancel(second)
    assert machine.final(second).state is State.CANCELLED
    assert not read_outcomes(machine.root / "a")


def test_the_machines_lock_is_one_whatever_tmpdir_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCK_VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert machine_lock() == Path(f"/tmp/xlatune-{os.getuid()}/machine.lock")
    monkeypatch.setenv(LOCK_VARIABLE, "/somewhere/gpu0.lock")
    assert machine_lock() == Path("/somewhere/gpu0.lock")
