"""Follow the logs of running attempts, and read those of ended ones.

A log is read once, from where the last look ended. A hang is no *step* for longer than its phase
allows, never a quiet or a busy file; after a line that says that the program cannot go on, patience
is shorter. This module decides nothing but "this one will measure nothing any more".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.cells import Patience
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.launchers.program import METRICS_FILE
from pytest_xlatune.logs import LogReader, LogReport, Phase
from pytest_xlatune.logs.metrics import parse_metrics
from pytest_xlatune.results import Finding, StepRecord, Submission

_CHUNK_BYTES = 1 << 20
_STEPS_AFTER_FATAL = 3  # a step may be longer than the patience after a fatal line


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Why a running attempt will measure nothing any more.

    Attributes:
        still_s: seconds without a step.
        fatal: the line after which it cannot go on; None where there is none.
    """

    still_s: float
    fatal: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an ended attempt left.

    Attributes:
        report: of its logs.
        metrics: the steps of its metrics file, () where there is none.
    """

    report: LogReport
    metrics: tuple[StepRecord, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Watch:
    """One attempt: where we are in its log, when it last got on, and since when it is doomed."""

    reader: LogReader = field(default_factory=LogReader)
    offset_bytes: int = 0
    got_to: tuple[int, Phase, int | None] | None = None
    got_on_s: float = 0.0
    fatal: Finding | None = None
    fatal_since_s: float = 0.0


class Follower:
    """The attempts of one work directory that this process looks at."""

    def __init__(self, root: Path, *, patience: Patience | None = None) -> None:
        self._root = root
        self._patience = patience or Patience()
        self._watches: dict[str, _Watch] = {}

    def look(self, submission: Submission, *, ticks_s: float) -> Standstill | None:
        """Read what is new in a running attempt's log; return why it must be ended, if it must.

        `ticks_s` is of a clock that never jumps, the same for all looks.
        """
        watch = self._read(submission)
        reader, patience = watch.reader, self._patience
        got_to = (reader.start, reader.phase, reader.last_step)
        if got_to != watch.got_to:
            watch.got_to, watch.got_on_s = got_to, ticks_s
        if reader.fatal != watch.fatal:
            watch.fatal, watch.fatal_since_s = reader.fatal, ticks_s
        still_s = ticks_s - watch.got_on_s
        if watch.fatal is not None:
            enough_s = max(patience.after_fatal_s, _STEPS_AFTER_FATAL * reader.last_step_s)
            if min(still_s, ticks_s - watch.fatal_since_s) > enough_s:
                return Standstill(still_s=still_s, fatal=watch.fatal)
        return Standstill(still_s=still_s) if still_s > _limit_s(patience, reader.phase) else None

    def last_step(self, submission: Submission) -> int | None:
        """Return the last step id seen of an attempt; None before the first."""
        watch = self._watches.get(submission.folder)
        return watch.reader.last_step if watch else None

    def finish(self, submission: Submission) -> Reading:
        """Read the rest of an ended attempt, and forget it."""
        watch = self._read(submission)
        del self._watches[submission.folder]
        watch.reader.close()
        try:
            text = (self._root / submission.folder / METRICS_FILE).read_text(
                encoding="utf-8", errors="replace"
            )
        except FileNotFoundError:
            text = ""
        return Reading(
            report=watch.reader.report(),
            metrics=parse_metrics(text),
        )

    def _read(self, submission: Submission) -> _Watch:
        watch = self._watches.setdefault(submission.folder, _Watch())
        path = log_files(self._root / submission.folder).get(0)
        if path is not None:
            with path.open("rb") as file:
                file.seek(watch.offset_bytes)
                while chunk := file.read(_CHUNK_BYTES):
                    watch.reader.feed(chunk)
                    watch.offset_bytes += len(chunk)
        return watch


def _limit_s(patience: Patience, phase: Phase) -> float:
    return {
        Phase.BEFORE_MEMSTATS: patience.before_memstats_s,
        Phase.COMPILING: patience.compiling_s,
        Phase.TRAINING: patience.training_s,
    }[phase]
