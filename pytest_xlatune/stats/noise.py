"""The noise of a cell, from jobs of the baseline.

Planning needs it to say what a sweep can show: how far two jobs of one configuration are apart,
what node slots and allocations add, and what happens within a job. A dozen jobs give sigma to
within a quarter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import Score
from pytest_xlatune.stats.components import PlacedScore, fit_components
from pytest_xlatune.stats.quantiles import special
from pytest_xlatune.stats.window import steady_start

MIN_SCORES = 4
MIN_LENGTH = 4  # a correlation of fewer steps inside a job means nothing


class Noise(Record, frozen=True, kw_only=True):
    """How jobs of one configuration differ, as fractions."""

    # standard deviation of a job's score apart from the drift, its slot and its allocation
    sigma_job: Real
    sigma_low: Real  # lower end of the 95 % interval of `sigma_job`
    sigma_high: Real  # upper end of that interval
    slot_sd: Real | None  # standard deviation between node slots; None if there is only one
    allocation_sd: Real | None  # standard deviation between allocations; None if there is only one
    # standard deviation of kept steps within a job; None if no steps were kept
    step_sd: Real | None
    lag1: Real | None  # correlation of neighbouring kept steps; None if no steps were kept
    straggler_rate: Real  # share of the window's steps that were dropped as slow
    drift: Real  # change along the line from the first to the last job
    steady_from: int | None  # first steady step of all jobs together; None if too few jobs show it
    jobs: int  # number of scored jobs


def estimate_noise(
    scores: Sequence[Score], places: Sequence[tuple[Hashable, str]] = ()
) -> Noise | None:
    """Estimate the noise from scores in the order the jobs ran; None for fewer than four.

    Args:
        scores: the scores of jobs of one configuration.
        places: the node slot of each, and the allocation that it was a step of; () for one slot.
    """
    if not places:
        places = [("", "")] * len(scores)
    usable: list[Score] = []
    jobs: list[PlacedScore] = []
    queue_lengths: Counter[Hashable] = Counter()
    for score, (slot, allocation) in zip(scores, places, strict=True):
        if not math.isfinite(score.value):
            continue
        usable.append(score)
        place = float(queue_lengths[slot])
        jobs.append(PlacedScore(slot=slot, place=place, value=score.value, allocation=allocation))
        queue_lengths[slot] += 1
    fit = fit_components(jobs)
    if fit is None or len(jobs) < MIN_SCORES or fit.df < 1:
        return None
    low, high = (
        fit.sigma * math.sqrt(fit.df / (2 * float(special().gammaincinv(fit.df / 2, p))))
        for p in (0.975, 0.025)
    )
    steps_of_jobs = [_centred_steps(score) for score in usable]
    steps_of_jobs = [steps for steps in steps_of_jobs if len(steps) > 1]
    step_variances = [stdev(steps) ** 2 for steps in steps_of_jobs]
    steps_in_windows = sum(score.n_steps + len(score.dropped) for score in usable)
    return Noise(
        sigma_job=fit.sigma,
        sigma_low=low,
        sigma_high=high,
        slot_sd=fit.slot_sd,
        allocation_sd=fit.allocation_sd,
        step_sd=math.sqrt(fmean(step_variances)) if step_variances else None,
        lag1=_lag1(steps_of_jobs),
        straggler_rate=sum(score.stragglers for score in usable) / max(steps_in_windows, 1),
        drift=fit.slope * (max(queue_lengths.values()) - 1),
        steady_from=steady_start([score.timings for score in usable]),
        jobs=len(jobs),
    )


_DEVIATIONS = 3.0  # standard deviations from the mean to a lower bound


def lower_bound(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean minus three standard deviations, and how often a further value is lower.

    The probability is that of Student's t with n - 1 degrees of freedom below -3 / sqrt(1 + 1/n),
    because the new value and the mean of n both have noise. It needs two values; if all are equal,
    the bound is their value.
    """
    jobs = len(values)
    probability = float(special().stdtr(jobs - 1, -_DEVIATIONS / math.sqrt(1 + 1 / jobs)))
    return fmean(values) - _DEVIATIONS * stdev(values), probability


def _centred_steps(score: Score) -> list[float]:
    """Return log seconds of the steps that a score counts, minus their mean."""
    first, last = score.window
    logs = [
        math.log(seconds)
        for step, seconds in score.timings
        if first <= step <= last and step not in score.dropped
    ]
    level = fmean(logs) if logs else 0.0
    return [x - level for x in logs]


def _lag1(steps_of_jobs: Sequence[Sequence[float]]) -> float | None:
    """Return the pooled lag-1 correlation of centred steps, corrected for subtracting the means.

    For n values, E r = rho - (1 + 4 rho) / n (Marriott and Pope, Biometrika 41, 1954).
    """
    squares = math.fsum(x * x for steps in steps_of_jobs for x in steps)
    length = fmean(len(steps) for steps in steps_of_jobs) if steps_of_jobs else 0.0
    if not squares or length <= MIN_LENGTH:
        return None
    raw = math.fsum(x * y for steps in steps_of_jobs for x, y in pairwise(steps)) / squares
    return min(max((raw * length + 1) / (length - MIN_LENGTH), -1.0), 1.0)
