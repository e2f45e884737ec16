"""The plot of pairs of nodes as words; `page.jinja` draws it. Must draw nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.model.pairs import PairFound
from pytest_xlatune.model.text import percent, points
from pytest_xlatune.report.document import plain

_MOST_NODES = 24  # of a matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """A pair in a matrix: `looks` is empty, even, low, lower or lowest."""

    looks: str
    text: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Every node against every other; a row has a square for each name."""

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[Square, ...], ...]


# change -> how a square looks; the first that holds
_DEPTHS = ((-0.05, "lowest"), (-0.02, "lower"), (-0.01, "low"))


def pair_matrix(
    pairs: Sequence[PairFound], *, nodes: Sequence[str], first: Sequence[str]
) -> Matrix | None:
    """Return the change of every pair.

    Of more than `_MOST_NODES` of the `nodes` those named `first`, and those in the slowest pairs,
    are shown.
    """
    change = {frozenset(pair.nodes): pair.change for pair in pairs}
    slowest = [name for pair in sorted(pairs, key=lambda pair: pair.change) for name in pair.nodes]
    kept = list(dict.fromkeys(name for name in (*first, *slowest) if name in slowest))[:_MOST_NODES]
    names = [name for name in nodes if name in kept]
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


def _square(one: str, other: str, change: Mapping[frozenset[str], float]) -> Square:
    value = change.get(frozenset((one, other))) if one != other else None
    if value is None:
        return Square(looks="empty", text="", label="")
    looks = next((name for limit, name in _DEPTHS if value <= limit), "even")
    return Square(looks=looks, text=points(value), label=plain(f"{one}-{other}: {percent(value)}"))
