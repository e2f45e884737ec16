"""What ending hopeless screens early saves and costs: steps, false winners and power by simulation.

    python benchmarks/early_end.py --sweeps 1000 [--write docs/reference/error_rates.md]

Every sweep goes through study.propose, study.behind, stats.score and study.conclude, with and
without `--xlatune-early-end on` on the same jobs. Of 25 profiles six are at -5, -10 and -20 %, two
each; job noise is 0.6 %, the drift 1 %.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pages
from simcluster import World, sweep
from simworlds import NULL

from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.stats.score import ENDED_EARLY

FAR = (-0.05, -0.05, -0.10, -0.10, -0.20, -0.20)
# those at -3 % are within reach of the bound
NEAR = (-0.03,) * 4
WORLDS = (
    replace(NULL, name="nothing helps", effects=FAR),
    replace(NULL, name="nothing helps, step of 3 %", effects=FAR, drift="step", drift_size=0.03),
    replace(NULL, name="three at +2 %", effects=(0.02, 0.02, 0.02, *FAR, *NEAR)),
    replace(NULL, name="three at +2 %, 105 steps", effects=(0.02, 0.02, 0.02, *FAR), steps=105),
)

HEAD = (
    "| world | sweeps | ended early | ended, not slower | steps saved, % | false winner, % "
    "| with early end | power, % | with early end | sweeps with other winners |"
)


def ended(history: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the trials that were ended early."""
    return [each for each in history if each.score and ENDED_EARLY in each.score.flags]


def measure(world: World, seeds: range) -> Counter[str]:
    """Run the sweeps of these seeds both ways and count."""
    found: Counter[str] = Counter()
    for seed in seeds:
        won: dict[bool, frozenset[str]] = {}
        for early in (False, True):
            conclusion, history = sweep(replace(world, early_end=early), seed)
            winners = [e.arm for e in conclusion.verdicts if e.kind is VerdictKind.FASTER]
            won[early] = frozenset(winners)
            way = "early" if early else "whole"
            found[f"{way} found"] += sum(world.truth_of(each) > 0 for each in winners)
            found[f"{way} false"] += any(world.truth_of(each) <= 0 for each in winners)
            short = ended(history)
            found["ended"] += len(short)
            found["ended harmless"] += sum(world.truth_of(e.trial.arm) >= 0 for e in short)
            kept = sum(e.score.window[1] + 1 for e in short if e.score)
            found["steps saved"] += len(short) * world.steps - kept
            found["steps"] += 0 if early else len(history) * world.steps
        found["differ"] += won[True] != won[False]
        found["sweeps"] += 1
        found["winners"] += sum(each > 0 for each in world.effects)
    return found


def _rate(count: int, of: int) -> str:
    if not of:
        return "-"
    share = count / of
    return f"{100 * share:.1f} ({100 * math.sqrt(share * (1 - share) / of):.1f})"


def row(world: World, found: Counter[str], far: int) -> str:
    """Return one line of the table."""
    sweeps = found["sweeps"]
    cells = [
        world.name,
        str(sweeps),
        f"{found['ended'] / sweeps:.1f} of {far}",
        str(found["ended harmless"]),
        f"{100 * found['steps saved'] / found['steps']:.1f}",
        *(_rate(found[f"{way} false"], sweeps) for way in ("whole", "early")),
        *(_rate(found[f"{way} found"], found["winners"]) for way in ("whole", "early")),
        str(found["differ"]),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=300, help="of each row, each run both ways")
    parser.add_argument("--write", type=Path, help="a page with the two comments to write between")
    options = parser.parse_args()
    lines = [
        HEAD,
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for world in WORLDS:
        n = options.sweeps // 5 if world.steps > NULL.steps else options.sweeps
        lines.append(row(world, measure(world, range(n)), len(FAR)))
        print(lines[-1], flush=True)
    if options.write:
        pages.rewrite(options.write, "\n".join(lines), "early")


if __name__ == "__main__":
    main()
