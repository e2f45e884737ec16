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

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import pages
from simcluster import Cluster, World, drive, study_of
from simworlds import NULL, ONE, THREE

from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.stats.design import Plan, plan

SLOTS, BUDGET = 8, 65  # 1.3 times the jobs of one slot
FEW = 50  # as many as one slot has: the default
COLUMNS = (
    "slots, spread",
    "trials",
    "profiles",
    "sweeps",
    "wall time",
    "node-hours",
    "false winner",
    "power",
    "told",
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=300, help="of each row")
    parser.add_argument("--first", type=int, default=0, help="number of the first, for others")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument(
        "--budget", type=int, default=0, help=f"trials, on several slots; {BUDGET}, then {FEW}"
    )
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    parser.add_argument("--named", action="store_true", help="at the effect that a plan names")
    parser.add_argument("--write", type=Path, help="a page with the two comments to write between")
    options = parser.parse_args()
    if options.write and options.named:
        parser.error("--write is for the table of slots")
    said = f"{options.sweeps} sweeps a row; in brackets the Monte-Carlo standard error."
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    print(said, "", *lines, sep="\n")
    end = options.first + options.sweeps
    chunks = [range(at, min(at + 25, end)) for at in range(options.first, end, 25)]
    budgets = [options.budget] if options.budget else [BUDGET] if options.named else [BUDGET, FEW]
    with ProcessPoolExecutor(options.jobs) as pool:

        def told(world: World, one: Counter[str] | None = None) -> Counter[str]:
            """Measure a world and tell its row, beside that of one slot."""
            found: Counter[str] = Counter()
            for part in pool.map(partial(measure, world), chunks):
                found.update(part)
            lines.append(_row(world, found, one or found))
            print(lines[-1], flush=True)
            return found

        if options.named:
            for world in named(options.slots, budgets[0]):
                told(world)
            return
        for base in WORLDS:
            if options.only not in base.name:
                continue
            several = [
                replace(base, node_slots=options.slots, slot_sd=spread, budget=jobs)
                for jobs in budgets
                for spread in SPREADS
            ]
            one = told(base)
            for world in several:
                told(world, one)
    if options.write and not options.first:
        pages.rewrite(options.write, merged(pages.part(options.write, PART), lines), PART)


def merged(page: str, lines: Sequence[str]) -> str:
    """Return the table of a page with the rows that were measured anew; the others stay."""
    head, rows = lines[:2], {_key(line): line for line in (*page.splitlines()[3:], *lines[2:])}
    names = [each.name for each in WORLDS]

    def place(key: tuple[str, ...]) -> tuple[int, bool, int, str]:
        where, trials, world = key
        return names.index(world), where != "one", -int(trials), where

    return "\n".join([*head, *(rows[key] for key in sorted(rows, key=place))])


def _key(line: str) -> tuple[str, ...]:
    """Return what a row is of: slots, trials, profiles."""
    return tuple(cell.strip() for cell in line.strip("|").split("|")[:3])


def named(slots: int, budget: int) -> tuple[World, ...]:
    """Return worlds with one winner, of the size that a plan says it finds with 80 % power."""
    quiet = replace(NULL, drift="none")
    seen = [drive(study_of(quiet, at), Cluster(quiet, at), at)[0].tuning.sigma for at in range(40)]
    sigma = math.sqrt(fmean(each**2 for each in seen if each is not None))
    found = []
    for many, jobs in ((1, ONE.budget), (slots, ONE.budget), (slots, budget)):
        layout = plan(ONE.profiles, jobs, slots=many)
        if isinstance(layout, Plan):
            effect = layout.from_start80(sigma)
            name = f"one at +{100 * effect:.2f} %, {jobs} jobs"
            world = replace(ONE, name=name, effects=(effect,), node_slots=many, budget=jobs)
            found.append(world)
    return tuple(found)


def _row(world: World, found: Counter[str], one: Counter[str]) -> str:
    slots = world.node_slots
    where = "one" if slots == 1 else f"{slots}, {100 * world.slot_sd:g} %"
    cells = [
        where,
        str(world.budget),
        world.name,
        str(found["sweeps"]),
        f"{found['rounds'] / one['rounds']:.2f}",
        f"{found['jobs'] / one['jobs']:.2f}",
        _rate(found["false"], found["sweeps"]),
        _rate(found["found"], found["winners"]) if found["winners"] else "-",
        "-" if slots == 1 else _rate(found["slower"], found["sweeps"]),
    ]
    return f"| {' | '.join(cells)} |"


def _rate(count: int, of: int) -> str:
    share = count / of
    return f"{100 * share:.1f} ({100 * math.sqrt(share * (1 - share) / of):.1f})"


if __name__ == "__main__":
    main()
