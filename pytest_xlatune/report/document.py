"""Documents of titles, paragraphs and tables, as markdown or as lines of a terminal.

Text is plain, with one convention: backticks enclose a literal (a flag, an id, a log line). Text
that comes from a user or a log passes through `literal` or `plain`, so that its own backticks do
not enclose anything. All figures are text already, and are only laid out here: tables by tabulate,
and this module decides which columns fit in a row.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from tabulate import DataRow, TableFormat, tabulate

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


# characters that are markup outside a literal:  a * b <c> \d
_MARKUP = re.compile(r"([\\*<])")
_ALIGNED = {"left": ":---", "right": "---:"}
_ROW = DataRow("|", "|", "|")
_PIPES = TableFormat(None, None, None, None, _ROW, _ROW, 1, None)
_GAP = 2  # blanks between two columns in tabulate
_PADDING = 2  # a column in tabulate is this much wider than its title
_INDENT = "    "  # of lines that continue the row or the bullet above


def markdown(document: Document) -> str:
    """Return the document as GitHub-flavoured markdown, with one newline at its end."""
    parts = [f"# {_markup(document.title)}"]
    if document.header:
        parts.append(_markdown_block(Bullets(items=document.header)))
    for section in document.all_sections:
        parts += _markdown_section(section)
    return printable("\n\n".join(parts) + "\n")


def _markdown_section(section: Section) -> Iterator[str]:
    yield f"## {_markup(section.title)}"
    # if the section has headings, its tables are below them, one level lower
    level = "####" if any(isinstance(block, Heading) for block in section.blocks) else "###"
    for block in section.blocks:
        if isinstance(block, Table) and block.title:
            yield f"{level} {_markup(block.title)}"
        yield _markdown_block(block)


def _markdown_block(block: Block) -> str:
    match block:
        case Heading():
            return f"### {_markup(block.text)}"
        case Text():
            return _markup(block.text)
        case Bullets() | Lines():
            return "\n".join(f"* {_markup(item.strip())}" for item in block.items)
        case Code():
            # a fence has to be longer than any run of backticks within it
            longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"{fence}{block.language}\n{block.text.rstrip()}\n{fence}"
        case Table():
            rule = f"| {' | '.join(_ALIGNED[column.align] for column in block.columns)} |"
            # Without an alignment tabulate pads no cell. A padded table with long flags would be
            # several times as large, and a change of one cell would change every line.
            text: str = tabulate(
                [list(map(_markdown_cell, row)) for row in block.rows],
                [_markdown_cell(column.title) for column in block.columns],
                tablefmt=_PIPES._replace(linebelowheader=lambda *_: rule),
                stralign=None,
                disable_numparse=True,
                preserve_whitespace=True,
            )
            return text


def _markdown_cell(text: str) -> str:
    # GitHub splits a row at each `|`, even within backticks
    return _markup(text).replace("|", "\\|")


def _markup(text: str) -> str:
    """Escape markup outside of backticks."""
    parts = text.split("`")
    # every second part is outside of backticks, beginning with the first
    parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def terminal(document: Document, *, width: int = 80) -> list[str]:
    """Return the lines of the document, without colours; only code and words may exceed `width`."""
    if document.brief:
        lines: list[str] = []
        for section in document.sections:
            for block in section.blocks:
                lines += ["", *_terminal_block(block, width)]
        return lines[1:]
    lines = _wrapped(document.title, width)
    lines += _terminal_block(Bullets(items=document.header), width)
    for section in document.all_sections:
        lines += ["", *_wrapped(section.title, width)]
        for block in section.blocks:
            lines += ["", *_terminal_block(block, width)]
    return lines


def _terminal_block(block: Block, width: int) -> Iterator[str]:
    match block:
        case Heading() | Text():
            yield from _wrapped(_bare(block.text), width)
        case Bullets():
            for item in block.items:
                yield from _wrapped(f"  * {_bare(item)}", width, indent="    ")
        case Lines():
            yield from block.items
        case Code():
            yield from (f"    {line}".rstrip() for line in block.text.splitlines())
        case Table():
            if block.title:
                yield from _wrapped(_bare(block.title), width)
            yield from compact_lines(block) if block.compact else _table(block, width)


def compact_lines(table: Table) -> Iterator[str]:
    """Yield the titles and the rows of a table, each in one line."""
    rows = [[column.title for column in table.columns], *table.rows]
    cells = [[_bare(text) for text in row] for row in rows]
    yield from _aligned(cells, [column.align for column in table.columns], tablefmt="plain")


def _aligned(
    rows: Sequence[Sequence[str]],
    aligns: Sequence[str],
    *,
    titles: Sequence[str] = (),
    tablefmt: str = "simple",
) -> list[str]:
    """Return the lines of a table; a title may have several lines."""
    text = tabulate(
        rows,
        titles,
        tablefmt=tablefmt,
        colalign=aligns,
        headersalign=aligns,
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return [line.rstrip() for line in text.split("\n")]


def _table(table: Table, width: int) -> Iterator[str]:
    """Yield a table's lines; columns of long texts that do not fit in a row come below the row.

    No word is broken, because people copy ids and flags. The first column names the row. A table
    that does not fit even so has a line for each text.
    """
    rows = [[_bare(text) for text in row] for row in table.rows]
    widths = [
        max([_longest_word(column.title) + _PADDING, *(len(row[index]) for row in rows)])
        for index, column in enumerate(table.columns)
    ]
    titles = [_wrapped(column.title, widths[i]) for i, column in enumerate(table.columns)]
    # tabulate pads the longest line of a title
    widths = [max(widths[i], max(map(len, title)) + _PADDING) for i, title in enumerate(titles)]
    in_row = list(range(len(widths)))

    def is_too_wide() -> bool:
        return sum(widths[index] + _GAP for index in in_row) - _GAP > width

    while is_too_wide() and (wrapping := [i for i in in_row[1:] if table.columns[i].wrap]):
        in_row.remove(max(wrapping, key=widths.__getitem__))
    if len(widths) == 2 and len(in_row) == 1:  # noqa: PLR2004 - a name and its text
        for name, text in rows:
            yield from _wrapped(f"{name}: {text}", width, indent=_INDENT)
        return
    lines: Iterator[str] = iter(())
    if is_too_wide():
        in_row = []
    else:
        shown = [table.columns[index] for index in in_row]
        aligned = _aligned(
            # for tabulate, a row of empty texts would have no line
            [[row[index] or " " for index in in_row] for row in rows],
            [column.align if rows else "left" for column in shown],
            titles=["\n".join(titles[index]) for index in in_row],
        )
        lines = iter(aligned)
        height = max(len(titles[index]) for index in in_row)
        yield from itertools.islice(lines, height + 1)  # one more for the rule
    for row in rows:
        yield from [next(lines)] if in_row else _wrapped(row[0], width)
        for index, column in enumerate(table.columns):
            if index and index not in in_row and row[index]:
                line = f"{_INDENT}{column.title}: {row[index]}"
                yield from _wrapped(line, width, indent=_INDENT + "  ")


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """Return a line broken between words; a word longer than a line is not broken."""
    if len(text) <= width and text.isprintable() and not text.endswith(" "):
        return [text] if text else []
    return textwrap.wrap(
        text,
        max(width, len(indent) + 1),
        subsequent_indent=indent,
        # a flag in pieces could not be copied from a table
        break_long_words=False,
        break_on_hyphens=False,
    )


def _bare(text: str) -> str:
    return text.replace("`", "")
