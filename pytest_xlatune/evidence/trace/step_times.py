"""Which training step a kernel belongs to, and by which rule that was found.

A step annotation brackets the *dispatch* of a step; JAX dispatches ahead, so the device may work on
step N while the annotation of N+1 is open. The rules, best first; the first that puts the same
number of kernels into every step of every device is taken:

    launch      kernel -> its launch on the host -> the annotation open at that time
    executions  the k-th run of the step's module on each device, by counting its operations
    windows     the annotation open while the kernel ran
    whole       the capture is one stretch; totals are divided by the number of steps given
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.trace import ABSENT, Annotation, Events, Ints, Trace

SPARSE = 4  # numbers of launches with wider gaps than so many are searched, not looked up


class StepRule(StrEnum):
    """How kernels were assigned to steps."""

    LAUNCH = "launch"
    EXECUTIONS = "executions"
    WINDOWS = "windows"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """A step (an index in `steps`) or ABSENT for each kernel of each device."""

    rule: StepRule
    steps: tuple[int, ...]  # the numbers that the annotations bear, else 0, 1, 2 ...
    of: tuple[Ints, ...]  # parallel to the devices
    even: bool  # every step of every device has as many kernels as any other
    cut: int | None = None  # the step in which the kernels end, after steps that are even


def assign(trace: Trace, devices: Sequence[Events], *, steps: int | None = None) -> Assignment:
    """Assign the kernels of each device to steps by the annotations and launches of its trace.

    `steps` says how many the window has, where the user knows.
    """
    first: Assignment | None = None
    for candidate in _candidates(trace, devices, steps):
        if candidate.even:
            return candidate
        if first is None and any((of != ABSENT).any() for of in candidate.of):
            first = candidate
    return first or Assignment(
        rule=StepRule.WHOLE,
        steps=(0,),
        of=tuple(np.zeros(len(events), np.int64) for events in devices),
        even=True,
    )


FITTING = 0.9  # of the kernel time is of kernels that ran equally often in each step


def assign_by_names(
    trace: Trace, devices: Sequence[Events], steps: tuple[int, ...]
) -> Assignment | None:
    """Assign kernels that name no operation to steps that other captures of the window tell.

    A rank may run its step as a graph whose kernels bear no `hlo_op`. Then the runs of each kernel
    are counted by its name, as those of an operation are. None where they do not divide so.
    """
    found = [_runs_of_names(events, len(steps)) for events in devices]
    of = tuple(each for each in found if each is not None)
    if len(of) < len(found):
        return None
    own = tuple(each.step for each in trace.annotations)
    numbers = own if len(own) == len(steps) else steps
    return Assignment(rule=StepRule.EXECUTIONS, steps=numbers, of=of, even=True)


def _runs_of_names(events: Events, steps: int) -> Ints | None:
    """Number the runs of each kernel by its name; a kernel of another count is in the open run."""
    order = np.argsort(events.start_ps, kind="stable")
    ordered = events.take(order)
    _, pair, count = np.unique(ordered.name, return_inverse=True, return_counts=True)
    fits = (count % steps == 0)[pair]
    spent = ordered.duration_ps
    if steps < 2 or not (count == steps).any() or spent[fits].sum() < FITTING * spent.sum():  # noqa: PLR2004
        return None
    rank = np.empty(len(ordered), np.int64)
    begins = np.concatenate([[0], np.cumsum(count)[:-1]])
    by_name = np.argsort(pair, kind="stable")
    rank[by_name] = np.arange(len(ordered)) - begins[pair[by_name]]
    step = rank // np.maximum(count[pair] // steps, 1)
    if (np.diff(step[fits]) < 0).any():
        return None
    opening = _begins([(ordered.start_ps[fits], step[fits])], steps)
    step[~fits] = np.searchsorted(opening, ordered.start_ps[~fits], side="right") - 1
    out = np.empty(len(events), np.int64)
    out[order] = step
    return out


def _candidates(trace: Trace, devices: Sequence[Events], steps: int | None) -> Iterator[Assignment]:
    """Yield assignments, the best rule first; each is work, and mostly the first will do."""
    marks = trace.annotations
    numbers = tuple(each.step for each in marks)
    main = _main_module(devices, len(trace.names))
    if marks and len(trace.launches.id):
        of = tuple(_inside(marks, each) for each in _launch_times(trace, devices))
        yield _assignment(StepRule.LAUNCH, numbers, of, main, devices)
    runs = {
        place: _runs(events, main, steps or len(marks) or None)
        for place, events in enumerate(devices)
        if main != ABSENT and (events.module == main).any()
    }
    known = {place: each for place, each in runs.items() if each is not None}
    if known:
        count = 1 + max(int(each.max(initial=0)) for each in known.values())
        own = numbers if len(numbers) == count else tuple(range(count))
        # a device on which the step's module does not run follows the others
        begins = _begins([(devices[place].start_ps, each) for place, each in known.items()], count)
        of = tuple(
            known[place]
            if place in known
            else np.searchsorted(begins, events.start_ps, side="right") - 1
            for place, events in enumerate(devices)
        )
        yield _assignment(StepRule.EXECUTIONS, own, of, main, devices)
    if marks:
        of = tuple(_inside(marks, events.start_ps) for events in devices)
        yield _assignment(StepRule.WINDOWS, numbers, of, main, devices)


def _assignment(
    rule: StepRule,
    numbers: tuple[int, ...],
    of: tuple[Ints, ...],
    main: int,
    devices: Sequence[Events],
) -> Assignment:
    counts = np.array(
        [
            np.bincount(step[(step != ABSENT) & mine], minlength=len(numbers))
            for step, mine in zip(of, (_of_module(each, main) for each in devices), strict=True)
            if main == ABSENT or mine.any()
        ]
    )
    return Assignment(
        rule=rule,
        steps=numbers,
        of=of,
        even=bool(counts.size and (counts == counts[0, 0]).all()),
        cut=_cut(numbers, counts),
    )


def _of_module(events: Events, main: int) -> NDArray[np.bool_]:
    """Return which kernels are operations of a module; those that name none count as no part.

    Where the device names no operation at all every kernel of the module is one.
    """
    mine: NDArray[np.bool_] = events.module == main
    # two kernels of one process without an hlo_op had a real window of eight GPUs refused
    named: NDArray[np.bool_] = mine & (events.op != ABSENT)
    return named if main != ABSENT and named.any() else mine


def _begins(found: Sequence[tuple[Ints, Ints]], steps: int) -> Ints:
    """Return when each step begins on the first of several devices: start and step of kernels."""
    begins = np.full(steps, np.iinfo(np.int64).max)
    for start_ps, step in found:
        known = step != ABSENT
        np.minimum.at(begins, step[known], start_ps[known])
    return np.minimum.accumulate(begins[::-1])[::-1]


def _cut(numbers: Sequence[int], counts: Ints) -> int | None:
    """Return the step in which the kernels of all devices end: none is in a later one.

    `counts` are the kernels of each device (rows) in each step.
    """
    if not counts.size:
        return None
    fewer = np.flatnonzero((counts < counts[0, 0]).any(axis=0))
    if not fewer.size or not fewer[0]:
        return None
    at = fewer[0]
    ends = (counts[:, :at] == counts[0, 0]).all() and (counts[:, at] <= counts[0, 0]).all()
    return numbers[at] if ends and not counts[:, at + 1 :].any() else None


def _main_module(devices: Sequence[Events], names: int) -> int:
    """Return the module with the most time: the training step. ABSENT where none is known."""
    time = np.zeros(names + 1)
    for events in devices:
        time += np.bincount(events.module + 1, weights=events.duration_ps, minlength=names + 1)
    return int(np.argmax(time[1:])) if time[1:].any() else ABSENT


def _launch_times(trace: Trace, devices: Sequence[Events]) -> Iterator[Ints]:
    """Yield when each kernel was launched, on the host's clock; ABSENT where it is not known."""
    ids, start_ps = trace.launches.id, trace.launches.start_ps
    span = int(ids[-1]) - int(ids[0]) + 1
    if span > SPARSE * len(ids):
        for events in devices:
            place = np.minimum(np.searchsorted(ids, events.launch), len(ids) - 1)
            yield np.where(ids[place] == events.launch, start_ps[place], ABSENT)
        return
    # most calls bear one id more than the call before: a table, with a last place for all others
    table = np.full(span + 1, ABSENT, np.int64)
    table[ids - ids[0]] = start_ps
    for events in devices:
        place = events.launch - ids[0]
        place[(events.launch < ids[0]) | (events.launch > ids[-1])] = span
        yield table.take(place)


def _inside(annotations: Sequence[Annotation], time_ps: Ints) -> Ints:
    """Return the annotation open at each time, or ABSENT."""
    starts = np.array([each.start_ps for each in annotations], np.int64)
    ends = np.array([each.end_ps for each in annotations], np.int64)
    place = np.searchsorted(starts, time_ps, side="right") - 1
    inside = (place >= 0) & (time_ps < ends[np.maximum(place, 0)])
    return np.where(inside, place, ABSENT).astype("i4")


def _runs(events: Events, main: int, steps: int | None) -> Ints | None:
    """Number the runs of a module on one device.

    An operation inside a loop of n rounds runs n times a step: the j-th of c runs in step
    j // (c / steps). Where one does not divide so, or runs would interleave, the window cuts a step
    or the program is no step: None. Kernels of other modules follow the operation that opens each
    run.
    """
    order = np.argsort(events.start_ps, kind="stable")
    ordered = events.take(order)
    mine = np.flatnonzero(_of_module(ordered, main))
    if main == ABSENT or not mine.size:
        return None
    keys = (ordered.op[mine].astype(np.int64) << 32) + ordered.name[mine]
    _, pair, count = np.unique(keys, return_inverse=True, return_counts=True)
    runs = steps or math.gcd(*(int(each) for each in count))
    once = np.flatnonzero(count[pair] == runs)
    if runs < 2 or not once.size or (count % runs).any():  # noqa: PLR2004
        return None
    opening = ordered.start_ps[mine[pair == pair[once[0]]]]
    step = np.searchsorted(opening, ordered.start_ps, side="right") - 1
    grouped = np.argsort(pair, kind="stable")
    rank = np.empty(len(mine), np.int64)
    begins = np.concatenate([[0], np.cumsum(count)[:-1]])
    rank[grouped] = np.arange(len(mine)) - begins[pair[grouped]]
    step[mine] = rank // (count[pair] // runs)
    if (np.diff(step[mine]) < 0).any():
        return None
    out = np.empty(len(events), np.int64)
    out[order] = step
    return out
