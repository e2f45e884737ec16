"""The logs of all ranks of a job -> how far each came, and its last line. Pure.

`LogReader` counts the steps of one rank, from which a score is made, and tells this module those of
all, from one log whose lines name their rank or from a log a rank: which of them is behind, and,
while they run, which is slower. It keeps the last steps of each.
"""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_xlatune.logs import LogReader, grammar
from pytest_xlatune.logs._course import Course
from pytest_xlatune.logs.line_classes import LineClass, LogLine, RankListener
from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.logs.standstill import Standstill, Work, said_by_logs
from pytest_xlatune.model.text import begun

KEPT = 512  # steps of a rank
_TAIL_BYTES = 1 << 18
_CHARS = 200
_MOST_RANKS = 1 << 14
# The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:7
# The first task at the barrier: /job:jax_worker/replica:0/task:13. Some timed out task names:
# Task /job:jax_worker/replica:0/task:0 heartbeat timeout.
_NAMES = re.compile(
    r"(?:timed out task names:|unhealthy \(stopped sending heartbeats\):)"
    r"(?P<after>(?:\s*/job:\w+/replica:\d+/task:\d{1,9},?)*)\s*$"
    r"|Task (?P<one>/job:\w+/replica:\d+/task:\d{1,9}) heartbeat timeout"
)
_NAME_WORDS = ("/replica:", "task names:", "sending heartbeats):")
_TASK = re.compile(r"/job:\w+/replica:\d+/task:(\d{1,9})")
# [rank3]:[E810 ...] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work
# sequence id: 5 PG status: last enqueued work: 5, last completed work: 4
# [PG 2 Rank 1] Timeout at NCCL work: 9, last enqueued NCCL work: 9, last completed NCCL work: 8
# a rank that was not in a collective:  [PG 0 Rank 2] Received a dump signal due to a collective
# timeout from  rank 7 and we will ... Last enqueued NCCL work: 8, last completed NCCL work: 8.
_WORK = re.compile(
    r"\[PG (?P<group>[^\]]{0,200}?) ?Rank (?P<rank>\d{1,9})\].*?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,15}).*?"
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,15})"
)
# [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, ...
# [PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog caught ...
_TIMED_OUT = re.compile(
    r"\[(?:PG (?P<group>[^\]]{0,200}?) ?)?Rank (?P<rank>\d{1,9})\] Watchdog caught collective "
    r"operation timeout: WorkNCCL\(SeqNum=(?P<number>\d{1,15})"
)
_WORK_WORDS = ("ast enqueued ", "worknccl(seqnum=")
# the group of all ranks:  ID 0 PG GUID 0(default_pg)    0 (default_pg)    ID 0
_OF_ALL = frozenset({"", "0", "0(default_pg)"})


@dataclass(slots=True, kw_only=True)
class RankLog:
    """What the lines of one rank tell.

    Attributes:
        rank: whose.
        steps: its last steps in the order printed, of its last start, each with its seconds, None
            where its line tells none.
        last_line: of its log.
    """

    rank: int
    steps: deque[tuple[int, float | None]] = field(default_factory=lambda: deque(maxlen=KEPT))
    last_line: str = ""

    @property
    def last_step(self) -> int | None:
        """The highest step id; None before its first step."""
        return max((step for step, _ in self.steps), default=None)

    def take(self, steps: Sequence[int], seconds: Sequence[float | None]) -> bool:
        """Take further steps, and return whether the program started again among them.

        A line that tells a step again says nothing, one that goes back begins anew.
        """
        last, is_again = self.steps[-1][0] if self.steps else -1, False
        told = zip(steps, seconds, strict=True)
        if last < steps[0] and all(map(operator.lt, steps, steps[1:])):
            self.steps.extend(told)
            return False
        for step, step_s in told:
            if step < last:
                is_again = True
                self.steps.clear()
            if step != last:
                self.steps.append((step, step_s))
            last = step
        return is_again


def seconds_of(ranks: Mapping[int, RankLog]) -> dict[int, dict[int, float]]:
    """Return rank -> step -> seconds, of the ranks that print the seconds of their steps."""
    found = {
        rank: {step: step_s for step, step_s in log.steps if step_s is not None}
        for rank, log in ranks.items()
    }
    return {rank: steps for rank, steps in found.items() if steps}


class RankReader:
    """Reads the logs of one job, one after the other or as they grow.

    `pattern` is how another trainer than MaxText prints its steps.
    """

    def __init__(self, pattern: StepPattern | None = None) -> None:
        self._pattern = pattern
        self._logs: dict[int | None, LogReader] = {}
        self._tails: dict[int | None, bytes] = {}
        self._ranks: dict[int, RankLog] = {}
        self._named: set[int] = set()  # ranks that a coordination service did not hear of
        self._said = ""  # its line
        self._work: dict[str, dict[int, Work]] = {}  # by group and rank

    @property
    def ranks(self) -> Mapping[int, RankLog]:
        """The ranks that printed so far, by rank."""
        return dict(sorted(self._ranks.items()))

    def log(self, rank: int | None = None) -> LogReader:
        """Return the reader of the log of a rank, or of the one whose lines name theirs."""
        if rank not in self._logs:
            self._logs[rank] = LogReader(self._pattern, ranks=_Listener(self, rank))
        return self._logs[rank]

    def is_known(self, rank: int | None) -> bool:
        """Whether that log is read."""
        return rank in self._logs

    def feed(self, chunk: bytes, rank: int | None = None) -> None:
        """Read more of a log: that of a rank, or one whose lines name theirs."""
        self.log(rank).feed(chunk)
        kept = b"" if len(chunk) >= _TAIL_BYTES else self._tails.get(rank, b"")
        self._tails[rank] = (kept + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def standstill(self) -> Standstill | None:
        """Say which rank is behind as far as the lines tell; None where they name none."""
        for rank, tail in self._tails.items():
            self.log(rank).close()
            self._last_lines(tail, rank)
        steps = {rank: log.last_step for rank, log in self.ranks.items()}
        return said_by_logs(
            {rank: log.last_line for rank, log in self.ranks.items()},
            steps={rank: step for rank, step in steps.items() if step is not None},
            named=self._named,
            said=self._said,
            groups=self._work,
        )

    def take(self, rank: int, steps: Sequence[int], seconds: Sequence[float | None]) -> None:
        """Take further steps of a rank."""
        log = self._of(rank)
        if log is not None and log.take(steps, seconds):  # the program started again
            self._named.clear()
            for told in self._work.values():
                told.pop(rank, None)

    def forget(self) -> None:
        """Forget all steps."""
        self._ranks.clear()

    def name(self, tasks: str, line: LogLine) -> None:
        """Take the ranks that a coordination service names in a line."""
        self._named |= {*map(int, _TASK.findall(tasks))}
        self._said = self._said or begun(line.text.strip(), _CHARS)

    def watchdog(self, line: LogLine, rank: int | None) -> None:
        """Take what a line of torch's watchdog counts."""
        found = _WORK.search(line.text) or _TIMED_OUT.search(line.text)
        if found is None:
            return
        # a name that all its ranks share: PG GUID, else what stands after PG
        group = (found["group"] or "").removeprefix("ID ").rpartition("GUID ")[2].replace(" ", "")
        whose = _whose(line.origin.rank, rank)
        if group in _OF_ALL:
            group = ""
            # elsewhere it is the rank's place in its group
            whose = int(found["rank"]) if whose is None else whose
        if whose is None or (whose not in self._ranks and len(self._ranks) >= _MOST_RANKS):
            return
        told = self._work.setdefault(group, {})
        before = told.get(whose, Work())
        if found.re is _WORK:
            after = before._replace(
                enqueued=max(int(found["enqueued"]), 0),  # -1 is none
                completed=max(int(found["completed"]), 0),
            )
        else:
            after = before._replace(waits_for=int(found["number"]))
        told[whose] = after

    def _of(self, rank: int) -> RankLog | None:
        if rank not in self._ranks and len(self._ranks) >= _MOST_RANKS:
            return None
        return self._ranks.setdefault(rank, RankLog(rank=rank))

    def _last_lines(self, tail: bytes, rank: int | None) -> None:
        for line in tail.splitlines():
            for segment in grammar.plain_segments(line):
                whose = _whose(grammar.split_origin(segment)[0].rank, rank)
                log = None if whose is None else self._of(whose)
                if log is not None:
                    log.last_line = begun(segment.strip(), _CHARS)


class _Listener(RankListener):
    """Tells a `RankReader` what one log says, that of a rank or the one whose lines name theirs."""

    def __init__(self, reader: RankReader, rank: int | None) -> None:
        self._reader, self._rank = reader, rank
        self._goes_on_at = 0  # the line that may name further ranks
        self.classes = (
            LineClass(_NAME_WORDS, self._names),
            LineClass(_WORK_WORDS, self._counts),
        )

    def take(self, label: str, steps: Sequence[int], seconds: Sequence[float | None]) -> None:
        whose = _whose(label, self._rank)
        if whose is not None:
            self._reader.take(whose, steps, seconds)

    def forget(self) -> None:
        self._reader.forget()

    def _names(self, line: LogLine, course: Course) -> bool:
        del course
        found = _NAMES.search(line.text)
        if found is not None:
            self._reader.name(found["one"] or found["after"] or "", line)
        elif line.number != self._goes_on_at:
            return False
        else:
            self._reader.name(line.text, line)
        self._goes_on_at = line.number + 1 if found is None or found["one"] is None else 0
        return False

    def _counts(self, line: LogLine, course: Course) -> bool:
        del course
        self._reader.watchdog(line, self._rank)
        return False


def _whose(label: str, rank: int | None) -> int | None:
    """Return whose a line is: its file's, where each rank has one, else its label's."""
    if rank is not None:
        return rank
    return int(label) if label else None
