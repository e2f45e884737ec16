"""Which training step a kernel belongs to, and by which rule that was found.

A step annotation brackets the *dispatch* of a step; JAX dispatches ahead, so the device may work on
step N while the annotation of N+1 is open. These are the rules, the best first. The first one that
puts the same number of kernels into every step of every device is used:

    launch      kernel -> its launch on the host -> the annotation open at that time
    executions  the k-th run of the step's module on each device, by counting its operations; if no
                module is named and there are markers, by counting kernels
    windows     the annotation open while the kernel ran
    whole       the capture is one stretch; totals are divided by the number of steps given

The step of a kernel becomes a column of the device's kernels: an index into `Steps.numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pytest_xlatune.evidence.trace import ABSENT, Columns, Device, Ints, Trace

FITTING = 0.9  # the least share of kernel time in kernels that run equally often in each step
# fewest and most steps of a capture whose last step is compared with the others
_FEWEST, _MOST = 3, 64
_LATE = np.iinfo(np.int64).max


class StepRule(StrEnum):
    """How kernels were assigned to steps, the best rule first."""

    LAUNCH = "launch"
    EXECUTIONS = "executions"
    WINDOWS = "windows"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a capture."""

    rule: StepRule  # how they were found
    numbers: tuple[int, ...]  # those of the markers, or else 0, 1, 2 ...
    even: bool = True  # whether every step of every device has the same number of kernels
    # the step in which the kernels end early, after equal steps; None if there is none
    cut: int | None = None


def assign(trace: Trace, devices: Sequence[Device], *, steps: int | None = None) -> Steps:
    """Assign the kernels of each device to steps by the markers and launches of its trace.

    `steps` is the number of steps in the window; None if the user did not give it.
    """
    kernels = [device.kernels for device in devices]
    # the module with the most time is the training step; place 0 is that of kernels without one
    spent_ps = np.zeros(len(trace.names) + 1)
    for columns in kernels:
        module, duration_ps = columns["module"] + 1, columns["duration_ps"]
        spent_ps += np.bincount(module, weights=duration_ps, minlength=len(spent_ps))
    main = int(np.argmax(spent_ps[1:])) if spent_ps[1:].any() else ABSENT
    for columns in kernels:
        # operations of the module count, or all of its kernels if the device names no operation
        is_main = columns["module"] == main
        is_named = is_main & (columns["op"] != ABSENT)
        columns["is_counted"] = is_named if main != ABSENT and is_named.any() else is_main
    best: tuple[Steps, Sequence[Ints]] | None = None
    for rule, numbers, step_columns in _candidates(trace, kernels, main, steps):
        # how many kernels of the module each device has in each step
        counts = np.array(
            [
                np.bincount(step[(step != ABSENT) & columns["is_counted"]], minlength=len(numbers))
                for step, columns in zip(step_columns, kernels, strict=True)
                if columns["is_counted"].any() or main == ABSENT
            ]
        )
        usual = counts[0, 0]
        even = bool((counts == usual).all())
        # the first step of another size: all kernels may end early in it
        at = int((counts != usual).any(axis=0).argmax())
        is_cut = at > 0 and (counts[:, at] <= usual).all() and not counts[:, at + 1 :].any()
        cut = numbers[at] if is_cut else None
        found = Steps(rule=rule, numbers=numbers, even=even, cut=cut)
        if found.even or (best is None and any((step != ABSENT).any() for step in step_columns)):
            best = found, step_columns
        if found.even:
            break
    whole = Steps(rule=StepRule.WHOLE, numbers=(0,))
    found, step_columns = best or (whole, [np.zeros(columns.size, np.int32) for columns in kernels])
    for columns, step in zip(kernels, step_columns, strict=True):
        columns["step"] = step
    return found


def _candidates(
    trace: Trace, kernels: Sequence[Columns], main: int, steps: int | None
) -> Iterator[tuple[StepRule, tuple[int, ...], Sequence[Ints]]]:
    """Yield a rule, step numbers and the step of each kernel; mostly only the first is used."""
    marks = trace.marks[:, np.argsort(trace.marks[1], kind="stable")]
    marked = tuple(marks[0].tolist())
    has_launches = marked and trace.launches[0].size
    if has_launches:
        ids, start_ps = trace.launches
        launched = []
        for columns in kernels:
            place = np.minimum(np.searchsorted(ids, columns["launch"]), len(ids) - 1)
            launch_ps = np.where(ids[place] == columns["launch"], start_ps[place], ABSENT)
            launched.append(_inside(marks, launch_ps))
        yield StepRule.LAUNCH, marked, launched
    runs: list[Ints | None] = []
    if main != ABSENT or (marked and not has_launches):
        # without a module, only markers tell how often a step runs, and some kernels are in no step
        expected, fitting = (steps, 1.0) if main != ABSENT else (None, FITTING)
        expected = expected or len(marked) or None
        runs = [_runs(columns, expected, fitting) for columns in kernels]
    count = max((1 + int(run.max(initial=0)) for run in runs if run is not None), default=0)
    if count:
        numbers = marked if len(marked) == count else tuple(range(count))
        yield StepRule.EXECUTIONS, numbers, _followed(kernels, runs, count)
    if marked:
        inside = [_inside(marks, columns["start_ps"]) for columns in kernels]
        yield StepRule.WINDOWS, marked, inside


def _inside(marks: Ints, time_ps: Ints) -> Ints:
    """Return the marker that is open at each time, or ABSENT."""
    _, starts, ends = marks
    place = np.searchsorted(starts, time_ps, side="right") - 1
    inside = (place >= 0) & (time_ps < ends[np.maximum(place, 0)])
    return np.where(inside, place, ABSENT).astype("i4")


def _runs(kernels: Columns, steps: int | None, fitting: float) -> Ints | None:
    """Number the runs of a device's steps by counting equal kernels of equal operations.

    A kernel in a loop of n rounds runs n times a step: of its c runs, run j is in step
    j // (c / steps). All other kernels belong to the step whose first counted kernel precedes them.
    None if the window cuts a step or the program has no steps: if c / steps is whole for less than
    the share `fitting` of kernel time, if no kernel runs once a step, or if steps interleave.
    """
    order = np.argsort(kernels["start_ps"], kind="stable")
    start_ps, mine = kernels["start_ps"][order], np.flatnonzero(kernels["is_counted"][order])
    if not mine.size:
        return None
    key = ((kernels["op"].astype(np.int64) << 32) + kernels["name"])[order][mine]
    _, key, count = np.unique(key, return_inverse=True, return_counts=True)
    runs = steps or math.gcd(*count.tolist())
    fits = (count % runs == 0)[key]
    spent = kernels["duration_ps"][order][mine]
    is_fitting = spent[fits].sum() >= fitting * spent.sum()
    if runs < 2 or not (count == runs).any() or not is_fitting:  # noqa: PLR2004
        return None
    rank = np.empty(len(mine), np.int64)
    by_key = np.argsort(key, kind="stable")
    rank[by_key] = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count)
    step = (rank // np.maximum(count[key] // runs, 1))[fits]
    if (np.diff(step) < 0).any():
        return None
    # the steps of fitting kernels ascend in time, so each step's first is found by a search
    of_steps = mine[fits]
    opening = start_ps[of_steps[np.searchsorted(step, np.arange(runs))]]
    ordered_step = np.searchsorted(opening, start_ps, side="right") - 1
    ordered_step[of_steps] = step
    out: Ints = np.empty(kernels.size, np.int64)
    out[order] = ordered_step
    return out


def _followed(kernels: Sequence[Columns], runs: Sequence[Ints | None], count: int) -> list[Ints]:
    """Return the runs of each device; one without runs is divided where those of others begin."""
    begins = np.full(count, _LATE)
    for columns, step in zip(kernels, runs, strict=True):
        if step is not None:
            known = step != ABSENT
            np.minimum.at(begins, step[known], columns["start_ps"][known])
    # a step without kernels begins with the next one
    begins = np.minimum.accumulate(begins[::-1])[::-1]
    return [
        np.searchsorted(begins, columns["start_ps"], side="right") - 1 if step is None else step
        for columns, step in zip(kernels, runs, strict=True)
    ]


def lacking_at_the_end(kernels: Columns, steps: Steps) -> list[int]:
    """Return the names of kernels that the last step lacks and all steps before it have.

    In a capture without steps, a step begins with each run of the first kernel; this holds only if
    the steps before the last have the same kernels.
    """
    order = np.argsort(kernels["start_ps"], kind="stable")
    name, step = kernels["name"][order], kernels["step"][order]
    number, is_whole = len(steps.numbers), steps.rule is StepRule.WHOLE
    if is_whole:
        step = np.cumsum(name == name[0]) - 1
        number = int(step[-1]) + 1
    if not _FEWEST <= number <= _MOST:
        return []
    width = int(name.max()) + 1
    counts = np.stack([np.bincount(name[step == at], minlength=width) for at in range(number)])
    if is_whole and (counts[:-1] != counts[0]).any():
        return []
    lacking: list[int] = np.flatnonzero((counts[:-1] > 0).all(axis=0) & (counts[-1] == 0)).tolist()
    return lacking
