"""Follow the logs of running attempts, and read what ended ones left.

Steps are read from the log of rank 0; failures may be in the log of any rank. A log is read once,
in parts: each reading begins where the last one ended. An attempt hangs if it makes no *step* for
longer than its phase allows, whether or not the log grows. The limit is shorter after a fatal line,
which says that the program cannot go on. The only decision here is that an attempt will measure
nothing more. A file that cannot be read becomes a finding of its attempt; other attempts go on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.campaign.playbook import Facts
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
from pytest_xlatune.launchers.command import METRICS_FILE
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs import LogReader, LogReport, Phase
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.cell import Cell, Protocol
from pytest_xlatune.model.channels import DUMP_FOLDER, Options
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say
from pytest_xlatune.model.metric import Logged, Metric
from pytest_xlatune.model.profile import OPTIONS_FOLDER
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Action, Blamed, Finding, Outcome, StepRecord, Submission
from pytest_xlatune.model.rotation import RotationRead, read_rotation
from pytest_xlatune.model.trial import Trial

_LOG = logging.getLogger("pytest_xlatune.campaign")
_T = TypeVar("_T")
_U = TypeVar("_U")
_CHUNK_BYTES = 1 << 20
# after a fatal line, steps may come for a while; this number of steps shows that it was not fatal
_STEPS_AFTER_FATAL = 3
_REASON_CHARS = 200  # the most characters of an error's text in a finding


# number of the start of rank 0's trainer, its phase, and its last step; -1 before the first step
_Place = tuple[int, Phase, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What an ended attempt left in its folder, as far as it could be read."""

    report: LogReport
    metrics: tuple[StepRecord, ...] = ()  # the unrounded steps of MaxText's metrics file
    logged: Logged | None = None  # the figures of the protocol's metric that are in no step record
    journal: RotationRead | None = None  # what the worker of a rotation wrote
    options: Options | None = None  # the options that XLA dumped
    devices: Mapping[str, str] = field(default_factory=dict)  # module of XLA's dump -> its device

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The steps of the metrics file, or those of the log if the log has more steps.

        A trainer that dies may leave an incomplete metrics file.
        """
        is_complete = bool(self.metrics) and len(self.metrics) >= len(self.report.steps)
        return self.metrics if is_complete else self.report.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """All that is known of an attempt that is over: its trial, its end and its files.

    `ran_on` has the devices of the arms that it is compared with: arm -> {line or file -> the
    device that it shows}.
    """

    trial: Trial
    cell: Cell
    outcome: Outcome  # according to the scheduler and the payload
    left: Leftovers
    number: int = 1
    cut: AttemptCutShort | None = None  # why we ended it; None if we did not
    blamed: Sequence[Blamed] = ()  # the programs that earlier attempts of a rotation died of
    dumps_options: bool = False  # whether XLA was asked to dump its options
    exempt: Sequence[str] = ()  # patterns of settings that the sweep declares impossible to observe
    ran_on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    executor: str = ""  # the name of its executor
    log: Path | None = None  # the log to show to a person; None if there is none
    facts: Facts = field(default_factory=Facts)


class _LogTail:
    """How far the log of one rank has been read."""

    def __init__(self, path: Path, pattern: str) -> None:
        self._path = path
        self._pattern = step_pattern(pattern) if pattern else None
        self._offset_bytes = 0
        self.reader = LogReader(self._pattern)
        self.fault: Finding | None = None  # why the log cannot be read; None if it can
        # rank 0's place when this log's fatal line was found; None without such a line
        self.fatal_at: _Place | None = None

    def read(self, *, is_over: bool = False) -> None:
        """Read on; after an error the log counts as empty and is not read again."""
        if self.fault is None:
            read = self.reader.close if is_over else self._read
            _, self.fault = _read_or_finding(read, self._path, None)
            if self.fault is not None:
                self.reader = LogReader(self._pattern)

    def _read(self) -> None:
        with os.fdopen(secure_files.open_file(self._path), "rb") as file:
            file.seek(self._offset_bytes)
            while chunk := file.read(_CHUNK_BYTES):
                self.reader.feed(chunk)
                self._offset_bytes += len(chunk)


@dataclass(slots=True, kw_only=True)
class _Watch:
    """One attempt: the logs of its ranks, its last progress, and the time of its fatal line.

    Times are those of the monotonic clock that callers of `Follower.reason_to_end` use.
    """

    tails: dict[int, _LogTail]  # by rank
    last_place: _Place | None = None  # the place of rank 0 in the last call; None before the first
    progress_s: float = 0.0  # when the attempt last made progress
    fatal: Finding | None = None  # the fatal line in the last call; None if there was none
    fatal_since_s: float = 0.0  # when it was found
    journal_bytes: int = 0  # size of a rotation's journals in the last call

    @property
    def reader(self) -> LogReader:
        return self.tails[0].reader

    @property
    def place(self) -> _Place:
        last_step = self.reader.last_step
        if last_step is None:
            last_step = -1
        return self.reader.start, self.reader.phase, last_step

    def find_fatal(self) -> Finding | None:
        """Return rank 0's fatal line, or another rank's unless rank 0 has gone on since then."""
        if self.reader.fatal is not None:
            return self.reader.fatal
        for rank, tail in sorted(self.tails.items()):
            if tail.reader.fatal is None:
                tail.fatal_at = None
                continue
            tail.fatal_at = tail.fatal_at or self.place
            former_start, former_phase, former_step = tail.fatal_at
            start, phase, step = self.place
            # after enough steps of rank 0, the line of another rank was not fatal
            is_same_phase = (start, phase) == (former_start, former_phase)
            if is_same_phase and step - former_step < _STEPS_AFTER_FATAL:
                return replace(tail.reader.fatal, source=log_name(rank))
        return None


class Follower:
    """The attempts of one work directory that this process follows."""

    def __init__(self, root: Path, *, patience: Patience | None = None) -> None:
        self._root = root
        self._patience = patience or Patience()
        self._watches: dict[str, _Watch] = {}

    def reason_to_end(
        self,
        submission: Submission,
        protocol: Protocol,
        *,
        ticks_s: float,
        is_suspended: bool = False,
        compiling_factor: float = 1.0,
        rotates: bool = False,
    ) -> AttemptCutShort | None:
        """Read on in the logs of a running attempt; return why it must be ended, or None.

        Args:
            submission: the attempt.
            protocol: the protocol of its trial.
            ticks_s: the time now, on the same monotonic clock in all calls.
            is_suspended: whether the attempt cannot make progress now; that time does not count.
            compiling_factor: factor on the patience between the memory statistics and the first
                step, and while the journal of a rotation says that a program compiles.
            rotates: whether it is a rotation, which also makes progress if its journal grows.
        """
        watch, folder = self._read(submission, protocol), self._root / submission.folder
        if is_suspended:
            watch.progress_s = watch.fatal_since_s = ticks_s
            return None
        phase, patience = watch.reader.phase, self._patience
        # only steps count, because lines of Ray and of the system may make a hung log grow
        if watch.place != watch.last_place:
            watch.last_place, watch.progress_s = watch.place, ticks_s
        if rotates and (written := journal_bytes(folder)) != watch.journal_bytes:
            watch.journal_bytes, watch.progress_s = written, ticks_s
        fatal = watch.find_fatal()
        if fatal != watch.fatal:
            watch.fatal, watch.fatal_since_s = fatal, ticks_s
        still_s = ticks_s - watch.progress_s
        fatal_limit_s = max(patience.after_fatal_s, _STEPS_AFTER_FATAL * watch.reader.last_step_s)
        if fatal is not None and min(still_s, ticks_s - watch.fatal_since_s) <= fatal_limit_s:
            fatal = None  # steps may still come
        if fatal is None:
            limits_s = {
                Phase.BEFORE_MEMSTATS: patience.before_memstats_s,
                Phase.COMPILING: patience.compiling_s * compiling_factor,
                Phase.TRAINING: patience.training_s,
            }
            limit_s = limits_s[phase]
            if rotates and limit_s < still_s and _is_compiling(folder):
                limit_s = max(limit_s, limits_s[Phase.COMPILING])
            if still_s <= limit_s:
                return None
        return AttemptCutShort(
            trial_id=submission.trial_id, attempt=submission.attempt, still_s=still_s, fatal=fatal
        )

    def finish(
        self, submission: Submission, protocol: Protocol, *, stood_still: bool = False
    ) -> Leftovers:
        """Read all that an ended attempt left, and forget the attempt.

        `stood_still` says whether we ended it because it hung.
        """
        watch = self._read(submission, protocol)
        del self._watches[submission.folder]
        folder = self._root / submission.folder
        for tail in watch.tails.values():
            tail.read(is_over=True)
        faults: list[Finding] = []

        def guarded(read: Callable[[], _T], path: Path, otherwise: _U, action: Action) -> _T | _U:
            """Call `read`; `action` is that of the finding if the file is damaged."""
            value, fault = _read_or_finding(read, path, otherwise)
            if fault is not None:
                faults.append(replace(fault, action=action))
            return value

        dump_folder = folder / (DUMP_FOLDER if protocol.dump else OPTIONS_FOLDER)
        metrics_file, log = folder / METRICS_FILE, folder / log_name(0)
        read_metrics, no_steps = partial(_metrics, metrics_file), tuple[StepRecord, ...]()
        no_devices: dict[str, str] = {}
        read_logged = partial(_metric_figures, log, protocol.scored_by)
        metrics = guarded(read_metrics, metrics_file, no_steps, Action.NONE)
        logged = guarded(read_logged, log, Logged(), Action.RETRY)
        journal = guarded(partial(_combined_journal, folder), folder, None, Action.NONE)
        devices = guarded(partial(seen_devices, dump_folder), folder, no_devices, Action.RETRY)
        options = guarded(partial(options_of_dump, folder, protocol), folder, None, Action.RETRY)
        report = watch.reader.report()
        findings = (
            *report.findings,
            *_findings_of_other_ranks(watch),
            *faults,
            *node_findings(folder),
            *_rank_behind(folder, watch, is_sure=stood_still),
        )
        return Leftovers(
            report=replace(report, findings=findings),
            metrics=metrics,
            logged=logged,
            journal=journal,
            devices=devices,
            options=options,
        )

    def _read(self, submission: Submission, protocol: Protocol) -> _Watch:
        folder, pattern = self._root / submission.folder, protocol.step_pattern
        watch = self._watches.get(submission.folder)
        if watch is None:
            watch = _Watch(tails={0: _LogTail(folder / log_name(0), pattern)})
            self._watches[submission.folder] = watch
        for rank, path in log_files(folder).items():
            if rank not in watch.tails:
                watch.tails[rank] = _LogTail(path, pattern)
            watch.tails[rank].read()
        return watch


def unreadable_finding(path: Path, error: Exception) -> Finding:
    """Return the finding for a file of an attempt that cannot be read."""
    text = f"{(str(error) or type(error).__name__)[:_REASON_CHARS]} ({path})"
    cls = FailureClass.LOG_UNREADABLE
    why = say("{meaning}: {said}", meaning=cls.meaning, cls=cls, said=text)
    return Finding(cls=cls, action=Action.RETRY, detail=text, why=why)


def _read_or_finding(
    read: Callable[[], _T], path: Path, otherwise: _U
) -> tuple[_T | _U, Finding | None]:
    """Return what `read` returns, or `otherwise` and a finding if the file cannot be read."""
    try:
        return read(), None
    except (PermissionError, IsADirectoryError) as error:
        return otherwise, unreadable_finding(path, error)
    except OSError:  # the file system is away; the campaign waits for it
        raise
    # An unforeseen text in one log must not end every session that reads it. An example is a
    # number of 5,000 digits, which Python does not convert.
    except Exception as error:  # noqa: BLE001
        _LOG.exception("%s cannot be read", path)
        return otherwise, unreadable_finding(path, error)


def options_of_dump(folder: Path, protocol: Protocol) -> Options | None:
    """Return the options that the XLA of an attempt dumped; None if it dumped none."""
    if protocol.dump:
        return seen_options(folder / DUMP_FOLDER)
    options = seen_options(folder / OPTIONS_FOLDER)
    keep_options(folder / OPTIONS_FOLDER)
    return options


def _metrics(path: Path) -> tuple[StepRecord, ...]:
    return parse_metrics(secure_files.read_text(path)) if path.exists() else ()


def _metric_figures(log: Path, metric: Metric) -> Logged:
    if not log.exists():
        return Logged()
    with os.fdopen(secure_files.open_file(log), "rb") as lines:
        return read_figures(lines, metric)


def _is_compiling(folder: Path) -> bool:
    processes, _ = _read_or_finding(partial(_journals, folder), folder, None)
    return any(read.is_compiling for read in processes or ())


def _journals(folder: Path) -> list[RotationRead]:
    return [read_rotation(text) for text in journals(folder)]


def _combined_journal(folder: Path) -> RotationRead | None:
    """Return the combined journal of a rotation's ranks; None if there is none.

    Turns and programs come from the first process. The program to blame comes from the process that
    is furthest behind in compilations, or else in turns: it died or hung, and the others went on.
    """
    processes = _journals(folder)
    if not processes:
        return None
    suspected = [process for process in processes if process.suspects]
    # a process that raised an exception records its end; the others, which are then killed, do not
    raised = [process for process in suspected if process.is_over]
    if raised and len(raised) < len(processes):
        suspected = raised
    if not suspected:
        return processes[0]
    behind = min(suspected, key=_progress)
    return replace(processes[0], suspects=behind.suspects, is_compiling=behind.is_compiling)


def _progress(read: RotationRead) -> tuple[int, int]:
    """Return the progress of a process: its number of compilations, the first call of its turn."""
    turn_call = read.turns[-1].first_call if read.turns else 0
    return len(read.compiled) + len(read.refused), turn_call


def _findings_of_other_ranks(watch: _Watch) -> Iterator[Finding]:
    """Yield the findings of another rank's log if one of them is in no earlier rank's log.

    Then all findings of that rank are yielded, because they show whether its program raised an
    exception itself. A log that cannot be read is a finding too. Only the log of rank 0, which has
    the steps, causes a retry.
    """
    for rank, tail in sorted(watch.tails.items()):
        if tail.fault is not None:
            action = Action.NONE if rank else tail.fault.action
            yield replace(tail.fault, action=action, source=log_name(rank))
    known = {(finding.cls, finding.detail) for finding in watch.reader.findings}
    for rank, tail in sorted(watch.tails.items()):
        findings = [
            finding for finding in tail.reader.findings if finding.action is not Action.NONE
        ]
        reported = {(finding.cls, finding.detail) for finding in findings}
        if rank and not reported <= known:
            for finding in findings:
                yield replace(finding, source=log_name(rank))
        known |= reported


def _rank_behind(folder: Path, watch: _Watch, *, is_sure: bool) -> Iterator[Finding]:
    """Yield a finding on the rank that a hung attempt waits for; `source` is its node."""
    last_steps = {rank: tail.reader.last_step for rank, tail in watch.tails.items()}
    steps = {rank: step for rank, step in last_steps.items() if step is not None}
    standstill = read_standstill(folder, steps=steps, is_sure=is_sure)
    if standstill is not None:
        cls = FailureClass.RANK_BEHIND
        yield Finding(cls=cls, action=Action.NONE, source=standstill.node, why=standstill.why)
