"""Record files: a text that is compared whole, and written anew by XLATUNE_UPDATE_GOLDEN=1."""

from __future__ import annotations

import difflib
import os
from pathlib import Path


def check(path: Path, found: str) -> None:
    """Compare a text with its record file.

    Raises:
        AssertionError: with the difference; nothing is written without the switch.
    """
    if os.environ.get("XLATUNE_UPDATE_GOLDEN") == "1":
        path.write_text(found, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), lineterm="")
    difference = "\n".join(lines)
    assert found == expected, f"\n{difference}\nXLATUNE_UPDATE_GOLDEN=1 records the new text"
