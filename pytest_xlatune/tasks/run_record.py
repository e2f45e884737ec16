"""Collect from the ledger how the figures of a study were measured.

This is the environment that trials reported, what changed between trials, the commands, the random
seed, the time and the node-hours. Documents and JSON texts show this record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import NodeEnvironment, RunRecord
from pytest_xlatune.model.profile import effective_values, parse_flags
from pytest_xlatune.model.trial import AUTOTUNE_PINS
from pytest_xlatune.studies import Study

_HOUR_S = 3600.0


def record_of_study(state: LedgerState, study: Study, *cells: Cell) -> RunRecord:
    """Return one record for several cells of a study, as far as trials have reported.

    `cells` are e.g. those that the study compares; without any, they are all tried cells, or the
    first cell before any trial. A study may have cells that it never tries, e.g. batch sizes that
    are too large.
    """
    if not cells:
        tried = {progress.trial.cell_digest for progress in state.trials.values()}
        tried |= state.environments.keys()
        by_digest = {cell.digest: cell for cell in study.cells if cell.digest in tried}
        cells = (*by_digest.values(),) or study.cells[:1]
    digests = {cell.digest for cell in cells}
    groups = _groups_of_nodes(state, cells)
    nodes = _merged(groups)
    outcomes = [
        attempt.outcome
        for progress in state.trials.values()
        if progress.trial.cell_digest in digests
        for attempt in progress.attempts.values()
        if attempt.outcome is not None
    ]
    timed = [
        (outcome.start_s, outcome.end_s, max(len(outcome.nodes), 1))
        for outcome in outcomes
        if outcome.start_s is not None and outcome.end_s is not None
    ]
    platform = next(filter(None, map(_platform, nodes)), "")
    autotuning_texts = dict.fromkeys(_autotuning(cell, platform=platform) for cell in cells)
    autotuning = "; ".join(filter(None, autotuning_texts))
    commands = dict.fromkeys(opening.command for opening in state.opened if opening.command)
    return RunRecord(
        nodes=nodes,
        changes=tuple(
            dict.fromkeys(epoch.why for epoch in state.epochs if epoch.cell_digest in digests)
        ),
        image=", ".join(filter(None, dict.fromkeys(cell.image for cell in cells))),
        commands=tuple(commands),
        seed=study.seed,
        started_s=min((start for start, _, _ in timed), default=None),
        ended_s=max((end for _, end, _ in timed), default=None),
        node_hours=sum(max(end - start, 0.0) * count for start, end, count in timed) / _HOUR_S
        if timed
        else None,
        autotuning=autotuning,
    )


def _platform(environment: NodeEnvironment) -> str:
    """Return the platform of a node as JAX named it; without JAX's answer, use the driver's."""
    return environment.devices.get("platform") or ("gpu" if environment.node.get("GPUs") else "")


def _groups_of_nodes(
    state: LedgerState, cells: Iterable[Cell]
) -> list[tuple[NodeEnvironment, ...]]:
    """Return the environments of nodes in groups: cells that differ only in nodes share a group."""
    by_group: dict[str, dict[str, NodeEnvironment]] = {}
    for cell in cells:
        for node in state.environments.get(cell.digest, ()):
            nodes = by_group.setdefault(replace(cell, nodelist=()).digest, {})
            nodes[node.name] = node.after(nodes.get(node.name))
    return [tuple(nodes.values()) for nodes in by_group.values()]


def _merged(groups: Sequence[tuple[NodeEnvironment, ...]]) -> tuple[NodeEnvironment, ...]:
    """Return each node once; code and repositories are those that all groups have in common."""
    merged: dict[str, NodeEnvironment] = {}
    every_node = [node for group in groups for node in group]
    for node in every_node:
        merged[node.name] = node.after(merged.get(node.name))
    if len(groups) > 1:
        code = _common([environment.code for environment in every_node])
        repositories = _common([environment.repositories for environment in every_node])
        for name, node in merged.items():
            merged[name] = replace(node, code=code, repositories=repositories)
    return tuple(merged.values())


def _common(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the entries that are equal in all tables; empty tables are ignored."""
    filled = [table for table in tables if table]
    if not filled:
        return {}
    first, *others = filled
    return {
        name: text
        for name, text in first.items()
        if all(table.get(name) == text for table in others)
    }


_LEVEL, _OFF = "xla_gpu_autotune_level", "0"


def _autotuning(cell: Cell, *, platform: str) -> str:
    """Return whether XLA chooses the same GPU kernels in each trial, in words; "" without a GPU."""
    if platform and platform not in ("gpu", "cuda", "rocm"):
        return ""
    text = cell.environment.get("XLA_FLAGS", "")
    flags = effective_values(parse_flags(text, where="the deployed XLA_FLAGS"))
    if flags.get(_LEVEL) == _OFF:
        return f"off (--{_LEVEL}=0)"
    pinned = [f"--{name}" for name in AUTOTUNE_PINS if flags.get(name)]
    if cell.protocol.autotune_cache:
        pinned.append(f"autotune_cache={cell.protocol.autotune_cache}")
    if pinned:
        return f"pinned ({', '.join(pinned)})"
    return "not pinned: each trial measured and chose its kernels anew" if platform else ""
