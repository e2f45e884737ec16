"""What people see while a sweep runs: its page, the screen of several sweeps, messages."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.tasks import live_page
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.live_page import LivePage
from pytest_xlatune.tasks.notify import Notifier, read_targets
from pytest_xlatune.tasks.reports import publish
from pytest_xlatune.tasks.watch import CellState, CellStatus, screen_lines
from tests.helpers.scripted import FakeExecutor, campaign, run


class Sweep:
    """A session on a sweep whose clock the test sets, and its page."""

    def __init__(self, folder: Path) -> None:
        self.at_s, self.reports = 1000.0, folder / "reports"
        self.campaign = campaign(folder, FakeExecutor(), clocks={"now": lambda: self.at_s})
        at = self.campaign.folder
        self.feed = LiveLines(at, session_id="first", now=lambda: self.at_s)
        self.live = LivePage(at, self.reports, self.feed, now=lambda: self.at_s)
        self.path = self.reports / "pretend" / "leaderboard.html"

    @property
    def page(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def after(self, seconds: float, *, turns: int = 1) -> str:
        self.at_s += seconds
        for _ in range(turns):
            self.campaign.turn()
        return self.live.refresh(is_news=bool(list(self.feed.news())))


def test_a_page_is_written_as_trials_land_at_most_every_30_seconds(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.after(1.0, turns=3)
    assert not sweep.path.exists(), "a session of seconds writes its end alone"
    sweep.after(30.0)
    first = sweep.page
    assert 'http-equiv="refresh"' in first
    sweep.after(15.0, turns=2)
    assert sweep.page == first
    sweep.after(15.0)
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

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("1 / 0")

    with monkeypatch.context() as patched:
        patched.setattr(live_page, "write_so_far", broken)
        assert "1 / 0" in sweep.after(31.0)
        assert sweep.after(31.0) == ""
    sweep.reports.write_text("a file where the folder was to be", encoding="utf-8")
    assert "reports cannot be written" in sweep.after(31.0)
    assert sweep.after(31.0) == ""
    sweep.reports.unlink()
    assert sweep.after(31.0) == ""
    assert sweep.path.exists()


def test_every_cell_is_in_the_table_and_its_jobs_and_trouble_below() -> None:
    job, why = "fast (job 7) step 3/12", "node-drain " * 20
    running, stopped, done = CellState.RUNNING, CellState.STOPPED, CellState.COMPLETE
    cells = [
        CellStatus(sweep="pp8", label="m", state=running, progress="7 of 25 jobs", running=(job,)),
        CellStatus(sweep="tp4", label="m", state=stopped, why=why),
        CellStatus(sweep="fsdp", label="m", state=done, best="fast +3.4 %"),
    ]
    _, first, second, third, *rest = screen_lines(cells, 80)
    assert "7 of 25 jobs" in first
    assert "stopped" in second
    assert "fast +3.4 %" in third
    assert f"  {job}" in rest
    assert not [line for line in rest if line.startswith("fsdp")], "the table has all of it"
    assert sum("node-drain" in line for line in rest) > 1, "it is wrapped"


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
