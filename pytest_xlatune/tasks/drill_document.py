"""Where the time of a step went, or what made the difference between variants: document and JSON.

The document has the figures of the JSON: nothing is computed here but shares and places. Times are
milliseconds per device per step unless a line says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_xlatune.evidence.trace import shipped_families
from pytest_xlatune.evidence.trace.breakdown import Drill, TimeRow
from pytest_xlatune.evidence.trace.collectives import Communication, shares_of
from pytest_xlatune.evidence.trace.comparison import (
    Part,
    compare_windows,
    milliseconds,
    parts,
    totals,
)
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import (
    Block,
    Document,
    Section,
    Table,
    Text,
    columns,
    lines,
    literal,
    plain,
    section,
)
from pytest_xlatune.tasks.drill import Drilled

SCHEMA = 1
ALIKE = 0.01  # of the median device's compute: less is no straggler
TOP = 10  # rows of a table of kernels
NAME = 56  # characters of a kernel's name; Tensile's and C++ ones run into hundreds
_CUT = "..."
_PS_OF_MS = 1e9
_RULES = {
    StepRule.LAUNCH: "each kernel in the step whose annotation was open at its launch",
    StepRule.EXECUTIONS: "steps are the runs of the step's module, counted on each device",
    StepRule.WINDOWS: "each kernel in the step whose annotation was open while it ran: work "
    "dispatched ahead is counted in the wrong step",
    StepRule.WHOLE: "no step could be told apart: totals over the number of steps given",
}


def drill_document(drilled: Drilled, *, top: int = TOP, width: int | None = NAME) -> Document:
    """Return the document of a drill.

    `width` is the longest name of a kernel, None for all of it.

    Raises:
        ConfigError: two variants cannot be compared.
    """
    drills = drilled.drills
    names = _names(len(drills))
    one = len(drills) == 1
    sections = [
        *(_one(drills[0], top, width) if one else _several(drills, names, top, width)),
        *(
            section(
                ", ".join(filter(None, ("Collectives", name))),
                *_collectives(communication, name, top, width),
            )
            for name, communication in zip(names, drilled.collectives, strict=False)
        ),
    ]
    title = "Where the time of a step went" if one else "What made the difference between variants"
    return Document(title=title, sections=tuple(sections), brief=True)


def _names(count: int) -> list[str]:
    some = {1: [""], 2: ["before", "after"]}
    return some.get(count) or [f"variant {place}" for place in range(1, count + 1)]


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1, title: str = ""
) -> Table:
    """Return a table whose first columns are words, and the others figures."""
    titles = [name if at < words else f">{name}" for at, name in enumerate(head)]
    shown = tuple((literal(row[0]), *map(plain, row[1:])) for row in rows)
    return Table(title=title, columns=columns(*titles), rows=shown, compact=True)


_COMPOSITION, _FAMILIES, _KERNELS = "Composition", "Families of kernels", "Kernels"


def _one(drill: Drill, top: int, width: int | None) -> Iterator[Section]:
    """Yield the sections of one variant: what it is, its tables, and remarks."""
    span_s = drill.seconds(drill.total.span_ps)
    composed = parts(drill) | {"= span": span_s} | totals(drill)
    figures = ("ms", "of total", "calls", "alone ms")

    def row(time_row: TimeRow, word: str) -> tuple[str, ...]:
        return (
            _short(time_row.name, width),
            word,
            _ms(drill.seconds(time_row.sum_ps)),
            _share(time_row.sum_ps, drill.total.sum_ps),
            f"{time_row.count / max(1, drill.gpu_steps):.4g}",
            _ms(drill.seconds(time_row.alone_ps)),
        )

    yield section("In short", lines(*map(plain, _head(drill))))
    rows = [(name, _ms(value), _share(value, span_s)) for name, value in composed.items()]
    yield section(_COMPOSITION, _table(("composition", "ms", "of span"), rows))
    families = [row(family, str(family.kind)) for family in drill.families]
    yield section(_FAMILIES, _table(("family", "kind", *figures), families, words=2))
    kernels = [row(kernel, kernel.family) for kernel in drill.kernels[:top]]
    yield section(_KERNELS, _table(("kernel", "family", *figures), kernels, words=2))
    if (shares := shares_of(drill, None)) is not None:
        won = sorted(shares.of_step.items(), key=lambda item: -item[1])
        ceiling = [(part, _ms(share * span_s), f"{share:.1%}") for part, share in won]
        title = "Ceiling: the most that settings of a part can win"
        yield section(title, _table(("ceiling", "ms", "of span"), ceiling))
    yield section("Remarks", lines(*_remarks(drill, width)))


def _head(drill: Drill) -> list[str]:
    devices = len(drill.gpus)
    is_whole = drill.rule is StepRule.WHOLE
    steps = counted(drill.divided_by, "step") if is_whole else f"steps {_listed(drill.steps)}"
    summary = [
        f"{counted(len(drill.sources), 'capture')} ({', '.join(drill.formats)}), {drill.launcher}, "
        f"{counted(devices, 'device')} with kernels"
        + (f" of {drill.planes_present} planes" if drill.planes_present > devices else ""),
        f"{steps}: {_RULES[drill.rule]}",
        f"figures are ms per device per step, over {drill.gpu_steps} of them",
    ]
    if not drill.even:
        summary.append(f"steps have different numbers of kernels: {_odd(drill)}")
    return [*summary, *_warned(drill)]


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def _odd(drill: Drill) -> str:
    """Name the first step of a device whose number of kernels is not that of most steps."""
    kernels = Counter(step.kernels for gpu in drill.gpus for step in gpu.steps)
    usual = kernels.most_common(1)[0][0]
    odd = (
        f"{gpu.source} {gpu.name} has {step.kernels} in step {number}, where most steps have "
        f"{usual}; the window cuts a step, or the profiler lost a kernel"
        for gpu in drill.gpus
        for number, step in zip(drill.steps, gpu.steps, strict=True)
        if step.kernels != usual
    )
    return next(odd, "the window cuts a step; see --json")


def _remarks(drill: Drill, width: int | None) -> Iterator[str]:
    blockers = drill.blockers
    remedies = {family.name: plain(family.remedy) for family in shipped_families() if family.remedy}
    total_ps = drill.total.sum_ps
    if blockers:
        yield "kernels of the main stream, by the time that nothing runs beside them:"
    for row in blockers[:3]:
        yield (
            f"  {plain(_short(row.name, width))}: {_ms(drill.seconds(row.alone_ps))} ms alone, "
            f"longest {row.longest_ps / _PS_OF_MS:.3f} ms"
        )
        if (remedy := remedies.get(row.family)) is not None:
            yield f"    {remedy}"
    yield f"{_share(drill.attributed_ps, total_ps)} of kernel time names its HLO operation"
    if total_ps and drill.attributed_ps < total_ps / 2:
        yield (
            "  profile once with --xla_gpu_enable_command_buffer= (empty) for more; it changes "
            "timing, so not in a measured run"
        )
    outside = sum(gpu.outside.sum_ps for gpu in drill.gpus)
    if outside:
        yield f"{outside / _PS_OF_MS:.3f} ms of kernels, in all, belong to no step"
    if len(drill.gpus) > 1:
        busiest = plain(f"{drill.straggler.source} {drill.straggler.name}")
        yield (
            f"{busiest} computes {drill.spread:.1%} longer than the median device"
            if drill.spread >= ALIKE
            else f"the devices compute alike, within {drill.spread:.1%} of the median"
        )


def _several(
    drills: Sequence[Drill], names: Sequence[str], top: int, width: int | None
) -> Iterator[Section]:
    """Yield the sections of two or more variants, in columns with the change to the first one."""
    first, *others = drills
    compared = [compare_windows(first, drill) for drill in others]
    wide = 1 + max(map(len, names))
    is_two = len(compared) == 1
    summary = [
        f"{f'{name}:':{wide}} {plain(', '.join(drill.sources))}"
        for name, drill in zip(names, drills, strict=True)
    ]
    summary += map(plain, _warned(*drills))
    summary += [
        ("" if is_two else f"{name}: ") + plain(comparison.sentence)
        for name, comparison in zip(names[1:], compared, strict=True)
    ]
    yield section("In short", lines(*summary))
    head = [names[0], *(title for name in names[1:] for title in (name, "change"))]
    head = ["before ms", "after ms", "change ms"] if is_two else head
    for title, word, variants, cut in (
        (_COMPOSITION, "composition", [(*c.parts, c.span, *c.totals) for c in compared], None),
        (_FAMILIES, "family", [c.families for c in compared], None),
        (_KERNELS, "kernel", [c.kernels for c in compared], top),
    ):
        rows = _in_rows(variants, width, is_sorted=word == "composition")[:cut]
        yield section(title, _table((word, *head), rows))


def _in_rows(
    variants: Sequence[Sequence[Part]], width: int | None, *, is_sorted: bool
) -> list[tuple[str, ...]]:
    """Return a row for each name: its time in the first variant, and its time and change in each.

    Those that moved most in any variant come first, unless they are sorted already.
    """
    by_name: dict[str, list[Part]] = {}
    for variant in variants:
        for part in variant:
            by_name.setdefault(part.name, []).append(part)
    names = list(by_name)
    if not is_sorted:
        names.sort(key=lambda name: (-max(abs(part.change_s) for part in by_name[name]), name))
    rows = []
    for name in names:
        before_s = by_name[name][0].before_s
        cells = [_short(name, width), _ms(before_s)]
        for variant in variants:
            after_s = next((part.after_s for part in variant if part.name == name), 0.0)
            cells += [_ms(after_s), f"{milliseconds(after_s - before_s):+.3f}"]
        rows.append(tuple(cells))
    return rows


def _collectives(
    communication: Communication, name: str, top: int, width: int | None
) -> Iterator[Block]:
    """Yield the table of a variant's collectives, and what the program does not have."""
    title = f"{f'{name}: ' if name else ''}collectives"
    if not communication.rows:
        yield Text(text=f"{title}: none")
        return
    head = ("collective", "kind", "bytes", "ranks", "calls", "ms", "shortest", "wait", "alone",
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
            _ms(row.alone_s),
            _or_dash(row.algbw, ".2f", 1e-9),
            _or_dash(row.busbw, ".2f", 1e-9),
        )
        for row in communication.rows[:top]
    ]
    what = f"{title}: ms of one execution; alone ms and calls per device and step"
    yield _table(head, rows, words=2, title=what)
    if (late := communication.late) is not None:
        assumed = ", as if each collective went over all devices" if late.is_assumed else ""
        yield lines(
            plain(
                f"{late.device} came last most: the others waited {_ms(late.imposed_s)} ms a step "
                f"for it, {late.of_all:.0%} of all waits{assumed}"
            )
        )
    if communication.unmatched:
        shown = ", ".join(communication.unmatched[:3])
        count = counted(len(communication.unmatched), "operation")
        yield lines(plain(f"not in the program: {count} ({shown})"))


def drill_json(first: Drill, *others: Drill) -> Json:
    """Return the sums over devices and steps, the figures per device per step, and comparisons."""
    if not others:
        return {
            "schema": SCHEMA,
            "drill": first.to_json(),
            "per_gpu_step_s": parts(first) | totals(first),
        }
    compared = [compare_windows(first, drill).to_json() for drill in others]
    if len(others) == 1:
        return {
            "schema": SCHEMA,
            "before": first.to_json(),
            "after": others[0].to_json(),
            "comparison": compared[0],
        }
    return {
        "schema": SCHEMA,
        "variants": [drill.to_json() for drill in (first, *others)],
        "against_the_first": compared,
    }


def _ms(value_s: float) -> str:
    """Write seconds as milliseconds."""
    return f"{milliseconds(value_s):.3f}"


def _share(value: float, total: float) -> str:
    return f"{value / total:.1%}" if total else "-"


def _or_dash(value: float | None, form: str, factor: float = 1) -> str:
    return "-" if value is None else format(value * factor, form)


def _warned(*drills: Drill) -> list[str]:
    return [f"warning: {warning}" for drill in drills for warning in drill.warnings]


def _short(name: str, width: int | None = NAME) -> str:
    """Cut a name in its middle: kernels of one library differ at their ends."""
    if width is None or len(name) <= width:
        return name
    kept = width - len(_CUT)
    return name[: -(-kept * 2 // 3)] + _CUT + name[len(name) - kept // 3 :]
