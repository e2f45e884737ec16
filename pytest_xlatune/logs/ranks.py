"""Read the logs of all ranks of a job: how far each got, and which rank is behind or slower.

The caller reads the files and passes their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_xlatune.logs import LogReader, grammar
from pytest_xlatune.logs._ranks import RankLog, RankLogs, rank_of, seconds_of
from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.logs.standstill import Standstill, behind_by_logs
from pytest_xlatune.model.text import begun

__all__ = ["RankLog", "RankReader", "seconds_of"]

_TAIL_BYTES = 1 << 18  # so much of the end of each log is kept for the last lines
_CHARS = 200  # so much of a last line is shown


class RankReader:
    """Reads the logs of one job, one after the other or while they grow.

    `pattern` describes the step lines of a trainer other than MaxText. Where a method takes a rank,
    None stands for a log of several ranks, whose lines name their rank.
    """

    def __init__(self, pattern: StepPattern | None = None) -> None:
        self._pattern = pattern
        self._readers: dict[int | None, LogReader] = {}
        self._tails: dict[int | None, bytes] = {}
        self._logs = RankLogs()

    @property
    def ranks(self) -> Mapping[int, RankLog]:
        """Rank -> what it printed so far, in the order of the ranks."""
        return dict(sorted(self._logs.by_rank.items()))

    def log(self, rank: int | None = None) -> LogReader:
        """Return the reader of the log of a rank."""
        if rank not in self._readers:
            self._readers[rank] = LogReader(self._pattern, ranks=self._logs, rank=rank)
        return self._readers[rank]

    def is_known(self, rank: int | None) -> bool:
        """Return whether the log of this rank is being read."""
        return rank in self._readers

    def feed(self, chunk: bytes, rank: int | None = None) -> None:
        """Read more of the log of a rank."""
        self.log(rank).feed(chunk)
        kept = b"" if len(chunk) >= _TAIL_BYTES else self._tails.get(rank, b"")
        self._tails[rank] = (kept + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def standstill(self) -> Standstill | None:
        """Return which ranks are behind, as far as the lines tell; None if they tell nothing."""
        for rank, tail in self._tails.items():
            self.log(rank).close()
            self._take_last_lines(tail, rank)
        logs = self._logs
        return behind_by_logs(
            {rank: (log.last_step, log.last_line) for rank, log in logs.by_rank.items()},
            unheard=logs.unheard,
            line=logs.unheard_line,
            groups=logs.work,
        )

    def _take_last_lines(self, tail: bytes, rank: int | None) -> None:
        """Keep the last line of each rank in the end of a log."""
        for line in tail.splitlines():
            for segment in grammar.plain_segments(line):
                log = self._logs.log_of(rank_of(grammar.split_origin(segment)[0], rank))
                if log is not None:
                    log.last_line = begun(segment.strip(), _CHARS)
