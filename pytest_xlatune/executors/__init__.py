"""Submit a trial, look after it, cancel it.

The contract is the class `Executor`; docs/how-to/extend.md shows a whole one. An executor keeps no
state of its own: any process with the ledger can look after jobs that another one, now dead,
submitted. The names of executors stand in this package alone: others ask for facts. submitit is
imported inside the executors only, and only when something is submitted. The logger
`pytest_xlatune.executors` says at INFO what was submitted, cancelled and resumed, and at DEBUG what
Slurm was asked.

The folder of an attempt, written by the harness (<) and by the payload on the node (>):

    < spec.json        the `LaunchSpec`; its digest stands in the job's own script
    < secrets.json     what of it holds a secret; removed as soon as the attempt is over
    > job.json         on this machine: the process of the payload, and the comment
    < cancel           asks for no start, or, beside a signal, for an end
    < hung             asks each rank to write down what its processes do: they stand still
    > hang.json        what they did just then, a `HangLook`, before a job that hangs is ended
    > stacks/          the hook by which a Python process tells its stacks, and what they told
    > claimed.json     host, process id and its start time, time: of the payload; run once only
    > started.json     the same of the trainer, once there is one
    > log.<rank>.txt   standard output and standard error of that rank, merged, streamed
    > environment.json what the trial ran on, of the first rank of each node; by rename
    > outcome.json     how rank 0 ended, by rename
    < outcome.json.unreadable  an outcome that could not be read, as it was found

These are rank 0's; the other ranks have `claimed.<rank>.json`, and so on.

All are opened by `secure_files`: below the folder's descriptor, without links, and only the
user's own.
Nodes are named one by one; `model.hosts` translates Slurm's notation of a list of them.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial

OWN_JOBS = "xlt-"  # how the names of our jobs begin
LOCK_VARIABLE = "XLATUNE_MACHINE_LOCK"


class SchedulerDown(SubmissionError):  # noqa: N818 - a state of the world, to be waited out
    """The scheduler does not answer. Nothing is known of any job, and nothing is lost: ask again.

    Any method of an executor may raise it. After its patience is spent an executor raises a plain
    `SubmissionError` instead.
    """


class QueueFull(SubmissionError):  # noqa: N818 - as above
    """A limit on submitted jobs is reached. Nothing is wrong: submit again when a job has ended."""


class AllocationOver(SubmissionError):  # noqa: N818 - as above
    """The nodes that this session is on take no further trial; what runs on them may still end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an attempt is submitted with, besides its `LaunchSpec`.

    Attributes:
        folder: of the attempt.
        job_name: as the scheduler shows it.
        comment: by which the attempt is found again.
        nodelist: the nodes by name; () leaves them to the scheduler.
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
    """Return what an attempt is submitted with, below the folder of its ledger.

    `run` is the session that began the ledger: attempts of a ledger moved aside are not ours.
    """
    name = f"{trial.id}.{number}"
    return Request(
        folder=folder / run / name,
        # a stack has a `+` in its id, which no job's name may have; the digest keeps names apart
        job_name=f"{OWN_JOBS}{trial.id.replace('+', '_')}",
        comment=f"xlatune:{run}:{name}",
        nodelist=nodelist,
        resources=resources,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What was done to bring nodes back."""

    nodes: tuple[str, ...] = ()  # those that were resumed
    tried: tuple[str, ...] = ()  # those that are unfit although they were
    faults: tuple[str, ...] = ()  # all that is still wrong, one sentence each
    unfit: tuple[str, ...] = ()  # the nodes that `faults` are about


def standing(outcomes: Mapping[str, Outcome], submission: Submission) -> Outcome | None:
    """Return where a submission stands by what `Executor.poll` returned; None is not known."""
    return outcomes.get(submission.folder) or outcomes.get(submission.job_id)


def machine_lock() -> Path:
    """Return the file whose lock lets one trial of this user run on this machine at a time.

    XLATUNE_MACHINE_LOCK names another, for a machine that is split and for our own tests.

    Raises:
        SubmissionError: its folder is not this user's own.
    """
    if path := os.environ.get(LOCK_VARIABLE):
        return Path(path)
    try:
        return secure_files.runtime_folder() / "machine.lock"
    except OSError as error:
        raise SubmissionError(f"the machine's lock: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What the nodes see."""

    unseen: Mapping[str, tuple[str, ...]]  # path -> the nodes that do not see it
    # why a check failed -> the nodes where it did
    unfit: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    why_not: str = ""  # why the nodes could not be asked, "" where they were


class Executor(abc.ABC):
    """Where trials run. Three methods must be there; a default says no, none, or not known.

    Attributes:
        name: by which sweeps, ledgers and the entry point know it.
        is_here: trials are processes of this machine: its files and interpreter are theirs, and the
            compile check may run the trainer. Elsewhere a trial must be ended from outside after
            `Resources.time_limit_s`, as `timeout` or Slurm does, should its payload hang.
        names_nodes: trials run on nodes that a sweep names or counts, in `Request.nodelist`; a
            sweep must do so, and may have slots. Else all run in one place.
        has_queue: each trial is a job that may wait; a plan says how long jobs waited.
        holds_nodes: trials are steps on the nodes that this session is on, of `own_nodes`. The
            campaign has one at a time on each node.
        scheduler: its name, as messages write it; "" is none.
        max_in_flight: how many submissions may be unfinished at a time; 0 where a scheduler has
            those that share a node wait for each other. The campaign keeps no more than two ahead
            of what runs on a node, whatever it is.
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

        Submitting an attempt again is safe: where the folder or the scheduler already has a job of
        its comment, the id of that is returned and nothing is submitted.
        So a process that finds an attempt that was intended but not journalled submits it.

        Raises:
            SubmissionError: it was refused for good; nothing runs.
        """

    @abc.abstractmethod
    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return job id -> where it stands; never blocks for long. `standing` reads it.

        A controller that lost its state gives numbers away again. Of two submissions of one job id
        the job is the later one's, and the earlier one stands under its `folder`.
        A job that is left out is not known this time. An `Outcome` whose state is pending or
        running is not final. `root` is the work directory that `Submission.folder` is relative to.
        """

    @abc.abstractmethod
    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Ask for an end of these jobs; `poll` tells when they are over."""

    def resume(self, nodes: Sequence[str]) -> Resumed:
        """Bring drained or dead nodes back, trying twice at most; () is no node.

        No fault means that all are fit, whether or not anything had to be done.
        """
        return Resumed(faults=(f"executor {self.name} brings no node back",), unfit=tuple(nodes))

    # -- before anything is submitted: asked by a sweep, a preflight and a plan --------------------

    def own_nodes(self) -> tuple[str, ...]:
        """Return the nodes that this session is on, and trials without a node list then too."""
        return ()

    def pick_nodes(self, count: int, partition: str) -> tuple[str, ...]:
        """Return so many equal nodes of a partition.

        Raises:
            ConfigError, SubmissionError: there are none, or this cannot be told.
        """
        raise ConfigError(f"executor {self.name} picks no {count} nodes of {partition}: name them")

    def faults(self, *, nodelist: Sequence[str], resources: Resources) -> tuple[str, ...]:
        """Return all that keeps trials from running whose nodes are fit, one sentence each."""
        del nodelist, resources
        return ()

    def node_faults(self, nodelist: Sequence[str], *, partition: str) -> tuple[str, ...]:
        """Return all that is wrong with nodes, one sentence each; one at work is fit."""
        del nodelist, partition
        return ()

    def busy_note(self, nodelist: Sequence[str]) -> str:
        """Say behind which jobs of others trials on these nodes wait; "" is none."""
        del nodelist
        return ""

    def time_note(self) -> str:
        """Say until when trials can run on the nodes that this session is on; "" is no limit."""
        return ""

    def look(
        self,
        paths: Sequence[str],
        *,
        checks: Sequence[tuple[str, str]],
        nodelist: Sequence[str],
        options: Mapping[str, str],
    ) -> ProbeResult:
        """Return which paths the nodes do not see, and which checks fail there.

        A check is a shell command and the sentence that says why it fails; `options` are those of
        `Resources`.
        """
        del paths, checks, nodelist, options
        return ProbeResult(unseen={}, why_not=f"executor {self.name} cannot ask them")

    def preview(self, trial_id: str, request: Request) -> tuple[str, str] | None:
        """Return a title and the text that `submit` would hand to a scheduler. Writes nothing.

        Raises:
            ConfigError: an option of the resources cannot be passed on.
        """
        del trial_id, request
        return None
