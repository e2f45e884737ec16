"""Which training step a kernel belongs to, and by which rule that was found.

A step annotation brackets the *dispatch* of a step; JAX dispatches ahead, so the device may work on
step N while the annotation of N+1 is open. These are the rules, the best first. The first one that
puts the same number of kernels into every step of every device is used:

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

from pytest_xlatune.evidence.trace import ABSENT, Columns, Ints, Trace

FITTING = 0.9  # the least share of kernel time in kernels that run equally often in each step
_FEWEST, _MOST = 3, 64  # the number of steps for which the last is compared with the others
_LATE = np.iinfo(np.int64).max


class StepRule(StrEnum):
    """How kernels were assigned to steps."""

    LAUNCH = "launch"
    EXECUTIONS = "executions"
    WINDOWS = "windows"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """The step of each kernel of each device, as an index in `steps`, or ABSENT."""

    rule: StepRule
    steps: tuple[int, ...]  # the step numbers of the markers, or else 0, 1, 2 ...
    kernel_steps: tuple[Ints, ...]  # one array for each device, in the order of the devices
    even: bool = True  # whether every step of every device has the same number of kernels
    cut: int | None = None  # the step in which the kernels end, after even steps; None if none

    @property
    def is_weak(self) -> bool:
        """Whether the rule is imprecise, so that another capture of the window may be better."""
        return self.rule in (StepRule.WINDOWS, StepRule.WHOLE)

    def agrees(self, other: Assignment) -> bool:
        """Return whether two captures number their steps alike.

        A launch and a run of the step's module put the same kernels into a step if both are even.
        """
        is_exact = self.even and other.even and not (self.is_weak or other.is_weak)
        return self.rule is other.rule or is_exact


def assign(trace: Trace, devices: Sequence[Columns], *, steps: int | None = None) -> Assignment:
    """Assign the kernels of each device to steps by the markers and launches of its trace.

    `steps` is the number of steps in the window; None if the user did not give it.
    """
    first: Assignment | None = None
    for candidate in _candidates(trace, devices, steps):
        if candidate.even:
            return candidate
        if first is None and any((step != ABSENT).any() for step in candidate.kernel_steps):
            first = candidate
    return first or Assignment(
        rule=StepRule.WHOLE,
        steps=(0,),
        kernel_steps=tuple(np.zeros(kernels.size, np.int32) for kernels in devices),
    )


def assign_by_names(
    trace: Trace, devices: Sequence[Columns], steps: tuple[int, ...]
) -> Assignment | None:
    """Assign kernels without an operation to the steps that other captures of the window have.

    A rank may run its step as a graph whose kernels have no `hlo_op`. Then the runs of each kernel
    are counted by its name instead. The result is None if they cannot be divided into steps.
    """
    runs = [
        _runs(kernels, kernels["name"], np.ones(kernels.size, bool), len(steps), 1 - FITTING)
        for kernels in devices
    ]
    marked = tuple(trace.marks[0].tolist())
    return (
        None
        if any(run is None for run in runs)
        else Assignment(
            rule=StepRule.EXECUTIONS,
            steps=marked if len(marked) == len(steps) else steps,
            kernel_steps=tuple(run for run in runs if run is not None),
        )
    )


def _candidates(
    trace: Trace, devices: Sequence[Columns], steps: int | None
) -> Iterator[Assignment]:
    """Yield assignments, the best rule first; each takes time, and mostly the first is used."""
    marked = tuple(trace.marks[0].tolist())
    main = _main_module(devices, len(trace.names))
    of_module = [_of_module(kernels, main) for kernels in devices]

    def candidate(
        rule: StepRule, numbers: tuple[int, ...], kernel_steps: Sequence[Ints]
    ) -> Assignment:
        """Return an assignment, even where the module's kernels are as many in every step."""
        counts = np.array(
            [
                np.bincount(step[(step != ABSENT) & mine], minlength=len(numbers))
                for step, mine in zip(kernel_steps, of_module, strict=True)
                if mine.any() or main == ABSENT
            ]
        )
        return Assignment(
            rule=rule,
            steps=numbers,
            kernel_steps=tuple(kernel_steps),
            even=bool(counts.size and (counts == counts[0, 0]).all()),
            cut=_cut(numbers, counts),
        )

    if marked and trace.launches[0].size:
        launched = [_launched(trace.launches, kernels["launch"]) for kernels in devices]
        yield candidate(StepRule.LAUNCH, marked, [_inside(trace.marks, at) for at in launched])
    runs = [
        # the operation and the kernel
        _runs(kernels, (kernels["op"].astype(np.int64) << 32) + kernels["name"], mine,
              steps or len(marked) or None)
        if main != ABSENT else None
        for kernels, mine in zip(devices, of_module, strict=True)
    ]  # fmt: skip
    counts = [1 + int(run.max(initial=0)) for run in runs if run is not None]
    if counts:
        numbers = marked if len(marked) == max(counts) else tuple(range(max(counts)))
        yield candidate(StepRule.EXECUTIONS, numbers, _followed(devices, runs, max(counts)))
    if marked:
        inside = [_inside(trace.marks, kernels["start_ps"]) for kernels in devices]
        yield candidate(StepRule.WINDOWS, marked, inside)


def _launched(launches: tuple[Ints, Ints], launch: Ints) -> Ints:
    """Return when each kernel was launched, on the host's clock; ABSENT if it is unknown."""
    ids, start_ps = launches
    place = np.minimum(np.searchsorted(ids, launch), len(ids) - 1)
    return np.where(ids[place] == launch, start_ps[place], ABSENT)


def _cut(numbers: Sequence[int], counts: Ints) -> int | None:
    """Return the step in which the kernels of all devices end; None if there is none.

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


def _main_module(devices: Sequence[Columns], names: int) -> int:
    """Return the module with the most time, the training step; ABSENT if none is known."""
    time = np.zeros(names + 1)
    for kernels in devices:
        module, duration_ps = kernels["module"] + 1, kernels["duration_ps"]
        time += np.bincount(module, weights=duration_ps, minlength=names + 1)
    return int(np.argmax(time[1:])) if time[1:].any() else ABSENT


def _of_module(kernels: Columns, main: int) -> NDArray[np.bool_]:
    """Return which kernels are operations of a module; a kernel without one does not count.

    If no kernel of the device has an operation, every kernel of the module counts.
    """
    mine: NDArray[np.bool_] = kernels["module"] == main
    # for two kernels without an hlo_op a real window of eight GPUs was once refused
    named: NDArray[np.bool_] = mine & (kernels["op"] != ABSENT)
    return named if main != ABSENT and named.any() else mine


def _inside(marks: Ints, time_ps: Ints) -> Ints:
    """Return the marker that is open at each time, or ABSENT."""
    _, starts, ends = marks
    place = np.searchsorted(starts, time_ps, side="right") - 1
    inside = (place >= 0) & (time_ps < ends[np.maximum(place, 0)])
    return np.where(inside, place, ABSENT).astype("i4")


def _runs(
    kernels: Columns,
    keys: Ints,
    is_counted: NDArray[np.bool_],
    steps: int | None,
    unfitting: float = 0.0,
) -> Ints | None:
    """Number the runs of a device's steps by counting kernels with equal keys.

    A key in a loop of n rounds runs n times a step, so run j of c is in step j // (c / steps). The
    result is None if more than `unfitting` of the kernel time does not divide so, if no kernel runs
    once a step, or if steps would interleave: then the window cuts a step, or the program is no
    step. All other kernels belong to the step whose first counted kernel precedes them.
    """
    order = np.argsort(kernels["start_ps"], kind="stable")
    start_ps, mine = kernels["start_ps"][order], np.flatnonzero(is_counted[order])
    if not mine.size:
        return None
    _, key, count = np.unique(keys[order][mine], return_inverse=True, return_counts=True)
    runs = steps or math.gcd(*(int(key_count) for key_count in count))
    fits = (count % runs == 0)[key]
    spent = kernels["duration_ps"][order][mine]
    if runs < 2 or not (count == runs).any():  # noqa: PLR2004
        return None
    if not fits.all() and spent[~fits].sum() >= unfitting * spent.sum():
        return None
    rank = np.empty(len(mine), np.int64)
    begins = np.concatenate([[0], np.cumsum(count)[:-1]])
    by_key = np.argsort(key, kind="stable")
    rank[by_key] = np.arange(len(mine)) - begins[key[by_key]]
    step = (rank // np.maximum(count[key] // runs, 1))[fits]
    if (np.diff(step) < 0).any():
        return None
    # the steps of fitting kernels ascend in time, so each step's first is found by a search
    fitting = mine[fits]
    opening = start_ps[fitting[np.searchsorted(step, np.arange(runs))]]
    ordered_step = np.searchsorted(opening, start_ps, side="right") - 1
    ordered_step[fitting] = step
    out: Ints = np.empty(kernels.size, np.int64)
    out[order] = ordered_step
    return out


def _followed(
    devices: Sequence[Columns], runs: Sequence[Ints | None], count: int
) -> Sequence[Ints]:
    """Return the runs of each device; without the module, a device follows the other devices."""
    begins = np.full(count, _LATE)
    if any(run is None for run in runs):
        for kernels, step in zip(devices, runs, strict=True):
            if step is not None:
                known = step != ABSENT
                np.minimum.at(begins, step[known], kernels["start_ps"][known])
        begins = np.minimum.accumulate(begins[::-1])[::-1]
    return [
        np.searchsorted(begins, kernels["start_ps"], side="right") - 1 if step is None else step
        for kernels, step in zip(devices, runs, strict=True)
    ]


def lacking_at_the_end(kernels: Columns, step: Ints, assignment: Assignment) -> list[int]:
    """Return the names of kernels that the last step lacks and all steps before it have.

    In a capture without steps, each run of its first kernel begins a step, if all steps before the
    last then have the same kernels.
    """
    order = np.argsort(kernels["start_ps"], kind="stable")
    name, ordered_step = kernels["name"][order], step[order]
    steps, is_whole = len(assignment.steps), assignment.rule is StepRule.WHOLE
    if is_whole:
        ordered_step = np.cumsum(name == name[0]) - 1
        steps = int(ordered_step[-1]) + 1
    if not _FEWEST <= steps <= _MOST:
        return []
    width = int(name.max()) + 1
    counts = np.stack(
        [np.bincount(name[ordered_step == number], minlength=width) for number in range(steps)]
    )
    if is_whole and (counts[:-1] != counts[0]).any():
        return []
    lacking: list[int] = np.flatnonzero((counts[:-1] > 0).all(axis=0) & (counts[-1] == 0)).tolist()
    return lacking
