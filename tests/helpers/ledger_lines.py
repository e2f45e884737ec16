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
