"""The files of an XLA dump: which is the step's program, and what the small ones beside it say.

Pure: names and sizes in, names out; text in, values out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from pytest_xlatune.errors import ParseError
from pytest_xlatune.evidence.hlo import Thunks

# module_0001.jit_train_step.sm_9.0a_gpu_after_optimizations.txt
# module_0000.jit_train_step.cpu_after_optimizations.txt
_PROGRAM = re.compile(r"(.*?)\.((?:sm_|gfx)[\w.]+?_gpu|cpu)_after_optimizations\.txt")
# up to 0.8:  Total bytes used: 367005318 (350.00MiB)     later, per memory space, with the waste
# between buffers:  Total bytes: 377495198 (360.01MiB)
_TOTAL = re.compile(r"^Total bytes( used)?: (\d{1,18})\b", re.MULTILINE)
# xla_gpu_autotune_level: 0      xla_dump_to: "/tmp/dump"
_OPTION = re.compile(r'^(xla_\w+): "?(.*?)"?$', re.MULTILINE)
# about the dump and the host, not the program
_OWN = ("xla_dump_", "xla_force_host_platform_device_count")

# up to 0.8:      012: kAllGatherStart      and, not always for a synchronous one, kAllGatherDone
# later:          019: kAsyncStart [prev=012] stream=communication_stream[0], async_id=19
#                     020: kAllGather [source | sink] kAllGather
_THUNK = re.compile(r"^\s*(?:\d+:\s+)?k([A-Z]\w*)(?:.*?stream=(\w+)\[\d+\])?(?:.*?async_id=(\d+))?")
_KINDS = {
    "AllGather": "all-gather",
    "AllReduce": "all-reduce",
    "ReduceScatter": "reduce-scatter",
    "AllToAll": "all-to-all",
    "RaggedAllToAll": "ragged-all-to-all",
    "CollectivePermute": "collective-permute",
    "CollectiveBroadcast": "collective-broadcast",
    "Send": "send",
    "Recv": "recv",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The files of one module of a dump; None where there is no such file."""

    program: str
    memory: str | None
    options: str | None
    thunks: str | None


def choose_module(sizes: Mapping[str, int], *, where: str) -> Module:
    """Choose the program with the largest text: the training step; and the files beside it.

    Args:
        sizes: size in bytes by name, of the files of one dump folder.
        where: what to call the folder in the message.

    Raises:
        ParseError: no compiled program among them.
    """
    programs = [name for name in sizes if _PROGRAM.fullmatch(name)]
    if not programs:
        raise ParseError(
            f"{where}: no *_after_optimizations.txt among {len(sizes)} files; expected the folder "
            "of --xla_dump_to. With a hit in the compilation cache nothing is dumped: set "
            "JAX_ENABLE_COMPILATION_CACHE=false"
        )
    return module_of(max(programs, key=lambda name: (sizes[name], name)), sizes)


def module_of(program: str, names: Container[str]) -> Module:
    """Return a program's files; of one with another name than a dump's, itself alone."""
    match = _PROGRAM.fullmatch(program)
    prefix = match.group(1) if match else ""

    def beside(name: str) -> str | None:
        return name if match and name in names else None

    return Module(
        program=program,
        memory=beside(program.removesuffix(".txt") + "-memory-usage-report.txt"),
        options=beside(f"{prefix}.debug_options"),
        thunks=beside(f"{prefix}.thunk_sequence.txt"),
    )


def read_memory_report(text: str) -> int | None:
    """Return the bytes that a `*-memory-usage-report.txt` totals; None where it names none."""
    totals = _TOTAL.findall(text)
    used = [int(size) for name, size in totals if name]
    return used[0] if used else sum(int(size) for _, size in totals) if totals else None


def read_debug_options(text: str) -> dict[str, str]:
    """Return the options of a `*.debug_options` file: those that are not at their default.

    A list has a line for each value; they are joined by commas.
    """
    options: dict[str, str] = {}
    for name, value in _OPTION.findall(text):
        if not name.startswith(_OWN):
            options[name] = f"{options[name]},{value}" if name in options else value
    return options


def read_thunks(text: str) -> Thunks:
    """Count the collectives of a `*.thunk_sequence.txt`, and how many are in flight at most.

    A send and its recv are one transfer, as in the HLO.
    """
    counts: Counter[str] = Counter()
    flying: set[str] = set()
    most: int | None = None
    opened = ""
    for line in text.splitlines():
        found = _THUNK.match(line)
        if found is None:
            continue
        name, stream, ident = found.groups()
        kind = _KINDS.get(name.removesuffix("Start"))
        if name == "AsyncStart":
            opened = ident if stream == "communication_stream" else ""
        elif name == "AsyncDone":
            flying.discard(ident)
            most = most or 0
        elif kind is not None:
            counts[kind] += 1
            if opened and kind != "send":
                flying.add(opened)
                most = max(most or 0, len(flying))
            opened = ""
    return Thunks(collectives=dict(sorted(counts.items())), in_flight=most)
