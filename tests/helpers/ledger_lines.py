"""The lines of a ledger that were written whole, read without the product's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return what the lines hold; one that was torn is left out, wherever it was cut."""
    held = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            held.append(json.loads(line))
        except ValueError:
            continue
    return held


def cut(ledger: Path, kind: str, at: int) -> None:
    """Leave of a ledger what stands before one of its events of a kind, as a kill does."""
    lines = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if json.loads(line)["event"] == kind]
    ledger.write_text("".join(lines[: places[at]]), encoding="utf-8")
