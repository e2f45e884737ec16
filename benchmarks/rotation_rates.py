"""What sweeps of rotations find, and how often they are wrong, in worlds whose truth is known.

    python benchmarks/rotation_rates.py --sweeps 1000 --write docs/reference/error_rates.md
    python benchmarks/rotation_rates.py --sweeps 1000 --only "slows" --write ...    # its rows
    python benchmarks/rotation_rates.py --sweeps 1000 --rest --write ...    # goes on
    python benchmarks/rotation_rates.py --sweeps 1000 --search --write ...    # sweeps that search

With `--search` 25 profiles that do nothing rotate beside a search of 594 points, of which 30 are
measured in each of three rotations; `stats.search.ask` says which, or another sampler that is named
(TPE is Optuna's: pip install optuna). The truth of the points is drawn anew for each sweep.

Each sweep goes through the production code: `plan_rotations`, `draw_turns`, `fit_turns`,
`fit_rotations`, `decide_rotations`, `check_jobs` and `check_deployed`. In logarithms of the speed,
a turn of a program in a rotation, and an ordinary job:

    effect + job's common part + program's own part + drift + what the program before left + noise
    effect + job's common part + job's own part + drift

The two parts of the job have `share` and 1 - `share` of the variance of the job noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import pages
from simworlds import HARMED

from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.model.rotation_score import MeasuredTurn, RotationScore, copies, is_baseline
from pytest_xlatune.stats.rotations import (
    JOBS,
    LOOK,
    JobPace,
    RotationDecision,
    RotationPlan,
    best_of,
    check_deployed,
    check_jobs,
    decide_rotations,
    fit_rotations,
    job_noise,
    plan_rotations,
)
from pytest_xlatune.stats.rounds import draw_turns, fit_turns
from pytest_xlatune.stats.search import DEPLOYED, Point, ask, points_of
from pytest_xlatune.studies.derived import Search, entering

PART = "rotations"  # of the page
SEARCH_PART = "search"
COLUMNS = (
    "world",
    "sweeps",
    "false winner",
    "power a winner",
    "coverage",
    "contradicted",
    "jobs",
)
SEARCH_COLUMNS = (
    "world",
    "chosen by",
    "sweeps",
    "false winner",
    "a winner",
    "of the best",
    "tried, of the best",
    "coverage",
    "jobs",
)
# 594 points: four flags of numbers and a switch
SIZES = (10, 10, 8, 8, 2)
SPACE = Search(
    space={
        f"xla_flag_{at}": ("false", "true")
        if size == 2
        else tuple(str(1 << n) for n in range(size))
        for at, size in enumerate(SIZES)
    }
)
POINTS = tuple(points_of(SIZES))
CANDIDATES = {each: SPACE.at(each) for each in POINTS}
ORDERS = 50  # drawn for each shape; the sweeps share them
JOB_STEPS, OLD_JOBS = 15, 50  # of the sweep of jobs that the rotations replace


@dataclass(frozen=True, kw_only=True)
class World:
    """The truth of a simulated cluster; shares and sizes are fractions, not percent.

    Attributes:
        effects: true relative effect of the first profiles; the others do nothing.
        deployed: of the first profiles as ordinary jobs, where another.
        sigma: job noise.
        share: of its variance, what the programs of one process have in common.
        step_sd, phi: of the AR(1) noise of steps.
        tails: job effects and turns are scaled t(3).
        stalls: share of the turns that are 10 % slow.
        processes: that wait for each other: the slowest one makes a step.
        drift: over the whole sweep; `inside` over each rotation, as `shape` says.
        shape: "linear", "step" or "sine", of both.
        carry: standard deviation of what a program leaves to the next turn.
        slows: index of a profile that slows the next turn by 2 %.
        noisy: times the own part by profile index.
        kept: the programs are not compiled anew: their own part is the same in each rotation.
        job_steps: of an ordinary job, which give the turns.
        compile_steps: how many steps take as long as a program compiles.
        slow_jobs: share of the jobs that are 3 % slow, with all that runs in them.
        points: of which kind the truth of a search is, see `Cluster.point`; "" searches nothing.
        sampler: that chooses what a search measures.
    """

    name: str
    effects: tuple[float, ...] = ()
    deployed: tuple[float, ...] | None = None
    profiles: int = 25
    sigma: float = 0.006
    share: float = 0.5
    step_sd: float = 0.005
    phi: float = 0.5
    tails: bool = False
    stalls: float = 0.0
    processes: int = 1
    drift: float = 0.01
    inside: float = 0.0
    shape: str = "linear"
    carry: float = 0.0
    slows: int | None = None
    noisy: dict[int, float] = field(default_factory=dict)
    kept: bool = False
    job_steps: int = JOB_STEPS
    compile_steps: float = 1.0
    slow_jobs: float = 0.0
    points: str = ""
    sampler: str = "ours"

    def truth(self, arm: str) -> float:
        """Return the true relative effect of a profile as it would be deployed."""
        effects = self.effects if self.deployed is None else self.deployed
        at = int(arm[1:])
        return effects[at] if at < len(effects) else 0.0


NULL = World(name="nothing helps")
THREE = dataclasses.replace(NULL, effects=(0.02,) * 3)
WEAK = dataclasses.replace(NULL, effects=(0.01,) * 3)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.95)
TROUBLES: tuple[tuple[str, dict[str, object]], ...] = (
    ("steps of three times the noise", {"step_sd": 0.015}),
    ("steps of ten times the noise", {"step_sd": 0.05}),
    ("the same, compiling takes 40 of them", {"step_sd": 0.05, "compile_steps": 40}),
    ("60 steps a job", {"job_steps": 60}),
    ("carry-over of 0.5 %", {"carry": 0.005}),
    ("one slows the next turn by 2 %", {"slows": 20}),
    ("the same, 60 steps a job", {"slows": 20, "job_steps": 60}),
    ("drift of 3 % in a rotation", {"inside": 0.03}),
    ("a step of 3 % in a rotation", {"inside": 0.03, "shape": "step"}),
    ("a sine of 2 % in a rotation", {"inside": 0.02, "shape": "sine"}),
    ("drift of 5 % over the sweep", {"drift": 0.05}),
    ("4 processes", {"processes": 4}),
    ("16 processes", {"processes": 16}),
    ("64 processes, 1 % of turns stall", {"processes": 64, "stalls": 0.01}),
    ("4 % of turns stall", {"stalls": 0.04}),
    ("t(3) jobs and turns", {"tails": True}),
    ("one arm of 3x noise", {"noisy": {20: 3.0}}),
    ("three arms of 3x noise", {"noisy": dict.fromkeys(range(18, 21), 3.0)}),
    ("six arms of 2x noise", {"noisy": dict.fromkeys(range(15, 21), 2.0)}),
    ("6 profiles", {"profiles": 6}),
    ("60 profiles", {"profiles": 60}),
    ("job noise 1.0 %", {"sigma": 0.010}),
    ("3 % of jobs 3 % slow", {"slow_jobs": 0.03}),
    ("10 % of jobs 3 % slow", {"slow_jobs": 0.10}),
)


def worlds() -> tuple[World, ...]:
    """Return all worlds, in the order of the table."""
    found = []
    for base, what in ((NULL, "nothing helps"), (THREE, "three at +2 %"), (WEAK, "three at +1 %")):
        found += [
            dataclasses.replace(base, name=f"{what}, share {100 * s:g} %", share=s) for s in SHARES
        ]
    found += [
        dataclasses.replace(NULL, name=f"nothing helps, {name}", **changes)  # type: ignore[arg-type]
        for name, changes in TROUBLES
    ]
    for size in (0.02, 0.03, 0.05):
        name = f"one at +{100 * size:g} % in rotations, 0 deployed"
        found.append(dataclasses.replace(NULL, name=name, effects=(size,), deployed=(0.0,)))
    found += [
        dataclasses.replace(THREE, name=f"three at +2 %, {name}", **changes)  # type: ignore[arg-type]
        for name, changes in TROUBLES
    ]
    found += [
        dataclasses.replace(THREE, name=each.name, effects=each.effects, profiles=each.profiles)
        for each in HARMED
    ]
    found.append(
        dataclasses.replace(NULL, name="programs kept, not compiled anew (never done)", kept=True)
    )
    return tuple(found)


@cache
def order_of(programs: int, rounds: int, at: int) -> tuple[int, ...]:
    """Return one of the drawn orders."""
    return draw_turns(programs, min(3, programs), rounds, f"{programs} {rounds} {at}")


class Cluster:
    """One sweep's luck."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
        self.drawn = np.random.default_rng([seed, 20261126])
        self.placed: dict[str, float] = {}
        self.jobs = 0
        left = self.drawn.normal(0, world.carry, 200) if world.carry else np.zeros(200)
        self.left = {f"p{at}": float(each) for at, each in enumerate(left[1:])}
        # of two settings each, where they gain most and how far that reaches
        self.peaks = [int(self.drawn.integers(size)) for size in SIZES] if world.points else []
        self.reach = float(self.drawn.choice([0.8, 1.5, 3.0])) if world.points else 0.0
        self.left[BASELINE_ID] = float(left[0])
        if world.slows is not None:
            self.left[f"p{world.slows}"] -= 0.02

    def noise(self, sd: float, size: int) -> np.ndarray:
        """Return noise of this standard deviation, of heavy tails where the world has them."""
        if self.world.tails:
            return sd / math.sqrt(3) * self.drawn.standard_t(3, size)
        return self.drawn.normal(0, sd, size)

    def level(self) -> float:
        """Return what the next job has in common, and drift."""
        self.jobs += 1
        common = float(self.noise(self.world.sigma * math.sqrt(self.world.share), 1)[0])
        if self.world.slow_jobs:
            common -= 0.03 * (self.drawn.random() < self.world.slow_jobs)
        return common + self.world.drift * self.jobs / 10

    def own(self, program: str) -> float:
        """Return what a program of a process has of its own."""
        at = -1 if is_baseline(program) or program in SPACE.names else int(program[1:])
        times = self.world.noisy.get(at, 1.0)
        sd = self.world.sigma * math.sqrt(1 - self.world.share) * times
        found = float(self.noise(sd, 1)[0])
        return self.placed.setdefault(program, found) if self.world.kept else found

    def effect(self, program: str) -> float:
        """Return a profile's log effect in a rotation."""
        if program in SPACE.names:
            return math.log1p(self.point(SPACE.names[program]))
        at = -1 if is_baseline(program) else int(program[1:])
        return math.log1p(self.world.effects[at]) if 0 <= at < len(self.world.effects) else 0.0

    def point(self, point: Point) -> float:
        """Return the true relative effect of a point of the search.

        smooth: +2 % and +1.5 % at the peaks of two settings, less around them and -0.4 % far away;
        a third one loses. cliff: all values from the peak on. narrow: one value. pair: +3 % of two
        settings together, each of which loses 1 % alone.
        """
        kind, peaks = self.world.points, self.peaks
        if kind == "smooth":
            gains = [
                size * math.exp(-0.5 * ((at - peak) / self.reach) ** 2) - 0.004
                for size, at, peak in zip((0.02, 0.015, -0.02), point, peaks, strict=False)
                if at != DEPLOYED
            ]
            return sum(gains)
        if kind == "cliff":
            sizes = (0.02, 0.015, -0.02)
            return sum(
                size * (at >= peak)
                for size, at, peak in zip(sizes, point, peaks, strict=False)
                if at != DEPLOYED
            )
        if kind == "narrow":
            return 0.025 * (point[0] == peaks[0]) - 0.01 * (point[1] > peaks[1])
        if kind == "pair":
            one, other = point[0] != DEPLOYED, point[1] != DEPLOYED
            if one and other:
                return 0.03 * (abs(point[0] - peaks[0]) <= 1 and point[1] >= SIZES[1] // 2)
            return -0.01 * (one or other)
        return 0.0

    def rotation(
        self, plan: RotationPlan, arms: Sequence[str], ranked: RotationScore | None = None
    ) -> RotationScore:
        """Return what a rotation of these profiles measures: one that decides, behind `ranked`."""
        world, names = self.world, (*copies(plan.copies), *arms)
        turns = plan.turns(job_steps=world.job_steps, jobs=OLD_JOBS)
        if ranked is not None:
            pace = JobPace(start_s=0.0, step_s=1.0, compile_s=world.compile_steps)
            turns = turns.sharpened(ranked, pace)
        drawn = order_of(len(names), turns.rounds, (self.seed * 7 + self.jobs) % ORDERS)
        return self.turned(names, drawn, turns.turn_steps)

    def turned(self, names: Sequence[str], drawn: Sequence[int], turn_steps: int) -> RotationScore:
        """Return what a rotation measures whose turns are drawn."""
        world, level = self.world, self.level()
        base = {name: level + self.effect(name) + self.own(name) for name in names}
        kept = turn_steps - 2
        # variance of the mean of `kept` AR(1) steps
        spread = sum(world.phi ** abs(one - other) for one in range(kept) for other in range(kept))
        sd = world.step_sd * math.sqrt(spread) / kept
        noise = self.noise(sd, len(drawn) * world.processes).reshape(len(drawn), -1)
        if world.stalls:
            stalled = self.drawn.random(noise.shape) < world.stalls
            noise = noise - 0.10 * stalled
        lines = noise.min(axis=1)
        found, before = [], ""
        for at, index in enumerate(drawn):
            own = base[names[index]] + float(lines[at]) + self.inside(at / len(drawn))
            own += self.left.get(BASELINE_ID if is_baseline(before) else before, 0.0)
            found.append(
                MeasuredTurn(
                    program=names[index],
                    before=before,
                    round=at // len(names),
                    first_step=at * turn_steps,
                    steps=kept,
                    log_step_s=-own,
                )
            )
            before = names[index]
        score = fit_turns(found)
        if not isinstance(score, RotationScore):
            raise TypeError(score)
        return score

    def inside(self, at: float) -> float:
        """Return the drift inside a rotation, 0 to 1 of its length."""
        size = self.world.inside
        if self.world.shape == "step":
            return size * (at > 0.4)
        if self.world.shape == "sine":
            return size * math.sin(2 * math.pi * 1.5 * at)
        return size * at

    def truth(self, arm: str) -> float:
        """Return the true relative effect of an arm as it would be deployed."""
        point = SPACE.names.get(arm)
        return self.world.truth(arm) if point is None else self.point(point)

    def job(self, arm: str) -> float:
        """Return the log score of an ordinary job."""
        effect = 0.0 if is_baseline(arm) else math.log1p(self.truth(arm))
        return self.level() + effect + self.own(arm)


def sweep(world: World, seed: int) -> Counter[str]:
    """Run one sweep, and count."""
    cluster = Cluster(world, seed)
    arms = [f"p{at}" for at in range(world.profiles)]
    plan = plan_rotations(len(arms))
    if not isinstance(plan, RotationPlan):
        raise TypeError(plan)
    # profiles are declared in any order
    ranked = cluster.rotation(plan, arms)
    arms = list(best_of(ranked, width=plan.widths[-1], arms=arms))
    return decided(cluster, plan, arms, [ranked])


def search_sweep(world: World, seed: int) -> Counter[str]:
    """Run one sweep that searches, and count."""
    cluster = Cluster(world, seed)
    arms = [f"p{at}" for at in range(world.profiles)]
    plan = plan_rotations(len(arms), JOBS + SPACE.rounds, searched=(SPACE.at_once,) * SPACE.rounds)
    if not isinstance(plan, RotationPlan):
        raise TypeError(plan)
    scores = [cluster.rotation(plan, arms)]
    changes = {each.program: each.change for each in scores[0].programs if each.program in arms}
    told: dict[Point, float] = {}
    for at in range(SPACE.rounds):
        names = [CANDIDATES[each].id for each in chosen(world.sampler, told, seed * 7 + at)]
        scores.append(cluster.rotation(plan, names))
        for each in scores[-1].programs:
            if each.program in SPACE.names:
                changes[each.program] = told[SPACE.names[each.program]] = each.change
    known = {name: Profile(id=name) for name in arms}
    known |= {CANDIDATES[each].id: CANDIDATES[each] for each in told}
    ranked = sorted(changes, key=lambda name: (-changes[name], name))
    arms = entering(ranked, plan.widths[-1], profiles=known)
    found = decided(cluster, plan, arms, scores)
    best = max(map(cluster.point, POINTS))
    if best > 0:
        found["tried"] = round(1e6 * max(0.0, *map(cluster.point, told)) / best)
        found["gained"] = round(1e6 * max(found.pop("gain", 0), 0) / 1e9 / best)
    return found


def chosen(sampler: str, told: dict[Point, float], seed: int) -> Sequence[Point]:
    """Return what a sampler wants to measure next."""
    count = SPACE.at_once
    if sampler == "random":
        free = [each for each in POINTS if each not in told]
        return random.Random(seed).sample(free, count)
    if sampler == "TPE":
        return by_tpe(told, count, seed)
    return ask(SIZES, [size > 2 for size in SIZES], told, count=count, rng_seed=str(seed))


def by_tpe(told: dict[Point, float], count: int, seed: int) -> Sequence[Point]:
    """Return what Optuna's sampler wants, as ours does: half of a batch, and the rest drawn."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ladders = {
        str(at): optuna.distributions.IntDistribution(DEPLOYED, size - 1)
        for at, size in enumerate(SIZES)
    }
    drawn, found = random.Random(seed), list[Point]()
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for point, value in told.items():
        params = {str(at): each for at, each in enumerate(point)}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=ladders, value=value)
        )
    for _ in range(8 * count if told else 0):
        trial = study.ask(ladders)
        # it knows no limit of two settings: two of them are drawn, the others stay as deployed
        own = [at for at in range(len(SIZES)) if trial.params[str(at)] != DEPLOYED]
        own = drawn.sample(own, min(2, len(own)))
        point = tuple(trial.params[str(at)] if at in own else DEPLOYED for at in range(len(SIZES)))
        if not own or point in told or point in found:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)  # else each ask weighs it
            continue
        found.append(point)
        if len(found) == count // 2:
            break
    free = [each for each in POINTS if each not in told and each not in found]
    return [*found, *drawn.sample(free, count - len(found))]


def decided(
    cluster: Cluster, plan: RotationPlan, arms: Sequence[str], before: Sequence[RotationScore]
) -> Counter[str]:
    """Decide on the best, check what won, and count; `before` are the rotations that ranked."""
    world, seed = cluster.world, cluster.seed
    deciding = [cluster.rotation(plan, arms, before[0]) for _ in range(plan.deciding)]
    fit = fit_rotations(deciding)
    found: Counter[str] = Counter(sweeps=1, winners=sum(each > 0 for each in world.effects))
    won = []
    for arm, each in decide_rotations(fit, arms).items():
        if not isinstance(each, RotationDecision):
            continue
        low, high = each.comparison.ci95
        truth = cluster.effect(arm)
        found["intervals"] += 1
        found["covered"] += low <= truth <= high
        if each.kind is VerdictKind.FASTER:
            won.append((-each.comparison.estimate, arm, each.comparison))
    won.sort(key=lambda each: each[:2])
    noise = job_noise([*before, *deciding], fit)
    values: dict[str, list[float]] = {}
    for arm in check_jobs([arm for _, arm, _ in won], rng_seed=str(seed)):
        values.setdefault(arm, []).append(cluster.job(arm))
    false = 0
    for _, arm, comparison in won:
        check = check_deployed(
            comparison, own=values.get(arm, ()), beside=values.get(BASELINE_ID, ()), noise=noise
        )
        found["checked"] += 1
        found["contradicted"] += check.kind == "contradicts"
        if not check.withholds:
            found["found"] += cluster.truth(arm) > 0
            false += cluster.truth(arm) <= 0
            if not found["told"]:  # the largest one is recommended
                found["gain"] = round(1e9 * cluster.truth(arm))
            found["told"] = 1
    found["false"] += false > 0
    found["jobs"] = cluster.jobs + LOOK
    return found


def measure(world: World, seeds: range) -> Counter[str]:
    """Run the sweeps of these numbers and count."""
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update((search_sweep if world.points else sweep)(world, seed))
    return found


def _rate(count: int, of: int) -> str:
    if not of:
        return "-"
    share = count / of
    return f"{100 * share:.1f} ({100 * math.sqrt(share * (1 - share) / of):.1f})"


def row(world: World, found: Counter[str]) -> str:
    """Return a row of the table."""
    helps = sum(world.truth(f"p{at}") > 0 for at in range(len(world.effects)))
    cells = (
        world.name,
        str(found["sweeps"]),
        _rate(found["false"], found["sweeps"]),
        _rate(found["found"], found["winners"]) if helps else "-",
        _rate(found["covered"], found["intervals"]),
        _rate(found["contradicted"], found["checked"]),
        f"{found['jobs'] / found['sweeps']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def searches() -> tuple[World, ...]:
    """Return the worlds of sweeps that search, in the order of the table."""
    found = [
        dataclasses.replace(NULL, name="nothing helps", points="null"),
        dataclasses.replace(
            NULL, name="nothing helps, job noise 1.0 %", points="null", sigma=0.010
        ),
        dataclasses.replace(NULL, name="nothing helps, share 0 %", points="null", share=0.0),
    ]
    for kind in ("smooth", "cliff", "narrow", "pair"):
        found += [
            dataclasses.replace(NULL, name=kind, points=kind, sampler=each)
            for each in ("ours", "random", "TPE")
        ]
    return tuple(found)


def _name(world: World) -> str:
    return world.name


def _key(world: World) -> str:
    return f"{world.name} {world.sampler}"


def search_row(world: World, found: Counter[str]) -> str:
    """Return a row of the table of searches."""
    helps, sweeps = world.points != "null", found["sweeps"]
    cells = (
        world.name,
        world.sampler,
        str(sweeps),
        _rate(found["false"], sweeps),
        _rate(found["told"], sweeps),
        f"{found['gained'] / sweeps / 1e4:.1f}" if helps else "-",
        f"{found['tried'] / sweeps / 1e4:.1f}" if helps else "-",
        _rate(found["covered"], found["intervals"]),
        f"{found['jobs'] / sweeps:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sweeps", type=int, default=1000, help="of each row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    parser.add_argument("--search", action="store_true", help="the sweeps that search")
    parser.add_argument("--rest", action="store_true", help="only rows that the page lacks")
    parser.add_argument("--write", type=Path, help="file whose table is rewritten")
    options = parser.parse_args()
    columns = SEARCH_COLUMNS if options.search else COLUMNS
    every, part_of_page = (searches(), SEARCH_PART) if options.search else (worlds(), PART)
    made = search_row if options.search else row
    key = _key if options.search else _name
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    chunks = [range(at, min(at + 50, options.sweeps)) for at in range(0, options.sweeps, 50)]
    print(*head, sep="\n", flush=True)
    known = {}
    if options.write:
        known = {
            " ".join(line.strip("| ").split(" | ")[: 1 + options.search]): line
            for line in pages.part(options.write, part_of_page).splitlines()[3:]
        }
    with ProcessPoolExecutor(options.jobs) as pool:
        for world in every:
            if options.only not in key(world) or (options.rest and key(world) in known):
                continue
            found: Counter[str] = Counter()
            for part in pool.map(partial(measure, world), chunks):
                found.update(part)
            known[key(world)] = made(world, found)
            print(known[key(world)], flush=True)
            if options.write:  # a row is kept whatever becomes of the others
                lines = [known[key(each)] for each in every if key(each) in known]
                pages.rewrite(options.write, "\n".join([*head, *lines]), part_of_page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
