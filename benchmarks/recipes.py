"""How good recommended recipes are, on simulated clusters whose truth is known.

    python benchmarks/recipes.py --sweeps 1000 --jobs 2 [--write docs/reference/error_rates.md]
    python benchmarks/recipes.py --only "four slots" [--write ...]    # only its row
    python benchmarks/recipes.py --sweeps 200 --noise 1.0     # of another job noise, percent
    python benchmarks/recipes.py --by-noise --sweeps 1000 [--write ...]

A sweep of 25 profiles and eight slots for stacks of what led, in 65 jobs, through the production
code. A setting is useless where its true effect is nil, harmful where it is negative. The gain is
the true one of the recipe, as a share of that of the best set that could have been made: a stack
has three profiles at most. `--by-noise` measures what report/recipes.py tells of a sweep's noise.
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
from statistics import median

import pages
from simcluster import World, sweep

from pytest_xlatune.model.result import Needed

PART, BY_NOISE = "recipes", "recipes by noise"  # of the page
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
NOISES = (0.3, 0.6, 1.0)  # percent
# how many settings help is not known to who reads a report
HELPING = (
    WORLDS[1],
    WORLDS[2],
    replace(PLAIN, name="six at +2 %, others nil", effects=(0.02,) * 6),
)
MOST_USELESS, MOST_HARMFUL, LEAST_GAIN = 0.08, 0.02, 0.90
_MOST_PARTS = 3  # of a stack
COLUMNS = ("world", "sweeps", "a recipe", "a useless setting", "a harmful one", "gain", "jobs", "")
NOISE_COLUMNS = (
    "job noise, %",
    "noise told, %",
    "world",
    "sweeps",
    "a recipe",
    "of these: all that help",
    "a useless setting",
    "a useless one called needed",
    "gain",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one sweep recommended.

    Attributes:
        is_made: whether it has a recipe.
        is_whole: whether the recipe has all settings that help.
        is_useless, is_harmful: whether it has a setting that does nothing, or harms.
        is_misled: whether it calls needed what does nothing.
        share: its true gain by the best possible.
        sigma: the noise of a job's score that the sweep tells; NaN where it tells none.
        jobs: that ran.
    """

    is_made: bool
    is_whole: bool
    is_useless: bool
    is_harmful: bool
    is_misled: bool
    share: float
    sigma: float
    jobs: int


def one(world: World, seed: int) -> Found:
    """Run one sweep."""
    conclusion, history = sweep(world, seed)
    best, recipe = conclusion.winner, conclusion.tuning.recipe
    parts = {int(each[1:]) for each in best.arm.split("+")} if best else set()
    truths = [world.truth(each) for each in parts]
    needed = [
        [world.truth(int(name.rpartition("_")[2])) for name in each.settings]
        for each in (recipe.parts if recipe else ())
        if each.need is Needed.NEEDED
    ]
    sets = (
        "+".join(f"p{at:03d}" for at in each)
        for many in range(1, _MOST_PARTS + 1)
        for each in itertools.combinations(range(len(world.effects)), many)
    )
    possible = max(map(world.truth_of, sets))
    return Found(
        is_made=best is not None,
        is_whole=parts >= {at for at, each in enumerate(world.effects) if each > 0},
        is_useless=any(each == 0 for each in truths),
        is_harmful=any(each < 0 for each in truths),
        is_misled=any(max(each) == 0 for each in needed),
        share=world.truth_of(best.arm) / possible if best else 0.0,
        sigma=math.nan if conclusion.tuning.sigma is None else conclusion.tuning.sigma,
        jobs=len(history),
    )


def row(world: World, found: list[Found]) -> tuple[str, bool]:
    """Return a line of the table, and whether the bars hold."""
    n = len(found)
    made, useless, harmful = (
        _share(found, name) for name in ("is_made", "is_useless", "is_harmful")
    )
    gain, spread = _gain(found)
    holds = useless <= MOST_USELESS and harmful <= MOST_HARMFUL and gain >= LEAST_GAIN
    cells = (
        world.name,
        str(n),
        *(_rate(each, n) for each in (made, useless, harmful)),
        f"{100 * gain:.1f} ({100 * spread:.1f})",
        str(max(each.jobs for each in found)),
        "ok" if holds else "**missed**",
    )
    return f"| {' | '.join(cells)} |", holds


def noise_row(world: World, found: list[Found]) -> str:
    """Return a line of the table by noise: how often there is a recipe, and what it is then."""
    made = [each for each in found if each.is_made]
    named = ("is_whole", "is_useless", "is_misled")
    gain, spread = _gain(made)
    told = [each.sigma for each in made if not math.isnan(each.sigma)]
    cells = (
        f"{100 * world.sigma_job:.1f}",
        f"{100 * median(told):.2f}",
        world.name,
        str(len(found)),
        _rate(_share(found, "is_made"), len(found)),
        *(_rate(_share(made, each), len(made)) for each in named),
        f"{100 * gain:.1f} ({100 * spread:.1f})",
    )
    return f"| {' | '.join(cells)} |"


def _share(found: list[Found], name: str) -> float:
    return sum(getattr(each, name) for each in found) / len(found)


def _gain(found: list[Found]) -> tuple[float, float]:
    """Return the mean gain and its standard error."""
    n = len(found)
    gain = math.fsum(each.share for each in found) / n
    return gain, math.sqrt(math.fsum((each.share - gain) ** 2 for each in found) / (n - 1) / n)


def _rate(share: float, n: int) -> str:
    return f"{100 * share:.1f} ({100 * math.sqrt(share * (1 - share) / n):.1f})"


def by_noise(sweeps: int, jobs: int, worlds: Iterable[World]) -> str:
    """Return the table by noise in percent, Monte-Carlo standard errors in brackets."""
    lines = [f"| {' | '.join(NOISE_COLUMNS)} |", f"|{'---|' * len(NOISE_COLUMNS)}"]
    with ProcessPoolExecutor(jobs) as pool:
        for world in worlds:
            found = list(pool.map(partial(one, world), range(sweeps), chunksize=5))
            lines.append(noise_row(world, found))
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


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
    parser.add_argument("--by-noise", action="store_true", help="one, three, six help; each noise")
    parser.add_argument("--write", type=Path, help="file whose table of recipes is rewritten")
    options = parser.parse_args()
    known = HELPING if options.by_noise else WORLDS
    worlds = [each for each in known if options.only in each.name]
    noises = [options.noise] if options.noise else NOISES if options.by_noise else ()
    if noises:
        worlds = [replace(each, sigma_job=at / 100) for at in noises for each in worlds]
    if options.by_noise:
        text = by_noise(options.sweeps, options.jobs, worlds)
        print(text)
        if options.write and not (options.only or options.noise):
            pages.rewrite(options.write, text, BY_NOISE)
        return 0
    text, good = tables(options.sweeps, options.jobs, worlds)
    print(text)
    if options.write and not options.noise:
        pages.rewrite(options.write, merged(pages.part(options.write, PART), text), PART)
    return 0 if good else 1


def merged(page: str, text: str) -> str:
    """Return the table of a page with the rows that were measured anew; the others stay."""
    rows = {
        line.strip("|").split("|")[0].strip(): line
        for line in (*page.splitlines(), *text.splitlines())
    }
    names = (COLUMNS[0], "---", *(each.name for each in WORLDS), "bar")
    return "\n".join(rows[each] for each in names if each in rows)


if __name__ == "__main__":
    raise SystemExit(main())
