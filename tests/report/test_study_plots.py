"""The plots of studies of cells show the figures of the JSON text, and nothing else.

The plot is read back from the page: a place becomes a figure again by the texts of the axis.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape
from statistics import fmean, median
from typing import Any

import pytest

from pytest_xlatune.model.text import percent, points, significant
from pytest_xlatune.report import Subject
from pytest_xlatune.report.cell_documents import batch, commits, network, nodes
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.report.page import html, page_of
from pytest_xlatune.report.page_plots import Tick, forest
from pytest_xlatune.report.study_plots import _side_by_side
from tests.helpers import of_studies
from tests.helpers.pages import read

Json = dict[str, Any]


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    looks: str
    said: str


@dataclass(frozen=True)
class Drawn:
    """A plot of runs as the page has it; `up` turns a place into what the axis says of it."""

    dots: tuple[Dot, ...]
    names: dict[str, float]  # text below the axis -> its place
    ups: tuple[tuple[float, float], ...]
    bands: tuple[tuple[float, float], ...]
    chances: dict[str, float]
    marks: dict[str, float]

    def up(self, place: float) -> float:
        (at, low), *_, (to, high) = self.ups
        return low + (place - at) * (high - low) / (to - at)

    @property
    def reach(self) -> float:
        """What one percent of the height is worth."""
        return abs(self.up(1.0) - self.up(0.0))


def drawn(text: str) -> Drawn:
    svg = re.findall(r'<div class="drift[^"]*"><svg role="img".*?</svg>', text, re.DOTALL)[0]
    number = r'="([-\d.]+)%"'
    dots = re.findall(
        rf'<circle class="dot ([^"]*)" cx{number} cy{number} r="\d"><title>(.*?)</title>', svg
    )
    below = re.findall(rf'<text class="below" x{number} [^>]*>(.*?)</text>', svg)
    ups = re.findall(rf'<text x="-8" y{number} [^>]*>([-+\d.]+)', svg)
    chances = re.findall(rf'class="chance" x1{number} .*? y1{number} .*?<title>(.*?): ', svg)
    marks = re.findall(rf'class="mark bad" x1{number}.*?<text [^>]*>(.*?)</text>', svg)
    bands = re.findall(rf'class="window.*?y{number} height{number}', svg)
    return Drawn(
        dots=tuple(Dot(float(x), float(y), looks, unescape(said)) for looks, x, y, said in dots),
        names={unescape(name): float(x) for x, name in below},
        ups=tuple(sorted((float(at), float(said)) for at, said in ups)),
        bands=tuple((float(top), float(high)) for top, high in bands),
        chances={name: 100 - float(y) for _, y, name in chances},
        marks={unescape(name): float(x) for x, name in marks},
    )


def shown(document: Callable[[Subject], Document], subject: Subject) -> tuple[str, Json]:
    told: Json = json.loads(leaderboard_json(subject))
    return html(page_of(document(subject), subject)), told


def scores(told: Json) -> dict[str, tuple[str, float, float]]:
    """Job -> its arm, the score and the TGS of the JSON text."""
    return {
        each["job_ids"][0]: (each["trial"]["arm"], each["score"]["value"], each["score"]["tgs"])
        for each in told["trials"]
        if each["score"] is not None
    }


def jobs_of(plot: Drawn) -> dict[str, Dot]:
    found = [
        (match[1], dot) for dot in plot.dots if (match := re.search(r", job (.*?): ", dot.said))
    ]
    assert max(Counter(job for job, _ in found).values()) == 1, "each job is one dot"
    return dict(found)


def test_the_strip_of_nodes_has_every_run_where_the_json_has_it() -> None:
    text, told = shown(nodes, of_studies.nodes())
    plot, runs = drawn(text), scores(told)
    dots = jobs_of(plot)
    assert dots.keys() == runs.keys()
    of_node: defaultdict[str, list[str]] = defaultdict(list)
    for each in told["trials"]:
        of_node[each["trial"]["arm"]].append(each["job_ids"][0])
    first = {arm: next(job for job in jobs if "-screen." in job) for arm, jobs in of_node.items()}
    level = median(runs[job][1] for job in first.values())
    kinds = {each["arm"]: each["kind"].lower() for each in told["conclusion"]["verdicts"]}
    for job, (arm, value, _) in runs.items():
        change = math.exp(value - level) - 1
        assert dots[job].x == plot.names[arm]
        assert plot.up(dots[job].y) == pytest.approx(100 * change, abs=plot.reach / 20)
        assert dots[job].said == f"{arm}, job {job}: {percent(change)}"
        is_first = job == first[arm]
        assert dots[job].looks.split()[:2] == ["run" if is_first else "fresh", kinds[arm]]
    sigma = 100 * told["conclusion"]["record"]["sigma"]
    for n, (top, high) in zip((2, 1), plot.bands, strict=True):
        assert plot.up(top) == pytest.approx(n * sigma, abs=plot.reach / 20)
        assert plot.up(top + high) == pytest.approx(-n * sigma, abs=plot.reach / 20)


def test_the_curve_of_batch_sizes_has_every_run_mean_and_ceiling_of_the_json() -> None:
    text, told = shown(batch, of_studies.batch())
    plot, runs = drawn(text), scores(told)
    assert len(runs) > 10
    dots = jobs_of(plot)
    assert dots.keys() == runs.keys()
    for job, (arm, _, tgs) in runs.items():
        assert dots[job].x == plot.names[arm.removeprefix("pdbs-")]
        assert plot.up(dots[job].y) == pytest.approx(tgs, abs=plot.reach / 20)
    means = {dot.said.partition(":")[0]: dot for dot in plot.dots if dot.looks != "run"}
    measured = {
        each["arm"].removeprefix("pdbs-"): each["tgs"]
        for each in told["conclusion"]["verdicts"]
        if each["tgs"] is not None
    }
    assert means.keys() == measured.keys()
    for value, tgs in measured.items():
        assert plot.up(means[value].y) == pytest.approx(tgs, abs=plot.reach / 20)
        assert f"{value}: {significant(tgs)} TGS" in means[value].said
    record = told["conclusion"]["record"]
    assert [name for name, dot in means.items() if dot.looks == "best"] == [record["value"]]
    assert plot.marks == {"did not fit": plot.names[record["unfit"]]}
    # the values stand on a logarithmic axis
    ends = sorted(measured, key=float)
    low, high = (plot.names[each] for each in (ends[0], ends[-1]))
    share = math.log(float(ends[1]) / float(ends[0])) / math.log(float(ends[-1]) / float(ends[0]))
    assert plot.names[ends[1]] == pytest.approx(low + share * (high - low), abs=0.1)


def test_the_series_of_commits_has_every_run_and_each_probability_of_the_json() -> None:
    text, told = shown(commits, of_studies.commit())
    plot, runs = drawn(text), scores(told)
    record = told["conclusion"]["record"]
    order = [each.partition(" ")[0] for each in record["commits"]]
    dots = jobs_of(plot)
    assert dots.keys() == runs.keys()
    level = fmean(value for arm, value, _ in runs.values() if arm.endswith(order[0]))
    width = (plot.names[str(len(order))] - plot.names["1"]) / (len(order) - 1)
    for job, (arm, value, _) in runs.items():
        change = math.exp(value - level) - 1
        at = order.index(arm.rpartition("-")[2])
        assert dots[job].x == pytest.approx(plot.names["1"] + at * width, abs=0.05)
        assert plot.up(dots[job].y) == pytest.approx(100 * change, abs=plot.reach / 20)
        assert dots[job].said == f"{arm}, job {job}: {percent(change)}"
    likely = dict(zip(order, record["chances"], strict=True))
    assert plot.chances.keys() == {name for name, chance in likely.items() if chance >= 0.001}
    for name, high in plot.chances.items():
        assert high == pytest.approx(100 * likely[name], abs=0.01)
    assert plot.marks.keys() == {record["first"], record["last"]} - {""}


def test_the_matrix_of_pairs_has_the_changes_of_the_json() -> None:
    text, told = shown(network, of_studies.network())
    table = next(
        rows for rows in read(text).tables if "node001" in rows[0] and "change %" not in rows[0]
    )
    names = table[0][1:]
    record = told["conclusion"]["record"]
    assert names == record["nodes"]
    change = {
        frozenset(each["nodes"]): each["delta"] if each["fresh"] is None else each["fresh"]
        for each in record["pairs"]
    }
    assert len(change) > 10
    for (one, *row), expected in zip(table[1:], names, strict=True):
        assert one == expected
        for other, cell in zip(names, row, strict=True):
            known = change.get(frozenset((one, other))) if one != other else None
            assert cell == ("" if known is None else points(known)), (one, other)


def test_a_dot_in_another_place_would_be_found() -> None:
    text, told = shown(batch, of_studies.batch())
    plot, runs = drawn(text), scores(told)
    moved = drawn(
        re.sub(r'(class="dot run" cx="[\d.]+%" cy=")[\d.]+', r"\g<1>50.00", text, count=1)
    )
    (dot,) = [each for each in moved.dots if each not in plot.dots]
    job = next(job for job, each in jobs_of(moved).items() if each is dot)
    assert abs(moved.up(dot.y) - runs[job][2]) > 2 * plot.reach


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
    (first,) = (each for each in found.verdicts if each.word == "FIRST BAD")
    plot = forest(found)
    assert plot is not None
    assert plot.title == "Change of TGS against the first commit"
    names = [row.name for part in plot.parts for row in part.rows]
    assert f"{first.arm} against its parent" in names
    assert sum(" against " in each for each in names) == 1
