"""The logs of all ranks of a job -> how far each came, and its last line. Pure.

`LogReader` reads the steps of one rank, from which a score is made. This module reads those of all,
from one log whose lines name their rank or from a log a rank: which of them is behind, and, while
they run, which is slower. It keeps the last steps of each.
"""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._prefix import PrefixLearner
from pytest_xlatune.logs._sieve import LineFilter, StepRun, StepShapes
from pytest_xlatune.logs.formats import formats
from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.logs.standstill import OF_ALL, Standstill, Work, said_by_logs
from pytest_xlatune.model.metric import StepRecord
from pytest_xlatune.model.text import begun

KEPT = 512  # steps of a rank
_TAIL_BYTES = 1 << 18
_LINE_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 15  # what it allocates is then given back and taken again without the system
_CHARS = 200
_MOST_RANKS = 1 << 14
_STEP_WORD = "completed "
# The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:7
# The first task at the barrier: /job:jax_worker/replica:0/task:13. Some timed out task names:
# Task /job:jax_worker/replica:0/task:0 heartbeat timeout.
_NAMES = re.compile(
    r"(?:timed out task names:|unhealthy \(stopped sending heartbeats\):)"
    r"(?P<after>(?:\s*/job:\w+/replica:\d+/task:\d{1,9},?)*)\s*$"
    r"|Task (?P<one>/job:\w+/replica:\d+/task:\d{1,9}) heartbeat timeout"
)
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
_OF_WATCHDOGS = (b"ast enqueued ", b"WorkNCCL(SeqNum=")
# the group of all ranks:  ID 0 PG GUID 0(default_pg)    0 (default_pg)    ID 0
_OF_ALL = frozenset({"", "0", "0(default_pg)"})


class RankStep(NamedTuple):
    """A step of one rank and its seconds, None where its line tells none."""

    step: int
    step_s: float | None


@dataclass(slots=True, kw_only=True)
class RankLog:
    """What the lines of one rank tell.

    Attributes:
        rank: whose.
        ids: of its last steps in the order printed, of its last start.
        seconds: of each of them.
        last_line: of its log.
    """

    rank: int
    # a pair of its own for each step of each rank took as long as all the rest
    ids: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    seconds: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    last_line: str = ""

    @property
    def steps(self) -> list[RankStep]:
        """Its last steps in the order printed, of its last start."""
        return [*map(RankStep, self.ids, self.seconds)]

    @property
    def last_step(self) -> int | None:
        """The highest step id; None before its first step."""
        return max(self.ids, default=None)

    def take(self, steps: Sequence[int], seconds: Sequence[float | None]) -> bool:
        """Take further steps, and return whether the program started again among them.

        A line that tells a step again says nothing, one that goes back begins anew.
        """
        again = False
        last = self.ids[-1] if self.ids else -1
        if steps and not (last < steps[0] and all(map(operator.lt, steps, steps[1:]))):
            for step, step_s in zip(steps, seconds, strict=True):
                if step < last:  # the program started again
                    again = True
                    self.ids.clear()
                    self.seconds.clear()
                if step != last:
                    self.ids.append(step)
                    self.seconds.append(step_s)
                last = step
            return again
        self.ids.extend(steps)
        self.seconds.extend(seconds)
        return again


def seconds_of(ranks: Mapping[int, RankLog]) -> dict[int, dict[int, float]]:
    """Return rank -> step -> seconds, of the ranks that print the seconds of their steps."""
    found = {
        rank: {step.step: step.step_s for step in log.steps if step.step_s is not None}
        for rank, log in ranks.items()
    }
    return {rank: steps for rank, steps in found.items() if steps}


class RankReader:
    """Reads the logs of one job, one after the other or as they grow.

    `pattern` is how another trainer than MaxText prints its steps; `prefix` what a `LogReader`
    learnt of what stands in front of the lines.
    """

    def __init__(
        self, pattern: StepPattern | None = None, *, prefix: re.Pattern[str] | None = None
    ) -> None:
        self._pattern = pattern
        self._has_own = False
        others = [form for form in formats() if form.has_steps]
        own = [] if pattern is None else [(pattern.words, self._own_steps)]
        self._others = (*own, *((form.words, form.steps) for form in others))
        self._other_words = tuple(word for words, _ in self._others for word in words)
        self._filter = LineFilter((_STEP_WORD, *self._other_words))
        # no prefix is learnt here: one that is in no table was learnt by who read the log before
        self._learner = PrefixLearner(is_learning=False)
        self._learner.prefix = prefix
        self._step_shapes = StepShapes(self._learner)
        self._ranks: dict[int, RankLog] = {}
        self._held: dict[int | None, bytes] = {}
        self._tails: dict[int | None, deque[bytes]] = {}
        self._tail_sizes: dict[int | None, int] = {}
        self._work: dict[str, dict[int, Work]] = {}  # by group and rank

    @property
    def prefix(self) -> re.Pattern[str] | None:
        """What is known to stand in front of the lines beside the prefixes of `grammar`."""
        return self._learner.prefix

    @prefix.setter
    def prefix(self, learnt: re.Pattern[str] | None) -> None:
        self._learner.prefix = learnt
        self._step_shapes.forget()

    @property
    def ranks(self) -> Mapping[int, RankLog]:
        """The ranks that printed so far, by rank."""
        return dict(sorted(self._ranks.items()))

    def feed(self, chunk: bytes, rank: int | None = None) -> None:
        """Read more of a log: that of a rank, or one whose lines name theirs."""
        for at in range(0, len(chunk), _WINDOW_BYTES):
            self._read(chunk[at : at + _WINDOW_BYTES], rank)

    def _read(self, piece: bytes, rank: int | None) -> None:
        held = self._held.get(rank, b"")
        end = piece.rfind(b"\n") + 1
        if not end:
            self._held[rank] = held + piece[: _LINE_BYTES - len(held)]
            self._keep_tail(b"", rank)
            return
        self._held[rank] = piece[end : end + _LINE_BYTES]
        block = held + piece[:end]
        self._keep_tail(block, rank)
        if any(word in block for word in _OF_WATCHDOGS):
            for line in block.splitlines():
                self._watchdog(line, rank)
        for run, part in self._step_shapes.runs(block):
            self._part(part, run, rank)

    def see(self, part: bytes, run: StepRun | None = None) -> None:
        """Take whole lines of a log whose lines name their rank, or a run that they are.

        For who reads the log anyway, and knows which lines may be of steps: each such line has to
        be seen, in their order; `standstill` then knows nothing.
        """
        self._part(part, run, None)

    def _part(self, part: bytes, run: StepRun | None, rank: int | None) -> None:
        if run is not None and not self._may_be_of_others(part):
            if not self._has_own:
                self._take_run(run, rank)
            return
        for _, line in self._filter.lines(part)[1]:
            self._line(line, rank)

    def _may_be_of_others(self, part: bytes) -> bool:
        low = part.lower() if self._other_words else b""
        return any(word.encode() in low for word in self._other_words)

    def _keep_tail(self, block: bytes, rank: int | None) -> None:
        """Keep the last blocks, so many that they hold _TAIL_BYTES."""
        tail = self._tails.setdefault(rank, deque())
        if not block:
            return
        tail.append(block)
        size = self._tail_sizes.get(rank, 0) + len(block)
        while size - len(tail[0]) >= _TAIL_BYTES:
            size -= len(tail.popleft())
        self._tail_sizes[rank] = size

    def standstill(self) -> Standstill | None:
        """Say which rank is behind as far as the lines tell; None where they name none."""
        named: set[int] = set()
        said = ""
        goes_on = False
        for rank, blocks in self._tails.items():
            tail = b"".join(blocks)[-_TAIL_BYTES:]
            for line in tail.decode("utf-8", "replace").splitlines():
                if goes_on and (tasks := _TASK.findall(line)):
                    named |= {*map(int, tasks)}
                    continue
                goes_on = False
                if found := _NAMES.search(line):
                    tasks = _TASK.findall(found["one"] or found["after"] or "")
                    named |= {*map(int, tasks)}
                    said = said or begun(grammar.split_origin(line, self.prefix)[1].strip(), _CHARS)
                    goes_on = found["one"] is None
            self._watchdog(self._held.get(rank, b""), rank)
            self._last_lines(tail, rank)
        steps = {rank: log.last_step for rank, log in self.ranks.items()}
        lines = {rank: log.last_line for rank, log in self.ranks.items()}
        known = {rank: step for rank, step in steps.items() if step is not None}
        return said_by_logs(lines, steps=known, named=named, said=said, groups=self._work)

    def _watchdog(self, line: bytes, rank: int | None) -> None:
        """Take what a line of torch's watchdog counts."""
        if not any(word in line for word in _OF_WATCHDOGS):
            return
        text = line[:_LINE_BYTES].decode("utf-8", "replace")
        found = _WORK.search(text) or _TIMED_OUT.search(text)
        if found is None:
            return
        # a name that all its ranks share: PG GUID, else what stands after PG
        group = (found["group"] or "").removeprefix("ID ").rpartition("GUID ")[2].replace(" ", "")
        whose = _whose(grammar.split_origin(text, self.prefix)[0].rank, rank)
        if group in _OF_ALL:
            group = OF_ALL
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

    def _take_run(self, run: StepRun, rank: int | None) -> None:
        """Take step lines of one layout, read as columns."""
        if rank is not None:
            self._take(rank, run.steps, run.seconds())
            return
        writers, origins = run.writers
        labels = {writer: origin.rank for writer, origin in origins.items()}
        places: dict[str, list[int]] = {label: [] for label in labels.values()}
        if not any(places):
            return
        for at, writer in enumerate(writers):
            places[labels[writer]].append(at)
        steps, seconds = run.steps, run.seconds()
        for label, own in places.items():
            if label:
                self._take(int(label), [steps[at] for at in own], [seconds[at] for at in own])

    def _line(self, line: bytes, rank: int | None) -> None:
        for segment in grammar.plain_segments(line[:_LINE_BYTES]):
            origin, text = grammar.split_origin(segment, self.prefix)
            inner = grammar.unwrap(text)
            if inner is not None:
                own, text = grammar.split_origin(inner, self.prefix)
                origin = own if own.rank else origin
            whose = _whose(origin.rank, rank)
            if whose is None:
                continue
            for record in self._steps_of(text, origin.label):
                self._take(whose, (record.step,), (record.step_s,))

    def _steps_of(self, text: str, label: str) -> Sequence[StepRecord]:
        low = text.lower()
        for words, steps_of in self._others:
            if any(word in low for word in words) and (steps := steps_of(text, label)):
                return steps
        is_own = _STEP_WORD in low and not self._has_own
        return grammar.parse_steps(text, label) if is_own else ()

    def _own_steps(self, text: str, label: str) -> Sequence[StepRecord]:
        """Return the step of a line by the user's pattern, which counts alone once it read one."""
        steps = self._pattern.steps(text, label) if self._pattern is not None else ()
        if steps and not self._has_own:
            self._has_own = True
            self._ranks.clear()
        return steps

    def _take(self, rank: int, steps: Sequence[int], seconds: Sequence[float | None]) -> None:
        log = self._ranks.get(rank) or self._of(rank)
        if log is None:
            return
        if log.take(steps, seconds):  # the program started again
            for told in self._work.values():
                told.pop(rank, None)

    def _of(self, rank: int) -> RankLog | None:
        if rank not in self._ranks and len(self._ranks) >= _MOST_RANKS:
            return None
        return self._ranks.setdefault(rank, RankLog(rank=rank))

    def _last_lines(self, tail: bytes, rank: int | None) -> None:
        for line in (tail + self._held.get(rank, b"")).splitlines():
            for segment in grammar.plain_segments(line[:_LINE_BYTES]):
                origin, _ = grammar.split_origin(segment, self.prefix)
                whose = _whose(origin.rank, rank)
                log = None if whose is None else self._of(whose)
                if log is not None:
                    log.last_line = begun(segment.strip(), _CHARS)


def _whose(label: str, rank: int | None) -> int | None:
    """Return whose a line is: its file's, where each rank has one, else its label's."""
    if rank is not None:
        return rank
    return int(label) if label else None
