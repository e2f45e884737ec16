"""Reports that two sessions write, and what was measured before: by date, by cell, damaged."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.cli import main
from pytest_xlatune.ledger import ARCHIVED, LEDGER
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.plugin.controller import Controller
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.reports import locked, publish
from tests.helpers import scripted
from tests.helpers.scripted import FakeExecutor, campaign, run
from tests.helpers.waiting import LIMIT_S


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    made = campaign(tmp_path_factory.mktemp("ended"), FakeExecutor())
    run(made)
    return made


def test_who_writes_last_writes_what_the_ledger_says_then(tmp_path: Path) -> None:
    made = campaign(tmp_path, FakeExecutor())
    for _ in range(3):
        made.turn()
    reports = tmp_path / "reports"
    early = read_cell_report(made.folder)  # a session is over, and held up before it writes
    writer = threading.Thread(target=publish, args=(made.folder, reports))
    with locked(reports):  # one session writes at a time
        writer.start()
        run(made)  # meanwhile the sweep comes to its end
        assert list(reports.iterdir()) == []
    writer.join(LIMIT_S)
    late = markdown(read_cell_report(made.folder).document)
    assert (reports / "pretend" / "leaderboard.md").read_text(encoding="utf-8") == late
    # what the first read then is old by now
    leaderboard = publish(early.folder, reports, cell_report=early)[0]
    assert markdown(early.document) != late
    assert leaderboard.read_text(encoding="utf-8") == late
    assert not list(reports.glob("**/.*")), "no half of a file is left"


@pytest.mark.parametrize("kind", ["a pipe", "a link"])
@pytest.mark.parametrize("name", ["pretend/leaderboard.json", "pretend-tuning.json"])
def test_what_another_put_in_the_place_of_a_report_is_neither_waited_for_nor_followed(
    ended: Campaign, tmp_path: Path, name: str, kind: str
) -> None:
    reports, diary = tmp_path / "reports", tmp_path / "diary"
    at = reports / name
    (reports / "pretend").mkdir(parents=True)
    diary.write_text("dear diary", encoding="utf-8")
    if kind == "a pipe":
        os.mkfifo(at)
    else:
        at.symlink_to(diary)
    said: list[object] = []

    def writes() -> None:
        try:
            publish(ended.folder, reports)
        except LedgerError as error:
            said.append(error)

    writer = threading.Thread(target=writes, daemon=True)
    writer.start()
    writer.join(LIMIT_S)
    assert not writer.is_alive(), "it waits for who writes into the pipe"
    assert diary.read_text(encoding="utf-8") == "dear diary"
    if name == "pretend-tuning.json":
        assert "a link, a pipe" in str(said)
    else:
        assert stat.S_ISREG(at.lstat().st_mode), "the report took its place"


@pytest.mark.skipif(os.geteuid() != 0, reason="a link of another user is made by root")
@pytest.mark.parametrize("kind", ["a link", "a folder"])
def test_reports_of_another_user_are_refused_before_anything_is_written(
    ended: Campaign, tmp_path: Path, kind: str
) -> None:
    reports, theirs = tmp_path / "reports", tmp_path / "theirs"
    (theirs / "pretend").mkdir(parents=True)
    (theirs / "pretend" / "leaderboard.json").write_text("dear diary", encoding="utf-8")
    if kind == "a link":
        reports.symlink_to(theirs)
    else:
        theirs.rename(reports)
    os.chown(reports, 12345, 12345, follow_symlinks=False)
    with pytest.raises(LedgerError, match="reports"):
        publish(ended.folder, reports)
    (kept,) = (reports / "pretend").iterdir()
    assert kept.read_text(encoding="utf-8") == "dear diary"


def test_reports_are_written_where_the_umask_leaves_everything_open(
    ended: Campaign, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        publish(ended.folder, tmp_path / "reports")
    finally:
        os.umask(before)
    for folder in (tmp_path / "reports", tmp_path / "reports" / "pretend"):
        assert not stat.S_IMODE(folder.stat().st_mode) & stat.S_IWOTH


def test_folders_of_a_session_are_followed_once_their_names_are_whole(tmp_path: Path) -> None:
    nothing: Any = None
    options: Any = SimpleNamespace(workdir=tmp_path, reports=tmp_path / "reports")
    controller = Controller(nothing, options, "me", nothing)
    named = tmp_path / "sessions" / "me.txt"
    named.parent.mkdir()
    one, two = tmp_path / "s" / "one", tmp_path / "s" / "two"
    named.write_text(f"{one}\n{two}"[:-1], encoding="utf-8")
    assert controller._session_folders() == [one]
    with named.open("a", encoding="utf-8") as file:
        file.write(f"o\n{one}\n/elsewhere\n{tmp_path}/../up\n")
    assert controller._session_folders() == [one, two], "what leads elsewhere is no folder of ours"
    # a ledger that cannot be followed is said once
    one.mkdir(parents=True)
    (one / "ledger.jsonl").write_text("no ledger\n", encoding="utf-8")
    (said,) = controller._new_lines()
    assert "is not a ledger" in said
    assert list(controller._new_lines()) == []


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


def test_the_course_of_a_cell_says_what_changed(
    measured: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["history", str(measured), "--cell", "FSDP=4"]) == 0
    said = capsys.readouterr().out
    assert "image train:2" in said
    assert "PP=8" not in said
    shown = rows(capsys, str(measured), "--cell", "pretend FSDP=4")
    assert rows(capsys, "FSDP=4", "--workdir", str(measured)) == shown
    assert len(shown) == 2
    digest = str(shown[1]["cell_digest"])
    assert rows(capsys, str(measured), "--cell", digest[:6]) == shown[1:]


def test_what_is_not_there_is_named(measured: Path, tmp_path: Path, capsys: Said) -> None:
    assert main(["history", str(measured), "--cell", "pretend FSDP=5"]) == 2
    assert "pretend FSDP=4" in capsys.readouterr().err
    made = campaign(tmp_path, FakeExecutor())
    path = made.folder / LEDGER
    path.write_text(path.read_text("utf-8").replace('"study":"tuning"', '"study":"riddle"'))
    assert main(["history", str(tmp_path)]) == 3
    assert f"{path}: the ledger has a study 'riddle'" in capsys.readouterr().err


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
