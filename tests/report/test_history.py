"""What was measured before: all of it by date, and one cell over its sweeps."""

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
from tests.helpers.pages import read
from tests.helpers.scripted import FakeExecutor, campaign, run


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
        known = read_cell_report(Path(str(each["folder"])))
        best = known.conclusion.winner
        assert each["winner"] == (best.arm if best else None)
        assert each["delta"] == (best.delta if best else None)
        assert each["jobs"] == sum(len(result.job_ids) for result in known.history)
        assert each["complete"] == known.conclusion.complete
    assert [each["winner"] for each in found].count("fast") == 2


def test_a_ledger_that_was_moved_aside_is_listed_beside_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(campaign(tmp_path, FakeExecutor()))
    run(campaign(tmp_path, FakeExecutor(), session="second", fresh=True))
    (ledger,) = tmp_path.rglob(LEDGER)
    (aside,) = ledger.parent.glob(ARCHIVED)
    shown = {str(each["folder"]): each for each in rows(capsys, "history", str(tmp_path))}
    assert shown.keys() == {str(ledger.parent), str(aside)}
    assert shown[str(aside)]["winner"] == shown[str(ledger.parent)]["winner"] == "fast"


@pytest.mark.parametrize("name", ["pretend FSDP=4", "FSDP=4"])
def test_a_cell_is_shown_over_time_with_what_changed(
    name: str, measured: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["history", str(measured), "--cell", name]) == 0
    said = capsys.readouterr().out
    assert "image train:2" in said
    assert "do not compare." in said
    assert "PP=8" not in said
    shown = rows(capsys, "history", str(measured), "--cell", name)
    assert len(shown) == 2
    digest = str(shown[1]["cell_digest"])
    assert rows(capsys, "history", str(measured), "--cell", digest[:6]) == shown[1:]


def test_the_course_of_a_cell_is_a_page(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pages" / "course.html"
    assert main(["history", str(measured), "--cell", "FSDP=4", "--html", str(path)]) == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["history", str(measured), "--cell", "FSDP=4", "--html", str(pipe)]) == 2
    assert f"written: {path}" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    page = read(text)
    assert "Studies, the oldest first" in page.text
    assert "The reference over time" in page.text
    for each in rows(capsys, "history", str(measured), "--cell", "FSDP=4"):
        base = read_cell_report(Path(str(each["folder"]))).conclusion.baseline
        assert f"{base.tgs:.1f}" in text


def test_jobs_say_that_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = campaign(tmp_path, FakeExecutor())
    workdir = f"--workdir={made.folder.parents[1]}"
    for more in ([], ["--cancel"]):
        assert main(["jobs", workdir, *more]) == 0
        assert "no job was submitted" in capsys.readouterr().out
    run(made)
    assert main(["jobs", workdir]) == 0
    before = capsys.readouterr().out.splitlines()
    assert len(before) > 5
    assert all(len(each.split()) > 3 for each in before)
    assert main(["jobs", workdir, "--cancel"]) == 0
    *listed, last = capsys.readouterr().out.splitlines()
    assert listed == before
    assert last.startswith("no job to end")


def test_an_unknown_cell_names_those_that_are_there(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", str(measured), "--cell", "pretend FSDP=5"]) == 2
    assert "pretend FSDP=4" in capsys.readouterr().err
    assert main(["history", str(measured / "nowhere")]) == 2
    assert "no ledger.jsonl lies below" in capsys.readouterr().err


def test_a_damaged_ledger_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(campaign(tmp_path / "good", FakeExecutor()))
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
    assert main(["history", str(tmp_path), "--cell", "no-such-cell"]) == 2
    assert str(bad) in capsys.readouterr().err, "it may be the one that is asked for"


@pytest.mark.parametrize("text", ["", "{}\nno json\n{}\n"])
@pytest.mark.parametrize("argv", [("history",), ("history", "--cell", "pretend")])
def test_where_no_ledger_can_be_read_it_is_told_why(
    tmp_path: Path, text: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "pretend" / "cell"
    bad.mkdir(parents=True)
    (bad / LEDGER).write_text(text, encoding="utf-8")
    for more in ([], ["--json"]):
        assert main([*argv, str(tmp_path), *more]) == 3
        said = capsys.readouterr()
        assert str(bad) in said.err
        assert said.out == ""


def test_a_damaged_ledger_keeps_no_report_and_no_job_from_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = campaign(tmp_path, FakeExecutor())
    run(good)
    workdir = good.folder.parents[1]
    bad = workdir / "a-first-one" / "cell"  # before it by name
    bad.mkdir(parents=True)
    (bad / LEDGER).write_text("{}\nno json\n{}\n", encoding="utf-8")
    reports = tmp_path / "reports"
    assert main(["report", "--workdir", str(workdir), "--reports", str(reports)]) == 3
    assert str(bad) in capsys.readouterr().err
    assert (reports / "pretend-tuning.md").exists()
    assert main(["jobs", "--workdir", str(workdir)]) == 3
    said = capsys.readouterr()
    assert str(bad) in said.err
    assert len(said.out.splitlines()) == len(read_cell_report(good.folder).history)


def test_a_ledger_of_an_unknown_study_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = campaign(tmp_path, FakeExecutor())
    run(made)
    path = made.folder / LEDGER
    opened, rest = path.read_text("utf-8").split("\n", 1)
    path.write_text(opened.replace('"study":"tuning"', '"study":"riddle"') + "\n" + rest)
    assert main(["history", str(tmp_path)]) == 3
    assert f"{path}: the ledger has a study 'riddle'" in capsys.readouterr().err
