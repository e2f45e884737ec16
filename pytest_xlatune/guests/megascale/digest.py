"""The digest that libtpu prints when a multi-slice job hangs, as a value; and its causes.

The verdict of libtpu may differ from the table in the same digest, so notes say what the table
adds to it. `megascale.toml` has the causes.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from pytest_xlatune.model.failure import FailureClass

_FILE = Path(__file__).with_name("megascale.toml")

SCHEMA = 1
_MOST_NAMES = 4  # the most hosts, or groups of cores, in a note
UNKNOWN, UNRECOVERABLE = "UNKNOWN_CAUSE", "UNRECOVERABLE_ERROR"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `megascale.toml`, which says what the fields mean."""

    enum: str
    words: tuple[str, ...]
    cls: FailureClass = msgspec.field(name="class")
    prose: re.Pattern[str]
    workers: str
    means: str
    action: tuple[str, ...]


@functools.cache
def causes() -> tuple[Cause, ...]:
    """Return the causes of `megascale.toml`."""
    return msgspec.convert(
        tomllib.loads(_FILE.read_text(encoding="utf-8"))["cause"],
        tuple[Cause, ...],
        dec_hook=lambda _, pattern: re.compile(pattern),
    )


def cause_of_word(word: str) -> Cause | None:
    """Return the cause that any version of libtpu calls by this word; None if none does."""
    lowered = word.strip().lower()
    known = {name.lower(): cause for cause in causes() for name in (cause.enum, *cause.words)}
    return known.get(lowered)


def cause_of_prose(body: str) -> Cause | None:
    """Return the cause that the first sentence of a digest names; None if it names none."""
    return next((cause for cause in causes() if cause.prose.match(body)), None)


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that a digest names; job and task are None if it names only the host."""

    host: str
    job: str | None = None
    task: int | None = None

    def __str__(self) -> str:
        """Return the worker as libtpu writes it."""
        return self.host if self.job is None else f"{self.job}/{self.task}:{self.host}"


class LaunchedProgram(msgspec.Struct, kw_only=True):
    """A program of a launch; a field is None if the text lacks it."""

    module: str | None
    fingerprint: str | None = None
    sample: str | None = None  # one worker that runs the program


class TpuState(msgspec.Struct, frozen=True, kw_only=True):
    """The cores that are at the same instruction of a program.

    Attributes:
        tag: the number that libtpu writes before the pc: 17 in `17:2531`.
        pc: the program counter of the instruction.
        hlo: the name of the instruction; "(program completed)" if the cores are idle.
        computation: the computation that has the instruction; None if the text names none.
        hosts: the hosts of the cores in the order of the text, each once.
        cores: the number of cores: the corrected count of libtpu, or else that of the listed cores.
        is_cut: whether libtpu listed only eleven cores of more.
    """

    tag: int
    pc: int
    hlo: str | None
    computation: str | None
    hosts: tuple[str, ...]
    cores: int
    is_cut: bool

    @property
    def is_idle(self) -> bool:
        """Whether these cores have no program."""
        return self.hlo == "(program completed)"


class Launch(msgspec.Struct, kw_only=True):
    """A launch, its programs, and the states of its cores.

    The id is None if the text has none, or if the cores have no program.
    """

    launch_id: int | None
    programs: list[LaunchedProgram] = msgspec.field(default_factory=list)
    states: list[TpuState] = msgspec.field(default_factory=list)


class Link(msgspec.Struct, frozen=True):
    """A broken link between two workers."""

    src: Worker
    dst: Worker


class FirstError(msgspec.Struct, frozen=True):
    """The type of the first error that was reported, and its time; None if the text has no time."""

    type: str
    time: str | None


class WorkerMessage(msgspec.Struct, frozen=True):
    """The text of an unrecoverable error of a worker."""

    worker: Worker
    text: str


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """One digest, as it was read; `--json` shows its fields.

    Attributes:
        layout: the first libtpu in which this form of the text was seen: 0.0.11, 0.0.24, 0.0.40 or
            0.0.52.
        cause: libtpu's name of the cause.
        culprits: the workers in the line of culprits, or else those after the first sentence.
        links: the broken links.
        first_error: the first error; None if none was reported, or the layout has none.
        launches: the launches in the order of the text, with the states of the tensor cores.
        sparse: the states of the sparse cores.
        messages: the unrecoverable errors.
        has_table: whether the heading of the table of states was read.
        is_after_trigger: whether a worker had given up waiting before the digest was printed.
        line: the number of the first line in the log, from 1.
    """

    layout: str
    cause: str
    culprits: tuple[Worker, ...]
    links: tuple[Link, ...]
    first_error: FirstError | None
    launches: tuple[Launch, ...]
    sparse: tuple[TpuState, ...]
    messages: tuple[WorkerMessage, ...]
    has_table: bool
    is_after_trigger: bool = False
    line: int

    @property
    def known(self) -> Cause:
        """The cause with its class and the advice on it."""
        return next(cause for cause in causes() if cause.enum == self.cause)

    @property
    def states(self) -> tuple[TpuState, ...]:
        """The states of the tensor cores."""
        return tuple(state for launch in self.launches for state in launch.states)

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was ended on purpose, so that the digest names no cause.

        Layout 0.0.52 says that. In older layouts the digest of such a job has an empty table, and
        no worker had given up waiting before it.
        """
        if self.first_error is not None:
            return self.first_error.type in ("NO_ERROR", "CANCELLED")
        facts = (self.culprits, self.links, self.launches, self.sparse, self.messages)
        is_empty = self.has_table and not any(facts)
        return self.cause == UNKNOWN and is_empty and not self.is_after_trigger

    @property
    def cls(self) -> FailureClass:
        """The failure class of the job."""
        if self.is_cancelled:
            return FailureClass.CANCELLED
        if self.cause == UNRECOVERABLE:
            return class_of_message(" ".join(message.text for message in self.messages))
        return self.known.cls

    @property
    def notes(self) -> list[str]:
        """What the table adds to the verdict, in sentences."""
        return [
            *_launch_order(self),
            *_hosts_behind(self.launches),
            *_at_pc_0(self),
            *(_busy_groups(self.states) if self.cause == UNKNOWN else ()),
        ]


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """The line of a worker that gave up waiting; it names no culprit."""

    line: int  # the number of the line in the log, from 1
    launch_id: int | None  # None if the line has none


class MegascaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that a log says about Megascale."""

    digests: tuple[Digest, ...] = ()
    trigger: Trigger | None = None


def class_of_message(text: str) -> FailureClass:
    """Return the failure class of an unrecoverable error by its message."""
    lowered = text.lower()
    if "socket closed" in lowered or "unavailable:" in lowered:
        return FailureClass.NETWORK_LINK
    if "halted" in lowered or "halt" in lowered.split():
        return FailureClass.TPU_CHIP
    return FailureClass.MXLA_ERROR


def _launch_order(digest: Digest) -> Iterator[str]:
    """Yield a note if the modules of the launches show that their order may differ."""
    launches = [launch for launch in digest.launches if launch.launch_id is not None]
    modules = [{program.module for program in launch.programs} for launch in launches]
    # libtpu 0.0.40 calls an inconsistent launch order a fingerprint mismatch
    is_mismatch = digest.cause == "FINGERPRINT_MISMATCH" and len(set().union(*modules)) > 1
    # where a host is only behind, its launch id has a single module
    is_mixed = digest.cause == "DIFFERENT_MODULE" and all(len(names) > 1 for names in modules)
    if len(launches) > 1 and (is_mismatch or is_mixed):
        yield "different modules at different launch ids: perhaps the launch order differs"


def _hosts_behind(launches: Sequence[Launch]) -> Iterator[str]:
    """Yield a note that names the hosts with the lowest launch id, if there are several ids."""
    hosts_by_id: dict[int, set[str]] = {}
    for launch in launches:
        if launch.launch_id is not None:
            hosts = hosts_by_id.setdefault(launch.launch_id, set())
            hosts.update(host for state in launch.states for host in state.hosts)
    idents = sorted(ident for ident, hosts in hosts_by_id.items() if hosts)
    if len(idents) > 1:
        text = _first_names(sorted(hosts_by_id[idents[0]]))
        yield f"behind, at launch {idents[0]} while others are at {idents[-1]}: {text}"


def _at_pc_0(digest: Digest) -> Iterator[str]:
    """Yield a note if the accused cores are at pc 0, where a host waits for its input."""
    accused = {worker.host for worker in digest.culprits}
    is_waiting = any(
        state.pc == 0 and not state.is_idle and accused & set(state.hosts)
        for state in digest.states
    )
    if digest.cause == "BAD_TPU_CHIP" and is_waiting:
        yield "a bad chip, or a host that waits for input: the named cores are at pc 0"


def _busy_groups(states: Sequence[TpuState]) -> Iterator[str]:
    """Yield a note that says where the busy cores are, if they are at several places."""
    busy = [state for state in states if not state.is_idle]
    groups = []
    for state in busy[:_MOST_NAMES]:
        waits = " wait" if (state.hlo or "").startswith("recv-done") else ""
        place = f"{state.tag}:{state.pc} ({state.hlo})"
        groups.append(f"{state.cores} cores at {place} on {_first_names(state.hosts)}{waits}")
    if len(groups) > 1:
        yield "groups: " + "; ".join(groups)


def _first_names(names: Sequence[str]) -> str:
    """Return the first names, and whether there are more."""
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
