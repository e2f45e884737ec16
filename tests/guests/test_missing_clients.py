"""What an export says where its client is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.scripted import FakeExecutor, campaign, run


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_nothing_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    reports = tmp_path / "r"
    assert main(["report", str(held.folder), "--reports", str(reports), "--export", name]) == 2
    said = capsys.readouterr()
    assert f"install pytest-xlatune[{name}]" in said.err
    assert "--export" in said.err
    assert (said.out, reports.exists()) == ("", False)
