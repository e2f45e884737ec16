"""Tables of examples, here and of texts in `tests/data`: what names a row is the id of its test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data"


def rows(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test for each row: a tuple of what `names` lists, or the one value that it names."""
    lists = "," in names
    return pytest.mark.parametrize(
        [name.strip() for name in names.split(",")],
        [pytest.param(*(row if lists else (row,)), id=name) for name, row in table.items()],
    )


def recorded(name: str, part: str) -> dict[str, tuple[str, str]]:
    """Return the rows of a part of a file of texts: their ids, a text, and what becomes of it.

    A part begins with `[its name]`, a row with `== its id`; the line `->` parts the two texts.
    A row without it stays as it is.
    """
    text = (DATA / name).read_text(encoding="utf-8").partition(f"[{part}]\n")[2]
    found = {}
    for row in text.partition("\n[")[0].removeprefix("== ").split("\n== "):
        name, _, block = row.partition("\n")
        before, arrow, after = block.rstrip("\n").partition("\n->")
        found[name] = (
            f"{before}\n",
            f"{after.removeprefix(chr(10))}\n" if arrow else f"{before}\n",
        )
    return found
