"""Plans of rotations, what several of them decide, and the check of the deployed form."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import Comparison, VerdictKind
from pytest_xlatune.model.rotation_score import ProgramChange, RotationScore, copies, is_baseline
from pytest_xlatune.report.words import sentence
from pytest_xlatune.stats.compare import NoComparison
from pytest_xlatune.stats.design import Refusal
from pytest_xlatune.stats.noise import rotation_noise
from pytest_xlatune.stats.rotations import (
    Checked,
    JobPace,
    OrdinaryNoise,
    RotationDecision,
    RotationPlan,
    TurnLayout,
    best_of,
    check_deployed,
    check_jobs,
    decide_rotations,
    fit_rotations,
    job_noise,
    plan_rotations,
)


def planned(profiles: int, jobs: int = 10) -> RotationPlan:
    found = plan_rotations(profiles, jobs)
    assert isinstance(found, RotationPlan)
    return found


@pytest.mark.parametrize(
    ("profiles", "jobs", "widths"),
    [
        pytest.param(25, 10, (25, 8, 8, 8, 8), id="the usual sweep"),
        pytest.param(9, 10, (9, 8, 8, 8, 8), id="one more than decide"),
        pytest.param(8, 10, (8,) * 5, id="few: all rotations decide"),
        pytest.param(1, 10, (1,) * 5, id="one"),
        pytest.param(25, 9, (25, 8, 8, 8), id="the least"),
        pytest.param(25, 50, (25,) + (8,) * 12, id="more jobs than tell anything"),
    ],
)
def test_the_rotations_of_a_sweep(profiles: int, jobs: int, widths: tuple[int, ...]) -> None:
    found = planned(profiles, jobs)
    assert found.widths == widths
    assert found.jobs == len(widths) + 5 <= jobs


@pytest.mark.parametrize(
    ("best", "deciding", "widths"),
    [
        pytest.param(3, 3, (25, 3, 3, 3), id="both"),
        pytest.param(3, 0, (25, 3, 3, 3, 3), id="profiles"),
        pytest.param(0, 1, (25, 8, 8, 8), id="fewer rotations than can decide"),
        pytest.param(40, 40, (25, 25, 25, 25, 25), id="more than there are"),
    ],
)
def test_a_sweep_states_its_deciding_rotations(
    best: int, deciding: int, widths: tuple[int, ...]
) -> None:
    found = plan_rotations(25, 10, best=best, deciding=deciding)
    assert isinstance(found, RotationPlan)
    assert found.widths == widths


@pytest.mark.parametrize(("profiles", "jobs"), [(25, 8), (8, 8), (0, 10)])
def test_too_few_jobs_are_refused_with_the_number_needed(profiles: int, jobs: int) -> None:
    found = plan_rotations(profiles, jobs)
    assert isinstance(found, Refusal)
    needed = found.why.fields["needed"]
    assert f"{needed} are the least" in sentence(found.why)
    if profiles:
        assert isinstance(plan_rotations(profiles, needed), RotationPlan)


@pytest.mark.parametrize("profiles", [1, 8, 25, 60])
@pytest.mark.parametrize("steps", [15, 40, 200])
def test_rotations_run_no_more_steps_than_the_jobs_they_replace(profiles: int, steps: int) -> None:
    plan, jobs = planned(profiles), profiles + 25
    turns = plan.turns(job_steps=steps, jobs=jobs)
    assert turns.rounds >= 2
    assert turns.turn_steps >= 4
    whole = sum(turns.steps(width + plan.copies) for width in plan.widths)
    if (turns.turn_steps, turns.rounds) != (4, 2):
        assert whole <= jobs * steps


@pytest.mark.parametrize(
    ("error", "compile_s", "turn_steps", "rounds"),
    [
        pytest.param(0.01, 90.0, 4, 3, id="turns tell what counts as a change"),
        pytest.param(0.012, 90.0, 4, 4, id="a little more does"),
        pytest.param(0.1, 2.45, 4, 6, id="as long as a program compiles"),
        pytest.param(None, 2.45, 4, 6, id="too few turns to know"),
        pytest.param(0.1, 1.1, 4, 3, id="steps that take longer than a compilation"),
        pytest.param(0.1, 4.85, 6, 8, id="longer turns from nine rounds on"),
        pytest.param(0.9, 900.0, 8, 16, id="never more than a rotation may have"),
    ],
)
def test_noisy_turns_ask_for_more_rounds_where_they_are_cheap(
    error: float | None, compile_s: float, turn_steps: int, rounds: int
) -> None:
    programs = tuple(
        ProgramChange(program=each, change=0.0, error=error, turns=3) for each in (*copies(3), "a")
    )
    ranked = RotationScore(level=0.0, programs=programs, turn_sd=None)
    pace = JobPace(start_s=9.0, step_s=0.1, compile_s=compile_s)
    found = TurnLayout(turn_steps=4, rounds=3).sharpened(ranked, pace)
    assert (found.turn_steps, found.rounds) == (turn_steps, rounds)


def test_a_plan_says_what_it_sees() -> None:
    seen = [planned(25).sees(0.006, share=share) for share in (0, 0.5, 0.75)]
    assert seen == sorted(seen, reverse=True)
    assert 0.010 < seen[0] < 0.015  # simulated: 47 to 53 % of three at +1 %, 97 % at +2 %
    assert planned(25).sees(0.006, share=0.5, of_turns=0.004) > seen[1]
    assert sentence(planned(25).shape) == (
        "a look, a rotation of 25 profiles that ranks, 4 rotations of the best 8 that decide, the "
        "baseline 3 times in each, then up to 4 jobs that check the deployed form"
    )


def rotation(
    effects: dict[str, float], drawn: random.Random, *, own: float, common: float = 0.0
) -> RotationScore:
    """A rotation as its fit would tell it: changes against the mean of the copies."""
    names = (*copies(3), *effects)
    at = {name: effects.get(name, 0.0) + drawn.gauss(0, own) for name in names}
    beside = sum(at[name] for name in copies(3)) / 3
    return RotationScore(
        level=drawn.gauss(0, common) + beside,
        programs=tuple(
            ProgramChange(program=name, change=at[name] - beside, error=0.001, turns=4)
            for name in names
        ),
        turn_sd=0.002,
    )


EFFECTS = {"a": 0.02, "b": -0.03, **{f"n{at}": 0.0 for at in range(6)}}


def rotations(count: int = 5, *, seed: int = 1, common: float = 0.02) -> list[RotationScore]:
    drawn = random.Random(seed)
    return [rotation(EFFECTS, drawn, own=0.003, common=common) for _ in range(count)]


def test_the_best_of_a_ranking_rotation_are_profiles_by_their_change() -> None:
    ranked = rotations(1)[0]
    found = best_of(ranked, width=3, arms=[*EFFECTS, "unseen"])
    assert found[0] == "a"
    assert len(found) == 3
    assert not any(map(is_baseline, found))
    assert "b" not in best_of(ranked, width=7, arms=EFFECTS)


def test_rotations_decide_whatever_jobs_have_in_common() -> None:
    fit = fit_rotations(rotations())
    assert fit is not None
    assert (fit.n_blocks, fit.n_control, fit.df) == (5, 15, 42)
    found = decide_rotations(fit, EFFECTS)
    kinds = {arm: each.kind for arm, each in found.items() if isinstance(each, RotationDecision)}
    assert kinds["a"] is VerdictKind.FASTER
    assert kinds["b"] is VerdictKind.SLOWER
    assert Counter(kinds.values())[VerdictKind.FASTER] == 1


@pytest.mark.parametrize("count", [0, 1])
def test_one_rotation_decides_nothing(count: int) -> None:
    found = decide_rotations(fit_rotations(rotations(count)), ["a"])
    assert isinstance(found["a"], NoComparison) or found["a"].kind is VerdictKind.INCONCLUSIVE


def test_a_profile_that_no_rotation_holds_is_not_compared() -> None:
    found = decide_rotations(fit_rotations(rotations()), ["a", "absent"])
    absent = found["absent"]
    assert isinstance(absent, NoComparison)
    assert absent.reason.kind is Why.NOT_IN_BLOCKS


def test_less_alpha_decides_less() -> None:
    fit = fit_rotations(rotations())
    lowers = []
    for alpha in (0.05, 0.01):
        each = decide_rotations(fit, EFFECTS, alpha=alpha)["a"]
        assert isinstance(each, RotationDecision)
        lowers.append(each.comparison.lower)
    assert lowers[1] < lowers[0]


def test_the_noise_of_a_job_is_told_by_rotations() -> None:
    found = []
    for seed in range(60):
        scores = rotations(6, seed=seed, common=0.004)
        noise = job_noise(scores, fit_rotations(scores))
        assert noise is not None
        assert noise.df >= 5
        found.append(noise.sigma**2)
    assert math.sqrt(sum(found) / 60) == pytest.approx(0.005, rel=0.1)
    assert job_noise(scores[:2], fit_rotations(scores)) is None
    assert job_noise(scores, None) is None


@pytest.mark.parametrize(
    ("won", "counts"),
    [
        pytest.param([], {}, id="nothing won: no job"),
        pytest.param(["a"], {"a": 2, BASELINE_ID: 2}, id="one winner, twice"),
        pytest.param(["a", "b"], {"a": 1, "b": 1, BASELINE_ID: 2}, id="two"),
        pytest.param(["a", "b", "c"], {"a": 1, "b": 1, "c": 1, BASELINE_ID: 1}, id="three"),
        pytest.param(list("abcd"), {"a": 1, "b": 1, "c": 1, BASELINE_ID: 1}, id="a fourth is left"),
    ],
)
def test_the_jobs_of_a_check(won: list[str], counts: dict[str, int]) -> None:
    found = check_jobs(won, rng_seed="1")
    assert Counter(found) == counts
    assert found == check_jobs(won, rng_seed="1")


def compared(estimate: float, error: float = 0.002) -> Comparison:
    reach = 2.0181 * error  # t(.975, 42)
    return Comparison(
        estimate=estimate,
        ci95=(estimate - reach, estimate + reach),
        lower=estimate - 2.6 * error,
        n=5,
        n_baseline=15,
        df=42,
        sigma=0.003,
        mde80=0.008,
        method=Reason(Why.DUNNETT, family=8, blocks=5, baselines=15, alpha=0.05, own=None),
    )


NOISE = OrdinaryNoise(sigma=0.005, df=10)


@pytest.mark.parametrize(
    ("estimate", "own", "beside", "noise", "kind"),
    [
        pytest.param(0.031, [0.03], [0.0], NOISE, Checked.AGREES, id="as in the rotations"),
        pytest.param(0.031, [-0.002], [0.0], NOISE, Checked.CONTRADICTS, id="none of it deployed"),
        pytest.param(0.031, [0.01], [0.0], NOISE, Checked.AGREES, id="less, but noise explains it"),
        pytest.param(0.031, [0.08], [0.0], NOISE, Checked.MORE, id="more deployed"),
        pytest.param(0.015, [-0.002], [0.0], NOISE, Checked.UNTOLD, id="too small to be told"),
        pytest.param(
            0.015, [-0.002] * 9, [0.0] * 9, NOISE, Checked.CONTRADICTS, id="more jobs tell it"
        ),
        pytest.param(0.031, [], [0.0], NOISE, Checked.MISSING, id="its job was lost"),
        pytest.param(0.031, [0.03], [], NOISE, Checked.MISSING, id="the baseline's was"),
        pytest.param(0.031, [0.03], [0.0], None, Checked.MISSING, id="the noise is unknown"),
    ],
)
def test_the_check_of_the_deployed_form(
    estimate: float,
    own: list[float],
    beside: list[float],
    noise: OrdinaryNoise | None,
    kind: Checked,
) -> None:
    found = check_deployed(compared(estimate), own=own, beside=beside, noise=noise)
    assert found.kind is kind
    assert found.withholds is (kind in (Checked.CONTRADICTS, Checked.MISSING))
    assert (found.own, found.beside) == (len(own), len(beside))


def test_copies_of_the_baseline_tell_the_share_in_common() -> None:
    scores = rotations(200, common=0.006)
    found = rotation_noise(scores)
    assert found is not None
    assert found.share == pytest.approx(0.8, abs=0.04)  # .006^2 of .006^2 + .003^2
    assert found.share_low < 0.8 < found.share_high
    assert (found.rotations, found.copies) == (200, 600)
    assert found.own == pytest.approx(0.003, rel=0.1)
    told = [sentence(each) for each in found.found]
    assert "200 rotations" in told[0]
    assert told[1].endswith("%)")
    assert "common to the programs" in told[1]
    few = rotation_noise(scores[:2])
    assert few is not None
    assert "cannot tell" in sentence(few.found[1])
    assert rotation_noise(scores[:1]) is None
