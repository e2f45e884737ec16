"""Trials as processes of this machine, two at a time."""

import os
import shlex
import signal
import subprocess
from pathlib import Path

from pytest_xlatune.executors import Executor
from pytest_xlatune.executors.folder import read_claim, read_outcomes, read_started, write_spec
from pytest_xlatune.executors.payload import CANCEL, payload_argv
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.result import Outcome, State


class PoolExecutor(Executor):
    name = "pool"
    is_here = True
    max_in_flight = 2

    def submit(self, spec, request):
        folder = request.folder.resolve()
        if (claim := read_claim(folder)) is not None:  # a session that is dead submitted it
            return str(claim.pid)
        words = payload_argv(folder, write_spec(folder, spec))
        command = f"{shlex.join(words)} </dev/null >/dev/null 2>&1 & echo $!"
        argv = ["sh", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, start_new_session=True)
        if done.returncode:
            raise SubmissionError(f"{request.job_name}: {done.stderr.strip()}")
        return done.stdout.strip()

    def poll(self, submissions, *, root):
        return {each.job_id: standing(root / each.folder, each.job_id) for each in submissions}

    def cancel(self, submissions, *, root):
        for each in submissions:
            (root / each.folder / CANCEL).touch()
            claim = read_claim(root / each.folder)
            if claim is not None and claim.is_alive:
                os.kill(claim.pid, signal.SIGTERM)


def standing(folder, job_id):
    claim, trainer = read_claim(folder), read_started(folder)
    is_alive = claim.is_alive if claim else Path("/proc", job_id).exists()
    outcome = read_outcomes(folder).get(0)
    if outcome is not None:
        return outcome
    if not is_alive:
        return Outcome(state=State.LOST, reason="its process is gone and left no outcome")
    if trainer is None:
        return Outcome(state=State.PENDING, reason="starting")
    return Outcome(state=State.RUNNING, nodes=(trainer.host,), start_s=trainer.at_s)
