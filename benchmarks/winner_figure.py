"""What is told of a winner, against the truth: the error of its figure, and what its ends hold.

    python benchmarks/winner_figure.py [--write docs/reference/error_rates.md]

Sweeps of 25 profiles in 50 jobs with weak effects, through the production code. Of each sweep with
a winner the recommended one counts: the best of several, whose figure is rather too large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pages
import simcluster

from pytest_xlatune.model.result import Verdict, VerdictKind

SPREAD = 0.007  # of the effects of all profiles, as log ratios
COLUMNS = pages.cells(
    "effects | job noise, % | sweeps | with a winner | figure too high by | likely too high "
    "by | mean error | of likely | 95 % interval holds, % | its width | likely's holds, % | "
    "its width"
)
World = tuple[str, float]  # the name of the effects, the noise of a job
WORLDS = tuple(itertools.product(("N(0, 0.7 %)", "three at +1 %", "three at +2 %"), (0.006, 0.010)))


def simulate(world: World, seed: int) -> tuple[float, Verdict] | None:
    """Return the true effect of what a sweep recommends, and its verdict; None without a winner."""
    name, noise = world
    if name.startswith("three"):
        effects = (0.01 * int(name.split("+")[1][0]),) * 3
    else:
        drawn = np.random.default_rng([seed, 4711]).normal(0, SPREAD, 25)
        effects = tuple(map(math.expm1, drawn.tolist()))
    truth = simcluster.World(name=name, sigma_job=noise, effects=effects)
    verdicts = simcluster.sweep(truth, seed)[0].verdicts
    winner = next((verdict for verdict in verdicts if verdict.kind is VerdictKind.FASTER), None)
    return None if winner is None else (truth.truth_of(winner.arm), winner)


def share(holds: Sequence[bool]) -> str:
    """Return how many hold, with the Monte-Carlo error, in percent."""
    return pages.rate(fmean(holds), len(holds))


def row(_: World, results: list[tuple[float, Verdict] | None]) -> list[str]:
    """Return the other cells of a row."""
    winners = [winner for winner in results if winner is not None]
    # a change that small effects do not explain has no likely figure
    small = [(truth, verdict) for truth, verdict in winners if verdict.likely is not None]
    likely = [(truth, *(verdict.likely or ())) for truth, verdict in small]
    ends = [(truth, *(verdict.ci95 or (math.nan, math.nan))) for truth, verdict in winners]
    off = [(verdict.delta or 0.0) - truth for truth, verdict in winners]
    off_likely = [mean - truth for truth, mean, *_ in likely]
    return [
        str(len(winners)),
        *(f"{100 * fmean(errors):+.2f}" for errors in (off, off_likely)),
        *(f"{100 * fmean(map(abs, errors)):.2f}" for errors in (off, off_likely)),
        share([low <= truth <= high for truth, low, high in ends]),
        f"{100 * fmean(high - low for _, low, high in ends):.2f}",
        share([low <= truth <= high for truth, _, low, high in likely]),
        f"{100 * fmean(high - low for _, _, low, high in likely):.2f}",
    ]


TABLE = pages.Table(
    part="winner",
    columns=COLUMNS,
    worlds=WORLDS,
    label=lambda world: (world[0], f"{100 * world[1]:.1f}"),
    simulate=simulate,
    row=row,
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
