"""A report in the formats of other programs, read by their own rules and parsers."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.metric import BUSBW, Figure
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.exports import FORMATS, Exported, export_of, exported
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.settings import resolve_options
from tests.helpers.finished import CELL, FINISHED
from tests.helpers.scripted import FakeExecutor, campaign, run
from tests.helpers.second_looks import tried

GITHUB = ".github-benchmark.json"


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


def test_each_trial_is_a_row_of_a_table() -> None:
    report = exported(leaderboard_json(FINISHED), sweep="pp8", study="tuning")
    found = texts(report)
    assert "do-not-print-me" not in str(found)
    for row, (trial_id, result) in zip(csv_rows(found[".trials.csv"]), report.trials, strict=True):
        assert (row["trial"], row["status"]) == (trial_id, result.status)
        assert row["figure"] == repr_of(result.score.tgs if result.score else None)
        assert row["job_ids"].split() == [*result.job_ids]
    github = {entry["name"]: entry["value"] for entry in check_github(found[GITHUB])}
    tgs = {f"{CELL.label}: {verdict.arm}": verdict.tgs for verdict in report.arms if verdict.tgs}
    assert github == tgs


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
    figure = Figure(metric=BUSBW, value=90.0)
    verdicts = tuple(replace(one, arm=arm, figure=figure) for arm in arms)
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
    for row in rows:
        assert {printable(row["reasons"]), printable(row["sweep"])} == {printable(text)}
        assert {row["delta"], row["ci95_low"], row["ci95_high"]} == {repr_of(value)}
        assert (row["verdict"], row["figure"], row["n"]) == ("SCREENED", "90.0", "1")
    for entry in check_github(found[GITHUB]):
        assert (entry["value"], entry["unit"]) == (90.0, "GB/s")


def test_files_lie_beside_the_report_and_without_a_client_nothing_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    reports = tmp_path / "reports"
    argv = ["report", str(held.folder), "--reports", str(reports), "--export"]
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        assert main([*argv, name]) == 2
        assert f"install pytest-xlatune[{name}]" in capsys.readouterr().err
        assert not reports.exists()
    assert main([*argv, "csv,github-benchmark"]) == 0
    text = (reports / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    for suffix, written in texts(exported(text, sweep="pretend", study="tuning")).items():
        assert (reports / "pretend" / f"leaderboard{suffix}").read_bytes().decode() == written


def test_formats_are_a_list_of_known_ones() -> None:
    def options(text: str) -> RunSettings:
        return resolve_options({"xlatune_export": text}, {}, {}, root=Path("/project"))

    assert options("csv, github-benchmark,csv").export == ("csv", "github-benchmark")
    with pytest.raises(ConfigError, match="unknown format 'cvs' in the list; did you mean 'csv'"):
        options("cvs")
