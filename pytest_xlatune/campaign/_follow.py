"""Follow the logs of running attempts, and read those of ended ones.

Steps are rank 0's; what went wrong may stand in any rank's log, where each has its own. A log is
read once, from where the last look ended. A hang is no *step* for longer than its phase allows,
never a quiet or a busy file; patience is shorter after a line that says that the program cannot go
on. This module decides nothing but "this one will measure nothing any more".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.launchers.program import METRICS_FILE
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs import LogReader, LogReport, Phase
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.model.metric import TGS, Logged, Metric
from pytest_xlatune.model.resources import Patience
from pytest_xlatune.model.result import Action, Finding, StepRecord, Submission

_CHUNK_BYTES = 1 << 20
# a step may be longer than the patience after a fatal line; and after so many it was none
_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """What an ended attempt left.

    Attributes:
        report: of its logs.
        metrics: the steps of its metrics file.
        logged: the figures of another metric than TGS in the log of rank 0.
    """

    report: LogReport
    metrics: tuple[StepRecord, ...] = ()
    logged: Logged = field(default_factory=Logged)


_Place = tuple[int, Phase, int | None]  # start, phase and last step of rank 0


@dataclass(slots=True, kw_only=True)
class _Tail:
    """Where we are in the log of one rank; where rank 0 was when this one's fatal line was seen."""

    reader: LogReader = field(default_factory=LogReader)
    offset_bytes: int = 0
    fatal_at: _Place | None = None

    def read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self.offset_bytes)
            while chunk := file.read(_CHUNK_BYTES):
                self.reader.feed(chunk)
                self.offset_bytes += len(chunk)


@dataclass(slots=True, kw_only=True)
class _Watch:
    """One attempt: its logs by rank, when it last got on, and since when it is doomed."""

    tails: dict[int, _Tail] = field(default_factory=lambda: {0: _Tail()})
    got_to: _Place | None = None
    got_on_s: float = 0.0
    fatal: Finding | None = None
    fatal_since_s: float = 0.0

    @property
    def reader(self) -> LogReader:
        return self.tails[0].reader

    @property
    def place(self) -> _Place:
        return self.reader.start, self.reader.phase, self.reader.last_step

    def find_fatal(self) -> Finding | None:
        """Return rank 0's fatal line, else another rank's, as long as rank 0 does not go on."""
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
    """The attempts of one work directory that this process looks at."""

    def __init__(self, root: Path, *, patience: Patience | None = None) -> None:
        self._root = root
        self._patience = patience or Patience()
        self._watches: dict[str, _Watch] = {}

    def look(self, submission: Submission, *, ticks_s: float) -> AttemptCutShort | None:
        """Read on in a running attempt's log; return that and why it must be ended, if it must.

        `ticks_s` is of a clock that never jumps, the same for all looks.
        """
        watch = self._read(submission)
        reader, patience = watch.reader, self._patience
        if watch.place != watch.got_to:
            watch.got_to, watch.got_on_s = watch.place, ticks_s
        fatal = watch.find_fatal()
        if fatal != watch.fatal:
            watch.fatal, watch.fatal_since_s = fatal, ticks_s
        still_s = ticks_s - watch.got_on_s
        enough_s = max(patience.after_fatal_s, _STEPS * reader.last_step_s)
        if fatal is None or min(still_s, ticks_s - watch.fatal_since_s) <= enough_s:
            fatal = None
            limits_s = {
                Phase.BEFORE_MEMSTATS: patience.before_memstats_s,
                Phase.COMPILING: patience.compiling_s,
                Phase.TRAINING: patience.training_s,
            }
            if still_s <= limits_s[reader.phase]:
                return None
        return AttemptCutShort(
            trial_id=submission.trial_id, attempt=submission.attempt, still_s=still_s, fatal=fatal
        )

    def finish(self, submission: Submission, *, metric: Metric = TGS) -> LogProgress:
        """Read the rest of an ended attempt, and forget it."""
        watch = self._read(submission)
        del self._watches[submission.folder]
        for tail in watch.tails.values():
            tail.reader.close()
        report = watch.reader.report()
        path = self._root / submission.folder / METRICS_FILE
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        log = log_files(self._root / submission.folder).get(0)
        logged = Logged()
        if log is not None:
            with log.open("rb") as lines:
                logged = read_figures(lines, metric)
        return LogProgress(
            report=replace(report, findings=(*report.findings, *_others(watch))),
            metrics=parse_metrics(text),
            logged=logged,
        )

    def _read(self, submission: Submission) -> _Watch:
        watch = self._watches.get(submission.folder)
        if watch is None:
            watch = self._watches[submission.folder] = _Watch()
        for rank, path in log_files(self._root / submission.folder).items():
            if rank not in watch.tails:
                watch.tails[rank] = _Tail()
            watch.tails[rank].read(path)
        return watch


def _others(watch: _Watch) -> Iterator[Finding]:
    """Yield what other ranks' logs ask for, if any of it was said by no rank before them.

    Then all of it: whether an exception is a rank's own is told by what else its log says.
    """
    known = {(each.cls, each.detail) for each in watch.reader.findings}
    for rank, tail in sorted(watch.tails.items()):
        asks = [each for each in tail.reader.findings if each.action is not Action.NONE]
        said = {(each.cls, each.detail) for each in asks}
        if rank and not said <= known:
            yield from (replace(each, source=log_name(rank)) for each in asks)
        known |= said


def _went_on(then: _Place, now: _Place) -> bool:
    """Whether rank 0 went on for so long that a line of another rank was not the end."""
    if then[:2] != now[:2]:
        return True
    return (-1 if now[2] is None else now[2]) - (-1 if then[2] is None else then[2]) >= _STEPS
