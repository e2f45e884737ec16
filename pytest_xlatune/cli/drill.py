"""`xlatune drill`: where the time of a step went, or what made the difference between two variants.

Times are milliseconds per device per step unless the line says otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_xlatune.cli import (
    AGAINST,
    TRIAL,
    add_html,
    add_json,
    add_options,
    check_page,
    complain,
    options_of,
    show,
    show_json,
    write_page,
)
from pytest_xlatune.evidence.trace import FAMILIES, Family, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, Observed, TimeRow
from pytest_xlatune.evidence.trace.captures import (
    FLAG,
    TimelineWriter,
    operation_paths,
    pgle_profile,
    read_window,
)
from pytest_xlatune.evidence.trace.comparison import (
    Part,
    TraceComparison,
    by_path,
    compare_windows,
    milliseconds,
    paired_paths,
    parts,
    seconds,
    totals,
)
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.record import Json, read_json
from pytest_xlatune.model.text import counted

if TYPE_CHECKING:
    from pytest_xlatune.evidence.hlo import Program
    from pytest_xlatune.evidence.trace.collectives import Communication, Watch

SCHEMA = 1
ALIKE = 0.01  # of the median device's compute: less is no straggler
TOP = 10  # rows of a table of kernels
NAME = 56  # characters of a kernel's name; Tensile's and C++ ones run into hundreds
Cells = tuple[Sequence[str], Sequence[Sequence[str]]]  # of a table: its head, its rows

_RULES = {
    StepRule.LAUNCH: "each kernel in the step whose annotation was open at its launch",
    StepRule.EXECUTIONS: "steps are the runs of the step's module, counted on each device",
    StepRule.WINDOWS: "each kernel in the step whose annotation was open while it ran: work "
    "dispatched ahead is counted in the wrong step",
    StepRule.WHOLE: "no step could be told apart: totals over the number of steps given",
}


def add_drill(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help=f"folders or captures; {TRIAL}")
    parser.add_argument(
        AGAINST,
        nargs="+",
        action="append",
        default=[],
        metavar="PATH",
        help="a further variant, a column of its own; `--` says the same",
    )
    for name in ("nodes", "gpus-per-node", "steps"):
        parser.add_argument(f"--{name}", type=_count, metavar="N", help="refused where it differs")
    parser.add_argument(
        "--step-time",
        action="append",
        type=float,
        default=[],
        metavar="SECONDS",
        help="of a run without profiler; once per variant",
    )
    parser.add_argument("--families", type=Path, metavar="FILE", help="JSON: name, kind, pattern")
    parser.add_argument(
        "--top", type=_count, default=TOP, metavar="N", help=f"rows of a table of kernels ({TOP})"
    )
    parser.add_argument("--full-names", action="store_true", help="cut no name of a kernel")
    parser.add_argument("--per-gpu", action="store_true", help="a row for each device and step")
    parser.add_argument(
        "--force", action="store_true", help="show captures that lost events, under a warning"
    )
    parser.add_argument(
        "--collectives", action="store_true", help="bytes, waits and stragglers of collectives"
    )
    parser.add_argument(
        "--program",
        action="append",
        type=Path,
        default=[],
        metavar="DUMP",
        help="the compiled program, for bytes and bandwidths of collectives; once per variant",
    )
    parser.add_argument(
        "--by-path", action="store_true", help="time by the operation's path in the framework"
    )
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="write a JSON that Perfetto opens (.gz: packed)",
    )
    parser.add_argument(
        "--pgle", type=Path, metavar="FILE", help="write a profile for XLA's scheduler (.pbtxt)"
    )
    add_json(parser)
    add_html(parser)
    parser.add_argument("--csv", action="store_true", help="one CSV of all rows, nothing cut")
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_drill)


def _drill(arguments: argparse.Namespace) -> int:
    check_page(arguments.html)
    variants: list[Sequence[Path]] = []
    known_s = []
    for named in [arguments.paths, *arguments.against]:
        found = [_captures(each, arguments) for each in named]
        variants.append([path for paths, _ in found for path in paths])
        # of trials of the same profile that ran without profiler
        known_s += [step_s for _, step_s in found if step_s is not None]
    step_times_s = arguments.step_time
    if not step_times_s and len(known_s) == len(variants):
        step_times_s = known_s
    if arguments.nodes and not arguments.gpus_per_node:
        raise ConfigError("--nodes says how many GPUs to expect only with --gpus-per-node; add it")
    if len(step_times_s) not in {0, len(variants)}:
        raise ConfigError(
            f"--step-time was given {len(step_times_s)} times for {len(variants)} variants; give "
            "it once for each, in their order, or not at all"
        )
    window = CaptureWindow(
        nodes=arguments.nodes,
        gpus_per_node=arguments.gpus_per_node,
        steps=arguments.steps,
        families=_families(arguments.families) if arguments.families else FAMILIES,
        force=arguments.force,
    )
    more = _Asked(arguments, len(variants))
    drills, problems = _read(variants, step_times_s, window, more)
    if len(drills) < len(variants):  # what was asked of each variant cannot be told apart
        more = _Asked(argparse.Namespace(**vars(arguments) | _NOTHING), len(drills))
    talking = more.finish(drills, variants)
    width = None if arguments.full_names else NAME
    if arguments.json:
        document = drill_json(*drills)
        if talking:
            document |= {"collectives": [each.to_json() for each in talking]}
        show_json(document)
    elif arguments.csv:
        show(drill_csv(*drills))
    else:
        show(drill_lines(*drills, top=arguments.top, width=width, per_gpu=arguments.per_gpu))
        for place, each in enumerate(talking, 1):
            name = f"variant {place}: " if len(talking) > 1 else ""
            show(["", *collective_lines(each, top=arguments.top, width=width, name=name)])
        show(more.lines(width, arguments.top))
    if arguments.html is not None:
        from pytest_xlatune.cli.drill_page import drill_document

        told = told_of(drills, top=arguments.top, width=width)
        told.tables.extend(more.tables(width, arguments.top))
        told.remarks.extend(f"left out: {each}" for each in problems)
        of_each = [_collectives(each, arguments.top, width) for each in talking]
        page = drill_document(drills, told, of_each)
        write_page(page, arguments.html, source="traces")
        show([] if arguments.json or arguments.csv else ["", f"written: {arguments.html}"])
    return complain(problems)


_NOTHING = {
    "collectives": False, "program": [], "by_path": False, "timeline": None, "pgle": None
}  # fmt: skip


class _Asked:
    """What was asked for beside the drill: collectives, paths, files."""

    def __init__(self, arguments: argparse.Namespace, variants: int) -> None:
        self._said = arguments
        self._files: list[str] = []
        self._paths: list[dict[str, float]] = []
        programs = arguments.program
        if programs and len(programs) != variants:
            raise ConfigError(
                f"--program was given {len(programs)} times for {counted(variants, 'variant')}; "
                "give the dump of each, in their order"
            )
        if (arguments.timeline or arguments.pgle) and variants > 1:
            raise ConfigError("--timeline and --pgle write one variant; give its captures alone")
        self._watches: list[Watch] = []
        self._programs: list[Program] = []
        self._writer: TimelineWriter | None = None
        if arguments.collectives or programs:
            from pytest_xlatune.evidence.hlo.dump import read_program
            from pytest_xlatune.evidence.trace.collectives import Watch

            self._programs = [read_program(each) for each in programs]
            self._watches = [Watch() for _ in range(variants)]
        if arguments.timeline:
            self._writer = TimelineWriter(arguments.timeline)

    def of(self, variant: int) -> list[Callable[[Observed], None]]:
        """Return what looks at the kernels of a variant."""
        found: list[Callable[[Observed], None]] = list(self._watches[variant : variant + 1])
        return [*found, self._writer] if self._writer is not None else found

    def finish(
        self, drills: Sequence[Drill], variants: Sequence[Sequence[Path]]
    ) -> list[Communication]:
        """Write the files, and return the collectives of each variant."""
        if self._writer is not None:
            self._writer.close()
            self._files.append(f"timeline: {self._said.timeline}, for https://ui.perfetto.dev")
        if self._said.pgle:
            try:
                self._said.pgle.write_text(pgle_profile(drills[0]), encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"{self._said.pgle}: the profile cannot be written: {error.strerror}"
                ) from None
            path = str(self._said.pgle.absolute())
            self._files.append(f"a candidate setting: {FLAG}={path}")
            self._files.append(f"in a sweep file: profiles_for(..., pgle={path!r})")
        if self._said.by_path:
            self._paths = [
                by_path(found, operation_paths(paths))
                for found, paths in zip(drills, variants, strict=True)
            ]
        programs: Sequence[Program | None] = self._programs or [None] * len(drills)
        return [
            watch.result(found, program)
            for watch, found, program in zip(self._watches, drills, programs, strict=False)
        ]

    def lines(self, width: int | None, top: int) -> list[str]:
        """Render paths, and name the files."""
        files = ["", *self._files] if self._files else []
        return [*files, *_under_each_other(self.tables(width, top))]

    def tables(self, width: int | None, top: int) -> list[Cells]:
        """Return the time by path."""
        if len(self._paths) == 1:
            most = sorted(self._paths[0].items(), key=lambda item: (-item[1], item[0]))[:top]
            return [(("path", "ms"), [(_short(path, width), _ms(value)) for path, value in most])]
        found = [paired_paths(self._paths[0], other)[:top] for other in self._paths[1:]]
        return [
            (("path", "variant 1", f"variant {at}", "change ms"), _parts(each, width))
            for at, each in enumerate(found, 2)
        ]


def collective_lines(
    found: Communication, *, top: int = TOP, width: int | None = NAME, name: str = ""
) -> list[str]:
    """Render collectives, who was waited for, and why devices stood idle."""
    (said,), ((head, rows),), remarks = _collectives(found, top, width)
    return [f"{name}collectives: {said}", *(_table(head, rows) if rows else ["none"]), *remarks]


def _collectives(found: Communication, top: int, width: int | None) -> Told:
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
    lines = [
        f"step {late.step}: {late.device} came last most: the others waited "
        f"{_ms(late.imposed_s)} ms for it, {late.of_all:.0%} of all waits"
        for late in found.late
    ]
    lines += [f"idle {_ms(value)} ms: {cause}" for cause, value in found.idle_s.items()]
    if found.unmatched:
        shown = ", ".join(found.unmatched[:3])
        lines.append(f"not in the program: {counted(len(found.unmatched), 'operation')} ({shown})")
    said = "ms of one execution; exposed ms and calls per device and step"
    return Told([said], [(head, rows)], [*lines, *found.notes])


def _or_dash(value: float | None, form: str, factor: float = 1) -> str:
    return "-" if value is None else format(value * factor, form)


def _read(
    variants: Sequence[Sequence[Path]],
    step_times_s: Sequence[float],
    window: CaptureWindow,
    more: _Asked,
) -> tuple[list[Drill], list[str]]:
    """Read the variants; where one of several cannot be read, the others are shown.

    Raises:
        ParseError: no variant has a readable capture of one window.
    """
    drills: list[Drill] = []
    problems: list[str] = []
    left_out: list[str] = []
    for place, (paths, step_s) in enumerate(zip_longest(variants, step_times_s)):
        try:
            drilled, without = read_window(paths, window, step_s=step_s, observe=more.of(place))
        except XlatuneError as error:
            problems.append(str(error))
        else:
            drills.append(drilled)
            left_out += without
    if not drills:
        raise ParseError("; ".join(problems))
    return drills, [*problems, *left_out]


def _captures(said: str, arguments: argparse.Namespace) -> tuple[Sequence[Path], float | None]:
    if "/" in said or Path(said).exists():  # no name of recorded evidence: no ledger is read
        return [Path(said)], None
    from pytest_xlatune.tasks.artifacts import captures_of

    return captures_of(said, options_of(arguments).workdir)


def _families(path: Path) -> tuple[Family, ...]:
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no JSON file of kernel families: {error}") from None
    return parse_families(data, where=str(path))


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count; give 1 or more")
    return count


def drill_lines(
    found: Drill,
    *others: Drill,
    top: int = TOP,
    width: int | None = NAME,
    per_gpu: bool = False,
) -> list[str]:
    """Render where the time went, or what made the difference between variants.

    `width` is the longest name of a kernel, None for all of it.

    Raises:
        ConfigError: two variants cannot be compared.
    """
    told = told_of([found, *others], top=top, width=width)
    lines = [*told.said, *_under_each_other(told.tables)]
    lines += ["", *told.remarks] if told.remarks else []
    return [*lines, *(["", *_table(_PER_GPU, _per_gpu(found, *others))] if per_gpu else [])]


class Told(NamedTuple):
    """What a drill says: lines, tables with their heads, and remarks below them."""

    said: list[str]
    tables: list[Cells]
    remarks: list[str]


def told_of(drills: Sequence[Drill], *, top: int = TOP, width: int | None = NAME) -> Told:
    """Return where the time went, or what made the difference between variants.

    Raises:
        ConfigError: two variants cannot be compared.
    """
    found, *others = drills
    if len(others) == 1:
        both = compare_windows(found, others[0])
        return _compared(both, found, others[0], top, width)
    if others:
        return _in_columns(drills, top, width)
    figures = ("ms", "of total", "calls", "alone ms")
    kernels = [_row(found, row, kind=False, width=width) for row in found.kernels[:top]]
    families = [_row(found, row, kind=True, width=width) for row in found.families]
    tables: list[Cells] = [
        (("composition", "ms", "of span"), _composition(found)),
        (("family", "kind", *figures), families),
        (("kernel", "family", *figures), kernels),
    ]
    return Told(_head(found), tables, _tail(found, width))


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
        "variants": [each.to_json() for each in (found, *others)],
        "against_the_first": [compare_windows(found, each).to_json() for each in others],
    }


_CSV = ("variant", "table", "name", "family", "kind", "ms", "calls", "alone_ms", "device", "step")


def drill_csv(*drills: Drill) -> list[str]:
    """Return lines of CSV: all rows of all variants, in ms per device per step.

    The rows of table `step` are the figures of one device in one step; so are their milliseconds.
    """
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)

    def write(*cells: object) -> None:
        writer.writerow((*cells, *[""] * (len(_CSV) - len(cells))))

    for variant, found in enumerate(drills, 1):
        span = {"span": seconds(found, found.total.span_ps)}
        for name, value in (parts(found) | span | totals(found)).items():
            write(variant, "composition", name, "", "", _exact(value))
        for table, rows in (
            ("family", found.families),
            ("kernel", found.kernels),
            ("operation", found.ops),
        ):
            for row in rows:
                spent, alone = (seconds(found, each) for each in (row.sum_ps, row.alone_ps))
                calls = f"{row.count / max(1, found.gpu_steps):.6g}"
                own = (row.name, row.family, row.kind)
                write(variant, table, *own, _exact(spent), calls, _exact(alone))
        for device, step, name, value_ps in _of_steps(found):
            write(variant, "step", name, "", "", _exact(value_ps * 1e-12), "", "", device, step)
    return out.getvalue().removesuffix("\n").split("\n")


def _exact(value_s: float) -> str:
    return f"{milliseconds(value_s):.9f}"


def _of_steps(found: Drill) -> Iterable[tuple[str, int, str, int]]:
    """Yield device, step, name and picoseconds of each figure of a device and step."""
    for gpu in found.gpus:
        for number, step in zip(found.steps, gpu.steps, strict=True):
            device = f"{gpu.source} {gpu.name}"
            yield device, number, "span", step.span_ps
            yield device, number, "compute", step.compute_ps
            yield device, number, "exposed communication", step.exposed_communication_ps
            yield device, number, "exposed memory", step.exposed_memory_ps
            yield device, number, "idle", step.idle_ps
            yield device, number, "total kernel", step.sum_ps


_PER_GPU = ("device", "step", "span ms", "compute", "exposed comm.", "exposed memory", "idle")


def _per_gpu(*drills: Drill) -> list[tuple[str, ...]]:
    return [
        (
            *((f"variant {place}",) if len(drills) > 1 else ()),
            f"{gpu.source} {gpu.name}",
            str(number),
            *(
                f"{each / 1e9:.3f}"
                for each in (
                    step.span_ps,
                    step.compute_ps,
                    step.exposed_communication_ps,
                    step.exposed_memory_ps,
                    step.idle_ps,
                )
            ),
        )[-len(_PER_GPU) :]
        for place, found in enumerate(drills, 1)
        for gpu in found.gpus
        for number, step in zip(found.steps, gpu.steps, strict=True)
    ]


def _head(found: Drill) -> list[str]:
    devices = len(found.gpus)
    lines = [
        f"{counted(len(found.sources), 'capture')} ({', '.join(found.formats)}), {found.launcher}, "
        f"{counted(devices, 'device')} with kernels"
        + (f" of {found.planes_present} planes" if found.planes_present > devices else ""),
        f"steps {', '.join(map(str, found.steps))}: {_RULES[found.rule]}"
        if found.rule is not StepRule.WHOLE
        else f"{counted(found.divided_by, 'step')}: {_RULES[found.rule]}",
        f"figures are ms per device per step, over {found.gpu_steps} of them",
    ]
    if not found.even:
        lines.append("steps have different numbers of kernels: the window cuts a step; see --json")
    lines += [f"left out: {each}" for each in found.excluded]
    lines += [f"warning: {each}" for each in found.warnings]
    return lines


def _composition(found: Drill) -> list[tuple[str, ...]]:
    span_s = seconds(found, found.total.span_ps)
    rows = [*parts(found).items(), ("= span", span_s), *totals(found).items()]
    return [(name, _ms(value), _share(value, span_s)) for name, value in rows]


def _row(found: Drill, row: TimeRow, *, kind: bool, width: int | None) -> tuple[str, ...]:
    return (
        _short(row.name, width),
        str(row.kind) if kind else row.family,
        _ms(seconds(found, row.sum_ps)),
        _share(row.sum_ps, found.total.sum_ps),
        f"{row.count / max(1, found.gpu_steps):.4g}",
        _ms(seconds(found, row.alone_ps)),
    )


def _tail(found: Drill, width: int | None) -> list[str]:
    blockers = found.blockers
    total_ps = found.total.sum_ps
    lines = []
    if blockers:
        lines.append("nothing runs beside these long kernels of the main stream:")
        lines += [
            f"  {_short(row.name, width)}: {_ms(seconds(found, row.alone_ps))} ms alone, "
            f"longest {row.longest_ps / 1e9:.3f} ms"
            for row in blockers[:3]
        ]
    lines.append(f"{_share(found.attributed_ps, total_ps)} of kernel time names its HLO operation")
    if total_ps and found.attributed_ps < total_ps / 2:
        lines.append(
            "  profile once with --xla_gpu_enable_command_buffer= (empty) for more; it changes "
            "timing, so not in a measured run"
        )
    outside = sum(gpu.outside.sum_ps for gpu in found.gpus)
    if outside:
        lines.append(f"{outside / 1e9:.3f} ms of kernels, in all, belong to no step")
    if len(found.gpus) > 1:
        busiest = f"{found.straggler.source} {found.straggler.name}"
        lines.append(
            f"{busiest} computes {found.spread:.1%} longer than the median device"
            if found.spread >= ALIKE
            else f"the devices compute alike, within {found.spread:.1%} of the median"
        )
    return lines


def _compared(
    found: TraceComparison, before: Drill, after: Drill, top: int, width: int | None
) -> Told:
    head = ("before ms", "after ms", "change ms")
    said = [
        "before: " + ", ".join(before.sources),
        "after:  " + ", ".join(after.sources),
        *_warned(before, after),
        found.sentence,
    ]
    tables: list[Cells] = [
        (("composition", *head), _parts([*found.parts, found.span, *found.totals])),
        (("family", *head), _parts(found.families)),
        (("kernel", *head), _parts(found.kernels[:top], width)),
    ]
    return Told(said, tables, [])


def _parts(found: Iterable[Part], width: int | None = NAME) -> list[tuple[str, ...]]:
    return [
        (
            _short(part.name, width),
            _ms(part.before_s),
            _ms(part.after_s),
            f"{milliseconds(part.change_s):+.3f}",
        )
        for part in found
    ]


def _in_columns(drills: Sequence[Drill], top: int, width: int | None) -> Told:
    """Render three variants or more: a column each, with its change against the first."""
    first, *others = drills
    compared = [compare_windows(first, each) for each in others]
    names = [f"variant {place}" for place in range(1, len(drills) + 1)]
    lines = [
        f"{name}: " + ", ".join(each.sources) for name, each in zip(names, drills, strict=True)
    ]
    lines += _warned(*drills)
    lines += [f"{name}: {found.sentence}" for name, found in zip(names[1:], compared, strict=True)]
    tables: list[Cells] = []
    columns = [names[0], *(cell for name in names[1:] for cell in (name, "change"))]
    for title, rows, cut in (
        ("composition", [(*each.parts, each.span, *each.totals) for each in compared], None),
        ("family", [each.families for each in compared], None),
        ("kernel", [each.kernels for each in compared], top),
    ):
        found = {row.name: row for each in reversed(rows) for row in reversed(each)}
        of = [{row.name: row for row in each} for each in rows]
        most = {
            name: max((abs(each[name].change_s) for each in of if name in each), default=0.0)
            for name in found
        }
        order = (
            [row.name for row in rows[0]]
            if title == "composition"
            else sorted(found, key=lambda name: (-most[name], -found[name].before_s, name))
        )
        cells = [
            (
                _short(name, width),
                _ms(found[name].before_s),
                *(
                    cell
                    for each in of
                    for cell in (
                        (_ms(each[name].after_s), f"{milliseconds(each[name].change_s):+.3f}")
                        if name in each
                        else ("0.000", f"{-milliseconds(found[name].before_s):+.3f}")
                    )
                ),
            )
            for name in order[:cut]
        ]
        tables.append(((title, *columns), cells))
    return Told(lines, tables, [])


def _warned(*drills: Drill) -> list[str]:
    return [f"warning: {each}" for found in drills for each in found.warnings]


def _ms(value_s: float) -> str:
    """Write seconds as milliseconds."""
    return f"{milliseconds(value_s):.3f}"


def _share(value: float, whole: float) -> str:
    return f"{value / whole:.1%}" if whole else "-"


def _short(name: str, width: int | None = NAME) -> str:
    """Cut a name in its middle: kernels of one library differ at their ends."""
    if width is None or len(name) <= width:
        return name
    kept = width - len(_CUT)
    return name[: -(-kept * 2 // 3)] + _CUT + name[len(name) - kept // 3 :]


_CUT = "..."


def _under_each_other(tables: Iterable[Cells]) -> list[str]:
    return [line for each in tables for line in ("", *_table(*each))]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align a table: words to the left, figures to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    words = [not any(row[i][:1].isdigit() for row in rows) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(row, widths, (True, *words[1:]), strict=True)
        ).rstrip()
        for row in (head, *rows)
    ]
