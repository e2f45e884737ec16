"""A study's first page says how often it is wrong: the figures are those of its measured tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from pytest_xlatune.report.cell_documents import (
    BATCH_RATES,
    COMMIT_RATES,
    NETWORK_RATES,
    NODE_RATES,
)

ROOT = Path(__file__).parents[2]
PAGE = "docs/reference/error_rates.md"
Row = dict[str, str]


def tables_of(part: str) -> list[list[Row]]:
    """The measured tables of a part of the page, each as its rows by column."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    measured = text.split(f"<!-- {part}: begin -->")[1].split(f"<!-- {part}: end -->")[0]
    tables = []
    for block in measured.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
        if cells:
            tables.append([dict(zip(cells[0], each, strict=True)) for each in cells[2:]])
    assert tables, part
    return tables


def values(rows: Iterable[Row], column: str) -> list[float]:
    found = [float(each[column]) for each in rows if each[column] != "-"]
    assert found, column
    return found


def most(rows: Iterable[Row], column: str) -> str:
    return f"{max(values(rows, column)):.1f} %"


def span(rows: Iterable[Row], column: str) -> str:
    found = values(rows, column)
    least, most = f"{min(found):.1f}", f"{max(found):.1f}"
    return f"{most} %" if least == most else f"{least} to {most} %"


def of(rows: Sequence[Row], truth: str) -> list[Row]:
    return [each for each in rows if each["truth"] == truth]


def batch(tables: list[list[Row]]) -> str:
    def said(noise: str) -> tuple[str, str, str]:
        (row,) = [
            each
            for each in tables[0]
            if (each["noise of one job"], each["ceiling before"]) == (noise, "rough")
        ]
        return (
            row["TGS lost against the best size, mean"],
            row["studies that lose more than 1 %"],
            row["the best size is recommended or in the set"],
        )

    lost, often, held = said("0.6 %")
    worse = "{} %, {} % and {} %".format(*said("1.0 %, 3 % bad jobs"))
    return (
        f"In simulated studies of random curves the recommended size lost {lost} % of TGS on "
        f"average, and more than 1 % in {often} % of them, and the best size was recommended or "
        f"in the set in {held} % (a job's noise 0.6 %); with noise of 1.0 % and bad jobs {worse}."
    )


def nodes(tables: list[list[Row]]) -> str:
    (rows,) = tables
    counts = values(rows, "nodes")
    found = "slow nodes found"
    five, three = (span(of(rows, f"1 x {each} %"), found) for each in ("-5", "-3"))
    return (
        f"In simulated checks of {min(counts):.0f} to {max(counts):.0f} nodes a healthy node was "
        f"accused in at most {most(rows, 'checks that accuse a healthy node')} of the checks of a "
        f"kind; a node 5 % slower was found in {five}, one 3 % slower in {three}, by the noise "
        "of a job."
    )


def network(tables: list[list[Row]]) -> str:
    (rows,) = tables
    counts = [int(each["nodes"].partition(" ")[0]) for each in rows]  # "32 in 4 racks"
    innocent = most(rows, "an innocent node or link is accused")
    missed = most(rows, "said healthy, but is not")
    return (
        f"In simulated checks of {min(counts)} to {max(counts)} nodes an innocent node or "
        f"link was accused in at most {innocent} of the checks of a kind, and a slow one called "
        f"healthy in at most {missed}; a node 5 % slower was named in "
        f"{span(of(rows, 'node -5 %'), 'right')}, a link 5 % slower in "
        f"{span(of(rows, 'link -5 %'), 'right')}, by the noise of a job."
    )


def commits(tables: list[list[Row]]) -> str:
    loads, *searches = tables
    rows = [row for table in searches for row in table]
    changed = [row for row in rows if row["truth"] != "no change"]
    return (
        f"In simulated searches at most {most(changed, 'wrong commit')} named a wrong commit, and "
        f"at most {most(of(rows, 'no change'), 'wrong commit')} named one where nothing changed; "
        f"a loss of 3 % was found in {span(of(rows, '-3 %'), 'right')}, by the noise of a job. At "
        f"most {most(loads, 'tables that accuse falsely')} of simulated tables accused a load "
        "falsely."
    )


WRITTEN: dict[str, tuple[str, Callable[[list[list[Row]]], str]]] = {
    "batch sizes": (BATCH_RATES, batch),
    "nodes": (NODE_RATES, nodes),
    "network": (NETWORK_RATES, network),
    "commits": (COMMIT_RATES, commits),
}


@pytest.mark.parametrize("part", WRITTEN)
def test_the_rates_of_a_report_are_those_of_its_page(part: str) -> None:
    written, sentence = WRITTEN[part]
    expected = f"{sentence(tables_of(part)).removesuffix('.')} ({PAGE})."
    assert written == expected, f"the report must say: {expected}"


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
       for truth, found in zip(("1 x -5 %", "1 x -3 %"), bars, strict=True)},
    **{(noise, "no change"): {"tables that accuse falsely": 0.3, JOBS: 32}
       for noise in (PLAIN, BAD, WORSE)},
}  # fmt: skip
SEARCHES: Bars = {
    (noise, truth): {"right": found, "wrong commit": 0.3}
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
    ("part", "number", "bars"),
    [
        pytest.param("nodes", 0, NODES, id="nodes"),
        pytest.param("network", 0, NETWORK, id="network"),
        pytest.param("commits", 0, TABLES, id="tables of commits"),
        pytest.param("commits", 1, SEARCHES, id="searches of 64 commits"),
        pytest.param("commits", 2, SEARCHES, id="searches of 16 commits"),
        pytest.param("batch sizes", 0, SIZES, id="batch sizes"),
    ],
)
def test_what_was_measured_reaches_the_bars(part: str, number: int, bars: Bars) -> None:
    rows = tables_of(part)[number]
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
