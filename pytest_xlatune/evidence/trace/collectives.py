"""The collectives of a step: what they carry, how fast, who waits for whom, and their shares.

`Watch` looks at the kernels of each device while a capture is in memory. Its collectives are joined
with those of the compiled program by the name of the operation, which gives kind, bytes and ranks.
The kernel of a collective runs on every device of a group until the last of them has come, so the
shortest of these kernels holds no wait: it is the transfer, what the others take beyond it is wait,
and the device with the shortest kernel came last. No clock of two hosts is compared. The program
says who is in a group by numbers of its own; a trace does not say which device bears which. Those
of a process are taken in their order, and which process is which must not matter, else nothing is
said of waits. Nor is it where kernels of a group do not overlap: these devices are no group.

Bandwidths are those of nccl-tests (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), with
n ranks, a transfer of t seconds and S bytes: of the whole result of an all-gather, of the whole
input of a reduce-scatter, else of what one rank sends:

    algbw = S / t
    busbw = algbw x 2 (n - 1) / n      all-reduce
            algbw x (n - 1) / n        all-gather, reduce-scatter, all-to-all
            algbw                      send and receive, permute, broadcast

The shares of a step that its parts take order the settings that are tried next, and are the most
that a setting of such a part can win. Kernels are told apart by the operation that launched them;
where a trace names none, a library's kernel still says which collective it is, but for send and
receive: those are of the one kind that the compiled program has, or of none that can be told.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.hlo import KINDS as OF_PROGRAMS
from pytest_xlatune.evidence.hlo import Collective, Program
from pytest_xlatune.evidence.trace import ABSENT, COMMUNICATION, COMPUTE, Backend, Ints, Kind
from pytest_xlatune.evidence.trace.breakdown import Drill, Observed, TimeSweep
from pytest_xlatune.model.channels import COLLECTIVES
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import Shares


class IdleCause(StrEnum):
    """Why a device stood idle before a kernel, by the host's launch of that kernel."""

    HOST = "the host had not launched the next kernel"
    STARTED_LATE = "the next kernel was launched and had not started"
    UNKNOWN = "no launch of the next kernel is known"


class CollectiveTime(Record, frozen=True, kw_only=True):
    """A collective operation over all devices and steps; times are of one execution."""

    name: str
    kind: str
    size_bytes: int | None  # S above; None where the program is not known, or has it not
    ranks: int | None
    executions: Real  # per device and step
    duration_s: Real  # of its kernel, a mean over devices
    transfer_s: Real | None  # of the shortest in a group; None for one device, and point to point
    exposed_s: Real  # per device and step: nothing computes; two at once share it

    @property
    def wait_s(self) -> float | None:
        """What its kernels take beyond the transfer, a mean over devices."""
        return None if self.transfer_s is None else self.duration_s - self.transfer_s

    @property
    def algbw(self) -> float | None:
        """Bytes per second, by the size."""
        taken_s = self.duration_s if self.transfer_s is None else self.transfer_s
        return None if self.size_bytes is None or taken_s <= 0 else self.size_bytes / taken_s

    @property
    def busbw(self) -> float | None:
        """Bytes per second on the slowest link; None where ranks matter and are unknown."""
        factor = bus_factor(self.kind, self.ranks)
        return None if self.algbw is None or factor is None else self.algbw * factor


class Late(Record, frozen=True, kw_only=True):
    """The device that the others waited for most, and what they waited for it."""

    device: str
    imposed_s: Real  # of a step, the sum over the other devices
    of_all: Real  # share of all waits


class Communication(Record, frozen=True, kw_only=True):
    """The collectives of a window."""

    rows: tuple[CollectiveTime, ...]  # the costliest first
    late: Late | None  # None where no device waited
    idle_s: dict[str, Real]  # cause -> seconds per device and step
    unmatched: tuple[str, ...]  # operations of the trace that the program does not have
    notes: tuple[str, ...] = ()


_SHARED = frozenset({"all-gather", "reduce-scatter", "all-to-all"})
_WAITING = frozenset({"all-reduce", *_SHARED})
_EXCHANGES = ("all-to-all", "collective-permute")  # what a library does by send and receive


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """Return busbw / algbw for a kind of collective among so many ranks."""
    if kind in {"collective-permute", "send", "recv", "collective-broadcast"}:
        return 1.0
    if ranks is None or ranks < 1 or kind not in _WAITING:
        return None
    return (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks


# of whom:  {{0,1},{2,3}}    [2,4]<=[8]    [1,8]<=[2,4]T(1,0)
_LISTED = re.compile(r"\{\{([\d,]*)\}")
_IOTA = re.compile(r"\[(\d{1,9}),(\d{1,9})\]")
_ORDER = re.compile(r"(?:<=)?\[(\d{1,9}(?:,\d{1,9}){,9})\](?:T\((\d(?:,\d){,9})\))?$")
_GROUP = re.compile(r"\{(\d{1,9}(?:,\d{1,9})*)\}")
# mesh['a'=2,'b'=4] {'b'}    mesh['axis_0'=8] {'axis_0'}
#   in another order:  mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}
_MESH = re.compile(r"mesh\[([^]]*)\](?:, device_ids=\((.*)\))? ?\{([^}]*)\}$")
_AXIS = re.compile(r"'([^']*)'=(\d{1,9})")
_ALL = "{}"  # of groups: one of all devices


def ranks_of(groups: str) -> int | None:
    """Return how many ranks a group has, from the groups as the program writes them."""
    if (found := _LISTED.match(groups)) is not None:
        return found[1].count(",") + 1
    if (found := _IOTA.match(groups)) is not None:
        return int(found[2])
    if (found := _MESH.match(groups)) is not None:
        sizes, axes = _axes(found)
        return math.prod(sizes[axis] for axis in axes) if set(axes) <= sizes.keys() else None
    return None


def _axes(mesh: re.Match[str]) -> tuple[dict[str, int], list[str]]:
    """Return the sizes of a mesh, and the axes that a group goes over.

    A part of an axis, 'a':(1)2, is none that is known.
    """
    sizes = {name: int(size) for name, size in _AXIS.findall(mesh[1])}
    return sizes, [""] if ":" in mesh[3] else re.findall(r"'([^']*)'", mesh[3])


def groups_of(groups: str, devices: int) -> tuple[tuple[int, ...], ...] | None:
    """Return who is in a group with whom, as numbers from 0 to the number of devices.

    None where the text does not tell it, or tells it of other devices.
    """
    if groups == _ALL:
        return (tuple(range(devices)),)
    ids: Ints | None = None
    width = ranks_of(groups)
    if _LISTED.match(groups) is not None:
        rows = [[int(each) for each in row.split(",")] for row in _GROUP.findall(groups)]
        alike = {len(row) for row in rows} == {width}
        ids = np.array([each for row in rows for each in row]) if alike else None
    elif (found := _IOTA.match(groups)) is not None:
        ids = _counted(groups[found.end() :], devices)
    elif (found := _MESH.match(groups)) is not None:
        sizes, axes = _axes(found)
        # collectives of a mesh in another order once counted as of all devices
        ids = _counted(found[2] or f"[{devices}]", devices)
        if ids is None or width is None or math.prod(sizes.values()) != devices:
            return None
        others = [size for size in sizes if size not in axes]
        order = [[*sizes].index(each) for each in (*others, *axes)]
        if len(order) != len(sizes):
            return None
        ids = ids.reshape([*sizes.values()]).transpose(order).ravel()
    if ids is None or not width or devices % width or sorted(ids.tolist()) != [*range(devices)]:
        return None
    return tuple(map(tuple, ids.reshape(-1, width).tolist()))


def _counted(order: str, devices: int) -> Ints | None:
    """Return the devices in an order that is told by an array, counted through and transposed."""
    if (found := _ORDER.match(order)) is None:
        return None
    shape = [int(each) for each in found[1].split(",")]
    places = [int(each) for each in found[2].split(",")] if found[2] else [*range(len(shape))]
    if math.prod(shape) != devices or sorted(places) != [*range(len(shape))]:
        return None
    return np.arange(devices).reshape(shape).transpose(places).ravel()


def size_of(collective: Collective, ranks: int | None) -> int | None:
    """Return the bytes that nccl-tests counts for a collective of the program."""
    if collective.kind == "reduce-scatter":  # its result is one rank's part
        return None if ranks is None else collective.size_bytes * ranks
    return None if collective.kind == "ragged-all-to-all" else collective.size_bytes


_Place = tuple[str, int, str]  # of a device: its capture, its number there, its name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The kernels of an operation on one device, ordered by step and start."""

    step: Ints
    start_ps: Ints
    duration_ps: Ints


@dataclass(slots=True, kw_only=True)
class _Operation:
    """The kernels of one operation."""

    kernel: str  # the name of one of them
    runs: dict[_Place, _Runs] = field(default_factory=dict)
    exposed_ps: float = 0.0


class Watch:
    """Keeps the collectives of each device, and its idle time by cause."""

    def __init__(self) -> None:
        self._operations: dict[str, _Operation] = {}
        self._idle: dict[IdleCause, int] = defaultdict(int)

    def __call__(self, found: Observed) -> None:
        """Take the kernels of a device."""
        kernels = found.device.kernels
        inside = np.flatnonzero(kernels.step != ABSENT)
        is_communication = kernels.kind[inside] == COMMUNICATION
        mine, exposed_ps = inside[is_communication], _exposed(found, inside)[is_communication]
        label = np.where(kernels.op[mine] == ABSENT, kernels.name[mine], kernels.op[mine])
        device = found.source, int(found.device.name.rpartition(":")[2]), found.device.name
        for each in np.unique(label):
            here = np.flatnonzero(label == each)
            here = here[np.lexsort((kernels.start_ps[mine[here]], kernels.step[mine[here]]))]
            rows = mine[here]
            operation = self._operations.setdefault(
                found.names[int(each)].replace("-done", "-start", 1), _Operation(kernel="")
            )
            operation.kernel = found.names[int(kernels.name[rows[0]])]
            operation.runs[device] = _Runs(
                step=kernels.step[rows],
                start_ps=kernels.start_ps[rows],
                duration_ps=kernels.duration_ps[rows],
            )
            operation.exposed_ps += float(exposed_ps[here].sum())
        if found.device.backend is Backend.GPU:
            self._add_idle(found)

    def _add_idle(self, found: Observed) -> None:
        """Add up the idle time inside each step of a device, by cause."""
        kernels = found.device.kernels
        for step in range(len(found.steps)):
            here = np.flatnonzero(kernels.step == step)
            here = here[np.argsort(kernels.start_ps[here], kind="stable")]
            start_ps = kernels.start_ps[here]
            until_ps = np.maximum.accumulate(start_ps + kernels.duration_ps[here])
            before = np.flatnonzero(start_ps[1:] > until_ps[:-1])
            begin_ps, end_ps = until_ps[before], start_ps[before + 1]
            launched_ps = found.launches.times(kernels.launch[here[before + 1]])
            known = launched_ps != ABSENT
            late_ps = np.clip(launched_ps, begin_ps, end_ps)
            for cause, spent in (
                (IdleCause.HOST, (late_ps - begin_ps)[known]),
                (IdleCause.STARTED_LATE, (end_ps - late_ps)[known]),
                (IdleCause.UNKNOWN, (end_ps - begin_ps)[~known]),
            ):
                self._idle[cause] += int(spent.sum())

    def result(self, drilled: Drill, program: Program | None) -> Communication:
        """Join what was seen with the program, where there is one."""
        known = _known(program)
        gpu_steps, devices = max(1, drilled.gpu_steps), len(drilled.gpus)
        imposed: dict[str, int] = defaultdict(int)
        rows, unmatched, notes = [], [], set()
        for name, operation in self._operations.items():
            own = known.get(name)
            named = _kind_of_operation(name) or _kind_of_kernel(operation.kernel)
            kind = named if own is None else own.kind
            groups = _ALL if own is None else own.groups
            ranks = None if own is None else devices if groups == _ALL else ranks_of(groups)
            if own is None and program is not None:
                unmatched.append(name)
            transfer_s = None
            if kind in _WAITING and devices > 1:
                transfer_s = _transfer(operation, devices, groups_of(groups, devices), imposed)
                if transfer_s is None:
                    notes.add("- in transfer and wait: a trace does not tell who waited for whom")
                elif own is None:
                    notes.add("transfer and wait: as if each collective went over all devices")
            durations = [runs.duration_ps for runs in operation.runs.values()]
            count = sum(map(len, durations))
            rows.append(
                CollectiveTime(
                    name=name,
                    kind=kind,
                    size_bytes=None if own is None else size_of(own, ranks),
                    ranks=ranks,
                    executions=count / gpu_steps,
                    duration_s=sum(int(each.sum()) for each in durations) / count * 1e-12,
                    transfer_s=transfer_s,
                    exposed_s=operation.exposed_ps / gpu_steps * 1e-12,
                )
            )
        return Communication(
            rows=tuple(sorted(rows, key=lambda row: (-row.duration_s * row.executions, row.name))),
            late=_late(imposed, drilled.divided_by),
            idle_s={
                str(cause): drilled.seconds(self._idle[cause])
                for cause in IdleCause
                if self._idle[cause]
            },
            unmatched=tuple(sorted(unmatched)),
            notes=tuple(sorted(notes)),
        )


def _known(program: Program | None) -> Mapping[str, Collective]:
    found: dict[str, Collective] = {}
    for collective in () if program is None else program.collectives:
        for name in filter(None, (collective.name, collective.inner)):
            found.setdefault(name, collective)
    return found


def _exposed(found: Observed, inside: Ints) -> NDArray[np.float64]:
    """Return how long nothing computed beside each kernel; those that run at once share it."""
    kernels = found.device.kernels
    start_ps = kernels.start_ps[inside]
    sweep = TimeSweep(start_ps, start_ps + kernels.duration_ps[inside], kernels.kind[inside])
    talking = sweep.running[COMMUNICATION]
    is_exposed = (sweep.running[COMPUTE] == 0) & (talking > 0)
    return sweep.during(np.where(is_exposed, sweep.width_ps / np.maximum(talking, 1), 0.0))


def _transfer(
    operation: _Operation,
    devices: int,
    groups: tuple[tuple[int, ...], ...] | None,
    imposed: dict[str, int],
) -> float | None:
    """Return the mean of the shortest kernels, and add up what was waited for whom.

    None where groups are not known, devices are missing, or those of a group are none: they ran it
    a different number of times in a step, or not at the same time.
    """
    places = sorted(operation.runs)
    if groups is None or len(places) != devices or not _told(groups, places):
        return None
    shortest = []
    waits: list[tuple[_Place, int]] = []
    for group in groups:
        members = [places[each] for each in group]
        runs = [operation.runs[member] for member in members]
        if not all(np.array_equal(run.step, runs[0].step) for run in runs):
            return None
        if not _overlap(operation, members):
            return None
        table = np.stack([run.duration_ps for run in runs])
        shortest.append(table.min(axis=0))
        waited = (table - shortest[-1]).sum(axis=0)
        last = table.argmin(axis=0)
        waits += [(each, int(waited[last == at].sum())) for at, each in enumerate(members)]
    for (source, _, name), ps in waits:
        imposed[f"{source} {name}"] += ps
    return float(np.concatenate(shortest).mean()) * 1e-12


def _told(groups: tuple[tuple[int, ...], ...], places: Sequence[_Place]) -> bool:
    """Tell whether the groups are the same whichever process bears which numbers."""
    if len(groups) == 1:
        return True
    sources = sorted({source for source, _, _ in places})
    each = len(places) // len(sources)
    if [source for source, _, _ in places] != [one for one in sources for _ in range(each)]:
        return False
    of: dict[frozenset[int], set[int]] = defaultdict(set)  # numbers in a process -> which processes
    for group in groups:
        found: dict[int, set[int]] = defaultdict(set)
        for number in group:
            found[number // each].add(number % each)
        if len(found) not in {1, len(sources)} or len(set(map(frozenset, found.values()))) > 1:
            return False
        of[frozenset(next(iter(found.values())))] |= found.keys()
    return all(len(processes) == len(sources) for processes in of.values())


_AT_ONCE = 0.9  # of the executions: the last began before the first ended
_SKEW_PS = 20_000_000  # that the clocks of a host's devices may differ


def _overlap(operation: _Operation, members: Sequence[_Place]) -> bool:
    """Tell whether kernels of a group that share a clock ran at once, nearly always."""
    for source in {source for source, _, _ in members}:
        near = [operation.runs[member] for member in members if member[0] == source]
        starts = np.stack([runs.start_ps for runs in near])
        ends = starts + np.stack([runs.duration_ps for runs in near])
        if float((starts.max(axis=0) <= ends.min(axis=0) + _SKEW_PS).mean()) < _AT_ONCE:
            return False
    return True


def _late(imposed: Mapping[str, int], steps: int) -> Late | None:
    total = sum(imposed.values())
    if not total:
        return None
    device = max(imposed, key=lambda each: (imposed[each], each))
    most = imposed[device]
    return Late(device=device, imposed_s=most / steps * 1e-12, of_all=most / total)


_AS = {
    "ragged-all-to-all": "all-to-all",
    "send": "collective-permute",
    "recv": "collective-permute",
}
# an operation:  all-gather-start.3    ragged-all-to-all.1    recv-done
_OPERATION = re.compile(rf"({'|'.join(OF_PROGRAMS)})\b")
# a library's kernel:  ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL    ncclDevKernel_SendRecv
_KERNEL = re.compile(r"AllGather|ReduceScatter|AllReduce|AllToAll|SendRecv", re.IGNORECASE)
_KERNELS = {
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
}


def _kind_of_operation(name: str) -> str:
    """Return the kind of collective that an operation's name tells, or ""."""
    match = _OPERATION.match(name)
    return match[1] if match else ""


def _kind_of_kernel(name: str) -> str:
    """Return the kind of collective that a library's kernel tells; send stands for receive too."""
    match = _KERNEL.search(name)
    return _KERNELS.get(match[0].lower(), "send") if match else ""


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
        kernels={_CLASSES[kind]: names for kind in Kind if (names := _longest_alone(found, kind))},
    )


_CLASSES = {
    Kind.COMPUTE: "compute",
    Kind.COMMUNICATION: "communication",
    Kind.MEMORY: "copies",
}
_NAMED, _CHARACTERS = 3, 60


def _longest_alone(found: Drill, kind: Kind) -> tuple[str, ...]:
    """Return the names of the kernels of a class that most run with nothing beside them."""
    rows = sorted(
        (row for row in found.kernels if row.kind is kind and row.alone_ps),
        key=lambda row: (-row.alone_ps, row.name),
    )
    return tuple(row.name[:_CHARACTERS] for row in rows[:_NAMED])


def _kinds(program: Program) -> tuple[str, ...]:
    found = {_AS.get(collective.kind, collective.kind) for collective in program.collectives}
    return tuple(each for each in COLLECTIVES if each in found)


def _alone(found: Drill, kinds: tuple[str, ...] | None) -> dict[str, int]:
    """Return kind -> picoseconds in which its kernels had nothing beside them."""
    exchanges = [each for each in _EXCHANGES if each in (kinds or ())]
    of_send = exchanges[0] if len(exchanges) == 1 else ""
    spent: dict[str, int] = defaultdict(int)
    operations = [each for each in found.ops if each.kind is Kind.COMMUNICATION]
    for row in operations:
        kind = _kind_of_operation(row.name)
        spent[_AS.get(kind, kind)] += row.alone_ps
    if not operations:
        for row in found.kernels:
            if row.kind is Kind.COMMUNICATION:
                kind = _kind_of_kernel(row.name)
                spent[of_send if kind == "send" else kind] += row.alone_ps
    return {kind: spent[kind] for kind in COLLECTIVES if kind in spent}
