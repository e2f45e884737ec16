"""The jobs of a cell, listed and ended from its ledger alone.

Neither the sweep file nor the session that submitted them is needed, so a job outlives both. This
module measures and decides nothing: a trial ended here has no result and is run again, and one that
came to its own end first is left for the next session, which reads its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_xlatune.campaign.turns import Turns
from pytest_xlatune.executors import Executor
from pytest_xlatune.executors.folder import HELD
from pytest_xlatune.executors.named import executor_named
from pytest_xlatune.executors.payload import forget_secrets
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptLetGo, Decided, Event, Ledger
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, Submission

_BY_US = frozenset({State.CANCELLED, State.LOST})  # how an attempt ends that was asked to
_END_LIMIT_S = 60.0
_LOOK_S = 0.25


def cancel_unwaited(
    folder: Path, *, executors: Callable[[str], Executor] = executor_named
) -> tuple[Submission, ...]:
    """End what runs in a cell unless some process waits for it; return what was ended.

    Allocations that are held for its trials are given back.

    Raises:
        LedgerError: the ledger cannot be read or written.
    """
    turns = Turns(folder)
    if not _in_flight(folder) and not any(folder.glob(HELD)):
        return ()
    with turns.none_waits() as alone:
        if not alone:
            return ()
        with turns.mine(wait_s=10.0):
            return end_jobs(folder, executors=executors)


def end_jobs(
    folder: Path, *, executors: Callable[[str], Executor] = executor_named
) -> tuple[Submission, ...]:
    """Do so where the turn is the caller's, and it knows that no process waits."""
    ledger, ended = Ledger(folder / LEDGER), list[Submission]()
    flying = _in_flight(folder)
    for name in sorted({each.executor for each in flying}):
        executor = executors(name)
        mine = tuple(each for each in flying if each.executor == name)
        # told first: the process that finds them ended must know that it was us; what cannot be
        # told runs on
        told = [AttemptLetGo(trial_id=each.trial_id, attempt=each.attempt) for each in mine]
        ledger.append(*told, at_s=time.time())
        executor.cancel(mine, root=folder)
        for submission, outcome in _until_over(executor, mine, folder):
            if outcome.state in _BY_US:  # what was quicker than we are has a result
                ended.append(submission)
                forget_secrets(folder / submission.folder)
                ledger.append(*interrupted(submission, outcome), at_s=time.time())
    if any(folder.glob(HELD)):
        from pytest_xlatune.executors.slurm.allocation import release

        release(folder)
    return tuple(ended)


def _in_flight(folder: Path) -> tuple[Submission, ...]:
    return replay(Ledger(folder / LEDGER).refresh()).in_flight()


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
    left = {each.job_id: each for each in flying}
    until_s = time.monotonic() + _END_LIMIT_S
    while left and time.monotonic() < until_s:
        for job_id, outcome in executor.poll(tuple(left.values()), root=folder).items():
            if outcome.state.is_final:
                yield left.pop(job_id), outcome
        time.sleep(_LOOK_S)
