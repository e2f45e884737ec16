"""Trials in real containers, by podman: the environment, the exit, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune.executors import Request
from pytest_xlatune.executors.folder import read_started
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.containers import PodmanSite, podman
from tests.helpers.waiting import until

PROBE = "import json, os; print(json.dumps([dict(os.environ), os.getpid()]))"
TRICKY = {"QUOTES": " it's \"x\" '\"'\"' ", "LINES": "two\nlines\n$HOME `id` \\ größe→∞ %s #x"}
PROFILE = profile("p", "--xla_a=1,2", env=TRICKY)

programs = pytest.mark.part("programs")


class Attempt:
    """One attempt on this machine."""

    def __init__(self, root: Path, run: str, name: str, spec: LaunchSpec) -> None:
        self.root, self.folder = root, root / run / name
        request = Request(folder=self.folder, job_name=name, comment=name, resources=Resources())
        job_id = LocalExecutor(lock=root / "lock").submit(spec, request)
        self.submission = Submission(
            trial_id=name, attempt=1, executor="local", job_id=job_id, folder=f"{run}/{name}"
        )

    @property
    def log(self) -> str:
        path = self.folder / "log.0.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def poll(self) -> Outcome:
        job_id = self.submission.job_id
        return LocalExecutor().poll([self.submission], root=self.root)[job_id]

    def end(self) -> Outcome:
        until(lambda: self.poll().state.is_final)
        return self.poll()

    @property
    def containers(self) -> list[str]:
        """The processes of the container of this attempt, as the machine itself sees them."""
        mark = f"{self.folder}/container.entry.sh".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = b""
            with contextlib.suppress(OSError):
                words = path.read_bytes()
            program = words.split(b"\0")[0]
            if mark in words and b"podman" not in program and b"conmon" not in program:
                found.append(path.parent.name)
        return found


@pytest.fixture
def submit(podman_site: PodmanSite, tmp_path: Path) -> Callable[..., Attempt]:
    # A container is named after its run and trial, and two test processes share one podman.
    run = f"run-{uuid.uuid4().hex[:8]}"
    return lambda name, *argv: Attempt(tmp_path, run, name, podman_site.spec(PROFILE, *argv))


def test_the_environment_and_the_outcome(submit: Callable[..., Attempt]) -> None:
    done = submit("env", sys.executable, "-c", PROBE)
    assert done.end().state is State.COMPLETED, done.log
    env, pid = json.loads(done.log.splitlines()[-1])
    assert {name: env[name] for name in TRICKY} == TRICKY
    assert env["EMPTY"] == ""
    told, *rest = env["XLA_FLAGS"].partition(" --xla_from_image=1 ")
    assert told.startswith(f'--xla_dump_to="{done.folder}/xla_options" --xla_dump_hlo_module_re=')
    assert rest == [" --xla_from_image=1 ", "--xla_a=1,2"]
    assert pid < 20, "it has its own process ids"
    failed = submit("fails", "bash", "-c", "exit 7").end()
    assert (failed.state, failed.exit_code) == (State.FAILED, 7)


STUBBORN = "trap 'echo heard' TERM; echo up; while :; do sleep 0.2; done"
POLITE = "trap 'echo heard; exit 0' TERM; echo up; while :; do sleep 0.2; done"


@pytest.mark.parametrize(
    ("script", "is_cancelled"),
    [(POLITE, True), pytest.param(STUBBORN, True, marks=programs), (STUBBORN, False)],
    ids=["polite", "stubborn", "its shell is killed"],
)
def test_a_trial_that_ends_early_leaves_no_container(
    submit: Callable[..., Attempt], script: str, *, is_cancelled: bool
) -> None:
    attempt = submit("sleeps", "bash", "-c", script)
    until(lambda: "up" in attempt.log.splitlines())
    started = read_started(attempt.folder)
    assert started is not None
    assert attempt.containers
    if is_cancelled:
        LocalExecutor().cancel([attempt.submission], root=attempt.root)
        assert attempt.end().state is State.CANCELLED
        assert "heard" in attempt.log.splitlines()
    else:
        os.kill(started.pid, signal.SIGKILL)
    until(lambda: not attempt.containers)
    if is_cancelled:
        name = f"name=xlt-{attempt.folder.parent.name}-sleeps-0"
        assert podman("ps", "--format", "{{.Names}}", "--filter", name).stdout == b""
