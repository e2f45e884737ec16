"""A sweep as one campaign runs it: its cells, its executor, its folder, and its clocks.

It also returns the cell and the secrets of a trial, and the request of an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors import Executor, Request, request_for
from pytest_xlatune.executors.named import executor_in
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.sweep.groups import SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clocks of a campaign.

    Attributes:
        now: the wall clock, in seconds since 1970; it may jump.
        ticks: a monotonic clock in seconds, for durations; it never jumps.
    """

    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A sweep as one campaign runs it.

    Attributes:
        resolved: the sweep with the options of the user.
        executor: the executor that submits the trials.
        folder: the work directory, which holds the ledger and the folders of the attempts.
        cells: every cell that a trial of the study may name, by digest.
        hidden: secret values that no text may show, in addition to those of cells and profiles.
        clock: the clocks; tests pass their own.
    """

    resolved: ResolvedSweep
    executor: Executor
    folder: Path
    cells: Mapping[str, Cell]
    hidden: frozenset[str] = frozenset()
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

    @property
    def queue_depth(self) -> int:
        """How many submissions may wait for a node behind its running trial; with 1 none may."""
        # an allocation has no queue: Slurm starts waiting steps in an order that we cannot control
        return 1 if self.executor.holds_nodes else self.site.queue_depth

    def cell_of(self, trial: Trial, state: LedgerState | None = None) -> Cell:
        """Return the cell that a trial names; `state` holds the cells of earlier sessions too.

        Raises:
            LedgerError: no session has opened such a cell.
        """
        cell = self.cells.get(trial.cell_digest)
        if cell is None and state is not None:
            cell = state.cells.get(trial.cell_digest)
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
