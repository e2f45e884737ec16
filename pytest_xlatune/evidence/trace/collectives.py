"""The collectives of a step: what they carry and how fast, and the share of a step of each part.

Both are questions to the rows of a drill. A collective is known by the operation that launched it;
the compiled program has that operation's kind, bytes and ranks. Where a trace names no operations,
a library's kernel still says which collective it is, but for send and receive: those are of the one
kind that the compiled program has, or of none that can be told.

The kernel of a collective runs on every device until the last one has come. Its shortest execution
holds the least wait and counts as the transfer; what the others take beyond it is wait.

Bandwidths are those of nccl-tests (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), with
n ranks, a transfer of t seconds and S bytes: of the whole result of an all-gather, of the whole
input of a reduce-scatter, else of what one rank sends:

    algbw = S / t
    busbw = algbw x 2 (n - 1) / n      all-reduce
            algbw x (n - 1) / n        all-gather, reduce-scatter, all-to-all
            algbw                      send and receive, permute, broadcast

The shares of a step that its parts take order the settings that are tried next, and are the most
that a setting of such a part can win.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from pytest_xlatune.evidence.hlo import KINDS, Collective, Program
from pytest_xlatune.evidence.trace import Kind
from pytest_xlatune.evidence.trace.breakdown import Drill, TimeRow
from pytest_xlatune.model.channels import COLLECTIVES
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import Shares


class CollectiveTime(Record, frozen=True, kw_only=True):
    """A collective operation over all devices and steps; times are of one execution."""

    name: str
    kind: str
    size_bytes: int | None  # S above; None where the program is not known, or has it not
    ranks: int | None
    executions: Real  # per device and step
    duration_s: Real  # of its kernel, a mean
    transfer_s: Real  # of the shortest one
    alone_s: Real  # per device and step: nothing runs beside it

    @property
    def wait_s(self) -> float:
        """What its kernels take beyond the transfer, a mean."""
        return self.duration_s - self.transfer_s

    @property
    def algbw(self) -> float | None:
        """Bytes per second, by the size."""
        if self.size_bytes is None or self.transfer_s <= 0:
            return None
        return self.size_bytes / self.transfer_s

    @property
    def busbw(self) -> float | None:
        """Bytes per second on the slowest link; None where ranks matter and are unknown."""
        factor = bus_factor(self.kind, self.ranks)
        return None if self.algbw is None or factor is None else self.algbw * factor


class Communication(Record, frozen=True, kw_only=True):
    """The collectives of a window."""

    rows: tuple[CollectiveTime, ...]  # the costliest first
    unmatched: tuple[str, ...]  # operations of the trace that the program does not have


_SHARED = frozenset({"all-gather", "reduce-scatter", "all-to-all"})
_DIRECT = frozenset({"collective-permute", "send", "recv", "collective-broadcast"})


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """Return busbw / algbw for a kind of collective among so many ranks."""
    if kind in _DIRECT:
        return 1.0
    if not ranks or kind not in {"all-reduce", *_SHARED}:
        return None
    return (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks


# of whom:  {{0,1},{2,3}}    [2,4]<=[8]    [1,8]<=[2,4]T(1,0)
_LISTED = re.compile(r"\{\{([\d,]*)\}")
_IOTA = re.compile(r"\[\d{1,9},(\d{1,9})\]")
# mesh['a'=2,'b'=4] {'b'}    mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}
_MESH = re.compile(r"mesh\[([^]]*)\](?:, device_ids=\(.*\))? ?\{([^}:]*)\}$")
_AXIS = re.compile(r"'([^']*)'=(\d{1,9})")
_ALL = "{}"  # of groups: one of all devices


def ranks_of(groups: str, devices: int) -> int | None:
    """Return how many ranks a group has, from the groups as the program writes them."""
    if groups == _ALL:
        return devices
    if (found := _LISTED.match(groups)) is not None:
        return found[1].count(",") + 1
    if (found := _IOTA.match(groups)) is not None:
        return int(found[1])
    if (found := _MESH.match(groups)) is not None:
        sizes = {name: int(size) for name, size in _AXIS.findall(found[1])}
        axes = re.findall(r"'([^']*)'", found[2])
        return math.prod(sizes[axis] for axis in axes) if sizes.keys() >= set(axes) else None
    return None


def size_of(collective: Collective, ranks: int | None) -> int | None:
    """Return the bytes that nccl-tests counts for a collective of the program."""
    if collective.kind == "reduce-scatter":  # its result is one rank's part
        return None if ranks is None else collective.size_bytes * ranks
    return None if collective.kind == "ragged-all-to-all" else collective.size_bytes


def communication_of(found: Drill, program: Program | None) -> Communication:
    """Return the collectives of a window, joined with the program where there is one."""
    known: dict[str, Collective] = {}
    for collective in () if program is None else program.collectives:
        for name in filter(None, (collective.name, collective.inner)):
            known.setdefault(name, collective)
    rows, unmatched = [], []
    for row in _communication(found):
        of_program = known.get(row.name.replace("-done", "-start", 1))
        ranks = None
        if of_program is not None:
            ranks = ranks_of(of_program.groups, len(found.gpus))
        elif program is not None:
            unmatched.append(row.name)
        rows.append(
            CollectiveTime(
                name=row.name,
                kind=_kind_of(row.name) if of_program is None else of_program.kind,
                size_bytes=None if of_program is None else size_of(of_program, ranks),
                ranks=ranks,
                executions=row.count / max(1, found.gpu_steps),
                duration_s=row.sum_ps / row.count * 1e-12,
                transfer_s=row.shortest_ps * 1e-12,
                alone_s=found.seconds(row.alone_ps),
            )
        )
    return Communication(rows=tuple(rows), unmatched=tuple(sorted(unmatched)))


def _communication(found: Drill) -> Sequence[TimeRow]:
    """Return what communicates: its operations where they are known, else its kernels."""
    operations, kernels = (
        [row for row in rows if row.kind is Kind.COMMUNICATION]
        for rows in (found.ops, found.kernels)
    )
    named_ps, all_ps = (sum(row.sum_ps for row in rows) for rows in (operations, kernels))
    # in a window of graphs few kernels name an operation, and those stood for all of them
    return operations if 2 * named_ps >= all_ps else kernels


_AS = {
    "ragged-all-to-all": "all-to-all",
    "send": "collective-permute",
    "recv": "collective-permute",
}
_EXCHANGES = ("all-to-all", "collective-permute")  # what a library does by send and receive
# an operation:  all-gather-start.3    ragged-all-to-all.1    recv-done
_OPERATION = re.compile(rf"({'|'.join(KINDS)})\b")
# a library's kernel:  ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL    ncclDevKernel_SendRecv
_KERNEL = re.compile(r"AllGather|ReduceScatter|AllReduce|AllToAll|SendRecv", re.IGNORECASE)
_KERNELS = {
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
    "sendrecv": "send and receive",
}


def _kind_of(name: str) -> str:
    """Return the kind of collective that an operation or a library's kernel tells, or ""."""
    if (match := _OPERATION.match(name)) is not None:
        return match[1]
    match = _KERNEL.search(name)
    return _KERNELS[match[0].lower()] if match else ""


_CLASSES = {
    Kind.COMPUTE: "compute",
    Kind.COMMUNICATION: "communication",
    Kind.MEMORY: "copies",
}
_NAMED, _CHARACTERS = 3, 60


def shares_of(found: Drill | None, program: Program | None) -> Shares | None:
    """Return what a trace and a dump tell; either may be missing, None where both are."""
    kinds = None
    if program is not None:
        own = {_AS.get(collective.kind, collective.kind) for collective in program.collectives}
        kinds = tuple(kind for kind in COLLECTIVES if kind in own)
    total = None if found is None else found.total
    if found is None or total is None or total.span_ps <= 0:
        return None if kinds is None else Shares(of_step={}, kinds=kinds)
    exchanges = [kind for kind in _EXCHANGES if kind in (kinds or ())]
    of_kernel = _AS | {"send and receive": exchanges[0] if len(exchanges) == 1 else ""}
    spent: dict[str, int] = defaultdict(int)
    for row in _communication(found):
        kind = _kind_of(row.name)
        spent[of_kernel.get(kind, kind)] += row.alone_ps
    parts = {kind: spent[kind] for kind in COLLECTIVES if kind in spent} | {
        "communication": total.exposed_communication_ps,
        "compute": total.compute_ps,
        "copies": total.exposed_memory_ps,
        "idle": total.idle_ps,
    }
    return Shares(
        of_step={part: spent_ps / total.span_ps for part, spent_ps in parts.items()},
        kinds=kinds,
        kernels={name: rows for kind, name in _CLASSES.items() if (rows := _alone(found, kind))},
    )


def _alone(found: Drill, kind: Kind) -> tuple[str, ...]:
    """Return the names of the kernels of a class that most run with nothing beside them."""
    rows = sorted(
        (row for row in found.kernels if row.kind is kind and row.alone_ps),
        key=lambda row: (-row.alone_ps, row.name),
    )
    return tuple(row.name[:_CHARACTERS] for row in rows[:_NAMED])
