"""A command returns what it found, and one place prints it, as text, JSON, page or CSV."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import COMMANDS
from tests.helpers.source import MODULES, PACKAGE, nodes_of
from tests.project.test_architecture import said

CLI = PACKAGE / "cli"
# what commands share; each other is a command
SHELL = {"__init__", "parsers", "running", "show", "sweep_file"}
GUESTS = {"cvs", "megascale", "network"}  # theirs lie beside what they read
FILES = [each for each in sorted(CLI.glob("*.py")) if each.stem not in SHELL | GUESTS]
MOST_LINES = 150
# what turns a result into text, JSON, a page or CSV, and what writes files
RENDERERS = {
    "csv", "json", "tabulate", "pytest_xlatune.report.page", "pytest_xlatune.report.render",
    "pytest_xlatune.tasks.files.write_all",
}  # fmt: skip
WRITING = {"print", "write", "write_bytes", "write_text", "dump", "dumps"}


def name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def imported(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def printing(path: Path) -> list[str]:
    """The functions of a file that call `print`, once for each call."""
    return [
        function.name
        for function in nodes_of(path)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and name_of(node.func) == "print"
    ]


def wrong_in(path: Path) -> Iterator[str]:
    """Say what a command file does that is not its own."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MOST_LINES:
        yield f"{path.name} has {lines} lines: what is no command line matter goes to tasks/"
    for name in imported(path):
        if any(name == each or name.startswith(f"{each}.") for each in RENDERERS):
            yield f"{path.name} imports {name}: `cli.show` renders what a command returns"
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        called = name_of(node.func)
        # `runs.open` opens a campaign
        if called in WRITING or (called == "open" and isinstance(node.func, ast.Name)):
            yield f"{path.name}:{node.lineno} calls {called}: return it in an Output"


def runs(path: Path) -> dict[str, str]:
    """Command functions of a file, by what `set_defaults(run=...)` names, and what each returns."""
    named = {
        keyword.value.id
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and name_of(node.func) == "set_defaults"
        for keyword in node.keywords
        if keyword.arg == "run" and isinstance(keyword.value, ast.Name)
    }
    return {
        node.name: ast.unparse(node.returns) if node.returns else ""
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and node.name in named
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_command_file_is_short_and_returns_what_it_found(path: Path) -> None:
    assert list(wrong_in(path)) == []
    assert set(runs(path).values()) == {"Output"}


def test_one_function_prints() -> None:
    found = {path.name: printing(path) for path in sorted(CLI.glob("*.py")) if printing(path)}
    assert found == {"show.py": ["_say"]}


def test_no_file_lays_out_a_table_by_hand() -> None:
    found = {
        said(path)
        for path in MODULES
        if any(
            isinstance(node, ast.Attribute) and node.attr in {"ljust", "rjust"}
            for node in nodes_of(path)
        )
    }
    assert found == set()


def test_each_command_has_a_file_that_is_looked_at() -> None:
    looked_at = {each.stem for each in FILES} | GUESTS
    assert {file for file, _ in COMMANDS.values()} <= looked_at


def test_what_a_command_should_not_do_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import json\n\n\ndef _run(path):\n    print(json.dumps({}))\n    path.write_text('')\n\n\n"
        "def add_bad(parser):\n    parser.set_defaults(run=_run)\n",
        encoding="utf-8",
    )
    found = " ".join(wrong_in(path))
    assert all(each in found for each in ("imports json", "calls print", "calls write_text"))
    assert runs(path) == {"_run": ""}
