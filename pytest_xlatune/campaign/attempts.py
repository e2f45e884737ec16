"""One attempt of a trial: it is named, submitted, watched and brought to its end.

Each step returns the events that the ledger has to hold; the caller writes them before it acts on
them. This module writes no ledger and proposes no trial, and does not know which process drives it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec

from pytest_xlatune.campaign._follow import Follower, unreadable
from pytest_xlatune.campaign.assess import (
    STATUS,
    Assessment,
    assess,
    proved,
    reference_for,
    said_of_settings,
)
from pytest_xlatune.campaign.ended import EndedAttempt, Leftovers
from pytest_xlatune.campaign.epochs import asks_devices, others_ran_on, parted
from pytest_xlatune.campaign.jobs import interrupted, last_attempt
from pytest_xlatune.campaign.playbook import Facts, Ruling, decide, in_case
from pytest_xlatune.campaign.sweep_run import SweepRun
from pytest_xlatune.executors import (
    AllocationOver,
    QueueFull,
    Request,
    Resumed,
    SchedulerDown,
    standing,
)
from pytest_xlatune.executors.folder import (
    ask_what_hangs,
    keep_unreadable,
    read_spec,
    with_followed_job,
    with_probe,
    with_worker,
)
from pytest_xlatune.executors.payload import forget_secrets, log_name
from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    Decided,
    EpochBegan,
    EpochCause,
    Event,
    NodesPinned,
    Noted,
    NoteKind,
    TrialEnded,
    without_secrets,
)
from pytest_xlatune.ledger.state import Attempt, AttemptState, LedgerState
from pytest_xlatune.logs import LogReport
from pytest_xlatune.model.errors import (
    CheckoutError,
    ConfigError,
    LedgerError,
    SubmissionError,
    shown,
)
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.resources import Next, Patience
from pytest_xlatune.model.result import (
    Action,
    Finding,
    Outcome,
    State,
    Submission,
    TrialStatus,
)
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.studies import OnNodeFailure, Policy
from pytest_xlatune.studies.trials import pace_of
from pytest_xlatune.sweep import checkouts

_LOG = logging.getLogger("pytest_xlatune.campaign")

# calls the site's hook for what this process has no right to do; it returns True when it is done
Recover = Callable[[Ruling, tuple[str, ...]], bool]

_ASK_AGAIN_S = 30.0  # seconds between two requests to end the same job
_LOOK_AT_NODES_S = 30.0  # seconds between two checks of the nodes of a waiting trial
# only after the scheduler has said for so long that it never starts a job, we believe it
_BARRED_S = 60.0
_FULL_S = 15.0  # seconds between two tries to submit while a limit on jobs is reached
_FULL_PATIENCE_S = 900.0  # how long we wait for such a limit while no job of ours is in flight
# so many node lists may be refused with the same message; if a third one is, the job is at fault
_REFUSALS = 2
_REVIVALS = 2  # how often the same nodes are resumed without a measured trial in between
# how long the ranks of a job that hangs may take to write down what they wait for: a node sees the
# file that asks them some time after it was written
_REPORT_S = 90.0
# a program may take so many times longer to its first step than the trials before it took, or than
# the patience where an earlier trial of its arm stood still while it compiled
_LONGER = 2.0


def compile_patience(state: LedgerState, trial: Trial, patience: Patience) -> float:
    """Return the factor on the patience with which a program may take its time to the first step.

    The first trial of a campaign may take as long as its job may, because a large model compiles
    for 40 minutes. A later trial may take twice as long as the trials before it, whether they are
    of its cell or of another batch size. A rotation, and a patience that the site has set, are
    changed only where an earlier trial of the arm stood still while it compiled.
    """
    times = _LONGER if _hung_before(state, trial) else 1.0
    if trial.rotation is not None or patience.compiling_s != Patience().compiling_s:
        return times
    pace = pace_of(
        progress.ended for progress in state.trials.values() if progress.ended is not None
    )
    if pace is None:
        return math.inf
    return times * max(1.0, _LONGER * pace.start_s / patience.compiling_s)


def _hung_before(state: LedgerState, trial: Trial) -> bool:
    """Return whether an earlier trial of this arm printed its memory statistics and then hung."""
    return any(
        finding.cls == FailureClass.HANG_SILENT_OOM
        for progress in state.trials.values()
        if progress.trial.arm == trial.arm
        and progress.trial.study == trial.study
        and progress.ended
        for finding in progress.ended.findings
    )


def _earlier(state: LedgerState, trial: Trial, number: int) -> tuple[str, ...]:
    """Return the failure classes of the other attempts that were tried again, in order."""
    decisions = state.decided_on(trial.id)
    # an attempt that a program of the rotation ended counts against that program, not the trial
    blamed_attempts = {blame.attempt for blame in state.trials[trial.id].blamed}
    return tuple(
        decided.cls
        for decided in decisions
        if decided.next is Next.RETRY and decided.attempt not in {number, *blamed_attempts}
    )


def _ended(
    state: LedgerState, decided: Decided, outcome: Outcome, finding: Finding
) -> tuple[Event, ...]:
    """Return the events that end a trial whose attempt was not submitted or did not run."""
    before = state.trials[decided.trial_id].result
    result = msgspec.structs.replace(
        before,
        status=STATUS[decided.next],
        reason=decided.why,
        findings=(*before.findings, finding),
        outcome=outcome,
    )
    return (decided, TrialEnded(result=result))


class Attempts:
    """The attempts of one campaign, as this process sees them."""

    def __init__(
        self,
        run: SweepRun,
        *,
        policy: Policy | None = None,
        reference: str = "",
        recover: Recover | None = None,
    ) -> None:
        self._run = run
        self._reference = reference
        self._policy = policy or Policy()
        self._ends_with_nodes = self._policy.on_node_failure is OnNodeFailure.VERDICT
        self._recover = recover
        # the site's command that reports what the log of a node says; () if no node is asked
        asks = self._policy.asks_nodes
        self._health = tuple(shlex.split(run.site.node_health)) if asks else ()
        of_site = run.site.retry_policy
        rules = {**self._policy.rules, **of_site.rules}  # a rule of the site replaces the study's
        self._rules = msgspec.structs.replace(of_site, rules=rules)
        self._follower = Follower(run.folder, patience=run.resources.patience)
        self._began_s = run.clock.now()
        self._asked_to_end_s: dict[str, float] = {}
        self._asked_to_report_s: dict[str, float] = {}
        self._full_until_s = float("-inf")  # nothing is submitted before this time
        self._full_since_s: float | None = None
        self._noted_full: set[str] = set()  # whose jobs fill the queue, as noted in this session
        # the keys of the next four are the names of the nodes that a trial asks for
        self._revivals: dict[tuple[str, ...], int] = {}
        self._looked_at_nodes_s: dict[tuple[str, ...], float] = {}
        self._queued_since_s: dict[tuple[str, ...], float] = {}
        self._barred_since_s: dict[tuple[str, ...], float] = {}

    def intend(self, state: LedgerState, trial: Trial) -> AttemptIntended:
        """Return the next attempt of a trial; the ledger must hold it before it is submitted."""
        number = 1 + max(state.trials[trial.id].attempts, default=0)
        if state.is_rebuilt and number == 1:
            number = last_attempt(self._run.folder / state.run, trial.id) or 1
        comment = self._run.request_for(trial, number, state).comment
        return AttemptIntended(trial_id=trial.id, attempt=number, comment=comment)

    def hand_over(self, state: LedgerState, trial: Trial, attempt: Attempt) -> tuple[Event, ...]:
        """Submit an intended attempt. A second call for the same attempt finds the job again.

        Raises:
            SchedulerDown: the attempt stays intended, and the next turn submits it.
            AllocationOver: the attempt stays intended for another session; no trial runs any more.
            LedgerError: the attempt's folder cannot be written; the attempt stays intended.
        """
        run, number = self._run, attempt.number
        cell = run.cell_of(trial, state)
        request = run.request_for(trial, number, state)
        request = dataclasses.replace(request, comment=attempt.comment)
        try:
            if run.clock.ticks() < self._full_until_s:
                return ()
            checkouts.make(run.launcher, [cell])
            as_run = state.trials[trial.id].as_run
            spec = run.launcher.launch(run.with_secrets(as_run), cell)
            _refuse_hidden(trial, spec)
            spec = with_worker(spec)
            spec = with_probe(spec, devices=asks_devices(state, cell), health=self._health)
            job_id = run.executor.submit(spec, request)
        except SchedulerDown:
            raise
        except AllocationOver:
            if state.in_flight():
                return ()  # the attempt stays intended; trials that run may still end well
            raise
        except QueueFull as error:
            if self._is_full(state):
                return self._note_full_queue(state, error)
            return self._not_submitted(state, trial, request, number, error)
        except OSError as error:
            raise LedgerError(
                f"{request.folder} cannot be written: {error}; the work directory must be "
                "writable, with free space"
            ) from error
        except (CheckoutError, SubmissionError, ConfigError) as error:
            return self._not_submitted(state, trial, request, number, error)
        self._full_since_s = None
        submission = Submission(
            trial_id=trial.id,
            attempt=number,
            executor=run.executor.name,
            job_id=job_id,
            folder=str(request.folder.relative_to(run.folder)),
        )
        nodes = ",".join(request.nodelist) or "no nodes named"
        _LOG.info("submitted %s, attempt %d, as job %s (%s)", trial.id, number, job_id, nodes)
        return (AttemptSubmitted(submission=submission),)

    def _is_full(self, state: LedgerState) -> bool:
        """Return whether to wait for a limit on jobs, which counts other jobs of the user too."""
        now_s = self._run.clock.ticks()
        self._full_until_s = now_s + _FULL_S
        if state.in_flight() or self._full_since_s is None:
            self._full_since_s = now_s
        # as long as nothing has run, it is more likely a limit that no such job can ever meet
        patience_s = _FULL_PATIENCE_S if state.measured_on else 2 * _FULL_S
        return now_s - self._full_since_s < patience_s

    def _note_full_queue(self, state: LedgerState, error: QueueFull) -> tuple[Event, ...]:
        """Note that a limit on jobs is reached: once a session for our jobs, once for others."""
        whose = "one of ours ends" if state.in_flight() else "other jobs of yours end"
        if whose in self._noted_full:
            return ()
        self._noted_full.add(whose)
        why = say(
            "a limit on submitted jobs is reached; the next trial waits until {whose}: {error}",
            whose=whose,
            error=str(error),
        )
        _LOG.warning("%s", sentence(why))
        return (Noted(about=NoteKind.WAITING, why=why),)

    def _not_submitted(
        self,
        state: LedgerState,
        trial: Trial,
        request: Request,
        number: int,
        error: Exception,
    ) -> tuple[Event, ...]:
        """Return the events that follow when an attempt is refused, or has no checkout."""
        forget_secrets(request.folder)
        cell, reason = self._run.cell_of(trial, state), str(error)
        outcome = Outcome(state=State.FAILED, reason=reason)
        end = AttemptEnded(trial_id=trial.id, attempt=number, outcome=outcome)
        if isinstance(error, CheckoutError):
            cls = FailureClass.CHECKOUT_FAIL
            finding = Finding(cls=cls, action=Action.RETRY, text=reason, detail=reason)
            facts = Facts(earlier=_earlier(state, trial, number), policy=self._rules)
            decided = self._decided(decide(outcome, finding, facts), trial.id, number)
            is_over = decided.next is not Next.RETRY
            follows = _ended(state, decided, outcome, finding) if is_over else (decided,)
            return (*follows, msgspec.structs.replace(end, findings=(finding,)))
        ruling = Ruling(
            trial_id=trial.id,
            attempt=number,
            next=Next.STOP,
            cls=FailureClass.SUBMISSION_REFUSED,
            detail=reason,
            nodes=request.nodelist,
        )
        is_nodes = bool(cell.nodelist) and not _is_refused_everywhere(state, ruling)
        return (end, *self._not_started(state, ruling, outcome, is_for_nodes=is_nodes))

    def look(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events that follow from the state of a submission.

        A submission that will measure nothing any more is not ended at once. This call returns the
        event that says so, and the next call ends the job: the ledger then knows that we ended it.
        """
        if outcome.state is State.LOST:
            # its payload is gone, but processes that the trainer started may still run
            self._cancel(submission)
        progress = state.trials[submission.trial_id]
        attempt = progress.attempts[submission.attempt]
        if outcome.state.is_final:
            forget_secrets(self._run.folder / submission.folder)
        if outcome.is_unreadable:
            keep_unreadable(self._run.folder / submission.folder)
        if outcome.state is State.CANCELLED and attempt.state is AttemptState.LET_GO:
            return interrupted(submission, outcome)
        pinned = self._pinned(state, progress.trial, outcome)
        if outcome.state.is_final:
            return (*pinned, *self._finish(state, submission, outcome))
        is_running = outcome.state is State.RUNNING
        # `wait_in_queue` can end a trial while its job still waits for a node
        is_cut = is_running and attempt.cut_short is not None
        if progress.ended is not None or (is_cut and self._has_reported(submission)):
            self._end(submission)
            return ()
        if is_cut:
            return ()
        if not is_running:
            return ()
        read_by, ticks_s = progress.trial.protocol, self._run.clock.ticks()
        # neither is a hang: a job that a person has suspended makes no step, and the second start
        # of a job that was requeued runs nothing
        is_suspended = outcome.is_suspended or outcome.is_requeued
        why = self._follower.look(
            submission,
            read_by,
            ticks_s=ticks_s,
            is_suspended=is_suspended,
            compiling=compile_patience(state, progress.trial, self._run.resources.patience),
            rotates=progress.trial.rotation is not None,
        )
        if why is None:
            return pinned
        reason = f"{why.still_s:.0f} s without a step" + (f", {why.fatal.cls}" if why.fatal else "")
        _LOG.info("job %s is to be ended: %s", submission.job_id, reason)
        return (*pinned, why)

    def wait_in_queue(
        self, state: LedgerState, outcomes: Mapping[str, Outcome]
    ) -> tuple[Event, ...]:
        """Return the events for nodes on which nothing runs while submissions wait for them.

        Nodes that cannot take the next trial are resumed. If a node stays away, or a trial waits
        longer than the user's patience, the sweep stops; where the study's policy says so, the
        trial ends without a measurement instead. A job that the scheduler will never start as it
        was requested stops the sweep, because all other jobs request the same.
        """
        # names of nodes -> the first submission that waits for them, and where it stands
        waiting: dict[tuple[str, ...], tuple[Submission, Outcome]] = {}
        busy: set[str] = set()  # nodes on which something runs; "" if the job names none
        for submission in state.in_flight():
            trial, outcome = state.trials[submission.trial_id].trial, standing(outcomes, submission)
            nodes = state.nodes_of(self._run.cell_of(trial, state))
            if outcome is None or state.trials[submission.trial_id].ended is not None:
                continue
            if outcome.state is State.PENDING:
                waiting.setdefault(nodes, (submission, outcome))
            else:
                busy |= {*nodes} or {""}
        stuck = {nodes: job for nodes, job in waiting.items() if busy.isdisjoint(nodes or ("",))}
        never_start = [nodes for nodes, (_, outcome) in stuck.items() if outcome.never_starts]
        now_s = self._run.clock.ticks()
        self._queued_since_s = _since(self._queued_since_s, stuck, now_s)
        self._barred_since_s = _since(self._barred_since_s, never_start, now_s)
        events = (self._wait_for(state, nodes, *job) for nodes, job in stuck.items())
        return tuple(chain.from_iterable(events))

    def _wait_for(
        self, state: LedgerState, nodes: tuple[str, ...], first: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events for a submission that is the first to wait for its nodes."""
        now_s, limit_s = self._run.clock.ticks(), self._run.resources.queue_limit_s
        ruling = Ruling(
            trial_id=first.trial_id,
            attempt=first.attempt,
            next=Next.STOP,
            cls=FailureClass.QUEUE_LIMIT,
            evidence=outcome.reason,
        )
        if limit_s and now_s - self._queued_since_s[nodes] > limit_s:
            return self._not_started(
                state, msgspec.structs.replace(ruling, waited_s=limit_s), outcome
            )
        if outcome.lacks_nodes and self._is_look_due(nodes):
            return self._look_at_nodes(state, nodes, ruling, outcome)
        # the scheduler may say it for a moment while it restarts or while the site changes a limit
        if now_s - self._barred_since_s.get(nodes, now_s) <= _BARRED_S:
            return ()
        cls, detail = FailureClass.NEVER_STARTS, f"{outcome.reason}: {outcome.never_starts}"
        ruling = msgspec.structs.replace(ruling, cls=cls, detail=detail)
        return self._not_started(state, ruling, outcome, is_for_nodes=False)

    def _is_look_due(self, nodes: tuple[str, ...]) -> bool:
        """Return whether to check the nodes of a waiting trial again; if so, the time is kept."""
        now_s = self._run.clock.ticks()
        if now_s - self._looked_at_nodes_s.get(nodes, float("-inf")) < _LOOK_AT_NODES_S:
            return False
        self._looked_at_nodes_s[nodes] = now_s
        return True

    def _look_at_nodes(
        self, state: LedgerState, nodes: tuple[str, ...], ruling: Ruling, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Resume the nodes of a waiting trial; return the events of success or failure."""
        resumed = self._revive(nodes)
        if resumed.faults:
            sick = resumed.unfit or nodes
            ruling = msgspec.structs.replace(
                ruling,
                cls=FailureClass.NODE_DRAIN,
                faults=resumed.faults,
                nodes=sick,
                resumed=resumed.tried,
            )
            return self._not_started(state, ruling, outcome)
        if not resumed.nodes:
            return ()
        self._barred_since_s.pop(nodes, None)
        return (
            EpochBegan(cause=EpochCause.RESUMED, cls=FailureClass.NODE_DRAIN, nodes=resumed.nodes),
        )

    def _not_started(
        self, state: LedgerState, proposed: Ruling, outcome: Outcome, *, is_for_nodes: bool = True
    ) -> tuple[Event, ...]:
        """Return the events that follow when a trial cannot start.

        `is_for_nodes` says that the reason is in its nodes, and not one that all trials share.
        """
        facts = Facts(is_for_nodes=is_for_nodes, ends_with_nodes=self._ends_with_nodes)
        ruling = in_case(proposed, facts)
        event = ruling.as_event(proposed.trial_id, proposed.attempt)
        if ruling.next is Next.STOP:
            return (event,)
        _LOG.info("%s ends without a measurement: %s", event.trial_id, sentence(event.why))
        finding = Finding(
            cls=event.cls, action=Action.NONE, text=event.evidence, detail="; ".join(event.faults)
        )
        return _ended(state, event, outcome, finding)

    def _revive(self, nodes: tuple[str, ...]) -> Resumed:
        """Resume nodes. After `_REVIVALS` times without a measured trial they count as unfit."""
        times = self._revivals.get(nodes, 0)
        if times >= _REVIVALS:
            why = f"resumed {times} times without a measured trial since"
            return Resumed(unfit=nodes, faults=(why,))
        resumed = self._run.executor.resume(nodes)
        resumed = dataclasses.replace(resumed, faults=tuple(map(shown, resumed.faults)))
        _LOG.warning(
            "asked for %s to be resumed: resumed %s; %s",
            ",".join(nodes) or "this machine",
            ",".join(resumed.nodes) or "none",
            "; ".join(resumed.faults) or "all are fit",
        )
        self._revivals[nodes] = times + bool(resumed.nodes)
        return resumed

    def _end(self, submission: Submission) -> None:
        """Ask for the end of a job, and again only after a while, because an end takes time."""
        now_s, asked_s = self._run.clock.ticks(), self._asked_to_end_s.get(submission.folder)
        if asked_s is None or now_s - asked_s >= _ASK_AGAIN_S:
            self._cancel(submission)
            self._asked_to_end_s[submission.folder] = now_s

    def _has_reported(self, submission: Submission) -> bool:
        """Return whether the ranks of a hung job have written down what they do, or time is up.

        Only its processes know what the job waits for, so they are asked before they are ended.
        """
        now_s, folder = self._run.clock.ticks(), submission.folder
        asked_s = self._asked_to_report_s.setdefault(folder, now_s)
        return ask_what_hangs(self._run.folder / folder) or now_s - asked_s >= _REPORT_S

    def _cancel(self, submission: Submission) -> None:
        executor = self._run.executor_of(submission.executor)
        executor.cancel([submission], root=self._run.folder)

    def _pinned(self, state: LedgerState, trial: Trial, outcome: Outcome) -> tuple[Event, ...]:
        """Return the event that keeps the nodes of a cell's first trial, if the cell names none."""
        cell = self._run.cell_of(trial, state)
        if not self._run.picks_nodes(cell) or state.nodes_of(cell) or not outcome.nodes:
            return ()
        return (NodesPinned(cell_digest=cell.digest, nodes=tuple(sorted(outcome.nodes))),)

    def _finish(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Assess a submission that is over; return its end, and that of its trial if it is over."""
        progress, folder = state.trials[submission.trial_id], self._run.folder / submission.folder
        self._asked_to_end_s.pop(submission.folder, None)
        self._asked_to_report_s.pop(submission.folder, None)
        self._full_until_s = float("-inf")  # the limit on jobs may have room again
        attempt = self._ended_attempt(state, submission, with_followed_job(outcome, folder))
        # a log line that was cut after `Unknown flag(s) in XLA_FLAGS:` once raised an error here in
        # every session of a sweep
        try:
            assessment = assess(attempt)
        except (OSError, LedgerError):
            raise
        except Exception as error:  # noqa: BLE001 - what one attempt left must not end a night
            _LOG.exception("what %s left cannot be assessed", folder)
            nothing = Leftovers(report=LogReport(findings=(unreadable(folder, error),)))
            attempt = dataclasses.replace(attempt, left=nothing)
            assessment = assess(attempt)
        end = AttemptEnded(
            trial_id=submission.trial_id,
            attempt=submission.attempt,
            outcome=attempt.outcome,
            findings=assessment.findings,
            blamed=assessment.blamed,
        )
        if progress.ended is not None:  # the ledger was cut short and lacks only this event
            return (end,)
        decision, events = self._prepared(assessment.decision, attempt.facts)
        if decision.next is Next.ACCEPT:
            self._revivals.pop(attempt.facts.nodes, None)
        else:
            decision = proved(decision, attempt, self._run.executor.name)
            events = (*events, self._decided(decision, submission.trial_id, submission.attempt))
        if (status := STATUS.get(decision.next)) is not None:
            events += self._trial_ended(state, submission, attempt, assessment, status)
        # the end comes last: an attempt without one in the ledger is assessed again
        return (*events, end)

    def _ended_attempt(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> EndedAttempt:
        """Return all that is known of an attempt that is over."""
        run, progress = self._run, state.trials[submission.trial_id]
        trial, folder = progress.trial, run.folder / submission.folder
        cell, cut = run.cell_of(trial, state), progress.attempts[submission.attempt].cut_short
        spec = read_spec(folder)
        reference_runs = any(
            other.result.status is TrialStatus.MEASURED
            for other in state.trials.values()
            if other.trial.arm == self._reference
        )
        return EndedAttempt(
            trial=trial,
            cell=cell,
            outcome=outcome,
            left=self._follower.finish(submission, trial.protocol, stood_still=cut is not None),
            number=submission.attempt,
            cut=cut,
            blamed=progress.blamed,
            is_asked=spec is not None and spec.tells_options,
            exempt=run.site.unseen,
            ran_on=others_ran_on(state, trial, outcome, folder, reference=self._reference),
            log=folder / log_name(0),
            facts=Facts(
                earlier=_earlier(state, trial, submission.attempt),
                policy=self._rules,
                reference=reference_for(trial, self._reference, runs=reference_runs),
                is_over=outcome.end_s is not None and outcome.end_s < self._began_s,
                ends_with_nodes=self._ends_with_nodes,
                nodes=state.nodes_of(cell),
            ),
        )

    def _decided(self, decision: Ruling, trial_id: str, number: int) -> Decided:
        """Return the event of a decision, whose wait begins now."""
        wait_s = decision.backoff_s
        not_before_s = self._run.clock.now() + wait_s if wait_s else 0.0
        decided = decision.as_event(trial_id, number, not_before_s=not_before_s)
        _LOG.info("%s, attempt %d: %s", trial_id, number, sentence(decided.why))
        return decided

    def _trial_ended(
        self,
        state: LedgerState,
        submission: Submission,
        attempt: EndedAttempt,
        assessment: Assessment,
        status: TrialStatus,
    ) -> tuple[Event, ...]:
        """Return the events of a trial that is over: its result, and what follows for others."""
        trial, cell, outcome = attempt.trial, attempt.cell, attempt.outcome
        before = state.trials[trial.id].result
        epochs: tuple[Event, ...] = ()
        # a trial that ran on another device tells nothing about its cell
        if assessment.decision.cls != FailureClass.OTHER_DEVICE:
            folder = self._run.folder / submission.folder
            epochs = parted(state, attempt, folder, is_scored=bool(assessment.score))
        result = msgspec.structs.replace(
            before,
            status=status,
            score=assessment.score,
            reason=assessment.why_none,
            rotation=assessment.rotation,
            findings=(*before.findings, *assessment.findings),
            outcome=outcome,
            job_ids=(*before.job_ids[:-1], outcome.job or submission.job_id),
            epoch=state.epoch_of(cell.digest, tuple(outcome.nodes) or attempt.facts.nodes)
            + sum(isinstance(event, EpochBegan) for event in epochs),
            settings=assessment.settings,
            devices=assessment.devices,
        )
        _LOG.info("%s is %s", trial.id, status)
        return (*epochs, TrialEnded(result=result), *said_of_settings(state, result))

    def _prepared(self, ruling: Ruling, facts: Facts) -> tuple[Ruling, tuple[Event, ...]]:
        """Do what a retry needs first, or call the site's hook for it; return what follows."""
        if ruling.next is not Next.RETRY or ruling.before not in (Action.HOOK, Action.RESUME_NODE):
            return ruling, ()
        resumed, nodes = Resumed(), facts.nodes
        if ruling.before is Action.RESUME_NODE:
            resumed = self._revive(nodes)
            if not resumed.faults:
                cause = EpochCause.RESUMED if resumed.nodes else EpochCause.FIT_AGAIN
                fit = resumed.nodes or nodes
                return ruling, (EpochBegan(cause=cause, cls=ruling.cls, nodes=fit),)
        clean_ruling = Ruling.from_json(without_secrets(ruling.to_json()))
        if self._recover is not None and self._recover(clean_ruling, nodes):
            began = EpochBegan(
                cause=EpochCause.HOOK,
                cls=ruling.cls,
                nodes=nodes,
                action=ruling.before,
                faults=resumed.faults,
            )
            return ruling, (began,)
        unready = msgspec.structs.replace(
            ruling,
            faults=resumed.faults,
            nodes=resumed.unfit or ruling.nodes,
            resumed=resumed.tried,
        )
        return in_case(unready, dataclasses.replace(facts, is_unready=True)), ()


def _since(
    before: Mapping[tuple[str, ...], float], now: Iterable[tuple[str, ...]], now_s: float
) -> dict[tuple[str, ...], float]:
    """Return since when something holds of nodes: from before, or from now on."""
    return {nodes: before.get(nodes, now_s) for nodes in now}


def _refuse_hidden(trial: Trial, spec: LaunchSpec) -> None:
    """Refuse a trial of an earlier session whose secret this one does not know."""
    if any(HIDDEN in text for text in (*spec.argv, *spec.env.values(), *spec.files.values())):
        raise SubmissionError(
            f"{trial.id} needs a secret, and the ledger keeps no secret; put it back into the "
            f"profile {trial.profile.id!r} or the cell in the sweep file"
        )


def _is_refused_everywhere(state: LedgerState, ruling: Ruling) -> bool:
    """Return whether two other node lists were refused too, so that nodes are not the reason."""
    if state.in_flight() or state.measured_on:
        return False
    refused = {
        decided.nodes
        for decided in state.decisions
        if (decided.cls, decided.detail) == (ruling.cls, ruling.detail)
    }
    return len({*refused, ruling.nodes}) > _REFUSALS
