"""What sweeps find beside the tables of `error_rates.py`, and how gates end: simulated clusters.

    python benchmarks/sweep_rates.py --part "sweep power" [--write docs/reference/error_rates.md]

The parts, all of them through the production code:

* recipes: a setting is useless where its true effect is nil, harmful where it is negative. The gain
  is the true one of the recipe, as a share of that of the best set that could have been made: a
  stack has three profiles at most; recipes by noise: what such recipes hold at that noise;
* sweep power: whether a sweep finds what its plan says that it finds with 80 % power, selection
  included: profiles whose effect is what `Plan.from_start80` says, one of them and three of them;
* winner: what is told of the recommended winner, against the truth, where effects are weak: the
  best of several, whose figure is rather too large;
* node slots: what they cost and gain. Trials are of equal length; wall time is counted in trials
  that follow one another, node-hours in trials. The drift is 1 % over the time of 50 such trials;
* gates: how often one passes what it should not. Margin 1 %; pass / regression / cannot tell.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import pages
from simcluster import Cluster, World, drive, study_of, sweep
from simworlds import NULL, ONE, THREE

from pytest_xlatune.model.result import Needed, Verdict, VerdictKind
from pytest_xlatune.stats.design import Plan, plan
from pytest_xlatune.studies.gate import Gate, GateStudy

JOB, STEP, PHI, STEPS = 0.006, 0.005, 0.5, 10
# of a score: that of the job, and what ten steps leave of that of correlated steps
SIGMA = math.hypot(JOB, STEP * math.sqrt((1 + PHI) / (1 - PHI) / STEPS))
Layout = tuple[int, int, int]  # profiles, jobs, node slots
LAYOUTS: tuple[Layout, ...] = ((25, 50, 1), (40, 65, 1), (25, 40, 1), (25, 50, 8))


def plan_of(layout: Layout) -> Plan:
    """Return the plan of a sweep."""
    profiles, jobs, slots = layout
    planned = plan(profiles, jobs, slots=slots)
    if not isinstance(planned, Plan):
        raise SystemExit(f"{profiles} profiles in {jobs} jobs: {planned.why}")
    return planned


def power(layout: Layout, seed: int) -> list[int]:
    """Return how many winners a sweep with one of them finds, and one with three."""
    profiles, jobs, slots = layout
    effect = plan_of(layout).from_start80(SIGMA)
    found = []
    for winners in (1, 3):
        world = World(
            name="", profiles=profiles, budget=jobs, node_slots=slots, effects=(effect,) * winners
        )
        conclusion, _ = sweep(world, seed)
        faster = [v.arm for v in conclusion.verdicts if v.kind is VerdictKind.FASTER]
        found.append(sum(world.truth_of(arm) > 0 for arm in faster))
    return found


def power_row(layout: Layout, results: list[list[int]]) -> list[str]:
    """Return the other cells of a row, in percent."""
    planned, sweeps = plan_of(layout), len(results)
    one, three = (sum(found) for found in zip(*results, strict=True))
    return [
        ", ".join(map(str, planned.widths)),
        f"+{100 * planned.mde80(SIGMA):.2f}",
        f"+{100 * planned.from_start80(SIGMA):.2f}",
        pages.share(one, sweeps),
        pages.share(three, 3 * sweeps),
    ]


SPREAD = 0.007  # of the effects of all profiles, as log ratios
Weak = tuple[str, float]  # the name of the effects, the noise of a job
WEAK = tuple(itertools.product(("N(0, 0.7 %)", "three at +1 %", "three at +2 %"), (0.006, 0.010)))


def winner(weak: Weak, seed: int) -> tuple[float, Verdict] | None:
    """Return the true effect of what a sweep recommends, and its verdict; None without a winner."""
    name, noise = weak
    if name.startswith("three"):
        effects = (0.01 * int(name.split("+")[1][0]),) * 3
    else:
        drawn = np.random.default_rng([seed, 4711]).normal(0, SPREAD, 25)
        effects = tuple(map(math.expm1, drawn.tolist()))
    world = World(name=name, sigma_job=noise, effects=effects)
    verdicts = sweep(world, seed)[0].verdicts
    best = next((verdict for verdict in verdicts if verdict.kind is VerdictKind.FASTER), None)
    return None if best is None else (world.truth_of(best.arm), best)


def winner_row(_: Weak, results: list[tuple[float, Verdict] | None]) -> list[str]:
    """Return the other cells of a row."""
    winners = [found for found in results if found is not None]
    # a change that small effects do not explain has no likely figure
    likely = [(truth, *verdict.likely) for truth, verdict in winners if verdict.likely is not None]
    ends = [(truth, *(verdict.ci95 or (math.nan, math.nan))) for truth, verdict in winners]
    errors = [(verdict.delta or 0.0) - truth for truth, verdict in winners]
    likely_errors = [mean - truth for truth, mean, *_ in likely]
    return [
        str(len(winners)),
        *(f"{100 * fmean(each):+.2f}" for each in (errors, likely_errors)),
        *(f"{100 * fmean(map(abs, each)):.2f}" for each in (errors, likely_errors)),
        _held([low <= truth <= high for truth, low, high in ends]),
        f"{100 * fmean(high - low for _, low, high in ends):.2f}",
        _held([low <= truth <= high for truth, _, low, high in likely]),
        f"{100 * fmean(high - low for _, _, low, high in likely):.2f}",
    ]


def _held(holds: Sequence[bool]) -> str:
    return pages.share(sum(holds), len(holds))


SLOTS = 8
MORE = 65  # 1.3 times the jobs of one slot
FEW = 50  # as many as one slot has: the default


def on_slots(world: World, seed: int) -> Counter[str]:
    """Run one sweep and count."""
    cluster = Cluster(world, seed)
    conclusion, history = drive(study_of(world, seed), cluster, seed)
    faster = [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER]
    return Counter(
        jobs=len(history),
        rounds=cluster.rounds or len(history),
        found=sum(world.truth_of(arm) > 0 for arm in faster),
        false=any(world.truth_of(arm) <= 0 for arm in faster),
    )


def slots_label(world: World) -> tuple[str, ...]:
    """Return the first cells of a row."""
    slots, spread = world.node_slots, f"{100 * world.slot_sd:g} %"
    return "one" if slots == 1 else f"{slots}, {spread}", str(world.budget), world.name


def slots_row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row; times are those of the jobs of one slot, which all run."""
    total, sweeps = pages.total(results), len(results)
    return [
        f"{total['rounds'] / sweeps / NULL.budget:.2f}",
        f"{total['jobs'] / sweeps / NULL.budget:.2f}",
        pages.share(total["false"], sweeps),
        pages.share(total["found"], sweeps * len(world.effects)),
    ]


MARGIN = 0.01
Gated = tuple[tuple[int, int], float]  # blocks and baselines in each, the noise of a job
PASSES = ("FASTER", "EQUIVALENT")


def gate(gated: Gated, seed: int) -> list[str]:
    """Return how a gate ends, for each true loss."""
    (blocks, baselines), noise = gated
    asked = Gate(margin=MARGIN, blocks=blocks, block_baselines=baselines)
    kinds = []
    for truth in (-0.02, -0.01, 0.0):
        jobs = blocks * (1 + baselines)
        world = World(name="gate", effects=(truth,), sigma_job=noise, profiles=1, budget=jobs)
        study = GateStudy(cell=world.cell(), profiles=world.declared(), gate=asked, seed=seed)
        history = Cluster(world, seed).run(study.decide([]).due)
        kind = study.decide(history).conclusion.verdicts[0].kind
        kinds.append("pass" if kind in PASSES else str(kind))
    return kinds


def gate_row(gated: Gated, results: list[list[str]]) -> list[str]:
    """Return how the gates end, in percent."""
    (blocks, baselines), _ = gated
    shares = [
        " / ".join(
            f"{100 * kinds.count(kind) / len(kinds):.1f}"
            for kind in ("pass", "SLOWER", "INCONCLUSIVE")
        )
        for kinds in zip(*results, strict=True)
    ]
    return [str(blocks * (1 + baselines)), *shares]


PLAIN = World(name="", stacks=8, budget=65)
AGAINST = replace(
    PLAIN,
    name="+4, +3, +2 %, the first two together +3.5 %",
    effects=(0.04, 0.03, 0.02),
    clashes=((0, 1, 0.0344),),
)
RECIPES = (
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
    RECIPES[1],
    RECIPES[2],
    replace(PLAIN, name="six at +2 %, others nil", effects=(0.02,) * 6),
)
MOST_USELESS, MOST_HARMFUL, LEAST_GAIN = 0.08, 0.02, 0.90
_MOST_PARTS = 3  # of a stack


class Recipe(NamedTuple):
    """What one sweep recommended."""

    is_made: bool  # it has a recipe
    is_whole: bool  # the recipe has all settings that help
    is_useless: bool  # it has a setting that does nothing
    is_harmful: bool  # it has a setting that harms
    is_misled: bool  # it calls needed what does nothing
    share: float  # its true gain by the best possible
    sigma: float  # the noise of a job's score that the sweep tells; NaN where it tells none
    jobs: int  # that ran


def recipe_of(world: World, seed: int) -> Recipe:
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


def recipe_row(_: World, recipes: list[Recipe]) -> list[str]:
    """Return the other cells of a row."""
    shares = [_share(recipes, name) for name in ("is_made", "is_useless", "is_harmful")]
    gain, error = pages.mean([recipe.share for recipe in recipes])
    holds = shares[1] <= MOST_USELESS and shares[2] <= MOST_HARMFUL and gain >= LEAST_GAIN
    return [
        *(pages.rate(share, len(recipes)) for share in shares),
        f"{100 * gain:.1f} ({100 * error:.1f})",
        str(max(recipe.jobs for recipe in recipes)),
        pages.OK if holds else pages.MISSED,
    ]


def recipe_noise_row(_: World, recipes: list[Recipe]) -> list[str]:
    """Return the other cells of a row by noise: how often there is a recipe, what it is then."""
    made = [recipe for recipe in recipes if recipe.is_made]
    gain, error = pages.mean([recipe.share for recipe in made])
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


TABLES = (
    pages.Table(
        part="recipes",
        columns=pages.cells(
            "world | sweeps | a recipe | a useless setting | a harmful one | gain | jobs | "
        ),
        worlds=RECIPES,
        label=lambda world: (world.name,),
        simulate=recipe_of,
        row=recipe_row,
        bar=pages.cells(
            f"bar | | | <= {100 * MOST_USELESS:.0f} | <= {100 * MOST_HARMFUL:.0f} | >= "
            f"{100 * LEAST_GAIN:.0f} | <= {PLAIN.budget} | "
        ),
    ),
    pages.Table(
        part="recipes by noise",
        columns=pages.cells(
            "job noise, % | world | sweeps | noise told, % | a recipe | of these: all that help | "
            "a useless setting | a useless one called needed | gain"
        ),
        worlds=tuple(
            replace(world, sigma_job=noise / 100) for noise in NOISES for world in HELPING
        ),
        label=lambda world: (f"{100 * world.sigma_job:.1f}", world.name),
        simulate=recipe_of,
        row=recipe_noise_row,
    ),
    pages.Table(
        part="sweep power",
        columns=pages.cells(
            "profiles | jobs | node slots | sweeps | arms of each block | a finalist is found at "
            "| one winner is found at | measured there: one | three"
        ),
        worlds=LAYOUTS,
        label=lambda layout: tuple(map(str, layout)),
        simulate=power,
        row=power_row,
    ),
    pages.Table(
        part="winner",
        columns=pages.cells(
            "effects | job noise, % | sweeps | with a winner | figure too high by | likely too "
            "high by | mean error | of likely | 95 % interval holds, % | its width | likely's "
            "holds, % | its width"
        ),
        worlds=WEAK,
        label=lambda weak: (weak[0], f"{100 * weak[1]:.1f}"),
        simulate=winner,
        row=winner_row,
    ),
    pages.Table(
        part="node slots",
        columns=pages.cells(
            "slots, spread | trials | profiles | sweeps | wall time | node-hours | false winner | "
            "power"
        ),
        worlds=tuple(
            world
            for base in (NULL, ONE, replace(THREE, name="three at +2 %"))
            for world in (
                base,
                *(
                    replace(base, node_slots=SLOTS, slot_sd=spread, budget=jobs)
                    for jobs in (MORE, FEW)
                    for spread in (0.0, 0.005, 0.010)
                ),
            )
        ),
        label=slots_label,
        simulate=on_slots,
        row=slots_row,
    ),
    pages.Table(
        part="gates",
        columns=pages.cells(
            "blocks | baselines each | job noise | gates | trials | true loss 2 % | true loss 1 % "
            "| equal"
        ),
        worlds=tuple(itertools.product(((4, 1), (4, 2), (8, 1)), (0.003, 0.006, 0.010))),
        label=lambda gated: (*map(str, gated[0]), f"{100 * gated[1]:.1f} %"),
        simulate=gate,
        row=gate_row,
    ),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, *TABLES))
