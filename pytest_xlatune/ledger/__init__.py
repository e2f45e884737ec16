"""The append-only journal of a cell: what was planned, submitted, seen and decided, in order.

One event is one line of JSON, appended under a lock and synced before any process acts on it, so
that killing any process at any moment loses neither a job nor a result. A line counts only with its
newline: readers ignore a line that a killed writer left unfinished, and the next writer marks it as
torn. Readers take no lock and only read new lines. A line has the fields on which the program
decides; this module makes messages from them. It knows neither pytest nor executors, decides
nothing and reads no clock.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import operator
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from pytest_xlatune import locks, secure_files
from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.errors import (
    LedgerError,
    UnreadableLedgerError,
    XlatuneError,
    known_secrets,
)
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say, verbatim
from pytest_xlatune.model.record import (
    AnyRelativePath,
    Json,
    Record,
    RelativePath,
    Time,
    decode,
    explained,
    read_json,
)
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Blamed,
    Finding,
    Outcome,
    Submission,
    TrialResult,
)
from pytest_xlatune.model.sentences import IN_BRACKETS
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.trial import Trial


def _word_of(name: str) -> str:
    """Return the name of a class in a line, e.g. `trial-ended` for `TrialEnded`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower()


class Event(Record, frozen=True, kw_only=True, tag_field="event", tag=_word_of):
    """Base of all events; each is one line."""


def versions() -> dict[str, str]:
    """Return name -> version of the software of a session."""
    releases = {"python": platform.python_version(), "platform": sys.platform}
    for package in ("pytest-xlatune", "pytest", "submitit", "numpy", "scipy"):
        try:
            releases[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            releases[package] = "absent"
    return releases


class CampaignOpened(Event, frozen=True, kw_only=True):
    """A session began or resumed work on the cells of a study."""

    cells: tuple[Cell, ...]  # every cell that a trial of the study may name
    study: str  # the name of the study
    sweep: AnyRelativePath = ""  # the name of the sweep, and of the folder of its reports
    session: AnyRelativePath = ""  # the id of the pytest session, shared by all its processes
    declared: dict[str, Json] = msgspec.field(default_factory=dict)  # the study as JSON data
    versions: dict[str, str] = msgspec.field(default_factory=dict)  # software -> its version
    command: str = ""  # the command line of the session, without secrets


class TrialPlanned(Event, frozen=True, kw_only=True):
    """A study proposed a trial; the first such event of a trial gives its place in the plan."""

    trial: Trial


class AttemptIntended(Event, frozen=True, kw_only=True):
    """An attempt will be submitted.

    If no `AttemptSubmitted` follows, it may still have a job, which `comment` identifies.
    """

    trial_id: str
    attempt: int
    comment: str


class AttemptSubmitted(Event, frozen=True, kw_only=True):
    """An executor accepted the attempt and returned a job id."""

    submission: Submission


class AttemptCutShort(Event, frozen=True, kw_only=True):
    """A running attempt will measure nothing more; the process that drives the campaign ends it."""

    trial_id: str
    attempt: int
    still_s: float  # seconds without a step
    fatal: Finding | None = None  # a log line after which it cannot go on; None for a hang


class AttemptLetGo(Event, frozen=True, kw_only=True):
    """A running attempt is ended because no session waits for it, which is no failure."""

    trial_id: str
    attempt: int


class AttemptEnded(Event, frozen=True, kw_only=True):
    """How an attempt ended, and what its log shows."""

    trial_id: str
    attempt: int
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    blamed: Blamed | None = None  # the program of a rotation that ended it, or may have; else None


class TrialEnded(Event, frozen=True, kw_only=True):
    """A trial has its final result."""

    result: TrialResult


_FOLLOWS = {  # what happens to a trial after an attempt -> its phrase in a message
    Next.ACCEPT: "counts as success",
    Next.RETRY: "retried on the same nodes",
    Next.DROP: "dropped, and not run again",
    Next.GIVE_UP: "not measured",
    Next.STOP: "the sweep stops",
    Next.INTERRUPTED: "ended because no session waits for it; to be run again",
}


class Cannot(StrEnum):
    """What the reference cannot do, so that there is nothing to compare with."""

    RUN = "run"
    BE_SCORED = "be-scored"


class Decided(Event, frozen=True, kw_only=True):
    """What happens to a trial after an attempt, with the failure class and the evidence."""

    trial_id: str
    attempt: int
    next: Next  # what happens to the trial
    cls: str = ""  # the failure class for which it happens; "" if there is none
    detail: str = ""  # the figure or name in the evidence, or what a scheduler or a site reported
    tried: int = 0  # how many attempts of this trial just before also ended in this class
    cannot: Cannot | None = None  # what the reference cannot do, if that stops the sweep; else None
    arm: str = ""  # the id of the reference; "" for the deployed cell
    nodes: tuple[str, ...] = ()  # the nodes that failed; () if unknown
    evidence: str = ""  # the line of the log, or the scheduler's words; "" if there is none
    not_before_s: float = 0.0  # earliest start of the next attempt, since 1970; 0 for at once
    resumed: tuple[str, ...] = ()  # the nodes that were resumed in vain
    found: Message | None = None  # what replaces `detail` if a text is not enough; else None
    shown: Message | None = None  # more evidence if no line explains the end, e.g. the last step

    @property
    def proof(self) -> Message | None:
        """The evidence; None if there is none."""
        evidence = verbatim(self.evidence) if self.evidence else None
        if evidence is None or self.shown is None:
            return evidence or self.shown
        return say("{said}; {shown}", said=evidence, shown=self.shown)

    @property
    def why(self) -> Message | None:
        """What happens to the trial, and for which class and detail; None if nothing failed."""
        follows = say(_FOLLOWS[self.next])
        if not self.cls:
            return follows if self.next is Next.INTERRUPTED else None
        detail = self.found or self.detail
        shown = say(IN_BRACKETS, text=detail) if detail not in ("", self.cls) else None
        times = say(", {times} times in a row", times=self.tried + 1) if self.tried else None
        text = "{cls}{detail}{times}: {follows}"
        decision = say(text, cls=self.cls, detail=shown, times=times, follows=follows)
        if self.cannot is None:
            return decision
        arm = say("the reference {arm}", arm=self.arm) if self.arm else say("the cell as deployed")
        if self.cls == FailureClass.NO_STEPS:  # the detail explains it better than the class
            decision = say("{detail}: {follows}", detail=detail, follows=follows)
        elif self.cannot is Cannot.RUN:
            return say("{arm} cannot run: {why}", arm=arm, why=decision)
        return say("{arm} cannot be scored: {why}", arm=arm, why=decision)


class NodesPinned(Event, frozen=True, kw_only=True):
    """The scheduler picked the nodes of a cell's first trial; its other trials run on them too."""

    cell_digest: str
    nodes: tuple[str, ...]


class Noted(Event, frozen=True, kw_only=True):
    """A remark for readers, on which nothing is decided."""

    text: str = ""  # the words of a check of the site, or of a compiler; "" if `why` has the remark
    why: Message | None = None  # the remark as a message; None if `text` has it

    @property
    def remark(self) -> Message:
        """The remark as a message."""
        return self.why or verbatim(self.text)


class FilesRead(Event, frozen=True, kw_only=True):
    """A session read the files that deploy the cell; the last such event counts."""

    files: tuple[DeployedFile, ...]


class EvidenceRecorded(Event, frozen=True, kw_only=True):
    """The dump and the captures of an evidence trial, and what they show.

    Paths are relative to the ledger's folder, but for `pgle`.
    """

    trial_id: str
    dump: AnyRelativePath = ""  # folder of the compiler's dump; "" if none
    captures: tuple[RelativePath, ...] = ()  # files of the profiler
    facts: tuple[str, ...] = ()  # one sentence for each fact that the dump and the captures show
    problems: tuple[str, ...] = ()  # one sentence for each file that could not be read
    shares: Shares | None = None  # how the time of a step is divided; None without a trace
    pgle: str = ""  # the profile for XLA's scheduler made from the trace; "" if none


class EnvironmentSeen(Event, frozen=True, kw_only=True):
    """The environment of a trial, if it differs from the last such event of its cell."""

    trial_id: str
    cell_digest: str
    nodes: tuple[NodeEnvironment, ...]  # of each node, completed with facts of earlier events
    is_whole: bool = False  # whether the devices were looked up too


class EpochBegan(Event, frozen=True, kw_only=True):
    """Nodes have changed: scores on them cannot be compared with earlier ones."""

    why: Message  # what changed
    nodes: tuple[str, ...] = ()  # the nodes; () for every node of the ledger
    cell_digest: str = ""  # the only cell that is concerned; "" for all cells on `nodes`

    @property
    def remark(self) -> Message:
        """The remark for readers of the results."""
        return say("{why}: scores before and after are not compared", why=self.why)

    def covers(self, cell_digest: str, nodes: tuple[str, ...]) -> bool:
        """Return whether a trial of this cell on these nodes is separated from earlier ones."""
        if self.cell_digest:
            return self.cell_digest == cell_digest
        return not self.nodes or not nodes or not {*self.nodes}.isdisjoint(nodes)


def word_of(event: Event | type[Event]) -> str:
    """Return the name of an event in its line."""
    return str(event.__struct_config__.tag)


EVENTS: dict[str, type[Event]] = {
    word_of(event_class): event_class for event_class in Event.__subclasses__()
}


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event with its line number from 1, and its time in seconds since 1970."""

    number: int
    at_s: float
    event: Event


LEDGER = "ledger.jsonl"
ARCHIVED = "ledger-*.jsonl"  # pattern of the names that `Ledger.archive` gives, in the same folder
SCHEMA = 4
_BEGINNING = b'{"schema":'  # of every line
# the beginning of a line:  {"schema":4,"at":1700000000.0,"event":"noted"
_HEAD = re.compile(
    rb'\{"schema": ?(?P<schema>[\w."]{1,40}), ?"at": ?(?P<at>[\d.e+-]{1,40}), ?'
    rb'(?="event": ?"(?P<kind>[\w-]{1,40})")'
)
# the end of a torn line, which no complete line has: our JSON contains no raw tab
_TORN = b"\t# torn: its writer was killed\n"
_LOCK_TIMEOUT_S = 60.0
_CACHED_LINES = 1 << 15  # enough for a sweep of 5,000 profiles
_EVENT = msgspec.json.Decoder[Event](
    functools.reduce(operator.or_, EVENTS.values()), dec_hook=decode
)
_TIME = msgspec.json.Decoder(Time)


class Ledger:
    """The journal in one file; any number of processes may use it at the same time.

    With `shows_only` the file may belong to any user, because it is only shown.
    """

    def __init__(self, path: Path, *, shows_only: bool = False) -> None:
        self.path = path
        self._open = secure_files.open_shown if shows_only else secure_files.open_file
        self._inode: int | None = None
        self._offset_bytes = 0
        self._number = 0

    def append(self, *events: Event, at_s: float) -> None:
        """Add events in order, with no other writer's event between them.

        They are on the disk when this returns.

        Raises:
            LedgerError: the file cannot be created, locked or written. The caller must act as if
                the events were not recorded, although after a failed sync they may be in the file.
        """
        text = b"".join(_line(event, at_s) for event in events)
        if text:
            if self._inode is not None:
                with errors_explained(self.path, what="written"):
                    self.path.stat()  # raises if the file is missing, so that no new one is begun
            with self._lock(), errors_explained(self.path, what="written"):
                _append(self.path, text)

    def refresh(self) -> tuple[LedgerEntry, ...]:
        """Return the events added since the last call, by a single `stat` if there are none.

        Raises:
            LedgerError: a line is unreadable (the message has its number) or has another schema, or
                the file is no ledger or was replaced.
        """
        with errors_explained(self.path, what="read"):
            try:
                status = self.path.stat()
            except FileNotFoundError:
                if self._inode is None:
                    return ()
                raise
            # a new ledger may be longer than what was read, so the inode is compared too
            if self._inode not in (None, status.st_ino) or status.st_size < self._offset_bytes:
                raise LedgerError(
                    f"{self.path} was replaced while this session was using it (did another "
                    "session start with --xlatune-fresh?); run again to use the new one"
                )
            self._inode = status.st_ino
            if status.st_size == self._offset_bytes:
                return ()
            with os.fdopen(self._open(self.path), "rb") as file:
                file.seek(self._offset_bytes)
                return self._parse(file)

    def archive(self, *, at_s: float) -> Path | None:
        """Rename the ledger with the date in its name, and return the path; None if there is none.

        Nothing is deleted.

        Raises:
            LedgerError: the file cannot be locked or renamed.
        """
        date = datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        with self._lock(), errors_explained(self.path, what="moved aside"):
            if not self.path.exists():
                return None
            archived = self.path.with_stem(f"{self.path.stem}-{date}")
            number = 1
            while archived.exists():
                number += 1
                archived = self.path.with_stem(f"{self.path.stem}-{date}-{number}")
            self.path.rename(archived)
        self._inode, self._offset_bytes, self._number = None, 0, 0
        return archived

    def _parse(self, lines: Iterable[bytes]) -> tuple[LedgerEntry, ...]:
        entries = []
        number, offset_bytes = self._number, self._offset_bytes
        for line in lines:
            text = line.removesuffix(_TORN)  # a torn line may be shorter than `_BEGINNING`
            if number == 0 and not (text.startswith(_BEGINNING) or _BEGINNING.startswith(text)):
                raise UnreadableLedgerError(
                    f"{self.path} is not a ledger: expected it to begin with "
                    f"{_BEGINNING.decode()}, found {line[:40]!r}; choose another work directory, "
                    f"or {UnreadableLedgerError.ADVICE}"
                )
            if not line.endswith(b"\n"):
                break  # torn, or still being written by another process
            number += 1
            offset_bytes += len(line)
            if text == line:
                entries.append(_entry(line, number=number, path=self.path))
        self._number, self._offset_bytes = number, offset_bytes
        return tuple(entries)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        path = self.path.with_name(self.path.name + ".lock")
        with lock_held(path, wait_s=_LOCK_TIMEOUT_S) as is_held:
            if not is_held:
                raise LedgerError(
                    f"{self.path} is locked by another process for more than "
                    f"{_LOCK_TIMEOUT_S:.0f} s; end the process that holds it (it may be stopped), "
                    "then run again"
                )
            yield


@contextlib.contextmanager
def lock_held(path: Path, *, wait_s: float) -> Iterator[bool]:
    """Hold a lock as `locks.held` does; errors of the file are LedgerErrors."""
    with contextlib.ExitStack() as held:
        with errors_explained(path, what="locked"):
            is_held = held.enter_context(locks.held(path, wait_s=wait_s))
        yield is_held


@contextlib.contextmanager
def errors_explained(path: Path, *, what: str) -> Iterator[None]:
    """Raise errors of a file or folder as LedgerError; `what` is what could not be done with it."""
    try:
        yield
    except secure_files.NotOursError as error:
        raise LedgerError(str(error)) from None
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be {what}: {error}; the work directory must be writable, with free "
            "space, on a file system that has flock (--xlatune-workdir)"
        ) from error


# Fields that contain names, or records that hide their own secrets. Secrets are not hidden in them,
# because a changed value would mean another trial, cell or environment.
_UNCHANGED = frozenset(
    {
        *("arm", "before", "captures", "cell_digest", "cells", "cls", "code"),
        *("comment", "declared", "devices", "dump", "field", "files", "flags", "job_ids", "key"),
        *("kinds", "name", "nodes", "pgle", "profile", "program", "resumed", "same_as"),
        *("session", "source", "study", "submission", "suspects", "sweep", "trial", "trial_id"),
        "versions",
    }
)
_MESSAGE_FIELDS = frozenset({"text", "values", "code"})


def without_secrets(data: Json, secrets: frozenset[str] | None = None) -> Json:
    """Return our JSON data with secrets hidden, because it may quote logs and schedulers.

    The text of a message is our own, but its values may be quotes. `secrets` are the known values;
    None means those that this process knows.
    """
    secrets = known_secrets() if secrets is None else secrets
    if isinstance(data, str):
        return hide_quoted(data, secrets)
    if isinstance(data, list):
        return [without_secrets(child, secrets) for child in data]
    if not isinstance(data, dict):
        return data
    if "text" in data and data.keys() <= _MESSAGE_FIELDS:
        values = data.get("values")
        if not isinstance(values, dict):
            return data
        return data | {
            "values": {name: without_secrets(child, secrets) for name, child in values.items()}
        }
    return {
        name: child if name in _UNCHANGED else without_secrets(child, secrets)
        for name, child in data.items()
    }


def _line(event: Event, at_s: float) -> bytes:
    fields = without_secrets(event.to_json())
    data = {"schema": SCHEMA, "at": at_s, "event": word_of(event), **fields}
    try:
        return msgspec.json.encode(data) + b"\n"
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n"


def _entry(line: bytes, *, number: int, path: Path) -> LedgerEntry:
    try:
        at_s, event = _parsed(line)
    except UnreadableLedgerError as error:
        raise UnreadableLedgerError(f"{path}:{number}: {error}") from None
    return LedgerEntry(number=number, at_s=at_s, event=event)


# One session reads its ledger seven times. The key of the cache is the text of the line.
@functools.lru_cache(maxsize=_CACHED_LINES)
def _parsed(line: bytes) -> tuple[float, Event]:
    match = _HEAD.match(line)
    fault = (
        f"unreadable line {line[:60]!r}; lines are only ever written whole, so this one was "
        "damaged later. Restore the file, or delete the line (its event is lost)"
    )
    if match is not None and match["schema"] != b"%d" % SCHEMA:
        fault = (
            f"found schema {match['schema'].decode()}, written by another version of "
            f"pytest-xlatune; this one reads {SCHEMA}. Read it with the version that wrote it"
        )
    elif match is not None:
        try:
            at_s = _TIME.decode(match["at"])
            return at_s, _EVENT.decode(b"{" + memoryview(line)[match.end() :])
        except (msgspec.ValidationError, XlatuneError) as error:
            kind = match["kind"].decode()
            expected = f"no event; expected one of {', '.join(EVENTS)}"
            fault = f"{kind}: {explained(error) if kind in EVENTS else expected}"
        except (OverflowError, RecursionError, ValueError):
            pass  # the line is damaged
    raise UnreadableLedgerError(f"{fault}, or {UnreadableLedgerError.ADVICE}")


def _append(path: Path, text: bytes) -> None:
    descriptor = secure_files.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            text = _TORN + text
        while text:  # on a full disk, only a part is written, and the next write raises the error
            text = text[os.write(descriptor, text) :]
        # a killed process loses nothing that was written; a power cut loses what was not synced
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_ledgers(work_dir: Path) -> tuple[Path, ...]:
    """Return the folders below a work directory that contain a ledger."""
    return tuple(sorted(path.parent for path in work_dir.glob(f"*/*/{LEDGER}")))


NOW = "now.json"


class Now(Record, frozen=True, kw_only=True):
    """The last report of the executor: a small file beside the ledger, for people.

    Nothing is decided by it, so it may be missing or old.

    Attributes:
        at_s: time of the report, in seconds since 1970; the driving process renews it twice a
            minute. 0 if there is no report.
        jobs: job id -> state of the job. For a pending job, `start_s` is the start that the
            scheduler expects (None if unknown), and `reason` is why it waits.
    """

    at_s: Time = 0.0
    jobs: dict[str, Outcome] = msgspec.field(default_factory=dict)


def read_now(folder: Path) -> Now:
    """Return the state of jobs beside the ledger in a folder; an empty one if it cannot be read."""
    try:
        return Now.from_json(read_json(secure_files.read_named(folder / NOW)))
    except (OSError, ValueError, LedgerError):
        return Now()


def write_now(folder: Path, now: Now) -> None:
    """Replace the file. If it cannot be written, the old one stays: it contains no measurement."""
    with contextlib.suppress(OSError):
        text = json.dumps(without_secrets(now.to_json()))
        secure_files.write_bytes(folder / NOW, text.encode("ascii"))
