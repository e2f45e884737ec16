"""Where steady state begins, pooled over all jobs of a sweep.

One job has too few steps to tell; a start chosen job by job would itself bias a comparison. The
pooled start may move the window of every job alike, never of one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from pytest_xlatune.results import StepRecord

TAIL = 6
TOLERANCE = 0.005
MIN_JOBS = 12  # with fewer the answer is noise


def steady_start(jobs: Sequence[Sequence[StepRecord]]) -> int | None:
    """Return the first step from which the pooled curve stays within 0.5 % of its level.

    The curve is, per step id, the median over jobs of log seconds less the job's own last-six
    median. None with fewer than twelve usable jobs, or where it never settles.
    """
    curves = [curve for job in jobs if (curve := _curve(job))]
    if len(curves) < MIN_JOBS:
        return None
    pooled: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for step, distance in curve:
            pooled[step].append(distance)
    start = None
    for step in sorted(pooled, reverse=True):
        if abs(median(pooled[step])) > TOLERANCE:
            break
        start = step
    return start


def window_advice(start: int | None, *, first_step: int, steps: int, min_steps: int) -> str:
    """Return what a pooled start asks for, "" where the declared window already holds."""
    if start is None or start <= first_step:
        return ""
    if steps - start < min_steps:
        return (
            f"steady state begins at step {start}: {steps} steps leave fewer than {min_steps} "
            f"usable ones, use {start + 2 * min_steps}"
        )
    return f"steady state begins at step {start}: set first_step={start} for the whole cell"


def _curve(job: Sequence[StepRecord]) -> list[tuple[int, float]]:
    timed = sorted(
        (record.step, math.log(record.step_s))
        for record in job
        if record.kind == "step" and record.step_s is not None and 0 < record.step_s < math.inf
    )
    if len(timed) < TAIL:
        return []
    level = median(x for _, x in timed[-TAIL:])
    return [(step, x - level) for step, x in timed]
