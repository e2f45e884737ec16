"""Traces to where the time of each GPU and step went.

`drill` takes traces one by one and keeps of each only sums, so that the captures of many hosts fit
in memory. A figure "per GPU per step" is a sum over `devices x steps`, nothing else. Truncated
captures are named and left out, never averaged. Intervals on one device become busy, idle, overlap
and exposed time by one sweep over their ends. All is integer picoseconds and adds up exactly:

    sum  = busy + concurrency
    span = busy + idle
    busy = compute + exposed communication + exposed memory

where exposed communication is time with no compute beside it, and exposed memory is time with
neither beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.trace import (
    ABSENT,
    FAMILIES,
    KINDS,
    OTHER,
    Backend,
    Device,
    Events,
    Family,
    Ints,
    Kind,
    Launches,
    Trace,
    classify,
)
from pytest_xlatune.evidence.trace.step_times import (
    FITTING,
    Assignment,
    StepRule,
    assign,
    assign_by_names,
)
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.text import counted

# command_buffer_127: what a kernel of a CUDA graph has in the place of its operation, jaxlib 0.11.2
_GRAPH = re.compile(r"command_buffer(?:[._]\d+)?")
_SMALL = 1 << 16  # numpy sorts numbers of 16 bits by counting, at a tenth of the cost


def grouped(keys: Ints, columns: Sequence[Ints]) -> Ints:
    """Return a row for each key: it, a count, the sum of every column, the maximum of the first.

    A key, not negative, and a value of each column belong to each element.
    """
    is_small = keys.max(initial=0) < _SMALL
    order = np.argsort(keys.astype(np.uint16) if is_small else keys, kind="stable")
    begins = np.flatnonzero(np.diff(keys.take(order), prepend=-1))
    count = np.diff(begins, append=len(keys))
    ordered = [column.take(order) for column in columns]
    sums = [np.add.reduceat(each, begins) for each in ordered]
    longest = np.maximum.reduceat(ordered[0], begins)
    return np.stack([keys[order[begins]], count, *sums, longest], axis=1)


class Timeline(Record, frozen=True, kw_only=True):
    """How a stretch of device time was used, in picoseconds. Timelines add up."""

    kernels: int = 0
    sum_ps: int = 0  # every kernel counted in full
    span_ps: int = 0  # first start to last end
    busy_ps: int = 0  # at least one kernel
    compute_ps: int = 0  # unions of one kind
    communication_ps: int = 0
    memory_ps: int = 0
    overlap_ps: int = 0  # compute and communication at once
    exposed_communication_ps: int = 0
    exposed_memory_ps: int = 0

    @property
    def idle_ps(self) -> int:
        """The span without any kernel."""
        return self.span_ps - self.busy_ps

    @property
    def concurrency_ps(self) -> int:
        """What the sum counts more than once."""
        return self.sum_ps - self.busy_ps

    def __add__(self, other: Self) -> Timeline:
        return Timeline(
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in Timeline.__struct_fields__
            }
        )


def timeline(start_ps: Ints, end_ps: Ints, kind: Ints) -> tuple[Timeline, Ints]:
    """Sweep over the kernels of one device, each with its start, end and index in `KINDS`.

    Return the timeline, and of each kernel how long it ran with nothing beside it.
    """
    size = len(start_ps)
    if not size:
        return Timeline(), np.zeros(0, np.int64)
    points = np.concatenate([start_ps, end_ps])
    order = np.argsort(points, kind="stable")
    width = np.diff(points[order], append=points[order[-1]])
    change = np.repeat(np.array([1, -1], np.int8), size)[order]
    kinds = np.tile(kind.astype(np.int8), 2)[order]
    running = [np.cumsum(change * (kinds == KINDS.index(each)), dtype=np.int32) for each in Kind]
    compute, comm, memory = (each > 0 for each in running)
    depth = running[0] + running[1] + running[2]
    # time alone up to each point; a kernel's own is the difference between its two ends
    alone = np.concatenate([[0], np.cumsum(width * (depth == 1))[:-1]])
    place = np.empty(2 * size, np.int64)
    place[order] = np.arange(2 * size)

    def measure(where: NDArray[np.bool_]) -> int:
        return int(np.dot(width, where))

    return (
        Timeline(
            kernels=size,
            sum_ps=int((end_ps - start_ps).sum()),
            span_ps=int(points[order[-1]] - points[order[0]]),
            busy_ps=measure(depth > 0),
            compute_ps=measure(compute),
            communication_ps=measure(comm),
            memory_ps=measure(memory),
            overlap_ps=measure(compute & comm),
            exposed_communication_ps=measure(comm & ~compute),
            exposed_memory_ps=measure(memory & ~compute & ~comm),
        ),
        alone[place[size:]] - alone[place[:size]],
    )


LONG = 0.01  # a blocker runs alone for at least this share of a step's span, each time
_COMPUTE, _MEMORY = KINDS.index(Kind.COMPUTE), KINDS.index(Kind.MEMORY)
_LATE = 1 << 62
# rules that tell little: captures with them wait for one that tells more, this many in memory
_WEAK, _HELD = frozenset({StepRule.WINDOWS, StepRule.WHOLE}), 2
ON_MAIN = 0.9  # and at least this share of its time is on the main stream


class TimeRow(Record, frozen=True, kw_only=True):
    """Kernels taken together: those of a name, an HLO operation or a family."""

    name: str
    family: str
    kind: Kind
    count: int = 0
    sum_ps: int = 0
    alone_ps: int = 0  # with nothing beside them on their device
    main_ps: int = 0  # on their device's main stream
    longest_ps: int = 0


class Gpu(Record, frozen=True, kw_only=True):
    """One device: its name, the file it came from, and its time in each step."""

    source: str
    name: str
    main_stream: str
    steps: tuple[Timeline, ...]
    outside: Timeline  # kernels that belong to no step
    begins_ps: tuple[int, ...] = ()  # of each step's first kernel, on the capture's own clock

    @property
    def total(self) -> Timeline:
        """The sum over the steps."""
        return sum(self.steps, Timeline())


class Drill(Record, frozen=True, kw_only=True):
    """Where the time went: sums over all devices and steps."""

    sources: tuple[str, ...]
    formats: tuple[str, ...]
    backend: Backend
    launcher: str
    rule: StepRule
    even: bool
    steps: tuple[int, ...]
    divided_by: int  # steps that a sum covers; more than len(steps) where the rule is `whole`
    gpus: tuple[Gpu, ...]
    planes_present: int
    families: tuple[TimeRow, ...]
    kernels: tuple[TimeRow, ...]
    ops: tuple[TimeRow, ...]
    attributed_ps: int  # kernel time with an hlo_op
    excluded: tuple[str, ...] = ()  # truncated or unreadable, with the reason
    warnings: tuple[str, ...] = ()
    step_s: Real | None = None  # from a companion run without profiler

    @property
    def total(self) -> Timeline:
        """The sum over devices and steps."""
        return sum((gpu.total for gpu in self.gpus), Timeline())

    @property
    def periods_ps(self) -> tuple[int, int, int] | None:
        """Sums from the start of a step to that of the next, of the span in them, and their count.

        None where no device has two steps one after the other.
        """
        periods = spans = count = 0
        for gpu in self.gpus:
            if len(gpu.begins_ps) > 1 and all(step.kernels for step in gpu.steps):
                periods += gpu.begins_ps[-1] - gpu.begins_ps[0]
                spans += sum(step.span_ps for step in gpu.steps[:-1])
                count += len(gpu.begins_ps) - 1
        return (periods, spans, count) if count else None

    @property
    def gpu_steps(self) -> int:
        """What a sum is divided by to be per GPU per step."""
        return len(self.gpus) * self.divided_by

    @property
    def blockers(self) -> tuple[TimeRow, ...]:
        """Kernels of the main stream that long run alone, by the time that nothing is beside them.

        A kernel that overlaps at its edge alone costs what the rest of it takes. None on CPU, where
        a device has one stream at most.
        """
        if self.backend is Backend.CPU:
            return ()
        long_ps = LONG * self.total.span_ps / max(1, self.gpu_steps)
        found = (
            row
            for row in self.kernels
            if row.alone_ps >= long_ps * row.count
            and row.alone_ps > 0
            and row.main_ps >= ON_MAIN * row.sum_ps
        )
        return tuple(sorted(found, key=lambda row: -row.alone_ps))

    @property
    def spread(self) -> float:
        """The busiest device's compute over the median one, minus one."""
        compute = [gpu.total.compute_ps for gpu in self.gpus]
        middle = _median(compute)
        return max(compute) / middle - 1 if middle else 0.0

    @property
    def straggler(self) -> Gpu:
        """The device that computes longest: the others wait for it in their collectives."""
        return max(self.gpus, key=lambda gpu: gpu.total.compute_ps)


@dataclass(slots=True)
class _Sums:
    """Rows under way, by key."""

    rows: dict[tuple[str, str, Kind], list[int]] = field(default_factory=dict)

    def add(self, key: tuple[str, str, Kind], values: Sequence[int]) -> None:
        """Add a count, three sums, and the longest of them."""
        row = self.rows.setdefault(key, [0, 0, 0, 0, 0])
        for i, value in enumerate(values[:4]):
            row[i] += value
        row[4] = max(row[4], values[4])

    def sorted(self) -> tuple[TimeRow, ...]:
        figures = ("count", "sum_ps", "alone_ps", "main_ps", "longest_ps")
        found = (
            TimeRow(name=name, family=family, kind=kind, **dict(zip(figures, values, strict=True)))
            for (name, family, kind), values in self.rows.items()
        )
        return tuple(sorted(found, key=lambda row: (-row.sum_ps, row.name)))


def _merged(parts: Sequence[Ints]) -> list[list[int]]:
    """Add up the rows of several devices, as `grouped` made them."""
    rows = np.concatenate(parts)
    order = np.argsort(rows[:, 0], kind="stable")
    rows = rows[order]
    begins = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))
    if not begins.size:
        return []
    sums = np.add.reduceat(rows[:, 1:-1], begins)
    longest = np.maximum.reduceat(rows[:, -1:], begins)
    found: list[list[int]] = np.concatenate([rows[begins, :1], sums, longest], axis=1).tolist()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureWindow:
    """The facts of a profiling window besides its captures; None where one is unknown."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    steps: int | None = None
    families: tuple[Family, ...] = FAMILIES
    force: bool = False  # show a capture that lost events, under a warning


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """The kernels of one device, as they are while its capture is in memory."""

    source: str
    device: str
    backend: Backend
    names: tuple[str, ...]
    events: Events
    kind: Ints  # of each kernel, an index in `KINDS`
    steps: tuple[int, ...]
    step: Ints  # of each kernel, an index in `steps` or ABSENT
    launches: Launches


def drill(
    traces: Iterable[Trace | ParseError],
    window: CaptureWindow = CaptureWindow(),
    *,
    step_s: float | None = None,
    observe: Iterable[Callable[[Observed], None]] = (),
) -> Drill:
    """Reduce the captures of one profiling window to where the time went.

    Traces, one per process, are consumed one by one; where a capture could not be read, its error
    takes its place. `step_s` is the step time of a companion run without profiler. `observe` are
    called with the kernels of each device.

    Raises:
        ParseError: nothing to drill, captures that do not belong together, a device or step count
            other than the given one.
    """
    work = _Work(window, tuple(observe))
    for trace in traces:
        if isinstance(trace, ParseError):
            work.excluded.append(str(trace))
        else:
            work.add(trace)
    return work.result(step_s)


class _Work:
    def __init__(
        self, window: CaptureWindow, observe: Sequence[Callable[[Observed], None]]
    ) -> None:
        self._window = window
        self._observe = observe
        self._families = (*window.families, OTHER)
        self._kernels, self._ops, self._groups = _Sums(), _Sums(), _Sums()
        self._attributed_ps = 0
        self._gpus: list[Gpu] = []
        self._sources: list[str] = []
        self._formats: set[str] = set()
        self._backends: set[Backend] = set()
        self.excluded: list[str] = []
        self._warnings: list[str] = []
        self._planes = self._copying = 0
        self._rules: dict[str, Assignment] = {}
        self._windows: list[tuple[int, int, str]] = []
        self._held: list[tuple[Trace, list[Device], Assignment]] = []

    def add(self, trace: Trace) -> None:
        """Reduce one capture to sums."""
        if trace.foreign:
            self.excluded.append(f"{trace.source}: {trace.foreign}")
            return
        self._warnings += [
            f"{trace.source}: {text}" for text in trace.warnings if text != trace.truncated
        ]
        if trace.truncated is not None and not self._window.force:
            self.excluded.append(
                f"{trace.source}: {trace.truncated}; --force shows it all the same"
            )
            return
        if trace.truncated is not None:
            self._warnings.append(
                f"{trace.source}: {trace.truncated}: shown by --force, its figures are too small"
            )
        if not trace.devices:
            said = f"no kernel in it ({trace.planes_present} device planes, all idle)"
            self._warnings.append(f"{trace.source}: {said}")
            return
        devices = self._working(trace, classify(trace.names, self._window.families)[1])
        if not devices:
            return
        events = [device.events for device in devices]
        found = assign(trace, events, steps=self._window.steps)
        is_weak = found.rule in _WEAK
        if is_weak and not self._rules and len(self._held) < _HELD:
            self._held.append((trace, devices, found))
            return
        self._take_held(found)
        self._take(trace, devices, found)

    def _take_held(self, like: Assignment | None) -> None:
        held, self._held = self._held, []
        for trace, devices, found in held:
            self._take(trace, devices, found, like=like)

    def _take(
        self,
        trace: Trace,
        devices: list[Device],
        found: Assignment,
        *,
        like: Assignment | None = None,
    ) -> None:
        """Add a capture; one whose steps are told badly follows another of the window."""
        events = [device.events for device in devices]
        like = like or next(iter(self._rules.values()), None)
        if found.rule in _WEAK and like is not None and like.rule not in _WEAK:
            found = assign_by_names(trace, events, like.steps) or found
        family, kind = classify(trace.names, self._window.families)
        # a JSON that was cut at a limit of no table was averaged as if it were whole
        if found.cut is not None and not trace.has_all and not self._window.force:
            self.excluded.append(
                f"{trace.source}: its events end in step {found.cut}, all earlier steps have more "
                "kernels: a JSON keeps the earliest events up to a limit; give the xplane.pb, or "
                "profile without Python frames"
            )
            return
        if trace.started_unix_ns and trace.stopped_unix_ns:
            window = (trace.started_unix_ns, trace.stopped_unix_ns, trace.source)
            self._windows.append(window)
        self._sources.append(trace.source)
        self._formats.add(trace.format)
        self._planes += trace.planes_present
        self._rules[trace.source] = found
        if found.rule is StepRule.WHOLE:
            self._check_whole(trace, events)
        names, ops = [], []
        for device, each, step in zip(devices, events, found.of, strict=True):
            self._backends.add(device.backend)
            main, on_main = _main_stream(device, kind)
            alone, timelines, begins = _timelines(each, step, len(found.steps), kind[each.name])
            self._gpus.append(
                Gpu(
                    source=trace.source,
                    name=device.name,
                    main_stream=main,
                    steps=timelines[:-1],
                    outside=timelines[-1],
                    begins_ps=begins,
                )
            )
            if self._observe:
                observed = _observed(trace, device, each, kind[each.name], (found.steps, step))
                for observer in self._observe:
                    observer(observed)
            known = step != ABSENT
            inside = slice(None) if known.all() else np.flatnonzero(known)
            sums = (each.duration_ps, alone, np.where(on_main, each.duration_ps, 0))
            columns = [column[inside] for column in sums]
            name, op = each.name[inside], each.op[inside].astype(np.int64)
            names.append(grouped(name, columns))
            ops.append(grouped((op + 1) * len(self._families) + family[name], columns))
        self._rows(trace, _merged(names), _merged(ops), family)

    def _working(self, trace: Trace, kind: Ints) -> list[Device]:
        """Return the devices that do more than copy: the others are in no figure, and said."""
        working: list[Device] = []
        copying: list[Device] = []
        for device in trace.devices:
            does = kind[device.events.name] != _MEMORY
            (working if does.any() else copying).append(device)
        # in the divisor they halved every figure: 1.793 ms a step, where a GPU took 3.586
        self._copying += len(copying)
        if copying:
            self._warnings.append(
                f"{trace.source}: {', '.join(each.name for each in copying)} only copied data, "
                "and no figure counts them"
            )
        return working

    def _check_whole(self, trace: Trace, events: Sequence[Events]) -> None:
        """Refuse a number of steps that the kernels of a stretch contradict.

        Raises:
            ParseError: most kernel time is of kernels that did not run equally often in each.
        """
        steps = self._window.steps or 1
        if len(trace.annotations) not in {0, steps} and self._window.steps:
            raise ParseError(
                f"{trace.source}: {len(trace.annotations)} steps are annotated, {steps} expected: "
                "check --steps and the profiler's window"
            )
        fitting = total = 0
        for each in events:
            rows = grouped(each.name, [each.duration_ps])
            total += int(rows[:, 2].sum())
            fitting += int(rows[rows[:, 1] % steps == 0, 2].sum())
        # a wrong --steps was taken as it is, and every figure was the total divided by it
        if fitting < FITTING * total:
            raise ParseError(
                f"{trace.source}: {1 - fitting / total:.0%} of the kernel time belongs to kernels "
                f"whose number is no multiple of the {steps} steps that you expect; check --steps "
                "and the profiler's window, or leave --steps out to see the whole stretch"
            )

    def _rows(
        self, trace: Trace, names: list[list[int]], ops: list[list[int]], family: Ints
    ) -> None:
        """Add sums by name, which give the families too, and by operation and family."""
        for name, *values in names:
            own = self._families[int(family[name])]
            self._kernels.add((trace.names[name], own.name, own.kind), values)
            self._groups.add((own.name, own.name, own.kind), values)
        for key, *values in ops:
            op, place = divmod(key, len(self._families))
            # 0 is ABSENT + 1
            if op and not _GRAPH.fullmatch(trace.names[op - 1]):
                own = self._families[place]
                self._attributed_ps += values[1]
                self._ops.add((trace.names[op - 1], own.name, own.kind), values)

    def result(self, step_s: float | None) -> Drill:
        """Return what was added, after checking that it belongs together."""
        self._take_held(None)
        nodes, gpus_per_node = self._window.nodes, self._window.gpus_per_node
        steps = self._window.steps
        if not self._gpus:
            raise ParseError(
                "nothing to drill: "
                + ("; ".join([*self.excluded, *self._warnings]) or "no capture was given")
            )
        first = next(iter(self._rules.values()))
        self._check_windows()
        for source, found in self._rules.items():
            if found.steps != first.steps:
                raise ParseError(
                    f"{source}: steps {_numbers(found.steps)} by rule {found.rule}, where "
                    f"{self._sources[0]} has {_numbers(first.steps)} by {first.rule}: the captures "
                    "are not of one window; give those of one window only"
                )
            if not _agree(found, first):
                self._warnings.append(
                    f"{source}: its steps are found by rule {found.rule}, those of "
                    f"{self._sources[0]} by {first.rule}: kernels at the edge of a step may stand "
                    "in the one beside it"
                )
        whole = first.rule is StepRule.WHOLE
        if steps and not whole and len(first.steps) != steps:
            raise ParseError(
                f"{self._sources[0]}: {len(first.steps)} steps found ({_numbers(first.steps)}, by "
                f"{first.rule}), {steps} expected: check --steps and the profiler's window"
            )
        expected = nodes * (gpus_per_node or 0) if nodes else 0
        devices = len(self._gpus) + self._copying
        if expected and expected != devices:
            raise ParseError(
                f"{devices} devices with kernels in {len(self._sources)} captures, "
                f"{nodes} x {gpus_per_node} = {expected} expected: a timestamp folder of the "
                "window is missing, or captures of another window are among them"
                + ("; left out: " + "; ".join(self.excluded) if self.excluded else "")
            )
        self._check_gpus_per_node(gpus_per_node, devices)
        even = all(each.even for each in self._rules.values())
        return Drill(
            sources=tuple(self._sources),
            formats=tuple(sorted(self._formats)),
            backend=next(iter(self._backends)),
            launcher=self._launcher(gpus_per_node),
            rule=first.rule,
            even=even,
            steps=first.steps,
            divided_by=(steps or 1) if whole else len(first.steps),
            gpus=tuple(self._gpus),
            planes_present=self._planes,
            families=self._groups.sorted(),
            kernels=self._kernels.sorted(),
            ops=self._ops.sorted(),
            attributed_ps=self._attributed_ps,
            excluded=tuple(self.excluded),
            warnings=tuple(self._warnings),
            step_s=step_s,
        )

    def _check_gpus_per_node(self, gpus_per_node: int | None, devices: int) -> None:
        """Refuse a number of devices of a node that the captures contradict.

        Raises:
            ParseError: a process has more, or all have no multiple of it.
        """
        most = max(Counter(gpu.source for gpu in self._gpus).values())
        if gpus_per_node and (devices % gpus_per_node or most > gpus_per_node):
            raise ParseError(
                f"{counted(devices, 'device')} with kernels in "
                f"{counted(len(self._sources), 'capture')}, {most} in one: this does not fit "
                f"nodes of {gpus_per_node} (--gpus-per-node); a capture is missing, or the number "
                "is wrong" + ("; left out: " + "; ".join(self.excluded) if self.excluded else "")
            )

    def _check_windows(self) -> None:
        """Captures of one window overlap in time; two windows of a job do not."""
        for start, _, source in self._windows:
            for _, stop, other in self._windows:
                if start > stop:
                    raise ParseError(
                        f"{source} starts after {other} ends: these are two profiling windows; "
                        "give the captures of one"
                    )

    def _launcher(self, gpus_per_node: int | None) -> str:
        counts = Counter(Counter(gpu.source for gpu in self._gpus).values())
        if len(counts) > 1:
            found = ", ".join(f"{files} with {gpus}" for gpus, files in sorted(counts.items()))
            raise ParseError(
                f"captures with different numbers of devices ({found}): files are missing or of "
                "another job"
            )
        (gpus,) = counts
        # a capture of the CPU backend was told as one of GPUs
        each = "GPU" if self._backends == {Backend.GPU} else "CPU device"
        if gpus == 1 and (len(self._sources) > 1 or (gpus_per_node or 1) > 1):
            return f"one process per {each}"
        if gpus == 1:
            return f"one process with one {each}"
        return f"one process per node, {gpus} {each}s each"


def _median(values: Sequence[int]) -> float:
    """Return the middle one, or the mean of the middle two; numpy's own loads masked arrays."""
    ordered, half = sorted(values), len(values) // 2
    return (ordered[half] + ordered[~half]) / 2


def _main_stream(device: Device, kind: Ints) -> tuple[str, NDArray[np.bool_]]:
    """Return the stream that computes most, and which kernels are on it.

    On the CPU backend a device has no stream: its operations wander between threads.
    """
    streams = device.streams
    sizes = [len(each.events) for each in streams]
    if device.backend is Backend.CPU:
        return "all threads", np.ones(sum(sizes), bool)
    compute = [
        int(each.events.duration_ps[kind[each.events.name] == _COMPUTE].sum()) for each in streams
    ]
    main = compute.index(max(compute))
    return streams[main].name, np.repeat(np.arange(len(streams)) == main, sizes)


def _timelines(
    events: Events, step: Ints, steps: int, kind: Ints
) -> tuple[Ints, tuple[Timeline, ...], tuple[int, ...]]:
    """Return each kernel's time alone, a timeline for every step and one for the rest, and starts.

    The starts are those of the steps' first kernels, 0 for a step without any.
    """
    alone = np.zeros(len(events), np.int64)
    found, begins = [], []
    for number in (*range(steps), ABSENT):
        here = np.flatnonzero(step == number)
        start_ps = events.start_ps[here]
        line, alone[here] = timeline(start_ps, events.end_ps[here], kind[here])
        found.append(line)
        begins.append(int(start_ps.min(initial=_LATE)) if here.size else 0)
    return alone, tuple(found), tuple(begins[:-1])


def _observed(
    trace: Trace,
    device: Device,
    events: Events,
    kind: Ints,
    assigned: tuple[tuple[int, ...], Ints],
) -> Observed:
    return Observed(
        source=trace.source,
        device=device.name,
        backend=device.backend,
        names=trace.names,
        events=events,
        kind=kind,
        steps=assigned[0],
        step=assigned[1],
        launches=trace.launches,
    )


def _agree(one: Assignment, other: Assignment) -> bool:
    """Tell whether two captures name their steps alike.

    A launch and a run of the step's module put the same kernels into a step where both are even.
    """
    exact = {StepRule.LAUNCH, StepRule.EXECUTIONS}
    return one.rule is other.rule or (one.even and other.even and {one.rule, other.rule} <= exact)


def _numbers(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
