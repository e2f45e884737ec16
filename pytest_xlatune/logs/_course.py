"""The course of a program as its log shows it: starts, their steps, findings.

The reader reports events to it in the order of the log.

Steps are those of rank 0 by its label; without labels, the first line of each step id counts. Only
the last start counts. A start begins if settings or Memstats are printed after a step, if a process
in trouble prints its configuration again, or if a step id goes back by more than two; less may be a
slower rank. Once two ranks have printed the same step, going back begins no start.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_xlatune.logs._sieve import StepRun
from pytest_xlatune.logs.grammar import Origin, figures_in
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord, Steps

STEPS_THAT_REFUTE = 3  # steps are dispatched ahead, so up to two may be printed after a fatal line
_RANKS_APART = 2  # steps by which a slower rank may be behind
MOST_STEPS = 100_000
# steps are dropped many at once, because dropping single ones took quadratic time
MORE_STEPS = 1 << 13
_MOST_DETAILS = 8  # different findings of one class that are kept
_MOST_ORIGINS = 1024
_MOST_SETTINGS = 4096  # of one kind
_ENDING = (
    *(FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
    *(FailureClass.PREEMPTED, FailureClass.PREEMPTION_NOTICE),
)


class Phase(StrEnum):
    """How far a start of the program has got; the meaning of a hang depends on it."""

    BEFORE_MEMSTATS = "before-memstats"  # containers, collectives, parameters
    COMPILING = "compiling"  # after `Memstats: After params initialized`
    TRAINING = "training"  # after the first step line


# name -> preference of the origin that printed the setting, and the value
_Settings = dict[str, tuple[tuple[int, int], str]]


class Start(msgspec.Struct):
    """The state of one start of the program; what has no comment is as in `LogReport`."""

    index: int = 0
    phase: Phase = Phase.BEFORE_MEMSTATS
    home: Origin | None = None  # the origin whose steps count; None before the first step
    others: set[Origin] = msgspec.field(default_factory=set)  # other origins that print steps
    # step id -> its record, or the run of lines with it, in the order printed
    steps: dict[int, StepRecord | StepRun] = msgspec.field(default_factory=dict)
    left_out: int = 0  # how many of the earliest steps were dropped
    last: int = -1  # highest step id; only valid if `steps` is not empty
    repeated: bool = False  # whether a step id was printed twice
    is_configured_twice: bool = False  # whether several processes print their configuration
    count: int = 0  # number of steps, including dropped ones
    after_cancel: int = 0  # the report's `steps_after_cancel`
    after_trouble: int = 0  # the report's `steps_after_trouble`
    exit_code: int | None = None
    memory_gb: float | None = None
    settings: dict[str, _Settings] = msgspec.field(default_factory=dict)  # by kind, e.g. "env"
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    pgle_found: int | None = None
    pgle_unread: str = ""

    def put(self, kind: str, name: str, value: str, origin: Origin) -> None:
        """Add a setting; of several origins, the last value of the preferred one counts."""
        settings = self.settings.setdefault(kind, {})
        known = settings.get(name)
        if known is None and len(settings) >= _MOST_SETTINGS:
            return
        if known is None or origin.preference <= known[0]:
            settings[name] = (origin.preference, value)

    def plain(self, kind: str) -> dict[str, str]:
        """Return name -> value of the settings of a kind."""
        return {name: value for name, (_, value) in self.settings.get(kind, {}).items()}

    def figures_of(self, step: int) -> int:
        """Return how many figures the line of a step had; 0 if it is not kept."""
        kept = self.steps.get(step)
        if isinstance(kept, StepRun):
            return kept.figures
        return figures_in(kept) if kept is not None else 0

    def last_steps(self) -> Steps:
        """Return the last steps that are kept."""
        last = [*self.steps.items()][-MOST_STEPS:]
        parts: list[Iterable[Sequence[Any]]] = []
        for run, group in itertools.groupby(last, _run_of):
            items = [*group]
            if run is None:
                parts.append(zip(*(record for _, record in items), strict=True))
            else:
                first = run.steps.index(items[0][0])
                parts.append([column[first : first + len(items)] for column in run.columns()])
        columns = (tuple(itertools.chain(*pieces)) for pieces in zip(*parts, strict=True))
        return Steps(**dict(zip(StepRecord._fields, columns, strict=False)))


def _run_of(item: tuple[int, StepRecord | StepRun]) -> StepRun | None:
    return item[1] if isinstance(item[1], StepRun) else None


class Course:
    """What the lines show so far."""

    def __init__(self) -> None:
        self.start = Start()  # the last start of the program
        # origin -> number of the line with which an ignored exception begins
        self.ignored_at: dict[Origin, int] = {}
        # (class, detail) -> finding, in order of first appearance
        self.findings: dict[tuple[str, str], Finding] = {}
        # the line after which the program cannot go on, unless it did
        self.fatal: Finding | None = None
        # the arguments for MaxText in the head of a maxtext-slurm log
        self.asked: dict[str, str] = {}
        self.goal: int | None = None  # the id of the last step, if lines show it
        self.has_cut_flags = False
        self._steps_since_fatal = 0
        self._is_cancelled = False

    def find(self, finding: Finding, *, is_fatal: bool = False) -> None:
        """Add a finding; with `is_fatal`, the program that printed its line cannot go on."""
        if is_fatal and self.fatal is None:
            self.fatal, self._steps_since_fatal = finding, 0
        self._is_cancelled |= finding.cls in _ENDING
        if finding.action is not Action.NONE:
            self.start.after_trouble = 0
        key = (finding.cls, finding.detail)
        known = self.findings.get(key)
        if known is not None and known.action is finding.action:
            self.findings[key] = replace(known, count=known.count + 1)
        elif known is not None:  # its evidence was a line of an earlier start
            del self.findings[key]
            self.findings[key] = replace(finding, count=known.count + 1)
        elif sum(cls == finding.cls for cls, _ in self.findings) < _MOST_DETAILS:
            self.findings[key] = finding

    def step(self, record: StepRecord, origin: Origin) -> None:
        """Add a step that a line of an origin reports."""
        if not self._is_at_home(origin):
            return
        start = self.start
        if start.steps and record.step <= start.last:
            if start.last - record.step > _RANKS_APART and not start.repeated:
                start = self._begin(settings_of=start)
                start.home = origin
            elif record.step in start.steps:
                # the first line of a step counts, unless it was cut and this one has more
                start.repeated = True
                if figures_in(record) > start.figures_of(record.step):
                    start.steps[record.step] = record._replace(start=start.index)
                return
        self._add((record.step,), (record._replace(start=start.index),))

    def run(self, run: StepRun) -> bool:
        """Add a run of step lines at once; return False if its lines must be read one by one."""
        start, home = self.start, self.start.home
        origins = {rank: Origin("" if rank is None else str(rank)) for rank in {*run.ranks}}
        if home is None or not {home, *start.others}.issuperset(origins.values()):
            return False
        if run.figures < start.figures_of(start.last):
            return False
        home_rank = int(home.rank) if home.rank else None
        rows = [row for row, rank in enumerate(run.ranks) if rank == home_rank]
        if rows and home == Origin(home.rank):
            at_home = run.chosen(rows)
            if at_home.steps[0] <= start.last or not _increases(at_home.steps):
                return False
            at_home.label, at_home.start = home.label, start.index
            self._add(at_home.steps, itertools.repeat(at_home))
        return True

    def begin_if_trained(self, origin: Origin) -> None:
        """Begin a new start if its settings or Memstats are printed after a step."""
        home = self.start.home
        if self.start.phase is not Phase.TRAINING or home is None:
            return
        if origin.rank in ("", home.rank) and not (self.start.repeated and home.rank == ""):
            self._begin()

    def begin_if_configured_again(self, key: str, origin: Origin) -> None:
        """Begin a new start if a process in trouble prints its configuration again.

        Without labels, a key that comes twice before trouble shows several processes, and no start.
        """
        start = self.start
        preference, _ = start.settings.get("config", {}).get(key, (None, ""))
        if preference != origin.preference or start.is_configured_twice:
            return
        if any(finding.action is not Action.NONE for finding in self.findings.values()):
            self._begin()
        else:
            start.is_configured_twice = origin.rank == ""

    def notes(self) -> tuple[str, ...]:
        """Return remarks for a reader of the steps, one sentence each."""
        start = self.start
        dropped = start.left_out + max(len(start.steps) - MOST_STEPS, 0)
        whose = (start.home and start.home.label) or "the one without a label"
        cases = (
            (start.index, f"the log holds {start.index + 1} starts; these steps are of the last"),
            (start.others, f"{len(start.others) + 1} origins print steps; these are of {whose}"),
            (
                start.repeated,
                "several ranks print the same steps; the first line of a step counts",
            ),
            (dropped, f"{dropped} earlier steps are not kept"),
            (self.has_cut_flags, "the line of XLA_FLAGS is cut and was not used"),
        )
        return tuple(text for is_so, text in cases if is_so)

    def _add(self, steps: Sequence[int], records: Iterable[StepRecord | StepRun]) -> None:
        """Add new steps: several with increasing ids, or one with any id."""
        start = self.start
        start.phase = Phase.TRAINING
        start.last = max(start.last, steps[-1]) if start.steps else steps[-1]
        start.steps.update(zip(steps, records, strict=False))
        while len(start.steps) > MOST_STEPS + MORE_STEPS:
            for step in [*itertools.islice(start.steps, MORE_STEPS)]:
                del start.steps[step]
            start.left_out += MORE_STEPS
        start.count += len(steps)
        start.after_cancel += self._is_cancelled * len(steps)
        start.after_trouble += len(steps)
        self._steps_since_fatal += len(steps)
        if self._steps_since_fatal >= STEPS_THAT_REFUTE:
            self.fatal = None

    def _is_at_home(self, origin: Origin) -> bool:
        """Return whether steps of this origin count; a better origin replaces the one so far."""
        start = self.start
        home = start.home
        if origin == home:
            return True
        if origin in start.others:  # the home is as good as each of these, or better
            return False
        if home is not None:
            better = origin.preference < home.preference
            if len(start.others) < _MOST_ORIGINS:
                start.others.add(home if better else origin)
            if not better:
                return False
            start.steps, start.left_out = {}, 0
        start.home = origin
        return True

    def _begin(self, *, settings_of: Start | None = None) -> Start:
        self.start = Start(index=self.start.index + 1)
        if settings_of is not None:  # no settings were printed in between, so the old ones hold
            self.start.settings = settings_of.settings
        self._is_cancelled = False
        self.fatal = None
        # otherwise the OOM of a first start would be reported beside the score of the second
        self.findings = {
            key: replace(finding, action=Action.NONE) for key, finding in self.findings.items()
        }
        return self.start


def _increases(steps: Sequence[int]) -> bool:
    return all(map(operator.lt, steps, steps[1:]))
