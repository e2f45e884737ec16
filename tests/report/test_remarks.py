"""Every job of a tuning document without a score says why: tried again, let go, stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.jobs import interrupted_events
from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    Decided,
    Event,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, Submission, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.tasks.reports import publish
from tests.report.test_tuning_document import PP, SPEED, Measuring, table_rows

ABSENT = "–"  # noqa: RUF001 - the dash of an absent value
UNWAITED = "no session waits"
STOPPED = "after the stop"
KILLED = "killed (signal 9): retried"
Tell = Callable[[Submission, Outcome], tuple[Event, ...]]


class Tried(Measuring):
    """Trials whose first job came to nothing; each says when it began."""

    def _result(self, trial: Trial) -> TrialResult:
        result = super()._result(trial)
        if result.outcome is None:
            return result
        return replace(result, outcome=replace(result.outcome, start_s=self.at_s))

    def first(self, tell: Tell, *, job: str) -> Trial:
        """Submit the next trial, and tell what became of it."""
        trial = self.study.decide(tuple(self.history)).due[0]
        self.attempt(trial, 1, tell, job=job)
        return trial

    def attempt(self, trial: Trial, number: int, tell: Tell, *, job: str) -> None:
        submission = Submission(
            trial_id=trial.id, attempt=number, executor="slurm", job_id=job, folder=f"t/{number}"
        )
        self.write(
            TrialPlanned(trial=trial),
            AttemptIntended(trial_id=trial.id, attempt=number, comment="c"),
            AttemptSubmitted(submission=submission),
        )
        told = tell(
            submission, Outcome(state=State.CANCELLED, nodes=PP.nodelist, start_s=self.at_s)
        )
        if told:
            self.write(*told)

    def again(self, trial: Trial, *, jobs: tuple[str, ...]) -> None:
        """Run it once more, with a score."""
        result = replace(self._result(trial), job_ids=jobs)
        self.history.append(result)
        ended = AttemptEnded(trial_id=trial.id, attempt=len(jobs), outcome=result.outcome or END)
        self.write(TrialEnded(result=result), ended)


END = Outcome(state=State.COMPLETED)


def nothing_yet(submission: Submission, _: Outcome) -> tuple[Event, ...]:
    return ()


def let_go(submission: Submission, _: Outcome) -> tuple[Event, ...]:
    return (AttemptLetGo(trial_id=submission.trial_id, attempt=submission.attempt),)


def ended_by_us(submission: Submission, outcome: Outcome) -> tuple[Event, ...]:
    return (*let_go(submission, outcome), *interrupted_events(submission, outcome))


def let_go_too_late(submission: Submission, _: Outcome) -> tuple[Event, ...]:
    ended = AttemptEnded(trial_id=submission.trial_id, attempt=submission.attempt, outcome=END)
    return (*let_go(submission, END), ended)


def killed(submission: Submission, outcome: Outcome) -> tuple[Event, ...]:
    trial_id, attempt = submission.trial_id, submission.attempt
    died = replace(outcome, state=State.FAILED, signal=9)
    return (
        Decided(
            trial_id=trial_id, attempt=attempt, next=Next.RETRY, cls="killed", detail="signal 9"
        ),
        AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=died),
    )


def after_a_stop(submission: Submission, outcome: Outcome) -> tuple[Event, ...]:
    stop = Decided(
        trial_id="other", attempt=1, next=Next.STOP, cls="budget", detail="no job is left"
    )
    return (stop, *ended_by_us(submission, outcome))


@pytest.fixture
def tried(tmp_path: Path) -> Tried:
    cell = replace(PP, deployed={"XLA_FLAGS": "--xla_deployed=1"}, overrides={})
    found = Tried(cell, tmp_path, SPEED, job=14600)
    shown = tuple(each for each in found.study.profiles if not each.env)
    found.study = replace(found.study, profiles=shown)
    found.open()
    found.run(at_most=3)
    return found


def rows(tried: Tried, reports: Path) -> dict[str, tuple[str, str]]:
    """State and remark of each job."""
    publish(tried.folder, reports)
    text = (reports / "tiny-tuning.md").read_text(encoding="utf-8")
    appendix = text.split("## Appendix")[1]
    return {row[0]: (row[4], row[6]) for row in table_rows(appendix, "Job")}


def tells(row: tuple[str, str], state: str, words: str) -> bool:
    """Return whether the row of a job has this state, and a remark only where there are words."""
    return row[0] == state and words in row[1] and (row[1] == ABSENT) is not bool(words)


@pytest.mark.parametrize(
    ("tell", "state", "remark"),
    [
        pytest.param(nothing_yet, "running", "", id="it-runs"),
        pytest.param(let_go, "running", "let go: ", id="let-go"),
        pytest.param(ended_by_us, "cancelled", UNWAITED, id="ended-by-us"),
        pytest.param(let_go_too_late, "completed", "", id="over-before-we-could-end-it"),
        pytest.param(killed, "failed, signal 9", KILLED, id="tried-again"),
        pytest.param(after_a_stop, "cancelled", STOPPED, id="stopped"),
    ],
)
def test_a_job_without_a_result_says_why(
    tried: Tried, tmp_path: Path, tell: Tell, state: str, remark: str
) -> None:
    trial = tried.first(tell, job="15000")
    found = rows(tried, tmp_path / "reports")
    assert tells(found["15000"], state, remark)
    assert found["14601"] == ("completed", ABSENT)
    # measured by a later session, the job before keeps its reason
    tried.open("s2")
    tried.attempt(trial, 2, nothing_yet, job="15001")
    assert rows(tried, tmp_path / "reports")["15001"] == ("running", ABSENT)
    tried.again(trial, jobs=("15000", "15001"))
    found = rows(tried, tmp_path / "reports")
    assert tells(found["15000"], "retried", remark)
    assert found["15001"] == ("completed", ABSENT)


def test_what_a_later_session_ends_was_not_ended_by_an_earlier_stop(
    tried: Tried, tmp_path: Path
) -> None:
    trial = tried.first(after_a_stop, job="15000")
    tried.open("s2")
    tried.attempt(trial, 2, ended_by_us, job="15001")
    assert tells(rows(tried, tmp_path / "reports")["15001"], "cancelled", UNWAITED)
