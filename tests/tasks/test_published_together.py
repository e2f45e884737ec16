"""Two sessions that write one report or import one table: the last word is the ledger's."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.plugin.controller import Controller
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.reports import locked, publish
from tests.helpers.scripted import FakeExecutor, campaign, run
from tests.helpers.waiting import LIMIT_S


def test_who_writes_last_writes_what_the_ledger_says_then(tmp_path: Path) -> None:
    each = campaign(tmp_path, FakeExecutor())
    for _ in range(3):
        each.turn()
    early = read_cell_report(each.folder)  # a session is over, and held up before it writes
    run(each)
    late = read_cell_report(each.folder)
    publish(late.folder, tmp_path / "reports", cell_report=late)
    # what it read then is old by now
    leaderboard = publish(early.folder, tmp_path / "reports", cell_report=early)[0]
    assert markdown(early.document) != markdown(late.document)
    assert leaderboard.read_text(encoding="utf-8") == markdown(late.document)
    assert not list(tmp_path.glob("reports/**/.*")), "no half of a file is left"


def test_one_session_writes_at_a_time(tmp_path: Path) -> None:
    each = campaign(tmp_path, FakeExecutor())
    each.turn()
    reports = tmp_path / "reports"
    writer = threading.Thread(target=publish, args=(each.folder, reports))
    with locked(reports):
        writer.start()
        run(each)  # meanwhile the sweep comes to its end
        assert list(reports.iterdir()) == []
    writer.join(LIMIT_S)
    written = (reports / "pretend" / "leaderboard.md").read_text(encoding="utf-8")
    assert written == markdown(read_cell_report(each.folder).document)


@pytest.mark.parametrize("kind", ["a pipe", "a link"])
@pytest.mark.parametrize(
    "name",
    [
        *("pretend/leaderboard.md", "pretend/leaderboard.json"),
        *("pretend-tuning.md", "pretend-tuning.json"),
    ],
)
def test_what_another_put_in_the_place_of_a_report_is_neither_waited_for_nor_followed(
    tmp_path: Path, name: str, kind: str
) -> None:
    each = campaign(tmp_path, FakeExecutor())
    run(each)
    reports, kept = tmp_path / "reports", tmp_path / "diary"
    at = reports / name
    (reports / "pretend").mkdir(parents=True)
    kept.write_text("dear diary", encoding="utf-8")
    if kind == "a pipe":
        os.mkfifo(at)
    else:
        at.symlink_to(kept)
    said: list[object] = []

    def writes() -> None:
        try:
            publish(each.folder, reports)
        except LedgerError as error:
            said.append(error)

    writer = threading.Thread(target=writes, daemon=True)
    writer.start()
    writer.join(LIMIT_S)
    assert not writer.is_alive(), "it waits for who writes into the pipe"
    assert kept.read_text(encoding="utf-8") == "dear diary"
    if name == "pretend-tuning.json":
        assert "a link, a pipe" in str(said)
    else:
        assert stat.S_ISREG(at.lstat().st_mode), "the report took its place"


@pytest.mark.skipif(os.geteuid() != 0, reason="a link of another user is made by root")
@pytest.mark.parametrize("kind", ["a link", "a folder"])
def test_reports_of_another_user_are_refused_before_anything_is_written(
    tmp_path: Path, kind: str
) -> None:
    each = campaign(tmp_path, FakeExecutor())
    run(each)
    reports, theirs = tmp_path / "reports", tmp_path / "theirs"
    (theirs / "pretend").mkdir(parents=True)
    kept = theirs / "pretend" / "leaderboard.json"
    kept.write_text("dear diary", encoding="utf-8")
    if kind == "a link":
        reports.symlink_to(theirs)
    else:
        theirs.rename(reports)
        kept = reports / "pretend" / "leaderboard.json"
    os.chown(reports, 12345, 12345, follow_symlinks=False)
    with pytest.raises(LedgerError, match="reports"):
        publish(each.folder, reports)
    assert kept.read_text(encoding="utf-8") == "dear diary"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_reports_are_written_where_the_umask_leaves_everything_open(tmp_path: Path) -> None:
    each = campaign(tmp_path, FakeExecutor())
    run(each)
    before = os.umask(0)
    try:
        publish(each.folder, tmp_path / "reports")
    finally:
        os.umask(before)
    for folder in (tmp_path / "reports", tmp_path / "reports" / "pretend"):
        assert not stat.S_IMODE(folder.stat().st_mode) & stat.S_IWOTH


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    """The controller of a session `me`, with its list of folders and nothing else."""

    class Said:
        workdir, reports = tmp_path, tmp_path / "reports"

    options: Any = Said()
    nothing: Any = None
    (tmp_path / "sessions").mkdir()
    return Controller(nothing, options, "me", nothing)


def test_half_a_written_name_is_no_folder_yet(controller: Controller, tmp_path: Path) -> None:
    named = tmp_path / "sessions" / "me.txt"
    one, two = tmp_path / "s" / "one", tmp_path / "s" / "two"
    named.write_text(f"{one}\n{two}"[:-1], encoding="utf-8")
    assert controller._session_folders() == [one]
    with named.open("a", encoding="utf-8") as file:
        file.write(f"o\n{one}\n/elsewhere\n{tmp_path}/../up\n")
    assert controller._session_folders() == [one, two], "what leads elsewhere is no folder of ours"


def test_a_ledger_that_cannot_be_followed_is_said_once(
    controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "sessions" / "me.txt").write_text(f"{tmp_path}\n", encoding="utf-8")
    (tmp_path / "ledger.jsonl").write_text("no ledger\n", encoding="utf-8")
    (said,) = controller._new_lines()
    assert "is not a ledger" in said
    assert list(controller._new_lines()) == []
