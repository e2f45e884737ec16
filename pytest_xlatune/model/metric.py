"""What a trial is scored by: Tokens/s/device (TGS), or another figure; its steps, and its score.

A score is the logarithm of the figure, negated where less is better: the larger of two scores is
always the better one, so that FASTER and SLOWER keep their meaning. Pure values.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, overload

from msgspec.structs import force_setattr

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Real, Record, Rows, Timings, as_columns
from pytest_xlatune.model.text import significant


class Metric(Record, frozen=True, kw_only=True):
    """A figure that trials are scored by.

    Attributes:
        name: as a protocol names it, e.g. "busbw".
        title: as documents name it, e.g. "bus bandwidth".
        unit: "" where a field of the user's own has none declared.
        is_lower_better: whether the smaller of two figures is the better one.
        field: name of the field in the log, where the metric is one; "" otherwise.
    """

    name: str
    title: str
    unit: str = ""
    is_lower_better: bool = False
    field: str = ""

    def score(self, figure: float) -> float:
        """Return the score of a positive figure."""
        return -math.log(figure) if self.is_lower_better else math.log(figure)

    def figure(self, score: float) -> float:
        """Return the figure of a score."""
        return math.exp(-score if self.is_lower_better else score)

    @property
    def head(self) -> str:
        """The head of a column, e.g. `bus bandwidth (GB/s)`."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


TGS = Metric(name="tgs", title="TGS")  # the unit is in the name: Tokens/s/device
BUSBW = Metric(name="busbw", title="bus bandwidth", unit="GB/s")
METRICS = {metric.name: metric for metric in (TGS, BUSBW)}


class Figure(Record, frozen=True, kw_only=True):
    """A figure other than TGS, of one trial or the geometric mean of several."""

    metric: Metric
    value: Real

    @property
    def words(self) -> str:
        """The figure in words, e.g. `bus bandwidth 361.0 GB/s`."""
        return f"{self.metric.title} {significant(self.value)} {self.metric.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """The figures of a metric that a log prints beside its steps.

    Attributes:
        values: step id and figure, in the order printed; no step where the line tells none.
        problem: why none of them counts; None otherwise.
    """

    values: tuple[tuple[int | None, float], ...] = ()
    problem: Message | None = None


class StepRecord(NamedTuple):
    """One training step as the log or MaxText's metrics file tells it. None: not printed.

    Attributes:
        step: the step's id.
        step_s: seconds of the step: the host's time between two dispatches.
        tgs: Tokens/s/device.
        tflops: TFLOP/s/device.
        mfu: model FLOPs utilisation in percent.
        loss: training loss; NaN and infinity are real values here.
        label: the rank label in front of the line ("0" of `srun -l`), or "".
        start: which start of the program within one log, from 0.
        kind: "step", "rampup", "profiler" (a hidden profiler step).
    """

    step: int
    step_s: float | None = None
    tgs: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    loss: float | None = None
    label: str = ""
    start: int = 0
    kind: str = "step"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Steps(Rows[StepRecord]):
    """Steps as columns, each as long as the others: what `StepRecord` says, of all of them.

    A step's record is made where it is asked for: to make those of 100,000 steps takes longer than
    to read their log.
    """

    step: tuple[int, ...] = ()
    step_s: tuple[float | None, ...] = ()
    tgs: tuple[float | None, ...] = ()
    tflops: tuple[float | None, ...] = ()
    mfu: tuple[float | None, ...] = ()
    loss: tuple[float | None, ...] = ()
    label: tuple[str, ...] = ()
    start: tuple[int, ...] = ()
    kind: tuple[str, ...] = ()

    @classmethod
    def of(cls, records: Iterable[StepRecord]) -> Steps:
        """Return the columns of records."""
        if isinstance(records, Steps):
            return records
        columns = zip(*records, strict=True)
        return cls(**dict(zip(StepRecord._fields, columns, strict=False)))

    def chosen(self, which: Iterable[object]) -> Steps:
        """Return the steps that are chosen, by one truth value for each."""
        mask = [*which]
        if all(mask):
            return self
        columns = (
            (name, itertools.compress(getattr(self, name), mask)) for name in StepRecord._fields
        )
        return Steps(**{name: tuple(column) for name, column in columns})

    def __len__(self) -> int:
        return len(self.step)

    def __iter__(self) -> Iterator[StepRecord]:
        return map(StepRecord._make, zip(*_columns_of(self), strict=True))

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Steps: ...

    def __getitem__(self, at: int | slice) -> StepRecord | Steps:
        kind = Steps if isinstance(at, slice) else StepRecord
        return kind(**{name: getattr(self, name)[at] for name in StepRecord._fields})


_columns_of = operator.attrgetter(*StepRecord._fields)


class Score(Record, frozen=True, kw_only=True):
    """The steady state of one job: log of tokens over time on the kept steps.

    Attributes:
        value: log of `tgs`, or what the metric makes of `figure`; comparisons are of it.
        tgs: tokens over time, Tokens/s/device; None where another figure is scored.
        step_s: seconds per kept step; None likewise.
        n_steps: kept steps, or lines behind another figure.
        window: first and last step id of the window; (0, 0) of lines that are no step's.
        dropped: step ids inside the window that were screened out.
        stragglers: how many of the dropped were slow steps.
        window_tgs: tokens over time on the whole window, stragglers included.
        loss: loss of the last step, if printed.
        flags: what a reader should know, e.g. "not-steady", "invariant-violated".
        timings: (step id, seconds) of every step, to score it in another window; () likewise.
        figure: the scored figure, where it is not TGS.
        tflops, mfu: TFLOP/s/device and percent of the peak, at `tgs`, if printed.
        first_loss: loss of the first step, if printed.
        memory_gb: of one device as the compiled step takes it, if printed: 2^30 bytes.
    """

    value: Real
    tgs: Real | None = None
    step_s: Real | None = None
    n_steps: int
    window: tuple[int, int]
    dropped: tuple[int, ...] = ()
    stragglers: int = 0
    window_tgs: Real | None = None
    loss: Real | None = None
    flags: tuple[str, ...] = ()
    timings: Timings = ()
    figure: Figure | None = None
    tflops: Real | None = None
    first_loss: Real | None = None
    memory_gb: Real | None = None
    mfu: Real | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "timings", as_columns(self.timings))


class NoScore(Record, frozen=True, kw_only=True):
    """Why a job has no score."""

    reason: Message


def relative(log_ratio: float) -> float:
    """Return the relative change that a difference of log scores is: exp(x) - 1."""
    return math.expm1(log_ratio)
