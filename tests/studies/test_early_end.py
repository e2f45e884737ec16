"""Which screened trials end early: those that no rank that matters is left for, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.result import Score, StepRecord, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.score import ENDED_EARLY, first_steps, score, score_so_far
from pytest_xlatune.stats.window import Window
from pytest_xlatune.studies.trials import moved
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.answers import CELL, drive, noise, study, verdict

LONG = replace(CELL, protocol=Protocol(steps=40))
SLOW = {"p3": -0.20}


def records(trial: Trial, effect: float, *, warm: float = 0.0) -> list[StepRecord]:
    """The steps of a trial; `warm` is by how much all trials are slow at first, and how long."""
    rate = 1000 * math.exp(math.log1p(effect) + noise(trial, 0.003))
    return [
        StepRecord(step=at, step_s=28672 / each, tgs=each, loss=11 - 0.05 * at)
        for at in range(trial.protocol.steps)
        for each in [rate * math.exp(-warm * math.exp(-at / 8))]
    ]


def whole(trial: Trial, effect: float, *, warm: float = 0.0) -> TrialResult:
    steps = records(trial, effect, warm=warm)
    found = score(steps, protocol=trial.protocol, tokens_per_device_step=None)
    assert isinstance(found, Score)
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=found, job_ids=(trial.id,))


def begun(trial: Trial, effect: float, *, warm: float = 0.0) -> TrialResult:
    """The trial after its first steps."""
    steps = [each for each in records(trial, effect, warm=warm) if each.step < 11]
    found = score_so_far(steps, protocol=trial.protocol, tokens_per_device_step=None)
    assert isinstance(found, Score)
    return TrialResult(trial=trial, status=TrialStatus.RUNNING, score=found)


def ended(of: TuningStudy, *, warm: float = 0.0) -> tuple[list[str], list[TrialResult]]:
    """Run the screen; return the arms that ended early, and the history."""
    history: list[TrialResult] = []
    early = []
    for trial in (each for each in of.propose([]) if not each.block):
        effect = SLOW.get(trial.arm, 0.0)
        running = begun(trial, effect, warm=warm)
        if of.behind(history, running) is not None:
            early.append(trial.arm)
            history.append(replace(running, status=TrialStatus.MEASURED, job_ids=(trial.id,)))
        else:
            history.append(whole(trial, effect, warm=warm))
    return early, history


def place_last(of: TuningStudy, arm: str) -> TuningStudy:
    """Return the sweep with an arm behind all others: in a wave of its own."""
    later = tuple(replace(e, wave="wave3") if e.id == arm else e for e in of.profiles)
    return replace(of, profiles=later)


ON = place_last(study(12, cell=LONG, early_end="on"), "p3")


def test_only_the_hopeless_one_ends_early_and_only_where_it_is_asked_for() -> None:
    assert ended(ON)[0] == ["p3"]
    assert ended(replace(ON, early_end="off"))[0] == []
    assert study(12).early_end == "off"


def test_the_first_steps_are_as_few_as_a_score_needs() -> None:
    first = first_steps(LONG.protocol)
    assert first is not None
    assert (first.first_step, first.last_step) == (5, 10)
    assert first_steps(Protocol(steps=11)) is None, "nothing is left to save"
    assert first_steps(Protocol(steps=40, metric="first-step")) is None


def trial_of(of: TuningStudy, arm: str, history: list[TrialResult]) -> Trial:
    return next(each for each in of.propose(history) if each.arm == arm)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda t: replace(t, block=1), "a block decides", id="in a block"),
        pytest.param(lambda t: replace(t, study="gate-1"), "of another study", id="another study"),
        pytest.param(
            lambda t: replace(t, protocol=replace(t.protocol, metric="none")), "", id="no score"
        ),
    ],
)
def test_no_other_trial_ends_early(change: Callable[[Trial], Trial], why: str) -> None:
    _, history = ended(replace(ON, early_end="off"))
    before = [each for each in history if each.trial.arm != "p3"]
    trial = trial_of(ON, "p3", before)
    running = begun(trial, -0.2)
    assert ON.behind(before, running) is not None
    assert ON.behind(before, replace(running, trial=change(trial))) is None, why
    baseline = next(each.trial for each in history if each.trial.is_baseline)
    assert ON.behind(before, replace(begun(baseline, -0.2), trial=baseline)) is None


def test_nothing_ends_while_too_few_are_screened_or_the_noise_is_assumed() -> None:
    _, history = ended(replace(ON, early_end="off"))
    others = [each for each in history if each.trial.arm != "p3"]
    running = begun(trial_of(ON, "p3", others), -0.2)
    profiles = [each for each in others if not each.trial.is_baseline]
    baselines = [each for each in others if each.trial.is_baseline]
    most = ON.layout.finalists  # type: ignore[union-attr]
    assert ON.behind([*baselines, *profiles[:most]], running) is not None
    assert ON.behind([*baselines, *profiles[: most - 1]], running) is None
    assumed = replace(ON, sigma_prior=None)
    assert assumed.behind([*baselines, *profiles[:8]], running) is None
    assert assumed.behind([*baselines, *profiles], running) is not None


def test_what_noise_may_explain_runs_on_and_doubtful_steps_too() -> None:
    _, history = ended(replace(ON, early_end="off"))
    before = [each for each in history if each.trial.arm != "p3"]
    trial = trial_of(ON, "p3", before)
    assert ON.behind(before, begun(trial, -0.025)) is None
    running = begun(trial, -0.2)
    assert running.score
    doubtful = replace(running.score, flags=(*running.score.flags, "not-steady"))
    assert ON.behind(before, replace(running, score=doubtful)) is None


def test_a_long_warm_up_of_all_makes_none_look_slow() -> None:
    """By 8 % slow in the first steps, as all others are: compared with the whole windows of the
    others it would be far behind."""
    calm = replace(ON, profiles=tuple(each for each in ON.profiles if each.id != "p3"))
    assert ended(calm, warm=0.2)[0] == []
    assert ended(ON, warm=0.2)[0] == ["p3"]


def test_its_value_ranks_is_told_and_decides_nothing() -> None:
    _, history = ended(ON)
    done = drive(ON, lambda trial: whole(trial, SLOW.get(trial.arm, 0.0)), history)
    concluded = ON.conclude(done)
    found = verdict(concluded, "p3")
    assert found.kind is VerdictKind.SCREENED
    assert found.delta == pytest.approx(-0.2, abs=0.02)
    assert any("ended early after step 10" in each for each in found.reasons)
    assert any("to become finalists: p3;" in each for each in concluded.notes)
    assert "p3" not in concluded.tuning.finalists
    same = replace(ON, early_end="off")
    plain = same.conclude(drive(same, lambda t: whole(t, SLOW.get(t.arm, 0.0))))
    kinds = {each.arm: each.kind for each in concluded.verdicts}
    assert kinds == {each.arm: each.kind for each in plain.verdicts}


def test_in_a_window_that_moved_fewer_steps_do_and_none_stay_as_they_were() -> None:
    running = begun(ON.propose([])[-1], -0.2)
    short = replace(running, status=TrialStatus.MEASURED)
    later = Window(protocol=replace(LONG.protocol, first_step=8), is_moved=True)
    found = moved(short, later).score
    assert found is not None
    assert found.window == (8, 10)
    assert ENDED_EARLY in found.flags
    gone = Window(protocol=replace(LONG.protocol, first_step=20), is_moved=True)
    assert moved(short, gone) == short
