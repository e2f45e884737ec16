"""A recipe of one sweep in a new place: the gate that `xlatune recipe apply` writes runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.prepare.lint import Linted
from tests.helpers.sessions import run_inside


def test_the_gate_of_a_recipe_passes_where_it_holds_and_fails_where_it_does_nothing(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.run().assert_outcomes(passed=5, xfailed=1)
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr("pytest_xlatune.tasks.recipe.lint", lambda *_: Linted())
    apply = ["recipe", "apply", "reports/pretend-tuning.json", "--to", "test_sweep.py"]
    assert main([*apply, "--workdir", ".xlatune"]) == 0
    gate = Path("test_sweep_recipe.py")
    done = run_inside(folder.pytester, str(gate))
    done.assert_outcomes(passed=1)
    gate.write_text(gate.read_text("utf-8").replace("--xla_fast=1", "--xla_other=1"), "utf-8")
    done = run_inside(folder.pytester, str(gate))
    done.assert_outcomes(failed=1)
    assert done.ret == 1
