"""A report in the formats of other programs, read by their own rules and parsers."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.metric import Figure, Metric
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.exports import FORMATS, Exported, check_exports, export_of, exported
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.settings import resolve_options
from pytest_xlatune.tasks.reports import publish
from tests.helpers.covered import BEGUN_SUBJECT
from tests.helpers.examples import tried
from tests.helpers.finished import CELL, FINISHED
from tests.helpers.guests import install
from tests.helpers.of_studies import batch, commit, network, nodes
from tests.helpers.scripted import FakeExecutor, campaign, run


def report_of(subject: MeasuredCell, **changes: Any) -> Exported:
    return replace(exported(leaderboard_json(subject), sweep="pp8", study="tuning"), **changes)


def texts(report: Exported, names: Iterable[str]) -> dict[str, str]:
    return {
        suffix: text
        for name in names
        for suffix, text in export_of(name).texts(report, key="k").items()
    }


def made(subject: MeasuredCell, name: str) -> str:
    (text,) = texts(report_of(subject), (name,)).values()
    return text


def check_github(text: str) -> list[dict[str, Any]]:
    """Read it as `extractCustomBenchmarkResult` of the action does, and what it then calls."""
    found: list[dict[str, Any]] = json.loads(text, parse_constant=pytest.fail)
    assert isinstance(found, list)
    for each in found:
        assert set(each) <= {"name", "value", "unit", "range", "extra"}
        assert isinstance(each["value"], int | float)
        assert each["value"] > 0, "a ratio to the value before is taken"
        assert all(isinstance(each[key], str) for key in ("name", "unit"))
    assert len({each["name"] for each in found}) == len(found), "a name is one line of the chart"
    return found


def told(subject: MeasuredCell) -> dict[str, dict[str, Any]]:
    """Arm -> its verdict in the JSON report: what all figures are held to."""
    conclusion = json.loads(leaderboard_json(subject))["conclusion"]
    lines = [*conclusion["verdicts"], *filter(None, [conclusion["reference"]])]
    return {each["arm"]: each for each in lines}


def tuning() -> MeasuredCell:
    return FINISHED


def begun() -> MeasuredCell:
    return BEGUN_SUBJECT


@pytest.mark.parametrize("subject_of", [tuning, begun, batch, nodes, network, commit])
def test_every_figure_is_that_of_the_json_report(subject_of: Callable[[], MeasuredCell]) -> None:
    subject = subject_of()
    verdicts = told(subject)
    label = subject.cell.label
    measured = {
        arm: each["figure"]["value"] if each.get("figure") else each["tgs"]
        for arm, each in verdicts.items()
        if each.get("figure") or each["tgs"] is not None
    }
    assert subject is BEGUN_SUBJECT or len(measured) > 1

    github = {each["name"]: each for each in check_github(made(subject, "github-benchmark"))}
    assert {name: each["value"] for name, each in github.items()} == {
        f"{label}: {arm}": value for arm, value in measured.items()
    }

    rows = list(csv.DictReader(io.StringIO(texts(report_of(subject), ("csv",))[".arms.csv"])))
    assert {each["arm"] for each in rows} == set(verdicts)
    for row in rows:
        own_arm = verdicts[row["arm"]]
        assert None not in row, "no field too many"
        assert row["verdict"] == own_arm["kind"]
        assert row["figure"] == repr_of(measured.get(row["arm"]))
        assert row["delta"] == repr_of(own_arm["delta"])
        assert row["n"] == str(own_arm["n"])
        assert [row["ci95_low"], row["ci95_high"]] == [
            repr_of(each) for each in own_arm["ci95"] or (None, None)
        ]


def repr_of(value: float | None) -> str:
    return "" if value is None else repr(value)


def test_a_table_has_a_row_for_each_trial() -> None:
    found = list(csv.DictReader(io.StringIO(texts(report_of(FINISHED), ("csv",))[".trials.csv"])))
    trials = {each["id"]: each for each in json.loads(leaderboard_json(FINISHED))["trials"]}
    assert [each["trial"] for each in found] == list(trials)
    for row in found:
        own = trials[row["trial"]]
        tgs = own["score"]["tgs"] if own["score"] else None
        assert row["figure"] == repr_of(tgs)
        assert row["job_ids"].split() == own["job_ids"]
        assert row["status"] == own["status"]
        assert row["cell_digest"] == CELL.digest


WAIT = Metric(name="field:wait", title="wait", unit="s", is_lower_better=True, field="wait")


def test_where_less_is_better_the_inverse_is_the_bigger_one() -> None:
    verdicts = (
        Verdict(arm="a", kind=VerdictKind.FASTER, n=3, figure=Figure(metric=WAIT, value=8.0)),
    )
    reference = Verdict(
        arm="b", kind=VerdictKind.EQUIVALENT, n=3, figure=Figure(metric=WAIT, value=10.0)
    )
    subject = replace(FINISHED, conclusion=Conclusion(verdicts=verdicts, reference=reference))
    better, base = check_github(made(subject, "github-benchmark"))
    assert (better["value"], better["unit"]) == (1 / 8.0, "1 / s")
    assert base["extra"] == "reference, n = 3"


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HARD = st.sampled_from(['"', "\\", "\n", "\\n", "\r", "\0", ",", "{", "}", "=", "'", "#", "\u2028"])
HOSTILE = st.lists(ANY_TEXT | HARD, max_size=6).map("".join)


@settings(max_examples=tried(40))
@given(
    arms=st.lists(HOSTILE.map("a{}z".format), min_size=1, max_size=4, unique=True),
    text=HOSTILE,
    value=st.floats(allow_nan=True, allow_infinity=True) | st.none(),
)
def test_names_and_texts_may_hold_any_character(
    arms: list[str], text: str, value: float | None
) -> None:
    verdicts = tuple(
        Verdict(
            arm=each,
            kind=VerdictKind.SCREENED,
            n=1,
            delta=value,
            ci95=(value, value) if value is not None else None,
            tgs=1.5,
            reasons=(verbatim(text),),
            job_ids=(text,),
        )
        for each in arms
    )
    report = report_of(
        FINISHED,
        sweep=text,
        cell=replace(CELL, config_tag=text),
        conclusion=Conclusion(verdicts=verdicts),
    )
    found = texts(report, FORMATS)
    for written in found.values():
        written.encode()
    rows = list(csv.DictReader(io.StringIO(found[".arms.csv"], newline="")))
    assert [printable(each["arm"]) for each in rows] == [*map(printable, arms)]
    kept = {printable(each[name]) for each in rows for name in ("reasons", "sweep")}
    assert kept == {printable(text)}
    check_github(found[".github-benchmark.json"])


@pytest.mark.parametrize(
    ("formats", "suffixes"),
    [
        ("github-benchmark", {".github-benchmark.json"}),
        ("csv", {".arms.csv", ".trials.csv"}),
    ],
)
def test_files_lie_beside_the_report(tmp_path: Path, formats: str, suffixes: set[str]) -> None:
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    workdir, reports = held.folder.parents[1], tmp_path / "reports"
    without = publish(held.folder, tmp_path / "without")
    argv = ["report", "--workdir", str(workdir), "--reports", str(reports), "--export", formats]
    assert main(argv) == 0
    there = {each.name for each in (reports / "pretend").iterdir()}
    before = {each.name for each in without if each.parent.name == "pretend"}
    assert there - before == {f"leaderboard{each}" for each in suffixes}
    text = (reports / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    report = exported(text, sweep="pretend", study="tuning")
    for suffix, expected in texts(report, formats.split(",")).items():
        path = reports / "pretend" / f"leaderboard{suffix}"
        assert path.read_bytes().decode() == expected


def test_no_export_shows_a_secret() -> None:
    for text in texts(report_of(FINISHED), FORMATS).values():
        assert "do-not-print-me" not in text


THEIRS = """\
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.exports import Export


class Board(Export):
    def check(self):
        raise ConfigError("export board: no board is there")

    def texts(self, report, *, key):
        return {".board.txt": report.study}
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A format of another distribution, which nothing here imports."""
    there = tmp_path / "theirs"
    group = {"board": "their_board:Board"}
    install(there, "their-board", {"pytest_xlatune.exports": group}, {"their_board": THEIRS})
    monkeypatch.syspath_prepend(there)
    yield
    sys.modules.pop("their_board", None)


@pytest.mark.usefixtures("board")
def test_a_format_of_another_distribution_is_written_beside_the_report(tmp_path: Path) -> None:
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    assert options("board,csv").export == ("board", "csv")
    assert "their_board" not in sys.modules, "a name needs no import"
    written = publish(held.folder, tmp_path / "reports", exports=("csv", "board"))
    assert written[-1].name == "leaderboard.board.txt"
    assert written[-1].read_text(encoding="utf-8") == "tuning"


@pytest.mark.usefixtures("board")
def test_a_format_that_cannot_be_written_is_told_before_anything_runs() -> None:
    check_exports(("csv",))
    assert "their_board" not in sys.modules
    with pytest.raises(ConfigError, match="no board is there"):
        check_exports(("board",))
    kept, (problem,) = check_exports(("csv", "board"))
    assert kept == ("csv",)
    assert "no board is there" in problem


def options(text: str) -> RunSettings:
    return resolve_options({"xlatune_export": text}, {}, {}, root=Path("/project"))


def test_formats_are_a_list_and_a_wrong_one_is_named() -> None:
    names = ("csv", "github-benchmark")
    assert options("csv, github-benchmark,csv").export == names
    assert options("").export == ()
    assert not {*FORMATS} ^ {*options("github-benchmark,csv").export}
    with pytest.raises(
        Exception, match=r"--xlatune-export: unknown format 'cvs' in the list; did you mean 'csv'"
    ):
        options("cvs")
