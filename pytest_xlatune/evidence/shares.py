"""Where the time of a step went, as shares of it: what orders the settings that are tried next.

Kernels are told apart by the operation that launched them; where a trace names none, a library's
kernel still says which collective it is, but for send and receive: those are of the one kind that
the compiled program has, or of none that can be told.
"""

from __future__ import annotations

import re
from collections import defaultdict

from pytest_xlatune.evidence.drill import Drill, Row
from pytest_xlatune.evidence.families import Kind
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.results import COLLECTIVES, Shares

_AS = {
    "ragged-all-to-all": "all-to-all",
    "send": "collective-permute",
    "recv": "collective-permute",
}
_EXCHANGES = ("all-to-all", "collective-permute")  # what a library does by send and receive
# an operation:  all-gather-start.3    ragged-all-to-all.1    recv-done
_OPERATION = re.compile(rf"({'|'.join(COLLECTIVES)}|ragged-all-to-all|send|recv)\b")
# a library's kernel:  ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL    ncclDevKernel_SendRecv
_KERNEL = re.compile(r"AllGather|ReduceScatter|AllReduce|AllToAll|SendRecv", re.IGNORECASE)
_KERNELS = {
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
}


def shares_of(found: Drill | None, program: Program | None) -> Shares | None:
    """Return what a trace and a dump tell; either may be missing, None where both are."""
    kinds = None if program is None else _kinds(program)
    span = 0 if found is None else found.total.span_ps
    if found is None or span <= 0:
        return None if kinds is None else Shares(of_step={}, kinds=kinds)
    total = found.total
    return Shares(
        of_step={
            **{kind: spent / span for kind, spent in _alone(found, kinds).items()},
            "communication": total.exposed_communication_ps / span,
            "compute": total.compute_ps / span,
            "copies": total.exposed_memory_ps / span,
            "idle": total.idle_ps / span,
        },
        kinds=kinds,
    )


def _kinds(program: Program) -> tuple[str, ...]:
    found = {_AS.get(each.kind, each.kind) for each in program.collectives}
    return tuple(each for each in COLLECTIVES if each in found)


def _alone(found: Drill, kinds: tuple[str, ...] | None) -> dict[str, int]:
    """Return kind -> picoseconds in which its kernels had nothing beside them."""
    rows = [each for each in found.ops if each.kind is Kind.COMMUNICATION]
    kind_of = _of_operation
    if not rows:
        rows = [each for each in found.kernels if each.kind is Kind.COMMUNICATION]
        kind_of = _of_kernel
    exchanges = [each for each in _EXCHANGES if each in (kinds or ())]
    spent: dict[str, int] = defaultdict(int)
    for row in rows:
        kind = kind_of(row)
        if kind == "send and receive" and len(exchanges) == 1:
            kind = exchanges[0]
        if kind in COLLECTIVES:
            spent[kind] += row.alone_ps
    return {kind: spent[kind] for kind in COLLECTIVES if kind in spent}


def _of_operation(row: Row) -> str:
    match = _OPERATION.match(row.name)
    return _AS.get(match[1], match[1]) if match else ""


def _of_kernel(row: Row) -> str:
    match = _KERNEL.search(row.name)
    return _KERNELS.get(match[0].lower(), "send and receive") if match else ""
