"""Turn HLO text into a `Program`, the facts that flags change: jaxlib 0.6 to 0.12, `as_text()`.

A collective counts as the operation that it really is: an `async-start` counts as the all-gather in
its computation. Executions are per step: the product of the trip counts of the surrounding loops.
The lines are read once, and all but collectives, calls and loops are only hashed, so that a dump of
300 MB takes seconds. The dialects differ in how they write an asynchronous collective:

    %all-gather-start = (in, out) all-gather-start(%x) ...            up to 0.10, and as_text()
    %all-gather-start = ((in), out) async-start(%x), calls=%comp      0.12, in the dump
    %all-gather = out all-gather(%x), ... "is_sync":true              0.12 sync; CPU without config
    %recv = (out, u32[], token[]) recv(%token) ...                    a decomposed permute
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.record import Record

# the kinds of collectives, in the order of reports
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


class Collective(Record, frozen=True, kw_only=True):
    """One collective operation of the program."""

    name: str
    kind: str  # all-gather, reduce-scatter, collective-permute, send ...
    computation: str
    size_bytes: int  # bytes of the result, which the done, or the plain operation, returns
    is_async: bool
    is_pipelined: bool
    groups: str  # replica groups or source-target pairs, as written
    stream: str | None
    executions: int  # number of executions in a step; the largest possible one in a conditional
    in_loop: bool
    in_branch: bool = False  # whether it is in a conditional, so that it may never run
    inner: str = ""  # the operation inside an async-start; "" without one


class Loop(Record, frozen=True, kw_only=True):
    """A while loop. `unrolled` is the increment of its counter: 2 after double buffering."""

    name: str
    body: str
    trips: int | None  # trip count; None if the compiler does not know it
    unrolled: int
    executions: int

    @property
    def is_unrolled(self) -> bool:
        """Whether one iteration does two of the program's: double buffering."""
        return self.unrolled > 1

    @property
    def is_windowed_einsum(self) -> bool:
        """Whether it is a matrix multiplication that exchanges its operand piece by piece."""
        return self.body.startswith("windowed_dot_general_body")


class Program(Record, frozen=True, kw_only=True):
    """A compiled module."""

    source: str
    module: str
    target: str  # cpu, or the GPU architecture in the file's name: sm_9.0a, gfx942
    # fingerprint of the program before scheduling; None if the text lacks it
    fingerprint: str | None
    digest: str  # digest of the scheduled operations and their operands, without names and numbers
    unordered: str  # digest of the same operations without their order
    instructions: int
    opcodes: dict[str, int]
    collectives: tuple[Collective, ...]
    loops: tuple[Loop, ...]
    in_flight: int  # largest number of collectives between start and done, in schedule order
    # arguments and temporaries from the memory-usage report; None without it
    memory_bytes: int | None = None
    # options that differ from their defaults; None if unknown
    options: dict[str, str] | None = None
    tuned: str = ""  # digest of autotuning's choices: tiles and algorithms

    @property
    def unknown_trips(self) -> int:
        """Number of loops with unknown trip counts; their content counts as executed once."""
        return sum(loop.trips is None for loop in self.loops)

    def collectives_of(self, *kinds: str) -> tuple[Collective, ...]:
        """Return the collectives of these kinds."""
        return tuple(collective for collective in self.collectives if collective.kind in kinds)


CALLERS = frozenset({"while", "call", "conditional", "fusion", "async-start", "custom-call"})
# operations whose called computations have a schedule
_WITH_A_SCHEDULE = frozenset({"while", "call", "conditional"})

MAX_LINE = 1 << 24  # most characters of a line: constants and tuples may be long, but not longer
MAX_COMPUTATIONS = 1 << 20
_MOST_BITS = 1 << 63
_MOST_DIGITS = 20  # most digits of a number
_MOST_EXECUTIONS = 1 << 63  # limit for the product of trip counts in nested loops

# an instruction:    ROOT %all-gather.5 = bf16[2048,8192]{1,0} all-gather(%param_0.78), channel_id=1
#   with a tuple:    %while.1 = (s32[], /*index=5*/f32[8]{0:S(1)}) while(%tuple.13), condition=...
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ([a-z][a-z0-9-]*)\(")
# a computation:  %fused_slice.1 (param_0: s32[]) -> f32[8] {
#                 ENTRY %main.5_spmd (param: f32[8]) -> f32[8] {
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{\s*$")
# the first line:  HloModule jit_train_step, is_scheduled=true, entry_computation_layout={...
_MODULE = re.compile(r"HloModule ([^\s,]+)")
# in it:  frontend_attributes={fingerprint_before_lhs="70caf7744d6db14c500bc2be2259cefc"}
_FINGERPRINT = re.compile(r'fingerprint_before_lhs="([0-9a-f]+)"')
# in a call:  calls=%comp    body=%region_0.1_spmd, condition=%region_1.2    to_apply=%add
_CALLED = re.compile(r"(?:calls|body|to_apply)=%?([\w.-]+)")
# in a conditional:  branch_computations={%a, %b}    true_computation=%a, false_computation=%b
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.-]+)")
# in a while, in any order:  "known_trip_count":{"n":"8"},"known_init_step":{"init":"0","step":"2"}
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d{1,18})"')
_STEP = re.compile(r'"known_init_step":\{[^}]*"step":"(\d{1,18})"')
# in a done:  all-gather-done(%all-gather-start.1)    send-done((f32[8], u32[]) %send)
_OPERAND = re.compile(r"(?<![\w.-])([\w.-]++)\)")
# groups of devices:  replica_groups={{0,1},{2,3}}   =[1,8]<=[8]   =mesh['axis_0'=8] {'axis_0'}
#           =mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}   source_target_pairs={{0,1},{1,2}}
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(\{(?:\{[^}]*\},?)*\}|\[[^]]*\](?:<=\[[^]]*\](?:T\([^)]*\))?)?"
    r"|mesh\[[^]]*\](?:, device_ids=\((?:[^()]|\([^()]*\))*\))? ?\{[^}]*\})"
)
# in frontend_attributes:  _xla_gpu_collective_stream="p2p"
_STREAM = re.compile(r'_xla_gpu_collective_stream="([^"]*)"')
# an array in a shape:  bf16[8,256,8192]    f32[]    s32[<=8]
_ARRAY = re.compile(r"([a-z][a-z0-9]{0,31})\[([^][]*)\]")
# a file name:  module_0001.jit_f.sm_9.0a_gpu_after_optimizations.txt   .cpu_after_optimizations.txt
# libtpu:    module_0000.jit_f.cl_1014260217.after_optimizations.txt
_TARGET = re.compile(r"\.((?:sm_|gfx)[\w.]+?)_gpu_after_opt|\.(cpu)_after_opt|\.cl_\d+\.after_opt")

# a name that is used:  calls=%fused_add    dot(%param_0, %copy.1)
_NAMED = re.compile(r"%([\w.-]+)")
# consecutive numbers that a compiler assigns:  , channel_id=12
_CHANNEL = re.compile(r", channel_id=\d+")
_NESTED = r"\{(?:[^{}]|\{[^{}]*\})*\}"
# Autotuning's choices on the device: words that a line with such a choice contains, and the parts
# that are taken out of it:
#   "triton_gemm_config":{"block_m":"16",...}    "selected_algorithm":"-1"
#   "algorithm":{"algo_id":"28",...}    "autotune_workspace_size":"0"
#   scratch space of the algorithm, last in its result:  (f32[8,8]{1,0}, s8[4194304]{0})
#   in a matrix product inside a Triton kernel:  backend_config={"sizes":["16"]}
#   "kind":"__triton_nested_gemm_fusion","block_level_fusion_config":{"num_warps":"2",...}
#   the same in 0.11.2 in the other order: "block_level_fusion_config":{...},"kind":"__triton_n...
_TUNED = (
    ("_gemm", "algorithm", '={"sizes"'),
    re.compile(
        rf'"triton_gemm_config":{_NESTED}|"selected_algorithm":"-?\d+"|"algorithm":{_NESTED}'
        r'|"algorithm":"-?\d+"|"autotune_workspace_size":"\d+"|backend_config=\{"sizes":\[[^]]*\]\}'
        rf'|(?<=_gemm_fusion",)"block_level_fusion_config":{_NESTED}'
        rf'|"block_level_fusion_config":{_NESTED}(?=,"kind":"__triton_nested_gemm_fusion")'
        r"|(?<=[}\]]), s8\[\d+\]\{0\}(?=\))"
    ),
)
# The emitter that makes a kernel of a fusion, which autotuning also chooses in 0.11.2:
#   kind=kInput, calls=%a, backend_config={..., "native_emitter_backend_config":{...},...}
#   kind=kCustom, calls=%a, backend_config={..., "fusion_backend_config":
#     {"block_level_fusion_config":{"num_warps":"4",...},"kind":"__triton"},...}
_EMITTER = (
    ('"native_emitter_backend_config"', '"__triton"}'),
    re.compile(
        rf'(?<=kind=)k[A-Z]\w+|"native_emitter_backend_config":{_NESTED}'
        rf'|"fusion_backend_config":\{{"block_level_fusion_config":{_NESTED},"kind":"__triton"\}}'
    ),
)

# bits of an element; types without bits (token, opaque, tuple) take no space
_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128, "f4e2m1fn": 4,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Operation:
    """A collective, the start or end of one, or a call of computations."""

    name: str
    opcode: str
    kind: str  # kind of collective; "" for other operations
    text: str = ""  # operands and attributes, if they are needed
    called: Sequence[str] = ()
    ends: str = ""  # the start that a done belongs to; "" for other operations
    size_bytes: int = 0

    @property
    def is_async(self) -> bool:
        is_start = self.opcode.endswith("-start") or self.opcode in {"send", "recv"}
        return is_start and '"is_sync":true' not in self.text

    def number(self, pattern: re.Pattern[str]) -> int | None:
        """Return a number in a loop's backend_config; None if it is missing."""
        match = pattern.search(self.text) if self.opcode == "while" else None
        return int(match[1]) if match else None


@dataclass(slots=True, kw_only=True)
class _Computation:
    place: int
    operations: list[_Operation] = field(default_factory=list)  # in schedule order
    executions: int = 0
    in_loop: bool = False
    in_branch: bool = False
    # outermost asynchronous starts that run this computation: (their computation, their name)
    starts: set[tuple[str, str]] = field(default_factory=set)


class _Module:
    """A module, read line by line: its computations, and the digests of its operations."""

    def __init__(self) -> None:
        self.name = self.entry = ""
        self.fingerprint: str | None = None
        self.computations: dict[str, _Computation] = {}
        self.here: str | None = None
        self.opcodes: Counter[str] = Counter()
        self.digest = blake2b(digest_size=16)
        self.unordered = self.tuned = 0
        # name -> digest of this computation's operations, and of the computations
        self._known: dict[str, str] = {}
        self._called: dict[str, str] = {}
        self._sum_here = 0
        # name -> operation of this computation whose done may follow
        self._sized: dict[str, _Operation] = {}

    def line(self, line: str) -> None:
        if len(line) > MAX_LINE:
            raise ParseError(f"a line of {len(line)} characters")
        if line.startswith(("  ", "\t")):
            match = None if self.here is None else _INSTRUCTION.match(line)
            if match is not None and self.here is not None:
                self.opcodes[match[3]] += 1
                self._identify(match, line)
                self.computations[self.here].operations += self._operations(match, line)
        elif line.startswith("HloModule "):
            name, fingerprint = _MODULE.match(line), _FINGERPRINT.search(line)
            self.name = name[1] if name else ""
            self.fingerprint = fingerprint[1] if fingerprint else None
        elif line.startswith(("%", "ENTRY ")) or (line[:1].isalpha() and line.endswith("{\n")):
            if (match := _COMPUTATION.match(line)) is not None:
                self.here = match[2]
                self.entry = match[2] if match[1] else self.entry
                place = len(self.computations)
                self.computations.setdefault(self.here, _Computation(place=place))
                if place >= MAX_COMPUTATIONS:
                    raise ParseError(f"more than {MAX_COMPUTATIONS} computations")
                self.digest.update(b"{")
                self._known, self._sum_here, self._sized = {}, 0, {}
        elif line.startswith("}"):
            if self.here is not None:
                self._called[self.here] = f"{self._sum_here % (1 << 64):016x}"
            self.here = None

    def _identify(self, match: re.Match[str], line: str) -> None:
        """Hash an operation with its operands and calls, so that no names have to be compared."""
        text = _without_metadata(line)[match.start(2) :]
        for words, pattern in (_TUNED, _EMITTER):
            if any(map(text.__contains__, words)):
                picks, text = repr(pattern.findall(text)), pattern.sub("", text)
                hashed = blake2b(picks.encode(), digest_size=16).digest()
                self.tuned += int.from_bytes(hashed, "little") * (len(self._known) + 1)
        # a digest that contained the compiler's numbers differed for equal programs
        if "channel_id=" in text:
            text = _CHANNEL.sub("", text)
        # the parts alternate: text, name, text, name, ... text
        parts = _NAMED.split(text)
        for at in range(1, len(parts), 2):
            # calls=%fused_add    but  dot(%param_0, %copy.1)
            tables = (self._known, self._called)
            first, then = reversed(tables) if parts[at - 1].endswith("=") else tables
            parts[at] = first.get(parts[at]) or then.get(parts[at], "")
        if "ROOT " in line[: match.start(1)]:
            parts.append("ROOT")
        operation = blake2b("".join(parts).encode(), digest_size=16)
        self.digest.update(operation.digest())
        number = int.from_bytes(operation.digest(), "little")
        self.unordered += number
        self._sum_here += number
        self._known[match[1]] = operation.hexdigest()

    def _operations(self, match: re.Match[str], line: str) -> Iterator[_Operation]:
        """Yield the operation of a line, unless hashing it is enough."""
        name, shape, opcode = match.groups()
        kind = opcode.removesuffix("-start")
        operation = _Operation(name=name, opcode=opcode, kind=kind if kind in KINDS else "")
        if opcode.endswith("-done"):
            operand = _OPERAND.search(line, match.end())
            if operand is None or operand[1] not in self._sized:
                return
            operation.ends = operand[1]
            # The done gives the size, because the tuple that a start returns differs between
            # releases. The done of a send returns only a token, so it keeps the operand's size.
            start = self._sized[operand[1]]
            start.size_bytes = shape_bytes(shape) or start.size_bytes
        elif operation.kind or opcode in CALLERS:
            text = line[match.end() :]
            operation.called = _callees(opcode, text) if opcode in CALLERS else ()
            if operation.kind or opcode in {"async-start", "while"}:
                operation.text = text
            if operation.kind or opcode == "async-start":
                operation.size_bytes = _start_bytes(shape, opcode)
                self._sized[name] = operation
        else:
            return
        yield operation


def _callees(opcode: str, text: str) -> list[str]:
    # metadata and what follows may be long: names in the source, and notes of the compiler
    end = text.find(", metadata={")
    called = _CALLED.findall(text, 0, end if end >= 0 else len(text))
    if opcode == "while":
        return called[:1] or [""]
    for several, one in _BRANCHES.findall(text) if opcode == "conditional" else ():
        called += [name.strip(" %") for name in several.split(",")] if several else [one]
    return called


def read_hlo(
    lines: Iterable[str],
    source: str,
    *,
    memory: str | None = None,
    options: str | None = None,
) -> Program:
    """Read the lines of a compiled module, and the texts of files beside it in a dump.

    `source` is the name of the file, for messages and for the target in it.

    Raises:
        ParseError: it is no HLO module, is incomplete, or calls itself.
    """
    module = _Module()
    try:
        for line in lines:
            module.line(line)
        _follow_calls(module)
    except ParseError as error:
        raise ParseError(f"{source}: no readable HLO: {error}") from None
    collectives = tuple(_collectives(module.computations))
    target = _TARGET.search(source)
    return Program(
        source=source,
        module=module.name,
        target=(target[1] or target[2] or "tpu") if target else "unknown",
        fingerprint=module.fingerprint,
        digest=module.digest.hexdigest(),
        unordered=f"{module.unordered % (1 << 128):032x}",
        tuned=f"{module.tuned % (1 << 128):032x}",
        instructions=module.opcodes.total(),
        opcodes=dict(sorted(module.opcodes.items())),
        collectives=collectives,
        loops=tuple(
            Loop(
                name=operation.name,
                body=operation.called[0],
                trips=operation.number(_TRIPS),
                unrolled=operation.number(_STEP) or 1,
                executions=computation.executions,
            )
            for computation in module.computations.values()
            for operation in computation.operations
            if operation.opcode == "while"
        ),
        in_flight=_in_flight(module.computations, collectives),
        memory_bytes=None if memory is None else read_memory_report(memory),
        options=None if options is None else read_debug_options(options),
    )


def _follow_calls(module: _Module) -> None:
    """Set how often each computation runs, and in what; callers come after the computations.

    Raises:
        ParseError: the module is incomplete, or computations call each other in a cycle.
    """
    if not module.name or not module.entry or module.here is not None:
        missing = (
            "no 'HloModule' line" if not module.name
            else "no ENTRY computation" if not module.entry
            else f"it ends inside %{module.here}"
        )  # fmt: skip
        raise ParseError(
            f"{missing}; expected an *after_optimizations.txt of --xla_dump_to, whole, or the "
            "text of compiled.as_text()"
        )
    module.computations[module.entry].executions = 1
    for name, caller in reversed(module.computations.items()):
        for operation in caller.operations:
            rounds = operation.number(_TRIPS)
            executions = caller.executions * (1 if rounds is None else rounds)
            for called in filter(None, map(module.computations.get, operation.called)):
                if called.place >= caller.place:
                    raise ParseError(
                        f"%{name} calls a computation that is not above it, as if they called "
                        "each other in a ring"
                    )
                called.executions = min(called.executions + executions, _MOST_EXECUTIONS)
                called.in_loop |= caller.in_loop or operation.opcode == "while"
                called.in_branch |= caller.in_branch or operation.opcode == "conditional"
                started_here = operation.opcode == "async-start" and not caller.starts
                called.starts |= {(name, operation.name)} if started_here else caller.starts


def _collectives(computations: Mapping[str, _Computation]) -> Iterator[Collective]:
    """Yield the collectives of all computations; one in an async-start counts at the start."""
    # The computation of an async-start may itself call others: jaxlib 0.12 puts the collective into
    # a fusion in a call, which was once counted as synchronous.
    below: dict[tuple[str, str], list[_Operation]] = defaultdict(list)
    for computation in computations.values():
        inner = [operation for operation in computation.operations if operation.kind]
        for start_place in computation.starts:
            below[start_place] += inner
    for where, computation in computations.items():
        for start in computation.operations if not computation.starts else ():
            # an asynchronous copy or fusion has no collective below it
            operations = [start] if start.kind else below.get((where, start.name), [])
            for place, operation in enumerate(operations):
                text = start.text + operation.text
                groups, stream = _GROUPS.search(operation.text), _STREAM.search(text)
                yield Collective(
                    name=operation.name if place else start.name,
                    kind=operation.kind,
                    computation=where,
                    size_bytes=(start if len(operations) == 1 else operation).size_bytes,
                    is_async=start.is_async,
                    is_pipelined='"is_pipelined":true' in text,
                    groups=groups[1] if groups else "",
                    stream=stream[1] if stream else None,
                    executions=computation.executions,
                    in_loop=computation.in_loop,
                    in_branch=computation.in_branch,
                    inner="" if operation is start else operation.name,
                )


def _in_flight(computations: Mapping[str, _Computation], collectives: Iterable[Collective]) -> int:
    """Return the largest number of collectives that are between start and done at once.

    Those in flight around a loop also count inside it. A send and its recv count as one.
    """
    counted = {
        (collective.computation, collective.name)
        for collective in collectives
        if collective.kind != "send" and collective.is_async
    }
    most: dict[str, int] = {}
    for where, computation in computations.items():
        now = highest = 0
        for operation in computation.operations:
            now += ((where, operation.name) in counted) - ((where, operation.ends) in counted)
            calls = operation.called if operation.opcode in _WITH_A_SCHEDULE else ()
            highest = max(highest, now, *(now + most.get(callee, 0) for callee in calls))
        most[where] = highest
    return max(most.values(), default=0)


def _without_metadata(line: str) -> str:
    """Return an instruction without `metadata={...}`: names and source lines do not count."""
    begin = line.find(", metadata={")
    if begin < 0:
        return line.rstrip()
    end = line.find("}", begin)
    # a brace inside a string does not count, so the quotes before it must be paired
    while end >= 0 and line.count('"', begin, end) % 2:
        end = line.find("}", end + 1)
    return (line[:begin] + line[end + 1 :]).rstrip() if end >= 0 else line[:begin]


def shape_bytes(shape: str) -> int:
    """Return the bytes of a shape; for a tuple the sum over its arrays.

    Raises:
        ParseError: the size is impossible.
    """
    bits = 0
    for kind, dimensions in _ARRAY.findall(shape):
        size = _BITS.get(kind, 8 if kind.startswith("f8") else 0)
        for dimension in re.findall(r"\d+", dimensions):
            # Python refuses more than 4,300 digits, which a dump may contain
            size *= int(dimension[:_MOST_DIGITS])
        bits += size
    if bits > _MOST_BITS:
        raise ParseError(f"an array of more than {_MOST_BITS >> 3} bytes: {shape:.60}")
    return bits // 8


def _start_bytes(shape: str, opcode: str) -> int:
    """Return the size of a result from the shape of its start, if its done is elsewhere.

    In (in, out), (in, out, u32[], u32[]) and ((in, in), (out, out)) it is second; for send and recv
    it is first; for an all-reduce and a plain operation the shape is the result's.
    """
    if not shape.startswith("(") or opcode == "all-reduce-start" or not opcode.endswith("-start"):
        return shape_bytes(_parts(shape)[0] if opcode in {"send", "recv"} else shape)
    parts = _parts(shape)
    return shape_bytes(parts[1] if len(parts) > 1 else shape)


def _parts(shape: str) -> list[str]:
    """Split a tuple shape at its outermost commas."""
    parts, depth, begin = [], 0, 1
    for at, char in enumerate(shape):
        depth += (char in "([{") - (char in ")]}")
        if (char == "," and depth == 1) or (at == len(shape) - 1):
            parts.append(shape[begin:at])
            begin = at + 1
    return parts or [shape]


# the total up to 0.8:  Total bytes used: 367005318 (350.00MiB)
# later, for each memory space, with gaps between buffers:  Total bytes: 377495198 (360.01MiB)
_TOTAL = re.compile(r"^Total bytes( used)?: (\d{1,18})\b", re.MULTILINE)
# options in a dump:  xla_gpu_autotune_level: 0      xla_dump_to: "/tmp/dump"
_OPTION = re.compile(r'^(xla_\w+): "?(.*?)"?$', re.MULTILINE)
# options about the dump and the host, not about the program
_OWN = ("xla_dump_", "xla_force_host_platform_device_count")


def read_memory_report(text: str) -> int | None:
    """Return the total bytes in a `*-memory-usage-report.txt`; None if it has none."""
    # the spaces of a TPU are separate memories; its programs run out of the first
    totals = _TOTAL.findall(text)[: 1 if "Memory Space: vmem" in text else None]
    used = [int(size) for name, size in totals if name]
    return used[0] if used else sum(int(size) for _, size in totals) if totals else None


def read_debug_options(text: str) -> dict[str, str]:
    """Return the options in a `*.debug_options` file, which are not at their default."""
    options = join_lists(_OPTION.findall(text))
    return {name: value for name, value in options.items() if not name.startswith(_OWN)}


def join_lists(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return options by name; a list has one line for each value, and is joined by commas."""
    options: dict[str, str] = {}
    for name, value in lines:
        options[name] = f"{options[name]},{value}" if name in options else value
    return options
