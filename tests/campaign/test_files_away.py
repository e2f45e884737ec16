"""A work directory that is away for a while, as a network's file system is: the sweep waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.result import TrialStatus
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_xlatune.campaign.TURN_S", 0.0)


def away(each: Campaign, cluster: Cluster, *, for_s: int) -> None:
    """Let the folder be away for so long, in the middle of the sweep."""
    folder, gone = each.folder, each.folder.with_name("gone")
    while not cluster.submitted:
        each.turn()
        cluster.now_s += 1
    folder.rename(gone)
    try:
        for _ in range(for_s):
            each.turn()
            cluster.now_s += 1
            assert not folder.exists(), "nothing is begun anew in its place"
    finally:
        gone.rename(folder)


@pytest.mark.parametrize("for_s", [10, 600])
def test_a_work_directory_that_is_away_is_waited_for(tmp_path: Path, for_s: int) -> None:
    cluster = Cluster()
    each = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=3))
    away(each, cluster, for_s=for_s)
    run(each, cluster)
    assert each.view().stopped is None
    assert [result.status for result in each.view().history] == [TrialStatus.MEASURED] * 3
    assert len(cluster.submitted) == 3, "a trial that ended meanwhile is read, not run again"


def test_who_waits_is_called_while_the_work_directory_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    each = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=1))
    folder, gone = each.folder, each.folder.with_name("gone")
    looks: list[bool] = []

    def look() -> None:
        looks.append(folder.exists())
        if len(looks) == 1:
            folder.rename(gone)
        if len(looks) == 3:
            gone.rename(folder)

    def passes(_: float) -> None:
        cluster.now_s += 1

    monkeypatch.setattr("pytest_xlatune.campaign.time.sleep", passes)
    each.wait(lambda view: not view.pending, on_turn=look)
    assert looks[:4] == [True, False, False, True]


def test_who_reads_the_ledger_just_when_it_goes_away_waits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`xlatune calibrate`, `evidence` and `study` show what landed at each look."""
    cluster = Cluster()
    each = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=1))
    each.turn()
    folder, gone = each.folder, each.folder.with_name("gone")
    reader, looks = Ledger(folder / LEDGER), 0
    reader.refresh()

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            folder.rename(gone)  # just after the campaign read on
        if looks == 4:
            gone.rename(folder)
        reader.refresh()

    def passes(_: float) -> None:
        cluster.now_s += 1

    monkeypatch.setattr("pytest_xlatune.campaign.time.sleep", passes)
    assert not each.wait(lambda view: not view.pending, on_turn=look).stopped
    assert looks > 4


def test_one_that_stays_away_ends_the_session_with_its_name(tmp_path: Path) -> None:
    cluster = Cluster()
    each = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=3))
    with pytest.raises(LedgerError, match=str(each.folder)):
        away(each, cluster, for_s=1000)
