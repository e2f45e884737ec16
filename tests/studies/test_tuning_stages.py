"""A confirmation that is prolonged, joined late or begun without finalists."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import say, sentence, verbatim
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.result import Outcome, State, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.studies.trials import AGAIN, ALIAS, place
from tests.helpers.history import cluster, history, knobs, measured, study, verdict


def test_who_comes_after_the_finalists_were_fixed_is_told_and_not_confirmed() -> None:
    run = cluster({"p8": -0.05, "p9": 0.05})
    done = history(run, of=study(8, budget=60))
    later = study(10, budget=80)
    done = history(run, of=later, after=done)
    conclusion = later.decide(done).conclusion
    assert verdict(conclusion, "p9").kind is VerdictKind.SCREENED
    assert "p9" not in conclusion.tuning.finalists
    assert conclusion.alpha == 0.05
    assert len(conclusion.notes) > 1
    assert sentence(conclusion.notes[0]).startswith("p9 would be a finalist")
    assert not any(
        "would be a finalist" in sentence(note)
        for note in study(8, budget=60).decide(done).conclusion.notes
    )


def test_a_run_without_any_finalist_leaves_their_blocks_alone() -> None:
    run = cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05})
    done = history(run, of=study())[:-4]
    assert {t.profile.id for t in study().decide(done).due} & {"p7", "p8", "p9"}
    assert study(selected=frozenset({"p3"})).decide(done).due == ()


def spare(done: list[TrialResult]) -> list[Trial]:
    return [each.trial for each in done if each.trial.design and each.trial.design.look == 3]


def test_jobs_that_are_left_go_to_what_may_still_gain_2_percent() -> None:
    sweep, run = study(budget=65), cluster({}, sigma=0.006, seed=2)
    done = history(run, of=sweep)
    own = spare(done)
    assert len(done) <= 65
    assert sum(each.is_baseline for each in own) == 2
    decided = [each for each in done if each.trial not in own]
    before, after = sweep.decide(decided).conclusion, sweep.decide(done).conclusion
    assert before.tuning.bound is not None
    assert after.tuning.bound is not None
    assert after.tuning.bound < 0.02 <= before.tuning.bound
    assert not before.complete, "the spare block is awaited"
    assert after.complete
    # it decides nothing, spends nothing, and makes no finalist
    assert (after.alpha, after.tuning.finalists) == (0.05, before.tuning.finalists)
    for each in before.tuning.finalists:
        old, new = verdict(before, each), verdict(after, each)
        assert (old.kind, old.ci95, old.n) == (new.kind, new.ci95, new.n) or old.ci95 is None
    again = {each.arm for each in own} - set(after.tuning.finalists) - {"baseline-deployed"}
    assert again
    for each in again:
        assert verdict(after, each).kind is VerdictKind.SCREENED
        assert verdict(after, each).reasons[0] == say("measured twice: ranks only")
    # half a spare block is gone on with as it was planned
    assert sweep.decide(done[:-1]).due == (done[-1].trial,)


@pytest.mark.parametrize(
    ("when", "block"), [("after block 4", 4), ("a day later", ("alone",)), ("in time", 2)]
)
def test_a_trial_that_was_tried_again_late_stands_where_it_ran(when: str, block: object) -> None:
    """A step of 3 % between block 2 and block 4 is no gain of the arm that was late."""
    sweep, plain = study(), cluster({}, sigma=0.001)
    done: list[TrialResult] = []
    while trials := sweep.decide(done).due:
        for trial in trials:
            begun = 1000.0 * len(done)
            result = plain(trial)
            assert result.score is not None
            is_fast = trial.block > 2
            value = result.score.value + 0.03 * is_fast
            score = replace(result.score, value=value)
            outcome = Outcome(state=State.COMPLETED, start_s=begun)
            done.append(replace(result, score=score, outcome=outcome))
    arm = sweep.decide(done).conclusion.tuning.finalists[0]
    kept = [each for each in done if each.trial.block == 4]
    assert kept
    arm = next(each.trial.arm for each in kept if not each.trial.is_baseline)
    (late,) = (each for each in done if each.trial.arm == arm and each.trial.block == 2)
    assert late.score is not None
    assert late.outcome is not None
    last = max(each.outcome.start_s or 0 for each in done if each.outcome)
    start = {"after block 4": last + 1500, "a day later": last + 86_400, "in time": None}[when]
    if start is not None:
        again = replace(late.score, value=late.score.value + 0.03)
        late = replace(late, score=again, outcome=replace(late.outcome, start_s=start))
    history = [late if each.trial == late.trial else each for each in done]
    found = verdict(sweep.decide(history).conclusion, arm)
    assert found.delta == pytest.approx(0.0, abs=0.003)
    assert found.kind is not VerdictKind.FASTER
    past = sweep.state(history).ranked.past
    own = past.real_blocks[place(late.trial)]
    assert own == block or (isinstance(own, tuple) and own[:1] == block)


THREE = ConfirmDesign(arms=2, blocks=3, baselines=1)


def test_a_late_trial_as_near_to_two_blocks_is_of_the_first_in_every_process() -> None:
    for name in knobs(12):  # the order of sets goes by names, and would be the first's by chance
        starts: dict[tuple[int, Profile], float]
        starts = {(1, BASELINE): 0, (2, BASELINE): 1000, (2, ALIAS): 1100, (3, BASELINE): 2000}
        starts |= {(1, ALIAS): 100, (3, ALIAS): 2100, (1, name): 1550}
        history = []
        for (block, arm), start in starts.items():
            (trial,) = (
                each
                for each in study().orders.blocks([name, ALIAS], [block], design=THREE)
                if each.arm == arm.id
            )
            outcome = Outcome(state=State.COMPLETED, start_s=start)
            history.append(replace(measured(trial, 7.0), outcome=outcome))
        past = study().read(history, {name.id: name})
        assert past.real_blocks[place(history[-1].trial)] == 2


def test_a_profile_that_opens_the_screen_again_leaves_the_verdicts_of_the_blocks() -> None:
    done = history({"p1": 0.04}, of=study(12))
    before = study(12).decide(done).conclusion
    more = study(13, budget=60)
    assert {(each.arm, each.block) for each in more.decide(done).due} == {("p12", 0)}
    after = more.decide(done).conclusion
    assert (before.complete, after.complete) == (True, False)
    assert after.tuning.finalists == before.tuning.finalists
    assert after.alpha == before.alpha
    assert verdict(after, "p1").kind is verdict(before, "p1").kind is VerdictKind.FASTER


@pytest.mark.parametrize("is_lost_again", [False, True])
def test_a_profile_that_lost_its_run_in_the_screen_is_not_ruled_out(*, is_lost_again: bool) -> None:
    """It could gain +4 %: M was said of the others, and meant all."""
    run = cluster({"p7": 0.04}, sigma=0.002)

    def losing(trial: Trial) -> TrialResult:
        result = run(trial)
        if trial.arm != "p7" or (trial.block and not is_lost_again):
            return result
        return replace(
            result, status=TrialStatus.UNMEASURED, score=None, reason=verbatim("node failure")
        )

    tight, roomy = study(budget=50), study(budget=65)
    without = tight.decide(history(losing, of=tight)).conclusion
    assert verdict(without, "p7").kind is VerdictKind.INVALID
    assert without.complete
    assert without.tuning.bound is None
    assert any("p7 has no score" in sentence(note) for note in without.notes)
    assert not any("no tested setting gains" in sentence(note) for note in without.notes)
    # jobs that are left measure it once more, and no third time where it has no score again
    done = history(losing, of=roomy)
    assert "p7" in {each.arm for each in spare(done) if each.block == spare(done)[0].block}
    again = roomy.decide(done).conclusion
    if is_lost_again:
        assert [each.arm for each in spare(done)].count("p7") == 1
        assert again.tuning.bound is None
    else:
        assert verdict(again, "p7").kind is VerdictKind.SCREENED
        assert again.tuning.bound is not None
        assert again.tuning.bound > 0.02, "it is not confirmed, and not ruled out"


def test_with_a_large_budget_the_best_of_the_screen_run_twice_and_both_runs_rank_them() -> None:
    sweep = study(25, budget=80)
    run = cluster({"p1": 0.03, **{f"p{at}": -0.1 for at in range(8, 20)}}, sigma=0.004)
    first = [run(trial) for trial in sweep.decide([]).due]
    second = sweep.decide(first).due
    assert {each.stage for each in second} == {AGAIN}
    assert 8 <= len(second) <= 11
    assert len({each.arm for each in second}) == len(second)
    # another hour in which all is 5 % slower moves no rank
    slower = [
        replace(each, score=replace(each.score, value=each.score.value - 0.05))
        for trial in second
        if (each := run(trial)).score is not None
    ]
    for shift, runs in ((0.0, [run(trial) for trial in second]), (0.05, slower)):
        results = [*first, *runs]
        blocks = sweep.decide(results).due
        inside = {each.arm for each in blocks} - {BASELINE_ID}
        assert blocks[0].block == 1, shift
        assert inside < {each.arm for each in second}, "only what ran twice enters"
        done = history(run, of=sweep, after=results)
        assert len(done) <= 80
        assert verdict(sweep.decide(done).conclusion, "p1").kind is VerdictKind.FASTER
    # a cell with a profile more goes on with the second runs that there are
    more = replace(study(26, budget=80), seed=sweep.seed)
    assert {each.stage for each in more.decide([*first, *slower]).due} == {"wave2"}
