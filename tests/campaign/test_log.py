"""The log beside the ledger: who drives, why nothing is submitted, once each, and no secret."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.log import LOG, write_log
from pytest_xlatune.executors import SchedulerDown
from pytest_xlatune.ledger import LEDGER, Ledger, Noted
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import RetryPolicy, RetryRule
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.sweep.groups import Limits
from tests.helpers import scripted
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run

SECRET = "hush-hush-1234"
FOUR = tuple(
    replace(on(f"node00{n}"), deployed={**scripted.CELL.deployed, "HF_TOKEN": SECRET})
    for n in range(1, 5)
)
KILLED = Outcome(state=State.FAILED, signal=9)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_log_says_who_drives_what_was_submitted_and_why_no_more_is(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:2], repeats=6)
    cluster = Cluster()
    each = campaign(tmp_path, cluster, study)
    with write_log(each.folder, "info") as path:
        for _ in range(20):
            each.turn()
            cluster.now_s += 1
    assert path == each.folder / LOG
    said = lines_of(path)
    assert sum(f"process {os.getpid()} (this one) drives" in line for line in said) == 1
    assert sum("submitted node00" in line for line in said) == len(cluster.submitted)
    full = [line for line in said if "2 submissions are ahead on node001" in line]
    assert len(full) == 2, "before anything was seen to run, and after"
    assert f"{study.trial(FOUR[0], 3).id} is not submitted yet" in full[1]
    run(each, cluster)
    assert lines_of(path) == said, "the log is written in its context only"


def test_a_reason_is_told_once_until_it_changes(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:1], repeats=4)
    victim = study.trial(FOUR[0], 0).id

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id == victim and attempt == 1:
            return scripted.log(steps=2), KILLED
        return scripted.ordinary(trial_id, attempt)

    cluster = Cluster(script)
    rules = RetryPolicy(rules={"killed": RetryRule(retries=1, backoff_s=300.0)})
    each = campaign(tmp_path, cluster, study, rules=rules)
    with write_log(each.folder, "info") as path:
        run(each, cluster)
    said = lines_of(path)
    waits = [line for line in said if "it waits after killed" in line]
    assert len(waits) == 1, "once, not at every turn of five minutes"
    assert any("on the same nodes" in line for line in said)


def test_a_limit_and_the_stop_that_follows_are_told_once(tmp_path: Path) -> None:
    cluster = Cluster(took_s=360.0)
    study = CellsStudy(cells=FOUR[:1], repeats=9)
    each = campaign(tmp_path, cluster, study, limits=Limits(node_hours=0.15))
    with write_log(each.folder, "info") as path:
        run(each, cluster, step_s=10.0)
        each.turn()
    said = "\n".join(lines_of(path))
    assert said.count("nothing more is submitted: budget: 0.1 of 0.15 node-hours are spent") == 1
    assert said.count("nothing is submitted: budget:") == 1


def test_no_secret_is_in_the_log_whatever_says_it(tmp_path: Path) -> None:
    study = CellsStudy(cells=FOUR[:1])
    leak = f"NET/IB : no token {SECRET}: IBV_WC_RETRY_EXC_ERR"

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        return scripted.log(steps=2, last=leak), scripted.FAILED

    cluster = Cluster(script)
    each = campaign(tmp_path, cluster, study)
    with write_log(each.folder, "debug") as path:
        run(each, cluster)
        logging.getLogger("pytest_xlatune.executors").warning("sbatch said %r", SECRET)
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("pytest_xlatune.campaign").exception("trouble")
    text = path.read_text(encoding="utf-8")
    assert "sbatch said '(hidden)'" in text
    assert "literal for int() with base 10: '(hidden)'" in text
    assert SECRET not in text


def test_a_log_that_cannot_be_written_is_warned_of_once_and_the_sweep_goes_on(
    tmp_path: Path,
) -> None:
    cluster = Cluster()
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:1]))
    (each.folder / LOG).mkdir()
    with (
        pytest.warns(UserWarning, match=r"xlatune.log cannot be written: .*Is a directory") as said,
        write_log(each.folder, "info"),
    ):
        run(each, cluster)
    assert len(said) == 1
    assert all(result.score for result in each.view().history)


def test_a_link_at_the_log_is_warned_of_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary\n")
    (tmp_path / LOG).symlink_to(tmp_path / "diary")
    with (
        pytest.warns(UserWarning, match=r"xlatune.log is a link"),
        write_log(tmp_path, "info"),
    ):
        logging.getLogger("pytest_xlatune.campaign").info("a line")
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


def test_a_scheduler_that_is_away_is_told_once_and_its_return_too(tmp_path: Path) -> None:
    cluster = Shy()
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:2], repeats=2))
    with write_log(each.folder, "warning") as path:
        run(each, cluster)
    away, back = lines_of(path)
    assert "scheduler does not answer" in away
    assert "the scheduler answers again" in back
    assert all(result.score for result in each.view().history)
    assert notes(each) == [], "a few seconds are no news"


def test_people_are_told_of_a_scheduler_that_stays_away(tmp_path: Path) -> None:
    cluster = Shy()
    cluster.away_s = 60
    each = campaign(tmp_path, cluster, CellsStudy(cells=FOUR[:2], repeats=2))
    run(each, cluster)
    away, back = notes(each)
    assert "scheduler does not answer" in away
    assert back == "the scheduler answers again"


def notes(each: Campaign) -> list[str]:
    """What people are told besides how trials end."""
    entries = Ledger(each.folder / LEDGER).refresh()
    return [sentence(entry.event.remark) for entry in entries if isinstance(entry.event, Noted)]


def test_a_log_has_the_lines_of_its_own_campaign(tmp_path: Path) -> None:
    clusters = Cluster(), Cluster()
    each = [
        campaign(tmp_path / name, cluster, CellsStudy(cells=(on(f"node00{n}"),)))
        for n, (name, cluster) in enumerate(zip("ab", clusters, strict=True), start=1)
    ]
    logs = [write_log(one.folder, "info") for one in each]
    with logs[0] as path_a, logs[1] as path_b:
        for one, cluster in zip(each, clusters, strict=True):
            run(one, cluster)
    text_a, text_b = (path.read_text(encoding="utf-8") for path in (path_a, path_b))
    assert "submitted node001" in text_a
    assert "submitted node002" in text_b
    assert "node002" not in text_a
    assert "node001" not in text_b
