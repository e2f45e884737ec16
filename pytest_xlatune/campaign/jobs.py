"""Ends the jobs of a cell by its ledger alone, and finds attempts whose ledger is gone.

A job can be ended without the sweep file and without the session that submitted it. This module
measures and decides nothing: a trial that is ended here has no result and is run again. A trial
that ended by itself first is left for the next session, which reads its result.

If a ledger was deleted or emptied, the folder of an attempt still holds its spec, the outcome of
each rank and its logs, and the result is read from them again. What only the ledger recorded is
lost: which nodes were resumed or repaired, what compiling reported, why attempts were ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Executor
from pytest_xlatune.executors.folder import read_outcomes
from pytest_xlatune.executors.named import executor_in
from pytest_xlatune.executors.payload import SPEC, forget_secrets
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptLetGo, Decided, Event, Ledger
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import Message, say, sentence
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.text import counted

_BY_US = frozenset({State.CANCELLED, State.LOST})  # the states of an attempt that we ended
_END_LIMIT_S = 60.0  # how long to wait for jobs to end
_LOOK_S = 0.25  # the time between two polls
# the folder of an attempt:  overlap-2-wave2.0-3f9c01ab77.1
_ATTEMPT = re.compile(r"(?P<trial>.+-[0-9a-f]{10})\.(?P<number>[1-9][0-9]{0,3})")


def cancel_unwaited(
    folder: Path, *, executors: Callable[[str], Executor] | None = None
) -> tuple[Submission, ...]:
    """End the jobs of a cell unless a process waits for them; return those that were ended.

    `executors` returns the executor of a name; None takes the installed ones.

    Raises:
        LedgerError: the ledger cannot be read or written; or an executor that has jobs in flight is
            not installed here; the jobs of all other executors are ended before.
    """
    driver = DriverLock(folder)
    if not _state_of(folder).in_flight():
        return ()
    with driver.none_waits() as alone:
        if not alone:
            return ()
        with driver.mine(wait_s=10.0):
            return end_jobs(folder, executors=executors)


def end_jobs(
    folder: Path, *, executors: Callable[[str], Executor] | None = None
) -> tuple[Submission, ...]:
    """End the jobs of a cell; the caller has the turn, and knows that no process waits."""
    ledger, ended, unknown = Ledger(folder / LEDGER), list[Submission](), list[LedgerError]()
    state = _state_of(folder)
    for name, mine in by_executor(state.in_flight()).items():
        try:
            executor = (executors or partial(executor_in, folder))(name)
        except LedgerError as error:
            unknown.append(error)
            continue
        # recorded first, so that a process that finds these jobs ended knows who ended them; if
        # the record cannot be written, the jobs run on
        let_go = [
            AttemptLetGo(trial_id=submission.trial_id, attempt=submission.attempt)
            for submission in mine
        ]
        ledger.append(*let_go, at_s=time.time())
        executor.cancel(mine, root=folder)
        for submission, outcome in _until_over(executor, mine, folder):
            if outcome.state in _BY_US:  # a job that ended by itself first has a result
                ended.append(submission)
                forget_secrets(folder / submission.folder)
                ledger.append(*interrupted(submission, outcome), at_s=time.time())
    if unknown:
        raise unknown[0]
    return tuple(ended)


def by_executor(submissions: Iterable[Submission]) -> dict[str, tuple[Submission, ...]]:
    """Return the submissions of each executor, by its name."""
    submissions_of: dict[str, tuple[Submission, ...]] = {}
    for submission in sorted(submissions, key=lambda submission: submission.executor):
        submissions_of[submission.executor] = (
            *submissions_of.get(submission.executor, ()),
            submission,
        )
    return submissions_of


def _state_of(folder: Path) -> LedgerState:
    return replay(Ledger(folder / LEDGER).refresh())


def interrupted(submission: Submission, outcome: Outcome) -> tuple[Event, ...]:
    """Return the events of an attempt that was ended because no session waited for it."""
    trial_id, attempt = submission.trial_id, submission.attempt
    return (
        Decided(trial_id=trial_id, attempt=attempt, next=Next.INTERRUPTED),
        AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome),
    )


def _until_over(
    executor: Executor, flying: tuple[Submission, ...], folder: Path
) -> Iterator[tuple[Submission, Outcome]]:
    left = {submission.job_id: submission for submission in flying}
    until_s = time.monotonic() + _END_LIMIT_S
    while left and time.monotonic() < until_s:
        for job_id, outcome in executor.poll(tuple(left.values()), root=folder).items():
            if outcome.state.is_final:
                yield left.pop(job_id), outcome
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRun:
    """The attempts of a ledger that is gone.

    Attributes:
        name: the name of their folder, which is the id of the session that began the ledger.
        finished: the number of attempts that have an outcome.
        others: the number of attempts without an outcome, which may still run.
    """

    name: str
    finished: int
    others: int

    @property
    def phrase(self) -> Message:
        """The number of attempts, as a phrase."""
        others = say(" and {others:+other}", others=self.others) if self.others else None
        counts = {"finished": self.finished, "others": others}
        return say(
            "{finished:+finished attempt}{others} of session {session}", session=self.name, **counts
        )

    def note(self, *, again: bool) -> Message:
        """Return a note for readers of the results: the attempts are read again, or left alone."""
        text = (
            (
                "the ledger before was lost; {attempts} are read again from their own files. "
                "Which nodes were resumed or repaired meanwhile is not known, so that scores "
                "before and after may be compared"
            )
            if again
            else "the ledger before was lost; {attempts} are left alone, also those that run"
        )
        return say(text, attempts=self.phrase)


def lost_runs(folder: Path) -> tuple[LostRun, ...]:
    """Return the attempts of sessions that no ledger knows, the latest session first.

    Attempts that an archived ledger knows are not lost.

    Args:
        folder: the folder of the ledger.
    """
    runs: dict[Path, list[bool]] = {}
    for path in folder.glob(f"*/*/{SPEC}"):
        attempt = path.parent
        if _ATTEMPT.fullmatch(attempt.name):
            runs.setdefault(attempt.parent, []).append(bool(read_outcomes(attempt)))
    archives = folder.glob(f"{Path(LEDGER).stem}-*{Path(LEDGER).suffix}") if runs else ()
    known = [secure_files.read_bytes(path) for path in archives]
    lost = [
        run for run in runs if not any(f'"session":"{run.name}"'.encode() in text for text in known)
    ]
    lost.sort(key=lambda run: run.stat().st_mtime, reverse=True)
    return tuple(
        LostRun(name=run.name, finished=sum(runs[run]), others=runs[run].count(False))
        for run in lost
    )


def refusal_of(folder: Path, lost: tuple[LostRun, ...]) -> ConfigError:
    """Return the error for attempts without a ledger: it says what was found, and what to do."""
    more = f" (and of {counted(len(lost) - 1, 'earlier one')})" if len(lost) > 1 else ""
    return ConfigError(
        f"{folder} holds {sentence(lost[0].phrase)}{more}, and no {LEDGER} that knows them: it was "
        "deleted or emptied. Put it back; or say --xlatune-rebuild to read their results again "
        "from their own files and go on; or --xlatune-fresh to measure everything again. Nothing "
        "is deleted"
    )


def last_attempt(run: Path, trial_id: str) -> int:
    """Return the number of the last attempt of a trial that has a folder; 0 if none has one."""
    matches = (_ATTEMPT.fullmatch(path.parent.name) for path in run.glob(f"*/{SPEC}"))
    numbers = (int(match["number"]) for match in matches if match and match["trial"] == trial_id)
    return max(numbers, default=0)
