"""The turns of one rotation: their order, their step lines, and the score of each program.

The job is the experimental unit: turns give contrasts within one rotation, and no statistical test
uses them. This module must not know what a program sets, nor how rotations rank.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import StepRecord
from pytest_xlatune.model.rotation_score import (
    MeasuredTurn,
    NoTurns,
    ProgramChange,
    RotationScore,
    is_baseline,
)

if TYPE_CHECKING:
    Matrix = NDArray[np.float64]

_NO_TURN_OF_BASELINE = "the log shows {measured} of {turns:+turn}, and none of the baseline"

Item = TypeVar("Item")
# So many steps at the start of each turn do not count: a step may be logged one line late, and the
# next one warms up. In long turns, whose steps are short, one more is skipped.
SKIPPED_STEPS = 2
_LONG_TURN = 6  # a turn with so many steps or more is long


def draw_turns(programs: int, copies: int, rounds: int, rng_seed: str) -> tuple[int, ...]:
    """Return the program index of each turn; a round has one turn of each program.

    Each round is drawn anew. The copies of the baseline are spread over the round, so that it is
    measured throughout.

    Args:
        programs: number of programs, including the copies.
        copies: how many of them, from index 0, are the baseline.
        rounds: number of rounds to draw.
        rng_seed: the seed; it gives the same order on every machine.

    Raises:
        ValueError: there are fewer programs than copies, or no copy or round at all.
    """
    if not 1 <= copies <= programs or rounds < 1:
        raise ValueError(f"{programs} programs, {copies} copies and {rounds} rounds draw no order")
    return tuple(
        program
        for number in range(rounds)
        for program in _round(programs, copies, f"{rng_seed} {number}")
    )


def shuffled(items: Sequence[Item], rng_seed: str) -> list[Item]:
    """Return the items in a random order that is the same on every machine."""
    keys = {at: digest([rng_seed, at]) for at in range(len(items))}
    return [items[at] for at in sorted(keys, key=keys.__getitem__)]


def _round(programs: int, copies: int, rng_seed: str) -> list[int]:
    """Return a random order of all programs with the copies in equal parts of the round."""
    baselines = shuffled(range(copies), f"copies {rng_seed}")
    others = shuffled(range(copies, programs), f"others {rng_seed}")
    order: list[int] = []
    for at, copy in enumerate(baselines):
        part = others[at * len(others) // copies : (at + 1) * len(others) // copies]
        place = int(digest([rng_seed, at]), 16) % (len(part) + 1)
        order += [*part[:place], copy, *part[place:]]
    return order


def read_turns(
    started: Sequence[tuple[str, int, int]],
    steps: Iterable[StepRecord],
    *,
    programs: int,
    skipped: int = SKIPPED_STEPS,
    left_out: Collection[int] = (),
) -> tuple[MeasuredTurn, ...] | NoTurns:
    """Return the turns as the trainer's step lines show them.

    The level of a turn is the median of its steps, without steps more than a fifth off the level of
    their program: on a GPU, a stall of the host affected 16 of 420 turns. A turn counts if two or
    more steps are left, even if it was cut short. The first turn of a program counts too, although
    a GPU then records its graphs, and steps of 27 ms on an H200 are printed as 3, 2, 27 and 90 ms.

    Args:
        started: (program, id of the first step, number of steps) of each turn that began, in order.
        steps: all step records of the log, of which one start of the trainer is used.
        programs: how many programs take a turn in a round.
        skipped: how many steps at the beginning of each turn do not count.
        left_out: ids of steps during which something else happened, e.g. a checkpoint.
    """
    seconds = {
        record.step: record.step_s
        for record in steps
        if record.kind == "step" and record.step_s is not None and 0 < record.step_s < math.inf
    }
    seconds_by_turn: list[list[float]] = []
    seconds_by_program: defaultdict[str, list[float]] = defaultdict(list)
    for program, first, count in started:
        first_counted = first + skipped
        if count >= _LONG_TURN:
            first_counted += 1
        counted_steps = range(first_counted, first + count)
        turn_s = [
            seconds[step] for step in counted_steps if step in seconds and step not in left_out
        ]
        seconds_by_turn.append(turn_s)
        seconds_by_program[program] += turn_s
    level = {program: median(steps_s) for program, steps_s in seconds_by_program.items() if steps_s}
    measured, before = [], ""
    for at, ((program, first, _), turn_s) in enumerate(zip(started, seconds_by_turn, strict=True)):
        usual_s = [step_s for step_s in turn_s if abs(step_s / level[program] - 1) <= _STALLED]
        if len(usual_s) >= _LEAST_STEPS:
            measured.append(
                MeasuredTurn(
                    program=program,
                    before=before,
                    round=at // max(programs, 1),
                    first_step=first,
                    steps=len(usual_s),
                    log_step_s=math.log(median(usual_s)),
                )
            )
        before = program
    if not started:
        return NoTurns(reason=say("no turn began"))
    if not any(is_baseline(turn.program) for turn in measured):
        return NoTurns(reason=say(_NO_TURN_OF_BASELINE, turns=len(started), measured=len(measured)))
    return tuple(measured)


_LEAST_STEPS = 2  # a turn with fewer steps does not count
_STALLED = 0.2  # a step off by more than this share of the usual time has stalled
_RIDGE = 1.0  # weight of the prior that programs have no carry-over, in turns
_HUBER = 1.345  # as in `stats/blocks.py`
_ITERATIONS = 4  # how often the weights are computed anew
_TINY = 1e-12  # avoids a division by zero


def fit_turns(
    turns: Sequence[MeasuredTurn], *, tokens: float | None = None
) -> RotationScore | NoTurns:
    """Fit the turns of one rotation: each program against the mean of the baseline's copies.

    This is least squares over program, round, drift within the rotation, and the program before,
    with less weight for outliers (P. J. Huber, Annals of Mathematical Statistics 35, 1964). The
    carry-over of each program onto the next turn is shrunk towards 0 (a ridge of one turn). Without
    a term for carry-over, a profile that slows the next turn by 2 % would win by 0.2 %, because it
    hardly ever follows itself.

    Args:
        turns: the turns of one rotation, in order.
        tokens: tokens of a device in a step; None if unknown.
    """
    names = list(dict.fromkeys(turn.program for turn in turns))
    names.sort(key=lambda name: (not is_baseline(name), name if is_baseline(name) else ""))
    copies = sum(map(is_baseline, names))
    if not copies:
        return NoTurns(reason=say(_NO_TURN_OF_BASELINE, turns=len(turns), measured=len(turns)))
    design, ridge = _design(turns, names)
    speeds = np.array([-turn.log_step_s for turn in turns])
    centre = float(np.median(speeds))
    effects, covariance, sd = _weighted(design, speeds - centre, ridge)
    mean = np.zeros(len(effects))
    mean[:copies] = 1 / copies
    counts = Counter(turn.program for turn in turns)
    changes = []
    for at, name in enumerate(names):
        contrast = -mean
        contrast[at] += 1
        variance = max(float(contrast @ covariance @ contrast), 0.0)
        changes.append(
            ProgramChange(
                program=name,
                change=float(contrast @ effects),
                error=None if sd is None else sd * math.sqrt(variance),
                turns=counts[name],
            )
        )
    other_effects = design[:, len(names) :] @ effects[len(names) :]
    return RotationScore(
        level=centre + float(mean @ effects) + float(other_effects.mean()),
        programs=tuple(changes),
        turns=tuple(turns),
        tokens=tokens,
    )


def _design(turns: Sequence[MeasuredTurn], names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Return one row for each turn, and the ridge of each column.

    The columns are programs, rounds after the first, slope, and carry-over from each program.
    Copies of the baseline share one column of carry-over.
    """

    def carrier(turn: MeasuredTurn) -> str:
        """Return the program before a turn, whichever copy of the baseline it was; "" if none."""
        return BASELINE_ID if is_baseline(turn.before) else turn.before

    rounds = sorted({turn.round for turn in turns})[1:]
    carriers = sorted({carrier(turn) for turn in turns if turn.before})
    program_columns = {name: at for at, name in enumerate(names)}
    round_columns = {number: len(names) + at for at, number in enumerate(rounds)}
    slope = len(names) + len(rounds)
    carrier_columns = {name: slope + 1 + at for at, name in enumerate(carriers)}
    design = np.zeros((len(turns), slope + 1 + len(carriers)))
    for at, turn in enumerate(turns):
        design[at, program_columns[turn.program]] = 1.0
        design[at, slope] = at / len(turns) - 0.5
        if turn.round in round_columns:
            design[at, round_columns[turn.round]] = 1.0
        if turn.before:
            design[at, carrier_columns[carrier(turn)]] = 1.0
    ridge = np.full(design.shape[1], 1e-6)  # one round alone does not determine the slope
    ridge[slope + 1 :] = _RIDGE
    return design, ridge


def _weighted(design: Matrix, values: Matrix, ridge: Matrix) -> tuple[Matrix, Matrix, float | None]:
    """Return effects, their covariance in units of a turn's variance, and a turn's deviation.

    The last is the standard deviation of a turn's level; None without degrees of freedom.
    """
    weights = np.ones(len(values))
    sd: float | None = None
    for _ in range(_ITERATIONS):
        normal = design.T @ (design * weights[:, None])
        covariance: Matrix = np.linalg.inv(normal + np.diag(ridge)).astype(np.float64)
        effects = covariance @ (design.T @ (weights * values))
        residuals = values - design @ effects
        df = len(values) - float(np.trace(covariance @ normal))
        if df < 1:
            return effects, covariance, None
        sd = math.sqrt(float((weights * residuals) @ residuals) / df)
        distances = np.abs(residuals)
        spread = 1.4826 * float(np.median(distances)) * math.sqrt(len(values) / df)
        weights = np.minimum(1.0, _HUBER * max(spread, _TINY) / np.maximum(distances, _TINY))
    return effects, covariance, sd
