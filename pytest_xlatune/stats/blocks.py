"""Least squares of fresh blocks: one estimate for each arm against the control in its blocks.

The model is additive, score = block + arm + error, so whatever is common to a block (time of day,
drift, a node swap) drops out. Cells may be missing; complete blocks give differences of plain
means. This module must not know what an arm is or where its scores come from.

It also fits the line of drift through the baselines of a screen; with enough other jobs, these
contribute to its slope. The distance of a single job from the line ranks and bounds the job, but is
no verdict. For several node slots see `components.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.stats.quantiles import t_quantile

IDENTICAL = 1e-9  # scores that agree this closely were copied, not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScore:
    """The score of one job of an arm in a block."""

    block: Hashable
    arm: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFit:
    """An arm against the control: difference of log scores, and its variance in sigma^2."""

    estimate: float
    variance: float
    n: int
    # control jobs for each job of the arm if the arm is in every block; None if cells are missing
    control_weight: float | None
    # variance of the estimate from the arm's own block differences; None with fewer than three
    own_variance: float | None = None
    # variance of a job in these differences, divided by that of all other jobs; None if not known
    excess: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFit:
    """The result of the blocks."""

    # arm -> effect, without the control; an arm that shares no block with the control is absent
    arms: dict[str, ArmFit]
    sigma: float  # residual standard deviation of a job's score
    df: int  # residual degrees of freedom
    n_control: int  # number of control jobs
    n_blocks: int  # number of blocks


def fit_blocks(scores: Sequence[BlockScore], *, control: str) -> BlockFit | None:
    """Fit block and arm effects; None if there is no control or no other arm in its blocks."""
    counts = Counter([score.arm for score in scores])
    arms = sorted(counts.keys() - {control})
    if not arms or not counts[control]:
        return None
    blocks = list(dict.fromkeys([score.block for score in scores]))
    arm_columns = {arm: at for at, arm in enumerate(arms)}
    block_columns = {block: len(arms) + at for at, block in enumerate(blocks)}
    design = np.zeros((len(scores), len(arms) + len(blocks)))
    for at, score in enumerate(scores):
        design[at, block_columns[score.block]] = 1.0
        if score.arm != control:
            design[at, arm_columns[score.arm]] = 1.0
    effects, inverse, estimable, residual, df = _solved(scores, design)
    squares = float(residual @ residual)
    weights = _control_weights(scores, arms, control)

    cells: dict[Hashable, dict[str, list[float]]] = {}
    for score in scores:
        cells.setdefault(score.block, {}).setdefault(score.arm, []).append(score.value)

    def own_noise(arm: str) -> tuple[float | None, float | None]:
        """Return `own_variance` and `excess` of the arm's fit."""
        variances = _own_variance(cells.values(), arm, control)
        if variances is None:
            return None, None
        own_variance, job_variance = variances
        rows = [at for at, score in enumerate(scores) if score.arm == arm]
        # `removed` is how much smaller the sum of squares is in a fit without the rows of the arm.
        # It follows from the fit with them.
        unexplained = np.eye(len(rows)) - design[rows] @ inverse @ design[rows].T
        removed = float(residual[rows] @ np.linalg.pinv(unexplained, rcond=1e-9) @ residual[rows])
        others_df = df - (len(rows) - 1)
        others = (squares - removed) / others_df if others_df > 0 else 0.0
        if others_df < _LEAST_OTHERS_DF or others <= 0:
            return own_variance, None
        return own_variance, job_variance / others

    noises = {arm: own_noise(arm) for arm in arms}
    fits = {
        arm: ArmFit(
            estimate=float(effects[at]),
            variance=float(inverse[at, at]),
            n=counts[arm],
            control_weight=weights.get(arm),
            own_variance=noises[arm][0],
            excess=noises[arm][1],
        )
        for arm, at in arm_columns.items()
        if abs(float(estimable[at, at]) - 1) < 1e-6  # noqa: PLR2004 - rounding of a projection
    }
    return BlockFit(
        arms=fits,
        sigma=math.sqrt(squares / df) if df > 0 else math.nan,
        df=df,
        n_control=counts[control],
        n_blocks=len(blocks),
    )


def fit_group(scores: Sequence[BlockScore], *, controls: Collection[str]) -> BlockFit | None:
    """Fit block and arm effects; an arm is compared with the mean of several controls.

    Each control keeps its own effect, so that permanent differences between controls are no noise.
    None if no control, or nothing but controls, has a score.
    """
    counts = Counter([score.arm for score in scores])
    scored_controls = sorted(counts.keys() & set(controls))
    arms = sorted(counts.keys() - set(scored_controls))
    if not scored_controls or not arms:
        return None
    blocks = list(dict.fromkeys(score.block for score in scores))
    arm_columns = {name: at for at, name in enumerate((*scored_controls, *arms))}
    block_columns = {block: len(arm_columns) + at for at, block in enumerate(blocks)}
    design = np.zeros((len(scores), len(arm_columns) + len(blocks)))
    for at, score in enumerate(scores):
        design[at, [arm_columns[score.arm], block_columns[score.block]]] = 1.0
    effects, inverse, estimable, residual, df = _solved(scores, design)
    is_complete = set(counts.values()) == {len(blocks)}
    is_complete = is_complete and len(scores) == len(arm_columns) * len(blocks)
    fits = {}
    for arm in arms:
        contrast = np.zeros(len(effects))
        contrast[arm_columns[arm]] = 1.0
        contrast[[arm_columns[name] for name in scored_controls]] = -1.0 / len(scored_controls)
        if not np.allclose(estimable @ contrast, contrast, atol=1e-6):
            continue
        fits[arm] = ArmFit(
            estimate=float(contrast @ effects),
            variance=float(contrast @ inverse @ contrast),
            n=counts[arm],
            control_weight=float(len(scored_controls)) if is_complete else None,
        )
    return BlockFit(
        arms=fits,
        sigma=math.sqrt(float(residual @ residual) / df) if df > 0 else math.nan,
        df=df,
        n_control=sum(counts[name] for name in scored_controls),
        n_blocks=len(blocks),
    )


_Matrix = NDArray[Any]


def _solved(
    scores: Sequence[BlockScore], design: _Matrix
) -> tuple[_Matrix, _Matrix, _Matrix, _Matrix, int]:
    """Return the least squares of the scores on the columns of `design`.

    These are the effects, their covariance in sigma^2, the projection onto what can be estimated,
    the residuals and their degrees of freedom.
    """
    values = np.array([score.value for score in scores])
    # the values are centred, because large ones would lose digits in the differences
    values -= values.mean()
    normal = design.T @ design
    inverse = np.linalg.pinv(normal, rcond=1e-10, hermitian=True)
    effects = inverse @ (design.T @ values)
    estimable = inverse @ normal
    df = len(scores) - round(float(np.trace(estimable)))
    return effects, inverse, estimable, values - design @ effects, df


_LEAST_OWN_RUNS = 3  # fewer block differences say nothing about their variance
_LEAST_OTHERS_DF = 4  # fewer degrees of freedom say nothing about the variance of the other jobs


def _own_variance(
    blocks: Iterable[Mapping[str, Sequence[float]]], arm: str, control: str
) -> tuple[float, float] | None:
    """Return the variance of the mean of an arm's block differences, and that of one of its jobs.

    None with fewer than three blocks that hold the arm and a control.
    """
    both = [(cells[arm], cells[control]) for cells in blocks if arm in cells and control in cells]
    if len(both) < _LEAST_OWN_RUNS:
        return None
    gains = [fmean(arm_scores) - fmean(control_scores) for arm_scores, control_scores in both]
    mean = fmean(gains)
    variance = math.fsum([(gain - mean) ** 2 for gain in gains]) / (len(gains) - 1)
    # variance of a block difference in units of that of a job
    jobs = fmean(
        [1 / len(arm_scores) + 1 / len(control_scores) for arm_scores, control_scores in both]
    )
    return variance / len(both), variance / jobs


def _control_weights(
    scores: Sequence[BlockScore], arms: Sequence[str], control: str
) -> dict[str, float]:
    """Return arm -> number of control jobs in a block, for arms that are in every block once.

    The estimates of such arms are plain means of block differences, whatever the other arms are.
    The result is empty unless all blocks have the same number of control jobs.
    """
    cells = Counter([(score.block, score.arm) for score in scores])
    blocks = {block for block, _ in cells}
    weights = {cells[block, control] for block in blocks}
    if len(weights) > 1 or 0 in weights:
        return {}
    (weight,) = weights
    blocks_with_one = Counter([arm for (_, arm), count in cells.items() if count == 1])
    return {arm: float(weight) for arm in arms if blocks_with_one[arm] == len(blocks)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Least squares line through (slot, score) of n baselines; a slot is a place in the queue."""

    level: float  # value of the line at `centre`
    slope: float  # change from one slot to the next; 0 with a single baseline and no other jobs
    centre: float  # the mean of the baselines' slots
    spread: float  # weighted sum of squared distances of the slots that the slope rests on
    squares: float  # sum of squared residuals
    df: int  # degrees of freedom of `squares`
    n: int  # number of baselines
    ends: tuple[float, float]  # first and last slot that the slope rests on

    def expected(self, slot: float) -> float:
        """Return the score that a baseline is expected to have in a slot.

        Beyond its ends the line is flat: while a screen runs, two neighbouring baselines on a busy
        machine would extrapolate to any value for a distant profile.
        """
        first, last = self.ends
        return self.level + self.slope * (min(max(slot, first), last) - self.centre)

    def leverage(self, slot: float) -> float:
        """Return the variance of (a job's score - line) in a slot, in units of sigma^2.

        It keeps growing beyond the ends, because the drift there is unknown.
        """
        tilt = (slot - self.centre) ** 2 / self.spread if self.spread else 0.0
        return 1 + 1 / self.n + tilt


_Points = Sequence[tuple[float, float]]  # slot, score


def fit_lines(groups: Sequence[_Points], *, others: Sequence[_Points] = ()) -> tuple[Line, ...]:
    """Fit lines with a common slope through groups of (slot, score), each at its own level.

    A group without points has no line. The first line holds the residuals of all lines through
    `groups`; `others` do not count in them.

    Args:
        groups: the baselines.
        others: groups of other jobs, each at its own level, most of which differ only by noise.
            With ten or more jobs in them, the slope comes from all jobs, because few baselines
            estimate it badly; outliers count less.
    """
    filled = [sorted(group) for group in groups if group]
    if not filled:
        return ()
    centres = [math.fsum([slot for slot, _ in group]) / len(group) for group in filled]
    levels = [math.fsum([score for _, score in group]) / len(group) for group in filled]
    centred = [
        (slot - centre, score - level)
        for group, centre, level in zip(filled, centres, levels, strict=True)
        for slot, score in group
    ]
    spread = math.fsum([x * x for x, _ in centred])
    slope = math.fsum([x * y for x, y in centred]) / spread if spread else 0.0
    squares = math.fsum([(y - slope * x) ** 2 for x, y in centred])
    df = max(len(centred) - len(filled) - bool(spread), 0)
    slots = [slot for group in filled for slot, _ in group]
    if sum(map(len, others)) >= MANY:
        slots += [slot for group in others for slot, _ in group]
        slope, spread = _shared_slope(centred, [sorted(group) for group in others if group], slope)
    return tuple(
        Line(
            level=level,
            slope=slope,
            centre=centre,
            spread=spread,
            squares=0.0 if at else squares,
            df=0 if at else df,
            n=len(group),
            ends=(min(slots), max(slots)),
        )
        for at, (group, centre, level) in enumerate(zip(filled, centres, levels, strict=True))
    )


MANY = 10  # with so many jobs or more, their spread shows the noise
_ROUNDS = 5  # iterations of a robust estimate, which has settled by then
# Beyond so many standard deviations a job counts less. With this limit, the estimate is 95 % as
# efficient as the mean for normal noise.
_HUBER = 1.345
_FAR = 3.0  # beyond so many standard deviations a job differs by its settings, not by noise
_REACH = 5.0  # jobs within so many standard deviations may belong to the main group


def main_group(groups: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """Return the centre of each group's values, and the standard deviation around the centres.

    Both describe the values that differ only by noise. Many settings of a catalog do harm and few
    help by much. So the centre of a group is first its upper quartile, and the standard deviation
    the distance within which a quarter of all values lie. Then both are taken anew, by medians,
    from the values within five standard deviations of the centres.

    Raises:
        ValueError: a group is empty.
    """
    if not all(groups):
        raise ValueError("a group without values has no centre")

    def distances(values: Sequence[Sequence[float]]) -> list[float]:
        """Return the ascending distances to the centres, without the smallest of each group.

        That one is 0 or nearly so, because the centre is computed from the values.
        """
        ascending = sorted(
            abs(value - centre)
            for group, centre in zip(values, centres, strict=True)
            for value in group
        )
        return ascending[len(groups) :] or [0.0]

    centres = [sorted(group)[3 * len(group) // 4] for group in groups]
    before: tuple[list[float], float] | None = None
    # The search does not start at the MAD of all values: if a third of the settings do harm, that
    # measures the harm, and with three winners beside twelve slow flags it finds 58 % of the
    # winners instead of 93 %.
    ascending = distances(groups)
    sd = max(ascending[len(ascending) // 4], IDENTICAL)
    for _ in range(_ROUNDS):
        near = [
            [value for value in group if abs(value - centre) <= _REACH * sd]
            for group, centre in zip(groups, centres, strict=True)
        ]
        centres = [
            median(group) if group else centre for group, centre in zip(near, centres, strict=True)
        ]
        sd = max(1.4826 * median(distances(near)), IDENTICAL)
        if before == (centres, sd):
            break
        before = centres, sd
    return centres, sd


def weight(distance: float, sd: float) -> float:
    """Return the weight, 0 to 1, of a job this far from its centre, where the noise is `sd`."""
    far = abs(distance)
    if far > _FAR * sd:
        return 0.0
    return 1.0 if far <= _HUBER * sd else _HUBER * sd / far


def _shared_slope(
    baselines: _Points, others: Sequence[_Points], slope: float
) -> tuple[float, float]:
    """Return the slope of all jobs, and the weighted spread of their slots.

    Iteratively reweighted (P. J. Huber, Annals of Mathematical Statistics 35, 1964) over the jobs
    of the main group; others do not count, because their settings may have any effect.

    Args:
        baselines: the baselines' points minus the mean of their group; they count in full.
        others: the other groups.
        slope: the slope of the baselines, from which the iteration starts.
    """
    products = math.fsum([x * y for x, y in baselines])
    squares = math.fsum([x * x for x, _ in baselines])
    spread = squares
    for _ in range(_ROUNDS):
        residuals = [[y - slope * x for x, y in group] for group in others]
        levels, sd = main_group(residuals)
        parts = []
        for group, group_residuals, level in zip(others, residuals, levels, strict=True):
            weights = [weight(residual - level, sd) for residual in group_residuals]
            total = math.fsum(weights) or 1.0
            x0 = math.fsum([w * x for w, (x, _) in zip(weights, group, strict=True)]) / total
            y0 = math.fsum([w * y for w, (_, y) in zip(weights, group, strict=True)]) / total
            parts.append((x0, y0, list(zip(weights, group, strict=True))))
        spread = squares + math.fsum(
            [w * (x - x0) ** 2 for x0, _, weighted in parts for w, (x, _) in weighted]
        )
        if not spread:
            return 0.0, 0.0
        products_of_others = math.fsum(
            [w * (x - x0) * (y - y0) for x0, y0, weighted in parts for w, (x, y) in weighted]
        )
        before, slope = slope, (products + products_of_others) / spread
        if slope == before:
            break
    return slope, spread


def is_apart(group: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> bool:
    """Return whether a two-sided 5 % test finds two groups of (slot, score) at other levels."""
    lines = fit_lines([group, other])
    if len(lines) < 2 or lines[0].df < 1:  # noqa: PLR2004 - a pair
        return False
    first, second = lines
    slots_between = second.centre - first.centre
    offset = second.level - first.level - first.slope * slots_between
    tilt = slots_between**2 / first.spread if first.spread else 0.0
    error = math.sqrt(first.squares / first.df * (1 / first.n + 1 / second.n + tilt))
    return abs(offset) > t_quantile(0.975, first.df) * error


def upper_bound(part: Estimate, *, sigma: float, df: int) -> float:
    """Return the bound that a log ratio exceeds with 2.5 % probability.

    This is half of 5 %, because the smaller of two bounds is used (screen, screen with blocks).
    """
    return part.estimate + t_quantile(0.975, df) * sigma * math.sqrt(part.variance)


class Estimate(NamedTuple):
    """A log ratio to the baseline, and its variance in units of sigma^2."""

    estimate: float
    variance: float


def combine(parts: Sequence[Estimate | ArmFit]) -> Estimate:
    """Return the inverse-variance mean of independent estimates."""
    weight = math.fsum([1 / part.variance for part in parts])
    total = math.fsum([part.estimate / part.variance for part in parts])
    return Estimate(total / weight, 1 / weight)
