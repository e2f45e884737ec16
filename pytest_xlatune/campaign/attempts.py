"""One attempt of a trial: it is named, submitted, watched and brought to its end.

Each method returns the events that the ledger has to hold, and the caller writes them before it
acts on them. This module writes no ledger and proposes no trial.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import shlex
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from pytest_xlatune.campaign._follow import EndedAttempt, Follower, Leftovers, unreadable_finding
from pytest_xlatune.campaign.assess import STATUS, assess, settings_events
from pytest_xlatune.campaign.epochs import compared_devices, epoch_events, is_device_probe_due
from pytest_xlatune.campaign.jobs import interrupted_events
from pytest_xlatune.campaign.playbook import Facts, Ruling, with_exceptions
from pytest_xlatune.campaign.sweep_run import SweepRun
from pytest_xlatune.executors import (
    AllocationOver,
    QueueFull,
    Request,
    Resumed,
    SchedulerDown,
    outcome_of,
)
from pytest_xlatune.executors.folder import (
    ask_what_hangs,
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
    EpochBegan,
    Event,
    NodesPinned,
    Noted,
    TrialEnded,
    without_secrets,
)
from pytest_xlatune.ledger.state import Attempt, AttemptState, LedgerState
from pytest_xlatune.logs import LogReport
from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError, shown
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.resources import Next, Patience
from pytest_xlatune.model.result import Action, Finding, Outcome, State, Submission, TrialStatus
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.studies import OnNodeFailure, Policy
from pytest_xlatune.studies.trials import pace_of
from pytest_xlatune.sweep import checkouts

_LOG = logging.getLogger("pytest_xlatune.campaign")

# calls the site's hook for repairs that need other rights; returns whether the repair is done
Recover = Callable[[Ruling, tuple[str, ...]], bool]
_Nodes = tuple[str, ...]  # the names of the nodes that a trial requests

_ASK_AGAIN_S = 30.0  # seconds between two requests to end the same job
_CHECK_NODES_S = 30.0  # seconds between two checks of the nodes of a waiting trial
# if more node lists than these are refused with the same message, the nodes are not the reason
_NODE_LISTS = 2
# how long the scheduler must say that it never starts a job: it may say so for a moment while it
# restarts, or while the site changes a limit
_NEVER_STARTS_S = 60.0
_FULL_S = 15.0  # seconds between two tries to submit while a limit on jobs is reached
_FULL_PATIENCE_S = 900.0  # how long we wait for such a limit while no job of ours is in flight
_MOST_RESUMPTIONS = 2  # how often the same nodes are resumed without a measured trial in between
# How long the ranks of a job that hangs may take to write down what they wait for. A node sees the
# file that requests this only some time after it was written.
_REPORT_S = 90.0
# How many times longer than earlier trials a program may take to its first step; also the factor on
# the patience if an earlier trial of the arm hung while it compiled.
_TIMES_LONGER = 2.0


def compile_patience(state: LedgerState, trial: Trial, patience: Patience) -> float:
    """Return the factor by which `patience.compiling_s` is multiplied for a trial.

    The first trial of a campaign is limited by its job alone, because a large model compiles for 40
    minutes. A later trial may take twice as long to its first step as the trials before it, whether
    these belong to its cell or to another batch size. For a rotation, and if the site has set the
    patience, the factor is 1. It is twice as large if an earlier trial of the arm hung while it
    compiled.
    """
    results = [progress.ended for progress in state.trials.values() if progress.ended is not None]
    hung = any(
        finding.cls == FailureClass.HANG_SILENT_OOM
        for result in results
        if (result.trial.arm, result.trial.study) == (trial.arm, trial.study)
        for finding in result.findings
    )
    factor = _TIMES_LONGER if hung else 1.0
    if trial.rotation is not None or patience.compiling_s != Patience().compiling_s:
        return factor
    pace = pace_of(results)
    if pace is None:
        return math.inf
    return factor * max(1.0, _TIMES_LONGER * pace.start_s / patience.compiling_s)


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
        policy, site = policy or Policy(), run.site
        self._run = run
        self._reference = reference
        self._recover = recover
        # the site's command that reports what the log of a node says; () if it is not used
        self._health = tuple(shlex.split(site.node_health)) if policy.asks_nodes else ()
        # a rule of the site replaces the study's rule for the same class
        rules = {**policy.rules, **site.retry_policy.rules}
        self._facts = Facts(
            policy=replace(site.retry_policy, rules=rules),
            ends_with_nodes=policy.on_node_failure is OnNodeFailure.VERDICT,
        )
        self._follower = Follower(run.folder, patience=run.resources.patience)
        # folder of an attempt -> when its end, or its ranks' report, was last requested
        self._end_requested_s: dict[str, float] = {}
        self._report_requested_s: dict[str, float] = {}
        self._full_until_s = float("-inf")  # nothing is submitted before this time
        self._full_since_s: float | None = None  # when a limit was reached; None if none is
        self._is_full_noted = False  # whether this session noted such a limit
        self._resumptions: dict[_Nodes, int] = {}  # those since the last measured trial
        self._checked_nodes_s: dict[_Nodes, float] = {}  # when they were last checked
        self._queued_since_s: dict[_Nodes, float] = {}  # since when a job waits for them
        self._never_starts_since_s: dict[_Nodes, float] = {}  # since when none can start

    def intend(self, state: LedgerState, trial: Trial) -> AttemptIntended:
        """Return the next attempt of a trial; the ledger must hold it before it is submitted."""
        number = 1 + max(state.trials[trial.id].attempts, default=0)
        comment = self._run.request_for(trial, number, state).comment
        return AttemptIntended(trial_id=trial.id, attempt=number, comment=comment)

    def submit(self, state: LedgerState, trial: Trial, attempt: Attempt) -> tuple[Event, ...]:
        """Submit an intended attempt. A second call for the same attempt finds the job again.

        Raises:
            SchedulerDown: the scheduler does not answer; the next turn submits the attempt.
            AllocationOver: no trial can run in this session; another one submits the attempt.
            LedgerError: the attempt's folder cannot be written; the attempt stays intended.
        """
        run, number = self._run, attempt.number
        cell = run.cell_of(trial, state)
        request = replace(run.request_for(trial, number, state), comment=attempt.comment)
        if run.clock.ticks() < self._full_until_s:
            return ()
        try:
            checkouts.make(run.launcher, [cell])
            as_run = state.trials[trial.id].as_run
            spec = run.launcher.launch(run.with_secrets(as_run), cell)
            _require_secrets(trial, spec)
            spec = with_worker(spec)
            spec = with_probe(spec, devices=is_device_probe_due(state, cell), health=self._health)
            job_id = run.executor.submit(spec, request)
        except SchedulerDown:
            raise
        except AllocationOver:
            if state.in_flight():
                return ()  # the attempt stays intended, and the trials that run may still end well
            raise
        except OSError as error:
            raise LedgerError(
                f"{request.folder} cannot be written: {error}; the work directory must be "
                "writable, with free space"
            ) from error
        except (SubmissionError, ConfigError) as error:
            if isinstance(error, QueueFull):
                waiting = self._wait_for_room(state, error)
                if waiting is not None:
                    return waiting
            return self._refused_events(state, trial, request, number, str(error))
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

    def _wait_for_room(self, state: LedgerState, error: QueueFull) -> tuple[Event, ...] | None:
        """Wait for a limit on jobs, which counts other jobs of the user too, and note it once.

        None means that we have waited for too long.
        """
        now_s = self._run.clock.ticks()
        self._full_until_s = now_s + _FULL_S
        if state.in_flight() or self._full_since_s is None:
            self._full_since_s = now_s
        if now_s - self._full_since_s >= _FULL_PATIENCE_S:
            return None
        if self._is_full_noted:
            return ()
        self._is_full_noted = True
        why = say(
            "a limit on submitted jobs is reached; the next trial waits until a job ends: {error}",
            error=str(error),
        )
        _LOG.warning("%s", sentence(why))
        return (Noted(why=why),)

    def _refused_events(
        self, state: LedgerState, trial: Trial, request: Request, number: int, reason: str
    ) -> tuple[Event, ...]:
        forget_secrets(request.folder)
        outcome = Outcome(state=State.FAILED, reason=reason)
        names_nodes = bool(self._run.cell_of(trial, state).nodelist)
        # if no job was accepted, and so many node lists were refused, the nodes are not the reason
        refused = {request.nodelist} | {
            decided.nodes
            for decided in state.decisions
            if (decided.cls, decided.detail) == (FailureClass.SUBMISSION_REFUSED, reason)
        }
        others_run = bool(state.in_flight() or state.measured_on)
        end = AttemptEnded(trial_id=trial.id, attempt=number, outcome=outcome)
        ruling = Ruling(
            trial_id=trial.id,
            attempt=number,
            next=Next.STOP,
            cls=FailureClass.SUBMISSION_REFUSED,
            detail=reason,
            nodes=request.nodelist,
            is_of_node=names_nodes and (others_run or len(refused) <= _NODE_LISTS),
        )
        return (end, *self._cannot_start(state, ruling, outcome))

    def events_for(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events that follow from the outcome so far of a submission.

        If the submission can measure nothing any more, this call returns the event that records
        this, and only the next call ends the job. The ledger then already says that we ended it.
        """
        if outcome.state is State.LOST:
            # its payload is gone, but processes that the trainer started may still run
            self._cancel(submission)
        progress = state.trials[submission.trial_id]
        attempt = progress.attempts[submission.attempt]
        if outcome.state.is_final:
            forget_secrets(self._run.folder / submission.folder)
        if outcome.state is State.CANCELLED and attempt.state is AttemptState.LET_GO:
            return interrupted_events(submission, outcome)
        pinned = self._pin_nodes(state, progress.trial, outcome)
        if outcome.state.is_final:
            return (*pinned, *self._finish_attempt(state, submission, outcome))
        is_running = outcome.state is State.RUNNING
        is_cut = is_running and attempt.cut_short is not None
        # a trial that is over may have a job in the queue, because `wait_in_queue` can end a trial
        if progress.ended is not None or (is_cut and self._have_ranks_reported(submission)):
            self._request_end(submission)
            return ()
        if is_cut or not is_running:
            return ()
        cut_short = self._follower.reason_to_end(
            submission,
            progress.trial.protocol,
            ticks_s=self._run.clock.ticks(),
            # A job that a person has suspended makes no steps, and the second start of a job that
            # was requeued runs nothing. Neither of them hangs.
            is_suspended=outcome.is_suspended or outcome.is_requeued,
            compiling_factor=compile_patience(state, progress.trial, self._run.resources.patience),
            rotates=progress.trial.rotation is not None,
        )
        if cut_short is None:
            return pinned
        fatal = f", {cut_short.fatal.cls}" if cut_short.fatal else ""
        reason = f"{cut_short.still_s:.0f} s without a step{fatal}"
        _LOG.info("job %s is to be ended: %s", submission.job_id, reason)
        return (*pinned, cut_short)

    def wait_in_queue(
        self, state: LedgerState, outcomes: Mapping[str, Outcome]
    ) -> tuple[Event, ...]:
        """Return the events for nodes on which nothing runs while submissions wait for them.

        Nodes that are down or drained are resumed. If a node stays unfit, or a trial waits longer
        than `Resources.queue_limit_s`, the sweep stops; if the study's policy says so, the trial
        ends without a measurement instead. A job that the scheduler will never start as it was
        requested stops the sweep, because all other jobs request the same.
        """
        # names of nodes -> the first submission that waits for them, and its outcome so far
        waiting: dict[_Nodes, tuple[Submission, Outcome]] = {}
        busy: set[str] = set()  # nodes on which something runs; "" if the job names none
        for submission in state.in_flight():
            progress, outcome = state.trials[submission.trial_id], outcome_of(outcomes, submission)
            nodes = state.nodes_of(self._run.cell_of(progress.trial, state))
            if outcome is None or progress.ended is not None:
                continue
            if outcome.state is State.PENDING:
                waiting.setdefault(nodes, (submission, outcome))
            else:
                busy |= {*nodes} or {""}
        stuck = {nodes: job for nodes, job in waiting.items() if busy.isdisjoint(nodes or ("",))}
        now_s = self._run.clock.ticks()
        queued, never = self._queued_since_s, self._never_starts_since_s
        self._queued_since_s = {nodes: queued.get(nodes, now_s) for nodes in stuck}
        self._never_starts_since_s = {
            nodes: never.get(nodes, now_s)
            for nodes, (_, outcome) in stuck.items()
            if outcome.never_starts
        }
        return tuple(
            event
            for nodes, (submission, outcome) in stuck.items()
            for event in self._first_waiting(state, nodes, submission, outcome)
        )

    def _first_waiting(
        self, state: LedgerState, nodes: _Nodes, first: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events for a submission that is the first to wait for its nodes."""
        now_s, limit_s = self._run.clock.ticks(), self._run.resources.queue_limit_s
        ruling = Ruling(
            trial_id=first.trial_id,
            attempt=first.attempt,
            next=Next.STOP,
            cls=FailureClass.QUEUE_LIMIT,
            detail=f"no trial has started for {limit_s} s",
            evidence=outcome.reason,
            is_of_node=True,
        )
        if limit_s and now_s - self._queued_since_s[nodes] > limit_s:
            return self._cannot_start(state, ruling, outcome)
        last_check_s = self._checked_nodes_s.get(nodes, float("-inf"))
        if outcome.lacks_nodes and now_s - last_check_s >= _CHECK_NODES_S:
            self._checked_nodes_s[nodes] = now_s
            resumed = self._resume(nodes)
            if resumed.faults:
                ruling = replace(
                    ruling,
                    cls=FailureClass.NODE_DRAIN,
                    detail="; ".join(resumed.faults),
                    nodes=resumed.unfit or nodes,
                    resumed=resumed.nodes,
                )
                return self._cannot_start(state, ruling, outcome)
            if not resumed.nodes:
                return ()
            self._never_starts_since_s.pop(nodes, None)
            return (_epoch_of_resumed(FailureClass.NODE_DRAIN, resumed.nodes),)
        if now_s - self._never_starts_since_s.get(nodes, now_s) <= _NEVER_STARTS_S:
            return ()
        advice = "change what a job asks for, in Resources or the Slurm options"
        detail = f"{outcome.reason}: {advice}"
        never = replace(ruling, cls=FailureClass.NEVER_STARTS, detail=detail, is_of_node=False)
        return self._cannot_start(state, never, outcome)

    def _cannot_start(
        self, state: LedgerState, proposed: Ruling, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events that follow when a trial cannot start."""
        ruling = with_exceptions(proposed, self._facts)
        event = ruling.as_event(proposed.trial_id, proposed.attempt)
        if ruling.next is Next.STOP:
            return (event,)
        _LOG.info("%s ends without a measurement: %s", event.trial_id, sentence(event.why))
        before = state.trials[event.trial_id].result
        finding = Finding(
            cls=event.cls, action=Action.NONE, text=event.evidence, detail=event.detail
        )
        result = replace(
            before,
            status=STATUS[event.next],
            reason=event.why,
            findings=(*before.findings, finding),
            outcome=outcome,
        )
        return (event, TrialEnded(result=result))

    def _resume(self, nodes: _Nodes) -> Resumed:
        """Resume nodes, unless that was done often enough without a measured trial since."""
        resumptions = self._resumptions.get(nodes, 0)
        if resumptions >= _MOST_RESUMPTIONS:
            why = f"resumed {resumptions} times without a measured trial since"
            return Resumed(unfit=nodes, faults=(why,))
        resumed = self._run.executor.resume(nodes)
        resumed = replace(resumed, faults=tuple(map(shown, resumed.faults)))
        _LOG.warning(
            "request to resume %s: resumed %s; %s",
            ",".join(nodes) or "this machine",
            ",".join(resumed.nodes) or "none",
            "; ".join(resumed.faults) or "all are fit",
        )
        self._resumptions[nodes] = resumptions + bool(resumed.nodes)
        return resumed

    def _request_end(self, submission: Submission) -> None:
        """Request the end of a job; repeat that after `_ASK_AGAIN_S`, because an end takes time."""
        now_s, requested_s = self._run.clock.ticks(), self._end_requested_s.get(submission.folder)
        if requested_s is None or now_s - requested_s >= _ASK_AGAIN_S:
            self._cancel(submission)
            self._end_requested_s[submission.folder] = now_s

    def _have_ranks_reported(self, submission: Submission) -> bool:
        """Return whether the ranks of a hung job have written down what they do, or time is up.

        They are asked before the job is ended, because only its processes show what it waits for.
        """
        now_s, folder = self._run.clock.ticks(), submission.folder
        requested_s = self._report_requested_s.setdefault(folder, now_s)
        return ask_what_hangs(self._run.folder / folder) or now_s - requested_s >= _REPORT_S

    def _cancel(self, submission: Submission) -> None:
        executor = self._run.executor_of(submission.executor)
        executor.cancel([submission], root=self._run.folder)

    def _pin_nodes(self, state: LedgerState, trial: Trial, outcome: Outcome) -> tuple[Event, ...]:
        """Return the event that keeps the nodes of a cell's first trial, if the cell names none."""
        cell = self._run.cell_of(trial, state)
        if not self._run.picks_nodes(cell) or state.nodes_of(cell) or not outcome.nodes:
            return ()
        return (NodesPinned(cell_digest=cell.digest, nodes=tuple(sorted(outcome.nodes))),)

    def _finish_attempt(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Assess a submission that is over; return its end, and the trial's end if there is one."""
        trial_id, number = submission.trial_id, submission.attempt
        folder = self._run.folder / submission.folder
        self._end_requested_s.pop(submission.folder, None)
        self._report_requested_s.pop(submission.folder, None)
        self._full_until_s = float("-inf")  # the limit on jobs may have room again
        attempt = self._ended_attempt(state, submission, with_followed_job(outcome, folder))
        try:
            assessment = assess(attempt)
        except (OSError, LedgerError):
            raise
        # an unforeseen line in one log, read by every session, must not end the whole sweep
        except Exception as error:  # noqa: BLE001
            _LOG.exception("the files of %s cannot be assessed", folder)
            no_files = Leftovers(report=LogReport(findings=(unreadable_finding(folder, error),)))
            attempt = dataclasses.replace(attempt, left=no_files)
            assessment = assess(attempt)
        end = AttemptEnded(
            trial_id=trial_id,
            attempt=number,
            outcome=attempt.outcome,
            findings=assessment.findings,
            blamed=assessment.blamed,
        )
        if state.trials[trial_id].ended is not None:  # the ledger has that end
            return (end,)
        decision, events = self._prepare_retry(assessment.decision, attempt.facts)
        if decision.next is Next.ACCEPT:
            self._resumptions.pop(attempt.facts.nodes, None)
        else:  # the wait before a retry begins now
            not_before_s = self._run.clock.now() + decision.backoff_s if decision.backoff_s else 0.0
            decided = decision.as_event(trial_id, number, not_before_s=not_before_s)
            _LOG.info("%s, attempt %d: %s", trial_id, number, sentence(decided.why))
            events = (*events, decided)
        status, trial = STATUS.get(decision.next), attempt.trial
        if status is not None:
            epochs: tuple[Event, ...] = ()
            # a trial that ran on another device shows nothing about its cell
            if assessment.decision.cls != FailureClass.OTHER_DEVICE:
                epochs = epoch_events(state, attempt, folder, is_scored=bool(assessment.score))
            outcome, nodes = attempt.outcome, tuple(attempt.outcome.nodes) or attempt.facts.nodes
            epochs_begun = sum(isinstance(event, EpochBegan) for event in epochs)
            before = state.trials[trial_id].result
            result = replace(
                before,
                status=status,
                score=assessment.score,
                reason=assessment.why_none,
                rotation=assessment.rotation,
                findings=(*before.findings, *assessment.findings),
                outcome=outcome,
                job_ids=(*before.job_ids[:-1], outcome.job or submission.job_id),
                epoch=state.epoch_of(trial.cell_digest, nodes) + epochs_begun,
                settings=assessment.settings,
                devices=assessment.devices,
            )
            _LOG.info("%s is %s", trial_id, status)
            ended = TrialEnded(result=result)
            events = (*events, *epochs, ended, *settings_events(state, result))
        # the end comes last: an attempt without one in the ledger is assessed again
        return (*events, end)

    def _ended_attempt(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> EndedAttempt:
        run, progress, number = self._run, state.trials[submission.trial_id], submission.attempt
        trial, folder = progress.trial, run.folder / submission.folder
        cell, cut = run.cell_of(trial, state), progress.attempts[number].cut_short
        spec = read_spec(folder)
        is_compared = bool(self._reference) and trial.protocol.is_scored
        # an attempt that a program of a rotation ended counts against that program, not the trial
        uncounted = {number, *(blame.attempt for blame in progress.blamed)}
        earlier = tuple(
            decided.cls
            for decided in state.decided_on(trial.id)
            if decided.next is Next.RETRY and decided.attempt not in uncounted
        )
        is_reference_measured = any(
            other.result.status is TrialStatus.MEASURED
            for other in state.trials.values()
            if other.trial.arm == self._reference
        )
        facts = dataclasses.replace(
            self._facts,
            earlier=earlier,
            is_reference=is_compared and trial.arm == self._reference,
            reference_runs=is_reference_measured or not is_compared,
            nodes=state.nodes_of(cell),
        )
        return EndedAttempt(
            trial=trial,
            cell=cell,
            outcome=outcome,
            left=self._follower.finish(submission, trial.protocol, stood_still=cut is not None),
            number=number,
            cut=cut,
            blamed=progress.blamed,
            dumps_options=spec is not None and spec.tells_options,
            exempt=run.site.unseen,
            ran_on=compared_devices(state, trial, outcome, folder, reference=self._reference),
            executor=run.executor.name,
            log=folder / log_name(0),
            facts=facts,
        )

    def _prepare_retry(self, ruling: Ruling, facts: Facts) -> tuple[Ruling, tuple[Event, ...]]:
        """Do what a retry needs first, or call the site's hook; return ruling and events."""
        if ruling.next is not Next.RETRY or ruling.before not in (Action.HOOK, Action.RESUME_NODE):
            return ruling, ()
        resumed, nodes, cls, action = Resumed(), facts.nodes, ruling.cls, ruling.before
        if action is Action.RESUME_NODE:
            resumed = self._resume(nodes)
            if not resumed.faults:
                if resumed.nodes:
                    return ruling, (_epoch_of_resumed(cls, resumed.nodes),)
                why = say("{cls}: fit again: {nodes}", cls=cls, nodes=nodes)
                return ruling, (EpochBegan(why=why, nodes=nodes),)
        clean_ruling = Ruling.from_json(without_secrets(ruling.to_json()))
        if self._recover is not None and self._recover(clean_ruling, nodes):
            why = say("{cls}: the site did {action}", cls=cls, action=action)
            return ruling, (EpochBegan(why=why, nodes=nodes),)
        unready = replace(
            ruling,
            next=Next.STOP,
            found=say(
                "the next attempt needs {needed}, which was not done{faults}",
                needed=action,
                faults=say("; {faults:; }", faults=resumed.faults) if resumed.faults else None,
            ),
            nodes=resumed.unfit or ruling.nodes,
            resumed=resumed.nodes,
        )
        return with_exceptions(unready, facts), ()


def _epoch_of_resumed(cls: str, nodes: _Nodes) -> EpochBegan:
    return EpochBegan(why=say("{cls}: resumed {nodes}", cls=cls, nodes=nodes), nodes=nodes)


def _require_secrets(trial: Trial, spec: LaunchSpec) -> None:
    """Refuse a trial of an earlier session whose secret this session does not know."""
    if any(HIDDEN in text for text in (*spec.argv, *spec.env.values(), *spec.files.values())):
        raise SubmissionError(
            f"{trial.id} needs a secret, and the ledger keeps no secrets; put the secret back into "
            f"the profile {trial.profile.id!r} or the cell in the sweep file"
        )
