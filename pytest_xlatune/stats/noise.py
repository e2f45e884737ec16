"""The noise of a cell, from jobs of the baseline against itself.

What planning needs to know before it promises anything: how far two jobs of one configuration are
apart, and what happens inside a job. A dozen jobs give sigma to within a quarter. And what node
slots differ by, and what they cost each other while all of them run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, stdev

import numpy as np

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import Score, relative
from pytest_xlatune.stats.blocks import fit_line
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.stats.window import steady_start

MIN_SCORES = 4
MIN_LENGTH = 4  # steps inside a job, below which their correlation is anything


class Noise(Record, frozen=True, kw_only=True):
    """What jobs of one configuration differ by, as fractions."""

    sigma_job: Real  # standard deviation of a job's score about the drift line
    sigma_low: Real  # 95 % interval of it
    sigma_high: Real
    step_sd: Real | None  # of a kept step inside its job; None where no steps were kept
    lag1: Real | None  # correlation of neighbouring kept steps inside a job; None likewise
    straggler_rate: Real  # share of the window's steps that were dropped as slow
    drift: Real  # change along the line from the first job to the last
    steady_from: int | None  # first steady step, pooled; None where too few jobs say
    jobs: int  # scored jobs behind it


def estimate_noise(scores: Sequence[Score]) -> Noise | None:
    """Estimate the noise from scores in the order the jobs ran; None with fewer than four."""
    usable = [score for score in scores if math.isfinite(score.value)]
    line = fit_line([(float(at), score.value) for at, score in enumerate(usable)])
    if line is None or line.n < MIN_SCORES:
        return None
    from scipy import special

    sigma = math.sqrt(line.squares / line.df)
    low, high = (
        math.sqrt(line.squares / (2 * float(special.gammaincinv(line.df / 2, p))))
        for p in (0.975, 0.025)
    )
    inside = [levels for score in usable if len(levels := _kept(score)) > 1]
    within = math.fsum(stdev(levels) ** 2 for levels in inside)
    seen = sum(score.n_steps + len(score.dropped) for score in usable)
    return Noise(
        sigma_job=sigma,
        sigma_low=low,
        sigma_high=high,
        step_sd=math.sqrt(within / len(inside)) if inside else None,
        lag1=_lag1(inside),
        straggler_rate=sum(score.stragglers for score in usable) / max(seen, 1),
        drift=line.slope * (line.n - 1),
        steady_from=steady_start([score.timings for score in usable]),
        jobs=line.n,
    )


_SPREADS = 3.0


def lower_bound(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean less three standard deviations, and how often one more value lies below.

    The second is the probability of Student's t with n - 1 degrees of freedom below
    -3 / sqrt(1 + 1/n): the new value differs from the mean of n by both noises. Needs two values;
    of values that do not differ, the bound is their value.
    """
    from scipy import special

    jobs = len(values)
    miss = float(special.stdtr(jobs - 1, -_SPREADS / math.sqrt(1 + 1 / jobs)))
    return fmean(values) - _SPREADS * stdev(values), miss


def _kept(score: Score) -> list[float]:
    """Return log seconds of the steps behind a score, less their mean."""
    first, last = score.window
    logs = [
        math.log(seconds)
        for step, seconds in score.timings
        if first <= step <= last and step not in score.dropped
    ]
    level = fmean(logs) if logs else 0.0
    return [x - level for x in logs]


def _lag1(inside: Sequence[Sequence[float]]) -> float | None:
    """Return the pooled lag-1 correlation, corrected for the means that were taken off.

    With n values E r = rho - (1 + 4 rho) / n (Marriott and Pope, Biometrika 41, 1954).
    """
    squares = math.fsum(x * x for levels in inside for x in levels)
    length = fmean(len(levels) for levels in inside) if inside else 0.0
    if not squares or length <= MIN_LENGTH:
        return None
    raw = math.fsum(x * y for levels in inside for x, y in pairwise(levels)) / squares
    return min(max((raw * length + 1) / (length - MIN_LENGTH), -1.0), 1.0)


_LEAST_RUNS, _LEAST_SIDE = 5, 2
_GAP_SHARE = 0.2  # a group may spread over so much of the gap between the two
_LEAST_GAP = 0.005


def two_groups(values: Sequence[float]) -> tuple[float, int, int] | None:
    """Return the gap between two groups of scores, and the size of each; None where there is one.

    Scores are logarithms, of one arm. Each group has two runs at least and spreads over a fifth of
    the gap at most; the gap is 0.5 % at least. `tests/stats/test_two_groups.py` measures how often
    scores of one normal distribution are taken for two groups.
    """
    ordered = sorted(values)
    if len(ordered) < _LEAST_RUNS:
        return None
    at = max(range(1, len(ordered)), key=lambda k: ordered[k] - ordered[k - 1])
    low, high = ordered[:at], ordered[at:]
    gap = high[0] - low[-1]
    spread = max(low[-1] - low[0], high[-1] - high[0])
    if min(len(low), len(high)) < _LEAST_SIDE or gap < _LEAST_GAP or spread > _GAP_SHARE * gap:
        return None
    return gap, len(low), len(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTrial:
    """A trial on one of several node slots: when it ran, from 0, and its score."""

    slot: int
    start_s: float
    end_s: float
    value: float


class SlotNoise(Record, frozen=True, kw_only=True):
    """What node slots differ by, and what they cost each other; logarithms of the score."""

    effects: tuple[Real, ...]  # of each slot against the mean of the others
    reach: tuple[Real, ...]  # half the width of their 95 % intervals, which hold together
    busy: Real | None  # change while all other slots run; None where they never ran together
    busy_low: Real  # 95 % interval of it
    busy_high: Real
    sigma: Real  # of one trial on its slot
    trials: int

    @property
    def slower(self) -> tuple[int, ...]:
        """The slots that are slower than the others by more than noise, from 0."""
        pairs = zip(self.effects, self.reach, strict=True)
        return tuple(at for at, (effect, reach) in enumerate(pairs) if effect < -reach)

    @property
    def disturbs(self) -> bool:
        """Whether trials on other slots change the speed by more than noise."""
        return self.busy is not None and not self.busy_low <= 0 <= self.busy_high

    def found(self, nodes: Sequence[str]) -> tuple[Message, ...]:
        """What was found; `nodes` are those of each slot as a host list."""
        found = [
            say(
                "noise of a trial on its slot: {sigma:.2%} ({trials} trials)",
                sigma=self.sigma,
                trials=self.trials,
            )
        ]
        for at in self.slower:
            low, loss, high = (
                -relative(self.effects[at] + each) for each in (self.reach[at], 0, -self.reach[at])
            )
            slot = {"slot": at + 1, "nodes": nodes[at]}
            found.append(
                say(
                    "slot {slot} ({nodes}) is slower than the others by {loss:size} (95 % "
                    "interval {low:size} to {high:size})",
                    loss=loss,
                    low=low,
                    high=high,
                    **slot,
                )
            )
        if not self.slower:
            found.append(
                say(
                    "no slot is slower than the others by more than noise; {seen:size} would be "
                    "seen",
                    seen=relative(max(self.reach)),
                )
            )
        if self.busy is None:
            return (
                *found,
                say(
                    "cannot tell whether neighbours disturb each other: the slots never ran at "
                    "the same time"
                ),
            )
        change, low, high = map(relative, (self.busy, self.busy_low, self.busy_high))
        text = (
            (
                "neighbours slow each other down: {change:percent} with all slots busy (95 % "
                "interval {low:percent} to {high:percent})"
            )
            if self.busy < 0
            else (
                "neighbours change each other's speed: {change:percent} with all slots busy (95 "
                "% interval {low:percent} to {high:percent})"
            )
        )
        if not self.disturbs:
            text = (
                "neighbours do not disturb each other by more than noise: {change:percent} "
                "with all slots busy (95 % interval {low:percent} to {high:percent})"
            )
        return (*found, say(text, change=change, low=low, high=high))


_LEAST_DF = 3  # degrees of freedom, below which no interval is given
_LEAST_SPREAD = 0.05  # of the share of time beside others, below which that was never varied


def slot_noise(trials: Sequence[SlotTrial], *, slots: int) -> SlotNoise | None:
    """Estimate what slots differ by, and what a trial loses while the others run.

    Least squares of slot, a line of time, and the share of a trial's time during which another
    slot ran, mean over the others. None where a slot has no score, or too few trials are there.
    """
    known = sorted(trials, key=lambda each: each.slot)
    if [at for at, _ in groupby(known, key=lambda each: each.slot)] != list(range(slots)):
        return None
    beside = np.array([_beside(trial, known, slots) for trial in known])
    starts = np.array([trial.start_s for trial in known])
    spread = float(starts.max() - starts.min()) or 1.0
    columns = [np.array([float(trial.slot == at) for trial in known]) for at in range(slots)]
    is_varied = float(beside.max() - beside.min()) > _LEAST_SPREAD
    columns += [beside - beside.mean()] if is_varied else []
    if float(starts.max()) > float(starts.min()):
        columns.append((starts - starts.mean()) / spread)
    design = np.stack(columns, axis=1)
    df = len(known) - int(np.linalg.matrix_rank(design))
    if df < _LEAST_DF:
        return None
    values = np.array([trial.value for trial in known])
    mean = float(values.mean())
    inverse = np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True)
    effects = inverse @ (design.T @ (values - mean))
    residual = values - mean - design @ effects
    sigma = math.sqrt(float(residual @ residual) / df)
    reach = t_quantile(1 - 0.025 / slots, df) * sigma
    found = []
    for at in range(slots):
        contrast = np.zeros(len(effects))
        contrast[:slots] = -1.0 / (slots - 1)
        contrast[at] = 1.0
        own = math.sqrt(float(contrast @ inverse @ contrast))
        found.append((float(contrast @ effects), reach * own))
    busy, half = (float(effects[slots]), 0.0) if is_varied else (None, 0.0)
    if busy is not None:
        half = t_quantile(0.975, df) * sigma * math.sqrt(float(inverse[slots, slots]))
    return SlotNoise(
        effects=tuple(effect for effect, _ in found),
        reach=tuple(width for _, width in found),
        busy=busy,
        busy_low=(busy or 0.0) - half,
        busy_high=(busy or 0.0) + half,
        sigma=sigma,
        trials=len(known),
    )


def _beside(trial: SlotTrial, all_of: Sequence[SlotTrial], slots: int) -> float:
    """Return the share of a trial's time during which another slot ran, mean over the others."""
    took_s = max(trial.end_s - trial.start_s, 1e-9)
    shared_s = math.fsum(
        max(min(each.end_s, trial.end_s) - max(each.start_s, trial.start_s), 0.0)
        for each in all_of
        if each.slot != trial.slot
    )
    return shared_s / took_s / (slots - 1)
