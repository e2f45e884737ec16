"""The time left of live lines, against what a pretend sweep then takes."""

from __future__ import annotations

import pytest

from pytest_xlatune.ledger import AttemptSubmitted, CampaignOpened, Event, LedgerEntry, TrialEnded
from pytest_xlatune.model.result import Outcome, State, Submission, TrialResult, TrialStatus
from pytest_xlatune.tasks.running import Pace, Running
from tests.helpers.history import CELL, trial_of

RUN_S, TRIALS = 300.0, 24


@pytest.mark.parametrize(
    ("lanes", "wait_s", "lost"),
    [(1, 0.0, ()), (1, 100.0, ()), (1, 0.0, (4, 11)), (4, 0.0, ())],
    ids=["one by one", "waits in a queue", "two lost attempts", "four node slots"],
)
def test_the_time_left_is_near_to_what_the_sweep_then_takes(
    lanes: int, wait_s: float, lost: tuple[int, ...]
) -> None:
    free, timed, jobs = [1000.0] * lanes, list[tuple[float, Event]](), []
    for number in range(TRIALS):
        trial, lane = trial_of(CELL, position=number), free.index(min(free))
        for attempt in range(1, 3 if number in lost else 2):
            asked_s, began_s = free[lane], free[lane] + wait_s
            free[lane] = over_s = began_s + RUN_S
            submission = Submission(
                trial_id=trial.id, attempt=attempt, executor="slurm", job_id="1", folder="f"
            )
            timed.append((asked_s, AttemptSubmitted(submission=submission)))
            jobs.append((trial, asked_s, began_s, over_s))
        outcome = Outcome(state=State.COMPLETED, start_s=began_s, end_s=over_s)
        result = TrialResult(
            trial=trial, status=TrialStatus.MEASURED, outcome=outcome, job_ids=("1",)
        )
        timed.append((over_s, TrialEnded(result=result)))
    landed_s = [at_s for at_s, event in timed if isinstance(event, TrialEnded)]
    timed.append((0.0, CampaignOpened(cells=(CELL,), study="tuning")))
    for now_s in range(3000, int(max(free)), 200):
        pace = Pace()
        for at_s, event in sorted(timed, key=lambda each: each[0]):
            if at_s <= now_s:
                pace.note(LedgerEntry(number=1, at_s=at_s, event=event))
        running = [
            Running(
                trial=trial,
                job_id="1",
                state=State.PENDING if now_s < began_s else State.RUNNING,
                since_s=asked_s if now_s < began_s else began_s,
                left_s=over_s - now_s if now_s > began_s + 100 else None,
            )
            for trial, asked_s, began_s, over_s in jobs
            if asked_s <= now_s < over_s
        ]
        said = pace.left_s(sum(at_s > now_s for at_s in landed_s), now_s, running=running)
        assert said == pytest.approx(max(free) - now_s, rel=0.2, abs=RUN_S / 2)
