"""What a campaign runs with: cells, launcher, executor, limits, and what it asks of others.

Values and callables alone: nothing here submits, reads a log or writes a ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pytest_xlatune.campaign.playbook import Decision
from pytest_xlatune.executors import Executor, Request, request_for
from pytest_xlatune.executors.named import executor_in
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.ledger import Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell, DeployedFile, secrets_in
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.resources import Resources, RetryPolicy
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.sweep.groups import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a campaign runs with.

    Attributes:
        cells: every cell that a trial of the study may name, by digest.
        launcher: how a trial is started; executor: where.
        folder: where the ledger and the attempts lie.
        session: id of the pytest session.
        settings: what the user said, by name: where.
        files: that deploy the cell, as they are now.
        profiles: of the sweep: the ledger keeps none of their secrets.
        hidden: values that no text may show, besides those of cells and profiles.
        queue_depth: submissions of a node that may wait behind what runs there.
        limits: what the sweep may cost.
        exempt: patterns of settings of which the sweep says that nothing can show them.
        node_health: the site's command that tells what a node's own log says; () asks no node.
        recover: asks the site to do what needs a person's rights; True when it is done.
        check: looks before anything is submitted; returns notes, raises ConfigError.
        compile_check: finds out before anything is submitted which trials need no run, and answers
            those that are compiled alone: given the state, the pending trials and those of the
            whole study, one step's events; () when it is done.
        read: reads what evidence trials left that are over; None where none has any.
        command: the command line of the session, without secrets.
        prepare: makes what a trial of a cell is started from, before each submission; raises
            ConfigError.
        now: the clock of the events; it may jump.
        ticks: the clock that durations are measured by; it never jumps.
    """

    sweep: str
    cells: Mapping[str, Cell]
    launcher: Launcher
    executor: Executor
    resources: Resources
    folder: Path
    session: str
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    files: tuple[DeployedFile, ...] = ()
    profiles: tuple[Profile, ...] = ()
    hidden: frozenset[str] = frozenset()
    queue_depth: int = 2
    limits: Limits = field(default_factory=Limits)
    exempt: tuple[str, ...] = ()
    node_health: tuple[str, ...] = ()
    recover: Callable[[Decision, tuple[str, ...]], bool] | None = None
    check: Callable[[LedgerState], tuple[str, ...]] | None = None
    compile_check: (
        Callable[[LedgerState, Sequence[Trial], Sequence[Trial]], tuple[Event, ...]] | None
    ) = None
    read: Callable[[LedgerState], tuple[Event, ...]] | None = None
    prepare: Callable[[Cell], None] | None = None
    command: str = ""
    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic

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

    def secrets_of(self, cell: Cell, profile: Profile) -> frozenset[str]:
        """Return the values that no text about a trial may show."""
        return secrets_in(cell, [profile]) | self.hidden

    def whole(self, trial: Trial) -> Trial:
        """Return a trial of the ledger with the secrets of its profile, which the ledger lacks."""
        found = trial.profile.with_secrets_of(self.profiles)
        return trial if found == trial.profile else msgspec.structs.replace(trial, profile=found)

    def picks_nodes(self, cell: Cell) -> bool:
        """Whether the scheduler picks a cell's nodes; those of its first trial then stay its."""
        return self.resources.nodes > 0 and not cell.nodelist

    def request_for(self, trial: Trial, number: int, state: LedgerState) -> Request:
        """Return what an attempt is submitted with; each cell asks for its own nodes."""
        cell, resources = self.cell_of(trial, state), self.resources
        if len(self.cells) > 1 and cell.nodelist:
            resources = msgspec.structs.replace(resources, nodes=len(cell.nodelist))
        more_s = trial.deadline_s - trial.protocol.deadline_s
        if more_s > 0:  # of a rotation
            limit_s = resources.time_limit_s + more_s
            resources = msgspec.structs.replace(resources, time_limit_s=limit_s)
        return request_for(
            trial,
            number,
            run=state.run,
            folder=self.folder,
            nodelist=state.nodes_of(cell),
            resources=resources,
        )


def by_digest(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Return cells as a `Setup` takes them."""
    return {cell.digest: cell for cell in cells}
