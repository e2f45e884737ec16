"""What a trial is scored by: Tokens/s/device (TGS) or another figure; step records, and scores.

A score is the logarithm of the figure, and a larger figure is better. Pure values.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, overload

import msgspec
from msgspec.structs import force_setattr

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Real, Record, Rows, Timings, as_columns
from pytest_xlatune.model.text import significant


class Metric(Record, frozen=True, kw_only=True):
    """A figure by which trials are scored.

    Attributes:
        name: the name in a protocol, e.g. "busbw".
        title: the name in documents, e.g. "bus bandwidth".
        unit: the unit in documents; "" for TGS.
    """

    name: str
    title: str
    unit: str = ""

    @property
    def head(self) -> str:
        """The heading of a column, e.g. `bus bandwidth (GB/s)`."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


TGS = Metric(name="tgs", title="TGS")  # the unit is in the name: Tokens/s/device
BUSBW = Metric(name="busbw", title="bus bandwidth", unit="GB/s")
METRICS = {metric.name: metric for metric in (TGS, BUSBW)}


class Figure(Record, frozen=True, kw_only=True):
    """A figure other than TGS: of one trial, or the geometric mean of several."""

    metric: Metric
    value: Real

    @property
    def words(self) -> str:
        """The figure with its name, e.g. `bus bandwidth 361.0 GB/s`."""
        return f"{self.metric.title} {significant(self.value)} {self.metric.unit}".rstrip()


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """The figure of a metric that a log prints beside its steps.

    Attributes:
        value: the figure that was printed last; None if none was.
        problem: why it does not count; None otherwise.
    """

    value: float | None = None
    problem: Message | None = None


class StepRecord(NamedTuple):
    """One training step from the log or MaxText's metrics file. None means not printed.

    Attributes:
        step: the step's id.
        step_s: seconds of the step: the host's time between two dispatches.
        tgs: Tokens/s/device.
        tflops: TFLOP/s/device.
        mfu: model FLOPs utilisation in percent.
        loss: training loss; NaN and infinity are real values here.
        label: the rank in front of the line ("0" of `srun -l`); "" if there is none.
        start: the number of the program's start within the log, from 0.
        kind: "step", "rampup" or "profiler" (a hidden step of the profiler).
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
    """Steps as columns of equal length, with the fields of `StepRecord`.

    A record is made only when it is asked for: making 100,000 takes longer than reading their log.
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
        """Return the columns of the records."""
        if isinstance(records, Steps):
            return records
        columns = zip(*records, strict=True)
        return cls(**dict(zip(StepRecord._fields, columns, strict=False)))

    def chosen(self, is_chosen: Iterable[object]) -> Steps:
        """Return the chosen steps; `is_chosen` has one value for each step, true or false."""
        mask = [*is_chosen]
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
    """The steady state of one job: the log of tokens over time on the kept steps.

    Attributes:
        value: log of `tgs` or of `figure`; this is what is compared.
        tgs: tokens over time, in Tokens/s/device; None if another figure is scored.
        step_s: seconds of a kept step; None if another figure is scored.
        n_steps: number of kept steps, or 1 for a figure that belongs to no step.
        window: first and last step id of the window; (0, 0) for a figure that belongs to no step.
        dropped: ids of steps in the window that were dropped as outliers.
        stragglers: how many of the dropped steps were slow.
        window_tgs: tokens over time in the whole window, stragglers included.
        loss: loss of the last step; None if it was not printed.
        flags: warnings about the score, e.g. "not-steady", "invariant-violated".
        timings: (step id, seconds) of every step, from which the score of another window can be
            computed; () if not kept.
        figure: the scored figure if it is not TGS; None for TGS.
        tflops: TFLOP/s/device at `tgs`; None if not printed.
        mfu: model FLOPs utilisation at `tgs`, in percent; None if not printed.
        first_loss: loss of the first step; None if it was not printed.
        memory_gb: memory of the compiled step on a device, in 2^30 bytes; None if not printed.
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
    """Return the relative change for a difference of log scores: exp(x) - 1."""
    return math.expm1(log_ratio)
