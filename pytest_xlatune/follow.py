"""Follow the logs of running attempts, and read those of ended ones.

A log is read once, from where the last look ended. A hang is no *step* for longer than its phase
allows, never a quiet or a busy file. This module decides nothing but "this one hangs".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.launchers.program import METRICS_FILE
from pytest_xlatune.logs import LogReader, LogReport, Phase
from pytest_xlatune.logs.metrics import parse_metrics
from pytest_xlatune.results import StepRecord, Submission

_CHUNK_BYTES = 1 << 20
# how long a phase may last without a step: a large model's first compilation takes long
PATIENCE_S = {
    Phase.BEFORE_MEMSTATS: 600.0,
    Phase.COMPILING: 1800.0,
    Phase.TRAINING: 600.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an ended attempt left.

    Attributes:
        report: of its logs.
        metrics: the steps of its metrics file, () where there is none.
        stalled_s: seconds without a step after which it was ended as hanging; None if it was not.
    """

    report: LogReport
    metrics: tuple[StepRecord, ...] = ()
    stalled_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Watch:
    """One attempt: where we are in its log, and when it last got on."""

    reader: LogReader = field(default_factory=LogReader)
    offset_bytes: int = 0
    got_to: tuple[Phase, int | None] | None = None
    got_on_s: float = 0.0
    stalled_s: float | None = None


class Follower:
    """The attempts of one work directory that this process looks at."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watches: dict[str, _Watch] = {}

    def look(self, submission: Submission, *, now_s: float) -> bool:
        """Read what is new in a running attempt's log; return whether it hangs and must be ended.

        `now_s` is of any clock, the same for all looks.
        """
        watch = self._read(submission)
        got_to = (watch.reader.phase, watch.reader.last_step)
        if got_to != watch.got_to:
            watch.got_to, watch.got_on_s = got_to, now_s
        # a clock that jumped back gives it more time, never less
        still_s = now_s - watch.got_on_s
        if still_s > PATIENCE_S[watch.reader.phase] and watch.stalled_s is None:
            watch.stalled_s = still_s
        return watch.stalled_s is not None

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
            stalled_s=watch.stalled_s,
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
