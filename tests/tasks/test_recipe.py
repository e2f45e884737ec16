"""Recipes of another place: what is believed of a file, what is refused, what the gate says."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "reports" / "example" / "quickstart-tuning.json"
# of the committed example
SETTINGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=3"
TO = ("--to", str(ROOT / "sweeps" / "test_quickstart.py"))
Edit = Callable[[dict[str, Any]], object]


def edited(path: Path, edit: Edit) -> Path:
    data = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    edit(data["cells"][0])
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def with_secret(cell: dict[str, Any]) -> None:
    arm = cell["conclusion"]["verdicts"][0]["arm"]
    recipe = next(each for each in cell["profiles"] if each["id"] == arm)
    recipe["env"].update(HF_TOKEN="(hidden)")


WITHOUT_RECIPE: dict[str, tuple[Edit | bytes, str]] = {
    "not over": (lambda cell: cell["conclusion"].update(complete=False), "has 0 recipes"),
    "no winner": (
        lambda cell: cell["conclusion"]["verdicts"][0].update(kind="EQUIVALENT"), "has 0 recipes"),
    "a secret": (with_secret, "the value of HF_TOKEN is secret"),
    "no document": (b"{}", "is no tuning document"),
    "a newer one": (b'{"schema": 9, "cells": []}', "schema 9, this version reads 4"),
    "no cell": (b'{"schema": 4, "cells": []}', "by --cell: none"),
    "no text": (b"\xff\xfe", "is no tuning document"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WITHOUT_RECIPE.values(), ids=WITHOUT_RECIPE)
def test_a_file_without_a_recipe_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Edit | bytes, said: str
) -> None:
    path = tmp_path / "x-tuning.json"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        edited(path, change)
    assert main(["recipe", "apply", str(path), *TO]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (err.count("xlatune:"), out) == (1, "")


def test_no_text_of_a_file_becomes_code_of_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "sweeps", tmp_path / "sweeps", ignore=shutil.ignore_patterns("__py*"))
    to = tmp_path / "sweeps" / "test_quickstart.py"
    evil = 'a"""\n\x0cimport os\r\u2028os.abort()'
    path = edited(tmp_path / "x-tuning.json", lambda cell: cell["cells"][0].update(config_tag=evil))
    assert main(["recipe", "apply", str(path), "--to", str(to)]) == 0
    assert SETTINGS in capsys.readouterr().out
    text = to.with_name("test_quickstart_recipe.py").read_text(encoding="utf-8")
    kinds = [type(each).__name__ for each in ast.parse(text).body]
    imports = ["Import", "ImportFrom", "Import", "ImportFrom", "ImportFrom"]
    assert kinds == ["Expr", *imports, "Assign", "Assign", "FunctionDef"]
    assert main(["recipe", "apply", str(path), "--to", str(to)]) == 2
    assert "edited by hand" in capsys.readouterr().err
