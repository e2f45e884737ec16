"""The lines of a ledger that were written whole, read without the product's own reader."""

from __future__ import annotations

import json
from collections.abc import Iterable
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


def events_in(ledgers: Iterable[Path], kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind in some ledgers, which are read in the order of their names."""
    lines = (line for path in sorted(ledgers) for line in whole_lines(path))
    return [line for line in lines if line["event"] == kind]
