"""The time left of live lines, against what a pretend sweep then took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from pytest_xlatune.ledger import AttemptSubmitted, CampaignOpened, Event, LedgerEntry, TrialEnded
from pytest_xlatune.model.result import Outcome, State, Submission, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.tasks.running import Pace, Running
from tests.helpers.history import CELL, trial_of

STEPS_S = 0.7  # share of a trial that its steps take


class Job(NamedTuple):
    """One attempt of a pretend sweep, all times in seconds."""

    trial: Trial
    asked_s: float
    began_s: float
    over_s: float
    is_lost: bool


def lay(
    runs: Sequence[float],
    *,
    lanes: int = 1,
    waits: Sequence[float] = (0.0,),
    lost: Sequence[int] = (),
) -> list[Job]:
    """Lay trials of these lengths on lanes; each waits in the queue, those `lost` run twice."""
    free = [1000.0] * lanes
    jobs: list[Job] = []
    for number, run_s in enumerate(runs):
        trial = trial_of(CELL, position=number)
        lane = free.index(min(free))
        for is_lost in (True, False) if number in lost else (False,):
            began_s = free[lane] + waits[number % len(waits)]
            jobs.append(Job(trial, free[lane], began_s, began_s + run_s, is_lost))
            free[lane] = began_s + run_s
    return jobs


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


def errors_pct(jobs: Sequence[Job]) -> list[float]:
    """By how many percent of the truth, a minute at least, each estimate of a sweep is off."""
    timed: list[tuple[float, Event]] = [(0.0, CampaignOpened(cells=(CELL,), study="tuning"))]
    for number, job in enumerate(jobs):
        submission = Submission(
            trial_id=job.trial.id, attempt=1, executor="slurm", job_id=str(number), folder="f"
        )
        timed.append((job.asked_s, AttemptSubmitted(submission=submission)))
        if not job.is_lost:
            outcome = Outcome(state=State.COMPLETED, start_s=job.began_s, end_s=job.over_s)
            result = TrialResult(
                trial=job.trial, status=TrialStatus.MEASURED, outcome=outcome, job_ids=("1",)
            )
            timed.append((job.over_s, TrialEnded(result=result)))
    timed.sort(key=lambda event: event[0])
    pace, end_s, off = Pace(), max(job.over_s for job in jobs), []
    for at_s in np.arange(jobs[0].asked_s + 10, end_s, 20):
        while timed and timed[0][0] <= at_s:
            noted_s, event = timed.pop(0)
            pace.note(LedgerEntry(number=1, at_s=noted_s, event=event))
        left = sum(not job.is_lost and job.over_s > at_s for job in jobs)
        said = pace.left_s(left, at_s, running=running_at(jobs, at_s))
        if said is not None:
            truth = end_s - at_s
            off.append(100 * abs(said - truth) / max(truth, 60.0))
    return off


SWEEPS = {
    "all alike": (lay([300.0] * 30), 1, 1),
    "longer from the middle on": (lay([*[200.0] * 15, *[500.0] * 15]), 25, 55),
    "two lost attempts": (lay([300.0] * 30, lost=(4, 11)), 12, 15),
    "waits in a queue": (lay([300.0] * 30, waits=(20.0, 400.0, 0.0, 90.0, 0.0)), 12, 85),
    "four node slots": (lay([300.0, 310.0, 290.0, 305.0] * 10, lanes=4), 5, 15),
    "three trials": (lay([300.0] * 3), 1, 1),
}


@pytest.mark.parametrize(("jobs", "mean_pct", "last_half_pct"), SWEEPS.values(), ids=SWEEPS)
def test_the_time_left_is_near_to_what_the_sweep_then_takes(
    jobs: list[Job], mean_pct: float, last_half_pct: float
) -> None:
    off = errors_pct(jobs)
    assert len(off) > 1
    assert sum(off) / len(off) <= mean_pct
    assert max(off[len(off) // 2 :]) <= last_half_pct
