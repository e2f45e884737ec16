"""Which way of running ends first: jobs on one slot, on several, or a held allocation; simulated.

    python benchmarks/ways_of_running.py --sweeps 10 [--write docs/how-to/slurm.md]
    python benchmarks/ways_of_running.py --calibrations 2000 [--write docs/how-to/slurm.md]

Every sweep goes through study.propose and study.conclude: 25 profiles, one at +2 %, job noise
0.6 %, trials of 12 minutes, one slot with 50 jobs or eight with 65. Each job, and each allocation,
waits in the queue for a time that is drawn from an exponential distribution of the stated mean,
whatever its size; `3x` draws the waits of allocations from three times the mean. At most so many
jobs as the queue depth wait behind what runs on a slot. An allocation takes trials while one fits
in, and the next one queues when fewer than three fit. Node-hours of an allocation count all its
nodes from its start to its end, idle ones too; that of a sweep that ends is given back. Starts of
programs, lost jobs and neighbours that disturb each other are not in the model.

With `--calibrations` it measures instead what calibrations of so many allocations and starts tell
of the share of the noise that belongs to the allocation, normal noise, through the production code.
"""

from __future__ import annotations

import argparse
import heapq
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pages
from simcluster import Cluster, study_of
from simworlds import ONE

from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.noise import allocation_noise

TRIAL_H, SLOT_NODES, SLOTS, BUDGET = 0.2, 8, 8, 65
HOLD_H = 4.0
NEXT_AT = 3  # trials that fit in, below which the next allocation queues


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of running."""

    name: str
    options: str
    slots: int = 1
    depth: int = 2
    is_held: bool = False
    longer: float = 1.0


HELD = "--xlatune-executor allocation --xlatune-allocation 4:00:00"
SIDE = f"--xlatune-slots {SLOTS} --xlatune-budget {BUDGET}"
WAYS = (
    Way(name="jobs, one slot", options="--xlatune-queue-depth 1", depth=1),
    Way(name="jobs, one slot", options=""),
    Way(name="jobs, 8 slots", options=SIDE, slots=SLOTS),
    Way(name="allocations of 4 h, one slot", options=HELD, is_held=True),
    Way(name="the same, waits 3x", options=HELD, is_held=True, longer=3.0),
    Way(name="allocations of 4 h, 8 slots", options=f"{HELD} {SIDE}", slots=SLOTS, is_held=True),
    Way(name="the same, waits 3x", options=f"{HELD} {SIDE}", slots=SLOTS, is_held=True, longer=3.0),
)


class Waits:
    """The queue, and the nodes behind it."""

    def __init__(self, way: Way, mean_h: float, seed: int) -> None:
        self.way, self.mean_h = way, mean_h * way.longer
        self.random = np.random.default_rng([seed, 40])
        self.node_h = 0.0
        self.held: list[tuple[float, float]] = []  # begin and end of each allocation

    def draw_h(self) -> float:
        """Return how long the next job or allocation waits."""
        return float(self.random.exponential(self.mean_h)) if self.mean_h else 0.0

    def start_h(self, submitted_h: float, free_h: float) -> float:
        """Return when a trial starts that was handed in then, on nodes that are free then."""
        if not self.way.is_held:
            self.node_h += TRIAL_H * SLOT_NODES
            return max(submitted_h + self.draw_h(), free_h)
        at_h = max(submitted_h, free_h)
        while True:
            for begin_h, end_h in self.held:
                if max(at_h, begin_h) + TRIAL_H <= end_h + 1e-9:
                    return max(at_h, begin_h)
            asked_h = self.held[-1][1] - NEXT_AT * TRIAL_H if self.held else 0.0
            begin_h = asked_h + self.draw_h()
            if self.held:  # the nodes of the one before are the same
                begin_h = max(begin_h, self.held[-1][1])
            self.held.append((begin_h, begin_h + HOLD_H))

    def spent_h(self, over_h: float) -> float:
        """Return the node-hours of a sweep that is over then."""
        nodes = SLOT_NODES * self.way.slots
        held = sum(max(min(end, over_h) - begin, 0.0) for begin, end in self.held) * nodes
        return self.node_h + held


def run(way: Way, mean_h: float, seed: int) -> tuple[float, float]:
    """Run one sweep; return its wall time and node-hours."""
    world = replace(ONE, node_slots=way.slots, budget=BUDGET if way.slots > 1 else ONE.budget)
    study, cluster, waits = study_of(world, seed), Cluster(world, seed), Waits(way, mean_h, seed)
    results: dict[str, TrialResult] = {}  # planned ones too, which stay on their slot
    known: set[str] = set()  # handed in
    free_h: dict[str, float] = defaultdict(float)
    waiting: dict[str, list[float]] = defaultdict(list)  # starts of what is handed in, by slot
    ends: list[tuple[float, int, Trial]] = []
    now_h, number = 0.0, 0
    proposed: tuple[Trial, ...] = ()
    while True:
        if not ends and len(known) == len(results):  # what was proposed is over
            proposed = study.propose(tuple(results.values()))
        for trial in proposed:
            results.setdefault(trial.id, TrialResult(trial=trial, status=TrialStatus.PLANNED))
            starts = waiting[trial.cell_digest]
            if trial.id in known or sum(start > now_h for start in starts) >= way.depth:
                continue
            known.add(trial.id)
            start_h = waits.start_h(now_h, free_h[trial.cell_digest])
            starts.append(start_h)
            free_h[trial.cell_digest] = start_h + TRIAL_H
            number += 1
            heapq.heappush(ends, (start_h + TRIAL_H, number, trial))
        starting = [h for each in waiting.values() for h in each if h > now_h]
        if not ends:
            return now_h, waits.spent_h(now_h)
        now_h = min([ends[0][0], *starting])
        if now_h < ends[0][0]:
            continue  # one has begun: the next may be handed in
        _, _, over = heapq.heappop(ends)
        cluster.rounds = 1 + int(now_h / TRIAL_H) if way.slots > 1 else 0
        results[over.id] = cluster.run([over])[0]


def row(way: Way, means_h: tuple[float, ...], sweeps: int) -> list[tuple[float, float]]:
    """Return mean wall time and node-hours at each mean wait."""
    found = []
    for mean_h in means_h:
        runs = [run(way, mean_h, seed) for seed in range(sweeps)]
        found.append((fmean(wall for wall, _ in runs), fmean(node for _, node in runs)))
    return found


SIZES = ((4, 3), (8, 3), (16, 3))
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)


def calibrated(allocations: int, starts: int, rho: float, count: int) -> tuple[float, ...]:
    """Return in percent how often a calibration can tell and holds the truth; its median width."""
    random = np.random.default_rng([allocations, starts, round(100 * rho)])
    told, held, widths = 0, 0, []
    for _ in range(count):
        shared = random.normal(0, rho**0.5, allocations)
        own = random.normal(0, (1 - rho) ** 0.5, (allocations, starts))
        scores = [(at, float(shared[at] + x)) for at in range(allocations) for x in own[at]]
        found = allocation_noise(scores)
        assert found is not None
        told += found.tells
        held += found.rho_low <= rho <= found.rho_high
        widths.append(found.rho_high - found.rho_low)
    return 100 * told / count, 100 * held / count, 100 * float(np.median(widths))


def calibrations(count: int) -> str:
    """Return the table of what calibrations tell."""
    lines = [
        "| allocations x starts | true share % | can tell % | interval holds it % | its width |",
        "|---|---|---|---|---|",
    ]
    for allocations, starts in SIZES:
        for rho in SHARES:
            told, held, width = calibrated(allocations, starts, rho, count)
            size = f"{allocations} x {starts}"
            lines.append(f"| {size} | {100 * rho:.0f} | {told:.0f} | {held:.1f} | {width:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=10, help="of each row")
    parser.add_argument("--calibrations", type=int, default=0, help="of each row of its own table")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--waits", default="0,10,40", help="mean minutes in the queue")
    parser.add_argument("--write", type=Path, help="a page with the two comments to write between")
    arguments = parser.parse_args()
    if arguments.calibrations:
        found = calibrations(arguments.calibrations)
        print(found)
        if arguments.write:
            pages.rewrite(arguments.write, found, "calibrations")
        return
    minutes = [float(each) for each in arguments.waits.split(",")]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = list(
            pool.map(
                partial(row, means_h=tuple(m / 60 for m in minutes), sweeps=arguments.sweeps), WAYS
            )
        )
    heads = [f"hours (node-hours), {each:g} min" for each in minutes]
    lines = [f"| way | options | {' | '.join(heads)} |", "|---|---|" + "---|" * len(minutes)]
    for way, found in zip(WAYS, rows, strict=True):
        cells = [f"{wall:.1f} ({node:.0f})" for wall, node in found]
        options = f"`{way.options}`" if way.options else ""
        lines.append(f"| {way.name} | {options} | {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        pages.rewrite(arguments.write, text, "ways")


if __name__ == "__main__":
    main()
