"""A work directory that is away for a while, as a network's file system is: the sweep waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.errors import LedgerError
from tests.helpers.scripted import CellsStudy, Cluster, campaign, on, run


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_xlatune.campaign.TURN_S", 0.0)


def away(made: Campaign, cluster: Cluster, *, for_s: int) -> None:
    """Let the folder be away for so long, in the middle of the sweep."""
    folder, gone = made.folder, made.folder.with_name("gone")
    while not cluster.submitted:
        made.turn()
        cluster.now_s += 1
    folder.rename(gone)
    try:
        for _ in range(for_s):
            made.turn()
            cluster.now_s += 1
            assert not folder.exists(), "nothing is begun anew in its place"
    finally:
        gone.rename(folder)


@pytest.mark.parametrize("for_s", [10, 600])
def test_a_work_directory_that_is_away_is_waited_for(tmp_path: Path, for_s: int) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=3))
    away(made, cluster, for_s=for_s)
    run(made, cluster)
    assert made.view().stopped is None
    assert [result.status for result in made.view().history] == ["measured"] * 3
    assert len(cluster.submitted) == 3, "a trial that ended meanwhile is read, not run again"


def test_one_that_stays_away_ends_the_session_with_its_name(tmp_path: Path) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(on("node001"),), repeats=3))
    with pytest.raises(LedgerError, match=str(made.folder)):
        away(made, cluster, for_s=1000)
