"""The page of `xlatune drill --html`: the command's own tables, with bars of what they say.

Every figure is one that the JSON document has too. Nothing is computed here but places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_xlatune.evidence.trace.comparison import milliseconds, parts, seconds
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import (
    Block,
    Column,
    Document,
    Table,
    Text,
    bullets,
    drawn,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.page_plots import PARTS, BarOf, bars_plot

if TYPE_CHECKING:
    from pytest_xlatune.cli.drill import Cells, Told
    from pytest_xlatune.evidence.trace.breakdown import Drill, Gpu

_MOST_FAMILIES = 12
_MOST_DEVICES = 16  # of a variant: more rows than this are no picture
_TITLES = {
    "composition": "Composition",
    "family": "Families of kernels",
    "kernel": "Kernels",
    "path": "Time by the path in the framework",
}
_NAMES = {1: [""], 2: ["before", "after"]}  # as the tables have them
_PS_OF_MS = 1e9


def drill_document(drills: Sequence[Drill], told: Told, collectives: Sequence[Told]) -> Document:
    """Return the document of a drill, from what the command says of it and of its collectives.

    `collectives` are those of each variant, where they were asked for.
    """
    names = _NAMES.get(len(drills)) or [f"variant {at}" for at in range(1, len(drills) + 1)]
    sections = [section(_TITLES[each[0][0]], _block(each)) for each in told.tables]
    sections += [
        section(f"Collectives, {name}" if name else "Collectives", *_talk(each))
        for name, each in zip(names, collectives, strict=False)
    ]
    if told.remarks:
        sections.append(section("Remarks", bullets(*map(plain, told.remarks))))
    title = "Where the time of a step went"
    return Document(
        title=title if len(drills) == 1 else "What made the difference between variants",
        header=tuple(_named(name, each) for name, each in zip(names, drills, strict=True)),
        sections=(section("In short", bullets(*map(plain, told.said))), *sections),
        drawn=(
            *drawn("A step of a device", _composition(drills, names)),
            *drawn("Families of kernels, as bars", _families(drills, names)),
            *drawn("Steps of each device", _steps(drills, names)),
        ),
    )


def _named(name: str, found: Drill) -> str:
    where = f"{name}: " if name else ""
    return f"{where}{counted(len(found.sources), 'capture')}: {plain(', '.join(found.sources))}"


def _block(table: Cells) -> Block:
    """Return a table: a column of figures stands to the right."""
    head, rows = table
    right = [all(row[at][:1] in "+-0123456789" for row in rows) for at in range(len(head))]
    return Table(
        columns=tuple(
            Column(title=title, align="right" if at and right[at] else "left", wrap=not at)
            for at, title in enumerate(head)
        ),
        rows=tuple((literal(row[0]), *map(plain, row[1:])) for row in rows),
    )


def _talk(told: Told) -> Iterator[Block]:
    for line in told.said:
        yield Text(text=f"Figures: {plain(line)}.")
    for each in told.tables:
        yield _block(each) if each[1] else Text(text="none")
    if told.remarks:
        yield bullets(*map(plain, told.remarks))


def _ms(value_s: float) -> str:
    return f"{milliseconds(value_s):.3f} ms"


def _composition(drills: Sequence[Drill], names: Sequence[str]) -> object:
    bars = []
    for name, found in zip(names, drills, strict=True):
        at, shown = 0.0, []
        for part, value_s in parts(found).items():
            long = milliseconds(value_s)
            shown.append((PARTS[part], f"{part}: {_ms(value_s)}", at, long))
            at += long
        span = _ms(seconds(found, found.total.span_ps))
        bars.append(BarOf(name="", what=name or "span", parts=tuple(shown), text=span))
    return bars_plot(
        bars,
        caption="Milliseconds per device per step. The four parts sum to the span of a step, from "
        "the start of its first kernel to the end of its last.",
        kinds=[(looks, part) for part, looks in PARTS.items()],
    )


def _families(drills: Sequence[Drill], names: Sequence[str]) -> object:
    spent = [{row.name: seconds(each, row.sum_ps) for row in each.families} for each in drills]
    kind = {row.name: str(row.kind) for each in drills for row in each.families}
    longest = {name: max(each.get(name, 0.0) for each in spent) for name in kind}
    shown = sorted(kind, key=lambda name: (-longest[name], name))[:_MOST_FAMILIES]
    bars = []
    for family in shown:
        for at, (name, each) in enumerate(zip(names, spent, strict=True)):
            value_s = each.get(family, 0.0)
            said = f"{family}: {_ms(value_s)}"
            part = (kind[family], said, 0.0, milliseconds(value_s))
            text = _ms(value_s)
            bars.append(BarOf(name="" if at else family, what=name, parts=(part,), text=text))
    left = len(kind) - len(shown)
    return bars_plot(
        bars,
        caption="Milliseconds of kernel time per device per step. Kernels that run at once are "
        "counted each, so the families may sum to more than the span."
        + (f" The {len(shown)} longest are shown; {left} more are in the table." if left else ""),
        kinds=[(each, each) for each in dict.fromkeys(kind[family] for family in shown)],
    )


def _steps(drills: Sequence[Drill], names: Sequence[str]) -> object:
    bars, left = [], 0
    for name, found in zip(names, drills, strict=True):
        known = [each for each in found.gpus if 1 < len(found.steps) == len(each.begins_ps)]
        left += max(len(known) - _MOST_DEVICES, 0)
        slowest = sorted(known, key=lambda gpu: -gpu.total.compute_ps)[:_MOST_DEVICES]
        bars += [
            _steps_of(gpu, found, name if not at else "")
            for at, gpu in enumerate(each for each in known if each in slowest)
        ]
    return bars_plot(
        bars,
        caption="Each bar is a step of a device, from its first kernel to the end of its last, on "
        "the device's own clock from the first step on. The figure is the mean span of its steps."
        + (f" {counted(left, 'device')} that compute less are left out." if left else ""),
        kinds=[("compute", "a step")],
    )


def _steps_of(gpu: Gpu, found: Drill, name: str) -> BarOf:
    shown = tuple(
        (
            "compute",
            f"step {number}: {step.span_ps / _PS_OF_MS:.3f} ms",
            (begin - gpu.begins_ps[0]) / _PS_OF_MS,
            step.span_ps / _PS_OF_MS,
        )
        for number, step, begin in zip(found.steps, gpu.steps, gpu.begins_ps, strict=True)
    )
    mean = sum(each.span_ps for each in gpu.steps) / len(gpu.steps) / _PS_OF_MS
    return BarOf(name=name, what=f"{gpu.source} {gpu.name}", parts=shown, text=f"{mean:.3f} ms")
