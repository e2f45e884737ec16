"""Compute the plots of a page as positions and texts: forest, step times, drift.

This module must draw nothing; `page.jinja` draws. A plot is made from the conclusion or the history
of any study, and all its texts are in tables too. Positions are in percent of the width or the
height, so that a page can draw a plot in any size.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import split_pairs
from pytest_xlatune.model.result import (
    Conclusion,
    Score,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    fine_percent,
    interval,
    percent,
    points,
    size,
)
from pytest_xlatune.report.document import literal, plain
from pytest_xlatune.report.language import joined
from pytest_xlatune.report.leaderboard import CONFIRMED, settings_by_arm
from pytest_xlatune.report.lines import is_pending, speed, step, words, words_beside

_MAX_TICKS = 7  # of an axis
_MARGIN = 0.04  # share of an axis that is kept free at each of its ends
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_MAX_STRIPS = 240  # on a page; more would make the page too large to send
_MAX_POINTS = 30_000  # of all strips together
# A forest shows at least changes of this size in both directions: a narrower axis would enlarge
# meaningless differences.
_MIN_CHANGE = 0.005
# Bounds of the scale of step times, as shares of the trial's own seconds per step. Smaller changes
# than the lower bound are noise of the printed digits. A larger scale than the upper bound would
# begin below a step of 0 seconds.
_MIN_SCALE, _MAX_SCALE = 0.01, 1.0
_SHARE_ON_SCALE = 0.98  # share of the scored steps that fit on the scale of the strips
_SCALE_STEPS = 1_000  # the scale is computed from about so many steps of a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A tick of an axis: its place in percent, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """An arm of a forest plot.

    Attributes:
        name: the arm.
        n: the number of its trials.
        verdict: its verdict in a few words.
        looks: the verdict's kind in lower case, which gives the row its colour and shape; followed
            by `hollow` if it is not known that the settings were in effect.
        at, low, high: the places of the change and of the ends of its interval, in percent; None
            without a figure.
        delta, ends: the change and its interval as text.
        is_best: whether the arm is the winner.
        what: the settings of the arm; "" if they are not known.
        why: why the change is missing; "" if it is there.
    """

    name: str
    n: str
    verdict: str
    looks: str
    at: float | None = None
    low: float | None = None
    high: float | None = None
    delta: str = ABSENT
    ends: str = ABSENT
    is_best: bool = False
    what: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestPart:
    """Rows that may be compared with each other; `title` says how they were measured."""

    title: str
    rows: tuple[ForestRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The change and the interval of each arm on one axis; `zero` is the place of no change."""

    title: str
    caption: str
    ticks: tuple[Tick, ...]
    zero: float
    parts: tuple[ForestPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The step times of a trial.

    Attributes:
        name, job, figure: the arm, its job and its figure.
        line: the points of a polyline, `x,y` in percent.
        window: the start and the end of the scored window, in percent.
        dropped: (x, y) in percent of the steps in the window that the score leaves out.
        is_reference: whether the trial is of the reference.
    """

    name: str
    job: str
    figure: str
    line: str
    window: tuple[float, float]
    dropped: tuple[tuple[float, float], ...]
    is_reference: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """The step times of all trials on one relative scale."""

    caption: str
    strips: tuple[Strip, ...]


# characters that fit side by side below an axis, on a large screen and on a phone
_WIDE_CHARS, _NARROW_CHARS = 140, 36
_LONG_NAME_CHARS = 12  # a longer name needs more space when it is turned


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A figure of a chart.

    Attributes:
        x, y: its place in percent, from the left and from the top.
        label: its tooltip.
        looks: its style, "reference" or "mean"; "" for the usual one.
    """

    x: float
    y: float
    label: str
    looks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Figures over time.

    Attributes:
        caption: how to read the chart.
        dots: the figures; if there is a `label`, a line joins them, the oldest first.
        x_ticks, y_ticks: the ticks of the axes; those of y are placed from the top.
        label: the content of the chart in a sentence, for readers who cannot see it; "" if a table
            has the same content.
        band: the top and the bottom of a shaded part, in percent; None without one.
        zero: the place of a line for no change, in percent from the top; None without one.
        unit: the unit after the figures of the y axis.
    """

    caption: str
    dots: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    label: str = ""
    band: tuple[float, float] | None = None
    zero: float | None = None
    unit: str = ""

    @property
    def turned(self) -> str:
        """Classes for the style sheet: whether the names below the axis are turned by 90 degrees.

        With `narrow`, they are turned on narrow screens only.
        """
        if not self.label or _side_by_side(self.x_ticks, _NARROW_CHARS):
            return ""
        is_long = max(len(tick.text) for tick in self.x_ticks) > _LONG_NAME_CHARS
        classes = " turned long" if is_long else " turned"
        return f"{classes} narrow" if _side_by_side(self.x_ticks, _WIDE_CHARS) else classes


def _side_by_side(ticks: Sequence[Tick], wide: int) -> bool:
    """Return whether the texts fit below an axis of `wide` characters without overlapping."""
    placed = sorted(ticks, key=lambda tick: tick.at)
    gaps = [
        (right.at - left.at) * wide / 100 - (len(left.text) + len(right.text)) / 2
        for left, right in pairwise(placed)
    ]
    return sum(len(tick.text) + 2 for tick in ticks) <= wide and min(gaps, default=1.0) >= 1.0


Plot = Forest | Strips | Chart


class PlotAxis:
    """An axis that turns numbers into percent, with a margin at both ends.

    The places of an upward axis are counted from the top, where its largest value is.
    """

    def __init__(
        self, values: Iterable[float], *, margin: float = _MARGIN, is_upward: bool = False
    ) -> None:
        self._is_upward = is_upward
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if high - low <= 0.0:
            half_width = 0.01 * max(abs(low), 1.0)
            low, high = low - half_width, high + half_width
        free = (high - low) * margin
        self.low, self.high = low - free, high + free

    def at(self, value: float) -> float:
        """Return the place of a value in percent; a value beyond the axis is put at its end."""
        share = (value - self.low) / (self.high - self.low)
        place = round(100 * min(max(share, 0.0), 1.0), 2)
        return round(100 - place, 2) if self._is_upward else place

    def ticks(self, *, scale: float = 1.0, sign: bool = False, unit: str = "") -> tuple[Tick, ...]:
        """Return round values and their places.

        A text is the value times `scale`, with a plus if `sign`, and with `unit` at the end.
        """
        low, high = self.low * scale, self.high * scale
        min_step = (high - low) / _MAX_TICKS
        power = 10.0 ** math.floor(math.log10(min_step))
        # the smallest round step; 0.999 allows for a rounding error of `min_step`
        step = next(
            factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step * 0.999
        )
        first, last = math.ceil(low / step), math.floor(high / step)
        # far from 0, neighbouring values differ only in a late digit
        largest = max(abs(low), abs(high), step)
        digits = max(4, math.floor(math.log10(largest)) - math.floor(math.log10(step)) + 1)
        values = [number * step for number in range(first, last + 1)]
        return tuple(
            Tick(at=self.at(value / scale), text=_number_text(value, digits, sign=sign) + unit)
            for value in values
        )


def _number_text(value: float, digits: int, *, sign: bool) -> str:
    """Return a number with so many significant digits, never in the form 3.9e+04."""
    if not value:
        return "0"
    text = f"{value:{'+' if sign else ''}.{digits}g}"
    if "e" not in text:
        return text
    decimal = f"{float(text):{'+' if sign else ''}.15f}".rstrip("0").rstrip(".")
    return decimal if decimal.strip("+-0.") else text  # a value below 1e-15 keeps its exponent


_SCREENED = "Screened: they rank, and prove nothing"
_FIRST_RUNS = "By first runs alone; the intervals allow for the noise of one run"
_DROPPED = "Dropped: cannot run here"


def forest(conclusion: Conclusion, *, profiles: Iterable[Profile] = ()) -> Forest | None:
    """Return the forest plot of a conclusion; None if no arm has a change to show.

    Confirmed and screened arms are separate parts on one axis, because they do not compare. Arms
    that cannot run come last, with the reason in place of a change. The settings of the arms come
    from `profiles`.
    """
    shown = [
        verdict
        for verdict in conclusion.verdicts
        if verdict.delta is not None
        and math.isfinite(verdict.delta)
        and verdict.kind is not VerdictKind.INVALID
        and not is_pending(verdict)
    ]
    if not shown:
        return None
    reference = "" if conclusion.reference is None else conclusion.reference.arm
    against = {verdict.arm: sentence(verdict.against) or reference for verdict in shown}
    # the title names the reference of most rows; any other row names its own reference
    references = [*against.values()]
    usual = max(references, key=references.count)
    changes = [0.0]
    for verdict in shown:
        changes += [*(verdict.ci95 or ()), verdict.delta or 0.0]
    if max(map(abs, changes)) < _MIN_CHANGE:
        changes += [-_MIN_CHANGE, _MIN_CHANGE]
    axis = PlotAxis(changes)
    settings, best = settings_by_arm(profiles), conclusion.winner

    def row_without_change(verdict: Verdict) -> ForestRow:
        record, compared_with = conclusion.record, against.get(verdict.arm, "")
        name = verdict.arm if record is None else record.shown_name(verdict.arm)
        if compared_with not in ("", usual):
            name = f"{name} against {compared_with}"
        arm_settings = settings.get(verdict.arm, ABSENT)
        return ForestRow(
            name=plain(name),
            what="" if arm_settings == ABSENT else arm_settings,
            n=str(verdict.n),
            verdict=words(verdict),
            looks=f"{verdict.kind.lower()}{' hollow' if verdict.unproved else ''}",
        )

    def row(verdict: Verdict) -> ForestRow:
        low, high = map(axis.at, verdict.ci95) if verdict.ci95 else (None, None)
        return dataclasses.replace(
            row_without_change(verdict),
            at=axis.at(verdict.delta or 0.0),
            low=low,
            high=high,
            delta=points(verdict.delta),
            ends=interval(verdict.ci95),
            verdict=words_beside(verdict),
            is_best=best is not None and verdict.arm == best.arm,
        )

    decided = [verdict for verdict in shown if verdict.kind in CONFIRMED]
    ranked = [verdict for verdict in shown if verdict.kind is VerdictKind.SCREENED]
    dropped = [
        dataclasses.replace(row_without_change(verdict), why=joined(verdict.reasons))
        for verdict in conclusion.verdicts
        if verdict.kind is VerdictKind.INVALID and not verdict.can_run
    ]
    decided_title = "Confirmed" if all(verdict.n > 1 for verdict in decided) else "Decided"
    ranked_title = _SCREENED if any(verdict.ci95 is None for verdict in ranked) else _FIRST_RUNS
    parts = (
        ForestPart(title=decided_title, rows=tuple(map(row, decided))),
        ForestPart(title=ranked_title, rows=tuple(map(row, ranked))),
        ForestPart(title=_DROPPED, rows=tuple(dropped)),
    )
    title = f"Change of {plain(conclusion.metric.head)}"
    return Forest(
        title=f"{title} against {_name(usual)}" if usual else title,
        caption="Dot: the change in percent. Bar: its 95 % interval. To the right is faster.",
        ticks=axis.ticks(scale=100.0, sign=True),
        zero=axis.at(0.0),
        parts=tuple(part for part in parts if part.rows),
    )


def _name(arm: str) -> str:
    """Return the id of an arm as code; a reference that is described in words is plain text."""
    return plain(arm) if " " in arm else literal(arm)


def strips(history: Sequence[TrialResult], *, reference: str = "") -> Strips | None:
    """Return the step times of every scored trial; None if no score has step times.

    Times are relative to the trial's own seconds per step, on one scale for all trials. A step
    beyond the scale is put at its edge. The trials of `reference` come first.
    """
    scored = [
        (result, result.score)
        for result in history
        if result.score is not None and result.score.timings and result.score.step_s
    ]
    if not scored:
        return None
    deviations = sorted(
        abs(seconds / (score.step_s or 1.0) - 1.0)
        for _, score in scored
        for seconds in _scored_seconds(score)
    )
    scale = deviations[int(_SHARE_ON_SCALE * (len(deviations) - 1))] if deviations else 0.0
    scale = min(max(scale, _MIN_SCALE), _MAX_SCALE)
    # the reference comes first, and other arms in the order of their first trial
    arms = list(dict.fromkeys([reference, *(result.trial.arm for result, _ in scored)]))
    scored.sort(key=lambda pair: arms.index(pair[0].trial.arm))
    max_points = max(_MAX_POINTS // min(len(scored), _MAX_STRIPS), 20)
    caption = (
        "Across: all steps of the trial. Shaded: those that are scored. Line: seconds of a step "
        f"against the trial's own seconds per step, from -{size(scale)} at the bottom to "
        f"+{size(scale)} at the top; a step beyond the scale is at its edge. Thick dots: steps "
        "that the score leaves out."
    )
    if len(scored) > _MAX_STRIPS:
        caption += f" The first {_MAX_STRIPS} of {counted(len(scored), 'trial')} are shown."
    return Strips(
        caption=caption,
        strips=tuple(
            _strip(
                result,
                score,
                scale,
                max_points=max_points,
                is_reference=result.trial.arm == reference,
            )
            for result, score in scored[:_MAX_STRIPS]
        ),
    )


def _scored_seconds(score: Score) -> Sequence[float]:
    """Return the seconds of steps in the window, evenly spaced if there are very many."""
    steps, seconds = split_pairs(score.timings)
    first, last = score.window
    inside = seconds[bisect_left(steps, first) : bisect_right(steps, last)]
    return inside[:: len(inside) // _SCALE_STEPS + 1]


def _strip(
    result: TrialResult, score: Score, scale: float, *, max_points: int, is_reference: bool
) -> Strip:
    first, last = score.timings[0][0], score.timings[-1][0]
    span = max(last - first, 1)

    def x(step_id: float) -> float:
        return round(100 * min(max((step_id - first) / span, 0.0), 1.0), 1)

    def y(seconds: float) -> float:
        # 2 is the top and 98 the bottom, so that a thick line at the edge is not cut
        deviation = (seconds / (score.step_s or 1.0) - 1.0) / scale
        if not math.isfinite(deviation):
            return 2.0
        return round(50 - 48 * min(max(deviation, -1.0), 1.0), 1)

    dropped = set(score.dropped)
    line = _thinned(score.timings, max_points)
    return Strip(
        name=plain(result.trial.arm),
        job=plain(result.job_ids[-1]) if result.job_ids else "",
        figure=f"{speed(score)}{step(score, ', ')}, steps {score.window[0]}-{score.window[1]}",
        line=" ".join(f"{x(step_id):g},{y(seconds):g}" for step_id, seconds in line),
        window=(x(score.window[0] - 0.5), x(score.window[1] + 0.5)),
        dropped=tuple(
            (x(step_id), y(seconds)) for step_id, seconds in score.timings if step_id in dropped
        ),
        is_reference=is_reference,
    )


def _thinned(timings: Sequence[tuple[int, float]], most: int) -> Iterable[tuple[int, float]]:
    """Return `most` steps or fewer: the fastest and the slowest of each group of steps.

    So no outlier is lost.
    """
    if len(timings) <= most:
        return timings
    group_size = math.ceil(len(timings) / (most / 2))
    _, seconds = split_pairs(timings)
    indices: list[int] = []
    for start in range(0, len(timings), group_size):
        group = seconds[start : start + group_size]
        indices += sorted({start + group.index(min(group)), start + group.index(max(group))})
    return [timings[index] for index in indices]


def drift(
    history: Sequence[TrialResult], *, reference: str = "", sigma: float | None = None
) -> Chart | None:
    """Return a chart of repeated trials against the mean of their arm; None without repeats.

    `sigma` is the noise of one job, which a band shows; None without a band.
    """
    # (arm, epoch) -> start, result and score of its trials
    by_arm: dict[tuple[str, int], list[tuple[float, TrialResult, Score]]] = {}
    for result in history:
        start, score = result.start_s, result.score
        if score is not None and start is not None and result.trial.protocol.is_scored:
            by_arm.setdefault((result.trial.arm, result.epoch), []).append((start, result, score))
    deviations: list[tuple[float, TrialResult, float]] = []
    for trials in by_arm.values():
        if len(trials) > 1:
            mean = fmean(score.value for _, _, score in trials)
            deviations += [
                (start, result, relative(score.value - mean)) for start, result, score in trials
            ]
    if not deviations:
        return None
    begin = min(start for start, _, _ in deviations)
    is_long = max(start for start, _, _ in deviations) - begin >= 2 * _HOUR_S
    unit, unit_s = ("h", _HOUR_S) if is_long else ("min", _MINUTE_S)
    x = PlotAxis([(start - begin) / unit_s for start, _, _ in deviations])
    band = (sigma, -sigma) if sigma else ()
    y = PlotAxis([0.0, *(deviation for _, _, deviation in deviations), *band], is_upward=True)
    dots = tuple(
        Dot(
            x=x.at((start - begin) / unit_s),
            y=y.at(deviation),
            looks="reference" if result.trial.arm == reference else "",
            label=f"{plain(result.trial.arm)}, job {plain(', '.join(result.job_ids))}: "
            f"{percent(deviation)}",
        )
        for start, result, deviation in deviations
    )
    caption = (
        "Each dot is a trial of an arm that has several, with its change in percent from the mean "
        "of the arm; above is faster. Across: time since the first of these trials began."
    )
    if sigma:
        caption += f" Band: one sigma, {fine_percent(sigma)}, the noise of one job."
    if any(dot.looks for dot in dots):
        caption += f" Filled: {literal(reference)}."
    return Chart(
        caption=caption,
        unit=" %",
        dots=dots,
        band=(y.at(sigma), y.at(-sigma)) if sigma else None,
        zero=y.at(0.0),
        x_ticks=x.ticks(unit=f" {unit}"),
        y_ticks=y.ticks(scale=100.0, sign=True),
    )
