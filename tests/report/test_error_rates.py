"""A study's first page says how often it is wrong: the figures are those of its measured tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from pytest_xlatune.report.batch_document import BATCH_RATES
from pytest_xlatune.report.study_documents import COMMIT_RATES, NETWORK_RATES, NODE_RATES

ROOT = Path(__file__).parents[2]
Row = dict[str, str]


def tables_of(page: str) -> list[list[Row]]:
    """The measured tables of a page, each as its rows by column."""
    text = (ROOT / page).read_text(encoding="utf-8")
    measured = text.split("<!-- measured: begin -->")[1].split("<!-- measured: end -->")[0]
    tables = []
    for block in measured.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
        if cells:
            tables.append([dict(zip(cells[0], each, strict=True)) for each in cells[2:]])
    assert tables, page
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
    counts = values(rows, "nodes")
    innocent = most(rows, "an innocent node or link is accused")
    missed = most(rows, "said healthy, but is not")
    return (
        f"In simulated checks of {min(counts):.0f} to {max(counts):.0f} nodes an innocent node or "
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
    "docs/batch.md": (BATCH_RATES, batch),
    "docs/nodes.md": (NODE_RATES, nodes),
    "docs/network_check.md": (NETWORK_RATES, network),
    "docs/commits.md": (COMMIT_RATES, commits),
}


@pytest.mark.parametrize("page", WRITTEN)
def test_the_rates_of_a_report_are_those_of_its_page(page: str) -> None:
    written, sentence = WRITTEN[page]
    expected = f"{sentence(tables_of(page)).removesuffix('.')} ({page})."
    assert written == expected, f"the report must say: {expected}"
