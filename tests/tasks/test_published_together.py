"""Two sessions that write one report or import one table: the last word is the ledger's."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.plugin.controller import Controller
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.reports import locked, publish
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
