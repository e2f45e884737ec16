"""What a trial is scored by: Tokens/s/device (TGS), or another figure that its log tells.

A score is the logarithm of the figure, negated where less is better: the larger of two scores is
always the better one, so that FASTER and SLOWER keep their meaning. Pure values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_xlatune.model.reason import Reason
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.text import significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Record):
    """A figure that trials are scored by.

    Attributes:
        name: as a protocol names it, e.g. "first-step".
        title: as documents name it, e.g. "first step".
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
        """The head of a column, e.g. `first step (s)`."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


TGS = Metric(name="tgs", title="TGS")  # the unit is in the name: Tokens/s/device
FIRST_STEP = Metric(name="first-step", title="first step", unit="s", is_lower_better=True)
BUSBW = Metric(name="busbw", title="bus bandwidth", unit="GB/s")
METRICS = {each.name: each for each in (TGS, FIRST_STEP, BUSBW)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Record):
    """A figure other than TGS, of one trial or the geometric mean of several."""

    metric: Metric
    value: float

    @property
    def words(self) -> str:
        """The figure in words, e.g. `bus bandwidth 361.0 GB/s`."""
        return f"{self.metric.title} {significant(self.value)} {self.metric.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged(Record):
    """The figures of a metric that a log prints beside its steps.

    Attributes:
        values: step id and figure, in the order printed; no step where the line tells none.
        problem: why none of them counts; None otherwise.
    """

    values: tuple[tuple[int | None, float], ...] = ()
    problem: Reason | None = None
