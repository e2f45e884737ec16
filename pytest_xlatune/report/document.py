"""Documents of titles, paragraphs and tables, independent of how they are rendered.

Text is plain, with one convention: backticks enclose a literal (a flag, an id, a log line). Text
that comes from a user or a log passes through `literal` or `plain`, so that its own backticks do
not enclose anything. All figures are text already, and a renderer only lays them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from pytest_xlatune.model.text import printable


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
