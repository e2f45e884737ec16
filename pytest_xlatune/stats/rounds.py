"""The turns of one rotation: their order, their step lines, and the score of each program.

The job is the unit: turns give contrasts within one rotation, and no test rests on them. This
module must not know what a program sets, nor how rotations rank.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
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

_NO_TURN_OF_BASELINE = "the log shows {told} of {turns:+turn}, and none of the baseline"

Item = TypeVar("Item")
# Skipped at the start of each turn: a step may be logged one line late, and the next one warms up.
# In long turns, whose steps are short, one more is skipped.
SKIPPED_STEPS = 2
_LONG_TURN = 6  # a turn is long from so many steps on
_TRIES = 3  # so many random orders of a round are drawn, and the most even one is taken
_BESIDE_ITSELF = 1_000_000  # cost of a program that follows itself


@lru_cache(maxsize=64)
def draw_turns(programs: int, copies: int, rounds: int, rng_seed: str) -> tuple[int, ...]:
    """Return the program index of each turn; a round has one turn of each program.

    Each round is drawn anew. The copies of the baseline are spread over the round, so that it is
    measured throughout. Swaps then balance the predecessors: each program follows each other one
    about equally often, because a program may affect the next turn (carry-over), as in the squares
    of E. J. Williams, Australian Journal of Scientific Research A 2, 1949.

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
    follows: Counter[tuple[int, int]] = Counter()
    order: list[int] = []
    for number in range(rounds):
        last = order[-1] if order else None
        tries = (
            _round(programs, copies, f"{rng_seed} {number} {attempt}") for attempt in range(_TRIES)
        )
        chosen = min(
            (_evened(candidate, copies, last, follows) for candidate in tries),
            key=lambda candidate: _cost(_pairs(candidate, last), follows),
        )
        follows.update(_pairs(chosen, last))
        order += chosen
    return tuple(order)


def shuffled(items: Sequence[Item], rng_seed: str) -> list[Item]:
    """Return the items sorted by digests: in random order, but the same everywhere."""
    keys = {at: digest([rng_seed, at]) for at in range(len(items))}
    return [items[at] for at in sorted(keys, key=keys.__getitem__)]


def _round(programs: int, copies: int, rng_seed: str) -> list[int]:
    """Return a random order of all programs with the copies in equal parts of the round."""
    names = shuffled(range(copies), f"copies {rng_seed}")
    others = shuffled(range(copies, programs), f"others {rng_seed}")
    order: list[int] = []
    for at, copy in enumerate(names):
        part = others[at * len(others) // copies : (at + 1) * len(others) // copies]
        place = int(digest([rng_seed, at]), 16) % (len(part) + 1)
        order += [*part[:place], copy, *part[place:]]
    return order


def _pairs(order: Sequence[int], last: int | None) -> list[tuple[int, int]]:
    """Return the pairs of successive programs, beginning with the last one of the round before."""
    before = [*([] if last is None else [last]), *order]
    return list(pairwise(before))


def _cost(pairs: Iterable[tuple[int, int]], follows: Counter[tuple[int, int]]) -> int:
    """Return how often the pairs have occurred before; 0 if all are new."""
    return sum(_BESIDE_ITSELF if one == other else 2 * follows[one, other] for one, other in pairs)


def _evened(
    order: list[int], copies: int, last: int | None, follows: Counter[tuple[int, int]]
) -> list[int]:
    """Return the order after all swaps that make it more even, each tried once.

    Copies are only swapped with copies, so that they stay spread.
    """
    evened, cost = list(order), _cost(_pairs(order, last), follows)

    def cost_around(*places: int) -> int:
        """Return the cost of the pairs around these places, which are all that a swap changes."""
        around = {at for place in places for at in (place, place + 1)} - {len(evened)}
        before = ((evened[at - 1] if at else last, at) for at in around)
        return _cost([(one, evened[at]) for one, at in before if one is not None], follows)

    for one in range(len(evened)):
        for other in range(one + 1, len(evened)):
            # adding up all costs for each swap took 6 s with 200 programs
            if not cost:
                return evened
            if (evened[one] < copies) != (evened[other] < copies):
                continue
            was = cost_around(one, other)
            evened[one], evened[other] = evened[other], evened[one]
            change = cost_around(one, other) - was
            if change < 0:
                cost += change
            else:
                evened[one], evened[other] = evened[other], evened[one]
    return evened


def turns_of(
    whose: Sequence[tuple[str, int, int]],
    steps: Iterable[StepRecord],
    *,
    programs: int,
    skipped: int = SKIPPED_STEPS,
    left_out: Collection[int] = (),
) -> tuple[MeasuredTurn, ...] | NoTurns:
    """Return the turns as the trainer's step lines show them.

    The level of a turn is the median of its steps, without steps more than a fifth off the level of
    their program: on a GPU, a stall of the host affected 16 of 420 turns. A turn counts if two or
    more steps are left, even if it was cut short. So does the first turn of a program, although a
    GPU then records its graphs and step lines come in a bunch (steps of 27 ms on an H200 as 3, 2,
    27 and 90 ms).

    Args:
        whose: (program, id of the first step, number of steps) of each turn, in order.
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
    kept: list[list[float]] = []
    of_program: defaultdict[str, list[float]] = defaultdict(list)
    for program, first, count in whose:
        counted_steps = range(first + skipped + (count >= _LONG_TURN), first + count)
        kept.append(
            [seconds[step] for step in counted_steps if step in seconds and step not in left_out]
        )
        of_program[program] += kept[-1]
    level = {program: median(steps_s) for program, steps_s in of_program.items() if steps_s}
    measured, before = [], ""
    for at, ((program, first, _), own_s) in enumerate(zip(whose, kept, strict=True)):
        usual_s = [step_s for step_s in own_s if abs(step_s / level[program] - 1) <= _STALLED]
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
    if not whose:
        return NoTurns(reason=say("no turn began"))
    if not any(is_baseline(turn.program) for turn in measured):
        return NoTurns(reason=say(_NO_TURN_OF_BASELINE, turns=len(whose), told=len(measured)))
    return tuple(measured)


_LEAST_STEPS = 2  # a turn with fewer steps does not count
_STALLED = 0.2  # a step off by more than this share of the usual time has stalled
_RIDGE = 1.0  # weight of the prior that programs have no carry-over, in turns
_HUBER = 1.345  # as in `stats/blocks.py`
_WEIGHED = 4  # how often the weights are iterated
_TINY = 1e-12  # avoids a division by zero


def fit_turns(
    turns: Sequence[MeasuredTurn], *, tokens: float | None = None
) -> RotationScore | NoTurns:
    """Fit the turns of one rotation: each program against the mean of the baseline's copies.

    Least squares over program, round, drift within the rotation, and the program before, with less
    weight for outliers (P. J. Huber, Annals of Mathematical Statistics 35, 1964). The carry-over of
    each program is shrunk towards 0 (a ridge of one turn). Without it, a profile that slows the
    next turn by 2 % wins by 0.2 %, because it alone never follows itself.

    Args:
        turns: the turns of one rotation, in order.
        tokens: tokens of a device in a step; None if unknown.
    """
    names = list(dict.fromkeys(turn.program for turn in turns))
    names.sort(key=lambda name: (not is_baseline(name), name if is_baseline(name) else ""))
    copies = sum(map(is_baseline, names))
    if not copies:
        return NoTurns(reason=say(_NO_TURN_OF_BASELINE, turns=len(turns), told=len(turns)))
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
    around = design[:, len(names) :] @ effects[len(names) :]
    return RotationScore(
        level=centre + float(mean @ effects) + float(around.mean()),
        programs=tuple(changes),
        turns=tuple(turns),
        tokens=tokens,
    )


def _design(turns: Sequence[MeasuredTurn], names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Return one row for each turn, and the ridge of each column.

    The columns are programs, rounds, slope and carry-over; copies of the baseline share the last.
    """
    rounds = sorted({turn.round for turn in turns})[1:]
    before = sorted({BASELINE_ID if is_baseline(b) else b for turn in turns if (b := turn.before)})
    columns = {name: at for at, name in enumerate(names)}
    of_round = {number: len(names) + at for at, number in enumerate(rounds)}
    slope = len(names) + len(rounds)
    carried = {name: slope + 1 + at for at, name in enumerate(before)}
    design = np.zeros((len(turns), slope + 1 + len(before)))
    for at, turn in enumerate(turns):
        design[at, columns[turn.program]] = 1.0
        design[at, slope] = at / len(turns) - 0.5
        if turn.round in of_round:
            design[at, of_round[turn.round]] = 1.0
        if turn.before:
            left = BASELINE_ID if is_baseline(turn.before) else turn.before
            design[at, carried[left]] = 1.0
    ridge = np.full(design.shape[1], 1e-6)  # one round alone does not determine the slope
    ridge[slope + 1 :] = _RIDGE
    return design, ridge


def _weighted(design: Matrix, values: Matrix, ridge: Matrix) -> tuple[Matrix, Matrix, float | None]:
    """Return effects, their covariance in units of a turn, and the standard deviation of a turn."""
    weights = np.ones(len(values))
    sd: float | None = None
    for _ in range(_WEIGHED):
        square = design.T @ (design * weights[:, None])
        covariance: Matrix = np.linalg.inv(square + np.diag(ridge)).astype(np.float64)
        effects = covariance @ (design.T @ (weights * values))
        off = values - design @ effects
        df = len(values) - float(np.trace(covariance @ square))
        if df < 1:
            return effects, covariance, None
        sd = math.sqrt(float((weights * off) @ off) / df)
        spread = 1.4826 * float(np.median(np.abs(off))) * math.sqrt(len(values) / df)
        weights = np.minimum(1.0, _HUBER * max(spread, _TINY) / np.maximum(np.abs(off), _TINY))
    return effects, covariance, sd
