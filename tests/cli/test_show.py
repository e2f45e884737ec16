"""One result in each form that a command may have: text, JSON, CSV, a page, files, problems."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.cli.history import write_page
from pytest_xlatune.cli.show import Output, present
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.report.document import (
    Table,
    Text,
    brief,
    columns,
    lines,
    literal,
)
from tests.helpers import scripted
from tests.helpers.pages import read

LONG = "a kernel's name " + "x" * 90
TABLE = Table(
    columns=columns("kernel", "family", ">ms"),
    rows=((literal(LONG), "gemm", "6.000"), ("copy", "", "-12.500")),
    compact=True,
)
QUICK = brief("Where time went", lines("  as it `stands`", "2"), TABLE, Text(text="a `word`"))
VALUES = {"schema": 1, "ms": [6.0, -12.5]}
FOUND = Output(documents=(QUICK,), json=lambda: VALUES, source="traces")
Said = pytest.CaptureFixture[str]


def asked(*, is_json: bool = False, html: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(json=is_json, html=html, write_page=write_page)


def test_each_form_has_the_same_figures(tmp_path: Path, capsys: Said) -> None:
    assert present(FOUND, asked()) == 0
    text = capsys.readouterr().out
    page = tmp_path / "pages" / "drill.html"
    assert present(FOUND, asked(is_json=True, html=page)) == 0
    assert json.loads(capsys.readouterr().out) == VALUES, "a page leaves the document alone"
    assert present(FOUND, asked(html=page)) == 0
    assert capsys.readouterr().out == f"{text}\nwritten: {page}\n"
    (table,) = read(page.read_text(encoding="utf-8")).tables
    rows = [[LONG, "gemm", "6.000"], ["copy", "", "-12.500"]]
    assert table == [["kernel", "family", "ms"], *rows]
    assert all(row[2] in text for row in rows)


def test_a_problem_goes_to_stderr_and_decides_the_status(tmp_path: Path, capsys: Said) -> None:
    page = tmp_path / "cell.html"
    for output, status, said in (
        (Output(documents=(QUICK,), status=10), 10, ""),
        (Output(documents=(QUICK,), status=10, problems=("gone.log",)), 2, "gone.log"),
        (Output(notes=("a copy",), problem_status=Exit.INTERNAL), 0, "a copy"),
        (Output(problems=("unknown cell",)), 2, "unknown cell"),
    ):
        assert present(output, asked(html=None if output.documents else page)) == status
        out, err = capsys.readouterr()
        assert bool(out) == bool(output.documents)
        assert err == (f"xlatune: {said}\n" if said else "")
    assert not page.exists(), "no page is written of what was not found"


def test_a_report_of_a_ledger_is_named_by_its_path_and_may_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    made = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(made)
    monkeypatch.chdir(tmp_path)
    folder, gone = str(made.folder), str(tmp_path / "gone")
    assert main(["report", folder, "--no-files"]) == 0
    assert "FASTER" in capsys.readouterr().out
    assert main(["report", folder, folder, "--json"]) == 0
    assert [report["schema"] for report in json.loads(capsys.readouterr().out)] == [3, 3]
    assert main(["report", folder, gone, "--json"]) == 3
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1, "a list where several were named"
    assert "gone does not exist" in said.err
    assert not (tmp_path / "reports").exists()
    assert main(["report", folder, gone, folder]) == 3
    assert (tmp_path / "reports" / "pretend-tuning.md").exists()
