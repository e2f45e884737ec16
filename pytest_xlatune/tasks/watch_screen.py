"""Lay the cells that are watched out as lines of a screen: what may still change in full.

A line is parts of text, each with a style of rich; "" is none. A line is one line high: the screen
cuts a longer one.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator, Sequence

from pytest_xlatune.model.result import Verdict
from pytest_xlatune.model.text import counted, interval, points
from pytest_xlatune.report.document import Table, columns
from pytest_xlatune.report.lines import words_in_short
from pytest_xlatune.report.render import compact_lines
from pytest_xlatune.tasks.watch import Seen

ScreenLine = tuple[tuple[str, str], ...]
_NAME = 12  # characters of a name at least
_WHY, _RANKED, _EVENTS = 8, 6, 4  # lines of a cell that is shown in full
_STYLE = {"running": "green", "complete": "cyan", "stopped": "red", "cannot be read": "red"}


def all_lines(cells: Sequence[Seen], width: int) -> list[ScreenLine]:
    """Return the lines of all cells, however many."""
    return _laid_out(cells, width, sys.maxsize)


def screen_lines(
    cells: Sequence[Seen], *, width: int, height: int, now_s: float
) -> list[ScreenLine]:
    """Return the lines of as many cells as fit, below a line that says how to quit."""
    at = time.strftime("%H:%M:%S", time.localtime(now_s))
    head = f"q quits  {at}  {counted(len(cells), 'cell')}  xlatune watch"
    return [((head, "reverse"),), *_laid_out(cells, width, height - 2)]


def _laid_out(cells: Sequence[Seen], width: int, left: int) -> list[ScreenLine]:
    shown: list[ScreenLine] = []
    for others, each in zip(range(len(cells) - 1, -1, -1), cells, strict=True):
        is_full = each.is_active or bool(each.why) or len(cells) == 1
        block = list(_cell(each, width)) if is_full else []
        if not block or len(block) + others > left:
            block = [_line(each)]
        if len(block) > left:
            more = f"and {others + 1} more: name one, or make the window higher"
            return [*shown, ((more, ""),)]
        shown += block
        left -= len(block)
    return shown


def _line(cell: Seen, *, is_alone: bool = True) -> ScreenLine:
    """Tell a cell in one line; where its block follows, that shows the rest."""
    has_best = is_alone and cell.ranking
    best = f", best {cell.ranking[0].arm} {points(cell.ranking[0].delta)} %" if has_best else ""
    said = cell.why if is_alone and cell.why else f"{cell.progress}{best}"
    return (
        (f"{cell.sweep} ", "bold"),
        (f"{cell.label} ", ""),
        (cell.standing, _STYLE.get(cell.standing, "yellow")),
        (f": {' '.join(said.split())}" if said else "", ""),
    )


def _cell(cell: Seen, width: int) -> Iterator[ScreenLine]:
    """Give the lines of a cell."""
    yield (("─" * width, "dim"),)
    yield _line(cell, is_alone=False)
    for why in textwrap.wrap(cell.why, max(width - 2, 20), max_lines=_WHY, placeholder=" ..."):
        yield ((f"  {why}", "yellow"),)
    for each in cell.running:
        yield ((f"  {each.trial.profile.id} (job {each.job_id}) {each.words}", "bold"),)
    head, *rows = compact_lines(_ranking(cell.ranking[:_RANKED], width - 2))
    if rows:
        yield ((f"  {head}", "dim"),)
        yield from (((f"  {row}", ""),) for row in rows)
    for at_s, text in cell.events[:_EVENTS]:
        yield ((f"  {time.strftime('%H:%M', time.localtime(at_s))} {text}", "dim"),)


def _ranking(verdicts: Sequence[Verdict], width: int) -> Table:
    """Return the best arms; where a line is longer than `width`, names are cut, not verdicts."""
    titles = ("delta %", "95 %", "n", "verdict")
    rows = [
        (points(each.delta), interval(each.ci95), str(each.n), words_in_short(each))
        for each in verdicts
    ]
    taken = sum(max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True))
    most = max(_NAME, width - taken)
    return Table(
        columns=columns("profile", *(f">{each}" for each in titles[:3]), titles[3]),
        rows=tuple(
            (each.arm if len(each.arm) <= most else f"{each.arm[: most - 1]}…", *row)
            for each, row in zip(verdicts, rows, strict=True)
        ),
        compact=True,
    )
