"""What is seen while a sweep runs: a line for each change of a job, and the time that is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import Request
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.lines import in_columns
from pytest_xlatune.tasks.live import LiveLines
from tests.helpers.scripted import OK, STEPS, FakeExecutor, campaign, log
from tests.helpers.tables import rows

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
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A campaign whose executor calls itself local, and has the queue of a cluster here."""
    monkeypatch.setattr("pytest_xlatune.tasks.running._has_queue", lambda _: True)
    return Seen(tmp_path)


def test_what_runs_has_a_line_after_a_minute_and_then_every_ten(seen: Seen) -> None:
    (opening,) = seen.after()
    assert re.fullmatch(r"pretend FSDP=4: \d+ (to \d+ )?jobs to run", opening)
    assert seen.after() == []
    (waits,) = seen.after(50.0)
    queued = r"now: \S+ \(job 1\) waits in the queue, PENDING \(Priority\), start exp"
    assert re.match(rf"{queued}.*\| 0 of \d+( to \d+)? jobs, 1 running", waits)

    seen.said = ON_NODE
    assert seen.after() == []
    assert "(job 1) started on node[001-002] | " in seen.feed.status()
    seen.log.write_text(log(1000.0, steps=8))
    assert seen.after(61.0) == [], "within ten minutes"
    (steps,) = seen.after(600.0)
    assert f"step 7/{STEPS}, 1000.0 TGS so far, about 3 s | " in steps
    assert steps == f"now: {seen.feed.status()}"
    progress, (running,) = seen.feed.progress_and_jobs()
    assert progress in steps
    assert running in steps

    seen.said = OK
    seen.log.write_text(log())
    landed = seen.after(turns=2)
    assert len([each for each in landed if "TGS" in each]) == 1
    assert not any("pretend FSDP=4" in each for each in landed), "the cell was named once"


@rows(
    "said, words",
    {
        "held": (
            Outcome(state=State.PENDING, reason="PENDING (JobHeldAdmin)", is_held=True),
            "(job 1) waits in the queue, PENDING (JobHeldAdmin) | "),
        "put back": (
            replace(QUEUED, reason="PENDING (BeginTime), put back", is_requeued=True),
            "(job 1) waits in the queue, PENDING (BeginTime), put back, start expected "),
    },
)  # fmt: skip
def test_that_a_person_keeps_a_job_from_running_is_told(
    seen: Seen, said: Outcome, words: str
) -> None:
    seen.after()
    seen.said = said
    (line,) = seen.after(61.0)
    assert words in line


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
