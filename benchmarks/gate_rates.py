"""How often a gate passes what it should not, and tells what it could: simulated gates.

    python benchmarks/gate_rates.py --write docs/reference/error_rates.md

Drives the production study with the simulated cluster: linear drift of 1 %, 3 % of steps slow, step
noise 0.5 %. One candidate, margin 1 %. Random numbers repeat.
"""

from __future__ import annotations

from collections import Counter

import pages
from simcluster import Cluster, World

from pytest_xlatune.studies.gate import Gate, GateStudy

MARGIN = 0.01
LAYOUTS = ((4, 1), (4, 2), (8, 1))  # blocks, baselines in each
NOISES = (0.003, 0.006, 0.010)
TRUTHS = (-0.02, -0.01, 0.0)
PASSES = ("FASTER", "EQUIVALENT")
COLUMNS = pages.cells(
    "blocks | baselines each | trials | job noise | true loss 2 % | true loss 1 % | equal"
)


def rates(noise: float, layout: tuple[int, int], truth: float, gates: int) -> str:
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
        history = Cluster(world, seed).run(study.decide([]).due)
        kind = study.decide(history).conclusion.verdicts[0].kind
        found["pass" if kind in PASSES else str(kind)] += 1
    return " / ".join(pages.percents(found, ("pass", "SLOWER", "INCONCLUSIVE"), gates))


def main() -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--gates", type=int, default=1000)
    options = parser.parse_args()
    lines = [
        f"{options.gates} gates a cell; pass / regression / cannot tell, in percent.",
        "",
        *pages.head(COLUMNS),
    ]
    for layout in LAYOUTS:
        for noise in NOISES:
            trials = layout[0] * (1 + layout[1])
            shares = [rates(noise, layout, truth, options.gates) for truth in TRUTHS]
            cells = (*map(str, layout), str(trials), f"{100 * noise:.1f} %", *shares)
            lines.append(pages.line(cells))
    pages.publish("\n".join(lines), options.write, "gates")


if __name__ == "__main__":
    main()
