"""The tuning study proposes: what, in which order, and what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import CELL, cluster, history, knobs, measured, names, study, verdict

WAVES = ("wave1", "wave2")


def test_it_is_a_study_and_survives_json() -> None:
    sweep: Study = study(3, selected=frozenset({"p1"}))
    again = TuningStudy.from_json(sweep.to_json())
    assert again == sweep
    assert again.decide([]).due == sweep.decide([]).due


def test_the_screen_measures_all_once_among_three_spread_baselines() -> None:
    trials = study().decide([]).due
    at = [i for i, trial in enumerate(trials) if trial.is_baseline]
    assert at == [0, 14, 27]
    assert sorted(t.profile.id for t in trials if not t.is_baseline) == sorted(
        p.id for p in knobs(25)
    )
    assert [t.profile.id for t in trials if not t.is_baseline] != [p.id for p in knobs(25)]
    assert {(t.stage, t.block) for t in trials} == {("wave2", 0)}


def test_each_wave_is_a_queue_of_its_own_in_the_order_of_waves() -> None:
    waves = ("wave10", "wave1_5", "wave2", "wave1")
    profiles = tuple(
        replace(each, id=f"{wave}-{each.id}", wave=wave) for wave in waves for each in knobs(3)
    )
    trials = TuningStudy(cell=CELL, profiles=profiles, budget=60).decide([]).due
    assert list(dict.fromkeys(t.stage for t in trials)) == ["wave1", "wave1_5", "wave2", "wave10"]
    # one line goes through the baselines of all waves, which lie far apart
    at = [i for i, trial in enumerate(trials) if trial.is_baseline]
    assert at == [0, 5, 10, 15]
    assert [sum(t.stage == wave for t in trials) for wave in waves] == [4] * 4


def test_baselines_beyond_one_a_wave_go_where_most_profiles_are() -> None:
    profiles = (*knobs(1, wave="wave1"), *(replace(p, id=f"x{p.id}") for p in knobs(20)))
    trials = TuningStudy(cell=CELL, profiles=profiles).decide([]).due
    at = {w: [i for i, t in enumerate(trials) if t.is_baseline and t.stage == w] for w in WAVES}
    assert at == {"wave1": [0], "wave2": [2, 23]}


def test_selecting_only_the_baseline_measures_the_baseline() -> None:
    trials = study(selected=frozenset({BASELINE_ID})).decide([]).due
    assert trials
    assert all(t.is_baseline for t in trials)


def test_adding_a_profile_moves_no_other() -> None:
    before = [t.profile.id for t in study(24).decide([]).due if not t.is_baseline]
    after = [t.profile.id for t in study(25).decide([]).due if not t.is_baseline]
    assert [each for each in after if each != "p24"] == before


THREE = {"p7": 0.03, "p8": 0.03, "p9": 0.03}


def test_the_best_five_enter_the_first_block_and_the_best_three_go_on() -> None:
    sweep, run = study(), cluster(THREE)
    screened = [run(trial) for trial in sweep.decide([]).due]
    first = sweep.decide(screened).due
    best = sorted(
        (each for each in screened if not each.trial.is_baseline and each.score),
        key=lambda each: -each.score.value if each.score else 0.0,
    )
    assert {t.arm for t in first} == {*(each.trial.arm for each in best[:5]), BASELINE_ID}
    assert [t.block for t in first] == [1] * 7
    design = ConfirmDesign(arms=5, blocks=4, baselines=2, widths=(5, 3, 3, 3))
    assert {t.design for t in first} == {design}
    rest = sweep.decide([*screened, *(run(trial) for trial in first)]).due
    assert {t.arm for t in rest} == {*THREE, BASELINE_ID}
    assert [sum(t.block == b for t in rest) for b in (2, 3, 4)] == [5, 5, 5]
    assert {t.design for t in rest} == {design}
    assert len(screened) + len(first) + len(rest) == 50
    assert study(confirm=False).decide(screened).due == ()


def test_each_block_draws_an_order_of_its_own() -> None:
    """Blocks in mirrored pairs add up what has the period of two blocks: 9.6 % false winners."""
    pairs = mirrored = 0
    for seed in range(30):
        sweep, run = study(seed=seed, finalists=3), cluster(THREE)
        trials = sweep.decide([run(trial) for trial in sweep.decide([]).due]).due
        blocks = [[t for t in trials if t.block == b] for b in (1, 2, 3, 4)]
        for one, other in pairwise(blocks):
            pairs += 1
            mirrored += names(one) == names(other)[::-1]
    assert mirrored / pairs < 0.1


def test_the_cut_is_by_screen_and_first_block_together() -> None:
    """An arm that was lucky once goes, one that is fast twice stays."""
    sweep, run = study(), cluster({})
    lucky = {"p1": 0.10, "p2": 0.09, "p3": 0.08, "p4": 0.03, "p5": 0.03}
    beside = {"p1": -0.09, "p2": 0.05, "p3": 0.05, "p4": 0.05, "p5": -0.05}
    screened = [cluster(lucky)(trial) for trial in sweep.decide([]).due]
    done = [*screened, *(cluster(beside)(trial) for trial in sweep.decide(screened).due)]
    assert {t.arm for t in sweep.decide(done).due} == {"p2", "p3", "p4", BASELINE_ID}
    done = history(run, of=sweep, after=done)
    for arm in ("p1", "p5"):
        cut = verdict(sweep.decide(done).conclusion, arm)
        assert (cut.kind, cut.n, cut.ci95) == (VerdictKind.SCREENED, 2, None)
        assert sentence(cut.reasons[0]) == "measured twice: ranks only"


def test_the_cut_waits_for_its_block_and_never_changes_afterwards() -> None:
    sweep, run = study(), cluster(THREE)
    screened = [run(trial) for trial in sweep.decide([]).due]
    first = [run(trial) for trial in sweep.decide(screened).due]
    assert sweep.decide([*screened, *first[:-1]]).due == (first[-1].trial,)
    done = [*screened, *first]
    (begun, *_) = sweep.decide(done).due
    planned = [*done, TrialResult(trial=begun, status=TrialStatus.PLANNED)]
    kept = {t.arm for t in sweep.decide(planned).due}
    # the first block is read anew with other favourites: what has a later trial stays
    others = {each.trial.arm for each in first} - {*kept, BASELINE_ID}
    anew = [measured(r.trial, 8.0) if r.trial.arm in others else r for r in planned]
    assert begun.arm in {t.arm for t in sweep.decide(anew).due}
    more = [*planned[:-1], *(run(t) for t in sweep.decide(done).due)]
    again = [measured(r.trial, 8.0) if r.trial.arm in others and r.trial.block else r for r in more]
    assert sweep.decide(again).due == ()
    assert verdict(sweep.decide(again).conclusion, min(others)).kind is VerdictKind.SCREENED


def test_a_run_that_the_first_block_lost_is_no_reason_to_stay_and_none_to_leave() -> None:
    sweep = study()
    run = cluster({"p1": 0.12, "p2": 0.05, "p3": 0.05, "p4": 0.05, "p5": 0.04}, sigma=0.001)
    screened = [run(trial) for trial in sweep.decide([]).due]
    first = sweep.decide(screened).due

    def lose(arms: set[str]) -> set[str]:
        lost = [
            TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason=verbatim("hang"))
            if t.arm in arms
            else run(t)
            for t in first
        ]
        return {t.arm for t in sweep.decide([*screened, *lost]).due} - {BASELINE_ID}

    assert "p1" in lose({"p1"}), "it was twice as fast as the others"
    assert lose({"p5", "p2"}) == {"p1", "p3", "p4"}
    assert len(lose({*(t.arm for t in first), BASELINE_ID})) == 3, "nothing came of the block"


def test_a_quiet_cell_keeps_five_to_the_end() -> None:
    """Where the calibration says so, or the screen does so clearly."""
    for known, sigma in ((0.003, 0.003), (None, 0.002)):
        sweep = study(sigma_prior=known)
        run = cluster({f"p{at}": 0.02 for at in range(5)}, sigma=sigma)
        conclusion = sweep.decide(history(run, of=sweep)).conclusion
        faster = [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER]
        assert sorted(faster) == ["p0", "p1", "p2", "p3", "p4"]


def test_a_plan_says_what_it_leaves_of_the_budget() -> None:
    for changes, keeps in (({}, True), ({"budget": 50}, False), ({"finalists": 3}, False)):
        said = [sentence(each) for each in study(**{"budget": 65, **changes}).outlook([]).lines]
        assert any("keeps 8 jobs of 65 for spare blocks" in each for each in said) is keeps, changes


def test_finalists_are_frozen_once_one_was_planned() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})
    screened = [run(trial) for trial in sweep.decide([]).due]
    first = sweep.decide(screened).due[0]
    begun = [*screened, TrialResult(trial=first, status=TrialStatus.PLANNED)]
    # the screen is read anew with another favourite: the begun arms stay
    again = [measured(r.trial, 8.0) if r.trial.profile.id == "p1" else r for r in begun]
    arms = {t.profile.id for t in sweep.decide(again).due}
    assert first.profile.id in arms
    assert sweep.decide(begun).due == sweep.decide(screened).due


def test_a_larger_budget_does_not_prolong_a_begun_confirmation() -> None:
    run = cluster({"p7": 0.01})
    done = history(run, of=study())
    assert study(budget=80).decide(done).due == ()
    assert study(budget=80).decide(done).conclusion.verdict("p7") == study().decide(
        done
    ).conclusion.verdict("p7")


def test_few_candidates_are_joined_by_one_alias_of_the_baseline() -> None:
    sweep = study(6, budget=40)
    run = cluster({f"p{at}": -0.05 for at in range(1, 6)} | {"p0": 0.02}, sigma=0.001)
    done = history(run, of=sweep)
    arms = {r.trial.profile.id for r in done if r.trial.design and r.trial.design.look == 1}
    assert arms == {"p0", "baseline-aa", BASELINE_ID}
    conclusion = sweep.decide(done).conclusion
    assert conclusion.tuning.finalists == ("p0",)
    assert any("A/A control" in sentence(note) for note in conclusion.notes)
    assert verdict(conclusion, "p0").kind is VerdictKind.FASTER
    assert "K=1," in sentence(verdict(conclusion, "p0").method), "the control shares no alpha"


def one_profile(distance: float, *, sigma: float, noise: float = 0.0) -> set[str]:
    """The arms that follow where one profile lies so far from its baselines in the screen."""
    sweep = study(1, budget=20, screen_baselines=5, sigma_prior=sigma)
    screened = []
    for trial in sweep.decide([]).due:
        off = noise * (-1) ** trial.position if trial.is_baseline else distance
        screened.append(measured(trial, 6.9 + off))
    return {trial.profile.id for trial in sweep.decide(screened).due}


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
    assert ("p0" in one_profile(distance, sigma=sigma, noise=noise)) is is_confirmed


def test_what_is_fast_with_another_loss_is_not_confirmed() -> None:
    sweep, run = study(), cluster({"p7": 0.05, "p8": 0.03})

    def careless(trial: Trial) -> TrialResult:
        result = run(trial)
        assert result.score is not None
        loss = 8.0 if trial.profile.id == "p7" else 9.5
        return replace(result, score=replace(result.score, loss=loss))

    screened = [careless(trial) for trial in sweep.decide([]).due]
    arms = {trial.profile.id for trial in sweep.decide(screened).due}
    assert "p8" in arms
    assert "p7" not in arms


def test_where_all_hurt_nothing_is_confirmed() -> None:
    done = history({p.id: -0.05 for p in knobs(25)}, of=study())
    assert all(r.trial.is_screened for r in done)
    assert study().decide(done).conclusion.complete


def test_a_dropped_finalist_leaves_its_blocks() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})

    def failing(trial: Trial) -> TrialResult:
        if trial.profile.id == "p8" and trial.block:
            return TrialResult(
                trial=trial, status=TrialStatus.DROPPED, reason=verbatim("out of memory")
            )
        return run(trial)

    conclusion = sweep.decide(history(failing, of=sweep)).conclusion
    assert verdict(conclusion, "p7").kind is VerdictKind.FASTER
    assert "K=4" in sentence(verdict(conclusion, "p7").method)
    gone = verdict(conclusion, "p8")
    assert (gone.kind, gone.can_run, gone.reasons[0]) == (
        VerdictKind.INVALID,
        False,
        verbatim("out of memory"),
    )
    assert conclusion.complete


def test_a_finalist_that_turns_out_unable_to_run_is_planned_in_no_later_block() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})
    done = [run(trial) for trial in sweep.decide([]).due]
    planned = sweep.decide(done).due
    (first,) = [t for t in planned if t.profile.id == "p8" and t.block == 1]
    oom = TrialResult(trial=first, status=TrialStatus.DROPPED, reason=verbatim("out of memory"))
    left = sweep.decide([*done, oom]).due
    assert left == tuple(t for t in planned if t.profile.id != "p8")
    assert sweep.outlook([*done, oom]).left == len(left) + 15
    after = [*done, oom, *(run(trial) for trial in left)]
    assert "p8" not in {trial.arm for trial in sweep.decide(after).due}


def test_what_is_left_goes_down_by_one_with_every_trial() -> None:
    sweep = study()
    done = history({"p7": 0.03, "p8": 0.03, "p9": 0.03}, of=sweep)
    assert [sweep.outlook(done[:cut]).left for cut in range(len(done) + 1)] == [
        *range(len(done), -1, -1)
    ]


def test_the_smallest_layout_that_can_tell_is_planned_and_tells() -> None:
    sweep = study(3, budget=20, finalists=1, blocks=4, block_baselines=1)
    found = verdict(sweep.decide(history({"p1": 0.05}, of=sweep)).conclusion, "p1")
    assert found.kind is VerdictKind.FASTER
    assert "4 blocks, 4 baselines" in sentence(found.method)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"count": 60}, "need 61 jobs, the budget is 50", id="too many profiles"),
        pytest.param({"count": 25, "blocks": 9}, "need 75 jobs", id="too many blocks"),
        pytest.param(
            {"count": 3, "finalists": 1, "blocks": 2, "block_baselines": 1},
            "1 degrees of freedom",
            id="too few blocks",
        ),
        pytest.param(
            {"selected": frozenset({"p99"})}, "unknown profile 'p99'", id="an unknown selection"
        ),
        pytest.param(
            {"profiles": (profile("baseline-aa"),)}, "A/A control arm", id="the alias' own name"
        ),
        pytest.param({"profiles": (profile("a"), profile("a"))}, "duplicate", id="an id twice"),
    ],
)
def test_what_is_refused(changes: dict[str, object], words: str) -> None:
    count = changes.pop("count", 25)
    assert isinstance(count, int)
    with pytest.raises(ConfigError, match=words):
        study(count, **changes)


def test_a_budget_that_only_ranks_says_so() -> None:
    sweep = study(30, budget=36)
    done = history({"p1": 0.05}, of=sweep)
    conclusion = sweep.decide(done).conclusion
    assert len(done) <= 36
    assert sentence(conclusion.notes[0]).startswith("ranking only: 36 jobs screen 30 profiles")
    assert {v.kind for v in conclusion.verdicts} == {VerdictKind.SCREENED}
    assert conclusion.complete


def test_foreign_trials_are_ignored_and_said_so() -> None:
    sweep, run = study(), cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05})
    done = history(run, of=sweep)
    other_cell = replace(done[1].trial, cell_digest="0" * 16)
    profiled = replace(done[1].trial, protocol=Protocol(profiler="xplane", skip_first_steps=4))
    edited = replace(done[1].trial, profile=profile(done[1].trial.profile.id, "--xla_gpu_other=1"))
    gone = replace(done[1].trial, arm="gone", profile=profile("gone", "--xla_gpu_gone=1"))
    strangers = [measured(t, 9.9) for t in (other_cell, profiled, edited, gone)]
    conclusion = sweep.decide([*strangers, *done]).conclusion
    assert conclusion.verdicts == sweep.decide(done).conclusion.verdicts
    notes = " ".join(map(sentence, conclusion.notes))
    assert "2 trials of another cell" in notes
    assert "no longer declared, ignored: gone" in notes
    assert "old trials ignored: " in notes


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"flags": "--xla_gpu_knob=2"}, id="a flag"),
        pytest.param({"env": {"NCCL_ALGO": "Ring"}}, id="a variable"),
        pytest.param({"overrides": {"remat_policy": "full"}}, id="an override"),
    ],
)
def test_a_profile_that_sets_something_else_now_is_measured_again(
    change: dict[str, object],
) -> None:
    settings = {"flags": "--xla_gpu_knob=1", **change}
    before = profile("p1", "--xla_gpu_knob=1")
    now = profile("p1", **settings)  # type: ignore[arg-type]
    old = study(profiles=(before,), budget=20)
    done = history({}, of=old)
    again = study(profiles=(now,), budget=20)
    assert {t.profile.id for t in old.decide(done).due} == set()
    assert "p1" in {t.profile.id for t in again.decide(done).due}
    assert "old trials ignored: p1" in " ".join(map(sentence, again.decide(done).conclusion.notes))


def test_a_finalist_that_was_edited_is_screened_and_never_held_against_old_baselines() -> None:
    """Its blocks are over: the machine has drifted since, and their alpha is spent."""
    before = profile("p1", "--xla_gpu_knob=1")
    now = profile("p1", "--xla_gpu_knob=2")
    done = history({}, of=study(profiles=(before,), budget=20))
    again = study(profiles=(now,), budget=20)
    later = history({"p1": 0.02}, of=again, after=done)  # by drift alone
    assert {t.trial.block for t in later[len(done) :] if t.trial.arm == "p1"} == {0}
    conclusion = again.decide(later).conclusion
    assert verdict(conclusion, "p1").kind is VerdictKind.SCREENED
    assert sentence(conclusion.notes[0]).startswith("p1 would be a finalist")
    assert "old trials ignored: p1" in " ".join(map(sentence, conclusion.notes))
    # the settings that were confirmed have their verdict back where they are declared again
    assert (
        study(profiles=(before,), budget=20).decide(later).conclusion.verdicts
        == study(profiles=(before,), budget=20).decide(done).conclusion.verdicts
    )


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
    done = history(run, of=sweep("", confirm=True), after=done)
    at_once = history(run, of=sweep("", confirm=True))
    assert (
        sweep("", confirm=True).decide(done).conclusion
        == sweep("", confirm=True).decide(at_once).conclusion
    )
    assert {r.trial.id for r in done} == {r.trial.id for r in at_once}
