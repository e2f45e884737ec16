"""The course of a program as its log shows it: starts, their steps, findings.

`line_classes` reports events to it in the order of the log.

Steps are those of rank 0 by its label; without labels, the first line of each step id counts. Only
the last start counts. A start begins if settings or Memstats are printed after a step, if a process
in trouble prints its configuration again, or if a step id goes back by more than two; less may be a
slower rank. Once two ranks have printed the same step, going back begins no start.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.logs._sieve import StepRun
from pytest_xlatune.logs.grammar import Origin, Settings, figures_in
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord, Steps

STEPS_THAT_REFUTE = 3  # steps are dispatched ahead, so up to two may be printed after a fatal line
_RANKS_APART = 2  # steps by which a slower rank may be behind
MOST_STEPS = 100_000
# steps are dropped many at once, because dropping single ones took quadratic time
MORE_STEPS = 1 << 13
_MOST_DETAILS = 8  # different findings of one class that are kept
_MOST_ORIGINS = 1024
_KEPT_OF_RANK, _MOST_RANKS = 512, 1 << 14  # steps of a rank
_ENDING = (
    *(FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
    *(FailureClass.PREEMPTED, FailureClass.PREEMPTION_NOTICE),
)


class Phase(StrEnum):
    """How far a start of the program has got; the meaning of a hang depends on it."""

    BEFORE_MEMSTATS = "before-memstats"  # containers, collectives, parameters
    COMPILING = "compiling"  # after `Memstats: After params initialized`
    TRAINING = "training"  # after the first step line


class StepTable:
    """Steps as columns: one row for each step id, in the order printed."""

    def __init__(self) -> None:
        self.left_out = 0  # number of first rows that were dropped
        self._columns: list[list[Any]] = [[] for _ in StepRecord._fields]
        self._rows: dict[int, int] = {}  # step -> its row, counted with dropped ones

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, step: int) -> StepRecord | None:
        """Return the record of a step; None if it is not kept."""
        row = self._rows.get(step)
        if row is None:
            return None
        return StepRecord(*(column[row - self.left_out] for column in self._columns))

    def put(self, record: StepRecord) -> None:
        """Add a step; it replaces an earlier one with the same id."""
        row = self._rows.get(record.step)
        if row is None:
            self.extend([[value] for value in record])
            return
        for column, value in zip(self._columns, record, strict=True):
            column[row - self.left_out] = value

    def extend(self, columns: Sequence[Sequence[Any]]) -> None:
        """Add further steps, given as one column for each field of their records."""
        next_row = self.left_out + len(self)
        self._rows.update(zip(columns[0], itertools.count(next_row), strict=False))
        for column, part in zip(self._columns, columns, strict=True):
            column.extend(part)
        while len(self) > MOST_STEPS + MORE_STEPS:
            for step in self._columns[0][:MORE_STEPS]:
                del self._rows[step]
            for column in self._columns:
                del column[:MORE_STEPS]
            self.left_out += MORE_STEPS

    def last(self, most: int) -> Steps:
        """Return the last steps, at most so many."""
        columns = (tuple(column[-most:]) for column in self._columns)
        return Steps(**dict(zip(StepRecord._fields, columns, strict=True)))


@dataclass(slots=True)
class Start:
    """The state of one start of the program."""

    index: int = 0
    phase: Phase = Phase.BEFORE_MEMSTATS
    home: Origin | None = None  # the origin whose steps count; None before the first step
    others: set[Origin] = field(default_factory=set)  # other origins that print steps
    steps: StepTable = field(default_factory=StepTable)
    last: int = -1  # highest step id; only valid if `steps` is not empty
    repeated: bool = False
    is_configured_twice: bool = False
    is_hung: bool = False  # whether the first line of a block about a hang was printed
    count: int = 0  # number of steps, including dropped ones
    after_cancel: int = 0
    after_trouble: int = 0
    exit_code: int | None = None
    memory_gb: float | None = None
    env: Settings = field(default_factory=Settings)
    config: Settings = field(default_factory=Settings)
    nccl: Settings = field(default_factory=Settings)
    libraries: Settings = field(default_factory=Settings)
    devices: dict[str, str] = field(default_factory=dict)
    pgle_found: int | None = None
    pgle_unread: str = ""

    def figures_of(self, step: int) -> int:
        """Return how many figures the line of a step had; 0 if it is not kept."""
        record = self.steps.get(step)
        return 0 if record is None else figures_in(record)

    @property
    def label(self) -> str:
        """The label of the counted origin in records."""
        return self.home.label if self.home else ""


@dataclass(slots=True)
class RankLog:
    """What the lines of one rank show."""

    # the last steps of the last start, with their seconds; None if the line has none
    steps: deque[tuple[int, float | None]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_OF_RANK)
    )
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

    def log_of(self, rank: int | None) -> RankLog | None:
        """Return the log of a rank; None if lines name no rank, or too many."""
        if rank is None or (rank not in self.by_rank and len(self.by_rank) >= _MOST_RANKS):
            return None
        return self.by_rank.setdefault(rank, RankLog())

    def take(self, rank: int | None, steps: Sequence[int], seconds: Sequence[float | None]) -> None:
        """Add further steps of a rank."""
        log = self.log_of(rank)
        if log is not None and log.take(steps, seconds):
            self.unheard.clear()  # the program started again

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


class Course:
    """What the lines show so far. `ranks` receives all steps, as those of `rank` if it is given."""

    def __init__(self, ranks: RankLogs | None = None, *, rank: int | None = None) -> None:
        self.start = Start()  # the last start of the program
        self.ranks, self._rank = ranks, rank
        self.tasks_at = 0  # number of the line that may go on with a list of missing tasks
        # origin -> number of the line with which an ignored exception begins
        self.ignored_at: dict[Origin, int] = {}
        # (class, detail) -> finding, in order of first appearance
        self.findings: dict[tuple[str, str], Finding] = {}
        # the line after which the program cannot go on, unless it did
        self.fatal: Finding | None = None
        # the arguments for MaxText in the head of a maxtext-slurm log
        self.asked: dict[str, str] = {}
        self.goal: int | None = None  # the id of the last step, if lines show it
        self.has_own = False  # whether the user's pattern has matched a line
        self.unkept = 0  # number of findings beyond the limit
        self.has_cut_flags = False
        self.has_front = False  # whether an unknown text precedes a step
        self._steps_since_fatal = 0
        self._is_cancelled = False

    def rank_of(self, origin: Origin) -> int | None:
        """Return the rank that printed a line; None if unknown."""
        return rank_of(origin, self._rank)

    def find(self, finding: Finding, *, is_fatal: bool = False) -> None:
        """Add a finding; with `is_fatal`, the program that printed its line cannot go on."""
        if is_fatal and self.fatal is None:
            self.fatal, self._steps_since_fatal = finding, 0
        self._is_cancelled |= finding.cls in _ENDING
        if finding.action is not Action.NONE:
            self.start.after_trouble = 0
        key = (finding.cls, finding.detail)
        known = self.findings.get(key)
        alike = sum(cls == finding.cls for cls, _ in self.findings)
        if known is not None and known.action is finding.action:
            self.findings[key] = replace(known, count=known.count + 1)
        elif known is None and alike >= _MOST_DETAILS:
            self.unkept += 1
        else:  # it is new, or its evidence was a line of an earlier start
            self.findings.pop(key, None)
            self.findings[key] = replace(finding, count=known.count + 1 if known else 1)

    def step(self, record: StepRecord, origin: Origin) -> None:
        """Add a step that a line of an origin reports."""
        if self.ranks is not None:
            self.ranks.take(self.rank_of(origin), (record.step,), (record.step_s,))
        self._step(record, origin)

    def _step(self, record: StepRecord, origin: Origin) -> None:
        if not self._is_at_home(origin):
            return
        start = self.start
        if start.steps and record.step <= start.last:
            if start.last - record.step > _RANKS_APART and not start.repeated:
                start = self._begin(settings_of=start)
                start.home = origin
            elif start.steps.get(record.step) is not None:
                self._repeat(record)
                return
        start.phase = Phase.TRAINING
        if record.start != start.index:
            record = record._replace(start=start.index)
        start.last = max(start.last, record.step) if start.steps else record.step
        start.steps.put(record)
        self._count(1)

    def run(self, run: StepRun) -> bool:
        """Add a run of step lines; return False if one may be cut, so that all must be read singly.

        The effect is that of the single lines.
        """
        start = self.start
        if len(run.layout.fields) < start.figures_of(start.last):
            return False
        writers, origins = run.writers
        if self.ranks is not None:
            self.ranks.take_run(run, self._rank)
        is_home = {writer: origin == start.home for writer, origin in origins.items()}
        if start.steps and all(
            is_home[writer] or origin in start.others for writer, origin in origins.items()
        ):
            home_run = (
                run if all(is_home.values()) else run.chosen(map(is_home.__getitem__, writers))
            )
            steps = home_run.steps
            if not steps:
                return True
            if start.last < steps[0] and all(map(operator.lt, steps, steps[1:])):
                start.steps.extend(home_run.columns(start.label, start=start.index))
                start.phase, start.last = Phase.TRAINING, steps[-1]
                self._count(len(steps))
                return True
        for writer, *values in zip(writers, *run.columns("", start=start.index), strict=True):
            origin = origins[writer]
            self._step(StepRecord(*values)._replace(label=origin.label), origin)
        return True

    def is_cut(self, record: StepRecord) -> bool:
        """Return whether a step line has fewer figures than the one before: it may be cut."""
        return figures_in(record) < self.start.figures_of(self.start.last)

    def counts_own(self) -> None:
        """Count only the user's pattern from its first step on."""
        self.has_own = True
        self.start.steps = StepTable()
        if self.ranks is not None:
            self.ranks.by_rank.clear()

    def compiles(self) -> None:
        """Note that parameters are initialised, so that compilation follows."""
        if self.start.phase is Phase.BEFORE_MEMSTATS:
            self.start.phase, self.fatal = Phase.COMPILING, None

    def begin_if_trained(self, origin: Origin) -> None:
        """Begin a new start if its settings or Memstats are printed after a step."""
        home = self.start.home
        if self.start.phase is not Phase.TRAINING or home is None:
            return
        if origin.rank in ("", home.rank) and not (self.start.repeated and home.rank == ""):
            self._begin()

    def begin_if_configured_again(self, key: str, origin: Origin) -> None:
        """Begin a new start if a process in trouble prints its configuration again.

        Without labels, several processes may print it; this shows if a key came twice.
        """
        start, known = self.start, self.start.config.values.get(key)
        if known is None or known[0] != origin.preference or start.is_configured_twice:
            return
        asks = any(finding.action is not Action.NONE for finding in self.findings.values())
        if start.is_hung or asks:
            self._begin()
        else:
            start.is_configured_twice = origin.rank == ""

    def notes(self, steps: Steps) -> tuple[str, ...]:
        """Return remarks for a reader of the steps, one sentence each."""
        start = self.start
        dropped = start.steps.left_out + max(len(start.steps) - MOST_STEPS, 0)
        whose = start.label or "the one without a label"
        timeless = steps.chosen([took_s is not None and took_s <= 0.0 for took_s in steps.step_s])
        cases = (
            (start.index, f"the log holds {start.index + 1} starts; these steps are of the last"),
            (start.others, f"{len(start.others) + 1} origins print steps; these are of {whose}"),
            (start.repeated, "several ranks print a step alike; the first line of each counts"),
            (dropped, f"{dropped} earlier steps are not kept"),
            (self.unkept, f"{self.unkept} more findings are not kept"),
            (self.has_cut_flags, "the line of XLA_FLAGS is cut and was not used"),
            (self.has_front, "an unknown text in front of lines may hide settings and failures"),
            (
                timeless,
                f"{len(timeless)} steps took no time or less, {_first(timeless)}: not counted",
            ),
        )
        return tuple(text for is_so, text in cases if is_so)

    def _count(self, count: int) -> None:
        """Count further steps, which are already kept."""
        start = self.start
        start.after_cancel += self._is_cancelled * count
        start.after_trouble += count
        start.count += count
        self._steps_since_fatal += count
        if self._steps_since_fatal >= STEPS_THAT_REFUTE:
            self.fatal = None

    def _repeat(self, record: StepRecord) -> None:
        """Keep the first line of a step, unless it was cut and this one has more."""
        start = self.start
        start.repeated = True
        if figures_in(record) > start.figures_of(record.step):
            start.steps.put(record._replace(start=start.index))

    def _is_at_home(self, origin: Origin) -> bool:
        """Return whether steps of this origin count; a better origin replaces the one so far."""
        start = self.start
        home = start.home
        if origin == home:
            return True
        if origin in start.others:  # none of these is better than a later home
            return False
        if home is not None:
            better = origin.preference < home.preference
            if len(start.others) < _MOST_ORIGINS:
                start.others.add(home if better else origin)
            if not better:
                return False
            start.steps = StepTable()
        start.home = origin
        return True

    def _begin(self, *, settings_of: Start | None = None) -> Start:
        self.start = Start(index=self.start.index + 1)
        if settings_of is not None:  # no settings were printed in between, so the old ones hold
            self.start.env, self.start.config = settings_of.env, settings_of.config
            self.start.nccl = settings_of.nccl
        self._is_cancelled = False
        self.fatal = None
        # otherwise the OOM of a first start would be reported beside the score of the second
        self.findings = {
            key: replace(finding, action=Action.NONE) for key, finding in self.findings.items()
        }
        return self.start


def _first(steps: Sequence[StepRecord]) -> str:
    return f"e.g. step {steps[0].step} in {steps[0].step_s:g} s" if steps else ""


def rank_of(origin: Origin, rank: int | None) -> int | None:
    """Return the rank of a line: that of its file if each rank has one, else of its label."""
    if rank is not None:
        return rank
    return int(origin.rank) if origin.rank else None
