"""The measured parts of a page: what stands between two comments is written anew, the rest stays.

<!-- measured: begin -->
...
<!-- measured: end -->
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of a benchmark, which may write its table into a page."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--write", type=Path, help="the page whose measured part is rewritten")
    return made


def publish(text: str, page: Path | None, name: str = MEASURED) -> None:
    """Print a table, and write it into the page if one is given."""
    print(text)
    if page:
        rewrite(page, text, name)


def head(columns: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    return [line(columns), f"|{'---|' * len(columns)}"]


def line(cells: Iterable[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def cells(text: str) -> tuple[str, ...]:
    """Return the cells of a line of a table."""
    return tuple(cell.strip() for cell in text.strip("|").split("|"))


def rows(table: str, keys: int = 1) -> dict[tuple[str, ...], str]:
    """Return the lines of a table below its head, by their first cells."""
    below = [each for each in table.splitlines() if each.startswith("|")][2:]
    return {cells(each)[:keys]: each for each in below}


def rate(share: float, n: int) -> str:
    """Return a share of n in percent, and its Monte-Carlo standard error in brackets."""
    if not n or math.isnan(share):
        return "-"
    return f"{100 * share:.1f} ({100 * math.sqrt(share * (1 - share) / n):.1f})"


def share(count: int, n: int) -> str:
    """Return the same for a count out of n."""
    return rate(count / n if n else math.nan, n)


def percents(total: Mapping[str, int], names: Iterable[str], n: int) -> list[str]:
    """Return counts out of n in percent."""
    return [f"{100 * total[name] / n:.1f}" for name in names]


def chunks(count: int, *, first: int = 0, size: int = 50) -> list[range]:
    """Return the seeds of so many simulations in parts, one for a process."""
    end = first + count
    return [range(at, min(at + size, end)) for at in range(first, end, size)]


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
