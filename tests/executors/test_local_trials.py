"""The local executor: what is submitted runs once, in its own environment, one at a time."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.executors import LOCK_VARIABLE, machine_lock, payload
from pytest_xlatune.executors.folder import read_outcomes
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.machine import SLEEP, Machine, job_id_of, log, submitter
from tests.helpers.payloads import PATH, TIMED
from tests.helpers.waiting import until


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
        machine.executor.submit(SLEEP, machine.request("a", comment="b"))


@pytest.mark.parametrize(
    ("nodelist", "resources"),
    [(("node001",), Resources()), ((), Resources(nodes=2))],
    ids=["another node", "two nodes"],
)
def test_what_needs_another_machine_is_refused(
    machine: Machine, nodelist: tuple[str, ...], resources: Resources
) -> None:
    request = machine.request("a", nodelist=nodelist, resources=resources)
    with pytest.raises(SubmissionError, match=r"the local executor .* use Slurm"):
        machine.executor.submit(SLEEP, request)
    assert not (machine.root / "a").exists()


def test_a_submission_that_fails_says_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = machine.root / "python"
    broken.write_text("#!/bin/sh\necho no interpreter here\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(SubmissionError, match=r"exit status 9, 'no interpreter here'"):
        machine.submit("a", SLEEP)


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
    until(lambda: machine.poll(second).reason.startswith("waits for the machine: a has it"))
    assert machine.poll(second).state is State.PENDING
    machine.cancel(second)
    assert machine.final(second).state is State.CANCELLED
    assert not read_outcomes(machine.root / "a")


def test_who_has_the_machine_and_for_how_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that runs; a changed second is no news."""
    holder = tmp_path / ".xlatune" / "nightly" / "cell" / "s1" / "fast-wave2.0-0123456789.1"
    waiting, lock = tmp_path / "waiting", tmp_path / "machine.lock"
    now_s = 1_790_000_000.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    for folder, ago_s in ((holder, 3600.0), (waiting, 130.0)):
        folder.mkdir(parents=True)
        (folder / payload.SPEC).write_text("{}", encoding="utf-8")
        claim = {**payload.identity(os.getpid()), "at_s": now_s - ago_s}
        secure_files.write_json(folder / payload.name_of("claimed"), claim)
    lock.write_text(str(holder), encoding="utf-8")

    def said() -> str:
        job = Submission(trial_id="w", attempt=1, executor="local", job_id="1.1", folder="waiting")
        found = LocalExecutor(lock=lock).poll([job], root=tmp_path)["1.1"]
        assert found.state is State.PENDING
        return found.reason

    name = "fast-wave2.0-0123456789.1"
    assert said() == f"waits for the machine, for 3 min already: {name} has it"
    now_s += 20.0
    assert said().startswith("waits for the machine, for 3 min already: ")
    for content in ("", "/no/such/folder", "\0", "x" * 5000):
        lock.write_text(content, encoding="utf-8")
        assert said() == "waits for the machine, for 3 min already"
    lock.unlink()
    assert said() == "waits for the machine, for 3 min already"


def test_the_machines_lock_is_one_whatever_tmpdir_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(LOCK_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    if not Path(f"/run/user/{os.getuid()}").is_dir():
        assert machine_lock() == Path(f"/tmp/xlatune-{os.getuid()}/machine.lock")
    monkeypatch.setenv(LOCK_VARIABLE, "/somewhere/gpu0.lock")
    assert machine_lock() == Path("/somewhere/gpu0.lock")
