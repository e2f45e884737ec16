"""The tuning study proposes: what, in which order, what comes late, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.result import (
    Conclusion,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.studies.trials import AGAIN, ALIAS, place
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import (
    CELL,
    Answer,
    arm,
    changed,
    cluster,
    failing,
    history,
    knobs,
    measured,
    names,
    study,
    verdict,
)

THREE = {"p7": 0.03, "p8": 0.03, "p9": 0.03}


def waves(*counted: tuple[str, int]) -> tuple[Profile, ...]:
    return tuple(
        replace(each, id=f"{wave}-{each.id}", wave=wave)
        for wave, count in counted
        for each in knobs(count)
    )


def screen(sweep: TuningStudy, run: Answer) -> list[TrialResult]:
    return [run(trial) for trial in sweep.decide([]).due]


def arms_of(trials: Sequence[Trial]) -> set[str]:
    return {trial.arm for trial in trials} - {BASELINE_ID}


def notes_of(conclusion: Conclusion) -> str:
    return "\n".join(map(sentence, conclusion.notes))


@pytest.mark.parametrize(
    ("profiles", "changes", "stages", "baselines"),
    [
        pytest.param(waves(("wave2", 25)), {}, {"wave2": 28}, [0, 14, 27],
                     id="three baselines are spread over a wave"),
        pytest.param(waves(("wave10", 3), ("wave1_5", 3), ("wave2", 3), ("wave1", 3)),
                     {"budget": 60}, {"wave1": 4, "wave1_5": 4, "wave2": 4, "wave10": 4},
                     [0, 5, 10, 15], id="waves in their order, baselines far apart over all"),
        pytest.param(waves(("wave1", 1), ("wave2", 20)), {}, {"wave1": 2, "wave2": 22},
                     [0, 2, 23], id="more baselines go where most profiles are"),
        pytest.param(waves(("wave2", 25)), {"selected": frozenset({BASELINE_ID})}, {"wave2": 3},
                     [0, 1, 2], id="the baseline alone is selected"),
    ],
)  # fmt: skip
def test_the_screen(
    profiles: tuple[Profile, ...],
    changes: dict[str, Any],
    stages: dict[str, int],
    baselines: list[int],
) -> None:
    trials = TuningStudy(cell=CELL, profiles=profiles, **changes).decide([]).due
    drawn = [each.stage for each in trials]
    assert {stage: drawn.count(stage) for stage in dict.fromkeys(drawn)} == stages
    assert [at for at, trial in enumerate(trials) if trial.is_baseline] == baselines
    order = [each.arm for each in trials if not each.is_baseline]
    declared = [each.id for each in profiles] if "selected" not in changes else []
    assert sorted(order) == sorted(declared)
    assert order != declared or not order, "the order is drawn"
    assert {each.block for each in trials} == {0}


def test_adding_a_profile_moves_no_other() -> None:
    before = [t.profile.id for t in study(24).decide([]).due if not t.is_baseline]
    after = [t.profile.id for t in study(25).decide([]).due if not t.is_baseline]
    assert [each for each in after if each != "p24"] == before


def test_the_best_five_enter_the_first_block_and_the_best_three_go_on() -> None:
    sweep, run = study(), cluster(THREE)
    screened = screen(sweep, run)
    first = sweep.decide(screened).due
    scores = {r.trial.arm: r.score.value for r in screened if r.score and not r.trial.is_baseline}
    assert arms_of(first) == set(sorted(scores, key=lambda name: -scores[name])[:5])
    assert [t.block for t in first] == [1] * 7
    design = ConfirmDesign(arms=5, blocks=4, baselines=2, widths=(5, 3, 3, 3))
    rest = sweep.decide([*screened, *map(run, first)]).due
    assert arms_of(rest) == {*THREE}
    assert [sum(t.block == b for t in rest) for b in (2, 3, 4)] == [5, 5, 5]
    assert {t.design for t in (*first, *rest)} == {design}
    assert len(screened) + len(first) + len(rest) == 50
    assert study(confirm=False).decide(screened).due == ()


def test_each_block_draws_an_order_of_its_own() -> None:
    """Blocks in mirrored pairs add up what has the period of two blocks: 9.6 % false winners."""
    pairs = mirrored = 0
    for seed in range(30):
        sweep = study(seed=seed, finalists=3)
        trials = sweep.decide(screen(sweep, cluster(THREE))).due
        blocks = [[t for t in trials if t.block == b] for b in (1, 2, 3, 4)]
        for one, other in pairwise(blocks):
            pairs += 1
            mirrored += names(one) == names(other)[::-1]
    assert mirrored / pairs < 0.1


def test_the_cut_is_by_screen_and_first_block_together() -> None:
    """An arm that was lucky once goes, one that is fast twice stays."""
    sweep = study()
    lucky = {"p1": 0.10, "p2": 0.09, "p3": 0.08, "p4": 0.03, "p5": 0.03}
    beside = {"p1": -0.09, "p2": 0.05, "p3": 0.05, "p4": 0.05, "p5": -0.05}
    screened = screen(sweep, cluster(lucky))
    done = [*screened, *map(cluster(beside), sweep.decide(screened).due)]
    assert arms_of(sweep.decide(done).due) == {"p2", "p3", "p4"}
    done = history({}, of=sweep, after=done)
    for name in ("p1", "p5"):
        cut = verdict(sweep.decide(done).conclusion, name)
        assert (cut.kind, cut.n, cut.ci95) == (VerdictKind.SCREENED, 2, None)
        assert sentence(cut.reasons[0]) == "measured 2 times: ranks only"


def test_finalists_and_the_cut_wait_for_their_trials_and_never_change_afterwards() -> None:
    sweep, run = study(), cluster(THREE)
    screened = screen(sweep, run)
    first = sweep.decide(screened).due
    begun = [*screened, TrialResult(trial=first[0], status=TrialStatus.PLANNED)]
    assert sweep.decide(begun).due == first
    assert "would be confirmed" not in notes_of(sweep.decide(begun).conclusion)
    # the screen is read anew with another favourite: the begun arms stay
    again = [measured(r.trial, 8.0) if r.trial.arm == "p1" else r for r in begun]
    assert first[0].arm in {t.arm for t in sweep.decide(again).due}
    ran = [*map(run, first)]
    assert sweep.decide([*screened, *ran[:-1]]).due == (first[-1],)
    done = [*screened, *ran]
    later = sweep.decide(done).due
    cut = arms_of(first) - arms_of(later)
    more = [*done, *map(run, later)]
    anew = [measured(r.trial, 8.0) if r.trial.arm in cut and r.trial.block else r for r in more]
    assert sweep.decide(anew).due == ()
    assert verdict(sweep.decide(anew).conclusion, min(cut)).kind is VerdictKind.SCREENED
    planned = [*done, TrialResult(trial=later[0], status=TrialStatus.PLANNED)]
    anew = [measured(r.trial, 8.0) if r.trial.arm in cut else r for r in planned]
    assert later[0].arm in {t.arm for t in sweep.decide(anew).due}


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        pytest.param({"p1"}, {"p1"}, id="it was twice as fast as the others"),
        pytest.param({"p5", "p2"}, {"p1", "p3", "p4"}, id="those that ran go on"),
        pytest.param({*(f"p{at}" for at in range(25)), BASELINE_ID}, set(), id="nothing ran"),
    ],
)
def test_a_run_that_the_first_block_lost_is_no_reason_to_stay_and_none_to_leave(
    lost: set[str], kept: set[str]
) -> None:
    sweep = study()
    run = cluster({"p1": 0.12, "p2": 0.05, "p3": 0.05, "p4": 0.05, "p5": 0.04}, sigma=0.001)
    screened = screen(sweep, run)
    first = map(failing(run, arm(*lost)), sweep.decide(screened).due)
    inside = arms_of(sweep.decide([*screened, *first]).due)
    assert kept <= inside
    assert len(inside) == 3


def test_a_finalist_that_turns_out_unable_to_run_is_planned_in_no_later_block() -> None:
    sweep, run = study(), cluster(THREE)
    done = screen(sweep, run)
    planned = sweep.decide(done).due
    (first,) = (t for t in planned if t.arm == "p8")
    oom = failing(run, arm("p8"), TrialStatus.DROPPED)(first)
    left = sweep.decide([*done, oom]).due
    assert left == tuple(t for t in planned if t.arm != "p8")
    assert sweep.outlook([*done, oom]).left == len(left) + 15
    assert "p8" not in arms_of(sweep.decide([*done, oom, *map(run, left)]).due)


def test_a_larger_budget_does_not_prolong_a_begun_confirmation() -> None:
    done = history({"p7": 0.01}, of=study())
    assert study(budget=80).decide(done).due == ()
    before, after = (study(budget=each).decide(done).conclusion for each in (50, 80))
    assert before.verdict("p7") == after.verdict("p7")


@pytest.mark.parametrize(
    ("distance", "sigma", "noise", "is_confirmed"),
    [
        pytest.param(-0.012, 0.006, 0.0, True, id="two standard errors below may still help"),
        pytest.param(-0.016, 0.006, 0.0, False, id="more than two may not"),
        pytest.param(-0.012, 0.001, 0.0, False, id="in a quiet cell that is much"),
        pytest.param(-0.012, 0.001, 0.006, True, id="unless the screen itself is loud"),
    ],
)
def test_who_is_confirmed_depends_on_the_noise(
    distance: float, sigma: float, noise: float, *, is_confirmed: bool
) -> None:
    sweep = study(1, budget=20, screen_baselines=5, sigma_prior=sigma)

    def run(trial: Trial) -> TrialResult:
        off = noise * (-1) ** trial.position if trial.is_baseline else distance
        return measured(trial, 6.9 + off)

    assert ("p0" in arms_of(sweep.decide(screen(sweep, run)).due)) is is_confirmed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"count": 60}, "need 61 jobs, the budget is 50", id="too many profiles"),
        pytest.param({"count": 25, "blocks": 9}, "need 73 jobs", id="too many blocks"),
        pytest.param({"count": 3, "finalists": 1, "blocks": 2, "block_baselines": 1},
                     "1 degrees of freedom", id="too few blocks"),
        pytest.param({"selected": frozenset({"p99"})}, "unknown profile 'p99'",
                     id="an unknown selection"),
        pytest.param({"profiles": (profile("baseline-aa"),)}, "A/A control arm",
                     id="the alias' own name"),
        pytest.param({"profiles": (profile("a"), profile("a"))}, "duplicate", id="an id twice"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        study(**changes)


def test_foreign_trials_are_ignored_and_said_so() -> None:
    sweep = study()
    done = history({"p7": 0.05, "p8": 0.05, "p9": 0.05}, of=sweep)
    own = done[1].trial
    strangers = (
        replace(own, cell_digest="0" * 16),
        replace(own, protocol=Protocol(profiler="xplane", skip_first_steps=4)),
        replace(own, profile=profile(own.profile.id, "--xla_gpu_other=1")),
        replace(own, arm="gone", profile=profile("gone", "--xla_gpu_gone=1")),
    )
    found = sweep.decide([*(measured(t, 9.9) for t in strangers), *done]).conclusion
    assert found.verdicts == sweep.decide(done).conclusion.verdicts
    for words in ("2 trials of another cell", "declared, ignored: gone", "old trials ignored: "):
        assert words in notes_of(found)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(profile("p1", "--xla_gpu_knob=2"), id="a flag"),
        pytest.param(profile("p1", "--xla_gpu_knob=1", env={"A": "1"}), id="a variable"),
        pytest.param(profile("p1", "--xla_gpu_knob=1", overrides={"a": "1"}), id="an override"),
    ],
)
def test_a_profile_that_was_edited_is_screened_and_never_held_against_old_baselines(
    now: Profile,
) -> None:
    """Its blocks are over: the machine has drifted since, and their alpha is spent."""
    old = study(profiles=(profile("p1", "--xla_gpu_knob=1"),), budget=20)
    done = history({}, of=old)
    again = study(profiles=(now,), budget=20)
    assert "p1" in arms_of(again.decide(done).due)
    later = history({"p1": 0.02}, of=again, after=done)  # by drift alone
    assert {t.trial.block for t in later[len(done) :] if t.trial.arm == "p1"} == {0}
    conclusion = again.decide(later).conclusion
    assert verdict(conclusion, "p1").kind is VerdictKind.SCREENED
    assert sentence(conclusion.notes[0]).startswith("p1 would be a finalist")
    assert "old trials ignored: p1" in notes_of(conclusion)
    # the settings that were confirmed have their verdict back where they are declared again
    assert old.decide(later).conclusion.verdicts == old.decide(done).conclusion.verdicts


def test_waves_run_one_by_one_come_to_the_same_as_all_at_once() -> None:
    profiles = (*knobs(6), *(replace(p, id=f"w3-{p.id}", wave="wave3") for p in knobs(6)))
    run = cluster({"p2": 0.03, "w3-p4": 0.04})

    def sweep(wave: str, *, confirm: bool) -> TuningStudy:
        chosen = frozenset(p.id for p in profiles if wave in ("", p.wave))
        return TuningStudy(cell=CELL, profiles=profiles, selected=chosen, confirm=confirm)

    done = history(run, of=sweep("wave3", confirm=False))
    explored = sweep("wave3", confirm=False).decide(done).conclusion
    assert (explored.tuning.finalists, explored.complete, explored.alpha) == ((), True, 0.0)
    assert verdict(explored, "w3-p4").kind is VerdictKind.SCREENED
    done = history(run, of=sweep("wave2", confirm=False), after=done)
    whole = sweep("", confirm=True)
    done = history(run, of=whole, after=done)
    at_once = history(run, of=whole)
    assert whole.decide(done).conclusion == whole.decide(at_once).conclusion
    assert {r.trial.id for r in done} == {r.trial.id for r in at_once}


# --- what comes late --------------------------------------------------------------------------


def test_a_profile_that_comes_after_the_blocks_is_told_and_leaves_their_verdicts() -> None:
    run = cluster({"p1": 0.04, "p12": 0.05})
    done = history(run, of=study(12))
    before = study(12).decide(done).conclusion
    more = study(13, budget=80)
    assert {(each.arm, each.block) for each in more.decide(done).due} == {("p12", 0)}
    whole = history(run, of=more, after=done)
    for found, is_over in ((more.decide(done).conclusion, False),
                           (more.decide(whole).conclusion, True)):  # fmt: skip
        assert found.complete is is_over
        assert found.tuning.finalists == before.tuning.finalists
        assert (found.alpha, before.alpha) == (0.05, 0.05)
        assert verdict(found, "p1").kind is verdict(before, "p1").kind is VerdictKind.FASTER
        assert "p12" not in found.tuning.finalists
    assert verdict(found, "p12").kind is VerdictKind.SCREENED
    assert sentence(found.notes[0]).startswith("p12 would be a finalist")
    assert "would be a finalist" not in notes_of(before)


def test_a_run_without_any_finalist_leaves_their_blocks_alone() -> None:
    done = history({"p7": 0.05, "p8": 0.05, "p9": 0.05}, of=study())[:-4]
    assert {t.profile.id for t in study().decide(done).due} & {"p7", "p8", "p9"}
    assert study(selected=frozenset({"p3"})).decide(done).due == ()


def spare(done: list[TrialResult]) -> list[Trial]:
    return [each.trial for each in done if each.trial.design and each.trial.design.look == 3]


def test_jobs_that_are_left_go_to_what_may_still_gain_2_percent() -> None:
    sweep = study(budget=65)
    done = history({}, 0.006, of=sweep, seed=2)
    own = spare(done)
    assert len(done) <= 65
    assert sum(each.is_baseline for each in own) == 2
    decided = [each for each in done if each.trial not in own]
    before, after = sweep.decide(decided).conclusion, sweep.decide(done).conclusion
    assert (after.tuning.bound or 1.0) < 0.02 <= (before.tuning.bound or 0.0)
    assert (before.complete, after.complete) == (False, True), "the spare block is awaited"
    # it decides nothing, spends nothing, and makes no finalist
    assert (after.alpha, after.tuning.finalists) == (0.05, before.tuning.finalists)
    for each in before.tuning.finalists:
        old, new = verdict(before, each), verdict(after, each)
        assert (old.kind, old.ci95, old.n) == (new.kind, new.ci95, new.n) or old.ci95 is None
    again = arms_of(own) - {*after.tuning.finalists}
    assert again
    for each in again:
        assert verdict(after, each).kind is VerdictKind.SCREENED
        assert verdict(after, each).reasons[0] == say("measured {times:+time}: ranks only", times=2)
    # half a spare block is gone on with as it was planned
    assert sweep.decide(done[:-1]).due == (done[-1].trial,)


@pytest.mark.parametrize(
    ("when", "block"), [("after block 4", 4), ("a day later", ("alone",)), ("in time", 2)]
)
def test_a_trial_that_was_tried_again_late_stands_where_it_ran(when: str, block: object) -> None:
    """A step of 3 % between block 2 and block 4 is no gain of the arm that was late."""
    sweep, plain = study(), cluster({}, sigma=0.001)
    done: list[TrialResult] = []

    def run(trial: Trial, start_s: float, step: float) -> TrialResult:
        score = plain(trial).score
        assert score is not None
        outcome = Outcome(state=State.COMPLETED, start_s=start_s)
        return replace(measured(trial, score.value + step), outcome=outcome)

    while trials := sweep.decide(done).due:
        done += [
            run(trial, 1000.0 * (len(done) + at), 0.03 * (trial.block > 2))
            for at, trial in enumerate(trials)
        ]
    name = next(r.trial.arm for r in done if r.trial.block == 4 and not r.trial.is_baseline)
    (late,) = (r.trial for r in done if r.trial.arm == name and r.trial.block == 2)
    last = 1000.0 * (len(done) - 1)
    if when != "in time":
        again = run(late, last + (1500 if when == "after block 4" else 86_400), 0.03)
        done = [again if r.trial == late else r for r in done]
    found = verdict(sweep.decide(done).conclusion, name)
    assert found.delta == pytest.approx(0.0, abs=0.003)
    assert found.kind is not VerdictKind.FASTER
    own = sweep.state(done).ranked.past.real_blocks[place(late)]
    assert own == block or (isinstance(own, tuple) and own[:1] == block)


def test_a_late_trial_as_near_to_two_blocks_is_of_the_first_in_every_process() -> None:
    design = ConfirmDesign(arms=2, blocks=3, baselines=1)
    for name in knobs(12):  # the order of sets goes by names, and would be the first's by chance
        starts: dict[tuple[int, Profile], float]
        starts = {(1, BASELINE): 0, (2, BASELINE): 1000, (2, ALIAS): 1100, (3, BASELINE): 2000}
        starts |= {(1, ALIAS): 100, (3, ALIAS): 2100, (1, name): 1550}
        history = []
        for (block, own), start in starts.items():
            drawn = study().orders.blocks([name, ALIAS], [block], design=design)
            (trial,) = (each for each in drawn if each.arm == own.id)
            outcome = Outcome(state=State.COMPLETED, start_s=start)
            history.append(replace(measured(trial, 7.0), outcome=outcome))
        past = study().read(history, {name.id: name})
        assert past.real_blocks[place(history[-1].trial)] == 2


@pytest.mark.parametrize("is_lost_again", [False, True])
def test_a_profile_that_lost_its_run_in_the_screen_is_not_ruled_out(*, is_lost_again: bool) -> None:
    """It could gain +4 %: M was said of the others, and meant all."""
    blocks = range(99) if is_lost_again else (0,)
    losing = failing(cluster({"p7": 0.04}, sigma=0.002), arm("p7", blocks=blocks))
    tight, roomy = study(budget=50), study(budget=65)
    without = tight.decide(history(losing, of=tight)).conclusion
    assert verdict(without, "p7").kind is VerdictKind.INVALID
    assert (without.complete, without.tuning.bound) == (True, None)
    assert "p7 has no score" in notes_of(without)
    assert "no tested setting gains" not in notes_of(without)
    # jobs that are left measure it once more, and no third time where it has no score again
    done = history(losing, of=roomy)
    assert "p7" in {each.arm for each in spare(done) if each.block == spare(done)[0].block}
    again = roomy.decide(done).conclusion
    if is_lost_again:
        assert [each.arm for each in spare(done)].count("p7") == 1
        assert again.tuning.bound is None
    else:
        assert verdict(again, "p7").kind is VerdictKind.SCREENED
        assert (again.tuning.bound or 0.0) > 0.02, "it is not confirmed, and not ruled out"


def test_with_a_large_budget_the_best_of_the_screen_run_twice_and_both_runs_rank_them() -> None:
    sweep = study(25, budget=80)
    run = cluster({"p1": 0.03, **{f"p{at}": -0.1 for at in range(8, 20)}}, sigma=0.004)
    first = screen(sweep, run)
    second = sweep.decide(first).due
    assert {each.stage for each in second} == {AGAIN}
    assert 8 <= len(arms_of(second)) == len(second) <= 11
    # another hour in which all is 5 % slower moves no rank
    for shift in (0.0, 0.05):
        later = changed(run, lambda _: True, value=lambda score, by=shift: score.value - by)
        results = [*first, *map(later, second)]
        blocks = sweep.decide(results).due
        assert blocks[0].block == 1, shift
        assert arms_of(blocks) < arms_of(second), "only what ran twice enters"
        done = history(run, of=sweep, after=results)
        assert len(done) <= 80
        assert verdict(sweep.decide(done).conclusion, "p1").kind is VerdictKind.FASTER
    # a cell with a profile more goes on with the second runs that there are
    more = replace(study(26, budget=80), seed=sweep.seed)
    assert {each.stage for each in more.decide(results).due} == {"wave2"}
