"""Turn HLO text into a `Program`, the facts that flags change: jaxlib 0.6 to 0.12, `as_text()`.

A collective counts as the operation that it really is: an `async-start` counts as the all-gather in
its computation. Executions are per step: the product of the trip counts of the surrounding loops.
The lines are read once, and all but collectives, calls and loops are only hashed, so that a dump of
300 MB takes seconds. The dialects differ in how they write an asynchronous collective:

    %all-gather-start = (in, out) all-gather-start(%x) ...            up to 0.10, and as_text()
    %all-gather-start = ((in), out) async-start(%x), calls=%comp      0.12, in the dump
    %all-gather = out all-gather(%x), ... "is_sync":true              0.12; on a CPU no "is_sync"
    %recv = (out, u32[], token[]) recv(%token) ...                    a decomposed permute
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from pytest_xlatune.evidence import KINDS
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.record import Record


class Collective(Record, frozen=True, kw_only=True):
    """One collective operation of the program."""

    name: str
    kind: str  # all-gather, reduce-scatter, collective-permute, send ...
    computation: str
    size_bytes: int  # bytes of its result, which its done returns if it has one
    is_async: bool
    is_pipelined: bool
    groups: str  # replica groups or source-target pairs, as written
    executions: int  # number of executions in a step; in a conditional, the largest possible number
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

    def collectives_of(self, *kinds: str) -> tuple[Collective, ...]:
        """Return the collectives of these kinds."""
        return tuple(collective for collective in self.collectives if collective.kind in kinds)


MAX_LINE = 1 << 24  # most characters of a line: constants and tuples may be long, but not longer
_MOST_BITS = 1 << 63  # of an array
_MOST_DIGITS = 20  # most digits of a number; Python refuses more than 4,300, which a dump may hold
_MOST_EXECUTIONS = 1 << 63  # limit for the product of trip counts in nested loops

# operations whose computations have a schedule, and all operations that call computations
_SCHEDULED = frozenset({"while", "call", "conditional"})
_CALLERS = _SCHEDULED | {"fusion", "async-start", "custom-call"}

# an instruction:    ROOT %all-gather.5 = bf16[2048,8192]{1,0} all-gather(%param_0.78), channel_id=1
#   with a tuple:    %while.1 = (s32[], /*index=5*/f32[8]{0:S(1)}) while(%tuple.13), condition=...
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?(\S+) = (\(.*?\)|\S+) ([a-z][a-z0-9-]*)\(")
# a computation:  %fused_slice.1 (param_0: s32[]) -> f32[8] {
#                 ENTRY %main.5_spmd (param: f32[8]) -> f32[8] {
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{\s*$")
# the first line:  HloModule jit_train_step, is_scheduled=true, entry_computation_layout={...
_MODULE = re.compile(r"HloModule ([^\s,]+)")
# in it:  frontend_attributes={fingerprint_before_lhs="70caf7744d6db14c500bc2be2259cefc"}
_FINGERPRINT = re.compile(r'fingerprint_before_lhs="([0-9a-f]+)"')
# in a call:  calls=%comp    body=%region_0.1_spmd, condition=%region_1.2    to_apply=%add
# in a conditional:  true_computation=%a, false_computation=%b    branch_computations={%a, %b}
_CALLED = re.compile(
    r"(?:calls|body|to_apply|(?:true|false)_computation)=(%?[\w.-]+)|branch_computations=\{([^{}]*)\}"
)
# in a while, in any order:  "known_trip_count":{"n":"8"},"known_init_step":{"init":"0","step":"2"}
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d{1,18})"')
_STEP = re.compile(r'"known_init_step":\{[^}]*"step":"(\d{1,18})"')
# in a done:  all-gather-done(%all-gather-start.1)    send-done((f32[8], u32[]) %send)
_OPERAND = re.compile(r"(?<![\w.-])([\w.-]++)\)")
# groups of devices:  replica_groups={{0,1},{2,3}}   =[1,8]<=[8]   =mesh['axis_0'=8] {'axis_0'}
#           =mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}   source_target_pairs={{0,1},{1,2}}
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(\{(?:\{[^{}]*\},?)*\}|\[[^]]*\](?:<=\[[^]]*\](?:T\([^)]*\))?)?"
    r"|mesh\[[^]]*\](?:, device_ids=\((?:[^()]|\([^()]*\))*\))? ?\{[^}]*\})"
)
# an array in a shape:  bf16[8,256,8192]    f8e4m3fn[8]    s32[<=8]    pred[]
# A token[] or opaque[] takes no space.
_ARRAY = re.compile(r"(?<!\w)(?:pred|(?:bf|[fsuc])(\d{1,3})\w*)\[([^][]*)\]")
# an element of a tuple:  f32[8]{0:T(8,128)}    (f32[8]{0}, f32[4]{0:S(1)})
_ELEMENT = re.compile(r"\((?:[^()]|\([^()]*\))*\)|\w+\[[^]]*\]")
# the file of a program:  module_0001.jit_train_step.sm_9.0a_gpu_after_optimizations.txt
# module_0000.jit_train_step.cpu_after_optimizations.txt
# module_0000.jit_train_step.cl_1014260217.after_optimizations.txt    (libtpu, with its build)
PROGRAM_FILE = re.compile(
    r"(?P<module>.*?)\.(?:(?P<target>(?:sm_|gfx)[\w.]+?(?=_gpu_)|cpu)(?:_gpu)?_"
    r"|(?P<build>cl_\d{1,19})\.)after_optimizations\.txt"
)
# names in the source:  , metadata={op_name="jit(f)/{x}" source_file="/a/b.py" source_line=7}
_METADATA = re.compile(r', metadata=\{(?:[^"}]++|"[^"]*")*+(?:\}|.*)')

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
#   the emitter that makes a kernel of a fusion, which autotuning also chooses in 0.11.2:
#   kind=kInput, calls=%a, backend_config={..., "native_emitter_backend_config":{...},...}
#   kind=kCustom, calls=%a, backend_config={..., "fusion_backend_config":
#     {"block_level_fusion_config":{"num_warps":"4",...},"kind":"__triton"},...}
_WITH_CHOICES = ("_gemm", "algorithm", '={"sizes"', "native_emitter_", '"__triton"}')
_CHOICES = re.compile(
    rf'"triton_gemm_config":{_NESTED}|"selected_algorithm":"-?\d+"|"algorithm":{_NESTED}'
    r'|"algorithm":"-?\d+"|"autotune_workspace_size":"\d+"|backend_config=\{"sizes":\[[^]]*\]\}'
    rf'|(?<=_gemm_fusion",)"block_level_fusion_config":{_NESTED}'
    rf'|"block_level_fusion_config":{_NESTED}(?=,"kind":"__triton_nested_gemm_fusion")'
    r"|(?<=[}\]]), s8\[\d+\]\{0\}(?=\))"
    rf'|(?<=kind=)k[A-Z]\w+|"native_emitter_backend_config":{_NESTED}'
    rf'|"fusion_backend_config":\{{"block_level_fusion_config":{_NESTED},"kind":"__triton"\}}'
)


@dataclass(slots=True, kw_only=True, eq=False)
class _Operation:
    """A collective, the asynchronous start of one, or another call of computations."""

    name: str
    opcode: str
    kind: str  # kind of collective; "" for other operations
    called: Sequence[str]
    text: str  # operands and attributes of a collective, a start or a loop
    size_bytes: int
    is_in_flight: bool = False  # whether a collective runs until the done
    below: list[_Operation] = field(default_factory=list)  # collectives that an async-start runs

    @property
    def is_async(self) -> bool:
        is_start = self.opcode.endswith("-start") or self.opcode in {"send", "recv"}
        return is_start and '"is_sync":true' not in self.text

    def number(self, pattern: re.Pattern[str]) -> int | None:
        """Return a number in the backend_config of a loop; None if it is missing."""
        match = pattern.search(self.text) if self.opcode == "while" else None
        return int(match[1]) if match else None


@dataclass(slots=True, kw_only=True)
class _Computation:
    name: str
    place: int  # its index in the text, where a caller comes after what it calls
    operations: list[_Operation] = field(default_factory=list)
    sum: int = 0  # the sum of its operations' digests, in which their order does not count
    communicates: bool = False  # whether it has a collective, or calls a computation with one
    in_flight: int = 0  # number of collectives between start and done at the line that is read
    most_in_flight: int = 0  # the largest such number up to this line
    executions: int = 0
    in_loop: bool = False
    in_branch: bool = False
    starts: set[_Operation] = field(default_factory=set)  # outermost async-starts that run it


class _Module:
    """A module, read line by line: its computations, and the digests of its operations."""

    def __init__(self) -> None:
        self.name = self.entry = ""
        self.fingerprint: str | None = None
        self.computations: dict[str, _Computation] = {}
        self.opcodes: Counter[str] = Counter()
        self.digest = blake2b(digest_size=16)
        self.tuned = 0
        self.here: _Computation | None = None  # the computation that is being read
        # name -> digest of the operations of this computation, and of finished computations
        self._known: dict[str, str] = {}
        self._finished: dict[str, str] = {}
        # name -> start in this computation whose done may follow
        self._open: dict[str, _Operation] = {}

    def read(self, line: str) -> None:
        if len(line) > MAX_LINE:
            raise ParseError(f"a line of {len(line)} characters")
        if line.startswith(("  ", "\t")):
            if self.here is not None and (match := _INSTRUCTION.match(line)) is not None:
                self.opcodes[match[4]] += 1
                text = _METADATA.sub("", line, count=1).rstrip()
                self._identify(self.here, match, text[match.start(3) :])
                self._keep(self.here, match, text[match.end() :])
        elif line.startswith("HloModule "):
            name, fingerprint = _MODULE.match(line), _FINGERPRINT.search(line)
            self.name = name[1] if name else ""
            self.fingerprint = fingerprint[1] if fingerprint else None
        elif line.startswith(("%", "ENTRY ")) or (line[:1].isalpha() and line.endswith("{\n")):
            if (match := _COMPUTATION.match(line)) is not None:
                self.entry = match[2] if match[1] else self.entry
                computation = _Computation(name=match[2], place=len(self.computations))
                self.here = self.computations.setdefault(match[2], computation)
                self.digest.update(b"{")
                self._known, self._open = {}, {}
        elif line.startswith("}") and self.here is not None:
            self._finished[self.here.name] = f"{self.here.sum % (1 << 64):016x}"
            self.here = None

    def _identify(self, here: _Computation, match: re.Match[str], text: str) -> None:
        """Hash an operation with its operands and calls, so that no names have to be compared."""
        if any(map(text.__contains__, _WITH_CHOICES)):
            choices, text = repr(_CHOICES.findall(text)), _CHOICES.sub("", text)
            hashed = blake2b(choices.encode(), digest_size=16).digest()
            self.tuned += int.from_bytes(hashed, "little") * (len(self._known) + 1)
        # a digest that contained the compiler's numbers differed for equal programs
        if "channel_id=" in text:
            text = _CHANNEL.sub("", text)
        # the parts alternate: text, name, text, name, ... text
        parts = _NAMED.split(text)
        for at in range(1, len(parts), 2):
            # `calls=%fused_add` names a computation, `dot(%param_0, %copy.1)` operations
            tables = (self._known, self._finished)
            first, then = reversed(tables) if parts[at - 1].endswith("=") else tables
            parts[at] = first.get(parts[at]) or then.get(parts[at], "")
        if match[1]:
            parts.append("ROOT")
        operation = blake2b("".join(parts).encode(), digest_size=16)
        self.digest.update(operation.digest())
        number = int.from_bytes(operation.digest(), "little")
        here.sum += number
        self._known[match[2]] = operation.hexdigest()

    def _keep(self, here: _Computation, match: re.Match[str], text: str) -> None:
        """Keep a collective and a call of computations; hashing is enough for the others."""
        _, name, shape, opcode = match.groups()
        if opcode.endswith("-done"):
            operand = _OPERAND.search(text)
            start = self._open.get(operand[1]) if operand else None
            if start is not None:
                here.in_flight -= start.is_in_flight
                # The done gives the size, because the tuple that a start returns differs between
                # releases. The done of a send returns only a token: it keeps the operand's size.
                start.size_bytes = shape_bytes(shape) or start.size_bytes
            return
        kind = opcode.removesuffix("-start")
        is_start = kind in KINDS or opcode == "async-start"
        if not is_start and opcode not in _CALLERS:
            return
        calls = _CALLED.findall(text) if opcode in _CALLERS else []
        names = ",".join(single or several for single, several in calls)
        operation = _Operation(
            name=name,
            opcode=opcode,
            kind=kind if kind in KINDS else "",
            called=[callee.strip(" %") for callee in names.split(",")],
            text=text if is_start or opcode == "while" else "",
            size_bytes=_start_bytes(shape, opcode) if is_start else 0,
        )
        here.operations.append(operation)
        called = [*filter(None, map(self.computations.get, operation.called))]
        # a send and its recv are in flight as one
        is_counted = kind in KINDS and kind != "send"
        is_counted |= any(computation.communicates for computation in called)
        here.communicates |= is_counted
        if is_start:
            self._open[name] = operation
            operation.is_in_flight = is_counted and operation.is_async
            here.in_flight += operation.is_in_flight
        # what is in flight around a loop is also in flight inside it
        inside = [callee.most_in_flight for callee in called] if opcode in _SCHEDULED else []
        most = here.in_flight + max(inside, default=0)
        here.most_in_flight = max(here.most_in_flight, most)


def read_hlo(
    lines: Iterable[str],
    source: str,
    *,
    memory_bytes: int | None = None,
    options: dict[str, str] | None = None,
) -> Program:
    """Read the lines of a compiled module; memory and options stand in files beside it.

    `source` is the name of the file, for messages and for the target in it.

    Raises:
        ParseError: it is no HLO module, is incomplete, or calls itself.
    """
    try:
        module = _Module()
        for line in lines:
            module.read(line)
        _follow_calls(module)
    except ParseError as error:
        raise ParseError(f"{source}: no readable HLO: {error}") from None
    name, computations = PROGRAM_FILE.search(source), module.computations.values()
    return Program(
        source=source,
        module=module.name,
        target=(name["target"] or "tpu") if name else "unknown",
        fingerprint=module.fingerprint,
        digest=module.digest.hexdigest(),
        unordered=f"{sum(computation.sum for computation in computations) % (1 << 128):032x}",
        tuned=f"{module.tuned % (1 << 128):032x}",
        instructions=module.opcodes.total(),
        opcodes=dict(sorted(module.opcodes.items())),
        collectives=tuple(itertools.chain.from_iterable(map(_collectives, computations))),
        loops=tuple(
            Loop(
                name=operation.name,
                body=operation.called[0],
                trips=operation.number(_TRIPS),
                unrolled=operation.number(_STEP) or 1,
                executions=computation.executions,
            )
            for computation in computations
            for operation in computation.operations
            if operation.opcode == "while"
        ),
        in_flight=max(computation.most_in_flight for computation in computations),
        memory_bytes=memory_bytes,
        options=options,
    )


def _follow_calls(module: _Module) -> None:
    """Set how often each computation runs, and whether in a loop, a branch or an async-start."""
    inside = module.here.name if module.here else ""
    if not module.name or not module.entry or inside:
        missing = (
            "no 'HloModule' line" if not module.name
            else "no ENTRY computation" if not module.entry
            else f"it ends inside %{inside}"
        )  # fmt: skip
        raise ParseError(
            f"{missing}; expected an *after_optimizations.txt of --xla_dump_to, whole, or the "
            "text of compiled.as_text()"
        )
    module.computations[module.entry].executions = 1
    for caller in reversed(module.computations.values()):
        for operation in caller.operations:
            rounds = operation.number(_TRIPS)
            executions = caller.executions * (1 if rounds is None else rounds)
            for called in filter(None, map(module.computations.get, operation.called)):
                if called.place >= caller.place:
                    raise ParseError(
                        f"%{caller.name} calls a computation that is not above it, as if they "
                        "called each other in a ring"
                    )
                called.executions = min(called.executions + executions, _MOST_EXECUTIONS)
                called.in_loop |= caller.in_loop or operation.opcode == "while"
                called.in_branch |= caller.in_branch or operation.opcode == "conditional"
                is_outermost = operation.opcode == "async-start" and not caller.starts
                called.starts |= {operation} if is_outermost else caller.starts
    # the computation of an async-start may itself call others: jaxlib 0.12 puts the collective
    # into a fusion in a call
    for computation in module.computations.values():
        for start in computation.starts:
            start.below += [operation for operation in computation.operations if operation.kind]


def _collectives(computation: _Computation) -> Iterator[Collective]:
    """Yield the collectives of a computation; those in an async-start count at the start."""
    for start in computation.operations if not computation.starts else ():
        # an asynchronous copy or fusion has no collective below it
        operations = [start] if start.kind else start.below
        for place, operation in enumerate(operations):
            groups = _GROUPS.search(operation.text)
            yield Collective(
                name=operation.name if place else start.name,
                kind=operation.kind,
                computation=computation.name,
                size_bytes=(start if len(operations) == 1 else operation).size_bytes,
                is_async=start.is_async,
                is_pipelined='"is_pipelined":true' in start.text + operation.text,
                groups=groups[1] if groups else "",
                executions=computation.executions,
                in_loop=computation.in_loop,
                in_branch=computation.in_branch,
                inner="" if operation is start else operation.name,
            )


def shape_bytes(shape: str) -> int:
    """Return the bytes of a shape; for a tuple the sum over its arrays.

    Raises:
        ParseError: the size is impossible.
    """
    bits = 0
    for element_bits, dimensions in _ARRAY.findall(shape):
        size = int(element_bits or 8)
        for dimension in re.findall(r"\d+", dimensions):
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
    place = {"send": 0, "recv": 0, "all-reduce-start": None}.get(
        opcode, 1 if opcode.endswith("-start") else None
    )
    elements = _ELEMENT.findall(shape[1:]) if shape.startswith("(") else []
    return shape_bytes(shape if place is None or place >= len(elements) else elements[place])
