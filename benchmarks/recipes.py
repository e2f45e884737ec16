"""How good recommended recipes are, on simulated clusters whose truth is known.

    python benchmarks/recipes.py --sweeps 1000 --jobs 2 [--write docs/reference/error_rates.md]
    python benchmarks/recipes.py --only "four slots" [--write ...]    # only its row
    python benchmarks/recipes.py --by-noise --sweeps 1000 [--write ...]

A sweep of 25 profiles and eight slots for stacks of what led, in 65 jobs, through the production
code. A setting is useless where its true effect is nil, harmful where it is negative. The gain is
the true one of the recipe, as a share of that of the best set that could have been made: a stack
has three profiles at most. `--by-noise` measures what report/recipes.py tells of a sweep's noise.
"""

from __future__ import annotations

import itertools
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
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
NOISE_COLUMNS = pages.cells(
    "job noise, % | noise told, % | world | sweeps | a recipe | of these: all that help | a "
    "useless setting | a useless one called needed | gain"
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
    shares = [_share(found, name) for name in ("is_made", "is_useless", "is_harmful")]
    gain, spread = _gain(found)
    holds = shares[1] <= MOST_USELESS and shares[2] <= MOST_HARMFUL and gain >= LEAST_GAIN
    cells = (
        world.name,
        str(n),
        *(pages.rate(each, n) for each in shares),
        f"{100 * gain:.1f} ({100 * spread:.1f})",
        str(max(each.jobs for each in found)),
        "ok" if holds else "**missed**",
    )
    return pages.line(cells), holds


def noise_row(world: World, found: list[Found]) -> tuple[str, bool]:
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
        pages.rate(_share(found, "is_made"), len(found)),
        *(pages.rate(_share(made, each), len(made)) for each in named),
        f"{100 * gain:.1f} ({100 * spread:.1f})",
    )
    return pages.line(cells), True


def _share(found: list[Found], name: str) -> float:
    return sum(getattr(each, name) for each in found) / len(found)


def _gain(found: list[Found]) -> tuple[float, float]:
    """Return the mean gain and its standard error."""
    n = len(found)
    gain = math.fsum(each.share for each in found) / n
    return gain, math.sqrt(math.fsum((each.share - gain) ** 2 for each in found) / (n - 1) / n)


def main() -> int:
    parser = pages.parser(__doc__)
    parser.add_argument("--sweeps", type=int, default=1000, help="sweeps of every world")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    parser.add_argument("--by-noise", action="store_true", help="one, three, six help; each noise")
    options = parser.parse_args()
    columns, made, known, part = COLUMNS, row, WORLDS, PART
    if options.by_noise:
        columns, made, part = NOISE_COLUMNS, noise_row, BY_NOISE
        known = tuple(replace(each, sigma_job=at / 100) for at in NOISES for each in HELPING)
    lines, good = pages.head(columns), True
    with ProcessPoolExecutor(options.jobs) as pool:
        for world in known:
            if options.only in world.name:
                found = list(pool.map(partial(one, world), range(options.sweeps), chunksize=5))
                text, holds = made(world, found)
                print(text, file=sys.stderr, flush=True)
                lines.append(text)
                good &= holds
    if not options.by_noise:
        limits = (f"<= {100 * MOST_USELESS:.0f}", f"<= {100 * MOST_HARMFUL:.0f}")
        gain, jobs = f">= {100 * LEAST_GAIN:.0f}", f"<= {PLAIN.budget}"
        lines.append(f"| bar | | | {' | '.join((*limits, gain, jobs))} | |")
    page = None if options.by_noise and options.only else options.write
    if page and options.only:
        rows = pages.rows(pages.part(page, part)) | pages.rows("\n".join(lines))
        lines[2:] = [rows[name,] for name in (*(each.name for each in WORLDS), "bar")]
    pages.publish("\n".join(lines), page, part)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
