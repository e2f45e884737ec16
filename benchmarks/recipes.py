"""How good recommended recipes are, on simulated clusters whose truth is known.

    python benchmarks/recipes.py --sweeps 1000 --jobs 2 [--write docs/reference/error_rates.md]
    python benchmarks/recipes.py --sweeps 200 --noise 1.0     # of another job noise, percent

A sweep of 25 profiles and eight slots for stacks of what led, in 65 jobs, through the production
code. A setting is useless where its true effect is nil, harmful where it is negative. The gain is
the true one of the recipe, as a share of that of the best set that could have been made.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pages
from simcluster import World, sweep

PART = "recipes"  # of the page
PLAIN = World(name="", stacks=8, budget=65)
AGAINST = replace(
    PLAIN,
    name="+4, +3, +2 %, the first two together +3.5 %",
    effects=(0.04, 0.03, 0.02),
    clashes=((0, 1, 0.0344),),
)
WORLDS = (
    replace(PLAIN, name="one at +4 %, others nil", effects=(0.04,)),
    replace(PLAIN, name="one at +2 %, others nil", effects=(0.02,)),
    replace(PLAIN, name="three at +2 %, others nil", effects=(0.02,) * 3),
    replace(PLAIN, name="three at +2 %, others at -0.5 %", effects=(0.02,) * 3, other=-0.005),
    AGAINST,
    replace(AGAINST, name=f"{AGAINST.name}, four slots", stacks=4),
)
MOST_USELESS, MOST_HARMFUL, LEAST_GAIN = 0.08, 0.02, 0.90
_MOST_PARTS = 3  # of a stack
COLUMNS = ("world", "sweeps", "a recipe", "a useless setting", "a harmful one", "gain", "jobs", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one sweep recommended; `share` is its true gain by the best possible."""

    is_made: bool
    is_useless: bool
    is_harmful: bool
    share: float
    jobs: int


def one(world: World, seed: int) -> Found:
    """Run one sweep."""
    conclusion, history = sweep(world, seed)
    best = conclusion.winner
    truths = [world.truth(int(each[1:])) for each in best.arm.split("+")] if best else []
    sets = (
        "+".join(f"p{at:03d}" for at in parts)
        for many in range(1, _MOST_PARTS + 1)
        for parts in itertools.combinations(range(len(world.effects)), many)
    )
    possible = max(map(world.truth_of, sets))
    return Found(
        is_made=best is not None,
        is_useless=any(each == 0 for each in truths),
        is_harmful=any(each < 0 for each in truths),
        share=world.truth_of(best.arm) / possible if best else 0.0,
        jobs=len(history),
    )


def row(world: World, found: list[Found]) -> tuple[str, bool]:
    """Return a line of the table, and whether the bars hold."""
    n = len(found)
    made, useless, harmful = (
        sum(getattr(each, name) for each in found) / n
        for name in ("is_made", "is_useless", "is_harmful")
    )
    gain = math.fsum(each.share for each in found) / n
    spread = math.sqrt(math.fsum((each.share - gain) ** 2 for each in found) / (n - 1) / n)
    holds = useless <= MOST_USELESS and harmful <= MOST_HARMFUL and gain >= LEAST_GAIN
    cells = (
        world.name,
        str(n),
        *(
            f"{100 * p:.1f} ({100 * math.sqrt(p * (1 - p) / n):.1f})"
            for p in (made, useless, harmful)
        ),
        f"{100 * gain:.1f} ({100 * spread:.1f})",
        str(max(each.jobs for each in found)),
        "ok" if holds else "**missed**",
    )
    return f"| {' | '.join(cells)} |", holds


def tables(sweeps: int, jobs: int, worlds: Iterable[World]) -> tuple[str, bool]:
    """Return the table in percent, Monte-Carlo standard errors in brackets."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    good = True
    with ProcessPoolExecutor(jobs) as pool:
        for world in worlds:
            text, holds = row(
                world, list(pool.map(partial(one, world), range(sweeps), chunksize=5))
            )
            print(text, file=sys.stderr, flush=True)
            lines.append(text)
            good &= holds
    bars = (
        f"| bar | | | <= {100 * MOST_USELESS:.0f} | <= {100 * MOST_HARMFUL:.0f} "
        f"| >= {100 * LEAST_GAIN:.0f} | <= {PLAIN.budget} | |"
    )
    return "\n".join([*lines, bars]) + "\n", good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sweeps", type=int, default=1000, help="sweeps of every world")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    parser.add_argument("--noise", type=float, help="job noise in percent; 0.6 is that of the page")
    parser.add_argument("--write", type=Path, help="file whose table of recipes is rewritten")
    options = parser.parse_args()
    worlds = [each for each in WORLDS if options.only in each.name]
    if options.noise:
        worlds = [replace(each, sigma_job=options.noise / 100) for each in worlds]
    text, good = tables(options.sweeps, options.jobs, worlds)
    print(text)
    if options.write and not options.only and not options.noise:
        pages.rewrite(options.write, text, PART)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
