"""Documents of titles, paragraphs and tables, independent of how they are rendered.

Text is plain, with one convention: backticks enclose a literal (a flag, an id, a log line). Text
that comes from a user or a log passes through `literal` or `plain`, so that its own backticks do
not enclose anything. All figures are text already, and a renderer only lays them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from pytest_xlatune.model.text import counted, printable


class Column(msgspec.Struct, frozen=True, kw_only=True):
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


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table.

    Attributes:
        title: the text above the table; "" if there is none.
        columns: the columns.
        rows: for each row, one text for each column.
        compact: whether a terminal shows each row as one line of any length, without rules, so
            that people can search and copy it.
    """

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    compact: bool = False


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A paragraph."""

    text: str


class Bullets(msgspec.Struct, frozen=True, kw_only=True):
    """A list."""

    items: tuple[str, ...]


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """A list whose items a terminal shows without bullets and without wrapping."""

    items: tuple[str, ...]


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """Lines to copy, shown unchanged; backticks mean nothing here."""

    text: str
    language: str = ""


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """A heading within a section, for the blocks that follow it."""

    text: str


Block = Table | Text | Bullets | Lines | Code | Heading


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A titled part of a document."""

    title: str
    blocks: tuple[Block, ...]


# A table that grows with its data shows up to MAX_ROWS rows. A longer table shows _END_ROWS rows at
# its start, as many at its end, and between them up to _DIFFERENT_ROWS rows that differ.
MAX_ROWS, _END_ROWS, _DIFFERENT_ROWS = 200, 50, 100
_Row = TypeVar("_Row")


def shortened(
    rows: Sequence[_Row], differs: Callable[[_Row], bool], *, shows_all: bool = False
) -> list[_Row | None]:
    """Return the rows of a long table that are shown; None stands for a gap between them.

    The first and the last rows are shown, and between them those for which `differs` is true. A
    table of MAX_ROWS rows or fewer is shown whole, and so is every table with `shows_all`.
    """
    if shows_all or len(rows) <= MAX_ROWS:
        return [*rows]
    end = len(rows) - _END_ROWS
    different = [index for index in range(_END_ROWS, end) if differs(rows[index])]
    indices = [*range(_END_ROWS), *different[:_DIFFERENT_ROWS], *range(end, len(rows))]
    shown: list[_Row | None] = []
    previous = -1
    for index in indices:
        if index != previous + 1:
            shown.append(None)
        shown.append(rows[index])
        previous = index
    return shown


def left_out(shown: Sequence[object], rows: Sequence[object], noun: str) -> tuple[str, ...]:
    """Return a line with the number of rows that `shortened` left out; () if it left out none."""
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


PROVENANCE = "What was measured, and on what"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document.

    Attributes:
        title: the title.
        header: the texts of the bullets under the title.
        sections: the sections.
        provenance: the texts of the bullets in the last section: what was measured, and on what.
        brief: whether a terminal shows the blocks without titles and header, because the reader has
            just typed the command that names the subject.
    """

    title: str
    header: tuple[str, ...] = ()
    sections: tuple[Section, ...]
    provenance: tuple[str, ...] = ()
    brief: bool = False

    @property
    def all_sections(self) -> tuple[Section, ...]:
        """The sections and, as the last one, the provenance."""
        if not self.provenance:
            return self.sections
        return (*self.sections, section(PROVENANCE, bullets(*self.provenance)))


def brief(title: str, *blocks: Block) -> Document:
    """Return a brief document of one section."""
    shown = (Section(title=title, blocks=blocks),) if blocks else ()
    return Document(title=title, sections=shown, brief=True)


def plain(text: str) -> str:
    """Return a text of a user or a log as one line of plain text."""
    return " ".join(printable(text).replace("`", "'").split())


def literal(text: str) -> str:
    """Return a text of a user or a log as one line between backticks; "" stays empty."""
    line = plain(text)
    return f"`{line}`" if line else ""


def literals(texts: Iterable[str]) -> str:
    """Return texts of a user or a log in one line, each between backticks."""
    return ", ".join(map(literal, texts))
