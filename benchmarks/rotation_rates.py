"""What sweeps find whose profiles are ranked in rotations, in worlds whose truth is known.

    python benchmarks/rotation_rates.py --part rotations --write docs/reference/error_rates.md
    python benchmarks/rotation_rates.py --part search --runs 300 --write ...

Each sweep goes through the production code: `study.decide`, `read_turns` and `fit_turns` of single
steps, `study.conclude`. In logarithms of the speed, a step of a program in a rotation, and an
ordinary job:

    effect in turns + job's common part + program's own part + drift
        + what the program before left + warm-up of its own + noise of the step
    effect as deployed + job's common part + job's own part + drift

The two parts of the job have `share` and 1 - `share` of the variance of the job noise.

In the part `search` 25 profiles that do nothing rotate beside a search of 594 points, of which 30
are measured in each of three rotations; the truth of the points is drawn anew for each sweep.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from dataclasses import replace as vary
from typing import Any

import numpy as np
import pages
from msgspec.structs import replace
from simworlds import HARMED

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.model.result import (
    Outcome,
    RotationResult,
    Score,
    State,
    StepRecord,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.rotation import CompiledProgram, RotationRead, RotationSpec
from pytest_xlatune.model.rotation_score import NoTurns, is_baseline
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.rounds import fit_turns, read_turns
from pytest_xlatune.stats.search import DEPLOYED, Point, all_points
from pytest_xlatune.studies.derived import Search
from pytest_xlatune.studies.trials import ALIAS
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy

COLUMNS = ("world", "sweeps", "false winner", "power a winner", "any winner", "coverage", "jobs")
SEARCH_COLUMNS = pages.cells(
    "world | sweeps | false winner | a winner | of the best | tried, of the best | coverage | jobs"
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
POINTS = tuple(all_points(SIZES))
STEP_S = 1.0
LEVEL = 6.9


@dataclass(frozen=True, kw_only=True)
class World:
    """The truth of a simulated cluster; shares and sizes are fractions, not percent.

    Attributes:
        effects: true relative effect of the first profiles; the others do nothing.
        in_turns: of the first profiles in rotations, where another; `all_in_turns` of all.
        sigma: job noise.
        share: of its variance, what the programs of one process have in common.
        step_sd, phi: of the AR(1) noise of steps.
        tails: job effects and steps are scaled t(3).
        stalls: share of the steps that take ten times as long.
        drift: over 25 jobs; `inside` over each rotation.
        carry: standard deviation of what a program leaves to the next turn.
        slows: index of a profile that slows the next turn by 2 %.
        warms: standard deviation of what a program's second and third step of each turn lack.
        noisy: times the own part by profile index.
        compile_steps: how many steps take as long as a program compiles.
        slow_jobs: share of the jobs that are 3 % slow, with all that runs in them.
        budget: jobs; 0 is the usual number.
        points: of which kind the truth of a search is, see `Cluster.point`; "" searches nothing.
    """

    name: str
    effects: tuple[float, ...] = ()
    in_turns: tuple[float, ...] | None = None
    all_in_turns: float = 0.0
    profiles: int = 25
    sigma: float = 0.006
    share: float = 0.5
    step_sd: float = 0.005
    phi: float = 0.5
    tails: bool = False
    stalls: float = 0.0
    drift: float = 0.01
    inside: float = 0.0
    carry: float = 0.0
    slows: int | None = None
    warms: float = 0.0
    noisy: dict[int, float] = field(default_factory=dict)
    compile_steps: float = 10.0
    slow_jobs: float = 0.0
    budget: int = 0
    points: str = ""

    def truth(self, arm: str, *, is_turned: bool) -> float:
        """Return the true relative effect of a profile: in rotations, or as deployed."""
        at, is_other = int(arm[1:]), is_turned and self.in_turns is not None
        effects = self.in_turns or () if is_other else self.effects
        if at < len(effects):
            return effects[at]
        return self.all_in_turns if is_turned else 0.0


NULL = World(name="nothing helps")
THREE = vary(NULL, effects=(0.02,) * 3)
WEAK = vary(NULL, effects=(0.01,) * 3)
SHARES = (0.0, 0.5, 0.95)
TROUBLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("steps of three times the noise", {"step_sd": 0.015}),
    ("steps of ten times the noise", {"step_sd": 0.05}),
    ("the same, compiling takes 40 of them", {"step_sd": 0.05, "compile_steps": 40.0}),
    ("1 % of steps take ten times as long", {"stalls": 0.01}),
    ("carry-over of 0.5 %", {"carry": 0.005}),
    ("one slows the next turn by 2 %", {"slows": 20}),
    ("each program warms up in its own way, 1 %", {"warms": 0.01}),
    ("drift of 3 % in a rotation", {"inside": 0.03}),
    ("t(3) jobs and steps", {"tails": True}),
    ("three arms of 3x noise", {"noisy": dict.fromkeys(range(18, 21), 3.0)}),
    ("60 profiles", {"profiles": 60}),
    ("job noise 1.0 %", {"sigma": 0.010}),
    ("10 % of jobs 3 % slow", {"slow_jobs": 0.10}),
)


BASES = ((NULL, "nothing helps"), (THREE, "three at +2 %"), (WEAK, "three at +1 %"))
WORLDS = (
    *(
        vary(base, name=f"{what}, {name}", **changes)
        for base, what in BASES
        for name, changes in (
            *((f"share {100 * share:g} %", {"share": share}) for share in SHARES),
            ("50 jobs", {"budget": 50}),
        )
    ),
    vary(NULL, name="one at +2 % in turns, 0 deployed", in_turns=(0.02,)),
    vary(NULL, name="one at +5 % in turns, 0 deployed", in_turns=(0.05,)),
    vary(NULL, name="all at +1 % in turns, 0 deployed", all_in_turns=0.01),
    vary(NULL, name="one at +4 % deployed, +2 % in turns", effects=(0.04,), in_turns=(0.02,)),
    *(
        vary(base, name=f"{what}, {name}", **changes)
        for base, what in BASES[:2]
        for name, changes in TROUBLES
    ),
    *(
        vary(THREE, name=world.name, effects=world.effects, profiles=world.profiles)
        for world in HARMED
    ),
)
SEARCHES = (
    vary(NULL, points="null"),
    *(vary(NULL, name=name, points=name) for name in ("smooth", "cliff", "narrow", "pair")),
)


def _does_nothing(program: str) -> bool:
    """Whether it is the baseline, or the baseline under an alias as a finalist."""
    return is_baseline(program) or program == ALIAS.id


class Cluster:
    """One sweep's luck."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.drawn = np.random.default_rng([seed, 20261126])
        self.jobs = 0
        left = self.drawn.normal(0, world.carry, 200) if world.carry else np.zeros(200)
        self.left = {f"p{at}": float(each) for at, each in enumerate(left[1:])}
        warm = self.drawn.normal(0, world.warms, 200) if world.warms else np.zeros(200)
        self.warm = {f"p{at}": float(each) for at, each in enumerate(warm)}
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
        return common + self.world.drift * self.jobs / 25

    def own(self, program: str) -> float:
        """Return what a program of a process has of its own."""
        is_numbered = not (_does_nothing(program) or program in SPACE.points_by_id)
        at = int(program[1:]) if is_numbered else -1
        times = self.world.noisy.get(at, 1.0)
        sd = self.world.sigma * math.sqrt(1 - self.world.share) * times
        return float(self.noise(sd, 1)[0])

    def effect(self, program: str, *, is_turned: bool) -> float:
        """Return a profile's log effect."""
        if _does_nothing(program):
            return 0.0
        if program in SPACE.points_by_id:
            return math.log1p(self.point(SPACE.points_by_id[program]))
        return math.log1p(self.world.truth(program, is_turned=is_turned))

    def truth(self, arm: str) -> float:
        """Return the true relative effect of an arm as it would be deployed."""
        return math.expm1(self.effect(arm, is_turned=False))

    def point(self, point: Point) -> float:
        """Return the true relative effect of a point of the search.

        smooth: +2 % and +1.5 % at the peaks of two settings, less around them and -0.4 % far away;
        a third one loses. cliff: all values from the peak on. narrow: one value. pair: +3 % of two
        settings together, each of which loses 1 % alone.
        """
        kind, peaks = self.world.points, self.peaks
        sizes = zip((0.02, 0.015, -0.02), point, peaks, strict=False)
        moved = [(size, at - peak) for size, at, peak in sizes if at != DEPLOYED]
        if kind == "smooth":
            return sum(
                size * math.exp(-0.5 * (off / self.reach) ** 2) - 0.004 for size, off in moved
            )
        if kind == "cliff":
            return sum(size * (off >= 0) for size, off in moved)
        if kind == "narrow":
            return 0.025 * (point[0] == peaks[0]) - 0.01 * (point[1] > peaks[1])
        if kind == "pair":
            one, other = point[0] != DEPLOYED, point[1] != DEPLOYED
            if one and other:
                return 0.03 * (abs(point[0] - peaks[0]) <= 1 and point[1] >= SIZES[1] // 2)
            return -0.01 * (one or other)
        return 0.0

    def run(self, trial: Trial) -> TrialResult:
        """Run a trial: a job, the look, or a rotation."""
        if trial.rotation is None or trial.rotation.is_look:
            return self.job(trial)
        return self.rotation(trial, trial.rotation.spec)

    def job(self, trial: Trial) -> TrialResult:
        """Return an ordinary job, or the look."""
        arm = trial.profile.id
        value = LEVEL + self.level() + self.effect(arm, is_turned=False) + self.own(arm)
        score = Score(
            value=value, tgs=math.exp(value), step_s=STEP_S, n_steps=10, window=(5, 14), loss=9.5
        )
        found = TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)
        if trial.rotation is None:
            return found
        took_s = self.world.compile_steps * STEP_S + trial.protocol.steps * STEP_S
        return replace(
            found,
            outcome=Outcome(state=State.COMPLETED, start_s=0.0, end_s=took_s),
            rotation=RotationResult(read=self.read([BASELINE_ID])),
        )

    def read(self, names: list[str]) -> RotationRead:
        """Return a journal in which programs compiled."""
        compile_s = self.world.compile_steps * STEP_S
        own = tuple(CompiledProgram(program=each, compile_s=compile_s) for each in names)
        return RotationRead(found="train_step", compiled=own)

    def rotation(self, trial: Trial, spec: RotationSpec) -> TrialResult:
        """Return a rotation, from its single steps."""
        world, level = self.world, self.level()
        names = [each.id for each in spec.programs]
        base = {each: level + self.effect(each, is_turned=True) + self.own(each) for each in names}
        count = len(spec.order) * spec.turn_steps
        white = self.noise(1.0, count)
        noise = np.empty(count)
        noise[0] = white[0]
        for at in range(1, count):
            noise[at] = world.phi * noise[at - 1] + math.sqrt(1 - world.phi**2) * white[at]
        stalled = self.drawn.random(count) < world.stalls
        steps, whose, before = [], [], ""
        for turn, index in enumerate(spec.order):
            name, first = names[index], turn * spec.turn_steps
            whose.append((name, first, spec.turn_steps))
            left = self.left.get(BASELINE_ID if is_baseline(before) else before, 0.0)
            for at in range(spec.turn_steps):
                step = first + at
                own = base[name] + left + world.inside * step / count + world.step_sd * noise[step]
                own -= 3 * self.warm.get(name, 0.0) * (at in (1, 2))
                own -= 0.1 * (at == 0)
                step_s = STEP_S * math.exp(-own) * (10 if stalled[step] else 1)
                steps.append(StepRecord(step=step, step_s=step_s))
            before = name
        turns = read_turns(whose, steps, programs=len(names))
        score = turns if isinstance(turns, NoTurns) else fit_turns(turns)
        if isinstance(score, NoTurns):
            raise TypeError(score)
        found = RotationResult(score=score, read=self.read(names))
        return TrialResult(trial=trial, status=TrialStatus.MEASURED, rotation=found)


CELL = Cell(
    model_tag="simulated",
    parallelism=Parallelism.parse("FSDP=8"),
    per_device_batch_size=7,
    max_target_length=4096,
)


def study_of(world: World, seed: int) -> TuningStudy:
    """Return the sweep of a world."""
    return TuningStudy(
        cell=CELL,
        profiles=tuple(
            profile(f"p{at}", f"--xla_gpu_knob_{at}=1", wave="wave2")
            for at in range(world.profiles)
        ),
        derived=(SPACE,) if world.points else (),
        budget=world.budget or 50,
        seed=seed,
        rotation=RotationRule(is_usual=not world.budget),
    )


def sweep(world: World, seed: int) -> Counter[str]:
    """Run one sweep, and count."""
    cluster, study = Cluster(world, seed), study_of(world, seed)
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        history += map(cluster.run, trials)
    conclusion = study.decide(history).conclusion
    counts: Counter[str] = Counter(jobs=len(history))
    for verdict in conclusion.verdicts:
        if verdict.ci95 is None:
            continue
        truth = cluster.truth(verdict.arm)
        counts["intervals"] += 1
        counts["covered"] += verdict.ci95[0] <= truth <= verdict.ci95[1]
        if verdict.kind is VerdictKind.FASTER:
            counts["found"] += truth > 0
            counts["false"] |= truth <= 0
    counts["any"] = counts["found"] > 0
    counts["winner"] = any(each.kind is VerdictKind.FASTER for each in conclusion.verdicts)
    if world.points and (best := max(map(cluster.point, POINTS))) > 0:
        measured = {each.arm for each in conclusion.verdicts if each.n}
        tried = measured & SPACE.points_by_id.keys()
        chosen = conclusion.tuning.recipe
        gain = 0.0 if chosen is None else cluster.truth(chosen.arm)
        counts["tried"] = max(0.0, *map(cluster.truth, tried)) / best  # type: ignore[assignment]
        counts["gained"] = max(gain, 0.0) / best  # type: ignore[assignment]
    return counts


def row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row."""
    total, sweeps = pages.total(results), len(results)
    winners = sweeps * sum(effect > 0 for effect in world.effects)
    return [
        pages.share(total["false"], sweeps),
        pages.share(total["found"], winners),
        pages.share(total["any"], sweeps) if winners else "-",
        pages.share(total["covered"], total["intervals"]),
        f"{total['jobs'] / sweeps:.1f}",
    ]


def search_row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row of searches."""
    helps, total, sweeps = world.points != "null", pages.total(results), len(results)
    return [
        pages.share(total["false"], sweeps),
        pages.share(total["winner"], sweeps),
        *(f"{100 * total[n] / sweeps:.1f}" if helps else "-" for n in ("gained", "tried")),
        pages.share(total["covered"], total["intervals"]),
        f"{total['jobs'] / sweeps:.1f}",
    ]


def _label(world: World) -> tuple[str, ...]:
    return (world.name,)


TABLES = (
    pages.Table(
        part="rotations", columns=COLUMNS, worlds=WORLDS, label=_label, simulate=sweep, row=row
    ),
    pages.Table(
        part="search",
        columns=SEARCH_COLUMNS,
        worlds=SEARCHES,
        label=_label,
        simulate=sweep,
        row=search_row,
    ),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, *TABLES))
