"""A sweep whose profiles take turns: a look, rotations, the check by jobs, verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE_ID, Profile, profile
from pytest_xlatune.model.reason import Why, verbatim
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
from pytest_xlatune.report.words import sentence
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.stats.rotations import COMPILE_SHARE, JobPace, JobWork
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.derived import Stacks
from pytest_xlatune.studies.trials import CHECK, LOOK, TURNS, pace_of
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.studies.ways import FIRST_STEPS, RotationRule, Ways, both_plans
from tests.helpers.answers import CELL, drive, knobs, study, verdict
from tests.helpers.turn_answers import NCCL, Machine, mixed, turning


def stages(done: Sequence[TrialResult]) -> list[tuple[str, int]]:
    return [(each.trial.stage, each.trial.block) for each in done]


def test_without_the_rule_a_sweep_is_what_it_was() -> None:
    plain = study(25)
    assert not plain.rotates
    assert TuningStudy.from_json(turning(25).to_json()) == turning(25)


def test_25_profiles_in_ten_jobs() -> None:
    sweep = turning()
    done = drive(sweep, Machine({"p3": 0.03, "p7": 0.025, "p11": -0.1}))
    assert stages(done) == [
        (LOOK, 0),
        (TURNS, 0),
        *[(TURNS, at) for at in (1, 2, 3, 4)],
        *[(CHECK, 1)] * 4,
    ]
    first, *_, last = [each.trial for each in done if each.trial.stage == TURNS]
    assert first.rotation
    assert last.rotation
    assert len(first.rotation.spec.programs) == 28
    assert len(last.rotation.spec.programs) == 11
    compiled = [each.id for each in first.rotation.spec.programs if not is_baseline(each.id)]
    assert compiled == [each.id for each in sweep.profiles], "what may abort can stand first"
    assert first.protocol.steps == first.rotation.steps
    assert first.rotation.spec.first_step == FIRST_STEPS
    assert first.deadline_s > CELL.protocol.deadline_s
    orders = {each.trial.rotation.spec.order for each in done if each.trial.rotation}
    assert len(orders) == 6, "each rotation draws its own"
    found = sweep.conclude(done)
    assert found.complete
    assert found.alpha == 0.05
    kinds = Counter(each.kind for each in found.verdicts)
    assert kinds[VerdictKind.FASTER] == 2
    assert kinds[VerdictKind.SCREENED] >= 17
    best = verdict(found, "p3")
    assert best.kind is VerdictKind.FASTER
    assert (best.n, found.winner and found.winner.arm) == (4, "p3")
    assert best.ci95
    assert best.ci95[0] < 0.03 < best.ci95[1]
    assert sentence(best.reasons[1]).endswith("they agree")
    assert best.method
    assert sentence(best.method).startswith("4 rotations; Dunnett, K=")
    assert "p11" not in found.tuning.finalists
    assert found.reference
    assert found.reference.tgs
    assert found.reference.tgs == pytest.approx(math.exp(6.9), rel=0.01)
    assert best.tgs == pytest.approx(found.reference.tgs * (1 + (best.delta or 0)))
    assert sentence(found.notes[0]).startswith("25 profiles took turns: 5 rotations with ")
    assert Conclusion.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("error", "rounds"), [(0.002, 2), (0.05, 6)], ids=["quiet turns", "noisy turns"]
)
def test_rotations_decide_with_more_rounds_where_turns_were_noisy(
    error: float, rounds: int
) -> None:
    sweep, machine = turning(12), Machine({"p3": 0.03})
    seen = []

    def run(trial: Trial) -> TrialResult:
        found = machine(trial)
        rotation, ended = found.rotation, Outcome(state=State.COMPLETED, start_s=0.0, end_s=900.0)
        if trial.stage != TURNS or rotation is None or not rotation.score or not rotation.read:
            return replace(found, outcome=ended)
        assert trial.rotation
        spec = trial.rotation.spec
        seen.append((trial.block, len(spec.order) // len(spec.programs)))
        programs = tuple(replace(each, error=error) for each in rotation.score.programs)
        # a step of the look takes 29 s
        compiled = tuple(replace(each, compile_s=700.0) for each in rotation.read.compiled)
        rotation = replace(
            rotation,
            score=replace(rotation.score, programs=programs),
            read=replace(rotation.read, compiled=compiled),
        )
        return replace(found, rotation=rotation)

    done = drive(sweep, run)
    assert seen == [(0, 2), *((block, rounds) for block in (1, 2, 3, 4))]
    assert verdict(sweep.conclude(done), "p3").kind is VerdictKind.FASTER
    assert sweep.left(done) == 0


def test_a_rotation_that_a_time_limit_cut_is_told_in_the_notes() -> None:
    sweep, machine = turning(12), Machine()

    def run(trial: Trial) -> TrialResult:
        found, state = machine(trial), State.TIMEOUT if trial.block == 2 else State.COMPLETED
        return replace(found, outcome=Outcome(state=state))

    notes = [sentence(each) for each in sweep.conclude(drive(sweep, run)).notes]
    assert [each for each in notes if "time limit" in each] == [
        "a time limit ended rotation 3: 22 of its 22 turns count, longer jobs hold them all"
    ]


def test_where_nothing_helps_there_is_no_check() -> None:
    sweep = turning()
    done = drive(sweep, Machine())
    assert len(done) == 6
    found = sweep.conclude(done)
    assert found.complete
    assert not any(each.kind is VerdictKind.FASTER for each in found.verdicts)
    assert found.tuning.bound is not None
    assert found.tuning.recipe is None


def test_every_history_on_the_way_concludes_and_proposes_the_same_again() -> None:
    sweep, run = turning(12), Machine({"p3": 0.03})
    done: list[TrialResult] = []
    seen = []
    while due := sweep.propose(done):
        assert due == sweep.propose(done) == turning(12).propose(tuple(done))
        found = sweep.conclude(done)
        assert not found.complete
        seen.append(sweep.left(done))
        assert sweep.at_most(done) >= sweep.left(done) >= len(due)
        kinds = {each.kind for each in found.verdicts}
        assert VerdictKind.FASTER not in kinds, "before the check is over"
        running = [TrialResult(trial=each, status=TrialStatus.RUNNING) for each in due]
        assert [each.id for each in sweep.propose([*done, *running])] == [e.id for e in due]
        done.append(run(due[0]))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 10
    assert sweep.left(done) == 0


def test_while_a_check_runs_the_verdict_waits_for_it() -> None:
    sweep = turning(12)
    done = drive(sweep, Machine({"p3": 0.03}))
    before = [each for each in done if each.trial.stage != CHECK]
    found = verdict(sweep.conclude(before), "p3")
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.reasons[0].kind is Why.CHECK_TO_COME
    question = Question(about=Ask.CONFIRMED, name="p3")
    assert sweep.answer(before, question).state is Answered.NOT_YET
    told = sweep.answer(done, question)
    assert told.verdict
    assert told.verdict.kind is VerdictKind.FASTER


@pytest.mark.parametrize(
    ("machine", "kind", "why"),
    [
        pytest.param(
            Machine({"p3": 0.05}, deployed={"p3": 0.0}),
            VerdictKind.INCONCLUSIVE,
            Why.CHECK_CONTRADICTS,
            id="nothing is left of it deployed",
        ),
        pytest.param(
            Machine({"p3": 0.05}, losses={"p3": 7.0}),
            VerdictKind.INVALID,
            Why.OTHER_LOSS,
            id="another loss deployed",
        ),
        pytest.param(
            Machine({"p3": 0.05}, fails=lambda each: each.stage == CHECK and each.arm == "p3"),
            VerdictKind.INCONCLUSIVE,
            Why.CHECK_MISSING,
            id="its jobs are lost",
        ),
        pytest.param(
            Machine(
                {"p3": 0.05}, fails=lambda each: each.stage == CHECK and each.arm == BASELINE_ID
            ),
            VerdictKind.INCONCLUSIVE,
            Why.CHECK_MISSING,
            id="the baseline's are lost",
        ),
        pytest.param(
            Machine({"p3": 0.05}, deployed={"p3": 0.15}),
            VerdictKind.FASTER,
            Why.CHECK_MORE,
            id="more deployed",
        ),
    ],
)
def test_the_check_of_the_deployed_form(machine: Machine, kind: VerdictKind, why: Why) -> None:
    sweep = turning(12)
    done = drive(sweep, machine)
    conclusion = sweep.conclude(done)
    found = verdict(conclusion, "p3")
    assert found.kind is kind
    assert why in [each.kind for each in found.reasons[:2]]
    assert conclusion.complete
    assert (conclusion.tuning.recipe is not None) is (kind is VerdictKind.FASTER)
    for each in (*found.reasons, *conclusion.notes):
        assert sentence(each)


def test_a_contradiction_is_a_finding_in_plain_words() -> None:
    sweep = turning(12)
    done = drive(sweep, Machine({"p3": 0.05}, deployed={"p3": 0.0}, sigma=0.001))
    found = sweep.conclude(done)
    why = sentence(verdict(found, "p3").reasons[0])
    assert why.startswith("+5.0 % in rotations, ")
    assert why.endswith("the flag acts otherwise at start-up")
    assert sentence(found.notes[1]).startswith("p3: ordinary jobs contradict the rotations")


def test_a_profile_that_cannot_start_deployed_is_invalid() -> None:
    sweep, machine = turning(12), Machine({"p3": 0.05})

    def run(trial: Trial) -> TrialResult:
        found = machine(trial)
        if trial.stage == CHECK and trial.arm == "p3":
            why = verbatim("Unknown flag in XLA_FLAGS")
            return replace(found, status=TrialStatus.DROPPED, score=None, reason=why)
        return found

    found = verdict(sweep.conclude(drive(sweep, run)), "p3")
    assert found.kind is VerdictKind.INVALID
    assert not found.can_run
    assert "Unknown flag" in sentence(found.reasons[0])


def test_a_fourth_winner_is_not_called_faster_unchecked() -> None:
    sweep = turning(12)
    done = drive(sweep, Machine({"p1": 0.05, "p2": 0.04, "p3": 0.06, "p4": 0.03}))
    found = sweep.conclude(done)
    assert verdict(found, "p4").kind is VerdictKind.INCONCLUSIVE
    assert verdict(found, "p4").reasons[0].kind is Why.CHECK_HAS_NO_JOB
    assert {e.arm for e in found.verdicts if e.kind is VerdictKind.FASTER} == {"p1", "p2", "p3"}


def test_programs_that_are_left_out_say_why() -> None:
    machine = Machine({"p3": 0.04}, refused=["p4"], large=["p5"], died_of=["p6"], same=["p7"])
    sweep = turning(12)
    found = sweep.conclude(drive(sweep, machine))
    for name, why in (
        ("p4", "No such compile option"),
        ("p5", "it needs"),
        ("p6", "a rotation died of it"),
    ):
        each = verdict(found, name)
        assert each.kind is VerdictKind.INVALID
        assert not each.can_run
        assert why in sentence(each.reasons[0])
    same = verdict(found, "p7")
    assert same.kind is not VerdictKind.INVALID  # an equal text is no equal program
    assert not {"p4", "p5", "p6"} & {*found.tuning.finalists}
    assert verdict(found, "p3").kind is VerdictKind.FASTER


def _dropped(trial: Trial) -> TrialResult:
    return replace(Machine(fails=lambda _: True)(trial), status=TrialStatus.DROPPED)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            lambda trial: (_dropped if trial.rotation is not None else Machine())(trial),
            id="it is dropped",
        ),
        pytest.param(Machine(finds=False), id="nothing can rotate"),
    ],
)
def test_where_a_look_is_in_vain_the_jobs_that_follow_tell_of_the_baseline(
    run: Callable[[Trial], TrialResult],
) -> None:
    sweep = turning(6)
    question = Question(about=Ask.REFERENCE, name=BASELINE_ID)
    done: list[TrialResult] = []
    while (found := sweep.answer(done, question)).state is Answered.NOT_YET:
        due = sweep.propose(done)
        assert due, "no test waits for ever"
        done.append(run(due[0]))
    assert found.state is Answered.YES
    assert found.verdict is not None
    assert found.verdict.n >= 1
    assert stages(done)[0] == (LOOK, 0)


def test_where_the_look_finds_nothing_all_profiles_are_jobs_with_the_whole_alpha() -> None:
    sweep = turning()
    done = drive(sweep, Machine({"p3": 0.04}, finds=False))
    assert stages(done)[0] == (LOOK, 0)
    assert len(done) <= sweep.budget
    assert not any(stage in (TURNS, CHECK) for stage, _ in stages(done))
    found = sweep.conclude(done)
    assert found.complete
    assert found.alpha == 0.05
    assert verdict(found, "p3").kind is VerdictKind.FASTER
    assert sentence(found.notes[0]) == (
        "all profiles are jobs, because programs cannot take turns: no call of a jitted step was "
        "seen"
    )


def test_a_first_rotation_that_the_trainer_cannot_run_gives_way_to_jobs() -> None:
    sweep, machine = turning(), Machine({"p3": 0.04})
    done = drive(sweep, lambda each: (_dropped if each.stage == TURNS else machine)(each))
    assert sum(stage == TURNS for stage, _ in stages(done)) == 1
    assert len(done) <= sweep.budget
    found = sweep.conclude(done)
    assert verdict(found, "p3").kind is VerdictKind.FASTER
    assert found.notes[0].kind is Why.FIRST_ROTATION_FAILED
    assert sentence(found.notes[0]) == (
        "all profiles are jobs, because the first rotation measured nothing: a GPU's memory has "
        "errors that it cannot correct"
    )


@pytest.mark.parametrize("stage", [LOOK, TURNS])
def test_what_could_not_be_measured_turns_no_profile_into_a_job(stage: str) -> None:
    """A cancel, a node, a full disk: the sweep has stopped, and the next session tries it again."""
    sweep = turning()
    done = drive(sweep, Machine({"p3": 0.04}, fails=lambda each: each.stage == stage))
    assert {each.trial.stage for each in done} <= {LOOK, TURNS, CHECK}
    notes = sweep.conclude(done).notes
    assert not {each.kind for each in notes} & {Why.FIRST_ROTATION_FAILED, Why.LOOK_FINDS_NONE}


@pytest.mark.parametrize(("error", "is_slower"), [(0.002, True), (0.2, False), (None, False)])
def test_very_likely_slower_counts_the_noise_of_turns(
    error: float | None, *, is_slower: bool
) -> None:
    sweep, machine = turning(), Machine({"p3": 0.03, "p11": -0.1})

    def run(trial: Trial) -> TrialResult:
        found = machine(trial)
        score = found.rotation.score if found.rotation else None
        if score is None or found.rotation is None:
            return found
        programs = tuple(replace(each, error=error) for each in score.programs)
        return replace(
            found, rotation=replace(found.rotation, score=replace(score, programs=programs))
        )

    found = verdict(sweep.conclude(drive(sweep, run)), "p11")
    assert found.is_likely_slower is is_slower
    assert (found.reasons[0].kind is Why.LIKELY_SLOWER) is is_slower


def test_a_deciding_rotation_that_is_lost_leaves_the_others() -> None:
    sweep = turning()

    def fails(trial: Trial) -> bool:
        return trial.stage == TURNS and trial.block == 2

    done = drive(sweep, Machine({"p3": 0.04}, fails=fails))
    found = verdict(sweep.conclude(done), "p3")
    assert found.n == 3
    assert found.kind is VerdictKind.FASTER
    assert found.lost
    assert found.lost.lost == 1


def test_profiles_that_cannot_rotate_are_jobs_of_the_same_sweep() -> None:
    sweep = mixed()
    done = drive(sweep, Machine({"p3": 0.04, "channels": 0.06, "remat": -0.2}))
    assert len(done) <= sweep.budget
    found = sweep.conclude(done)
    assert found.complete
    assert found.alpha == pytest.approx(0.05)
    assert verdict(found, "p3").kind is VerdictKind.FASTER
    assert verdict(found, "channels").kind is VerdictKind.FASTER
    assert "rotations" in sentence(verdict(found, "p3").method)
    assert "rotation" not in sentence(verdict(found, "channels").method)
    assert {each.arm for each in found.verdicts} == {each.id for each in sweep.profiles}
    ways = sweep.ways
    assert isinstance(ways, Ways)
    assert set(ways.stays) == {"channels", "remat"}
    assert ways.alpha == pytest.approx(0.05 * 12 / 14)
    jobs = {each.trial.arm for each in done if not each.trial.rotation} - {BASELINE_ID, "p3"}
    assert jobs <= {"channels", "remat", "baseline-aa"}


def test_a_part_of_a_mixed_sweep_runs_what_it_selects() -> None:
    for chosen, has_turns in (("channels", False), ("p3", True)):
        sweep = mixed(selected=frozenset({chosen}), confirm=False)
        done = drive(sweep, Machine())
        assert any(each.trial.rotation for each in done) is has_turns
        question = Question(about=Ask.SCREENED, name=chosen, wave="wave2")
        assert sweep.answer(done, question).state is Answered.YES
        assert sweep.answer((), question).state is Answered.NOT_YET


@pytest.mark.parametrize(("make", "stage"), [(turning, "look"), (mixed, "wave2")])
def test_the_baseline_alone_is_measured_where_all_rotate_and_where_some_do(
    make: Callable[..., TuningStudy], stage: str
) -> None:
    """`pytest SWEEP::test_baseline`, before anything else."""
    sweep = make(selected=frozenset(), confirm=False)
    question = Question(about=Ask.REFERENCE, name=BASELINE_ID)
    assert sweep.answer((), question).state is Answered.NOT_YET
    done = drive(sweep, Machine())
    assert {each.trial.stage for each in done} == {stage}
    verdict = sweep.answer(done, question).verdict
    assert verdict is not None
    assert verdict.n


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"profiles": (NCCL,)}, "no profile rotates: ", id="variables alone"),
        pytest.param({"budget": 8, "count": 3}, "8 jobs are too few", id="a small budget"),
        pytest.param(
            {"slots": (("n1",), ("n2",)), "cell": replace(CELL, nodelist=("n1",))},
            "several node slots",
            id="node slots",
        ),
    ],
)
def test_where_nothing_rotates_the_plan_says_why(changes: dict[str, Any], words: str) -> None:
    sweep = turning(**changes)
    assert not sweep.rotates
    told = [sentence(each) for each in sweep.outline(())]
    assert words in told[0]
    assert not any(each.rotation for each in sweep.propose(()))


def test_a_plan_says_which_way_profiles_go_and_what_it_costs() -> None:
    told = [sentence(each) for each in mixed().outline(())]
    assert told[0].startswith(
        "in rotations: p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11; a look"
    )
    assert "with 80 % power" in told[1]
    assert "as jobs: channels, because a library reads NCCL_MIN_NCHANNELS when it starts" in told
    assert any(each.startswith("as jobs: remat, because the trainer reads") for each in told)
    costs = next(each for each in told if each.startswith("this plan takes"))
    assert "without rotation" in costs
    ahead = mixed().ahead(())
    assert [each.stage for each in ahead[:2]] == [LOOK, TURNS]
    assert {each.arm for each in ahead[2:]} == {"channels", "remat", BASELINE_ID}


@pytest.mark.parametrize(
    ("pace", "rotates"),
    [
        pytest.param(None, True, id="guessed from the limit"),
        pytest.param(
            JobPace(start_s=60, step_s=1, compile_s=5, jobs=2), True, id="quick to compile"
        ),
        pytest.param(
            JobPace(start_s=60, step_s=1, compile_s=600, jobs=2), False, id="slow to compile"
        ),
        pytest.param(JobPace(start_s=0, step_s=1, compile_s=0, jobs=2), True, id="steps alone"),
    ],
)
def test_a_sweep_that_must_save_rotates_where_that_takes_less_time(
    pace: JobPace | None, rotates: bool
) -> None:
    sweep = turning(rotation=RotationRule(must_save=True, pace=pace))
    assert sweep.rotates is rotates
    if not rotates:
        assert sentence(sweep.outline(())[0]) == (
            "no profile rotates: with rotations the plan takes 10 jobs and 12 h 32 min, without "
            "them 50 jobs and 1 h 3 min; --xlatune-rotate on rotates all the same"
        )
    # a session goes on with the pace that it began with
    begun = turning(rotation=RotationRule(must_save=True, pace=pace)).to_json()
    assert turning(rotation=RotationRule(must_save=True)).as_begun(begun).rotates is rotates


def test_what_is_left_counts_rotations_by_their_steps_and_programs() -> None:
    sweep = turning()
    assert isinstance(sweep.ways, Ways)
    own, _ = both_plans(sweep, sweep.ways)
    left = sweep.work(())
    assert left
    assert (left.jobs, left.steps, left.compilations) == (own.jobs, own.steps, own.compilations)
    done = drive(sweep, Machine({"p3": 0.03}))
    for at in range(len(done)):
        left = sweep.work(done[:at])
        assert left
        assert left.jobs == sweep.left(done[:at])
    assert sweep.work(done) == JobWork(jobs=0, steps=0)
    assert study(25).work(()) is None


def test_profiles_that_stay_jobs_take_no_more_of_them_than_they_need() -> None:
    sweep = mixed(budget=70)
    assert isinstance(sweep.ways, Ways)
    jobs = sweep.ways.jobs
    assert jobs is not None
    whole = replace(sweep, rotation=None).layout
    assert isinstance(whole, Plan)
    assert isinstance(jobs.layout, Plan)
    assert jobs.budget < sweep.budget - sweep.ways.plan.jobs
    assert jobs.layout.from_start80(0.006) <= whole.from_start80(0.006)
    one_less = jobs.laid_out(jobs.count, jobs.budget - 1, None)
    assert isinstance(one_less, Refusal) or one_less.from_start80(0.006) > whole.from_start80(0.006)


def test_the_pace_of_a_job_is_that_of_what_ran() -> None:
    sweep = turning()
    look, rotation, *_ = drive(sweep, Machine())
    assert pace_of((rotation,)) is None, "no trainer ran alone"
    assert look.score
    step_s, steps = 2.0, look.trial.protocol.steps
    ended = replace(
        look,
        score=replace(look.score, step_s=step_s),
        outcome=Outcome(state=State.COMPLETED, start_s=100.0, end_s=100.0 + 50 + steps * step_s),
    )
    told = pace_of((ended,))
    assert told == JobPace(start_s=50, step_s=2, compile_s=COMPILE_SHARE * 50, jobs=1)
    told = pace_of((ended, rotation))
    assert told
    assert (told.compile_s, told.compilations) == (1.0, 28)
    load = JobWork(jobs=2, steps=30, compilations=4)
    assert load.seconds(told) == 2 * 50 + 30 * 2 + 4


def test_profiles_that_waves_derive_rotate_too() -> None:
    own = tuple(profile(f"p{at}", f"--xla_gpu_knob_{at}=1", wave="wave2") for at in range(8))
    sweep = turning(profiles=own, stacks=(Stacks(wave="wave3", slots=3),), budget=50)
    done = drive(sweep, Machine({"p1": 0.03, "p2": 0.03}))
    found = sweep.conclude(done)
    stacked = [each.arm for each in found.verdicts if "+" in each.arm]
    assert stacked
    assert found.winner
    assert found.winner.arm == "p1+p2"
    assert not any(each.trial.rotation is None and each.trial.stage != CHECK for each in done), (
        "no job but the look and the check"
    )


def test_a_profile_that_is_added_is_ranked_by_a_rotation_of_its_own() -> None:
    run = Machine({"p3": 0.03, "p12": 0.04})
    done = drive(turning(12), run)[:2]
    later = turning(13)
    due = later.propose(done)
    rotation = due[0].rotation
    assert rotation
    assert [each.id for each in rotation.spec.programs if not is_baseline(each.id)] == ["p12"]
    assert rotation.number == 2
    done = drive(later, run, done)
    assert verdict(later.conclude(done), "p12").kind is VerdictKind.FASTER


def test_a_profile_that_was_edited_is_another_one() -> None:
    run = Machine({"p3": 0.03})
    done = drive(turning(12), run)
    edited = (*knobs(3), profile("p3", "--xla_gpu_other=1"), *knobs(12)[4:])
    later = turning(profiles=edited)
    found = verdict(later.conclude(done), "p3")
    assert found.kind is not VerdictKind.FASTER


def test_a_sweep_that_rotated_goes_on_as_jobs_once_rotation_is_off() -> None:
    run = Machine({"p3": 0.04})
    done = drive(turning(12), run)
    plain = study(12, sigma_prior=None)
    assert [each.id for each in plain.propose(done)] == [each.id for each in plain.propose(())]
    assert plain.conclude(done).verdicts == plain.conclude(()).verdicts


def test_relabelling_profiles_changes_no_verdict() -> None:
    def kinds(own: tuple[Profile, ...]) -> Counter[VerdictKind]:
        sweep = turning(profiles=own)
        at = {f"--xla_gpu_knob={n}": 0.04 * (n == 3) for n in range(12)}
        run = Machine({each.id: at[each.settings_text.split()[0]] for each in own}, sigma=0.001)
        return Counter(each.kind for each in sweep.conclude(drive(sweep, run)).verdicts)

    named = tuple(profile(f"q{n * 7 % 12}", f"--xla_gpu_knob={n}", wave="wave2") for n in range(12))
    assert kinds(knobs(12))[VerdictKind.FASTER] == kinds(named)[VerdictKind.FASTER] == 1


def test_the_rotations_arm_is_no_profile() -> None:
    assert ROTATION not in {each.id for each in turning(12).arms(())}


@pytest.mark.parametrize("jobs", [0, -3])
def test_a_rule_without_jobs_rotates_nothing(jobs: int) -> None:
    sweep = turning(12, rotation=RotationRule(jobs=jobs))
    assert not sweep.rotates
    with pytest.raises(ConfigError):
        turning(12, budget=3)
