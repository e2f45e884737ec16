"""Submit a trial, watch it, cancel it.

The contract is the class `Executor`; docs/how-to/extend.md shows a complete one. An executor keeps
no state: any process that has the ledger can watch jobs that another process submitted. Only this
package knows the names of executors; other packages read the facts that an executor declares.
Only executors import submitit, and only when they submit something. The logger
`pytest_xlatune.executors` says at INFO what was submitted, cancelled and resumed, and at DEBUG what
Slurm was asked.

The folder of an attempt, written by the harness (<) and by the payload on the node (>):

    < spec.json        the `LaunchSpec`; its digest is in the job's own script
    < secrets.json     the secret parts of the spec; removed as soon as the attempt is over
    < cancel           asks the payload not to start, or to end; a signal is sent too
    < hung             asks each rank of a job that hangs to write down what its processes do
    > hang.json        a `HangLook`: what they did, written before the job is ended
    > stacks/          the hook that writes the stacks of a Python process, and those stacks
    > payload.txt      what a payload on this machine prints, for example why it did not start
    > claimed.json     host, process id and start of the one payload that runs; time of this claim
    > started.json     the same for the trainer, once it runs
    > log.<rank>.txt   standard output and error of that rank, merged, written as they come
    > environment.json what the first rank of each node ran on; renamed into place
    > outcome.json     how rank 0 ended; renamed into place

The files without a rank in their names are those of rank 0; the other ranks have
`claimed.<rank>.json`, and so on. `secure_files` opens all of them below the descriptor of the
folder, follows no link, and reads only files of the user.

Nodes are always named one by one; `model.hosts` translates the notation of Slurm for lists.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial

JOB_NAME_PREFIX = "xlt-"  # the names of our jobs begin with it
LOCK_VARIABLE = "XLATUNE_MACHINE_LOCK"


class SchedulerDown(SubmissionError):  # noqa: N818 - a state to wait out, no error
    """The scheduler does not answer. Nothing is known of any job, and nothing is lost: ask again.

    Any method of an executor may raise it. If the scheduler is silent for too long, the executor
    raises a plain `SubmissionError` instead.
    """


class QueueFull(SubmissionError):  # noqa: N818 - a state to wait out, no error
    """A limit on submitted jobs is reached. Nothing is wrong: submit again when a job has ended."""


class AllocationOver(SubmissionError):  # noqa: N818 - a state, no error
    """The nodes of this session take no further trial; what runs on them may still end."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt is submitted with, besides its `LaunchSpec`.

    Attributes:
        folder: the folder of the attempt.
        job_name: the name of the job, as the scheduler shows it.
        comment: the comment of the job, which names the attempt.
        nodelist: the nodes by name; () if the scheduler picks them.
        resources: what the job asks the scheduler for.
    """

    folder: Path
    job_name: str
    comment: str
    nodelist: tuple[str, ...] = ()
    resources: Resources


def request_for(
    trial: Trial,
    number: int,
    *,
    run: str,
    folder: Path,
    nodelist: tuple[str, ...],
    resources: Resources,
) -> Request:
    """Return the request of an attempt, whose folder is below the folder of its ledger.

    `run` is the id of the session that began the ledger. It keeps the names of attempts distinct
    from those of an earlier ledger that was moved aside.
    """
    name = f"{trial.id}.{number}"
    return Request(
        folder=folder / run / name,
        # a job name may not contain the `+` of a stack; the digest in the id keeps names distinct
        job_name=f"{JOB_NAME_PREFIX}{trial.id.replace('+', '_')}",
        comment=f"xlatune:{run}:{name}",
        nodelist=nodelist,
        resources=resources,
    )


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt to make nodes fit for work again."""

    nodes: tuple[str, ...] = ()  # the nodes that were resumed
    faults: tuple[str, ...] = ()  # what is still wrong, one sentence for each fault
    unfit: tuple[str, ...] = ()  # the nodes that these faults are about


def outcome_of(outcomes: Mapping[str, Outcome], submission: Submission) -> Outcome | None:
    """Return the outcome of a submission in the result of `Executor.poll`; None if unknown."""
    return outcomes.get(submission.folder) or outcomes.get(submission.job_id)


def machine_lock() -> Path:
    """Return the file whose lock limits this machine to one trial of this user at a time.

    XLATUNE_MACHINE_LOCK names another file, for a machine that is split and for our own tests.
    XDG_RUNTIME_DIR and TMPDIR are not used, because jobs, `su` and containers may have those of
    another session.

    Raises:
        SubmissionError: the file or its folder does not belong to this user.
    """
    path = Path(os.environ.get(LOCK_VARIABLE) or f"/tmp/xlatune-{os.geteuid()}/machine.lock")  # noqa: S108 - checked
    try:
        os.close(secure_files.open_lock(path))
    except OSError as error:
        raise SubmissionError(f"the machine's lock: {error}") from error
    return path


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the nodes to `Executor.probe`."""

    unseen: Mapping[str, tuple[str, ...]]  # path -> the nodes that do not see it
    why_not: str = ""  # why the nodes could not be asked; "" if they were


class Executor(abc.ABC):
    """The place where trials run. A subclass must have `submit`, `poll` and `cancel`.

    The defaults of the other methods and facts say no, none or unknown.

    Attributes:
        name: the name by which sweeps, ledgers and the entry point know the executor.
        is_here: whether trials are processes of this machine, with its files and interpreter. The
            compile check may then run the trainer. Elsewhere something outside the payload, such as
            `timeout` or Slurm, must end a trial that still runs after `Resources.time_limit_s`.
        names_nodes: whether trials run on the nodes of `Request.nodelist`. A sweep must then name
            its nodes or their number, and may have slots. If not, all trials run in one place.
        has_queue: whether each trial is a job that may wait; a plan says how long jobs waited.
        holds_nodes: whether trials are steps on the nodes of this session, `own_nodes`. The
            campaign then runs one trial at a time on each node.
        scheduler: the name of the scheduler, as messages write it; "" if there is none.
        max_in_flight: how many submissions may be unfinished at a time; 0 if the scheduler makes
            those that share a node wait for each other. In any case the campaign submits at most
            two trials ahead of the one that runs on a node.
    """

    name: ClassVar[str]
    is_here: ClassVar[bool] = False
    names_nodes: ClassVar[bool] = False
    has_queue: ClassVar[bool] = False
    holds_nodes: ClassVar[bool] = False
    scheduler: ClassVar[str] = ""
    max_in_flight: int = 0

    # -- trials -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Write `spec.json` into the folder, submit the payload and return the job id.

        Submitting an attempt again is safe: if it already has a job, the id of that job is returned
        and nothing is submitted. A process that finds an intended attempt without a submission in
        the ledger therefore submits it.

        Raises:
            SubmissionError: the attempt was refused for good, and nothing runs.
        """

    @abc.abstractmethod
    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return job id -> its outcome so far, without blocking for long; `outcome_of` reads it.

        A job that is left out is unknown this time. An `Outcome` whose state is pending or running
        is not final. A controller that lost its state uses job ids again: if two submissions have
        one job id, the job belongs to the later one, and the outcome of the earlier one has the
        `folder` of its submission as its key. `root` is the work directory that
        `Submission.folder` is relative to.
        """

    @abc.abstractmethod
    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Ask for the end of these jobs; `poll` tells when they are over."""

    def resume(self, nodes: Sequence[str]) -> Resumed:
        """Make drained or dead nodes fit again, with two tries at most; `nodes` may be ().

        No fault means that all nodes are fit, whether or not anything had to be done.
        """
        return Resumed(faults=(f"executor {self.name} cannot resume nodes",), unfit=tuple(nodes))

    # -- before anything is submitted: asked by a sweep, a preflight and a plan --------------------

    def own_nodes(self) -> tuple[str, ...]:
        """Return the nodes of this session, on which trials without a node list run; () if none."""
        return ()

    def faults(self, *, nodelist: Sequence[str], resources: Resources) -> tuple[str, ...]:
        """Return faults that keep trials from running on fit nodes, one sentence each."""
        del nodelist, resources
        return ()

    def node_faults(self, nodelist: Sequence[str]) -> tuple[str, ...]:
        """Return what is wrong with nodes, one sentence for each fault; a busy node is fit."""
        del nodelist
        return ()

    def busy_note(self, nodelist: Sequence[str]) -> str:
        """Return a note on other users' jobs on the nodes; "" if no trial has to wait for one."""
        del nodelist
        return ""

    def probe(
        self,
        paths: Sequence[str],
        *,
        nodelist: Sequence[str],
        options: Mapping[str, str],
    ) -> ProbeResult:
        """Return which paths the nodes do not see; `options`: see `Resources`."""
        del paths, nodelist, options
        return ProbeResult(unseen={}, why_not=f"executor {self.name} cannot ask the nodes")

    def preview(self, trial_id: str, request: Request) -> tuple[str, str] | None:
        """Return a title and the text that `submit` would hand to a scheduler; write nothing.

        None means that there is no such text.

        Raises:
            ConfigError: an option of the resources cannot be passed on.
        """
        del trial_id, request
        return None


# -- executors by their names; another distribution adds one by an entry point of this group

LOCAL, SLURM, ALLOCATION = "local", "slurm", "allocation"
EXECUTORS = EntryPointGroup(
    "pytest_xlatune.executors",
    kind="executor",
    ours={
        LOCAL: "pytest_xlatune.executors.local:LocalExecutor",
        SLURM: "pytest_xlatune.executors.slurm:SlurmExecutor",
        ALLOCATION: "pytest_xlatune.executors.slurm.allocation:AllocationExecutor",
    },
)
DEFAULT = SLURM  # the executor if a sweep names none


def class_named(name: str, *, where: str = "the sweep") -> type[Executor]:
    """Return the class of an executor, whose attributes say what it can do.

    Raises:
        ConfigError: there is no such name, it cannot be loaded, or it is no executor.
    """
    executor_class = EXECUTORS.load(name, where=where)
    if not (isinstance(executor_class, type) and issubclass(executor_class, Executor)):
        raise ConfigError(
            f"executor {name!r} of {EXECUTORS.source(name)} is {executor_class!r}, expected a "
            f"subclass of {Executor.__module__}.{Executor.__qualname__}"
        )
    if executor_class.name != name:
        raise ConfigError(
            f"executor {name!r} of {EXECUTORS.source(name)} calls itself {executor_class.name!r}; "
            "ledgers hold that name, so its entry point must have it too"
        )
    return executor_class


def executor_in(folder: Path, name: str) -> Executor:
    """Return the executor that handles the jobs of a ledger.

    Raises:
        LedgerError: the executor is not installed here, or cannot be loaded.
    """
    try:
        return class_named(name, where=f"the ledger in {folder}")()
    except ConfigError as error:
        raise LedgerError(
            f"{error}. Its jobs cannot be watched: install its distribution, or end them yourself"
        ) from None
