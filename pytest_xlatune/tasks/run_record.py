"""What the figures of a cell rest on, from the state of its ledger alone.

The environment that trials told of, what changed between two of them, the commands, the random
seed, the time and the node-hours. Every document, JSON text and junit case has the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pytest_xlatune.ledger import EpochCause
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import RunRecord, differing
from pytest_xlatune.model.profile import effective_values, parse_flags
from pytest_xlatune.model.result import relative
from pytest_xlatune.model.text import size
from pytest_xlatune.model.trial import AUTOTUNE_PINS
from pytest_xlatune.stats.noise import two_groups
from pytest_xlatune.studies import Study

_HOUR_S = 3600.0


def record_of(state: LedgerState, study: Study, cell: Cell) -> RunRecord:
    """Return the record of a cell, as far as trials have told of it.

    `cell` is named by its identity as the study has it.
    """
    nodes = state.environments.get(cell.digest, ())
    outcomes = [
        attempt.outcome
        for progress in state.trials.values()
        if progress.trial.cell_digest == cell.digest
        for attempt in progress.attempts.values()
        if attempt.outcome is not None
    ]
    timed = [
        (each.start_s, each.end_s, max(len(each.nodes), 1))
        for each in outcomes
        if each.start_s is not None and each.end_s is not None
    ]
    # where JAX was not asked, what the driver shows has to do
    platforms = (
        each.devices.get("platform") or ("gpu" if each.node.get("GPUs") else "") for each in nodes
    )
    autotuning = _autotuning(cell, platform=next(filter(None, platforms), ""))
    seed = getattr(study, "seed", None)
    commands = dict.fromkeys(each.command for each in state.opened if each.command)
    return RunRecord(
        nodes=nodes,
        changes=tuple(
            each.reason
            for each in state.epochs
            if each.cause is EpochCause.CHANGED and each.cell_digest == cell.digest
        ),
        differing=differing(nodes),
        image=cell.image,
        commands=tuple(commands),
        seed=seed if isinstance(seed, int) else None,
        started_s=min((start for start, _, _ in timed), default=None),
        ended_s=max((end for _, end, _ in timed), default=None),
        node_hours=sum(max(end - start, 0.0) * count for start, end, count in timed) / _HOUR_S
        if timed
        else None,
        autotuning=autotuning,
        two_speeds=tuple(_two_speeds(state, study, cell, autotuning)),
    )


_LEVEL, _OFF = "xla_gpu_autotune_level", "0"


def _autotuning(cell: Cell, *, platform: str) -> str:
    """Say whether XLA's choice of GPU kernels is the same in every trial; "" without a GPU."""
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


def _two_speeds(state: LedgerState, study: Study, cell: Cell, autotuning: str) -> Iterator[str]:
    """Yield the arms whose runs fall in two groups, and what may have parted them."""
    scores: dict[tuple[str, int], list[float]] = {}
    for each in state.history(study.name):
        if each.score is not None and each.trial.cell_digest == cell.digest:
            scores.setdefault((each.trial.arm, each.epoch), []).append(each.score.value)
    for (arm, _), values in scores.items():
        found = two_groups(values)
        if found is None:
            continue
        gap, low, high = found
        cause = "; a candidate cause is autotuning, which is not pinned"
        said = cause if autotuning.startswith("not pinned") else ""
        yield f"{arm}: {low} runs and {high} runs are {size(relative(gap))} apart{said}"


def junit_text(record: RunRecord) -> str:
    """Return the record as one line of JSON, without empty fields."""
    return json.dumps({name: value for name, value in record.to_json().items() if value})
