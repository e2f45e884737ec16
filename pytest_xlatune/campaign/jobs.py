"""End the jobs of a cell by its ledger alone, and find attempts whose ledger is gone.

A job can be ended without the sweep file and without the session that submitted it. A trial that is
ended here has no result and is run again. A trial that ended by itself first is left for the next
session, which reads its result.

If a ledger was deleted or emptied, the folders of its attempts show that, and a session refuses to
measure everything again unasked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from pytest_xlatune.executors import Executor, executor_in, outcome_of
from pytest_xlatune.executors.payload import SPEC, forget_secrets
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptLetGo, Decided, Event, Ledger
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, Submission

_ENDED_BY_US = frozenset({State.CANCELLED, State.LOST})  # states of a job after our cancel
_END_LIMIT_S = 60.0  # how long to wait for jobs to end
_POLL_S = 0.25  # the time between two polls
# the folder of an attempt:  overlap-2-wave2.0-3f9c01ab77.1
_ATTEMPT = re.compile(r".+-[0-9a-f]{10}\.[1-9][0-9]{0,3}")


def cancel_unwaited(
    folder: Path, *, executors: Callable[[str], Executor] | None = None
) -> tuple[Submission, ...]:
    """End the jobs of a cell unless a process waits for them; return those that were ended.

    `executors` returns the executor of a name; None means the installed ones.

    Raises:
        LedgerError: the ledger cannot be read or written, or an executor that has jobs in flight is
            not installed here. Before the latter is raised, all other jobs are ended.
    """
    driver = DriverLock(folder)
    if not replay(Ledger(folder / LEDGER).refresh()).in_flight():
        return ()
    with driver.none_waits() as is_alone:
        if not is_alone:
            return ()
        with driver.mine(wait_s=10.0):
            return end_jobs(folder, executors=executors)


def end_jobs(
    folder: Path, *, executors: Callable[[str], Executor] | None = None
) -> tuple[Submission, ...]:
    """End the jobs of a cell; the caller has the turn, and knows that no process waits for them.

    Arguments, result and errors are those of `cancel_unwaited`.
    """
    ledger, ended, missing = Ledger(folder / LEDGER), list[Submission](), list[LedgerError]()
    executor_named = executors or partial(executor_in, folder)
    in_flight = replay(ledger.refresh()).in_flight()
    for name, submissions in by_executor(in_flight).items():
        try:
            executor = executor_named(name)
        except LedgerError as error:
            missing.append(error)
            continue
        # Recorded first, so that a process that finds these jobs ended knows who ended them. If
        # the record cannot be written, the jobs go on.
        let_go = [
            AttemptLetGo(trial_id=submission.trial_id, attempt=submission.attempt)
            for submission in submissions
        ]
        ledger.append(*let_go, at_s=time.time())
        executor.cancel(submissions, root=folder)
        waits, until_s = list(submissions), time.monotonic() + _END_LIMIT_S
        while waits and time.monotonic() < until_s:
            outcomes = executor.poll(waits, root=folder)
            for submission in list(waits):
                outcome = outcome_of(outcomes, submission)
                if outcome is None or not outcome.state.is_final:
                    continue
                waits.remove(submission)
                if outcome.state in _ENDED_BY_US:  # a job that ended by itself first has a result
                    ended.append(submission)
                    forget_secrets(folder / submission.folder)
                    ledger.append(*interrupted_events(submission, outcome), at_s=time.time())
            time.sleep(_POLL_S)
    if missing:
        raise missing[0]
    return tuple(ended)


def by_executor(submissions: Iterable[Submission]) -> dict[str, tuple[Submission, ...]]:
    """Return the submissions of each executor, by its name."""
    name = attrgetter("executor")
    return {key: tuple(same) for key, same in groupby(sorted(submissions, key=name), key=name)}


def interrupted_events(submission: Submission, outcome: Outcome) -> tuple[Event, ...]:
    """Return the events of an attempt that was ended because no session waited for it."""
    trial_id, attempt = submission.trial_id, submission.attempt
    return (
        Decided(trial_id=trial_id, attempt=attempt, next=Next.INTERRUPTED),
        AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome),
    )


def lost_ledger_error(folder: Path) -> ConfigError | None:
    """Return an error if a folder without a ledger holds attempts of a session, else None."""
    for path in sorted(folder.glob(f"*/*/{SPEC}")):
        if _ATTEMPT.fullmatch(path.parent.name):
            return ConfigError(
                f"{folder} holds attempts of session {path.parts[-3]}, but no {LEDGER} that knows "
                "them: it was moved aside, deleted or emptied. Put it back, or use --xlatune-fresh "
                "to measure everything again; jobs of that session that still run are not ended, "
                "and nothing is deleted"
            )
    return None
