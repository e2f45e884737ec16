"""One attempt of a trial: how it is handed over, looked after and settled, as events.

What happens to an attempt is told as the events that the ledger is to hold; who calls writes them
before acting on them. This module writes no ledger, and knows neither a study nor whose turn it is.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.campaign.assess import Assessment, assess, without_secrets
from pytest_xlatune.campaign.dumped import dumped_options
from pytest_xlatune.campaign.follow import Follower
from pytest_xlatune.campaign.jobs import interrupted
from pytest_xlatune.campaign.limits import Limits
from pytest_xlatune.campaign.naming import comment_of, folder_of, job_name_of
from pytest_xlatune.cells import Cell, DeployedFile, Resources, Trial
from pytest_xlatune.errors import LedgerError, SubmissionError
from pytest_xlatune.executors import Executor, Resumed, SchedulerDown
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.program import DUMP_FOLDER
from pytest_xlatune.ledger import (
    Attempt,
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    Decided,
    EpochBegan,
    Event,
    LedgerState,
    NodesPinned,
    TrialEnded,
)
from pytest_xlatune.recovery import Next, RetryPolicy
from pytest_xlatune.report.jsonfile import secrets_in
from pytest_xlatune.results import (
    Action,
    Outcome,
    State,
    Submission,
)

_ASK_AGAIN_S = 30.0  # between two requests to end the same job
_LOOK_AT_NODES_S = 30.0  # between two looks at the nodes of a trial that does not start
_REVIVALS = 2  # of nodes without a measured trial in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a campaign runs with.

    Attributes:
        sweep: the sweep's name.
        cell: what is held fixed.
        launcher: how a trial is started; executor: where.
        resources: what a scheduler is asked for.
        policy: the retry rules.
        folder: of the ledger and the attempts.
        session: id of the pytest session.
        versions: of the software, by name.
        settings: what the user said, by name: where.
        files: that deploy the cell, as they are now.
        limits: what the sweep may cost.
        recover: asks the site to do what needs a person's rights; True when it is done.
        check: looks before anything is submitted; returns notes, raises ConfigError.
        settle: finds out before anything is submitted which trials need no run: given the state,
            the pending trials and those of the whole study, one step's events; () when it is done.
        read: reads what evidence trials left that are over; None where none has any.
    """

    sweep: str
    cell: Cell
    launcher: Launcher
    executor: Executor
    resources: Resources
    folder: Path
    session: str
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    files: tuple[DeployedFile, ...] = ()
    limits: Limits = field(default_factory=Limits)
    recover: Callable[[Assessment, tuple[str, ...]], bool] | None = None
    check: Callable[[LedgerState], tuple[str, ...]] | None = None
    settle: Callable[[LedgerState, Sequence[Trial], Sequence[Trial]], tuple[Event, ...]] | None = (
        None
    )
    read: Callable[[LedgerState], tuple[Event, ...]] | None = None

    @property
    def picks_nodes(self) -> bool:
        """Whether the scheduler picks the nodes; those of the first trial then stay the cell's."""
        return self.resources.nodes > 0 and not self.cell.nodelist


class Attempts:
    """The attempts of one campaign, as this process sees them."""

    def __init__(
        self,
        setup: Setup,
        *,
        now: Callable[[], float],
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setup = setup
        self._now = now  # for what is written down; it may jump
        self._ticks = ticks  # for how long something lasts; it never does
        self._follower = Follower(setup.folder, patience=setup.resources.patience)
        self._asked_to_end_s: dict[str, float] = {}
        self._revivals = 0
        self._looked_at_nodes_s = float("-inf")
        self._queued_since_s: float | None = None

    def intend(self, state: LedgerState, trial: Trial) -> AttemptIntended:
        """Return the next attempt of a trial, to be journalled before it is handed over."""
        number = len(state.trials[trial.id].attempts) + 1
        comment = comment_of(_run(state), trial, number)
        return AttemptIntended(trial_id=trial.id, attempt=number, comment=comment)

    def hand_over(
        self, state: LedgerState, trial: Trial, number: int, comment: str
    ) -> tuple[Event, ...]:
        """Submit an intended attempt. Again for the same one is safe: its job is returned.

        Raises:
            SchedulerDown: it stays intended; the next turn hands it over.
            LedgerError: its folder cannot be written; it stays intended.
        """
        setup = self._setup
        folder = folder_of(_run(state), trial, number)
        try:
            job_id = setup.executor.submit(
                setup.launcher.launch(trial, setup.cell),
                folder=setup.folder / folder,
                job_name=job_name_of(trial),
                comment=comment,
                nodelist=setup.cell.nodelist or state.pinned,
                resources=setup.resources,
            )
        except SchedulerDown:
            raise
        except OSError as error:
            # nothing is decided on the trial: it stays intended, and the next session hands it over
            raise LedgerError(
                f"{setup.folder / folder} cannot be written: {error}; the work directory must be "
                "writable, with free space"
            ) from error
        except SubmissionError as error:
            return (
                AttemptEnded(
                    trial_id=trial.id,
                    attempt=number,
                    outcome=Outcome(state=State.FAILED, reason=f"not submitted: {error}"),
                ),
                Decided(
                    trial_id=trial.id,
                    attempt=number,
                    next=Next.STOP,
                    cls="submission-refused",
                    reason=f"submission-refused: {error}",
                ),
            )
        submission = Submission(
            trial_id=trial.id,
            attempt=number,
            executor=setup.executor.name,
            job_id=job_id,
            folder=folder,
        )
        return (AttemptSubmitted(submission=submission),)

    def look(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return what follows from where a submission stands.

        One that will measure nothing any more is first told as an event, then ended by whoever
        looks after it next: the ledger knows that the end was ours.
        """
        if outcome.state is State.LOST:
            # its payload is gone, but maybe not all that the trainer started
            self._setup.executor.cancel([submission], root=self._setup.folder)
        if outcome.state is State.CANCELLED and _attempt_of(state, submission).is_let_go:
            return interrupted(submission, outcome)
        if outcome.state.is_final:
            return (*self._pinned(state, outcome), *self._settle(state, submission, outcome))
        if outcome.state is not State.RUNNING:
            return ()
        if _attempt_of(state, submission).cut_short is not None:
            self._end(submission)
            return ()
        why = self._follower.look(submission, ticks_s=self._ticks())
        if why is None:
            return self._pinned(state, outcome)
        told = AttemptCutShort(
            trial_id=submission.trial_id,
            attempt=submission.attempt,
            still_s=why.still_s,
            fatal=why.fatal,
        )
        return (*self._pinned(state, outcome), told)

    def wait_in_queue(
        self, state: LedgerState, outcomes: Mapping[str, Outcome]
    ) -> tuple[Event, ...]:
        """Return what follows when all that is submitted waits and nothing runs.

        Nodes that cannot take the next trial are brought back; one that stays away, or a queue that
        is longer than the user's patience, stops the sweep.
        """
        now_s, limit_s = self._ticks(), self._setup.resources.queue_limit_s
        waiting = [each for each in state.in_flight() if each.job_id in outcomes]
        if not waiting or any(each.state is not State.PENDING for each in outcomes.values()):
            self._queued_since_s = None
            return ()
        if self._queued_since_s is None:
            self._queued_since_s = now_s
        first = waiting[0]
        if limit_s and now_s - self._queued_since_s > limit_s:
            reason = f"no trial has started for {limit_s} s"
            return (_stop(first, "queue-limit", reason, outcomes[first.job_id].reason),)
        said = outcomes[first.job_id].reason
        if not any(word in said.lower() for word in _UNAVAILABLE):
            return ()
        if now_s - self._looked_at_nodes_s < _LOOK_AT_NODES_S:
            return ()
        self._looked_at_nodes_s = now_s
        done = self._revive(self._setup.cell.nodelist or state.pinned)
        if done.faults:
            reason = "; ".join(done.faults)
            return (_stop(first, "node-drain", f"{reason}, and stays so after RESUME", said),)
        if not done.nodes:
            return ()
        return (EpochBegan(reason=f"node-drain: resumed {', '.join(done.nodes)}"),)

    def _revive(self, nodes: tuple[str, ...]) -> Resumed:
        """Bring nodes back, a few times at most: one that fails again and again is not fit."""
        if self._revivals >= _REVIVALS:
            return Resumed(faults=(f"resumed {_REVIVALS} times without a measured trial since",))
        done = self._setup.executor.resume(nodes)
        self._revivals += bool(done.nodes)
        return done

    def _end(self, submission: Submission) -> None:
        """Ask for its end, again after a while: an end takes time, and a scheduler its own."""
        now_s, asked_s = self._ticks(), self._asked_to_end_s.get(submission.folder)
        if asked_s is None or now_s - asked_s >= _ASK_AGAIN_S:
            self._setup.executor.cancel([submission], root=self._setup.folder)
            self._asked_to_end_s[submission.folder] = now_s

    def _pinned(self, state: LedgerState, outcome: Outcome) -> tuple[Event, ...]:
        """Keep the nodes that the first trial got, where nobody named any."""
        if not self._setup.picks_nodes or state.pinned or not outcome.nodes:
            return ()
        return (NodesPinned(nodes=tuple(sorted(outcome.nodes))),)

    def _settle(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        setup = self._setup
        progress = state.trials[submission.trial_id]
        trial = progress.trial
        read = self._follower.finish(submission)
        self._asked_to_end_s.pop(submission.folder, None)
        cut = _attempt_of(state, submission).cut_short
        # once for each attempt: whoever was killed before the end was written had decided before
        earlier = {
            each.attempt: each.cls
            for each in state.decisions
            if (each.trial_id, each.next) == (trial.id, Next.RETRY)
            and each.attempt != submission.attempt
        }
        found = assess(
            trial,
            setup.cell,
            outcome,
            read.report,
            metrics=read.metrics,
            stalled_s=cut.still_s if cut and not cut.fatal else None,
            fatal=cut.fatal if cut else None,
            options=dumped_options(setup.folder / submission.folder / DUMP_FOLDER),
            earlier=tuple(earlier.values()),
            policy=setup.policy,
        )
        found = without_secrets(found, secrets_in(setup.cell, [trial.profile]))
        found, notes = self._prepared(found, setup.cell.nodelist or state.pinned)
        ended = AttemptEnded(
            trial_id=trial.id,
            attempt=submission.attempt,
            outcome=outcome,
            findings=found.findings,
        )
        if progress.ended is not None:
            return (ended,)  # a torn ledger lost no more than this
        events: list[Event] = [*notes]
        decision = found.decision
        if decision.next is Next.ACCEPT:
            self._revivals = 0
        else:
            wait_s = decision.backoff_s
            # what the scheduler decided, its own words prove better than the log's last line
            is_theirs = outcome.state in _OF_SLURM and cut is None
            events.append(
                Decided(
                    trial_id=trial.id,
                    attempt=submission.attempt,
                    next=decision.next,
                    cls=decision.cls,
                    reason=decision.reason,
                    evidence=outcome.reason if is_theirs else decision.evidence,
                    not_before_s=self._now() + wait_s if wait_s else 0.0,
                )
            )
        if found.status is not None:
            swapped = _swapped(state, outcome) if found.score else ()
            events += swapped
            result = dataclasses.replace(
                progress.result,
                status=found.status,
                score=found.score,
                reason="" if found.score else decision.reason,
                findings=(*progress.result.findings, *found.findings),
                outcome=outcome,
                epoch=state.epoch + len(swapped),
            )
            events.append(TrialEnded(result=result))
        # last: as long as its end is missing an attempt is looked after, and settled again
        return (*events, ended)

    def _prepared(
        self, found: Assessment, nodes: tuple[str, ...]
    ) -> tuple[Assessment, tuple[Event, ...]]:
        """Do what a retry needs first, or have the site do it; without it the sweep stops."""
        setup, decision = self._setup, found.decision
        if decision.next is not Next.RETRY or decision.before not in _NEEDS_HANDS:
            return found, ()
        tried = ""
        if decision.before is Action.RESUME_NODE:
            done = self._revive(nodes)
            if not done.faults:
                reason = f"{decision.cls}: {', '.join(nodes)} are fit again"
                return found, (EpochBegan(reason=reason),)
            tried = f"; after scontrol update State=RESUME: {'; '.join(done.faults)}"
        if setup.recover is not None and setup.recover(found, nodes):
            reason = f"{decision.cls}: the site did {decision.before}{tried}"
            return found, (EpochBegan(reason=reason),)
        reason = (
            f"{decision.cls}: {decision.before} was needed and nobody did it{tried}: the sweep "
            "stops"
        )
        stop = dataclasses.replace(decision, next=Next.STOP, reason=reason)
        return dataclasses.replace(found, decision=stop), ()


# why a job that names its nodes does not start:  ReqNodeNotAvail, UnavailableNodes:node003
#                        Nodes required for job are DOWN, DRAINED or reserved for jobs in higher ...
_UNAVAILABLE = ("nodenotavail", "nodes required", "nodes_required", "nodedown", "node_down")
_OF_SLURM = frozenset({State.NODE_FAIL, State.TIMEOUT, State.CANCELLED, State.LOST})
_NEEDS_HANDS = frozenset({Action.HOOK, Action.RESUME_NODE})


def _attempt_of(state: LedgerState, submission: Submission) -> Attempt:
    return state.trials[submission.trial_id].attempts[submission.attempt]


def _swapped(state: LedgerState, outcome: Outcome) -> tuple[EpochBegan, ...]:
    """Begin an epoch where a trial ran on other nodes than the one that was measured before it."""
    nodes = tuple(sorted(outcome.nodes))
    if not nodes or not state.nodes or nodes == state.nodes:
        return ()
    return (EpochBegan(reason=f"nodes are {', '.join(nodes)}, were {', '.join(state.nodes)}"),)


def _run(state: LedgerState) -> str:
    """The session that began this ledger: attempts of a ledger moved aside are not ours."""
    return state.opened[0].session


def _stop(submission: Submission, cls: str, reason: str, evidence: str) -> Decided:
    return Decided(
        trial_id=submission.trial_id,
        attempt=submission.attempt,
        next=Next.STOP,
        cls=cls,
        reason=f"{cls}: {reason}: the sweep stops",
        evidence=evidence,
    )
