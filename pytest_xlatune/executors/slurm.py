"""Submit trials to Slurm through submitit, watch them with our own poller, cancel them.

submitit renders the batch script and calls sbatch; its watcher is not used, and neither is what it
starts on a node: srun runs the payload's file itself, so a node needs an interpreter and nothing
that would have to be imported before every trial. Who may die when: `submit` called again for the
same folder and comment finds the job that was already accepted. This module knows no ledger and no
log of a trainer.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_xlatune.cells import LaunchSpec, Resources
from pytest_xlatune.errors import ConfigError, SubmissionError
from pytest_xlatune.executors import Resumed, SchedulerDown, payload, slurm_text
from pytest_xlatune.executors.folder import is_same_attempt, write_spec
from pytest_xlatune.executors.hostlist import compress
from pytest_xlatune.executors.poller import PATIENCE_S, ROUND_S, Poller
from pytest_xlatune.executors.slurm_commands import (
    Run,
    is_away,
    is_for_now,
    run_command,
    steering_names,
    unneeded_names,
)
from pytest_xlatune.executors.slurm_nodes import resume_nodes
from pytest_xlatune.results import Outcome, Submission

# seconds before each further call of sbatch; the look-up comes between the wait and the call, so
# that a request still in the controller's queue has been worked off when we look
RETRY_AFTER_S = (1.0, 2.0, 4.0, 8.0, 15.0)
SCRIPTS = "submitit"  # the folder of submitit's own files, inside the attempt's
_HELD = "sbatch.lock"  # in it; held as long as an sbatch runs, whoever started it
_ANOTHER_S = 30
LOGIN = Path(__file__).with_name("login.sh")
_LOOK_BACK = "now-14days"
_MINUTE_S = 60

# What the harness decides for every trial: measured trials stay comparable, and ours to find.
_OURS = frozenset(
    {
        "array", "chdir", "comment", "error", "exclusive", "export-file", "input",
        "job-name", "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode",
        "output", "oversubscribe", "parsable", "requeue", "signal", "test-only", "time", "wait",
        "wrap",
    }
)  # fmt: skip
# the one value of the option `export` that a site may ask for: slurmd then logs in for every job
_SLURM_LOGS_IN = "NONE"
# an option's name:  cpus-per-task    srun.cpu-bind
_OPTION = re.compile(r"(?:srun\.)?[a-z][a-z0-9-]*")
# a job name that every Slurm command prints so that it can be read back:  xl-overlap-2-3f9c
_JOB_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
# a file that only an accepted job's folder holds:  4711_begun    4711_submission.sh
_ACCEPTED = re.compile(r"(\d+)_(?:begun|submission\.sh)")


class SlurmExecutor:
    """An `Executor` on a Slurm cluster.

    Args:
        max_in_flight: submissions that may be unfinished at a time; Slurm keeps their order.
        python: the interpreter on the nodes, as a shell word; "" is this one.
        completions: the site's job completion file, where it can be read.
        run, clock, sleep: the outside world, for tests.
        round_s, patience_s: see `Poller`.
    """

    name = "slurm"

    def __init__(
        self,
        *,
        max_in_flight: int = 8,
        python: str = "",
        completions: Path | None = None,
        run: Run = run_command,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        round_s: float = ROUND_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.max_in_flight = max_in_flight
        self._python = python
        self._run = run
        self._sleep = sleep
        self._poller = Poller(
            run=run, clock=clock, round_s=round_s, patience_s=patience_s, completions=completions
        )

    def submit(
        self,
        spec: LaunchSpec,
        *,
        folder: Path,
        job_name: str,
        comment: str,
        nodelist: Sequence[str],
        resources: Resources,
    ) -> str:
        """Write `spec.json`, submit the payload and return the job id; never submits twice.

        Called again for the same folder and comment, whoever called first, it returns the job
        that was accepted then, if one was.

        Raises:
            ConfigError: an option of `resources` is ours to set, or a name is malformed.
            SchedulerDown: the controller is away, or another session's sbatch still asks it; call
                again later.
            SubmissionError: it was refused for good; nothing runs.
        """
        folder = folder.resolve()
        arguments = _arguments(folder, job_name, comment, nodelist, resources)
        if (folder / SCRIPTS).exists():
            self._wait_for_another(folder)
            if found := self.find(folder=folder, job_name=job_name, comment=comment):
                return found
        write_spec(folder, spec)
        (folder / SCRIPTS).mkdir(exist_ok=True)
        error = ""
        for wait_s in (0.0, *RETRY_AFTER_S):
            if wait_s:
                self._sleep(wait_s)
                if found := self.find(folder=folder, job_name=job_name, comment=comment):
                    return found
            accepted, error = self._sbatch(folder, arguments)
            if accepted:
                return accepted
            if not is_for_now(error):
                break
        said = f"sbatch refused job {job_name} on {compress(nodelist) or 'any node'}: {error}"
        if is_away(error):
            raise SchedulerDown(said)
        tries = f" (tried {1 + len(RETRY_AFTER_S)} times)" if is_for_now(error) else ""
        raise SubmissionError(f"{said}{tries}; the script is in {folder / SCRIPTS}")

    def script(
        self,
        *,
        folder: Path,
        job_name: str,
        comment: str,
        nodelist: Sequence[str],
        resources: Resources,
    ) -> str:
        """Return the text that `submit` would hand to sbatch. Needs no Slurm; writes nothing.

        Raises:
            ConfigError: as `submit`.
        """
        folder = folder.resolve()
        executor = self._submitit(
            folder, _arguments(folder, job_name, comment, nodelist, resources)
        )
        command = executor._submitit_command_str  # noqa: SLF001 - submitit has no public dry run
        return str(executor._make_submission_file_text(command, "dry-run"))  # noqa: SLF001

    def find(self, *, folder: Path, job_name: str, comment: str) -> str:
        """Return the id of the job that was accepted for this attempt, "" if there is none.

        Looks at what the job left in its folder, then at squeue, then at sacct.

        Raises:
            SchedulerDown: the controller cannot be asked.
        """
        if ids := sorted(_accepted_ids(folder), key=int):
            return ids[0]
        form = slurm_text.SEPARATOR.join(slurm_text.SQUEUE_FIELDS)
        answer = self._run(["squeue", "-h", "-t", "all", "-n", job_name, "-o", form])
        if answer.code:
            raise SchedulerDown(f"squeue does not say whether {job_name} runs: {answer.error}")
        jobs = slurm_text.parse_squeue(answer.out)
        form = ",".join(slurm_text.SACCT_FIELDS)
        answer = self._run(
            ["sacct", "-n", "-X", "-P", f"--delimiter={slurm_text.SEPARATOR}",
             "-S", _LOOK_BACK, f"--name={job_name}", "-o", form]
        )  # fmt: skip
        if not answer.code:
            jobs = slurm_text.parse_sacct(answer.out) | jobs
        # slurmdbd keeps comments only where the site asks it to; the folder is kept everywhere, and
        # tells the baselines of two sweeps on one cell apart
        ours = [job.job_id for job in jobs.values() if _is_of(job, comment, folder.resolve())]
        return min(ours, key=int, default="")

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return job id -> where it stands, asking Slurm once in a few seconds at most.

        Raises:
            SchedulerDown: the controller does not answer; nothing is known, ask again.
            SubmissionError: it has not answered for a quarter of an hour.
        """
        return self._poller.poll({each.job_id: root / each.folder for each in submissions})

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Ask for an end of these jobs; the nodes are free only when `poll` says so.

        Raises:
            SchedulerDown: the controller cannot be asked; the jobs that have not started will
                not start their trainer.
            SubmissionError: scancel refused.
        """
        if not submissions:
            return
        for each in submissions:
            # a full disk takes no mark, but it must not keep a job from its end
            with contextlib.suppress(OSError):
                (root / each.folder / payload.CANCEL).touch()
        answer = self._run(["scancel", *(each.job_id for each in submissions)])
        # scancel: error: Kill job error on job id 4711: Invalid job id specified
        if answer.code and "invalid job id" not in answer.error.lower():
            kind = SchedulerDown if is_away(answer.error) else SubmissionError
            raise kind(f"scancel: {answer.error}")

    def resume(self, nodes: Sequence[str]) -> Resumed:
        """Ask Slurm to take drained and dead nodes back; see `slurm_nodes.resume_nodes`."""
        return resume_nodes(nodes, run=self._run, sleep=self._sleep)

    def _wait_for_another(self, folder: Path) -> None:
        """Wait for the sbatch of a session that was killed: it outlives it, and may be accepted."""
        with (folder / SCRIPTS / _HELD).open("a") as held:
            for _ in range(_ANOTHER_S):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                self._sleep(1.0)
        raise SchedulerDown(f"an sbatch of another session for {folder} is not over yet")

    def _sbatch(self, folder: Path, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Submit once; return the job id and "", or "" and the error."""
        import submitit.core.utils as submitit_errors  # noqa: PLC0415 - not before it is needed

        try:
            executor = self._submitit(folder, arguments)
            # `submit` would pickle a function, for a node that then had to import all it refers to
            job = executor._submit_command(executor._submitit_command_str)  # noqa: SLF001
        except FileNotFoundError:
            return "", "sbatch: command not found on this machine"
        except (
            submitit_errors.FailedJobError,
            submitit_errors.FailedSubmissionError,
        ) as error:
            return "", " ".join(str(error).split()) or "sbatch said nothing"
        return str(job.job_id), ""

    def _submitit(self, folder: Path, arguments: Mapping[str, Any]) -> Any:
        executor = _submitit_class()(
            folder=folder / SCRIPTS, max_num_timeout=0, python=self._python or None
        )
        executor.update_parameters(**arguments)
        return executor


@functools.cache
def _submitit_class() -> Any:
    """Return submitit's executor, which runs our payload as a script.

    It calls sbatch without what would steer it behind our back.
    """
    from submitit.slurm.slurm import SlurmExecutor as Submitit  # noqa: PLC0415 - slow to import

    class Executor(Submitit):
        @classmethod
        def affinity(cls) -> int:
            return 2  # a script can be rendered where there is no srun

        @property
        def _submitit_command_str(self) -> str:
            # isolated and without site: the payload needs the standard library only
            words = (payload.__file__, str(Path(self.folder).parent))
            return f"{self.python} -I -S {shlex.join(words)}"

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            logs_in = self.parameters["additional_parameters"]["export"] == _SLURM_LOGS_IN
            names = steering_names(os.environ) if logs_in else unneeded_names(os.environ)
            dropped = [word for name in names for word in ("-u", name)]
            # flock itself holds it: what sbatch may leave running does not
            held = ["flock", "-o", str(Path(self.folder) / _HELD)] if shutil.which("flock") else []
            return [*held, "env", *dropped, "sbatch", str(submission_file_path)]

    return Executor


def _arguments(
    folder: Path,
    job_name: str,
    comment: str,
    nodelist: Sequence[str],
    resources: Resources,
) -> dict[str, Any]:
    """Return submitit's parameters for a trial."""
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
        "time": math.ceil(resources.time_limit_s / _MINUTE_S),
        "setup": _setup(folder / SCRIPTS, logs_in=options.get("export") == _SLURM_LOGS_IN),
        "srun_args": ["--export=ALL", "--kill-on-bad-exit=1", *srun_args],
        # ALL is next to nothing, for sbatch itself is given no more; the script logs in. A warning
        # signal that nobody minds takes the place of USR2.
        "additional_parameters": {
            "chdir": str(folder),
            "export": "ALL",
            "no-requeue": True,
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
        if name == "export" and value != _SLURM_LOGS_IN:
            raise ConfigError(
                f"Slurm option {key!r} is {value!r}: expected {_SLURM_LOGS_IN}, with which slurmd "
                "logs in on the node, or nothing, with which the job's script does; what else a "
                "trial needs belongs into the launcher's env"
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
        "# whoever submitted may have died before it could write the job's number down",
        f': > {shlex.quote(str(scripts))}/"$SLURM_JOB_ID"_begun',
    ]


def _is_of(job: slurm_text.Job, comment: str, folder: Path) -> bool:
    """Whether a job is an attempt's, by its comment and its folder, as far as those are kept."""
    if not job.comment:
        return job.folder == str(folder)
    is_there = not job.folder or is_same_attempt(Path(job.folder), folder)
    return job.comment == comment and is_there


def _accepted_ids(folder: Path) -> list[str]:
    names = [path.name for path in (folder / SCRIPTS).glob("[0-9]*_*")]
    return [match[1] for name in names if (match := _ACCEPTED.fullmatch(name))]
