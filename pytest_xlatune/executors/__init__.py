"""Submit a trial, look after it, cancel it.

The contract on one screen. An executor keeps no state of its own: any process with the ledger can
look after jobs that another one, now dead, submitted. submitit is imported inside the executors
only, and only when something is submitted. The logger `pytest_xlatune.executors` says at INFO what
was submitted, cancelled and resumed, and at DEBUG what Slurm was asked.

The folder of an attempt, written by the harness (<) and by the payload on the node (>):

    < spec.json        the `LaunchSpec`
    < secrets.json     what of it holds a secret; removed as soon as the attempt is over
    < cancel           asks for no start, or, beside a signal, for an end
    > claimed.json     host, process id and its start time, time: of the payload; run once only
    > started.json     the same of the trainer, once there is one
    > log.<rank>.txt   standard output and standard error of that rank, merged, streamed
    > environment.json what the trial ran on, of the first rank of each node; by rename
    > outcome.json     how rank 0 ended, by rename

These are rank 0's; the other ranks have `claimed.<rank>.json`, and so on.

Nodes are named one by one; `expand` and `compress` translate Slurm's notation of a list of them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_xlatune.model.errors import ConfigError, SubmissionError
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
        """Return job id -> where it stands; never blocks for long.

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


# a wider range in brackets is a slip of the pen (Slurm's own limit is 65536 as well)
MAX_RANGE = 65536
_MAX_NAME = 255  # characters of a host's name

# what stands outside brackets:  node-a.
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
# what stands inside brackets:  001-004
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
# a name up to its last number, the number, the rest:  gpu2-node | 007 | -ib     | | login
_NUMBERED = re.compile(r"^(.*?)(\d*)(\D*)$")


def expand(text: str) -> tuple[str, ...]:
    """Return the names of a host list in the order written; zero padding is kept.

    >>> expand("node[009-010],gpu-a[1-2]")
    ('node009', 'node010', 'gpu-a1', 'gpu-a2')

    Raises:
        ConfigError: malformed, with the position; a node is named twice or begins with a dash.
    """
    names: list[str] = []
    at = 0
    while True:
        group, at = _group(text, at, most=MAX_RANGE - len(names))
        names += group
        if at == len(text):
            break
        if text[at] != ",":
            raise _malformed(text, at, f"unexpected {text[at]!r}")
        at += 1
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"node list {text!r}: {name} is named twice")
    if dashed := [each for each in names if each.startswith("-")]:
        raise ConfigError(f"node list {text!r}: {dashed[0]} begins with a dash, as an option does")
    return tuple(names)


def compress(names: Sequence[str]) -> str:
    """Return the shortest host list of our form that `expand` reads back as the same names.

    >>> compress(["node001", "node002", "node004", "login"])
    'node[001-002,004],login'
    """
    split = [_NUMBERED.findall(name)[0] for name in names]
    groups = itertools.groupby(split, key=lambda each: (each[0], each[2]))
    return ",".join(
        f"{before}{_ranges([number for _, number, _ in group])}{after}"
        for (before, after), group in groups
    )


def _group(text: str, at: int, *, most: int) -> tuple[list[str], int]:
    """Read a group such as `node[1-2]-ib` from position `at`, of so many names at most."""
    names = [""]
    start = at
    while at < len(text) and text[at] != ",":
        if text[at] == "[":
            numbers, at = _brackets(text, at + 1, most=most // len(names))
            names = [name + number for name in names for number in numbers]
        elif plain := _PLAIN.match(text, at):
            names = [name + plain[0] for name in names]
            at = plain.end()
        else:
            raise _malformed(text, at, f"unexpected {text[at]!r}")
        if len(names[0]) > _MAX_NAME:
            raise _malformed(text, at, f"a name of more than {_MAX_NAME} characters")
    if at == start:
        raise _malformed(text, at, "a name is missing")
    return names, at


def _brackets(text: str, at: int, *, most: int) -> tuple[list[str], int]:
    """Read `001-004,007]` from just after the opening bracket, so many numbers at most."""
    numbers: list[str] = []
    while True:
        match = _RANGE.match(text, at)
        if match is None:
            raise _malformed(text, at, "expected a number or a range such as 001-004")
        low, high = match[1], match[2] or match[1]
        count = int(high) - int(low) + 1
        if not 1 <= count <= MAX_RANGE:
            raise _malformed(text, at, f"range {match[0]} is backwards or beyond {MAX_RANGE} nodes")
        if len(numbers) + count > most:
            raise _malformed(text, at, f"more than {MAX_RANGE} nodes")
        numbers += [f"{int(low) + i:0{len(low)}}" for i in range(count)]
        at = match.end()
        closing = text[at : at + 1]
        if closing == "]":
            return numbers, at + 1
        if closing != ",":
            raise _malformed(text, at, "expected , or ]")
        at += 1


def _ranges(numbers: Sequence[str]) -> str:
    """Write the numbers of names that differ in nothing else, consecutive ones as ranges."""
    if len(numbers) == 1:
        return numbers[0]
    ranges: list[list[str]] = []
    for number in numbers:
        if ranges and number == f"{int(ranges[-1][-1]) + 1:0{len(ranges[-1][0])}}":
            ranges[-1].append(number)
        else:
            ranges.append([number])
    inside = (each[0] if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in ranges)
    return f"[{','.join(inside)}]"


def _malformed(text: str, at: int, why: str) -> ConfigError:
    return ConfigError(
        f"node list {text!r:.200}: {why} at character {at + 1}; expected a list such as "
        "node[001-004,007],gpu-a[1-2]"
    )
