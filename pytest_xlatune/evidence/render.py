"""Facts to lines for people and to builtins for JSON. Knows no terminal and writes nothing.

Each command has a pair: `hlo_lines` and `hlo_json` for `xlatune hlo`, `drill_lines` and
`drill_json` for `xlatune drill`; with a second fact they compare. Times are milliseconds per device
per step unless the line says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_xlatune.evidence.comparison import (
    Comparison,
    Part,
    compare,
    milliseconds,
    parts,
    seconds,
    totals,
)
from pytest_xlatune.evidence.difference import Difference, difference, flying, plural, size
from pytest_xlatune.evidence.drill import Drill, Row
from pytest_xlatune.evidence.hlo import KINDS, Program
from pytest_xlatune.evidence.proof import EXPECTATIONS, prove
from pytest_xlatune.evidence.steps import Rule
from pytest_xlatune.records import Json

SCHEMA = 1
ALIKE = 0.01  # of the median device's compute: less is no straggler
TOP = 10  # rows of a table of kernels
NAME = 56  # characters of a kernel's name; Tensile's and C++ ones run into hundreds

_RULES = {
    Rule.LAUNCH: "each kernel in the step whose annotation was open at its launch",
    Rule.EXECUTIONS: "steps are the runs of the step's module, counted on each device",
    Rule.WINDOWS: "each kernel in the step whose annotation was open while it ran: work dispatched "
    "ahead is counted in the wrong step",
    Rule.WHOLE: "no step could be told apart: totals over the number of steps given",
}


# --- hlo ------------------------------------------------------------------------------------------


def hlo_lines(program: Program, other: Program | None = None) -> list[str]:
    """Render the facts of a program, or the difference to another.

    Flags that the two dumps' `*.debug_options` set differently are judged one by one.
    """
    if other is not None:
        found = difference(program, other)
        return [
            found.before,
            f"-> {found.after}",
            *(f"  {sentence}" for sentence in found.sentences),
            *(f"  {proof}" for proof in _proofs(program, other)),
        ]
    lines = [
        f"{program.module} for {program.target} ({program.source})",
        f"  {program.instructions} instructions",
        f"  fingerprint before scheduling: {program.fingerprint or 'not written'}",
    ]
    if program.memory_bytes is not None:
        lines.append(f"  memory {size(program.memory_bytes)}")
    lines += [f"  {each}" for each in _collectives(program)]
    for loop in program.loops:
        trips = "an unknown number of" if loop.trips is None else str(loop.trips)
        notes = [
            *(["double-buffered"] if loop.is_unrolled else []),
            *(["windowed einsum"] if loop.is_windowed_einsum else []),
        ]
        lines.append(f"  loop {loop.name}: {trips} rounds" + "".join(f", {n}" for n in notes))
    lines.append(f"  {flying(program)}")
    if program.unknown_trips:
        lines.append(
            f"  {plural(program.unknown_trips, 'loop')} of unknown length: executions are at least "
            "these"
        )
    lines += [f"  {_thunks(program)}"] if program.thunks is not None else []
    lines += [f"  option {name}={value}" for name, value in (program.options or {}).items()]
    return lines


def _collectives(program: Program) -> Iterable[str]:
    """Say alike collectives together, in the order of kinds and then of the program."""
    alike: dict[str, int] = {}
    for kind in KINDS:
        for each in program.of(kind):
            traits = [
                size(each.size_bytes),
                "asynchronous" if each.is_async else "synchronous",
                *(["pipelined"] if each.is_pipelined else []),
                *([f"stream {each.stream}"] if each.stream else []),
                f"{plural(each.executions, 'execution')} a step "
                + ("in a loop" if each.in_loop else "outside of loops"),
                each.groups or "all devices",
            ]
            said = f"{kind}: {', '.join(traits)}"
            alike[said] = alike.get(said, 0) + 1
    return (f"{count} x {said}" for said, count in alike.items())


def hlo_json(program: Program, other: Program | None = None) -> Json:
    """Return the facts of a program, or of two with their difference."""
    if other is None:
        return {"schema": SCHEMA, "program": program.to_json()}
    found: Difference = difference(program, other)
    return {
        "schema": SCHEMA,
        "before": program.to_json(),
        "after": other.to_json(),
        "difference": found.to_json(),
        "proofs": [
            prove(flag, program, other).to_json() for flag in _changed_options(program, other)
        ],
    }


def _changed_options(before: Program, after: Program) -> list[str]:
    """Return the options that differ, where both are known; of several, those of the table.

    What a flag that is in no table did cannot be told from what another one did.
    """
    if before.options is None or after.options is None:
        return []
    old, new = before.options, after.options
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return names if len(names) == 1 else [name for name in names if name in EXPECTATIONS]


def _proofs(before: Program, after: Program) -> Iterable[str]:
    return (prove(flag, before, after).sentence for flag in _changed_options(before, after))


def _thunks(program: Program) -> str:
    """Say whether the launch order counts the same collectives as the text."""
    if program.thunks is None:
        return ""
    counted: dict[str, int] = {}
    for each in program.collectives:
        counted[each.kind] = counted.get(each.kind, 0) + 1
    if counted == program.thunks.collectives:
        return "the launch order (thunk sequence) has the same collectives"
    return f"the launch order (thunk sequence) has others: {program.thunks.collectives}"


# --- drill ----------------------------------------------------------------------------------------


def drill_lines(found: Drill, other: Drill | None = None, *, top: int = TOP) -> list[str]:
    """Render where the time went, or what made the difference between two variants.

    Raises:
        ConfigError: the two cannot be compared.
    """
    if other is not None:
        return _comparison_lines(compare(found, other), found, other, top)
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
        "comparison": compare(found, other).to_json(),
    }


def _head(found: Drill) -> list[str]:
    devices = len(found.gpus)
    lines = [
        f"{plural(len(found.sources), 'capture')} ({', '.join(found.formats)}), {found.launcher}, "
        f"{plural(devices, 'device')} with kernels"
        + (f" of {found.planes_present} planes" if found.planes_present > devices else ""),
        f"steps {', '.join(map(str, found.steps))}: {_RULES[found.rule]}"
        if found.rule is not Rule.WHOLE
        else f"{plural(found.divided_by, 'step')}: {_RULES[found.rule]}",
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


def _row(found: Drill, row: Row, *, kind: bool) -> tuple[str, ...]:
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


def _comparison_lines(found: Comparison, before: Drill, after: Drill, top: int) -> list[str]:
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
