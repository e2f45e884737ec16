"""What node slots cost and gain: wall time, node-hours, false winners and power by simulation.

    python benchmarks/slot_rates.py --sweeps 1000 --jobs 2 [--write docs/reference/error_rates.md]
    python benchmarks/slot_rates.py --only "three at +2 %" [--write ...]    # its rows
    python benchmarks/slot_rates.py --sweeps 300 --named

Every sweep goes through study.decide and stats.score. Trials are of equal length;
wall time is counted in trials that follow one another, node-hours in trials. Job noise is 0.6 %,
the drift 1 % over the time of 50 trials one after the other. Eight slots are measured with 65 and
with 50 trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import fmean

import pages
from simcluster import Cluster, World, drive, study_of
from simworlds import NULL, ONE, THREE

from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.stats.design import Plan, plan

SLOTS, BUDGET = 8, 65  # 1.3 times the jobs of one slot
FEW = 50  # as many as one slot has: the default
COLUMNS = pages.cells(
    "slots, spread | trials | profiles | sweeps | wall time | node-hours | false winner | "
    "power | told"
)
WORLDS = (NULL, ONE, replace(THREE, name="three at +2 %"))
SPREADS = (0.0, 0.005, 0.010)
PART = "node slots"


def measure(world: World, seeds: range) -> Counter[str]:
    """Run the sweeps of these seeds and count."""
    found: Counter[str] = Counter()
    for seed in seeds:
        cluster = Cluster(world, seed)
        conclusion, history = drive(study_of(world, seed), cluster, seed)
        found["sweeps"] += 1
        found["jobs"] += len(history)
        found["rounds"] += cluster.rounds or len(history)
        won = [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER]
        found["found"] += sum(world.truth_of(each) > 0 for each in won)
        found["false"] += any(world.truth_of(each) <= 0 for each in won)
        found["slower"] += any(
            each.text
            == (
                "slot {slot} ({nodes}) is slower than the others by {loss:size}, more than "
                "noise explains; no comparison rests on it"
            )
            for each in conclusion.notes
        )
        found["winners"] += len(world.effects)
    return found


def main() -> None:
    """Print the table, and write its rows."""
    parser = pages.parser(__doc__)
    parser.add_argument("--sweeps", type=int, default=300, help="of each row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    parser.add_argument("--named", action="store_true", help="at the effect that a plan names")
    options = parser.parse_args()
    if options.write and options.named:
        parser.error("--write is for the table of slots")
    lines = pages.head(COLUMNS)
    chunks = pages.chunks(options.sweeps, size=25)
    with ProcessPoolExecutor(options.jobs) as pool:

        def told(world: World, one: Counter[str] | None = None) -> Counter[str]:
            """Measure a world and tell its row, beside that of one slot."""
            found: Counter[str] = Counter()
            for part in pool.map(partial(measure, world), chunks):
                found.update(part)
            lines.append(_row(world, found, one or found))
            return found

        for base in () if options.named else WORLDS:
            if options.only in base.name:
                one = told(base)
                for jobs in (BUDGET, FEW):
                    for spread in SPREADS:
                        told(replace(base, node_slots=SLOTS, slot_sd=spread, budget=jobs), one)
        for world in named() if options.named else ():
            told(world)
    if options.write:
        lines = merged(pages.part(options.write, PART), lines).splitlines()
    pages.publish("\n".join(lines), options.write, PART)


def merged(page: str, lines: Sequence[str]) -> str:
    """Return the table of a page with the rows that were measured anew; the others stay."""
    rows = pages.rows(page, 3) | pages.rows("\n".join(lines), 3)
    names = [each.name for each in WORLDS]

    def place(key: tuple[str, ...]) -> tuple[int, bool, int, str]:
        where, trials, world = key
        return names.index(world), where != "one", -int(trials), where

    return "\n".join([*lines[:2], *(rows[key] for key in sorted(rows, key=place))])


def named() -> tuple[World, ...]:
    """Return worlds with one winner, of the size that a plan says it finds with 80 % power."""
    quiet = replace(NULL, drift="none")
    seen = [drive(study_of(quiet, at), Cluster(quiet, at), at)[0].tuning.sigma for at in range(40)]
    sigma = math.sqrt(fmean(each**2 for each in seen if each is not None))
    found = []
    for many, jobs in ((1, ONE.budget), (SLOTS, ONE.budget), (SLOTS, BUDGET)):
        layout = plan(ONE.profiles, jobs, slots=many)
        if isinstance(layout, Plan):
            effect = layout.from_start80(sigma)
            name = f"one at +{100 * effect:.2f} %, {jobs} jobs"
            world = replace(ONE, name=name, effects=(effect,), node_slots=many, budget=jobs)
            found.append(world)
    return tuple(found)


def _row(world: World, found: Counter[str], one: Counter[str]) -> str:
    slots = world.node_slots
    cells = (
        "one" if slots == 1 else f"{slots}, {100 * world.slot_sd:g} %",
        str(world.budget),
        world.name,
        str(found["sweeps"]),
        f"{found['rounds'] / one['rounds']:.2f}",
        f"{found['jobs'] / one['jobs']:.2f}",
        pages.share(found["false"], found["sweeps"]),
        pages.share(found["found"], found["winners"]),
        "-" if slots == 1 else pages.share(found["slower"], found["sweeps"]),
    )
    return pages.line(cells)


if __name__ == "__main__":
    main()
