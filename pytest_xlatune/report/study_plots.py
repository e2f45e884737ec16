"""Compute the plot of pairs of nodes. `page.jinja` draws it; this module must draw nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_xlatune.model.result import CellsRecord, VerdictKind
from pytest_xlatune.model.text import percent, points
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.measured_cell import MeasuredCell

_MAX_NODES = 24  # nodes that a matrix shows; more squares would be too small to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """The square of a pair of nodes in a matrix.

    Attributes:
        looks: the style of the square: empty, even, low, lower or lowest.
        text: the change in percentage points; "" if there is none.
        label: the tooltip, which names the pair and its change; "" if there is none.
    """

    looks: str
    text: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix of all pairs of nodes; each row has a square for each of `names`."""

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[Square, ...], ...]


# limits and styles: a square has the style of the first limit that its change does not exceed
_DEPTHS = ((-0.05, "lowest"), (-0.02, "lower"), (-0.01, "low"))


def pair_matrix(subject: MeasuredCell) -> Matrix | None:
    """Return the matrix of the changes of all pairs; None if no pair has a score.

    If there are more than 24 nodes, the matrix shows those of accused arms, and then those of the
    slowest pairs.
    """
    pairs = subject.conclusion.found(CellsRecord).pairs
    nodes = tuple(dict.fromkeys(name for cell in subject.cells for name in cell.nodelist))
    first = [
        name
        for verdict in subject.conclusion.verdicts
        if verdict.kind in (VerdictKind.SLOWER, VerdictKind.INVALID)
        for name in verdict.arm.split("+")
    ]
    change = {frozenset(pair.nodes): pair.change for pair in pairs}
    slowest = [name for pair in sorted(pairs, key=lambda pair: pair.change) for name in pair.nodes]
    by_priority = dict.fromkeys(name for name in (*first, *slowest) if name in slowest)
    shown = list(by_priority)[:_MAX_NODES]
    names = [name for name in nodes if name in shown]
    if not names:
        return None
    caption = (
        "Change in percent of each pair of nodes, as in the table: from its fresh runs, or from "
        "its first run if it has no fresh one. Empty: the pair has no score."
    )
    if len(names) < len(nodes):
        caption += f" {len(names)} of {len(nodes)} nodes are shown: those in the slowest pairs."
    return Matrix(
        caption=caption,
        names=tuple(map(plain, names)),
        rows=tuple(tuple(_square(a, b, change) for b in names) for a in names),
    )


def _square(a: str, b: str, change: Mapping[frozenset[str], float]) -> Square:
    value = change.get(frozenset((a, b))) if a != b else None
    if value is None:
        return Square(looks="empty", text="", label="")
    looks = next((name for limit, name in _DEPTHS if value <= limit), "even")
    return Square(looks=looks, text=points(value), label=plain(f"{a}-{b}: {percent(value)}"))
