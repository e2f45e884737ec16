"""How often a running job without a straggler is accused, and how often one is found.

    python benchmarks/straggler_rates.py --write docs/reference/error_rates.md

Jobs are simulated whose ranks print the seconds of 512 steps each. After each window of 16 steps
the code that `xlatune steps` runs looks at the lines so far: 31 looks a job, and one
accusation in any of them counts. `every step waits` is a job of collectives: each step of every
rank is as long as that of the slowest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pages

from pytest_xlatune.stats.stragglers import WINDOW, WINDOWS, compare_ranks

STEPS = 512
STEP_S = 0.5
RANKS = (4, 8)
SLOW = (0.0, 0.05, 0.10)
MOST = 0.02  # of jobs without a straggler may have an accusation

Noise = Callable[[np.random.Generator, int], np.ndarray]
World = tuple[int, str]  # the number of ranks, and the name of the noise


def independent(rng: np.random.Generator, ranks: int) -> np.ndarray:
    """Return 1 % noise of each step."""
    return 0.01 * rng.standard_normal((ranks, STEPS))


def lasting(rng: np.random.Generator, ranks: int) -> np.ndarray:
    """Return the same, and 0.5 % by which ranks differ for good: chips are not alike."""
    return independent(rng, ranks) + 0.005 * rng.standard_normal((ranks, 1))


def wandering(rng: np.random.Generator, ranks: int) -> np.ndarray:
    """Return AR(1) noise with phi 0.95: 0.6 % in all, and slow swings."""
    noise = np.zeros((ranks, STEPS))
    fresh = 0.002 * rng.standard_normal((ranks, STEPS))
    for step in range(1, STEPS):
        noise[:, step] = 0.95 * noise[:, step - 1] + fresh[:, step]
    return noise


def pauses(rng: np.random.Generator, ranks: int) -> np.ndarray:
    """Return heavy tails, and one rank that writes a checkpoint in each tenth step."""
    noise = 0.01 * rng.standard_t(2, (ranks, STEPS))
    noise[0, ::10] += 0.8
    return np.maximum(noise, -0.5)


NOISES: dict[str, tuple[Noise, bool]] = {
    "1 % noise, ranks differ by 0.5 %": (lasting, False),
    "AR(1), phi 0.95": (wandering, False),
    "heavy tails, a checkpoint": (pauses, False),
    "1 % noise, every step waits": (independent, True),
}


def accused(world: World, seed: int) -> list[tuple[bool, bool]]:
    """Return whether a healthy rank was accused, and the slow one found, for each slowness."""
    return [looks(world, seed, slow) for slow in SLOW]


def looks(world: World, seed: int, slow: float) -> tuple[bool, bool]:
    """Return whether a look accused a healthy rank, and whether one found the slow rank."""
    ranks, name = world
    rng = np.random.default_rng([seed, ranks, round(1000 * slow), len(name)])
    noise, waits = NOISES[name]
    seconds = STEP_S * (1 + noise(rng, ranks))
    seconds *= 1 + 0.02 * rng.standard_normal(STEPS)[None, :].clip(-2, 2)  # of all ranks alike
    seconds[ranks - 1] *= 1 + slow
    if waits:
        seconds = np.broadcast_to(seconds.max(axis=0), seconds.shape)
    seconds = np.round(seconds, 3)  # as a line prints it
    is_wrong = is_found = False
    for end in range(WINDOWS * WINDOW, STEPS + 1, WINDOW):
        steps = range(end - WINDOWS * WINDOW, end)
        by_rank = {
            rank: {step: float(seconds[rank, step]) for step in steps} for rank in range(ranks)
        }
        seen = compare_ranks(by_rank)
        for straggler in seen.stragglers if seen is not None else ():
            is_slow = bool(slow) and straggler.rank == ranks - 1
            is_found |= is_slow
            is_wrong |= not is_slow
    return is_wrong, is_found


def row(_: World, results: list[list[tuple[bool, bool]]]) -> list[str]:
    """Return the other cells of a row: false alarms, and stragglers found."""
    jobs = len(results)
    alarms = sum(is_wrong for (is_wrong, _), *_ in results)
    found = [sum(is_found for _, is_found in slow) for slow in list(zip(*results, strict=True))[1:]]
    return [
        *(pages.share(count, jobs) for count in (alarms, *found)),
        pages.MISSED if alarms > MOST * jobs else pages.OK,
    ]


TABLE = pages.Table(
    part="stragglers",
    columns=(
        "ranks",
        "world",
        "jobs",
        "false alarm",
        *(f"found, {s:.0%} slower" for s in SLOW[1:]),
        "",
    ),
    worlds=tuple(itertools.product(RANKS, NOISES)),
    label=lambda world: (str(world[0]), world[1]),
    simulate=accused,
    row=row,
    bar=("bar", "", "", f"<= {100 * MOST:.0f}", "", "", ""),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
