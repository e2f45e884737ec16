"""Runs trials on this machine, one at a time: it starts the payload, and watches its folder.

The payload forks: the short-lived parent records the job, and the child is the job. The fork

* gives the job a session of its own, so that Ctrl-C in pytest does not end it;
* keeps the environment of pytest, with its secrets, from the job, which gets only what the launch
  spec inherits and what an interpreter needs to start;
* keeps the job from being a child of pytest, where Python would warn about it at the end;
* lets the trainer start only after the job is recorded, even if one of the two is killed.

The payload holds a lock of the machine during a trial, so all sessions of this user together run
one trial at a time. This module does not judge how a trial ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Executor, Request, Resumed, machine_lock, payload
from pytest_xlatune.executors.folder import (
    ProcessRecord,
    read_claim,
    read_outcomes,
    read_started,
    write_spec,
)
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec

_log = logging.getLogger("pytest_xlatune.executors")
_SUBMIT_OUTPUT = "submit.txt"  # the output of the submitting process
_SUBMIT_TIMEOUT_S = 120.0
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
        here, folder, comment = os.uname().nodename, request.folder, request.comment
        nodes = request.resources.nodes
        if set(request.nodelist) - {here, "localhost"} or nodes > 1:
            raise SubmissionError(
                f"the local executor runs on {here} only, found nodes "
                f"{', '.join(request.nodelist) or nodes}; leave the node list out, or use Slurm"
            )
        known = payload.read_job(folder)
        if known is None:
            lock = self._lock or machine_lock()
            digest = write_spec(folder, spec)
            _submit(folder, digest, comment=comment, lock=lock, inherit=spec.inherit)
            known = payload.read_job(folder)
        if known is None:
            raise SubmissionError(
                f"{folder} was submitted but names no job; see {_SUBMIT_OUTPUT} in it"
            )
        if known["comment"] != comment:
            raise SubmissionError(
                f"{folder} already holds the attempt {known['comment']!r}, expected {comment!r}; "
                "every attempt needs a folder of its own"
            )
        _log.info("%s is job %s on this machine", request.job_name, known["job_id"])
        return known["job_id"]

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return the state of each job, from its folder and the processes that are named there."""
        return {
            submission.job_id: _outcome_of(root / submission.folder, submission.job_id)
            for submission in submissions
        }

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """End these jobs by SIGTERM; after a few seconds the payload kills the rest."""
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
                _signal(claim, signal.SIGTERM)

    def faults(self, *, nodelist: Sequence[str], resources: Resources) -> tuple[str, ...]:
        """Return a fault if a trial asks for several ranks: only one process would be started."""
        del nodelist
        if resources.tasks_per_node == 1:
            return ()
        fault = (
            f"tasks_per_node is {resources.tasks_per_node}, but the local executor starts one "
            "process for each trial; let the launcher's command start the ranks, or use Slurm"
        )
        return (fault,)

    def resume(self, nodes: Sequence[str]) -> Resumed:  # noqa: ARG002
        """Return a fault, because this machine has no scheduler that could resume it."""
        return Resumed(faults=(f"{os.uname().nodename} has no scheduler that could resume it",))


def _outcome_of(folder: Path, job_id: str) -> Outcome:
    # the outcome is read again at the end, because it may have been written in the meantime
    return (
        _written_outcome(folder)
        or _unfinished(folder, job_id)
        or read_outcomes(folder).get(0)
        or _lost(folder)
    )


def _written_outcome(folder: Path) -> Outcome | None:
    """Return the outcome that an attempt wrote itself; None if there is none or it is damaged."""
    outcome = read_outcomes(folder).get(0)
    return None if outcome is None or outcome.is_unreadable else outcome


def _unfinished(folder: Path, job_id: str) -> Outcome | None:
    """Return the outcome of a job that waits or runs; None if its process has ended."""
    claim, trainer = read_claim(folder), read_started(folder)
    if claim is None:  # not claimed yet: only the job id names its process
        pid, _, ticks = job_id.partition(".")
        if payload.start_ticks(int(pid)) != int(ticks):
            return None
        if trainer is None:
            return Outcome(state=State.PENDING, reason="")
    elif claim.is_here and not claim.is_alive:
        return None
    reason = ""
    if claim is not None and not claim.is_here:
        reason = f"runs on {claim.host}; only that machine can see if it lives"
    if trainer is None:
        return Outcome(state=State.PENDING, reason=reason or "the machine is busy")
    return Outcome(state=State.RUNNING, nodes=(trainer.host,), start_s=trainer.at_s, reason=reason)


def _lost(folder: Path) -> Outcome:
    if (folder / payload.CANCEL).exists():
        lost = Outcome(state=State.CANCELLED, reason="ended before it could say how")
    else:
        why = "its process ended without an outcome; it may have been killed"
        lost = Outcome(state=State.LOST, reason=why)
    if (trainer := read_started(folder)) is None:
        return lost
    return msgspec.structs.replace(lost, nodes=(trainer.host,), start_s=trainer.at_s)


def _signal(process: ProcessRecord, number: signal.Signals) -> None:
    """Send a signal to a process, but never to a later one with the same id."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if process.is_alive:  # so the descriptor refers to this process, not to a later one
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _submit(folder: Path, digest: str, *, comment: str, lock: Path, inherit: Sequence[str]) -> None:
    argv = payload.payload_argv(folder.absolute(), digest, str(lock.absolute()), comment)
    output = folder / _SUBMIT_OUTPUT
    with os.fdopen(
        secure_files.open_file(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb"
    ) as file:
        try:
            done = subprocess.run(
                argv,
                env=payload.inherited((*_NEEDED, *inherit)),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=_SUBMIT_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SubmissionError(f"{folder} could not be submitted: {error}") from error
    secure_files.restrict_modes(folder)
    if done.returncode:
        text = secure_files.read_text(output).strip() or "it printed nothing: is the disk full?"
        raise SubmissionError(
            f"{folder} could not be submitted: exit status {done.returncode}, {text[-500:]!r}"
        )
