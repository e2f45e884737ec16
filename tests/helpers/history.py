"""What studies have measured, where effects and noise are known: `history(effects, noise)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    Outcome,
    Score,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.tuning import TuningStudy

CELL = Cell(
    model_tag="m",
    parallelism=Parallelism.parse("FSDP=8"),
    per_device_batch_size=7,
    max_target_length=4096,
    deployed={"XLA_FLAGS": "--xla_gpu_autotune_level=4"},
)
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
        "step_s": 28672 / math.exp(value),
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


def cluster(effects: Effects, sigma: float = 0.003, *, seed: int = 0) -> Answer:
    """Return a machine on which each profile gains what `effects` says, with noise."""

    def run(trial: Trial) -> TrialResult:
        effect = math.log1p(effects.get(trial.profile.id, 0.0))
        return measured(trial, 6.9 + effect + noise(trial, sigma, seed=seed))

    return run


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
    run = effects if callable(effects) else cluster(effects, noise, seed=seed)
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
