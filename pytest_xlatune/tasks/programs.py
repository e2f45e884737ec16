"""Show what the compiler made of a program, from its dump, or what differs between two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_xlatune.evidence import KINDS
from pytest_xlatune.evidence.hlo import Collective, Loop, Program
from pytest_xlatune.evidence.hlo.difference import difference, size
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import Document, brief, lines, plain

SCHEMA = 1


def program_document(program: Program, other: Program | None = None) -> Document:
    """Return the document of a program's facts, or of the difference between two.

    For each flag that differs in their `*.debug_options`, it says whether the flag acted.
    """
    if other is None:
        title = "What the compiler made of a program"
        head = [f"{program.module} for {program.target} ({program.source})"]
        facts = [*_facts(program)]
    else:
        changes = difference(program, other)
        title, head = "What changed", [changes.before, f"-> {changes.after}"]
        facts = [*map(sentence, (*changes.facts, *changes.proofs))]
    return brief(title, lines(*map(plain, head), *(f"  {plain(fact)}" for fact in facts)))


def _facts(program: Program) -> Iterator[str]:
    yield f"{program.instructions} instructions"
    yield f"fingerprint before scheduling: {program.fingerprint or 'not written'}"
    if program.memory_bytes is not None:
        yield f"memory {size(program.memory_bytes)}"
    # equal facts become one line with their number, in the order of the program
    of_kinds = (
        _collective(collective) for kind in KINDS for collective in program.collectives_of(kind)
    )
    for facts in (Counter(of_kinds), Counter(map(_loop, program.loops))):
        yield from (f"{count} x {fact}" for fact, count in facts.items())
    flying = counted(program.in_flight, "collective")
    yield f"up to {flying} in flight" if program.in_flight else "no collective in flight"
    # what is in a loop of unknown length counts as executed once
    if unknown := sum(loop.trips is None for loop in program.loops):
        loops = counted(unknown, "loop")
        yield f"{loops} of unknown length: executions are at least that many"
    yield from (f"option {name}={value}" for name, value in (program.options or {}).items())


def _loop(loop: Loop) -> str:
    trips = "an unknown number of" if loop.trips is None else str(loop.trips)
    return (
        f"loop: {trips} rounds"
        + (", double-buffered" if loop.unrolled > 1 else "")
        + (", windowed einsum" if loop.is_windowed_einsum else "")
    )


def _collective(collective: Collective) -> str:
    traits = [
        size(collective.size_bytes),
        "asynchronous" if collective.is_async else "synchronous",
        "pipelined" if collective.is_pipelined else "",
        f"{counted(collective.executions, 'execution')} a step "
        + ("in a loop" if collective.in_loop else "outside of loops"),
        "at most: in a branch" if collective.in_branch else "",
        collective.groups or "all devices",
    ]
    return f"{collective.kind}: {', '.join(filter(None, traits))}"


def programs_json(program: Program, other: Program | None = None) -> Json:
    """Return the facts of a program, or those of two with their difference."""
    if other is None:
        return {"schema": SCHEMA, "program": program.to_json()}
    return {
        "schema": SCHEMA,
        "before": program.to_json(),
        "after": other.to_json(),
        "difference": difference(program, other).to_json(),
    }
