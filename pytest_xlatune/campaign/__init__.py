"""Run a study into its ledger: one campaign drives all cells of the study.

Any number of processes share a campaign. Waiting processes take turns: one polls and submits while
the others read the ledger, and if it is killed, another goes on. What a turn decides is in the
ledger before a process acts on it. Trials on disjoint nodes run at the same time; trials that share
a node keep the order in which the study proposed them. This module knows neither pytest nor a
scheduler, and leaves all decisions to the study and the playbook.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pytest_xlatune.campaign._limits import Packing, Spending
from pytest_xlatune.campaign.attempts import Attempts, Recover
from pytest_xlatune.campaign.jobs import (
    by_executor,
    end_jobs,
    lost_runs,
    refusal_of,
)
from pytest_xlatune.campaign.log import lines_about
from pytest_xlatune.campaign.sweep_run import Clock, SweepRun
from pytest_xlatune.executors import OWN_JOBS, Executor, SchedulerDown, standing
from pytest_xlatune.ledger import (
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Event,
    FilesRead,
    Ledger,
    Noted,
    NoteKind,
    TrialEnded,
    TrialPlanned,
    versions,
)
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.ledger.now import Now, write_now
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, family_differences, secrets_in
from pytest_xlatune.model.errors import (
    ConfigError,
    Exit,
    LedgerError,
    UnreadableLedgerError,
    XlatuneError,
)
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import Message, say, sentence
from pytest_xlatune.model.profile import SLUG
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    EvidenceResult,
    Finding,
    Outcome,
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_check import step_for
from pytest_xlatune.prepare.preflight import refused_shape
from pytest_xlatune.report.bubble import config_of
from pytest_xlatune.studies import Study, as_begun
from pytest_xlatune.sweep.deployed import deployed_files, hidden_values, refuse_changed
from pytest_xlatune.sweep.registry import KINDS, put_in_use
from pytest_xlatune.sweep.resolved import ResolvedSweep

__all__ = ["Campaign", "CampaignStopped", "Clock", "Recover", "View"]

Worked = TypeVar("Worked")
_LOG = logging.getLogger("pytest_xlatune.campaign")

_OPEN_S, _COMPILE_S = 120.0, 2000.0  # how long joining may take; longer if profiles are compiled
_TELL_S = 30.0  # the file with a sign of life is renewed after so many seconds
# errors of a network file system that is away, and of a folder that is not mounted; a full disk or
# missing rights are none of them
_AWAY = frozenset(
    {
        errno.EIO, errno.ENODEV, errno.ENOENT, errno.ENOTCONN, errno.ENXIO, errno.EREMOTEIO,
        errno.ESHUTDOWN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    }
)  # fmt: skip
_AWAY_S = 900.0  # without this, a file system that was away for ten seconds ended a session
_TELL_AWAY_S = 10.0  # a scheduler may be silent for so long before people are notified
TURN_S = 0.25  # seconds between two checks of a waiting process
_UNREAD = say(
    "the ledger that was moved aside is damaged, or another version of pytest-xlatune wrote "
    "it. This version cannot read its job ids and ended none of its jobs: those that still "
    "run hold their nodes. End them with scancel; `squeue --me -o '%i %j'` lists them, "
    "their names begin with {names}",
    names=OWN_JOBS,
)


def history_of(state: LedgerState, study: Study) -> tuple[TrialResult, ...]:
    """Return the results from which a study proposes and concludes, in plan order."""
    return state.history(study.name, with_evidence=study.policy.reads_evidence)


def _refuse_words(trial: Trial) -> None:
    for what, word in (("arm", trial.arm), ("stage", trial.stage)):
        if not SLUG.fullmatch(word):
            raise LedgerError(
                f"it names the {what} {word!r} of a trial, expected [a-z0-9][a-z0-9._+-]*, 64 "
                "characters at most"
            )


def _refuse_compiled(proposed: Sequence[Trial], stage: str) -> None:
    for trial in proposed:
        if stage and trial.stage == stage:
            raise LedgerError(f"{trial.id} is to be compiled alone, and nothing compiles here")


def _refuse_only_final(proposed: tuple[Trial, ...], history: Sequence[TrialResult]) -> None:
    """Raise LedgerError if a study only proposes trials that are over, and so never ends."""
    unread = {
        result.trial.id
        for result in history
        if isinstance(result, EvidenceResult)
        and result.status is TrialStatus.MEASURED
        and not result.is_read
    }
    final = {result.trial.id for result in history if result.status.is_final} - unread
    if proposed and all(trial.id in final for trial in proposed):
        raise LedgerError(
            f"it proposes {proposed[0].id} again, which has its result, and nothing that is left "
            "to run; decide() must leave out the trials that are final in its history"
        )


class CampaignStopped(XlatuneError):  # noqa: N818 - it is no error of the harness
    """The playbook stopped the sweep; the message says why."""

    exit = Exit.NOT_MEASURED


@dataclass(frozen=True, kw_only=True)
class View:
    """A moment of a campaign: the ledger's state, and what the study concludes from it.

    It has no slots: the history is computed on first use.
    """

    state: LedgerState
    study: Study
    pending: tuple[Trial, ...]
    stopped: Message | None = None

    @functools.cached_property
    def history(self) -> tuple[TrialResult, ...]:
        """The results of the study's trials, in plan order."""
        return history_of(self.state, self.study)

    def once(self, work: Callable[[LedgerState, Study], Worked]) -> Worked:
        """Return the result of `work`, cached until the ledger changes."""
        known: dict[Any, Any] = vars(self).setdefault("worked", {})
        if work not in known:
            known[work] = work(self.state, self.study)
        return cast("Worked", known[work])


class Campaign:
    """The ledger of a study's cells, and the study that runs into it.

    Args:
        resolved: the sweep with the user's options.
        executor: runs the trials.
        ledger: receives the results; the folders of attempts are beside it.
        study: the study; None takes the one that the sweep declares.
        session: the id of the session, which all its processes share.
        command: the command line of the session.
        recover: runs the site's hook for what needs a person's rights; None if there is none.
        read_evidence: reads the files of evidence trials that are over.
        clock: the clocks; None takes those of the system.
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
        study = study or resolved.study()
        self.resolved = resolved
        self.study = study
        self.ledger = ledger
        self.folder = ledger.path.parent
        launcher = resolved.sweep.launcher
        self._run = SweepRun(
            resolved=resolved,
            executor=executor,
            folder=self.folder,
            cells={cell.digest: cell for cell in study.cells},
            hidden=hidden_values(launcher, study.cells, environ=os.environ),
            clock=clock or Clock(),
        )
        self._session = session
        self._command = command
        self._read_evidence = read_evidence
        # the files that deploy the cell, as they are now
        self._files = deployed_files(
            launcher, resolved.cell, env_file=resolved.sweep.site.env_file, root=Path.cwd()
        )
        self._config = config_of(self._files)  # settings in the trainer's configuration
        self.compile_step = step_for(resolved, study, self.folder)
        self._state = LedgerState()
        # set if only a part of the ledger could be read, so that the state is of no use
        self._broken: LedgerError | None = None
        self._view: View | None = None
        self._proposed: tuple[Trial, ...] = ()
        self._changes = -1  # number of changes of the state when the study was last asked
        self._attempts = Attempts(
            self._run, policy=study.policy, reference=study.reference, recover=recover
        )
        self._driver = DriverLock(self.folder)
        self._packing = Packing(self._run)
        self._scheduler_away_since_s: float | None = None
        self._is_away_told = False
        self._files_away_since_s: float | None = None
        self._spending = self._nothing_spent()
        self._written_now = Now()

    def _nothing_spent(self) -> Spending:
        asked, cells = max(self._run.resources.nodes, 1), self._run.cells.items()
        by_cell = {name: len(cell.nodelist) or asked for name, cell in cells}
        return Spending(nodes=asked, nodes_of_cell=by_cell)

    def open(
        self,
        *,
        fresh: bool = False,
        rebuild: bool = False,
        check: Callable[[LedgerState], Sequence[str]] | None = None,
    ) -> None:
        """Join the campaign of this session, or begin it. Call it once, before anything else.

        With `fresh`, the first process of the session moves the ledger aside, after it has ended
        the jobs that still run, because no session could read their results. With `rebuild`, a new
        ledger goes on with the attempts of one that was lost. The first process also calls `check`
        to examine the site; it returns notes, or raises ConfigError.

        Raises:
            ConfigError: the ledger belongs to other cells, was lost beside its attempts, or the
                site is not ready.
            LedgerError: it cannot be read or written, or should be moved aside while in use.
        """
        # another process may take its turn first, in which it reads a trace or compiles a cell
        wait_s = _COMPILE_S if self.compile_step is not None else _OPEN_S
        self._keep_secrets(())
        with lines_about(self.folder), self._driver.mine(wait_s=wait_s):
            left = self._start_over() if fresh and self._is_of_another_session() else ()
            opened = self.view().state.opened
            self._keep_secrets(self.view().history)
            self._refuse_another_cell()
            self._refuse_changed_files()
            mine = [
                opening.declared
                for opening in opened
                if (opening.session, opening.study) == (self._session, self.study.name)
            ]
            if mine:
                # what this session measures counts from the next session on, in every process
                self.study, self._view = as_begun(self.study, mine[0]), None
                self._changes = -1
                return
            lost = () if opened else lost_runs(self.folder)
            if lost and not (fresh or rebuild):
                raise refusal_of(self.folder, lost)
            again = lost[0] if lost and not fresh else None
            notes = check(self._state) if check is not None else ()
            declared = self.study.to_json()
            self._write(
                CampaignOpened(
                    cells=tuple(self._run.cells.values()),
                    study=self.study.name,
                    sweep=self.resolved.sweep.name,
                    session=self._session,
                    declared=declared,
                    versions=versions(),
                    command=self._command,
                    settings=dict(self.resolved.settings),
                    run=again.name if again is not None else "",
                ),
                *(Noted(about=NoteKind.SITE, why=run.note(again=not fresh)) for run in lost[:1]),
                *(Noted(about=NoteKind.SITE, why=message) for message in left),
                *(Noted(about=NoteKind.SITE, text=note) for note in notes),
                *([FilesRead(files=self._files)] if self._files != self._state.files else []),
            )
            put_in_use(self.study, declared)

    def attending(self) -> AbstractContextManager[None]:
        """Count as waiting process even between two waits, so that running jobs are not ended."""
        return self._driver.registered()

    def _is_of_another_session(self) -> bool:
        """Return whether only other sessions have used the ledger, readable or not."""
        try:
            sessions = {opening.session for opening in self.view().state.opened}
        except UnreadableLedgerError:
            sessions = {
                "",
                *(opening.session for opening in self._state.opened),
            }  # if it could be read so far
        return bool(sessions) and self._session not in sessions

    def _start_over(self) -> tuple[Message, ...]:
        """End the ledger's running jobs and move it aside; return notes for the reader."""
        left = tuple[Message, ...]()
        with self._driver.none_waits() as alone:
            if not alone:
                raise LedgerError(
                    f"another session is measuring in {self.folder}: end it, or let it come "
                    "to its end, before you start over"
                )
            try:
                end_jobs(self.folder, executors=self._run.executor_of)
            except UnreadableLedgerError:
                left = (_UNREAD,)
            aside = self.ledger.archive(at_s=self._run.clock.now())
        _LOG.info(
            "starting over: the ledger before is %s", "; ".join((str(aside), *map(sentence, left)))
        )
        self._state, self._view, self._changes = LedgerState(), None, -1
        self._broken = None
        self._spending = self._nothing_spent()
        return left

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which trials run, each once; () until the scheduler has picked some."""
        cells = self._run.cells.values()
        return tuple(dict.fromkeys(node for cell in cells for node in self._state.nodes_of(cell)))

    def wait_for_nodes(self, *, on_turn: Callable[[], None] | None = None) -> tuple[str, ...]:
        """Return the nodes, once the scheduler has picked those of each cell that names none.

        Raises:
            CampaignStopped, SubmissionError, LedgerError: as `wait` raises them.
        """
        picked = [cell for cell in self._run.cells.values() if self._run.picks_nodes(cell)]
        if picked:
            self.wait(lambda view: all(map(view.state.nodes_of, picked)), on_turn=on_turn)
        return self.nodes

    def _refuse_another_cell(self) -> None:
        state, run = self._state, self._run
        if not state.opened:
            return
        before, now = state.opened[0].cells, tuple(run.cells.values())
        if difference := family_differences(before, now):
            raise self._another_cell(difference)
        if (were := self._other_slots(now)) is not None:
            first, then = (
                [compress(nodes) or "nodes of the scheduler's choice" for nodes in lists]
                for lists in (were, [cell.nodelist for cell in now])
            )
            raise self._another_cell(
                f"it was on {counted(len(first), 'node slot')} ({'; '.join(first)}), and is on "
                f"{counted(len(then), 'node slot')} ({'; '.join(then)})"
            )
        asked = run.resources.nodes
        for nodes in map(state.nodes_of, filter(run.picks_nodes, now)):
            if len(nodes) not in (0, asked):
                raise self._another_cell(f"{len(nodes)} nodes were picked, {asked} are asked for")

    def _another_cell(self, difference: str) -> ConfigError:
        """Return the error for a ledger of other cells, which differ by `difference`."""
        names = dict.fromkeys(name for nodes in self._state.pinned.values() for name in nodes)
        picked = f" (the scheduler picked {', '.join(names)})" if names else ""
        return ConfigError(
            f"the trials in {self.folder} were measured on another cell: {difference}{picked}. "
            "Numbers of two cells cannot be compared. Go back to what it was, or start over "
            "with --xlatune-fresh (nothing measured is deleted)"
        )

    def _other_slots(self, now: Sequence[Cell]) -> list[tuple[str, ...]] | None:
        """Return the nodes of a study's slots in the ledger if they were others; None if not.

        Another study of the cell itself may use the nodes of one slot (an evidence run), or of all
        and more (a calibration).
        """
        mine, lists = self.study.traits, [cell.nodelist for cell in now]
        for opened in self._state.opened:
            kind, were = KINDS.get(opened.study), [cell.nodelist for cell in opened.cells]
            if kind is None or kind.traits.cell_nodes or mine.cell_nodes:
                continue
            if kind.traits.has_slots and mine.has_slots:
                is_same = were == lists
            else:  # a calibration may cover more slots than a sweep
                is_same = set(lists) <= set(were) or set(were) <= set(lists)
            if not is_same:
                return were
        return None

    def _refuse_changed_files(self) -> None:
        before, run, where = self._state.files, self._run, str(self.folder)
        for cell in run.cells.values():
            refuse_changed(before, self._files, launcher=run.launcher, cell=cell, where=where)

    def _propose(self) -> tuple[Trial, ...]:
        """Ask the study what to run next; raise before an impossible proposal is recorded."""
        history = history_of(self._state, self.study)
        proposed = self.study.decide(history).due
        try:
            if self.compile_step is None:
                _refuse_compiled(proposed, self.study.policy.compiled_stage)
            for trial in proposed:
                cell = self._run.cell_of(trial, self._state)
                _refuse_words(trial)
                # a profile that is derived later may have secrets of its own
                keep_secret(secrets_in(cell, [trial.profile]))
            _refuse_only_final(proposed, history)
        except LedgerError as error:
            raise ConfigError(
                f"the study {self.study.name!r} ({type(self.study).__name__}) is wrong: {error}"
            ) from None
        return proposed

    def view(self) -> View:
        """Return the present state; this costs one `stat` if nothing has changed."""
        self._read_on()
        if self._view is None:
            state = self._state
            if state.changes != self._changes:
                # a study only depends on results, so as long as none changes, its proposal does not
                self._proposed = self._propose()
                self._changes = state.changes
            self._view = View(
                state=state,
                study=self.study,
                pending=self._proposed,
                stopped=state.stop.why if state.stop is not None else None,
            )
        return self._view

    def _read_on(self) -> None:
        """Read the new lines of the ledger, and forget what was derived from the old state."""
        if self._broken is not None:
            raise self._broken
        new = self.ledger.refresh()
        if new:
            try:
                self._state = replay(new, onto=self._state)
            except UnreadableLedgerError as error:
                self._broken = UnreadableLedgerError(f"{self.ledger.path}: {error}")
                raise self._broken from None
            self._spending.feed(new)
            self._view = None

    def conclude(self) -> Conclusion:
        """Return the study's conclusion from the present state."""
        return self.study.decide(self.view().history).conclusion

    def wait(
        self, is_ready: Callable[[View], bool], *, on_turn: Callable[[], None] | None = None
    ) -> View:
        """Wait until `is_ready`, taking turns; `on_turn` is called after each check.

        Raises:
            CampaignStopped: the playbook stopped the sweep.
            SubmissionError, LedgerError: a trial cannot be submitted or journalled.
        """
        with self._driver.waiting():
            while True:
                try:
                    view = self.view()
                    if on_turn is not None:
                        on_turn()  # the callback may read the ledger too
                except LedgerError as error:
                    self._wait_for_files(error)
                    if on_turn is not None:
                        with contextlib.suppress(LedgerError):  # the next turn waits for the ledger
                            on_turn()
                    continue
                if is_ready(view):
                    return view
                if view.stopped is not None:
                    raise CampaignStopped(sentence(view.stopped))
                if not view.pending:
                    raise CampaignStopped("nothing is left to run that could answer this")
                self.turn()
                time.sleep(TURN_S)

    def turn(self) -> None:
        """Poll running jobs and submit the next, unless another process is doing so.

        Raises:
            SubmissionError: the scheduler has been away for longer than its executor waits.
            LedgerError: the file system has been away for too long, or is full.
        """
        try:
            with lines_about(self.folder), self._driver.next() as is_mine:
                if is_mine:
                    self._take_turn()
        except (LedgerError, OSError) as error:
            self._wait_for_files(error)
        else:
            self._files_away_since_s = None

    def _take_turn(self) -> None:
        began_s = self._run.clock.ticks()
        try:
            self.view()
            self._look_after()  # results are read first, because a submission may take long
            self._hand_over()
            self._read()
            self._leave_out_refused()
            if not self._check_by_compiling():
                self._submit()
            self._tell_turn()
            self._tell_scheduler()
        except SchedulerDown as error:
            self._tell_scheduler(error, since_s=began_s)

    def _wait_for_files(self, error: LedgerError | OSError) -> None:
        """Wait for a file system that is away, at most as long as for a controller, or raise."""
        cause = error if isinstance(error, OSError) else error.__cause__
        now_s = self._run.clock.ticks()
        if not isinstance(cause, OSError) or cause.errno not in _AWAY:
            raise error
        if self._files_away_since_s is None:
            self._files_away_since_s = now_s
            _LOG.warning("the work directory is away, all that needs it waits: %s", error)
        elif now_s - self._files_away_since_s > _AWAY_S:
            raise error
        time.sleep(TURN_S)

    def _keep_secrets(self, history: Sequence[TrialResult]) -> None:
        """Hide the secrets of the campaign in all texts of this process."""
        profiles, cells = self.study.decide(history).profiles, self._run.cells.values()
        keep_secret(self._run.hidden.union(*(secrets_in(cell, profiles) for cell in cells)))

    def _tell_scheduler(self, error: SchedulerDown | None = None, *, since_s: float = 0.0) -> None:
        """Log once that the scheduler is away or back; notify people if it takes longer.

        `since_s` is the time of the first question that it did not answer.
        """
        now_s = self._run.clock.ticks()
        if error is not None:
            why = say(
                "the scheduler does not answer, all that needs it waits: {error}", error=str(error)
            )
            if self._scheduler_away_since_s is None:
                self._scheduler_away_since_s = since_s
                _LOG.warning("%s", sentence(why))
            if not self._is_away_told and now_s - self._scheduler_away_since_s >= _TELL_AWAY_S:
                self._is_away_told = True
                self._write(Noted(about=NoteKind.WAITING, why=why))
        elif self._scheduler_away_since_s is not None:
            why = say("the scheduler answers again")
            _LOG.warning("%s", sentence(why))
            if self._is_away_told:
                self._write(Noted(about=NoteKind.WAITING, why=why))
            self._scheduler_away_since_s, self._is_away_told = None, False

    def _tell_turn(self) -> None:
        state, left = self._state, len(self._proposed)
        jobs = ", ".join(submission.job_id for submission in state.in_flight()) or "none"
        self._packing.tell(
            "turn",
            f"turn of {self.study.name}: jobs in flight: {jobs}; {left} trials are proposed, "
            f"{len(state.trials)} are known",
        )

    def _hand_over(self) -> None:
        """Submit the intended attempts, also those of a process that died before it got a job id.

        Submitting an attempt twice is safe: an executor that has the attempt returns its job.
        """
        for trial, attempt in self._state.unresolved():
            with _ctrl_c_later() as asked:
                events = self._attempts.hand_over(self._state, trial, attempt)
                # if Ctrl-C also ended the question to the scheduler, that is no refusal
                if not asked or any(isinstance(event, AttemptSubmitted) for event in events):
                    self._write(*events)

    def _look_after(self) -> None:
        in_flight = self._state.in_flight()
        if not in_flight:
            self._tell_now({})
            return
        outcomes = self._poll(in_flight)
        self._tell_now(outcomes)
        self._packing.seen(outcomes)
        for submission in in_flight:
            outcome = standing(outcomes, submission)
            if outcome is not None:
                self._write(*self._attempts.look(self._state, submission, outcome))
        self._write(*self._attempts.wait_in_queue(self._state, outcomes))

    def _poll(self, in_flight: Sequence[Submission]) -> Mapping[str, Outcome]:
        """Ask each executor for its own jobs, because an earlier session may have used another one.

        If two executors have jobs of the same id, the second is keyed by its folder.
        """
        outcomes: dict[str, Outcome] = {}
        for name, mine in by_executor(in_flight).items():
            polled = self._run.executor_of(name).poll(mine, root=self.folder)
            taken = outcomes.keys() & {submission.job_id for submission in mine}
            standings = (
                (submission, standing(polled, submission))
                for submission in mine
                if submission.job_id in taken
            )
            outcomes |= {key: outcome for key, outcome in polled.items() if key not in taken}
            outcomes |= {
                submission.folder: outcome
                for submission, outcome in standings
                if outcome is not None
            }
        return outcomes

    def _tell_now(self, outcomes: Mapping[str, Outcome]) -> None:
        """Write the state of the jobs to a file for people: at a change, else at intervals."""
        at_s, jobs = self._run.clock.now(), dict(outcomes)
        if jobs != self._written_now.jobs or (jobs and at_s - self._written_now.at_s > _TELL_S):
            self._written_now = Now(at_s=at_s, jobs=jobs)
            write_now(self.folder, self._written_now)

    def _read(self) -> None:
        """Read the files of evidence runs that are over, whichever study waits for them."""
        read, runs = self._read_evidence, self._state.evidence()
        left = (
            result
            for result in runs
            if result.status is TrialStatus.MEASURED and not result.is_read
        )
        if read is not None and any(left):
            self._write(*read(self._state, self.folder))

    def _leave_out_refused(self) -> None:
        """End the trials whose shapes the trainer refuses at its start, without a job."""
        view = self.view()
        for trial in view.pending:
            if trial.profile.is_baseline or trial.id in view.state.trials:
                continue
            cell = self._run.cell_of(trial, view.state)
            why = refused_shape(self._run.launcher, cell, trial.profile, self._config)
            if why:
                finding = Finding(cls=FailureClass.CONFIG_ERROR, action=Action.DROP, text=why)
                result = TrialResult(
                    trial=trial,
                    status=TrialStatus.DROPPED,
                    reason=say("cannot run, so no job was submitted: {why}", why=why),
                    findings=(finding,),
                )
                self._write(TrialPlanned(trial=trial), TrialEnded(result=result))

    def _check_by_compiling(self) -> bool:
        """Answer a trial that is only compiled; return False if none is proposed."""
        step, view, stage = self.compile_step, self.view(), self.study.policy.compiled_stage
        is_asked = any(trial.stage == stage for trial in view.pending)
        if step is None or not is_asked or view.stopped or self._packing.is_full(view.state):
            return False
        events = step(view.state, view.pending)
        self._write(*events)
        return bool(events)

    def _submit(self) -> None:
        """Submit trials in the proposed order while their nodes have room."""
        view = self.view()
        if view.stopped is not None:
            self._packing.tell("stop", f"nothing is submitted: {sentence(view.stopped)}")
            return
        limits, spending = self.resolved.sweep.limits, self._spending
        alone = self.study.policy.compiled_stage
        wanted = [trial for trial in view.pending if not alone or trial.stage != alone]
        digests = dict.fromkeys(trial.cell_digest for trial in wanted)
        reasons = {digest: spending.exhausted(limits, cell_digest=digest) for digest in digests}
        spent = {digest: reason for digest, reason in reasons.items() if reason is not None}
        fitting = [trial for trial in wanted if trial.cell_digest not in spent]
        if spent:
            self._refuse_spent(view, spent, is_over=not fitting)
        one_each = spending.is_unknown(limits)
        for trial in self._packing.ready(view.state, fitting, one_each=one_each):
            if spending.exhausted(limits, cell_digest=trial.cell_digest) is not None:
                return  # wait until the first trials show what one costs
            self._plan(view)
            self._write(self._attempts.intend(self._state, trial))
            self._hand_over()
            # an attempt that was not taken stays intended, and no other may overtake it
            if self._state.stop is not None or self._state.intended:
                return

    def _plan(self, view: View) -> None:
        ids = {trial.id: trial for trial in view.pending}
        new = (trial for name, trial in ids.items() if name not in self._state.trials)
        self._write(*(TrialPlanned(trial=trial) for trial in new))

    def _refuse_spent(self, view: View, spent: Mapping[str, Message], *, is_over: bool) -> None:
        """Note cells whose trials break a limit; stop once all do and no job is running."""
        first = next(trial for trial in view.pending if trial.cell_digest in spent)
        decided = Decided(
            trial_id=first.id,
            attempt=0,
            next=Next.STOP,
            cls=FailureClass.BUDGET,
            spent=spent[first.cell_digest],
        )
        cells = (self._run.cell_of(trial, view.state) for trial in view.pending)
        labels = dict.fromkeys(cell.label for cell in cells if cell.digest in spent)
        which = "" if is_over else f" of {', '.join(labels)}"
        self._packing.tell("limit", f"nothing more{which} is submitted: {sentence(decided.why)}")
        if is_over and not self._state.in_flight():
            self._plan(view)
            self._write(decided)

    def _write(self, *events: Event) -> None:
        if events:
            self.ledger.append(*events, at_s=self._run.clock.now())
            self._read_on()


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[list[int]]:
    """Delay Ctrl-C until the block is over, except a second one; the list says what came.

    Otherwise a job that the scheduler was just accepting was in no ledger, and was never ended.
    """
    asked: list[int] = []

    def later(number: int, _: object) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, later)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGINT)
