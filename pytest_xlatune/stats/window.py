"""Find where steady state begins, pooled over all jobs of a comparison, and set the window.

A single job has too few steps to show it, and a start chosen for each job would bias the
comparison. The pooled start moves the window of all jobs alike. This module must not know of
profiles.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.metric import Score
from pytest_xlatune.model.record import Pairs, split_pairs
from pytest_xlatune.stats.score import window_steps

Timings = Sequence[tuple[int, float]]  # step id and seconds of each step

TAIL = 6  # a job's level is the median of so many last steps
TOLERANCE = 0.005  # a step that is slower by no more than this, as a log ratio, is level
MIN_JOBS = 12  # with fewer jobs the answer is noise
LEVEL_STEPS = 3  # one step may be level by chance, so the steady state takes so many in a row
# A step that is slower by at most so many standard errors of the pooled median is level too.
# Without this limit, one of 105 steps of a noisy cell is slow by chance and moves the window.
ERRORS = 3.0
# standard error of a median, in units of MAD over the square root of the number of jobs
_MEDIAN_ERROR = 1.2533 * 1.4826
SPARE = 2  # steps beyond the fewest allowed, so that one straggler does not cost a job its score


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of all jobs of a comparison."""

    protocol: Protocol  # the protocol that scores them: as declared, or with a later first step
    is_moved: bool = False  # whether it is not the declared window
    note: Message | None = None  # what a reader should know; None if the declared window holds

    @property
    def first_step(self) -> int:
        """The first step that is scored."""
        return next(iter(window_steps(self.protocol)), self.protocol.first_step)

    @property
    def moved_to(self) -> int | None:
        """The first step if it is not the declared one, else None."""
        return self.first_step if self.is_moved else None


def steady_start(jobs: Sequence[Timings]) -> int | None:
    """Return the first step from which the pooled curve is level.

    At each step id, the curve is the median over jobs of log seconds minus the median of the job's
    last six steps. It is level if three steps in a row are at most 0.5 % slower, or at most three
    standard errors in noisy jobs. None with fewer than twelve usable jobs, or if it is never level.

    Args:
        jobs: the steps of each job, in ascending order.
    """
    curves = [_curve(job) for job in jobs if len(job) >= TAIL]
    if len(curves) < MIN_JOBS:
        return None
    start: int | None = None
    level_steps = 0
    # the curves are merged step by step, because the search does not need the end of long jobs
    in_order = heapq.merge(*curves, key=operator.itemgetter(0))
    for step, pooled in itertools.groupby(in_order, key=operator.itemgetter(0)):
        if _is_slow([distance for _, distance in pooled]):
            start, level_steps = None, 0
            continue
        start = step if start is None else start
        level_steps += 1
        if level_steps == LEVEL_STEPS:
            return start
    return None


def common_window(scores: Sequence[Score], protocol: Protocol) -> Window:
    """Return the window of all jobs of a comparison; `scores` are in the declared window.

    It moves for all jobs if steady state begins after the declared first step. A job whose steps
    were not kept prevents that.
    """
    declared = window_steps(protocol)
    if not declared:
        return Window(protocol=protocol)
    first = declared[0]
    jobs = []
    for score in scores:
        # a resumed run warms up at another step
        if "resumed" not in score.flags:
            steps, seconds = split_pairs(score.timings)
            # steps of a capture or an evaluation are slow for another reason than warm-up
            is_used = [
                is_scored or step < first
                for step, is_scored in zip(steps, declared.has(steps), strict=True)
            ]
            jobs.append(
                Pairs(itertools.compress(steps, is_used), itertools.compress(seconds, is_used))
            )
    start = steady_start(jobs)
    if start is None or start <= first:
        return Window(protocol=protocol)
    step_numbers = {"start": start, "declared": first}
    with_steps = sum(bool(score.timings) for score in scores)
    if with_steps < len(scores):
        note = say(
            "steady state begins at step {start}, the protocol's window at step {declared}: "
            "it stays there, for the steps of {trials} trials were not kept; measure again",
            trials=len(scores) - with_steps,
            **step_numbers,
        )
        return Window(protocol=protocol, note=note)
    kept = protocol.min_steps + SPARE
    latest_start = declared[-kept] if len(declared) > kept else first
    moved = min(start, latest_start)
    if moved == first:
        note = say(
            "steady state begins at step {start}, the protocol's window at step {declared}: {few}",
            few=_too_few(start, protocol),
            **step_numbers,
        )
        return Window(protocol=protocol, note=note)
    note = say(
        "steady state begins at step {start}, the protocol's window at step {declared}: the "
        "window of all trials starts at step {first}",
        first=moved,
        **step_numbers,
    )
    if moved < start:
        few = _too_few(start, protocol)
        note = say(
            "steady state begins at step {start}, the protocol's window at step {declared}: "
            "the window of all trials starts at step {first}; {few}",
            first=moved,
            few=few,
            **step_numbers,
        )
    return Window(protocol=replace(protocol, first_step=moved), is_moved=True, note=note)


def _too_few(start: int, protocol: Protocol) -> Message:
    """Return how many steps the protocol needs if the steady state begins at step `start`."""
    return say(
        "{steps} steps are too few, use steps={use} for the whole cell",
        steps=protocol.steps,
        use=start + 2 * protocol.min_steps,
    )


def _is_slow(distances: Sequence[float]) -> bool:
    """Return whether a step is slower than the jobs' last steps by more than noise explains."""
    level = median(distances)
    scatter = median(abs(x - level) for x in distances)
    error = _MEDIAN_ERROR * scatter / math.sqrt(len(distances))
    return level > max(TOLERANCE, ERRORS * error)


def _curve(job: Timings) -> Iterator[tuple[int, float]]:
    """Yield each step id and its log seconds minus the median of the job's last steps."""
    level = median(math.log(seconds) for _, seconds in job[-TAIL:])
    return ((step, math.log(seconds) - level) for step, seconds in job)
