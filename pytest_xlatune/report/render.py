"""Render a document as markdown and as lines of a terminal. Must not know what it is about."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Section,
    Table,
    Text,
)

# what would be markup outside a literal:  a * b <c> \d
_MARKUP = re.compile(r"([\\*<])")
_ALIGNED = {"left": ":---", "right": "---:"}
_GAP = 2  # blanks between two columns of tabulate's "simple" format
_PADDING = 2  # tabulate keeps a column this much wider than its title
_NARROWEST = 8  # no column is broken into less
_LONG_WORD = 16  # from here on a word, mostly a flag, may be broken anywhere
# where textwrap breaks a line:  baseline-|deployed |5
_BETWEEN_WORDS = re.compile(r"\s+|(?<=[A-Za-z]-)(?=[A-Za-z])")


def markdown(document: Document) -> str:
    """Return the document as GitHub-flavoured markdown, one newline at its end."""
    parts = [f"# {_markup(document.title)}"]
    if document.header:
        parts.append(_markdown_block(Bullets(items=document.header)))
    for section in document.sections:
        parts += _markdown_section(section)
    return "\n\n".join(parts) + "\n"


def _markdown_section(section: Section) -> Iterator[str]:
    yield f"## {_markup(section.title)}"
    # below a heading of one cell the tables are one level lower
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
        case Bullets():
            return "\n".join(f"* {_markup(item)}" for item in block.items)
        case Code():
            # a fence is longer than any run of backticks inside it
            longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"{fence}{block.language}\n{block.text.rstrip()}\n{fence}"
        case Table():
            rows = [
                [column.title for column in block.columns],
                *block.rows,
            ]
            lines = [f"| {' | '.join(map(_markdown_cell, row))} |" for row in rows]
            rule = f"| {' | '.join(_ALIGNED[column.align] for column in block.columns)} |"
            return "\n".join([lines[0], rule, *lines[1:]])


def _markdown_cell(text: str) -> str:
    # GitHub splits cells before it looks for literals
    return _markup(text).replace("|", "\\|")


def _markup(text: str) -> str:
    parts = text.split("`")
    parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def terminal(document: Document, *, width: int = 80) -> list[str]:
    """Return the lines of the document; code blocks alone may be wider than `width`.

    They have no colour codes: their printer knows whether the terminal takes them.
    """
    lines = [*_wrapped(document.title, width)]
    lines += _terminal_block(Bullets(items=document.header), width)
    for section in document.sections:
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
        case Code():
            yield from (f"    {line}".rstrip() for line in block.text.splitlines())
        case Table():
            if block.title:
                yield from _wrapped(_bare(block.title), width)
            yield from _table(block, width)


def _table(table: Table, width: int) -> list[str]:
    from tabulate import tabulate

    rows = [[_bare(text) for text in row] for row in table.rows]
    titles = [column.title for column in table.columns]
    widths = _widths(table, rows, width) if rows else None
    text = tabulate(
        rows,
        headers=titles,
        tablefmt="simple",
        disable_numparse=True,
        colalign=[column.align for column in table.columns] if rows else None,
        maxcolwidths=widths,
        maxheadercolwidths=widths,
    )
    return [line.rstrip() for line in text.splitlines()]


def _widths(table: Table, rows: list[list[str]], width: int) -> list[int]:
    """Return the widths of the columns: those that may break give way until all fit."""
    cells = [list(column) for column in zip(*rows, strict=True)]
    words = [max(map(_longest_word, column)) for column in cells]
    heads = [_longest_word(column.title) + _PADDING for column in table.columns]
    widths = [max(head, *map(len, column)) for head, column in zip(heads, cells, strict=True)]
    # first between words, then through words that are long anyway, then through any
    for least in (
        [min(word, _LONG_WORD) for word in words],
        [word if word < _LONG_WORD else _NARROWEST for word in words],
        [_NARROWEST for _ in words],
    ):
        narrowest = [max(pair) for pair in zip(least, heads, strict=True)]
        while sum(widths) + _GAP * (len(widths) - 1) > width:
            breakable = [
                at
                for at, column in enumerate(table.columns)
                if column.wrap and widths[at] > narrowest[at]
            ]
            if not breakable:
                break
            widths[max(breakable, key=lambda at: widths[at])] -= 1
    return widths


def _longest_word(text: str) -> int:
    return max(map(len, _BETWEEN_WORDS.split(text)))


def _wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    return textwrap.wrap(text, max(width, _NARROWEST), subsequent_indent=indent)


def _bare(text: str) -> str:
    return text.replace("`", "")
