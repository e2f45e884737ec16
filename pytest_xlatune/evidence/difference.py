"""Two compiled programs to what changed, in the words of a tuner.

The sentences are made of counted facts only: numbers and sizes of collectives in and outside of
loops, bytes and executions per step, synchronous, pipelined, trip counts, collectives in flight,
memory. Names, source lines and metadata never make a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_xlatune.evidence.hlo import KINDS, Collective, Program
from pytest_xlatune.records import Record


class Change(StrEnum):
    """How far two programs are apart."""

    IDENTICAL = "identical"
    SCHEDULE = "same program, other schedule"
    PROGRAM = "other program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Record):
    """What changed from one program to another, one sentence per fact."""

    before: str
    after: str
    change: Change
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it in one line."""
        return "; ".join(self.sentences)


def change(before: Program, after: Program) -> Change:
    """Return how far two programs are apart."""
    if before.digest == after.digest:
        return Change.IDENTICAL
    same = before.unordered == after.unordered or (
        before.fingerprint is not None and before.fingerprint == after.fingerprint
    )
    return Change.SCHEDULE if same else Change.PROGRAM


def difference(before: Program, after: Program) -> Difference:
    """Compare two programs."""
    found = change(before, after)
    facts = list(_facts(before, after))
    sentences: list[str] = ["identical: this flag cannot matter at compile time"]
    if found is Change.SCHEDULE:
        unmoved = ["instructions in another order, every collective as before"]
        sentences = [str(found), *(facts or unmoved)]
    elif found is Change.PROGRAM:
        sentences = [*(facts or ["other program, the same collectives"]), *_rest(before, after)]
    return Difference(
        before=before.source, after=after.source, change=found, sentences=tuple(sentences)
    )


def _facts(before: Program, after: Program) -> Iterator[str]:
    for kind in KINDS:
        for in_loop in (True, False):
            yield from _collectives(kind, in_loop, before, after)
    yield from _loops(before, after)
    if before.in_flight != after.in_flight:
        yield f"{flying(after)} instead of {before.in_flight}"
    if before.memory_bytes is not None and after.memory_bytes is not None:
        old, new = size(before.memory_bytes), size(after.memory_bytes)
        if old != new:
            yield f"memory {old} -> {new}"


def _collectives(kind: str, in_loop: bool, before: Program, after: Program) -> Iterator[str]:  # noqa: FBT001
    """Say how the collectives of a kind changed in, or outside of, the loops."""
    old, new = (
        [each for each in program.of(kind) if each.in_loop == in_loop]
        for program in (before, after)
    )
    if not (old or new):
        return
    parts = []
    if Counter(each.size_bytes for each in old) != Counter(each.size_bytes for each in new):
        moved, now = (_bytes(each) for each in (old, new))
        parts = [
            f"{_sizes(old)} -> {_sizes(new)}",
            f"bytes unchanged ({size(now)} a step)"
            if moved == now
            else f"{size(moved)} -> {size(now)} a step",
        ]
    runs = tuple(sum(each.executions for each in some) for some in (old, new))
    if parts or runs[0] != runs[1]:
        parts.append(f"{runs[0]} -> {runs[1]} executions")
    for word, attribute in (("asynchronous", "is_async"), ("pipelined", "is_pipelined")):
        counts = tuple(sum(getattr(each, attribute) for each in some) for some in (old, new))
        if counts[0] * len(new) != counts[1] * len(old):
            parts.append(f"{counts[0]} of {len(old)} -> {counts[1]} of {len(new)} {word}")
    if len(old) == len(new) and _groups(old) != _groups(new):
        parts.append("between other devices")
    if parts:
        where = "in the loop" if in_loop else "outside of loops"
        yield f"{_plural_kind(kind)} {where}: {', '.join(parts)}"


def _loops(before: Program, after: Program) -> Iterator[str]:
    trips = tuple(_trips(program) for program in (before, after))
    if trips[0] != trips[1]:
        yield f"loops run {trips[0]} -> {trips[1]} rounds"
    for word, attribute in (
        ("double-buffered loops", "is_unrolled"),
        ("windowed einsum loops", "is_windowed_einsum"),
    ):
        old, new = (
            sum(getattr(loop, attribute) for loop in program.loops) for program in (before, after)
        )
        if old != new:
            yield f"{word}: {old} -> {new}"


def _rest(before: Program, after: Program) -> Iterator[str]:
    """Name the instructions that are no collectives and changed in number."""
    changed = {
        opcode: after.opcodes.get(opcode, 0) - before.opcodes.get(opcode, 0)
        for opcode in before.opcodes.keys() | after.opcodes.keys()
        if opcode.removesuffix("-start").removesuffix("-done") not in {*KINDS, "async"}
    }
    most = sorted(
        (item for item in changed.items() if item[1]), key=lambda item: (-abs(item[1]), item[0])
    )
    if not most:
        yield "nothing else changed in number"
        return
    shown = ", ".join(f"{opcode} {count:+d}" for opcode, count in most[:4])
    more = f" and {len(most) - 4} more kinds" if len(most) > 4 else ""  # noqa: PLR2004
    yield f"other instructions: {shown}{more}"


def _bytes(collectives: Sequence[Collective]) -> int:
    return sum(each.size_bytes * each.executions for each in collectives)


def _groups(collectives: Sequence[Collective]) -> Counter[str]:
    return Counter(each.groups for each in collectives)


def _sizes(collectives: Sequence[Collective]) -> str:
    """Return e.g. `6 of 32 MiB` or `2 of 96 MiB + 1 of 4 B`, the largest first."""
    counts = sorted(Counter(each.size_bytes for each in collectives).items(), reverse=True)
    shown = " + ".join(f"{count} of {size(each)}" for each, count in counts[:3])
    rest = sum(count for _, count in counts[3:])
    return (shown + (f" + {rest} smaller" if rest else "")) or "none"


def _trips(program: Program) -> str:
    """Return the trip counts in the order of the program, e.g. `8, 8`."""
    trips = ("?" if loop.trips is None else str(loop.trips) for loop in program.loops)
    return ", ".join(trips) or "no"


def _plural_kind(kind: str) -> str:
    return kind + ("" if kind.endswith("s") else "s")


def flying(program: Program) -> str:
    """Return how many collectives are between start and done at once."""
    if not program.in_flight:
        return "no collective in flight"
    return f"up to {plural(program.in_flight, 'collective')} in flight"


def plural(count: int, word: str) -> str:
    """Return `1 loop`, `2 loops`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def size(size_bytes: int) -> str:
    """Return a size as people write it: 32 MiB, 1.5 GiB, 4 B."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
