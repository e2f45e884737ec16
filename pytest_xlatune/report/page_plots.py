"""The plots of a page as positions and words: forest, path, step times, drift.

This module must draw nothing; `page.jinja` draws. Each plot comes from a conclusion or a history of
any study, and the tables have all of its texts too. Positions are in percent of the width or the
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
    fine,
    interval,
    percent,
    points,
    size,
)
from pytest_xlatune.report.document import literal, plain
from pytest_xlatune.report.language import joined
from pytest_xlatune.report.leaderboard import CONFIRMED, settings_by_arm
from pytest_xlatune.report.lines import is_pending, speed, step, words, words_beside

_TICKS = 7  # ticks of an axis, at most
_MARGIN = 0.04  # share of an axis that is kept free at each of its ends
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_MOST_STRIPS = 240  # strips on a page, at most; more would make it too large to send
_MOST_POINTS = 30_000  # points of all strips together
# the smallest width of a forest's axis; a smaller one would enlarge meaningless differences
_LEAST_CHANGE = 0.005
# the smallest scale of step times; below it, changes are noise of the printed digits
_LEAST_SCALE = 0.01
_MOST_SCALE = 1.0  # the largest scale: no step takes less than no time
_SCALED = 0.98  # share of the scored steps that fit on the scale of the strips
_SCALE_STEPS = 1_000  # steps of a trial from which the scale is computed, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A tick of an axis: its place in percent, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """An arm of a forest plot; `at`, `low` and `high` are in percent, None if there is no figure.

    `what` has its settings, and `why` the reason for a missing change. `looks` is the verdict's
    kind in small letters, to which a page gives a colour and a shape. An arm whose settings are not
    known to have been in effect is also `hollow`.
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
        dropped: (x, y) of the steps in the window that the score leaves out.
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


_WIDE, _NARROW = 140, 36  # characters that fit side by side below an axis, on a page and on a phone
_LONG = 12  # characters of a name from which on it needs more space when turned


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A figure; positions are in percent, and `looks` gives it a colour."""

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
        label: the content of the chart in a sentence, for readers who cannot see it.
        band: the start and the end of a shaded part.
        zero: the place of a line for no change.
        unit: the unit after the figures of the axis.
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
        """Classes of the page that say whether and where the names below the axis are turned."""
        if not self.label or _side_by_side(self.x_ticks, _NARROW):
            return ""
        long = " long" if max(len(tick.text) for tick in self.x_ticks) > _LONG else ""
        return f" turned{long}{' narrow' if _side_by_side(self.x_ticks, _WIDE) else ''}"


def _side_by_side(ticks: Sequence[Tick], wide: int) -> bool:
    """Return whether texts fit below an axis of `wide` characters; neighbours may be close."""
    placed = sorted(ticks, key=lambda tick: tick.at)
    gaps = [
        (right.at - left.at) * wide / 100 - (len(left.text) + len(right.text)) / 2
        for left, right in pairwise(placed)
    ]
    return sum(len(tick.text) + 2 for tick in ticks) <= wide and min(gaps, default=1.0) >= 1.0


Plot = Forest | Strips | Chart


class PlotAxis:
    """An axis that turns numbers into percent, with a margin at both ends."""

    def __init__(self, values: Iterable[float], *, margin: float = _MARGIN) -> None:
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if high - low <= 0.0:
            around = 0.01 * max(abs(low), 1.0)
            low, high = low - around, high + around
        wide = (high - low) * margin
        self.low, self.high = low - wide, high + wide

    def at(self, value: float) -> float:
        """Return the place of a value in percent; a value beyond the axis is put at its end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def ticks(self, *, scale: float = 1.0, sign: bool = False, unit: str = "") -> tuple[Tick, ...]:
        """Return round values and their places; texts are times `scale`, with `unit` at the end."""
        low, high = self.low * scale, self.high * scale
        rough = (high - low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first, last = math.ceil(low / step), math.floor(high / step)
        # neighbours that are far from 0 differ in a late digit
        most = max(abs(low), abs(high), step)
        digits = max(4, math.floor(math.log10(most)) - math.floor(math.log10(step)) + 1)
        return tuple(
            Tick(at=self.at(at * step / scale), text=_digits(at * step, digits, sign=sign) + unit)
            for at in range(first, last + 1)
        )


def _digits(value: float, digits: int, *, sign: bool) -> str:
    """Return a number with so many digits, never as 3.9e+04."""
    if not value:
        return "0"
    text = f"{value:{'+' if sign else ''}.{digits}g}"
    if "e" not in text:
        return text
    short = f"{float(text):{'+' if sign else ''}.15f}".rstrip("0").rstrip(".")
    return short if short.strip("+-0.") else text


_SCREENED = "Screened: they rank, and prove nothing"
_FIRST_RUNS = "By first runs alone, with the noise of a run"
_DROPPED = "Dropped: cannot run here"


def forest(conclusion: Conclusion, *, profiles: Iterable[Profile] = ()) -> Forest | None:
    """Return the forest plot of a conclusion; None if no arm has a change to show.

    Confirmed and screened arms are separate parts on one axis, since they do not compare. Arms that
    cannot run come last, with the reason in place of a change. `profiles` have the settings.
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
    # the title names the reference of most rows; a row with another reference names it itself
    usual = max([*against.values(), ""], key=[*against.values()].count)
    ends = [end for verdict in shown for end in (*(verdict.ci95 or ()), verdict.delta or 0.0)]
    is_small = max(map(abs, ends)) < _LEAST_CHANGE
    axis = PlotAxis((0.0, *ends, *((-_LEAST_CHANGE, _LEAST_CHANGE) if is_small else ())))
    settings, best = settings_by_arm(profiles), conclusion.winner

    def named(verdict: Verdict) -> ForestRow:
        """Return the row of an arm without its change."""
        record, compared_with = conclusion.record, against.get(verdict.arm, "")
        name = verdict.arm if record is None else record.shown_name(verdict.arm)
        return ForestRow(
            name=plain(name if compared_with in ("", usual) else f"{name} against {compared_with}"),
            what=settings.get(verdict.arm, "").removeprefix(ABSENT),
            n=str(verdict.n),
            verdict=words(verdict),
            looks=f"{verdict.kind.lower()}{' hollow' if verdict.unproved else ''}",
        )

    def row(verdict: Verdict) -> ForestRow:
        low, high = map(axis.at, verdict.ci95) if verdict.ci95 else (None, None)
        return dataclasses.replace(
            named(verdict),
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
        dataclasses.replace(named(verdict), why=joined(verdict.reasons))
        for verdict in conclusion.verdicts
        if verdict.kind is VerdictKind.INVALID and not verdict.can_run
    ]
    parts = (
        (
            "Confirmed" if all(verdict.n > 1 for verdict in decided) else "Decided",
            map(row, decided),
        ),
        (
            _SCREENED if any(verdict.ci95 is None for verdict in ranked) else _FIRST_RUNS,
            map(row, ranked),
        ),
        (_DROPPED, dropped),
    )
    return Forest(
        title=f"Change of {plain(conclusion.metric.head)}"
        + (f" against {_name(usual)}" if usual else ""),
        caption="Dot: the change in percent. Bar: its 95 % interval. To the right is faster.",
        ticks=axis.ticks(scale=100.0, sign=True),
        zero=axis.at(0.0),
        parts=tuple(
            ForestPart(title=title, rows=rows)
            for title, rows in ((title, tuple(rows)) for title, rows in parts)
            if rows
        ),
    )


def _name(arm: str) -> str:
    """Return the id of an arm as code; the words for another reference are returned unchanged."""
    return plain(arm) if " " in arm else literal(arm)


def strips(history: Sequence[TrialResult], *, reference: str = "") -> Strips | None:
    """Return the step times of every scored trial; None if no score has any.

    Times are relative to the trial's own seconds per step, on one scale for all trials. A step
    beyond the scale is put at its edge.
    """
    scored = [
        (result, result.score)
        for result in history
        if result.score is not None and result.score.timings and result.score.step_s
    ]
    if not scored:
        return None
    off = sorted(
        abs(seconds / (score.step_s or 1.0) - 1.0)
        for _, score in scored
        for seconds in _scored_seconds(score)
    )
    scale = off[int(_SCALED * (len(off) - 1))] if off else 0.0
    scale = min(max(scale, _LEAST_SCALE), _MOST_SCALE)
    # the reference comes first, and other arms in the order of their first trial
    arms = dict.fromkeys([reference, *(result.trial.arm for result, _ in scored)])
    order = {arm: at for at, arm in enumerate(arms)}
    scored.sort(key=lambda pair: order[pair[0].trial.arm])
    most = max(_MOST_POINTS // min(len(scored), _MOST_STRIPS), 20)
    caption = (
        "Across: all steps of the trial. Shaded: those that are scored. Line: seconds of a step "
        f"against the trial's own seconds per step, from -{size(scale)} at the bottom to "
        f"+{size(scale)} at the top; a step beyond stands at the edge. Thick dots: steps that the "
        "score leaves out."
    )
    if len(scored) > _MOST_STRIPS:
        caption += f" The first {_MOST_STRIPS} of {counted(len(scored), 'trial')} are shown."
    return Strips(
        caption=caption,
        strips=tuple(
            _strip(result, score, scale, most=most, is_reference=result.trial.arm == reference)
            for result, score in scored[:_MOST_STRIPS]
        ),
    )


def _scored_seconds(score: Score) -> Sequence[float]:
    """Return the seconds of the steps in the window, some hundred evenly spaced ones at most."""
    steps, seconds = split_pairs(score.timings)
    first, last = score.window
    inside = seconds[bisect_left(steps, first) : bisect_right(steps, last)]
    return inside[:: len(inside) // _SCALE_STEPS + 1]


def _strip(
    result: TrialResult, score: Score, scale: float, *, most: int, is_reference: bool
) -> Strip:
    first, last = score.timings[0][0], score.timings[-1][0]
    wide = max(last - first, 1)

    def x(number: float) -> float:
        return round(100 * min(max((number - first) / wide, 0.0), 1.0), 1)

    def y(seconds: float) -> float:
        off = (seconds / (score.step_s or 1.0) - 1.0) / scale
        return round(50 - 48 * min(max(off, -1.0), 1.0), 1) if math.isfinite(off) else 2.0

    dropped = set(score.dropped)
    return Strip(
        name=plain(result.trial.arm),
        job=plain(result.job_ids[-1]) if result.job_ids else "",
        figure=f"{speed(score)}{step(score, ', ')}, steps {score.window[0]}-{score.window[1]}",
        line=" ".join(f"{x(at):g},{y(seconds):g}" for at, seconds in _thinned(score.timings, most)),
        window=(x(score.window[0] - 0.5), x(score.window[1] + 0.5)),
        dropped=tuple((x(at), y(seconds)) for at, seconds in score.timings if at in dropped)
        if dropped
        else (),
        is_reference=is_reference,
    )


def _thinned(timings: Sequence[tuple[int, float]], most: int) -> Iterable[tuple[int, float]]:
    """Yield the least and the greatest of each group of steps, so that no outlier is lost."""
    if len(timings) <= most:
        return timings
    group = math.ceil(len(timings) / (most / 2))
    _, seconds = split_pairs(timings)
    kept: list[int] = []
    for at in range(0, len(timings), group):
        took = seconds[at : at + group]
        kept += sorted({at + took.index(min(took)), at + took.index(max(took))})
    return [timings[at] for at in kept]


def drift(
    history: Sequence[TrialResult], *, reference: str = "", sigma: float | None = None
) -> Chart | None:
    """Return a chart of repeated trials against the mean of their arm; None without repeats."""
    by_arm: dict[tuple[str, int], list[tuple[float, TrialResult, Score]]] = {}
    for result in history:
        start, score = result.start_s, result.score
        if score is not None and start is not None and result.trial.protocol.is_scored:
            by_arm.setdefault((result.trial.arm, result.epoch), []).append((start, result, score))
    offs = [
        (start, result, relative(score.value - fmean(one.value for _, _, one in runs)))
        for runs in by_arm.values()
        if len(runs) > 1
        for start, result, score in runs
    ]
    if not offs:
        return None
    begin = min(start for start, _, _ in offs)
    is_long = max(start for start, _, _ in offs) - begin >= 2 * _HOUR_S
    unit, unit_s = ("h", _HOUR_S) if is_long else ("min", _MINUTE_S)
    x = PlotAxis([(start - begin) / unit_s for start, _, _ in offs])
    y = PlotAxis([0.0, *(off for _, _, off in offs), *((sigma, -sigma) if sigma else ())])
    dots = tuple(
        Dot(
            x=x.at((start - begin) / unit_s),
            y=round(100 - y.at(off), 2),
            looks="reference" if result.trial.arm == reference else "",
            label=(
                f"{plain(result.trial.arm)}, job {plain(', '.join(result.job_ids))}: {percent(off)}"
            ),
        )
        for start, result, off in offs
    )
    caption = (
        "Each dot is a trial of an arm with several, in percent of the mean of that arm; above is "
        "faster. Across: time since the first of them began."
    )
    if sigma:
        caption += f" Band: one sigma, {fine(sigma)}, the noise of one job."
    if any(dot.looks for dot in dots):
        caption += f" Filled: {literal(reference)}."
    return Chart(
        caption=caption,
        unit=" %",
        dots=dots,
        band=(round(100 - y.at(sigma), 2), round(100 - y.at(-sigma), 2)) if sigma else None,
        zero=round(100 - y.at(0.0), 2),
        x_ticks=x.ticks(unit=f" {unit}"),
        y_ticks=tuple(
            Tick(at=round(100 - tick.at, 2), text=tick.text)
            for tick in y.ticks(scale=100.0, sign=True)
        ),
    )
