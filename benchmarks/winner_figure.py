"""What is told of a winner, against the truth: the error of its figure, and what its ends hold.

    python benchmarks/winner_figure.py --sweeps 1000 [--write docs/reference/error_rates.md]

Sweeps of 25 profiles in 50 jobs with weak effects, through the production code. Of each sweep with
a winner the recommended one counts: the best of several, whose figure is rather too large.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pages
from simcluster import World, sweep

from pytest_xlatune.model.result import Verdict, VerdictKind

PART = "winner"  # of the page
SPREAD = 0.007  # of the effects of all profiles, as log ratios
COLUMNS = pages.cells(
    "effects | job noise, % | sweeps | with a winner | figure too high by | likely too high "
    "by | mean error | of likely | 95 % interval holds, % | its width | likely's holds, % | "
    "its width"
)
WORLDS = [
    (name, noise) for name in ("N(0, 0.7 %)", "three at +1 %", "three at +2 %")
    for noise in (0.006, 0.010)
]  # fmt: skip


def world(name: str, noise: float, seed: int) -> World:
    """Return the world of one sweep."""
    if name.startswith("three"):
        return World(name=name, sigma_job=noise, effects=(0.01 * int(name.split("+")[1][0]),) * 3)
    drawn = np.random.default_rng([seed, 4711]).normal(0, SPREAD, 25)
    return World(name=name, sigma_job=noise, effects=tuple(map(math.expm1, drawn.tolist())))


def share(holds: Sequence[bool]) -> str:
    """Return how many hold, with the Monte-Carlo error, in percent."""
    return pages.rate(fmean(holds), len(holds))


def row(name: str, noise: float, sweeps: int) -> str:
    """Return a row of the table."""
    told: list[tuple[float, Verdict]] = []
    for seed in range(sweeps):
        own = world(name, noise, seed)
        verdicts = sweep(own, seed)[0].verdicts
        found = next((each for each in verdicts if each.kind is VerdictKind.FASTER), None)
        if found is not None:
            told.append((own.truth_of(found.arm), found))
    # a change that small effects do not explain has no likely figure
    small = [(truth, each) for truth, each in told if each.likely is not None]
    likely = [(truth, *(each.likely or ())) for truth, each in small]
    ends = [(truth, *(each.ci95 or (math.nan, math.nan))) for truth, each in told]
    off = [(each.delta or 0.0) - truth for truth, each in told]
    off_likely = [mean - truth for truth, mean, *_ in likely]
    cells = (
        name,
        f"{100 * noise:.1f}",
        str(sweeps),
        str(len(told)),
        *(f"{100 * fmean(each):+.2f}" for each in (off, off_likely)),
        *(f"{100 * fmean(map(abs, each)):.2f}" for each in (off, off_likely)),
        share([low <= truth <= high for truth, low, high in ends]),
        f"{100 * fmean(high - low for _, low, high in ends):.2f}",
        share([low <= truth <= high for truth, _, low, high in likely]),
        f"{100 * fmean(high - low for _, _, low, high in likely):.2f}",
    )
    print(pages.line(cells), file=sys.stderr, flush=True)
    return pages.line(cells)


def main() -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--sweeps", type=int, default=1000, help="sweeps of every row")
    options = parser.parse_args()
    lines = [*pages.head(COLUMNS), *(row(*each, options.sweeps) for each in WORLDS)]
    pages.publish("\n".join(lines), options.write, PART)


if __name__ == "__main__":
    main()
