"""How often a running job without a straggler is accused, and how often one is found.

    python benchmarks/straggler_rates.py --write docs/reference/error_rates.md

Jobs are simulated whose ranks print the seconds of 512 steps each. After each window of 16 steps
the code that `xlatune steps` runs looks at the lines so far: 31 looks a job, and one
accusation in any of them counts. `every step waits` is a job of collectives: each step of every
rank is as long as that of the slowest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pages

from pytest_xlatune.stats.stragglers import WINDOW, WINDOWS, watched

PART = "stragglers"  # of the page
STEPS = 512
STEP_S = 0.5
RANKS = (4, 8)
SLOW = (0.0, 0.05, 0.10)
MOST = 0.02  # of jobs without a straggler may have an accusation

Noise = Callable[[np.random.Generator, int], np.ndarray]


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


WORLDS: dict[str, tuple[Noise, bool]] = {
    "1 % noise, ranks differ by 0.5 %": (lasting, False),
    "AR(1), phi 0.95": (wandering, False),
    "heavy tails, a checkpoint": (pauses, False),
    "1 % noise, every step waits": (independent, True),
}


def accused(seed: int, *, world: str, ranks: int, slow: float) -> tuple[bool, bool]:
    """Return whether a look accused a healthy rank, and whether one found the slow rank."""
    rng = np.random.default_rng([seed, ranks, round(1000 * slow), len(world)])
    noise, waits = WORLDS[world]
    seconds = STEP_S * (1 + noise(rng, ranks))
    seconds *= 1 + 0.02 * rng.standard_normal(STEPS)[None, :].clip(-2, 2)  # of all ranks alike
    seconds[ranks - 1] *= 1 + slow
    if waits:
        seconds = np.broadcast_to(seconds.max(axis=0), seconds.shape)
    seconds = np.round(seconds, 3)  # as a line prints it
    is_wrong = is_found = False
    for end in range(WINDOWS * WINDOW, STEPS + 1, WINDOW):
        known = range(end - WINDOWS * WINDOW, end)
        of = {rank: {step: float(seconds[rank, step]) for step in known} for rank in range(ranks)}
        found = watched(of)
        for each in found.stragglers if found is not None else ():
            is_slow = bool(slow) and each.rank == ranks - 1
            is_found |= is_slow
            is_wrong |= not is_slow
    return is_wrong, is_found


def table(jobs: int, workers: int) -> tuple[str, float]:
    """Return the table of all worlds, and the highest rate of false alarms in it."""
    head = ["ranks", "world", "jobs", "false alarm", *(f"found, {s:.0%} slower" for s in SLOW[1:])]
    lines = pages.head(head)
    worst = 0.0
    with ProcessPoolExecutor(workers) as pool:
        for ranks in RANKS:
            for world in WORLDS:
                cells = []
                for slow in SLOW:
                    one = partial(accused, world=world, ranks=ranks, slow=slow)
                    of = [*pool.map(one, range(jobs), chunksize=10)]
                    rate = sum(each[slow > 0] for each in of) / jobs
                    worst = max(worst, rate) if not slow else worst
                    cells.append(pages.rate(rate, jobs))
                lines.append(pages.line((str(ranks), world, str(jobs), *cells)))
    return "\n".join(lines), worst


def main() -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="simulated jobs of a world")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    text, worst = table(options.jobs, options.workers)
    said = f"Highest rate of false alarms: {100 * worst:.1f} % of jobs, at most {100 * MOST:.0f} %"
    pages.publish(f"{text}\n\n{said}.", options.write, PART)
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
