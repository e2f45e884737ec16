"""One result in each form that a command may have: text, JSON, CSV, a page, files, problems."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.cli.history import write_page
from pytest_xlatune.cli.show import Output, present
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.report.document import (
    Document,
    Table,
    Text,
    brief,
    columns,
    lines,
    literal,
    section,
)
from pytest_xlatune.report.render import markdown, terminal
from tests.helpers import scripted
from tests.helpers.pages import read

LONG = "a kernel's name " + "x" * 90
TABLE = Table(
    columns=columns("kernel", "family", ">ms"),
    rows=((literal(LONG), "gemm", "6.000"), ("copy", "", "-12.500")),
    compact=True,
)
QUICK = brief("Where time went", lines("  as it `stands`", "2"), TABLE, Text(text="a `word`"))
WHOLE = Document(title="A report", header=("of a cell",), sections=(section("Found", TABLE),))
VALUES = {"schema": 1, "ms": [6.0, -12.5]}


def given(*documents: Document, status: int = 0, problems: tuple[str, ...] = ()) -> Output:
    return Output(
        documents=documents,
        json=lambda: VALUES,
        source="traces",
        status=status,
        problems=problems,
    )


def asked(**said: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": False, "html": None, "write_page": write_page, **said})


def test_each_form_has_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert present(given(QUICK), asked()) == 0
    text = capsys.readouterr().out
    assert present(given(QUICK), asked(json=True)) == 0
    assert json.loads(capsys.readouterr().out) == VALUES
    page = tmp_path / "pages" / "drill.html"
    assert present(given(QUICK), asked(html=page)) == 0
    assert capsys.readouterr().out == f"{text}\nwritten: {page}\n"
    shown = read(page.read_text(encoding="utf-8"))
    assert shown.tables == [[["kernel", "family", "ms"], [LONG, "gemm", "6.000"], ["copy", "", "-12.500"]]]  # fmt: skip  # noqa: E501
    assert all(row[2] in text for row in shown.tables[0][1:])


def test_a_page_beside_json_leaves_the_document_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert present(given(WHOLE), asked(json=True, html=tmp_path / "a.html")) == 0
    assert json.loads(capsys.readouterr().out) == VALUES
    assert (tmp_path / "a.html").exists()


def test_a_terminal_shows_of_a_brief_document_its_blocks_and_breaks_no_row() -> None:
    assert terminal(QUICK, width=40) == [
        "  as it `stands`",
        "2",
        "",
        f"kernel{' ' * (len(LONG) - 4)}family       ms",
        f"{LONG}  gemm      6.000",
        f"copy{' ' * (len(LONG) - 2)}{' ' * 6}  -12.500",
        "",
        "a word",
    ]
    assert terminal(WHOLE, width=40)[:4] == ["A report", "  * of a cell", "", "Found"]
    assert markdown(QUICK).startswith(
        "# Where time went\n\n## Where time went\n\n* as it `stands`\n"
    )


def test_a_problem_goes_to_stderr_and_decides_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert present(given(QUICK, status=10), asked()) == 10
    assert present(given(QUICK, status=10, problems=("gone.log",)), asked()) == 2
    said = capsys.readouterr()
    assert said.err == "xlatune: gone.log\n"
    noted = Output(notes=("a copy",), problems=(), problem_status=Exit.INTERNAL)
    assert present(noted, asked()) == 0
    assert capsys.readouterr().err == "xlatune: a copy\n"


def test_no_page_is_written_of_what_was_not_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "cell.html"
    for json_too in (False, True):
        assert present(Output(problems=("unknown cell",)), asked(html=page, json=json_too)) == 2
        assert capsys.readouterr() == ("", "xlatune: unknown cell\n")
    assert not page.exists()


def test_what_was_found_is_shown_before_a_file_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def documents() -> Iterator[Document]:
        yield QUICK
        raise ConfigError("the disk is full")

    with pytest.raises(ConfigError):
        present(Output(documents=documents()), asked())
    assert "6.000" in capsys.readouterr().out


def test_files_are_written_whole_and_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gates" / "test_gate.py"
    present(
        Output(files={path: "SWEEP = 1\n"}, documents=(brief("Next", lines("run it")),)), asked()
    )
    assert path.read_text(encoding="utf-8") == "SWEEP = 1\n"
    assert [each.name for each in path.parent.iterdir()] == ["test_gate.py"]
    assert capsys.readouterr().out == f"written: {path}\nrun it\n"
    with pytest.raises(ConfigError, match="name another place"):
        present(Output(files={path / "below": "x"}), asked())


def test_a_report_of_a_ledger_is_named_by_its_path_and_may_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(made)
    monkeypatch.chdir(tmp_path)
    folder = str(made.folder)
    assert main(["report", folder, "--no-files"]) == 0
    assert "FASTER" in capsys.readouterr().out
    assert not (tmp_path / "reports").exists()
    assert main(["report", folder, folder, "--json"]) == 0
    assert [each["schema"] for each in json.loads(capsys.readouterr().out)] == [3, 3]
    assert not (tmp_path / "reports").exists()
    assert main(["report", folder, str(tmp_path / "gone"), "--json"]) == 3
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1, "a list where several were named"
    assert "gone does not exist" in said.err
    assert main(["report", folder, str(tmp_path / "gone"), folder]) == 3
    assert (tmp_path / "reports" / "pretend-tuning.md").exists()
