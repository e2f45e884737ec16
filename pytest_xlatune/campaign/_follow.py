"""Follow the logs of running attempts, and read what ended ones left.

Steps are read from the log of rank 0; failures may be in the log of any rank. A log is read once,
in parts: each reading begins where the last one ended. An attempt hangs if it makes no *step* for
longer than its phase allows, whether or not the log grows. The limit is shorter after a fatal line,
which says that the program cannot go on. The only decision here is that an attempt will measure
nothing more. A file that cannot be read becomes a finding of its attempt; other attempts go on.

A trial reports what it ran on (`workers.probe_environment`). An epoch of a cell begins where its
nodes or their environment differ from those of the trial before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.campaign.playbook import Facts
from pytest_xlatune.evidence.hlo.dump import (
    keep_options,
    seen_devices,
    seen_options,
)
from pytest_xlatune.executors.folder import (
    DEVICES,
    journal_bytes,
    journals,
    log_files,
    node_findings,
    read_environments,
    read_spec,
    read_standstill,
)
from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.launchers.command import METRICS_FILE
from pytest_xlatune.ledger import AttemptCutShort, EnvironmentSeen, EpochBegan, Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import LogReader, LogReport, Phase
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.cell import Cell, Protocol
from pytest_xlatune.model.channels import DUMP_FOLDER, Options
from pytest_xlatune.model.environment import NodeEnvironment, changes
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.metric import Logged, Metric
from pytest_xlatune.model.profile import OPTIONS_FOLDER
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    Finding,
    Outcome,
    StepRecord,
    Submission,
    TrialStatus,
)
from pytest_xlatune.model.rotation import RotationRead, read_rotation
from pytest_xlatune.model.trial import Trial

_LOG = logging.getLogger("pytest_xlatune.campaign")
_T = TypeVar("_T")
_U = TypeVar("_U")
_CHUNK_BYTES = 1 << 20
# after a fatal line, steps may come for a while; this number of steps shows that it was not fatal
_STEPS_AFTER_FATAL = 3
_REASON_CHARS = 200  # the most characters of an error's text in a finding


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
        """The steps of the metrics file, or of the log if it has more, as after a crash."""
        is_complete = bool(self.metrics) and len(self.metrics) >= len(self.report.steps)
        return self.metrics if is_complete else self.report.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """All that is known of an attempt that is over: its trial, its end and its files."""

    trial: Trial
    cell: Cell
    outcome: Outcome  # according to the scheduler and the payload
    left: Leftovers
    number: int = 1
    cut: AttemptCutShort | None = None  # why we ended it; None if we did not
    blamed: Sequence[Blamed] = ()  # the programs that earlier attempts of a rotation died of
    dumps_options: bool = False  # whether XLA was asked to dump its options
    exempt: Sequence[str] = ()  # patterns of settings that the sweep declares impossible to observe
    # arm that it is compared with -> line or file -> the device that it shows
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
        self.fatal_step: int | None = None  # last step of rank 0 when this log's fatal line came

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
    """One attempt: its logs, last progress and fatal line; times are of the monotonic clock."""

    tails: dict[int, _LogTail]  # by rank
    # start, phase and last step of rank 0, and size of a rotation's journals, in the last call
    place: tuple[int, Phase, int | None, int] | None = None
    progress_s: float = 0.0  # when the attempt last made progress
    fatal: Finding | None = None  # the fatal line in the last call; None if there was none
    fatal_since_s: float = 0.0  # when it was found

    @property
    def reader(self) -> LogReader:
        return self.tails[0].reader

    def find_fatal(self) -> Finding | None:
        """Return the fatal line of a rank; another rank's only until rank 0 has made more steps."""
        if self.reader.fatal is not None:
            return self.reader.fatal
        step = self.reader.last_step or 0
        for rank, tail in sorted(self.tails.items()):
            if tail.reader.fatal is None:
                tail.fatal_step = None
                continue
            tail.fatal_step = step if tail.fatal_step is None else tail.fatal_step
            # after enough steps of rank 0, the line of another rank was not fatal
            if step - tail.fatal_step < _STEPS_AFTER_FATAL:
                return replace(tail.reader.fatal, source=log_name(rank))
        return None


class Follower:
    """The attempts of one work directory that this process follows."""

    def __init__(self, root: Path, *, patience: Patience) -> None:
        self._root = root
        self._patience = patience
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

        `ticks_s` is the time on a monotonic clock; while the attempt `is_suspended`, it does not
        count. `compiling_factor` multiplies the patience between the memory statistics and the
        first step, and while a rotation compiles. One that `rotates` also makes progress if its
        journal grows.
        """
        watch, folder = self._read(submission, protocol), self._root / submission.folder
        if is_suspended:
            watch.progress_s = watch.fatal_since_s = ticks_s
            return None
        reader, patience = watch.reader, self._patience
        # only steps count, because lines of Ray and of the system may make a hung log grow
        place = (
            reader.start,
            reader.phase,
            reader.last_step,
            journal_bytes(folder) if rotates else 0,
        )
        if place != watch.place:
            watch.place, watch.progress_s = place, ticks_s
        fatal = watch.find_fatal()
        if fatal != watch.fatal:
            watch.fatal, watch.fatal_since_s = fatal, ticks_s
        still_s = ticks_s - watch.progress_s
        fatal_limit_s = max(patience.after_fatal_s, _STEPS_AFTER_FATAL * reader.last_step_s)
        if fatal is not None and min(still_s, ticks_s - watch.fatal_since_s) <= fatal_limit_s:
            fatal = None  # steps may still come
        if fatal is None:
            limits_s = {
                Phase.BEFORE_MEMSTATS: patience.before_memstats_s,
                Phase.COMPILING: patience.compiling_s * compiling_factor,
                Phase.TRAINING: patience.training_s,
            }
            limit_s = limits_s[reader.phase]
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
        dump_folder = folder / (DUMP_FOLDER if protocol.dump else OPTIONS_FOLDER)
        metrics, log = folder / METRICS_FILE, folder / log_name(0)
        read_logged = partial(_metric_figures, log, protocol.scored_by)
        read_options = partial(options_of_dump, folder, protocol)
        values, faults = dict[str, Any](), list[Finding]()
        # field of `Leftovers`, action if the file is damaged, how it is read, file, empty value
        for name, action, read, path, empty in (
            ("metrics", Action.NONE, partial(_metrics, metrics), metrics, ()),
            ("logged", Action.RETRY, read_logged, log, Logged()),
            ("journal", Action.NONE, partial(_combined_journal, folder), folder, None),
            ("devices", Action.RETRY, partial(seen_devices, dump_folder), folder, {}),
            ("options", Action.RETRY, read_options, folder, None),
        ):
            values[name], fault = _read_or_finding(read, path, empty)
            faults += [] if fault is None else [replace(fault, action=action)]
        report = watch.reader.report()
        findings = [
            *report.findings,
            *_findings_of_other_ranks(watch),
            *faults,
            *node_findings(folder),
        ]
        steps = {
            rank: step
            for rank, tail in watch.tails.items()
            if (step := tail.reader.last_step) is not None
        }
        behind = read_standstill(folder, steps=steps, is_sure=stood_still)
        if behind is not None:  # the rank that a hung attempt waits for, and its node
            cls, why = FailureClass.RANK_BEHIND, behind.why
            findings.append(Finding(cls=cls, action=Action.NONE, source=behind.node, why=why))
        return Leftovers(report=replace(report, findings=tuple(findings)), **values)

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
    texts, _ = _read_or_finding(partial(journals, folder), folder, ())
    return any(read_rotation(text).is_compiling for text in texts)


def _combined_journal(folder: Path) -> RotationRead | None:
    """Return the combined journal of a rotation's ranks; None if there is none.

    Turns and programs come from the first process. The program to blame comes from the process that
    is furthest behind in compilations, or else in turns: it died or hung, and the others went on.
    """
    processes = [read_rotation(text) for text in journals(folder)]
    if not processes:
        return None
    suspected = [process for process in processes if process.suspects]
    # a process that raised an exception records its end; the others, which are then killed, do not
    raised = [process for process in suspected if process.is_over]
    if raised and len(raised) < len(processes):
        suspected = raised
    if not suspected:
        return processes[0]

    def progress(read: RotationRead) -> tuple[int, int]:
        turn_call = read.turns[-1].first_call if read.turns else 0
        return len(read.compiled) + len(read.refused), turn_call

    behind = min(suspected, key=progress)
    return replace(processes[0], suspects=behind.suspects, is_compiling=behind.is_compiling)


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


# A profile that sets one of these variables runs other packages or libraries on purpose, so what
# its trial reports about them is not the environment of the cell.
_CODE_VARIABLES = frozenset(
    {"PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)


def compared_devices(
    state: LedgerState, trial: Trial, nodes: Sequence[str]
) -> dict[str, Mapping[str, str]]:
    """Return arm -> witness -> device, for the measured trials of its cell or on the same nodes."""
    ended = [progress.ended for key, progress in state.trials.items() if key != trial.id]
    return {
        result.trial.arm: result.devices
        for result in ended
        if result is not None and result.devices and result.status is TrialStatus.MEASURED
        if result.trial.cell_digest == trial.cell_digest
        or (result.outcome is not None and {*result.outcome.nodes} == {*nodes})
    }


def epoch_events(
    state: LedgerState, attempt: EndedAttempt, folder: Path, *, is_scored: bool
) -> tuple[Event, ...]:
    """Return the epochs that a trial begins, and its environment if that has changed.

    `folder` is the folder of the attempt. A trial without a score begins no epoch by its nodes.
    """
    events = _environment_events(state, attempt, folder)
    digest, nodes = attempt.cell.digest, tuple(sorted(attempt.outcome.nodes))
    were = state.measured_on.get(digest, ())
    if not is_scored or not nodes or not were or nodes == were:
        return events
    why = say("nodes are {nodes}, were {were}", nodes=nodes, were=were)
    return (*events, EpochBegan(why=why, cell_digest=digest, nodes=nodes))


def _environment_events(
    state: LedgerState, attempt: EndedAttempt, folder: Path
) -> tuple[Event, ...]:
    """Return the environment of a trial if it is new, and the epoch if the environment changed."""
    trial, digest = attempt.trial, attempt.trial.cell_digest
    runs_other_code = not _CODE_VARIABLES.isdisjoint(trial.profile.env)
    libraries, reported = attempt.left.report.libraries, dict[str, NodeEnvironment]()
    for node in read_environments(folder):
        reported[node.name] = replace(node, packages={**node.packages, **libraries})
        if runs_other_code:
            reported[node.name] = replace(node, packages={}, devices={}, code={})
    if not reported:
        return ()
    before = {known.name: known for known in state.environments.get(digest, ())}
    # for a node that did not answer in time, its last answer is kept for the next comparison
    silent = before.keys() & set(attempt.outcome.nodes) - reported.keys()
    after = {name: node.after(before.get(name)) for name, node in reported.items()}
    after |= {name: before[name] for name in sorted(silent)}
    spec = read_spec(folder)
    is_whole = spec is not None and spec.probe[-1:] == (DEVICES,)
    if not is_whole and after == before:
        return ()
    nodes = tuple(after.values())
    seen = EnvironmentSeen(trial_id=trial.id, cell_digest=digest, nodes=nodes, is_whole=is_whole)
    differences = {
        name: found
        for name, node in reported.items()
        if name in before and (found := changes(before[name], node))
    }
    if not differences:
        return (seen,)
    why = say(
        "on {nodes} changed: {changes:; }",
        nodes=[*differences],
        changes=list(dict.fromkeys(change for found in differences.values() for change in found)),
    )
    began = EpochBegan(why=why, cell_digest=digest, nodes=tuple(differences))
    _LOG.warning("%s", sentence(began.remark))
    return (seen, began)
