"""What is seen of a sweep while it runs: the lines of a session, and the log beside its ledger."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.log import LOG, write_log
from pytest_xlatune.executors import Request, SchedulerDown
from pytest_xlatune.ledger import LEDGER, Ledger, Noted
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.result import (
    Outcome,
    RotationResult,
    State,
    Submission,
)
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.lines import in_columns, live_line
from pytest_xlatune.tasks.live import LiveLines
from tests.helpers import scripted
from tests.helpers.history import measured
from tests.helpers.scripted import (
    OK,
    STEPS,
    CellsStudy,
    Cluster,
    FakeExecutor,
    campaign,
    log,
    on,
    run,
)
from tests.helpers.tables import rows
from tests.helpers.turned import rotation_trial, spec_of

QUEUED = Outcome(state=State.PENDING, reason="PENDING (Priority)", start_s=1_800_000_000.0)
ON_NODE = Outcome(state=State.RUNNING, nodes=("node001", "node002"), start_s=100.0)


class Seen(FakeExecutor):
    """A sweep whose jobs are what the test says, and the lines that a session sees of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.said, self.now_s = QUEUED, 1000.0
        self.log = folder
        clocks = {"now": lambda: self.now_s}
        self.campaign: Campaign = campaign(folder, self, clocks=clocks)
        self.feed = LiveLines(self.campaign.folder, session_id="first", now=clocks["now"])

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        job = super().submit(spec, request)
        self.log = request.folder / "log.0.txt"
        self.log.unlink()
        return job

    def standing(self, job_id: str) -> Outcome:
        return self.said

    def after(self, seconds: float = 11.0, *, turns: int = 1) -> list[str]:
        """Let time pass and the campaign take turns; return the new lines."""
        self.now_s += seconds
        for _ in range(turns):
            self.campaign.turn()
        return [each.line for each in self.feed.news() if each.line]


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path)


def test_what_runs_has_a_line_after_a_minute_and_then_every_ten(seen: Seen) -> None:
    (opening,) = seen.after()
    assert re.fullmatch(r"pretend FSDP=4: \d+ (to \d+ )?jobs to run", opening)
    assert seen.after() == []
    (waits,) = seen.after(50.0)
    queued = r"now: \S+ \(job 1\) waits, PENDING \(Priority\), start exp"
    assert re.match(rf"{queued}.*\| 0 of \d+( to \d+)? jobs, 1 running", waits)

    seen.said = ON_NODE
    assert seen.after() == []
    assert "(job 1) started on node[001-002] | " in seen.feed.status()
    seen.log.write_text(log(1000.0, steps=8))
    assert seen.after(61.0) == [], "within ten minutes"
    (steps,) = seen.after(600.0)
    assert f"step 7/{STEPS}, 1000.0 TGS so far | " in steps
    assert steps == f"now: {seen.feed.status()}"
    progress, (running,) = seen.feed.progress_and_jobs()
    assert progress in steps
    assert running in steps

    seen.said = OK
    seen.log.write_text(log())
    landed = seen.after(turns=2)
    assert len([each for each in landed if "TGS" in each]) == 1
    assert not any("pretend FSDP=4" in each for each in landed), "the cell was named once"


def test_that_a_person_keeps_a_job_from_running_is_told(seen: Seen) -> None:
    seen.after()
    seen.said = Outcome(state=State.PENDING, reason="PENDING (JobHeldAdmin)", is_held=True)
    (line,) = seen.after(61.0)
    assert "(job 1) waits, PENDING (JobHeldAdmin) | " in line


LONG = "/shared/" + "x" * 90


@rows(
    "line, shown",
    {
        "where the sweep stands": (f"{'a ' * 38}| 1/2 b", f"{'a ' * 37}a\n  1/2 b"),
        "a sentence": ("note: " + "abcd " * 16, f"note:{' abcd' * 15}\n  abcd"),
        "a path stays whole": (f"note: {LONG}", f"note:\n  {LONG}"),
    },
)
def test_a_live_line_fits_80_columns(line: str, shown: str) -> None:
    assert in_columns(line) == shown


def test_a_look_that_finds_no_turns_says_that_profiles_are_jobs() -> None:
    trial = rotation_trial(scripted.CELL, spec_of(copies=1, rounds=3))
    reason = say("no step")
    for rotation, why in ((RotationResult(reason=reason), "no step"), (None, ABSENT)):
        result = replace(measured(trial, 6.9), rotation=rotation)
        line = live_line(result, verdict=None, progress="1 of 30 to 50 jobs")
        assert f"profiles cannot take turns here, so each is a job: {why} |" in line


SECRET = "hush-hush-1234"
DEPLOYED = {**scripted.CELL.deployed, "HF_TOKEN": SECRET}
ONE, TWO = (replace(on(name), deployed=DEPLOYED) for name in ("node001", "node002"))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_log_says_what_was_submitted_without_a_secret_and_in_its_context_only(
    tmp_path: Path,
) -> None:
    leak = scripted.log(steps=2, last=f"NET/IB : no token {SECRET}: IBV_WC_RETRY_EXC_ERR")
    cluster = Cluster(lambda *_: (leak, scripted.FAILED))
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE, TWO), repeats=6))
    with write_log(made.folder, "debug") as path:
        for _ in range(90):
            made.turn()
            cluster.now_s += 1
        logging.getLogger("pytest_xlatune.executors").warning("sbatch said %r", SECRET)
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("pytest_xlatune.campaign").exception("trouble")
    assert path == made.folder / LOG
    said = lines_of(path)
    assert sum("submitted node00" in line for line in said) == len(cluster.submitted) > 2
    assert any("sbatch said '(hidden)'" in line for line in said)
    assert any("literal for int() with base 10: '(hidden)'" in line for line in said)
    assert not any(SECRET in line for line in said)
    run(made, cluster)
    assert lines_of(path) == said


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
            raise SchedulerDown("no answer")
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
