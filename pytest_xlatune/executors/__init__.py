"""Submit a trial, look after it, cancel it.

The contract on one screen. An executor keeps no state of its own: whoever holds the ledger can look
after jobs that another process, now dead, submitted. submitit is imported inside the executors
only, and only when something is submitted.

The folder of an attempt, written by the harness (<) and by the payload on the node (>):

    < spec.json        the `LaunchSpec`
    < cancel           asks for no start, or, beside a signal, for an end
    > claimed.json     host, process id and its start time, time: of the payload; run once only
    > started.json     the same of the trainer, once there is one
    > log.<rank>.txt   standard output and standard error of that rank, merged, streamed
    > outcome.json     how rank 0 ended, by rename

These are rank 0's; the other ranks have `claimed.<rank>.json`, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_xlatune.cells import LaunchSpec, Resources
from pytest_xlatune.errors import SubmissionError
from pytest_xlatune.results import Outcome, Submission

OWN_JOBS = "xlt-"  # how the names of our jobs begin


class SchedulerDown(SubmissionError):  # noqa: N818 - a state of the world, to be waited out
    """The scheduler does not answer. Nothing is known of any job, and nothing is lost: ask again.

    Any method of an executor may raise it. After its patience is spent an executor raises a plain
    `SubmissionError` instead.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What was done to bring nodes back: which were resumed, and all that is still wrong."""

    nodes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


class Executor(Protocol):
    """Where trials run."""

    @property
    def name(self) -> str:
        """`local` or `slurm`."""
        ...

    @property
    def max_in_flight(self) -> int:
        """How many submissions may be unfinished at a time."""
        ...

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
        """Write `spec.json` into `folder`, submit the payload and return the job id.

        `comment` identifies the attempt, and submitting it again is safe: where the folder or the
        scheduler already has a job of that comment, its id is returned and nothing is submitted.
        So whoever finds an attempt that was intended but not journalled just submits it.

        Raises:
            SubmissionError: it was refused for good; nothing runs.
        """
        ...

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Return job id -> where it stands, for every submission; never blocks for long.

        An `Outcome` whose state is pending or running is not final. `root` is the work directory
        that `Submission.folder` is relative to.
        """
        ...

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """Ask for an end of these jobs; `poll` tells when they are over."""
        ...

    def resume(self, nodes: Sequence[str]) -> Resumed:
        """Bring drained or dead nodes back, trying twice at most; () are nodes picked by nobody.

        No fault means that all are fit, whether or not anything had to be done.
        """
        ...
