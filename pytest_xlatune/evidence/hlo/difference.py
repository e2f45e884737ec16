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

from pytest_xlatune.evidence.hlo import KINDS, Collective, Program
from pytest_xlatune.model.message import Message, Value, say, verbatim
from pytest_xlatune.model.record import Record


class Change(StrEnum):
    """How different two programs are, in increasing order."""

    IDENTICAL = "identical"
    TUNED = "same program, other autotuned kernels"
    SCHEDULE = "same program, other schedule"
    PROGRAM = "other program"


class Acted(StrEnum):
    """What the program says about a flag."""

    ACTED = "acted"
    # several flags differ at once, and no program was compiled without each of them
    ONE_OF = "one of these"
    DID_NOT_ACT = "did not act"
    UNSEEN = "cannot be seen in HLO"


class Proof(Record, frozen=True, kw_only=True):
    """Whether a flag acted, and the message that says why."""

    flag: str
    acted: Acted
    message: Message


class ProgramDifference(Record, frozen=True, kw_only=True):
    """The changes from one program to another.

    Attributes:
        before: the path of the first program.
        after: the path of the second program.
        change: how different they are.
        facts: what changed, one message for each fact; () if only kernels changed, or nothing.
        proofs: for each differing option whether it acted; () if a dump lacks its options.
    """

    before: str
    after: str
    change: Change
    facts: tuple[Message, ...]
    proofs: tuple[Proof, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The facts, preceded by how different the programs are, unless the facts say that."""
        head = _HEADS.get(self.change)
        return self.facts if head is None else (head, *self.facts)


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
    for kind, (where, in_loop) in itertools.product(
        KINDS, (("in the loop", True), ("outside of loops", False))
    ):
        old, new = (
            [
                collective
                for collective in program.collectives_of(kind)
                if collective.in_loop == in_loop
            ]
            for program in (before, after)
        )
        if parts := [*_parts(old, new)]:
            yield say("{kind}s {where}: {parts}", kind=kind, where=where, parts=parts)


def _parts(old: Sequence[Collective], new: Sequence[Collective]) -> Iterator[Message]:
    """Yield each fact in which the old and the new collectives of one kind differ."""
    executions = [sum(collective.executions for collective in side) for side in (old, new)]
    of_sizes = [Counter(collective.size_bytes for collective in side) for side in (old, new)]
    is_resized = of_sizes[0] != of_sizes[1]
    if is_resized:
        yield say("{old} -> {new}", old=_sizes(of_sizes[0]), new=_sizes(of_sizes[1]))
        was, now = (
            size(sum(collective.size_bytes * collective.executions for collective in side))
            for side in (old, new)
        )
        yield (
            say("bytes unchanged ({now} a step)", now=now)
            if was == now
            else say("{was} -> {now} a step", was=was, now=now)
        )
    if is_resized or executions[0] != executions[1]:
        yield say("{old} -> {new} executions", old=executions[0], new=executions[1])
    for trait, attribute in (("asynchronous", "is_async"), ("pipelined", "is_pipelined")):
        counts = [sum(getattr(collective, attribute) for collective in side) for side in (old, new)]
        if counts[0] * len(new) != counts[1] * len(old):
            yield say(
                "{was} of {old} -> {now} of {new} {trait}",
                was=counts[0],
                old=len(old),
                now=counts[1],
                new=len(new),
                trait=trait,
            )
    groups = [Counter(collective.groups for collective in side) for side in (old, new)]
    if len(old) == len(new) and groups[0] != groups[1]:
        yield say("between a different set of devices")


def _sizes(counts: Counter[int]) -> str:
    """Return e.g. `6 of 32 MiB` or `2 of 96 MiB + 1 of 4 B`, the largest first."""
    largest = sorted(counts.items(), reverse=True)
    shown = " + ".join(f"{count} of {size(size_bytes)}" for size_bytes, count in largest[:3])
    rest = sum(count for _, count in largest[3:])
    return (shown + (f" + {rest} smaller" if rest else "")) or "none"


def _trips(program: Program) -> str:
    """Return the trip counts in the order of the program, e.g. `8, 8`."""
    trips = ("?" if loop.trips is None else str(loop.trips) for loop in program.loops)
    return ", ".join(trips) or "no"


def _windowed(program: Program) -> int:
    return sum(loop.is_windowed_einsum for loop in program.loops)


# the message about a change of a fact, and the function that reads the fact from a program
_OF_PROGRAM: tuple[tuple[str, Callable[[Program], Value]], ...] = (
    ("loops run {old} -> {new} rounds", _trips),
    (
        "double-buffered loops: {old} -> {new}",
        lambda program: sum(loop.is_unrolled for loop in program.loops),
    ),
    ("windowed einsum loops: {old} -> {new}", _windowed),
    ("collectives in flight: {old} -> {new}", lambda program: program.in_flight),
    (
        "memory {old} -> {new}",
        lambda program: None if program.memory_bytes is None else size(program.memory_bytes),
    ),
)


def _of_program(before: Program, after: Program) -> Iterator[Message]:
    """Yield what changed for the program as a whole; a fact that one dump lacks is left out."""
    for text, fact in _OF_PROGRAM:
        old, new = fact(before), fact(after)
        if old != new and None not in (old, new):
            yield say(text, old=old, new=new)


def _other_instructions(before: Program, after: Program) -> Message:
    """Name the instructions whose number changed, except collectives."""
    collective_opcodes = {*KINDS, "async"}
    changed = Counter(after.opcodes)
    changed.subtract(before.opcodes)
    by_change = sorted(
        (
            (opcode, count)
            for opcode, count in changed.items()
            if count
            and opcode.removesuffix("-start").removesuffix("-done") not in collective_opcodes
        ),
        key=lambda item: (-abs(item[1]), item[0]),
    )
    if not by_change:
        return say("nothing else changed in number")
    shown = [f"{opcode} {count:+d}" for opcode, count in by_change[:4]]
    if len(by_change) == len(shown):
        return say("other instructions: {shown}", shown=shown)
    more = len(by_change) - len(shown)
    return say("other instructions: {shown} and {more} more kinds", shown=shown, more=more)


def size(size_bytes: int) -> str:
    """Return a size as people write it: 32 MiB, 1.5 GiB, 4 B."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


class ProgramFact(StrEnum):
    """What a flag changes when it acts: a fact of the program, or where else it acts."""

    SIZES = "number and sizes of its collectives"
    PIPELINED = "pipelined collectives, or a peeled round of the loop"
    UNROLLED = "double-buffered loops"
    IN_FLIGHT = "collectives in flight"
    ASYNC = "synchronous or asynchronous collectives"
    DECOMPOSED = "collective-permutes as send and recv"
    WINDOWED = "windowed einsum loops"
    SPLIT = "number of its collectives"
    MEMORY = "memory"
    PROGRAM = "the program"
    RUN_TIME = "run time"
    MACHINE_CODE = "machine code"


# flags with these facts never change the program -> where their effect can be seen
BELOW = {
    ProgramFact.RUN_TIME: "it acts at run time; look at the trace or at NCCL_DEBUG=INFO",
    ProgramFact.MACHINE_CODE: "it acts on the machine code below HLO; only time shows it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a flag changes when it acts, for some `kinds` of collectives; () means all."""

    fact: ProgramFact
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the fact, and the kinds in brackets."""
        return f"{self.fact} ({', '.join(self.kinds)})" if self.kinds else str(self.fact)


@functools.cache
def expectations() -> dict[str, Expectation]:
    """Return flag name -> what it changes when it acts; `seen_in.toml` is read once."""
    text = Path(__file__).with_name("seen_in.toml").read_text(encoding="utf-8")
    return {
        flag: Expectation(fact=ProgramFact[row["fact"].upper()], kinds=tuple(row.get("kinds", ())))
        for row in tomllib.loads(text)["seen"]
        for flag in row["flags"]
    }


def _collective_sizes(program: Program, kinds: tuple[str, ...]) -> object:
    collectives = program.collectives_of(*kinds) if kinds else program.collectives
    return Counter((collective.kind, collective.size_bytes) for collective in collectives)


# fact -> a function that reads it from a program: if two programs differ in it, the fact changed
_SEEN: dict[ProgramFact, Callable[[Program, tuple[str, ...]], object]] = {
    ProgramFact.SIZES: _collective_sizes,
    ProgramFact.SPLIT: _collective_sizes,
    ProgramFact.PIPELINED: lambda program, _: (
        sum(collective.is_pipelined for collective in program.collectives),
        _trips(program),
    ),
    ProgramFact.UNROLLED: lambda program, _: [loop.unrolled for loop in program.loops],
    ProgramFact.IN_FLIGHT: lambda program, _: program.in_flight,
    ProgramFact.ASYNC: lambda program, _: Counter(
        (collective.kind, collective.is_async) for collective in program.collectives
    ),
    ProgramFact.DECOMPOSED: lambda program, _: (
        len(program.collectives_of("collective-permute")),
        len(program.collectives_of("send", "recv")),
    ),
    ProgramFact.WINDOWED: lambda program, _: _windowed(program),
    ProgramFact.MEMORY: lambda program, _: (program.memory_bytes, program.digest),
    ProgramFact.PROGRAM: lambda program, _: program.digest,
}


def prove(flags: Sequence[str], before: Program, after: Program) -> tuple[Proof, ...]:
    """Return for each setting whether it acted, from programs that differ only in these settings.

    If one setting differs, it caused every change of the program. If several differ, no change can
    be attributed to one of them, and each that may have caused it is "one of these".
    """
    names = [flag.lstrip("-").partition("=")[0] for flag in flags]
    # if several flags of XLA differ, the program does not show which of them acted
    together = [name for name in names if name.startswith("xla_")]
    proofs = []
    for flag in names:
        if flag in together:
            acted, why = _judged(flag, before, after, is_alone=len(together) == 1)
        else:
            acted, why = Acted.UNSEEN, verbatim("an environment variable of the run time")
        message = say(_PROOFS[acted], flag=flag, why=why, together=together)
        proofs.append(Proof(flag=flag, acted=acted, message=message))
    return tuple(proofs)


_PROOFS = {
    Acted.ACTED: "{flag} acted: {why}",
    Acted.ONE_OF: "{flag}: one of these acted, or several: {together}; {why}",
    Acted.DID_NOT_ACT: "{flag} did not act: {why}",
    Acted.UNSEEN: "{flag} cannot be seen in HLO: {why}",
}


def _judged(flag: str, before: Program, after: Program, *, is_alone: bool) -> tuple[Acted, Message]:
    """Return whether a flag of XLA acted, and why; `is_alone` says that no other flag differs."""
    distance, expected = change(before, after), expectations().get(flag)
    is_below = expected is not None and expected.fact in BELOW
    # a flag that changes only the schedule has acted too
    if distance in (Change.SCHEDULE, Change.PROGRAM):
        acted = Acted.ACTED if is_alone else Acted.ONE_OF
        if expected is None or is_below:
            return acted, verbatim(distance)
        values = (_SEEN[expected.fact](program, expected.kinds) for program in (before, after))
        is_same = next(values) == next(values)
        text = "{change}, while {fact} are as before" if is_same else "{fact} changed"
        return acted, say(text, change=str(distance), fact=str(expected))
    if expected is None:
        text = "the optimised HLO is the same, and no table says where it acts"
        return Acted.UNSEEN, verbatim(text)
    if is_below:
        return Acted.UNSEEN, verbatim(BELOW[expected.fact])
    text = "the program is identical" if distance is Change.IDENTICAL else distance
    return Acted.DID_NOT_ACT, verbatim(text)
