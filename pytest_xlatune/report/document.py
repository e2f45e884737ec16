"""Documents of titles, paragraphs and tables, independent of how they are rendered.

Text is plain, with one convention: backticks enclose a literal (a flag, an id, a log line). Foreign
text passes through `literal` or `plain`, so that it cannot start a literal. All figures are text
already, and a renderer only lays them out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_xlatune.model.text import counted, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; `wrap` marks long text that may be wrapped in a narrow terminal."""

    title: str
    align: Literal["left", "right"] = "left"
    wrap: bool = False


def columns(*titles: str) -> tuple[Column, ...]:
    """Return columns for titles; `>` before a title aligns right, `~` lets long text wrap."""
    return tuple(
        Column(
            title=title.lstrip(">~"),
            align="right" if title[0] == ">" else "left",
            wrap=title[0] == "~",
        )
        for title in titles
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; `title` is above it, and each row has one text for each column.

    In a terminal each row of a `compact` table is one line of any length, without rules, for people
    to search and copy.
    """

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    compact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A list whose items a terminal shows without bullets and without wrapping."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Lines to copy, shown unchanged; backticks mean nothing here."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A heading within a section; the blocks after it are about one of several cells."""

    text: str


Block = Table | Text | Bullets | Lines | Code | Heading


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of a document."""

    title: str
    blocks: tuple[Block, ...]


MOST_ROWS = 200  # rows of a table that grows with its data, unless all are requested
_ENDS = 50  # rows shown at its start, and as many at its end
_DIFFERENT = 100  # rows shown between these, if they differ from the others
_Row = TypeVar("_Row")


def shortened(
    rows: Sequence[_Row], differs: Callable[[_Row], bool], *, shows_all: bool = False
) -> list[_Row | None]:
    """Return the first rows, the last ones, and those that differ; None marks a gap.

    Up to MOST_ROWS rows are all shown. Every table that grows with its data follows this rule.
    """
    if shows_all or len(rows) <= MOST_ROWS:
        return [*rows]
    end = len(rows) - _ENDS
    between = (at for at in range(_ENDS, end) if differs(rows[at]))
    kept = [*range(_ENDS), *itertools.islice(between, _DIFFERENT), *range(end, len(rows))]
    shown: list[_Row | None] = []
    for before, at in zip((-1, *kept), kept, strict=False):
        shown += [rows[at]] if at == before + 1 else [None, rows[at]]
    return shown


def left_out(shown: Sequence[object], rows: Sequence[object], noun: str) -> tuple[str, ...]:
    """Return a line that says how many rows `shortened` left out; () if it left out none."""
    count = len(rows) - sum(row is not None for row in shown)
    return (f"{counted(count, noun)} of {len(rows)} left out (...): --all",) if count else ()


def bullets(*items: str) -> Bullets:
    """Return a list."""
    return Bullets(items=items)


def lines(*items: str) -> Lines:
    """Return a list that a terminal shows unchanged."""
    return Lines(items=items)


def section(title: str, *blocks: Block) -> Section:
    """Return a titled part of a document."""
    return Section(title=title, blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A plot with a title; a page draws it after the first section, and texts leave it out."""

    title: str
    plot: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A title, bullets under it, and sections; only pages show `drawn`.

    Of a `brief` document a terminal shows only the blocks: the reader has just typed its subject.
    """

    title: str
    header: tuple[str, ...] = ()
    sections: tuple[Section, ...]
    drawn: tuple[Drawn, ...] = ()
    brief: bool = False


def brief(title: str, *blocks: Block) -> Document:
    """Return a document of one section, of which a terminal shows only the blocks."""
    shown = (Section(title=title, blocks=blocks),) if blocks else ()
    return Document(title=title, sections=shown, brief=True)


def drawn(title: str, plot: object | None) -> tuple[Drawn, ...]:
    """Return a plot with a title; () if there is no plot."""
    return () if plot is None else (Drawn(title=title, plot=plot),)


def plain(text: str) -> str:
    """Return foreign text as one line of plain text."""
    return " ".join(printable(text).replace("`", "'").split())


def literal(text: str) -> str:
    """Return foreign text as one line between backticks; "" stays empty."""
    line = plain(text)
    return f"`{line}`" if line else ""


def literals(texts: Iterable[str]) -> str:
    """Return foreign texts as a list, each between backticks."""
    return ", ".join(map(literal, texts))
