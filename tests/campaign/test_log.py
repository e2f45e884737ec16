"""The log beside the ledger: who drives, why nothing is submitted, once each, and no secret."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.log import LOG, write_log
from pytest_xlatune.executors import SchedulerDown
from pytest_xlatune.ledger import LEDGER, Ledger, Noted
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome, Submission
from tests.helpers import scripted
from tests.helpers.scripted import CellsStudy, Cluster, campaign, on, run
from tests.helpers.tables import rows

SECRET = "hush-hush-1234"
DEPLOYED = {**scripted.CELL.deployed, "HF_TOKEN": SECRET}
ONE, TWO = (replace(on(name), deployed=DEPLOYED) for name in ("node001", "node002"))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_log_says_who_drives_what_was_submitted_and_why_no_more_is(tmp_path: Path) -> None:
    study, cluster, other = CellsStudy(cells=(ONE, TWO), repeats=6), Cluster(), Cluster()
    made = campaign(tmp_path, cluster, study)
    beside = campaign(tmp_path / "other", other, CellsStudy(cells=(on("node003"),)))
    with write_log(made.folder, "info") as path, write_log(beside.folder, "info") as path_beside:
        for _ in range(20):
            made.turn()
            cluster.now_s += 1
        run(beside, other)
    assert path == made.folder / LOG
    said = lines_of(path)
    assert sum(f"process {os.getpid()} (this one) drives" in line for line in said) == 1
    assert sum("submitted node00" in line for line in said) == len(cluster.submitted)
    full = [line for line in said if "2 submissions are ahead on node001" in line]
    assert len(full) == 2, "before anything was seen to run, and after"
    assert f"{study.trial(ONE, 3).id} is not submitted yet" in full[1]
    run(made, cluster)
    assert lines_of(path) == said, "the log is written in its context only"
    # each has the lines of its own campaign
    text_beside = "\n".join(lines_of(path_beside))
    assert "submitted node003" in text_beside
    assert "node001" not in text_beside
    assert "node003" not in "\n".join(said)


def test_no_secret_is_in_the_log_whatever_says_it(tmp_path: Path) -> None:
    leak = scripted.log(steps=2, last=f"NET/IB : no token {SECRET}: IBV_WC_RETRY_EXC_ERR")
    cluster = Cluster(lambda *_: (leak, scripted.FAILED))
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE,)))
    with write_log(made.folder, "debug") as path:
        run(made, cluster)
        logging.getLogger("pytest_xlatune.executors").warning("sbatch said %r", SECRET)
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("pytest_xlatune.campaign").exception("trouble")
    text = path.read_text(encoding="utf-8")
    assert "sbatch said '(hidden)'" in text
    assert "literal for int() with base 10: '(hidden)'" in text
    assert SECRET not in text


def test_a_log_that_is_a_link_is_warned_of_once_and_the_sweep_goes_on(tmp_path: Path) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE,)))
    (tmp_path / "diary").write_text("dear diary\n")
    (made.folder / LOG).symlink_to(tmp_path / "diary")
    with (
        pytest.warns(UserWarning, match="xlatune.log is a link") as said,
        write_log(made.folder, "info"),
    ):
        run(made, cluster)
    assert len(said) == 1
    assert all(result.score for result in made.view().history)
    assert (tmp_path / "diary").read_text() == "dear diary\n"


class Shy(Cluster):
    """A scheduler that is away at some polls, and at others leaves a job out."""

    away_s = 10

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        if 10 <= self.now_s - 1e9 < 10 + self.away_s:
            raise SchedulerDown(f"no answer for {self.now_s - 1e9:.0f} s")
        seen = dict(super().poll(submissions, root=root))
        if self.now_s % 3 == 0:
            seen.popitem()
        return seen


@rows("away_s, is_news", {"a few seconds are no news": (10, False), "a minute is": (60, True)})
def test_a_scheduler_that_is_away_is_told_once_and_its_return_too(
    tmp_path: Path, away_s: int, is_news: bool
) -> None:
    cluster = Shy()
    cluster.away_s = away_s
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE, TWO), repeats=2))
    with write_log(made.folder, "warning") as path:
        run(made, cluster)
    assert all(result.score for result in made.view().history)
    events = [entry.event for entry in Ledger(made.folder / LEDGER).refresh()]
    notes = [sentence(event.remark) for event in events if isinstance(event, Noted)]
    for said in (lines_of(path), *[notes] * is_news):
        away, back = said
        assert "scheduler does not answer" in away
        assert "the scheduler answers again" in back
    assert bool(notes) is is_news
