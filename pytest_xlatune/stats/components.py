"""Estimate what makes jobs of one cell differ: noise, node slots and allocations.

The same fit serves a screen on several slots and a calibration. It gives a line for each slot, all
with one slope but each at its own level, and the variances. The distance of a single job from its
line ranks the job, and is never a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_xlatune.stats.blocks import IDENTICAL, MANY, fit_lines, main_group, weight

_EM_ROUNDS = 30  # iterations of the EM algorithm
# Slots, or allocations, share one level if their variance is less than this part of a job's.
_LEAST_VARIANCE_RATIO = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedScore:
    """The score of one job, and where it ran."""

    slot: Hashable
    place: float  # its place in the queue of the slot
    value: float
    is_baseline: bool = True
    allocation: str = ""  # the allocation that it was a step of; "" if it was a job of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Lines with a common slope, each at the level of its slot, and the variances."""

    levels: Mapping[Hashable, float]  # slot -> expected score of a baseline at `centre`
    slope: float  # change from one place in a queue to the next
    centre: float  # mean place
    variances: Mapping[Hashable, float]  # slot -> variance of its level, in units of sigma^2
    tilt: float  # variance of the slope, in units of sigma^2
    sigma: float  # standard deviation of a job's score on its slot, in its allocation
    df: int  # degrees of freedom of sigma, as if levels of slots and allocations were free
    slot_sd: float | None  # standard deviation between slots; None if there is only one
    allocation_sd: float | None  # standard deviation between allocations; None if there is only one

    def expected(self, slot: Hashable, place: float) -> float:
        """Return the score that a baseline is expected to have at a place in a slot's queue."""
        return self.levels[slot] + self.slope * (place - self.centre)

    def leverage(self, slot: Hashable, place: float) -> float:
        """Return the variance of (a job's score - line) at a place, in units of sigma^2."""
        return 1 + self.variances[slot] + self.tilt * (place - self.centre) ** 2


def fit_components(jobs: Sequence[PlacedScore]) -> Components | None:
    """Fit the lines of several slots, and the variance components; None without a baseline.

    The model is score = level + slot + allocation + slope x place + (common effect of profiles) +
    error. Slots and allocations are random effects whose variances are estimated with the noise
    (restricted maximum likelihood by EM: N. M. Laird and J. H. Ware, Biometrics 38, 1982). So equal
    slots share a level, and different slots have their own.

    Most profiles have almost no effect, so they contribute to the level of their slot; those
    outside the main group count less or not at all. The slope is fitted to all jobs if they are all
    baselines, or if ten or more are profiles. With fewer profiles a good one could pass for drift,
    so the slope comes from the baselines alone, and is 0 with one baseline on each slot.
    """
    if not any(score.is_baseline for score in jobs):
        return None
    centre = math.fsum(score.place for score in jobs) / len(jobs)
    is_profile = np.array([0.0 if score.is_baseline else 1.0 for score in jobs])
    places = np.array([score.place - centre for score in jobs])
    fits_slope = int(is_profile.sum()) >= MANY or not is_profile.any()
    columns = [np.ones(len(jobs))]
    columns += [places] if fits_slope else []
    columns += [is_profile] if is_profile.any() else []
    fixed = len(columns)
    slots = list(dict.fromkeys(score.slot for score in jobs))
    allocations = list(dict.fromkeys(score.allocation for score in jobs))
    # the level of a single allocation cannot be separated from that of all jobs
    groupings = [[score.slot for score in jobs]]
    groupings += [[score.allocation for score in jobs]] if len(allocations) > 1 else []
    spans = []
    for labels in groupings:
        names = list(dict.fromkeys(labels))
        spans.append(slice(len(columns), len(columns) + len(names)))
        columns += [np.array([float(label == name) for label in labels]) for name in names]
    design = np.stack(columns, axis=1)
    values = np.array([score.value for score in jobs])
    slope, tilt = (0.0, 0.0) if fits_slope else _slope_of_baselines(jobs)
    values -= slope * places
    mean = float(values.mean())
    values -= mean
    profile_rows = [at for at, score in enumerate(jobs) if not score.is_baseline]
    weights = np.ones(len(jobs))
    weights[profile_rows] = _weights(values[profile_rows].tolist())
    # the first value is of the slots, the second of the allocations; a ratio is the variance of the
    # noise divided by that of the levels
    ratios, variances_of_levels = [1.0] * len(spans), [0.0] * len(spans)
    for _ in range(_EM_ROUNDS):
        weighted = design * weights[:, None]
        normal = design.T @ weighted
        for span, ratio in zip(spans, ratios, strict=True):
            normal[span, span] += ratio * np.eye(span.stop - span.start)
        inverse = np.linalg.pinv(normal, rcond=1e-12, hermitian=True)
        effects = inverse @ (weighted.T @ values)
        residual = values - design @ effects
        df = max(float(weights.sum()) - fixed, 1.0)
        noise = max(float(values @ (weights * residual)) / df, 0.0)
        if noise <= IDENTICAL**2:
            break
        for at, span in enumerate(spans):
            levels = effects[span]
            trace = float(np.trace(inverse[span, span]))
            variance = (float(levels @ levels) + noise * trace) / len(levels)
            variances_of_levels[at] = variance
            ratios[at] = noise / max(variance, _LEAST_VARIANCE_RATIO * noise)
        weights[profile_rows] = _weights(residual[profile_rows].tolist())
    contrast = np.zeros((len(slots), len(effects)))
    contrast[:, 0] = 1.0
    contrast[range(len(slots)), range(fixed, fixed + len(slots))] = 1.0
    variances = np.einsum("ij,jk,ik->i", contrast, inverse, contrast)
    if fits_slope:
        slope, tilt = float(effects[1]), float(inverse[1, 1])
    return Components(
        levels=dict(zip(slots, (mean + contrast @ effects).tolist(), strict=True)),
        slope=slope,
        centre=centre,
        variances=dict(zip(slots, variances.tolist(), strict=True)),
        tilt=tilt,
        sigma=math.sqrt(noise),
        df=len(jobs) - fixed - (len(slots) - 1) - (len(allocations) - 1),
        slot_sd=math.sqrt(variances_of_levels[0]) if len(slots) > 1 else None,
        allocation_sd=math.sqrt(variances_of_levels[1]) if len(spans) > 1 else None,
    )


def _weights(values: Sequence[float]) -> list[float]:
    """Return the weight of each profile's job: 1 in the main group, less near it, else 0."""
    if not values:
        return []
    (centre,), sd = main_group([values])
    return [weight(value - centre, sd) for value in values]


def _slope_of_baselines(jobs: Sequence[PlacedScore]) -> tuple[float, float]:
    """Return the common slope of the baselines on the slots, and its variance in sigma^2."""
    groups: dict[Hashable, list[tuple[float, float]]] = {}
    for score in jobs:
        if score.is_baseline:
            groups.setdefault(score.slot, []).append((score.place, score.value))
    line = fit_lines(list(groups.values()))[0]
    return line.slope, 1 / line.spread if line.spread else 0.0
