"""What studies have measured, where effects and noise are known: `history(effects, noise)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    BlamedAt,
    Conclusion,
    Finding,
    Outcome,
    RotationResult,
    Score,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.rotation import CompiledProgram, RotationRead, RotationSpec
from pytest_xlatune.model.rotation_score import MeasuredTurn, RotationScore, is_baseline
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.rounds import fit_turns
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy

CELL = Cell(
    model_tag="m",
    parallelism=Parallelism.parse("FSDP=8"),
    per_device_batch_size=7,
    max_target_length=4096,
    deployed={"XLA_FLAGS": "--xla_gpu_autotune_level=4"},
)
TOKENS = 28672.0  # of a step and a device
RULE = RotationRule()
NCCL = profile("channels", env={"NCCL_MIN_NCHANNELS": "16"})
NOT_ACCUSED = "not accused"  # of an arm that is EQUIVALENT, or SCREENED and not low
Effects = Mapping[str, float]
Answer = Callable[[Trial], TrialResult]


def kinds(conclusion: Conclusion) -> dict[str, str]:
    level = (VerdictKind.EQUIVALENT, VerdictKind.SCREENED)
    return {e.arm: NOT_ACCUSED if e.kind in level else str(e.kind) for e in conclusion.verdicts}


def knobs(count: int) -> tuple[Profile, ...]:
    return tuple(profile(f"p{at}", f"--xla_gpu_knob={at}", wave="wave2") for at in range(count))


def study(count: int = 25, **changes: object) -> TuningStudy:
    values = {"cell": CELL, "profiles": knobs(count), "sigma_prior": 0.006} | changes
    return TuningStudy(**values)  # type: ignore[arg-type]


def turning(count: int = 25, **changes: Any) -> TuningStudy:
    return study(count, **({"rotation": RULE, "sigma_prior": None} | changes))


def mixed(**changes: Any) -> TuningStudy:
    """Return a sweep of profiles that rotate, and of two that do not."""
    profiles = (*knobs(12), NCCL, profile("remat", overrides={"remat_policy": "full"}))
    return turning(**({"profiles": profiles} | changes))


def trial_of(cell: Cell, arm: Profile = BASELINE, **changes: object) -> Trial:
    """Return a trial of an arm, of the first wave of tuning unless it is said."""
    values = {
        "cell_digest": cell.digest,
        "profile": arm,
        "protocol": cell.protocol,
        "study": "tuning",
        "stage": "wave1",
    } | changes
    return Trial(**values)  # type: ignore[arg-type]


def measured(trial: Trial, value: float, **changes: object) -> TrialResult:
    values = {
        "value": value,
        "tgs": math.exp(value),
        "step_s": TOKENS / math.exp(value),
        "n_steps": 10,
        "window": (5, 14),
        "window_tgs": math.exp(value),
        "loss": 9.5,
    } | changes
    return TrialResult(
        trial=trial,
        status=TrialStatus.MEASURED,
        score=Score(**values),  # type: ignore[arg-type]
        job_ids=(trial.id,),
    )


def lost(trial: Trial, cls: FailureClass, *, state: State = State.FAILED) -> TrialResult:
    return TrialResult(
        trial=trial,
        status=TrialStatus.UNMEASURED,
        reason=verbatim(str(cls.meaning)),
        findings=(Finding(cls=cls, action=Action.RETRY, text="a line"),),
        outcome=Outcome(state=state),
        job_ids=(trial.id,),
    )


def noise(trial: Trial, size: float, *, seed: int = 0) -> float:
    """Something like a normal deviate, fixed by the trial's place, however its id is made."""
    place = [seed, trial.arm, trial.stage, trial.block, trial.position]
    uniform = [int(digest([place, at], length=8), 16) / 16**8 for at in range(12)]
    return size * (sum(uniform) - 6)


@dataclass
class Machine:
    """What answers trials: jobs and rotations, by effects of known size.

    Attributes:
        effects: gain of a profile, e.g. 0.03; of a stack the product of its parts'.
        sigma: the noise of a job, and of a program in a rotation.
        level: log of the TGS of a job without an effect.
        deployed: gains of jobs that are others than in rotations.
        refused, large: programs that the worker leaves out.
        died_of: programs that the first rotation died of.
        same: profiles whose program has the text of the baseline's.
        finds: whether the worker finds the step.
        fails: trials without a score, by what they are.
        losses: the loss of ordinary jobs, by profile.
    """

    effects: Effects = field(default_factory=dict)
    sigma: float = 0.003
    level: Callable[[Trial], float] = lambda _: 6.9
    deployed: Effects = field(default_factory=dict)
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
            answer = lost(trial, FailureClass.GPU_ECC)
            return replace(answer, rotation=RotationResult()) if trial.rotation else answer
        if trial.rotation is None or trial.rotation.is_look:
            return self.job(trial)
        return self.rotation(trial, trial.rotation.spec)

    def job(self, trial: Trial) -> TrialResult:
        name = trial.profile.id
        value = self.level(trial) + self.effect(name, {**self.effects, **self.deployed})
        value += noise(trial, self.sigma, seed=self.seed)
        answer = measured(trial, value, loss=self.losses.get(name, 9.5))
        if trial.rotation is None:
            return answer
        read = RotationRead(found="train_step" if self.finds else "", trouble="")
        why = None if self.finds else verbatim("no call of a jitted step was seen")
        return replace(answer, rotation=RotationResult(read=read, reason=why))

    def effect(self, name: str, effects: Effects) -> float:
        return sum(math.log1p(effects.get(part, 0.0)) for part in name.split("+"))

    def rotation(self, trial: Trial, spec: RotationSpec) -> TrialResult:
        ran = spec.without({*self.refused, *self.large, *self.died_of})
        names = [program.id for program in ran.programs]
        base = 6.9 - math.log(TOKENS) + noise(trial, 0.003, seed=self.seed)
        values = {
            name: base
            + (0.0 if is_baseline(name) else self.effect(name, self.effects))
            + noise(replace(trial, arm=name), self.sigma, seed=self.seed)
            for name in names
        }
        order = [names[index] for index in ran.order]
        turns = [
            MeasuredTurn(
                program=name,
                before=before,
                round=at // len(spec.programs),
                first_step=ran.first_step + at * ran.turn_steps,
                steps=ran.turn_steps - 2,
                log_step_s=-values[name],
            )
            for at, (before, name) in enumerate(pairwise(["", *order]))
        ]
        score = fit_turns(turns, tokens=TOKENS)
        assert isinstance(score, RotationScore)
        same = {name: BASELINE_ID if name in self.same else "" for name in names}
        read = RotationRead(
            found="train_step",
            compiled=tuple(
                CompiledProgram(program=name, compile_s=1.0, same_as=same[name]) for name in names
            ),
            refused=dict.fromkeys(self.refused, "No such compile option"),
            left_out=dict.fromkeys(self.large, 1 << 37),
        )
        blamed = tuple(
            Blamed(program=name, at=BlamedAt.TURN, cls="segfault", attempt=1)
            for name in self.died_of
        )
        return TrialResult(
            trial=trial,
            status=TrialStatus.MEASURED,
            job_ids=(trial.id,),
            rotation=RotationResult(score=score, read=read, blamed=blamed),
        )


def history(
    effects: Effects | Answer,
    noise: float = 0.003,
    *,
    of: Study,
    seed: int = 0,
    after: Sequence[TrialResult] = (),
    one_by_one: bool = False,
    stop: str = "",
) -> list[TrialResult]:
    """Return what a study has measured when nothing is due any more, or a wave is to `stop` it.

    `effects` are those of profiles, or a machine that answers each trial; `after` was measured
    before. `one_by_one` runs a trial at a time, as one node list does, else all that are due.
    """
    run = effects if callable(effects) else Machine(effects, noise, seed=seed)
    done = list(after)
    while (due := of.decide(done).due) and (not stop or due[0].stage != stop):
        done += map(run, due[:1] if one_by_one else due)
    return done


def arm(*names: str, blocks: Collection[int] = range(99)) -> Callable[[Trial], bool]:
    """Return whether a trial is of these arms, in these blocks: what a change is of."""
    return lambda trial: trial.arm in names and trial.block in blocks


def changed(run: Answer, when: Callable[[Trial], bool], **fields: object) -> Answer:
    """Return a machine on which some of the scores have other fields; a function gets the score."""

    def answer(trial: Trial) -> TrialResult:
        result = run(trial)
        if result.score is None or not when(trial):
            return result
        score = result.score
        values = {name: each(score) if callable(each) else each for name, each in fields.items()}
        return replace(result, score=replace(score, **values))

    return answer


def failing(
    run: Answer,
    when: Callable[[Trial], bool],
    status: TrialStatus = TrialStatus.UNMEASURED,
    why: str = "gone",
    **fields: object,
) -> Answer:
    """Return a machine on which some of the trials have no score."""

    def answer(trial: Trial) -> TrialResult:
        if not when(trial):
            return run(trial)
        values = {"job_ids": (trial.id,), **fields}
        return TrialResult(trial=trial, status=status, reason=verbatim(why), **values)  # type: ignore[arg-type]

    return answer


def verdict(conclusion: Conclusion, profile_id: str) -> Verdict:
    found = conclusion.verdict(profile_id)
    assert found is not None
    return found
