"""Compare two compiled programs: say what changed, and whether a flag acted.

The messages contain only facts that can be counted: the number and sizes of collectives in loops
and outside of them, bytes and executions per step, how many are asynchronous or pipelined, trip
counts of loops, collectives in flight, and memory. Names, source lines and metadata do not count.

`seen_in.toml` says for each flag which fact of the program it changes when it acts. A flag that
changed nothing was measured for nothing, and a flag that acts only at run time cannot be judged
from the program. This module looks up which of these holds and never guesses.
"""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_xlatune.evidence import KINDS
from pytest_xlatune.evidence.hlo import Collective, Program
from pytest_xlatune.model.message import Message, Value, at_most, say, verbatim
from pytest_xlatune.model.record import Record


class Change(StrEnum):
    """How different two programs are, in increasing order."""

    IDENTICAL = "identical"
    TUNED = "same program, other autotuned kernels"
    SCHEDULE = "same program, other schedule"
    PROGRAM = "other program"


class ProgramDifference(Record, frozen=True, kw_only=True):
    """The changes from one program to another."""

    before: str  # the path of the first program
    after: str  # the path of the second program
    change: Change  # how different they are
    # a message for each fact that changed; the first says how different they are, unless others do
    facts: tuple[Message, ...]
    proofs: tuple[Message, ...]  # whether each differing option acted; () if a dump lacks options


# `Change.PROGRAM` has no head, because the facts say it
_HEADS = {
    Change.IDENTICAL: say(
        "identical: the optimised HLO is the same; the effect of a setting, if any, is below HLO "
        "or at run time"
    ),
    Change.TUNED: say(
        "{change}: autotuning measured again and chose otherwise, as it may in any run; "
        "docs/how-to/kernels.md says how to pin its choice",
        change=str(Change.TUNED),
    ),
    Change.SCHEDULE: verbatim(Change.SCHEDULE),
}


def change(before: Program, after: Program) -> Change:
    """Return how different two programs are."""
    if before.digest == after.digest:
        return Change.IDENTICAL if before.tuned == after.tuned else Change.TUNED
    same = before.unordered == after.unordered or (
        before.fingerprint is not None and before.fingerprint == after.fingerprint
    )
    return Change.SCHEDULE if same else Change.PROGRAM


def difference(before: Program, after: Program) -> ProgramDifference:
    """Compare two programs."""
    distance = change(before, after)
    facts: list[Message] = []
    if distance in (Change.SCHEDULE, Change.PROGRAM):
        facts = [*_of_collectives(before, after), *_of_program(before, after)]
    if distance is Change.SCHEDULE and not facts:
        facts = [say("instructions in another order, every collective as before")]
    if distance is Change.PROGRAM:
        facts = facts or [say("other program, the same collectives")]
        facts.append(_other_instructions(before, after))
    else:
        facts.insert(0, _HEADS[distance])
    return ProgramDifference(
        before=before.source,
        after=after.source,
        change=distance,
        facts=tuple(facts),
        proofs=prove(differing(before, after) or (), before, after),
    )


def differing(before: Program, after: Program) -> list[str] | None:
    """Return the names of the options that differ; None if one dump lacks them."""
    old, new = before.options, after.options
    if old is None or new is None:
        return None
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _of_collectives(before: Program, after: Program) -> Iterator[Message]:
    """Yield what changed for each kind of collective, in loops and outside of them."""
    places = (("in the loop", True), ("outside of loops", False))
    for kind, (where, in_loop) in itertools.product(KINDS, places):
        old, new = (
            [row for row in program.collectives_of(kind) if row.in_loop == in_loop]
            for program in (before, after)
        )
        if parts := [*_parts(old, new)]:
            yield say("{kind}s {where}: {parts}", kind=kind, where=where, parts=parts)


def _parts(old: Sequence[Collective], new: Sequence[Collective]) -> Iterator[Message]:
    """Yield each fact in which the old and the new collectives of one kind differ."""
    sides = (old, new)
    sizes = [Counter(collective.size_bytes for collective in side) for side in sides]
    executions = [sum(collective.executions for collective in side) for side in sides]
    if sizes[0] != sizes[1]:
        yield say("{old} -> {new}", old=_sizes(sizes[0]), new=_sizes(sizes[1]))
        was, now = (size(sum(row.size_bytes * row.executions for row in side)) for side in sides)
        yield (
            say("bytes unchanged ({now} a step)", now=now)
            if was == now
            else say("{was} -> {now} a step", was=was, now=now)
        )
    if sizes[0] != sizes[1] or executions[0] != executions[1]:
        yield say("{old} -> {new} executions", old=executions[0], new=executions[1])
    for trait, attribute in (("asynchronous", "is_async"), ("pipelined", "is_pipelined")):
        was, now = (sum(getattr(collective, attribute) for collective in side) for side in sides)
        if was * len(new) != now * len(old):
            text = "{was} of {old} -> {now} of {new} {trait}"
            yield say(text, was=was, old=len(old), now=now, new=len(new), trait=trait)
    groups = [Counter(collective.groups for collective in side) for side in sides]
    if len(old) == len(new) and groups[0] != groups[1]:
        yield say("in other groups of devices")


def _sizes(counts: Counter[int]) -> str:
    """Return e.g. `6 of 32 MiB` or `2 of 96 MiB + 1 of 4 B`, the largest first."""
    largest = sorted(counts.items(), reverse=True)
    shown = [f"{count} of {size(size_bytes)}" for size_bytes, count in largest[:3]]
    rest = sum(count for _, count in largest[3:])
    return " + ".join([*shown, *([f"{rest} smaller"] if rest else [])]) or "none"


def size(size_bytes: int) -> str:
    """Return a size as people write it: 32 MiB, 1.5 GiB, 4 B."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def _trips(program: Program) -> str:
    """Return the trip counts in the order of the program, e.g. `8, 8`."""
    trips = ("?" if loop.trips is None else str(loop.trips) for loop in program.loops)
    return ", ".join(trips) or "no"


_MOST_OPCODES = 4  # other instructions that a message names
# fact -> the message about a change of it, and the function that reads it from a program
_OF_PROGRAM: dict[str, tuple[str, Callable[[Program], Value]]] = {
    "pipelined": ("loops run {old} -> {new} rounds", _trips),
    "unrolled": (
        "double-buffered loops: {old} -> {new}",
        lambda program: sum(loop.unrolled > 1 for loop in program.loops),
    ),
    "windowed": (
        "windowed einsum loops: {old} -> {new}",
        lambda program: sum(loop.is_windowed_einsum for loop in program.loops),
    ),
    "in_flight": ("collectives in flight: {old} -> {new}", lambda program: program.in_flight),
    "memory_bytes": (
        "memory {old} -> {new}",
        lambda program: None if program.memory_bytes is None else size(program.memory_bytes),
    ),
}


def _of_program(before: Program, after: Program) -> Iterator[Message]:
    """Yield what changed for the program as a whole; a fact that one dump lacks is left out."""
    for text, read in _OF_PROGRAM.values():
        old, new = read(before), read(after)
        if old != new and None not in (old, new):
            yield say(text, old=old, new=new)


def _other_instructions(before: Program, after: Program) -> Message:
    """Name the instructions whose number changed, except collectives."""
    collectives = {f"{kind}{end}" for kind in (*KINDS, "async") for end in ("", "-start", "-done")}
    changed = Counter(after.opcodes)
    changed.subtract(before.opcodes)
    opcodes = sorted(
        changed.keys() - collectives, key=lambda opcode: (-abs(changed[opcode]), opcode)
    )
    shown = [f"{opcode} {changed[opcode]:+d}" for opcode in opcodes if changed[opcode]]
    if not shown:
        return say("nothing else changed in number")
    return say("other instructions: {shown}", shown=at_most(_MOST_OPCODES, shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a flag changes when it acts."""

    fact: str  # the fact of the program, by its name in `seen_in.toml`
    kinds: tuple[str, ...]  # the collectives of which the flag changes it; () means all
    text: str  # the fact for people to read, with the kinds
    trait: str = ""  # the attribute of collectives that shows it; "" if none does
    below: str = ""  # what shows the effect of a flag that never changes the program; "" for others

    def seen_in(self, program: Program) -> object:
        """Return the fact as it is in a program; two programs that differ in it show an effect."""
        shown: list[object] = []
        if self.trait:
            collectives = program.collectives_of(*(self.kinds or KINDS))
            traits = ((row.kind, getattr(row, self.trait)) for row in collectives)
            shown.append(Counter(traits))
        if self.fact in _OF_PROGRAM:
            shown.append(_OF_PROGRAM[self.fact][1](program))
        return shown or program.digest


@functools.cache
def expectations() -> dict[str, Expectation]:
    """Return flag name -> what it changes when it acts; `seen_in.toml` is read once."""
    table = tomllib.loads(Path(__file__).with_name("seen_in.toml").read_text(encoding="utf-8"))
    by_flag: dict[str, Expectation] = {}
    for row in table["seen"]:
        fact, kinds = dict(table["facts"][row["fact"]]), tuple(row.get("kinds", ()))
        text = fact.pop("text") + (f" ({', '.join(kinds)})" if kinds else "")
        expectation = Expectation(fact=row["fact"], kinds=kinds, text=text, **fact)
        by_flag |= dict.fromkeys(row["flags"], expectation)
    return by_flag


def prove(flags: Sequence[str], before: Program, after: Program) -> tuple[Message, ...]:
    """Return for each flag of XLA whether it acted, from programs that differ only in these flags.

    If one flag differs, it caused every change of the program. If several differ, no change can be
    attributed to one of them, and each that may have caused it is "one of these".
    """
    distance, proofs = change(before, after), []
    for flag in flags:
        expected = expectations().get(flag)
        is_in_program = expected is not None and not expected.below
        # a flag that changes only the schedule has acted too
        if distance in (Change.SCHEDULE, Change.PROGRAM):
            text, why = "{flag} acted: {why}", verbatim(distance)
            if len(flags) > 1:  # no program was compiled without each of them
                text = "{flag}: one of these acted, or several: {together}; {why}"
            if expected is not None and is_in_program:
                is_same = expected.seen_in(before) == expected.seen_in(after)
                fact = "{change}, while {fact} are as before" if is_same else "{fact} changed"
                why = say(fact, change=str(distance), fact=expected.text)
        elif is_in_program:
            is_equal = distance is Change.IDENTICAL
            text = "{flag} did not act: {why}"
            why = verbatim("the program is identical" if is_equal else distance)
        else:
            text = "{flag} cannot be seen in HLO: {why}"
            unknown = "the optimised HLO is the same, and no table says where it acts"
            why = verbatim(unknown if expected is None else expected.below)
        proofs.append(say(text, flag=flag, why=why, together=flags))
    return tuple(proofs)
