"""What parts the scores of a cell: other nodes, or another environment on the same ones.

A trial tells what it ran on (`workers.probe_environment`); here that is compared with what the
trial before it told, and turned into the events that the ledger is to hold. Nothing is decided on
it but where an epoch begins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors.folder import DEVICES, read_environments, read_spec
from pytest_xlatune.ledger import EnvironmentSeen, EpochBegan, EpochCause, Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import NodeEnvironment, changes
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome, TrialStatus
from pytest_xlatune.model.trial import Trial

_LOG = logging.getLogger("pytest_xlatune.campaign")


def asks_devices(state: LedgerState, cell: Cell) -> bool:
    """Whether the next trial of a cell is to ask for its devices: one in each session is."""
    flying = (state.trials[submission.trial_id].trial for submission in state.in_flight())
    is_asked = cell.digest in state.asked_whole
    return not is_asked and all(trial.cell_digest != cell.digest for trial in flying)


def parted(
    state: LedgerState,
    cell: Cell,
    trial: Trial,
    outcome: Outcome,
    folder: Path,
    *,
    is_scored: bool,
    libraries: Mapping[str, str] | None = None,
    is_elsewhere: bool = False,
) -> tuple[Event, ...]:
    """Return the epochs that a trial begins, and what it tells of its environment if that is news.

    `folder` is the attempt's; `libraries` are the versions that its log tells. One that ran on
    another device, `is_elsewhere`, tells nothing of its cell.
    """
    if is_elsewhere:
        return ()
    swapped = _swapped(state, cell, outcome) if is_scored else ()
    return (*_told(state, trial, outcome, folder, libraries or {}), *swapped)


# variables by which a profile runs other packages or libraries: that is what it asks for, and no
# change between two trials
_OTHER_CODE = frozenset(
    {"PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)


def _of_cell(told: NodeEnvironment, trial: Trial, libraries: Mapping[str, str]) -> NodeEnvironment:
    """Return what a trial tells of its cell, with the libraries that its log names."""
    if not _OTHER_CODE.isdisjoint(trial.profile.env):
        return replace(told, packages={}, devices={}, code={})
    return replace(told, packages={**told.packages, **libraries}) if libraries else told


def others_ran_on(
    state: LedgerState, trial: Trial, outcome: Outcome, folder: Path, *, reference: str
) -> dict[str, Mapping[str, str]]:
    """Return where the trials ran that one is compared with, by arm, the reference's first.

    Those of its cell and epoch; without any, those of the reference in its study on the same nodes.
    Where the node itself tells of other GPUs than before, a new epoch begins, and nothing is.
    """
    nodes = sorted(outcome.nodes)
    others = (progress.ended for progress in state.trials.values() if progress.trial.id != trial.id)
    told = [
        result
        for result in others
        if result is not None and result.devices and result.status is TrialStatus.MEASURED
    ]
    if not told or _has_other_gpus(state, trial, folder):
        return {}
    epoch = state.epoch_of(trial.cell_digest, tuple(outcome.nodes))
    own = [e for e in told if e.trial.cell_digest == trial.cell_digest]
    beside = [
        result
        for result in told
        if (result.trial.arm, result.trial.study) == (reference, trial.study)
        and result.outcome is not None
        and nodes == sorted(result.outcome.nodes)
    ]
    among = [result for result in own if result.epoch == epoch] if own else beside
    found: dict[str, Mapping[str, str]] = {}
    for result in sorted(among, key=lambda each: each.trial.arm != reference):
        found[result.trial.arm] = {**result.devices, **found.get(result.trial.arm, {})}
    return found


def _has_other_gpus(state: LedgerState, trial: Trial, folder: Path) -> bool:
    """Whether files of the kernel name other GPUs than before; JAX is not asked for that."""
    before = {
        environment.name: environment.node
        for environment in state.environments.get(trial.cell_digest, ())
    }
    return any(
        environment.node.get("GPUs") != was.get("GPUs")
        for environment in read_environments(folder)
        if environment.node and (was := before.get(environment.name))
    )


def _swapped(state: LedgerState, cell: Cell, outcome: Outcome) -> tuple[EpochBegan, ...]:
    """Begin an epoch where a trial ran on other nodes than the cell's measured before it."""
    nodes, were = tuple(sorted(outcome.nodes)), state.measured_on.get(cell.digest, ())
    if not nodes or not were or nodes == were:
        return ()
    cause = EpochCause.SWAPPED
    return (EpochBegan(cause=cause, cell_digest=cell.digest, nodes=nodes, were=were),)


def _told(
    state: LedgerState,
    trial: Trial,
    outcome: Outcome,
    folder: Path,
    libraries: Mapping[str, str],
) -> tuple[Event, ...]:
    """Return what a trial tells of its environment, where that is news, and the epoch it begins."""
    told = tuple(
        _of_cell(environment, trial, libraries) for environment in read_environments(folder)
    )
    if not told:
        return ()
    digest = trial.cell_digest
    before = {environment.name: environment for environment in state.environments.get(digest, ())}
    # a node that did not answer in time is as it was, so that its next answer is held against that
    silent = before.keys() & set(outcome.nodes) - {environment.name for environment in told}
    nodes = (
        *(environment.after(before.get(environment.name)) for environment in told),
        *(before[name] for name in sorted(silent)),
    )
    spec = read_spec(folder)
    is_whole = spec is not None and spec.probe[-1:] == (DEVICES,)
    if not is_whole and {environment.name: environment for environment in nodes} == before:
        return ()
    seen = EnvironmentSeen(trial_id=trial.id, cell_digest=digest, nodes=nodes, is_whole=is_whole)
    changed = {
        environment.name: found
        for environment in told
        if environment.name in before and (found := changes(before[environment.name], environment))
    }
    if not changed:
        return (seen,)
    said = tuple(dict.fromkeys(phrase for found in changed.values() for phrase in found))
    began = EpochBegan(
        cause=EpochCause.CHANGED, cell_digest=digest, nodes=tuple(changed), changes=said
    )
    _LOG.warning("%s", sentence(began.said))
    return (seen, began)
