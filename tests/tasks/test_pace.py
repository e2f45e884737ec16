"""The time left of live lines, against what a pretend sweep then took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from pytest_xlatune.ledger import AttemptSubmitted, CampaignOpened, Event, LedgerEntry, TrialEnded
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import (
    Outcome,
    State,
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.tasks.running import Pace, Running

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"), protocol=Protocol())
STEPS_S = 0.7  # share of a trial that its steps take


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One attempt of a pretend sweep, all times in seconds."""

    trial: Trial
    asked_s: float
    began_s: float
    over_s: float
    is_lost: bool = False


def lay(runs: Sequence[float], *, lanes: int = 1, waits: Sequence[float] = (0.0,),
        lost: Sequence[int] = ()) -> list[Job]:  # fmt: skip
    """Lay trials of these lengths on lanes; each waits in the queue, those `lost` run twice."""
    free = [1000.0] * lanes
    jobs: list[Job] = []
    for number, run_s in enumerate(runs):
        trial = Trial(
            cell_digest=CELL.digest, profile=BASELINE, protocol=CELL.protocol, study="tuning",
            stage="wave1", position=number,
        )  # fmt: skip
        lane = free.index(min(free))
        for is_lost in (True, False) if number in lost else (False,):
            began_s = free[lane] + waits[number % len(waits)]
            jobs.append(
                Job(
                    trial=trial, asked_s=free[lane], began_s=began_s, over_s=began_s + run_s,
                    is_lost=is_lost,
                )
            )  # fmt: skip
            free[lane] = began_s + run_s
    return jobs


# by how many percent of the truth (a minute at least) estimates are off on average, and at most in
# the last half of the sweep
SCENARIOS: dict[str, tuple[Callable[[], list[Job]], float, float]] = {
    "all alike": (lambda: lay([300.0] * 30), 1, 1),
    "the first compiles for long": (lambda: lay([1500.0, *[300.0] * 29]), 12, 1),
    "longer ones from the middle on": (lambda: lay([*[200.0] * 15, *[500.0] * 15]), 25, 55),
    "shorter ones from the middle on": (lambda: lay([*[500.0] * 15, *[200.0] * 15]), 65, 155),
    "two lost attempts": (lambda: lay([300.0] * 30, lost=(4, 11)), 12, 15),
    "waits in a queue": (
        lambda: lay([300.0] * 30, waits=(20.0, 400.0, 0.0, 90.0, 0.0)), 12, 85
    ),
    "four node slots": (lambda: lay([300.0, 310.0, 290.0, 305.0] * 10, lanes=4), 5, 15),
    "two slots, one slower": (lambda: lay([300.0, 420.0] * 15, lanes=2), 15, 50),
    "sixteen nodes at once": (
        lambda: lay([300.0 + 4 * at for at in range(32)], lanes=16), 10, 15
    ),
    "three trials": (lambda: lay([300.0] * 3), 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_time_left_is_near_to_what_the_sweep_then_takes(name: str) -> None:
    make, mean_pct, most_pct = SCENARIOS[name]
    rows = estimates(make())
    assert len(rows) > 1
    off = [100 * abs(said - truth) / max(truth, 60.0) for _, said, truth in rows]
    assert sum(off) / len(off) <= mean_pct
    assert max(off[len(off) // 2 :]) <= most_pct


def test_what_was_compiled_alone_is_no_landed_trial() -> None:
    jobs = lay([300.0] * 2)
    pace = Pace()
    of = Submission(
        trial_id=jobs[0].trial.id, attempt=1, executor="slurm", job_id="1", folder="f"
    )  # fmt: skip
    compiled = TrialResult(trial=jobs[1].trial, status=TrialStatus.MEASURED)
    for number, (at_s, event) in enumerate(
        (
            (1000.0, CampaignOpened(cells=(CELL,), study="batch", session="s")),
            (1000.0, AttemptSubmitted(submission=of)),
            (1001.0, TrialEnded(result=compiled)),
        ),
        1,
    ):
        pace.note(LedgerEntry(number=number, at_s=at_s, event=event))
    assert pace.left_s(2, 1002.0, running=()) is None


def estimates(jobs: Sequence[Job], *, every_s: float = 20.0) -> list[tuple[float, float, float]]:
    """Return time, estimate and truth, every so many seconds once a trial has landed."""
    pace = Pace()
    opened = CampaignOpened(cells=(CELL,), study="tuning", session="s")
    timed: list[tuple[float, Event]] = []
    for number, job in enumerate(jobs):
        of = Submission(
            trial_id=job.trial.id, attempt=1, executor="slurm", job_id=str(number), folder="f"
        )
        timed.append((job.asked_s, AttemptSubmitted(submission=of)))
        if not job.is_lost:
            outcome = Outcome(state=State.COMPLETED, start_s=job.began_s, end_s=job.over_s)
            result = TrialResult(
                trial=job.trial, status=TrialStatus.MEASURED, outcome=outcome, job_ids=("1",)
            )
            timed.append((job.over_s, TrialEnded(result=result)))
    timed.sort(key=lambda each: each[0])
    entries = [LedgerEntry(number=1, at_s=0.0, event=opened)]
    entries += [
        LedgerEntry(number=number, at_s=at_s, event=event)
        for number, (at_s, event) in enumerate(timed, 2)
    ]
    end_s = max(each.over_s for each in jobs)
    found: list[tuple[float, float, float]] = []
    at_s, told = jobs[0].asked_s + every_s / 2, 0
    while at_s < end_s:
        while told < len(entries) and entries[told].at_s <= at_s:
            pace.note(entries[told])
            told += 1
        left = sum(not each.is_lost and each.over_s > at_s for each in jobs)
        said = pace.left_s(left, at_s, running=running_at(jobs, at_s))
        if said is not None:
            found.append((at_s, said, end_s - at_s))
        at_s += every_s
    return found


def running_at(jobs: Sequence[Job], at_s: float) -> list[Running]:
    found = []
    for number, job in enumerate(jobs):
        if not job.asked_s <= at_s < job.over_s:
            continue
        is_pending = at_s < job.began_s
        steps_s = job.began_s + (1 - STEPS_S) * (job.over_s - job.began_s)
        found.append(
            Running(
                trial=job.trial,
                job_id=str(number),
                state=State.PENDING if is_pending else State.RUNNING,
                since_s=job.asked_s if is_pending else job.began_s,
                left_s=job.over_s - at_s if at_s > steps_s else None,
            )
        )
    return found
