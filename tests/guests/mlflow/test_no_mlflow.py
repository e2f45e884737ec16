"""What the export to MLflow says where MLflow is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.scripted import FakeExecutor, campaign, run


def test_without_mlflow_nothing_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    workdir = str(held.folder.parents[1])
    argv = ["report", "--workdir", workdir, "--reports", str(tmp_path / "r"), "--export", "mlflow"]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert "install pytest-xlatune[mlflow]" in said.err
    assert "--export" in said.err
    assert said.out == ""
    assert not (tmp_path / "r").exists()
