"""Whether a sweep finds what its plan says that it finds with 80 % power, selection included.

    python benchmarks/sweep_power.py [--write docs/reference/error_rates.md]

Profiles whose effect is what `Plan.from_start80` says, on simulated clusters, through the
production code: one of them among profiles that do nothing, and three of them.
"""

from __future__ import annotations

import math

import pages
import simcluster

from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.stats.design import Plan, plan

JOB, STEP, PHI, STEPS = 0.006, 0.005, 0.5, 10
# of a score: that of the job, and what ten steps leave of that of correlated steps
SIGMA = math.hypot(JOB, STEP * math.sqrt((1 + PHI) / (1 - PHI) / STEPS))
World = tuple[int, int, int]  # profiles, jobs, node slots
SWEEPS: tuple[World, ...] = ((25, 50, 1), (40, 65, 1), (25, 40, 1), (25, 50, 8))
COLUMNS = pages.cells(
    "profiles | jobs | node slots | sweeps | arms of each block | a finalist is found at | "
    "one winner is found at | measured there: one | three"
)


def layout_of(world: World) -> Plan:
    """Return the plan of a sweep."""
    profiles, jobs, slots = world
    layout = plan(profiles, jobs, slots=slots)
    if not isinstance(layout, Plan):
        raise SystemExit(f"{profiles} profiles in {jobs} jobs: {layout.why}")
    return layout


def simulate(world: World, seed: int) -> list[int]:
    """Return how many winners a sweep with one of them finds, and one with three."""
    profiles, jobs, slots = world
    effect = layout_of(world).from_start80(SIGMA)
    found = []
    for winners in (1, 3):
        truth = simcluster.World(
            name="",
            profiles=profiles,
            budget=jobs,
            node_slots=slots,
            effects=(effect,) * winners,
        )
        conclusion, _ = simcluster.sweep(truth, seed)
        faster = [v.arm for v in conclusion.verdicts if v.kind is VerdictKind.FASTER]
        found.append(sum(truth.truth_of(arm) > 0 for arm in faster))
    return found


def row(world: World, results: list[list[int]]) -> list[str]:
    """Return the other cells of a row, in percent."""
    layout, sweeps = layout_of(world), len(results)
    one, three = (sum(found) for found in zip(*results, strict=True))
    return [
        ", ".join(map(str, layout.widths)),
        f"+{100 * layout.mde80(SIGMA):.2f}",
        f"+{100 * layout.from_start80(SIGMA):.2f}",
        pages.share(one, sweeps),
        pages.share(three, 3 * sweeps),
    ]


TABLE = pages.Table(
    part="sweep power",
    columns=COLUMNS,
    worlds=SWEEPS,
    label=lambda world: tuple(map(str, world)),
    simulate=simulate,
    row=row,
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
