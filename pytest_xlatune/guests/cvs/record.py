"""What a study of thresholds keeps: each metric's figures, by job; its report and it share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_xlatune.model.record import Record
from pytest_xlatune.model.result import NoiseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigure(Record):
    """A metric of one job."""

    job: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFound(Record):
    """A metric, and what it is held against, in the metric's own unit.

    Attributes:
        metric: its name; that of a verdict of the conclusion too.
        demand: in words: `at least 800`, or `recorded` where there is none.
        least, most: the limits of the mean; None without one.
        jobs: the figure of every job that tells it.
        mean: of those jobs; None without any.
        low, high: the 90 % interval of the mean; None of too few jobs, or of equal ones.
    """

    metric: str
    demand: str
    least: float | None = None
    most: float | None = None
    jobs: tuple[JobFigure, ...] = ()
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRecord(NoiseRecord):
    """What the jobs of a cell showed of each metric, whatever its verdict."""

    kind: ClassVar[str] = "thresholds"
    metrics: tuple[ThresholdFound, ...] = ()
