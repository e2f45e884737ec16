"""`xlatune hlo`: what the compiler made of a program, or what changed from one to another."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_xlatune.cli import (
    TRIAL,
    add_json,
    add_options,
    complain,
    options_of,
    show,
    show_json,
)
from pytest_xlatune.evidence.hlo import KINDS, Program
from pytest_xlatune.evidence.hlo.difference import (
    difference,
    flying,
    prove,
    size,
)
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.model.errors import ParseError, XlatuneError
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted

SCHEMA = 1


def add_hlo(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("dump", metavar="DUMP", help=f"a folder of --xla_dump_to; {TRIAL}")
    parser.add_argument("other", nargs="?", metavar="DUMP2", help="shows what changed")
    add_json(parser)
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_hlo)


def _hlo(arguments: argparse.Namespace) -> int:
    named = [arguments.dump, *filter(None, [arguments.other])]
    dumps = [_dump(each, arguments) for each in named]
    return show_dumps(dumps, as_json=arguments.json)


def _dump(said: str, arguments: argparse.Namespace) -> Path:
    if "/" in said or Path(said).exists():  # no name of recorded evidence: no ledger is read
        return Path(said)
    from pytest_xlatune.tasks.artifacts import dump_of

    return dump_of(said, options_of(arguments).workdir)


def show_dumps(dumps: Sequence[Path], *, as_json: bool = False) -> int:
    """Show the facts of one dump, or the difference of two; return the exit code.

    Where one of two cannot be read, the facts of the other are shown.

    Raises:
        ParseError: none can be read.
    """
    programs, problems = [], []
    for path in dumps:
        try:
            programs.append(read_program(path))
        except XlatuneError as error:
            problems.append(str(error))
    if not programs:
        raise ParseError("; ".join(problems))
    if as_json:
        show_json(hlo_json(*programs))
    else:
        show(hlo_lines(*programs))
    return complain(problems)


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
            *(f"  {each.sentence}" for each in prove(*_judged(program, other))),
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
            f"  {counted(program.unknown_trips, 'loop')} of unknown length: executions are at least"
            " these"
        )
    if program.thunks is not None:
        is_same = program.thunks.agrees(program)
        others = "the same collectives" if is_same else f"others: {program.thunks.collectives}"
        lines.append(f"  the launch order (thunk sequence) has {others}")
    lines += [f"  option {name}={value}" for name, value in (program.options or {}).items()]
    return lines


def _collectives(program: Program) -> Iterable[str]:
    """Say alike collectives together, in the order of kinds and then of the program."""
    alike: Counter[str] = Counter()
    for kind in KINDS:
        for each in program.of(kind):
            traits = [
                size(each.size_bytes),
                "asynchronous" if each.is_async else "synchronous",
                *(["pipelined"] if each.is_pipelined else []),
                *([f"stream {each.stream}"] if each.stream else []),
                f"{counted(each.executions, 'execution')} a step "
                + ("in a loop" if each.in_loop else "outside of loops"),
                *(["at most: in a branch"] if each.in_branch else []),
                each.groups or "all devices",
            ]
            alike[f"{kind}: {', '.join(traits)}"] += 1
    return (f"{count} x {said}" for said, count in alike.items())


def hlo_json(program: Program, other: Program | None = None) -> Json:
    """Return the facts of a program, or of two with their difference."""
    if other is None:
        return {"schema": SCHEMA, "program": program.to_json()}
    found = difference(program, other)
    return {
        "schema": SCHEMA,
        "before": program.to_json(),
        "after": other.to_json(),
        "difference": found.to_json(),
        "proofs": [each.to_json() for each in prove(*_judged(program, other))],
    }


def _judged(before: Program, after: Program) -> tuple[list[str], Program, Program]:
    """Return the options that differ, where both are known, and the two programs."""
    if before.options is None or after.options is None:
        return [], before, after
    old, new = before.options, after.options
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return names, before, after
