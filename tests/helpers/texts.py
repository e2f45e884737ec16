"""Tables of texts in `tests/data`: a row is a text and what becomes of it."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def rows(name: str, part: str) -> dict[str, tuple[str, str]]:
    """Return the rows of a part of a file: their ids, the text, and what becomes of it.

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
