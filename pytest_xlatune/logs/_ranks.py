"""The steps of all ranks of a job, and who waits for whom. Pure.

`Course` follows the one rank that is scored, and passes the steps of all to this module.
"""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_xlatune.logs._sieve import StepRun
from pytest_xlatune.logs.grammar import Origin
from pytest_xlatune.logs.standstill import Work

KEPT = 512  # most steps of a rank that are kept
MOST_RANKS = 1 << 14
# the watchdog of a rank that waits:
#   [rank3]:[E810 ...] [PG ID 0 PG GUID 0(default_pg) Rank 3] failure detected by watchdog at work
#     sequence id: 5 PG status: last enqueued work: 5, last completed work: 4
#   [PG 2 Rank 1] Timeout at NCCL work: 9, last enqueued NCCL work: 9, last completed NCCL work: 8
# the watchdog of a rank outside a collective:
#   [PG 0 Rank 2] Received a dump signal due to a collective timeout from  rank 7 and we will ...
#     Last enqueued NCCL work: 8, last completed NCCL work: 8.
_WORK = re.compile(
    r"\[PG (?P<group>[^\]]{0,200}?) ?Rank (?P<rank>\d{1,9})\].*?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,15}).*?"
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,15})"
)
# a timeout:  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, ...
# [PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog caught ...
_TIMED_OUT = re.compile(
    r"\[(?:PG (?P<group>[^\]]{0,200}?) ?)?Rank (?P<rank>\d{1,9})\] Watchdog caught collective "
    r"operation timeout: WorkNCCL\(SeqNum=(?P<number>\d{1,15})"
)
WATCHDOG_MARKS = ("ast enqueued ", "worknccl(seqnum=")
# names of the group of all ranks:  ID 0 PG GUID 0(default_pg)    0 (default_pg)    ID 0
_OF_ALL = frozenset({"", "0", "0(default_pg)"})


@dataclass(slots=True)
class RankLog:
    """What the lines of one rank show."""

    # the last steps of the last start, with their seconds; None if the line has none
    steps: deque[tuple[int, float | None]] = field(default_factory=lambda: deque(maxlen=KEPT))
    last_line: str = ""

    @property
    def last_step(self) -> int | None:
        """The highest step id; None before its first step."""
        return max((step for step, _ in self.steps), default=None)

    def take(self, steps: Sequence[int], seconds: Sequence[float | None]) -> bool:
        """Add further steps, and return whether the program started again among them.

        A line that repeats a step is ignored; one that goes back is a new start.
        """
        last, is_again = self.steps[-1][0] if self.steps else -1, False
        timed = zip(steps, seconds, strict=True)
        if last < steps[0] and all(map(operator.lt, steps, steps[1:])):
            self.steps.extend(timed)
            return False
        for step, step_s in timed:
            if step < last:
                is_again = True
                self.steps.clear()
            if step != last:
                self.steps.append((step, step_s))
            last = step
        return is_again


class RankLogs:
    """The steps of all ranks, from one log with labels of ranks, or a log for each."""

    def __init__(self) -> None:
        self.by_rank: dict[int, RankLog] = {}
        self.unheard: set[int] = set()  # ranks from which a coordination service did not hear
        self.unheard_line = ""
        self.work: dict[str, dict[int, Work]] = {}  # group -> rank -> what its watchdog counts

    def log_of(self, rank: int | None) -> RankLog | None:
        """Return the log of a rank; None if lines name no rank, or too many."""
        if rank is None or (rank not in self.by_rank and len(self.by_rank) >= MOST_RANKS):
            return None
        return self.by_rank.setdefault(rank, RankLog())

    def take(self, rank: int | None, steps: Sequence[int], seconds: Sequence[float | None]) -> None:
        """Add further steps of a rank."""
        log = self.log_of(rank)
        if rank is not None and log is not None and log.take(steps, seconds):
            self.unheard.clear()  # the program started again
            for group in self.work.values():
                group.pop(rank, None)

    def take_run(self, run: StepRun, rank: int | None) -> None:
        """Add a run of step lines from the log of a rank, or with labels of their ranks."""
        writers, origins = run.writers
        ranks = {writer: rank_of(origin, rank) for writer, origin in origins.items()}
        steps, seconds = run.steps, run.seconds()
        if len({*ranks.values()}) == 1:
            self.take(next(iter(ranks.values())), steps, seconds)
            return
        places: dict[int | None, list[int]] = {whose: [] for whose in ranks.values()}
        for at, writer in enumerate(writers):
            places[ranks[writer]].append(at)
        for whose, lines in places.items():
            self.take(whose, [steps[at] for at in lines], [seconds[at] for at in lines])

    def count_work(self, text: str, rank: int | None) -> None:
        """Record the counts in a line of torch's watchdog, which this rank printed."""
        match = _WORK.search(text) or _TIMED_OUT.search(text)
        if match is None:
            return
        # a name that all ranks of the group use: PG GUID, else the text after PG
        group = (match["group"] or "").removeprefix("ID ").rpartition("GUID ")[2].replace(" ", "")
        if group in _OF_ALL:
            group = ""
            # otherwise the number is the rank's index in its group
            rank = int(match["rank"]) if rank is None else rank
        if rank is None or (rank not in self.by_rank and len(self.by_rank) >= MOST_RANKS):
            return
        works = self.work.setdefault(group, {})
        before = works.get(rank, Work())
        if match.re is _WORK:
            works[rank] = before._replace(
                enqueued=max(int(match["enqueued"]), 0),  # -1 means none
                completed=max(int(match["completed"]), 0),
            )
        else:
            works[rank] = before._replace(waits_for=int(match["number"]))


def rank_of(origin: Origin, rank: int | None) -> int | None:
    """Return the rank of a line: that of its file if each rank has one, else of its label."""
    if rank is not None:
        return rank
    return int(origin.rank) if origin.rank else None


def seconds_of(ranks: Mapping[int, RankLog]) -> dict[int, dict[int, float]]:
    """Return rank -> step -> seconds, for ranks whose lines have the seconds."""
    seconds = {
        rank: {step: step_s for step, step_s in log.steps if step_s is not None}
        for rank, log in ranks.items()
    }
    return {rank: steps for rank, steps in seconds.items() if steps}
