"""Run a study into its ledger: one campaign drives all cells of the study.

Any number of processes share a campaign. Waiting processes take turns: one polls and submits while
the others read the ledger, and if it is killed, another goes on. What a turn decides is in the
ledger before a process acts on it. Trials on disjoint nodes run at the same time; trials that share
a node keep the order in which the study proposed them. All decisions are left to the study and the
playbook.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.campaign.attempts import Attempts, Clock, Recover
from pytest_xlatune.campaign.jobs import by_executor, end_jobs, lost_ledger_error
from pytest_xlatune.executors import JOB_NAME_PREFIX, Executor, SchedulerDown, outcome_of
from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Event,
    FilesRead,
    Ledger,
    LedgerEntry,
    Noted,
    Now,
    TrialEnded,
    TrialPlanned,
    versions,
    write_now,
)
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, family_differences, secrets_in
from pytest_xlatune.model.errors import (
    ConfigError,
    Exit,
    LedgerError,
    UnreadableLedgerError,
    XlatuneError,
)
from pytest_xlatune.model.failure import FailureClass, Finding
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import Message, say, sentence
from pytest_xlatune.model.profile import SLUG
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_check import step_for
from pytest_xlatune.prepare.preflight import refused_shape
from pytest_xlatune.report.bubble import config_of
from pytest_xlatune.studies import Study, as_begun
from pytest_xlatune.sweep.deployed import deployed_files, hidden_values, refuse_changed
from pytest_xlatune.sweep.groups import Limits
from pytest_xlatune.sweep.registry import KINDS, put_in_use
from pytest_xlatune.sweep.resolved import ResolvedSweep

__all__ = ["Campaign", "CampaignStopped", "Clock", "Recover", "View"]

_LOG = logging.getLogger("pytest_xlatune.campaign")

_JOIN_S = 120.0  # how long another process may take its turn before this one joins the campaign
_JOIN_WITH_COMPILE_S = 2000.0  # the same if the other process may be compiling profiles
_SIGN_OF_LIFE_S = 30.0  # seconds after which the file with the state of the jobs is renewed
# Errors of a network file system that is away, and of a folder that is not mounted. The errors of a
# full disk and of missing rights are not here, because they do not pass by themselves.
_AWAY_ERRORS = frozenset(
    {
        errno.EIO, errno.ENODEV, errno.ENOENT, errno.ENOTCONN, errno.ENXIO, errno.EREMOTEIO,
        errno.ESHUTDOWN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    }
)  # fmt: skip
_AWAY_PATIENCE_S = 900.0  # how long a file system may be away before the session ends
_HOUR_S = 3600.0
_NOTIFY_AFTER_S = 10.0  # how long a scheduler may be silent before people are notified
TURN_S = 0.25  # seconds between two checks of a waiting process
_UNREADABLE_NOTE = (
    "the ledger that was moved aside is damaged, or another version of pytest-xlatune wrote it; "
    "none of its jobs was ended. Those that still run hold their nodes: end them with scancel; "
    f"`squeue --me -o '%i %j'` lists the jobs, and their names begin with {JOB_NAME_PREFIX}"
)


def history_of(state: LedgerState, study: Study) -> tuple[TrialResult, ...]:
    """Return the results from which a study proposes and concludes, in plan order."""
    return state.history(study.name, with_evidence=study.policy.reads_evidence)


class CampaignStopped(XlatuneError):  # noqa: N818 - not an error of the harness
    """The playbook stopped the sweep; the message says why."""

    exit = Exit.NOT_MEASURED


@dataclass(slots=True, kw_only=True)
class Spending:
    """The cost of a sweep so far, from the events of its ledger, over all of its sessions."""

    nodes: int = 1  # number of nodes of a trial whose outcome names none
    node_s: float = 0.0  # sum over the ended attempts of their seconds times their nodes
    _at_s: float = 0.0  # time of the last event
    # intervals in which ended trials were with the scheduler
    _busy_s: list[tuple[float, float]] = field(default_factory=list)
    # trial id and attempt -> when it was intended, if it has not ended
    _began_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def feed(self, entries: Iterable[LedgerEntry]) -> None:
        """Add the events to the sums; an event must not be passed twice."""
        for entry in entries:
            event = entry.event
            self._at_s = entry.at_s
            if isinstance(event, AttemptIntended):
                self._began_s.setdefault((event.trial_id, event.attempt), entry.at_s)
            elif isinstance(event, AttemptEnded):
                began_s = self._began_s.pop((event.trial_id, event.attempt), None)
                if began_s is None:
                    continue
                outcome = event.outcome
                # if no session was there when it ended, the event comes late
                self._busy_s.append((began_s, min(outcome.end_s or entry.at_s, entry.at_s)))
                took_s = entry.at_s - began_s
                if outcome.start_s is not None and outcome.end_s is not None:
                    took_s = outcome.end_s - outcome.start_s
                # the clock may have jumped back, so a negative duration counts as 0
                self.node_s += max(took_s, 0.0) * (len(outcome.nodes) or self.nodes)

    @property
    def busy_s(self) -> float:
        """Seconds during which at least one trial was with the scheduler."""
        flying = [(began_s, self._at_s) for began_s in self._began_s.values()]
        total_s, until_s = 0.0, 0.0
        for began_s, end_s in sorted(self._busy_s + flying):
            total_s += max(end_s - max(began_s, until_s), 0.0)
            until_s = max(until_s, end_s)
        return total_s

    def exhausted(self, limits: Limits) -> Message | None:
        """Return which limit is spent, so that no further trial may run; None if one may."""
        for name, used_s, most in (
            ("hours", self.busy_s, limits.hours),
            ("node-hours", self.node_s, limits.node_hours),
        ):
            used = used_s / _HOUR_S
            if most is not None and used >= most:
                return say(
                    "{used:.3g} of {most:g} {limit} are spent; --xlatune-{limit} raises the limit",
                    limit=name,
                    used=used,
                    most=most,
                )
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """A moment of a campaign: the ledger's state, and what the study derives from it."""

    state: LedgerState
    study: Study
    pending: tuple[Trial, ...]  # the trials that the study proposes, in order; () at its end

    @property
    def stopped(self) -> Message | None:
        """Why the playbook stopped the sweep; None if it goes on."""
        return self.state.stop.why if self.state.stop is not None else None

    @functools.cached_property
    def history(self) -> tuple[TrialResult, ...]:
        """The results of the study's trials, in plan order."""
        return history_of(self.state, self.study)


class Campaign:
    """The ledger of a study's cells, and the study that runs into it.

    Args:
        resolved: the sweep with the user's options.
        executor: runs the trials.
        ledger: receives the results; the folders of attempts are beside it.
        study: the study to run; None means the one that the sweep declares.
        session: the id of the session, which all its processes share.
        command: the command line of the session.
        recover: runs the site's recovery hook; None if the site has none.
        read_evidence: reads the files of evidence trials that are over; None leaves them unread.
        clock: the clocks; None means those of the system.
    """

    def __init__(
        self,
        resolved: ResolvedSweep,
        executor: Executor,
        ledger: Ledger,
        *,
        study: Study | None = None,
        session: str = "",
        command: str = "",
        recover: Recover | None = None,
        read_evidence: Callable[[LedgerState, Path], Sequence[Event]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.study = study = study or resolved.study()
        self.resolved = resolved
        self.ledger = ledger
        self.folder = ledger.path.parent
        self._attempts = Attempts(
            resolved, executor, self.folder, study=study, clock=clock, recover=recover
        )
        self._session = session
        self._command = command
        self._read_evidence = read_evidence
        # the files that deploy the cell, as they are now
        self._files = deployed_files(
            self._attempts.launcher,
            resolved.cell,
            env_file=self._attempts.site.env_file,
            root=Path.cwd(),
        )
        self.compile_step = step_for(resolved, study, self.folder)
        self._driver = DriverLock(self.folder)
        self._running = frozenset[str]()  # ids of running jobs
        # when scheduler and file system fell silent, on the monotonic clock; None if they answer
        self._silent_since_s: float | None = None
        self._is_silence_noted = False  # whether people were notified that the scheduler is away
        self._away_since_s: float | None = None
        self._last_written = Now()
        self._forget()

    def _forget(self) -> None:
        """Forget what was read of the ledger."""
        self._state = LedgerState()
        self._view: View | None = None  # of the present state; None if it must be made anew
        self._proposed: tuple[Trial, ...] = ()
        # the number of changes of the state when the study last proposed trials; -1 if it never did
        self._changes = -1
        self._spending = Spending(nodes=max(self._attempts.site.resources.nodes, 1))

    def open(
        self,
        *,
        fresh: bool = False,
        check: Callable[[LedgerState], Sequence[str]] | None = None,
    ) -> None:
        """Join the campaign of this session, or begin it. Call it once, before anything else.

        With `fresh`, the first process of the session ends the jobs that still run, because no
        session could read their results, and moves the ledger aside. The first process also calls
        `check`, which examines the site and returns notes, or raises ConfigError.

        Raises:
            ConfigError: the ledger belongs to other cells; or it was lost, but its attempts are
                still there; or the site is not ready.
            LedgerError: the ledger cannot be read or written, or another session uses a ledger that
                should be moved aside.
        """
        # another process may have the turn, in which it reads a trace or compiles a cell
        wait_s = _JOIN_WITH_COMPILE_S if self.compile_step is not None else _JOIN_S
        keep_secret(hidden_values(self._attempts.launcher, self.study.cells, environ=os.environ))
        for cell in self.study.cells:
            keep_secret(secrets_in(cell, self.study.decide(()).profiles))
        with self._driver.mine(wait_s=wait_s):
            notes = self._start_over() if fresh else ()
            opened = self.view().state.opened
            self._refuse_other_cells()
            where, launcher = str(self.folder), self._attempts.launcher
            for cell in self._attempts.cells.values():
                before, now = self._state.files, self._files
                refuse_changed(before, now, launcher=launcher, cell=cell, where=where)
            for opening in opened:
                # all processes of a session use the study as the first of them declared it
                if (opening.session, opening.study) == (self._session, self.study.name):
                    self.study, self._view = as_begun(self.study, opening.declared), None
                    self._changes = -1
                    return
            if not opened and not fresh and (error := lost_ledger_error(self.folder)):
                raise error
            site_notes = check(self._state) if check is not None else ()
            declared = self.study.to_json()
            self._write(
                CampaignOpened(
                    cells=tuple(self._attempts.cells.values()),
                    study=self.study.name,
                    sweep=self.resolved.sweep.name,
                    session=self._session,
                    declared=declared,
                    versions=versions(),
                    command=self._command,
                ),
                *(Noted(text=note) for note in (*notes, *site_notes)),
                *([FilesRead(files=self._files)] if self._files != self._state.files else []),
            )
            put_in_use(self.study, declared)

    def attending(self) -> AbstractContextManager[None]:
        """Count this process as waiting even between two waits, so that no one ends its jobs."""
        return self._driver.registered()

    def _start_over(self) -> tuple[str, ...]:
        """Move another session's ledger aside, and end its running jobs; return notes for people.

        The ledger may be unreadable. One that this session began stays.
        """
        notes: tuple[str, ...] = ()
        try:
            sessions = {opening.session for opening in self.view().state.opened}
            if not sessions or self._session in sessions:
                return ()
        except UnreadableLedgerError:
            notes = (_UNREADABLE_NOTE,)
        with self._driver.none_waits() as alone:
            if not alone:
                raise LedgerError(
                    f"another session is measuring in {self.folder}: end it, or wait for its end, "
                    "before you start over"
                )
            if not notes:
                end_jobs(self.folder, executors=self._attempts.executor_of)
            archived = self.ledger.archive(at_s=self._attempts.clock.now())
        _LOG.info("starting over: the former ledger is now %s", archived)
        self._forget()
        return notes

    def wait_for_nodes(self, *, on_turn: Callable[[], None] | None = None) -> tuple[str, ...]:
        """Return the nodes, after waiting until the scheduler has picked those that are not named.

        Raises:
            CampaignStopped, SubmissionError, LedgerError: as `wait` raises them.
        """
        cells = self._attempts.cells.values()
        unnamed = [*filter(self._attempts.picks_nodes, cells)]
        if unnamed:
            self.wait(lambda view: all(map(view.state.nodes_of, unnamed)), on_turn=on_turn)
        return tuple(dict.fromkeys(node for cell in cells for node in self._state.nodes_of(cell)))

    def _refuse_other_cells(self) -> None:
        state, run = self._state, self._attempts
        if not state.opened:
            return
        now, count = tuple(run.cells.values()), run.site.resources.nodes
        difference = family_differences(state.opened[0].cells, now) or self._other_slots(now)
        for cell in filter(run.picks_nodes, now):
            picked = len(state.nodes_of(cell))
            if not difference and picked not in (0, count):
                difference = f"{picked} nodes were picked, and now {count} are requested"
        if difference:
            names = dict.fromkeys(name for nodes in state.pinned.values() for name in nodes)
            picked_nodes = f" (the scheduler picked {', '.join(names)})" if names else ""
            raise ConfigError(
                f"the trials in {self.folder} were measured on another cell: {difference}"
                f"{picked_nodes}. Numbers of two cells cannot be compared. Restore the former "
                "cell, or start over with --xlatune-fresh (nothing measured is deleted)"
            )

    def _other_slots(self, now: Sequence[Cell]) -> str:
        """Return how the node slots differ from those of an earlier study; "" if they fit.

        A study without slots may use the nodes of one slot (an evidence run), or those of all slots
        and more (a calibration).
        """
        traits, lists = self.study.traits, [cell.nodelist for cell in now]
        for opened in self._state.opened:
            kind, former = KINDS.get(opened.study), [cell.nodelist for cell in opened.cells]
            if kind is None or kind.traits.cell_nodes or traits.cell_nodes:
                continue
            is_part = set(lists) <= set(former) or set(former) <= set(lists)
            have_slots = kind.traits.has_slots and traits.has_slots
            if not is_part or (have_slots and former != lists):
                were, are = (list(map(compress, slots)) for slots in (former, lists))
                return f"the node slots were {were}, and are {are}"
        return ""

    def _propose(self) -> tuple[Trial, ...]:
        """Ask the study what to run next; raise before an impossible proposal is recorded."""
        history = history_of(self._state, self.study)
        proposed = self.study.decide(history).due
        over = {
            result.trial.id for result in history if result.status.is_final and not result.is_unread
        }
        fault = ""
        if proposed and all(trial.id in over for trial in proposed):
            fault = (
                f"it proposes {proposed[0].id} again, which has its result, and no trial that can "
                "still run; decide() must leave out the trials that are final in its history"
            )
        for trial in proposed:
            if not SLUG.fullmatch(trial.arm) or not SLUG.fullmatch(trial.stage):
                fault = f"arm {trial.arm!r} or stage {trial.stage!r} of a trial is no slug"
            # a profile that was derived since the last proposal may have other secrets
            keep_secret(secrets_in(self._attempts.cell_of(trial, self._state), [trial.profile]))
        if fault:
            name = type(self.study).__name__
            raise ConfigError(f"the study {self.study.name!r} ({name}) is faulty: {fault}")
        return proposed

    def view(self) -> View:
        """Return the present state; this costs one `stat` if nothing has changed."""
        self._read_new_events()
        if self._view is None:
            state = self._state
            if state.changes != self._changes:
                # the proposal depends only on results, so it is asked for when they have changed
                self._proposed = self._propose()
                self._changes = state.changes
            self._view = View(state=state, study=self.study, pending=self._proposed)
        return self._view

    def _read_new_events(self) -> None:
        """Read the new lines of the ledger, and forget what was derived from the old state."""
        new = self.ledger.refresh()
        if new:
            try:
                self._state = replay(new, onto=self._state)
            except UnreadableLedgerError as error:
                # what was read is only a part: it is forgotten, and the next call reads all again
                self.ledger = Ledger(self.ledger.path)
                self._forget()
                raise UnreadableLedgerError(f"{self.ledger.path}: {error}") from None
            self._spending.feed(new)
            self._view = None

    def conclude(self) -> Conclusion:
        """Return the study's conclusion from the present state."""
        return self.study.decide(self.view().history).conclusion

    def wait(
        self, is_ready: Callable[[View], bool], *, on_turn: Callable[[], None] | None = None
    ) -> View:
        """Wait until `is_ready`, taking turns; `on_turn` is called before each check.

        Raises:
            CampaignStopped: the playbook stopped the sweep, or no trial is left to run.
            SubmissionError, LedgerError: a trial cannot be submitted or recorded.
        """
        with self._driver.waiting():
            while True:
                try:
                    if on_turn is not None:
                        on_turn()  # the callback may read the ledger too
                    view = self.view()
                except LedgerError as error:
                    self._wait_for_files(error)
                    continue
                if is_ready(view):
                    return view
                if view.stopped is not None:
                    raise CampaignStopped(sentence(view.stopped))
                if not view.pending:
                    raise CampaignStopped("no trial is left to run that could answer this")
                self.turn()
                time.sleep(TURN_S)

    def turn(self) -> None:
        """Poll running jobs and submit the next, unless another process is doing so.

        Raises:
            SubmissionError: the scheduler has been away for longer than its executor waits.
            LedgerError: the file system has been away for too long, or is full.
        """
        try:
            with self._driver.next() as is_mine:
                if is_mine:
                    self._take_turn()
        except (LedgerError, OSError) as error:
            self._wait_for_files(error)
        else:
            self._away_since_s = None

    def _take_turn(self) -> None:
        began_s = self._attempts.clock.ticks()
        try:
            self.view()
            self._follow_jobs()  # first, because a submission may take long
            self._submit_intended()
            self._read_evidence_runs()
            self._drop_refused_shapes()
            if not self._run_compile_step():
                self._submit_due()
        except SchedulerDown as error:
            if self._silent_since_s is None:
                self._silent_since_s = began_s
            is_long = self._attempts.clock.ticks() - self._silent_since_s >= _NOTIFY_AFTER_S
            if is_long and not self._is_silence_noted:
                self._is_silence_noted = True
                text = "the scheduler does not answer; the campaign waits: {error}"
                self._remark(say(text, error=str(error)))
        else:
            if self._is_silence_noted:
                self._remark(say("the scheduler answers again"))
            self._silent_since_s, self._is_silence_noted = None, False

    def _remark(self, why: Message) -> None:
        _LOG.warning("%s", sentence(why))
        self._write(Noted(why=why))

    def _wait_for_files(self, error: LedgerError | OSError) -> None:
        """Wait for a file system that is away; raise the error if it is another, or lasts long."""
        cause = error if isinstance(error, OSError) else error.__cause__
        now_s = self._attempts.clock.ticks()
        if not isinstance(cause, OSError) or cause.errno not in _AWAY_ERRORS:
            raise error
        if self._away_since_s is None:
            self._away_since_s = now_s
            _LOG.warning("the work directory cannot be reached; the campaign waits: %s", error)
        elif now_s - self._away_since_s > _AWAY_PATIENCE_S:
            raise error
        time.sleep(TURN_S)

    def _submit_intended(self) -> None:
        """Submit the intended attempts, also those of a process that died before it got a job id.

        Submitting an attempt twice is safe: an executor that has its job returns the job's id.
        """
        for trial, number in self._state.unresolved():
            with _delayed_ctrl_c() as signals:
                events = self._attempts.submit(self._state, trial, number)
                # Ctrl-C may also have ended the program that submits, which is no refusal
                if not signals or any(isinstance(event, AttemptSubmitted) for event in events):
                    self._write(*events)

    def _follow_jobs(self) -> None:
        in_flight, outcomes = self._state.in_flight(), dict[str, Outcome]()
        # an earlier session may have used another executor
        for name, submissions in by_executor(in_flight).items():
            outcomes |= self._attempts.executor_of(name).poll(submissions, root=self.folder)
        # the state of the jobs is written for people, when it changes and at intervals
        at_s, last = self._attempts.clock.now(), self._last_written
        if outcomes != last.jobs or (outcomes and at_s - last.at_s > _SIGN_OF_LIFE_S):
            self._last_written = Now(at_s=at_s, jobs=outcomes)
            write_now(self.folder, self._last_written)
        self._running = frozenset(
            job_id for job_id, outcome in outcomes.items() if outcome.state is State.RUNNING
        )
        for submission in in_flight:
            outcome = outcome_of(outcomes, submission)
            if outcome is not None:
                self._write(*self._attempts.events_for(self._state, submission, outcome))
        self._write(*self._attempts.wait_in_queue(self._state, outcomes))

    def _read_evidence_runs(self) -> None:
        """Read the files of evidence runs that are over, whichever study waits for them."""
        has_unread = any(result.is_unread for result in self._state.evidence())
        if self._read_evidence is not None and has_unread:
            self._write(*self._read_evidence(self._state, self.folder))

    def _drop_refused_shapes(self) -> None:
        """End, without a job, the trials whose shapes the trainer would refuse at its start."""
        view, launcher = self.view(), self._attempts.launcher
        config = config_of(self._files)
        for trial in view.pending:
            if trial.profile.is_baseline or trial.id in view.state.trials:
                continue
            cell = self._attempts.cell_of(trial, view.state)
            why = refused_shape(launcher, cell, trial.profile, config)
            if why:
                finding = Finding(cls=FailureClass.CONFIG_ERROR, action=Action.DROP, text=why)
                result = TrialResult(
                    trial=trial,
                    status=TrialStatus.DROPPED,
                    reason=say("cannot run, so no job was submitted: {why}", why=why),
                    findings=(finding,),
                )
                self._write(TrialPlanned(trial=trial), TrialEnded(result=result))

    def _run_compile_step(self) -> bool:
        """Compile a proposed trial that is only to be compiled; return whether that was done."""
        step, view, stage = self.compile_step, self.view(), self.study.policy.compiled_stage
        is_due = any(trial.stage == stage for trial in view.pending)
        if step is None or not is_due or view.stopped or self._attempts.is_full(view.state):
            return False
        events = step(view.pending)
        self._write(*events)
        return bool(events)

    def _submit_due(self) -> None:
        """Submit what is due, or stop the sweep at a limit that is spent once no job is left."""
        view, stage = self.view(), self.study.policy.compiled_stage
        if view.stopped is not None:
            return
        new = [trial for trial in view.pending if trial.id not in self._state.trials]
        plan = [TrialPlanned(trial=trial) for trial in new]
        spent = self._spending.exhausted(self.resolved.sweep.limits)
        if spent is not None:
            if view.pending and not self._state.in_flight():
                trial_id, cls = view.pending[0].id, FailureClass.BUDGET
                stop = Decided(trial_id=trial_id, attempt=0, next=Next.STOP, cls=cls, found=spent)
                self._write(*plan, stop)
            return
        runs = [trial for trial in view.pending if not stage or trial.stage != stage]
        for trial in self._attempts.ready(view.state, runs, running=self._running):
            self._write(*plan)
            plan = []
            self._write(self._attempts.intend(self._state, trial))
            self._submit_intended()
            # an attempt that was not submitted stays intended, and no other may overtake it
            if self._state.stop is not None or self._state.intended:
                return

    def _write(self, *events: Event) -> None:
        if events:
            self.ledger.append(*events, at_s=self._attempts.clock.now())
            self._read_new_events()


@contextlib.contextmanager
def _delayed_ctrl_c() -> Iterator[list[int]]:
    """Delay a first Ctrl-C until the block is over; yield the list of signals that arrive.

    Otherwise a job that the scheduler is just accepting would be in no ledger, and nobody would end
    it. A second Ctrl-C is not delayed.
    """
    signals: list[int] = []

    def delay(number: int, _: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = signal.signal(signal.SIGINT, delay)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)
        if len(signals) == 1:
            signal.raise_signal(signal.SIGINT)
