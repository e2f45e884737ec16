"""The digest that libtpu prints when a multi-slice job hangs, once it is read; and its causes.

libtpu's verdict may differ from the table in the same digest. This module adds what the table says,
and corrects a verdict that the table refutes. The causes are in `megascale.toml`. It reads no log.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.record import Json

_FILE = Path(__file__).with_name("megascale.toml")

SCHEMA = 1
# the fields of sparse cores: libtpu prints no others
_OF_SPARSE = ("hlo", "tag", "pc", "hosts", "cores")


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
    """A row of `megascale.toml` for a line of a log that needs no digest; it begins with `text`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that a digest names; layout 0.0.11 names hosts only, so job and task are None."""

    host: str
    job: str | None = None
    task: int | None = None

    def __str__(self) -> str:
        """Return the worker as libtpu writes it."""
        return self.host if self.job is None else f"{self.job}/{self.task}:{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProgram:
    """A program of a launch; `sample` is one worker that runs it. None: the text lacks it."""

    module: str | None
    fingerprint: str | None
    sample: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuState:
    """The cores that stand at the same instruction of a program.

    Attributes:
        launch_id: the launch of the program; None if the layout has no ids or the cores are idle.
        module: the name of the program; None if the text does not say which of several it is.
        fingerprint: the fingerprint of the program; None as for `module`.
        tag: the tag of the instruction; None in layout 0.0.11.
        pc: the program counter of the instruction.
        hlo: the name of the instruction; "(program completed)" if the cores are idle.
        computation: the computation that has the instruction; None if the text names none.
        hosts: the hosts of the cores in the order of the text, each once.
        cores: the number of cores: libtpu's count, corrected, or the cores listed if it gives none.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """One digest, as it was read.

    Attributes:
        layout: the layout, guessed from the form of the text.
        cause: the cause, corrected by the table of the digest; None if the text names none.
        word: the words of libtpu for the cause; None if their line is missing.
        culprits: the workers of the line of culprits, or of the line before it if the text is cut.
        links: the broken links, as pairs of sender and receiver.
        first_error: the type and the time of the first error that was reported; the time is None if
            the text has none. None if no error was reported.
        launches: pairs of a launch id and its programs, in the order of the text.
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
        """Whether the digest only tells of a job that was ended on purpose.

        Layout 0.0.52 says so. In older layouts the digest of such a job is complete and empty, and
        no worker had given up waiting before it.
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
            "links": [{"src": str(source), "dst": str(to)} for source, to in self.links],
            "first_error": error and {"type": error[0], "time": error[1]},
            "launches": launches,
            "sparse": [
                {name: state.to_json()[name] for name in _OF_SPARSE} for state in self.sparse
            ],
            "messages": [{"worker": str(worker), "text": text} for worker, text in self.messages],
            "states": [state.to_json() for state in self.states],
            "truncated": self.is_truncated,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The line of a worker that gave up waiting; it names no culprit. None: it lacks the field."""

    line: int
    graphs: int | None
    launch_id: int | None
    completed: int | None
    step_globally_in_progress: bool | None
    timeout: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLine:
    """A known line in a log: its first number from 1, its text, and how often it was seen."""

    known: KnownLine
    line: int
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MegascaleReport:
    """All that a log tells about Megascale."""

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
    """Return the cause that the first line of a digest tells; None if it tells none."""
    return next((cause for cause in causes() if cause.prose.match(body)), None)


def judged(digest: Digest) -> Digest:
    """Return a digest with notes from its table, and with the cause corrected by the table."""
    notes: list[str] = []
    cause = digest.cause
    launches = [(ident, programs) for ident, programs in digest.launches if ident is not None]
    modules = [{program.module for program in programs} - {None} for _, programs in launches]
    if any(state.is_cut for state in (*digest.states, *digest.sparse)):
        fault = "lists of more than eleven cores are cut"
        notes.append(f"{fault}; the number that libtpu prints behind them is one too large")
    if cause is not None and len(launches) > 1:
        is_mixed = len(set().union(*modules)) > 1
        # libtpu 0.0.40 calls an inconsistent launch order a fingerprint mismatch
        if cause.enum == "FINGERPRINT_MISMATCH" and is_mixed and not _has_mismatch(digest):
            cause = cause_of_word("LAUNCHES_ORDER_INCONSISTENT")
            notes.append(
                f"libtpu says {digest.word!r}, but no module of its table has two fingerprints: "
                "hosts launched different programs under different launch ids"
            )
        elif cause.enum == "DIFFERENT_MODULE" and all(len(module) > 1 for module in modules):
            notes.append("each launch id has different modules: perhaps the launch order differs")
    notes += _behind(digest)
    # libtpu takes a whole host at pc 0 for a bad chip, but it may only wait for its input
    if cause is not None and cause.enum == "BAD_TPU_CHIP":
        accused = {worker.host for worker in digest.culprits}
        waiting = [
            state
            for state in digest.states
            if state.pc == 0 and not state.is_idle and accused & set(state.hosts)
        ]
        if waiting:
            notes.append(
                "a bad chip, or a host that waits for input: the cores named stand at pc 0"
            )
    if cause is not None and cause.enum == "UNKNOWN_CAUSE":
        notes += _groups(digest)
    # a verdict that the table refutes has no culprits
    is_refuted = cause is not digest.cause
    culprits = () if is_refuted else digest.culprits
    return dataclasses.replace(digest, cause=cause, culprits=culprits, notes=tuple(notes))


def _has_mismatch(digest: Digest) -> bool:
    """Return whether a module has two fingerprints; True if the table is cut and cannot tell."""
    prints: dict[str | None, set[str | None]] = {}
    for _, programs in digest.launches:
        for program in programs:
            prints.setdefault(program.module, set()).add(program.fingerprint)
    return digest.is_truncated or any(len(fingerprints) > 1 for fingerprints in prints.values())


def _behind(digest: Digest) -> list[str]:
    """Return a note that names the hosts with the lowest launch id; [] if all have one id."""
    idents = sorted({state.launch_id for state in digest.states if state.launch_id is not None})
    if len(idents) < 2:  # noqa: PLR2004
        return []
    hosts = dict.fromkeys(
        host for state in digest.states if state.launch_id == idents[0] for host in state.hosts
    )
    ahead = {h for state in digest.states if state.launch_id != idents[0] for h in state.hosts}
    names = [host for host in hosts if host not in ahead] or list(hosts)
    return [f"behind, at launch {idents[0]} while others are at {idents[-1]}: {_few(names)}"]


def _groups(digest: Digest) -> list[str]:
    """Return a note that says where the busy cores stand; [] if all stand at one place."""
    busy = [state for state in digest.states if not state.is_idle]
    if len(busy) < 2:  # noqa: PLR2004
        return []
    groups = [
        f"{state.cores} cores at {state.tag}:{state.pc} ({state.hlo}) on {_few(list(state.hosts))}"
        + (" wait" if (state.hlo or "").startswith("recv-done") else "")
        for state in busy[:4]
    ]
    return ["groups: " + "; ".join(groups)]


def _few(names: list[str]) -> str:
    more = len(names) - 4
    return ", ".join(names[:4]) + (f" and {more} more" if more > 0 else "")
