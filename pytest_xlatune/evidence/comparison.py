"""Two drills to what made the difference, measured with one yardstick or not at all.

A step's span has four parts that sum to it: compute, exposed communication, exposed memory and
idle. What moved between two variants is named by those first, then by family. Totals of different
launchers, step counts or device counts are not comparable, and are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.evidence.drill import Drill
from pytest_xlatune.evidence.families import Kind
from pytest_xlatune.records import Record

NOTEWORTHY = 0.005  # of the span: a part that moved less is not named in the sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Record):
    """A figure of two variants, in seconds per device per step."""

    name: str
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        """How much longer the second variant takes."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Record):
    """Two variants side by side."""

    span: Part
    parts: tuple[Part, ...]  # sum to the span
    totals: tuple[Part, ...]
    families: tuple[Part, ...]  # sum to the total kernel time, most moved first
    kernels: tuple[Part, ...]  # most moved first
    sentence: str


def parts(found: Drill) -> dict[str, float]:
    """Return the four parts of the span, in seconds per device per step."""
    total = found.total
    return {
        "compute": seconds(found, total.compute_ps),
        "exposed communication": seconds(found, total.exposed_communication_ps),
        "exposed memory": seconds(found, total.exposed_memory_ps),
        "idle": seconds(found, total.idle_ps),
    }


def totals(found: Drill) -> dict[str, float]:
    """Return what overlaps: sums over kernels, and what lies over what."""
    total = found.total
    figures = {
        "total kernel": seconds(found, total.sum_ps),
        "communication": seconds(found, total.communication_ps),
        "overlap": seconds(found, total.overlap_ps),
        "concurrency": seconds(found, total.concurrency_ps),
    }
    if found.step_s is not None:
        figures["step - total kernel"] = found.step_s - figures["total kernel"]
    return figures


def seconds(found: Drill, ps: int) -> float:
    """Return a sum over devices and steps as seconds per device per step."""
    return ps / max(1, found.gpu_steps) * 1e-12


def compare(before: Drill, after: Drill) -> Comparison:
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
    total = before.total, after.total
    span = Part(
        name="span",
        before_s=seconds(before, total[0].span_ps),
        after_s=seconds(after, total[1].span_ps),
    )
    waits = {
        row.name
        for drilled in (before, after)
        for row in drilled.families
        if row.kind is Kind.COMMUNICATION
    }
    found = _paired(parts(before), parts(after))
    families = _moved(
        _paired(
            *({row.name: seconds(d, row.sum_ps) for row in d.families} for d in (before, after))
        )
    )
    kernels = _moved(
        _paired(*({row.name: seconds(d, row.sum_ps) for row in d.kernels} for d in (before, after)))
    )
    return Comparison(
        span=span,
        parts=found,
        totals=_paired(totals(before), totals(after)),
        families=families,
        kernels=kernels,
        sentence=_sentence(span, found, families, waits),
    )


def _paired(before: dict[str, float], after: dict[str, float]) -> tuple[Part, ...]:
    names = dict.fromkeys([*before, *after])
    return tuple(
        Part(name=name, before_s=before.get(name, 0.0), after_s=after.get(name, 0.0))
        for name in names
    )


def _moved(found: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(sorted(found, key=lambda part: (-abs(part.change_s), part.name)))


def _sentence(
    span: Part, found: tuple[Part, ...], families: tuple[Part, ...], waits: set[str]
) -> str:
    """Say what moved the span, the largest part first, and the family that stands behind it.

    A collective's kernel holds the wait for the slowest device, so that a family which computes or
    copies is named before one that communicates.
    """
    enough = NOTEWORTHY * span.before_s
    if span.before_s <= 0 or abs(span.change_s) < enough:
        return f"the span of a step did not change by more than {NOTEWORTHY:.1%}"
    named = [part for part in _moved(found) if abs(part.change_s) >= enough]
    shown = ", ".join(f"{part.name} {milliseconds(part.change_s):+.3f} ms" for part in named)
    text = (
        f"a step takes {milliseconds(abs(span.change_s)):.3f} ms "
        f"{'less' if span.change_s < 0 else 'more'} "
        f"({span.change_s / span.before_s:+.1%}): {shown}"
    )
    moved = [part for part in families if abs(part.change_s) >= enough]
    own = [part for part in moved if part.name not in waits]
    for part in (own or moved)[:1]:
        text += (
            f"; the family that moved most{'' if part.name in waits else ' beside communication'} "
            f"is {part.name}, {milliseconds(part.change_s):+.3f} ms of kernel time"
        )
    return text


def milliseconds(value_s: float) -> float:
    """Return seconds as milliseconds."""
    return value_s * 1e3
