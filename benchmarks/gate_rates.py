"""How often a gate passes what it should not, and tells what it could: simulated gates.

    python benchmarks/gate_rates.py --write docs/reference/error_rates.md

Drives the production study with the simulated cluster: linear drift of 1 %, 3 % of steps slow, step
noise 0.5 %. One candidate, margin 1 %. Random numbers repeat.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pages
from simcluster import Cluster, World

from pytest_xlatune.studies.gate import Gate, GateStudy

MARGIN = 0.01
LAYOUTS = ((4, 1), (4, 2), (8, 1))  # blocks, baselines in each
NOISES = (0.003, 0.006, 0.010)
TRUTHS = (-0.02, -0.01, 0.0)
PASSES = ("FASTER", "EQUIVALENT")


def rates(noise: float, layout: tuple[int, int], truth: float, gates: int) -> Counter[str]:
    """Return how so many gates end."""
    blocks, baselines = layout
    gate = Gate(margin=MARGIN, blocks=blocks, block_baselines=baselines)
    world = World(
        name="gate",
        effects=(truth,),
        sigma_job=noise,
        profiles=1,
        budget=blocks * (1 + baselines),
    )
    found: Counter[str] = Counter()
    for seed in range(gates):
        study = GateStudy(cell=world.cell(), profiles=world.declared(), gate=gate, seed=seed)
        cluster = Cluster(world, seed)
        history = cluster.run(study.decide([]).due)
        kind = study.decide(history).conclusion.verdicts[0].kind
        found["pass" if kind in PASSES else str(kind)] += 1
    return found


def _cell(found: Counter[str], gates: int) -> str:
    shares = (found["pass"], found["SLOWER"], found["INCONCLUSIVE"])
    return " / ".join(f"{100 * each / gates:.1f}" for each in shares)


def table(gates: int) -> str:
    lines = [
        f"{gates} gates a cell; pass / regression / cannot tell, in percent.",
        "",
        "| blocks | baselines each | trials | job noise | true loss 2 % | true loss 1 % | equal |",
        "|---|---|---|---|---|---|---|",
    ]
    for layout in LAYOUTS:
        for noise in NOISES:
            cells = [_cell(rates(noise, layout, truth, gates), gates) for truth in TRUTHS]
            trials = layout[0] * (1 + layout[1])
            lines.append(
                f"| {layout[0]} | {layout[1]} | {trials} | {100 * noise:.1f} % | "
                + " | ".join(cells)
                + " |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=1000)
    parser.add_argument("--write", type=Path, help="a page with the two comments to write between")
    arguments = parser.parse_args()
    text = table(arguments.gates)
    print(text)
    if arguments.write:
        pages.rewrite(arguments.write, text, "gates")


if __name__ == "__main__":
    main()
