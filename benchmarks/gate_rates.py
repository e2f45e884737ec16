"""How often a gate passes what it should not, and tells what it could: simulated gates.

    python benchmarks/gate_rates.py --write docs/reference/error_rates.md

Drives the production study with the simulated cluster: linear drift of 1 %, 3 % of steps slow, step
noise 0.5 %. One candidate, margin 1 %; pass / regression / cannot tell, in percent. Random numbers
repeat.
"""

from __future__ import annotations

import itertools

import pages
import simcluster

from pytest_xlatune.studies.gate import Gate, GateStudy

MARGIN = 0.01
LAYOUTS = ((4, 1), (4, 2), (8, 1))  # blocks, baselines in each
NOISES = (0.003, 0.006, 0.010)
TRUTHS = (-0.02, -0.01, 0.0)
PASSES = ("FASTER", "EQUIVALENT")
KINDS = ("pass", "SLOWER", "INCONCLUSIVE")
COLUMNS = pages.cells(
    "blocks | baselines each | job noise | gates | trials | true loss 2 % | true loss 1 % | equal"
)

World = tuple[tuple[int, int], float]  # a layout and the noise of a job


def label(world: World) -> tuple[str, ...]:
    """Return the first cells of a row."""
    (blocks, baselines), noise = world
    return str(blocks), str(baselines), f"{100 * noise:.1f} %"


def simulate(world: World, seed: int) -> list[str]:
    """Return how a gate ends, for each true loss."""
    (blocks, baselines), noise = world
    gate = Gate(margin=MARGIN, blocks=blocks, block_baselines=baselines)
    kinds = []
    for truth in TRUTHS:
        cluster_world = simcluster.World(
            name="gate",
            effects=(truth,),
            sigma_job=noise,
            profiles=1,
            budget=blocks * (1 + baselines),
        )
        study = GateStudy(
            cell=cluster_world.cell(), profiles=cluster_world.declared(), gate=gate, seed=seed
        )
        history = simcluster.Cluster(cluster_world, seed).run(study.decide([]).due)
        kind = study.decide(history).conclusion.verdicts[0].kind
        kinds.append("pass" if kind in PASSES else str(kind))
    return kinds


def row(world: World, results: list[list[str]]) -> list[str]:
    """Return how the gates end, in percent."""
    (blocks, baselines), _ = world
    shares = [
        " / ".join(f"{100 * kinds.count(kind) / len(kinds):.1f}" for kind in KINDS)
        for kinds in zip(*results, strict=True)
    ]
    return [str(blocks * (1 + baselines)), *shares]


TABLE = pages.Table(
    part="gates",
    columns=COLUMNS,
    worlds=tuple(itertools.product(LAYOUTS, NOISES)),
    label=label,
    simulate=simulate,
    row=row,
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
