"""The collectives of a step with sizes and speeds, and each part's share of the step.

Both are computed from the rows of a drill. A collective is identified by the operation that
launched it, whose kind, bytes and ranks are in the compiled program. If a trace names no
operations, the name of a library's kernel shows the kind of the collective. A kernel that sends and
receives may be an all-to-all or a permute: its kind is known only if the compiled program has
collectives of one of these two kinds, and none of the other.

The kernel of a collective runs on every device until the last one has joined. So the shortest
kernel of an execution is that of the device that joined last, and contains no waiting: its time is
the transfer. What the other kernels take beyond it is waiting. Clocks of different hosts are never
compared. A trace does not show the groups of devices, so no device is blamed for the waiting in a
collective that, according to the program, joins only some of the devices.

Bandwidths are defined as in nccl-tests (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md),
for n ranks, t seconds and S bytes: the whole result of an all-gather, the whole input of a
reduce-scatter, else what one rank sends:

    algbw = S / t
    busbw = algbw x 2 (n - 1) / n      all-reduce
            algbw x (n - 1) / n        all-gather, reduce-scatter, all-to-all
            algbw                      send and receive, permute, broadcast

The shares of a step determine the order of the settings to try next: a setting that acts on one
part of the step can gain at most the share of this part.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_xlatune.evidence import KINDS
from pytest_xlatune.evidence.trace import ABSENT, COMMUNICATION, Device, Ints, Kind, Trace
from pytest_xlatune.evidence.trace.breakdown import Drill, TimeRow
from pytest_xlatune.model.channels import COLLECTIVES
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.shares import Shares

if TYPE_CHECKING:  # most captures are drilled without a program
    from pytest_xlatune.evidence.hlo import Collective, Program


class CollectiveTime(Record, frozen=True, kw_only=True):
    """A collective operation over all devices and steps; times are for one execution."""

    name: str
    kind: str
    size_bytes: int | None  # S above; None if the program is unknown or lacks the operation
    ranks: int | None  # how many ranks take part; None if unknown
    executions: Real  # number for each device and step
    duration_s: Real  # mean duration of its kernel
    # mean of the shortest kernels; None if devices ran it a different number of times
    transfer_s: Real | None
    alone_s: Real  # time per device and step in which nothing else runs

    @property
    def wait_s(self) -> float | None:
        """Mean time of its kernels beyond the transfer."""
        return None if self.transfer_s is None else self.duration_s - self.transfer_s

    @property
    def algbw(self) -> float | None:
        """Bytes per second for the size above."""
        taken_s = self.duration_s if self.transfer_s is None else self.transfer_s
        return None if self.size_bytes is None or taken_s <= 0 else self.size_bytes / taken_s

    @property
    def busbw(self) -> float | None:
        """Bytes per second on the slowest link; None if it needs an unknown number of ranks."""
        if self.algbw is None or self.kind in _DIRECT:
            return self.algbw
        if not self.ranks or self.kind not in _NEEDS_ALL_RANKS:
            return None
        return self.algbw * (_NEEDS_ALL_RANKS[self.kind] * (self.ranks - 1) / self.ranks)


class Late(Record, frozen=True, kw_only=True):
    """The device for which the others waited most, and how long."""

    device: str
    imposed_s: Real  # seconds of a step, summed over the other devices
    of_all: Real  # share of all waiting
    is_assumed: bool  # whether, without a program, all devices are taken to wait for each other


class Communication(Record, frozen=True, kw_only=True):
    """The collectives of a window."""

    rows: tuple[CollectiveTime, ...]  # the most expensive first
    late: Late | None  # None if no device waited, or it is unknown for which one
    unmatched: tuple[str, ...]  # operations of the trace that the program lacks


# kinds in which each rank needs data of all others, so that all wait for the last rank
# -> the factor k in busbw = algbw * k * (n - 1) / n for n ranks
_NEEDS_ALL_RANKS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
# kinds whose busbw is their algbw
_DIRECT = frozenset({"collective-permute", "send", "recv", "collective-broadcast"})

# groups as lists:  {{0,1},{2,3}}    [2,4]<=[8]    [1,8]<=[2,4]T(1,0)
_LISTED = re.compile(r"\{\{([\d,]*)\}")
_IOTA = re.compile(r"\[\d{1,9},(\d{1,9})\]")
# groups in a mesh:  mesh['a'=2,'b'=4] {'b'}    mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}
_MESH = re.compile(r"mesh\[([^]]*)\](?:, device_ids=\(.*\))? ?\{([^}:]*)\}$")
_AXIS = re.compile(r"'([^']*)'=(\d{1,9})")
_ALL = "{}"  # a single group of all devices


def ranks_of(groups: str, devices: int) -> int | None:
    """Return the number of ranks in a group, from the groups as the program writes them."""
    if groups == _ALL:
        return devices
    if (match := _LISTED.match(groups)) is not None:
        return match[1].count(",") + 1
    if (match := _IOTA.match(groups)) is not None:
        return int(match[1])
    if (match := _MESH.match(groups)) is not None:
        sizes = {name: int(size) for name, size in _AXIS.findall(match[1])}
        axes = re.findall(r"'([^']*)'", match[2])
        return math.prod(sizes[axis] for axis in axes) if sizes.keys() >= set(axes) else None
    return None


class Watch:
    """Records the time of each execution of a collective on each device while a trace is read."""

    def __init__(self) -> None:
        # operation or kernel -> (source, device) -> step, start and duration
        self._runs: dict[str, dict[tuple[str, str], Ints]] = defaultdict(dict)

    def __call__(self, trace: Trace, device: Device) -> None:
        """Record the kernels of a device."""
        kernels = device.kernels
        mine = kernels.where((kernels["kind"] == COMMUNICATION) & (kernels["step"] != ABSENT))
        mine = mine.where(np.lexsort((mine["start_ps"], mine["step"])))
        columns = np.stack([mine["step"], mine["start_ps"], mine["duration_ps"]])
        for label in (mine["op"], mine["name"]):  # bincount finds distinct indices without sorting
            for name_index in np.flatnonzero(np.bincount(label[label != ABSENT])).tolist():
                runs = columns[:, label == name_index]
                self._runs[trace.names[name_index]][trace.source, device.name] = runs

    def runs(self, row: TimeRow, devices: int) -> Mapping[tuple[str, str], Ints] | None:
        """Return the executions of a row on each device; None unless all have the same steps."""
        runs = self._runs[row.name]
        steps = [steps for steps, _, _ in runs.values()] or [np.zeros(0, np.int64)]
        is_alike = all(np.array_equal(of_device, steps[0]) for of_device in steps)
        is_whole = len(runs) == devices and devices * len(steps[0]) == row.count
        return runs if is_alike and is_whole else None


def communication_of(drill: Drill, program: Program | None, watch: Watch) -> Communication:
    """Return the collectives of a window, with facts of the program if there is one."""
    devices = len(drill.gpus)
    known: dict[str, Collective] = {}
    for collective in () if program is None else program.collectives:
        for name in filter(None, (collective.name, collective.inner)):
            known.setdefault(name, collective)
    imposed: dict[tuple[str, str], int] = defaultdict(int)  # picoseconds by device
    is_assumed = False
    rows, unmatched = [], []
    for row in _communication(drill):
        of_program = known.get(row.name.replace("-done", "-start", 1))
        kind, ranks, size_bytes = _kind_of(row.name), None, None
        if of_program is not None:
            kind, ranks = of_program.kind, ranks_of(of_program.groups, devices)
            if kind == "reduce-scatter":  # its result is one rank's part
                size_bytes = None if ranks is None else of_program.size_bytes * ranks
            elif kind != "ragged-all-to-all":
                size_bytes = of_program.size_bytes
        elif program is not None:
            unmatched.append(row.name)
        transfer_s = None
        if (runs := watch.runs(row, devices)) is not None:
            durations_ps = np.stack([duration_ps for _, _, duration_ps in runs.values()])
            shortest_ps = durations_ps.min(axis=0)
            transfer_s = float(shortest_ps.mean()) * 1e-12
            if kind in _NEEDS_ALL_RANKS and (of_program is None or ranks == devices):
                is_assumed |= of_program is None
                waited_ps = (durations_ps - shortest_ps).sum(axis=0)
                last_device = durations_ps.argmin(axis=0)  # for each execution, the index in `runs`
                for index, device in enumerate(runs):
                    imposed[device] += int(waited_ps[last_device == index].sum())
        rows.append(
            CollectiveTime(
                name=row.name,
                kind=kind,
                size_bytes=size_bytes,
                ranks=ranks,
                executions=row.count / max(1, drill.gpu_steps),
                duration_s=row.sum_ps / row.count * 1e-12,
                transfer_s=transfer_s,
                alone_s=drill.seconds(row.alone_ps),
            )
        )
    late = None
    if of_all_ps := sum(imposed.values()):
        device = max(imposed, key=lambda candidate: (imposed[candidate], candidate))
        late = Late(
            device=" ".join(device),
            imposed_s=imposed[device] / drill.divided_by * 1e-12,
            of_all=imposed[device] / of_all_ps,
            is_assumed=is_assumed,
        )
    return Communication(rows=tuple(rows), late=late, unmatched=tuple(sorted(unmatched)))


def _communication(drill: Drill) -> Sequence[TimeRow]:
    """Return the rows of communication: operations if they are known, else kernels."""
    operations, kernels = (
        [row for row in rows if row.kind is Kind.COMMUNICATION]
        for rows in (drill.ops, drill.kernels)
    )
    named_ps, all_ps = (sum(row.sum_ps for row in rows) for rows in (operations, kernels))
    # with CUDA graphs only a few kernels name an operation, and must not stand for all
    return operations if 2 * named_ps >= all_ps else kernels


# kind of a collective -> the kind under which its time is counted, if it is another
_COUNTED_AS = {
    "ragged-all-to-all": "all-to-all",
    "send": "collective-permute",
    "recv": "collective-permute",
}
_EXCHANGES = ("all-to-all", "collective-permute")  # a library does these by send and receive
# an operation:  all-gather-start.3    ragged-all-to-all.1    recv-done
_OPERATION = re.compile(rf"({'|'.join(KINDS)})\b")
_KERNELS = {
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
    "sendrecv": "send and receive",
}
# a library's kernel:  ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL    ncclDevKernel_SendRecv
_KERNEL = re.compile("|".join(_KERNELS), re.IGNORECASE)


def _kind_of(name: str) -> str:
    """Return the kind of collective in the name of an operation or kernel; "" if unknown."""
    if (match := _OPERATION.match(name)) is not None:
        return match[1]
    match = _KERNEL.search(name)
    return _KERNELS[match[0].lower()] if match else ""


_CLASSES = {Kind.COMPUTE: "compute", Kind.COMMUNICATION: "communication", Kind.MEMORY: "copies"}


def shares_of(drill: Drill | None, program: Program | None) -> Shares | None:
    """Return the shares of a step from a trace and a dump; None if both are missing."""
    kinds = None
    if program is not None:
        present = {_COUNTED_AS.get(row.kind, row.kind) for row in program.collectives}
        kinds = tuple(kind for kind in COLLECTIVES if kind in present)
    if drill is None or drill.total.span_ps <= 0:
        return None if kinds is None else Shares(of_step={}, kinds=kinds)
    total = drill.total
    exchanges = [kind for kind in _EXCHANGES if kind in (kinds or ())]
    counted_as = _COUNTED_AS | {"send and receive": exchanges[0] if len(exchanges) == 1 else ""}
    spent: dict[str, int] = defaultdict(int)
    for row in _communication(drill):
        kind = _kind_of(row.name)
        spent[counted_as.get(kind, kind)] += row.alone_ps
    parts = {kind: spent[kind] for kind in COLLECTIVES if kind in spent} | {
        "communication": total.exposed_communication_ps,
        "compute": total.compute_ps,
        "copies": total.exposed_memory_ps,
        "idle": total.idle_ps,
    }
    alone: dict[str, tuple[str, ...]] = {}  # the three kernels of a class that run alone longest
    for kind, name in _CLASSES.items():
        rows = [row for row in drill.kernels if row.kind is kind and row.alone_ps]
        rows.sort(key=lambda row: (-row.alone_ps, row.name))
        if rows:
            alone[name] = tuple(row.name[:60] for row in rows[:3])
    of_step = {part: spent_ps / total.span_ps for part, spent_ps in parts.items()}
    return Shares(of_step=of_step, kinds=kinds, kernels=alone)
