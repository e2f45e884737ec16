"""What the export to Weights & Biases says where its client is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.scripted import FakeExecutor, campaign, run


def test_the_others_are_written_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    work, reports = str(held.folder.parents[1]), tmp_path / "r"
    argv = ["report", "--workdir", work, "--reports", str(reports), "--export"]
    assert main([*argv, "wandb"]) == 2
    assert not reports.exists()
    assert "install pytest-xlatune[wandb]" in capsys.readouterr().err
    assert main([*argv, "wandb,csv"]) != 0
    assert (reports / "pretend" / "leaderboard.arms.csv").exists()
    said = capsys.readouterr().err
    assert said.count("export wandb: the client") == 1
