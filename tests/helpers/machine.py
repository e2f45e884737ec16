"""This machine as a place for trials: a work directory with a lock of its own, and who submits."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_xlatune.executors import Request
from pytest_xlatune.executors.folder import ProcessRecord, read_claim, read_started
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import PATH
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

HELD = "while [ ! -e go ]; do sleep 0.05; done; exit 4"


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
