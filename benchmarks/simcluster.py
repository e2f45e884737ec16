"""A cluster that never was: job scores with known truth, drawn from a stated noise model.

It feeds the production code (study.decide, stats.score) and holds no statistics of
its own. One job, one step, in logarithms of Tokens/s/device:

    profile's effect + drift(time) + job effect + AR(1) step noise - warm-up - stragglers - pauses

Everything follows from (world, seed).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from msgspec.structs import replace

from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.channels import COLLECTIVES, PARTS
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import Flag, Profile, profile
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    EvidenceResult,
    Finding,
    NoScore,
    Outcome,
    Shares,
    State,
    StepRecord,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.score import score
from pytest_xlatune.studies.derived import Singles, Stacks
from pytest_xlatune.studies.tuning import TuningStudy

_HANG = Finding(cls=FailureClass.HANG_MID_TRAINING, action=Action.RETRY, text="nothing since")
BASE_STEP_S = 28.8
TOKENS = 28672.0


@dataclass(frozen=True, kw_only=True)
class World:
    """The truth of a simulated cluster; shares and sizes are fractions, not percent.

    Attributes:
        effects: true relative effect of the first profiles; `other` is that of the rest.
        sigma_job: standard deviation of the job effect.
        heavy_tails: the job effect is a scaled t(4).
        bad_jobs: share of jobs that are slow, by as much as `bad_size` says, each another.
        step_sd, phi: of the AR(1) noise inside a job.
        drift, drift_size: "none", "linear", "step", "walk" or "sine", over the budget of jobs.
        period: of the sine, in jobs; 0 is half the budget.
        noisy: times the job noise by profile index, where a profile's jobs vary more.
        losing: share of its runs that a profile loses by index: a hang, tried twice.
        slow_ones: it loses the slowest of them, not any.
        waves: in which the profiles are measured, dealt in turn.
        stragglers: share of steps that are 5-30 % slower.
        straggling: share of steps by profile index, where a profile causes them.
        pauses: share of steps that the host delays by half a step; the next one pays it back.
        warm_tau: steps of the warm-up's decay; `long_warm` is the share of jobs with 2.5.
        warming: steps of the decay by profile index, where a profile warms up differently.
        cold_first: how much slower the first job of every block is.
        failed: share of jobs that could not be measured.
        steps, profiles, budget: of the sweep.
        profiler: every trial is profiled.
        stacks: slots of a wave of stacks of what led; gains of parts multiply.
        clashes: two profiles, and by what log ratio their gains together fall short of the sum.
        together: profiles of several settings, by the indices of theirs; after the others.
        is_apart: settings of the profiles are their own, as they are where any are combined.
        parallelism: of the cell.
        slots: where not 0, so many of the profiles are measured, as the evidence of the baseline
            orders them; the profiles act on the parts of a step in turn.
        node_slots: node slots that run side by side; 1 is one. Time is then counted in trials of
            equal length, `budget` of which the drift spans.
        slot_sd: standard deviation of what the slots differ by for good.
    """

    name: str
    effects: tuple[float, ...] = ()
    other: float = 0.0
    sigma_job: float = 0.006
    heavy_tails: bool = False
    bad_jobs: float = 0.0
    bad_size: tuple[float, float] = (0.02, 0.05)
    step_sd: float = 0.005
    phi: float = 0.5
    drift: str = "linear"
    drift_size: float = 0.01
    period: int = 0
    noisy: dict[int, float] = field(default_factory=dict)
    losing: dict[int, float] = field(default_factory=dict)
    slow_ones: bool = False
    waves: int = 1
    stragglers: float = 0.03
    straggling: dict[int, float] = field(default_factory=dict)
    pauses: float = 0.0
    warm_tau: float = 0.9
    long_warm: float = 0.0
    warming: dict[int, float] = field(default_factory=dict)
    cold_first: float = 0.0
    failed: float = 0.0
    steps: int = 15
    profiles: int = 25
    budget: int = 50
    profiler: bool = False
    stacks: int = 0
    clashes: tuple[tuple[int, int, float], ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    is_apart: bool = False
    parallelism: str = "FSDP=8"
    slots: int = 0
    node_slots: int = 1
    slot_sd: float = 0.0

    def truth(self, at: int) -> float:
        """Return the true relative effect of profile number `at`."""
        return self.effects[at] if at < len(self.effects) else self.other

    def truth_of(self, profile_id: str) -> float:
        """Return the true relative effect of a profile or a stack of several."""
        own = _numbers(profile_id)
        lost = math.fsum(each for *pair, each in self.clashes if {*pair} <= {*own})
        return math.expm1(math.fsum(math.log1p(self.truth(at)) for at in own) - lost)

    def declared(self) -> tuple[Profile, ...]:
        """Return the profiles of the world, p000 first; settings of stacks are their own."""
        own = "_{at}" if self.stacks or self.together or self.is_apart else ""
        knob = "--xla_gpu_simulated_knob" + own + "={at}"
        singles = tuple(
            profile(f"p{at:03d}", knob.format(at=at), wave=f"wave{2 + at % self.waves}")
            for at in range(self.profiles)
        )
        several = (
            profile(
                "+".join(f"p{at:03d}" for at in each), " ".join(knob.format(at=at) for at in each)
            )
            for each in self.together
        )
        return (*singles, *several)

    def singles(self) -> tuple[Singles, ...]:
        """Return the rule that chooses what is measured, where evidence does."""
        # a flag of the catalog says on which part of a step a candidate acts
        flags = itertools.cycle(
            next(each.name for each in load().entries if each.aims == (part,)) for part in PARTS
        )
        candidates = tuple(
            replace(each, flags=(*each.flags, Flag(name=next(flags), value=each.id)))
            for each in self.declared()
        )
        return (Singles(slots=self.slots, candidates=candidates),) if self.slots else ()

    def cell(self) -> Cell:
        """Return the cell they are measured on."""
        profiler = {"profiler": "xplane", "skip_first_steps": 4} if self.profiler else {}
        return Cell(
            model_tag="simulated",
            parallelism=Parallelism.parse(self.parallelism),
            per_device_batch_size=7,
            max_target_length=4096,
            protocol=Protocol(steps=self.steps, **profiler),  # type: ignore[arg-type]
            nodelist=("s0",) if self.node_slots > 1 else (),
        )


class Cluster:
    """Runs trials one after the other in a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.seed = seed
        self.random = np.random.default_rng([seed, 20240917])
        self.jobs = 0
        self.last_block = 0
        self.drift = _drift(world, self.random)
        self.rounds = 0  # of trials side by side, where there are several slots
        apart = np.random.default_rng([seed, 17])  # the jobs' own noise stays as it was
        self.of_slots = apart.normal(0, world.slot_sd, world.node_slots)
        cells = study_of(world, seed).cells if world.node_slots > 1 else ()
        self.slots = {each.digest: at for at, each in enumerate(cells)}

    def steps(self, trials: Sequence[Trial]) -> list[list[StepRecord]]:
        """Run trials in order and return the step records of each, as a log would show them."""
        logs = self._levels(trials)[:, None] + self._noise(trials)
        seconds = BASE_STEP_S * np.exp(-logs)
        seconds *= self._slow_steps(trials)
        seconds[:, 0] += 3 * BASE_STEP_S  # compilation
        paused = self.random.random(seconds.shape) < self.world.pauses
        delay = np.where(paused, 0.5 * BASE_STEP_S, 0.0)
        seconds += delay
        seconds[:, 1:] -= delay[:, :-1]
        if self.world.profiler:
            seconds[:, [4, 7]] += 0.4 * BASE_STEP_S
            seconds[:, [5, 8]] -= 0.3 * BASE_STEP_S
        tgs = np.round(TOKENS / seconds, 3).tolist()
        rounded = np.round(seconds, 3).tolist()
        return [
            [
                StepRecord(step=at, step_s=s, tgs=t, loss=11.0 - 0.05 * at)
                for at, (s, t) in enumerate(zip(*row, strict=True))
            ]
            for row in zip(rounded, tgs, strict=True)
        ]

    def run(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run trials in order and score them with the production score."""
        protocol = trials[0].protocol
        started = self.jobs
        failed = self.random.random(len(trials)) < self.world.failed
        results = []
        for at, (trial, records) in enumerate(zip(trials, self.steps(trials), strict=True)):
            found = score(records, protocol=protocol, tokens_per_device_step=TOKENS)
            clock = self.rounds - 1 if self.rounds else started + at
            outcome = Outcome(state=State.COMPLETED, start_s=1000.0 * clock)
            is_hung = self._is_hung(trial, at)
            if failed[at] or is_hung:
                why = "it stood still twice" if is_hung else "node failure"
                found = NoScore(reason=verbatim(why))
            result = TrialResult(
                trial=trial,
                status=TrialStatus.MEASURED,
                outcome=outcome,
                findings=(_HANG, _HANG) if is_hung else (),
            )
            results.append(
                replace(result, status=TrialStatus.UNMEASURED, reason=found.reason)
                if isinstance(found, NoScore)
                else replace(result, score=found)
            )
        return results

    def _is_hung(self, trial: Trial, at: int) -> bool:
        """Whether a run is lost: any of an arm's, or those whose job effect is the slowest."""
        share = self.world.losing.get(_index(trial), 0.0)
        if not share:
            return False
        if self.world.slow_ones:
            return bool(self.job[at] < NormalDist().inv_cdf(share))
        return bool(self.random.random() < share)

    def evidence(self, trial: Trial, seed: int) -> EvidenceResult:
        """Return what an evidence run shows: any shares of a step, and a collective that it lacks.

        Drawn apart from the jobs, whose noise is then that of any other sweep of the seed.
        """
        random = np.random.default_rng([seed, 20261122])
        shares = dict(zip(PARTS, random.dirichlet(np.ones(len(PARTS))).tolist(), strict=True))
        lacks = COLLECTIVES[random.integers(len(COLLECTIVES))]
        kinds = tuple(each for each in COLLECTIVES if each != lacks)
        return EvidenceResult(
            trial=trial,
            status=TrialStatus.MEASURED,
            is_read=True,
            shares=Shares(
                of_step={part: share for part, share in shares.items() if part != lacks},
                kinds=kinds,
            ),
        )

    def _levels(self, trials: Sequence[Trial]) -> np.ndarray:
        world, n = self.world, len(trials)
        if world.heavy_tails:
            job = self.random.standard_t(4, n) / math.sqrt(2) * world.sigma_job
        else:
            job = self.random.normal(0, world.sigma_job, n)
        bad = self.random.random(n) < world.bad_jobs
        job *= np.array([world.noisy.get(_index(trial), 1.0) for trial in trials])
        self.job = job / world.sigma_job if world.sigma_job else job
        levels = job - np.where(bad, self.random.uniform(*world.bad_size, n), 0.0)
        for at, trial in enumerate(trials):
            if trial.profile.flags:
                levels[at] += math.log1p(world.truth_of(trial.profile.id))
            is_first = trial.block and trial.block != self.last_block
            levels[at] -= world.cold_first if is_first else 0.0
            clock = self.rounds - 1 if self.rounds else self.jobs
            levels[at] += self.drift[clock % len(self.drift)]
            if self.slots:
                levels[at] += self.of_slots[self.slots[trial.cell_digest]]
            self.last_block = trial.block
            self.jobs += 1
        return levels

    def _noise(self, trials: Sequence[Trial]) -> np.ndarray:
        world, n = self.world, len(trials)
        white = self.random.normal(0, 1, (n, world.steps))
        noise = np.empty_like(white)
        noise[:, 0] = white[:, 0]
        for at in range(1, world.steps):
            noise[:, at] = world.phi * noise[:, at - 1]
            noise[:, at] += math.sqrt(1 - world.phi**2) * white[:, at]
        tau = np.where(self.random.random(n) < world.long_warm, 2.5, world.warm_tau)
        for at, trial in enumerate(trials):
            tau[at] = world.warming.get(_index(trial), tau[at])
        warm = 0.25 * np.exp(-np.arange(world.steps)[None, :] / tau[:, None])
        return world.step_sd * noise - warm

    def _slow_steps(self, trials: Sequence[Trial]) -> np.ndarray:
        world, shape = self.world, (len(trials), self.world.steps)
        shares = [world.straggling.get(_index(trial), world.stragglers) for trial in trials]
        slow = self.random.random(shape) < np.array(shares)[:, None]
        return np.where(slow, 1 + self.random.uniform(0.05, 0.30, shape), 1.0)


def study_of(world: World, seed: int) -> TuningStudy:
    """Return the sweep of a world."""
    return TuningStudy(
        cell=world.cell(),
        profiles=() if world.slots else world.declared(),
        derived=(*world.singles(), *([Stacks(slots=world.stacks)] if world.stacks else [])),
        budget=world.budget,
        seed=seed,
        slots=tuple((f"s{at}",) for at in range(world.node_slots)) if world.node_slots > 1 else (),
    )


def sweep(world: World, seed: int) -> tuple[Conclusion, list[TrialResult]]:
    """Run one sweep to its end, with the code that runs in production."""
    return drive(study_of(world, seed), Cluster(world, seed), seed)


def drive(study: TuningStudy, cluster: Cluster, seed: int) -> tuple[Conclusion, list[TrialResult]]:
    """Propose, run, repeat; then conclude."""
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        runs = (trial for trial in trials if not trial.protocol.is_scored)
        history += [cluster.evidence(trial, seed) for trial in runs]
        jobs = [trial for trial in trials if trial.protocol.is_scored]
        for beside in _rounds(jobs) if cluster.world.node_slots > 1 else [jobs]:
            cluster.rounds += cluster.world.node_slots > 1
            history += cluster.run(beside) if beside else []
    return study.decide(history).conclusion, history


def _rounds(jobs: Sequence[Trial]) -> list[list[Trial]]:
    """Return what runs side by side: the first trial of each slot, then the second, and so on."""
    queues: dict[str, list[Trial]] = {}
    for each in jobs:
        queues.setdefault(each.cell_digest, []).append(each)
    rounds = itertools.zip_longest(*queues.values())
    return [[each for each in beside if each is not None] for beside in rounds]


def _numbers(profile_id: str) -> list[int]:
    return [int(part[1:]) for part in profile_id.split("+")]


def _index(trial: Trial) -> int:
    """Return the number of a simulated profile, of a stack the first; -1 for the baseline."""
    return _numbers(trial.profile.id)[0] if trial.profile.flags else -1


def _drift(world: World, random: np.random.Generator) -> np.ndarray:
    n, size = world.budget, world.drift_size
    sign = random.choice([-1.0, 1.0])
    time = np.arange(n) / max(n - 1, 1)
    if world.drift == "linear":
        return np.asarray(sign * size * (time - 0.5))
    if world.drift == "step":
        return np.where(np.arange(n) >= random.integers(1, n), sign * size, 0.0)
    if world.drift == "walk":
        return np.asarray(np.cumsum(random.normal(0, size / math.sqrt(n), n)))
    if world.drift == "sine":
        turns = np.arange(n) / world.period if world.period else 2 * time
        return np.asarray(size * np.sin(2 * math.pi * (turns + random.random())))
    return np.zeros(n)
