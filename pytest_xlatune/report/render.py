"""Render a document as markdown or as lines of a terminal.

All tables that a person reads in a terminal or as markdown are laid out here, by tabulate. This
module decides which columns fit in a row.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from tabulate import DataRow, TableFormat, tabulate

from pytest_xlatune.model.text import printable
from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Lines,
    Section,
    Table,
    Text,
)

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
