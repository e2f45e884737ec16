"""`xlatune drill`: where the time of a step went, or what made the difference between two variants.

Times are milliseconds per device per step unless the line says otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from pytest_xlatune.cli import (
    AGAINST,
    add_json,
    add_options,
    complain,
    options_of,
    show,
    show_json,
)
from pytest_xlatune.cli.hlo import TRIAL
from pytest_xlatune.evidence.trace import FAMILIES, Family, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, TimeRow
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.comparison import (
    Part,
    TraceComparison,
    compare_windows,
    milliseconds,
    parts,
    seconds,
    totals,
)
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.record import Json, read_json
from pytest_xlatune.model.text import counted

SCHEMA = 1
ALIKE = 0.01  # of the median device's compute: less is no straggler
TOP = 10  # rows of a table of kernels
NAME = 56  # characters of a kernel's name; Tensile's and C++ ones run into hundreds

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
        AGAINST, nargs="+", metavar="PATH", help="a second variant; `--` says the same"
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
    add_json(parser)
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_drill)


def _drill(arguments: argparse.Namespace) -> int:
    variants: list[Sequence[Path]] = []
    known_s = []
    for named in [arguments.paths, *filter(None, [arguments.against])]:
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
    )
    drills, problems = _read(variants, step_times_s, window)
    if arguments.json:
        show_json(drill_json(*drills))
    else:
        show(drill_lines(*drills))
    return complain(problems)


def _read(
    variants: Sequence[Sequence[Path]], step_times_s: Sequence[float], window: CaptureWindow
) -> tuple[list[Drill], list[str]]:
    """Read one variant or two; where one of two cannot be read, the other is shown.

    Raises:
        ParseError: no variant has a readable capture of one window.
    """
    drills: list[Drill] = []
    problems: list[str] = []
    left_out: list[str] = []
    for paths, step_s in zip_longest(variants, step_times_s):
        try:
            drilled, without = read_window(paths, window, step_s=step_s)
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


def drill_lines(found: Drill, other: Drill | None = None, *, top: int = TOP) -> list[str]:
    """Render where the time went, or what made the difference between two variants.

    Raises:
        ConfigError: the two cannot be compared.
    """
    if other is not None:
        return _comparison_lines(compare_windows(found, other), found, other, top)
    return [
        *_head(found),
        "",
        *_table(("composition", "ms", "of span"), _composition(found)),
        "",
        *_table(
            ("family", "kind", "ms", "of total", "calls", "alone ms"),
            [_row(found, row, kind=True) for row in found.families],
        ),
        "",
        *_table(
            ("kernel", "family", "ms", "of total", "calls", "alone ms"),
            [_row(found, row, kind=False) for row in found.kernels[:top]],
        ),
        "",
        *_tail(found),
    ]


def drill_json(found: Drill, other: Drill | None = None) -> Json:
    """Return the sums over devices and steps, the figures per device per step, and a comparison."""
    if other is None:
        return {
            "schema": SCHEMA,
            "drill": found.to_json(),
            "per_gpu_step_s": parts(found) | totals(found),
        }
    return {
        "schema": SCHEMA,
        "before": found.to_json(),
        "after": other.to_json(),
        "comparison": compare_windows(found, other).to_json(),
    }


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
    rows = [(name, value) for name, value in parts(found).items()]
    rows += [("= span", span_s), *totals(found).items()]
    return [(name, _ms(value), _share(value, span_s)) for name, value in rows]


def _row(found: Drill, row: TimeRow, *, kind: bool) -> tuple[str, ...]:
    return (
        _short(row.name),
        str(row.kind) if kind else row.family,
        _ms(seconds(found, row.sum_ps)),
        _share(row.sum_ps, found.total.sum_ps),
        f"{row.count / max(1, found.gpu_steps):.4g}",
        _ms(seconds(found, row.alone_ps)),
    )


def _tail(found: Drill) -> list[str]:
    blockers = found.blockers
    total_ps = found.total.sum_ps
    lines = []
    if blockers:
        lines.append("nothing runs beside these long kernels of the main stream:")
        lines += [
            f"  {_short(row.name)}: {_ms(seconds(found, row.alone_ps))} ms alone, "
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


def _comparison_lines(found: TraceComparison, before: Drill, after: Drill, top: int) -> list[str]:
    head = ("", "before ms", "after ms", "change ms")
    return [
        "before: " + ", ".join(before.sources),
        "after:  " + ", ".join(after.sources),
        found.sentence,
        "",
        *_table(("composition", *head[1:]), _parts([*found.parts, found.span, *found.totals])),
        "",
        *_table(("family", *head[1:]), _parts(found.families)),
        "",
        *_table(("kernel", *head[1:]), _parts(found.kernels[:top])),
    ]


def _parts(found: Iterable[Part]) -> list[tuple[str, ...]]:
    return [
        (
            _short(part.name),
            _ms(part.before_s),
            _ms(part.after_s),
            f"{milliseconds(part.change_s):+.3f}",
        )
        for part in found
    ]


def _ms(value_s: float) -> str:
    return f"{milliseconds(value_s):.3f}"


def _share(value: float, whole: float) -> str:
    return f"{value / whole:.1%}" if whole else "-"


def _short(name: str) -> str:
    return name if len(name) <= NAME else name[: NAME - 3] + "..."


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
