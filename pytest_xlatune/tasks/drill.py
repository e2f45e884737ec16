"""Drill the captures of variants, and show where the time went or what differs: document and JSON.

If a variant cannot be read, a problem says so, and the others are still drilled. The document has
the figures of the JSON; only shares and ranks are computed here. Times are milliseconds per device
and step, unless a line says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_xlatune.evidence import read_each
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.trace import comparison, shipped_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.collectives import (
    Communication,
    Watch,
    communication_of,
    shares_of,
)
from pytest_xlatune.evidence.trace.comparison import compare_windows, figures, in_ms
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.errors import ConfigError
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

SCHEMA = 1
ALIKE = 0.01  # devices whose compute differs by a smaller share of the median are alike
TOP = 10  # rows in a table of kernels
NAME = 56  # characters of a kernel's name; some names in Tensile and C++ have hundreds
_CUT = "..."
_PS_OF_MS = 1e9
_RULES = {
    StepRule.LAUNCH: "each kernel in the step whose annotation was open at its launch",
    StepRule.EXECUTIONS: "steps are the runs of the step's module, counted on each device",
    StepRule.WINDOWS: "each kernel in the step whose annotation was open while it ran: work "
    "dispatched ahead is counted in the wrong step",
    StepRule.WHOLE: "no step could be told apart: totals over the number of steps given",
}


def drill_variants(
    variants: Sequence[Sequence[Path]],
    window: CaptureWindow,
    *,
    step_times_s: Sequence[float] = (),
    dumps: Sequence[Path] = (),
    collectives: bool = False,
) -> tuple[list[Drill], list[Communication], list[str]]:
    """Drill variants; each is a list of captures, and of folders with captures.

    `step_times_s` are the seconds of a step without a profiler, and `dumps` the dumps of the
    compiled programs, one for each variant, or () if unknown. Dumps imply `collectives`.

    Returns the drill of each variant that could be read, the collectives of each variant if they
    were requested, and what could not be read or was left out.

    Raises:
        ConfigError: the arguments do not fit the variants.
        ParseError: no variant can be read; its captures have to be of one window.
    """
    for option, values in (("--program", dumps), ("--step-time", step_times_s)):
        if values and len(values) != len(variants):
            raise ConfigError(
                f"{option} was given {len(values)} times for {counted(len(variants), 'variant')}; "
                "give it once for each, in their order, or not at all"
            )
    programs = [read_program(dump) for dump in dumps]
    observes = collectives or bool(programs)

    def drilled(place: int) -> tuple[Drill, tuple[str, ...], Communication | None]:
        watch, program = Watch(), programs[place] if programs else None
        step_s = step_times_s[place] if step_times_s else None
        here = replace(window, step_s=step_s, observe=watch if observes else None)
        drill, left_out = read_window(variants[place], here)
        return drill, left_out, communication_of(drill, program, watch) if observes else None

    read, problems = read_each(drilled, range(len(variants)))
    # if a variant is missing, it is not known which program belongs to which of the others
    known = [communication for _, _, communication in read if communication and not problems]
    left_out = [text for _, texts, _ in read for text in texts]
    return [drill for drill, _, _ in read], known, [*problems, *left_out]


def drill_document(
    drills: Sequence[Drill],
    collectives: Sequence[Communication] = (),
    *,
    top: int = TOP,
) -> Document:
    """Return the document of variants.

    Raises:
        ConfigError: two variants cannot be compared.
    """
    first, *others = drills
    title = "What made the difference between variants"
    names = ["before", "after"]
    if not others:
        title, names = "Where the time of a step went", [""]
    elif len(others) > 1:
        names = [f"variant {place}" for place in range(1, len(others) + 2)]
    sections = [*(_several(drills, names, top) if others else _one(first, top))]
    for name, communication in zip(names, collectives, strict=False):
        blocks = _collectives(communication, name, top)
        sections.append(section(", ".join(filter(None, ("Collectives", name))), *blocks))
    return Document(title=title, sections=tuple(sections), brief=True)


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1, title: str = ""
) -> Table:
    """Return a table whose first columns are words, and whose other columns are figures."""
    titles = [name if at < words else f">{name}" for at, name in enumerate(head)]
    shown = tuple((literal(row[0]), *map(plain, row[1:])) for row in rows)
    return Table(title=title, columns=columns(*titles), rows=shown, compact=True)


def _one(drill: Drill, top: int) -> Iterator[Section]:
    span_s, total_ps = drill.seconds(drill.total.span_ps), drill.total.sum_ps
    of_groups = figures(drill)
    composed = of_groups[comparison.PART] | {"= span": span_s} | of_groups[comparison.TOTAL]
    yield section("In short", lines(*map(plain, _head(drill))))
    rows = [(name, in_ms(value), _share(value, span_s)) for name, value in composed.items()]
    yield section("Composition", _table(("composition", "ms", "of span"), rows))
    for title, word, second, time_rows in (
        ("Families of kernels", "family", "kind", drill.families),
        ("Kernels", "kernel", "family", drill.kernels[:top]),
    ):
        cells = [
            (
                _short(row.name),
                str(getattr(row, second)),
                in_ms(drill.seconds(row.sum_ps)),
                _share(row.sum_ps, total_ps),
                f"{row.count / max(1, drill.gpu_steps):.4g}",
                in_ms(drill.seconds(row.alone_ps)),
            )
            for row in time_rows
        ]
        head = (word, second, "ms", "of total", "calls", "alone ms")
        yield section(title, _table(head, cells, words=2))
    if (shares := shares_of(drill, None)) is not None:
        of_step = sorted(shares.of_step.items(), key=lambda item: -item[1])
        ceiling = [(part, in_ms(share * span_s), f"{share:.1%}") for part, share in of_step]
        title = "Ceiling: the most that settings of a part can win"
        yield section(title, _table(("ceiling", "ms", "of span"), ceiling))
    yield section("Remarks", lines(*_remarks(drill)))


def _head(drill: Drill) -> list[str]:
    devices = len(drill.gpus)
    steps = f"steps {', '.join(map(str, drill.steps))}"
    if drill.rule is StepRule.WHOLE:
        steps = counted(drill.divided_by, "step")
    of_planes = f" of {drill.planes_present} planes" if drill.planes_present > devices else ""
    captures = f"{counted(len(drill.sources), 'capture')} ({', '.join(drill.formats)})"
    summary = [
        f"{captures}, {drill.launcher}, {counted(devices, 'device')} with kernels{of_planes}",
        f"{steps}: {_RULES[drill.rule]}",
        f"figures are ms per device per step, over {drill.gpu_steps} of them",
    ]
    if not drill.even:
        summary.append(
            "steps have different numbers of kernels: the window cuts a step, or the profiler lost "
            "a kernel; see --json"
        )
    return [*summary, *(f"warning: {warning}" for warning in drill.warnings)]


def _remarks(drill: Drill) -> Iterator[str]:
    remedies = {family.name: family.remedy for family in shipped_families()}
    total_ps = drill.total.sum_ps
    if drill.blockers:
        yield "kernels of the main stream, by the time that nothing runs beside them:"
    for row in drill.blockers[:3]:
        yield (
            f"  {plain(_short(row.name))}: {in_ms(drill.seconds(row.alone_ps))} ms "
            f"alone, longest {row.longest_ps / _PS_OF_MS:.3f} ms"
        )
        if remedy := remedies.get(row.family):
            yield f"    {plain(remedy)}"
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


def _several(drills: Sequence[Drill], names: Sequence[str], top: int) -> Iterator[Section]:
    compared = compare_windows(*drills)
    wide = 1 + max(map(len, names))
    is_two = len(drills) == 2  # noqa: PLR2004
    sources = (
        f"{f'{name}:':{wide}} {plain(', '.join(drill.sources))}"
        for name, drill in zip(names, drills, strict=True)
    )
    sentences = (
        text if is_two else f"{name}: {text}"
        for name, text in zip(names[1:], compared.sentences, strict=True)
    )
    warnings = (f"warning: {warning}" for drill in drills for warning in drill.warnings)
    yield section("In short", lines(*sources, *map(plain, (*warnings, *sentences))))
    head = [names[0], *(title for name in names[1:] for title in (name, "change"))]
    head = [f"{title} ms" for title in head] if is_two else head
    parts = compared.of(comparison.PART, comparison.SPAN, comparison.TOTAL)
    for title, word, compared_figures in (
        ("Composition", "composition", parts),
        ("Families of kernels", "family", compared.of(comparison.FAMILY)),
        ("Kernels", "kernel", compared.of(comparison.KERNEL)[:top]),
    ):
        rows = []
        for figure in compared_figures:
            cells = [_short(figure.name), in_ms(figure.seconds[0])]
            for variant, seconds in enumerate(figure.seconds[1:], 1):
                cells += [in_ms(seconds), in_ms(figure.change_s(variant), "+")]
            rows.append(cells)
        yield section(title, _table((word, *head), rows))


def _collectives(communication: Communication, name: str, top: int) -> Iterator[Block]:
    """Yield the table of a variant's collectives, and those that the program does not have."""
    title = f"{f'{name}: ' if name else ''}collectives"
    if not communication.rows:
        yield Text(text=f"{title}: none")
        return
    head = ("collective", "kind", "bytes", "ranks", "calls", "ms", "shortest", "wait", "alone",
            "algbw GB/s", "busbw GB/s")  # fmt: skip
    rows = [
        (
            _short(row.name),
            row.kind or "-",
            _or_dash(row.size_bytes, "d"),
            _or_dash(row.ranks, "d"),
            f"{row.executions:.4g}",
            in_ms(row.duration_s),
            _or_dash(row.transfer_s, ".3f", 1e3),
            _or_dash(row.wait_s, ".3f", 1e3),
            in_ms(row.alone_s),
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
                f"{late.device} came last most: the others waited {in_ms(late.imposed_s)} ms "
                f"a step for it, {late.of_all:.0%} of all waits{assumed}"
            )
        )
    if communication.unmatched:
        shown = ", ".join(communication.unmatched[:3])
        count = counted(len(communication.unmatched), "operation")
        yield lines(plain(f"not in the program: {count} ({shown})"))


def drill_json(*drills: Drill) -> Json:
    """Return the sums over devices and steps of each variant, and their figures side by side.

    Raises:
        ConfigError: two variants cannot be compared.
    """
    variants = [drill.to_json() for drill in drills]
    return {"schema": SCHEMA, "variants": variants} | compare_windows(*drills).to_json()


def _share(value: float, total: float) -> str:
    return f"{value / total:.1%}" if total else "-"


def _or_dash(value: float | None, form: str, factor: float = 1) -> str:
    return "-" if value is None else format(value * factor, form)


def _short(name: str) -> str:
    """Return a name cut in its middle, because kernels of one library differ at their ends."""
    if len(name) <= NAME:
        return name
    kept = NAME - len(_CUT)
    return name[: -(-kept * 2 // 3)] + _CUT + name[len(name) - kept // 3 :]
