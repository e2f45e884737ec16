"""The measured tables of the cell studies reach the bars that prototypes set."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "docs/reference/error_rates.md"
Row = dict[str, str]


def rows_of(part: str) -> list[Row]:
    """The rows of the measured table of a part of the page, by column."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    measured = text.split(f"<!-- {part}: begin -->")[1].split(f"<!-- {part}: end -->")[0]
    lines = [line.strip("| ").split(" | ") for line in measured.splitlines() if line]
    rows = [[cell.strip() for cell in cells] for cells in lines]
    assert rows[2:], part
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


ACCUSED = "an innocent node or link is accused"
FALSE_NODE, FOUND, JOBS = "checks that accuse a healthy node", "slow nodes found", "jobs, mean"
LOST, OFTEN = "TGS lost against the best size, mean", "studies that lose more than 1 %"
OOM = "most"  # jobs out of memory
QUIET, PLAIN, BAD, WORSE = "0.3 %", "0.6 %", "0.6 %, 3 % bad jobs", "1.0 %, 3 % bad jobs"
SPREAD = {QUIET: "0.3 %, 0.2 %", PLAIN: "0.6 %, 0.4 %", BAD: "0.6 %, 0.4 %, 3 % bad jobs",
          WORSE: "1.0 %, 0.5 %, 3 % bad jobs"}  # fmt: skip
# What prototypes reached before there was a product: the row of the page's table begins with these
# cells, and the columns have at least, or of errors, losses and jobs at most, these figures.
Bars = dict[tuple[str, ...], dict[str, float]]
NODES: Bars = {
    **{("32", SPREAD[noise], "1 x -5 %"): {FOUND: found, FALSE_NODE: 0.3, JOBS: jobs}
       for noise, found, jobs in (
           (QUIET, 100, 52), (PLAIN, 100, 54), (BAD, 100, 58), (WORSE, 95, 56)
       )},
    **{("32", SPREAD[noise], "1 x -3 %"): {FOUND: found, FALSE_NODE: 0.3}
       for noise, found in ((QUIET, 99), (PLAIN, 72), (BAD, 52), (WORSE, 23))},
    **{("32", SPREAD[noise], "4 x -8 %"): {FOUND: 100, FALSE_NODE: 0.3, JOBS: 67}
       for noise in (QUIET, PLAIN, BAD, WORSE)},
    **{("32", SPREAD[noise], "all healthy"): {FALSE_NODE: 0.3, JOBS: jobs}
       for noise, jobs in ((QUIET, 34), (PLAIN, 44), (BAD, 51), (WORSE, 50))},
}  # fmt: skip
NETWORK: Bars = {
    **{(nodes, noise, truth): {"right": found, ACCUSED: 3 if nodes == "32" else wrong}
       for nodes, noise, wrong, bars in (
           ("8", PLAIN, 0, (100, 100, 100, 100)), ("16", PLAIN, 0, (100, 100, 100, 100)),
           ("32", PLAIN, 0, (100, 100, 100, 100)), ("8", BAD, 0.3, (100, 97, 99, 100)),
           ("32", BAD, 3, (100, 100, 99, 99.5)), ("8", WORSE, 1, (99, 81, 97, 99)),
           ("32", WORSE, 1, (100, 97, 92, 100)),
       )
       for truth, found in zip(
           ("node -5 %", "node -3 %", "link -5 %", "link -10 %"), bars, strict=True
       )},
    **{(nodes, noise, "none"): {ACCUSED: 1, JOBS: jobs}
       for nodes, noise, jobs in (
           ("8", PLAIN, 29), ("16", PLAIN, 125), ("32", PLAIN, 513), ("8", BAD, 32),
           ("32", BAD, 515), ("8", WORSE, 35), ("32", WORSE, 522),
       )},
}  # fmt: skip
TABLES: Bars = {
    **{(noise, truth): {"found": found, "tables that accuse falsely": 0.3}
       for noise, *bars in ((PLAIN, 100, 95), (BAD, 96, 78), (WORSE, 89, 43))
       for truth, found in zip(("-5 %", "-3 %"), bars, strict=True)},
    **{(noise, "no change"): {"tables that accuse falsely": 0.3, JOBS: 32}
       for noise in (PLAIN, BAD, WORSE)},
}  # fmt: skip
SEARCHES: Bars = {
    (commits, noise, truth): {"right": found, "wrong commit": 0.3}
    for commits in ("64", "16")
    for noise, *bars in ((PLAIN, 97, 99.9, 97, 97), (BAD, 77, 92, 97, 97), (WORSE, 41, 85, 97, 97))
    for truth, found in zip(("-2 %", "-3 %", "-5 %", "-10 %"), bars, strict=True)
}
SIZES: Bars = {
    **{(noise, "rough"): {JOBS: jobs, LOST: lost, OFTEN: often}
       for noise, jobs, lost, often in (
           (QUIET, 9.0, 0.04, 1.5), (PLAIN, 10.4, 0.06, 1.6), (WORSE, 12.2, 0.11, 3.4)
       )},
    **{(noise, before): {OOM: 1} for noise in (PLAIN, WORSE) for before in ("asked",)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "bars"),
    [
        ("nodes", NODES),
        ("network", NETWORK),
        ("commits by model", TABLES),
        ("commits", SEARCHES),
        ("batch sizes", SIZES),
    ],
)
def test_what_was_measured_reaches_the_bars(part: str, bars: Bars) -> None:
    rows = rows_of(part)
    for begins, figures in bars.items():
        (row,) = [each for each in rows if tuple(each.values())[: len(begins)] == begins]
        for column, bar in figures.items():
            value = float(row[column])
            share = min(max(bar, 0.2), 99.8) / 100
            error = 300 * math.sqrt(2 * share * (1 - share) / 1000)  # of the bar as of ours
            if column in ("found", "right", FOUND):
                reached = value >= bar - error
            elif column == JOBS:
                reached = value <= 1.1 * bar
            else:
                reached = value <= bar + (0 if column in (LOST, OOM) else error)
            assert reached, f"{' | '.join(begins)}: {column} is {value}, the bar {bar}"
