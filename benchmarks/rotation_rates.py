"""What sweeps of rotations find, and how often they are wrong, in worlds whose truth is known.

    python benchmarks/rotation_rates.py --sweeps 1000 --write docs/reference/error_rates.md
    python benchmarks/rotation_rates.py --sweeps 1000 --only "slows" --write ...    # its rows
    python benchmarks/rotation_rates.py --sweeps 1000 --rest --write ...    # goes on

Each sweep goes through the production code: `plan_rotations`, `draw_turns`, `fit_turns`,
`fit_rotations`, `decide_rotations`, `check_jobs` and `check_deployed`. In logarithms of the speed,
a turn of a program in a rotation, and an ordinary job:

    effect + job's common part + program's own part + drift + what the program before left + noise
    effect + job's common part + job's own part + drift

The two parts of the job have `share` and 1 - `share` of the variance of the job noise.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pages

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.model.rotation_score import MeasuredTurn, RotationScore, copies, is_baseline
from pytest_xlatune.stats.rotations import (
    LOOK,
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

PART = "rotations"  # of the page
COLUMNS = (
    "world",
    "sweeps",
    "false winner",
    "power a winner",
    "coverage",
    "contradicted",
    "jobs",
)
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
        slow_jobs: share of the jobs that are 3 % slow, with all that runs in them.
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
    slow_jobs: float = 0.0

    def truth(self, arm: str) -> float:
        """Return the true relative effect of a profile as it would be deployed."""
        effects = self.effects if self.deployed is None else self.deployed
        at = int(arm[1:])
        return effects[at] if at < len(effects) else 0.0


NULL = World(name="nothing helps")
THREE = replace(NULL, effects=(0.02,) * 3)
WEAK = replace(NULL, effects=(0.01,) * 3)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.95)
TROUBLES: tuple[tuple[str, dict[str, object]], ...] = (
    ("steps of three times the noise", {"step_sd": 0.015}),
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
        found += [replace(base, name=f"{what}, share {100 * s:g} %", share=s) for s in SHARES]
    found += [
        replace(NULL, name=f"nothing helps, {name}", **changes)  # type: ignore[arg-type]
        for name, changes in TROUBLES
    ]
    for size in (0.02, 0.03, 0.05):
        name = f"one at +{100 * size:g} % in rotations, 0 deployed"
        found.append(replace(NULL, name=name, effects=(size,), deployed=(0.0,)))
    found += [
        replace(THREE, name=f"three at +2 %, {name}", **changes)  # type: ignore[arg-type]
        for name, changes in TROUBLES
    ]
    found.append(replace(NULL, name="programs kept, not compiled anew (never done)", kept=True))
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
        times = 1.0 if is_baseline(program) else self.world.noisy.get(int(program[1:]), 1.0)
        sd = self.world.sigma * math.sqrt(1 - self.world.share) * times
        found = float(self.noise(sd, 1)[0])
        return self.placed.setdefault(program, found) if self.world.kept else found

    def effect(self, program: str) -> float:
        """Return a profile's log effect in a rotation."""
        at = -1 if is_baseline(program) else int(program[1:])
        return math.log1p(self.world.effects[at]) if 0 <= at < len(self.world.effects) else 0.0

    def rotation(self, plan: RotationPlan, arms: Sequence[str]) -> RotationScore:
        """Return what a rotation of these profiles measures."""
        world, names = self.world, (*copies(plan.copies), *arms)
        turns = plan.turns(job_steps=world.job_steps, jobs=OLD_JOBS)
        drawn = order_of(len(names), turns.rounds, (self.seed * 7 + self.jobs) % ORDERS)
        level = self.level()
        base = {name: level + self.effect(name) + self.own(name) for name in names}
        kept = turns.turn_steps - 2
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
            own += self.left[BASELINE_ID if is_baseline(before) else before] if before else 0.0
            found.append(
                MeasuredTurn(
                    program=names[index],
                    before=before,
                    round=at // len(names),
                    first_step=at * turns.turn_steps,
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

    def job(self, arm: str) -> float:
        """Return the log score of an ordinary job."""
        effect = 0.0 if is_baseline(arm) else math.log1p(self.world.truth(arm))
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
    deciding = [cluster.rotation(plan, arms) for _ in range(plan.deciding)]
    fit = fit_rotations(deciding)
    found: Counter[str] = Counter(sweeps=1, winners=sum(each > 0 for each in world.effects))
    decided = decide_rotations(fit, arms)
    won = []
    for arm, each in decided.items():
        if not isinstance(each, RotationDecision):
            continue
        low, high = each.comparison.ci95
        at = int(arm[1:])
        truth = math.log1p(world.effects[at]) if at < len(world.effects) else 0.0
        found["intervals"] += 1
        found["covered"] += low <= truth <= high
        if each.kind is VerdictKind.FASTER:
            won.append((-each.comparison.estimate, arm, each.comparison))
    won.sort(key=lambda each: each[:2])
    noise = job_noise([ranked, *deciding], fit)
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
            found["found"] += world.truth(arm) > 0
            false += world.truth(arm) <= 0
    found["false"] += false > 0
    found["jobs"] = cluster.jobs + LOOK
    return found


def measure(world: World, seeds: range) -> Counter[str]:
    """Run the sweeps of these numbers and count."""
    found: Counter[str] = Counter()
    for seed in seeds:
        found.update(sweep(world, seed))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sweeps", type=int, default=1000, help="of each row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="only worlds with this in their name")
    parser.add_argument("--rest", action="store_true", help="only rows that the page lacks")
    parser.add_argument("--write", type=Path, help="file whose table is rewritten")
    options = parser.parse_args()
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    chunks = [range(at, min(at + 50, options.sweeps)) for at in range(0, options.sweeps, 50)]
    print(*head, sep="\n", flush=True)
    known = {}
    if options.write:
        known = {
            line.strip("| ").split(" | ")[0]: line
            for line in pages.part(options.write, PART).splitlines()[3:]
        }
    with ProcessPoolExecutor(options.jobs) as pool:
        for world in worlds():
            if options.only not in world.name or (options.rest and world.name in known):
                continue
            found: Counter[str] = Counter()
            for part in pool.map(partial(measure, world), chunks):
                found.update(part)
            known[world.name] = row(world, found)
            print(known[world.name], flush=True)
            if options.write:  # a row is kept whatever becomes of the others
                lines = [known[each.name] for each in worlds() if each.name in known]
                pages.rewrite(options.write, "\n".join([*head, *lines]), PART)
    return 0


if __name__ == "__main__":
    sys.exit(main())
