"""The plots of several studies, and of pairs of nodes, as positions and words.

    pair_matrix(pairs, ...)    course_plot(figures, ...)

Each is None where nothing was measured. `page.jinja` draws. Must draw nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.model.pairs import PairFound
from pytest_xlatune.model.text import percent, points, significant
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.page_plots import Chart, Dot, PlotAxis, Tick

_MOST_NODES = 24  # of a matrix


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


def _turned(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    return tuple(Tick(at=_up(each.at), text=each.text) for each in ticks)


def _up(at: float) -> float:
    """Turn a share of an axis into a place below the top."""
    return round(100 - at, 2)


def course_plot(figures: Sequence[tuple[str, str, float]], *, head: str) -> Chart | None:
    """Return one figure of each study, oldest first: name, date and figure; `head` names it.

    None of fewer than two.
    """
    if len(figures) < 2:  # noqa: PLR2004 - one is no course
        return None
    x = PlotAxis((0.0, float(len(figures) - 1)), margin=0.08)
    y = PlotAxis([value for *_, value in figures], margin=0.12)
    said = [f"{when} {plain(name)}: {significant(value)}" for name, when, value in figures]
    places = [(x.at(float(at)), _up(y.at(value))) for at, (*_, value) in enumerate(figures)]
    return Chart(
        caption=f"Across: the studies, the oldest to the left. Up: {head} of the reference. Cells "
        "that differ do not compare: the table says in what they differ.",
        label=plain(f"{head} of the reference, the oldest first: {'; '.join(said)}"),
        dots=tuple(
            Dot(x=at, y=up, said=words, looks="mean")
            for (at, up), words in zip(places, said, strict=True)
        ),
        x_ticks=tuple(
            Tick(at=at, text=when) for (at, _), (_, when, _) in zip(places, figures, strict=True)
        ),
        y_ticks=_turned(y.ticks()),
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
