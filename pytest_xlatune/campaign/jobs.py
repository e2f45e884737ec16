"""End the jobs of a cell by its ledger alone, and find attempts whose ledger is gone.

A job can be ended without the sweep file and without the session that submitted it. A trial that is
ended here has no result and is run again. A trial that ended by itself first is left for the next
session, which reads its result.

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

_ENDED_BY_US = frozenset({State.CANCELLED, State.LOST})  # states of a job after our cancel
_END_LIMIT_S = 60.0  # how long to wait for jobs to end
_POLL_S = 0.25  # the time between two polls
# the folder of an attempt:  overlap-2-wave2.0-3f9c01ab77.1
_ATTEMPT = re.compile(r"(?P<trial>.+-[0-9a-f]{10})\.(?P<number>[1-9][0-9]{0,3})")


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
    if not _state_of(folder).in_flight():
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
    ledger, ended, errors = Ledger(folder / LEDGER), list[Submission](), list[LedgerError]()
    state = _state_of(folder)
    for name, submissions in by_executor(state.in_flight()).items():
        try:
            executor = (executors or partial(executor_in, folder))(name)
        except LedgerError as error:
            errors.append(error)
            continue
        # Recorded first, so that a process that finds these jobs ended knows who ended them. If
        # the record cannot be written, the jobs go on.
        let_go = [
            AttemptLetGo(trial_id=submission.trial_id, attempt=submission.attempt)
            for submission in submissions
        ]
        ledger.append(*let_go, at_s=time.time())
        executor.cancel(submissions, root=folder)
        for submission, outcome in _as_they_end(executor, submissions, folder):
            if outcome.state in _ENDED_BY_US:  # a job that ended by itself first has a result
                ended.append(submission)
                forget_secrets(folder / submission.folder)
                ledger.append(*interrupted_events(submission, outcome), at_s=time.time())
    if errors:
        raise errors[0]
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


def interrupted_events(submission: Submission, outcome: Outcome) -> tuple[Event, ...]:
    """Return the events of an attempt that was ended because no session waited for it."""
    trial_id, attempt = submission.trial_id, submission.attempt
    return (
        Decided(trial_id=trial_id, attempt=attempt, next=Next.INTERRUPTED),
        AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome),
    )


def _as_they_end(
    executor: Executor, submissions: tuple[Submission, ...], folder: Path
) -> Iterator[tuple[Submission, Outcome]]:
    """Yield each submission with its outcome when it ends, for `_END_LIMIT_S` at most."""
    in_flight = {submission.job_id: submission for submission in submissions}
    until_s = time.monotonic() + _END_LIMIT_S
    while in_flight and time.monotonic() < until_s:
        for job_id, outcome in executor.poll(tuple(in_flight.values()), root=folder).items():
            if outcome.state.is_final:
                yield in_flight.pop(job_id), outcome
        time.sleep(_POLL_S)


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
        """A phrase with the numbers of attempts and the session, for a sentence."""
        others = say(" and {others:+other}", others=self.others) if self.others else None
        counts = {"finished": self.finished, "others": others}
        return say(
            "{finished:+finished attempt}{others} of session {session}", session=self.name, **counts
        )

    def note(self, *, again: bool) -> Message:
        """Return a note for readers of the results.

        `again` says whether the results of the attempts are read again, or the attempts ignored.
        """
        if again:
            text = (
                "the former ledger was lost; {attempts} are read again from their own files. "
                "It is not known which nodes were resumed or repaired in that time, so scores from "
                "before and after a repair may be compared"
            )
        else:
            text = "the former ledger was lost; {attempts} are ignored, also those that still run"
        return say(text, attempts=self.phrase)


def lost_runs(folder: Path) -> tuple[LostRun, ...]:
    """Return the attempts of sessions that no ledger knows, the latest session first.

    Attempts that an archived ledger knows are not lost.
    """
    runs: dict[Path, list[bool]] = {}
    for path in folder.glob(f"*/*/{SPEC}"):
        attempt = path.parent
        if _ATTEMPT.fullmatch(attempt.name):
            runs.setdefault(attempt.parent, []).append(bool(read_outcomes(attempt)))
    archives = folder.glob(f"{Path(LEDGER).stem}-*{Path(LEDGER).suffix}") if runs else ()
    archived = [secure_files.read_bytes(path) for path in archives]
    lost = []
    for run in runs:
        session = f'"session":"{run.name}"'.encode()
        if not any(session in ledger for ledger in archived):
            lost.append(run)
    lost.sort(key=lambda run: run.stat().st_mtime, reverse=True)
    return tuple(
        LostRun(name=run.name, finished=sum(runs[run]), others=runs[run].count(False))
        for run in lost
    )


def lost_ledger_error(folder: Path, lost: tuple[LostRun, ...]) -> ConfigError:
    """Return the error for attempts whose ledger is lost: what was found, and what to do."""
    more = f" (and of {counted(len(lost) - 1, 'earlier session')})" if len(lost) > 1 else ""
    return ConfigError(
        f"{folder} holds {sentence(lost[0].phrase)}{more}, but no {LEDGER} that knows them: it was "
        "deleted or emptied. Put it back; or use --xlatune-rebuild to read the results again from "
        "the attempts' own files and go on; or use --xlatune-fresh to measure everything again. "
        "Nothing is deleted"
    )


def last_attempt_number(run: Path, trial_id: str) -> int:
    """Return the number of a trial's last attempt that has a folder; 0 if none has one.

    `run` is the folder of the session that began the ledger.
    """
    matches = (_ATTEMPT.fullmatch(path.parent.name) for path in run.glob(f"*/{SPEC}"))
    numbers = (int(match["number"]) for match in matches if match and match["trial"] == trial_id)
    return max(numbers, default=0)
