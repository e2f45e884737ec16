"""How often a check of nodes accuses a healthy one, and finds a slow one: simulated checks.

    python benchmarks/node_rates.py --write docs/reference/error_rates.md

Drives the production study (decide) over worlds of known truth: nodes differ for good by
`spread`, jobs as `cellworlds.py` says. Everything follows from the seeds. Rates are in percent.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import pages
from cellworlds import CELL, Noise, drive
from msgspec.structs import replace

from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.cell_arms import ACCUSED
from pytest_xlatune.studies.node_check import Nodes, NodeStudy

ROUNDS = Nodes().rounds
COLUMNS = pages.cells(
    "nodes | job noise, spread of healthy nodes | truth | checks | slow nodes found | checks that "
    "accuse a healthy node | checks that cannot tell of a healthy node | jobs, mean | waves, "
    "most | 95 % intervals that hold the truth: first runs / run again"
)


@dataclass(frozen=True, kw_only=True)
class World(Noise):
    """The truth: sizes are fractions."""

    nodes: int = 32
    spread: float = 0.004
    slow: int = 0
    loss: float = 0.0
    rounds: int = ROUNDS

    @property
    def words(self) -> str:
        """The noise, as the table says it."""
        bad = ", 3 % bad jobs" if self.bad_jobs else ""
        return f"{100 * self.sigma:.1f} %, {100 * self.spread:.1f} %{bad}"


NOISES = (
    World(sigma=0.003, spread=0.002),
    World(sigma=0.006, spread=0.004),
    World(sigma=0.006, spread=0.004, bad_jobs=0.03),
    World(sigma=0.010, spread=0.005, bad_jobs=0.03),
)
TRUTHS = ((0, 0.0), (1, 0.05), (4, 0.08), (1, 0.03))  # slow nodes, their loss
WORLDS = (
    *(dataclasses.replace(noise, slow=n, loss=loss) for noise in NOISES for n, loss in TRUTHS),
    *(
        dataclasses.replace(NOISES[2], nodes=nodes, slow=slow, loss=0.05)
        for nodes in (4, 8, 128)
        for slow in (0, 1)
    ),
    *(
        dataclasses.replace(noise, slow=slow, loss=0.03, rounds=8)
        for noise in NOISES[1:3]
        for slow in (0, 1)
    ),
    dataclasses.replace(NOISES[1], nodes=4, slow=1, loss=0.30),
)


@cache
def study_of(world: World) -> NodeStudy:
    """Return the study of a world's nodes."""
    cells = tuple(replace(CELL, nodelist=(f"node{at:03d}",)) for at in range(world.nodes))
    return NodeStudy(cells=cells, asked=Nodes(rounds=world.rounds), budget=500)


def check(world: World, seed: int) -> Counter[str]:
    """Run one check and count what came of it."""
    study = study_of(world)
    random = np.random.default_rng([seed, 20261123])
    level = random.normal(0, world.spread, world.nodes)
    level[: world.slow] += math.log1p(-world.loss)
    at = {each.digest: number for number, each in enumerate(study.cells)}

    def run(trial: Trial) -> TrialResult:
        return world.measured(trial, level[at[trial.cell_digest]], random)

    history, waves = drive(study, run)
    counts: Counter[str] = Counter(jobs=len(history), waves=waves)
    slow = {each.nodelist[0] for each in study.cells[: world.slow]}
    middle = float(np.median(level))
    for verdict in study.decide(history).conclusion.verdicts:
        is_slow = verdict.arm in slow
        counts["found"] += is_slow and verdict.kind in ACCUSED
        counts["false"] += not is_slow and verdict.kind in ACCUSED
        counts["doubted"] += not is_slow and verdict.kind is VerdictKind.INCONCLUSIVE
        if verdict.ci95 is not None:
            truth = math.expm1(level[int(verdict.arm[4:])] - middle)
            kind = "again" if verdict.n > 1 else "once"
            counts[f"{kind} intervals"] += 1
            counts[f"{kind} held"] += verdict.ci95[0] <= truth <= verdict.ci95[1]
    counts["accusing"] = int(counts["false"] > 0)
    counts["doubting"] = int(counts["doubted"] > 0)
    return counts


def label(world: World) -> tuple[str, ...]:
    """Return the first cells of a row."""
    truth = f"{world.slow} x -{100 * world.loss:.0f} %" if world.slow else "all healthy"
    rounds = f", {world.rounds} rounds" if world.rounds != ROUNDS else ""
    return str(world.nodes), world.words, truth + rounds


def row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row."""
    total, checks = pages.total(results), len(results)
    held = [
        f"{100 * total[f'{kind} held'] / total[f'{kind} intervals']:.1f}"
        if total[f"{kind} intervals"]
        else "-"
        for kind in ("once", "again")
    ]
    return [
        f"{100 * total['found'] / (checks * world.slow):.1f}" if world.slow else "-",
        *pages.percents(total, ("accusing", "doubting"), checks),
        f"{total['jobs'] / checks:.0f}",
        str(max(counts["waves"] for counts in results)),
        " / ".join(held),
    ]


TABLE = pages.Table(
    part="nodes", columns=COLUMNS, worlds=WORLDS, label=label, simulate=check, row=row
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
