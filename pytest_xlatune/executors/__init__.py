"""Submit a trial, look after it, cancel it.

The contract on one screen. An executor keeps no state of its own: any process with the ledger can
look after jobs that another one, now dead, submitted. submitit is imported inside the executors
only, and only when something is submitted. The logger `pytest_xlatune.executors` says at INFO what
was submitted, cancelled and resumed, and at DEBUG what Slurm was asked.

The folder of an attempt, written by the harness (<) and by the payload on the node (>):

    < spec.json        the `LaunchSpec`; its digest stands in the job's own script
    < secrets.json     what of it holds a secret; removed as soon as the attempt is over
    < cancel           asks for no start, or, beside a signal, for an end
    > claimed.json     host, process id and its start time, time: of the payload; run once only
    > started.json     the same of the trainer, once there is one
    > log.<rank>.txt   standard output and standard error of that rank, merged, streamed
    > environment.json what the trial ran on, of the first rank of each node; by rename
    > outcome.json     how rank 0 ended, by rename
    < outcome.json.unreadable  an outcome that could not be read, as it was found

These are rank 0's; the other ranks have `claimed.<rank>.json`, and so on.

All are opened by `owned`: below the folder's descriptor, without links, the user's own alone.
Nodes are named one by one; `model.hosts` translates Slurm's notation of a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial

OWN_JOBS = "xlt-"  # how the names of our jobs begin


class SchedulerDown(SubmissionError):  # noqa: N818 - a state of the world, to be waited out
    """The scheduler does not answer. Nothing is known of any job, and nothing is lost: ask again.

    Any method of an executor may raise it. After its patience is spent an executor raises a plain
    `SubmissionError` instead.
    """


class QueueFull(SubmissionError):  # noqa: N818 - as above
    """A limit on submitted jobs is reached. Nothing is wrong: submit again when a job has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an attempt is submitted with, besides its `LaunchSpec`.

    Attributes:
        folder: of the attempt.
        job_name: as the scheduler shows it.
        comment: by which the attempt is found again.
        nodelist: the nodes by name; () leaves them to the scheduler.
        allocation: the study's own name of the allocation that it is to be a step of, and of no
            other; "" is any.
    """

    folder: Path
    job_name: str
    comment: str
    nodelist: tuple[str, ...] = ()
    resources: Resources
    allocation: str = ""


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
        allocation=trial.allocation,
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


class Executor(Protocol):
    """Where trials run."""

    @property
    def name(self) -> str:
        """`local` or `slurm`."""
        ...

    @property
    def max_in_flight(self) -> int:
        """How many submissions may be unfinished at a time; 0 leaves it to the nodes.

        Whatever it is, the campaign keeps no more than two submissions ahead of what runs on a
        node.
        """
        ...

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Write `spec.json` into the folder, submit the payload and return the job id.

        Submitting an attempt again is safe: where the folder or the scheduler already has a job of
        its comment, the id of that is returned and nothing is submitted.
        So a process that finds an attempt that was intended but not journalled submits it.

        Raises:
            SubmissionError: it was refused for good; nothing runs.
        """
        ...

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return job id -> where it stands; never blocks for long. `standing` reads it.

        A controller that lost its state gives numbers away again. Of two submissions of one job id
        the job is the later one's, and the earlier one stands under its `folder`.
        A job that is left out is not known this time. An `Outcome` whose state is pending or
        running is not final. `root` is the work directory that `Submission.folder` is relative to.
        """
        ...

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Ask for an end of these jobs; `poll` tells when they are over."""
        ...

    def resume(self, nodes: Sequence[str]) -> Resumed:
        """Bring drained or dead nodes back, trying twice at most; () is no node.

        No fault means that all are fit, whether or not anything had to be done.
        """
        ...
