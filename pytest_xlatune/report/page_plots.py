"""The plots of a page as positions and words: forest, path, step times, drift. Must draw nothing.

Each plot comes from a conclusion or a history of any study, and every text in it is one that the
tables have too. Positions are percent of the width or the height, so a page may draw them in any
size. `page.jinja` draws.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.pairs import CONCLUSION
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import split_pairs
from pytest_xlatune.model.result import (
    Conclusion,
    Outcome,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.rotation_score import RotationScore, is_baseline
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    duration,
    fine,
    interval,
    percent,
    points,
    significant,
    size,
)
from pytest_xlatune.report.document import Table, columns, literal, plain
from pytest_xlatune.report.language import joined, plainly
from pytest_xlatune.report.leaderboard import CONFIRMED, in_short, settings_by_arm
from pytest_xlatune.report.lines import is_pending, speed, step, words, words_beside

_TICKS = 7  # at most
_MARGIN = 0.04  # of an axis, kept free at both of its ends
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_MOST_STRIPS = 240  # a page of more would be too large to send
_MOST_POINTS = 30_000  # of all strips together
_LEAST_CHANGE = 0.005  # a forest of less would draw differences that mean nothing
_LEAST_SCALE = 0.01  # of a step time: less is noise of the printed digits
_MOST_SCALE = 1.0  # no step takes less than no time: below the bottom is nothing
_SCALED = 0.98  # share of the scored steps that the scale of the strips holds
_SCALE_STEPS = 1_000  # of a trial, at most, of which the scale is made
_LEAST_STAY_S = 1.0
_LEAST_BAR = 0.2  # percent of the width


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark of an axis: where, in percent, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """An arm of a forest plot; `at`, `low`, `high` are percent, None without such a figure.

    `what` are its settings, `why` the reason why it has no change. `looks` is the verdict's kind in
    small letters: a page gives it a colour and a shape. An arm whose settings are not known to have
    been in effect is `hollow` too.
    """

    name: str
    at: float | None
    low: float | None
    high: float | None
    delta: str
    ends: str
    n: str
    said: str
    looks: str
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
    """Change and interval of each arm on one axis; `zero` is where nothing changes.

    `head` is that of the column of names.
    """

    title: str
    caption: str
    head: str
    ticks: tuple[Tick, ...]
    zero: float
    parts: tuple[ForestPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar: where it begins, how wide it is, a colour by its `looks`, and words.

    Both figures are in the unit of the axis as they come to `bars_plot`, and percent in its plot.
    """

    at: float
    width: float
    looks: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A row of bars: its name, a variant or nothing, the bars, and a figure or nothing."""

    name: str
    bars: tuple[Bar, ...]
    what: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarsPlot:
    """Rows of bars on one axis from 0; `kinds` are the colours and what they stand for."""

    caption: str
    kinds: tuple[tuple[str, str], ...]
    rows: tuple[BarRow, ...]
    ticks: tuple[Tick, ...]
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The step times of a trial.

    Attributes:
        name, job, said: the arm, its job, its figure.
        line: the points of a polyline, `x,y` in percent.
        window: where the scored window begins and ends, in percent.
        dropped: (x, y) of the steps in the window that the score leaves out.
    """

    name: str
    job: str
    said: str
    line: str
    window: tuple[float, float]
    dropped: tuple[tuple[float, float], ...]
    is_reference: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """The step times of all trials on one relative scale."""

    caption: str
    strips: tuple[Strip, ...]


_WIDE, _NARROW = 140, 36  # characters that fit side by side below an axis: of a page, of a phone
_LONG = 12  # characters of a name that need more space where it is turned


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A figure; positions in percent, `looks` gives it a colour."""

    x: float
    y: float
    said: str
    looks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Figures over time.

    Attributes:
        caption: how to read it.
        dots: the figures; with a `label` they are joined by a line, the oldest first.
        label: its whole content in a sentence, read aloud where nothing is seen.
        band: a shaded part, from where to where.
        zero: a line where nothing changes.
        unit: behind the figures of the axis.
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
        """Whether and where the names below the axis are turned, as classes of the page."""
        if not self.label or _side_by_side(self.x_ticks, _NARROW):
            return ""
        long = " long" if max(len(tick.text) for tick in self.x_ticks) > _LONG else ""
        return f" turned{long}{' narrow' if _side_by_side(self.x_ticks, _WIDE) else ''}"


def _side_by_side(ticks: Sequence[Tick], wide: int) -> bool:
    """Whether texts fit below an axis of so many characters; neighbours may stand close."""
    placed = sorted(ticks, key=lambda tick: tick.at)
    gaps = [
        (right.at - left.at) * wide / 100 - (len(left.text) + len(right.text)) / 2
        for left, right in pairwise(placed)
    ]
    return sum(len(tick.text) + 2 for tick in ticks) <= wide and min(gaps, default=1.0) >= 1.0


Plot = Forest | BarsPlot | Strips | Chart


# part of a step's span -> its colour
PARTS = {
    "compute": "compute",
    "exposed communication": "communication",
    "exposed memory": "memory",
    "idle": "idle",
}


class PlotAxis:
    """Numbers to percent of an axis, with a margin at both ends."""

    def __init__(self, values: Iterable[float], *, margin: float = _MARGIN) -> None:
        found = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(found), max(found)
        if high - low <= 0.0:
            around = 0.01 * max(abs(low), 1.0)
            low, high = low - around, high + around
        wide = (high - low) * margin
        self.low, self.high = low - wide, high + wide

    def at(self, value: float) -> float:
        """Return the place of a value, in percent; one beyond the axis stands at its end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def ticks(self, *, scale: float = 1.0, sign: bool = False, unit: str = "") -> tuple[Tick, ...]:
        """Return round values and their places; texts are times `scale`, with `unit` behind."""
        low, high = self.low * scale, self.high * scale
        rough = (high - low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
        first, last = math.ceil(low / step), math.floor(high / step)
        # neighbours far from 0 differ in a late digit
        most = max(abs(low), abs(high), step)
        digits = max(4, math.floor(math.log10(most)) - math.floor(math.log10(step)) + 1)
        return tuple(
            Tick(at=self.at(at * step / scale), text=_digits(at * step, digits, sign=sign) + unit)
            for at in range(first, last + 1)
        )


def _digits(value: float, digits: int, *, sign: bool) -> str:
    """Return a number of so many digits, never as 3.9e+04."""
    if not value:
        return "0"
    text = f"{value:{'+' if sign else ''}.{digits}g}"
    if "e" not in text:
        return text
    short = f"{float(text):{'+' if sign else ''}.15f}".rstrip("0").rstrip(".")
    return short if short.strip("+-0.") else text


_SCREENED = "Screened: they rank, and prove nothing"
_FIRST_RUNS = "By first runs alone, with the noise of a run"
_NOT_RUN = "Not run: compiling decided them"
_DROPPED = "Dropped: cannot run here"


def forest(
    conclusion: Conclusion,
    *,
    title: str = "",
    profiles: Iterable[Profile] = (),
    is_short: bool = False,
) -> Forest | None:
    """Return the forest plot of a conclusion; None where no arm has a change to show.

    Confirmed arms and screened ones are parts of their own on one axis: they do not compare. Arms
    that cannot run come last, with the reason in the place of a change. `profiles` say the settings
    of their arms; `is_short` keeps the top and the bottom of the screened ones alone.
    """
    shown = [
        each
        for each in conclusion.verdicts
        if each.delta is not None
        and math.isfinite(each.delta)
        and each.kind is not VerdictKind.INVALID
        and not is_pending(each)
    ]
    # The conclusion of a network study repeats a node's row, unless it accuses a link.
    of_arms = {(each.delta, each.ci95) for each in shown if each.arm != CONCLUSION}
    shown = [
        each
        for each in shown
        if each.arm != CONCLUSION
        or (each.kind in CONFIRMED and (each.delta, each.ci95) not in of_arms)
    ]
    reference = "" if conclusion.reference is None else conclusion.reference.arm
    held = {each.arm: sentence(each.against) or reference for each in shown}
    # the title says against what most rows are; another row says it itself
    usual = max([*held.values(), ""], key=[*held.values()].count)
    told = f" against {_name(usual)}" if usual else ""

    def named(verdict: Verdict) -> str:
        record = conclusion.record
        name = verdict.arm if record is None else record.shown_name(verdict.arm)
        own = held[verdict.arm]
        return name if own in ("", usual) else f"{name} against {own}"

    best = conclusion.winner
    decided = [(named(each), each) for each in shown if each.kind in CONFIRMED]
    ranked = [each for each in shown if each.kind is VerdictKind.SCREENED]
    of_ranked = _SCREENED if any(each.ci95 is None for each in ranked) else _FIRST_RUNS
    ranked, left_out = in_short(ranked) if is_short else (ranked, 0)
    more = f"; {counted(left_out, 'more profile')} between these" if left_out else ""
    parts = {
        "Confirmed" if all(each.n > 1 for _, each in decided) else "Decided": decided,
        f"{of_ranked}{more}": [(named(each), each) for each in ranked],
    }
    dropped = [
        each
        for each in conclusion.verdicts
        if each.kind is VerdictKind.INVALID and not each.can_run
    ]
    return _forest(
        parts,
        dropped=dropped,
        settings=settings_by_arm(profiles),
        title=title or f"Change of {plain(conclusion.metric.head)}{told}",
        caption="Dot: the change in percent. Bar: its 95 % interval. To the right is faster.",
        best="" if best is None else best.arm,
    )


def bars_plot(
    rows: Sequence[BarRow],
    *,
    caption: str,
    kinds: Iterable[tuple[str, str]],
    unit: str = "ms",
    least: float = 0.0,
) -> BarsPlot | None:
    """Return rows of bars on one axis; None where none has a length.

    No bar is drawn narrower than `least` percent.
    """
    most = max((bar.at + bar.width for row in rows for bar in row.bars), default=0.0)
    if most <= 0:
        return None
    axis = PlotAxis((0.0, most), margin=0.0)

    def placed(bar: Bar) -> Bar:
        width = max(round(100 * bar.width / most, 2), least)
        return replace(bar, at=axis.at(bar.at), width=width, said=plain(bar.said))

    return BarsPlot(
        caption=caption,
        kinds=tuple(kinds),
        rows=tuple(
            replace(
                row,
                name=plain(row.name),
                what=plain(row.what),
                bars=tuple(map(placed, row.bars)),
            )
            for row in rows
        ),
        ticks=axis.ticks(),
        unit=unit,
    )


def _name(arm: str) -> str:
    """Return the id of an arm as code, the words for another reference as they are."""
    return plain(arm) if " " in arm else literal(arm)


def forest_of_cells(
    several: Sequence[tuple[str, Mapping[str, Verdict], str]],
) -> Forest | None:
    """Return the changes by the same settings in several cells, on one axis.

    `several` has of each its settings, the verdicts by the cell's name, and a word on its sign.
    """
    return _forest(
        {
            f"{settings}: {said}": [
                (name, verdict)
                for name, verdict in by_cell.items()
                if verdict.delta is not None and math.isfinite(verdict.delta)
            ]
            for settings, by_cell, said in several
        },
        title="",
        caption="One part a setting, one row a cell. A single run, an open dot, proves nothing.",
        best="",
        head="Cell",
    )


def _forest(
    parts: Mapping[str, Sequence[tuple[str, Verdict]]],
    *,
    title: str,
    caption: str,
    best: str,
    head: str = "Arm",
    dropped: Sequence[Verdict] = (),
    settings: Mapping[str, str] | None = None,
) -> Forest | None:
    every = [verdict for rows in parts.values() for _, verdict in rows]
    told = settings or {}
    if not every:
        return None
    ends = [end for verdict in every for end in (*(verdict.ci95 or ()), verdict.delta or 0.0)]
    is_small = max(map(abs, ends)) < _LEAST_CHANGE
    axis = PlotAxis((0.0, *ends, *((-_LEAST_CHANGE, _LEAST_CHANGE) if is_small else ())))
    return Forest(
        title=title,
        caption=caption,
        head=head,
        ticks=axis.ticks(scale=100.0, sign=True),
        zero=axis.at(0.0),
        parts=tuple(
            ForestPart(
                title=name,
                rows=tuple(
                    _forest_row(label, verdict, axis, best=best, what=told.get(verdict.arm, ""))
                    for label, verdict in rows
                ),
            )
            for name, rows in (*parts.items(), *_without(dropped))
            if rows
        ),
    )


def _without(dropped: Sequence[Verdict]) -> Iterator[tuple[str, list[tuple[str, Verdict]]]]:
    """Yield the parts of arms without a change, by why they have none."""
    yield _NOT_RUN, [(verdict.arm, verdict) for verdict in dropped if verdict.not_run is not None]
    yield _DROPPED, [(verdict.arm, verdict) for verdict in dropped if verdict.not_run is None]


def _forest_row(name: str, verdict: Verdict, axis: PlotAxis, *, best: str, what: str) -> ForestRow:
    what = "" if what == ABSENT else what
    if verdict.kind is VerdictKind.INVALID:
        return ForestRow(
            name=plain(name),
            at=None,
            low=None,
            high=None,
            delta=ABSENT,
            ends=ABSENT,
            n=str(verdict.n),
            said=words(verdict),
            looks="invalid",
            what=what,
            why=joined(verdict.reasons),
        )
    low, high = verdict.ci95 or (None, None)
    return ForestRow(
        what=what,
        name=plain(name),
        at=axis.at(verdict.delta or 0.0),
        low=None if low is None else axis.at(low),
        high=None if high is None else axis.at(high),
        delta=points(verdict.delta),
        ends=interval(verdict.ci95),
        n=str(verdict.n),
        said=words_beside(verdict),
        looks=f"{verdict.kind.lower()}{' hollow' if verdict.unproved else ''}",
        is_best=bool(best) and verdict.arm == best,
    )


_LOOKS = {
    TrialStatus.MEASURED: "measured",
    TrialStatus.DROPPED: "dropped",
    TrialStatus.UNMEASURED: "unmeasured",
}


def path(history: Sequence[TrialResult], *, reference: str = "") -> BarsPlot | None:
    """Return the jobs of a history over time, a row for each stage; None where none has a time."""
    timed = [
        (result, start, end)
        for result in _in_time(history)
        if result.outcome is not None
        and (start := result.outcome.start_s) is not None
        and (end := result.outcome.end_s) is not None
    ]
    if not timed:
        return None
    begin = min(start for _, start, _ in timed)
    unit, unit_s = _unit(max(end for _, _, end in timed) - begin)
    bars: dict[str, list[Bar]] = {}
    for result, start, end in timed:
        looks = _LOOKS.get(result.status, "running")
        if result.trial.arm == reference and looks == "measured":
            looks = "reference"
        bar = Bar(
            at=(start - begin) / unit_s,
            width=max(end - start, _LEAST_STAY_S) / unit_s,
            looks=looks,
            said=f"{result.trial.arm}, job {', '.join(result.job_ids)}, {duration(end - start)}: "
            f"{_came(result)}",
        )
        bars.setdefault(_stage(result), []).append(bar)
    seen = dict.fromkeys(bar.looks for of_stage in bars.values() for bar in of_stage)
    return bars_plot(
        [BarRow(name="", what=name, bars=tuple(found)) for name, found in bars.items()],
        caption="Across: time since the first job began. Each bar is a trial's last attempt.",
        kinds=[(looks, looks) for looks in seen],
        unit=unit,
        least=_LEAST_BAR,
    )


def _unit(whole_s: float) -> tuple[str, float]:
    """Return the unit of a time axis that is this long, and its seconds."""
    return ("h", _HOUR_S) if whole_s >= 2 * _HOUR_S else ("min", _MINUTE_S)


def _in_time(history: Sequence[TrialResult]) -> list[TrialResult]:
    return sorted(history, key=lambda each: _start(each.outcome) or math.inf)


def _start(outcome: Outcome | None) -> float | None:
    return outcome.start_s if outcome is not None else None


def _stage(result: TrialResult) -> str:
    trial = result.trial
    return f"{trial.stage} {trial.block}" if trial.block else trial.stage


def _came(result: TrialResult) -> str:
    if result.score is not None:
        return speed(result.score) + step(result.score, ", ")
    return plainly(result.reason) or str(result.status)


def stages(history: Sequence[TrialResult]) -> Table:
    """Return what each stage took and which arms ended in it."""
    rows = []
    for name in dict.fromkeys(_stage(result) for result in _in_time(history)):
        own = [result for result in history if _stage(result) == name]
        ended = dict.fromkeys(
            f"{literal(result.trial.arm)} ({plainly(result.reason) or result.status})"
            for result in own
            if result.status in (TrialStatus.DROPPED, TrialStatus.UNMEASURED)
        )
        rows.append(
            (
                plain(name),
                str(len({result.trial.arm for result in own})),
                str(sum(len(result.job_ids) for result in own)),
                _node_hours(own),
                "; ".join(ended) or ABSENT,
            )
        )
    jobs = sum(len(result.job_ids) for result in history)
    arms = str(len({result.trial.arm for result in history}))
    rows.append(("all", arms, str(jobs), _node_hours(history), ABSENT))
    titles = columns("Stage", ">arms", ">jobs", ">node-hours of last attempts", "~no figure")
    return Table(columns=titles, rows=tuple(rows))


def _node_hours(history: Iterable[TrialResult]) -> str:
    found = [
        max(result.outcome.end_s - result.outcome.start_s, 0.0) * max(len(result.outcome.nodes), 1)
        for result in history
        if result.outcome is not None
        and result.outcome.start_s is not None
        and result.outcome.end_s is not None
    ]
    return significant(sum(found) / _HOUR_S) if found else ABSENT


def strips(history: Sequence[TrialResult], *, reference: str = "") -> Strips | None:
    """Return the step times of every scored trial; None where no score has any.

    Times are relative to the trial's own seconds per step, on one scale for all; a step beyond the
    scale stands at its edge.
    """
    found = [
        (result, result.score)
        for result in history
        if result.score is not None and result.score.timings and result.score.step_s
    ]
    if not found:
        return None
    off = sorted(
        abs(seconds / (score.step_s or 1.0) - 1.0)
        for _, score in found
        for seconds in _scored_seconds(score)
    )
    scale = off[int(_SCALED * (len(off) - 1))] if off else 0.0
    scale = min(max(scale, _LEAST_SCALE), _MOST_SCALE)
    # the reference first, then in the order of the first trial of each
    arms = dict.fromkeys([reference, *(result.trial.arm for result, _ in found)])
    order = {arm: at for at, arm in enumerate(arms)}
    found.sort(key=lambda pair: order[pair[0].trial.arm])
    most = max(_MOST_POINTS // min(len(found), _MOST_STRIPS), 20)
    caption = (
        "Across: all steps of the trial. Shaded: those that are scored. Line: seconds of a step "
        f"against the trial's own seconds per step, from -{size(scale)} at the bottom to "
        f"+{size(scale)} at the top; a step beyond stands at the edge. Thick dots: steps that the "
        "score leaves out."
    )
    if len(found) > _MOST_STRIPS:
        caption += f" The first {_MOST_STRIPS} of {counted(len(found), 'trial')} are shown."
    return Strips(
        caption=caption,
        strips=tuple(
            _strip(result, score, scale, most=most, is_reference=result.trial.arm == reference)
            for result, score in found[:_MOST_STRIPS]
        ),
    )


def _scored_seconds(score: Score) -> Sequence[float]:
    """Return the seconds of the steps of the window, at most some hundreds that lie evenly."""
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
        said=f"{speed(score)}{step(score, ', ')}, steps {score.window[0]}-{score.window[1]}",
        line=" ".join(f"{x(at):g},{y(of):g}" for at, of in _thinned(score.timings, most)),
        window=(x(score.window[0] - 0.5), x(score.window[1] + 0.5)),
        dropped=tuple((x(at), y(of)) for at, of in score.timings if at in dropped)
        if dropped
        else (),
        is_reference=is_reference,
    )


def turn_strips(history: Sequence[TrialResult]) -> Strips | None:
    """Return the turns of each program of each rotation as small multiples; None without any.

    Times are relative to the baseline of the same rotation, on one scale for all, so that programs
    that differ lie apart in every rotation, and a rotation's drift shows in all of its programs.
    """
    found = [
        (result, score, name)
        for result in history
        if result.rotation is not None and (score := result.rotation.score) is not None
        for name in dict.fromkeys(turn.program for turn in score.turns)
    ]
    off = sorted(
        abs(turn.log_step_s + score.level)
        for score in {id(score): score for _, score, _ in found}.values()
        for turn in score.turns
    )
    if not off:
        return None
    scale = min(max(off[int(_SCALED * (len(off) - 1))], _LEAST_SCALE), _MOST_SCALE)
    order = list(dict.fromkeys(name for _, _, name in found))
    order.sort(key=lambda name: not is_baseline(name))
    found.sort(key=lambda each: order.index(each[2]))
    caption = (
        "A strip is a program in one rotation, a point a turn. Across: steps of the rotation. "
        f"Line: seconds of a step against the baseline's, from -{size(scale)} at the bottom to "
        f"+{size(scale)} at the top; a turn beyond stands at the edge."
    )
    if len(found) > _MOST_STRIPS:
        caption += f" The first {_MOST_STRIPS} of {len(found)} are shown."
    return Strips(
        caption=caption,
        strips=tuple(
            _turn_strip(result, score, name, scale) for result, score, name in found[:_MOST_STRIPS]
        ),
    )


def _turn_strip(result: TrialResult, score: RotationScore, name: str, scale: float) -> Strip:
    last = max(score.turns[-1].first_step, 1)
    own = [turn for turn in score.turns if turn.program == name]
    change = score.of(name)
    points = (
        (
            round(100 * turn.first_step / last, 1),
            round(50 - 48 * min(max((turn.log_step_s + score.level) / scale, -1.0), 1.0), 1),
        )
        for turn in own
    )
    told = percent(relative(change.change)) if change is not None else ABSENT
    return Strip(
        name=plain(name),
        job=plain(result.job_ids[-1]) if result.job_ids else "",
        said=f"{told}, {counted(len(own), 'turn')}",
        line=" ".join(f"{x:g},{y:g}" for x, y in points),
        window=(0.0, 100.0),
        dropped=(),
        is_reference=is_baseline(name),
    )


def _thinned(timings: Sequence[tuple[int, float]], most: int) -> Iterable[tuple[int, float]]:
    """Keep the least and the greatest of each group, so that no outlier is lost."""
    if len(timings) <= most:
        return timings
    each = math.ceil(len(timings) / (most / 2))
    _, seconds = split_pairs(timings)
    kept: list[int] = []
    for at in range(0, len(timings), each):
        took = seconds[at : at + each]
        kept += sorted({at + took.index(min(took)), at + took.index(max(took))})
    return [timings[at] for at in kept]


def drift(
    history: Sequence[TrialResult], *, reference: str = "", sigma: float | None = None
) -> Chart | None:
    """Return each repeated trial against the mean of its arm, over time; None without repeats."""
    by_arm: dict[tuple[str, int], list[tuple[float, TrialResult, Score]]] = {}
    for result in history:
        start = _start(result.outcome)
        if result.score is not None and start is not None and result.trial.protocol.is_scored:
            by_arm.setdefault((result.trial.arm, result.epoch), []).append(
                (start, result, result.score)
            )
    offs = [
        (start, result, relative(score.value - fmean(one.value for _, _, one in runs)))
        for runs in by_arm.values()
        if len(runs) > 1
        for start, result, score in runs
    ]
    if not offs:
        return None
    begin = min(start for start, _, _ in offs)
    unit, unit_s = _unit(max(start for start, _, _ in offs) - begin)
    x = PlotAxis([(start - begin) / unit_s for start, _, _ in offs])
    y = PlotAxis([0.0, *(off for _, _, off in offs), *((sigma, -sigma) if sigma else ())])
    dots = tuple(
        Dot(
            x=x.at((start - begin) / unit_s),
            y=round(100 - y.at(off), 2),
            looks="reference" if result.trial.arm == reference else "",
            said=(
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
    if reference:
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
