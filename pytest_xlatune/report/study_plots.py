"""The plots of studies of cells, as positions and words: curves, strips, a matrix.

    batch_curve(subject, ...)    node_strip(subject)    pair_matrix(pairs, ...)
    commit_series(subject, ...)  course_plot(figures, ...)    cells_plot(studies)

Each is None where nothing was measured. Figures are those of the conclusion, the scores, and the
values that the document of a study takes from its own record; `page.jinja` draws. Must draw nothing
itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, median

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.pairs import PairFound
from pytest_xlatune.model.result import Score, TrialResult, Verdict, relative
from pytest_xlatune.model.text import ABSENT, fine, percent, points, significant
from pytest_xlatune.report import Subject
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.lines import speed, words
from pytest_xlatune.report.page_plots import Bar, PathPlot, PlotAxis, Tick

_MOST_NAMES = 12  # of an axis: more are told by their titles and the table
_MOST_NODES = 24  # of a matrix
_LEAST_CHANCE = 0.001
_WIDE, _NARROW = 140, 36  # characters that fit side by side below an axis: of a page, of a phone
_LONG = 12  # characters of a name that need more space where it is turned


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run, or the mean of an arm; positions in percent, `looks` a class of the page."""

    x: float
    y: float
    looks: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place of the axis across with a text; `is_bad` gives it a colour."""

    at: float
    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """A bar from the bottom: how likely this place is the one that is sought."""

    x: float
    height: float
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPlot:
    """Runs and means along an axis of values, nodes or commits.

    Attributes:
        caption: how to read it.
        label: its whole content in a sentence, read aloud where nothing is seen.
        points: runs, then means.
        line: through the means, `x,y` in percent; "" without one.
        bands: (top, height) in percent, the widest first.
        marks, chances: places, and bars from the bottom.
        zero: where nothing changes; None without such a place.
    """

    caption: str
    label: str
    points: tuple[Point, ...]
    line: tuple[tuple[float, float], ...] = ()
    bands: tuple[tuple[float, float], ...] = ()
    marks: tuple[Mark, ...] = ()
    chances: tuple[Chance, ...] = ()
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    unit: str = ""
    zero: float | None = None

    @property
    def turned(self) -> str:
        """Whether and where the names below the axis are turned, as classes of the page."""
        texts = [each.text for each in self.x_ticks]
        if _side_by_side(self.x_ticks, _NARROW):
            return ""
        long = " long" if max(map(len, texts)) > _LONG else ""
        return f" turned{long}{' narrow' if _side_by_side(self.x_ticks, _WIDE) else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """A pair in a matrix: `looks` is empty, even, low, lower or lowest."""

    looks: str
    text: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Every node against every other; a row has a square for each name."""

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[Square, ...], ...]


def _side_by_side(ticks: Sequence[Tick], wide: int) -> bool:
    """Whether texts fit below an axis of so many characters; neighbours may stand close."""
    placed = sorted(ticks, key=lambda each: each.at)
    gaps = [
        (right.at - left.at) * wide / 100 - (len(left.text) + len(right.text)) / 2
        for left, right in itertools.pairwise(placed)
    ]
    return sum(len(each.text) + 2 for each in ticks) <= wide and min(gaps, default=1.0) >= 1.0


def _turned(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    return tuple(Tick(at=_up(each.at), text=each.text) for each in ticks)


def _up(at: float) -> float:
    """Turn a share of an axis into a place below the top."""
    return round(100 - at, 2)


def _scored(subject: Subject) -> list[tuple[TrialResult, Score]]:
    return [
        (each, each.score)
        for each in subject.history
        if each.score is not None and each.trial.protocol.is_scored
    ]


def _run(result: TrialResult, score: Score, change: float | None = None) -> str:
    jobs = plain(", ".join(result.job_ids)) or ABSENT
    told = speed(score) if change is None else percent(change)
    return f"{plain(result.trial.arm)}, job {jobs}: {told}"


def values_in(subject: Subject, key: str) -> dict[str, str]:
    """Return arm -> the value of a key in its cell, of the arms that were run or compiled."""
    cells = {each.digest: each for each in subject.cells}
    found: dict[str, str] = {}
    for each in subject.history:
        cell = cells.get(each.trial.cell_digest)
        if cell is not None:
            sizes = {name: getattr(cell, name) for name in _OF_CELL}
            shape = {name: f"{size:g}" for name, size in sizes.items() if size is not None}
            own = {**cell.deployed, **cell.overrides, **shape}
            found[each.trial.arm] = own.get(key, each.trial.arm)
    return found


_OF_CELL = ("per_device_batch_size", "max_target_length")


def batch_curve(
    subject: Subject, *, key: str, best: str, unfit: str, second: str = ""
) -> RunsPlot | None:
    """Return TGS over the values of a key that were compared, with the ceiling of memory.

    Values that are numbers above 0 stand on a logarithmic axis, others side by side. `best` is the
    recommended arm, `unfit` the smallest value that did not fit; "" is none. With a `second` key a
    line joins the values that go with the same value of it as the best one.
    """
    value_of = values_in(subject, key)
    with_of = values_in(subject, second) if second else {}
    name_of = {arm: f"{each} {with_of.get(arm, '')}".strip() for arm, each in value_of.items()}
    runs = [(arm, each, s) for each, s in _scored(subject) if (arm := each.trial.arm) in value_of]
    means = [
        each
        for each in subject.conclusion.verdicts
        if each.tgs is not None and each.arm in value_of
    ]
    if not means:
        return None
    shown = [value_of[each.arm] for each in means]
    shown += [unfit] if unfit else []
    place = _places(shown)
    x = PlotAxis(place.values(), margin=0.08)
    y = PlotAxis([*(each.tgs or 0.0 for each in means), *(s.tgs for _, _, s in runs if s.tgs)])
    dots = [
        Point(x=x.at(place[value_of[arm]]), y=_up(y.at(s.tgs)), looks="run", said=_run(each, s))
        for arm, each, s in runs
        if s.tgs is not None and value_of[arm] in place
    ]
    joined = [each for each in means if with_of.get(each.arm) == with_of.get(best)]
    line = sorted((x.at(place[value_of[each.arm]]), _up(y.at(each.tgs or 0.0))) for each in joined)
    dots += [
        Point(
            x=x.at(place[value_of[each.arm]]),
            y=_up(y.at(each.tgs or 0.0)),
            looks="best" if each.arm == best else "mean",
            said=f"{name_of[each.arm]}: {significant(each.tgs)} TGS, {words(each)}",
        )
        for each in means
    ]
    names = sorted(dict.fromkeys(shown), key=lambda name: place[name])
    told = "; ".join(f"{name_of[each.arm]}: {significant(each.tgs)} TGS" for each in means)
    return RunsPlot(
        caption=f"Across: {plain(key)}. Up: Tokens/s/device. Small dots: single jobs. Large dots: "
        "the figures of the table; filled: the recommended value."
        + (f" The line joins those with its {plain(second)}." if second else "")
        + (f" Red line: {plain(unfit)} did not fit." if unfit else ""),
        label=plain(f"{told}" + (f"; {unfit} did not fit" if unfit else "")),
        points=tuple(dots),
        line=tuple(line),
        marks=(Mark(at=x.at(place[unfit]), text="did not fit", is_bad=True),) if unfit else (),
        x_ticks=tuple(Tick(at=x.at(place[each]), text=plain(each)) for each in names),
        y_ticks=_turned(y.ticks()),
    )


def _places(values: Sequence[str]) -> Mapping[str, float]:
    try:
        found = {each: math.log2(float(each)) for each in values}
    except ValueError:
        return {each: float(at) for at, each in enumerate(dict.fromkeys(values))}
    return found


def node_strip(subject: Subject) -> RunsPlot | None:
    """Return every node's runs against the median node, with bands of a run's standard deviation.

    The first run of each node is an open dot, the fresh runs are filled.
    """
    first: dict[str, float] = {}
    runs = _scored(subject)
    for each, score in runs:
        first.setdefault(each.trial.arm, score.value)
    if not first:
        return None
    level = median(first.values())
    sigma = subject.conclusion.noise.sigma
    order = sorted(first, key=lambda node: first[node])
    verdicts = {each.arm: each for each in subject.conclusion.verdicts}
    offs = [(each, score, relative(score.value - level)) for each, score in runs]
    wide = [2 * sigma, -2 * sigma] if sigma else []
    x = PlotAxis(map(float, range(len(order))), margin=0.06)
    y = PlotAxis([0.0, *(off for _, _, off in offs), *wide])
    seen: set[str] = set()
    dots = []
    for each, score, off in offs:
        arm = each.trial.arm
        looks = f"{'fresh' if arm in seen else 'run'} {_looks(verdicts.get(arm))}"
        seen.add(arm)
        dots.append(
            Point(
                x=x.at(float(order.index(arm))),
                y=_up(y.at(off)),
                looks=looks,
                said=_run(each, score, off),
            )
        )
    bands = (
        [(_up(y.at(n * sigma)), round(y.at(n * sigma) - y.at(-n * sigma), 2)) for n in (2, 1)]
        if sigma
        else []
    )
    low = [node for node in order if _looks(verdicts.get(node)) in ("slower", "invalid")]
    names = order if len(order) <= _MOST_NAMES else low[:_MOST_NAMES]
    caption = (
        "Each column is a node, the slowest first run to the left; up is faster, in percent of the "
        "median first run. Open: the first run. Filled: fresh runs."
    )
    if sigma:
        caption += f" Bands: one and two standard deviations of a run, {fine(sigma)}."
    shown = {arm: each.delta for arm, each in verdicts.items() if each.delta is not None}
    told = "; ".join(
        f"{node} {percent(shown.get(node, relative(first[node] - level)))}"
        for node in order[:_MOST_NAMES]
    )
    return RunsPlot(
        caption=caption,
        label=plain(f"nodes against the median, the slowest first run first: {told}"),
        points=tuple(dots),
        bands=tuple(bands),
        x_ticks=tuple(Tick(at=x.at(float(order.index(n))), text=plain(n)) for n in names),
        y_ticks=_turned(y.ticks(scale=100.0, sign=True)),
        unit=" %",
        zero=_up(y.at(0.0)),
    )


def _looks(verdict: Verdict | None) -> str:
    return verdict.kind.lower() if verdict is not None else ""


_FIRST = "the first commit"


def commit_series(
    subject: Subject, *, commits: Sequence[str], named: Collection[str], chances: Sequence[float]
) -> RunsPlot | None:
    """Return the runs of each commit against the first one, and where the change may lie.

    None for a table of several loads: its rows have no common scale. `commits` are the short hashes
    of all in order, `named` those of the answer; `chances` says of each commit how likely it is the
    first that changed it, () before a search.
    """
    place = {short: at for at, short in enumerate(commits)}
    runs = [
        (place[short], each, score)
        for each, score in _scored(subject)
        if (short := each.trial.arm.rpartition("-")[2]) in place
    ]
    base = [score.value for at, _, score in runs if at == 0]
    if not base or subject.conclusion.reference is None:
        return None
    offs = [(at, e, s, relative(s.value - fmean(base))) for at, e, s in runs]
    x = PlotAxis((0.0, float(len(commits) - 1)), margin=0.06)
    y = PlotAxis([0.0, *(off for *_, off in offs)], margin=0.12)
    marks = tuple(
        Mark(at=x.at(float(place[short])), text=short, is_bad=True)
        for short in sorted(place.keys() & named, key=place.__getitem__)
    )
    every = max(math.ceil(len(commits) / _MOST_NAMES), 1)
    by_commit: dict[int, list[float]] = {}
    for at, _, score in runs:
        by_commit.setdefault(at, []).append(score.value - fmean(base))
    known = {
        each.arm.rpartition("-")[2]: each.delta
        for each in subject.conclusion.verdicts
        if sentence(each.against) == _FIRST and each.delta is not None
    }
    changes = {
        commits[at]: known.get(commits[at], relative(fmean(own)))
        for at, own in sorted(by_commit.items())
    }
    told = "; ".join(f"{name} {percent(change)}" for name, change in changes.items())
    return RunsPlot(
        caption="Across: the commits, the first to the left, by their number. Up: percent of the "
        "mean of the first commit. Each dot is a job."
        + (" Red line: the commit that is named." if marks else "")
        + (" Bars: how likely each commit is the first that changed it." if any(chances) else ""),
        label=plain(f"change of the commits that were measured against {_FIRST}: {told}"),
        points=tuple(
            Point(
                x=x.at(float(at)),
                y=_up(y.at(off)),
                looks="run reference" if at == 0 else "run",
                said=_run(each, score, off),
            )
            for at, each, score, off in offs
        ),
        marks=marks,
        chances=tuple(
            Chance(
                x=x.at(float(at)),
                height=round(100 * chance, 2),
                said=f"{commits[at]}: {100 * chance:.1f} % likely",
            )
            for at, chance in enumerate(chances)
            if chance >= _LEAST_CHANCE
        ),
        x_ticks=tuple(
            Tick(at=x.at(float(at)), text=str(at + 1)) for at in range(0, len(commits), every)
        ),
        y_ticks=_turned(y.ticks(scale=100.0, sign=True)),
        unit=" %",
        zero=_up(y.at(0.0)),
    )


def course_plot(figures: Sequence[tuple[str, str, float]], *, head: str) -> RunsPlot | None:
    """Return one figure of each study, oldest first: name, date and figure; `head` names it.

    None of fewer than two.
    """
    if len(figures) < 2:  # noqa: PLR2004 - one is no course
        return None
    x = PlotAxis((0.0, float(len(figures) - 1)), margin=0.08)
    y = PlotAxis([value for *_, value in figures], margin=0.12)
    said = [f"{when} {plain(name)}: {significant(value)}" for name, when, value in figures]
    places = [(x.at(float(at)), _up(y.at(value))) for at, (*_, value) in enumerate(figures)]
    return RunsPlot(
        caption=f"Across: the studies, the oldest to the left. Up: {head} of the reference. Cells "
        "that differ do not compare: the table says in what they differ.",
        label=plain(f"{head} of the reference, the oldest first: {'; '.join(said)}"),
        points=tuple(
            Point(x=at, y=up, looks="mean", said=words)
            for (at, up), words in zip(places, said, strict=True)
        ),
        line=tuple(places),
        x_ticks=tuple(
            Tick(at=at, text=when) for (at, _), (_, when, _) in zip(places, figures, strict=True)
        ),
        y_ticks=_turned(y.ticks()),
    )


_DAY_S = 86_400.0
_DOT = 0.9  # percent of the axis that a study takes
_TIMES = 5  # texts of an axis of time
_OF_STATE = {
    "measured": "with a winner",
    "reference": "over, without a winner",
    "unmeasured": "preliminary",
}


def cells_plot(studies: Sequence[tuple[str, float, str, str]]) -> PathPlot | None:
    """Return when each cell was measured, one lane a cell, the one of the newest study on top.

    A study is its cell, the time of its last event in seconds since the epoch, its state (a key of
    `_OF_STATE`) and its words. None without one.
    """
    if not studies:
        return None
    newest = sorted(studies, key=lambda each: -each[1])
    lanes = list(dict.fromkeys(cell for cell, *_ in newest))
    axis = PlotAxis((at_s for _, at_s, *_ in studies), margin=0.04)
    wide_s = axis.high - axis.low
    form = "%H:%M:%S" if wide_s < _DAY_S / 100 else "%H:%M" if wide_s < 2 * _DAY_S else "%d %b"
    ticks = []
    for number in range(_TIMES):
        at_s = axis.low + (axis.high - axis.low) * (number + 0.5) / _TIMES
        when = datetime.fromtimestamp(at_s, UTC)
        ticks.append(Tick(at=axis.at(at_s), text=f"{when:{form}}"))
    bars = tuple(
        Bar(
            lane=lanes.index(cell),
            at=round(min(axis.at(at_s), 100 - _DOT), 2),
            width=_DOT,
            looks=state,
            said=f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC: {plain(words)}",
        )
        for cell, at_s, state, words in sorted(studies, key=lambda each: each[1])
    )
    seen = {each.looks for each in bars}
    return PathPlot(
        caption="Across: time. Each bar is a study of the cell, at its last event.",
        lanes=tuple(map(plain, lanes)),
        bars=bars,
        ticks=tuple(ticks),
        kinds=tuple(each for each in _OF_STATE.items() if each[0] in seen),
    )


# change -> how a square looks; the first that holds
_DEPTHS = ((-0.05, "lowest"), (-0.02, "lower"), (-0.01, "low"))


def pair_matrix(
    pairs: Sequence[PairFound], *, nodes: Sequence[str], first: Sequence[str]
) -> Matrix | None:
    """Return the change of every pair, fresh runs before first ones.

    Of more than `_MOST_NODES` of the `nodes` those named `first`, and those in the slowest pairs,
    are shown.
    """
    if not pairs:
        return None
    change = {frozenset(each.nodes): each.change for each in pairs}
    told = sorted((each for each in change.items() if each[1] is not None), key=_by_change)
    slowest = dict.fromkeys(name for pair, _ in told for name in sorted(pair))
    kept = set(list(dict.fromkeys((*first, *slowest)))[:_MOST_NODES])
    of_pairs = {name for pair in change for name in pair}
    names = [name for name in nodes if name in kept and name in of_pairs]
    if not names:
        return None
    caption = (
        "Change in percent of each pair of nodes, as the table has it: of its fresh runs where it "
        "has any, else of its first run. Empty: the pair has no score."
    )
    if len(names) < len(nodes):
        caption += f" {len(names)} of {len(nodes)} nodes are shown: those in the slowest pairs."
    return Matrix(
        caption=caption,
        names=tuple(map(plain, names)),
        rows=tuple(tuple(_square(one, other, change) for other in names) for one in names),
    )


def _by_change(pair: tuple[frozenset[str], float | None]) -> float:
    return pair[1] or 0.0


def _square(one: str, other: str, change: Mapping[frozenset[str], float | None]) -> Square:
    found = change.get(frozenset((one, other))) if one != other else None
    if found is None:
        return Square(looks="empty", text="", said="")
    looks = next((name for limit, name in _DEPTHS if found <= limit), "even")
    return Square(looks=looks, text=points(found), said=plain(f"{one}-{other}: {percent(found)}"))
