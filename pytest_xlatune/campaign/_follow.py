"""Follow the logs of running attempts, and read those of ended ones.

Steps are those of rank 0; failures may be in the log of any rank. A log is read once, in parts:
each reading begins where the last one ended. A hang means that no *step* came for longer than its
phase allows, whether or not the file grows; the limit is shorter after a line that says that the
program cannot go on. This module decides nothing except that an attempt will measure nothing more.

A log or a metrics file that cannot be read is a problem of its attempt alone: it becomes a finding,
and the others go on.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.campaign.ended import Leftovers
from pytest_xlatune.campaign.rotating import read_journals
from pytest_xlatune.evidence.hlo.dump import (
    keep_options,
    seen_devices,
    seen_options,
)
from pytest_xlatune.executors.folder import (
    journal_bytes,
    journals,
    log_files,
    node_findings,
    read_standstill,
)
from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.launchers.program import METRICS_FILE
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs import LogReader, Phase
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.channels import DUMP_FOLDER, Options
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say
from pytest_xlatune.model.metric import Logged, Metric
from pytest_xlatune.model.profile import OPTIONS_FOLDER
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Action, Finding, StepRecord, Submission
from pytest_xlatune.model.rotation import read_rotation

_LOG = logging.getLogger("pytest_xlatune.campaign")
_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 20
# after a fatal line, steps may come for a while; so many show that the line was not fatal
_STEPS = 3
_REASON_CHARS = 200


_Place = tuple[int, Phase, int | None]  # start, phase and last step of rank 0


@dataclass(slots=True, kw_only=True)
class _Tail:
    """The reading position in the log of one rank, and rank 0's place at this log's fatal line."""

    pattern: str
    reader: LogReader = field(init=False)
    offset_bytes: int = 0
    fatal_at: _Place | None = None
    unreadable: Finding | None = None

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.reader = LogReader(step_pattern(self.pattern) if self.pattern else None)

    def read(self, path: Path) -> None:
        """Read on; after an error, nothing of the log counts, and it is not read again."""
        if self.unreadable is None:
            _, self.unreadable = _guarded(lambda: self._read(path), path, None)
            if self.unreadable is not None:
                self._begin()

    def _read(self, path: Path) -> None:
        with os.fdopen(secure_files.open_file(path), "rb") as file:
            file.seek(self.offset_bytes)
            while chunk := file.read(_CHUNK_BYTES):
                self.reader.feed(chunk)
                self.offset_bytes += len(chunk)

    def close(self, path: Path) -> None:
        """Read the last line even if it has no end."""
        if self.unreadable is None:
            _, self.unreadable = _guarded(self.reader.close, path, None)
        if self.unreadable is not None:
            self._begin()


@dataclass(slots=True, kw_only=True)
class _Watch:
    """One attempt: the logs of its ranks, its last progress, and the time of its fatal line."""

    tails: dict[int, _Tail]
    got_to: _Place | None = None  # rank 0's last place
    got_on_s: float = 0.0  # when it was reached
    fatal: Finding | None = None
    fatal_since_s: float = 0.0
    journal_bytes: int = 0

    @property
    def reader(self) -> LogReader:
        return self.tails[0].reader

    @property
    def place(self) -> _Place:
        return self.reader.start, self.reader.phase, self.reader.last_step

    def find_fatal(self) -> Finding | None:
        """Return rank 0's fatal line, or another rank's as long as rank 0 makes no progress."""
        if self.reader.fatal is not None:
            return self.reader.fatal
        for rank, tail in sorted(self.tails.items()):
            if tail.reader.fatal is None:
                tail.fatal_at = None
                continue
            tail.fatal_at = tail.fatal_at or self.place
            if not _went_on(tail.fatal_at, self.place):
                return replace(tail.reader.fatal, source=log_name(rank))
        return None


class Follower:
    """The attempts of one work directory that this process follows."""

    def __init__(self, root: Path, *, patience: Patience | None = None) -> None:
        self._root = root
        self._patience = patience or Patience()
        self._watches: dict[str, _Watch] = {}

    def look(
        self,
        submission: Submission,
        protocol: Protocol,
        *,
        ticks_s: float,
        is_suspended: bool = False,
        compiling: float = 1.0,
        rotates: bool = False,
    ) -> AttemptCutShort | None:
        """Read on in a running attempt's log; return why it must be ended, or None.

        `ticks_s` is the time of one monotonic clock for all calls. While the scheduler has stopped
        the processes of an attempt, time does not count. Between Memstats and the first step the
        patience is multiplied by `compiling`, and so it is for a rotation while its journal says
        that a program compiles. A rotation also makes progress when its journal grows.
        """
        watch = self._read(submission, protocol)
        if is_suspended:
            watch.got_on_s = watch.fatal_since_s = ticks_s
            return None
        reader, patience = watch.reader, self._patience
        # the file's time shows nothing, because lines of Ray and the system make a hung log grow
        if watch.place != watch.got_to:
            watch.got_to, watch.got_on_s = watch.place, ticks_s
        if rotates:
            written = journal_bytes(self._root / submission.folder)
            if written != watch.journal_bytes:
                watch.journal_bytes, watch.got_on_s = written, ticks_s
        fatal = watch.find_fatal()
        if fatal != watch.fatal:
            watch.fatal, watch.fatal_since_s = fatal, ticks_s
        still_s = ticks_s - watch.got_on_s
        enough_s = max(patience.after_fatal_s, _STEPS * reader.last_step_s)
        if fatal is None or min(still_s, ticks_s - watch.fatal_since_s) <= enough_s:
            fatal = None
            limits_s = {
                Phase.BEFORE_MEMSTATS: patience.before_memstats_s,
                Phase.COMPILING: patience.compiling_s * compiling,
                Phase.TRAINING: patience.training_s,
            }
            limit_s = limits_s[reader.phase]
            if rotates and limit_s < still_s and self._compiles(submission):
                limit_s = max(limit_s, limits_s[Phase.COMPILING])
            if still_s <= limit_s:
                return None
        return AttemptCutShort(
            trial_id=submission.trial_id, attempt=submission.attempt, still_s=still_s, fatal=fatal
        )

    def _compiles(self, submission: Submission) -> bool:
        folder = self._root / submission.folder
        is_compiling, _ = _guarded(
            lambda: any(read_rotation(journal).is_compiling for journal in journals(folder)),
            folder,
            otherwise=False,
        )
        return is_compiling

    def finish(
        self, submission: Submission, protocol: Protocol, *, stood_still: bool = False
    ) -> Leftovers:
        """Read the rest of what an ended attempt left, and forget the attempt.

        `stood_still` says whether it was ended because it hung.
        """
        watch = self._read(submission, protocol)
        del self._watches[submission.folder]
        folder = self._root / submission.folder
        logs = log_files(folder)
        for rank, tail in watch.tails.items():
            tail.close(logs.get(rank, folder / log_name(rank)))
        report = watch.reader.report()
        faults: list[Finding | None] = []

        def guarded(read: Callable[[], _T], path: Path, otherwise: _T, *, asks: bool) -> _T:
            value, fault = _guarded(read, path, otherwise)
            faults.append(fault if fault is None or asks else replace(fault, action=Action.NONE))
            return value

        no_steps, log = tuple[StepRecord, ...](), logs.get(0)
        left = Leftovers(
            report=report,
            metrics=guarded(lambda: _metrics(folder), folder / METRICS_FILE, no_steps, asks=False),
            logged=guarded(
                lambda: Logged() if log is None else _figures(log, protocol.scored_by),
                log or folder,
                Logged(),
                asks=True,
            ),
            journal=guarded(lambda: read_journals(journals(folder)), folder, None, asks=False),
            devices=guarded(
                lambda: seen_devices(folder / (DUMP_FOLDER if protocol.dump else OPTIONS_FOLDER)),
                folder,
                {},
                asks=True,
            ),
            options=guarded(lambda: dumped(folder, protocol), folder, None, asks=True),
        )
        findings = (
            *report.findings,
            *_others(watch),
            *filter(None, faults),
            *node_findings(folder),
            *_behind(folder, watch, is_sure=stood_still),
        )
        return dataclasses.replace(left, report=dataclasses.replace(report, findings=findings))

    def _read(self, submission: Submission, protocol: Protocol) -> _Watch:
        watch, pattern = self._watches.get(submission.folder), protocol.step_pattern
        if watch is None:
            watch = _Watch(tails={0: _Tail(pattern=pattern)})
            self._watches[submission.folder] = watch
        for rank, path in log_files(self._root / submission.folder).items():
            if rank not in watch.tails:
                watch.tails[rank] = _Tail(pattern=pattern)
            watch.tails[rank].read(path)
        return watch


def unreadable(path: Path, error: Exception) -> Finding:
    """Return the finding for a file of an attempt that cannot be read."""
    text = f"{(str(error) or type(error).__name__)[:_REASON_CHARS]} ({path})"
    cls = FailureClass.LOG_UNREADABLE
    why = say("{meaning}: {said}", meaning=cls.meaning, cls=cls, said=text)
    return Finding(cls=cls, action=Action.RETRY, detail=text, why=why)


def _guarded(read: Callable[[], _T], path: Path, otherwise: _T) -> tuple[_T, Finding | None]:
    """Return what `read` returns, or `otherwise` and a finding if the file cannot be read."""
    # a number of 5,000 digits in the log of a trial ended every session that read it
    try:
        return read(), None
    except (PermissionError, IsADirectoryError) as error:
        return otherwise, unreadable(path, error)
    except OSError:  # errors of the file system are handled by the caller's waiting
        raise
    except Exception as error:  # noqa: BLE001 - one log must not end a night
        _LOG.exception("%s cannot be read", path)
        return otherwise, unreadable(path, error)


def dumped(folder: Path, protocol: Protocol) -> Options | None:
    """Return the options that the XLA of an attempt dumped; None if it dumped none."""
    if protocol.dump:
        return seen_options(folder / DUMP_FOLDER)
    options = seen_options(folder / OPTIONS_FOLDER)
    keep_options(folder / OPTIONS_FOLDER)
    return options


def _metrics(folder: Path) -> tuple[StepRecord, ...]:
    path = folder / METRICS_FILE
    text = secure_files.read_text(path) if path.exists() else ""
    return parse_metrics(text)


def _figures(log: Path, metric: Metric) -> Logged:
    with os.fdopen(secure_files.open_file(log), "rb") as lines:
        return read_figures(lines, metric)


def _others(watch: _Watch) -> Iterator[Finding]:
    """Yield the findings of other ranks' logs if they have one that no earlier rank had.

    Then all of them are yielded, since a rank's other lines tell whether an exception is its own. A
    log that cannot be read is reported; only rank 0's, which has the steps, causes another attempt.
    """
    for rank, tail in sorted(watch.tails.items()):
        if tail.unreadable is not None:
            action = Action.NONE if rank else tail.unreadable.action
            yield replace(tail.unreadable, action=action, source=log_name(rank))
    known = {(finding.cls, finding.detail) for finding in watch.reader.findings}
    for rank, tail in sorted(watch.tails.items()):
        asks = [finding for finding in tail.reader.findings if finding.action is not Action.NONE]
        reported = {(finding.cls, finding.detail) for finding in asks}
        if rank and not reported <= known:
            yield from (replace(finding, source=log_name(rank)) for finding in asks)
        known |= reported


def _behind(folder: Path, watch: _Watch, *, is_sure: bool) -> Iterator[Finding]:
    """Yield which rank of an attempt that hung is behind; `source` is its node."""
    last = {rank: tail.reader.last_step for rank, tail in watch.tails.items()}
    steps = {rank: step for rank, step in last.items() if step is not None}
    standstill = read_standstill(folder, steps=steps, is_sure=is_sure)
    if standstill is not None:
        cls = FailureClass.RANK_BEHIND
        yield Finding(cls=cls, action=Action.NONE, source=standstill.node, why=standstill.why)


def _went_on(then: _Place, now: _Place) -> bool:
    """Return whether rank 0 went on for so long that another rank's fatal line was none."""
    if then[:2] != now[:2]:
        return True
    return (-1 if now[2] is None else now[2]) - (-1 if then[2] is None else then[2]) >= _STEPS
