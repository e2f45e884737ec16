"""Compare the figures of drills, and name what made the difference.

A step's span is the sum of four parts: compute, exposed communication, exposed memory and idle. The
time of a step, from its start to the start of the next, is the span and the time between steps. A
difference between two variants is attributed to these parts first, then to families. Totals of
different launchers, step counts or device counts do not compare, and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_xlatune.evidence.trace import Kind
from pytest_xlatune.evidence.trace.breakdown import Drill
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Real, Record

NOTEWORTHY = 0.005  # least change of a part, as a share of the span, that the sentence mentions

# the groups of figures
PART, SPAN, TOTAL, FAMILY, KERNEL = "part", "span", "total", "family", "kernel"
BETWEEN, PERIOD = "between steps", "period, start to start"
OF_STEP = (BETWEEN, PERIOD)  # the totals that include time beyond the span of a step
# the compared time, its name, and the beginning of the sentence about its change
_STEP = (PERIOD, "the time from step to step", "a step takes")
_SPAN = (SPAN, "the span of a step", "the span of a step is")


class Figure(Record, frozen=True, kw_only=True):
    """A time of each variant, in seconds per device per step."""

    group: str
    name: str
    seconds: tuple[Real, ...]

    def change_s(self, variant: int = 1) -> float:
        """Return how much longer a variant takes than the first one."""
        return self.seconds[variant] - self.seconds[0]


class TraceComparison(Record, frozen=True, kw_only=True):
    """Several variants side by side.

    The time of a step is the period from step to step, or the span if a variant has no two
    consecutive steps.

    Attributes:
        figures: the times; with several variants, families and kernels that changed most are first.
        sentences: for each variant but the first, what changed the time of a step.
        moved: for each variant but the first, the relative change of the time of a step; None if
            the first variant shows no time.
    """

    figures: tuple[Figure, ...]
    sentences: tuple[str, ...]
    moved: tuple[Real | None, ...]

    def of(self, *groups: str) -> tuple[Figure, ...]:
        """Return the figures of these groups."""
        return tuple(figure for figure in self.figures if figure.group in groups)


def figures(drill: Drill) -> dict[str, dict[str, float]]:
    """Return group -> name -> seconds per device per step.

    The parts add up to the span, and the families, like the kernels, to the total kernel time. The
    totals describe overlap.
    """
    total = drill.total
    of_groups = {
        PART: {
            "compute": total.compute_ps,
            "exposed communication": total.exposed_communication_ps,
            "exposed memory": total.exposed_memory_ps,
            "idle": total.idle_ps,
        },
        SPAN: {SPAN: total.span_ps},
        TOTAL: {
            "total kernel": total.sum_ps,
            "communication": total.communication_ps,
            "overlap": total.overlap_ps,
            "concurrency": total.concurrency_ps,
        },
        FAMILY: {row.name: row.sum_ps for row in drill.families},
        KERNEL: {row.name: row.sum_ps for row in drill.kernels},
    }
    seconds = {
        group: {name: drill.seconds(spent_ps) for name, spent_ps in rows.items()}
        for group, rows in of_groups.items()
    }
    totals = seconds[TOTAL]
    if (periods := drill.periods_ps) is not None:
        period_ps, span_ps, count = periods
        totals[BETWEEN] = (period_ps - span_ps) / count * 1e-12
        totals[PERIOD] = seconds[SPAN][SPAN] + totals[BETWEEN]
    if drill.step_s is not None:
        totals["step - total kernel"] = drill.step_s - totals["total kernel"]
    return seconds


def compare_windows(first: Drill, *others: Drill) -> TraceComparison:
    """Compare variants with the first one.

    Raises:
        ConfigError: launcher, device count, step count or the rule for steps differ.
    """
    for drill in others:
        _check_alike(first, drill)
    of_drills = [figures(drill) for drill in (first, *others)]
    variants = range(1, len(of_drills))
    rows: list[Figure] = []
    for group in of_drills[0]:
        of_group = [
            Figure(
                group=group,
                name=name,
                seconds=tuple(of_drill[group].get(name, 0.0) for of_drill in of_drills),
            )
            for name in dict.fromkeys(name for of_drill in of_drills for name in of_drill[group])
        ]
        if others and group in (FAMILY, KERNEL):
            # by the largest change of a variant
            of_group.sort(key=lambda row: (-max(abs(row.change_s(n)) for n in variants), row.name))
        rows += of_group
    return TraceComparison(
        figures=tuple(rows),
        sentences=tuple(
            _sentence(rows, variant, first, drill) for variant, drill in enumerate(others, 1)
        ),
        moved=tuple(_moved(rows, variant, first, drill) for variant, drill in enumerate(others, 1)),
    )


def _check_alike(before: Drill, after: Drill) -> None:
    for what, old, new in (
        ("launcher", before.launcher, after.launcher),
        ("number of devices", len(before.gpus), len(after.gpus)),
        ("number of steps", before.divided_by, after.divided_by),
        ("rule that assigns kernels to steps", before.rule, after.rule),
        ("backend", before.backend, after.backend),
    ):
        if old != new:
            raise ConfigError(
                f"the two variants cannot be compared: {what} is {old} in the first and {new} in "
                "the second; profile both with the same launcher, window and nodes"
            )


def _time_of_step(rows: Sequence[Figure], before: Drill, after: Drill) -> Figure:
    """Return the time that is compared: the period if both variants have one, or the span."""
    name, _, _ = _STEP if before.periods_ps and after.periods_ps else _SPAN
    return next(row for row in rows if row.name == name and row.group in (SPAN, TOTAL))


def _moved(rows: Sequence[Figure], variant: int, before: Drill, after: Drill) -> float | None:
    time = _time_of_step(rows, before, after)
    return time.change_s(variant) / time.seconds[0] if time.seconds[0] > 0 else None


def _sentence(rows: Sequence[Figure], variant: int, before: Drill, after: Drill) -> str:
    """Return a sentence on what changed a step: its parts, then the family that changed most.

    A collective's kernel includes waiting for the slowest device, so families that compute or copy
    are named before those that communicate.
    """
    time = _time_of_step(rows, before, after)
    has_periods = time.name == PERIOD
    _, what, takes = _STEP if has_periods else _SPAN
    total_s, before_s = time.change_s(variant), time.seconds[0]
    enough_s = NOTEWORTHY * before_s
    if before_s <= 0 or abs(total_s) < enough_s:
        return f"{what} did not change by more than {NOTEWORTHY:.1%}"
    moved = [figure for figure in rows if abs(figure.change_s(variant)) >= enough_s]
    moved.sort(key=lambda figure: (-abs(figure.change_s(variant)), figure.name))
    parts = [
        figure
        for figure in moved
        if figure.group == PART or (has_periods and figure.name == BETWEEN)
    ]
    changes = {figure.name: figure.change_s(variant) for figure in parts}
    # the other parts, so that the changes add up to that of the whole
    changes["the rest"] = total_s - math.fsum(changes.values())
    shown = ", ".join(
        f"{name} {in_ms(change_s, '+')} ms"
        for name, change_s in changes.items()
        if float(in_ms(change_s))
    )
    text = (
        f"{takes} {in_ms(abs(total_s))} ms {'less' if total_s < 0 else 'more'} "
        f"({total_s / before_s:+.1%}): {shown}"
    )
    communicating = {
        row.name for row in (*before.families, *after.families) if row.kind is Kind.COMMUNICATION
    }
    families = [figure for figure in moved if figure.group == FAMILY]
    families.sort(key=lambda figure: figure.name in communicating)
    for figure in families[:1]:
        apart = "" if figure.name in communicating else ", apart from communication,"
        text += (
            f"; the family that moved most{apart}"
            f" is {figure.name}, {in_ms(figure.change_s(variant), '+')} ms of kernel time"
        )
    return text


def in_ms(value_s: float, sign: str = "") -> str:
    """Return seconds as a text in milliseconds; with the sign "+", an increase has its sign too."""
    return f"{value_s * 1e3:{sign}.3f}"
