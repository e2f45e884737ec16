"""One attempt of a trial: it is named, submitted when it may be, watched, and ended.

Each method returns the events that the ledger has to hold, and the caller writes them before it
acts on them. This module writes no ledger and proposes no trial.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign._follow import (
    EndedAttempt,
    Follower,
    Leftovers,
    compared_devices,
    epoch_events,
    unreadable_finding,
)
from pytest_xlatune.campaign.assess import STATUS, assess, settings_events
from pytest_xlatune.campaign.jobs import interrupted_events
from pytest_xlatune.campaign.playbook import Facts, Ruling, with_exceptions
from pytest_xlatune.executors import (
    AllocationOver,
    Executor,
    QueueFull,
    Request,
    Resumed,
    SchedulerDown,
    executor_in,
    outcome_of,
    request_for,
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
from pytest_xlatune.ledger.state import AttemptState, LedgerState
from pytest_xlatune.logs import LogReport
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError, shown
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.resources import Next, Patience
from pytest_xlatune.model.result import Action, Finding, Outcome, State, Submission, TrialStatus
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.studies import OnNodeFailure, Study
from pytest_xlatune.studies.trials import pace_of
from pytest_xlatune.sweep import checkouts
from pytest_xlatune.sweep.resolved import ResolvedSweep

_LOG = logging.getLogger("pytest_xlatune.campaign")

# calls the site's hook for repairs that need other rights; returns whether the repair is done
Recover = Callable[[Ruling, tuple[str, ...]], bool]
_Nodes = tuple[str, ...]  # the names of the nodes that a trial requests

_ASK_AGAIN_S = 30.0  # seconds between two requests to end the same job
_CHECK_NODES_S = 30.0  # seconds between two checks of the nodes of a waiting trial
# if more node lists are refused before any job was accepted, the nodes are not the reason
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

    The first trial is limited by its job alone, because a large model compiles for 40 minutes. A
    later one may take twice as long to its first step as those before it. For a rotation, and if
    the site has set the patience, the factor is 1; it doubles if the arm hung while it compiled.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks of a campaign, in seconds."""

    now: Callable[[], float] = time.time  # the wall clock, since 1970; it may jump
    ticks: Callable[[], float] = time.monotonic  # for durations; it never jumps


@dataclass(slots=True)
class _Wait:
    """The wait of a submission for nodes on which nothing runs; times are monotonic."""

    since_s: float
    checked_s: float = -math.inf  # when the nodes were last checked
    never_since_s: float | None = None  # since when it never starts; None if it may start


class Attempts:
    """The attempts of one campaign, as this process sees them.

    Trials on disjoint nodes run at the same time. Trials that share a node keep the order in which
    the study proposed them: a trial that waits blocks later trials on its own nodes only. At most
    `queue_depth` submissions (two by default) wait behind what runs on a node, so that a node never
    idles and a sweep that is stopped leaves little behind.
    """

    def __init__(
        self,
        resolved: ResolvedSweep,
        executor: Executor,
        folder: Path,
        *,
        study: Study,
        clock: Clock | None = None,
        recover: Recover | None = None,
    ) -> None:
        """Run the trials of a study; `folder` holds the ledger and the folders of the attempts."""
        self.executor = executor
        self.clock = clock or Clock()
        self.launcher, self.site = resolved.sweep.launcher, resolved.sweep.site
        # every cell that a trial of the study may name, by digest
        self.cells = {cell.digest: cell for cell in study.cells}
        self._folder = folder
        self._profiles = resolved.sweep.profiles
        self._reference = study.reference
        self._recover = recover
        # the site's command that reports what the log of a node says; () if it is not used
        asks_nodes = study.policy.asks_nodes
        self._health = tuple(shlex.split(self.site.node_health)) if asks_nodes else ()
        # a rule of the site replaces the study's rule for the same class
        policy = self.site.retry_policy
        self._facts = Facts(
            policy=replace(policy, rules={**study.policy.rules, **policy.rules}),
            ends_with_nodes=study.policy.on_node_failure is OnNodeFailure.VERDICT,
        )
        self._follower = Follower(folder, patience=self.site.resources.patience)
        # folder of an attempt -> when its end, or its ranks' report, was last requested
        self._end_requested_s: dict[str, float] = {}
        self._report_requested_s: dict[str, float] = {}
        self._full_until_s = -math.inf  # nothing is submitted before this time
        # since when a limit on jobs is reached and none is ours; None if none is reached
        self._full_since_s: float | None = None
        self._is_full_noted = False  # whether this session noted that a limit on jobs is reached
        self._resumptions: dict[_Nodes, int] = {}  # those since the last measured trial
        self._waits: dict[_Nodes, _Wait] = {}

    def cell_of(self, trial: Trial, state: LedgerState) -> Cell:
        """Return the cell that a trial names; `state` holds the cells of earlier sessions too.

        Raises:
            LedgerError: no session has opened such a cell.
        """
        cell = self.cells.get(trial.cell_digest) or state.cells.get(trial.cell_digest)
        if cell is None:
            raise LedgerError(
                f"trial {trial.id} names the cell {trial.cell_digest}, which no session opened; "
                f"{self._folder} holds {', '.join(self.cells)}"
            )
        return cell

    def executor_of(self, name: str) -> Executor:
        """Return the executor of this name: that of this campaign, or of an earlier session.

        Raises:
            LedgerError: no such executor is installed here.
        """
        return self.executor if name == self.executor.name else executor_in(self._folder, name)

    def picks_nodes(self, cell: Cell) -> bool:
        """Return whether the scheduler picks a cell's nodes; later trials then get the same."""
        return self.site.resources.nodes > 0 and not cell.nodelist

    def request_for(self, trial: Trial, number: int, state: LedgerState) -> Request:
        """Return the request of an attempt, with the number of nodes of the trial's cell."""
        cell, resources = self.cell_of(trial, state), self.site.resources
        if len(self.cells) > 1 and cell.nodelist:
            resources = replace(resources, nodes=len(cell.nodelist))
        extra_s = trial.deadline_s - trial.protocol.deadline_s
        if extra_s > 0:  # a rotation may take longer than an ordinary trial
            resources = replace(resources, time_limit_s=resources.time_limit_s + extra_s)
        return request_for(
            trial,
            number,
            run=state.run,
            folder=self._folder,
            nodelist=state.nodes_of(cell),
            resources=resources,
        )

    def is_full(self, state: LedgerState) -> bool:
        """Return whether the executor takes no further submission."""
        return 0 < self.executor.max_in_flight <= len(state.flying) + len(state.intended)

    def ready(
        self, state: LedgerState, pending: Sequence[Trial], *, running: Collection[str]
    ) -> Iterator[Trial]:
        """Yield the trials to submit now, in order; the caller submits each before the next.

        `running` has the ids of running jobs, which no longer wait for a node.
        """
        ahead: Counter[str] = Counter()  # how many submissions wait for each place of `_places`
        jobs = [(trial_id, job.job_id) for (trial_id, _), job in state.flying.items()]
        jobs += [(trial_id, "") for trial_id, _ in state.intended]  # without a job id so far
        for trial_id, job_id in jobs:
            places, depth = self._places(state, state.trials[trial_id].trial)
            # a depth of 1 means one submission at a time, so that a running job counts too
            if depth == 1 or job_id not in running:
                ahead.update(places)
        held: set[str] = set()  # places that a waiting trial needs
        for trial in pending:
            progress = state.trials.get(trial.id)
            if progress is not None and not progress.is_to_run:
                continue
            if self.is_full(state):
                return
            places, depth = self._places(state, trial)
            decisions = state.decided_on(trial.id)
            backs_off = bool(decisions) and self.clock.now() < decisions[-1].not_before_s
            # A trial that is retried waits behind the submissions on its nodes. If these are many,
            # it runs long after the other trials of its block, so only few may be ahead.
            is_behind = any(ahead[place] >= depth for place in places)
            if is_behind or backs_off or not held.isdisjoint(places):
                held.update(places)
                continue
            ahead.update(places)
            yield trial

    def _places(self, state: LedgerState, trial: Trial) -> tuple[tuple[str, ...], int]:
        """Return the places that a trial needs, and the depth of the queue at each of them.

        A place is a node; or one name for the nodes that the scheduler will pick; or this machine.
        """
        cell = self.cell_of(trial, state)
        nodes = state.nodes_of(cell)
        if not nodes and self.picks_nodes(cell):
            return (f"the nodes of {cell.digest}",), 1
        # an allocation has no queue: Slurm starts waiting steps in an order that we cannot control
        depth = 1 if self.executor.holds_nodes else self.site.queue_depth
        return nodes or ("this machine",), depth

    def intend(self, state: LedgerState, trial: Trial) -> AttemptIntended:
        """Return the next attempt of a trial; the ledger must hold it before it is submitted."""
        number = 1 + max(state.trials[trial.id].attempts, default=0)
        comment = self.request_for(trial, number, state).comment
        return AttemptIntended(trial_id=trial.id, attempt=number, comment=comment)

    def submit(self, state: LedgerState, trial: Trial, number: int) -> tuple[Event, ...]:
        """Submit an intended attempt. A second call for the same attempt finds the job again.

        Raises:
            SchedulerDown: the scheduler does not answer; the next turn submits the attempt.
            AllocationOver: no trial can run in this session; another one submits the attempt.
            LedgerError: the attempt's folder cannot be written; the attempt stays intended.
        """
        cell, now_s = self.cell_of(trial, state), self.clock.ticks()
        request = self.request_for(trial, number, state)
        if now_s < self._full_until_s:
            return ()
        try:
            checkouts.make(self.launcher, [cell])
            as_run = state.trials[trial.id].as_run  # the ledger lacks its secrets
            profile = as_run.profile.with_secrets_of(self._profiles)
            spec = self.launcher.launch(replace(as_run, profile=profile), cell)
            _require_secrets(trial, spec)
            # one trial of a cell and session asks JAX for its devices
            flying = {state.trials[job.trial_id].trial.cell_digest for job in state.in_flight()}
            is_probed = cell.digest in state.devices_known or cell.digest in flying
            spec = with_probe(with_worker(spec), devices=not is_probed, health=self._health)
            job_id = self.executor.submit(spec, request)
        except SchedulerDown:
            raise
        except AllocationOver:
            if state.in_flight():
                return ()  # the attempt stays intended, and the trials that run may still end well
            raise
        except QueueFull as error:  # other jobs of the user count too
            self._full_until_s = now_s + _FULL_S
            if state.in_flight() or self._full_since_s is None:
                self._full_since_s = now_s
            if now_s - self._full_since_s >= _FULL_PATIENCE_S:
                return self._refused(state, trial, request, number, str(error))
            if self._is_full_noted:
                return ()
            self._is_full_noted = True
            why = say(
                "a limit on submitted jobs is reached; the next trial waits until a job ends: "
                "{error}",
                error=str(error),
            )
            _LOG.warning("%s", sentence(why))
            return (Noted(why=why),)
        except OSError as error:
            raise LedgerError(
                f"{request.folder} cannot be written: {error}; the work directory must be "
                "writable, with free space"
            ) from error
        except (SubmissionError, ConfigError) as error:
            return self._refused(state, trial, request, number, str(error))
        self._full_since_s = None
        submission = Submission(
            trial_id=trial.id,
            attempt=number,
            executor=self.executor.name,
            job_id=job_id,
            folder=str(request.folder.relative_to(self._folder)),
        )
        nodes = ",".join(request.nodelist) or "no nodes named"
        _LOG.info("submitted %s, attempt %d, as job %s (%s)", trial.id, number, job_id, nodes)
        return (AttemptSubmitted(submission=submission),)

    def _refused(
        self, state: LedgerState, trial: Trial, request: Request, number: int, reason: str
    ) -> tuple[Event, ...]:
        """Return the events that follow when the scheduler refuses an attempt."""
        forget_secrets(request.folder)
        outcome = Outcome(state=State.FAILED, reason=reason)
        refused = {request.nodelist} | {
            decided.nodes
            for decided in state.decisions
            if (decided.cls, decided.detail) == (FailureClass.SUBMISSION_REFUSED, reason)
        }
        was_accepted = bool(state.in_flight() or state.measured_on)
        ruling = Ruling(
            trial_id=trial.id,
            attempt=number,
            next=Next.STOP,
            cls=FailureClass.SUBMISSION_REFUSED,
            detail=reason,
            nodes=request.nodelist,
            is_of_node=bool(self.cell_of(trial, state).nodelist)
            and (was_accepted or len(refused) <= _NODE_LISTS),
        )
        end = AttemptEnded(trial_id=trial.id, attempt=number, outcome=outcome)
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
        trial, attempt = progress.trial, progress.attempts[submission.attempt]
        if outcome.state.is_final:
            forget_secrets(self._folder / submission.folder)
        if outcome.state is State.CANCELLED and attempt.state is AttemptState.LET_GO:
            return interrupted_events(submission, outcome)
        cell, pinned = self.cell_of(trial, state), tuple[Event, ...]()
        if outcome.nodes and self.picks_nodes(cell) and not state.nodes_of(cell):
            nodes = tuple(sorted(outcome.nodes))
            pinned = (NodesPinned(cell_digest=cell.digest, nodes=nodes),)
        if outcome.state.is_final:
            return (*pinned, *self._finish_attempt(state, submission, outcome))
        is_running = outcome.state is State.RUNNING
        is_cut = is_running and attempt.cut_short is not None
        # a trial that is over may have a job in the queue, because `wait_in_queue` can end a trial
        if progress.ended is not None or is_cut:
            self._end_job(submission, hangs=progress.ended is None)
            return ()
        if not is_running:
            return ()
        cut_short = self._follower.reason_to_end(
            submission,
            trial.protocol,
            ticks_s=self.clock.ticks(),
            # A job that a person has suspended makes no steps, and the second start of a job that
            # was requeued runs nothing. Neither of them hangs.
            is_suspended=outcome.is_suspended or outcome.is_requeued,
            compiling_factor=compile_patience(state, trial, self.site.resources.patience),
            rotates=trial.rotation is not None,
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
            nodes = state.nodes_of(self.cell_of(progress.trial, state))
            if outcome is None or progress.ended is not None:
                continue
            if outcome.state is State.PENDING:
                waiting.setdefault(nodes, (submission, outcome))
            else:
                busy |= {*nodes} or {""}
        stuck = {nodes: job for nodes, job in waiting.items() if busy.isdisjoint(nodes or ("",))}
        now_s = self.clock.ticks()
        self._waits = {nodes: self._waits.get(nodes) or _Wait(now_s) for nodes in stuck}
        return tuple(
            event
            for nodes, (submission, outcome) in stuck.items()
            for event in self._first_waiting(state, nodes, submission, outcome)
        )

    def _first_waiting(
        self, state: LedgerState, nodes: _Nodes, first: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events for a submission that is the first to wait for its nodes."""
        now_s, limit_s = self.clock.ticks(), self.site.resources.queue_limit_s
        wait, resumed = self._waits[nodes], Resumed()
        if not outcome.never_starts:
            wait.never_since_s = None
        elif wait.never_since_s is None:
            wait.never_since_s = now_s
        if limit_s and now_s - wait.since_s > limit_s:
            cls, detail = FailureClass.QUEUE_LIMIT, f"no trial has started for {limit_s} s"
        elif outcome.lacks_nodes and now_s - wait.checked_s >= _CHECK_NODES_S:
            wait.checked_s = now_s
            cls, resumed = FailureClass.NODE_DRAIN, self._resume(nodes)
            if not resumed.faults and resumed.nodes:
                wait.never_since_s = None
                return (_epoch_of(cls, nodes, resumed=resumed.nodes),)
            if not resumed.faults:
                return ()
            detail = "; ".join(resumed.faults)
        elif wait.never_since_s is not None and now_s - wait.never_since_s > _NEVER_STARTS_S:
            advice = "change what a job asks for, in Resources or the Slurm options"
            cls, detail = FailureClass.NEVER_STARTS, f"{outcome.reason}: {advice}"
        else:
            return ()
        ruling = Ruling(
            trial_id=first.trial_id,
            attempt=first.attempt,
            next=Next.STOP,
            cls=cls,
            detail=detail,
            evidence=outcome.reason,
            nodes=resumed.unfit or (nodes if resumed.faults else ()),
            resumed=resumed.nodes,
            is_of_node=cls != FailureClass.NEVER_STARTS,
        )
        return self._cannot_start(state, ruling, outcome)

    def _cannot_start(
        self, state: LedgerState, proposed: Ruling, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Return the events that follow when a trial cannot start."""
        ruling = with_exceptions(proposed, self._facts)
        event = ruling.event
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
        resumed = self.executor.resume(nodes)
        resumed = replace(resumed, faults=tuple(map(shown, resumed.faults)))
        names, fit = ",".join(nodes) or "this machine", "all are fit"
        faults = "; ".join(resumed.faults) or fit
        _LOG.warning("request to resume %s: resumed %s; %s", names, list(resumed.nodes), faults)
        self._resumptions[nodes] = resumptions + bool(resumed.nodes)
        return resumed

    def _end_job(self, submission: Submission, *, hangs: bool) -> None:
        """Request the end of a job, and again after `_ASK_AGAIN_S`, because an end takes time.

        The ranks of a job that hangs first write down what they do: only they show what it waits
        for.
        """
        now_s, folder = self.clock.ticks(), submission.folder
        asked_s = self._report_requested_s.setdefault(folder, now_s) if hangs else -math.inf
        if hangs and not ask_what_hangs(self._folder / folder) and now_s - asked_s < _REPORT_S:
            return
        if now_s - self._end_requested_s.get(folder, -math.inf) >= _ASK_AGAIN_S:
            self._cancel(submission)
            self._end_requested_s[folder] = now_s

    def _cancel(self, submission: Submission) -> None:
        executor = self.executor_of(submission.executor)
        executor.cancel([submission], root=self._folder)

    def _finish_attempt(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> tuple[Event, ...]:
        """Assess a submission that is over; return its end, and the trial's end if there is one."""
        trial_id, number = submission.trial_id, submission.attempt
        folder = self._folder / submission.folder
        self._full_until_s = -math.inf  # the limit on jobs may have room again
        attempt = self._ended_attempt(state, submission, with_followed_job(outcome, folder))
        try:
            assessed = assess(attempt)
        except (OSError, LedgerError):
            raise
        # an unforeseen line in one log, read by every session, must not end the whole sweep
        except Exception as error:  # noqa: BLE001
            _LOG.exception("the files of %s cannot be assessed", folder)
            no_files = Leftovers(report=LogReport(findings=(unreadable_finding(folder, error),)))
            attempt = dataclasses.replace(attempt, left=no_files)
            assessed = assess(attempt)
        result = assessed.result
        end = AttemptEnded(
            trial_id=trial_id,
            attempt=number,
            outcome=attempt.outcome,
            findings=result.findings,
            blamed=assessed.blamed,
        )
        if state.trials[trial_id].ended is not None:  # the ledger has that end
            return (end,)
        decision, events = self._prepare_retry(assessed.decision, attempt.facts)
        if decision.next is Next.ACCEPT:
            self._resumptions.pop(attempt.facts.nodes, None)
        else:  # the wait before a retry begins now
            not_before_s = self.clock.now() + decision.backoff_s if decision.backoff_s else 0.0
            named = replace(decision, trial_id=trial_id, attempt=number, not_before_s=not_before_s)
            decided = named.event
            _LOG.info("%s, attempt %d: %s", trial_id, number, sentence(decided.why))
            events = (*events, decided)
        if (status := STATUS.get(decision.next)) is not None:
            epochs: tuple[Event, ...] = ()
            # a trial that ran on another device shows nothing about its cell
            if assessed.decision.cls != FailureClass.OTHER_DEVICE:
                epochs = epoch_events(state, attempt, folder, is_scored=bool(result.score))
            outcome, before = attempt.outcome, state.trials[trial_id].result
            nodes = tuple(outcome.nodes) or attempt.facts.nodes
            epochs_begun = sum(isinstance(event, EpochBegan) for event in epochs)
            result = replace(
                result,
                status=status,
                findings=(*before.findings, *result.findings),
                outcome=outcome,
                job_ids=(*before.job_ids[:-1], outcome.job or submission.job_id),
                epoch=state.epoch_of(attempt.cell.digest, nodes) + epochs_begun,
            )
            _LOG.info("%s is %s", trial_id, status)
            ended = TrialEnded(result=result)
            events = (*events, *epochs, ended, *settings_events(state, result))
        # the end comes last: an attempt without one in the ledger is assessed again
        return (*events, end)

    def _ended_attempt(
        self, state: LedgerState, submission: Submission, outcome: Outcome
    ) -> EndedAttempt:
        progress, number = state.trials[submission.trial_id], submission.attempt
        trial, folder = progress.trial, self._folder / submission.folder
        cell, cut = self.cell_of(trial, state), progress.attempts[number].cut_short
        spec = read_spec(folder)
        is_compared = bool(self._reference) and trial.protocol.is_scored
        # an attempt that a program of a rotation ended counts against that program, not the trial
        uncounted = {number, *(blame.attempt for blame in progress.blamed)}
        facts = dataclasses.replace(
            self._facts,
            earlier=tuple(
                decided.cls
                for decided in state.decided_on(trial.id)
                if decided.next is Next.RETRY and decided.attempt not in uncounted
            ),
            is_reference=is_compared and trial.arm == self._reference,
            reference_runs=not is_compared
            or any(
                other.trial.arm == self._reference and other.result.status is TrialStatus.MEASURED
                for other in state.trials.values()
            ),
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
            exempt=self.site.unseen,
            ran_on=compared_devices(state, trial, outcome.nodes),
            executor=self.executor.name,
            log=folder / log_name(0),
            facts=facts,
        )

    def _prepare_retry(self, ruling: Ruling, facts: Facts) -> tuple[Ruling, tuple[Event, ...]]:
        """Do what a retry needs first, or call the site's hook; return ruling and events."""
        cls, action, nodes, resumed = ruling.cls, ruling.before, facts.nodes, Resumed()
        if ruling.next is not Next.RETRY or action not in (Action.HOOK, Action.RESUME_NODE):
            return ruling, ()
        if action is Action.RESUME_NODE:
            resumed = self._resume(nodes)
            if not resumed.faults:
                return ruling, (_epoch_of(cls, nodes, resumed=resumed.nodes),)
        clean_ruling = Ruling.from_json(without_secrets(ruling.to_json()))
        if self._recover is not None and self._recover(clean_ruling, nodes):
            why = say("{cls}: the site did {action}", cls=cls, action=action)
            return ruling, (EpochBegan(why=why, nodes=nodes),)
        found = say(
            "the next attempt needs {needed}, which was not done{faults}",
            needed=action,
            faults=say("; {faults:; }", faults=resumed.faults) if resumed.faults else None,
        )
        unfit = resumed.unfit or ruling.nodes
        unready = replace(ruling, next=Next.STOP, found=found, nodes=unfit, resumed=resumed.nodes)
        return with_exceptions(unready, facts), ()


def _epoch_of(cls: str, nodes: _Nodes, *, resumed: _Nodes) -> EpochBegan:
    """Return the epoch that begins because nodes were resumed, or are fit again by themselves."""
    text = "{cls}: resumed {nodes}" if resumed else "{cls}: fit again: {nodes}"
    return EpochBegan(why=say(text, cls=cls, nodes=resumed or nodes), nodes=resumed or nodes)


def _require_secrets(trial: Trial, spec: LaunchSpec) -> None:
    """Refuse a trial of an earlier session whose secret this session does not know."""
    if any(HIDDEN in text for text in (*spec.argv, *spec.env.values(), *spec.files.values())):
        raise SubmissionError(
            f"{trial.id} needs a secret, and the ledger keeps no secrets; put the secret back into "
            f"the profile {trial.profile.id!r} or the cell in the sweep file"
        )
