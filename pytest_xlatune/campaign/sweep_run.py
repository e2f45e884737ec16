"""A sweep as one campaign runs it: its cells, its executor, its folder, and its clocks.

Here a trial's cell, its secrets and the request of an attempt are looked up. Nothing here submits,
reads a log or writes a ledger.
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
    """What a campaign measures time by.

    Attributes:
        now: seconds since the epoch; it may jump.
        ticks: the clock that durations are measured by; it never jumps.
    """

    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A sweep as one campaign runs it.

    Attributes:
        resolved: the sweep, with what the user said.
        executor: where trials run.
        folder: where the ledger and the attempts lie.
        cells: every cell that a trial of the study may name, by digest.
        hidden: values that no text may show, besides those of cells and profiles.
        clock: what time is measured by.
    """

    resolved: ResolvedSweep
    executor: Executor
    folder: Path
    cells: Mapping[str, Cell]
    hidden: frozenset[str] = frozenset()
    clock: Clock = field(default_factory=Clock)

    @property
    def launcher(self) -> Launcher:
        """How a trial is started."""
        return self.resolved.sweep.launcher

    @property
    def site(self) -> SiteSettings:
        """How trials get there."""
        return self.resolved.sweep.site

    @property
    def resources(self) -> Resources:
        """What the scheduler is asked for."""
        return self.site.resources

    @property
    def queue_depth(self) -> int:
        """Submissions of a node that may wait behind what runs there."""
        # in an allocation there is no queue: a second step would wait, in an order of Slurm's own
        return 1 if self.executor.holds_nodes else self.site.queue_depth

    def cell_of(self, trial: Trial, state: LedgerState | None = None) -> Cell:
        """Return the cell that a trial names; `state` knows those of earlier sessions as well.

        Raises:
            LedgerError: no session named such a cell.
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
        """Return the executor of this name: ours, or that of an earlier session.

        Raises:
            LedgerError: it is not installed here.
        """
        return self.executor if name == self.executor.name else executor_in(self.folder, name)

    def with_secrets(self, trial: Trial) -> Trial:
        """Return a trial of the ledger with the secrets of its profile, which the ledger lacks."""
        profile = trial.profile.with_secrets_of(self.resolved.sweep.profiles)
        return trial if profile == trial.profile else replace(trial, profile=profile)

    def picks_nodes(self, cell: Cell) -> bool:
        """Whether the scheduler picks a cell's nodes; those of its first trial then stay its."""
        return self.resources.nodes > 0 and not cell.nodelist

    def request_for(self, trial: Trial, number: int, state: LedgerState) -> Request:
        """Return what an attempt is submitted with; each cell asks for its own nodes."""
        cell, resources = self.cell_of(trial, state), self.resources
        if len(self.cells) > 1 and cell.nodelist:
            resources = replace(resources, nodes=len(cell.nodelist))
        more_s = trial.deadline_s - trial.protocol.deadline_s
        if more_s > 0:  # of a rotation
            resources = replace(resources, time_limit_s=resources.time_limit_s + more_s)
        return request_for(
            trial,
            number,
            run=state.run,
            folder=self.folder,
            nodelist=state.nodes_of(cell),
            resources=resources,
        )
