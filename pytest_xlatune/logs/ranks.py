"""The logs of all ranks of a job -> how far each came, which is behind, which is slower. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_xlatune.logs import LogReader, grammar
from pytest_xlatune.logs._ranks import RankLog, RankLogs, rank_of, seconds_of
from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.logs.standstill import Standstill, behind_by_logs
from pytest_xlatune.model.text import begun

__all__ = ["RankLog", "RankReader", "seconds_of"]

_TAIL_BYTES = 1 << 18
_CHARS = 200


class RankReader:
    """Reads the logs of one job, one after the other or as they grow.

    `pattern` is how another trainer than MaxText prints its steps.
    """

    def __init__(self, pattern: StepPattern | None = None) -> None:
        self._pattern = pattern
        self._readers: dict[int | None, LogReader] = {}
        self._tails: dict[int | None, bytes] = {}
        self._logs = RankLogs()

    @property
    def ranks(self) -> Mapping[int, RankLog]:
        """The ranks that printed so far, by rank."""
        return dict(sorted(self._logs.by_rank.items()))

    def log(self, rank: int | None = None) -> LogReader:
        """Return the reader of the log of a rank, or of the one whose lines name theirs."""
        if rank not in self._readers:
            self._readers[rank] = LogReader(self._pattern, ranks=self._logs, rank=rank)
        return self._readers[rank]

    def is_known(self, rank: int | None) -> bool:
        """Whether that log is read."""
        return rank in self._readers

    def feed(self, chunk: bytes, rank: int | None = None) -> None:
        """Read more of a log: that of a rank, or one whose lines name theirs."""
        self.log(rank).feed(chunk)
        kept = b"" if len(chunk) >= _TAIL_BYTES else self._tails.get(rank, b"")
        self._tails[rank] = (kept + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def standstill(self) -> Standstill | None:
        """Say which rank is behind as far as the lines tell; None where they name none."""
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
        for line in tail.splitlines():
            for segment in grammar.plain_segments(line):
                log = self._logs.log_of(rank_of(grammar.split_origin(segment)[0], rank))
                if log is not None:
                    log.last_line = begun(segment.strip(), _CHARS)
