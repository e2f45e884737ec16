"""The append-only journal of a cell: what was planned, submitted, seen and decided, in order.

One event is one line of JSON, appended under a lock and synced before anyone acts on it, so that
killing any process at any moment loses neither a job nor a result. An event exists when its
newline does: a line that a killed writer left unfinished is ignored, and the next writer marks it
as torn before it goes on. Readers take no lock and read only new lines. A line holds fields that
code decides on; the reason that an event tells is made of them here, its sentence in `report`. This
module knows neither pytest nor executors, decides nothing and reads no clock.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import json
import operator
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from filelock import FileLock

from pytest_xlatune import secure_files
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
    Action,
    Blamed,
    Finding,
    Outcome,
    Shares,
    Submission,
    TrialResult,
)
from pytest_xlatune.model.sentences import IN_BRACKETS
from pytest_xlatune.model.trial import CompiledMemory, Trial

_AS_DEPLOYED = "the cell as deployed"
_DECIDED = "{cls}: {follows}"
_FAULTS = "{faults:; }"
_FAULTS_AFTER_RESUME = "; after scontrol update State=RESUME: {faults}"


def _word_of(name: str) -> str:
    """Return the word of a line for a class, `trial-ended` of `TrialEnded`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower()


class Event(Record, frozen=True, kw_only=True, tag_field="event", tag=_word_of):
    """Base of what a line says."""


def versions() -> dict[str, str]:
    """Return the versions of what takes part, by name."""
    releases = {"python": platform.python_version(), "platform": sys.platform}
    for package in ("pytest-xlatune", "pytest", "submitit", "numpy", "scipy"):
        try:
            releases[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            releases[package] = "absent"
    return releases


class CampaignOpened(Event, frozen=True, kw_only=True):
    """A session began or resumed work on the cells of a study.

    Attributes:
        cells: every cell that a trial of the study may name; one where arms are profiles.
        sweep: its name, which names the folder of its reports too.
        session: id of the pytest session, shared by all its processes.
        declared: the study as builtins, so that the ledger alone repeats every conclusion.
        versions: of the software, by name.
        settings: what the user said, by name: where.
        command: the command line of the session, without secrets.
        run: below which folder its attempts lie; "" is the session's. Another is of a ledger that
            was lost: its attempts' files are read again.
    """

    cells: tuple[Cell, ...]
    study: str
    sweep: AnyRelativePath = ""
    session: str = ""
    declared: dict[str, Json] = msgspec.field(default_factory=dict)
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    command: str = ""
    run: AnyRelativePath = ""


class TrialPlanned(Event, frozen=True, kw_only=True):
    """A study proposed the trial; the first such line gives it its place in the plan."""

    trial: Trial


class AttemptIntended(Event, frozen=True, kw_only=True):
    """About to be submitted; without an `AttemptSubmitted` after it, look for the comment."""

    trial_id: str
    attempt: int
    comment: str


class AttemptSubmitted(Event, frozen=True, kw_only=True):
    """An executor took it and named the job."""

    submission: Submission


class AttemptCutShort(Event, frozen=True, kw_only=True):
    """A running attempt measures nothing any more that counts: the process that drives ends it.

    Attributes:
        still_s: seconds without a step.
        fatal: the line after which it cannot go on; None where it hangs without a word.
    """

    trial_id: str
    attempt: int
    still_s: float
    fatal: Finding | None = None


class AttemptLetGo(Event, frozen=True, kw_only=True):
    """No session waits for a running attempt any more: it is ended next, and no failure."""

    trial_id: str
    attempt: int


class AttemptEnded(Event, frozen=True, kw_only=True):
    """How the attempt ended and what its log shows.

    `blamed` is the program of a rotation that it died of; its next attempt goes without it.
    """

    trial_id: str
    attempt: int
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    blamed: Blamed | None = None


class TrialEnded(Event, frozen=True, kw_only=True):
    """The trial's final result."""

    result: TrialResult


_FOLLOWS = {
    Next.ACCEPT: "counts as success",
    Next.RETRY: "retried on the same nodes",
    Next.DROP: "dropped, and not run again",
    Next.GIVE_UP: "not measured",
    Next.STOP: "the sweep stops",
    Next.INTERRUPTED: "ended because no session waits for it; to be run again",
}


_UNREADABLE = frozenset({FailureClass.LOG_UNREADABLE, FailureClass.OUTCOME_UNREADABLE})


class Cannot(StrEnum):
    """What the reference cannot do; then there is nothing to compare with."""

    RUN = "run"
    BE_SCORED = "be-scored"


class Decided(Event, frozen=True, kw_only=True):
    """What follows from an attempt, on which failure class and on which evidence.

    Attributes:
        next: what follows.
        cls: the failure class that it was decided on; "" where there was none.
        detail: the figure or the name in the evidence, or what a scheduler or a site said.
        tried: earlier attempts of this trial, one after the other, that ended in the same class.
        cannot: what the reference cannot do, where that stops the sweep.
        arm: which arm the reference is; "" is the cell as deployed.
        needed: what a retry needed first and what was not done; the sweep stops for it.
        nodes: that failed, as far as that is known.
        faults: what ails them, and still does where they were resumed.
        resumed: those that were resumed in vain.
        found: in the place of `detail`, where it is more than that.
        shown: what else proves it, where no line and no scheduler says it: how far the attempt
            came, what a witness shows of a setting.
        waited_s: seconds in the queue after which the user's patience was over.
        spent: which limit another trial would break, and what raises it.
        evidence: the line of the log, or the scheduler's words.
        not_before_s: time before which the next attempt must not start; 0 is at once.
    """

    trial_id: str
    attempt: int
    next: Next
    cls: str = ""
    detail: str = ""
    tried: int = 0
    cannot: Cannot | None = None
    arm: str = ""
    needed: Action = Action.NONE
    nodes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    waited_s: int = 0
    spent: Message | None = None
    evidence: str = ""
    not_before_s: float = 0.0
    resumed: tuple[str, ...] = ()
    found: Message | None = None
    shown: Message | None = None

    @property
    def proof(self) -> Message | None:
        """What it was decided on; None without any."""
        evidence = verbatim(self.evidence) if self.evidence else None
        if evidence is None or self.shown is None:
            return evidence or self.shown
        return say("{said}; {shown}", said=evidence, shown=self.shown)

    @property
    def why(self) -> Message | None:
        """What follows, on which class and on which evidence; None where all is well."""
        if self.spent is not None:
            return say(_DECIDED, cls=self.cls, follows=self.spent)
        follows = say(_FOLLOWS[self.next])
        trouble = self._trouble(follows)
        if trouble is not None:
            return trouble
        if not self.cls:
            return follows if self.next is Next.INTERRUPTED else None
        times = say(", {times} times in a row", times=self.tried + 1) if self.tried else None
        if self.cls in _UNREADABLE:
            return say(
                "{meaning}: {detail}{times}: {follows}",
                meaning=FailureClass(self.cls).meaning,
                cls=self.cls,
                detail=self.found or self.detail,
                times=times,
                follows=follows,
            )
        is_told = self.found is not None or self.detail not in ("", self.cls)
        detail = say(IN_BRACKETS, text=self.found or self.detail) if is_told else None
        decision = say(
            "{cls}{detail}{times}: {follows}",
            cls=self.cls,
            detail=detail,
            times=times,
            follows=follows,
        )
        if self.cannot is None:
            return decision
        if self.cls == FailureClass.NO_STEPS:  # the detail tells it better than the class
            decision = say("{detail}: {follows}", detail=self.found or self.detail, follows=follows)
        return self._of_reference(decision)

    def _trouble(self, follows: Message) -> Message | None:
        """Return what stood in the way of a trial before it ran, or of the next; None: nothing."""
        cls, faults = self.cls, say(_FAULTS, faults=self.faults)
        if self.waited_s:
            waited = say(
                "no trial has started for {seconds} s: {follows}",
                seconds=self.waited_s,
                follows=follows,
            )
            return say(_DECIDED, cls=cls, follows=waited)
        if self.needed is not Action.NONE:
            text = _FAULTS_AFTER_RESUME if self.resumed else "; {faults}"
            suffix = say(text, faults=faults) if self.faults else None
            missed = say(
                "the next attempt needs {needed}, which was not done{faults}: {follows}",
                needed=self.needed,
                faults=suffix,
                follows=follows,
            )
            return say(_DECIDED, cls=cls, follows=missed)
        if self.faults:
            text = (
                "{faults}, and stays so after RESUME: {follows}"
                if self.resumed
                else "{faults}: {follows}"
            )
            return say(_DECIDED, cls=cls, follows=say(text, faults=faults, follows=follows))
        return None

    def _of_reference(self, decision: Message) -> Message:
        is_scoring = self.cls == FailureClass.NO_STEPS or self.cannot is Cannot.BE_SCORED
        arm = say("the reference {arm}", arm=self.arm) if self.arm else say(_AS_DEPLOYED)
        text = "{arm} cannot be scored: {why}" if is_scoring else "{arm} cannot run: {why}"
        return say(text, arm=arm, why=decision)


class NodesPinned(Event, frozen=True, kw_only=True):
    """The scheduler picked the nodes of the first trial of a cell; its others run on the same."""

    cell_digest: str
    nodes: tuple[str, ...]


class NoteKind(StrEnum):
    """What a note is about."""

    SITE = "site"  # a look at the site before anything was submitted
    WAITING = "waiting"  # for the scheduler, or a place in its queue
    OTHER = "other"


class Noted(Event, frozen=True, kw_only=True):
    """Anything a reader should know. Nothing is decided on it.

    Attributes:
        about: its subject.
        text: the words of a look at the site, or of a compiler.
        why: what else there is to know; None where `text` says it.
    """

    about: NoteKind = NoteKind.OTHER
    text: str = ""
    why: Message | None = None

    @property
    def said(self) -> Message:
        """What it says."""
        return self.why or verbatim(self.text)


class FilesRead(Event, frozen=True, kw_only=True):
    """The files that deploy the cell, as a session found them; the last such event counts."""

    files: tuple[DeployedFile, ...]


class CellCompiled(Event, frozen=True, kw_only=True):
    """What compiling an arm's cell said of memory, before any of its trials was queued.

    Attributes:
        key: digest of all that it rests on: program, settings, compiler, limit.
        took_s: seconds of compiling.
    """

    arm: str
    key: str
    memory: CompiledMemory
    took_s: float = 0.0


class EvidenceRecorded(Event, frozen=True, kw_only=True):
    """Where the dump and the captures of an evidence trial lie.

    Attributes:
        dump: folder of the compiler's dump, relative to the ledger's folder; "" is none.
        captures: files of the profiler, relative to the ledger's folder.
        facts: what they say, one sentence each, in the words of their readers.
        problems: a reader's sentence for each thing that could not be read.
        shares: where the time of a step went; None without a trace.
        pgle: file for XLA's scheduler that was made of the trace, as the trainer names it.
    """

    trial_id: str
    dump: AnyRelativePath = ""
    captures: tuple[RelativePath, ...] = ()
    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    shares: Shares | None = None
    pgle: str = ""


class EnvironmentSeen(Event, frozen=True, kw_only=True):
    """What a trial ran on, where that is not what the last such event of its cell says.

    Attributes:
        nodes: the environment of each node, facts of earlier events included.
        is_whole: whether the devices were asked for too.
    """

    trial_id: str
    cell_digest: str
    nodes: tuple[NodeEnvironment, ...]
    is_whole: bool = False


class EpochCause(StrEnum):
    """Why nodes are no longer what they were."""

    RESUMED = "resumed"  # Slurm took them back
    FIT_AGAIN = "fit-again"  # nothing had to be done, after a trial failed there
    HOOK = "hook"  # the site did what was needed
    SWAPPED = "swapped"  # a cell's trial ran on other nodes than the one before it
    CHANGED = "changed"  # its trainer, packages, driver or kernel are not those of the one before


class EpochBegan(Event, frozen=True, kw_only=True):
    """Nodes are not what they were: no score on them from here on compares with one before.

    Attributes:
        cause: what was done to them.
        nodes: which; () is every node of the ledger.
        cls: the failure class that asked for it.
        action: what the site's hook did.
        faults: what Slurm could not mend before the hook did.
        cell_digest: the one cell whose trials ran elsewhere; "" is every cell on one of `nodes`.
        were: the nodes that this cell's trials ran on before.
        changes: everything that is not as it was.
    """

    cause: EpochCause
    nodes: tuple[str, ...] = ()
    cls: str = ""
    action: Action = Action.NONE
    faults: tuple[str, ...] = ()
    cell_digest: str = ""
    were: tuple[str, ...] = ()
    changes: tuple[Message, ...] = ()

    @property
    def why(self) -> Message:
        """The change that parts scores before it from those after."""
        nodes, cls = self.nodes, self.cls
        match self.cause:
            case EpochCause.CHANGED:
                return say("on {nodes} changed: {changes:; }", nodes=nodes, changes=self.changes)
            case EpochCause.SWAPPED:
                return say("nodes are {nodes}, were {were}", nodes=nodes, were=self.were)
            case EpochCause.RESUMED:
                return say("{cls}: resumed {nodes}", cls=cls, nodes=nodes)
            case EpochCause.FIT_AGAIN:
                return say("{cls}: fit again: {nodes}", cls=cls, nodes=nodes)
        faults = say(_FAULTS, faults=self.faults)
        tried = say(_FAULTS_AFTER_RESUME, faults=faults) if self.faults else None
        return say(
            "{cls}: the site did {action}{faults}", cls=cls, action=self.action, faults=tried
        )

    @property
    def said(self) -> Message:
        """What a reader of the results should know."""
        return say("{why}: scores before and after are not compared", why=self.why)

    def covers(self, cell_digest: str, nodes: tuple[str, ...]) -> bool:
        """Whether a trial of this cell on these nodes is parted from those before the event."""
        if self.cell_digest:
            return self.cell_digest == cell_digest
        return not self.nodes or not nodes or not {*self.nodes}.isdisjoint(nodes)


def word_of(event: Event | type[Event]) -> str:
    """Return the word in the line of an event."""
    return str(event.__struct_config__.tag)


EVENTS: dict[str, type[Event]] = {
    word_of(event_class): event_class for event_class in Event.__subclasses__()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One event with its 1-based line number and its time in seconds since the epoch."""

    number: int
    at_s: float
    event: Event


LEDGER = "ledger.jsonl"
MOVED_ASIDE = "ledger-*.jsonl"  # a pattern: what `Ledger.archive` leaves in the same folder
SCHEMA = 4
_HEAD = b'{"schema":'  # how every line begins, and then it goes on as here:
# {"schema":4,"at":1700000000.0,"event":"noted"
_BEGUN = re.compile(
    rb'\{"schema": ?4, ?"at": ?(?P<at>[\d.e+-]{1,40}), ?(?="event": ?"(?P<kind>[\w-]{1,40})")'
)
_OPENED = word_of(CampaignOpened).encode()
_TORN = b"\t# torn: its writer was killed\n"  # no JSON of ours holds a raw tab
_LOCK_TIMEOUT_S = 60.0
_REMEMBERED = 1 << 15  # lines: a sweep of 5,000 profiles
_EVENT = msgspec.json.Decoder[Event](
    functools.reduce(operator.or_, EVENTS.values()), dec_hook=decode
)
_TIME = msgspec.json.Decoder(Time)


class Ledger:
    """The journal in one file; any number of processes may hold it open.

    With `shows_only` it may be anybody's, for nothing is done by what it says.
    """

    def __init__(self, path: Path, *, shows_only: bool = False) -> None:
        self.path = path
        self._open = secure_files.open_shown if shows_only else secure_files.open_file
        self._inode: int | None = None
        self._offset_bytes = 0
        self._number = 0

    def append(self, *events: Event, at_s: float) -> None:
        """Add events in order, with nothing of another writer between them.

        They are on the disk when this returns.

        Raises:
            LedgerError: the file cannot be created, locked or written; act as if the events were
                unknown, though after a failed sync they may be found in the file.
        """
        text = b"".join(_line(event, at_s) for event in events)
        if text:
            if self._inode is not None:
                with self._explained(what="written"):
                    self.path.stat()  # where it is away, it is not begun anew
            with self._lock(), self._explained(what="written"):
                _append(self.path, text)

    def refresh(self) -> tuple[LedgerEntry, ...]:
        """Return the events added since the last call; costs one `stat` when there are none.

        Raises:
            LedgerError: an unreadable line, by its number, another schema, no ledger at all, or
                another file in its place.
        """
        with self._explained(what="read"):
            try:
                status = self.path.stat()
            except FileNotFoundError:
                if self._inode is None:
                    return ()
                raise
            # the inode counts too: another ledger may have outgrown what was read of this one
            if self._inode not in (None, status.st_ino) or status.st_size < self._offset_bytes:
                raise LedgerError(
                    f"{self.path} was replaced while this session was using it (started afresh by "
                    "another one?); run again to go on with the new one"
                )
            self._inode = status.st_ino
            if status.st_size == self._offset_bytes:
                return ()
            with os.fdopen(self._open(self.path), "rb") as file:
                file.seek(self._offset_bytes)
                return self._parse(file)

    def opened(self) -> tuple[CampaignOpened, ...]:
        """Return what its sessions opened; no other line is read, and `refresh` reads them all.

        Raises:
            LedgerError: one of these lines is unreadable, of another schema, or it is no ledger.
        """
        with (
            self._explained(what="read"),
            os.fdopen(self._open(self.path), "rb") as file,
        ):
            events = [
                _entry(line, number=number, path=self.path).event
                for number, line in enumerate(file, start=1)
                if self._is_whole(line, is_first=number == 1) and _OPENED in line
            ]
        return tuple(opening for opening in events if isinstance(opening, CampaignOpened))

    def archive(self, *, at_s: float) -> Path | None:
        """Move the ledger aside under a name with the date; None where there is none.

        Nothing is deleted. Raises LedgerError as `append` does.
        """
        when = datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        with self._lock(), self._explained(what="moved aside"):
            if not self.path.exists():
                return None
            numbers = itertools.chain([""], map("-{}".format, itertools.count(2)))
            names = (f"{self.path.stem}-{when}{number}{self.path.suffix}" for number in numbers)
            aside = next(path for path in map(self.path.with_name, names) if not path.exists())
            self.path.rename(aside)
        self._inode, self._offset_bytes, self._number = None, 0, 0
        return aside

    def _parse(self, lines: Iterable[bytes]) -> tuple[LedgerEntry, ...]:
        entries = []
        number, offset_bytes = self._number, self._offset_bytes
        for line in lines:
            is_whole = self._is_whole(line, is_first=number == 0)
            # only a newline ends it: a full disk once cut a line just behind its last brace
            if not line.endswith(b"\n"):
                break  # torn, or another process is writing it now
            number += 1
            offset_bytes += len(line)
            if is_whole:
                entries.append(_entry(line, number=number, path=self.path))
        self._number, self._offset_bytes = number, offset_bytes
        return tuple(entries)

    def _is_whole(self, line: bytes, *, is_first: bool) -> bool:
        """Whether a line is one that its writer ended; refuse the first line of another file."""
        beginning = line.removesuffix(_TORN)
        if is_first and not (beginning.startswith(_HEAD) or _HEAD.startswith(beginning)):
            raise UnreadableLedgerError(
                f"{self.path} is not a ledger: expected it to begin with {_HEAD.decode()}, "
                f"found {line[:40]!r}; choose another work directory, or "
                f"{UnreadableLedgerError.ADVICE}"
            )
        return beginning == line and line.endswith(b"\n")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with self._explained(what="locked"):
            secure_files.make_folder(self.path.parent)
            # a lock by mere existence would outlive a killed writer: never fall back to it
            lock = FileLock(
                secure_files.lock_path(self.path.with_name(self.path.name + ".lock")),
                timeout=_LOCK_TIMEOUT_S,
                mode=secure_files.mode_in(self.path.parent),
                fallback_to_soft=False,
            )
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError:  # filelock's is one
            raise LedgerError(
                f"{self.path} is locked by another process for more than {_LOCK_TIMEOUT_S:.0f} s; "
                "end the process that holds it (it may be stopped), then run again"
            ) from None
        except secure_files.NotOursError as error:
            raise LedgerError(str(error)) from None
        except (OSError, NotImplementedError) as error:
            raise LedgerError(
                f"{self.path} cannot be {what}: {error}; the work directory must be writable, with "
                "free space, on a file system that has flock"
            ) from error


# fields by which code finds things again, and records that hide their own secrets: a value that
# was changed in them would be another trial, another cell or another environment
_NAMES = frozenset(
    {
        *("arm", "before", "captures", "cell_digest", "cells", "cls", "code"),
        *("comment", "declared", "devices", "dump", "field", "files", "flags", "job_ids", "key"),
        *("kinds", "later", "limit", "name", "nodes", "pgle", "profile", "program", "resumed"),
        *("run", "same_as", "session", "source", "study", "submission", "suspects", "sweep"),
        *("trial", "trial_id", "versions", "were"),
    }
)
_OF_MESSAGE = frozenset({"text", "values", "code"})


def without_secrets(data: Json, secrets: frozenset[str] | None = None) -> Json:
    """Return JSON of ours without what no text may show: logs and schedulers quote what they like.

    The texts of messages are ours, their values may be quoted. `secrets` are those that this
    process knows.
    """
    secrets = known_secrets() if secrets is None else secrets
    if isinstance(data, str):
        return hide_quoted(data, secrets)
    if isinstance(data, list):
        return [without_secrets(child, secrets) for child in data]
    if not isinstance(data, dict):
        return data
    if "text" in data and data.keys() <= _OF_MESSAGE:
        values = data.get("values")
        if not isinstance(values, dict):
            return data
        return data | {
            "values": {name: without_secrets(child, secrets) for name, child in values.items()}
        }
    return {
        name: child if name in _NAMES else without_secrets(child, secrets)
        for name, child in data.items()
    }


def _line(event: Event, at_s: float) -> bytes:
    secrets = known_secrets()
    fields = {
        name: value if name in _NAMES else without_secrets(value, secrets)
        for name, value in event.to_json().items()
    }
    data = {"schema": SCHEMA, "at": at_s, "event": word_of(event), **fields}
    try:
        return msgspec.json.encode(data) + b"\n"
    except UnicodeEncodeError:  # the name of a file that is no UTF-8
        return json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n"


def _entry(line: bytes, *, number: int, path: Path) -> LedgerEntry:
    try:
        at_s, event = _parsed(line)
    except UnreadableLedgerError as error:
        raise UnreadableLedgerError(f"{path}:{number}: {error}") from None
    return LedgerEntry(number=number, at_s=at_s, event=event)


# the key is the text alone, so nothing that happens to a file makes an answer wrong; it saves much,
# because one session reads its ledger seven times
@functools.lru_cache(maxsize=_REMEMBERED)
def _parsed(line: bytes) -> tuple[float, Event]:
    """Return the time and the event of a line."""
    match = _BEGUN.match(line)
    if match is None:
        raise _unreadable(line)
    try:
        at_s = _TIME.decode(match["at"])
        return at_s, _EVENT.decode(b"{" + memoryview(line)[match.end() :])
    except (XlatuneError, OverflowError, RecursionError, ValueError) as error:
        if not isinstance(error, msgspec.ValidationError | XlatuneError):
            raise _unreadable(line) from None
        fault, kind = explained(error), match["kind"].decode()
        if kind not in EVENTS:
            fault = f"no event; expected one of {', '.join(EVENTS)}"
        raise UnreadableLedgerError(f"{kind}: {fault}; {UnreadableLedgerError.ADVICE}") from None


def _unreadable(line: bytes) -> UnreadableLedgerError:
    """Return the error of a line that is of another schema, or no JSON of ours."""
    try:
        data = read_json(line, is_ours=True)
        schema, _, _ = data["schema"], data["at"], data["event"]
    except (ValueError, KeyError, TypeError):
        schema = SCHEMA
    if schema != SCHEMA:
        versions = data.get("versions")  # of the line that a session begins with
        by = versions.get("pytest-xlatune") if isinstance(versions, dict) else None
        wrote = "another version of pytest-xlatune" if by is None else f"pytest-xlatune {by!r:.40}"
        return UnreadableLedgerError(
            f"found schema {schema!r:.40}, written by {wrote}; this version reads {SCHEMA}. Start "
            "over with --xlatune-fresh, which moves the file aside, deletes nothing and ends none "
            "of its jobs, or read it with the version that wrote it"
        )
    return UnreadableLedgerError(
        f"unreadable line {line[:60]!r}; every line ends whole, so this one was "
        "damaged later. Restore the file, cut out the line (what it said is lost), or "
        f"{UnreadableLedgerError.ADVICE}"
    )


def _append(path: Path, text: bytes) -> None:
    # it is open to those to whom its folder is open, and to nobody else
    descriptor = secure_files.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            text = _TORN + text
        while text:  # a full disk first writes a part; the next write says why
            text = text[os.write(descriptor, text) :]
        # a kill loses nothing that was written, but a power cut loses all that was not synced
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_ledgers(work_dir: Path) -> tuple[Path, ...]:
    """Return the folders below a work directory that hold a ledger."""
    return tuple(sorted(path.parent for path in work_dir.glob(f"*/*/{LEDGER}")))
