"""The digest that libtpu prints when a multi-slice job hangs, as a value; and its causes.

The verdict of libtpu may differ from the table in the same digest. This module adds notes on the
table, and corrects a verdict that the table refutes. `megascale.toml` has the causes.
"""

from __future__ import annotations

import functools
import re
import tomllib
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.record import Json

_FILE = Path(__file__).with_name("megascale.toml")

SCHEMA = 1
# the fields that libtpu prints for sparse cores
_SPARSE_FIELDS = ("hlo", "tag", "pc", "hosts", "cores")


class Layout(StrEnum):
    """A layout of the digest, named after the first release of libtpu that has it."""

    EARLY_2025 = "0.0.11"
    LATE_2025 = "0.0.24"
    EARLY_2026 = "0.0.40"
    LATE_2026 = "0.0.52"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `megascale.toml`, which says what the fields mean."""

    enum: str
    words: tuple[str, ...]
    cls: FailureClass = msgspec.field(name="class")
    prose: re.Pattern[str]
    workers: str
    means: str
    action: tuple[str, ...]


class KnownLine(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `megascale.toml` on a line of a log, which says what the fields mean."""

    kind: str
    means: str
    text: str


class _Catalog(msgspec.Struct, frozen=True):
    cause: tuple[Cause, ...]
    line: tuple[KnownLine, ...]


@functools.cache
def _catalog() -> _Catalog:
    return msgspec.convert(
        tomllib.loads(_FILE.read_text(encoding="utf-8")),
        _Catalog,
        dec_hook=lambda _, pattern: re.compile(pattern),
    )


def causes() -> tuple[Cause, ...]:
    """Return the causes of `megascale.toml`."""
    return _catalog().cause


def known_lines() -> tuple[KnownLine, ...]:
    """Return the known lines of `megascale.toml`."""
    return _catalog().line


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that a digest names; job and task are None if it names only the host."""

    host: str
    job: str | None = None
    task: int | None = None

    def __str__(self) -> str:
        """Return the worker as libtpu writes it."""
        return self.host if self.job is None else f"{self.job}/{self.task}:{self.host}"


class LaunchedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program of a launch; a field is None if the text lacks it."""

    module: str | None
    fingerprint: str | None
    sample: str | None = None  # one worker that runs the program


class TpuState(msgspec.Struct, frozen=True, kw_only=True):
    """The cores that are at the same instruction of a program.

    Attributes:
        launch_id: the launch of the program; None if the layout has no ids or the cores are idle.
        module: the name of the program; None if the text does not say which of several it is.
        fingerprint: the fingerprint of the program; None in the same case.
        tag: the tag of the instruction; None in layout 0.0.11.
        pc: the program counter of the instruction.
        hlo: the name of the instruction; "(program completed)" if the cores are idle.
        computation: the computation that has the instruction; None if the text names none.
        hosts: the hosts of the cores in the order of the text, each once.
        cores: the number of cores: the corrected count of libtpu, or else that of the listed cores.
        is_cut: whether libtpu listed only eleven cores of more.
    """

    launch_id: int | None = None
    module: str | None = None
    fingerprint: str | None = None
    tag: int | None = None
    pc: int
    hlo: str | None = None
    computation: str | None = None
    hosts: tuple[str, ...]
    cores: int
    is_cut: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether these cores have no program."""
        return self.hlo == "(program completed)"

    def to_json(self) -> dict[str, Json]:
        """Return the entry of the JSON document."""
        entry: dict[str, Json] = msgspec.to_builtins(self)
        del entry["is_cut"]  # the number of cores is corrected already
        return entry


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """One digest, as it was read.

    Attributes:
        layout: the layout, guessed from the form of the text.
        cause: the cause, corrected by the table of the digest; None if the text names none.
        word: the words of libtpu for the cause; None if their line is missing.
        culprits: the workers in the line of culprits, or else those after the first sentence.
        links: the broken links, as pairs of sender and receiver.
        first_error: the type and the time of the first error that was reported; the time is None if
            the text has none. None if no error was reported.
        launches: pairs of a launch id and its programs, in the order of the text; the id is None if
            the text has none, or if the cores have no program.
        states: the states of the tensor cores.
        sparse: the states of the sparse cores.
        messages: the worker and the text of each unrecoverable error.
        is_truncated: whether the text is cut, so that a part of the digest is missing.
        notes: what the table adds to the verdict, and what was corrected.
        is_after_trigger: whether a worker had given up waiting before the digest was printed.
        line: the number of the first line in the log, from 1.
    """

    layout: Layout
    cause: Cause | None
    word: str | None
    culprits: tuple[Worker, ...] = ()
    links: tuple[tuple[Worker, Worker], ...] = ()
    first_error: tuple[str, str | None] | None = None
    launches: tuple[tuple[int | None, tuple[LaunchedProgram, ...]], ...] = ()
    states: tuple[TpuState, ...] = ()
    sparse: tuple[TpuState, ...] = ()
    messages: tuple[tuple[Worker, str], ...] = ()
    is_truncated: bool = False
    notes: tuple[str, ...] = ()
    is_after_trigger: bool = False
    line: int

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was ended on purpose, so that the digest names no cause.

        Layout 0.0.52 says that. In older layouts the digest of such a job is complete but empty,
        and no worker had given up waiting before it.
        """
        if self.first_error is not None:
            return self.first_error[0] in ("NO_ERROR", "CANCELLED")
        is_unknown = self.cause is not None and self.cause.enum == "UNKNOWN_CAUSE"
        facts = (self.culprits, self.links, self.launches, self.states, self.sparse, self.messages)
        return is_unknown and not (self.is_truncated or self.is_after_trigger or any(facts))

    @property
    def cls(self) -> FailureClass:
        """The failure class of the job."""
        if self.is_cancelled:
            return FailureClass.CANCELLED
        if self.cause is None:
            return FailureClass.MXLA_HANG_UNKNOWN
        if self.cause.enum == "UNRECOVERABLE_ERROR":
            return class_of_message(" ".join(text for _, text in self.messages))
        return self.cause.cls

    def to_json(self) -> Json:
        """Return the entry of the JSON document of `xlatune megascale`."""
        error = self.first_error
        launches = [
            {"launch_id": ident, "programs": list(map(msgspec.to_builtins, programs))}
            for ident, programs in self.launches
        ]
        return {
            "layout": str(self.layout),
            "cause": self.cause and self.cause.enum,
            "culprits": msgspec.to_builtins(self.culprits),
            "links": [
                {"src": str(sender), "dst": str(receiver)} for sender, receiver in self.links
            ],
            "first_error": error and {"type": error[0], "time": error[1]},
            "launches": launches,
            "sparse": [
                {name: state.to_json()[name] for name in _SPARSE_FIELDS} for state in self.sparse
            ],
            "messages": [{"worker": str(worker), "text": text} for worker, text in self.messages],
            "states": [state.to_json() for state in self.states],
            "truncated": self.is_truncated,
            "line": self.line,
        }


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """The line of a worker that gave up waiting; it names no culprit.

    A field is None if the line lacks it.

    Attributes:
        line: the number of the line in the log, from 1.
        graphs: the number of graphs that the worker waited for.
        launch_id: the launch id of these graphs.
        completed: the number that libtpu writes after "Already completed".
        step_globally_in_progress: the value that libtpu writes after "StepGloballyInProgress".
        timeout: the time that the worker waited, as libtpu writes it.
    """

    line: int
    graphs: int | None
    launch_id: int | None
    completed: int | None
    step_globally_in_progress: bool | None
    timeout: str | None


class SeenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A known line that was seen in a log."""

    known: KnownLine
    line: int  # the number of its first occurrence, from 1
    text: str
    count: int = 1  # how often it was seen


class MegascaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that a log says about Megascale."""

    digests: tuple[Digest, ...] = ()
    trigger: Trigger | None = None
    sightings: tuple[SeenLine, ...] = ()


def cause_of_word(word: str) -> Cause | None:
    """Return the cause that any version of libtpu calls by this word; None if none does."""
    lowered = word.strip().lower()
    known = {name.lower(): cause for cause in causes() for name in (cause.enum, *cause.words)}
    return known.get(lowered)


def class_of_message(text: str) -> FailureClass:
    """Return the failure class of an unrecoverable error by its message."""
    lowered = text.lower()
    if "socket closed" in lowered or "unavailable:" in lowered:
        return FailureClass.NETWORK_LINK
    if "halted" in lowered or "halt" in lowered.split():
        return FailureClass.TPU_CHIP
    return FailureClass.MXLA_ERROR


def cause_of_prose(body: str) -> Cause | None:
    """Return the cause that the first sentence of a digest names; None if it names none."""
    return next((cause for cause in causes() if cause.prose.match(body)), None)


def judge_cause(digest: Digest) -> Digest:
    """Return a digest with notes from its table, and with the cause corrected by the table."""
    notes: list[str] = []
    cause = digest.cause
    launches = [(ident, programs) for ident, programs in digest.launches if ident is not None]
    modules = [{program.module for program in programs} - {None} for _, programs in launches]
    if any(state.is_cut for state in (*digest.states, *digest.sparse)):
        notes.append(
            "lists of more than eleven cores are cut; the number that libtpu prints after such a "
            "list is one too large"
        )
    if cause is not None and len(launches) > 1:
        has_several_modules = len(set().union(*modules)) > 1
        is_mismatch = cause.enum == "FINGERPRINT_MISMATCH"
        # libtpu 0.0.40 calls an inconsistent launch order a fingerprint mismatch
        if is_mismatch and has_several_modules and not _has_mismatch(digest):
            cause = cause_of_word("LAUNCHES_ORDER_INCONSISTENT")
            notes.append(
                f"libtpu says {digest.word!r}, but no module of its table has two fingerprints: "
                "hosts launched different programs under different launch ids"
            )
        elif cause.enum == "DIFFERENT_MODULE" and all(len(module) > 1 for module in modules):
            notes.append("each launch id has different modules: perhaps the launch order differs")
    notes += _hosts_behind(digest)
    # libtpu takes a host whose cores are all at pc 0 for a bad chip, but it may wait for its input
    if cause is not None and cause.enum == "BAD_TPU_CHIP":
        accused = {worker.host for worker in digest.culprits}
        waiting = [
            state
            for state in digest.states
            if state.pc == 0 and not state.is_idle and accused & set(state.hosts)
        ]
        if waiting:
            notes.append("a bad chip, or a host that waits for input: the named cores are at pc 0")
    if cause is not None and cause.enum == "UNKNOWN_CAUSE":
        notes += _busy_groups(digest)
    # the culprits of a verdict that the table refutes are wrong too
    culprits = digest.culprits if cause is digest.cause else ()
    return replace(digest, cause=cause, culprits=culprits, notes=tuple(notes))


def _has_mismatch(digest: Digest) -> bool:
    """Return whether a module has two fingerprints; True if the table is cut, so it is unknown."""
    fingerprints: dict[str | None, set[str | None]] = {}
    for _, programs in digest.launches:
        for program in programs:
            fingerprints.setdefault(program.module, set()).add(program.fingerprint)
    return digest.is_truncated or any(len(group) > 1 for group in fingerprints.values())


def _hosts_behind(digest: Digest) -> list[str]:
    """Return a note that names the hosts with the lowest launch id; [] if all have one id."""
    idents = sorted({state.launch_id for state in digest.states if state.launch_id is not None})
    if len(idents) < 2:  # noqa: PLR2004
        return []
    at_lowest: list[str] = []
    ahead = set[str]()
    for state in digest.states:
        if state.launch_id == idents[0]:
            at_lowest += state.hosts
        else:
            ahead.update(state.hosts)
    hosts = list(dict.fromkeys(at_lowest))
    # a host whose cores are at both launches is named only if there is no other
    names = [host for host in hosts if host not in ahead] or hosts
    text = _first_names(names)
    return [f"behind, at launch {idents[0]} while others are at {idents[-1]}: {text}"]


def _busy_groups(digest: Digest) -> list[str]:
    """Return a note that says where the busy cores are; [] if all are at one place."""
    busy = [state for state in digest.states if not state.is_idle]
    if len(busy) < 2:  # noqa: PLR2004
        return []
    groups = []
    for state in busy[:4]:
        waits = " wait" if (state.hlo or "").startswith("recv-done") else ""
        hosts = _first_names(list(state.hosts))
        place = f"{state.tag}:{state.pc} ({state.hlo})"
        groups.append(f"{state.cores} cores at {place} on {hosts}{waits}")
    return ["groups: " + "; ".join(groups)]


def _first_names(names: list[str]) -> str:
    """Return up to four names, and how many more there are."""
    more = len(names) - 4
    return ", ".join(names[:4]) + (f" and {more} more" if more > 0 else "")
