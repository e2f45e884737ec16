"""The tuning study concludes, at any moment: winners, vetoes, and what cannot be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import Message, sentence, verbatim
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import (
    Action,
    Effect,
    Finding,
    Outcome,
    SettingKind,
    State,
    TrialResult,
    TrialSetting,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.text import size
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import headline
from pytest_xlatune.report.lines import ending_text
from tests.helpers.history import Answer, cluster, history, knobs, measured, study, verdict
from tests.helpers.words import with_values


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
        assert each.n == 4
        assert len(each.job_ids) == 4
        assert "Dunnett, K=5, 4 blocks" in sentence(each.method)
    rest = conclusion.verdicts[3:]
    assert {(v.kind, v.ci95) for v in rest} == {(VerdictKind.SCREENED, None)}
    assert sorted(v.n for v in rest) == [1] * 20 + [2] * 2
    assert [v.delta for v in rest] == sorted((v.delta for v in rest), key=lambda d: -(d or 0))
    assert conclusion.baseline.n == 11
    assert conclusion.alpha == 0.05
    assert conclusion.complete


def at_stop_rule(notes: Sequence[Message]) -> dict[str, float]:
    """Return the profiles that reached it, and their change in percent, as the notes say."""
    fields = [each.values for each in notes if {"arm", "change"} <= each.values.keys()]
    return {each["arm"]: 100 * each["change"] for each in fields}


def test_the_stop_rule_and_the_bound_are_notes() -> None:
    conclusion = study().decide(history({"p8": 0.08}, 0.002, of=study())).conclusion
    assert at_stop_rule(conclusion.notes) == {"p8": pytest.approx(8, abs=0.4)}
    assert conclusion.tuning.bound is None, "there is a winner: nothing is to be ruled out"
    nothing = study().decide(history({}, 0.002, of=study())).conclusion
    assert nothing.tuning.bound is not None
    assert 0 < nothing.tuning.bound < 0.02
    assert any("which is below +2.0 %" in sentence(note) for note in nothing.notes)
    assert any("gains more than" in sentence(note) for note in nothing.notes)


def test_the_bound_is_of_all_that_was_asked_and_of_nothing_before() -> None:
    """Fresh blocks tighten it; a profile that this run does not ask about does not widen it."""
    sweep, run = study(), cluster({"p7": 0.03}, sigma=0.002)

    def lucky_once(trial: Trial) -> TrialResult:
        return cluster({"p7": 0.03} if not trial.block else {}, sigma=0.002)(trial)

    done = history(lucky_once, of=sweep)
    cuts = {len([r for r in done if not r.trial.block]) - 1, len(done) - 1}
    assert [sweep.decide(done[:cut]).conclusion.tuning.bound for cut in sorted(cuts)] == [
        None,
        None,
    ]
    screened = [r for r in done if not r.trial.block]
    # five baselines tell the noise of a screen, three do not
    assert study(confirm=False).decide(screened).conclusion.tuning.bound is None
    five = study(screen_baselines=5, budget=60)
    of_five = [r for r in history(lucky_once, of=five) if not r.trial.block]
    once = replace(five, confirm=False).decide(of_five).conclusion.tuning.bound
    whole = sweep.decide(done).conclusion.tuning.bound
    assert once is not None
    assert whole is not None
    assert once > 0.03
    assert whole < once - 0.005
    others = replace(five, selected=frozenset({"p1", "p2"}), confirm=False)
    of_two = others.decide([run(trial) for trial in five.decide([]).due]).conclusion.tuning.bound
    assert of_two is not None
    assert of_two < 0.02


def test_a_finalist_may_turn_out_slower_but_one_run_never_says_so() -> None:
    sweep = study(finalists=3)

    def lucky_once(trial: Trial) -> TrialResult:
        lucky = {"p7": 0.05} if trial.is_screened else {"p7": -0.05}
        return cluster(lucky | {"p1": -0.2})(trial)

    conclusion = sweep.decide(history(lucky_once, of=sweep)).conclusion
    assert verdict(conclusion, "p7").kind is VerdictKind.SLOWER
    slow_steps = [
        replace(r, score=replace(r.score, stragglers=3, dropped=(6, 8, 11), window_tgs=500.0))
        if r.score and r.trial.profile.id == "p7"
        else r
        for r in history(lucky_once, of=sweep)
    ]
    assert verdict(sweep.decide(slow_steps).conclusion, "p7").kind is VerdictKind.SLOWER
    once = verdict(conclusion, "p1")
    assert once.kind is VerdictKind.SCREENED
    assert once.delta == pytest.approx(-0.2, abs=0.01)


def test_nothing_is_decided_before_the_blocks_are_complete() -> None:
    sweep = study()
    done = history({"p7": 0.05, "p8": 0.05, "p9": 0.05}, of=sweep)
    for cut in range(len(done)):
        partial = sweep.decide(done[:cut]).conclusion
        assert not partial.complete
        kinds = {v.kind for v in partial.verdicts}
        assert kinds <= {VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE}
        assert all(v.ci95 is None for v in partial.verdicts)
    assert "a finalist: 3 of 4 confirming trials" in " ".join(
        sentence(each) for v in sweep.decide(done[:-4]).conclusion.verdicts for each in v.reasons
    )


def test_an_empty_history_tells_what_the_plan_can_see() -> None:
    conclusion = study(sigma_prior=0.0066).decide([]).conclusion
    assert conclusion.noise.mde80 == pytest.approx(0.0139, abs=1e-4)
    figures = ("0.66 %", "50 jobs", "+1.6 %", "80 % power", "+1.4 %")
    assert all(figure in sentence(conclusion.notes[0]) for figure in figures)
    assert conclusion.tuning.from_start80 == pytest.approx(0.0158, abs=2e-4)
    (outlook,) = study(0, sigma_prior=None).decide([]).conclusion.notes
    assert "an assumed job noise of 0.60 %" in sentence(outlook)
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
            return TrialResult(trial=trial, status=status, reason=verbatim(reason), job_ids=("17",))
        return run(trial)

    found = verdict(sweep.decide(history(failing, of=sweep)).conclusion, "p4")
    assert (found.kind, found.can_run, found.job_ids) == (VerdictKind.INVALID, can_run, ("17",))
    assert reason in sentence(found.reasons[0])
    assert found.delta is None


def test_another_loss_makes_no_winner() -> None:
    sweep, run = study(), cluster({"p7": 0.05})

    def careless(trial: Trial) -> TrialResult:
        result = run(trial)
        if trial.profile.id != "p7" or result.score is None:
            return result
        return replace(result, score=replace(result.score, loss=8.0))

    found = verdict(sweep.decide(history(careless, of=sweep)).conclusion, "p7")
    assert found.kind is VerdictKind.INVALID
    assert "its loss is 8, the baseline's 9.5" in sentence(found.reasons[0])


@pytest.mark.parametrize(
    ("slow_in", "tgs", "kind"),
    [
        pytest.param((1,), 0.5, VerdictKind.FASTER, id="one slow step is no significant number"),
        pytest.param((1, 2, 3, 4), 0.999, VerdictKind.FASTER, id="many that cost next to nothing"),
        pytest.param((1, 2, 3, 4), 0.96, VerdictKind.INCONCLUSIVE, id="many that eat the gain up"),
        pytest.param(
            (1, 2, 3, 4), None, VerdictKind.INCONCLUSIVE, id="that cost an unknown amount"
        ),
    ],
)
def test_a_gain_is_withheld_only_where_many_slow_steps_may_eat_it_up(
    slow_in: tuple[int, ...], tgs: float | None, kind: VerdictKind
) -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03}, sigma=0.001)

    def stalling(trial: Trial) -> TrialResult:
        result = run(trial)
        if trial.profile.id != "p7" or trial.block not in slow_in or result.score is None:
            return result
        slow = range(5, 6 if len(slow_in) == 1 else 9)
        window_tgs = None if tgs is None else math.exp(result.score.value) * tgs
        score = replace(
            result.score, stragglers=len(slow), dropped=tuple(slow), n_steps=10 - len(slow),
            window_tgs=window_tgs,
        )  # fmt: skip
        return replace(result, score=score)

    assert verdict(sweep.decide(history(stalling, of=sweep)).conclusion, "p7").kind is kind


def test_settings_of_the_baseline_are_an_a_a_trial_and_no_candidate() -> None:
    same = profile("same", "--xla_gpu_autotune_level=4")
    twin = profile("twin", "--xla_gpu_knob=0")
    sweep = study(profiles=(*knobs(24), same, twin), budget=60)
    conclusion = sweep.decide(history({"same": 0.05, "twin": 0.05}, of=sweep)).conclusion
    found = verdict(conclusion, "same")
    assert found.kind is VerdictKind.SCREENED
    assert "environment as baseline-deployed" in sentence(found.reasons[-1])
    assert "flags and environment as p0" in " ".join(
        map(sentence, verdict(conclusion, "twin").reasons)
    )


def broken(trials: Sequence[Trial], how: str) -> list[TrialResult]:
    """A screen and a confirmation that cannot be computed."""
    run = cluster({"p7": 0.05})
    results = {
        "no baseline was scored": lambda t: (
            TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason=verbatim("gone"))
            if t.is_baseline
            else run(t)
        ),
        "one baseline was scored": lambda t: (
            TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason=verbatim("gone"))
            if t.is_baseline and (t.position or t.block)
            else run(t)
        ),
        "no variance at all": lambda t: measured(t, 6.9 + 0.05 * (t.profile.id == "p7")),
        "scores are NaN": lambda t: measured(t, math.nan) if t.block else run(t),
        "scores are infinite": lambda t: measured(t, math.inf, tgs=1.0) if t.block else run(t),
        "nothing was measured": lambda t: TrialResult(
            trial=t, status=TrialStatus.UNMEASURED, reason=verbatim("gone")
        ),
        "one block survived": lambda t: (
            run(t)
            if t.block < 2
            else TrialResult(trial=t, status=TrialStatus.UNMEASURED, reason=verbatim("gone"))
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
    while trials := sweep.decide(done).due:
        done += broken(trials, how)
        conclusion = sweep.decide(done).conclusion
        for each in conclusion.verdicts:
            assert each.kind in {
                VerdictKind.SCREENED,
                VerdictKind.INCONCLUSIVE,
                VerdictKind.INVALID,
            }
            assert each.reasons
    assert conclusion.complete


@pytest.mark.parametrize("swapped_at", [15, 37], ids=["in the screen", "in the blocks"])
def test_two_epochs_are_never_compared_with_each_other(swapped_at: int) -> None:
    """After a node swap everything is 10 % faster: no verdict may come of it."""
    sweep, run = study(), cluster({})
    done: list[TrialResult] = []
    while trials := sweep.decide(done).due:
        for trial in trials:
            result, epoch = run(trial), int(len(done) >= swapped_at)
            score = result.score
            assert score is not None
            done.append(
                replace(result, epoch=epoch, score=replace(score, value=score.value + 0.1 * epoch))
            )
    conclusion = sweep.decide(done).conclusion
    assert all(abs(v.delta or 0) < 0.02 for v in conclusion.verdicts)


@pytest.mark.parametrize(
    "other",
    [{"epoch": 1}, {"outcome": Outcome(state=State.COMPLETED, allocation="4712")}],
    ids=["another epoch", "another allocation"],
)
def test_a_block_that_a_node_swap_or_another_allocation_cuts_compares_nothing_across_it(
    other: dict[str, Any],
) -> None:
    """After that everything is 10 % faster, and of each block just the baselines ran before."""
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})

    def swapped(trial: Trial) -> TrialResult:
        result = run(trial)
        if not trial.block or trial.is_baseline or result.score is None:
            return result
        score = replace(result.score, value=result.score.value + 0.1)
        return replace(result, score=score, **other)

    found = verdict(sweep.decide(history(swapped, of=sweep)).conclusion, "p7")
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert "no block holds both" in sentence(found.reasons[0])


def test_while_the_finalists_are_being_planned_none_of_them_is_late() -> None:
    sweep, run = study(), cluster({"p7": 0.03, "p8": 0.03, "p9": 0.03})
    screened = [run(trial) for trial in sweep.decide([]).due]
    first = next(trial for trial in sweep.decide(screened).due if not trial.is_baseline)
    begun = [*screened, TrialResult(trial=first, status=TrialStatus.PLANNED)]
    assert not any(
        "would be confirmed" in sentence(note) for note in sweep.decide(begun).conclusion.notes
    )


def test_a_drift_is_followed_by_when_trials_ran_and_not_by_when_they_were_planned() -> None:
    """One trial is retried at the very end, when the cell has become 5 % faster."""
    sweep = study(confirm=False)
    queue = list(sweep.decide([]).due)
    late = next(trial for trial in queue if not trial.is_baseline)
    ran = [*(trial for trial in queue if trial is not late), late]
    history = [
        replace(
            measured(trial, 6.9 + 0.05 * at / len(ran)),
            outcome=Outcome(state=State.COMPLETED, start_s=100.0 * at),
        )
        for at, trial in enumerate(ran)
    ]
    deltas = [each.delta for each in sweep.decide(history).conclusion.verdicts]
    assert deltas == pytest.approx([0.0] * 25, abs=1e-9)


def test_the_loss_is_held_against_the_baselines_whatever_most_profiles_do() -> None:
    sweep, run = study(), cluster({})

    def careless(trial: Trial) -> TrialResult:
        result = run(trial)
        assert result.score is not None
        return replace(result, score=replace(result.score, loss=9.5 if trial.is_baseline else 8.0))

    conclusion = sweep.decide(history(careless, of=sweep)).conclusion
    assert {each.kind for each in conclusion.verdicts} == {VerdictKind.INVALID}


@pytest.mark.parametrize("at", [0, 60], ids=["told before", "told after"])
def test_a_record_of_a_running_trial_never_hides_its_result(at: int) -> None:
    sweep = study()
    done = history({"p7": 0.03, "p8": 0.03, "p9": 0.03}, of=sweep)
    stale = [
        replace(each, status=TrialStatus.RUNNING, score=None, job_ids=("zzz",)) for each in done
    ]
    results = [*done[:at], *stale, *done[at:]]
    assert sweep.decide(results).due == ()
    assert sweep.decide(results).conclusion == sweep.decide(done).conclusion


def test_the_control_never_reaches_the_stop_rule() -> None:
    sweep = study(6, budget=40)
    hurt = {f"p{at}": -0.05 for at in range(1, 6)}
    done = history({"p0": 0.08, "baseline-aa": 0.08} | hurt, 0.001, of=sweep)
    assert at_stop_rule(sweep.decide(done).conclusion.notes) == {"p0": pytest.approx(8, abs=0.2)}


def test_an_unselected_unmeasured_profile_is_counted_not_listed() -> None:
    sweep = study(selected=frozenset({"p3"}), confirm=False)
    conclusion = sweep.decide(history({}, of=sweep)).conclusion
    assert [v.arm for v in conclusion.verdicts] == ["p3"]
    assert with_values(conclusion.notes, "profiles")[0].values["profiles"] == 24
    assert conclusion.complete


def test_a_sweep_without_profiles_calibrates_the_cell() -> None:
    sweep = study(0, screen_baselines=12)
    done = history({}, 0.005, of=sweep)
    assert len(done) == 12
    conclusion = sweep.decide(done).conclusion
    assert conclusion.noise.sigma == pytest.approx(0.005, rel=0.5)
    assert "36 jobs: +" in sentence(conclusion.notes[0])
    assert (conclusion.verdicts, conclusion.baseline.n, conclusion.complete) == ((), 12, True)


LOST = {
    "one of four": ((2,), (), VerdictKind.FASTER, "1 of 4 runs lost: hang"),
    "two of four": ((2, 3), (), VerdictKind.INCONCLUSIVE, "2 of 4 runs lost: hang"),
    "two where the baselines lose as many": (
        (2, 3), (1, 2, 3, 4), VerdictKind.INCONCLUSIVE, "2 of 4 runs lost: hang",
    ),
    "one of four where a baseline is lost too": (
        (2,), (3,), VerdictKind.FASTER, "1 of 4 runs lost: hang",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
def test_an_arm_that_loses_runs_is_not_called_faster_on_those_that_ended(case: str) -> None:
    """A hang is retried: two attempts, both stood still. n >= 3, and Fisher's test at 20 %."""
    blocks, baselines, kind, words = LOST[case]
    sweep, run = study(), cluster({"p7": 0.04, "p8": 0.03, "p9": 0.03}, sigma=0.001)
    stood_still = Finding(cls="hang-mid-training", action=Action.RETRY, text="nothing since")

    def hanging(trial: Trial) -> TrialResult:
        is_lost = trial.arm == "p7" and trial.block in blocks
        is_lost |= trial.is_baseline and trial.block in baselines and not trial.position
        if not is_lost:
            return run(trial)
        return TrialResult(
            trial=trial, status=TrialStatus.UNMEASURED, reason=verbatim("it stood still twice"),
            findings=(stood_still, stood_still), job_ids=(f"{trial.id}.1", f"{trial.id}.2"),
        )  # fmt: skip

    found = verdict(sweep.decide(history(hanging, of=sweep)).conclusion, "p7")
    assert found.kind is kind
    assert found.lost is not None
    assert sentence(found.lost.message) == words
    assert (found.hangs, found.retries) == (2 * len(blocks), len(blocks))
    assert any(sentence(reason).startswith(words) for reason in found.reasons)
    assert found.kind is not VerdictKind.FASTER or found.n >= 3
    whole = verdict(sweep.decide(history(run, of=sweep)).conclusion, "p7")
    assert (whole.kind, whole.lost, whole.hangs) == (VerdictKind.FASTER, None, 0)


def test_an_invalid_profile_holds_no_bound_up() -> None:
    """One that is fast and computes something else: M is of the others."""
    sweep, run = study(), cluster({"p7": 0.12}, sigma=0.002)

    def careless(trial: Trial) -> TrialResult:
        result = run(trial)
        if trial.arm != "p7" or result.score is None:
            return result
        return replace(result, score=replace(result.score, loss=8.0))

    conclusion = sweep.decide(history(careless, of=sweep)).conclusion
    assert verdict(conclusion, "p7").kind is VerdictKind.INVALID
    assert conclusion.tuning.bound is not None
    assert conclusion.tuning.bound < 0.02


def unseen_of(*arms: str, run: Answer) -> Answer:
    """Return the answers of a machine on which nothing shows the flags of these arms."""

    def silent(trial: Trial) -> TrialResult:
        own = (
            TrialSetting(name=each.name, kind=SettingKind.FLAG, asked="1", effect=Effect.NOT_SEEN)
            for each in trial.profile.flags
        )
        return replace(run(trial), settings=tuple(own)) if trial.arm in arms else run(trial)

    return silent


def test_of_a_setting_that_may_not_have_been_in_effect_nothing_is_ruled_out() -> None:
    """What never reached the program runs like the baseline, whatever it would gain."""
    sweep, run = study(), cluster({}, sigma=0.002)
    every = unseen_of(*(each.id for each in sweep.profiles), run=run)
    conclusion = sweep.decide(history(every, of=sweep)).conclusion
    assert conclusion.nothing_in_effect
    assert conclusion.tuning.bound is None
    assert not [note for note in conclusion.notes if "ruled out" in sentence(note)]
    some = sweep.decide(history(unseen_of("p3", run=run), of=sweep)).conclusion
    assert some.tuning.bound is not None
    assert any(each.values.get("arms") == ("p3",) for each in some.notes)


def test_an_arm_that_is_judged_by_its_own_noise_is_bounded_by_it() -> None:
    """M must not lie below the interval that the table shows of the noisy arm."""
    sweep, run = study(budget=65), cluster({}, sigma=0.002)

    def shaky(trial: Trial) -> TrialResult:
        if trial.arm != "p3":
            return run(trial)
        extra = (0.06, -0.05, 0.02)[trial.block % 3] if trial.block else 0.05
        return measured(trial, 6.9 + extra)

    conclusion = sweep.decide(history(shaky, of=sweep)).conclusion
    noisy = verdict(conclusion, "p3")
    assert "its own noise" in sentence(noisy.method)
    assert noisy.ci95 is not None
    assert conclusion.tuning.bound is not None
    # a one-sided 95 % bound lies inside of the two-sided interval, and not far
    assert conclusion.tuning.bound > 0.5 * noisy.ci95[1]
    assert any("the interval of p3" in sentence(note) for note in conclusion.notes)


def test_spare_blocks_are_told_where_they_move_what_is_ruled_out() -> None:
    told = [
        note
        for seed in range(4)
        for note in study(budget=65)
        .decide(history({}, 0.006, of=study(budget=65), seed=seed))
        .conclusion.notes
        if "spare block" in sentence(note)
    ]
    assert told
    assert all("followed those that decide" in sentence(note) for note in told)


def test_a_loser_of_one_run_is_told_where_noise_hardly_explains_it() -> None:
    sweep = study()
    done = history({"p1": -0.06, "p2": -0.012}, of=sweep)
    lost, near = (verdict(sweep.decide(done).conclusion, each) for each in ("p1", "p2"))
    assert (lost.is_likely_slower, near.is_likely_slower) == (True, False)
    assert lost.kind is VerdictKind.SCREENED
    assert sentence(lost.reasons[0]).startswith("very likely slower (1 run)")


def test_a_tie_of_the_best_two_is_told() -> None:
    def notes(second: float) -> str:
        sweep = study()
        done = history({"p1": 0.05, "p2": second}, 0.002, of=sweep)
        return " ".join(map(sentence, sweep.decide(done).conclusion.notes))

    assert "a tie: p" in notes(0.05)
    assert "a tie" not in notes(0.03)


def test_a_machine_is_called_too_noisy_where_idle_settings_moved() -> None:
    idle = replace(profile("idle", "--xla_gpu_knob=99"), is_control=True)
    for effect, is_told in ((-0.3, True), (0.0, False)):
        sweep = study(profiles=(*knobs(10), idle), budget=60)
        notes = sweep.decide(history({"idle": effect}, 0.002, of=sweep)).conclusion.notes
        assert any("settings that do nothing" in sentence(note) for note in notes) is is_told


@pytest.mark.parametrize("moved", [-0.06, 0.0, 0.06])
def test_a_control_that_moves_is_the_first_sentence_of_the_finding(moved: float) -> None:
    sweep = study(6, budget=40)  # a place is left for the alias
    effects = {f"p{at}": -0.05 for at in range(1, 6)} | {"p0": 0.02, "baseline-aa": moved}
    found = sweep.decide(history(effects, 0.001, of=sweep)).conclusion
    assert (found.tuning.moved is not None) is bool(moved)
    assert ("A/A control failed" in headline(found)) is bool(moved)
    held = any("the baseline against itself" in sentence(note) for note in found.notes)
    assert held is not bool(moved)


def test_a_bound_below_zero_says_that_every_setting_loses() -> None:
    sweep = study(6, budget=40)
    done = history({f"p{at}": -0.01 for at in range(6)}, 0.001, of=sweep)
    found = sweep.decide(done).conclusion
    bound = found.tuning.bound
    assert bound is not None
    assert bound < -0.005
    ending = ending_text(ENGLISH, found, history=done, stopped="")
    assert f"is slower, by {size(-bound)} at least" in ending
    assert "gains more than" not in headline(found) + ending


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
