"""Clusters that answer a tuning study: by the settings that are set, and by turns of rotations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.cell import Parallelism
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import BASELINE_ID, Profile, profile, settings_of
from pytest_xlatune.model.result import Blamed, BlamedAt, RotationResult, TrialResult, TrialStatus
from pytest_xlatune.model.rotation import CompiledProgram, RotationRead, RotationSpec
from pytest_xlatune.model.rotation_score import MeasuredTurn, RotationScore, is_baseline
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.rounds import fit_turns
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from tests.helpers import history
from tests.helpers.history import Answer, knobs, lost, measured, noise, study

CELL = replace(history.CELL, parallelism=Parallelism.parse("PP=8"))
GIB = 1 << 30
AG = "xla_gpu_all_gather_combine_threshold_bytes"
LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"

SINGLES = (
    profile("overlap-2", f"--{LIMIT}=2"),
    profile("overlap-4", f"--{LIMIT}=4"),
    profile("ag-1g", f"--{AG}={GIB}"),
    profile("double", "--xla_gpu_enable_while_loop_double_buffering=true"),
    profile("tree", env={"NCCL_ALGO": "Tree"}),
    profile("default", "--xla_gpu_autotune_level=4"),
    *(profile(f"hurts-{at}", f"--xla_gpu_knob={at}") for at in range(4)),
)
GAINS = {"overlap-2": 0.03, "overlap-4": 0.022, "ag-1g": 0.025, "double": 0.015, "tree": 0.01}


def effect(settings: Profile, gains: Mapping[str, float]) -> float:
    """Log gain of a profile: that of each single whose settings it has."""
    own = settings_of(settings).items()
    return sum(
        gains.get(each.id, 0.0) if each.id in gains else -0.05 * each.id.startswith("hurts")
        for each in SINGLES
        if settings_of(each).items() <= own
    )


def cluster(gains: Mapping[str, float] = GAINS, *, sigma: float = 0.001) -> Answer:
    return lambda trial: measured(trial, 6.9 + effect(trial.profile, gains) + noise(trial, sigma))


def of_wave(history: Sequence[TrialResult], wave: str) -> set[str]:
    return {
        each.trial.profile.id
        for each in history
        if each.trial.stage == wave and not each.trial.is_baseline
    }


def slots_of(sweep: TuningStudy, done: Sequence[TrialResult]) -> dict[str, str]:
    """Return the profile of each slot of the derived waves that are filled."""
    return {name: each.id for name, each in sweep.state(done).ranked.arms.slots.items()}


TOKENS = 28672.0


@dataclass
class Machine:
    """What answers trials: rotations, and jobs beside them, by effects of known size.

    Attributes:
        effects: by profile, in rotations; `deployed` where jobs have another.
        refused, large: programs that the worker leaves out.
        died_of: of the first rotation.
        same: profiles whose program has the text of the baseline's.
        finds: whether the worker finds the step.
        fails: trials without a score, by what they are.
        losses: by profile, of ordinary jobs.
    """

    effects: Mapping[str, float] = field(default_factory=dict)
    deployed: Mapping[str, float] = field(default_factory=dict)
    sigma: float = 0.003
    refused: Sequence[str] = ()
    large: Sequence[str] = ()
    died_of: Sequence[str] = ()
    same: Sequence[str] = ()
    finds: bool = True
    fails: Callable[[Trial], bool] = lambda _: False
    losses: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __call__(self, trial: Trial) -> TrialResult:
        if self.fails(trial):
            found = lost(trial, FailureClass.GPU_ECC)
            return replace(found, rotation=RotationResult()) if trial.rotation else found
        if trial.rotation is None or trial.rotation.is_look:
            return self.job(trial)
        return self.rotation(trial, trial.rotation.spec)

    def job(self, trial: Trial) -> TrialResult:
        effects = {**self.effects, **self.deployed}
        value = 6.9 + math.log1p(self.effect(trial.profile.id, effects))
        found = measured(
            trial,
            value + noise(trial, self.sigma, seed=self.seed),
            loss=self.losses.get(trial.profile.id, 9.5),
        )
        if trial.rotation is None:
            return found
        read = RotationRead(found="train_step" if self.finds else "", trouble="")
        why = None if self.finds else verbatim("no call of a jitted step was seen")
        return replace(found, rotation=RotationResult(read=read, reason=why))

    def effect(self, name: str, effects: Mapping[str, float]) -> float:
        parts = [effects.get(each, 0.0) for each in name.split("+")]
        return math.prod(1 + each for each in parts) - 1

    def rotation(self, trial: Trial, spec: RotationSpec) -> TrialResult:
        gone = {*self.refused, *self.large, *self.died_of}
        ran = spec.without(gone)
        names = [each.id for each in ran.programs]
        base = 6.9 - math.log(TOKENS) + noise(trial, 0.003, seed=self.seed)
        own = {
            name: base
            + math.log1p(0.0 if is_baseline(name) else self.effect(name, self.effects))
            + noise(replace(trial, arm=name), self.sigma, seed=self.seed)
            for name in names
        }
        turns, before = [], ""
        for at, index in enumerate(ran.order):
            turns.append(
                MeasuredTurn(
                    program=names[index],
                    before=before,
                    round=at // len(spec.programs),
                    first_step=ran.first_step + at * ran.turn_steps,
                    steps=ran.turn_steps - 2,
                    log_step_s=-own[names[index]],
                )
            )
            before = names[index]
        score = fit_turns(turns, tokens=TOKENS)
        assert isinstance(score, RotationScore)
        read = RotationRead(
            found="train_step",
            compiled=tuple(
                CompiledProgram(
                    program=each, compile_s=1.0, same_as=BASELINE_ID if each in self.same else ""
                )
                for each in names
            ),
            refused=dict.fromkeys(self.refused, "No such compile option"),
            left_out=dict.fromkeys(self.large, 1 << 37),
        )
        blamed = tuple(
            Blamed(program=each, at=BlamedAt.TURN, cls="segfault", attempt=1)
            for each in self.died_of
        )
        return TrialResult(
            trial=trial,
            status=TrialStatus.MEASURED,
            job_ids=(trial.id,),
            rotation=RotationResult(score=score, read=read, blamed=blamed),
        )


RULE = RotationRule()
NCCL = profile("channels", env={"NCCL_MIN_NCHANNELS": "16"})


def turning(count: int = 25, **changes: Any) -> TuningStudy:
    return study(count, **({"rotation": RULE, "sigma_prior": None} | changes))


def mixed(**changes: Any) -> TuningStudy:
    own = (*knobs(12), NCCL, profile("remat", overrides={"remat_policy": "full"}))
    return turning(**({"profiles": own} | changes))
