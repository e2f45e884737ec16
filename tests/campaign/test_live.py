"""What is seen while a sweep runs: a line for each change of a job, and the time that is left."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.report.lines import in_columns
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.running import RunningJobs
from tests.helpers.scripted import OK, STEPS, FakeExecutor, campaign, log

QUEUED = Outcome(state=State.PENDING, reason="PENDING (Priority)", start_s=1_800_000_000.0)
ON_NODE = Outcome(state=State.RUNNING, nodes=("node001", "node002"), start_s=100.0)


class Staged(FakeExecutor):
    """Says of every job what the test says, and leaves its log to the test."""

    said: Outcome = QUEUED
    folder: Path

    def submit(self, spec: object, request: object) -> str:
        job = super().submit(spec, request)  # type: ignore[arg-type]
        self.folder = request.folder  # type: ignore[attr-defined]
        (self.folder / "log.0.txt").unlink()
        return job

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        return {each.job_id: self.said for each in submissions}

    def write(self, text: str) -> None:
        (self.folder / "log.0.txt").write_text(text, encoding="utf-8")


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def __call__(self) -> float:
        return self.at_s


class Seen:
    """A sweep, and the lines that a session sees of it."""

    def __init__(self, folder: Path) -> None:
        self.executor, self.clock = Staged(), Clock()
        self.campaign: Campaign = campaign(folder, self.executor, clocks={"now": self.clock})
        self.feed = LiveLines(self.campaign.folder, session_id="first", now=self.clock)

    def after(self, seconds: float = 11.0, *, turns: int = 1) -> list[str]:
        """Let time pass and the campaign take turns; give the new lines."""
        self.clock.at_s += seconds
        for _ in range(turns):
            self.campaign.turn()
        return [each.line for each in self.feed.news() if each.line]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A campaign whose executor calls itself local, and has the queue of a cluster here."""
    monkeypatch.setattr("pytest_xlatune.tasks.running._has_queue", lambda _: True)
    return Seen(tmp_path)


@pytest.mark.parametrize(
    ("executor", "reason", "words"),
    [
        ("local", "", "starting"),
        ("local", "waits for the machine: a.1 has it", "waits for the machine: a.1 has it"),
        ("slurm", "PENDING (Priority)", "waits in the queue, PENDING (Priority)"),
        ("of-a-stranger", "", "waits in the queue"),
    ],
)
def test_only_what_has_a_queue_waits_in_one(
    tmp_path: Path, executor: str, reason: str, words: str
) -> None:
    seen = Seen(tmp_path)
    seen.executor.said = Outcome(state=State.PENDING, reason=reason)
    seen.after()
    seen.after()
    ledger = seen.campaign.folder / LEDGER
    text = ledger.read_text("utf-8").replace('"executor":"local"', f'"executor":"{executor}"')
    ledger.write_text(text, "utf-8")
    (found,) = RunningJobs(seen.campaign.folder).poll(read_cell_report(ledger.parent).state, {})
    assert found.progress_text == words


def test_what_runs_has_a_line_after_a_minute_and_then_every_ten(seen: Seen) -> None:
    (opening,) = seen.after()
    assert re.fullmatch(r"pretend FSDP=4: \d+ (to \d+ )?jobs to run", opening)
    assert seen.after() == []
    (waits,) = seen.after(50.0)
    assert re.match(
        r"now: \S+ \(job 1\) waits in the queue, PENDING \(Priority\), start exp", waits
    )
    assert re.search(r"\| 0 of \d+( to \d+)? jobs, 1 running", waits)

    seen.executor.said = ON_NODE
    assert seen.after() == []
    assert "(job 1) started on node[001-002] | " in seen.feed.status()
    seen.executor.write(log(1000.0, steps=8))
    assert seen.after(61.0) == [], "within ten minutes"
    (steps,) = seen.after(600.0)
    assert f"step 7/{STEPS}, 1000.0 TGS so far, about 3 s | " in steps
    assert steps == f"now: {seen.feed.status()}"
    progress, (running,) = seen.feed.progress_and_jobs()
    assert progress in steps
    assert running in steps

    seen.executor.said = OK
    seen.executor.write(log())
    landed = seen.after(turns=2)
    assert len([each for each in landed if "TGS" in each]) == 1
    assert not any("pretend FSDP=4" in each for each in landed), "the cell was named once"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            Outcome(state=State.PENDING, reason="PENDING (JobHeldAdmin)", is_held=True),
            "(job 1) waits in the queue, PENDING (JobHeldAdmin) | ",
        ),
        (
            replace(ON_NODE, is_suspended=True, reason="SUSPENDED (None)"),
            "(job 1) stands still, SUSPENDED (None) | ",
        ),
        (
            replace(QUEUED, reason="PENDING (BeginTime), put back", is_requeued=True),
            "(job 1) waits in the queue, PENDING (BeginTime), put back, start expected ",
        ),
    ],
    ids=["held", "suspended", "put back"],
)
def test_that_a_person_keeps_a_job_from_running_is_told(
    seen: Seen, said: Outcome, words: str
) -> None:
    seen.after()
    seen.executor.said = said
    (line,) = seen.after(61.0)
    assert words in line


def test_a_sweep_of_many_short_jobs_has_a_line_a_trial(seen: Seen) -> None:
    seen.executor.said = OK
    lines, view = [], seen.campaign.view()
    while view.pending:
        lines += seen.after(20.0)
        if seen.executor.submitted:
            seen.executor.write(log())
        view = seen.campaign.view()
    landed = [each for each in lines if "TGS" in each and not each.startswith("now: ")]
    assert len(landed) == len(view.history) > 5
    assert len([each for each in lines if each.startswith("now: ")]) <= len(landed) / 2
    assert len(set(lines)) == len(lines)


def test_the_job_that_a_person_put_back_is_named_though_another_runs(seen: Seen) -> None:
    """A line names one job: a count of the others would tell nothing of it."""
    seen.after()
    (mine,) = RunningJobs(seen.campaign.folder).poll(
        read_cell_report(seen.campaign.folder).state, {}
    )
    other = dataclasses.replace(mine, job_id="2", state=State.RUNNING, reason="", starts_s=None)
    back = dataclasses.replace(mine, reason="PENDING (BeginTime), put back", is_back=True)
    for first, named in (
        (mine, r"\(job 2\) started, 1 more"),
        (back, r"\(job 1\) .*put back.*, 1 more"),
    ):
        seen.feed._jobs.poll = lambda *_, first=first: (first, other)  # type: ignore[method-assign]
        seen.after()
        assert re.search(named + r" in flight \| ", seen.feed.status())


LONG = "/shared/" + "x" * 90


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param("fast (job 1) 1,000 TGS | 1/2", "fast (job 1) 1,000 TGS | 1/2", id="short"),
        pytest.param(f"{'a ' * 38}| 1/2 b", f"{'a ' * 37}a\n  1/2 b", id="where the sweep stands"),
        pytest.param("note: " + "abcd " * 16, f"note:{' abcd' * 15}\n  abcd", id="a sentence"),
        pytest.param(f"note: {LONG}", f"note:\n  {LONG}", id="a path stays whole"),
    ],
)
def test_a_live_line_fits_80_columns(line: str, shown: str) -> None:
    assert in_columns(line) == shown


def test_a_log_tells_that_a_job_runs_though_the_last_word_of_it_is_old(seen: Seen) -> None:
    seen.after()
    seen.after()
    seen.executor.write(log(2000.0, steps=9))
    (found,) = RunningJobs(seen.campaign.folder).poll(seen.campaign.view().state, {})
    assert (found.state, found.step) == (State.RUNNING, 8)
    assert found.tgs == pytest.approx(2000.0)
    assert found.left_s == pytest.approx(3 * 512 / 2000)
