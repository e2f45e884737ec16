"""The page of a sweep while it runs: written as trials land, not too often, and it ends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.report.lines import words_beside
from pytest_xlatune.tasks import live_page
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.live_page import LivePage
from pytest_xlatune.tasks.reports import publish
from pytest_xlatune.tasks.watch import CellState, CellStatus, screen_lines
from tests.helpers.scripted import FakeExecutor, campaign, run


class Sweep:
    """A session on a sweep whose clock the test sets, and its page."""

    def __init__(self, folder: Path, session: str = "first") -> None:
        self.at_s, self.reports = 1000.0, folder / "reports"
        self.campaign = campaign(
            folder, FakeExecutor(), session=session, clocks={"now": lambda: self.at_s}
        )
        at = self.campaign.folder
        self.feed = LiveLines(at, session_id=session, now=lambda: self.at_s)
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


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_it_is_written_as_trials_land_at_most_every_ten_seconds(sweep: Sweep) -> None:
    sweep.after(1.0, turns=3)
    assert not sweep.path.exists(), "a session of seconds writes its end alone"
    sweep.after(10.0)
    first = sweep.page
    assert 'class="live"' in first
    sweep.after(5.0, turns=2)
    assert sweep.page == first
    sweep.after(5.0)
    assert sweep.page != first
    data = json.loads(sweep.path.with_suffix(".json").read_text(encoding="utf-8"))
    assert len(data["trials"]) == len(sweep.campaign.view().history) > 2
    # a reader sees that the session is there, though no trial lands
    for _ in range(5):
        assert f'data-alive="{sweep.at_s}"' in sweep.page
        sweep.at_s += 61.0
        sweep.live.refresh(is_news=False)
    # the page of the end is not written again
    publish(sweep.campaign.folder, sweep.reports)
    assert 'class="live"' in sweep.page, "it stands still"
    run(sweep.campaign)
    publish(sweep.campaign.folder, sweep.reports)
    assert 'class="live"' not in sweep.page


def test_a_page_that_cannot_be_written_is_said_once_and_tried_again(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("1 / 0")

    with monkeypatch.context() as patched:
        patched.setattr(live_page, "write_so_far", broken)
        assert "1 / 0" in sweep.after(11.0)
        assert sweep.after(11.0) == ""
    sweep.reports.write_text("a file where the folder was to be", encoding="utf-8")
    assert "reports cannot be written" in sweep.after(11.0)
    assert sweep.after(11.0) == ""
    sweep.reports.unlink()
    assert sweep.after(11.0) == ""
    assert sweep.path.exists()


LONG = "a-profile-with-a-name-that-no-screen-of-forty-columns-holds"
FASTER = Verdict(arm=LONG, kind=VerdictKind.FASTER, delta=0.034, ci95=(0.02, 0.048), n=4)


def seen(sweep: str, state: CellState = CellState.RUNNING, **more: object) -> CellStatus:
    return CellStatus(sweep=sweep, label="m FSDP=8", state=state, **more)  # type: ignore[arg-type]


def test_at_80_columns_the_name_is_cut_and_never_the_verdict() -> None:
    wide = Verdict(
        arm=LONG, kind=VerdictKind.INCONCLUSIVE, delta=-0.2345, ci95=(-1.25, 10.2), mde80=2.334
    )
    *_, row = screen_lines([seen("pp8", ranking=(wide,))], 80)
    assert f" {words_beside(wide)}  " in row[:80]


def test_every_cell_is_in_the_table_and_what_may_change_stands_below_in_full() -> None:
    running = ("fast (job 7) step 3/12",)
    cells = [
        seen("pp8", progress="7 of 25 jobs", running=running, ranking=(FASTER,)),
        seen("tp4", CellState.STOPPED, why="node-drain " * 20),
        seen("fsdp", CellState.COMPLETE, progress="12 of 12 jobs", ranking=(FASTER,)),
    ]
    _, first, second, third, *rest = screen_lines(cells, 80)
    assert "7 of 25 jobs" in first
    assert "stopped" in second
    assert f"{LONG} +3.4 %" in third
    assert [line for line in rest if line.startswith("  fast (job 7) step 3/12")]
    assert sum("node-drain" in line for line in rest) > 1
    assert not [line for line in rest if line.startswith("fsdp")], "the table has all of it"
