"""The tuning study, by jobs and by rotations: what it proposes, concludes, and must not heed."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from statistics import fmean
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence, verbatim
from pytest_xlatune.model.profile import BASELINE_ID, Profile, profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Effect,
    Finding,
    Outcome,
    Recipe,
    State,
    TrialResult,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.rotation_score import is_baseline
from pytest_xlatune.model.text import size
from pytest_xlatune.model.trial import ROTATION, ConfirmDesign, Trial
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import headline
from pytest_xlatune.report.lines import ending_text
from pytest_xlatune.stats.rotations import COMPILE_SHARE, FIRST_STEPS, JobPace, JobWork
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.studies import Answered, Ask, Question, all_selected, as_begun, engine, tuning
from pytest_xlatune.studies.derived import Search, Stacks
from pytest_xlatune.studies.trials import AGAIN, CONFIRM, LOOK_STAGE, TURNS, pace_of
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from tests.helpers.cells import row
from tests.helpers.history import (
    CELL,
    NCCL,
    Answer,
    Machine,
    arm,
    changed,
    failing,
    history,
    knobs,
    lost,
    measured,
    mixed,
    noise,
    study,
    turning,
    verdict,
)
from tests.helpers.second_looks import tried
from tests.helpers.words import with_values

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
    return {trial.arm for trial in trials} - {"baseline-deployed"}


def notes_of(conclusion: Conclusion) -> str:
    return "\n".join(map(sentence, conclusion.notes))


def test_the_screen() -> None:
    four_waves = waves(("wave10", 3), ("wave1_5", 3), ("wave2", 3), ("wave1", 3))
    for sweep, stages, baselines in (
        # three baselines are spread over a wave
        (study(25), {"wave2": 28}, [0, 14, 27]),
        # waves in their order, baselines far apart over all
        (
            study(profiles=four_waves, budget=60),
            {"wave1": 4, "wave1_5": 4, "wave2": 4, "wave10": 4},
            [0, 5, 10, 15],
        ),
        # more baselines go where most profiles are
        (
            study(profiles=waves(("wave1", 1), ("wave2", 20))),
            {"wave1": 2, "wave2": 22},
            [0, 2, 23],
        ),
        (study(selected=frozenset({"baseline-deployed"})), {"wave2": 3}, [0, 1, 2]),
    ):
        trials = sweep.decide([]).due
        drawn = [each.stage for each in trials]
        assert {stage: drawn.count(stage) for stage in dict.fromkeys(drawn)} == stages
        assert [at for at, trial in enumerate(trials) if trial.is_baseline] == baselines
        order = [each.arm for each in trials if not each.is_baseline]
        declared = [each.id for each in sweep.profiles] if not sweep.selected else []
        assert sorted(order) == sorted(declared)
        assert order != declared or not order, "the order is drawn"
        assert {each.block for each in trials} == {0}


SWEEP, RUN_THREE = study(), Machine(THREE)
SCREENED = [RUN_THREE(trial) for trial in SWEEP.decide([]).due]
FIRST = SWEEP.decide(SCREENED).due
RAN = [RUN_THREE(trial) for trial in FIRST]
LATER = SWEEP.decide([*SCREENED, *RAN]).due
DONE = [*SCREENED, *RAN, *map(RUN_THREE, LATER)]


def test_the_best_five_enter_the_first_block_and_the_best_three_go_on() -> None:
    scores = {r.trial.arm: r.score.value for r in SCREENED if r.score and not r.trial.is_baseline}
    assert arms_of(FIRST) == set(sorted(scores, key=lambda name: -scores[name])[:5])
    assert [t.block for t in FIRST] == [1] * 7
    assert arms_of(LATER) == {*THREE}
    assert [sum(t.block == b for t in LATER) for b in (2, 3, 4)] == [5, 5, 5]
    design = ConfirmDesign(arms=5, blocks=4, baselines=2, widths=(5, 3, 3, 3))
    assert {t.design for t in (*FIRST, *LATER)} == {design}
    assert len(SCREENED) + len(FIRST) + len(LATER) == 50
    assert study(confirm=False).decide(SCREENED).due == ()
    # a run without any finalist leaves their blocks alone
    assert study(selected=frozenset({"p3"})).decide([*SCREENED, *RAN]).due == ()
    # a larger budget does not prolong what has begun
    assert study(budget=80).decide(DONE).due == ()
    before, after = (study(budget=each).decide(DONE).conclusion for each in (50, 80))
    assert before.verdict("p7") == after.verdict("p7")


def test_each_block_draws_an_order_of_its_own() -> None:
    """Blocks in mirrored pairs add up what has the period of two blocks: 9.6 % false winners."""
    mirrored = []
    for seed in range(30):
        sweep = study(seed=seed, finalists=3)
        trials = sweep.decide(screen(sweep, Machine(THREE))).due
        blocks = [[(t.arm, t.position) for t in trials if t.block == b] for b in (1, 2, 3, 4)]
        mirrored += [one == other[::-1] for one, other in pairwise(blocks)]
    assert sum(mirrored) / len(mirrored) < 0.1


def test_the_cut_is_by_screen_and_first_block_together() -> None:
    """An arm that was lucky once goes, one that is fast twice stays."""
    lucky = {"p1": 0.10, "p2": 0.09, "p3": 0.08, "p4": 0.03, "p5": 0.03}
    beside = {"p1": -0.09, "p2": 0.05, "p3": 0.05, "p4": 0.05, "p5": -0.05}
    screened = screen(SWEEP, Machine(lucky))
    done = [*screened, *map(Machine(beside), SWEEP.decide(screened).due)]
    assert arms_of(SWEEP.decide(done).due) == {"p2", "p3", "p4"}
    found = SWEEP.decide(history({}, of=SWEEP, after=done)).conclusion
    for cut in (verdict(found, "p1"), verdict(found, "p5")):
        assert (cut.kind, cut.n, cut.ci95) == (VerdictKind.SCREENED, 2, None)
        assert sentence(cut.reasons[0]) == "measured 2 times: ranks only"


def test_finalists_and_the_cut_wait_for_their_trials_and_never_change_afterwards() -> None:
    begun = [*SCREENED, TrialResult(trial=FIRST[0], status=TrialStatus.PLANNED)]
    assert SWEEP.decide(begun).due == FIRST
    assert "would be confirmed" not in notes_of(SWEEP.decide(begun).conclusion)
    # the screen is read anew with another favourite: the begun arms stay
    again = [measured(r.trial, 8.0) if r.trial.arm == "p1" else r for r in begun]
    assert FIRST[0].arm in {t.arm for t in SWEEP.decide(again).due}
    assert SWEEP.decide([*SCREENED, *RAN[:-1]]).due == (FIRST[-1],)
    cut = arms_of(FIRST) - arms_of(LATER)
    anew = [measured(r.trial, 8.0) if r.trial.arm in cut and r.trial.block else r for r in DONE]
    assert SWEEP.decide(anew).due == ()
    assert verdict(SWEEP.decide(anew).conclusion, min(cut)).kind is VerdictKind.SCREENED
    planned = [*SCREENED, *RAN, TrialResult(trial=LATER[0], status=TrialStatus.PLANNED)]
    anew = [measured(r.trial, 8.0) if r.trial.arm in cut else r for r in planned]
    assert LATER[0].arm in {t.arm for t in SWEEP.decide(anew).due}


def test_a_run_that_the_first_block_lost_is_no_reason_to_stay_and_none_to_leave() -> None:
    run = Machine({"p1": 0.12, "p2": 0.05, "p3": 0.05, "p4": 0.05, "p5": 0.04}, sigma=0.001)
    screened = screen(SWEEP, run)
    every = {BASELINE_ID, *(f"p{at}" for at in range(25))}
    for gone, kept in (({"p1"}, {"p1"}), ({"p5", "p2"}, {"p1", "p3", "p4"}), (every, set())):
        first = map(failing(run, arm(*gone)), SWEEP.decide(screened).due)
        inside = arms_of(SWEEP.decide([*screened, *first]).due)
        assert (kept <= inside, len(inside)) == (True, 3)


def test_a_finalist_that_turns_out_unable_to_run_is_planned_in_no_later_block() -> None:
    left = tuple(trial for trial in FIRST if trial.arm != "p8")
    (first,) = {*FIRST} - {*left}
    done = [*SCREENED, failing(RUN_THREE, arm("p8"), TrialStatus.DROPPED)(first)]
    assert SWEEP.decide(done).due == left
    assert SWEEP.outlook(done).left == len(left) + 15
    assert "p8" not in arms_of(SWEEP.decide([*done, *map(RUN_THREE, left)]).due)


def test_who_is_confirmed_depends_on_the_noise() -> None:
    for distance, sigma, loud, is_confirmed in (
        (-0.012, 0.006, 0.0, True),  # two standard errors below it may still help
        (-0.016, 0.006, 0.0, False),
        (-0.012, 0.001, 0.006, True),  # a cell that is said to be quiet, whose screen is loud
    ):
        sweep = study(1, budget=20, screen_baselines=5, sigma_prior=sigma)
        trials = sweep.decide([]).due
        off = [loud * (-1) ** e.position if e.is_baseline else distance for e in trials]
        done = [measured(e, 6.9 + value) for e, value in zip(trials, off, strict=True)]
        assert ("p0" in arms_of(sweep.decide(done).due)) is is_confirmed


NODE = replace(CELL, nodelist=("s0",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 60}, "need 61 jobs, the budget is 50"),
        ({"count": 25, "blocks": 9}, "need 73 jobs"),
        ({"count": 3, "finalists": 1, "blocks": 2, "block_baselines": 1}, "1 degrees of freedom"),
        ({"selected": frozenset({"p99"})}, "unknown profile 'p99'"),
        ({"profiles": (profile("baseline-aa"),)}, "A/A control arm"),
        ({"profiles": (profile("a"), profile("a"))}, "duplicate"),
        (
            {"cell": NODE, "slots": (("s0",), ("s1",)), "profiles": (profile("a", wave="again"),)},
            r"a wave is called 'again'.*another name",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        study(**changes)


def test_foreign_trials_are_ignored() -> None:
    own = DONE[1].trial
    strangers = (
        replace(own, cell_digest="0" * 16),
        replace(own, protocol=Protocol(profiler="xplane", skip_first_steps=4)),
        replace(own, profile=profile(own.profile.id, "--xla_gpu_other=1")),
        replace(own, arm="gone", profile=profile("gone", "--xla_gpu_gone=1")),
    )
    found = SWEEP.decide([*(measured(t, 9.9) for t in strangers), *DONE]).conclusion
    assert found.verdicts == SWEEP.decide(DONE).conclusion.verdicts
    assert "old trials ignored: " in notes_of(found)


def test_a_profile_that_was_edited_is_screened_and_never_held_against_old_baselines() -> None:
    """Its blocks are over: the machine has drifted since, and their alpha is spent."""
    old = study(profiles=(profile("p1", "--xla_gpu_knob=1"),), budget=20)
    done = history({}, of=old)
    # another variable, or an override, is another profile as well
    knob = old.profiles[0]
    for other in (replace(knob, env={"A": "1"}), replace(knob, overrides={"a": "1"})):
        assert "p1" in arms_of(study(profiles=(other,), budget=20).decide(done).due)
    again = study(profiles=(profile("p1", "--xla_gpu_knob=2"),), budget=20)
    assert "p1" in arms_of(again.decide(done).due)
    later = history({"p1": 0.02}, of=again, after=done)  # by drift alone
    assert {t.trial.block for t in later[len(done) :] if t.trial.arm == "p1"} == {0}
    conclusion = again.decide(later).conclusion
    assert verdict(conclusion, "p1").kind is VerdictKind.SCREENED
    assert sentence(conclusion.notes[0]).startswith("p1 would be a finalist")
    assert "old trials ignored: p1" in notes_of(conclusion)
    # the settings that were confirmed have their verdict back where they are declared again
    assert old.decide(later).conclusion.verdicts == old.decide(done).conclusion.verdicts


def test_a_profile_that_comes_after_the_blocks_is_told_and_leaves_their_verdicts() -> None:
    run = Machine({"p1": 0.04, "p12": 0.05})
    done = history(run, of=study(12))
    before = study(12).decide(done).conclusion
    more = study(13, budget=80)
    assert {(each.arm, each.block) for each in more.decide(done).due} == {("p12", 0)}
    whole = history(run, of=more, after=done)
    for results, is_over in ((done, False), (whole, True)):
        found = more.decide(results).conclusion
        assert (found.complete, found.alpha, before.alpha) == (is_over, 0.05, 0.05)
        assert found.tuning.finalists == before.tuning.finalists
        assert verdict(found, "p1").kind is verdict(before, "p1").kind is VerdictKind.FASTER
    assert verdict(found, "p12").kind is VerdictKind.SCREENED
    assert sentence(found.notes[0]).startswith("p12 would be a finalist")
    assert "would be a finalist" not in notes_of(before)


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
    for name in before.tuning.finalists:
        old, new = verdict(before, name), verdict(after, name)
        assert (old.kind, old.ci95, old.n) == (new.kind, new.ci95, new.n) or old.ci95 is None
    again = arms_of(own) - {*after.tuning.finalists}
    found = {(verdict(after, name).kind, verdict(after, name).reasons[0]) for name in again}
    assert found == {(VerdictKind.SCREENED, say("measured {times:+time}: ranks only", times=2))}
    # half a spare block is gone on with as it was planned
    assert sweep.decide(done[:-1]).due == (done[-1].trial,)


def test_a_trial_that_was_tried_again_late_counts_where_it_ran() -> None:
    """A step of 3 % between block 2 and block 4 is no gain of the arm that was late."""

    def run(trial: Trial, start_s: float, step: float) -> TrialResult:
        outcome = Outcome(state=State.COMPLETED, start_s=start_s)
        return replace(measured(trial, 6.9 + noise(trial, 0.001) + step), outcome=outcome)

    done: list[TrialResult] = []
    while trials := SWEEP.decide(done).due:
        starts = enumerate(trials, start=len(done))
        done += [run(trial, 1000.0 * at, 0.03 * (trial.block > 2)) for at, trial in starts]
    name = next(r.trial.arm for r in done if r.trial.block == 4 and not r.trial.is_baseline)
    (first,) = (r for r in done if r.trial.arm == name and r.trial.block == 2)
    last = 1000.0 * (len(done) - 1)
    # in time, beside block 4, a day later: compared with nothing
    for ran, n in (
        (first, 4),
        (run(first.trial, last + 1500, 0.03), 4),
        (run(first.trial, last + 86_400, 0.03), 3),
    ):
        results = [ran if r is first else r for r in done]
        found = verdict(SWEEP.decide(results).conclusion, name)
        assert found.delta == pytest.approx(0.0, abs=0.003)
        assert found.kind is not VerdictKind.FASTER
        scored = SWEEP.state(results).screened.past.scored_in_blocks()
        shared = {job.block for job in scored if job.arm == "baseline-deployed"}
        assert sum(job.arm == name and job.block in shared for job in scored) == n


def test_with_a_large_budget_the_best_of_the_screen_run_twice_and_both_runs_rank_them() -> None:
    sweep = study(25, budget=80)
    run = Machine({"p1": 0.03, **{f"p{at}": -0.1 for at in range(8, 20)}}, sigma=0.004)
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


HURT = {f"p{at}": -0.05 for at in range(1, 6)}
SMALL = {"count": 6, "budget": 40}  # a place is left for the alias of the baseline
HANG = Finding(cls="hang-mid-training", action=Action.RETRY, text="nothing since")
IDLE = replace(profile("idle", "--xla_gpu_knob=99"), is_control=True)
SMALL_GAIN = pytest.approx(0.01, abs=0.01)
OPEN = {VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE, VerdictKind.INVALID}


def lucky(once: Mapping[str, float], later: Mapping[str, float], sigma: float = 0.003) -> Answer:
    """Return a machine whose profiles gain something else in the blocks."""
    return lambda trial: Machine(later if trial.block else once, sigma)(trial)


def with_settings(run: Answer, effects: Mapping[str, Effect], usual: Effect) -> Answer:
    """Return a machine that tells of settings by their names, and of all others the usual."""

    def told(trial: Trial) -> TrialResult:
        own = trial.profile
        judged = judge_settings(own, Witnesses(), overrides=own.overrides)
        settings = tuple(replace(e, effect=effects.get(e.name, usual)) for e in judged)
        return replace(run(trial), settings=settings)

    return told


def p3_unseen(trial: Trial) -> TrialResult:
    run = Machine({}, sigma=0.002)
    return with_settings(run, {}, Effect.NOT_SEEN)(trial) if trial.arm == "p3" else run(trial)


def p3_noisy(trial: Trial) -> TrialResult:
    if trial.arm != "p3":
        return Machine({}, sigma=0.002)(trial)
    return measured(trial, 6.9 + ((0.06, -0.05, 0.02)[trial.block % 3] if trial.block else 0.05))


def stalling(tgs: float | None, blocks: Sequence[int]) -> Answer:
    """Return a machine that slows four steps of p7 (one, where it is one block) to this TGS."""
    slow = tuple(range(5, 6 if len(blocks) == 1 else 9))
    return changed(
        Machine({"p7": 0.03, "p8": 0.03}, sigma=0.001),
        arm("p7", blocks=blocks),
        window_tgs=lambda score: tgs and math.exp(score.value) * tgs,
        stragglers=len(slow),
        dropped=slow,
        n_steps=10 - len(slow),
    )


def hanging(blocks: Sequence[int], baselines: Sequence[int] = ()) -> Answer:
    """Return a machine on which p7 hangs twice in these blocks, and a baseline in those."""
    run: Answer = Machine({"p7": 0.04, "p8": 0.03, "p9": 0.03}, sigma=0.001)
    hangs: dict[str, Any] = {"why": "it stood still twice", "findings": (HANG, HANG)}
    hangs["job_ids"] = ("1", "2")
    run = failing(run, lambda e: arm(BASELINE_ID, blocks=baselines)(e) and not e.position, **hangs)
    return failing(run, arm("p7", blocks=blocks), **hangs)


def in_later_epoch(**other: Any) -> Answer:
    """Return a machine that is 10 % faster in all of a block but its baselines."""
    run = Machine(THREE)
    return lambda e: (
        replace(measured(e, 7.0 + noise(e, 0.003)), **other)
        if e.block and not e.is_baseline
        else run(e)
    )


def losing(blocks: Collection[int]) -> Answer:
    """Return a machine on which p7, which could gain +4 %, has no score in these blocks."""
    return failing(Machine({"p7": 0.04}, sigma=0.002), arm("p7", blocks=blocks))


OVERLAP = profile("overlap-2", "--xla_gpu_overlap=2", wave="wave2")
RING = profile("own", env={"NCCL_ALGO": "Ring"}, wave="wave2")
USUAL = RotationRule(is_usual=True)
TURNING: dict[str, Any] = {"rotation": RotationRule(), "sigma_prior": None}
FEW_TURN = {**TURNING, "count": 12}


def dropped_in(stage: str) -> Answer:
    drops, runs = Machine(fails=lambda _: True), Machine({"p3": 0.04})
    return lambda e: replace(drops(e), status=TrialStatus.DROPPED) if e.stage == stage else runs(e)


@pytest.mark.parametrize(
    ("changes", "run", "expected"),
    [
        row("5 % seen and 4 % excluded is where one may stop", {}, Machine({"p8": 0.08}, 0.002),
            kinds={"p8": "FASTER"}, stop={"p8": 8}, bound=None),
        row("where nothing helps M says so", {}, Machine({}, 0.002), bound=SMALL_GAIN,
            notes=["gains more than"]),
        row("a finalist may turn out slower, one run never says so", {"finalists": 3},
            lucky({"p7": 0.05, "p1": -0.2}, {"p7": -0.05}),
            kinds={"p7": "SLOWER", "p1": "SCREENED"}),
        row("a profile that cannot run", {},
            failing(Machine({}), arm("p4"), TrialStatus.DROPPED, "unknown flag"),
            kinds={"p4": "INVALID"}, cannot_run=["p4"], why={"p4": "unknown flag"}),
        row("another loss makes no winner and no finalist, and M is of the others", {},
            changed(Machine({"p7": 0.12}, 0.002), arm("p7"), loss=8.0), kinds={"p7": "INVALID"},
            why={"p7": "its loss is 8, the baseline's 9.5"}, never=["p7"], bound=SMALL_GAIN),
        row("the loss is that of the baselines, whatever most profiles have", {},
            changed(Machine({}), lambda trial: not trial.is_baseline, loss=8.0),
            rest={VerdictKind.INVALID}),
        row("one slow step is no significant number", {}, stalling(0.5, (1,)),
            kinds={"p7": "FASTER"}),
        row("many slow steps that eat the gain up", {}, stalling(0.96, range(1, 5)),
            kinds={"p7": "INCONCLUSIVE"}),
        row("many slow steps that cost an unknown amount", {}, stalling(None, range(1, 5)),
            kinds={"p7": "INCONCLUSIVE"}),
        row("one of four runs hangs", {}, hanging((2,)), kinds={"p7": "FASTER"},
            lost={"p7": ("1 of 4 runs lost: hang", 2, 1)}),
        row("two of four runs hang", {}, hanging((2, 3)), kinds={"p7": "INCONCLUSIVE"},
            lost={"p7": ("2 of 4 runs lost: hang", 4, 2)}),
        row("two of four hang where the baselines lose as many", {}, hanging((2, 3), range(1, 5)),
            kinds={"p7": "INCONCLUSIVE"}, lost={"p7": ("2 of 4 runs lost: hang", 4, 2)}),
        # it could gain +4 %: M was said of the others, and meant all
        row("a profile that lost its run in the screen is not ruled out", {"budget": 50},
            losing((0,)), kinds={"p7": "INVALID"}, bound=None),
        row("jobs that are left measure it once more", {"budget": 65}, losing((0,)),
            kinds={"p7": "SCREENED"}, bound=pytest.approx(0.04, abs=0.02)),
        row("and no third time", {"budget": 65}, losing(range(99)), kinds={"p7": "INVALID"},
            bound=None),
        *(
            row(f"{effect} {name} does not win however fast it is, nor stops a sweep",
                {"profiles": (own, OVERLAP, *knobs(20))},
                with_settings(Machine({"own": 0.30, "overlap-2": 0.08}), {name: effect},
                              Effect.IN_EFFECT),
                kinds={"own": "FASTER"}, winner="overlap-2", stop={"overlap-2": 8},
                headline=[f"nothing shows that `{shown}` was", "`own` is at +"])
            for own, name, shown, effect in (
                (RING, "NCCL_ALGO", "NCCL_ALGO", Effect.ASKED),
                (profile("own", "--xla_a=1"), "xla_a", "--xla_a", Effect.NOT_SEEN),
                (profile("own", env={"HSA_X": "1"}, overrides={"m": "16"}), "HSA_X", "HSA_X",
                 Effect.ASKED),
            )
        ),
        row("what is shown wins, and stops a sweep", {"profiles": (RING, OVERLAP, *knobs(20))},
            with_settings(Machine({"own": 0.30}), {}, Effect.IN_EFFECT), winner="own",
            stop={"own": 30}),
        row("settings of the baseline are an A/A trial, and a twin is named",
            {"profiles": (*knobs(24), profile("same", "--xla_gpu_autotune_level=4"),
                          profile("twin", "--xla_gpu_knob=0")), "budget": 60},
            Machine({"same": 0.05, "twin": 0.05}), kinds={"same": "SCREENED"},
            why={"same": "environment as baseline-deployed", "twin": "environment as p0"}),
        row("a block that a node swap cuts compares nothing across it", {}, in_later_epoch(epoch=1),
            kinds=dict.fromkeys(THREE, "INCONCLUSIVE"), why={"p7": "no block holds both"}),
        row("nor one of two allocations", {},
            in_later_epoch(outcome=Outcome(state=State.COMPLETED, allocation="4712")),
            kinds=dict.fromkeys(THREE, "INCONCLUSIVE"), why={"p7": "no block holds both"}),
        row("a sweep without profiles calibrates the cell", {"count": 0, "screen_baselines": 12},
            Machine({}, 0.005), jobs=12, arms=[], sigma=pytest.approx(0.005, rel=0.5)),
        row("of settings that nothing shows nothing is ruled out", {},
            with_settings(Machine({}, 0.002), {}, Effect.NOT_SEEN), bound=None,
            silent=["ruled out"], unseen=[]),
        row("nor of one that nothing shows", {}, p3_unseen, bound=SMALL_GAIN, unseen=[("p3",)]),
        row("an arm that is judged by its own noise is bounded by it", {"budget": 65}, p3_noisy,
            method={"p3": "its own noise"}, notes=["the interval of p3"]),
        row("a loser of one run is told where noise hardly explains it", {},
            Machine({"p1": -0.06, "p2": -0.012}), kinds={"p1": "SCREENED"}, likely_slower=["p1"],
            why={"p1": "very likely slower (1 run)"}),
        row("a tie of the best two", {}, Machine({"p1": 0.05, "p2": 0.05}, 0.002),
            notes=["a tie: p"]),
        row("no tie, and no noise of idle settings", {"profiles": (*knobs(10), IDLE), "budget": 60},
            Machine({"p1": 0.05, "p2": 0.03}, 0.002), silent=["a tie", "settings that do nothing"]),
        row("a machine is too noisy where idle settings moved",
            {"profiles": (*knobs(10), IDLE), "budget": 60}, Machine({"idle": -0.3}, 0.002),
            notes=["settings that do nothing"]),
        *(
            row(f"the control at {moved:+.0%}", SMALL,
                Machine({**HURT, "p0": 0.02, "baseline-aa": moved}, 0.001),
                kinds={"p0": "FASTER"}, finalists=("p0",), moved=bool(moved), method={"p0": "K=1,"})
            for moved in (-0.06, 0.0, 0.06)
        ),
        row("the control never reaches the stop rule", SMALL,
            Machine({**HURT, "p0": 0.08, "baseline-aa": 0.08}, 0.001), stop={"p0": 8}),
        row("where all hurt nothing is confirmed", {}, Machine({p.id: -0.05 for p in knobs(25)}),
            rest={VerdictKind.SCREENED}, jobs=28, never=[p.id for p in knobs(25)]),
        row("a dropped finalist leaves its blocks", {},
            failing(Machine(THREE), arm("p8", blocks=range(1, 9)), TrialStatus.DROPPED, "oom"),
            kinds={"p7": "FASTER", "p8": "INVALID"}, cannot_run=["p8"], why={"p8": "oom"},
            method={"p7": "K=4"}),
        row("a quiet cell keeps five to the end", {"sigma_prior": 0.003},
            Machine({f"p{at}": 0.02 for at in range(5)}, 0.003),
            kinds={f"p{at}": "FASTER" for at in range(5)}),
        row("a budget that only ranks says so", {"count": 30, "budget": 36}, Machine({"p1": 0.05}),
            rest={VerdictKind.SCREENED}, notes=["ranking only: 36 jobs screen 30 profiles"]),
        row("blocks ran at another time than the screen, 8 % slower", {},
            lambda e: measured(e, 6.9 - 0.08 * (e.block > 0) + 0.03 * (e.arm == "p3")
                               + noise(e, 0.003)), kinds={"p3": "FASTER"}),
        # rotations rank, and jobs in the deployed form decide
        row("fast in turns alone", FEW_TURN, Machine({"p3": 0.05}, deployed={"p3": 0.0}),
            kinds={"p3": "EQUIVALENT"}, likely_slower=[]),
        row("faster deployed", FEW_TURN, Machine({"p3": 0.05}, deployed={"p3": 0.15}),
            kinds={"p3": "FASTER"}),
        row("another loss deployed", FEW_TURN, Machine({"p3": 0.05}, losses={"p3": 7.0}),
            kinds={"p3": "INVALID"}),
        row("its jobs are lost", FEW_TURN,
            Machine({"p3": 0.05}, fails=lambda e: e.block > 0 and e.arm == "p3"),
            kinds={"p3": "INVALID"}),
        row("slow in turns, which is never called slower", FEW_TURN,
            Machine({f"p{at}": -0.05 for at in range(12)}), rest={VerdictKind.SCREENED},
            likely_slower=[]),
        row("programs that are left out say why, and an equal text is no equal program", FEW_TURN,
            Machine({"p3": 0.04}, refused=["p4"], large=["p5"], died_of=["p6"], same=["p7"]),
            kinds={"p3": "FASTER"}, cannot_run=["p4", "p5", "p6"], never=["p4", "p5", "p6"],
            why={"p4": "No such compile option", "p5": "it needs", "p6": "died of it"}),
        row("profiles that cannot rotate stand in the same list of ranks",
            {**TURNING, "profiles": mixed().profiles, "rotation": USUAL},
            Machine({"p3": 0.04, "channels": 0.06, "remat": -0.2}), jobs=2 + 2 + 3 + 22,
            kinds={"p3": "FASTER", "channels": "FASTER"}, winner="channels",
            likely_slower=["remat"]),
        # where the trainer cannot rotate all profiles are jobs
        row("no step is found", TURNING, Machine({"p3": 0.04}, finds=False), rotations=1,
            kinds={"p3": "FASTER"}, notes=["programs cannot take turns: no call of"]),
        row("the look is dropped", TURNING, dropped_in(LOOK_STAGE), rotations=1,
            kinds={"p3": "FASTER"}, notes=["programs cannot take turns: a GPU's memory"]),
        row("the first rotation is dropped", TURNING, dropped_in(TURNS), rotations=2,
            kinds={"p3": "FASTER"}, notes=["the first rotation measured nothing"]),
        row("43 jobs would confirm as stated, and there are 29",
            {**TURNING, "finalists": 3, "blocks": 3, "budget": 30}, Machine(finds=False)),
        # where no figure can be made, none is: it never fails open
        row("no baseline was scored", {}, failing(Machine({"p7": 0.05}), lambda e: e.is_baseline),
            rest=OPEN),
        row("one baseline was scored", {},
            failing(Machine({"p7": 0.05}), lambda e: e.is_baseline and e.position + e.block > 0),
            rest=OPEN),
        row("no variance at all", {}, lambda e: measured(e, 6.9 + 0.05 * (e.arm == "p7")),
            rest=OPEN),
        row("scores are NaN", {},
            changed(Machine({"p7": 0.05}), lambda e: e.block > 0, value=math.nan), rest=OPEN),
        row("nothing was measured", {}, failing(Machine({}), lambda _: True), rest=OPEN),
        row("one block survived", {}, failing(Machine({"p7": 0.05}), lambda e: e.block > 1),
            rest=OPEN),
    ],
)  # fmt: skip
def test_worlds(changes: dict[str, Any], run: Answer, expected: dict[str, Any]) -> None:
    sweep = study(**changes)
    done = history(run, of=sweep)
    found = sweep.decide(done).conclusion
    assert found.complete
    assert len(done) <= sweep.budget
    verdicts = {each.arm: each for each in found.verdicts}
    stop_rule = [each.values for each in found.notes if {"arm", "change"} <= each.values.keys()]
    facts = {
        "arms": [*verdicts],
        "jobs": len(done),
        "sigma": found.noise.sigma,
        "finalists": found.tuning.finalists,
        "bound": found.tuning.bound,
        "cannot_run": [each.arm for each in found.verdicts if not each.can_run],
        "likely_slower": [each.arm for each in found.verdicts if each.is_likely_slower],
        "stop": {each["arm"]: round(100 * each["change"]) for each in stop_rule},
        "winner": found.winner and found.winner.arm,
        "moved": found.tuning.moved is not None,
        "rotations": sum(each.trial.rotation is not None for each in done),
        "unseen": [each.values["arms"] for each in with_values(found.notes, "arms")],
    }
    assert {name: fact for name, fact in facts.items() if expected.get(name, fact) != fact} == {}
    assert ("A/A control failed" in headline(found)) is facts["moved"]
    assert {each.kind for each in found.verdicts} <= expected.get("rest", {*VerdictKind})
    assert not {*expected.get("never", ())} & {*found.tuning.finalists}
    for name, kind in expected.get("kinds", {}).items():
        assert (name, verdicts[name].kind) == (name, kind)
    for name, words in expected.get("why", {}).items():
        assert words in "; ".join(map(sentence, verdicts[name].reasons))
    for name, words in expected.get("method", {}).items():
        assert words in sentence(verdicts[name].method)
    for name, hung in expected.get("lost", {}).items():
        each = verdicts[name]
        told = (sentence(each.lost.message), each.hangs, each.retries) if each.lost else None
        assert told == hung
        assert not told or told[0] in "; ".join(map(sentence, each.reasons))
    assert [words for words in expected.get("headline", ()) if words not in headline(found)] == []
    notes = "\n".join(map(sentence, found.notes))
    assert [words for words in expected.get("notes", ()) if words not in notes] == []
    assert [words for words in expected.get("silent", ()) if words in notes] == []
    if expected.get("rest") is OPEN:
        for cut in range(0, len(done), 5):
            part = sweep.decide(done[:cut]).conclusion.verdicts
            assert {each.kind for each in part} <= OPEN
            assert all(each.reasons for each in part)
    for each in found.verdicts:
        assert each.n >= 3 or each.kind is not VerdictKind.FASTER
        if each.ci95 and found.tuning.bound is not None:
            assert each.ci95[1] <= found.tuning.bound + 1e-12, "M excludes nothing that is shown"
        if each.delta is not None and found.baseline.tgs and expected.get("rest") is not OPEN:
            assert each.tgs == pytest.approx(found.baseline.tgs * (1 + each.delta)), each.arm
            assert each.step_s == pytest.approx(28672 / (each.tgs or math.nan))


def test_winners_are_found_and_come_first() -> None:
    sweep = study()
    effects = {"p7": 0.03, "p8": 0.06, "p9": 0.045}
    conclusion = sweep.decide(history(effects, of=sweep)).conclusion
    assert conclusion.tuning.finalists[:3] == ("p8", "p9", "p7")
    assert len(conclusion.tuning.finalists) == 5
    assert [v.arm for v in conclusion.verdicts[:3]] == ["p8", "p9", "p7"]
    for each in conclusion.verdicts[:3]:
        assert each.kind is VerdictKind.FASTER
        assert each.ci95 is not None
        assert each.ci95[0] < (each.delta or 0) < each.ci95[1]
        assert (each.n, len(each.job_ids)) == (4, 4)
        assert "Dunnett, K=5, 4 blocks" in sentence(each.method)
    rest = conclusion.verdicts[3:]
    assert {(v.kind, v.ci95) for v in rest} == {(VerdictKind.SCREENED, None)}
    assert sorted(v.n for v in rest) == [1] * 20 + [2] * 2
    assert [v.delta for v in rest] == sorted((v.delta for v in rest), key=lambda d: -(d or 0))
    assert (conclusion.baseline.n, conclusion.alpha) == (11, 0.05)


def test_the_bound_is_of_all_that_was_asked_and_of_nothing_before() -> None:
    sweep, run = study(), lucky({"p7": 0.03}, {}, 0.002)
    done = history(run, of=sweep)
    screened = [each for each in done if not each.trial.block]
    for cut in (len(screened) - 1, len(done) - 1):
        assert sweep.decide(done[:cut]).conclusion.tuning.bound is None
    # five baselines tell the noise of a screen, three do not
    assert study(confirm=False).decide(screened).conclusion.tuning.bound is None
    five = study(screen_baselines=5, budget=60, confirm=False)
    others = replace(five, selected=frozenset({"p1", "p2"}))
    once, of_two = (
        each.decide(history(run, of=five)).conclusion.tuning.bound or 0 for each in (five, others)
    )
    assert 0 < (sweep.decide(done).conclusion.tuning.bound or 0) < once - 0.005
    assert 0 < of_two < 0.02
    assert once > 0.03


def test_a_bound_below_zero_says_that_every_setting_loses() -> None:
    sweep = study(6, budget=40)
    losing = {f"p{at}": -0.01 for at in range(6)}
    found = sweep.decide(history(losing, 0.001, of=sweep)).conclusion
    bound = found.tuning.bound or 0.0
    assert bound < -0.005
    ending = ending_text(ENGLISH, found, stopped="")
    assert f"is slower, by {size(-bound)} at least" in ending
    assert "gains more than" not in headline(found) + ending


def test_two_epochs_are_never_compared_with_each_other() -> None:
    """After a node swap everything is 10 % faster: no verdict may come of it."""
    numbers = itertools.count()

    def answer(trial: Trial) -> TrialResult:
        epoch = int(next(numbers) >= 15)
        return replace(measured(trial, 6.9 + noise(trial, 0.003) + 0.1 * epoch), epoch=epoch)

    found = SWEEP.decide(history(answer, of=SWEEP)).conclusion
    assert all(abs(v.delta or 0) < 0.02 for v in found.verdicts)


def test_a_drift_is_followed_by_when_trials_ran_and_not_by_when_they_were_planned() -> None:
    """One trial is retried at the very end, when the cell has become 5 % faster."""
    sweep = study(confirm=False)
    queue = list(sweep.decide([]).due)
    late = next(trial for trial in queue if not trial.is_baseline)
    history = [
        replace(
            measured(trial, 6.9 + 0.05 * at / len(queue)),
            outcome=Outcome(state=State.COMPLETED, start_s=100.0 * at),
        )
        for at, trial in enumerate([*(e for e in queue if e is not late), late])
    ]
    deltas = [each.delta for each in sweep.decide(history).conclusion.verdicts]
    assert deltas == pytest.approx([0.0] * 25, abs=1e-9)


def test_two_baselines_of_a_busy_machine_make_no_figure_of_a_profile_behind_them() -> None:
    """The first baseline was starved: a line through both would rise without an end."""
    sweep = study(8, confirm=False)
    queue = list(sweep.decide([]).due)
    second = [at for at, trial in enumerate(queue) if trial.is_baseline][1]
    history = [
        measured(trial, 5.9 if at == 0 else 6.9) for at, trial in enumerate(queue[: second + 4])
    ]
    behind = [each.trial.profile.id for each in history[second + 1 :]]
    deltas = [verdict(sweep.decide(history).conclusion, each).delta for each in behind]
    assert deltas == pytest.approx([0.0] * len(behind), abs=1e-9)


def test_a_winner_is_told_with_what_is_likely_where_its_change_is_small() -> None:
    found = study().decide(history({"p7": 0.02}, 0.006, of=study(), seed=2)).conclusion
    best = found.winner
    assert best
    assert best.likely
    assert best.ci95
    assert best.delta is not None
    likely, low, high = best.likely
    assert low < likely < high
    assert 0 < likely < best.delta, "shrunk toward no effect"
    assert best.delta - best.ci95[0] > best.ci95[1] - best.delta, "the best of several is too high"
    assert f"likely {100 * likely:+.1f} % (95 % interval [" in headline(found)
    large = study().decide(history({"p7": 0.30}, 0.006, of=study())).conclusion
    assert large.winner
    assert (large.winner.likely, "likely" in headline(large)) == (None, False)


def faster(name: str, delta: float, *ends: float, **more: Any) -> Verdict:
    low, high = ends or (delta - 0.01, delta + 0.01)
    values = {"kind": VerdictKind.FASTER, "n": 4, "delta": delta, "ci95": (low, high), **more}
    return Verdict(arm=name, **values)


WITHHELD = faster(
    "b", 0.05, kind=VerdictKind.INCONCLUSIVE, reasons=(verbatim("9 of its 40 steps are slow"),)
)


@pytest.mark.parametrize(
    ("verdicts", "words", "wins"),
    [
        # +26.4 % at a flag that nothing reads, and likely nothing; and a low end that is nothing
        ([faster("a", 0.264, 0.003, 0.483, likely=(0.003, -0.019, 0.021))], "", ""),
        ([faster("a", 0.015, 0.0, 0.028, likely=(0.01, 0.001, 0.02))], "", ""),
        ([faster("a", 0.02, 0.006, 0.03, likely=(0.016, 0.003, 0.026))], "", "a"),
        ([faster("a", 0.04), faster("abc", 0.05)], "[+4.0, +6.0]), and no winner: the recipe", "a"),
        # the parts of xy were not measured
        (
            [faster("a", 0.04), faster("abc", 0.05), faster("xy", 0.06)],
            "`xy` is at +6.0 % (95 % interval [+5.0, +7.0]), and no winner: the",
            "a",
        ),
        ([faster("a", 0.04), faster("low", 0.01)], "", "a"),
        ([WITHHELD], "`b` is at +5.0 % (95 % interval [+4.0, +6.0])", ""),
    ],
)
def test_the_headline_has_a_star_only_for_what_is_shown_and_passes_over_nothing_in_silence(
    verdicts: list[Verdict], words: str, wins: str
) -> None:
    recipe = Recipe(arm="a", largest="abc") if len(verdicts) > 1 else None
    found = Conclusion(verdicts=tuple(verdicts), record=TuningRecord(recipe=recipe))
    text = headline(found)
    assert (found.winner.arm if found.winner else "") == wins
    assert text.startswith("★") is bool(wins)
    assert words in text
    assert "`low`" not in text
    assert verdicts != [WITHHELD] or "9 of its 40 steps are slow." in text


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
    spec = first.rotation.spec
    assert (len(spec.programs), spec.first_step) == (28, FIRST_STEPS)
    assert first.protocol.steps == first.rotation.steps
    assert first.deadline_s > CELL.protocol.deadline_s
    assert spec.order != second.rotation.spec.order, "each draws its own"
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
    assert "25 profiles took turns" in sentence(found.notes[0])
    assert Conclusion.from_json(found.to_json()) == found
    # a budget buys blocks
    jobs = [history(run, of=turning(budget=each)) for each in (25, 30, 50)]
    assert [len(each) for each in jobs] == [24, 29, 46]
    assert [max(block for _, block in stages(each)) for each in jobs] == [4, 5, 8]


@pytest.mark.parametrize("stage", [LOOK_STAGE, TURNS])
def test_what_could_not_be_measured_turns_no_profile_into_a_job(stage: str) -> None:
    """A cancel, a node, a full disk: the sweep has stopped, and the next session tries it again."""
    sweep = turning()
    done = history(Machine({"p3": 0.04}, fails=lambda each: each.stage == stage), of=sweep)
    assert {each.trial.stage for each in done} <= {LOOK_STAGE, TURNS, CONFIRM}
    found = sweep.decide(done).conclusion
    assert found.complete is (stage == LOOK_STAGE), "nothing was ranked, and no block decided"
    assert "profiles are jobs" not in " ".join(each.text for each in found.notes)


def test_a_part_of_a_sweep_runs_what_it_selects() -> None:
    for chosen, has_turns in (("channels", False), ("p3", True)):
        part = mixed(selected=frozenset({chosen}), confirm=False)
        done = history(Machine(), of=part)
        assert any(each.trial.rotation for each in done) is has_turns
        question = Question(about=Ask.SCREENED, name=chosen, wave="wave2")
        answers = [part.answer(each, question).state for each in ((), done)]
        assert answers == [Answered.NOT_YET, Answered.YES]


def test_a_plan_says_which_way_profiles_go_and_what_it_costs() -> None:
    told = "\n".join(map(sentence, mixed(rotation=USUAL).outlook(()).lines))
    for words in ("p10, p11. A look, then 1 ", "NCCL_MIN_NCHANNELS", "as jobs: remat, because",
                  "with rotation 29 jobs", "with 80 % power"):  # fmt: skip
        assert words in told
    cell = replace(CELL, nodelist=("n1",))
    for sweep, words in (
        (turning(profiles=(NCCL,)), "no profile rotates: "),
        (turning(cell=cell, slots=(("n1",), ("n2",))), "several node slots"),
    ):
        assert words in sentence(sweep.outlook(()).lines[0])
        assert not any(each.rotation for each in sweep.decide(()).due)
    ahead = mixed().outlook(()).ahead
    assert [each.stage for each in ahead[:2]] == [LOOK_STAGE, TURNS]
    assert {each.arm for each in ahead[2:]} == {"channels", "remat", "baseline-deployed"}
    # 60 profiles are two jobs and 22 behind them: the budget is asked for what is really run
    assert turning(60, rotation=USUAL).outlook(()).left == 24
    with pytest.raises(ConfigError, match="need"):
        turning(12, budget=2)
    # what is left counts rotations by their steps and programs
    sweep = turning(rotation=USUAL)
    done = history(Machine({"p3": 0.03}), of=sweep)
    works = [sweep.outlook(done[:at]).work for at in range(3)]
    assert [each and each.jobs for each in (*works, sweep.works[0])] == [24, 23, None, 24]
    assert study(25).outlook(()).work is None, "ordinary jobs are alike"


def test_a_sweep_that_must_save_rotates_where_that_takes_less_time() -> None:
    slow, quick = (JobPace(start_s=60, step_s=1, compile_s=each, jobs=2) for each in (600, 5))
    for pace, rotates in ((None, True), (quick, True), (slow, False)):
        sweep = turning(rotation=replace(USUAL, must_save=True, pace=pace))
        assert sweep.rotates is rotates
        told = sentence(sweep.outlook(()).lines[0])
        assert ("the plan takes 25 jobs" in told) is not rotates
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


def test_ranks_stay_once_rotation_is_off_and_those_of_jobs_once_it_is_on() -> None:
    run, plain = Machine({"p3": 0.04}), study(12, sigma_prior=None)
    every = {BASELINE_ID, *(each.id for each in plain.profiles)}
    turned = history(run, of=turning(12))
    for count, due in ((1, every), (2, {"baseline-deployed"})):
        done = turned[:count]
        assert {each.arm for each in plain.decide(done).due if not each.block} == due
        later = history(run, of=plain, after=done)
        assert verdict(plain.decide(later).conclusion, "p3").kind is VerdictKind.FASTER
    whole = history({"p3": 0.04}, of=plain)
    screen = [each for each in whole if not each.trial.block]
    for done, stages_due in ((screen, set()), (screen[:4], {LOOK_STAGE})):
        due_now = turning(12).decide(done).due
        assert {each.stage for each in due_now if not each.block} == stages_due
    assert turning(12).decide(whole).due == (), "a sweep that is over stays so"


NAMES = ("a", "b", "c", "d", "e", "f")
FEW = settings(max_examples=tried(25), deadline=None)

seeds = st.integers(0, 10_000)
effects = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.03, -0.02]), min_size=6, max_size=6)


def of_names(names: Sequence[str] = NAMES, **changes: object) -> TuningStudy:
    profiles = tuple(profile(name, f"--xla_gpu_knob={at}") for at, name in enumerate(names))
    values = {"cell": CELL, "profiles": profiles, "budget": 30} | changes
    return TuningStudy(**values)  # type: ignore[arg-type]


@cache
def sweep(seed: int, truth: tuple[float, ...]) -> tuple[TrialResult, ...]:
    runs = Machine(dict(zip(NAMES, truth, strict=True)), 0.006, seed=seed)

    def answer(trial: Trial) -> TrialResult:
        is_lost = int(digest([seed, trial.id], length=2), 16) < 8
        return lost(trial, FailureClass.NODE_FAIL) if is_lost else runs(trial)

    done = tuple(history(answer, of=of_names(seed=seed)))
    assert len(done) <= 30, "the budget"
    return done


def words_of(found: Conclusion) -> list[Any]:
    """What is said: figures in it are rounded, and another order of sums shows in no digit."""
    verdicts = [(v.kind, v.n, v.can_run, [*map(sentence, v.reasons)]) for v in found.verdicts]
    return [verdicts, [*map(sentence, found.notes)], found.alpha]


def figures_of(found: Conclusion) -> list[float]:
    figures = [(v.delta, *(v.ci95 or (None, None))) for v in found.verdicts]
    every = [*(each for three in figures for each in three), found.tuning.bound]
    return [math.inf if each is None else each for each in every]


@FEW
@example(seed=333, truth=[0.0] * 6, names=["z1", "a0", "m", "b.2", "q-q", "k"])
@given(seed=seeds, truth=effects, names=st.permutations(["z1", "a0", "m", "b.2", "q-q", "k"]))
def test_names_do_not_matter(seed: int, truth: list[float], names: list[str]) -> None:
    whole, renamed = of_names(seed=seed), of_names(names, seed=seed)
    of = dict(zip(NAMES, renamed.profiles, strict=True))

    def rename(result: TrialResult) -> TrialResult:
        new = of.get(result.trial.profile.id, result.trial.profile)
        return replace(result, trial=replace(result.trial, arm=new.id, profile=new))

    done = sweep(seed, tuple(truth))
    other = [rename(each) for each in done]
    found, after = whole.decide(done).conclusion, renamed.decide(other).conclusion
    assert [of[v.arm].id for v in found.verdicts] == [v.arm for v in after.verdicts]
    # notes:  ... : the interval of f, which was ...    f has no score    a tie: e and f are both
    named = re.compile(
        r"(?:^|(?<= of )|(?<=tie: )|(?<= and ))[a-f](?=,| and | are | has | reaches | gains |$)"
    )
    notes = (named.sub(lambda m: of[m[0]].id, sentence(each)) for each in found.notes)
    assert words_of(replace(found, notes=tuple(map(verbatim, notes)))) == words_of(after)
    assert figures_of(found) == pytest.approx(figures_of(after), abs=1e-9)
    for cut in range(0, len(done), 7):
        due = [of.get(t.profile.id, t.profile) for t in whole.decide(done[:cut]).due]
        assert due == [t.profile for t in renamed.decide(other[:cut]).due]


@FEW
@given(seed=seeds, truth=effects, data=st.data())
def test_order_and_repetition_do_not_matter(
    seed: int, truth: list[float], data: st.DataObject
) -> None:
    done = sweep(seed, tuple(truth))
    shuffled = data.draw(st.permutations([*done, *done[::3]]))
    one, other = of_names(seed=seed).decide(shuffled), of_names(seed=seed).decide(done)
    assert (one.conclusion, one.due) == (other.conclusion, other.due)


@FEW
@given(seed=seeds, truth=effects, cut=st.integers(0, 30), data=st.data())
def test_any_part_of_a_history_concludes_and_proposes_the_same_again(
    seed: int, truth: list[float], cut: int, data: st.DataObject
) -> None:
    done, whole = list(sweep(seed, tuple(truth))), of_names(seed=seed)
    part = data.draw(st.lists(st.sampled_from(done), unique=True))
    conclusion = whole.decide(part).conclusion
    assert {v.arm for v in conclusion.verdicts} == set(NAMES)
    assert all(v.ci95 is None for v in conclusion.verdicts if v.kind is VerdictKind.SCREENED)
    assert all(v.kind is not VerdictKind.FASTER or v.n > 1 for v in conclusion.verdicts)
    trials = whole.decide(done[:cut]).due
    planned = [TrialResult(trial=trial, status=TrialStatus.PLANNED) for trial in trials]
    assert whole.decide([*done[:cut], *planned]).due == trials
    assert len({trial.id for trial in trials}) == len(trials)
    assert not {t.id for t in trials} & {r.trial.id for r in done[:cut]}


@FEW
@given(seed=seeds, truth=effects, cut=st.integers(0, 30), chosen=st.sets(st.sampled_from(NAMES)))
def test_a_selection_is_a_filter_and_who_selects_all_asks_for_the_whole_sweep(
    seed: int, truth: list[float], cut: int, chosen: set[str]
) -> None:
    done, whole = list(sweep(seed, tuple(truth))[:cut]), of_names(seed=seed)
    some = of_names(seed=seed, selected=frozenset(chosen)).decide([]).due
    due = whole.decide([]).due
    assert list(some) == [t for t in due if t.is_baseline or t.profile.id in chosen]
    every = of_names(seed=seed, selected=frozenset(NAMES))
    assert TuningStudy.from_json(every.to_json()) == every
    assert every.decide(done).due == whole.decide(done).due
    assert every.decide(done).conclusion == whole.decide(done).conclusion
    for other in ({}, {"selected": frozenset(NAMES[1:])}, {"confirm": False}):
        assert all_selected(replace(every, **other)) == whole


@FEW
@given(seed=seeds, truth=effects, factor=st.sampled_from([2.0, 5.0, 20.0]))
def test_more_noise_at_equal_means_never_makes_a_winner(
    seed: int, truth: list[float], factor: float
) -> None:
    """Residuals of the blocks grow, the means of every arm stay."""
    whole = of_names(seed=seed)
    done = sweep(seed, tuple(truth))
    values: dict[str, list[float]] = {}
    for each in done:
        if each.trial.block and each.score:
            values.setdefault(each.trial.arm, []).append(each.score.value)
    # only a complete stage has arm means that this transformation keeps
    blocks = {each.trial.block for each in done if each.trial.block and each.score}
    if sum(map(len, values.values())) != len(blocks) * (len(values) + 1):
        return

    def noisier(result: TrialResult) -> TrialResult:
        score = result.score
        if score is None or not result.trial.block:
            return result
        level = fmean(values[result.trial.arm])
        return replace(result, score=replace(score, value=level + factor * (score.value - level)))

    after = whole.decide([noisier(each) for each in done]).conclusion
    for one in whole.decide(done).conclusion.verdicts:
        other = verdict(after, one.arm)
        assert one.kind is not VerdictKind.INCONCLUSIVE or other.kind is not VerdictKind.FASTER
        if one.ci95 is not None:
            assert other.delta == pytest.approx(one.delta, abs=1e-9)


SEARCH = Search(
    space={"xla_gpu_all_reduce_combine_threshold_bytes": ("16777216", "67108864", "268435456"),
           "xla_gpu_enable_while_loop_double_buffering": ("false", "true")},
    slots=12,
)  # fmt: skip


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        pytest.param(study, Machine({"p7": 0.05, "p8": 0.05, "p9": 0.05}), id="jobs"),
        pytest.param(partial(turning, 12, rotation=USUAL), Machine({"p3": 0.03}), id="rotations"),
        pytest.param(partial(turning, derived=(SEARCH,)), Machine(), id="a search"),
        pytest.param(partial(study, 12, derived=(Stacks(wave="wave3", slots=2),)),
                     Machine({"p3": 0.03, "p4": 0.03}), id="stacks"),
    ],
)  # fmt: skip
def test_every_prefix_decides_nothing_and_every_process_asks_the_same(
    make: Callable[[], TuningStudy], answer: Answer
) -> None:
    whole, done = make(), list[TrialResult]()
    left = []
    while due := whole.decide(done).due:
        again = TuningStudy.from_json(make().to_json())
        assert again == whole
        assert due == again.decide(tuple(done)).due
        found = whole.decide(done).conclusion
        assert not found.complete
        assert {v.kind for v in found.verdicts} <= {VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE}
        assert all(v.ci95 is None for v in found.verdicts)
        outlook = whole.outlook(done)
        assert outlook.at_most >= outlook.left >= len(due)
        left.append(outlook.left)
        running = [TrialResult(trial=each, status=TrialStatus.RUNNING) for each in due]
        assert {e.id for e in whole.decide([*done, *running]).due} == {e.id for e in due}
        done.append(answer(due[0]))
    assert whole.outlook(done).left == 0
    if not whole.derived:
        assert left == list(range(len(done), 0, -1))
    # a stale record of a running trial never hides its result
    stale = [replace(r, status=TrialStatus.RUNNING, score=None, job_ids=("zzz",)) for r in done]
    for results in ([*stale, *done], [*done, *stale]):
        assert whole.decide(results).due == ()
        assert whole.decide(results).conclusion == whole.decide(done).conclusion


def counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> dict[str, Mock]:
    mocks = {name: Mock(wraps=getattr(module, name)) for name in names}
    for name, mock in mocks.items():
        monkeypatch.setattr(module, name, mock)
    return mocks


def test_a_sweep_is_concluded_once_for_all_tests_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a study says of a history is worked out once, however many tests ask."""
    results = history({"p7": 0.05}, of=study())
    decisions = counted(monkeypatch, tuning, "decide", "conclusion")
    blocks = counted(monkeypatch, engine, "confirm")
    asked = study(loss_tolerance=0.03)  # equal studies share what was worked out
    for about in (Ask.CONFIRMED, Ask.BEST, Ask.RANKED, Ask.PROVEN):
        for at in range(25):
            question = Question(about=about, name=f"p{at}")
            asked.answer(list(results), question)  # a list of its own, as of another process
    assert asked.decide(results).due == ()
    # to propose and to conclude
    calls = [decisions["decide"], decisions["conclusion"], blocks["confirm"]]
    assert [each.call_count for each in calls] == [1, 1, 1]
    for at in range(25):
        asked.answer(results, Question(about=Ask.SCREENED, name=f"p{at}", wave="wave2"))
    assert decisions["conclusion"].call_count == 2, "once without the blocks"


def test_what_is_remembered_is_never_told_of_another_history() -> None:
    done = history({"p1": 0.03}, of=study(6, budget=40))
    asked = study(6, budget=40)
    cuts = [*range(0, len(done) + 1, 4), len(done)] * 3
    random.Random(7).shuffle(cuts)
    for at, cut in enumerate(cuts, start=1):
        fresh = study(6, budget=40, loss_tolerance=0.02 + at / 1e6)  # shares nothing
        assert asked.decide(done[:cut]).conclusion == fresh.decide(done[:cut]).conclusion
        assert asked.decide(done[:cut]).due == fresh.decide(done[:cut]).due
