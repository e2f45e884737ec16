"""Whether a sweep finds what its plan says that it finds with 80 % power, selection included.

    python benchmarks/sweep_power.py --sweeps 1000 [--write docs/reference/error_rates.md]

Profiles whose effect is what `Plan.from_start80` says, on simulated clusters, through the
production code: one of them among profiles that do nothing, and three of them.
"""

from __future__ import annotations

import math
import sys

import pages
from simcluster import World, sweep

from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.stats.design import Plan, plan

PART = "sweep power"  # of the page
JOB, STEP, PHI, STEPS = 0.006, 0.005, 0.5, 10
# of a score: that of the job, and what ten steps leave of that of correlated steps
SIGMA = math.hypot(JOB, STEP * math.sqrt((1 + PHI) / (1 - PHI) / STEPS))
SWEEPS = ((25, 50), (40, 65), (25, 40))  # profiles, jobs
COLUMNS = pages.cells(
    "profiles | jobs | arms of each block | a finalist is found at | one winner is found at "
    "| measured there: one | three"
)


def power(layout: Plan, effect: float, *, winners: int, sweeps: int) -> str:
    """Return the share of winners that are FASTER, with its Monte-Carlo error, in percent."""
    world = World(
        name="", profiles=layout.profiles, budget=layout.jobs, effects=(effect,) * winners
    )
    found = 0
    for seed in range(sweeps):
        conclusion, _ = sweep(world, seed)
        found += sum(
            each.kind is VerdictKind.FASTER and world.truth_of(each.arm) > 0
            for each in conclusion.verdicts
        )
    return pages.share(found, winners * sweeps)


def row(profiles: int, jobs: int, sweeps: int) -> str:
    """Return a line of the table, in percent."""
    layout = plan(profiles, jobs)
    if not isinstance(layout, Plan):
        raise SystemExit(f"{profiles} profiles in {jobs} jobs: {layout.why}")
    effect = layout.from_start80(SIGMA)
    cells = (
        str(profiles),
        str(jobs),
        ", ".join(map(str, layout.widths)),
        f"+{100 * layout.mde80(SIGMA):.2f}",
        f"+{100 * effect:.2f}",
        *(power(layout, effect, winners=each, sweeps=sweeps) for each in (1, 3)),
    )
    print(pages.line(cells), file=sys.stderr, flush=True)
    return pages.line(cells)


def main() -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--sweeps", type=int, default=1000, help="sweeps of every world")
    options = parser.parse_args()
    lines = [*pages.head(COLUMNS), *(row(*each, options.sweeps) for each in SWEEPS)]
    pages.publish("\n".join(lines), options.write, PART)


if __name__ == "__main__":
    main()
