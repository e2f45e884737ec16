"""The append-only journal of a cell: what was planned, submitted, seen and decided, in order.

One event is one line of JSON, appended under a lock and synced before anyone acts on it, so that
killing any process at any moment loses neither a job nor a result. An event exists when its
newline does: a line that a killed writer left unfinished is ignored, and the next writer marks it
as torn before it goes on. Readers take no lock and read only what is new. This module knows
neither pytest nor executors, decides nothing, and reads no clock: the caller says when.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_xlatune.errors import LedgerError, XlatuneError
from pytest_xlatune.ledger.events import (
    EVENTS,
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Entry,
    EpochBegan,
    Event,
    EvidenceRecorded,
    FilesRead,
    NodesPinned,
    Noted,
    ProfileCompiled,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import Attempt, LedgerState, Progress, replay

__all__ = [
    "SCHEMA",
    "Attempt",
    "AttemptCutShort",
    "AttemptEnded",
    "AttemptIntended",
    "AttemptLetGo",
    "AttemptSubmitted",
    "CampaignOpened",
    "Decided",
    "Entry",
    "EpochBegan",
    "Event",
    "EvidenceRecorded",
    "FilesRead",
    "Ledger",
    "LedgerState",
    "NodesPinned",
    "Noted",
    "ProfileCompiled",
    "Progress",
    "TrialEnded",
    "TrialPlanned",
    "replay",
]

SCHEMA = 1
_HEAD = b'{"schema":'  # how every line begins
_TORN = b"\t# torn: its writer was killed\n"  # no JSON of ours holds a raw tab
_LOCK_TIMEOUT_S = 60.0


class Ledger:
    """The journal in one file; any number of processes may hold it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[Entry] = []
        self._inode: int | None = None
        self._offset_bytes = 0
        self._number = 0

    def append(self, event: Event, *, at_s: float) -> None:
        """Add one event; it is on the disk when this returns.

        Raises:
            LedgerError: the file cannot be created, locked or written; act as if the event were
                unknown, though after a failed sync it may be found in the file.
        """
        self.append_all((event,), at_s=at_s)

    def append_all(self, events: Iterable[Event], *, at_s: float) -> None:
        """Add events in order, with nothing of another writer between them.

        Raises:
            LedgerError: as of `append`.
        """
        text = b"".join(_line(event, at_s) for event in events)
        if text:
            with self._lock(), self._explained("written"):
                _append(self.path, text)

    def refresh(self) -> tuple[Entry, ...]:
        """Return the events added since the last call; costs one `stat` when there are none.

        Raises:
            LedgerError: an unreadable line, by its number, a newer schema, no ledger at all, or
                another file in its place.
        """
        with self._explained("read"):
            try:
                status = self.path.stat()
            except FileNotFoundError:
                if self._inode is None:
                    return ()
                raise
            if self._inode not in (None, status.st_ino) or status.st_size < self._offset_bytes:
                raise LedgerError(
                    f"{self.path} was replaced while this session was using it (started afresh by "
                    "another one?); run again to go on with the new one"
                )
            self._inode = status.st_ino
            if status.st_size == self._offset_bytes:
                return ()
            with self.path.open("rb") as file:
                file.seek(self._offset_bytes)
                new = self._parse(file)
        self._entries += new
        return new

    def events(self) -> tuple[Entry, ...]:
        """Return every event so far, the new ones included."""
        self.refresh()
        return tuple(self._entries)

    def archive(self, *, at_s: float) -> Path | None:
        """Move the ledger aside under a name with the date; None where there is none.

        Nothing is deleted. Raises LedgerError as `append` does.
        """
        when = datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        with self._lock(), self._explained("moved aside"):
            if not self.path.exists():
                return None
            names = (f"{self.path.stem}-{when}{dot}{self.path.suffix}" for dot in _suffixes())
            aside = next(each for each in map(self.path.with_name, names) if not each.exists())
            self.path.rename(aside)
        self._entries, self._inode, self._offset_bytes, self._number = [], None, 0, 0
        return aside

    def _parse(self, lines: Iterable[bytes]) -> tuple[Entry, ...]:
        entries = []
        number, offset_bytes = self._number, self._offset_bytes
        for line in lines:
            begun = line.removesuffix(_TORN)
            if number == 0 and not (begun.startswith(_HEAD) or _HEAD.startswith(begun)):
                raise LedgerError(
                    f"{self.path} is not a ledger: expected it to begin with {_HEAD.decode()}, "
                    f"found {line[:40]!r}; choose another work directory"
                )
            if not line.endswith(b"\n"):
                break  # torn, or another process is writing it now
            number += 1
            offset_bytes += len(line)
            if begun == line:
                entries.append(_entry(line, number=number, path=self.path))
        self._number, self._offset_bytes = number, offset_bytes
        return tuple(entries)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with self._explained("locked"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # a lock by mere existence would outlive a killed writer: never fall back to it
            lock = FileLock(
                self.path.with_name(self.path.name + ".lock"),
                timeout=_LOCK_TIMEOUT_S,
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
        except Timeout:
            raise LedgerError(
                f"{self.path} is locked by another process for more than {_LOCK_TIMEOUT_S:.0f} s; "
                "end the process that holds it (it may be stopped), then run again"
            ) from None
        except (OSError, NotImplementedError) as error:
            raise LedgerError(
                f"{self.path} cannot be {what}: {error}; the work directory must be writable, with "
                "free space, on a file system that has flock"
            ) from error


def _line(event: Event, at_s: float) -> bytes:
    data = {"schema": SCHEMA, "at": at_s, "event": event.kind, **event.to_json()}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _entry(line: bytes, *, number: int, path: Path) -> Entry:
    where = f"{path}:{number}"
    try:
        data = json.loads(line)
        schema, at_s, kind = data.pop("schema"), data.pop("at"), data.pop("event")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise LedgerError(
            f"{where}: unreadable line {line[:60]!r}; every line ends whole, so this one was "
            "damaged later. Restore the file, or cut out the line: what it said is lost"
        ) from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise LedgerError(
            f"{where}: written by schema {schema!r}, this version reads up to {SCHEMA}; upgrade "
            "pytest-xlatune, or move the ledger aside with --xlatune-fresh"
        )
    if kind not in EVENTS:
        raise LedgerError(f"{where}: unknown event {kind!r}; expected one of {', '.join(EVENTS)}")
    try:
        return Entry(number=number, at_s=float(at_s), event=EVENTS[kind].from_json(data))
    except (XlatuneError, TypeError, ValueError) as error:
        raise LedgerError(f"{where}: {kind}: {error}") from None


def _append(path: Path, text: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            text = _TORN + text
        while text:  # a full disk first writes a part; the next write says why
            text = text[os.write(descriptor, text) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _suffixes() -> Iterator[str]:
    yield ""
    number = 2
    while True:
        yield f"-{number}"
        number += 1
