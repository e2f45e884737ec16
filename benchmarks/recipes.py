"""How good recommended recipes are, on simulated clusters whose truth is known.

    python benchmarks/recipes.py --jobs 2 [--write docs/reference/error_rates.md]

A sweep of 25 profiles and eight slots for stacks of what led, in 65 jobs, through the production
code. A setting is useless where its true effect is nil, harmful where it is negative. The gain is
the true one of the recipe, as a share of that of the best set that could have been made: a stack
has three profiles at most. The part `recipes by noise` measures what
report/recipes.py tells of a sweep's noise.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import pages
from simcluster import World, sweep

from pytest_xlatune.model.result import Needed

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
    "job noise, % | world | sweeps | noise told, % | a recipe | of these: all that help | a "
    "useless setting | a useless one called needed | gain"
)


class Recipe(NamedTuple):
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


def simulate(world: World, seed: int) -> Recipe:
    """Run one sweep."""
    conclusion, history = sweep(world, seed)
    best, recipe = conclusion.winner, conclusion.tuning.recipe
    settings = {int(name[1:]) for name in best.arm.split("+")} if best else set()
    truths = [world.truth(at) for at in settings]
    needed = [
        [world.truth(int(name.rpartition("_")[2])) for name in part.settings]
        for part in (recipe.parts if recipe else ())
        if part.need is Needed.NEEDED
    ]
    stacks = (
        "+".join(f"p{at:03d}" for at in stack)
        for size in range(1, _MOST_PARTS + 1)
        for stack in itertools.combinations(range(len(world.effects)), size)
    )
    possible = max(map(world.truth_of, stacks))
    return Recipe(
        is_made=best is not None,
        is_whole=settings >= {at for at, effect in enumerate(world.effects) if effect > 0},
        is_useless=any(truth == 0 for truth in truths),
        is_harmful=any(truth < 0 for truth in truths),
        is_misled=any(max(part) == 0 for part in needed),
        share=world.truth_of(best.arm) / possible if best else 0.0,
        sigma=math.nan if conclusion.tuning.sigma is None else conclusion.tuning.sigma,
        jobs=len(history),
    )


def row(_: World, recipes: list[Recipe]) -> list[str]:
    """Return the other cells of a row."""
    shares = [_share(recipes, name) for name in ("is_made", "is_useless", "is_harmful")]
    gain, error = _gain(recipes)
    holds = shares[1] <= MOST_USELESS and shares[2] <= MOST_HARMFUL and gain >= LEAST_GAIN
    return [
        *(pages.rate(share, len(recipes)) for share in shares),
        f"{100 * gain:.1f} ({100 * error:.1f})",
        str(max(recipe.jobs for recipe in recipes)),
        pages.OK if holds else pages.MISSED,
    ]


def noise_row(_: World, recipes: list[Recipe]) -> list[str]:
    """Return the other cells of a row by noise: how often there is a recipe, what it is then."""
    made = [recipe for recipe in recipes if recipe.is_made]
    gain, error = _gain(made)
    sigmas = [recipe.sigma for recipe in made if not math.isnan(recipe.sigma)]
    return [
        f"{100 * median(sigmas):.2f}",
        pages.rate(_share(recipes, "is_made"), len(recipes)),
        *(
            pages.rate(_share(made, name), len(made))
            for name in ("is_whole", "is_useless", "is_misled")
        ),
        f"{100 * gain:.1f} ({100 * error:.1f})",
    ]


def _share(recipes: list[Recipe], name: str) -> float:
    return sum(getattr(recipe, name) for recipe in recipes) / len(recipes)


def _gain(recipes: list[Recipe]) -> tuple[float, float]:
    """Return the mean gain and its standard error."""
    n = len(recipes)
    gain = math.fsum(recipe.share for recipe in recipes) / n
    return gain, math.sqrt(
        math.fsum((recipe.share - gain) ** 2 for recipe in recipes) / max(n - 1, 1) / n
    )


TABLES = (
    pages.Table(
        part="recipes",
        columns=COLUMNS,
        worlds=WORLDS,
        label=lambda world: (world.name,),
        simulate=simulate,
        row=row,
        bar=pages.cells(
            f"bar | | | <= {100 * MOST_USELESS:.0f} | <= {100 * MOST_HARMFUL:.0f} | >= "
            f"{100 * LEAST_GAIN:.0f} | <= {PLAIN.budget} | "
        ),
    ),
    pages.Table(
        part="recipes by noise",
        columns=NOISE_COLUMNS,
        worlds=tuple(
            replace(world, sigma_job=noise / 100) for noise in NOISES for world in HELPING
        ),
        label=lambda world: (f"{100 * world.sigma_job:.1f}", world.name),
        simulate=simulate,
        row=noise_row,
    ),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, *TABLES))
