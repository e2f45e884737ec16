"""The course of a program as the lines of its log tell it: its starts, their steps, its findings.

It is told one thing after the other by `line_classes`, in the order of the log.

Whose steps: rank 0 by its label; without labels the first line of each step id. Which start: the
last. A start begins where settings or Memstats are printed after a step was, where a process that
met trouble prints its configuration again, or where a step id goes back by more than two: less may
be a slower rank. Once two ranks were seen to print a step alike, going back begins no start.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._sieve import StepRun
from pytest_xlatune.logs.grammar import Origin, Settings, StepLayout
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord, Steps

STEPS_THAT_REFUTE = 3  # what ran before a fatal line may be printed after it: steps are dispatched
_RANKS_APART = 2  # steps by which a slower rank may print later
MOST_STEPS = 100_000
# left out one by one, a log of 100,000 steps took time that grew with its square
MORE_STEPS = 1 << 13  # so many of them are left out at once
_MOST_DETAILS = 8  # different findings of one class that are kept
_MOST_ORIGINS = 1024
_ENDING = (
    *(FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
    *(FailureClass.PREEMPTED, FailureClass.PREEMPTION_NOTICE),
)


class Phase(StrEnum):
    """How far a start of the program has come; what a hang means depends on it."""

    BEFORE_MEMSTATS = "before-memstats"  # containers, collectives, parameters
    COMPILING = "compiling"  # after `Memstats: After params initialized`
    TRAINING = "training"  # after the first step line


@dataclass(slots=True)
class Start:
    """What belongs to one start of the program."""

    index: int = 0
    phase: Phase = Phase.BEFORE_MEMSTATS
    home: Origin | None = None  # whose steps count
    others: set[Origin] = field(default_factory=set)  # who else prints steps
    # in the order printed; of a run the record is made when it is asked for
    steps: dict[int, StepRecord | StepRun] = field(default_factory=dict)
    last: int = -1  # highest step id; only read where `steps` is not empty
    layout: StepLayout | None = None  # of its line, where it was read by one
    repeated: bool = False
    is_configured_twice: bool = False
    is_hung: bool = False  # the first line of a block was printed that tells of a hang
    dropped_steps: int = 0
    count: int = 0  # of steps, those that are not kept included
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

    def record(self, step: int) -> StepRecord | None:
        """Return the record of a step; None where it is not kept."""
        kept = self.steps.get(step)
        if not isinstance(kept, StepRun):
            return kept
        return next(
            record for record in kept.records(self.label, start=self.index) if record.step == step
        )

    def figures(self, step: int) -> int:
        """Return how many figures the line of a step told; 0 where it is not kept."""
        record = self.record(step)
        return 0 if record is None else grammar.told(record)

    def last_steps(self, most: int) -> Steps:
        """Return the last steps in the order printed, so many at most."""
        columns: list[list[Any]] = [[] for _ in StepRecord._fields]
        steps, at = [*self.steps][-most:], 0
        for kept, alike in itertools.groupby([*self.steps.values()][-most:]):
            count = len([*alike])
            if isinstance(kept, StepRun):
                ids = {*steps[at : at + count]} if count < kept.count else ()
                run = kept.chosen(step in ids for step in kept.steps) if ids else kept
                parts = run.columns(self.label, start=self.index)
            else:
                parts = [[value] for value in kept]
            at += count
            for column, part in zip(columns, parts, strict=True):
                column.extend(part)
        return Steps(**dict(zip(StepRecord._fields, map(tuple, columns), strict=True)))

    @property
    def label(self) -> str:
        """How the records name who prints the steps that count."""
        return self.home.label if self.home else ""


class StepListener:
    """Is told the steps of all ranks as they are read, not only of the one that counts."""

    def take(self, label: str, steps: Sequence[int], seconds: Sequence[float | None]) -> None:
        """Take further steps of the rank of this label, "" where the lines name none."""

    def forget(self) -> None:
        """Forget all steps: they were of another format than the user's."""


class Course:
    """What the lines tell so far.

    Attributes:
        start: the last start of the program.
        findings: by class and detail, in order of first appearance.
        fatal: the first line after which the program cannot go on, as long as it did not go on.
        asked: the arguments that maxtext-slurm's head says it hands to MaxText.
        goal: the id of the last step, where lines tell it.
        has_own: whether a line was read by the user's pattern.
        unkept: how many findings were too many.
        has_cut_flags: whether the line of XLA_FLAGS was cut.
        has_front: whether a text that is in no table stands in front of a step.
    """

    def __init__(self, ranks: StepListener | None = None) -> None:
        self.start = Start()
        self._ranks = ranks
        self.findings: dict[tuple[str, str], Finding] = {}
        self.fatal: Finding | None = None
        self.asked: dict[str, str] = {}
        self.goal: int | None = None
        self.has_own = False
        self.unkept = 0
        self.has_cut_flags = False
        self.has_front = False
        self._steps_since_fatal = 0
        self._is_cancelled = False

    def find(self, finding: Finding, *, is_fatal: bool = False) -> None:
        """Take a finding; `is_fatal`: the program that prints its line cannot go on."""
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
        else:  # new, or of an earlier start: then the new line is the evidence
            self.findings.pop(key, None)
            self.findings[key] = replace(finding, count=known.count + 1 if known else 1)

    def step(self, record: StepRecord, origin: Origin, *, layout: StepLayout | None = None) -> None:
        """Take a step that a line of an origin reports; `layout` is of its line, where known."""
        if self._ranks is not None:
            self._ranks.take(origin.rank, (record.step,), (record.step_s,))
        self._step(record, origin, layout)

    def _step(self, record: StepRecord, origin: Origin, layout: StepLayout | None) -> None:
        if not self._is_at_home(origin):
            return
        start = self.start
        if start.steps and record.step <= start.last:
            if start.last - record.step > _RANKS_APART and not start.repeated:
                start = self._begin(settings_of=start)
                start.home = origin
            elif record.step in start.steps:
                self._repeat(record)
                return
        start.phase = Phase.TRAINING
        if record.start != start.index:
            record = record._replace(start=start.index)
        start.last = max(start.last, record.step) if start.steps else record.step
        start.layout = layout if start.last == record.step else None
        start.steps[record.step] = record
        self._count(1)

    def run(self, run: StepRun) -> bool:
        """Take a run of step lines; false where one may have been cut, so that all are looked at.

        It changes what the lines would change one by one.
        """
        start, layout = self.start, run.layout
        if layout is not start.layout and len(layout.fields) < start.figures(start.last):
            return False
        writers, origins = run.writers
        if self._ranks is not None:
            self._tell(self._ranks, run)
        is_own = {writer: origin == start.home for writer, origin in origins.items()}
        if start.steps and all(
            is_own[writer] or origin in start.others for writer, origin in origins.items()
        ):
            is_chosen = map(is_own.__getitem__, writers)
            own = run if all(is_own.values()) else run.chosen(is_chosen)
            steps = own.steps
            if not steps:
                return True
            if start.last < steps[0] and all(map(operator.lt, steps, steps[1:])):
                start.steps.update(zip(steps, itertools.repeat(own), strict=False))
                start.layout, start.phase, start.last = layout, Phase.TRAINING, steps[-1]
                self._count(len(steps))
                return True
        for writer, record in zip(writers, run.records("", start=start.index), strict=True):
            origin = origins[writer]
            self._step(record._replace(label=origin.label), origin, layout)
        return True

    def _tell(self, ranks: StepListener, run: StepRun) -> None:
        writers, origins = run.writers
        labels = {writer: origin.rank for writer, origin in origins.items()}
        steps, seconds = run.steps, run.seconds()
        if len({*labels.values()}) == 1:
            ranks.take(next(iter(labels.values())), steps, seconds)
            return
        places: dict[str, list[int]] = {label: [] for label in labels.values()}
        for at, writer in enumerate(writers):
            places[labels[writer]].append(at)
        for label, own in places.items():
            ranks.take(label, [steps[at] for at in own], [seconds[at] for at in own])

    def is_cut(self, record: StepRecord) -> bool:
        """Whether the line of a step tells less than the one before: a writer may have been cut."""
        return grammar.told(record) < self.start.figures(self.start.last)

    def counts_own(self) -> None:
        """Count the user's pattern alone from its first step on."""
        self.has_own = True
        self.start.steps.clear()
        if self._ranks is not None:
            self._ranks.forget()

    def compiles(self) -> None:
        """Take that the parameters are there: what follows is the compilation."""
        if self.start.phase is Phase.BEFORE_MEMSTATS:
            self.start.phase, self.fatal = Phase.COMPILING, None

    def begin_if_trained(self, origin: Origin) -> None:
        """Begin a new start when its settings or Memstats are printed after a step was."""
        home = self.start.home
        if self.start.phase is not Phase.TRAINING or home is None:
            return
        if origin.rank in ("", home.rank) and not (self.start.repeated and home.rank == ""):
            self._begin()

    def begin_if_configured_again(self, key: str, origin: Origin) -> None:
        """Begin a new start when a process that met trouble prints its configuration anew.

        Without labels several processes may print it; one that printed a key twice before betrays
        that.
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
        """Return what a reader of the steps should know, one sentence each."""
        start = self.start
        dropped = start.dropped_steps + max(len(start.steps) - MOST_STEPS, 0)
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
        """Count further steps, which are kept already, and leave out the first of too many."""
        start = self.start
        start.after_cancel += self._is_cancelled * count
        start.after_trouble += count
        start.count += count
        self._steps_since_fatal += count
        if self._steps_since_fatal >= STEPS_THAT_REFUTE:
            self.fatal = None
        if len(start.steps) > MOST_STEPS + MORE_STEPS:
            for first in [*itertools.islice(start.steps, MORE_STEPS)]:
                del start.steps[first]
            start.dropped_steps += MORE_STEPS

    def _repeat(self, record: StepRecord) -> None:
        """Keep the first line of a step, unless that one was cut short and this one tells more."""
        start = self.start
        start.repeated, start.layout = True, None
        if grammar.told(record) > start.figures(record.step):
            start.steps[record.step] = record._replace(start=start.index)

    def _is_at_home(self, origin: Origin) -> bool:
        """Whether steps of this origin count; a better one than before takes its place."""
        start = self.start
        home = start.home
        if origin == home:
            return True
        if origin in start.others:  # none of these is ever better than a later home
            return False
        if home is not None:
            better = origin.preference < home.preference
            if len(start.others) < _MOST_ORIGINS:
                start.others.add(home if better else origin)
            if not better:
                return False
            start.steps.clear()
        start.home = origin
        return True

    def _begin(self, *, settings_of: Start | None = None) -> Start:
        self.start = Start(index=self.start.index + 1)
        if settings_of is not None:  # none were printed in between: they still hold
            self.start.env, self.start.config = settings_of.env, settings_of.config
            self.start.nccl = settings_of.nccl
        self._is_cancelled = False
        self.fatal = None
        # the OOM of a first start once stood beside the score of the second
        self.findings = {
            key: replace(finding, action=Action.NONE) for key, finding in self.findings.items()
        }
        return self.start


def _first(steps: Sequence[StepRecord]) -> str:
    return f"e.g. step {steps[0].step} in {steps[0].step_s:g} s" if steps else ""
