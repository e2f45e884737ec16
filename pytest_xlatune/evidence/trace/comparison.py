"""Two drills to what made the difference, measured with one yardstick or not at all.

A step's span has four parts that sum to it: compute, exposed communication, exposed memory and
idle. What moved between two variants is named by those first, then by family. Totals of different
launchers, step counts or device counts are not comparable, and are refused.

And the shares of a step that its parts take, which order the settings that are tried next. Kernels
are told apart by the operation that launched them; where a trace names none, a library's
kernel still says which collective it is, but for send and receive: those are of the one kind that
the compiled program has, or of none that can be told.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace import Kind
from pytest_xlatune.evidence.trace.breakdown import Drill, TimeRow
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.result import COLLECTIVES, Shares

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
class TraceComparison(Record):
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
    old_s, new_s = (seconds(each, each.total.span_ps) for each in (before, after))
    span = Part(name="span", before_s=old_s, after_s=new_s)
    families_of_both = (*before.families, *after.families)
    waits = {row.name for row in families_of_both if row.kind is Kind.COMMUNICATION}
    found = _paired(parts(before), parts(after))
    families = _moved(_paired(_sums(before, before.families), _sums(after, after.families)))
    kernels = _moved(_paired(_sums(before, before.kernels), _sums(after, after.kernels)))
    return TraceComparison(
        span=span,
        parts=found,
        totals=_paired(totals(before), totals(after)),
        families=families,
        kernels=kernels,
        sentence=_sentence(span, found, families, waits),
    )


def _sums(found: Drill, rows: tuple[TimeRow, ...]) -> dict[str, float]:
    return {row.name: seconds(found, row.sum_ps) for row in rows}


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


_AS = {
    "ragged-all-to-all": "all-to-all",
    "send": "collective-permute",
    "recv": "collective-permute",
}
_EXCHANGES = ("all-to-all", "collective-permute")  # what a library does by send and receive
# an operation:  all-gather-start.3    ragged-all-to-all.1    recv-done
_OPERATION = re.compile(rf"({'|'.join(COLLECTIVES)}|ragged-all-to-all|send|recv)\b")
# a library's kernel:  ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL    ncclDevKernel_SendRecv
_KERNEL = re.compile(r"AllGather|ReduceScatter|AllReduce|AllToAll|SendRecv", re.IGNORECASE)
_KERNELS = {
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
}


def shares_of(found: Drill | None, program: Program | None) -> Shares | None:
    """Return what a trace and a dump tell; either may be missing, None where both are."""
    kinds = None if program is None else _kinds(program)
    span = 0 if found is None else found.total.span_ps
    if found is None or span <= 0:
        return None if kinds is None else Shares(of_step={}, kinds=kinds)
    total = found.total
    return Shares(
        of_step={
            **{kind: spent / span for kind, spent in _alone(found, kinds).items()},
            "communication": total.exposed_communication_ps / span,
            "compute": total.compute_ps / span,
            "copies": total.exposed_memory_ps / span,
            "idle": total.idle_ps / span,
        },
        kinds=kinds,
    )


def _kinds(program: Program) -> tuple[str, ...]:
    found = {_AS.get(each.kind, each.kind) for each in program.collectives}
    return tuple(each for each in COLLECTIVES if each in found)


def _alone(found: Drill, kinds: tuple[str, ...] | None) -> dict[str, int]:
    """Return kind -> picoseconds in which its kernels had nothing beside them."""
    rows = [each for each in found.ops if each.kind is Kind.COMMUNICATION]
    kind_of = _of_operation
    if not rows:
        rows = [each for each in found.kernels if each.kind is Kind.COMMUNICATION]
        kind_of = _of_kernel
    exchanges = [each for each in _EXCHANGES if each in (kinds or ())]
    spent: dict[str, int] = defaultdict(int)
    for row in rows:
        kind = kind_of(row)
        if kind == "send and receive" and len(exchanges) == 1:
            kind = exchanges[0]
        if kind in COLLECTIVES:
            spent[kind] += row.alone_ps
    return {kind: spent[kind] for kind in COLLECTIVES if kind in spent}


def _of_operation(row: TimeRow) -> str:
    match = _OPERATION.match(row.name)
    return _AS.get(match[1], match[1]) if match else ""


def _of_kernel(row: TimeRow) -> str:
    match = _KERNEL.search(row.name)
    return _KERNELS.get(match[0].lower(), "send and receive") if match else ""
