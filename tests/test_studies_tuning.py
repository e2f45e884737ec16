"""The tuning study: what it proposes, in which order, and what it concludes at any moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from pytest_xlatune.cells import Cell, Parallelism, Protocol, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import BASELINE_ID, Profile, profile
from pytest_xlatune.records import digest
from pytest_xlatune.results import (
    Conclusion,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.tuning import TuningStudy

CELL = Cell(
    model_tag="m",
    parallelism=Parallelism.parse("FSDP=8"),
    per_device_batch_size=7,
    max_target_length=4096,
    deployed={"XLA_FLAGS": "--xla_gpu_autotune_level=4"},
)
Effects = Mapping[str, float]
Answer = Callable[[Trial], TrialResult]


def knobs(count: int, *, wave: str = "wave2") -> tuple[Profile, ...]:
    return tuple(profile(f"p{at}", f"--xla_gpu_knob={at}", wave=wave) for at in range(count))


def study(count: int = 25, **changes: object) -> TuningStudy:
    values = {"cell": CELL, "profiles": knobs(count)} | changes
    return TuningStudy(**values)  # type: ignore[arg-type]


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


def noise(trial: Trial, size: float) -> float:
    """Something like a normal deviate, fixed by the trial's place."""
    uniform = [int(digest([trial.id, at], length=8), 16) / 16**8 for at in range(12)]
    return size * (sum(uniform) - 6)


def cluster(effects: Effects, *, sigma: float = 0.003) -> Answer:
    def run(trial: Trial) -> TrialResult:
        effect = math.log1p(effects.get(trial.profile.id, 0.0))
        return measured(trial, 6.9 + effect + noise(trial, sigma))

    return run


def drive(of: TuningStudy, run: Answer, history: Sequence[TrialResult] = ()) -> list[TrialResult]:
    done = list(history)
    while trials := of.propose(done):
        done += [run(trial) for trial in trials]
    return done


def verdict(conclusion: Conclusion, profile_id: str) -> Verdict:
    found = conclusion.verdict(profile_id)
    assert found is not None
    return found


def names(trials: Sequence[Trial]) -> list[str]:
    return [f"{trial.profile.id}.{trial.position}" for trial in trials]


def test_it_is_a_study_and_survives_json() -> None:
    sweep: Study = study(3, selected=frozenset({"p1"}))
    again = TuningStudy.from_json(sweep.to_json())
    assert again == sweep
    assert again.propose([]) == sweep.propose([])


# --- what is proposed ---------------------------------------------------------------------------


def test_the_screen_measures_all_once_among_five_spread_baselines() -> None:
    trials = study().propose([])
    at = [i for i, trial in enumerate(trials) if trial.is_baseline]
    assert at == [0, 7, 14, 22, 29]
    assert sorted(t.profile.id for t in trials if not t.is_baseline) == sorted(
        p.id for p in knobs(25)
    )
    assert [t.profile.id for t in trials if not t.is_baseline] != [p.id for p in knobs(25)]
    assert {(t.stage, t.group, t.block) for t in trials} == {(Stage.SCREEN, "wave2", 0)}


def test_the_seed_changes_the_order_and_nothing_else() -> None:
    one, other = study(seed=1).propose([]), study(seed=2).propose([])
    assert names(one) != names(other)
    assert {t.id for t in one} == {t.id for t in other}


def test_each_wave_is_a_queue_of_its_own_in_the_order_of_waves() -> None:
    waves = ("wave10", "wave1_5", "wave2", "wave1")
    profiles = tuple(
        replace(each, id=f"{wave}-{each.id}", wave=wave) for wave in waves for each in knobs(3)
    )
    trials = TuningStudy(cell=CELL, profiles=profiles, budget=60).propose([])
    assert list(dict.fromkeys(t.group for t in trials)) == ["wave1", "wave1_5", "wave2", "wave10"]
    for wave in waves:
        own = [t for t in trials if t.group == wave]
        assert own[0].is_baseline
        assert own[-1].is_baseline
        assert len(own) == 5


def test_a_selection_filters_and_moves_nothing() -> None:
    everything = study().propose([])
    some = study(selected=frozenset({"p3", "p9"})).propose([])
    assert [t for t in everything if t in some] == list(some)
    assert [t.profile.id for t in some if not t.is_baseline] in (["p3", "p9"], ["p9", "p3"])
    assert sum(t.is_baseline for t in some) == 5


def test_selecting_only_the_baseline_measures_the_baseline() -> None:
    trials = study(selected=frozenset({BASELINE_ID})).propose([])
    assert trials
    assert all(t.is_baseline for t in trials)


def test_adding_a_profile_moves_no_other() -> None:
    before = [t.profile.id for t in study(24).propose([]) if not t.is_baseline]
    after = [t.profile.id for t in study(25).propose([]) if not t.is_baseline]
    assert [each for each in after if each != "p24"] == before


def test_what_is_final_is_not_proposed_again() -> None:
    sweep = study()
    queue = sweep.propose([])
    done = [measured(queue[3], 6.9), replace(measured(queue[4], 6.9), status=TrialStatus.RUNNING)]
    assert sweep.propose(done) == (*queue[:3], *queue[4:])


def test_confirmation_follows_the_screen_in_mirrored_blocks() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})
    screened = [run(trial) for trial in sweep.propose([])]
    trials = sweep.propose(screened)
    assert {t.profile.id for t in trials} == {"p7", "p8", "p9", BASELINE_ID}
    assert {(t.stage, t.group) for t in trials} == {(Stage.CONFIRM, "1-k3r4c2")}
    blocks = [[t for t in trials if t.block == b] for b in (1, 2, 3, 4)]
    assert [len(block) for block in blocks] == [5] * 4
    for one, mirror in ((blocks[0], blocks[1]), (blocks[2], blocks[3])):
        assert names(one) == names(mirror)[::-1]
    assert len(screened) + len(trials) == 50
    assert study(confirm=False).propose(screened) == ()


def test_finalists_are_frozen_once_one_was_planned() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})
    screened = [run(trial) for trial in sweep.propose([])]
    first = sweep.propose(screened)[0]
    begun = [*screened, TrialResult(trial=first, status=TrialStatus.PLANNED)]
    # the screen is read anew with another favourite: the begun arms stay
    again = [measured(r.trial, 8.0) if r.trial.profile.id == "p1" else r for r in begun]
    arms = {t.profile.id for t in sweep.propose(again)}
    assert first.profile.id in arms
    assert sweep.propose(begun) == sweep.propose(screened)


def test_a_larger_budget_does_not_prolong_a_begun_confirmation() -> None:
    run = cluster({"p7": 0.01})
    done = drive(study(), run)
    assert study(budget=80).propose(done) == ()
    assert study(budget=80).conclude(done).verdict("p7") == study().conclude(done).verdict("p7")


def test_few_candidates_are_joined_by_one_alias_of_the_baseline() -> None:
    sweep = study(6, budget=40)
    run = cluster({f"p{at}": -0.05 for at in range(1, 6)} | {"p0": 0.02}, sigma=0.001)
    done = drive(sweep, run)
    arms = {r.trial.profile.id for r in done if r.trial.stage is Stage.CONFIRM}
    assert arms == {"p0", "baseline-aa", BASELINE_ID}
    conclusion = sweep.conclude(done)
    assert conclusion.finalists == ("p0",)
    assert any("A/A control" in note for note in conclusion.notes)
    assert verdict(conclusion, "p0").kind is VerdictKind.FASTER


def test_where_all_hurt_nothing_is_confirmed() -> None:
    done = drive(study(), cluster({p.id: -0.05 for p in knobs(25)}))
    assert {r.trial.stage for r in done} == {Stage.SCREEN}
    assert study().conclude(done).complete


def test_a_dropped_finalist_leaves_its_blocks() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})

    def failing(trial: Trial) -> TrialResult:
        if trial.profile.id == "p8" and trial.stage is Stage.CONFIRM:
            return TrialResult(trial=trial, status=TrialStatus.DROPPED, reason="out of memory")
        return run(trial)

    conclusion = sweep.conclude(drive(sweep, failing))
    assert verdict(conclusion, "p7").kind is VerdictKind.FASTER
    assert "K=2" in verdict(conclusion, "p7").method
    gone = verdict(conclusion, "p8")
    assert (gone.kind, gone.can_run, gone.reasons[0]) == (
        VerdictKind.INVALID,
        False,
        "out of memory",
    )
    assert conclusion.complete


def test_small_sweeps_state_their_own_layout() -> None:
    sweep = study(4, budget=20, screen_baselines=3, finalists=2, blocks=3, block_baselines=2)
    done = drive(sweep, cluster({"p1": 0.05, "p2": 0.03}))
    assert len(done) == 4 + 3 + 12
    assert verdict(sweep.conclude(done), "p1").kind is VerdictKind.FASTER


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
    done = drive(sweep, cluster({"p1": 0.05}))
    conclusion = sweep.conclude(done)
    assert len(done) <= 36
    assert conclusion.notes[0].startswith("ranking only: 36 jobs screen 30 profiles")
    assert {v.kind for v in conclusion.verdicts} == {VerdictKind.SCREENED}
    assert conclusion.complete


# --- what is concluded --------------------------------------------------------------------------


def test_winners_are_found_and_come_first() -> None:
    sweep = study()
    effects = {"p7": 0.03, "p8": 0.05, "p9": 0.04}
    conclusion = sweep.conclude(drive(sweep, cluster(effects)))
    assert conclusion.finalists == ("p8", "p9", "p7")
    assert [v.profile for v in conclusion.verdicts[:3]] == ["p8", "p9", "p7"]
    for each in conclusion.verdicts[:3]:
        assert each.kind is VerdictKind.FASTER
        assert each.ci95 is not None
        assert each.ci95[0] < effects[each.profile] < each.ci95[1]
        assert each.n == 4
        assert len(each.job_ids) == 4
        assert "Dunnett, K=3, 4 blocks" in each.method
    rest = conclusion.verdicts[3:]
    assert {(v.kind, v.n, v.ci95) for v in rest} == {(VerdictKind.SCREENED, 1, None)}
    assert [v.delta for v in rest] == sorted((v.delta for v in rest), key=lambda d: -(d or 0))
    assert conclusion.baseline.n == 13
    assert conclusion.alpha_spent == 0.05
    assert conclusion.complete


def test_the_stop_rule_and_the_bound_are_notes() -> None:
    conclusion = study().conclude(drive(study(), cluster({"p8": 0.08}, sigma=0.002)))
    assert any(note.startswith("stop rule reached: p8 is at +8") for note in conclusion.notes)
    assert conclusion.bound is not None
    assert conclusion.bound > 0.08
    nothing = study().conclude(drive(study(), cluster({}, sigma=0.002)))
    assert nothing.bound is not None
    assert 0 < nothing.bound < 0.02
    assert any("bounded at +2.0 %" in note for note in nothing.notes)


def test_a_finalist_may_turn_out_slower_but_one_run_never_says_so() -> None:
    sweep = study()

    def lucky_once(trial: Trial) -> TrialResult:
        lucky = {"p7": 0.05} if trial.stage is Stage.SCREEN else {"p7": -0.05}
        return cluster(lucky | {"p1": -0.2})(trial)

    conclusion = sweep.conclude(drive(sweep, lucky_once))
    assert verdict(conclusion, "p7").kind is VerdictKind.SLOWER
    once = verdict(conclusion, "p1")
    assert once.kind is VerdictKind.SCREENED
    assert once.delta == pytest.approx(-0.2, abs=0.01)


def test_nothing_is_decided_before_the_blocks_are_complete() -> None:
    sweep = study()
    done = drive(sweep, cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05}))
    for cut in range(len(done)):
        partial = sweep.conclude(done[:cut])
        assert not partial.complete
        kinds = {v.kind for v in partial.verdicts}
        assert kinds <= {VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE}
        assert all(v.ci95 is None for v in partial.verdicts)
    assert "a finalist: 3 of 4 confirming trials" in " ".join(
        reason for v in sweep.conclude(done[:-4]).verdicts for reason in v.reasons
    )


def test_an_empty_history_tells_what_the_plan_can_see() -> None:
    conclusion = study(sigma_prior=0.0066).conclude([])
    assert conclusion.mde80 == pytest.approx(0.0129, abs=1e-4)
    assert "confirms +1.3 % with 80 % power" in conclusion.notes[0]
    assert {(v.kind, v.n) for v in conclusion.verdicts} == {(VerdictKind.INCONCLUSIVE, 0)}
    assert conclusion.baseline.n == 0


@pytest.mark.parametrize(
    ("status", "reason", "can_run"),
    [
        (TrialStatus.DROPPED, "unknown flag --xla_gpu_knob", False),
        (TrialStatus.UNMEASURED, "node failure", True),
    ],
)
def test_trials_without_a_score(status: TrialStatus, reason: str, *, can_run: bool) -> None:
    sweep, run = study(), cluster({})

    def failing(trial: Trial) -> TrialResult:
        if trial.profile.id == "p4":
            return TrialResult(trial=trial, status=status, reason=reason, job_ids=("17",))
        return run(trial)

    found = verdict(sweep.conclude(drive(sweep, failing)), "p4")
    assert (found.kind, found.can_run, found.job_ids) == (VerdictKind.INVALID, can_run, ("17",))
    assert reason in found.reasons[0]
    assert found.delta is None


def test_another_loss_makes_no_winner() -> None:
    sweep, run = study(), cluster({"p7": 0.05})

    def careless(trial: Trial) -> TrialResult:
        result = run(trial)
        if trial.profile.id != "p7" or result.score is None:
            return result
        return replace(result, score=replace(result.score, loss=8.0))

    found = verdict(sweep.conclude(drive(sweep, careless)), "p7")
    assert found.kind is VerdictKind.INVALID
    assert "its loss is 8, the baseline's 9.5" in found.reasons[0]


def test_stragglers_veto_a_gain_that_they_eat_up() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03})

    def stalling(trial: Trial) -> TrialResult:
        result = run(trial)
        if trial.profile.id != "p7" or result.score is None:
            return result
        slow = replace(
            result.score, stragglers=3, dropped=(6, 8, 11), n_steps=7,
            window_tgs=result.score.tgs * 0.96,
        )  # fmt: skip
        return replace(result, score=slow)

    conclusion = sweep.conclude(drive(sweep, stalling))
    found = verdict(conclusion, "p7")
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert "12 of its 40 steps straggle against 0 of 80" in found.reasons[0]
    assert verdict(conclusion, "p8").kind is VerdictKind.FASTER


def test_settings_of_the_baseline_are_an_a_a_trial_and_no_candidate() -> None:
    same = profile("same", "--xla_gpu_autotune_level=4")
    twin = profile("twin", "--xla_gpu_knob=0")
    sweep = study(profiles=(*knobs(24), same, twin), budget=60)
    conclusion = sweep.conclude(drive(sweep, cluster({"same": 0.05, "twin": 0.05})))
    found = verdict(conclusion, "same")
    assert found.kind is VerdictKind.SCREENED
    assert "same effective flags and environment as baseline-deployed" in found.reasons[-1]
    assert "same effective flags and environment as p0" in " ".join(
        verdict(conclusion, "twin").reasons
    )


def broken(trials: Sequence[Trial], how: str) -> list[TrialResult]:
    """A screen and a confirmation that cannot be computed."""
    run = cluster({"p7": 0.05})
    results = {
        "no baseline was scored": lambda t: (
            TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason="gone")
            if t.is_baseline
            else run(t)
        ),
        "one baseline was scored": lambda t: (
            TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason="gone")
            if t.is_baseline and (t.position or t.stage is Stage.CONFIRM)
            else run(t)
        ),
        "no variance at all": lambda t: measured(t, 6.9 + 0.05 * (t.profile.id == "p7")),
        "scores are NaN": lambda t: measured(t, math.nan) if t.block else run(t),
        "scores are infinite": lambda t: measured(t, math.inf, tgs=1.0) if t.block else run(t),
        "nothing was measured": lambda t: TrialResult(
            trial=t, status=TrialStatus.UNMEASURED, reason="gone"
        ),
        "one block survived": lambda t: (
            run(t)
            if t.block < 2
            else TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason="gone")
        ),
    }
    return [results[how](trial) for trial in trials]


@pytest.mark.parametrize(
    "how",
    [
        "no baseline was scored",
        "one baseline was scored",
        "no variance at all",
        "scores are NaN",
        "scores are infinite",
        "nothing was measured",
        "one block survived",
    ],
)
def test_it_never_fails_open(how: str) -> None:
    sweep = study()
    done: list[TrialResult] = []
    while trials := sweep.propose(done):
        done += broken(trials, how)
        conclusion = sweep.conclude(done)
        for each in conclusion.verdicts:
            assert each.kind in {
                VerdictKind.SCREENED,
                VerdictKind.INCONCLUSIVE,
                VerdictKind.INVALID,
            }
            assert each.reasons
    assert conclusion.complete


def test_two_epochs_are_never_compared_with_each_other() -> None:
    """After a node swap everything is 10 % faster: no verdict may come of it."""
    sweep, run = study(), cluster({})
    done: list[TrialResult] = []
    while trials := sweep.propose(done):
        for trial in trials:
            result, epoch = run(trial), int(len(done) >= 37)
            score = result.score
            assert score is not None
            done.append(
                replace(result, epoch=epoch, score=replace(score, value=score.value + 0.1 * epoch))
            )
    conclusion = sweep.conclude(done)
    assert all(abs(v.delta or 0) < 0.02 for v in conclusion.verdicts)


def test_a_second_stage_spends_the_rest_of_alpha_once() -> None:
    sweep = study(6, budget=60, second_blocks=4)
    run = cluster({"p1": 0.006}, sigma=0.006)
    screened = [run(trial) for trial in sweep.propose([])]
    first = [run(trial) for trial in sweep.propose(screened)]
    middle = sweep.conclude([*screened, *first])
    assert middle.alpha_spent == 0.04
    assert "alpha 0.04" in verdict(middle, middle.finalists[0]).method
    second = sweep.propose([*screened, *first])
    assert {t.group.split("-")[0] for t in second} == {"2of2"}
    assert {t.block for t in second} == {6, 7, 8, 9}
    done = drive(sweep, run, [*screened, *first])
    after = sweep.conclude(done)
    assert after.alpha_spent == 0.05
    assert "alpha 0.01" in verdict(after, after.finalists[0]).method
    assert len(done) <= 60
    # what was spent at once is not there to be spent again
    spent = drive(study(6, budget=60), run)
    assert study(6, budget=90, second_blocks=4).propose(spent) == ()


def test_foreign_trials_are_ignored_and_said_so() -> None:
    sweep, run = study(), cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05})
    done = drive(sweep, run)
    other_cell = replace(done[1].trial, cell_digest="0" * 16)
    profiled = replace(done[1].trial, protocol=Protocol(profiler="xplane", skip_first_steps=4))
    edited = replace(done[1].trial, profile=profile(done[1].trial.profile.id, "--xla_gpu_other=1"))
    gone = replace(done[1].trial, profile=profile("gone", "--xla_gpu_gone=1"))
    strangers = [measured(t, 9.9) for t in (other_cell, profiled, edited, gone)]
    conclusion = sweep.conclude([*strangers, *done])
    assert conclusion.verdicts == sweep.conclude(done).verdicts
    notes = " ".join(conclusion.notes)
    assert "2 trials of another cell" in notes
    assert "no longer declared, ignored: gone" in notes
    assert "old trials ignored: " in notes


def test_an_unselected_unmeasured_profile_is_counted_not_listed() -> None:
    sweep = study(selected=frozenset({"p3"}), confirm=False)
    conclusion = sweep.conclude(drive(sweep, cluster({})))
    assert [v.profile for v in conclusion.verdicts] == ["p3"]
    assert "24 declared profiles are neither selected nor measured" in conclusion.notes
    assert conclusion.complete


def test_waves_run_one_by_one_come_to_the_same_as_all_at_once() -> None:
    profiles = (*knobs(6), *(replace(p, id=f"w3-{p.id}", wave="wave3") for p in knobs(6)))
    run = cluster({"p2": 0.03, "w3-p4": 0.04})

    def sweep(wave: str, *, confirm: bool) -> TuningStudy:
        chosen = frozenset(p.id for p in profiles if wave in ("", p.wave))
        return TuningStudy(cell=CELL, profiles=profiles, selected=chosen, confirm=confirm)

    done = drive(sweep("wave3", confirm=False), run)
    explored = sweep("wave3", confirm=False).conclude(done)
    assert (explored.finalists, explored.complete, explored.alpha_spent) == ((), True, 0.0)
    assert verdict(explored, "w3-p4").kind is VerdictKind.SCREENED
    done = drive(sweep("wave2", confirm=False), run, done)
    done = drive(sweep("", confirm=True), run, done)
    at_once = drive(sweep("", confirm=True), run)
    assert sweep("", confirm=True).conclude(done) == sweep("", confirm=True).conclude(at_once)
    assert {r.trial.id for r in done} == {r.trial.id for r in at_once}


def test_a_sweep_without_profiles_calibrates_the_cell() -> None:
    sweep = study(0, screen_baselines=12)
    done = drive(sweep, cluster({}, sigma=0.005))
    assert len(done) == 12
    conclusion = sweep.conclude(done)
    assert conclusion.sigma == pytest.approx(0.005, rel=0.5)
    assert "36 jobs: +" in conclusion.notes[0]
    assert (conclusion.verdicts, conclusion.baseline.n, conclusion.complete) == ((), 12, True)


def test_who_comes_after_the_finalists_were_fixed_is_told_and_not_confirmed() -> None:
    run = cluster({"p1": 0.02, "p9": 0.05})
    done = drive(study(8, budget=60), run)
    later = study(10, budget=80)
    done = drive(later, run, done)
    conclusion = later.conclude(done)
    assert verdict(conclusion, "p9").kind is VerdictKind.SCREENED
    assert "p9" not in conclusion.finalists
    assert conclusion.alpha_spent == 0.05
    assert any(note.startswith("p9 would be confirmed by now") for note in conclusion.notes)
    assert not any(
        "would be confirmed" in note for note in study(8, budget=60).conclude(done).notes
    )


def test_what_the_first_look_decided_stays_decided() -> None:
    """A winner of the first stage is not lost to noise in the blocks that others asked for."""
    sweep = study(6, budget=60, second_blocks=4)

    def fading(trial: Trial) -> TrialResult:
        effects = {"p1": 0.05 if trial.block < 6 else -0.05, "p2": 0.004}
        return cluster(effects, sigma=0.01)(trial)

    done = drive(sweep, fading)
    assert any(r.trial.group.startswith("2of2") for r in done)
    found = verdict(sweep.conclude(done), "p1")
    assert found.kind is VerdictKind.FASTER
    assert found.reasons[0].startswith("faster by at least +")
    assert found.reasons[1] == "decided at the first look, with alpha 0.04"


def test_a_run_without_any_finalist_leaves_their_blocks_alone() -> None:
    run = cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05})
    done = drive(study(), run)[:-4]
    assert {t.profile.id for t in study().propose(done)} & {"p7", "p8", "p9"}
    assert study(selected=frozenset({"p3"})).propose(done) == ()
