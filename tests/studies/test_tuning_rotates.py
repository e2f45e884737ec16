"""A sweep whose profiles take turns: rotations rank, ordinary jobs in the deployed form decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.model.result import (
    Conclusion,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.rotation_score import is_baseline
from pytest_xlatune.model.trial import ROTATION, Trial
from pytest_xlatune.stats.rotations import COMPILE_SHARE, FIRST_STEPS, JobPace, JobWork
from pytest_xlatune.studies import Answered, Ask, Question, as_begun
from pytest_xlatune.studies.derived import Stacks
from pytest_xlatune.studies.trials import CONFIRM, LOOK_STAGE, TURNS, pace_of
from pytest_xlatune.studies.tuning import RotationRule
from tests.helpers.history import CELL, history, knobs, study, verdict
from tests.helpers.turn_answers import NCCL, Machine, mixed, turning

USUAL = RotationRule(is_usual=True)
REFERENCE = Question(about=Ask.REFERENCE, name=BASELINE_ID)


def stages(done: Sequence[TrialResult]) -> list[tuple[str, int]]:
    return [(each.trial.stage, each.trial.block) for each in done]


def programs(trial: Trial) -> list[str]:
    assert trial.rotation
    return [each.id for each in trial.rotation.spec.programs if not is_baseline(each.id)]


def paced(run: Machine, *, step_s: float, compile_s: float) -> Callable[[Trial], TrialResult]:
    """Answer a look with so long a step, and a start of which a part compiles."""

    def answer(trial: Trial) -> TrialResult:
        found = run(trial)
        if found.score is None or found.rotation is None:
            return found
        ended = Outcome(state=State.COMPLETED, start_s=0.0, end_s=compile_s / COMPILE_SHARE)
        return replace(found, outcome=ended, score=replace(found.score, step_s=step_s))

    return answer


def test_25_profiles_in_25_jobs() -> None:
    sweep = turning(rotation=USUAL)
    run = Machine({"p3": 0.03, "p7": 0.025, "p11": -0.1})
    done = history(paced(run, step_s=0.1, compile_s=4.0), of=sweep)
    blocks = [*[(CONFIRM, 1)] * 7, *[(CONFIRM, at) for at in (2, 3, 4) for _ in range(5)]]
    assert stages(done) == [(LOOK_STAGE, 0), (TURNS, 0), (TURNS, 0), *blocks]
    first, second = [each.trial for each in done if each.trial.stage == TURNS]
    assert programs(first) == [each.id for each in sweep.profiles], "what may abort can stand first"
    assert first.rotation
    assert second.rotation
    assert len(first.rotation.spec.programs) == 28
    assert first.protocol.steps == first.rotation.steps
    assert first.rotation.spec.first_step == FIRST_STEPS
    assert first.deadline_s > CELL.protocol.deadline_s
    assert first.rotation.spec.order != second.rotation.spec.order, "each draws its own"
    assert ROTATION not in {each.id for each in sweep.decide(()).arms}
    found = sweep.decide(done).conclusion
    assert (found.complete, found.alpha) == (True, 0.05)
    assert sum(each.kind is VerdictKind.FASTER for each in found.verdicts) == 2
    best, ranked = verdict(found, "p3"), verdict(found, "p11")
    assert (best.n, found.winner and found.winner.arm) == (4, "p3")
    assert sentence(best.method).startswith("Dunnett, K=5, 4 blocks")
    assert "turns prove nothing" in ranked.reasons[0].text
    assert ranked.delta == pytest.approx(-0.1, abs=0.01)
    assert found.tuning.bound is None, "what only took turns is not ruled out"
    assert best.tgs == pytest.approx((found.baseline.tgs or 0) * (1 + (best.delta or 0)))
    for words in ("25 profiles took turns", "2 rotations"):
        assert words in sentence(found.notes[0])
    assert Conclusion.from_json(found.to_json()) == found
    # a budget buys blocks
    jobs = [history(run, of=turning(budget=each)) for each in (25, 30, 50)]
    assert [len(each) for each in jobs] == [24, 29, 46]
    assert [max(block for _, block in stages(each)) for each in jobs] == [4, 5, 8]


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        pytest.param(Machine({"p3": 0.05}, deployed={"p3": 0.0}), "EQUIVALENT",
                     id="fast in turns alone"),
        pytest.param(Machine({"p3": 0.05}, deployed={"p3": 0.15}), "FASTER", id="more deployed"),
        pytest.param(Machine({"p3": 0.05}, losses={"p3": 7.0}), "INVALID",
                     id="another loss deployed"),
        pytest.param(Machine({"p3": 0.05}, fails=lambda e: e.block > 0 and e.arm == "p3"),
                     "INVALID", id="its jobs are lost"),
        pytest.param(Machine({f"p{at}": -0.05 for at in range(12)}), "SCREENED",
                     id="slow in turns, which is never called slower"),
    ],
)  # fmt: skip
def test_what_jobs_say_of_the_deployed_form_is_the_verdict(machine: Machine, kind: str) -> None:
    sweep = turning(12)
    conclusion = sweep.decide(history(machine, of=sweep)).conclusion
    assert str(verdict(conclusion, "p3").kind) == kind
    assert conclusion.complete
    assert (conclusion.tuning.recipe is not None) is (kind == "FASTER")
    for each in conclusion.verdicts:
        assert each.kind is not VerdictKind.SLOWER
        assert not each.is_likely_slower, "turns claim nothing"
        assert all(map(sentence, each.reasons))


def test_programs_that_are_left_out_say_why() -> None:
    machine = Machine({"p3": 0.04}, refused=["p4"], large=["p5"], died_of=["p6"], same=["p7"])
    sweep = turning(12)
    done = history(paced(machine, step_s=0.1, compile_s=4.0), of=sweep)
    second = [each.trial for each in done if each.trial.stage == TURNS][1]
    found = sweep.decide(done).conclusion
    left_out = {"p4": "No such compile option", "p5": "it needs", "p6": "died of it"}
    for name, why in left_out.items():
        each = verdict(found, name)
        assert (each.kind, each.can_run) == (VerdictKind.INVALID, False)
        assert why in sentence(each.reasons[0])
    assert not left_out.keys() & {*programs(second)}, "it dies of nothing twice"
    assert not left_out.keys() & {*found.tuning.finalists}
    assert verdict(found, "p7").kind is not VerdictKind.INVALID, "an equal text is no equal program"
    assert verdict(found, "p3").kind is VerdictKind.FASTER


def dropped_in(stage: str) -> Callable[[Trial], TrialResult]:
    drops, runs = Machine(fails=lambda _: True), Machine({"p3": 0.04})
    return lambda e: replace(drops(e), status=TrialStatus.DROPPED) if e.stage == stage else runs(e)


@pytest.mark.parametrize(
    ("run", "spent", "said"),
    [
        (Machine({"p3": 0.04}, finds=False), 1, "programs cannot take turns: no call of"),
        (dropped_in(LOOK_STAGE), 1, "programs cannot take turns: a GPU's memory"),
        (dropped_in(TURNS), 2, "the first rotation measured nothing"),
    ],
    ids=["no step is found", "the look is dropped", "the first rotation is dropped"],
)
def test_where_the_trainer_cannot_rotate_all_profiles_are_jobs(
    run: Callable[[Trial], TrialResult], spent: int, said: str
) -> None:
    sweep = turning()
    done = history(run, of=sweep)
    assert sum(each.trial.rotation is not None for each in done) == spent
    assert len(done) <= sweep.budget
    found = sweep.decide(done).conclusion
    assert (found.complete, found.alpha) == (True, 0.05)
    assert verdict(found, "p3").kind is VerdictKind.FASTER
    assert said in sentence(found.notes[0])
    assert sweep.answer(done, REFERENCE).state is Answered.YES
    # 43 jobs would screen 25 profiles each by its own and confirm as stated; there are 29
    stated = turning(25, finalists=3, blocks=3, budget=30)
    assert stated.outlook(()).lines, "a plan compares it with one of jobs"
    assert len(history(run, of=stated)) <= 30


@pytest.mark.parametrize("stage", [LOOK_STAGE, TURNS])
def test_what_could_not_be_measured_turns_no_profile_into_a_job(stage: str) -> None:
    """A cancel, a node, a full disk: the sweep has stopped, and the next session tries it again."""
    sweep = turning()
    done = history(Machine({"p3": 0.04}, fails=lambda each: each.stage == stage), of=sweep)
    assert {each.trial.stage for each in done} <= {LOOK_STAGE, TURNS, CONFIRM}
    found = sweep.decide(done).conclusion
    assert found.complete is (stage == LOOK_STAGE), "nothing was ranked, and no block decided"
    assert "profiles are jobs" not in " ".join(each.text for each in found.notes)


def test_profiles_that_cannot_rotate_stand_in_the_same_list_of_ranks() -> None:
    sweep = mixed(rotation=USUAL)
    done = history(Machine({"p3": 0.04, "channels": 0.06, "remat": -0.2}), of=sweep)
    assert len(done) == 2 + 2 + 3 + 22
    found = sweep.decide(done).conclusion
    assert {each.arm for each in found.verdicts if each.wins} == {"p3", "channels"}
    assert found.winner
    assert found.winner.arm == "channels", "one recipe of one sweep"
    assert verdict(found, "remat").is_likely_slower, "a job says so"
    assert {each.arm for each in found.verdicts} == {each.id for each in sweep.profiles}
    alone = {each.trial.arm for each in done if each.trial.is_screened and not each.trial.rotation}
    assert alone == {"channels", "remat", BASELINE_ID}
    # a part of it runs what it selects
    for chosen, has_turns in (("channels", False), ("p3", True)):
        part = mixed(selected=frozenset({chosen}), confirm=False)
        done = history(Machine(), of=part)
        assert any(each.trial.rotation for each in done) is has_turns
        question = Question(about=Ask.SCREENED, name=chosen, wave="wave2")
        assert part.answer(done, question).state is Answered.YES
        assert part.answer((), question).state is Answered.NOT_YET


SLOTTED = {"slots": (("n1",), ("n2",)), "cell": replace(CELL, nodelist=("n1",))}


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"profiles": (NCCL,)}, "no profile rotates: "), (SLOTTED, "several node slots")],
)
def test_where_nothing_rotates_the_plan_says_why(changes: dict[str, Any], words: str) -> None:
    sweep = turning(**changes)
    assert not sweep.rotates
    assert words in sentence(sweep.outlook(()).lines[0])
    assert not any(each.rotation for each in sweep.decide(()).due)


def test_a_plan_says_which_way_profiles_go_and_what_it_costs() -> None:
    told = [sentence(each) for each in mixed(rotation=USUAL).outlook(()).lines]
    assert "p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11. A look, then 1 " in told[0]
    assert any("channels" in line and "NCCL_MIN_NCHANNELS" in line for line in told)
    for words in ("as jobs: remat, because", "with rotation 29 jobs", "with 80 % power"):
        assert any(words in each for each in told), words
    ahead = mixed().outlook(()).ahead
    assert [each.stage for each in ahead[:2]] == [LOOK_STAGE, TURNS]
    assert {each.arm for each in ahead[2:]} == {"channels", "remat", BASELINE_ID}
    # 60 profiles are two jobs and 22 behind them: the budget is asked for what is really run
    assert turning(60, rotation=USUAL).outlook(()).left == 24
    with pytest.raises(ConfigError, match="need"):
        turning(12, budget=2)
    # what is left counts rotations by their steps and programs
    sweep = turning(rotation=USUAL)
    done = history(Machine({"p3": 0.03}), of=sweep)
    works = [sweep.outlook(done[:at]).work for at in range(3)]
    assert [each.jobs if each else None for each in works] == [24, 23, None]
    assert sweep.works[0].jobs == 24
    assert study(25).outlook(()).work is None, "ordinary jobs are alike"


@pytest.mark.parametrize(
    ("pace", "rotates"),
    [
        (None, True),  # guessed from the limit
        (JobPace(start_s=60, step_s=1, compile_s=5, jobs=2), True),
        (JobPace(start_s=60, step_s=1, compile_s=600, jobs=2), False),
    ],
)
def test_a_sweep_that_must_save_rotates_where_that_takes_less_time(
    pace: JobPace | None, *, rotates: bool
) -> None:
    sweep = turning(rotation=replace(USUAL, must_save=True, pace=pace))
    assert sweep.rotates is rotates
    assert ("the plan takes 25 jobs" in sentence(sweep.outlook(()).lines[0])) is not rotates
    # a session goes on with the pace that it began with
    later = turning(rotation=replace(USUAL, must_save=True))
    assert as_begun(later, sweep.to_json()).rotates is rotates


def test_the_pace_of_a_job_is_that_of_what_ran() -> None:
    look, rotation, *_ = history(Machine(), of=turning())
    assert pace_of((rotation,)) is None, "no trainer ran alone"
    assert look.score
    seconds = 50 + 2.0 * look.trial.protocol.steps
    ended = replace(
        look,
        score=replace(look.score, step_s=2.0),
        outcome=Outcome(state=State.COMPLETED, start_s=100.0, end_s=100.0 + seconds),
    )
    told = pace_of((ended,))
    assert told == JobPace(start_s=50, step_s=2, compile_s=COMPILE_SHARE * 50, jobs=1)
    told = pace_of((ended, rotation))
    assert told
    assert (told.compile_s, told.compilations) == (1.0, 28)
    assert JobWork(jobs=2, steps=30, compilations=4).seconds(told) == 2 * 50 + 30 * 2 + 4


def test_profiles_that_waves_derive_rotate_too() -> None:
    own = tuple(profile(f"p{at}", f"--xla_gpu_knob_{at}=1", wave="wave2") for at in range(8))
    sweep = turning(profiles=own, derived=(Stacks(wave="wave3", slots=3),), budget=50)
    done = history(Machine({"p1": 0.03, "p2": 0.03}), of=sweep)
    found = sweep.decide(done).conclusion
    assert found.winner
    assert found.winner.arm == "p1+p2"
    assert not any(each.trial.is_screened for each in done), "no job ranks"
    assert len(done) <= sweep.budget


def test_a_profile_that_is_added_or_edited_is_ranked_anew() -> None:
    run = Machine({"p3": 0.03, "p12": 0.04})
    done = history(run, of=turning(12))
    later = turning(13)
    (trial,) = later.decide(done[:2]).due
    assert programs(trial) == ["p12"]
    assert trial.rotation
    assert trial.rotation.number == 2
    whole = history(run, of=later, after=done[:2])
    assert verdict(later.decide(whole).conclusion, "p12").kind is VerdictKind.FASTER
    edited = turning(profiles=(*knobs(3), profile("p3", "--xla_gpu_other=1"), *knobs(12)[4:]))
    assert verdict(edited.decide(done).conclusion, "p3").kind is not VerdictKind.FASTER


@pytest.mark.parametrize("count", [1, 2])
def test_ranks_that_rotations_gave_stay_once_rotation_is_off(count: int) -> None:
    run = Machine({"p3": 0.04})
    done = history(run, of=turning(12))[:count]
    plain = study(12, sigma_prior=None)
    due = {each.arm for each in plain.decide(done).due if not each.block}
    assert due == ({BASELINE_ID} if count > 1 else {BASELINE_ID, *(e.id for e in plain.profiles)})
    later = history(run, of=plain, after=done)
    assert verdict(plain.decide(later).conclusion, "p3").kind is VerdictKind.FASTER


def test_what_jobs_ranked_takes_no_turns_once_rotation_is_on() -> None:
    plain = study(12, sigma_prior=None)
    whole = history({"p3": 0.04}, of=plain)
    screen = [each for each in whole if not each.trial.block]
    for done, due in ((screen, set()), (screen[:4], {LOOK_STAGE})):
        assert {each.stage for each in turning(12).decide(done).due if not each.block} == due
    assert turning(12).decide(whole).due == (), "a sweep that is over stays so"
