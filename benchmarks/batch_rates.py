"""How much a batch size study loses, and what it costs: simulated studies of random curves.

    python benchmarks/batch_rates.py --write docs/reference/error_rates.md

Drives the production study (decide) over curves of known truth. The ceiling M is
log-uniform in 2 .. 40; TGS is b / (b + c) with c = M U(.05, .6); in 55 % of the curves it falls
again before the ceiling, by U(.02, .15) max(0, (b - k M) / (M / 2)) ** 1.5 in log with
k = U(.4, .95); in half of them odd sizes lose U(0, .02). The estimate of the ceiling is
M exp(N(0, .45)). Where the study asks a compiler itself, memory is a line through the sizes whose
ceiling is M / U(.95, 1): a job takes up to 5 % that no compiler sees. Jobs differ as
`cellworlds.py` says. Everything follows from the random seeds. Rates are in percent.

The part `pairs` has studies of a size and one of three remat policies. The largest ceiling is
log-uniform in 4 .. 40, and each later policy divides it by U(1.3, 3); the other curves are as
above, with c by the second ceiling. A compiler sees the share U(.95, 1) of what a job takes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pages
from cellworlds import CELL, Noise, drive
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Action, Finding, TrialResult, TrialStatus
from pytest_xlatune.model.trial import CompiledMemory, Trial
from pytest_xlatune.studies import Asked
from pytest_xlatune.studies.batch_size import BatchRecord, BatchSize, BatchStudy

COLUMNS = pages.cells(
    "noise of one job | ceiling before | studies | jobs, mean | of them out of memory, mean | most "
    "| TGS lost against the best size, mean | studies that lose more than 1 % | more than 3 % "
    "| the best size is recommended or in the set | sizes in the set"
)
PAIR_COLUMNS = pages.cells(
    "noise of one job | studies | pairs that fit, mean | compilations, mean | jobs, mean | of them "
    "out of memory, mean | TGS lost against the best pair, mean | studies that lose more than 1 "
    "% | more than 3 % | the best pair is recommended or in the set"
)


@dataclass(frozen=True, kw_only=True)
class World(Noise):
    """How noisy jobs are, and how well the ceiling is known before."""

    # "asked": by the study, of a compiler
    estimate: str = "rough"
    calibrated: bool = True  # whether the study is told the noise
    budget: int = 60

    @property
    def words(self) -> str:
        """The world, as the table says it."""
        known = "" if self.calibrated else ", noise not known before"
        budget = f", budget {self.budget}" if self.budget != World.budget else ""
        return super().words + known + budget


WORLDS = (
    World(sigma=0.003),
    World(sigma=0.006),
    World(sigma=0.010, bad_jobs=0.03),
    World(estimate="exact"),
    World(estimate="asked"),
    World(sigma=0.010, bad_jobs=0.03, estimate="asked"),
    World(calibrated=False),
    World(sigma=0.010, bad_jobs=0.03, calibrated=False),
    World(budget=12),
)


Score = Callable[[float, float], float]  # log TGS of a size, where the ceiling is this


def curve(random: np.random.Generator, middle: float) -> Score:
    """Draw a curve of one model on one machine, whose c is a share of `middle`."""
    c = middle * random.uniform(0.05, 0.6)
    falls = random.uniform(0.02, 0.15) if random.random() < 0.55 else 0.0
    k = random.uniform(0.4, 0.95)
    odd = random.uniform(0, 0.02) if random.random() < 0.5 else 0.0

    def score(size: float, ceiling: float) -> float:
        beyond = max(0.0, (size - k * ceiling) / (ceiling / 2))
        return math.log(size / (size + c)) - falls * beyond**1.5 - (odd if size % 2 else 0.0)

    return score


def study_of(world: World, ceiling: float) -> BatchStudy:
    """Return the study as a user declares it, who takes this for the ceiling."""
    sigma = world.sigma if world.calibrated else None
    start = None if world.estimate == "asked" else max(0.75 * ceiling, 1.0)
    asked = BatchSize(start=start, sigma=sigma, largest=160)
    own = max(0.75 * ceiling, 1.0)  # the size of the sweep, which compiled memory may do without
    handed = asked_of(replace(CELL, per_device_batch_size=own), world.budget)
    return asked.study(dataclasses.replace(handed, asks_compiler=world.estimate == "asked"))


def asked_of(cell: Cell, budget: int) -> Asked:
    """Return what a sweep hands to the declaration."""
    none: tuple[Profile, ...] = ()
    return Asked(
        cell=cell, variants={}, profiles=none, others={}, selected=None, budget=budget, seed=0,
        loss_tolerance=0.02,
    )  # fmt: skip


def out_of_memory(trial: Trial) -> TrialResult:
    """Return a run that does not fit."""
    finding = Finding(cls=FailureClass.OOM_GPU, action=Action.DROP, detail="88.25 GiB")
    return TrialResult(trial=trial, status=TrialStatus.DROPPED, findings=(finding,))


def compiled(trial: Trial, needed: float) -> TrialResult:
    """Return the answer of a compiler: bytes of so much memory as the ceiling stands for."""
    whole = 10**11
    memory = CompiledMemory(needed_bytes=int(needed * whole), limit_bytes=whole)
    return TrialResult(trial=trial, status=TrialStatus.DROPPED, memory=memory)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true of every arm of one study, by the digest of its cell.

    Attributes:
        share: of the memory that there is.
        score: log TGS of it.
        seen: share of the memory that a compiler sees.
    """

    share: Mapping[str, float]
    score: Mapping[str, float]
    seen: float = 1.0


def run_to_end(
    world: World, study: BatchStudy, truth: Truth, random: np.random.Generator
) -> tuple[Counter[str], BatchRecord]:
    """Run one study to its end; return what came of it, counted, and its record."""
    found: Counter[str] = Counter()

    def run(trial: Trial) -> TrialResult:
        digest = trial.cell_digest
        if trial.stage == study.policy.compiled_stage:
            found["compiled"] += 1
            return compiled(trial, truth.seen * truth.share[digest])
        if truth.share[digest] > 1:
            found["oom"] += 1
            return out_of_memory(trial)
        return world.measured(trial, truth.score[digest], random)

    history, _ = drive(study, run)
    record = study.decide(history).conclusion.record
    if not isinstance(record, BatchRecord):
        raise TypeError(record)
    names = {cell.digest: name for cell, name in zip(study.cells, study.labels, strict=True)}
    fitting = [each for each, share in truth.share.items() if share <= 1]
    best = max(fitting, key=truth.score.__getitem__)
    jobs = [each for each in history if each.memory is None]
    found["jobs"] = len(jobs)
    found["fitting"] = len(fitting)
    found["over budget"] = int(len(jobs) > world.budget)
    if not record.value:
        found["none"] = 1
        return found, record
    (chosen,) = (each for each, name in names.items() if name == record.value)
    loss = -math.expm1(truth.score[chosen] - truth.score[best])
    found["loss millionths"] = round(1e6 * loss)
    found["above 1"] = int(loss > 0.01)
    found["above 3"] = int(loss > 0.03)
    found["held"] = int(names[best] in record.same)
    found["set"] = len(record.same)
    return found, record


def run_one(world: World, number: int) -> Counter[str]:
    """Run one study to its end and count what came of it."""
    random = np.random.default_rng([number, 20261123])
    ceiling = math.exp(random.uniform(math.log(2), math.log(40)))
    score, error = curve(random, ceiling), random.normal(0, 0.45)
    study = study_of(world, ceiling * math.exp(0 if world.estimate == "exact" else error))
    sizes = {cell.digest: cell.per_device_batch_size or 0.0 for cell in study.cells}
    truth = Truth(
        share={each: size / ceiling for each, size in sizes.items()},
        score={each: score(size, ceiling) for each, size in sizes.items()},
        seen=random.uniform(0.95, 1.0) if world.estimate == "asked" else 1.0,
    )
    found, record = run_to_end(world, study, truth, random)
    if record.largest and record.unfit and world.estimate != "asked":
        low, high = float(record.largest), float(record.unfit)
        found["ceilings"] = 1
        found["ceiling held"] = int(low <= ceiling < high)
    return found


POLICIES = ("full", "minimal", "none")


@dataclass(frozen=True, kw_only=True)
class Pairs(World):
    """Pairs of a size and a remat policy."""

    steps: tuple[float, float] = (0.02, 0.12)  # log TGS that a later policy gains at a size


PAIRS = (Pairs(), Pairs(sigma=0.010, bad_jobs=0.03))


def run_pairs(world: Pairs, number: int) -> Counter[str]:
    """Run one study of pairs to its end and count what came of it."""
    random = np.random.default_rng([number, 20261127])
    most = math.exp(random.uniform(math.log(4), math.log(40)))
    ceilings = most / np.cumprod([1.0, *random.uniform(1.3, 3, 2)])
    gains = np.cumsum([0.0, *random.uniform(*world.steps, 2)])
    score_of = curve(random, ceilings[1])
    asked = BatchSize(
        sigma=world.sigma if world.calibrated else None,
        sizes=tuple(range(1, math.floor(most) + 2)),
        by="remat_policy",
        by_values=POLICIES,
    )
    study = asked.study(dataclasses.replace(asked_of(CELL, world.budget), asks_compiler=True))
    share, score = {}, {}
    for cell in study.cells:
        lane, size = POLICIES.index(cell.overrides["remat_policy"]), cell.per_device_batch_size or 0
        share[cell.digest] = size / ceilings[lane]
        score[cell.digest] = float(score_of(size, ceilings[lane]) + gains[lane])
    truth = Truth(
        share=share,
        score=score,
        seen=random.uniform(0.95, 1.0),
    )
    return run_to_end(world, study, truth, random)[0]


def row(_: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row of sizes."""
    total, studies = pages.total(results), len(results)
    return [
        *_means(total, ("jobs", "oom"), studies),
        str(max(counts["oom"] for counts in results)),
        f"{total['loss millionths'] / studies / 1e4:.2f}",
        *pages.percents(total, ("above 1", "above 3", "held"), studies),
        *_means(total, ("set",), studies),
    ]


def pair_row(_: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row of pairs."""
    total, studies = pages.total(results), len(results)
    return [
        *_means(total, ("fitting", "compiled", "jobs", "oom"), studies),
        f"{total['loss millionths'] / studies / 1e4:.2f}",
        *pages.percents(total, ("above 1", "above 3", "held"), studies),
    ]


def _means(total: Counter[str], names: Sequence[str], studies: int) -> list[str]:
    return [f"{total[name] / studies:.1f}" for name in names]


TABLES = (
    pages.Table(
        part="batch sizes",
        columns=COLUMNS,
        worlds=WORLDS,
        label=lambda world: (world.words, world.estimate),
        simulate=run_one,
        row=row,
    ),
    pages.Table(
        part="pairs",
        columns=PAIR_COLUMNS,
        worlds=PAIRS,
        label=lambda world: (world.words,),
        simulate=run_pairs,
        row=pair_row,
    ),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, *TABLES))
