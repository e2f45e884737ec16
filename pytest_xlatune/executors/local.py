"""Runs trials on this machine, one at a time: it starts the payload, and watches its folder.

The payload is a process in a session of its own, so Ctrl-C in pytest does not end it, and it gets
only the variables that the launch spec inherits and that an interpreter needs to start. If pytest
is killed while it submits, the next session submits again: only one payload claims the attempt, and
that one is the job.

The payload holds a lock of the machine during a trial, so all sessions of this user together run
one trial at a time. This module does not judge how a trial ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Executor, Request, machine_lock, payload
from pytest_xlatune.executors.folder import (
    read_claim,
    read_outcomes,
    read_started,
    start_detached,
    write_spec,
)
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec

_log = logging.getLogger("pytest_xlatune.executors")
_OUTPUT = "payload.txt"  # what the payload itself prints
# the most seconds until a payload claims its attempt, and between two checks for that
_STARTING_S, _STARTING_POLL_S = 120.0, 0.02
# the variables of our environment that an interpreter needs to start
_NEEDED = ("HOME", "LANG", "LC_*", "LD_LIBRARY_PATH", "PATH", "TMPDIR")


class LocalExecutor(Executor):
    """An `Executor` for this machine."""

    name = "local"
    is_here = True
    max_in_flight = 1

    def __init__(self, *, lock: Path | None = None) -> None:
        self._lock = lock

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Start the payload; return the job id, `<pid>.<start in clock ticks>`."""
        here, folder = os.uname().nodename, request.folder
        nodes, ranks = request.resources.nodes, request.resources.tasks_per_node
        if set(request.nodelist) - {here, "localhost"} or nodes > 1 or ranks > 1:
            raise SubmissionError(
                f"the local executor starts one process, on {here} only; found nodes "
                f"{', '.join(request.nodelist) or nodes} and tasks_per_node {ranks}; leave them "
                "out, or use Slurm"
            )
        claimed = folder / payload.name_of("claimed")
        if (claim := read_claim(folder)) is None and not claimed.exists():
            lock = self._lock or machine_lock()
            argv = payload.payload_argv(
                folder.absolute(), write_spec(folder, spec), str(lock.absolute())
            )
            environment = payload.inherited((*_NEEDED, *spec.inherit))
            try:
                pid = start_detached(argv, environment, folder, log=folder / _OUTPUT)
            except (OSError, subprocess.SubprocessError) as error:
                raise SubmissionError(f"{folder} could not be submitted: {error}") from error
            until_s = time.monotonic() + _STARTING_S
            while payload.start_ticks(pid) is not None and not read_claim(folder):
                if time.monotonic() > until_s:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(_STARTING_POLL_S)
            claim = read_claim(folder)
        if claim is None and not claimed.exists():
            text = secure_files.read_text(folder / _OUTPUT).strip()
            reason = text[-500:] or (
                f"it printed nothing: it was killed, the disk is full, or it claimed nothing in "
                f"{_STARTING_S:.0f} s"
            )
            raise SubmissionError(f"{folder} could not be submitted: the payload ended: {reason}")
        # the attempt of a damaged claim is lost, as `poll` says
        job_id = f"{claim.pid}.{claim.start_ticks}" if claim else f"lost.{folder.name}"
        _log.info("%s is job %s on this machine", request.job_name, job_id)
        return job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return the state of each job, from its folder and the processes that are named there."""
        return {
            submission.job_id: _outcome_of(root / submission.folder) for submission in submissions
        }

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """End these jobs by SIGTERM; after a few seconds the payload kills the rest.

        A payload that is stopped is continued, because it would not see the signal.
        """
        for submission in submissions:
            folder = root / submission.folder
            if _written_outcome(folder) is not None:
                continue
            _log.info("job %s is cancelled", submission.job_id)
            # on a full disk the mark cannot be written, but the job must still be ended
            with contextlib.suppress(OSError):
                (folder / payload.CANCEL).touch()
            claim = read_claim(folder)
            if claim is not None and claim.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(claim.pid, signal.SIGTERM)
                    os.kill(claim.pid, signal.SIGCONT)


def _written_outcome(folder: Path) -> Outcome | None:
    """Return the outcome that an attempt wrote itself; None if there is none or it is damaged."""
    outcome = read_outcomes(folder).get(0)
    return None if outcome is None or outcome.is_unreadable else outcome


def _outcome_of(folder: Path) -> Outcome:
    if (written := _written_outcome(folder)) is not None:
        return written
    claim, trainer = read_claim(folder), read_started(folder)
    reason = ""
    if claim is not None and not claim.is_here:
        reason = f"runs on {claim.host}; only that machine can see if it lives"
    if claim is not None and (claim.is_alive or reason):
        state = State.RUNNING if trainer is not None else State.PENDING
        reason = reason or ("the machine is busy" if trainer is None else "")
    # the outcome is read again, because it may have been written in the meantime
    elif (outcome := read_outcomes(folder).get(0)) is not None:
        return outcome
    elif (folder / payload.CANCEL).exists():
        state, reason = State.CANCELLED, "ended before it could say how"
    else:
        state, reason = State.LOST, "its process ended without an outcome; it may have been killed"
    if trainer is None:
        return Outcome(state=state, reason=reason)
    return Outcome(state=state, nodes=(trainer.host,), start_s=trainer.at_s, reason=reason)
