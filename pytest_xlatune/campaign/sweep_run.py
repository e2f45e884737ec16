"""A sweep as one campaign runs it, which trials may be submitted now, and what it has cost.

Trials on disjoint nodes run at the same time. Trials that share a node keep the order in which the
study proposed them: a trial that waits blocks later trials on its own nodes only. At most
`queue_depth` submissions (two by default) wait behind what runs on a node, so that a node never
idles and a sweep that is stopped leaves little behind.

Limits are set on node-hours, and on the hours during which trials were with the scheduler. Both are
summed over all sessions of a ledger. When one is spent, no further trial is submitted. This module
submits and cancels nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors import Executor, Request, executor_in, request_for
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.ledger import AttemptEnded, AttemptIntended, LedgerEntry
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.sweep.groups import Limits, SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep

_THIS_MACHINE = ("this machine",)
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks of a campaign, in seconds."""

    now: Callable[[], float] = time.time  # the wall clock, since 1970; it may jump
    ticks: Callable[[], float] = time.monotonic  # for durations; it never jumps


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A sweep as one campaign runs it."""

    resolved: ResolvedSweep  # the sweep with the options of the user
    executor: Executor  # submits the trials
    folder: Path  # holds the ledger and the folders of the attempts
    cells: Mapping[str, Cell]  # every cell that a trial of the study may name, by digest
    clock: Clock = field(default_factory=Clock)

    @property
    def launcher(self) -> Launcher:
        """The launcher, which says how a trial is started."""
        return self.resolved.sweep.launcher

    @property
    def site(self) -> SiteSettings:
        """The settings of the site: its resources, queue, nodes and retry rules."""
        return self.resolved.sweep.site

    @property
    def resources(self) -> Resources:
        """The resources that a job asks the scheduler for."""
        return self.site.resources

    def cell_of(self, trial: Trial, state: LedgerState) -> Cell:
        """Return the cell that a trial names; `state` holds the cells of earlier sessions too.

        Raises:
            LedgerError: no session has opened such a cell.
        """
        cell = self.cells.get(trial.cell_digest) or state.cells.get(trial.cell_digest)
        if cell is None:
            raise LedgerError(
                f"trial {trial.id} names the cell {trial.cell_digest}, which no session opened; "
                f"{self.folder} holds {', '.join(self.cells)}"
            )
        return cell

    def executor_of(self, name: str) -> Executor:
        """Return the executor of this name: that of this campaign, or of an earlier session.

        Raises:
            LedgerError: no such executor is installed here.
        """
        return self.executor if name == self.executor.name else executor_in(self.folder, name)

    def with_secrets(self, trial: Trial) -> Trial:
        """Return a trial of the ledger with the secrets of its profile, which the ledger lacks."""
        profile = trial.profile.with_secrets_of(self.resolved.sweep.profiles)
        return trial if profile == trial.profile else replace(trial, profile=profile)

    def picks_nodes(self, cell: Cell) -> bool:
        """Return whether the scheduler picks a cell's nodes; later trials then get the same."""
        return self.resources.nodes > 0 and not cell.nodelist

    def request_for(self, trial: Trial, number: int, state: LedgerState) -> Request:
        """Return the request of an attempt, with the number of nodes of the trial's cell."""
        cell, resources = self.cell_of(trial, state), self.resources
        if len(self.cells) > 1 and cell.nodelist:
            resources = replace(resources, nodes=len(cell.nodelist))
        extra_s = trial.deadline_s - trial.protocol.deadline_s
        if extra_s > 0:  # a rotation may take longer than an ordinary trial
            resources = replace(resources, time_limit_s=resources.time_limit_s + extra_s)
        return request_for(
            trial,
            number,
            run=state.run,
            folder=self.folder,
            nodelist=state.nodes_of(cell),
            resources=resources,
        )


class Packing:
    """The room on the nodes of one campaign."""

    def __init__(self, run: SweepRun) -> None:
        self._run = run
        self._running: frozenset[str] = frozenset()  # ids of running jobs

    def note_running(self, outcomes: Mapping[str, Outcome]) -> None:
        """Note which jobs run, because these no longer wait for a node."""
        self._running = frozenset(
            job_id for job_id, outcome in outcomes.items() if outcome.state is State.RUNNING
        )

    def is_full(self, state: LedgerState) -> bool:
        """Return whether the executor takes no further submission."""
        at_most = self._run.executor.max_in_flight
        return 0 < at_most <= len(state.flying) + len(state.intended)

    def ready(self, state: LedgerState, pending: Sequence[Trial]) -> Iterator[Trial]:
        """Yield the trials to submit now, in order; the caller submits each before the next."""
        ahead = self._count_ahead(state)
        held: set[str] = set()  # places that a waiting trial needs, see `_places`
        all_places = {
            place for cell in self._run.cells.values() for place in self._places(state, cell)[0]
        }
        for trial in pending:
            if held >= all_places:
                return
            progress = state.trials.get(trial.id)
            if progress is not None and not progress.is_to_run:
                continue
            if self.is_full(state):
                return
            places, depth = self._places(state, self._run.cell_of(trial, state))
            # A trial that is retried waits behind the submissions on its nodes. If these are many,
            # it runs long after the other trials of its block, so only few may be ahead.
            is_full = any(ahead[place] >= depth for place in places)
            if is_full or not held.isdisjoint(places) or self._backs_off(state, trial):
                held.update(places)
                continue
            ahead.update(places)
            yield trial

    def _count_ahead(self, state: LedgerState) -> Counter[str]:
        """Return how many submissions wait for each place of `_places`."""
        ahead: Counter[str] = Counter()
        jobs = [(trial_id, job.job_id) for (trial_id, _), job in state.flying.items()]
        jobs += [(trial_id, "") for trial_id, _ in state.intended]  # without a job id so far
        for trial_id, job_id in jobs:
            cell = self._run.cell_of(state.trials[trial_id].trial, state)
            places, depth = self._places(state, cell)
            # a depth of 1 means one submission at a time, so that a running job counts too
            if depth == 1 or job_id not in self._running:
                ahead.update(places)
        return ahead

    def _places(self, state: LedgerState, cell: Cell) -> tuple[tuple[str, ...], int]:
        """Return the places of a cell's trials, and the depth of the queue at each place.

        A place is a node; or one name for the nodes that the scheduler will pick; or this machine.
        """
        run, nodes = self._run, state.nodes_of(cell)
        if not nodes and run.picks_nodes(cell):
            return (f"the nodes of {cell.digest}",), 1
        # an allocation has no queue: Slurm starts waiting steps in an order that we cannot control
        depth = 1 if run.executor.holds_nodes else run.site.queue_depth
        return nodes or _THIS_MACHINE, depth

    def _backs_off(self, state: LedgerState, trial: Trial) -> bool:
        """Return whether a trial must still wait after the decision to retry it later."""
        decisions = state.decided_on(trial.id)
        return bool(decisions) and self._run.clock.now() < decisions[-1].not_before_s


@dataclass(slots=True, kw_only=True)
class Spending:
    """The cost of a sweep so far, from the events of its ledger in order."""

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
