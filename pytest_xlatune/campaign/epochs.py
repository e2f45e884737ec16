"""Find where an epoch of a cell begins, because its nodes or their environment have changed.

A trial reports what it ran on (`workers.probe_environment`). This module compares the report with
that of the trial before, and returns the events that the ledger records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign._follow import EndedAttempt
from pytest_xlatune.executors.folder import DEVICES, read_environments, read_spec
from pytest_xlatune.ledger import EnvironmentSeen, EpochBegan, Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import NodeEnvironment, changes
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.result import Outcome, TrialStatus
from pytest_xlatune.model.trial import Trial

_LOG = logging.getLogger("pytest_xlatune.campaign")


def is_device_probe_due(state: LedgerState, cell: Cell) -> bool:
    """Return whether the next trial of a cell is to ask JAX for its devices.

    It is to do so if no trial of the cell has done so in this session, and none is in flight.
    """
    flying = (state.trials[submission.trial_id].trial for submission in state.in_flight())
    was_asked = cell.digest in state.devices_known
    return not was_asked and all(trial.cell_digest != cell.digest for trial in flying)


def epoch_events(
    state: LedgerState, attempt: EndedAttempt, folder: Path, *, is_scored: bool
) -> tuple[Event, ...]:
    """Return the epochs that a trial begins, and its environment if that has changed.

    `folder` is the folder of the attempt. A trial without a score begins no epoch by its nodes.
    """
    events = _environment_events(state, attempt, folder)
    digest, nodes = attempt.cell.digest, tuple(sorted(attempt.outcome.nodes))
    were = state.measured_on.get(digest, ())
    if not is_scored or not nodes or not were or nodes == were:
        return events
    why = say("nodes are {nodes}, were {were}", nodes=nodes, were=were)
    return (*events, EpochBegan(why=why, cell_digest=digest, nodes=nodes))


# A profile that sets one of these variables runs other packages or libraries on purpose, so what
# its trial reports about them is not the environment of the cell.
_CODE_VARIABLES = frozenset(
    {"PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)


def compared_devices(
    state: LedgerState, trial: Trial, outcome: Outcome, folder: Path, *, reference: str
) -> dict[str, Mapping[str, str]]:
    """Return arm -> witness -> device, for the trials that a trial is compared with.

    The reference comes first. The trials are those of its cell and epoch. If its cell has no other
    trial, they are those of the reference in its study on the same nodes. The result is empty if a
    node reports other GPUs than before, because a new epoch then begins.
    """
    nodes, digest = sorted(outcome.nodes), trial.cell_digest
    others = (progress.ended for progress in state.trials.values() if progress.trial.id != trial.id)
    results = [
        result
        for result in others
        if result is not None and result.devices and result.status is TrialStatus.MEASURED
    ]
    if not results or _has_other_gpus(_by_name(state, digest), folder):
        return {}
    epoch = state.epoch_of(digest, tuple(outcome.nodes))
    compared = [result for result in results if result.trial.cell_digest == digest]
    if compared:
        compared = [result for result in compared if result.epoch == epoch]
    else:
        compared = [
            result
            for result in results
            if (result.trial.arm, result.trial.study) == (reference, trial.study)
            and result.outcome is not None
            and nodes == sorted(result.outcome.nodes)
        ]
    devices_of_arm: dict[str, Mapping[str, str]] = {}
    for result in sorted(compared, key=lambda result: result.trial.arm != reference):
        arm = result.trial.arm
        devices_of_arm[arm] = {**result.devices, **devices_of_arm.get(arm, {})}
    return devices_of_arm


def _by_name(state: LedgerState, cell_digest: str) -> dict[str, NodeEnvironment]:
    return {
        environment.name: environment for environment in state.environments.get(cell_digest, ())
    }


def _has_other_gpus(before: Mapping[str, NodeEnvironment], folder: Path) -> bool:
    for environment in read_environments(folder):
        former = before.get(environment.name)
        if former is None or not former.node or not environment.node:
            continue
        if environment.node.get("GPUs") != former.node.get("GPUs"):
            return True
    return False


def _environment_of_cell(environment: NodeEnvironment, attempt: EndedAttempt) -> NodeEnvironment:
    if not _CODE_VARIABLES.isdisjoint(attempt.trial.profile.env):
        return replace(environment, packages={}, devices={}, code={})
    packages = {**environment.packages, **attempt.left.report.libraries}
    return replace(environment, packages=packages)


def _environment_events(
    state: LedgerState, attempt: EndedAttempt, folder: Path
) -> tuple[Event, ...]:
    """Return the environment of a trial if it is new, and the epoch if the environment changed."""
    trial, digest = attempt.trial, attempt.trial.cell_digest
    environments = [
        _environment_of_cell(environment, attempt) for environment in read_environments(folder)
    ]
    if not environments:
        return ()
    before = _by_name(state, digest)
    # for a node that did not answer in time, its last answer is kept for the next comparison
    answered = {environment.name for environment in environments}
    silent = before.keys() & set(attempt.outcome.nodes) - answered
    nodes = (
        *(environment.after(before.get(environment.name)) for environment in environments),
        *(before[name] for name in sorted(silent)),
    )
    spec = read_spec(folder)
    is_whole = spec is not None and spec.probe[-1:] == (DEVICES,)
    if not is_whole and {environment.name: environment for environment in nodes} == before:
        return ()
    seen = EnvironmentSeen(trial_id=trial.id, cell_digest=digest, nodes=nodes, is_whole=is_whole)
    compared = {
        environment.name: changes(before[environment.name], environment)
        for environment in environments
        if environment.name in before
    }
    differences = {name: found for name, found in compared.items() if found}
    if not differences:
        return (seen,)
    all_changes = [change for found in differences.values() for change in found]
    why = say(
        "on {nodes} changed: {changes:; }",
        nodes=[*differences],
        changes=list(dict.fromkeys(all_changes)),
    )
    began = EpochBegan(why=why, cell_digest=digest, nodes=tuple(differences))
    _LOG.warning("%s", sentence(began.remark))
    return (seen, began)
