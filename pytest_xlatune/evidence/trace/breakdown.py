"""Reduce traces to where the time of each GPU and step went.

`drill` takes traces one by one and keeps only sums, so that captures of many hosts fit into memory.
A figure "per GPU per step" is always a sum over `devices x steps`. One sweep over the ends of
intervals on a device gives busy, idle, overlap and exposed time. All times are integer picoseconds
and add up exactly:

    sum  = busy + concurrency
    span = busy + idle
    busy = compute + exposed communication + exposed memory

where exposed communication is time without compute at the same time, and exposed memory is time
without compute or communication at the same time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.trace import (
    ABSENT,
    COMPUTE,
    KINDS,
    MEMORY,
    Backend,
    Columns,
    Device,
    Family,
    Ints,
    Kind,
    Trace,
    classify,
    shipped_families,
)
from pytest_xlatune.evidence.trace.step_times import (
    FITTING,
    StepRule,
    Steps,
    assign,
    lacking_at_the_end,
)
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.text import counted

LONG = 0.01  # a blocker runs alone for at least this share of a step's span, on each occurrence
ON_MAIN = 0.9  # and at least this share of its time is on the main stream

# the operation of a kernel in a CUDA graph (jaxlib 0.11.2):  command_buffer_127
_GRAPH = re.compile(r"command_buffer(?:[._]\d+)?")
_APART = 0.1  # share of a stretch by which a device may end before the others


class Timeline(Record, frozen=True, kw_only=True):
    """The use of a stretch of device time, in picoseconds. Timelines can be added."""

    kernels: int = 0
    sum_ps: int = 0  # sum over all kernels
    span_ps: int = 0  # from the first start to the last end
    busy_ps: int = 0  # time with at least one kernel
    compute_ps: int = 0  # union of the kernels of one kind
    communication_ps: int = 0
    memory_ps: int = 0
    overlap_ps: int = 0  # time with compute and communication at once
    exposed_communication_ps: int = 0
    exposed_memory_ps: int = 0

    @property
    def idle_ps(self) -> int:
        """Time in the span without any kernel."""
        return self.span_ps - self.busy_ps

    @property
    def concurrency_ps(self) -> int:
        """Time that the sum counts more than once."""
        return self.sum_ps - self.busy_ps

    def __add__(self, other: Self) -> Timeline:
        names = Timeline.__struct_fields__
        return Timeline(**{name: getattr(self, name) + getattr(other, name) for name in names})


def timeline(start_ps: Ints, end_ps: Ints, kind: NDArray[Any]) -> tuple[Timeline, Ints]:
    """Sweep over the kernels of a device, given by start, end and index in `KINDS`.

    Returns the timeline, and for each kernel how long it ran alone.
    """
    size = len(start_ps)
    points = np.concatenate([start_ps, end_ps])
    order = np.argsort(points, kind="stable")
    # for each interval between two points: its length, and the kernels of each kind that run
    width_ps: Ints = np.diff(points[order], append=points[order[-1:]])
    change = np.repeat(np.array([1, -1], np.int8), size)[order]
    kinds = np.tile(kind.astype(np.int8), 2)[order]
    running = [np.cumsum(change * (kinds == index), dtype=np.int32) for index in range(len(KINDS))]
    depth = np.sum(running, axis=0)
    compute, communication, memory = (count > 0 for count in running)

    def length(where: NDArray[np.bool_]) -> int:
        return int(np.dot(width_ps, where))

    usage = Timeline(
        kernels=size,
        sum_ps=int((end_ps - start_ps).sum()),
        span_ps=int(width_ps.sum()),
        busy_ps=length(depth > 0),
        compute_ps=length(compute),
        communication_ps=length(communication),
        memory_ps=length(memory),
        overlap_ps=length(compute & communication),
        exposed_communication_ps=length(communication & ~compute),
        exposed_memory_ps=length(memory & ~compute & ~communication),
    )
    place = np.empty(2 * size, np.int64)
    place[order] = np.arange(2 * size)
    alone_before = np.concatenate([[0], np.cumsum(width_ps * (depth == 1))[:-1]])
    alone: Ints = alone_before[place[size:]] - alone_before[place[:size]]
    return usage, alone


class TimeRow(Record, frozen=True, kw_only=True):
    """The time of all kernels with the same name, HLO operation or family."""

    name: str
    family: str
    kind: Kind
    count: int = 0
    sum_ps: int = 0
    alone_ps: int = 0  # time without another kernel on the device
    main_ps: int = 0  # time on the device's main stream
    longest_ps: int = 0


class Gpu(Record, frozen=True, kw_only=True):
    """A device: its name, its file, and its time in each step."""

    source: str
    name: str
    main_stream: str
    steps: tuple[Timeline, ...]
    outside: Timeline  # kernels that belong to no step
    begins_ps: tuple[int, ...] = ()  # start of each step's first kernel, by the capture's clock

    @property
    def total(self) -> Timeline:
        """The sum over all steps."""
        return sum(self.steps, Timeline())


class Drill(Record, frozen=True, kw_only=True):
    """Where the time went: sums over all devices and steps."""

    sources: tuple[str, ...]
    formats: tuple[str, ...]
    backend: Backend
    launcher: str  # how many processes and devices, in words
    rule: StepRule
    even: bool  # whether all steps of a capture have equally many kernels
    steps: tuple[int, ...]
    divided_by: int  # number of steps in a sum; more than len(steps) with the rule `whole`
    gpus: tuple[Gpu, ...]
    planes_present: int  # device planes, also those without a kernel
    families: tuple[TimeRow, ...]
    kernels: tuple[TimeRow, ...]
    ops: tuple[TimeRow, ...]
    attributed_ps: int  # time of kernels with an hlo_op
    excluded: tuple[str, ...] = ()  # captures that are truncated or cannot be read, with the reason
    warnings: tuple[str, ...] = ()
    step_s: Real | None = None  # step time of a run without profiler; None if unknown

    @property
    def total(self) -> Timeline:
        """The sum over devices and steps."""
        return sum((gpu.total for gpu in self.gpus), Timeline())

    @property
    def periods_ps(self) -> tuple[int, int, int] | None:
        """Sum of the periods from step to step, of the spans in them, and their number.

        None if no device has two consecutive steps.
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
        """The divisor that makes a sum a figure per GPU per step."""
        return len(self.gpus) * self.divided_by

    def seconds(self, ps: float) -> float:
        """Return a sum over devices and steps as seconds per device per step."""
        return ps / max(1, self.gpu_steps) * 1e-12

    @property
    def blockers(self) -> tuple[TimeRow, ...]:
        """Kernels of the main stream that run alone for long, the longest first.

        Of a kernel that overlaps only at its edge, the rest counts as alone. () on a CPU, where a
        device has at most one stream.
        """
        if self.backend is Backend.CPU:
            return ()
        long_ps = LONG * self.total.span_ps / max(1, self.gpu_steps)
        blocking = (
            row
            for row in self.kernels
            if row.alone_ps >= max(1, long_ps * row.count) and row.main_ps >= ON_MAIN * row.sum_ps
        )
        return tuple(sorted(blocking, key=lambda row: -row.alone_ps))

    @property
    def spread(self) -> float:
        """The busiest device's compute time over the median one, minus one."""
        compute_ps = [gpu.total.compute_ps for gpu in self.gpus]
        middle_ps = float(np.median(compute_ps))
        return max(compute_ps) / middle_ps - 1 if middle_ps else 0.0

    @property
    def straggler(self) -> Gpu:
        """The device that computes longest, for which others wait in their collectives."""
        return max(self.gpus, key=lambda gpu: gpu.total.compute_ps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureWindow:
    """The known facts of a profiling window besides its captures; None if unknown."""

    gpus: int | None = None
    steps: int | None = None
    force: bool = False  # whether to show a capture that lost events, with a warning
    step_s: float | None = None  # step time of a run without profiler; None if unknown
    # called with each device while it is in memory, after its kernels have kind and step
    observe: Callable[[Trace, Device], None] | None = None


def drill(traces: Iterable[Trace | ParseError], window: CaptureWindow | None = None) -> Drill:
    """Reduce the captures of one profiling window to where the time went.

    Traces, one for each process, are consumed one by one. A capture that could not be read is
    represented by its error.

    Raises:
        ParseError: there is nothing to drill, the captures do not belong together, or the number of
            devices or steps is not the given one.
    """
    sums = _WindowSums(window or CaptureWindow())
    for trace in traces:
        if isinstance(trace, ParseError):
            sums.excluded.append(str(trace))
        else:
            sums.add(trace)
    return sums.result()


_FIGURES = ("count", "sum_ps", "alone_ps", "main_ps", "longest_ps")  # of a `TimeRow`


class _Rows(dict[tuple[str, Family], Ints]):
    """Name of a row and its family -> its figures."""

    def add(self, name: str, family: Family, figures: Ints) -> None:
        row = self.setdefault((name, family), np.zeros(len(_FIGURES), np.int64))
        row[:-1] += figures[:-1]
        row[-1] = max(row[-1], figures[-1])

    def by_time(self) -> tuple[TimeRow, ...]:
        rows = []
        for (name, family), figures in self.items():
            values = dict(zip(_FIGURES, figures.tolist(), strict=True))
            rows.append(TimeRow(name=name, family=family.name, kind=family.kind, **values))
        return tuple(sorted(rows, key=lambda row: (-row.sum_ps, row.name)))


class _WindowSums:
    def __init__(self, window: CaptureWindow) -> None:
        self._window = window
        self._kernels, self._ops = _Rows(), _Rows()
        self._gpus: list[Gpu] = []
        self._formats: set[str] = set()
        self._backends: set[Backend] = set()
        self.excluded: list[str] = []
        self._warnings: list[str] = []
        self._planes = self._copying = 0
        self._steps: dict[str, Steps] = {}  # of each capture, in their order
        self._sessions: dict[str, tuple[int, int]] = {}  # of each capture that has it

    def add(self, trace: Trace) -> None:
        lost = trace.truncated
        if trace.foreign is not None:
            self.excluded.append(f"{trace.source}: {trace.foreign}")
            return
        self._warn(trace, *(text for text in trace.warnings if text != lost))
        if lost is not None and not self._window.force:
            self.excluded.append(f"{trace.source}: {lost}; --force shows it all the same")
            return
        if lost is not None:
            self._warn(trace, f"{lost}: shown by --force, its figures are too small")
        if not trace.devices:
            self._warn(trace, f"no kernel in it ({trace.planes_present} device planes, all idle)")
        if devices := self._working(trace):
            steps = assign(trace, devices, steps=self._window.steps)
            # a JSON may be cut at a limit that no one knows
            if steps.cut is not None and trace.format == "trace.json" and not self._window.force:
                self.excluded.append(
                    f"{trace.source}: its events end in step {steps.cut}, all earlier steps have "
                    "more kernels: a JSON keeps the earliest events up to a limit; give the "
                    "xplane.pb, or profile without Python frames"
                )
            else:
                self._take(trace, devices, steps)

    def _warn(self, trace: Trace, *warnings: str) -> None:
        self._warnings += [f"{trace.source}: {text}" for text in warnings]

    def _working(self, trace: Trace) -> list[Device]:
        """Return the devices that do more than copy; a warning names the others."""
        _, kind_of = classify(trace.names, shipped_families())
        for device in trace.devices:
            device.kernels["kind"] = kind_of[device.kernels["name"]]
        working = [device for device in trace.devices if (device.kernels["kind"] != MEMORY).any()]
        copying = [device.name for device in trace.devices if device not in working]
        self._copying += len(copying)
        if copying:
            self._warn(trace, f"{', '.join(copying)} only copied data, and no figure counts them")
        return working

    def _take(self, trace: Trace, devices: Sequence[Device], steps: Steps) -> None:
        self._formats.add(trace.format)
        self._planes += trace.planes_present
        self._steps[trace.source] = steps
        if trace.session_ns is not None:
            self._sessions[trace.source] = trace.session_ns
        if steps.rule is StepRule.WHOLE and self._window.steps:
            _check_whole(trace, devices, self._window.steps)
        self._warn(trace, *_ended_early(trace, devices, steps))
        families = shipped_families()
        family_of, _ = classify(trace.names, families)
        # a kernel is of one family, and an operation may have kernels of several
        of_kernels = np.zeros((len(_FIGURES), len(trace.names)), np.int64)
        of_ops = np.zeros((len(_FIGURES), (len(trace.names) + 1) * len(families)), np.int64)
        for device in devices:
            if self._window.observe is not None:
                self._window.observe(trace, device)
            gpu, timed = _reduced(trace.source, device, len(steps.numbers))
            self._backends.add(device.backend)
            self._gpus.append(gpu)
            name = timed["name"]
            op_and_family = (timed["op"].astype(np.int64) + 1) * len(families) + family_of[name]
            for sums, key in (of_kernels, name), (of_ops, op_and_family):
                sums[0] += np.bincount(key, minlength=sums.shape[1])
                for row, figure in zip(sums[1:-1], _FIGURES[1:-1], strict=True):
                    np.add.at(row, key, timed[figure])
                np.maximum.at(sums[-1], key, timed["sum_ps"])
        for at in np.flatnonzero(of_kernels[0]).tolist():
            self._kernels.add(trace.names[at], families[family_of[at]], of_kernels[:, at])
        for at in np.flatnonzero(of_ops[0]).tolist():
            op, family = divmod(at, len(families))  # 0 stands for no operation
            name_of_op = trace.names[op - 1]
            if op and not _GRAPH.fullmatch(name_of_op):
                self._ops.add(name_of_op, families[family], of_ops[:, at])

    def result(self) -> Drill:
        if not self._gpus:
            raise ParseError(
                "nothing to drill: "
                + ("; ".join([*self.excluded, *self._warnings]) or "no capture was given")
            )
        rule, numbers = self._check_steps()
        families, ops = _Rows(), self._ops.by_time()
        for (_, family), figures in self._kernels.items():
            families.add(family.name, family, figures)
        return Drill(
            sources=tuple(self._steps),
            formats=tuple(sorted(self._formats)),
            backend=next(iter(self._backends)),
            launcher=self._launcher(),
            rule=rule,
            even=all(steps.even for steps in self._steps.values()),
            steps=numbers,
            divided_by=(self._window.steps or 1) if rule is StepRule.WHOLE else len(numbers),
            gpus=tuple(self._gpus),
            planes_present=self._planes,
            families=families.by_time(),
            kernels=self._kernels.by_time(),
            ops=ops,
            attributed_ps=sum(row.sum_ps for row in ops),
            excluded=tuple(self.excluded),
            warnings=tuple(self._warnings),
            step_s=self._window.step_s,
        )

    def _check_steps(self) -> tuple[StepRule, tuple[int, ...]]:
        """Return the weakest rule that found steps, and the steps, which all captures share."""
        if self._sessions:
            last_start, latest = max((start, name) for name, (start, _) in self._sessions.items())
            first_stop, earliest = min((stop, name) for name, (_, stop) in self._sessions.items())
            if last_start > first_stop:
                raise ParseError(
                    f"{latest} starts after {earliest} ends: these are two profiling windows; give "
                    "the captures of one"
                )
        (name, first), *others = self._steps.items()
        for source, found in others:
            if found.numbers != first.numbers:
                raise ParseError(
                    f"{source}: steps {_numbers(found)} by rule {found.rule}, where {name} has "
                    f"{_numbers(first)} by {first.rule}: the captures are not of one window; give "
                    "those of one window only"
                )
        rule = max((found.rule for found in self._steps.values()), key=list(StepRule).index)
        expected = self._window.steps
        if expected and rule is not StepRule.WHOLE and len(first.numbers) != expected:
            raise ParseError(
                f"{name}: {len(first.numbers)} steps found ({_numbers(first)}, by {first.rule}), "
                f"{expected} expected: check --steps and the profiler's window"
            )
        return rule, first.numbers

    def _launcher(self) -> str:
        """Describe the processes by their devices, if all have the same number."""
        counts = Counter(Counter(gpu.source for gpu in self._gpus).values())
        devices = len(self._gpus) + self._copying
        if devices != (self._window.gpus or devices):
            without = "; left out: " + "; ".join(self.excluded) if self.excluded else ""
            raise ParseError(
                f"{counted(devices, 'device')} with kernels in "
                f"{counted(len(self._steps), 'capture')}, {self._window.gpus} expected: a "
                "timestamp folder of the window is missing, or captures of another window are "
                f"among them{without}"
            )
        if len(counts) > 1:
            shown = ", ".join(f"{files} with {gpus}" for gpus, files in sorted(counts.items()))
            raise ParseError(
                f"captures with different numbers of devices ({shown}): files are missing or of "
                "another job"
            )
        (gpus,) = counts
        noun = "GPU" if self._backends == {Backend.GPU} else "CPU device"
        if gpus > 1:
            return f"one process per node, {gpus} {noun}s each"
        return f"one process {'with one' if len(self._steps) == 1 else 'per'} {noun}"


def _check_whole(trace: Trace, devices: Sequence[Device], steps: int) -> None:
    """Refuse a number of steps that contradicts the kernels of a stretch."""
    spent = fitting = 0
    for device in devices:
        name, duration_ps = device.kernels["name"], device.kernels["duration_ps"]
        spent += int(duration_ps.sum())
        fitting += int(duration_ps[np.bincount(name)[name] % steps == 0].sum())
    if fitting < FITTING * spent:
        raise ParseError(
            f"{trace.source}: {1 - fitting / spent:.0%} of the kernel time belongs to kernels "
            f"whose count is no multiple of the {steps} steps that you expect; check --steps "
            "and the profiler's window, or leave --steps out to see the whole stretch"
        )


def _reduced(source: str, device: Device, steps: int) -> tuple[Gpu, Columns]:
    """Return a device's time in each step, and the figures of its kernels that belong to a step."""
    kernels = device.kernels
    # `np.add.at` is 30 times slower on an array from another process, whose dtype is a copy
    duration_ps = kernels["duration_ps"].astype(np.int64)
    # on the CPU backend a device has no stream, because operations move between threads
    main, on_main = "all threads", np.ones(kernels.size, bool)
    if device.backend is Backend.GPU:  # the stream that computes most
        computing_ps = duration_ps * (kernels["kind"] == COMPUTE)
        stream = int(np.bincount(kernels["stream"], weights=computing_ps).argmax())
        main, on_main = device.streams[stream], kernels["stream"] == stream
    alone_ps = np.zeros(kernels.size, np.int64)
    timelines, begins = [], []
    for number in (*range(steps), ABSENT):
        here = np.flatnonzero(kernels["step"] == number)
        start_ps = kernels["start_ps"][here]
        end_ps = start_ps + duration_ps[here]
        usage, alone_ps[here] = timeline(start_ps, end_ps, kernels["kind"][here])
        timelines.append(usage)
        begins.append(int(start_ps.min()) if here.size else 0)
    gpu = Gpu(
        source=source,
        name=device.name,
        main_stream=main,
        steps=tuple(timelines[:-1]),
        outside=timelines[-1],
        begins_ps=tuple(begins[:-1]),
    )
    timed = Columns(
        name=kernels["name"],
        op=kernels["op"],
        sum_ps=duration_ps,
        alone_ps=alone_ps,
        main_ps=duration_ps * on_main,
    )
    return gpu, timed.where(kernels["step"] != ABSENT)


def _ended_early(trace: Trace, devices: Sequence[Device], steps: Steps) -> Iterator[str]:
    """Yield a warning for each device that ends inside a step, or long before the others.

    A single step has nothing to be compared with; there the host's launches show it.
    """
    if len(steps.numbers) == 1 and (count := _launched_in_vain(trace)):
        yield (
            f"the host launched work {counted(count, 'more time')} behind the last kernel of the "
            "capture, which may end inside its step; its figures would be too small"
        )
    if steps.even and steps.rule is not StepRule.WHOLE:
        return
    for device in devices:
        if lacking := lacking_at_the_end(device.kernels, steps):
            names = ", ".join(trace.names[name] for name in lacking[:2])
            yield (
                f"the last step of {device.name} lacks {counted(len(lacking), 'kernel')} that all "
                f"steps before it have ({names}): the capture may end inside it, and its figures "
                "are too small"
            )
    kernels = [device.kernels for device in devices]
    begin_ps = min(int(each["start_ps"].min()) for each in kernels)
    ends_ps = [int((each["start_ps"] + each["duration_ps"]).max()) for each in kernels]
    for device, end_ps in zip(devices, ends_ps, strict=True):
        earlier_ps = max(ends_ps) - end_ps
        if earlier_ps > _APART * (max(ends_ps) - begin_ps):
            yield (
                f"{device.name} ends {earlier_ps * 1e-9:.3f} ms before the last device of its "
                "process: a part of its kernels is missing, and figures are too small"
            )


def _launched_in_vain(trace: Trace) -> int:
    """Return how many launches follow the last one that has a kernel; 0 if they are few.

    They tell nothing where earlier launches have no kernels either.
    """
    ids, start_ps = trace.launches
    launches = np.sort(np.concatenate([device.kernels["launch"] for device in trace.devices]))
    has_kernel = np.searchsorted(launches, ids, "right") > np.searchsorted(launches, ids)
    if trace.devices[0].backend is Backend.CPU or not has_kernel.any():
        return 0
    is_behind = start_ps > start_ps[has_kernel].max()
    is_cut = is_behind.mean() > _APART and has_kernel[~is_behind].mean() >= FITTING
    return int(is_behind.sum()) if is_cut else 0


def _numbers(steps: Steps) -> str:
    return ", ".join(map(str, steps.numbers))
