"""Where the time of a step went, or what made the difference between variants: document and rows.

The terminal, the page and the CSV have the figures of the JSON document: nothing is computed here
but shares and places. Times are milliseconds per device per step unless a line says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_xlatune.evidence.trace import shipped_families
from pytest_xlatune.evidence.trace.breakdown import Drill, Gpu, TimeRow
from pytest_xlatune.evidence.trace.collectives import Communication, shares_of
from pytest_xlatune.evidence.trace.comparison import (
    Part,
    compare_windows,
    milliseconds,
    moved,
    parts,
    totals,
)
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import (
    Block,
    Document,
    Drawn,
    Section,
    Table,
    Text,
    columns,
    drawn,
    lines,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.page_plots import PARTS, Bar, BarRow, BarsPlot, bars_plot
from pytest_xlatune.tasks.drill import Drilled

SCHEMA = 1
ALIKE = 0.01  # of the median device's compute: less is no straggler
TOP = 10  # rows of a table of kernels
NAME = 56  # characters of a kernel's name; Tensile's and C++ ones run into hundreds
_CUT = "..."
_PS_OF_MS = 1e9
_MOST_FAMILIES = 12
_MOST_DEVICES = 16  # of a variant: more rows than this are no picture
_TITLES = {
    "composition": "Composition",
    "family": "Families of kernels",
    "kernel": "Kernels",
    "ceiling": "Ceiling: the most that settings of a part can win",
}
_RULES = {
    StepRule.LAUNCH: "each kernel in the step whose annotation was open at its launch",
    StepRule.EXECUTIONS: "steps are the runs of the step's module, counted on each device",
    StepRule.WINDOWS: "each kernel in the step whose annotation was open while it ran: work "
    "dispatched ahead is counted in the wrong step",
    StepRule.WHOLE: "no step could be told apart: totals over the number of steps given",
}


def drill_document(
    found: Drilled,
    *,
    top: int = TOP,
    width: int | None = NAME,
    per_gpu: bool = False,
    is_page: bool = False,
) -> Document:
    """Return the document of a drill; with the plots that a page draws, where it `is_page`.

    `width` is the longest name of a kernel, None for all of it.

    Raises:
        ConfigError: two variants cannot be compared.
    """
    drills = found.drills
    names = _names(len(drills))
    told = _one(drills[0], top, width) if len(drills) == 1 else _several(drills, top, width)
    sections = [
        *told,
        *([section("Steps of each device, in figures", _per_gpu(drills))] if per_gpu else []),
        *(
            section(
                ", ".join(filter(None, ("Collectives", name))),
                *_talk(communication, name, top, width),
            )
            for name, communication in zip(names, found.talking, strict=False)
        ),
        *([section("Files", lines(*map(plain, found.files)))] if found.files else []),
        *(
            section("Time by the path in the framework", table)
            for table in _paths(found, top, width)
        ),
    ]
    captures = [
        f"{f'{name}: ' if name else ''}{counted(len(drill.sources), 'capture')}: "
        + plain(", ".join(drill.sources))
        for name, drill in zip(names, drills, strict=True)
    ]
    return Document(
        title="Where the time of a step went"
        if len(drills) == 1
        else "What made the difference between variants",
        # on a terminal the command itself tells of files left out: each is said once
        header=(*captures, *(f"left out: {plain(problem)}" for problem in found.problems)),
        sections=tuple(sections),
        drawn=tuple(_plots(drills, names)) if is_page else (),
        brief=True,
    )


def _names(count: int) -> list[str]:
    some = {1: [""], 2: ["before", "after"]}
    return some.get(count) or [f"variant {place}" for place in range(1, count + 1)]


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1, title: str = ""
) -> Table:
    """Return a table whose first columns are words, and the others figures."""
    titles = [each if at < words else f">{each}" for at, each in enumerate(head)]
    shown = tuple((literal(row[0]), *map(plain, row[1:])) for row in rows)
    return Table(title=title, columns=columns(*titles), rows=shown, compact=True)


def _one(found: Drill, top: int, width: int | None) -> Iterator[Section]:
    span_s = found.seconds(found.total.span_ps)
    composed = [*parts(found).items(), ("= span", span_s), *totals(found).items()]
    composition = [(name, _ms(value), _share(value, span_s)) for name, value in composed]
    figures = ("ms", "of total", "calls", "alone ms")
    kernels = [_row(found, row, row.family, width) for row in found.kernels[:top]]
    families = [_row(found, row, str(row.kind), width) for row in found.families]
    yield section("In short", lines(*map(plain, _head(found))))
    for head, rows, words in (
        (("composition", "ms", "of span"), composition, 1),
        (("family", "kind", *figures), families, 2),
        (("kernel", "family", *figures), kernels, 2),
    ):
        yield section(_TITLES[head[0]], _table(head, rows, words=words))
    if (shares := shares_of(found, None)) is not None:
        won = sorted(shares.of_step.items(), key=lambda item: -item[1])
        ceiling = [(part, _ms(share * span_s), f"{share:.1%}") for part, share in won]
        yield section(_TITLES["ceiling"], _table(("ceiling", "ms", "of span"), ceiling))
    yield section("Remarks", lines(*_remarks(found, width)))


def _head(found: Drill) -> list[str]:
    devices = len(found.gpus)
    told = [
        f"{counted(len(found.sources), 'capture')} ({', '.join(found.formats)}), {found.launcher}, "
        f"{counted(devices, 'device')} with kernels"
        + (f" of {found.planes_present} planes" if found.planes_present > devices else ""),
        f"steps {', '.join(map(str, found.steps))}: {_RULES[found.rule]}"
        if found.rule is not StepRule.WHOLE
        else f"{counted(found.divided_by, 'step')}: {_RULES[found.rule]}",
        f"figures are ms per device per step, over {found.gpu_steps} of them",
    ]
    if not found.even:
        told.append(f"steps have different numbers of kernels: {_odd(found)}")
    return [*told, *_warned(found)]


def _odd(found: Drill) -> str:
    """Name the first step of a device whose number of kernels is not that of most steps."""
    kernels = Counter(step.kernels for gpu in found.gpus for step in gpu.steps)
    usual = kernels.most_common(1)[0][0]
    odd = (
        f"{gpu.source} {gpu.name} has {step.kernels} in step {number}, where most steps have "
        f"{usual}; the window cuts a step, or the profiler lost a kernel"
        for gpu in found.gpus
        for number, step in zip(found.steps, gpu.steps, strict=True)
        if step.kernels != usual
    )
    return next(odd, "the window cuts a step; see --json")


def _row(found: Drill, row: TimeRow, of: str, width: int | None) -> tuple[str, ...]:
    return (
        _short(row.name, width),
        of,
        _ms(found.seconds(row.sum_ps)),
        _share(row.sum_ps, found.total.sum_ps),
        f"{row.count / max(1, found.gpu_steps):.4g}",
        _ms(found.seconds(row.alone_ps)),
    )


def _remarks(found: Drill, width: int | None) -> Iterator[str]:
    blockers = found.blockers
    remedies = {family.name: plain(family.remedy) for family in shipped_families() if family.remedy}
    total_ps = found.total.sum_ps
    if blockers:
        yield "kernels of the main stream, by the time that nothing runs beside them:"
    for row in blockers[:3]:
        yield (
            f"  {plain(_short(row.name, width))}: {_ms(found.seconds(row.alone_ps))} ms alone, "
            f"longest {row.longest_ps / _PS_OF_MS:.3f} ms"
        )
        if (remedy := remedies.get(row.family)) is not None:
            yield f"    {remedy}"
    yield f"{_share(found.attributed_ps, total_ps)} of kernel time names its HLO operation"
    if total_ps and found.attributed_ps < total_ps / 2:
        yield (
            "  profile once with --xla_gpu_enable_command_buffer= (empty) for more; it changes "
            "timing, so not in a measured run"
        )
    outside = sum(gpu.outside.sum_ps for gpu in found.gpus)
    if outside:
        yield f"{outside / _PS_OF_MS:.3f} ms of kernels, in all, belong to no step"
    if len(found.gpus) > 1:
        busiest = plain(f"{found.straggler.source} {found.straggler.name}")
        yield (
            f"{busiest} computes {found.spread:.1%} longer than the median device"
            if found.spread >= ALIKE
            else f"the devices compute alike, within {found.spread:.1%} of the median"
        )


def _changes(title: str, names: Sequence[str], rows: Iterable[Part], width: int | None) -> Table:
    cells = [
        (_short(part.name, width), _ms(part.before_s), _ms(part.after_s), _change(part.change_s))
        for part in rows
    ]
    return _table((title, *names, "change ms"), cells)


def _several(drills: Sequence[Drill], top: int, width: int | None) -> Iterator[Section]:
    """Tell of two variants or more: a column each, with its change against the first."""
    first, *others = drills
    compared = [compare_windows(first, drill) for drill in others]
    names = _names(len(drills))
    wide = 1 + max(map(len, names))
    told = [
        f"{f'{name}:':{wide}} {plain(', '.join(drill.sources))}"
        for name, drill in zip(names, drills, strict=True)
    ]
    told += map(plain, _warned(*drills))
    head = ["before ms", "after ms", "change ms"]
    if len(others) > 1:
        head = [names[0], *(cell for name in names[1:] for cell in (name, "change"))]
    about = [f"{name}: " if len(others) > 1 else "" for name in names[1:]]
    told += [
        f"{of}{plain(comparison.sentence)}" for of, comparison in zip(about, compared, strict=True)
    ]
    yield section("In short", lines(*told))
    for title, rows, cut in (
        (
            "composition",
            [(*comparison.parts, comparison.span, *comparison.totals) for comparison in compared],
            None,
        ),
        ("family", [comparison.families for comparison in compared], None),
        ("kernel", [comparison.kernels for comparison in compared], top),
    ):
        of = [{row.name: row for row in each} for each in rows]
        is_sorted = title == "composition" or len(others) == 1
        order = [row.name for row in rows[0]] if is_sorted else _most_moved(of)
        cells = [_in_row(name, of, width) for name in order[:cut]]
        yield section(_TITLES[title], _table((title, *head), cells))


def _most_moved(of: Sequence[Mapping[str, Part]]) -> list[str]:
    """Return the names in all variants, those that moved most in one of them first."""
    found = {name: part for each in reversed(of) for name, part in each.items()}
    most = {name: max(abs(each[name].change_s) for each in of if name in each) for name in found}
    return sorted(found, key=lambda name: (-most[name], -found[name].before_s, name))


def _in_row(name: str, of: Sequence[Mapping[str, Part]], width: int | None) -> list[str]:
    """Return what a row is called, its time in the first variant, and its changes."""
    before_s = next(each[name].before_s for each in of if name in each)
    cells = [_short(name, width), _ms(before_s)]
    for each in of:
        after_s = each[name].after_s if name in each else 0.0
        cells += [_ms(after_s), _change(after_s - before_s)]
    return cells


def _per_gpu(drills: Sequence[Drill]) -> Table:
    is_one = len(drills) == 1
    head = ("device", "step", "span ms", "compute", "exposed comm.", "exposed memory", "idle")
    rows: list[tuple[str, ...]] = []
    for name, found in zip(_names(len(drills)), drills, strict=True):
        variant = () if is_one else (name,)
        for gpu, number, figures in _of_steps(found):
            shown = (f"{ps / _PS_OF_MS:.3f}" for _, ps in figures[:5])
            rows.append((*variant, f"{gpu.source} {gpu.name}", str(number), *shown))
    return _table(head if is_one else ("variant", *head), rows, words=1 if is_one else 2)


def _of_steps(found: Drill) -> Iterator[tuple[Gpu, int, list[tuple[str, int]]]]:
    """Yield device, step, and names and picoseconds of the figures of both."""
    for gpu in found.gpus:
        for number, step in zip(found.steps, gpu.steps, strict=True):
            yield (
                gpu,
                number,
                [
                    ("span", step.span_ps),
                    ("compute", step.compute_ps),
                    ("exposed communication", step.exposed_communication_ps),
                    ("exposed memory", step.exposed_memory_ps),
                    ("idle", step.idle_ps),
                    ("total kernel", step.sum_ps),
                ],
            )


def _talk(found: Communication, name: str, top: int, width: int | None) -> Iterator[Block]:
    """Yield collectives, which device was waited for, and why devices stood idle."""
    title = f"{f'{name}: ' if name else ''}collectives: ms of one execution; exposed ms and calls "
    head = ("collective", "kind", "bytes", "ranks", "calls", "ms", "transfer", "wait", "exposed",
            "algbw GB/s", "busbw GB/s")  # fmt: skip
    rows = [
        (
            _short(row.name, width),
            row.kind or "-",
            _or_dash(row.size_bytes, "d"),
            _or_dash(row.ranks, "d"),
            f"{row.executions:.4g}",
            _ms(row.duration_s),
            _or_dash(row.transfer_s, ".3f", 1e3),
            _or_dash(row.wait_s, ".3f", 1e3),
            _ms(row.exposed_s),
            _or_dash(row.algbw, ".2f", 1e-9),
            _or_dash(row.busbw, ".2f", 1e-9),
        )
        for row in found.rows[:top]
    ]
    if rows:
        yield _table(head, rows, words=2, title=f"{title}per device and step")
    else:
        yield Text(text=f"{f'{name}: ' if name else ''}collectives: none")
    told = []
    if (late := found.late) is not None:
        told.append(
            f"{late.device} came last most: the others waited {_ms(late.imposed_s)} ms a step for "
            f"it, {late.of_all:.0%} of all waits"
        )
    told += [f"idle {_ms(value)} ms: {cause}" for cause, value in found.idle_s.items()]
    if found.unmatched:
        shown = ", ".join(found.unmatched[:3])
        told.append(f"not in the program: {counted(len(found.unmatched), 'operation')} ({shown})")
    told += found.notes
    if told:
        yield lines(*map(plain, told))


def _paths(found: Drilled, top: int, width: int | None) -> Iterator[Table]:
    """Yield the time by path: of one variant, or of each beside the first."""
    if len(found.paths) == 1:
        most = sorted(found.paths[0].items(), key=lambda item: (-item[1], item[0]))[:top]
        yield _table(("path", "ms"), [(_short(path, width), _ms(value)) for path, value in most])
    names = _names(len(found.paths))
    for name, other in zip(names[1:], found.paths[1:], strict=True):
        rows = moved(found.paths[0], other)[:top]
        yield _changes("path", (names[0], name), rows, width)


def drill_json(found: Drill, *others: Drill) -> Json:
    """Return the sums over devices and steps, the figures per device per step, and comparisons."""
    if not others:
        return {
            "schema": SCHEMA,
            "drill": found.to_json(),
            "per_gpu_step_s": parts(found) | totals(found),
        }
    if len(others) == 1:
        return {
            "schema": SCHEMA,
            "before": found.to_json(),
            "after": others[0].to_json(),
            "comparison": compare_windows(found, others[0]).to_json(),
        }
    return {
        "schema": SCHEMA,
        "variants": [drill.to_json() for drill in (found, *others)],
        "against_the_first": [compare_windows(found, drill).to_json() for drill in others],
    }


_CSV = ("variant", "table", "name", "family", "kind", "ms", "calls", "alone_ms", "device", "step")


def drill_rows(*drills: Drill) -> Table:
    """Return all rows of all variants, in ms per device per step.

    The rows of table `step` are the figures of one device in one step; so are their milliseconds.
    """

    def row(*cells: object) -> tuple[str, ...]:
        return (*map(str, cells), *[""] * (len(_CSV) - len(cells)))

    rows: list[tuple[str, ...]] = []
    for variant, found in enumerate(drills, 1):
        span = {"span": found.seconds(found.total.span_ps)}
        for name, value in (parts(found) | span | totals(found)).items():
            rows.append(row(variant, "composition", name, "", "", _exact(value)))
        for table, of in (
            ("family", found.families),
            ("kernel", found.kernels),
            ("operation", found.ops),
        ):
            for each in of:
                spent, alone = (found.seconds(ps) for ps in (each.sum_ps, each.alone_ps))
                calls = f"{each.count / max(1, found.gpu_steps):.6g}"
                own = (each.name, each.family, each.kind)
                rows.append(row(variant, table, *own, _exact(spent), calls, _exact(alone)))
        for gpu, step, figures in _of_steps(found):
            device = f"{gpu.source} {gpu.name}"
            rows += [
                row(variant, "step", name, "", "", _exact(ps * 1e-12), "", "", device, step)
                for name, ps in figures
            ]
    return Table(columns=columns(*_CSV), rows=tuple(rows))


def _exact(value_s: float) -> str:
    return f"{milliseconds(value_s):.9f}"


def _ms(value_s: float) -> str:
    """Write seconds as milliseconds."""
    return f"{milliseconds(value_s):.3f}"


def _change(value_s: float) -> str:
    return f"{milliseconds(value_s):+.3f}"


def _share(value: float, whole: float) -> str:
    return f"{value / whole:.1%}" if whole else "-"


def _or_dash(value: float | None, form: str, factor: float = 1) -> str:
    return "-" if value is None else format(value * factor, form)


def _warned(*drills: Drill) -> list[str]:
    return [f"warning: {each}" for found in drills for each in found.warnings]


def _short(name: str, width: int | None = NAME) -> str:
    """Cut a name in its middle: kernels of one library differ at their ends."""
    if width is None or len(name) <= width:
        return name
    kept = width - len(_CUT)
    return name[: -(-kept * 2 // 3)] + _CUT + name[len(name) - kept // 3 :]


def _plots(drills: Sequence[Drill], names: Sequence[str]) -> Iterator[Drawn]:
    yield from drawn("A step of a device", _spans(drills, names))
    yield from drawn("Families of kernels, as bars", _bars_of_families(drills, names))
    yield from drawn("Steps of each device", _bars_of_steps(drills, names))


def _spans(drills: Sequence[Drill], names: Sequence[str]) -> BarsPlot | None:
    bars = []
    for name, found in zip(names, drills, strict=True):
        at, shown = 0.0, []
        for part, value_s in parts(found).items():
            long = milliseconds(value_s)
            said = f"{part}: {_ms(value_s)} ms"
            shown.append(Bar(at=at, width=long, looks=PARTS[part], said=said))
            at += long
        span = f"{_ms(found.seconds(found.total.span_ps))} ms"
        bars.append(BarRow(name="", what=name or "span", bars=tuple(shown), text=span))
    return bars_plot(
        bars,
        caption="Milliseconds per device per step. The four parts sum to the span of a step, from "
        "the start of its first kernel to the end of its last.",
        kinds=[(looks, part) for part, looks in PARTS.items()],
    )


def _bars_of_families(drills: Sequence[Drill], names: Sequence[str]) -> BarsPlot | None:
    spent = [{row.name: drill.seconds(row.sum_ps) for row in drill.families} for drill in drills]
    kind = {row.name: str(row.kind) for drill in drills for row in drill.families}
    longest = {name: max(each.get(name, 0.0) for each in spent) for name in kind}
    shown = sorted(kind, key=lambda name: (-longest[name], name))[:_MOST_FAMILIES]
    bars = []
    for family in shown:
        for at, (name, each) in enumerate(zip(names, spent, strict=True)):
            value_s = each.get(family, 0.0)
            text = f"{_ms(value_s)} ms"
            bar = Bar(
                at=0.0,
                width=milliseconds(value_s),
                looks=kind[family],
                said=f"{family}: {text}",
            )
            bars.append(BarRow(name="" if at else family, what=name, bars=(bar,), text=text))
    left = len(kind) - len(shown)
    return bars_plot(
        bars,
        caption="Milliseconds of kernel time per device per step. Kernels that run at once are "
        "counted each, so the families may sum to more than the span."
        + (f" The {len(shown)} longest are shown; {left} more are in the table." if left else ""),
        kinds=[(each, each) for each in dict.fromkeys(kind[family] for family in shown)],
    )


def _bars_of_steps(drills: Sequence[Drill], names: Sequence[str]) -> BarsPlot | None:
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


def _steps_of(gpu: Gpu, found: Drill, name: str) -> BarRow:
    shown = tuple(
        Bar(
            at=(begin - gpu.begins_ps[0]) / _PS_OF_MS,
            width=step.span_ps / _PS_OF_MS,
            looks="compute",
            said=f"step {number}: {step.span_ps / _PS_OF_MS:.3f} ms",
        )
        for number, step, begin in zip(found.steps, gpu.steps, gpu.begins_ps, strict=True)
    )
    mean = sum(timeline.span_ps for timeline in gpu.steps) / len(gpu.steps) / _PS_OF_MS
    return BarRow(name=name, what=f"{gpu.source} {gpu.name}", bars=shown, text=f"{mean:.3f} ms")
