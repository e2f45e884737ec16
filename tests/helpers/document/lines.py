"""A document's markdown as its parts, and when a figure that is shown is a value rounded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

ABSENT = "–"  # noqa: RUF001 - the dash of an absent value
# +3.4   1092.7   0.04
NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield titles, tables, code and prose, each with its lines; code begins with its language."""
    lines = iter(text.splitlines())
    kind, held = "", list[str]()
    for line in lines:
        own = "title" if re.match("#+ ", line) else "table" if line.startswith("|") else "prose"
        if own != kind or own == "title" or not line:
            if held:
                yield kind, held
            kind, held = own, []
        if line.startswith("```"):
            fence = re.match("`+", line)
            code = [line.lstrip("`")]
            for inner in lines:
                if fence is not None and inner == fence[0]:
                    break
                code.append(inner)
            yield "code", code
        elif line:
            held.append(line)
    if held:
        yield kind, held


def split(line: str) -> list[str]:
    """The cells of a table's line, as they were before they became markdown."""
    return [plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def plain(text: str) -> str:
    r"""Undo what markdown asks for:  1 \* 2  a \| b"""
    return re.sub(r"\\([\\*<|])", r"\1", text)


def in_line(text: str) -> str:
    """Words of a log or a person as a document shows them, in one line and without backticks."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.replace("`", "'").split())


def lines_of(file: Mapping[str, Any]) -> list[str]:
    return str(file["text"]).split("\n")


def rounds_to(value: float, shown: str) -> bool:
    """Whether a value, rounded to the digits of what is shown, is just that.

    A changed digit is a whole unit of its place away; what a sum loses on the way is much less.
    """
    unit = 10.0 ** -len(shown.partition(".")[2])
    return abs(float(shown) - value) <= (0.5 + 1e-5) * unit
