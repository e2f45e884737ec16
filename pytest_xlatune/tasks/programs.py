"""What the compiler made of a program, by its dump, or what changed from one to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_xlatune.evidence.hlo import KINDS, Loop, Program
from pytest_xlatune.evidence.hlo.difference import difference, flying, prove, size
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.model.errors import ParseError, XlatuneError
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import Document, brief, left_out, lines, plain, shortened

SCHEMA = 1


def read_programs(dumps: Sequence[Path]) -> tuple[list[Program], tuple[str, ...]]:
    """Return the programs of the dumps that can be read, and why the others cannot.

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
    return programs, tuple(problems)


def program_document(
    program: Program, other: Program | None = None, *, shows_all: bool = False
) -> Document:
    """Return the document of a program's facts, or of the difference to another.

    Flags that the two dumps' `*.debug_options` set differently are judged one by one. Of many loops
    the first, the last and those of a new kind are shown, unless `shows_all`.
    """
    title = "What the compiler made of a program" if other is None else "What changed"
    found = (
        [*_facts(program, shows_all=shows_all)] if other is None else [*_changes(program, other)]
    )
    shown = (f"{' ' * (len(each) - len(each.lstrip()))}{plain(each)}" for each in found)
    return brief(title, lines(*shown))


def _changes(program: Program, other: Program) -> Iterable[str]:
    found = difference(program, other)
    yield found.before
    yield f"-> {found.after}"
    yield from (f"  {sentence}" for sentence in found.sentences)
    yield from (f"  {proof.sentence}" for proof in prove(*_judged(program, other)))


def _facts(program: Program, *, shows_all: bool) -> list[str]:
    told = [
        f"{program.module} for {program.target} ({program.source})",
        f"  {program.instructions} instructions",
        f"  fingerprint before scheduling: {program.fingerprint or 'not written'}",
    ]
    if program.memory_bytes is not None:
        told.append(f"  memory {size(program.memory_bytes)}")
    told += [f"  {collective}" for collective in _collectives(program)]
    told += _loops(program, shows_all=shows_all)
    told.append(f"  {flying(program)}")
    if program.unknown_trips:
        told.append(
            f"  {counted(program.unknown_trips, 'loop')} of unknown length: executions are at least"
            " these"
        )
    told += [f"  option {name}={value}" for name, value in (program.options or {}).items()]
    return told


def _loops(program: Program, *, shows_all: bool) -> Iterator[str]:
    seen: set[str] = set()

    def is_of_new_kind(loop: Loop) -> bool:
        kind = _rounds(loop)
        is_new = kind not in seen
        seen.add(kind)
        return is_new

    shown = shortened(program.loops, is_of_new_kind, shows_all=shows_all)
    for loop in shown:
        yield "  ..." if loop is None else f"  loop {loop.name}: {_rounds(loop)}"
    yield from (f"  {each}" for each in left_out(shown, program.loops, "loop"))


def _rounds(loop: Loop) -> str:
    trips = "an unknown number of" if loop.trips is None else str(loop.trips)
    notes = [
        *(["double-buffered"] if loop.is_unrolled else []),
        *(["windowed einsum"] if loop.is_windowed_einsum else []),
    ]
    return f"{trips} rounds" + "".join(f", {note}" for note in notes)


def _collectives(program: Program) -> Iterable[str]:
    """Say alike collectives together, in the order of kinds and then of the program."""
    alike: Counter[str] = Counter()
    for kind in KINDS:
        for collective in program.of(kind):
            traits = [
                size(collective.size_bytes),
                "asynchronous" if collective.is_async else "synchronous",
                *(["pipelined"] if collective.is_pipelined else []),
                *([f"stream {collective.stream}"] if collective.stream else []),
                f"{counted(collective.executions, 'execution')} a step "
                + ("in a loop" if collective.in_loop else "outside of loops"),
                *(["at most: in a branch"] if collective.in_branch else []),
                collective.groups or "all devices",
            ]
            alike[f"{kind}: {', '.join(traits)}"] += 1
    return (f"{count} x {said}" for said, count in alike.items())


def programs_json(program: Program, other: Program | None = None) -> Json:
    """Return the facts of a program, or of two with their difference."""
    if other is None:
        return {"schema": SCHEMA, "program": program.to_json()}
    found = difference(program, other)
    return {
        "schema": SCHEMA,
        "before": program.to_json(),
        "after": other.to_json(),
        "difference": found.to_json(),
        "proofs": [proof.to_json() for proof in prove(*_judged(program, other))],
    }


def _judged(before: Program, after: Program) -> tuple[list[str], Program, Program]:
    """Return the options that differ, where both are known, and the two programs."""
    if before.options is None or after.options is None:
        return [], before, after
    old, new = before.options, after.options
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return names, before, after
