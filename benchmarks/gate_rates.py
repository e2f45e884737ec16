"""How often a gate passes what it should not, and tells what it could: simulated gates.

    python benchmarks/gate_rates.py --write docs/reference/error_rates.md
    python benchmarks/gate_rates.py --rotated --gates 600 --write docs/reference/error_rates.md

Drives the production study with the simulated cluster: linear drift of 1 %, 3 % of steps slow, step
noise 0.5 %. One candidate, margin 1 %. Random numbers repeat. With `--rotated` candidate and
baseline take turns, in the worlds of `rotation_rates.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))

import pages
import rotation_rates
from simcluster import Cluster, World

from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import RotationResult, Score, TrialResult, TrialStatus
from pytest_xlatune.model.rotation import RotationRead
from pytest_xlatune.model.trial import Trial
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
        history = cluster.run(study.propose([]))
        kind = study.conclude(history).verdicts[0].kind
        found["pass" if kind in PASSES else str(kind)] += 1
    return found


# of rotations: job noise, what programs of a process share of it, what deployed jobs gain besides
TURNED = (
    *((0.006, share, None) for share in (0.0, 0.5, 0.75)),
    *((0.006, 0.5, loss) for loss in (-0.02, -0.03, -0.05)),
)


def answer(cluster: rotation_rates.Cluster, trial: Trial) -> TrialResult:
    """Return what the simulated cluster says of a look, a rotation, or a job that checks."""
    found = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=(trial.id,))
    read = RotationRead(found="train_step")
    if trial.rotation is not None and not trial.rotation.is_look:
        spec = trial.rotation.spec
        names = [each.id for each in spec.programs]
        turned = cluster.turned(names, spec.order, spec.turn_steps)
        return replace(found, rotation=RotationResult(read=read, score=turned))
    value = cluster.job(trial.profile.id)
    score = Score(value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14))
    is_look = trial.rotation is not None
    return replace(found, score=score, rotation=RotationResult(read=read) if is_look else None)


def turned(noise: float, share: float, truth: float, deployed: float, gates: int) -> Counter[str]:
    """Return how so many gates by rotations end, and their jobs."""
    world = rotation_rates.World(
        name="gate", effects=(truth,), deployed=(deployed,), profiles=1, sigma=noise, share=share
    )
    cell = World(name="gate", profiles=1).cell()
    own = profile("p0", "--xla_new=1")
    found: Counter[str] = Counter()
    for seed in range(gates):
        gate = Gate(margin=MARGIN)
        study = GateStudy(cell=cell, profiles=(own,), gate=gate, rotates=True, seed=seed)
        cluster = rotation_rates.Cluster(world, seed)
        history: list[TrialResult] = []
        while trials := study.propose(history):
            history += [answer(cluster, each) for each in trials]
        kind = study.conclude(history).verdicts[0].kind
        found["pass" if kind in PASSES else str(kind)] += 1
        found["jobs"] += len(history)
    return found


def turned_table(gates: int, jobs: int) -> str:
    """Return the table of gates by rotations."""
    lines = [
        f"{gates} gates a cell; pass / regression / cannot tell, in percent.",
        "",
        "| jobs | job noise | in common | deployed | true loss 2 % | true loss 1 % | equal |",
        "|---|---|---|---|---|---|---|",
    ]
    with ProcessPoolExecutor(jobs) as pool:
        rows = [
            [
                pool.submit(turned, noise, share, truth, truth if loss is None else loss, gates)
                for truth in (TRUTHS if loss is None else (0.0,))
            ]
            for noise, share, loss in TURNED
        ]
        for (noise, share, loss), row in zip(TURNED, rows, strict=True):
            found = [each.result() for each in row]
            cells = ["-"] * (3 - len(found)) + [_cell(each, gates) for each in found]
            own = "the same" if loss is None else f"{100 * loss:+.0f} %"
            spent = found[0]["jobs"] / gates
            head = f"| {spent:.0f} | {100 * noise:.1f} % | {100 * share:.0f} % | {own} | "
            lines.append(head + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


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
    parser.add_argument("--rotated", action="store_true", help="gates by rotations")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of gates by rotations")
    arguments = parser.parse_args()
    if arguments.rotated:
        text = turned_table(arguments.gates, arguments.jobs)
    else:
        text = table(arguments.gates)
    print(text)
    if arguments.write:
        part = "gates by rotations" if arguments.rotated else "gates"
        pages.rewrite(arguments.write, text, part)


if __name__ == "__main__":
    main()
