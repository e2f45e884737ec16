"""A document to GitHub-flavoured markdown. Must not know what the document is about."""

from __future__ import annotations

import re
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
_RULE = {"left": ":---", "right": "---:"}


def render(document: Document) -> str:
    """Return the whole text, one newline at its end."""
    parts = [f"# {_inline(document.title)}"]
    if document.header:
        parts.append(_block(Bullets(items=document.header)))
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"## {_inline(section.title)}"
    # below a heading of one cell the tables are one level lower
    level = "####" if any(isinstance(block, Heading) for block in section.blocks) else "###"
    for block in section.blocks:
        if isinstance(block, Table) and block.title:
            yield f"{level} {_inline(block.title)}"
        yield _block(block)


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"### {_inline(block.text)}"
        case Text():
            return _inline(block.text)
        case Bullets():
            return "\n".join(f"* {_inline(item)}" for item in block.items)
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
            lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
            rule = f"| {' | '.join(_RULE[column.align] for column in block.columns)} |"
            return "\n".join([lines[0], rule, *lines[1:]])


def _cell(text: str) -> str:
    # GitHub splits cells before it looks for literals
    return _inline(text).replace("|", "\\|")


def _inline(text: str) -> str:
    parts = text.split("`")
    parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
