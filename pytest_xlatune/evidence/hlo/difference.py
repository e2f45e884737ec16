"""Two compiled programs to what changed, and whether a flag acted, in the words of a tuner.

The sentences are made of counted facts only: numbers and sizes of collectives in and outside of
loops, bytes and executions per step, synchronous, pipelined, trip counts, collectives in flight,
memory. Names, source lines and metadata never make a difference.

Whether a flag acted: `seen_in.toml` has the fact of the program that each must change. A flag that
was set and changed nothing was measured for nothing; a flag that acts at run time only cannot be
judged here at all. Which of the three holds is looked up, not guessed.

`CompileJudge` says which profiles need no run, and why; it starts no compiler. Two programs may be
equal and run differently: what acts at run time only (flags that no table of
HLO knows, variables, overrides) is kept beside the program, and only where both are equal is a
profile the baseline, or another profile, under another name.
"""

from __future__ import annotations

import functools
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pytest_xlatune.evidence.hlo import KINDS, Collective, Program
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import Profile, effective_values
from pytest_xlatune.model.record import Real, Record, digest
from pytest_xlatune.model.text import counted


class Change(StrEnum):
    """How far two programs are apart."""

    IDENTICAL = "identical"
    TUNED = "same program, other autotuned kernels"
    SCHEDULE = "same program, other schedule"
    PROGRAM = "other program"


class ProgramDifference(Record, frozen=True, kw_only=True):
    """What changed from one program to another, one sentence per fact."""

    before: str
    after: str
    change: Change
    sentences: tuple[str, ...]


_SAME = (
    "identical: the optimised HLO is the same; the effect of a setting, if any, is below HLO or at "
    "run time"
)
_TUNED = (
    f"{Change.TUNED}: autotuning measured again and chose otherwise, as it may in any run; "
    "docs/how-to/kernels.md says how to pin its choice"
)


def change(before: Program, after: Program) -> Change:
    """Return how far two programs are apart."""
    if before.digest == after.digest:
        return Change.IDENTICAL if before.tuned == after.tuned else Change.TUNED
    same = before.unordered == after.unordered or (
        before.fingerprint is not None and before.fingerprint == after.fingerprint
    )
    return Change.SCHEDULE if same else Change.PROGRAM


def difference(before: Program, after: Program) -> ProgramDifference:
    """Compare two programs."""
    found = change(before, after)
    facts = list(_facts(before, after))
    sentences = [_SAME]
    if found is Change.TUNED:
        sentences = [_TUNED]
    elif found is Change.SCHEDULE:
        unmoved = ["instructions in another order, every collective as before"]
        sentences = [str(found), *(facts or unmoved)]
    elif found is Change.PROGRAM:
        sentences = [*(facts or ["other program, the same collectives"]), *_rest(before, after)]
    return ProgramDifference(
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
        [collective for collective in program.of(kind) if collective.in_loop == in_loop]
        for program in (before, after)
    )
    if not (old or new):
        return
    parts = []
    if Counter(collective.size_bytes for collective in old) != Counter(
        collective.size_bytes for collective in new
    ):
        moved, now = (_bytes(each) for each in (old, new))
        parts = [
            f"{_sizes(old)} -> {_sizes(new)}",
            f"bytes unchanged ({size(now)} a step)"
            if moved == now
            else f"{size(moved)} -> {size(now)} a step",
        ]
    runs = tuple(sum(collective.executions for collective in some) for some in (old, new))
    if parts or runs[0] != runs[1]:
        parts.append(f"{runs[0]} -> {runs[1]} executions")
    for word, attribute in (("asynchronous", "is_async"), ("pipelined", "is_pipelined")):
        counts = tuple(
            sum(getattr(collective, attribute) for collective in some) for some in (old, new)
        )
        if counts[0] * len(new) != counts[1] * len(old):
            parts.append(f"{counts[0]} of {len(old)} -> {counts[1]} of {len(new)} {word}")
    if len(old) == len(new) and _groups(old) != _groups(new):
        parts.append("between other devices")
    if parts:
        where = "in the loop" if in_loop else "outside of loops"
        yield f"{kind}s {where}: {', '.join(parts)}"


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
    return sum(collective.size_bytes * collective.executions for collective in collectives)


def _groups(collectives: Sequence[Collective]) -> Counter[str]:
    return Counter(collective.groups for collective in collectives)


def _sizes(collectives: Sequence[Collective]) -> str:
    """Return e.g. `6 of 32 MiB` or `2 of 96 MiB + 1 of 4 B`, the largest first."""
    counts = sorted(
        Counter(collective.size_bytes for collective in collectives).items(), reverse=True
    )
    shown = " + ".join(f"{count} of {size(each)}" for each, count in counts[:3])
    rest = sum(count for _, count in counts[3:])
    return (shown + (f" + {rest} smaller" if rest else "")) or "none"


def _trips(program: Program) -> str:
    """Return the trip counts in the order of the program, e.g. `8, 8`."""
    trips = ("?" if loop.trips is None else str(loop.trips) for loop in program.loops)
    return ", ".join(trips) or "no"


def flying(program: Program) -> str:
    """Return how many collectives are between start and done at once."""
    if not program.in_flight:
        return "no collective in flight"
    return f"up to {counted(program.in_flight, 'collective')} in flight"


def size(size_bytes: int) -> str:
    """Return a size as people write it: 32 MiB, 1.5 GiB, 4 B."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


class Acted(StrEnum):
    """What the program says about a flag."""

    ACTED = "acted"
    ONE_OF = "one of these"  # that differ together; no compile without each of them was made
    DID_NOT_ACT = "did not act"
    UNSEEN = "cannot be seen in HLO"


class ProgramFact(StrEnum):
    """A fact of a program that a flag may change."""

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


class Below(StrEnum):
    """Where a flag acts that leaves the program as it is."""

    RUN_TIME = "run time"
    MACHINE_CODE = "machine code"


_WHY = {
    Below.RUN_TIME: "it acts at run time; look at the trace or at NCCL_DEBUG=INFO",
    Below.MACHINE_CODE: "it acts on the machine code below HLO; only time shows it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The fact that a flag changes when it acts; of some kinds of collectives, or of all.

    Without a fact the program is the same by design, and `below` says where the flag acts.
    """

    fact: ProgramFact | None
    kinds: tuple[str, ...] = ()
    below: Below | None = None

    @property
    def kinds_text(self) -> str:
        """The kinds in brackets, "" for all."""
        return f" ({', '.join(self.kinds)})" if self.kinds else ""


class Proof(Record, frozen=True, kw_only=True):
    """Whether a flag acted, and the sentence that says so."""

    flag: str
    acted: Acted
    sentence: str


@functools.cache
def expectations() -> dict[str, Expectation]:
    """Return what each flag changes when it acts, by name; reads `seen_in.toml` once."""
    text = Path(__file__).with_name("seen_in.toml").read_text(encoding="utf-8")
    found: dict[str, Expectation] = {}
    for row in tomllib.loads(text)["seen"]:
        expected = Expectation(
            fact=ProgramFact[row["fact"].upper()] if "fact" in row else None,
            kinds=tuple(row.get("kinds", ())),
            below=Below(row["below"]) if "below" in row else None,
        )
        found |= dict.fromkeys(row["flags"], expected)
    return found


def _collective_sizes(program: Program, kinds: tuple[str, ...]) -> object:
    return Counter(
        (collective.kind, collective.size_bytes)
        for collective in program.collectives
        if not kinds or collective.kind in kinds
    )


# what of a program stands for a fact: if it differs between two programs, the fact changed
_SEEN: dict[ProgramFact, Callable[[Program, tuple[str, ...]], object]] = {
    ProgramFact.SIZES: _collective_sizes,
    ProgramFact.SPLIT: _collective_sizes,
    ProgramFact.PIPELINED: lambda program, _: (
        sum(collective.is_pipelined for collective in program.collectives),
        [loop.trips for loop in program.loops],
    ),
    ProgramFact.UNROLLED: lambda program, _: [loop.unrolled for loop in program.loops],
    ProgramFact.IN_FLIGHT: lambda program, _: program.in_flight,
    ProgramFact.ASYNC: lambda program, _: Counter(
        (collective.kind, collective.is_async) for collective in program.collectives
    ),
    ProgramFact.DECOMPOSED: lambda program, _: (
        len(program.of("collective-permute")),
        len(program.of("send", "recv")),
    ),
    ProgramFact.WINDOWED: lambda program, _: sum(loop.is_windowed_einsum for loop in program.loops),
    ProgramFact.MEMORY: lambda program, _: (program.memory_bytes, program.digest),
    ProgramFact.PROGRAM: lambda program, _: program.digest,
}


def prove(flags: Sequence[str], before: Program, after: Program) -> tuple[Proof, ...]:
    """Say of each setting whether it acted, from two programs that differ in these settings alone.

    With one of them any change of the program is its own. With several no change can be given to
    one: each that may have made it is "one of these".
    """
    names = [flag.lstrip("-").partition("=")[0] for flag in flags]
    found = change(before, after)
    # a flag that alone moved the schedule was told as one that did not act
    is_changed = found in (Change.SCHEDULE, Change.PROGRAM)
    # of two options in one program each "acted", one that was not even compiled in as well
    together = [each for each in names if each.startswith("xla_")]
    return tuple(
        _proof(name, before, after, found, of=together if is_changed else ()) for name in names
    )


def _proof(
    name: str, before: Program, after: Program, found: Change, *, of: Sequence[str]
) -> Proof:
    """Judge one setting; `of` are the flags of which one at least changed the program."""
    if not name.startswith("xla_"):
        return _unseen(name, "an environment variable of the run time")
    expected = expectations().get(name)
    below = expected is not None and (expected.below is not None or expected.fact is None)
    if not of and expected is None:
        return _unseen(name, "the optimised HLO is the same, and no table says where it acts")
    if not of and expected is not None and below:
        return _unseen(name, _WHY[expected.below or Below.RUN_TIME])
    if not of:
        said = "the program is identical" if found is Change.IDENTICAL else str(found)
        return Proof(flag=name, acted=Acted.DID_NOT_ACT, sentence=f"{name} did not act: {said}")
    changed = str(found)
    if expected is not None and expected.fact is not None and not below:
        is_seen = _SEEN[expected.fact](before, expected.kinds) != _SEEN[expected.fact](
            after, expected.kinds
        )
        fact = f"{expected.fact}{expected.kinds_text}"
        changed = f"it changed {fact}" if is_seen else f"{found}, while {fact} are as before"
    if len(of) == 1:
        said = f"{name} acted: {changed}"
        return Proof(flag=name, acted=Acted.ACTED, sentence=said)
    changed = changed.replace("it changed ", "changed are ")
    said = f"{name}: {Acted.ONE_OF} acted, or several: {', '.join(of)}; {changed}"
    return Proof(flag=name, acted=Acted.ONE_OF, sentence=said)


def _unseen(name: str, why: str) -> Proof:
    return Proof(flag=name, acted=Acted.UNSEEN, sentence=f"{name} cannot be seen in HLO: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What came out of compiling a profile."""

    profile: Profile
    program: Program | None  # None: the compiler made none
    said: str = ""  # its last word where something went wrong
    refused: bool = False  # a flag was unknown to it, or its value
    is_interrupted: bool = False  # from outside: no program, and nothing of the profile is known
    is_out_of_memory: bool = False  # it ended for want of memory
    took_s: float = 0.0


class CompileFinding(Record, frozen=True, kw_only=True):
    """A profile, judged."""

    profile: str
    cls: CompileClass
    sentence: str
    took_s: Real = 0.0
    setting: str = ""  # digest of program and run-time settings; "" where there is no program
    later: tuple[str, ...] = ()  # settings that may act at run time only


@dataclass(slots=True, kw_only=True)
class CompileJudge:
    """Judges profiles, each against the baseline."""

    baseline: Program  # the cell as deployed
    memory_limit_bytes: int | None = None  # of one device; None is unknown
    # which of a profile's variables do nothing where its program is the baseline's, and why
    idle: Callable[[Mapping[str, str]], Mapping[str, str]] = field(default=lambda _: {})

    def judge(self, compiled: Compiled) -> CompileFinding:
        """Say what compiling this profile tells."""
        found, setting = compiled.program, ""
        later: dict[str, str | None] = {}
        if found is None:
            cls = CompileClass.REFUSED if compiled.refused else CompileClass.FAILED
            sentence = compiled.said
        else:
            later = self._run_time(compiled.profile, found)
            cls, sentence = self._compare(compiled.profile, found, later)
            setting = digest([found.digest, found.tuned, sorted(later.items())])
            sentence += f"; then: {compiled.said}" if compiled.said else ""
        return CompileFinding(
            profile=compiled.profile.id,
            cls=cls,
            sentence=sentence,
            took_s=compiled.took_s,
            setting=setting,
            later=tuple(sorted(later)),
        )

    def _compare(
        self, profile: Profile, found: Program, unseen: Mapping[str, str | None]
    ) -> tuple[CompileClass, str]:
        needed, limit = found.memory_bytes, self.memory_limit_bytes
        if needed is not None and limit is not None and needed > limit:
            return CompileClass.MEMORY, f"{size(needed)} of {size(limit)}"
        changed = difference(self.baseline, found)
        if changed.change is not Change.IDENTICAL:
            if changed.change is not Change.SCHEDULE:
                return CompileClass.PROGRAM, "; ".join(changed.sentences)
            # the class says already what the first sentence does
            return CompileClass.SCHEDULE, "; ".join(changed.sentences[1:])
        if unseen:
            may = f"{', '.join(sorted(unseen))} may act below it, or later"
            return CompileClass.UNSEEN, f"same program; {may}"
        idle = self.idle(profile.env)
        if idle:
            return CompileClass.IDENTICAL, "; ".join(f"{name}: {idle[name]}" for name in idle)
        if profile.flags and self._differing(found) == set():
            said = "every option is as deployed: a default, or silently dropped"
            return CompileClass.IDENTICAL, said
        return CompileClass.IDENTICAL, "keep one such profile as an A/A control, or none"

    def _run_time(self, profile: Profile, found: Program) -> dict[str, str | None]:
        """Return the settings that may act without changing the program."""
        asked = effective_values(profile.flags)
        idle = self.idle(profile.env)
        differing = self._differing(found)
        set_to: dict[str, str | None] = dict(asked)
        if differing is not None and found.options is not None:
            set_to = {name: found.options.get(name) for name in differing}
            # XLA prints a list that was emptied as it prints a default: not at all
            set_to |= {name: value for name, value in asked.items() if not value}
        # a flag that acts on the program alone runs alike where programs are equal
        seen = {
            name for name, expectation in expectations().items() if expectation.fact is not None
        }
        return {
            **{f"--{name}": value for name, value in set_to.items() if name not in seen},
            **{name: profile.env[name] for name in profile.env if name not in idle},
            **profile.overrides,
        }

    def _differing(self, found: Program) -> set[str] | None:
        """Return the options that differ from the baseline's; None where XLA printed none."""
        old, new = self.baseline.options, found.options
        if old is None or new is None:
            return None
        return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
