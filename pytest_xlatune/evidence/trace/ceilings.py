"""How much any setting could win at most, by what of a step it acts on.

`Bounds` looks at the kernels of each device while a capture is in memory, period by period: from
the first kernel of a step to that of the next. A setting of a class can take no more away than

    communication   the time in which collectives run and nothing computes
    copies          the time in which copies run and nothing else does
    compute         the time in which something computes, less FLOP / peak of its matrix products
    idle            the time in which no kernel runs, inside a step and between two

and besides

* the idle time that its kernels may cause: by their launches, or before and behind them;
* exposed kernels of other classes that its own may delay, for as long as its own run hidden, and
  waits for another device; `idle` may delay all of them, and so may a collective or a copy behind
  another kernel in its stream: what needs it waits for that one too;
* computation that may run beside other computation: all but that of the stream with the most;
* what its kernels may have slowed others by: at most the time that both ran at once, and no more
  than a kernel took beyond its shortest run with nothing beside it.

A step of t seconds that keeps t - x on the device that keeps most gains at most t / (t - x) - 1. A
device that waits for another keeps less than that one, so a wait is no communication. A kernel has
the same work in each step; another program (its precision, its recomputation, its attention) is no
setting. The bytes that a program moves are no bound: the next fusion moves fewer.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.trace import ABSENT, KINDS, Backend, Events, Ints, Kind, distinct
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.record import Record, dataclass
from pytest_xlatune.model.text import counted

if TYPE_CHECKING:
    from pytest_xlatune.evidence.hlo import Program
    from pytest_xlatune.evidence.trace.breakdown import Drill, Observed

IDLE = "idle"
# kind of kernels -> what the catalog calls the part of a step
CLASSES = {
    "communication": Kind.COMMUNICATION,
    "compute": Kind.COMPUTE,
    "copies": Kind.MEMORY,
    IDLE: None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(Record):
    """What the devices of an architecture multiply at most, without sparsity, by a data sheet.

    Attributes:
        architecture: as a compiled program names it: sm_90, gfx942.
        devices: that have it; the figures are of the fastest.
        tflops: of 16 bits, in 10^12 FLOP a second.
        tflops_narrow: of 8 bits.
        source: the data sheet.
    """

    architecture: str
    devices: str
    tflops: float
    tflops_narrow: float
    source: str


# of a program's file:  sm_9.0a    sm_100a    gfx942
_ARCHITECTURE = re.compile(r"(sm_)(\d+)\.?(\d?)[af]?|gfx\w+")


@functools.cache
def peaks() -> dict[str, Peak]:
    """Return the peaks of architectures that are known; reads `peaks.toml` once."""
    import tomllib

    text = Path(__file__).with_name("peaks.toml").read_text(encoding="utf-8")
    return {each["architecture"]: Peak.from_json(each) for each in tomllib.loads(text)["peak"]}


def peak_of(target: str) -> Peak | None:
    """Return the peak of the target of a program; None where it is not known."""
    found = _ARCHITECTURE.fullmatch(target)
    name = "".join(each or "" for each in found.groups()) if found and found[1] else target
    return peaks().get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling(Record):
    """What a class of settings could win at most.

    Attributes:
        name: communication, compute, copies or idle.
        own_s: what the class itself takes of a step of the device that binds it; of compute the
            time above its roofline, of idle the time between two steps.
        gaps_s: idle time in a step that its kernels may cause; of idle all of it.
        others_s: of others: what it may have slowed, delayed, or made wait.
        gain: as a share of the throughput, 0.031 is 3.1 %; None where it is not known.
        low, high: of the single steps.
        device: the one that binds: it keeps most.
        unknown: why there is no gain; "" where there is.
    """

    name: str
    own_s: float
    gaps_s: float
    others_s: float
    gain: float | None
    low: float | None
    high: float | None
    device: str
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings(Record):
    """Where the time of a step goes, and the ceiling of each class.

    Attributes:
        rows: of each class, the highest ceiling first.
        step_s: of the slowest device, from the start of a step to that of the next.
        shortest_s, longest_s: of its steps.
        unprofiled_s: of a run without the profiler; None where it is not known.
        steps: that were looked at, of each device.
        parts: of the device that computes longest: part -> its share of the step; they sum to 1.
        of_peak: FLOP / peak over the time in which that device computes; None where not known.
        peak: the data sheet that this is by; "" where a person gave it, or none is known.
        notes: what a reader must know besides.
    """

    rows: tuple[Ceiling, ...]
    step_s: float
    shortest_s: float
    longest_s: float
    unprofiled_s: float | None
    steps: int
    parts: dict[str, float]
    of_peak: float | None
    peak: str = ""
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Ceiling:
        """Return the row of a class."""
        return next(each for each in self.rows if each.name == name)

    @property
    def gains(self) -> dict[str, float]:
        """Class -> its ceiling, of those that have one."""
        return {each.name: each.gain for each in self.rows if each.gain is not None}


@dataclass(slots=True)
class _Periods:
    """Of a device: a row for each period, in picoseconds; of each kind, a column in `KINDS`."""

    name: str
    length: Ints
    own: Ints  # nothing else runs; of communication nothing computes, and compute is all of it
    gaps: Ints
    slowed: Ints
    hidden: Ints  # what its kernels sum to beyond their own time
    queued: Ints  # 1 where one of its kernels is behind another in its stream
    aside: Ints  # one column: computes, and not on the stream that computes longest
    inside: Ints  # no kernel runs in a step
    between: Ints  # nor behind it
    talks: tuple[Talk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """The kernels of a collective on a device: an element each."""

    name: str
    period: Ints
    duration: Ints
    exposed: Ints  # nothing computes beside it


@dataclass(slots=True)
class Bounds:
    """Keeps the periods of each device; an observer of a drill."""

    devices: list[_Periods] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    left_out: int = 0
    is_gpu: bool = True
    has_periods: bool = True
    knows_launches: bool = True

    def __call__(self, found: Observed) -> None:
        """Take the kernels of a device."""
        events = found.events
        self.is_gpu &= found.backend is Backend.GPU
        named = distinct(events.module)
        self.modules |= {found.names[each] for each in named[named != ABSENT].tolist()}
        windows, left_out = _windows(found)
        self.left_out += left_out
        self.has_periods &= len(found.steps) > 1
        self.knows_launches &= bool((_launched(found) != _NEVER).any())
        if not windows:
            return
        beside = _beside(events.start_ps, events.end_ps, found.kind)
        slowed, host = _slowed(events, found.kind, beside), _host(found)
        rows = [_period(found, window, slowed, host) for window in windows]
        own, gaps, less, hidden, queued, aside, inside, between = (
            np.array(column) for column in zip(*rows, strict=True)
        )
        self.devices.append(
            _Periods(
                name=f"{found.source} {found.device}",
                length=np.array([end - begin for begin, _, end in windows]),
                own=own,
                gaps=gaps,
                slowed=less,
                hidden=hidden,
                queued=queued,
                aside=aside,
                inside=inside,
                between=between,
                talks=tuple(_talks(found, windows, beside)),
            )
        )

    def is_whole(self, roof: Roofline) -> bool:
        """Tell whether all devices of the program are in the captures."""
        return roof.devices is not None and roof.devices <= len(self.devices)

    def waits(
        self, of: _Periods, *, is_whole: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how much of each period a device may wait for others: exposed, and in all.

        The shortest kernel of a collective on any device holds the least wait, where all devices
        are here (`is_whole`). Else each may wait in all of them for one that is not.
        """
        exposed, whole = np.zeros(len(of.length)), np.zeros(len(of.length))
        for each in of.talks:
            shortest = 0
            if is_whole:
                talks = (one for device in self.devices for one in device.talks)
                shortest = min(int(one.duration.min()) for one in talks if one.name == each.name)
            np.add.at(exposed, each.period, np.minimum(each.exposed, each.duration - shortest))
            np.add.at(whole, each.period, each.duration - shortest)
        return np.minimum(exposed, of.own[:, _COMMUNICATION]), whole


Window = tuple[int, int, int]  # begin of a period, end of its step's last kernel, its own end


def _windows(found: Observed) -> tuple[list[Window], int]:
    """Return each period, and the number of steps that are no whole ones.

    The last step has no end. One with another number of kernels than most is cut, or is no step
    like the others. A capture of a single stretch is one period, from its first start to its last
    end.
    """
    starts, ends, events = [], [], found.events
    inside = found.step != ABSENT
    if not inside.any():
        return [], 0
    counts = np.bincount(found.step[inside], minlength=len(found.steps)).tolist()
    if len(found.steps) == 1:
        last = int(events.end_ps[inside].max())
        return [(int(events.start_ps[inside].min()), last, last)], 0
    for step, count in enumerate(counts):
        here = found.step == step
        # copies for a step may run in the one before
        first = here & (found.kind == _COMPUTE)
        first = first if first.any() else here
        starts.append(int(events.start_ps[first].min()) if count else ABSENT)
        ends.append(int(events.end_ps[here].max()) if count else ABSENT)
    # of equal numbers the larger: a cut makes fewer
    usual = max(Counter(counts).items(), key=lambda each: (each[1], each[0]))[0]
    usable = [
        (begin, last, end)
        for begin, last, end, count, then in zip(
            starts, ends, starts[1:], counts, counts[1:], strict=False
        )
        if count == then == usual and end > begin
    ]
    return usable, sum(each != usual for each in counts)


_COMPUTE, _MEMORY = KINDS.index(Kind.COMPUTE), KINDS.index(Kind.MEMORY)
_COMMUNICATION = KINDS.index(Kind.COMMUNICATION)


def _talks(found: Observed, windows: Sequence[Window], beside: Ints) -> Iterator[Talk]:
    """Yield the collectives that begin in the periods of a device."""
    events = found.events
    begins = np.array([begin for begin, _, _ in windows])
    period = np.searchsorted(begins, events.start_ps, side="right") - 1
    ends = np.array([end for _, _, end in windows])
    known = (found.kind == _COMMUNICATION) & (period >= 0)
    known &= events.start_ps < ends[np.maximum(period, 0)]
    label = np.where(events.op == ABSENT, events.name, events.op)
    for each in distinct(label[known]):
        here = np.flatnonzero(known & (label == each))
        duration = events.duration_ps[here]
        yield Talk(
            name=found.names[int(each)],
            period=period[here],
            duration=duration,
            exposed=duration - beside[here, _COMPUTE],
        )


def _beside(start: Ints, end: Ints, kind: Ints) -> Ints:
    """Return of each kernel, in a column a kind, how long others of that kind ran beside it."""
    points = np.concatenate([start, end])
    order = np.argsort(points, kind="stable")
    width = np.diff(points[order], append=points[order[-1:]])
    place = np.empty(len(points), np.int64)
    place[order] = np.arange(len(points))
    change = np.repeat([1, -1], len(start))[order]
    kinds = np.tile(kind, 2)[order]
    columns = []
    for each in range(len(KINDS)):
        count = np.cumsum(np.where(kinds == each, change, 0))
        # a kernel is one of its own kind
        others, of_its_own = (
            until[place[len(start) :]] - until[place[: len(start)]]
            for until in (_until(width, count > 0), _until(width, count > 1))
        )
        columns.append(np.where(kind == each, of_its_own, others))
    return np.stack(columns, axis=1)


def _until(width: Ints, where: NDArray[np.bool_]) -> Ints:
    """Return the sum of widths up to each point, of those where something holds."""
    return np.concatenate([[0], np.cumsum(np.where(where, width, 0))[:-1]])


def _slowed(events: Events, kind: Ints, beside: Ints) -> Ints:
    """Return of each kernel, in a column a kind, how much kernels of another kind may slow it."""
    slowed = np.zeros_like(beside)
    # in a CUDA graph all kernels have the graph in the place of their operation
    label = events.op.astype(np.int64) * (1 + events.name.max(initial=0)) + events.name
    _, which = np.unique(label, return_inverse=True)
    # of collectives the shortest run may hold a wait
    alone = (beside.sum(axis=1) == 0) & (kind != _COMMUNICATION)
    shortest = np.zeros(which.max(initial=0) + 1, np.int64)  # one that never ran alone: all of it
    shortest[which[alone]] = np.iinfo(np.int64).max
    np.minimum.at(shortest, which[alone], events.duration_ps[alone])
    more = np.maximum(events.duration_ps - shortest[which], 0)
    for each in range(len(KINDS)):
        slowed[:, each] = np.where(kind != each, np.minimum(beside[:, each], more), 0)
    return slowed


def _period(
    found: Observed, window: Window, slowed: Ints, host: Ints
) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int], int, int]:
    """Return columns of `_Periods`: own, gaps, slowed, hidden, queued, aside, inside and between.

    `host` says of each kernel, in a column a kind, how much sooner the host were without the kind.
    """
    begin, _, end = window
    events = found.events
    here = np.flatnonzero((events.start_ps < end) & (events.end_ps > begin))
    here = here[np.argsort(events.start_ps[here], kind="stable")]
    start = np.maximum(events.start_ps[here], begin)
    stop = np.minimum(events.end_ps[here], end)
    kind = found.kind[here]
    points = np.concatenate([start, stop])
    order = np.argsort(points, kind="stable")
    width = np.diff(points[order], append=points[order[-1:]])
    change = np.repeat([1, -1], len(here))[order]
    kinds = np.tile(kind, 2)[order]
    computes, talks, copies = (
        np.cumsum(np.where(kinds == each, change, 0)) > 0
        for each in (_COMPUTE, _COMMUNICATION, _MEMORY)
    )
    own = [0] * len(KINDS)
    own[_COMPUTE] = int(width[computes].sum())
    own[_COMMUNICATION] = int(width[talks & ~computes].sum())
    own[_MEMORY] = int(width[copies & ~computes & ~talks].sum())
    # a hidden kernel gains nothing by being faster
    less = [
        sum(min(int(slowed[here[kind == other], each].sum()), own[other])
            for other in range(len(KINDS)) if other != each)
        for each in range(len(KINDS))
    ]  # fmt: skip
    # the first kernels of the next step bound the last gap
    then = np.flatnonzero(events.start_ps == end)
    gaps, inside, between = _gaps(found, np.concatenate([here, then]), window, host)
    hidden = [int((stop - start)[kind == each].sum()) - own[each] for each in range(len(KINDS))]
    stream = found.stream[here]
    behind = np.delete(kind, np.unique(stream, return_index=True)[1])
    queued = [int((behind == each).any()) for each in range(len(KINDS))]
    of_stream = np.bincount(stream, np.where(kind == _COMPUTE, stop - start, 0))
    aside = max(own[_COMPUTE] - int(of_stream.max(initial=0)), 0)
    return own, gaps, less, hidden, queued, [aside], inside, between


def _gaps(found: Observed, here: Ints, window: Window, host: Ints) -> tuple[list[int], int, int]:
    """Return the idle time of a period that kernels of each kind may cause, and all of it.

    A gap lasts until the host has launched the next kernel: settings of a kind shorten it by what
    the host spends on the kind. The device takes the rest: then the kind of the next
    kernel counts, and each of which a kernel ended since the next one's stream was free.
    """
    begin, last, end = window
    start = np.maximum(found.events.start_ps[here], begin)
    stop = np.minimum(found.events.end_ps[here], end)
    kind, stream = found.kind[here], found.stream[here]
    until = np.maximum.accumulate(stop)[:-1]
    width = np.maximum(start[1:] - until, 0)
    launched = _launched(found)[here][1:]
    is_known = launched != _NEVER
    waits = np.where(is_known, np.clip(launched - until, 0, width), width)
    free = np.full(len(here), begin)  # since when the stream of a kernel is free
    for each in distinct(stream):
        own = np.flatnonzero(stream == each)
        free[own[1:]] = np.maximum.accumulate(stop[own])[:-1]
    gaps = []
    for each in range(len(KINDS)):
        ended = np.maximum.accumulate(np.where(kind == each, stop, begin - 1))[:-1]
        starts = np.where(kind == each, start, end + 1)[::-1]
        next_one = np.minimum.accumulate(starts)[::-1][1:]
        touches: NDArray[np.bool_] = (ended >= free[1:]) | (next_one == start[1:])
        known = int(waits[is_known].sum())
        sooner = min(known, int(host[here, each].sum())) + int(waits[~is_known].sum())
        caused = int((width - waits)[touches].sum()) + sooner
        gaps.append(caused if (kind == each).any() else 0)
    behind = int(width[until >= last].sum())
    return gaps, int(width.sum()) - behind, behind


_NEVER = -(1 << 62)


def _launched(found: Observed) -> Ints:
    """Return when the host launched each kernel; `_NEVER` where that is not known."""
    ids, launch = found.launches.id, found.events.launch
    if not len(ids):
        return np.full(len(launch), _NEVER)
    place = np.minimum(np.searchsorted(ids, launch), len(ids) - 1)
    return np.where(ids[place] == launch, found.launches.start_ps[place], _NEVER)


def _host(found: Observed) -> Ints:
    """Return of the first kernel of each launch, in a column a kind, what the host spends on it.

    That is the time since the launch before, and until the one behind, where one of the two
    launches a kernel of the kind: between two steps as much as in a step at most. It is 0 for other
    kernels.
    """
    spent = np.zeros((len(found.events), len(KINDS)), np.int64)
    launched = _launched(found)
    known = np.flatnonzero(launched != _NEVER)
    known = known[np.argsort(launched[known], kind="stable")]
    if not known.size:
        return spent
    times, first, which = np.unique(launched[known], return_index=True, return_inverse=True)
    interval = np.diff(times, prepend=times[0])
    # what the host does between two steps is not spent on a kernel
    within = np.diff(found.step[known[first]], prepend=ABSENT) == 0
    interval[~within] = np.minimum(interval[~within], interval[within].max(initial=0))
    for each in range(len(KINDS)):
        has = np.zeros(len(times), bool)
        has[which[found.kind[known] == each]] = True
        either = has | np.concatenate([[False], has[:-1]])
        spent[known[first], each] = np.where(either, interval, 0)
    return spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What a step's matrix products take at least; where that is not known, why.

    Attributes:
        least_s: FLOP / peak; None where it is not known.
        unknown: why.
        peak: the data sheet.
        devices: that the program runs on; None where no dump tells.
    """

    least_s: float | None = None
    unknown: str = ""
    peak: str = ""
    devices: int | None = None


# the name of a module and the number that a trace may add:  jit_train_step.12    jit_step(4711)
_NUMBERED = re.compile(r"[.(]\d+\)?$")


def roofline(program: Program | None, modules: set[str], tflops: float | None) -> Roofline:
    """Return what the matrix products of a program take at its device's peak.

    `modules` are those whose kernels a capture names, `tflops` the peak of 16 bits that a person
    gives, in 10^12 FLOP a second: 8 bits are taken to be twice as fast.
    """
    if program is None:
        return Roofline(unknown="no dump tells the program's FLOP: give --program DUMP")
    named = {_NUMBERED.sub("", each) for each in modules}
    if named and _NUMBERED.sub("", program.module) not in named:
        told = ", ".join(sorted(named))
        return Roofline(unknown=f"the dump is of {program.module}, the capture of {told}")
    if not program.flop + program.flop_narrow:
        return Roofline(
            unknown="the program has no matrix product whose FLOP is known", devices=program.devices
        )
    known = peak_of(program.target)
    if tflops is not None:
        wide, narrow, by = tflops, 2 * tflops, ""
    elif known is not None:
        wide, narrow, by = known.tflops, known.tflops_narrow, f"{known.devices}: {known.source}"
    else:
        why = f"no peak of {program.target} is known: give --peak-tflops"
        return Roofline(unknown=why, devices=program.devices)
    least_s = (program.flop / wide + program.flop_narrow / narrow) * 1e-12
    return Roofline(least_s=least_s, peak=by, devices=program.devices)


def ceilings(bounds: Bounds, drilled: Drill, roof: Roofline) -> Ceilings:
    """Return the ceilings of a window that a drill with these bounds as its observer read.

    Raises:
        ParseError: the capture holds no whole step.
    """
    devices = bounds.devices
    if not devices:
        raise ParseError(
            f"{', '.join(drilled.sources)}: no whole step: a step and the start of the next one "
            "are needed; profile three steps or more"
        )
    divided = drilled.divided_by if len(drilled.steps) == 1 else 1
    slowest = max(devices, key=lambda each: float(each.length.mean()))
    busiest = max(devices, key=lambda each: float(each.own[:, _COMPUTE].mean()))
    lengths = slowest.length / divided * 1e-12
    step_s, busy_s = float(lengths.mean()), float(busiest.own[:, _COMPUTE].mean()) / divided * 1e-12
    least_s = roof.least_s
    rows = [_ceiling(name, devices, bounds, drilled, roof) for name in CLASSES]
    whole = float(busiest.length.mean())
    shares = {name: float(busiest.own[:, KINDS.index(kind)].mean()) / whole
              for name, kind in CLASSES.items() if kind is not None}  # fmt: skip
    return Ceilings(
        rows=tuple(sorted(rows, key=lambda each: -(-1.0 if each.gain is None else each.gain))),
        step_s=step_s,
        shortest_s=float(lengths.min()),
        longest_s=float(lengths.max()),
        unprofiled_s=drilled.step_s,
        steps=len(slowest.length) * divided,
        parts=shares | {IDLE: float((busiest.inside + busiest.between).mean()) / whole},
        of_peak=None if least_s is None or not busy_s or least_s > busy_s else least_s / busy_s,
        peak=roof.peak,
        notes=tuple(_notes(bounds, drilled, roof)),
    )


def _notes(bounds: Bounds, drilled: Drill, roof: Roofline) -> Iterator[str]:
    if bounds.left_out:
        yield (
            f"left out: {counted(bounds.left_out, 'step')} with another number of kernels than "
            "most; the window may cut them"
        )
    if drilled.rule is StepRule.WINDOWS:
        yield "steps are told by the host's annotations alone: their lengths are rough"
    if not bounds.has_periods:
        yield "no step can be told from the next: the time between two steps is not in it"
    if not bounds.knows_launches:
        yield "launches are not in it: each gap counts for each class that has a kernel"
    if not bounds.is_whole(roof) and any(each.talks for each in bounds.devices):
        known = "an unknown number" if roof.devices is None else roof.devices
        yield (
            f"{counted(len(bounds.devices), 'device')} of {known}: what one waits for those that "
            "are missing counts for each class"
        )


def _ceiling(
    name: str, devices: Sequence[_Periods], bounds: Bounds, drilled: Drill, roof: Roofline
) -> Ceiling:
    """Return the ceiling of a class: that of the device that keeps most."""
    divided = drilled.divided_by if len(drilled.steps) == 1 else 1
    least = (roof.least_s or 0.0) * divided * 1e12
    is_whole = bounds.is_whole(roof)
    found = [_taken(name, each, bounds.waits(each, is_whole=is_whole), least) for each in devices]
    if not any(_has(name, each) for each in devices):
        found = [(0 * own, 0 * gaps, 0 * more) for own, gaps, more in found]
    at = max(
        range(len(devices)),
        key=lambda each: float((devices[each].length - sum(found[each])).mean()),
    )
    device, (own, gaps, others) = devices[at], found[at]
    taken = own + gaps + others
    length_ps = max(float(each.length.mean()) for each in devices)
    unknown = "" if bounds.is_gpu else "the devices share the cores of a CPU"
    if name == "compute" and not unknown:
        unknown = roof.unknown
        if not unknown and float(own.mean()) < 0:
            unknown = (
                f"at the peak the program's products take {least / divided / 1e9:.3f} ms, more "
                "than the device computed: program or peak are of another one"
            )
    kept_ps = float((device.length - taken).mean())
    free_ps = (drilled.step_s or 0.0) * divided * 1e12
    busy = float((device.length - device.inside - device.between).mean())
    busy -= float((others if name == IDLE else own + others).mean())
    gain = _gain(length_ps, kept_ps, float(taken.mean()), busy, free_ps, is_idle=name == IDLE)
    each_gain = [_gain(float(t), float(t - x), float(x), 0.0, 0.0, is_idle=False)
                 for t, x in zip(device.length, taken, strict=True)]  # fmt: skip
    if gain is None and not unknown:
        unknown = "nothing of a step is known to remain"
    whole = [each for each in each_gain if each is not None]
    is_known = not unknown
    return Ceiling(
        name=name,
        own_s=float(own.mean()) / divided * 1e-12,
        gaps_s=float(gaps.mean()) / divided * 1e-12,
        others_s=float(others.mean()) / divided * 1e-12,
        gain=gain if is_known else None,
        low=min(whole) if is_known and whole else None,
        high=max(whole) if is_known and whole else None,
        device=device.name,
        unknown=unknown,
    )


_Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _has(name: str, of: _Periods) -> bool:
    """Tell whether a device has a kernel of a class."""
    kind = CLASSES[name]
    return kind is None or bool((of.own + of.hidden)[:, KINDS.index(kind)].any())


def _taken(
    name: str, of: _Periods, waits: tuple[NDArray[np.float64], NDArray[np.float64]], least: float
) -> _Columns:
    """Return what a class takes of each period: itself, gaps of its kernels, and from others.

    A kernel that is hidden may delay one of another kind that is not: without it that one may hide,
    for as long as it ran. And a class that makes one device late makes the others wait.
    """
    others = [KINDS.index(kind) for each, kind in CLASSES.items()
              if each != name and kind not in (None, Kind.COMPUTE)]  # fmt: skip
    exposed = of.own[:, others].sum(axis=1)
    kind = CLASSES[name]
    if kind is None:
        # kernels that start sooner may hide, and run beside others than now
        more = exposed + of.aside[:, 0] + of.slowed[:, [_COMMUNICATION, _MEMORY]].sum(axis=1)
        return of.between.astype(float), of.inside.astype(float), more.astype(float)
    column = KINDS.index(kind)
    own = of.own[:, column].astype(float)
    delayed = np.minimum(exposed, of.hidden[:, column])
    more = of.slowed[:, column].astype(float)
    if kind is not Kind.COMMUNICATION:
        delayed = np.minimum(delayed + waits[0], exposed)
        # a collective that waits slows others meanwhile
        more += np.minimum(waits[1], of.slowed[:, _COMMUNICATION])
    if kind is Kind.COMPUTE:
        own = own - least
    else:
        delayed = np.where(of.queued[:, column], exposed, delayed) + of.aside[:, 0]
    more += delayed
    return own, of.gaps[:, column].astype(float), more.astype(float)


def _gain(
    length: float, kept: float, taken: float, busy: float, free: float, *, is_idle: bool
) -> float | None:
    """Return length / kept - 1; None where nothing is kept.

    A profiler lengthens the gaps and not the kernels. So a step of a run without it (`free`, 0
    where none is known) keeps all but the taken time, and its kernels of other classes
    (`busy`) at least.
    """
    gains = [length / kept - 1 if kept > 0 else None]
    if free > 0:
        more = free - length if is_idle and free > length else 0.0
        left = max(free - taken - more, min(busy, free))
        gains.append(free / left - 1 if left > 0 else None)
    known = [each for each in gains if each is not None]
    return max(0.0, *known) if len(known) == len(gains) else None
