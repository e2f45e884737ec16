"""The measured parts of a page: what stands between two comments is written anew, the rest stays.

<!-- measured: begin -->
...
<!-- measured: end -->
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

MEASURED = "measured"


def marks(name: str = MEASURED) -> tuple[str, str]:
    """Return the comments around the part of this name."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def part(path: Path, name: str = MEASURED) -> str:
    """Return the text between the comments; raise ValueError where a page has not both, once."""
    return _split(path, name)[1]


def rewrite(path: Path, text: str, name: str = MEASURED) -> None:
    """Write the text between the comments; raise ValueError where a page has not both, once."""
    head, _, tail = _split(path, name)
    begin, end = marks(name)
    between = text.strip("\n")
    path.write_text(f"{head}{begin}\n{between}\n{end}{tail}", encoding="utf-8")


def _split(path: Path, name: str) -> tuple[str, str, str]:
    page = path.read_text(encoding="utf-8")
    begin, end = marks(name)
    head, found, rest = page.partition(begin)
    old, closed, tail = rest.partition(end)
    if not (found and closed) or page.count(begin) > 1 or page.count(end) > 1:
        raise ValueError(f"{path}: expected {begin} and {end} once each, in this order")
    return head, old, tail


def summed(check: Callable[[int], Counter[str]], checks: int) -> Counter[str]:
    """Return the sums over the checks of so many seeds, and the most waves that one took."""
    total: Counter[str] = Counter()
    most = 0
    for seed in range(checks):
        found = check(seed)
        most = max(most, found["waves"])
        total += found
    total["most waves"] = most
    return total
