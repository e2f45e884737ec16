"""What the compiler made of a program: the facts that flags change, as values.

Filled by `hlotext`, compared by `difference`. A collective counts by the operation that it really
is: an `async-start` is the all-gather that its computation holds. Executions are per step: the
product of the trip counts of the loops around it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.records import Record

# in the order of reports
KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Record):
    """One collective operation of the program."""

    name: str
    kind: str  # all-gather, reduce-scatter, collective-permute, send ...
    computation: str
    size_bytes: int  # of its result: what the done, or the plain operation, yields
    is_async: bool
    is_pipelined: bool
    groups: str  # replica groups, or source-target pairs, as written
    stream: str | None
    executions: int
    in_loop: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Record):
    """A while loop. `unrolled` is the step of its counter: 2 after double buffering."""

    name: str
    body: str
    trips: int | None  # None: the compiler does not know
    unrolled: int
    executions: int

    @property
    def is_unrolled(self) -> bool:
        """Two rounds of the program in one of the loop: double buffering."""
        return self.unrolled > 1

    @property
    def is_windowed_einsum(self) -> bool:
        """A matrix multiplication that exchanges its operand piece by piece."""
        return self.body.startswith("windowed_dot_general_body")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thunks(Record):
    """The launch order that the runtime got (`*.thunk_sequence.txt`): an independent count."""

    collectives: dict[str, int]
    in_flight: int | None  # None: up to jaxlib 0.8 the file does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Record):
    """A compiled module."""

    source: str
    module: str
    target: str  # cpu, or the GPU architecture as the file's name says: sm_9.0a, gfx942
    fingerprint: str | None  # of the program before it was scheduled
    digest: str  # of the scheduled program, without metadata and tables
    unordered: str  # of the same lines in any order
    instructions: int
    opcodes: dict[str, int]
    collectives: tuple[Collective, ...]
    loops: tuple[Loop, ...]
    in_flight: int  # most collectives started and not done, in schedule order
    memory_bytes: int | None = None  # from the memory-usage report: arguments and temporaries
    options: dict[str, str] | None = None  # that differ from their defaults
    thunks: Thunks | None = None

    @property
    def unknown_trips(self) -> int:
        """Loops whose rounds are not known; what runs in them counts as run once."""
        return sum(loop.trips is None for loop in self.loops)

    def of(self, *kinds: str) -> tuple[Collective, ...]:
        """Return the collectives of some kinds."""
        return tuple(each for each in self.collectives if each.kind in kinds)
