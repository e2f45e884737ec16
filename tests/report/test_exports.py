"""A report in the formats of other programs, read by their own rules and parsers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.exports import FORMATS, Exported, export_of, exported
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.settings import resolve_options
from tests.helpers.examples import tried
from tests.helpers.finished import BEGUN_SUBJECT, CELL, FINISHED
from tests.helpers.of_studies import subject as subject_of
from tests.helpers.scripted import FakeExecutor, campaign, run


def texts(report: Exported) -> dict[str, str]:
    """Suffix of a file -> its text, of all formats."""
    of_formats = [export_of(name).texts(report, key="k") for name in FORMATS]
    return {suffix: text for made in of_formats for suffix, text in made.items()}


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


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


def repr_of(value: float | None) -> str:
    return "" if value is None else repr(value)


@pytest.mark.parametrize(
    "subject", [FINISHED, BEGUN_SUBJECT, subject_of("batch"), subject_of("network")]
)
def test_every_figure_is_that_of_the_json_report(subject: MeasuredCell) -> None:
    board = json.loads(leaderboard_json(subject))
    conclusion = board["conclusion"]
    lines = [*conclusion["verdicts"], *filter(None, [conclusion["reference"]])]
    verdicts = {verdict["arm"]: verdict for verdict in lines}
    measured = {
        arm: verdict["figure"]["value"] if verdict.get("figure") else verdict["tgs"]
        for arm, verdict in verdicts.items()
        if verdict.get("figure") or verdict["tgs"] is not None
    }
    found = texts(exported(leaderboard_json(subject), sweep="pp8", study="tuning"))
    github = {each["name"]: each["value"] for each in check_github(found[".github-benchmark.json"])}
    assert github == {f"{subject.cell.label}: {arm}": value for arm, value in measured.items()}
    rows = csv_rows(found[".arms.csv"])
    assert {row["arm"] for row in rows} == set(verdicts)
    for row in rows:
        verdict = verdicts[row["arm"]]
        assert None not in row, "no field too many"
        assert row["verdict"] == verdict["kind"]
        assert row["figure"] == repr_of(measured.get(row["arm"]))
        assert row["delta"] == repr_of(verdict["delta"])
        low, high = verdict["ci95"] or (None, None)
        assert (row["ci95_low"], row["ci95_high"]) == (repr_of(low), repr_of(high))
    for row, trial in zip(csv_rows(found[".trials.csv"]), board["trials"], strict=True):
        assert row["trial"] == trial["id"]
        assert row["status"] == trial["status"]
        assert row["job_ids"].split() == trial["job_ids"]
        if subject is FINISHED:
            assert row["figure"] == repr_of(trial["score"] and trial["score"]["tgs"])
            assert row["cell_digest"] == CELL.digest
    assert "do-not-print-me" not in str(found)


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
    ends = (value, value) if value is not None else None
    one = Verdict(arm="", kind=VerdictKind.SCREENED, n=1, delta=value, ci95=ends, tgs=1.5)
    one = replace(one, reasons=(verbatim(text),), job_ids=(text,))
    verdicts = tuple(replace(one, arm=arm) for arm in arms)
    report = replace(
        exported(leaderboard_json(FINISHED), sweep="pp8", study="tuning"),
        sweep=text,
        cell=replace(CELL, config_tag=text),
        conclusion=Conclusion(verdicts=verdicts),
    )
    found = texts(report)
    for written in found.values():
        written.encode()
    rows = csv_rows(found[".arms.csv"])
    assert [printable(row["arm"]) for row in rows] == [*map(printable, arms)]
    kept = {printable(row[name]) for row in rows for name in ("reasons", "sweep")}
    assert kept == {printable(text)}
    check_github(found[".github-benchmark.json"])


def test_files_lie_beside_the_report(tmp_path: Path) -> None:
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    reports = tmp_path / "reports"
    argv = ["report", str(held.folder), "--reports", str(reports)]
    assert main(argv) == 0
    before = {path.name for path in (reports / "pretend").iterdir()}
    assert main([*argv, "--export", "csv,github-benchmark"]) == 0
    text = (reports / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    expected = texts(exported(text, sweep="pretend", study="tuning"))
    added = {path.name: path for path in (reports / "pretend").iterdir() if path.name not in before}
    read = {name: path.read_bytes().decode() for name, path in added.items()}
    assert read == {f"leaderboard{suffix}": written for suffix, written in expected.items()}


def test_formats_are_a_list_of_known_ones() -> None:
    def options(text: str) -> RunSettings:
        return resolve_options({"xlatune_export": text}, {}, {}, root=Path("/project"))

    assert options("csv, github-benchmark,csv").export == ("csv", "github-benchmark")
    with pytest.raises(ConfigError, match="unknown format 'cvs' in the list; did you mean 'csv'"):
        options("cvs")
