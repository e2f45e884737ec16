"""What the compiler made of a program, by its dump, or what changed from one to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_xlatune.evidence.hlo import KINDS, Collective, Loop, Program
from pytest_xlatune.evidence.hlo.difference import difference, size
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.model.errors import ParseError, XlatuneError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import Document, brief, lines, plain

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


def program_document(program: Program, other: Program | None = None) -> Document:
    """Return the document of a program's facts, or of the difference to another.

    Flags that the two dumps' `*.debug_options` set differently are judged one by one.
    """
    if other is None:
        title, head = "What the compiler made of a program", [_name(program)]
        told = _facts(program)
    else:
        found = difference(program, other)
        title, head = "What changed", [found.before, f"-> {found.after}"]
        messages = (*found.messages, *(proof.message for proof in found.proofs))
        told = map(sentence, messages)
    return brief(title, lines(*map(plain, head), *(f"  {plain(each)}" for each in told)))


def _name(program: Program) -> str:
    return f"{program.module} for {program.target} ({program.source})"


def _facts(program: Program) -> Iterator[str]:
    yield f"{program.instructions} instructions"
    yield f"fingerprint before scheduling: {program.fingerprint or 'not written'}"
    if program.memory_bytes is not None:
        yield f"memory {size(program.memory_bytes)}"
    yield from _alike(_collective(one) for kind in KINDS for one in program.of(kind))
    yield from _alike(_loop(loop) for loop in program.loops)
    flying = counted(program.in_flight, "collective")
    yield f"up to {flying} in flight" if program.in_flight else "no collective in flight"
    if program.unknown_trips:
        loops = counted(program.unknown_trips, "loop")
        yield f"{loops} of unknown length: executions are at least these"
    yield from (f"option {name}={value}" for name, value in (program.options or {}).items())


def _alike(facts: Iterable[str]) -> Iterator[str]:
    """Say what is alike together, in the order of the program."""
    return (f"{count} x {fact}" for fact, count in Counter(facts).items())


def _loop(loop: Loop) -> str:
    trips = "an unknown number of" if loop.trips is None else str(loop.trips)
    notes = [
        *(["double-buffered"] if loop.is_unrolled else []),
        *(["windowed einsum"] if loop.is_windowed_einsum else []),
    ]
    return ", ".join((f"loop: {trips} rounds", *notes))


def _collective(found: Collective) -> str:
    traits = [
        size(found.size_bytes),
        "asynchronous" if found.is_async else "synchronous",
        *(["pipelined"] if found.is_pipelined else []),
        *([f"stream {found.stream}"] if found.stream else []),
        f"{counted(found.executions, 'execution')} a step "
        + ("in a loop" if found.in_loop else "outside of loops"),
        *(["at most: in a branch"] if found.in_branch else []),
        found.groups or "all devices",
    ]
    return f"{found.kind}: {', '.join(traits)}"


def programs_json(program: Program, other: Program | None = None) -> Json:
    """Return the facts of a program, or of two with their difference."""
    if other is None:
        return {"schema": SCHEMA, "program": program.to_json()}
    return {
        "schema": SCHEMA,
        "before": program.to_json(),
        "after": other.to_json(),
        "difference": difference(program, other).to_json(),
    }
