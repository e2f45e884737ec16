"""What made the difference between two drills, measured with one yardstick or not at all.

A step's span has four parts that sum to it: compute, exposed communication, exposed memory and
idle. What moved between two variants is named by those first, then by family. Totals of different
launchers, step counts or device counts are not comparable, and are refused.
"""

from __future__ import annotations

from pytest_xlatune.evidence.trace import Kind
from pytest_xlatune.evidence.trace.breakdown import Drill, TimeRow
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Real, Record

NOTEWORTHY = 0.005  # of the span: a part that moved less is not named in the sentence


class Part(Record, frozen=True, kw_only=True):
    """A figure of two variants, in seconds per device per step."""

    name: str
    before_s: Real
    after_s: Real

    @property
    def change_s(self) -> float:
        """How much longer the second variant takes."""
        return self.after_s - self.before_s


class TraceComparison(Record, frozen=True, kw_only=True):
    """Two variants side by side.

    `sentence` tells of a step from its start to that of the next, where both variants have two
    steps one after the other, else of the span.
    """

    span: Part
    parts: tuple[Part, ...]  # sum to the span
    totals: tuple[Part, ...]
    families: tuple[Part, ...]  # sum to the total kernel time, most moved first
    kernels: tuple[Part, ...]  # most moved first
    sentence: str


_BETWEEN, _PERIOD = "between steps", "period, start to start"


def parts(drill: Drill) -> dict[str, float]:
    """Return the four parts of the span, in seconds per device per step."""
    total = drill.total
    return {
        "compute": drill.seconds(total.compute_ps),
        "exposed communication": drill.seconds(total.exposed_communication_ps),
        "exposed memory": drill.seconds(total.exposed_memory_ps),
        "idle": drill.seconds(total.idle_ps),
    }


def totals(drill: Drill) -> dict[str, float]:
    """Return what overlaps: sums over kernels, and what lies over what."""
    total = drill.total
    figures = {
        "total kernel": drill.seconds(total.sum_ps),
        "communication": drill.seconds(total.communication_ps),
        "overlap": drill.seconds(total.overlap_ps),
        "concurrency": drill.seconds(total.concurrency_ps),
    }
    if (periods := drill.periods_ps) is not None:
        period_ps, span_ps, count = periods
        figures[_BETWEEN] = (period_ps - span_ps) / count * 1e-12
        figures[_PERIOD] = period_ps / count * 1e-12
    if drill.step_s is not None:
        figures["step - total kernel"] = drill.step_s - figures["total kernel"]
    return figures


def compare_windows(before: Drill, after: Drill) -> TraceComparison:
    """Compare two variants.

    Raises:
        ConfigError: launcher, device count, step count or the rule of steps differ.
    """
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
    (span,) = _paired(*({"span": drill.seconds(drill.total.span_ps)} for drill in (before, after)))
    families_of_both = (*before.families, *after.families)
    waits = {row.name for row in families_of_both if row.kind is Kind.COMMUNICATION}
    of_span = _paired(parts(before), parts(after))
    both = {part.name: part for part in _paired(totals(before), totals(after))}
    has_periods = before.periods_ps is not None and after.periods_ps is not None
    families, kernels = (
        _most_first(_paired(*map(_sums, (before, after), rows)))
        for rows in ((before.families, after.families), (before.kernels, after.kernels))
    )
    return TraceComparison(
        span=span,
        parts=of_span,
        totals=tuple(both.values()),
        families=families,
        kernels=kernels,
        sentence=_sentence(_STEP, both[_PERIOD], (*of_span, both[_BETWEEN]), families, waits)
        if has_periods
        else _sentence(_SPAN, span, of_span, families, waits),
    )


def _sums(drill: Drill, rows: tuple[TimeRow, ...]) -> dict[str, float]:
    return {row.name: drill.seconds(row.sum_ps) for row in rows}


def _paired(before: dict[str, float], after: dict[str, float]) -> tuple[Part, ...]:
    names = dict.fromkeys([*before, *after])
    return tuple(
        Part(name=name, before_s=before.get(name, 0.0), after_s=after.get(name, 0.0))
        for name in names
    )


def _most_first(figures: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(sorted(figures, key=lambda part: (-abs(part.change_s), part.name)))


# the compared time, and how its change is said
_STEP = ("the time from step to step", "a step takes")
_SPAN = ("the span of a step", "the span of a step is")


def _sentence(
    what: tuple[str, str],
    total: Part,
    figures: tuple[Part, ...],
    families: tuple[Part, ...],
    waits: set[str],
) -> str:
    """Say what moved a step, the largest part first, and the family that stands behind it.

    A collective's kernel holds the wait for the slowest device, so that a family which computes or
    copies is named before one that communicates.
    """
    enough = NOTEWORTHY * total.before_s
    if total.before_s <= 0 or abs(total.change_s) < enough:
        return f"{what[0]} did not change by more than {NOTEWORTHY:.1%}"
    named = [part for part in _most_first(figures) if abs(part.change_s) >= enough]
    shown = ", ".join(f"{part.name} {milliseconds(part.change_s):+.3f} ms" for part in named)
    text = (
        f"{what[1]} {milliseconds(abs(total.change_s)):.3f} ms "
        f"{'less' if total.change_s < 0 else 'more'} "
        f"({total.change_s / total.before_s:+.1%}): {shown}"
    )
    noteworthy = [part for part in families if abs(part.change_s) >= enough]
    not_waiting = [part for part in noteworthy if part.name not in waits]
    for part in (not_waiting or noteworthy)[:1]:
        text += (
            f"; the family that moved most{'' if part.name in waits else ' beside communication'} "
            f"is {part.name}, {milliseconds(part.change_s):+.3f} ms of kernel time"
        )
    return text


def milliseconds(value_s: float) -> float:
    """Return seconds as milliseconds."""
    return value_s * 1e3
