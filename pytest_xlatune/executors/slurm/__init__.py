"""Submit trials to Slurm through submitit, watch them with our own poller, cancel them.

submitit renders the batch script and calls sbatch (`script`); its watcher is not used, and neither
does it start anything on a node: srun runs the payload's file itself, so a node needs an
interpreter and nothing that would have to be imported before every trial. Any process may die at
any time: `submit` called again for the same folder and comment finds the job that was already
accepted. `look` asks the pinned nodes, by one short srun, whether they have what trials need. This
module knows no ledger and no log of a trainer.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import logging
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_xlatune import secure_files
from pytest_xlatune.executors import (
    OWN_JOBS,
    Executor,
    ProbeResult,
    QueueFull,
    Request,
    Resumed,
    SchedulerDown,
    payload,
)
from pytest_xlatune.executors.folder import write_spec
from pytest_xlatune.executors.slurm import _script as script
from pytest_xlatune.executors.slurm._commands import (
    SEPARATOR,
    Run,
    SlurmJob,
    Trouble,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    run_command,
    sacct,
    squeue,
)
from pytest_xlatune.executors.slurm._poller import ROUND_S, Poller, given_away
from pytest_xlatune.executors.slurm._script import HELD, SCRIPTS, SLURM_LOGS_IN
from pytest_xlatune.executors.slurm.nodes import (
    busy_note,
    check_nodes,
    pick_nodes,
    resume_nodes,
)
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.model.trial import LaunchSpec

_log = logging.getLogger("pytest_xlatune.executors")
# seconds before each further call of sbatch; the look-up comes between the wait and the call, so
# that a request still in the controller's queue has been worked off when we look
RETRY_AFTER_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_ANOTHER_S = 30
SHOWN_DIGEST = "DIGEST-OF-ITS-SPEC"  # in a script that is shown before there is a spec
_NOT_THERE = (126, 127)  # a shell's exit codes of a program that is not there, or cannot be run
LOGIN = Path(__file__).with_name("login.sh")
_LOOK_BACK = "now-14days"

# What the harness decides for every trial: measured trials stay comparable, and ours to find.
_OURS = frozenset(
    {
        "array", "chdir", "comment", "error", "exclusive", "export-file", "input",
        "job-name", "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode",
        "output", "oversubscribe", "parsable", "requeue", "signal", "test-only", "time", "wait",
        "wrap",
    }
)  # fmt: skip
# an option's name:  cpus-per-task    srun.cpu-bind
_OPTION = re.compile(r"(?:srun\.)?[a-z][a-z0-9-]*")
# a job name that every Slurm command prints so that it can be read back:  xl-overlap-2-3f9c
_JOB_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
# a file that only an accepted job's folder holds:  4711_begun    4711_submission.sh
_ACCEPTED = re.compile(r"(\d+)_(?:begun|submission\.sh)")


class OnSlurm(Executor):
    """What jobs of their own and steps of an allocation have in common: the cluster.

    Args:
        run, sleep: the outside world, for tests.
    """

    names_nodes = True
    scheduler = "Slurm"
    max_in_flight = 0  # Slurm keeps the order of those that share nodes

    def __init__(self, *, run: Run, sleep: Callable[[float], None]) -> None:
        self._run = run
        self._sleep = sleep

    @property
    def _own(self) -> str:
        """The id of the allocation around this session; "" where trials are jobs of their own."""
        return ""

    def resume(self, nodes: Sequence[str]) -> Resumed:
        """Ask Slurm to take drained and dead nodes back; see `nodes.resume_nodes`."""
        return resume_nodes(nodes, run=self._run, sleep=self._sleep)

    def pick_nodes(self, count: int, partition: str) -> tuple[str, ...]:
        """Ask sinfo; see `nodes.pick_nodes`."""
        return pick_nodes(count, partition, run=self._run)

    def node_faults(self, nodelist: Sequence[str], *, partition: str) -> tuple[str, ...]:
        """Ask sinfo; Slurm queues, and a cluster at work has no idle nodes."""
        return check_nodes(nodelist, partition=partition, run=self._run, sleep=self._sleep)

    def busy_note(self, nodelist: Sequence[str]) -> str:
        """Ask squeue; see `nodes.busy_note`."""
        return busy_note(nodelist, run=self._run)

    def look(
        self,
        paths: Sequence[str],
        *,
        checks: Sequence[tuple[str, str]],
        nodelist: Sequence[str],
        options: Mapping[str, str],
    ) -> ProbeResult:
        """Ask the nodes by one short srun, a step of the allocation inside one; see `look`."""
        return look(
            paths,
            checks=checks,
            nodelist=nodelist,
            options=options,
            allocation=self._own,
            run=self._run,
        )


class SlurmExecutor(OnSlurm):
    """An `Executor` on a Slurm cluster: each trial is a job.

    Args:
        run, sleep: the outside world, for tests.
        round_s: see `Poller`.
    """

    name = "slurm"
    has_queue = True

    def __init__(
        self,
        *,
        run: Run = run_command,
        sleep: Callable[[float], None] = time.sleep,
        round_s: float = ROUND_S,
    ) -> None:
        super().__init__(run=run, sleep=sleep)
        self._poller = Poller(run=run, round_s=round_s)

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Call sbatch, again for half a minute where a refusal may pass.

        Raises:
            QueueFull: a limit on submitted jobs is reached.
            ConfigError: an option of the resources is ours to set, or a name is malformed.
            SchedulerDown: the controller is away, sbatch does not answer, or that of another
                session still asks.
            SubmissionError: sbatch refused it for good. A job that was taken all the same starts
                no trainer.
        """
        cancel = request.folder.resolve() / payload.CANCEL
        cancel.unlink(missing_ok=True)
        try:
            return self._hand_in(spec, request)
        except (SchedulerDown, QueueFull):
            raise
        except SubmissionError:
            with contextlib.suppress(OSError):
                cancel.touch()
            raise

    def _hand_in(self, spec: LaunchSpec, request: Request) -> str:
        """Submit the payload, unless the folder or Slurm already has its job; return the job's id.

        Raises as `submit` does.
        """
        folder, name = request.folder.resolve(), request.job_name
        arguments = arguments_of(request)
        if (folder / SCRIPTS).exists():
            self._wait_for_another(folder)
            if found := self.find(request):
                return found
        digest = write_spec(folder, spec)
        secure_files.make_folder(folder / SCRIPTS)
        where = compress(request.nodelist) or "any node"
        waits = iter(RETRY_AFTER_S)
        while (
            reply := script.submit(folder, arguments, digest=digest)
        ).trouble is not Trouble.NONE:
            if reply.is_late:
                break  # people are told, and the next call looks for the job first
            # asked again here for 30 s, a limit on jobs kept all from being polled, and in the end
            # the trial that ran was cancelled
            is_again = reply.trouble.is_passing and reply.trouble is not Trouble.FULL
            wait_s = next(waits, None) if is_again else None
            if wait_s is not None:
                _log.warning("%s is submitted again in %g s: %s", name, wait_s, reply.error)
                self._sleep(wait_s)
            # whatever sbatch says, or does not say, the controller may have taken the job
            is_sure = reply.trouble is Trouble.FULL or reply.code in _NOT_THERE
            if not is_sure and (found := self.find(request)):
                return found
            if wait_s is None:
                break
        secure_files.close_files(folder / SCRIPTS)
        if reply.trouble is Trouble.NONE:
            _log.info("%s is job %s on %s", name, reply.out, where)
            return reply.out
        if reply.trouble is Trouble.AWAY:
            next_ = "; Slurm is asked for it before it is submitted again" if reply.is_late else ""
            raise SchedulerDown(f"job {name} on {where} is not submitted: {reply.error}{next_}")
        said = f"sbatch refused job {name} on {where}: {reply.error}"
        if reply.trouble is Trouble.FULL:
            raise QueueFull(said)
        if reply.trouble is Trouble.UNCLEAR:
            said = f"job {name} on {where} is not submitted, Slurm has no such job: {reply.error}"
        tries = f" (tried {1 + len(RETRY_AFTER_S)} times)" if reply.trouble.is_passing else ""
        raise SubmissionError(f"{said}{tries}; the script is in {folder / SCRIPTS}")

    def script(self, request: Request) -> str:
        """Return the text that `submit` would hand to sbatch. Needs no Slurm; writes nothing."""
        folder = request.folder.resolve()
        return script.render(folder, arguments_of(request), digest=SHOWN_DIGEST)

    def preview(self, trial_id: str, request: Request) -> tuple[str, str]:
        """Return the script for sbatch."""
        return f"script of `{trial_id}` for sbatch", self.script(request)

    def find(self, request: Request) -> str:
        """Return the id of the job that was accepted for this attempt, "" if there is none.

        Looks at what the job left in its folder, then at squeue, then at sacct.

        Raises:
            SchedulerDown: the controller cannot be asked.
        """
        folder, job_name = request.folder.resolve(), request.job_name
        names = [path.name for path in (folder / SCRIPTS).glob("[0-9]*_*")]
        if ids := [match[1] for name in names if (match := _ACCEPTED.fullmatch(name))]:
            _log.info("%s is job %s: its folder says so", job_name, min(ids, key=int))
            return min(ids, key=int)
        # by the user too: squeue would else fetch the jobs of all users, and choose then
        answer = self._run(squeue("-u", getpass.getuser(), "-n", job_name))
        if answer.code:
            raise SchedulerDown(f"squeue does not say whether {job_name} runs: {answer.error}")
        jobs = parse_squeue(answer.out)
        if answer.out.strip() and not jobs:
            said = " ".join(answer.out.split())
            raise SchedulerDown(f"squeue does not say whether {job_name} runs: {said!r:.80}")
        answer = self._run(sacct("-S", _LOOK_BACK, f"--name={job_name}"))
        if not answer.code:
            jobs = parse_sacct(answer.out) | jobs
        # slurmdbd keeps comments only where the site asks it to; the folder is kept everywhere, and
        # tells the baselines of two sweeps on one cell apart
        ours = [job.job_id for job in jobs.values() if _is_of(job, request.comment, folder)]
        if ours:
            _log.info("%s was accepted before: job %s", job_name, min(ours, key=int))
        return min(ours, key=int, default="")

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Ask Slurm once in a few seconds at most; see `Poller.poll`."""
        last = {submission.job_id: submission for submission in submissions}
        known = self._poller.poll(
            {job_id: root / submission.folder for job_id, submission in last.items()}
        )
        earlier = (
            submission for submission in submissions if last[submission.job_id] is not submission
        )
        return known | {
            submission.folder: given_away(root / submission.folder, submission.job_id)
            for submission in earlier
        }

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Call scancel; the nodes are free only when `poll` says so.

        Raises:
            SchedulerDown: the controller cannot be asked; a job that has not started will not
                start its trainer.
            SubmissionError: scancel refused.
        """
        if not submissions:
            return
        for submission in submissions:
            # a full disk takes no mark, but it must not keep a job from its end
            with contextlib.suppress(OSError):
                (root / submission.folder / payload.CANCEL).touch()
        ours = [
            submission.job_id
            for submission in submissions
            if self._is_ours(submission, root / submission.folder)
        ]
        if not ours:
            return
        _log.info("Slurm is asked to cancel %s", ", ".join(ours))
        answer = self._run(["scancel", *ours])
        if answer.trouble not in (Trouble.NONE, Trouble.UNKNOWN_JOB):
            kind = SchedulerDown if answer.trouble is Trouble.AWAY else SubmissionError
            raise kind(f"scancel: {answer.error}")

    def _is_ours(self, submission: Submission, folder: Path) -> bool:
        """Whether a number is still our job's: a controller may have given it away again."""
        job_id = submission.job_id
        known = parse_scontrol(self._run(["scontrol", "show", "job", "-o", job_id]).out)
        job = known.get(job_id)
        if job is None or job.is_in(folder):
            return True
        _log.warning("job %s is another's by now (%s): it is left alone", job_id, job.folder)
        return False

    def _wait_for_another(self, folder: Path) -> None:
        """Wait for the sbatch of a session that was killed: it outlives it, and may be accepted."""
        with os.fdopen(secure_files.open_lock(folder / SCRIPTS / HELD)) as held:
            for _ in range(_ANOTHER_S):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                self._sleep(1.0)
        raise SchedulerDown(f"an sbatch of another session for {folder} is not over yet")


def arguments_of(request: Request) -> dict[str, Any]:
    """Return submitit's parameters for a trial."""
    folder, job_name, comment = request.folder.resolve(), request.job_name, request.comment
    nodelist, resources = request.nodelist, request.resources
    if not _JOB_NAME.fullmatch(job_name):
        raise ConfigError(
            f"job name {job_name!r}: expected 1 to 200 letters, digits and . _ - "
            "(Slurm's own commands cannot be read back with others)"
        )
    if not comment or not comment.isprintable():
        raise ConfigError(f"job comment {comment!r}: expected printable text, it finds the job")
    nodes = resources.nodes or len(nodelist) or 1
    if nodelist and nodes != len(nodelist):
        raise ConfigError(
            f"{nodes} nodes are asked for, but the node list names {len(nodelist)}: "
            f"{compress(nodelist)}"
        )
    options, srun_args = site_options(resources.options)
    arguments = {
        "job_name": job_name,
        "comment": comment,
        "nodes": nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "exclusive": True,
        "time": math.ceil(resources.time_limit_s / 60),
        "setup": _setup(folder / SCRIPTS, logs_in=options.get("export") == SLURM_LOGS_IN),
        # without it the ranks wait in a collective for one that is dead, up to the time limit
        "srun_args": ["--export=ALL", "--kill-on-bad-exit=1", *srun_args],
        # a list of names in `export` cuts a value at its comma, and says nothing
        # ALL is next to nothing, for sbatch itself is given no more; the script logs in. A warning
        # signal that no program minds takes the place of USR2.
        "additional_parameters": {
            "chdir": str(folder),
            "export": "ALL",
            # a requeued job begins anew with its log appended: two starts in one measurement
            "no-requeue": True,
            # submitit's own USR2 reaches the trainer too, and ends one that has no handler
            "signal": "CONT@1",
            **options,
        },
    }
    return arguments | ({"nodelist": compress(nodelist)} if nodelist else {})


def site_options(options: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Split `resources.options` into sbatch's and srun's; an empty value is a bare flag."""
    sbatch: dict[str, Any] = {}
    srun: list[str] = []
    for key, value in options.items():
        name = key.lstrip("-").replace("_", "-")
        if not _OPTION.fullmatch(name):
            raise ConfigError(f"Slurm option {key!r}: expected a name such as partition or qos")
        if name in _OURS:
            raise ConfigError(
                f"Slurm option {key!r} is set by the harness for every trial and cannot be passed "
                "through"
            )
        if name == "export" and value != SLURM_LOGS_IN:
            raise ConfigError(
                f"Slurm option {key!r} is {value!r}: expected {SLURM_LOGS_IN}, so that slurmd "
                "logs in on the node, or nothing, so that the job's script does. Put what else a "
                "trial needs into the launcher's env"
            )
        word = f"--{name.removeprefix('srun.')}" + (f"={value}" if value else "")
        if name.startswith("srun."):
            srun.append(word)
            continue
        sbatch[name] = value or True
        if name == "cpus-per-task":
            srun.append(word)  # since Slurm 22.05 srun does not take it over from the job
    return sbatch, srun


def _setup(scripts: Path, *, logs_in: bool) -> list[str]:
    """Return the script's lines before srun."""
    return [
        *([] if logs_in else [f". {shlex.quote(str(LOGIN))}"]),
        "unset SLURM_JWT",
        "# the session that submits may die before it can write the job's number down",
        f': > {shlex.quote(str(scripts))}/"$SLURM_JOB_ID"_begun',
    ]


def _is_of(job: SlurmJob, comment: str, folder: Path) -> bool:
    """Whether a job is an attempt's: by its folder, which no other has, else by its comment.

    A site may write comments of its own.
    """
    return job.is_in(folder) if job.folder else job.comment == comment


# how long srun may wait for the nodes: they were idle a moment ago
_PATIENCE_S = 15
# the paths, an empty word, then commands; a check is named by its place among them
_SCRIPT = f"""\
while [ -n "$1" ]; do [ -e "$1" ] || echo "$SLURMD_NODENAME{SEPARATOR}$1"; shift; done
number=0
while shift; [ $# -gt 0 ]; do
  sh -c "$1" </dev/null >/dev/null 2>&1 || echo "$SLURMD_NODENAME{SEPARATOR}$number{SEPARATOR}"
  number=$((number + 1))
done
echo "$SLURMD_NODENAME"
"""


def look(
    paths: Sequence[str],
    *,
    checks: Sequence[tuple[str, str]] = (),
    nodelist: Sequence[str],
    options: Mapping[str, str],
    allocation: str = "",
    run: Run = run_command,
) -> ProbeResult:
    """Return which of the paths do not exist and which checks fail on which node.

    Args:
        paths: absolute names.
        checks: shell commands, each with the sentence that says why it fails.
        nodelist: expanded, not empty.
        options: of `Resources`, so that the look runs where the trials will.
        allocation: in which it is a step; "" has it be a job of its own.
        run: runs a command of Slurm's.
    """
    sbatch, _ = site_options(options)
    site = [f"--{key}" if value is True else f"--{key}={value}" for key, value in sbatch.items()]
    if allocation:
        site = [f"--jobid={allocation}"]
    answer = run(
        ["srun", f"--nodelist={compress(nodelist)}", f"--nodes={len(nodelist)}",
         "--ntasks-per-node=1", f"--immediate={_PATIENCE_S}", "--time=1", "--export=NONE",
         "--chdir=/", f"--job-name={OWN_JOBS}preflight", "--quiet", *site,
         "/bin/sh", "-c", _SCRIPT, "sh", *paths, "", *(command for command, _ in checks)]
    )  # fmt: skip
    lines = [line.split(SEPARATOR) for line in answer.out.splitlines()]
    heard = {line[0] for line in lines if len(line) == 1}
    if answer.code or set(nodelist) - heard:
        silent = ", ".join(sorted(set(nodelist) - heard))
        return ProbeResult(unseen={}, why_not=answer.error or f"no answer from {silent}")
    unseen: dict[str, tuple[str, ...]] = {}
    # the nodes answer in any order
    for node, path in sorted(line for line in lines if len(line) == 2):  # noqa: PLR2004
        unseen[path] = (*unseen.get(path, ()), node)
    unfit: dict[str, tuple[str, ...]] = {}
    for node, number, _ in sorted(line for line in lines if len(line) == 3):  # noqa: PLR2004
        wrong = checks[int(number)][1]
        unfit[wrong] = (*unfit.get(wrong, ()), node)
    return ProbeResult(unseen=unseen, unfit=unfit)
