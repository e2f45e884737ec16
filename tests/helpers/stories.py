"""A story that a ledger tells: one trial that fails and comes again, another that is planned."""

from __future__ import annotations

from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Event,
    NodesPinned,
    Noted,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Finding,
    Outcome,
    Score,
    State,
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from tests.helpers.history import trial_of

CELL = Cell(model_tag="toy-1b", parallelism=Parallelism.parse("FSDP=2"), deployed={"A": "1,2 'x'"})


def trial(position: int = 0) -> Trial:
    return trial_of(CELL, profile("overlap", "--xla_a=true"), position=position)


def submission(of: Trial, attempt: int = 1) -> Submission:
    return Submission(
        trial_id=of.id, attempt=attempt, executor="local", job_id=f"71{attempt}", folder="f"
    )


def result(of: Trial, status: TrialStatus = TrialStatus.MEASURED) -> TrialResult:
    score = Score(value=4.6, tgs=99.5, step_s=0.25, n_steps=10, window=(5, 14))
    return TrialResult(trial=of, status=status, score=score, job_ids=("711",))


def intended(of: Trial, attempt: int = 1) -> AttemptIntended:
    return AttemptIntended(trial_id=of.id, attempt=attempt, comment=f"{of.id}.{attempt}")


def ended(of: Trial, attempt: int = 1, state: State = State.COMPLETED) -> AttemptEnded:
    return AttemptEnded(trial_id=of.id, attempt=attempt, outcome=Outcome(state=state))


OOM = Finding(cls="oom-gpu", action=Action.DROP, line=7, text="out of memory", detail="3 GiB")
STORY: tuple[Event, ...] = (
    CampaignOpened(cells=(CELL,), study="tuning", session="s1", versions={"pytest-xlatune": "0.1"}),
    TrialPlanned(trial=trial(0)),
    TrialPlanned(trial=trial(1)),
    intended(trial(0)),
    AttemptSubmitted(submission=submission(trial(0))),
    AttemptEnded(
        trial_id=trial(0).id,
        attempt=1,
        outcome=Outcome(state=State.NODE_FAIL, nodes=("node001",)),
        findings=(OOM,),
    ),
    Decided(trial_id=trial(0).id, attempt=1, next=Next.RETRY, cls="node", evidence="node001 died"),
    intended(trial(0), 2),
    AttemptSubmitted(submission=submission(trial(0), 2)),
    ended(trial(0), 2),
    TrialEnded(result=result(trial(0))),
    NodesPinned(cell_digest=CELL.digest, nodes=("node001", "node002")),
    Noted(text="torn\nlines, \u2028 and ünïcode"),
)
