"""The plots of studies of cells show the figures of the JSON text, and nothing else."""

from __future__ import annotations

import json

import pytest

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.text import points
from pytest_xlatune.report.cell_documents import cell_document
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.report.page import html, page_of
from pytest_xlatune.report.page_plots import Tick, _side_by_side, forest
from tests.helpers import of_studies
from tests.helpers.pages import read


def test_the_matrix_of_pairs_has_the_changes_of_the_json() -> None:
    subject = of_studies.network()
    record = json.loads(leaderboard_json(subject))["conclusion"]["record"]
    text = html(page_of(cell_document(subject), subject))
    table = next(
        rows for rows in read(text).tables if "node001" in rows[0] and "change %" not in rows[0]
    )
    names = table[0][1:]
    assert names == sorted({name for cell in subject.cells for name in cell.nodelist})
    change = {frozenset(each["nodes"]): each["change"] for each in record["pairs"]}
    assert len(change) > 10
    for (one, *row), expected in zip(table[1:], names, strict=True):
        assert one == expected
        for other, cell in zip(names, row, strict=True):
            known = change.get(frozenset((one, other))) if one != other else None
            assert cell == ("" if known is None else points(known)), (one, other)


@pytest.mark.parametrize(
    ("places", "fits"),
    [((0, 50, 100), True), ((0, 88, 94, 100), False), ((), True), ((0, 1), False)],
    ids=["far apart", "neighbours touch on a phone", "no text", "two at one end"],
)
def test_texts_of_an_axis_stand_side_by_side_only_where_neighbours_have_room(
    places: tuple[float, ...], fits: bool
) -> None:
    ticks = [Tick(at=float(each), text="14") for each in places]
    assert _side_by_side(ticks, 36) is fits


def test_a_plot_says_of_a_row_against_what_it_is_where_its_title_does_not() -> None:
    found = of_studies.commit().conclusion
    (first,) = (each for each in found.verdicts if sentence(each.against) == "its parent")
    plot = forest(found)
    assert plot is not None
    assert plot.title == "Change of TGS against the first commit"
    names = [row.name for part in plot.parts for row in part.rows]
    assert f"{first.arm} change 7 against its parent" in names
    assert sum(" against " in each for each in names) == 1
