"""Run a study into the ledger of its cell.

Any number of processes hold the same campaign. Whoever waits takes a turn when no other process is
at it: one of them polls and submits, the others read the ledger, and when it is killed the next one
goes on. What a turn does is in the ledger before anyone acts on it. This module knows neither
pytest nor a scheduler, and decides nothing that a study or the playbook decides.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pytest_xlatune.campaign.attempts import Attempts, Setup
from pytest_xlatune.campaign.deployed_files import refuse_changed
from pytest_xlatune.campaign.history import history_of
from pytest_xlatune.campaign.jobs import LEDGER, end_jobs, executor_named
from pytest_xlatune.campaign.limits import Spending
from pytest_xlatune.campaign.turns import Turns
from pytest_xlatune.cells import Stage, Trial, differences
from pytest_xlatune.errors import ConfigError, LedgerError, XlatuneError
from pytest_xlatune.executors import SchedulerDown
from pytest_xlatune.ledger import (
    CampaignOpened,
    Decided,
    Event,
    FilesRead,
    Ledger,
    LedgerState,
    Noted,
    TrialPlanned,
    replay,
)
from pytest_xlatune.recovery import Next
from pytest_xlatune.results import (
    Conclusion,
    EvidenceResult,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.declared import agreed

__all__ = ["Campaign", "CampaignStopped", "Setup", "View"]

_OPEN_S, _COMPILE_S = 120.0, 2000.0  # how long joining may take, and where profiles are compiled
TURN_S = 0.25  # how often a waiting process looks


class CampaignStopped(XlatuneError):  # noqa: N818 - it is no error of the harness
    """The playbook stopped the sweep; the message is its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is known at one moment: the ledger's state and what the study makes of it."""

    state: LedgerState
    history: tuple[TrialResult, ...]
    pending: tuple[Trial, ...]
    stopped: str = ""

    def is_over(self, stage: Stage, group: str | None = None) -> bool:
        """Whether no trial of this stage, and of this group if given, is still to come."""
        return not any(
            trial.stage is stage and group in (None, trial.group) for trial in self.pending
        )


class Campaign:
    """The ledger of one cell, and one study that is run into it."""

    def __init__(
        self,
        setup: Setup,
        study: Study,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.setup = setup
        self.study = study
        self.ledger = Ledger(setup.folder / LEDGER)
        self._now = now  # for what is written down; it may jump
        self._ticks = ticks  # for how long something lasts; it never does
        self._state = LedgerState()
        self._view: View | None = None
        self._attempts = Attempts(setup, now=now, ticks=ticks)
        self._waits_until: dict[tuple[str, float], float] = {}
        self._turns = Turns(setup.folder)
        self._settled: frozenset[str] = frozenset()
        self._spending = Spending(nodes=max(setup.resources.nodes, 1))

    def open(self, *, fresh: bool = False) -> None:
        """Join the campaign of this session, or begin it. Call once, before anything else.

        With `fresh`, the first process of the session to come moves the ledger aside, after the
        end of what still runs of it: nobody could read its result.

        Raises:
            ConfigError: the ledger belongs to a cell on other nodes, or the site is not ready.
            LedgerError: it cannot be read or written, or is to be moved aside while another session
                is at it.
        """
        setup = self.setup
        # somebody may be reading a trace, or compiling a profile, in the turn before ours; what is
        # opened beside a sweep, such as an evidence run, compiles nothing itself
        is_compiling = setup.settle is not None or self._turns.is_long
        with self._turns.mine(wait_s=_COMPILE_S if is_compiling else _OPEN_S):
            opened = self.view().state.opened
            if fresh and opened and setup.session not in {each.session for each in opened}:
                self._move_aside()
                self._state, self._view, opened = LedgerState(), None, ()
                self._spending = Spending(nodes=self._spending.nodes)
            self._refuse_another_cell()
            self._refuse_changed_files()
            mine = [
                each.declared
                for each in opened
                if (each.session, each.study) == (setup.session, self.study.name)
            ]
            if mine:
                # what was found since the session began is for the next one, in every process
                self.study, self._view = agreed(self.study, declared=mine[0]), None
            else:
                notes = setup.check(self._state) if setup.check is not None else ()
                self._write(
                    CampaignOpened(
                        cell=setup.cell,
                        study=self.study.name,
                        sweep=setup.sweep,
                        session=setup.session,
                        declared=json.dumps(self.study.to_json()),
                        versions=setup.versions,
                        settings=setup.settings,
                    ),
                    *(Noted(text=note) for note in notes),
                    *([FilesRead(files=setup.files)] if setup.files != self._state.files else []),
                )

    def attending(self) -> AbstractContextManager[None]:
        """Count as one that waits, between two waits too; what runs is not ended meanwhile."""
        return self._turns.attending()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that every trial runs on; () while the scheduler has still to pick them."""
        return self.setup.cell.nodelist or self._state.pinned

    def wait_for_nodes(self, *, on_turn: Callable[[], None] | None = None) -> tuple[str, ...]:
        """Return the pinned nodes, once the first trial has got them where nobody named any.

        Raises:
            CampaignStopped, SubmissionError, LedgerError: as of `wait`.
        """
        if self.setup.picks_nodes:
            self.wait(lambda view: bool(view.state.pinned), on_turn=on_turn)
        return self.nodes

    def _move_aside(self) -> None:
        with self._turns.nobody_waits() as alone:
            if not alone:
                raise LedgerError(
                    f"another session is measuring in {self.setup.folder}: end it, or let it come "
                    "to its end, before you start over"
                )
            ours = self.setup.executor
            end_jobs(
                self.ledger,
                executors=lambda name: ours if name == ours.name else executor_named(name),
            )
            self.ledger.archive(at_s=self._now())

    def _refuse_another_cell(self) -> None:
        state, setup = self._state, self.setup
        if not state.opened:
            return
        found = ""
        if state.opened[0].cell.digest != setup.cell.digest:
            found = differences(state.opened[0].cell, setup.cell)
        elif setup.picks_nodes and state.pinned and len(state.pinned) != setup.resources.nodes:
            found = f"{len(state.pinned)} nodes were picked, {setup.resources.nodes} are asked for"
        if found:
            picked = f" (the scheduler picked {', '.join(state.pinned)})" if state.pinned else ""
            raise ConfigError(
                f"the trials in {setup.folder} were measured on another cell: {found}{picked}. "
                "Numbers of two cells cannot be compared. Go back to what it was, or start over "
                "with --xlatune-new-baseline (nothing measured is deleted)"
            )

    def _refuse_changed_files(self) -> None:
        setup = self.setup
        refuse_changed(
            self._state.files,
            setup.files,
            launcher=setup.launcher,
            cell=setup.cell,
            where=str(setup.folder),
        )

    def view(self) -> View:
        """Return what is known now; costs one `stat` when nothing happened."""
        new = self.ledger.refresh()
        if new or self._view is None:
            self._state = replay(new, onto=self._state)
            self._spending.feed(new)
            history = history_of(self._state, self.study)
            pending = self.study.propose(history)
            self._view = View(
                state=self._state,
                history=history,
                pending=pending,
                stopped=_stop_reason(self._state),
            )
        return self._view

    def conclude(self, *, screened_only: bool = False) -> Conclusion:
        """Return the study's conclusion; of the screen alone, if that is what is asked."""
        history = self.view().history
        if screened_only:
            history = tuple(each for each in history if each.trial.stage is not Stage.CONFIRM)
        return self.study.conclude(history)

    def wait(
        self, is_ready: Callable[[View], bool], *, on_turn: Callable[[], None] | None = None
    ) -> View:
        """Wait until `is_ready`, taking turns; `on_turn` is called after each look.

        Raises:
            CampaignStopped: the playbook stopped the sweep.
            SubmissionError, LedgerError: a trial cannot be submitted or journalled.
        """
        with self._turns.waiting():
            while True:
                view = self.view()
                if on_turn is not None:
                    on_turn()
                if is_ready(view):
                    return view
                if view.stopped:
                    raise CampaignStopped(view.stopped)
                if not view.pending:
                    raise CampaignStopped("nothing is left to run that could answer this")
                self.turn()
                time.sleep(TURN_S)

    def turn(self) -> None:
        """Look after what runs and submit what comes next, unless another process is at it.

        Raises:
            SubmissionError: the scheduler has been away for longer than its executor waits.
        """
        with self._turns.next() as is_mine, contextlib.suppress(SchedulerDown):
            if is_mine:
                self.view()
                self._reconcile()
                self._look_after()
                self._read()
                if not self._settle():
                    self._submit()

    # -- one turn ---------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Finish the submissions whose submitter died before it could name the job.

        Submitting the same attempt again is safe: an executor that has it returns its job.
        """
        for trial, attempt in self._state.unresolved():
            self._hand_over(trial, attempt.number, attempt.comment)

    def _look_after(self) -> None:
        flying = self._state.in_flight()
        if not flying:
            return
        outcomes = self.setup.executor.poll(flying, root=self.setup.folder)
        for submission in flying:
            self._write(*self._attempts.look(self._state, submission, outcomes[submission.job_id]))
        self._write(*self._attempts.wait_in_queue(self._state, outcomes))

    def _read(self) -> None:
        """Write down what evidence runs left that are over, whichever study waits for it."""
        if self.setup.read is not None and any(map(_awaits_reading, self._state.evidence())):
            self._write(*self.setup.read(self._state))

    def _settle(self) -> bool:
        """Take a step of finding out which trials need no run; False once that is known."""
        settle, view = self.setup.settle, self.view()
        asked = frozenset(trial.profile.id for trial in view.pending)
        # waves that follow from earlier ones ask for profiles that were not there before
        if settle is None or asked <= self._settled or view.stopped:
            return False
        if len(view.state.in_flight()) >= self.setup.executor.max_in_flight:
            return False
        with self._turns.taking_long():
            events = settle(view.state, view.pending, self.study.whole().propose(view.history))
        if not events:
            self._settled |= asked
        self._write(*events)
        return bool(events)

    def _submit(self) -> None:
        executor = self.setup.executor
        while True:
            view = self.view()
            # while the scheduler still has to pick the nodes, one trial decides them for all
            is_picking = self.setup.picks_nodes and not view.state.pinned
            at_most = 1 if is_picking else executor.max_in_flight
            if view.stopped or len(view.state.in_flight()) >= at_most:
                return
            ready = [
                trial
                for trial in view.pending
                if trial.id not in view.state.trials
                or view.state.trials[trial.id].result.status is TrialStatus.PLANNED
            ]
            if not ready or self._must_wait(ready[0]):
                return
            new = [trial for trial in view.pending if trial.id not in view.state.trials]
            self._write(*(TrialPlanned(trial=trial) for trial in new))
            exhausted = self._spending.exhausted(self.setup.limits)
            if exhausted:
                # what flies has been paid for: the sweep stops when it has landed
                if not view.state.in_flight():
                    self._write(_stopped(ready[0], exhausted))
                return
            self._submit_one(ready[0])

    def _submit_one(self, trial: Trial) -> None:
        intended = self._attempts.intend(self._state, trial)
        self._write(intended)
        self._hand_over(trial, intended.attempt, intended.comment)

    def _hand_over(self, trial: Trial, attempt: int, comment: str) -> None:
        self._write(*self._attempts.hand_over(self._state, trial, attempt, comment))

    def _must_wait(self, trial: Trial) -> bool:
        """Whether the back-off of a trial's last decision is not over."""
        times = [d.not_before_s for d in self._state.decisions if d.trial_id == trial.id]
        if not times or not times[-1]:
            return False
        # measured once, from here on by a clock that does not jump
        key, left_s = (trial.id, times[-1]), times[-1] - self._now()
        return self._ticks() < self._waits_until.setdefault(key, self._ticks() + left_s)

    def _write(self, *events: Event) -> None:
        if not events:
            return
        self.ledger.append_all(events, at_s=self._now())
        self.view()


def _awaits_reading(run: EvidenceResult) -> bool:
    return run.status is TrialStatus.MEASURED and not run.is_read


def _stopped(trial: Trial, reason: str) -> Decided:
    return Decided(trial_id=trial.id, attempt=0, next=Next.STOP, cls="budget", reason=reason)


def _stop_reason(state: LedgerState) -> str:
    return next((each.reason for each in state.decisions if each.next == Next.STOP), "")
