"""The local executor: a job runs once, one at a time, outlives its submitter, ends when told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.folder import (
    ProcessRecord,
    read_claim,
    read_outcomes,
    read_started,
)
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import PATH
from tests.helpers.tables import rows
from tests.helpers.waiting import until

SLEEP = LaunchSpec(argv=("sleep", "300"), env=PATH)
SUBMIT = """
import sys, time
from pathlib import Path
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.executors import Request
from pytest_xlatune.executors.local import LocalExecutor
root, name, *argv = sys.argv[1:]
job_id = LocalExecutor(lock=Path(root, "lock")).submit(
    LaunchSpec(argv=tuple(argv)),
    Request(folder=Path(root, name), job_name=name, comment=name, resources=Resources()))
print(job_id, flush=True)
time.sleep(300)
"""


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
        return self.submission(name, self.executor.submit(spec, self.request(name)))

    def request(self, name: str, **changed: Any) -> Request:
        given = {"job_name": name, "comment": name, "resources": Resources(), **changed}
        return Request(folder=self.root / name, **given)

    def poll(self, of: Submission) -> Outcome:
        # a fresh executor each time: nothing may be kept in the object
        return LocalExecutor(lock=self.root / "lock").poll([of], root=self.root)[of.job_id]

    def cancel(self, *these: Submission) -> None:
        LocalExecutor().cancel(these, root=self.root)

    def final(self, of: Submission) -> Outcome:
        until(lambda: self.poll(of).state.is_final)
        return self.poll(of)

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


def sh(script: str, **said: Any) -> LaunchSpec:
    return LaunchSpec(argv=("sh", "-c", script), **{"env": PATH, **said})


@rows("code, state", {"exit 0": (0, State.COMPLETED), "exit 5": (5, State.FAILED)})
def test_a_trial_runs_once(machine: Machine, code: int, state: State) -> None:
    spec = sh(f"echo run >> runs; echo done; exit {code}")
    job = machine.submit("a", spec)
    assert machine.submit("a", spec) == job
    found = machine.final(job)
    assert (found.state, found.exit_code, found.nodes) == (state, code, (os.uname().nodename,))
    assert machine.submit("a", spec) == job
    assert (machine.root / "a" / "log.0.txt").read_text() == "done\n"
    assert (machine.root / "a" / "runs").read_text() == "run\n"
    machine.cancel(job)
    assert machine.poll(job) == found, "a cancel of what is over changes nothing"
    assert not (machine.root / "a" / payload.CANCEL).exists()


def test_no_secret_of_the_submitter(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    job = machine.submit("a", SLEEP)
    claim, trainer = machine.running(job)
    files = [each for each in (machine.root / "a").rglob("*") if each.is_file()]
    for path in (*files, *(Path(f"/proc/{each.pid}/environ") for each in (claim, trainer))):
        assert b"s3cret" not in path.read_bytes()


@rows("nodelist, nodes", {"another node": (("node001",), 0), "two nodes": ((), 2)})
def test_what_needs_another_machine_is_refused(
    machine: Machine, nodelist: tuple[str, ...], nodes: int
) -> None:
    request = machine.request("a", nodelist=nodelist, resources=Resources(nodes=nodes))
    with pytest.raises(SubmissionError, match=r"the local executor .* use Slurm"):
        machine.executor.submit(SLEEP, request)
    assert not (machine.root / "a").exists()


def test_a_refused_submission(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = machine.root / "python"
    broken.write_text("#!/bin/sh\necho no interpreter here\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(SubmissionError, match=r"payload ended: no interpreter here"):
        machine.submit("a", SLEEP)


def test_a_trial_that_waits_for_the_machine_is_pending(machine: Machine) -> None:
    first = machine.submit("a", SLEEP)
    machine.running(first)
    second = machine.submit("b", SLEEP)
    until(lambda: machine.poll(second).reason == "the machine is busy")
    assert machine.poll(second).state is State.PENDING
    # who cancels looked for a claim a moment too early, and had no process to signal
    (machine.root / "b" / payload.CANCEL).touch()
    ended = machine.final(second)
    assert (ended.state, ended.reason) == (State.CANCELLED, "cancelled before the start")
    assert not read_outcomes(machine.root / "a")


def test_a_payload_that_is_stopped_is_cancelled(machine: Machine) -> None:
    job = machine.submit("a", SLEEP)
    claim, trainer = machine.running(job)
    os.kill(claim.pid, signal.SIGSTOP)
    machine.cancel(job)
    assert machine.final(job).state is State.CANCELLED
    assert not trainer.is_alive


@rows(
    "change, state",
    {
        "this process": ({}, State.RUNNING),
        "an id used again": ({"start_ticks": 1}, State.LOST),
        "the machine was restarted": ({"boot_id": "the-last-boot"}, State.LOST),
        "on another machine": ({"host": "elsewhere"}, State.RUNNING),
    },
)
def test_an_id_used_again(tmp_path: Path, change: dict[str, object], state: State) -> None:
    folder, found = tmp_path / "a", Machine(tmp_path)
    folder.mkdir()
    mine = Submission(trial_id="t", attempt=1, executor="local", job_id="1.7", folder="a")
    assert found.poll(mine).state is State.LOST
    for name in ("claimed", "started"):
        record = {**payload.identity(os.getpid()), "at_s": 1.0, **change}
        secure_files.write_bytes(folder / payload.name_of(name), json.dumps(record).encode())
    outcome = found.poll(mine)
    assert outcome.state is state
    assert ("only that machine" in outcome.reason) == ("host" in change)


def test_a_payload_that_was_killed_in_its_claim_is_lost(machine: Machine) -> None:
    (machine.root / "a").mkdir()
    (machine.root / "a" / "claimed.json").touch()
    assert machine.poll(machine.submit("a", SLEEP)).state is State.LOST


def test_of_two_sessions_that_submit_and_are_killed_one_job_comes(machine: Machine) -> None:
    held = "echo ran >> runs; while [ ! -e go ]; do sleep 0.05; done; exit 4"
    command = [sys.executable, "-c", SUBMIT, str(machine.root), "a", "sh", "-c", held]
    with contextlib.ExitStack() as stack:
        pipes = []
        for _ in range(2):
            session = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            stack.enter_context(session)
            stack.callback(session.kill)
            pipes.append(session.stdout)
        job_id, other = (pipe.readline().decode().strip() for pipe in pipes if pipe)
        job = machine.submission("a", job_id)
        claim, trainer = machine.running(job)
        os.killpg(session.pid, signal.SIGINT)  # Ctrl-C in its terminal does not reach the job
    # the job is the payload in a session of its own, and nothing stands between
    assert job_id == other == f"{claim.pid}.{claim.start_ticks}"
    assert os.getsid(claim.pid) == claim.pid
    stat = payload._stat(trainer.pid)
    assert stat is not None
    assert stat.parent == claim.pid
    assert machine.submit("a", SLEEP).job_id == job_id
    machine.running(job)
    assert (machine.root / "a" / "runs").read_text() == "ran\n"
    (machine.root / "a" / "go").touch()
    assert machine.final(job).exit_code == 4
