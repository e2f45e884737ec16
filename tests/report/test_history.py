"""What was measured before: all of it by date, one cell over its sweeps, damaged ledgers, jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import ARCHIVED, LEDGER
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers import scripted
from tests.helpers.scripted import FakeExecutor, campaign, run

DAMAGED = "{}\nno json\n{}\n"
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two projects: a cell measured with two images, and another parallelism that has begun."""
    root = tmp_path_factory.mktemp("projects")
    for project, image in (("one", "train:1"), ("two", "train:2")):
        run(campaign(root / project, FakeExecutor(), cell=replace(scripted.CELL, image=image)))
    axes = type(scripted.CELL.parallelism).parse("PP=8")
    begun = campaign(root / "three", FakeExecutor(), cell=replace(scripted.CELL, parallelism=axes))
    begun.turn()
    return root


def rows(capsys: Said, *argv: str) -> list[dict[str, object]]:
    assert main(["history", *argv, "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def damaged(folder: Path, text: str = DAMAGED) -> Path:
    """Write a ledger that cannot be read; return its folder."""
    folder.mkdir(parents=True)
    (folder / LEDGER).write_text(text, encoding="utf-8")
    return folder


def test_everything_below_a_folder_is_listed_by_date(measured: Path, capsys: Said) -> None:
    found = rows(capsys, str(measured))
    folders = sorted(str(path.parent) for path in measured.rglob(LEDGER))
    assert sorted(str(row["folder"]) for row in found) == folders
    assert [row["ended_s"] for row in found] == sorted(float(str(row["ended_s"])) for row in found)
    for row in found:
        known = read_cell_report(Path(str(row["folder"])))
        best = known.conclusion.winner
        assert (row["winner"], row["delta"]) == ((best.arm, best.delta) if best else (None, None))
        assert row["jobs"] == sum(len(result.job_ids) for result in known.history)
    assert [row["winner"] for row in found].count("fast") == 2


def test_a_ledger_that_was_moved_aside_is_listed_beside_the_new_one(
    tmp_path: Path, capsys: Said
) -> None:
    run(campaign(tmp_path, FakeExecutor()))
    run(campaign(tmp_path, FakeExecutor(), session="second", fresh=True))
    (ledger,) = tmp_path.rglob(LEDGER)
    (aside,) = ledger.parent.glob(ARCHIVED)
    shown = {str(row["folder"]): row["winner"] for row in rows(capsys, str(tmp_path))}
    assert shown == {str(ledger.parent): "fast", str(aside): "fast"}


def test_the_course_of_a_cell_says_what_changed_and_is_a_page(
    measured: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "pages" / "course.html"
    assert main(["history", str(measured), "--cell", "FSDP=4", "--html", str(path)]) == 0
    said = capsys.readouterr().out
    assert "image train:2" in said
    assert "PP=8" not in said
    shown = rows(capsys, str(measured), "--cell", "pretend FSDP=4")
    assert rows(capsys, "FSDP=4", "--workdir", str(measured)) == shown
    assert len(shown) == 2
    digest = str(shown[1]["cell_digest"])
    assert rows(capsys, str(measured), "--cell", digest[:6]) == shown[1:]
    text = path.read_text(encoding="utf-8")
    base = read_cell_report(Path(str(shown[0]["folder"]))).conclusion.baseline
    assert f"{base.tgs:.1f}" in text
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["history", str(measured), "--cell", "FSDP=4", "--html", str(pipe)]) == 2


def test_what_is_not_there_is_named(measured: Path, tmp_path: Path, capsys: Said) -> None:
    assert main(["history", str(measured), "--cell", "pretend FSDP=5"]) == 2
    assert "pretend FSDP=4" in capsys.readouterr().err
    made = campaign(tmp_path, FakeExecutor())
    path = made.folder / LEDGER
    path.write_text(path.read_text("utf-8").replace('"study":"tuning"', '"study":"riddle"'))
    assert main(["history", str(tmp_path)]) == 3
    assert f"{path}: the ledger has a study 'riddle'" in capsys.readouterr().err


def test_jobs_say_that_there_are_none(tmp_path: Path, capsys: Said) -> None:
    made = campaign(tmp_path, FakeExecutor())
    workdir = f"--workdir={made.folder.parents[1]}"
    assert main(["jobs", workdir, "--cancel"]) == 0
    assert "no job was submitted" in capsys.readouterr().out
    run(made)
    assert main(["jobs", workdir]) == 0
    before = capsys.readouterr().out.splitlines()
    assert len(before) > 5
    assert main(["jobs", workdir, "--cancel"]) == 0
    *listed, last = capsys.readouterr().out.splitlines()
    assert listed == before
    assert last.startswith("no job to end")


def test_a_damaged_ledger_hides_no_other(tmp_path: Path, capsys: Said) -> None:
    good = campaign(tmp_path, FakeExecutor())
    run(good)
    workdir = good.folder.parents[1]
    bad = damaged(workdir / "a-first-one" / "cell")  # before it by name
    reports = tmp_path / "reports"
    assert main(["report", "--workdir", str(workdir), "--reports", str(reports)]) == 3
    assert str(bad) in capsys.readouterr().err
    assert (reports / "pretend-tuning.md").exists()
    assert main(["jobs", "--workdir", str(workdir)]) == 3
    said = capsys.readouterr()
    assert str(bad) in said.err
    assert len(said.out.splitlines()) == len(read_cell_report(good.folder).history)
    damaged(workdir / "empty" / "cell", "")
    assert main(["history", str(workdir)]) == 3
    said = capsys.readouterr()
    assert "1 ledger of 1 cell" in said.out
    assert said.err.count("not shown: ") == 2
    assert str(bad) in said.err
    assert main(["history", str(workdir), "--cell", "no-such-cell"]) == 2
    assert str(bad) in capsys.readouterr().err, "it may be the one that is asked for"
    assert main(["history", str(bad), "--json"]) == 3
    said = capsys.readouterr()
    assert (str(bad) in said.err, said.out) == (True, "")
