"""What the figures of a cell, or of several that a study compares, rest on, by a ledger alone.

The environment that trials told of, what changed between two of them, the commands, the random
seed, the time and the node-hours. Every document, JSON text and junit case has the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from msgspec.structs import replace

from pytest_xlatune.ledger import EpochCause
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import JobHours, NodeEnvironment, RunRecord, differing
from pytest_xlatune.model.profile import effective_values, parse_flags
from pytest_xlatune.model.record import split_pairs
from pytest_xlatune.model.result import relative
from pytest_xlatune.model.text import size
from pytest_xlatune.model.trial import AUTOTUNE_PINS
from pytest_xlatune.stats.noise import two_groups
from pytest_xlatune.studies import Study

_HOUR_S = 3600.0


def record_of_study(state: LedgerState, study: Study) -> RunRecord:
    """Return the record of all cells of a study that were tried, or of its first before any was.

    A study may have cells that it never tries, e.g. sizes that are too large.
    """
    tried = {
        progress.trial.cell_digest for progress in state.trials.values()
    } | state.environments.keys()
    own = {cell.digest: cell for cell in study.cells if cell.digest in tried}
    return record_of(state, study, *(own.values() or study.cells[:1]))


def record_of(state: LedgerState, study: Study, *cells: Cell) -> RunRecord:
    """Return the record of cells together, as far as trials have told of them.

    `cells` are named by their identity as the study has it: the cell on each node slot, those that
    a study compares, or one.
    """
    digests = {cell.digest: None for cell in cells}
    told = _told(state, cells)
    nodes = _as_one(told)
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
    # where JAX was not asked, what the driver shows has to do
    platforms = (
        environment.devices.get("platform") or ("gpu" if environment.node.get("GPUs") else "")
        for environment in nodes
    )
    platform = next(filter(None, platforms), "")
    autotuning = "; ".join(
        filter(None, dict.fromkeys(_autotuning(cell, platform=platform) for cell in cells))
    )
    commands = dict.fromkeys(opening.command for opening in state.opened if opening.command)
    return RunRecord(
        nodes=nodes,
        changes=tuple(
            dict.fromkeys(
                epoch.why
                for epoch in state.epochs
                if epoch.cause is EpochCause.CHANGED and epoch.cell_digest in digests
            )
        ),
        differing=tuple(dict.fromkeys(said for each in told for said in differing(each))),
        image=", ".join(filter(None, dict.fromkeys(cell.image for cell in cells))),
        commands=tuple(commands),
        seed=study.seed,
        started_s=min((start for start, _, _ in timed), default=None),
        ended_s=max((end for _, end, _ in timed), default=None),
        node_hours=sum(max(end - start, 0.0) * count for start, end, count in timed) / _HOUR_S
        if timed
        else None,
        job_hours=_job_hours(state, digests) if timed else None,
        autotuning=autotuning,
        is_rebuilt=state.is_rebuilt,
        compiling=_compiling(state, cells[0], digests),
        two_speeds=tuple(_two_speeds(state, study, digests, autotuning)),
    )


def _told(state: LedgerState, cells: Iterable[Cell]) -> list[tuple[NodeEnvironment, ...]]:
    """Return the environment of each node, together for cells that differ in their nodes alone."""
    by_kind: dict[str, dict[str, NodeEnvironment]] = {}
    for cell in cells:
        for node in state.environments.get(cell.digest, ()):
            own = by_kind.setdefault(replace(cell, nodelist=()).digest, {})
            own[node.name] = node.after(own.get(node.name))
    return [tuple(each.values()) for each in by_kind.values()]


def _as_one(told: Sequence[tuple[NodeEnvironment, ...]]) -> tuple[NodeEnvironment, ...]:
    """Return each node once, with the code alone that all kinds of cells have in common."""
    merged: dict[str, NodeEnvironment] = {}
    for node in (environment for nodes in told for environment in nodes):
        merged[node.name] = node.after(merged.get(node.name))
    if len(told) > 1:
        everywhere = [environment for nodes in told for environment in nodes]
        code = _common([environment.code for environment in everywhere])
        repositories = _common([environment.repositories for environment in everywhere])
        for name, node in merged.items():
            merged[name] = replace(node, code=code, repositories=repositories)
    return tuple(merged.values())


def _common(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what all tables say alike; one that is empty says nothing."""
    first, *others = [table for table in tables if table] or [{}]
    return {
        name: said for name, said in first.items() if all(each.get(name) == said for each in others)
    }


def _job_hours(state: LedgerState, digests: Collection[str]) -> JobHours:
    """Add up how the attempts of a cell spent their time.

    A usual step is the median of those behind the first. What the first takes beyond it is
    compilation where the trainer compiles in it; a trainer that compiles before its first step
    does so outside of the steps. A rotation tells what it compiles, and its steps by their turns.
    """
    queue_s = outside_s = first_s = steps_s = unscored_s = 0.0
    for progress in state.trials.values():
        if progress.trial.cell_digest not in digests:
            continue
        last = max(progress.attempts, default=0)
        for number, attempt in progress.attempts.items():
            outcome = attempt.outcome
            if outcome is None or outcome.start_s is None:
                continue
            if attempt.submitted_s is not None:
                queue_s += max(outcome.start_s - attempt.submitted_s, 0.0)
            if outcome.end_s is None:
                continue
            ran_s = max(outcome.end_s - outcome.start_s, 0.0)
            score = progress.ended.score if progress.ended and number == last else None
            took_s = [seconds for _, seconds in score.timings] if score else []
            rotated = progress.ended.rotation if progress.ended and number == last else None
            if took_s:
                more_s = max(took_s[0] - median(took_s[1:] or took_s), 0.0)
                own_s = math.fsum(took_s) - more_s
            elif rotated and rotated.score and rotated.read:
                more_s = math.fsum(program.compile_s for program in rotated.read.compiled)
                own_s = fmean(math.exp(turn.log_step_s) for turn in rotated.score.turns)
                own_s *= rotated.read.calls or math.fsum(turn.calls for turn in rotated.read.turns)
            else:
                unscored_s += ran_s
                continue
            first_s += more_s
            steps_s += own_s
            outside_s += max(ran_s - own_s - more_s, 0.0)
    return JobHours(
        queue_h=queue_s / _HOUR_S,
        outside_h=outside_s / _HOUR_S,
        first_step_h=first_s / _HOUR_S,
        steps_h=steps_s / _HOUR_S,
        unscored_h=unscored_s / _HOUR_S,
    )


_NO_COMPILATION_S = 0.05  # the header would say 0.0 s


def _compiling(state: LedgerState, cell: Cell, digests: Collection[str]) -> str:
    """Say what the first steps of an arm cost in its first trial on its nodes, and in later ones.

    A later one that is much cheaper loaded what an earlier one compiled.
    """
    by_arm: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for progress in state.trials.values():
        trial, ended = progress.trial, progress.ended
        score = ended.score if ended is not None else None
        outcome = ended.outcome if ended is not None else None
        if score is None or outcome is None or outcome.start_s is None or trial.protocol.dump:
            continue
        _, took_s = split_pairs(score.timings)
        if trial.cell_digest in digests and len(took_s) > 1:
            more_s = max(took_s[0] - median(took_s[1:]), 0.0)
            by_arm.setdefault((trial.arm, trial.cell_digest), []).append((outcome.start_s, more_s))
    runs = [[more_s for _, more_s in sorted(each)] for each in by_arm.values()]
    later = [more_s for run in runs for more_s in run[1:]]
    kept = cell.protocol.compile_cache
    where = f"; programs are kept in {kept} (compile_cache)" if kept else ""
    if not later:
        return ""
    first_s, later_s = median(run[0] for run in runs), median(later)
    if not kept and max(first_s, later_s) < _NO_COMPILATION_S:
        return ""
    return (
        f"beyond a usual step, the first step took {first_s:.1f} s in the first trial of an arm on "
        f"its nodes ({len(runs)}) and {later_s:.1f} s in later ones ({len(later)}){where}"
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


def _two_speeds(
    state: LedgerState, study: Study, digests: Collection[str], autotuning: str
) -> Iterator[str]:
    """Yield the arms whose runs fall in two groups, and what may have parted them."""
    scores: dict[tuple[str, int, str], list[float]] = {}
    for result in state.history(study.name):
        own = result.trial.cell_digest
        if result.score is not None and own in digests:
            scores.setdefault((result.trial.arm, result.epoch, own), []).append(result.score.value)
    for (arm, _, _), values in scores.items():
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
