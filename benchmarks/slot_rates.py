"""What node slots cost and gain: wall time, node-hours, false winners and power by simulation.

    python benchmarks/slot_rates.py --jobs 2 [--write docs/reference/error_rates.md]

Every sweep goes through study.decide and stats.score. Trials are of equal length;
wall time is counted in trials that follow one another, node-hours in trials. Job noise is 0.6 %,
the drift 1 % over the time of 50 trials one after the other. Eight slots are measured with 65 and
with 50 trials.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pages
from simcluster import Cluster, World, drive, study_of
from simworlds import NULL, ONE, THREE

from pytest_xlatune.model.result import VerdictKind

SLOTS = 8
MORE = 65  # 1.3 times the jobs of one slot
FEW = 50  # as many as one slot has: the default
COLUMNS = pages.cells(
    "slots, spread | trials | profiles | sweeps | wall time | node-hours | false winner | "
    "power | told"
)
SPREADS = (0.0, 0.005, 0.010)
SLOWER = "slot {slot} ({nodes}) is slower than the others"  # how the note begins


def simulate(world: World, seed: int) -> Counter[str]:
    """Run one sweep and count."""
    cluster = Cluster(world, seed)
    conclusion, history = drive(study_of(world, seed), cluster, seed)
    faster = [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER]
    return Counter(
        jobs=len(history),
        rounds=cluster.rounds or len(history),
        found=sum(world.truth_of(arm) > 0 for arm in faster),
        false=any(world.truth_of(arm) <= 0 for arm in faster),
        slower=any(note.text.startswith(SLOWER) for note in conclusion.notes),
    )


def label(world: World) -> tuple[str, ...]:
    """Return the first cells of a row."""
    slots, spread = world.node_slots, f"{100 * world.slot_sd:g} %"
    return "one" if slots == 1 else f"{slots}, {spread}", str(world.budget), world.name


def row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row; times are those of the jobs of one slot, which all run."""
    total, sweeps = pages.total(results), len(results)
    return [
        f"{total['rounds'] / sweeps / NULL.budget:.2f}",
        f"{total['jobs'] / sweeps / NULL.budget:.2f}",
        pages.share(total["false"], sweeps),
        pages.share(total["found"], sweeps * len(world.effects)),
        "-" if world.node_slots == 1 else pages.share(total["slower"], sweeps),
    ]


TABLE = pages.Table(
    part="node slots",
    columns=COLUMNS,
    worlds=tuple(
        world
        for base in (NULL, ONE, replace(THREE, name="three at +2 %"))
        for world in (
            base,
            *(
                replace(base, node_slots=SLOTS, slot_sd=spread, budget=jobs)
                for jobs in (MORE, FEW)
                for spread in SPREADS
            ),
        )
    ),
    label=label,
    simulate=simulate,
    row=row,
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
