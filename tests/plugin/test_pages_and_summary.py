"""What a session leaves for a browser and for GitHub, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Folder


def test_without_jinja2_a_session_says_so_in_one_line(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("jinja2", monkeypatch)
    result = folder.run()
    result.assert_outcomes(passed=5, xfailed=1)
    said = result.stdout.str()
    assert said.count("no HTML page: jinja2 is not installed here") == 1
    assert "pytest-xlatune[page]" in said
    assert "written: reports/pretend/leaderboard.md" in said
    assert not list(folder.path.rglob("*.html"))


def test_an_export_that_cannot_be_had_is_told_at_the_end_as_well(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("mlflow", monkeypatch)
    said = folder.run("-q", "-k", "fast", "--xlatune-export", "csv,mlflow").stdout.str()
    assert (
        said.count("xlatune: export mlflow: the client of MLflow is not installed here") == 1
    )  # no header
    assert "written: reports/pretend/leaderboard.arms.csv" in said


def hide(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a module not installed."""
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == module else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
