"""Submit trials to Slurm through submitit, watch them with our own poller, cancel them.

submitit only renders the batch script (see `_script`). Its watcher is not used, and nothing of it
runs on a node: srun runs the payload's file itself, so that a node needs only an interpreter. Any
process may die at any time: calling `submit` again for the same folder finds the job that was
accepted.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_xlatune import locks, secure_files
from pytest_xlatune.executors import QueueFull, Request, SchedulerDown, payload
from pytest_xlatune.executors.folder import write_spec
from pytest_xlatune.executors.slurm import _script as script
from pytest_xlatune.executors.slurm._commands import (
    Trouble,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    sacct,
    squeue,
)
from pytest_xlatune.executors.slurm._poller import reused_id_outcome
from pytest_xlatune.executors.slurm._script import SBATCH_LOCK, SCRIPTS, site_options
from pytest_xlatune.executors.slurm.nodes import OnSlurm
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.model.trial import LaunchSpec

_log = logging.getLogger("pytest_xlatune.executors")
# Seconds before each further call of sbatch. The wait comes before Slurm is asked for the job, so
# that the controller has handled the last request by then.
RETRY_AFTER_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_SBATCH_OVER_S = 30  # seconds to wait for the sbatch of a killed session
# written in place of the digest in a script that is shown before there is a spec
SHOWN_DIGEST = "DIGEST-OF-ITS-SPEC"
_NOT_THERE = (126, 127)  # a shell's exit codes if a program is missing or cannot be run
LOGIN = Path(__file__).with_name("login.sh")
_SACCT_SINCE = "now-14days"  # how far back sacct looks for a job that was accepted

# files that are only in the folder of an accepted job:  4711_begun    4711_submission.sh
_ACCEPTED = re.compile(r"(\d+)_(?:begun|submission\.sh)")


class SlurmExecutor(OnSlurm):
    """An `Executor` on a Slurm cluster: each trial is a job."""

    name = "slurm"
    has_queue = True

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Call sbatch, repeatedly for half a minute if a refusal may pass.

        Raises:
            QueueFull: a limit on submitted jobs is reached.
            ConfigError: the harness reserves an option of the resources, or a name is malformed.
            SchedulerDown: the controller is away, sbatch does not answer, or the sbatch of another
                session is still running.
            SubmissionError: sbatch refused the job for good. If it was accepted nevertheless, it
                starts no trainer.
        """
        folder = request.folder.resolve()
        (folder / payload.CANCEL).unlink(missing_ok=True)
        arguments = arguments_of(request)
        if (folder / SCRIPTS).exists():
            # the sbatch of a killed session goes on and may still be accepted
            with locks.held(folder / SCRIPTS / SBATCH_LOCK, wait_s=_SBATCH_OVER_S) as is_over:
                if not is_over:
                    raise SchedulerDown(f"an sbatch of another session for {folder} still runs")
            if job_id := self.find(request):
                return job_id
        digest = write_spec(folder, spec)
        secure_files.make_folder(folder / SCRIPTS)
        name, where = request.job_name, compress(request.nodelist) or "any node"
        for wait_s in (*RETRY_AFTER_S, None):
            reply = script.submit(folder, arguments, digest=digest)
            if reply.trouble is Trouble.NONE or reply.is_late:
                break  # if it is late, the next call of `submit` looks for the job first
            # At a limit on jobs nothing is repeated here, because for these 30 s no job would be
            # polled, and in the end the running trial would be cancelled.
            is_repeated = reply.trouble not in (Trouble.FULL, Trouble.FOR_GOOD)
            if is_repeated and wait_s is not None:
                _log.warning("%s is submitted again in %g s: %s", name, wait_s, reply.error)
                self._sleep(wait_s)
            is_surely_refused = reply.trouble is Trouble.FULL or reply.code in _NOT_THERE
            if not is_surely_refused and (job_id := self.find(request)):
                return job_id
            if not is_repeated:
                break
        secure_files.restrict_modes(folder / SCRIPTS)
        if reply.trouble is Trouble.NONE:
            _log.info("%s is job %s on %s", name, reply.out, where)
            return reply.out
        reason = f"job {name} on {where} is not submitted: {reply.error}"
        if reply.trouble is Trouble.AWAY:
            raise SchedulerDown(reason)
        if reply.trouble is Trouble.FULL:
            raise QueueFull(reason)
        with contextlib.suppress(OSError):  # if the job was accepted nevertheless, it runs nothing
            (folder / payload.CANCEL).touch()
        tries = f" (tried {1 + len(RETRY_AFTER_S)} times)" if is_repeated else ""
        raise SubmissionError(f"{reason}{tries}; the script is in {folder / SCRIPTS}")

    def preview(self, trial_id: str, request: Request) -> tuple[str, str]:
        """Return the script that `submit` would pass to sbatch, without Slurm or writing."""
        folder = request.folder.resolve()
        text = script.render(folder, arguments_of(request), digest=SHOWN_DIGEST)
        return f"script of `{trial_id}` for sbatch", text

    def find(self, request: Request) -> str:
        """Return the id of the job that was accepted for this attempt; "" if there is none.

        It looks for traces in the attempt's folder, then in squeue, then in sacct.

        Raises:
            SchedulerDown: the controller cannot be asked.
        """
        folder, job_name = request.folder.resolve(), request.job_name
        found = map(_ACCEPTED.fullmatch, (path.name for path in (folder / SCRIPTS).glob("*")))
        if ids := [match[1] for match in found if match is not None]:
            _log.info("%s is job %s: its folder says so", job_name, min(ids, key=int))
            return min(ids, key=int)
        # without the user, squeue would fetch the jobs of all users first
        answer = self._run(squeue("-u", getpass.getuser(), "-n", job_name))
        if answer.code:
            raise SchedulerDown(f"squeue does not say whether {job_name} runs: {answer.error}")
        jobs = parse_squeue(answer.out)
        if answer.out.strip() and not jobs:
            raise SchedulerDown(f"squeue does not say whether {job_name} runs: {answer.out!r:.80}")
        answer = self._run(sacct("-S", _SACCT_SINCE, f"--name={job_name}"))
        if not answer.code:
            jobs = parse_sacct(answer.out) | jobs
        # the baselines of two sweeps on one cell have the same name, and differ in their folders
        ours = [job.job_id for job in jobs.values() if job.folder and job.is_in(folder)]
        if ours:
            _log.info("%s was accepted before: job %s", job_name, min(ours, key=int))
        return min(ours, key=int, default="")

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Ask Slurm at most once every few seconds; see `Poller.poll`."""
        # the controller may have given the job id of an earlier submission to a later one
        latest = {submission.job_id: root / submission.folder for submission in submissions}
        return self._poller.poll(latest) | {
            submission.folder: reused_id_outcome(root / submission.folder, submission.job_id)
            for submission in submissions
            if latest[submission.job_id] != root / submission.folder
        }

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Call scancel; the nodes are free only when `poll` reports the end.

        Raises:
            SchedulerDown: the controller cannot be asked; a job that has not started will not
                start its trainer, because the mark in its folder forbids it.
            SubmissionError: scancel refused.
        """
        ours = []
        for submission in submissions:
            job_id, folder = submission.job_id, root / submission.folder
            with contextlib.suppress(OSError):  # on a full disk the mark cannot be written
                (folder / payload.CANCEL).touch()
            answer = self._run(["scontrol", "show", "job", "-o", job_id])
            job = parse_scontrol(answer.out).get(job_id)
            if job is None or job.is_in(folder):
                ours.append(job_id)
            else:  # the controller has used the number again
                _log.warning("job %s is now another job, in %s; it goes on", job_id, job.folder)
        if not ours:
            return
        _log.info("Slurm is asked to cancel %s", ", ".join(ours))
        answer = self._run(["scancel", *ours])
        if answer.trouble not in (Trouble.NONE, Trouble.UNKNOWN_JOB):
            kind = SchedulerDown if answer.trouble is Trouble.AWAY else SubmissionError
            raise kind(f"scancel: {answer.error}")


def arguments_of(request: Request) -> dict[str, Any]:
    """Return submitit's parameters for a trial."""
    folder, nodelist, resources = request.folder.resolve(), request.nodelist, request.resources
    nodes = resources.nodes or len(nodelist) or 1
    if nodelist and nodes != len(nodelist):
        raise ConfigError(
            f"{nodes} nodes are asked for, but the node list names {len(nodelist)}: "
            f"{compress(nodelist)}"
        )
    options, srun_args = site_options(resources.options)
    scripts = shlex.quote(str(folder / SCRIPTS))
    arguments: dict[str, Any] = {
        "job_name": request.job_name,
        "comment": request.comment,
        "nodes": nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "exclusive": True,
        "time": math.ceil(resources.time_limit_s / 60),
        "setup": [
            f". {shlex.quote(str(LOGIN))}",
            "unset SLURM_JWT",
            "# the session that submits may die before it can write the job's number down",
            f': > {scripts}/"$SLURM_JOB_ID"_begun',
        ],
        # otherwise the other ranks would wait in a collective for a dead one, up to the time limit
        "srun_args": ["--export=ALL", "--kill-on-bad-exit=1", *srun_args],
        # With `--export=NAME=VALUE`, Slurm silently cuts a value at its comma. ALL exports little,
        # because sbatch itself gets few variables; the login script sets the other ones.
        "additional_parameters": {
            "chdir": str(folder),
            "export": "ALL",
            # a requeued job would append a second start to its log, so to the same measurement
            "no-requeue": True,
            # CONT is harmless; submitit's USR2 would end a trainer that does not handle it
            "signal": "CONT@1",
            **options,
        },
    }
    if nodelist:
        arguments["nodelist"] = compress(nodelist)
    return arguments
