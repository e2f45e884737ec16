"""What was measured before: all of it by date, and one cell over its sweeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.tasks.publish import read_known
from tests.campaign import scripted
from tests.campaign.scripted import ScriptedExecutor, campaign, run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two projects: a cell measured with two images, and another parallelism that has begun."""
    root = tmp_path_factory.mktemp("projects")
    for project, image in (("one", "train:1"), ("two", "train:2")):
        run(campaign(root / project, ScriptedExecutor(), cell=replace(scripted.CELL, image=image)))
    axes = type(scripted.CELL.parallelism).parse("PP=8")
    begun = campaign(
        root / "three", ScriptedExecutor(), cell=replace(scripted.CELL, parallelism=axes)
    )
    begun.turn()
    return root


def rows(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert main([*argv, "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_everything_below_a_folder_is_listed_by_date(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(capsys, "history", str(measured))
    folders = sorted(path.parent for path in measured.rglob(LEDGER))
    assert sorted(str(each["folder"]) for each in found) == [str(each) for each in folders]
    assert [each["ended_s"] for each in found] == sorted(each["ended_s"] for each in found)  # type: ignore[type-var]
    for each in found:
        known = read_known(Path(str(each["folder"])))
        best = known.conclusion.winner
        assert each["winner"] == (best.arm if best else None)
        assert each["delta"] == (best.delta if best else None)
        assert each["jobs"] == sum(len(result.job_ids) for result in known.history)
        assert each["complete"] == known.conclusion.complete
    assert [each["winner"] for each in found].count("fast") == 2


def test_a_history_is_read_in_a_terminal(
    measured: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["history", str(measured)]) == 0
    said = capsys.readouterr().out
    jobs = sum(int(str(each["jobs"])) for each in rows(capsys, "history", str(measured)))
    assert "3 ledgers of 3 cells" in said
    assert f"Cost: {jobs} jobs" in said
    assert said.count("★ fast +10") == 2
    assert "pretend PP=8" in said


@pytest.mark.parametrize("name", ["pretend FSDP=4", "FSDP=4"])
def test_a_cell_is_shown_over_time_with_what_changed(
    name: str, measured: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", name, str(measured)]) == 0
    said = capsys.readouterr().out
    assert "pretend FSDP=4: its course" in said
    assert "image train:2" in said, "the second differs from the first in it"
    assert "References of cells that differ do not compare." in said
    assert "PP=8" not in said
    shown = rows(capsys, "show", name, str(measured))
    assert len(shown) == 2
    digest = str(shown[1]["cell_digest"])
    assert rows(capsys, "show", digest[:6], str(measured)) == shown[1:]


def test_an_unknown_cell_names_those_that_are_there(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "pretend FSDP=5", str(measured)]) == 2
    assert "pretend FSDP=4" in capsys.readouterr().err
    assert main(["history", str(measured / "nowhere")]) == 2
    assert "no ledger.jsonl lies below" in capsys.readouterr().err


def test_a_damaged_ledger_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(campaign(tmp_path / "good", ScriptedExecutor()))
    bad = tmp_path / "bad" / "pretend" / "cell"
    bad.mkdir(parents=True)
    (bad / LEDGER).write_text("{}\nno json\n{}\n", encoding="utf-8")
    (tmp_path / "empty" / "cell").mkdir(parents=True)
    (tmp_path / "empty" / "cell" / LEDGER).touch()
    assert main(["history", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert "1 ledger of 1 cell" in said.out
    assert said.err.count("not shown: ") == 2
    assert str(bad) in said.err
