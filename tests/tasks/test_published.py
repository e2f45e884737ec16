"""What people see: the page while a sweep runs, reports that two sessions write, the history."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.cli import main
from pytest_xlatune.ledger import ARCHIVED, LEDGER
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.plugin.controller import Controller
from pytest_xlatune.report.document import markdown
from pytest_xlatune.tasks import live
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.notify import Notifier, read_targets
from pytest_xlatune.tasks.reports import locked, publish
from tests.helpers import scripted
from tests.helpers.scripted import FakeExecutor, campaign, run
from tests.helpers.waiting import LIMIT_S


class Sweep:
    """A session on a sweep whose clock the test sets, and its page."""

    def __init__(self, folder: Path) -> None:
        self.at_s, self.reports = 1000.0, folder / "reports"
        self.campaign = campaign(folder, FakeExecutor(), clocks={"now": lambda: self.at_s})
        at = self.campaign.folder
        self.feed = LiveLines(at, self.reports, session_id="first", now=lambda: self.at_s)
        self.path = self.reports / "pretend" / "leaderboard.html"

    @property
    def page(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def after(self, seconds: float, *, turns: int = 1) -> str:
        self.at_s += seconds
        for _ in range(turns):
            self.campaign.turn()
        list(self.feed.news())
        return self.feed.write_page()


def test_a_page_is_written_once_a_minute_as_trials_land(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.after(1.0, turns=3)
    assert not sweep.path.exists(), "a session of seconds writes its end alone"
    sweep.after(60.0)
    first = sweep.page
    assert 'http-equiv="refresh"' in first
    sweep.after(30.0, turns=2)
    assert sweep.page == first
    sweep.after(30.0)
    data = json.loads(sweep.path.with_suffix(".json").read_text(encoding="utf-8"))
    assert len(data["trials"]) == len(sweep.campaign.view().history) > 2
    # a reader sees that the session is there, though no trial lands
    before = sweep.page
    sweep.after(61.0, turns=0)
    assert sweep.page != before
    publish(sweep.campaign.folder, sweep.reports)
    assert 'class="live"' in sweep.page, "it stands still"
    run(sweep.campaign)
    publish(sweep.campaign.folder, sweep.reports)
    assert "refresh" not in sweep.page


def test_a_page_that_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(live, "write_so_far", None)
        assert "'NoneType' object is not callable" in sweep.after(61.0)
        assert sweep.after(61.0) == ""
    sweep.reports.write_text("a file where the folder was to be", encoding="utf-8")
    assert "reports cannot be written" in sweep.after(61.0)
    assert sweep.after(61.0) == ""
    sweep.reports.unlink()
    assert sweep.after(61.0) == ""
    assert sweep.path.exists()


SECRET = "hush-hush-token"


def test_a_message_arrives_or_is_one_warning_and_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for target, says in (
        (f"nosuch://{SECRET}", "that Apprise knows"),
        (f"json://127.0.0.1:9/{SECRET}", "could not deliver"),
    ):
        notifier = Notifier((target,))
        warning = notifier.send("t\nb")
        assert says in warning
        assert SECRET not in warning + caplog.text + repr(notifier)
        assert notifier.send("t\nb") == ""
    sent: list[dict[str, str]] = []

    def notify(_: object, **message: str) -> bool:
        logging.getLogger("requests").warning(SECRET)
        sent.append(message)
        return True

    monkeypatch.setattr("apprise.Apprise.notify", notify)
    told = "halted\nReason: http://ada:hunter2hunter2@node"
    assert Notifier((f"json://127.0.0.1/{SECRET}",)).send(told) == ""
    assert sent == [{"title": "halted", "body": "Reason: http://(hidden)@node"}]
    assert SECRET not in caplog.text
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert Notifier(()).send("t\nb") == "", "it needs no Apprise"
    assert "pytest-xlatune[notify]" in Notifier(("json://x",)).send("t\nb")


def test_targets_come_from_the_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "targets"
    file.write_text("# the team's channel\n\n tgram://a/b \nmailto://c\n")
    environ = {"XLATUNE_NOTIFY_URL": "json://one json://two"}
    assert read_targets(environ, file) == ("tgram://a/b", "mailto://c")
    assert read_targets(environ) == ("json://one", "json://two")
    assert read_targets({}) == ()
    file.write_text("# no target\n")
    with pytest.raises(ConfigError, match="names no notification target"):
        read_targets({}, file)


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


def test_reports_are_closed_to_strangers_whatever_the_umask(
    ended: Campaign, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        publish(ended.folder, tmp_path / "reports")
    finally:
        os.umask(before)
    for name in ("reports", "reports/pretend"):
        assert not (tmp_path / name).stat().st_mode & stat.S_IWOTH


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
    if name == "pretend-tuning.json":
        with pytest.raises(LedgerError, match="a link, a pipe"):
            publish(ended.folder, reports)
    else:
        publish(ended.folder, reports)
        assert stat.S_ISREG(at.lstat().st_mode), "the report took its place"
    assert diary.read_text(encoding="utf-8") == "dear diary"


@pytest.mark.skipif(os.geteuid() != 0, reason="a link of another user is made by root")
@pytest.mark.parametrize("kind", ["a link", "a folder"])
def test_reports_of_another_user_are_refused_before_anything_is_written(
    ended: Campaign, tmp_path: Path, kind: str
) -> None:
    reports, theirs = tmp_path / "reports", tmp_path / "theirs"
    theirs.mkdir()
    if kind == "a link":
        reports.symlink_to(theirs)
    else:
        theirs.rename(reports)
    os.chown(reports, 12345, 12345, follow_symlinks=False)
    with pytest.raises(LedgerError, match="reports"):
        publish(ended.folder, reports)
    assert list(reports.iterdir()) == []


def test_folders_of_a_session_are_followed_once_their_names_are_whole(tmp_path: Path) -> None:
    options: Any = SimpleNamespace(workdir=tmp_path, reports=tmp_path / "reports")
    controller = Controller(None, options, "me", None)  # type: ignore[arg-type]
    named = tmp_path / "sessions" / "me.txt"
    named.parent.mkdir()
    one, two = tmp_path / "s" / "one", tmp_path / "s" / "two"
    named.write_text(f"{one}\n{two}"[:-1], encoding="utf-8")
    assert controller._session_folders() == [one]
    with named.open("a", encoding="utf-8") as file:
        file.write(f"o\n{one}\n/elsewhere\n{tmp_path}/../up\n")
    assert controller._session_folders() == [one, two], "what leads elsewhere is no folder of ours"
    damaged(one)
    assert [len(list(controller._new_lines())) for _ in range(2)] == [1, 0], "it is said once"


DAMAGED = "{}\nno json\n{}\n"
Said = pytest.CaptureFixture[str]


def damaged(folder: Path, text: str = DAMAGED) -> Path:
    """Write a ledger that cannot be read; return its folder."""
    folder.mkdir(parents=True)
    (folder / LEDGER).write_text(text, encoding="utf-8")
    return folder


def rows(capsys: Said, *argv: str) -> list[dict[str, Any]]:
    assert main(["history", *argv, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_what_was_measured_is_listed_by_date_and_the_course_of_a_cell_says_what_changed(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects: a cell measured with two images, and another parallelism that has begun."""
    for project, image in (("one", "train:1"), ("two", "train:2")):
        cell = replace(scripted.CELL, image=image)
        run(campaign(tmp_path / project, FakeExecutor(), cell=cell))
    axes = type(scripted.CELL.parallelism).parse("PP=8")
    cell = replace(scripted.CELL, parallelism=axes)
    campaign(tmp_path / "three", FakeExecutor(), cell=cell).turn()
    found = rows(capsys, str(tmp_path))
    folders = sorted(str(path.parent) for path in tmp_path.rglob(LEDGER))
    assert sorted(row["folder"] for row in found) == folders
    assert [row["ended_s"] for row in found] == sorted(row["ended_s"] for row in found)
    for row in found:
        known = read_cell_report(Path(row["folder"]))
        best = known.conclusion.winner
        assert (row["winner"], row["delta"]) == ((best.arm, best.delta) if best else (None, None))
        assert row["jobs"] == sum(len(result.job_ids) for result in known.history)
    assert [row["winner"] for row in found].count("fast") == 2

    monkeypatch.setenv("COLUMNS", "200")
    assert main(["history", str(tmp_path), "--cell", "FSDP=4"]) == 0
    said = capsys.readouterr().out
    assert "image train:2" in said
    assert "PP=8" not in said
    shown = rows(capsys, "FSDP=4", "--workdir", str(tmp_path))
    assert len(shown) == 2
    assert rows(capsys, str(tmp_path), "--cell", shown[1]["cell_digest"][:6]) == shown[1:]
    assert main(["history", str(tmp_path), "--cell", "pretend FSDP=5"]) == 2
    assert "pretend FSDP=4" in capsys.readouterr().err


def test_a_ledger_that_was_moved_aside_is_listed_and_one_of_no_known_study_is_said(
    tmp_path: Path, capsys: Said
) -> None:
    run(campaign(tmp_path, FakeExecutor()))
    run(campaign(tmp_path, FakeExecutor(), session="second", fresh=True))
    (ledger,) = tmp_path.rglob(LEDGER)
    (aside,) = ledger.parent.glob(ARCHIVED)
    shown = {row["folder"]: row["winner"] for row in rows(capsys, str(tmp_path))}
    assert shown == {str(ledger.parent): "fast", str(aside): "fast"}
    ledger.write_text(ledger.read_text("utf-8").replace('"study":"tuning"', '"study":"riddle"', 1))
    assert main(["history", str(tmp_path)]) == 3
    assert f"{ledger}: the ledger has a study 'riddle'" in capsys.readouterr().err


def test_a_damaged_ledger_hides_no_other(tmp_path: Path, capsys: Said) -> None:
    good = campaign(tmp_path, FakeExecutor())
    run(good)
    workdir, reports = good.folder.parents[1], tmp_path / "reports"
    bad = damaged(workdir / "a-first-one" / "cell")  # before it by name
    damaged(workdir / "empty" / "cell", "")
    trials = len(read_cell_report(good.folder).history)
    for argv, status, shown, times in (
        (["report", "--workdir", workdir, "--reports", reports], 3, "★ fast is faster", 1),
        (["jobs", "--workdir", workdir], 3, "completed", trials),
        (["history", workdir], 3, "1 ledger of 1 cell", 1),
        (["history", workdir, "--cell", "no-such-cell"], 2, "ledger", 0),  # it may be this one
        (["history", bad, "--json"], 3, "{", 0),
    ):
        assert main(list(map(str, argv))) == status
        said = capsys.readouterr()
        assert str(bad) in said.err
        assert said.out.count(shown) == times
    assert (reports / "pretend-tuning.md").exists()
