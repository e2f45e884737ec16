"""The measured parts of a page: what stands between two comments is written anew, the rest stays.

<!-- measured: begin -->
...
<!-- measured: end -->

A benchmark declares its tables, each of which is a part of the page, and calls `measure`.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

MEASURED = "measured"
OK, MISSED = "ok", "**missed**"  # whether a row holds its bar


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a page: each of its rows is what many simulations of one world came to.

    Attributes:
        part: the name of the part of the page.
        columns: the heads; the one after those of the label is the number of simulations.
        worlds: those of the rows, in order.
        label: returns the first cells of a world's row, which no other row has.
        simulate: runs one simulation of a world, by its number.
        row: returns the other cells of a world's row, from the results of its simulations.
        bar: the cells of a last row, which say what the others are to hold; () for none.
    """

    part: str
    columns: tuple[str, ...]
    worlds: Sequence[Any]
    label: Callable[[Any], tuple[str, ...]]
    simulate: Callable[[Any, int], Any]
    row: Callable[[Any, list[Any]], Sequence[str]]
    bar: tuple[str, ...] = ()

    def text(self, rows: Mapping[tuple[str, ...], str]) -> str:
        """Return the table with the rows that there are, by their labels."""
        labels = [self.label(world) for world in self.worlds]
        lines = [*head(self.columns), *(rows[label] for label in labels if label in rows)]
        return "\n".join([*lines, line(self.bar)] if self.bar else lines)


def measure(doc: str | None, *tables: Table) -> int:
    """Measure the rows that the command line asks for; return 1 where one misses its bar.

    A page is written after each row, so that a run that is stopped loses one row at most. The rows
    that are not measured stay as they are.
    """
    made = parser(doc)
    made.add_argument("--runs", type=int, default=1000, help="simulations of each row")
    made.add_argument("--jobs", type=int, default=1, help="processes")
    made.add_argument("--part", default="", choices=[table.part for table in tables])
    made.add_argument("--only", default="", help="only rows with this in their first cells")
    made.add_argument("--rest", action="store_true", help="only rows that the page lacks")
    options = made.parse_args()
    measured: list[str] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for table in tables:
            if options.part not in ("", table.part):
                continue
            print(*head(table.columns), sep="\n", flush=True)
            known: dict[tuple[str, ...], str] = {}
            if options.write:
                keys = len(table.label(table.worlds[0]))
                known = rows(part(options.write, table.part), keys)
            for world in table.worlds:
                label = table.label(world)
                if options.only not in " | ".join(label) or (options.rest and label in known):
                    continue
                simulate = partial(table.simulate, world)
                results = [*pool.map(simulate, range(options.runs), chunksize=5)]
                known[label] = line((*label, str(options.runs), *table.row(world, results)))
                print(known[label], flush=True)
                measured.append(known[label])
                if options.write:
                    rewrite(options.write, table.text(known), table.part)
    return int(any(MISSED in row for row in measured))


def part(path: Path, name: str = MEASURED) -> str:
    """Return the text between the comments; raise ValueError where a page has not both, once."""
    return _split(path, name)[1]


def rewrite(path: Path, text: str, name: str = MEASURED) -> None:
    """Write the text between the comments; raise ValueError where a page has not both, once."""
    head, _, tail = _split(path, name)
    between = text.strip("\n")
    path.write_text(f"{head}\n{between}\n{tail}", encoding="utf-8")


def _split(path: Path, name: str) -> tuple[str, str, str]:
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found, rest = page.partition(begin)
    old, closed, tail = rest.partition(end)
    if not (found and closed) or page.count(begin) > 1 or page.count(end) > 1:
        raise ValueError(f"{path}: expected {begin} and {end} once each, in this order")
    return head + begin, old, end + tail


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of a benchmark, which may write its table into a page."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--write", type=Path, help="the page whose measured part is rewritten")
    return made


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


def mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    n = len(values)
    middle = math.fsum(values) / n
    return middle, math.sqrt(math.fsum((x - middle) ** 2 for x in values) / max(n - 1, 1) / n)


def percents(total: Mapping[str, int], names: Iterable[str], n: int) -> list[str]:
    """Return counts out of n in percent."""
    return [f"{100 * total[name] / n:.1f}" for name in names]


def total(results: Iterable[Mapping[str, float]]) -> Counter[str]:
    """Return the sums of the counts of simulations, by their names."""
    sums: Counter[str] = Counter()
    for counts in results:
        sums.update(counts)  # type: ignore[arg-type]
    return sums
