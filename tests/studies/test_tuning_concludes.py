"""The tuning study concludes, at any moment: winners, vetoes, and what cannot be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Effect,
    Finding,
    Outcome,
    Recipe,
    SettingKind,
    State,
    TrialResult,
    TrialSetting,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import size
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import headline
from pytest_xlatune.report.lines import ending_text
from tests.helpers.cells import row
from tests.helpers.history import (
    Answer,
    arm,
    changed,
    cluster,
    failing,
    history,
    knobs,
    measured,
    study,
    verdict,
)
from tests.helpers.words import with_values

THREE = {"p7": 0.03, "p8": 0.03, "p9": 0.03}
HURT = {f"p{at}": -0.05 for at in range(1, 6)}
BASE = "baseline-deployed"
SMALL = {"count": 6, "budget": 40}  # a place is left for the alias of the baseline
HANG = Finding(cls="hang-mid-training", action=Action.RETRY, text="nothing since")
IDLE = replace(profile("idle", "--xla_gpu_knob=99"), is_control=True)
SMALL_GAIN = pytest.approx(0.01, abs=0.01)
OPEN = {VerdictKind.SCREENED, VerdictKind.INCONCLUSIVE, VerdictKind.INVALID}


def lucky(once: Mapping[str, float], later: Mapping[str, float], sigma: float = 0.003) -> Answer:
    """Return a machine whose profiles gain something else in the blocks."""
    return lambda trial: cluster(later if trial.block else once, sigma)(trial)


def with_settings(run: Answer, effects: Mapping[str, Effect], usual: Effect) -> Answer:
    """Return a machine that tells of settings by their names, and of all others the usual."""

    def told(trial: Trial) -> TrialResult:
        own = trial.profile
        kinds = (
            (SettingKind.FLAG, {each.name: str(each.value) for each in own.flags}),
            (SettingKind.VARIABLE, own.env),
            (SettingKind.OVERRIDE, own.overrides),
        )
        settings = tuple(
            TrialSetting(name=name, kind=kind, asked=value, effect=effects.get(name, usual))
            for kind, named in kinds
            for name, value in named.items()
        )
        return replace(run(trial), settings=settings)

    return told


def p3_unseen(trial: Trial) -> TrialResult:
    """A machine on which nothing shows the settings of p3."""
    run = cluster({}, sigma=0.002)
    return with_settings(run, {}, Effect.NOT_SEEN)(trial) if trial.arm == "p3" else run(trial)


def shaky(trial: Trial) -> TrialResult:
    """A machine on which p3 alone is noisy."""
    if trial.arm != "p3":
        return cluster({}, sigma=0.002)(trial)
    return measured(trial, 6.9 + ((0.06, -0.05, 0.02)[trial.block % 3] if trial.block else 0.05))


def stalling(tgs: float | None, blocks: Sequence[int]) -> Answer:
    """Return a machine that slows four steps of p7 (one, where it is one block) to this TGS."""
    slow = tuple(range(5, 6 if len(blocks) == 1 else 9))
    return changed(
        cluster({"p7": 0.03, "p8": 0.03}, sigma=0.001),
        arm("p7", blocks=blocks),
        window_tgs=lambda score: tgs and math.exp(score.value) * tgs,
        stragglers=len(slow),
        dropped=slow,
        n_steps=10 - len(slow),
    )


def hanging(blocks: Sequence[int], baselines: Sequence[int] = ()) -> Answer:
    """Return a machine on which p7 hangs twice in these blocks, and a baseline in those."""
    run = cluster({"p7": 0.04, "p8": 0.03, "p9": 0.03}, sigma=0.001)
    hangs: dict[str, Any] = {
        "why": "it stood still twice",
        "findings": (HANG, HANG),
        "job_ids": ("1", "2"),
    }
    run = failing(run, lambda e: arm(BASE, blocks=baselines)(e) and not e.position, **hangs)
    return failing(run, arm("p7", blocks=blocks), **hangs)


def scores_in_blocks(value: float) -> Answer:
    return lambda trial: (
        measured(trial, value, tgs=1.0) if trial.block else cluster({"p7": 0.05})(trial)
    )


def in_later_epoch(**other: Any) -> Answer:
    """Return a machine that is 10 % faster in all of a block but its baselines."""

    def swapped(trial: Trial) -> TrialResult:
        result = cluster(THREE)(trial)
        if not trial.block or trial.is_baseline or result.score is None:
            return result
        return replace(result, score=replace(result.score, value=result.score.value + 0.1), **other)

    return swapped


@pytest.mark.parametrize(
    ("changes", "run", "expected"),
    [
        row("5 % seen and 4 % excluded is where one may stop", {}, cluster({"p8": 0.08}, 0.002),
            kinds={"p8": "FASTER"}, stop={"p8": 8}, bound=None),
        row("where nothing helps M says so", {}, cluster({}, 0.002), bound=SMALL_GAIN,
            notes=["gains more than"]),
        row("a finalist may turn out slower, one run never says so", {"finalists": 3},
            lucky({"p7": 0.05, "p1": -0.2}, {"p7": -0.05}),
            kinds={"p7": "SLOWER", "p1": "SCREENED"}),
        row("slow steps excuse no loss", {"finalists": 3},
            changed(lucky({"p7": 0.05}, {"p7": -0.05}), arm("p7"), stragglers=3,
                    dropped=(6, 8, 11), window_tgs=500.0), kinds={"p7": "SLOWER"}),
        row("a profile that cannot run", {},
            failing(cluster({}), arm("p4"), TrialStatus.DROPPED, "unknown flag"),
            kinds={"p4": "INVALID"}, cannot_run=["p4"], why={"p4": "unknown flag"}),
        row("a profile whose node failed", {}, failing(cluster({}), arm("p4"), why="node failure"),
            kinds={"p4": "INVALID"}, why={"p4": "node failure"}),
        row("another loss makes no winner and no finalist, and M is of the others", {},
            changed(cluster({"p7": 0.12}, 0.002), arm("p7"), loss=8.0), kinds={"p7": "INVALID"},
            why={"p7": "its loss is 8, the baseline's 9.5"}, never=["p7"], bound=SMALL_GAIN),
        row("the loss is that of the baselines, whatever most profiles have", {},
            changed(cluster({}), lambda trial: not trial.is_baseline, loss=8.0),
            rest={VerdictKind.INVALID}),
        row("one slow step is no significant number", {}, stalling(0.5, (1,)),
            kinds={"p7": "FASTER"}),
        row("many slow steps that cost next to nothing", {}, stalling(0.999, range(1, 5)),
            kinds={"p7": "FASTER"}),
        row("many slow steps that eat the gain up", {}, stalling(0.96, range(1, 5)),
            kinds={"p7": "INCONCLUSIVE"}),
        row("many slow steps that cost an unknown amount", {}, stalling(None, range(1, 5)),
            kinds={"p7": "INCONCLUSIVE"}),
        row("no run is lost", {}, hanging(()), kinds={"p7": "FASTER"}, lost={"p7": None}),
        row("one of four runs hangs", {}, hanging((2,)), kinds={"p7": "FASTER"},
            lost={"p7": ("1 of 4 runs lost: hang", 2, 1)}),
        row("two of four runs hang", {}, hanging((2, 3)), kinds={"p7": "INCONCLUSIVE"},
            lost={"p7": ("2 of 4 runs lost: hang", 4, 2)}),
        row("two of four hang where the baselines lose as many", {}, hanging((2, 3), range(1, 5)),
            kinds={"p7": "INCONCLUSIVE"}, lost={"p7": ("2 of 4 runs lost: hang", 4, 2)}),
        row("one of four hangs where a baseline does too", {}, hanging((2,), (3,)),
            kinds={"p7": "FASTER"}, lost={"p7": ("1 of 4 runs lost: hang", 2, 1)}),
        row("settings of the baseline are an A/A trial, and a twin is named",
            {"profiles": (*knobs(24), profile("same", "--xla_gpu_autotune_level=4"),
                          profile("twin", "--xla_gpu_knob=0")), "budget": 60},
            cluster({"same": 0.05, "twin": 0.05}), kinds={"same": "SCREENED"},
            why={"same": "environment as baseline-deployed", "twin": "environment as p0"}),
        row("a block that a node swap cuts compares nothing across it", {}, in_later_epoch(epoch=1),
            kinds=dict.fromkeys(THREE, "INCONCLUSIVE"), why={"p7": "no block holds both"}),
        row("nor one of two allocations", {},
            in_later_epoch(outcome=Outcome(state=State.COMPLETED, allocation="4712")),
            kinds=dict.fromkeys(THREE, "INCONCLUSIVE"), why={"p7": "no block holds both"}),
        row("what is not selected and not measured has no row",
            {"selected": frozenset({"p3"}), "confirm": False}, cluster({}),
            kinds={"p3": "SCREENED"}, arms=["p3"]),
        row("a sweep without profiles calibrates the cell", {"count": 0, "screen_baselines": 12},
            cluster({}, 0.005), jobs=12, arms=[], sigma=pytest.approx(0.005, rel=0.5),
            notes=["36 jobs: +"]),
        row("of settings that nothing shows nothing is ruled out", {},
            with_settings(cluster({}, 0.002), {}, Effect.NOT_SEEN), bound=None,
            silent=["ruled out"], unseen=[]),
        row("nor of one that nothing shows", {}, p3_unseen, bound=SMALL_GAIN, unseen=[("p3",)]),
        row("an arm that is judged by its own noise is bounded by it", {"budget": 65}, shaky,
            method={"p3": "its own noise"}, notes=["the interval of p3"]),
        row("a loser of one run is told where noise hardly explains it", {},
            cluster({"p1": -0.06, "p2": -0.012}), kinds={"p1": "SCREENED"}, likely_slower=["p1"],
            why={"p1": "very likely slower (1 run)"}),
        row("a tie of the best two", {}, cluster({"p1": 0.05, "p2": 0.05}, 0.002),
            notes=["a tie: p"]),
        row("no tie", {}, cluster({"p1": 0.05, "p2": 0.03}, 0.002), silent=["a tie"]),
        row("a machine is too noisy where idle settings moved",
            {"profiles": (*knobs(10), IDLE), "budget": 60}, cluster({"idle": -0.3}, 0.002),
            notes=["settings that do nothing"]),
        row("and is not where they did not",
            {"profiles": (*knobs(10), IDLE), "budget": 60}, cluster({}, 0.002),
            silent=["settings that do nothing"]),
        *(
            row(f"the control at {moved:+.0%}", SMALL,
                cluster({**HURT, "p0": 0.02, "baseline-aa": moved}, 0.001),
                kinds={"p0": "FASTER"}, finalists=("p0",), moved=bool(moved), method={"p0": "K=1,"})
            for moved in (-0.06, 0.0, 0.06)
        ),
        row("the control never reaches the stop rule", SMALL,
            cluster({**HURT, "p0": 0.08, "baseline-aa": 0.08}, 0.001), stop={"p0": 8}),
        row("where all hurt nothing is confirmed", {}, cluster({p.id: -0.05 for p in knobs(25)}),
            rest={VerdictKind.SCREENED}, jobs=28, never=[p.id for p in knobs(25)]),
        row("a dropped finalist leaves its blocks", {},
            failing(cluster(THREE), arm("p8", blocks=range(1, 9)), TrialStatus.DROPPED, "oom"),
            kinds={"p7": "FASTER", "p8": "INVALID"}, cannot_run=["p8"], why={"p8": "oom"},
            method={"p7": "K=4"}),
        row("a quiet cell keeps five to the end", {"sigma_prior": 0.003},
            cluster({f"p{at}": 0.02 for at in range(5)}, 0.003),
            kinds={f"p{at}": "FASTER" for at in range(5)}),
        row("so does a quiet screen", {"sigma_prior": None},
            cluster({f"p{at}": 0.02 for at in range(5)}, 0.002),
            kinds={f"p{at}": "FASTER" for at in range(5)}),
        row("the smallest layout that can tell tells",
            {"count": 3, "budget": 20, "finalists": 1, "blocks": 4, "block_baselines": 1},
            cluster({"p1": 0.05}), kinds={"p1": "FASTER"}, method={"p1": "4 blocks, 4 baselines"}),
        row("a budget that only ranks says so", {"count": 30, "budget": 36}, cluster({"p1": 0.05}),
            rest={VerdictKind.SCREENED}, notes=["ranking only: 36 jobs screen 30 profiles"]),
        # where no figure can be made, none is: it never fails open
        row("no baseline was scored", {}, failing(cluster({"p7": 0.05}), arm(BASE)), rest=OPEN),
        row("one baseline was scored", {},
            failing(cluster({"p7": 0.05}), lambda e: e.is_baseline and e.position + e.block > 0),
            rest=OPEN),
        row("no variance at all", {}, lambda e: measured(e, 6.9 + 0.05 * (e.arm == "p7")),
            rest=OPEN),
        row("scores are NaN", {}, scores_in_blocks(math.nan), rest=OPEN),
        row("scores are infinite", {}, scores_in_blocks(math.inf), rest=OPEN),
        row("nothing was measured", {}, failing(cluster({}), lambda _: True), rest=OPEN),
        row("one block survived", {}, failing(cluster({"p7": 0.05}), lambda e: e.block > 1),
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
        "moved": found.tuning.moved is not None,
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
    for name, lost in expected.get("lost", {}).items():
        each = verdicts[name]
        told = (sentence(each.lost.message), each.hangs, each.retries) if each.lost else None
        assert told == lost
        assert not told or told[0] in "; ".join(map(sentence, each.reasons))
    notes = "\n".join(map(sentence, found.notes))
    assert [words for words in expected.get("notes", ()) if words not in notes] == []
    assert [words for words in expected.get("silent", ()) if words in notes] == []
    if expected.get("rest") is OPEN:
        for cut in range(0, len(done), 5):
            part = sweep.decide(done[:cut]).conclusion.verdicts
            assert {each.kind for each in part} <= OPEN
            assert all(each.reasons for each in part)
    for each in found.verdicts:
        if each.kind is VerdictKind.FASTER:
            assert each.n >= 3
        if each.ci95 and found.tuning.bound is not None:
            assert found.tuning.bound > 0.5 * each.ci95[1], "M allows what the page does"


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
    assert (conclusion.baseline.n, conclusion.alpha, conclusion.complete) == (11, 0.05, True)


def test_an_empty_history_tells_what_the_plan_can_see() -> None:
    conclusion = study(sigma_prior=0.0066).decide([]).conclusion
    assert conclusion.noise.mde80 == pytest.approx(0.0139, abs=1e-4)
    assert conclusion.tuning.from_start80 == pytest.approx(0.0158, abs=2e-4)
    assert {(v.kind, v.n) for v in conclusion.verdicts} == {(VerdictKind.INCONCLUSIVE, 0)}
    assert conclusion.baseline.n == 0


def test_the_bound_is_of_all_that_was_asked_and_of_nothing_before() -> None:
    """Fresh blocks tighten it; a profile that this run does not ask about does not widen it."""
    sweep, run = study(), lucky({"p7": 0.03}, {}, 0.002)
    done = history(run, of=sweep)
    screened = [each for each in done if not each.trial.block]
    for cut in (len(screened) - 1, len(done) - 1):
        assert sweep.decide(done[:cut]).conclusion.tuning.bound is None
    # five baselines tell the noise of a screen, three do not
    assert study(confirm=False).decide(screened).conclusion.tuning.bound is None
    five = study(screen_baselines=5, budget=60, confirm=False)
    once = five.decide(history(run, of=five)).conclusion.tuning.bound
    whole = sweep.decide(done).conclusion.tuning.bound
    others = replace(five, selected=frozenset({"p1", "p2"}))
    of_two = others.decide(history(run, of=five)).conclusion.tuning.bound
    assert None not in (once, whole, of_two)
    assert (once or 0) > 0.03
    assert (whole or 1) < (once or 0) - 0.005
    assert (of_two or 1) < 0.02


@pytest.mark.parametrize("seed", range(6))
def test_m_excludes_nothing_that_the_page_allows(seed: int) -> None:
    sweep = study(12, budget=65, sigma_prior=0.01)
    results = history({"p1": -0.02}, 0.01, of=sweep, seed=seed)
    found = sweep.decide(results).conclusion
    bound = found.tuning.bound
    for each in found.verdicts:
        high = each.ci95[1] if each.ci95 else each.delta or 0.0
        assert high <= (1.0 if bound is None else bound) + 1e-12, each.arm
        if each.ci95 is not None:
            low, high = each.ci95
            if each.kind is not VerdictKind.EQUIVALENT:  # which shows the interval of 90 %
                assert f"{100 * low:+.1f} % to {100 * high:+.1f} %" in sentence(each.reasons[0])
    assert bound is not None or any(each.kind is VerdictKind.FASTER for each in found.verdicts)


def test_a_bound_below_zero_says_that_every_setting_loses() -> None:
    sweep = study(6, budget=40)
    done = history({f"p{at}": -0.01 for at in range(6)}, 0.001, of=sweep)
    found = sweep.decide(done).conclusion
    bound = found.tuning.bound
    assert bound is not None
    assert bound < -0.005
    ending = ending_text(ENGLISH, found, stopped="")
    assert f"is slower, by {size(-bound)} at least" in ending
    assert "gains more than" not in headline(found) + ending


@pytest.mark.parametrize("swapped_at", [15, 37], ids=["in the screen", "in the blocks"])
def test_two_epochs_are_never_compared_with_each_other(swapped_at: int) -> None:
    """After a node swap everything is 10 % faster: no verdict may come of it."""
    sweep, run = study(), cluster({})
    done: list[TrialResult] = []
    while trials := sweep.decide(done).due:
        for trial in trials:
            result, epoch = run(trial), int(len(done) >= swapped_at)
            assert result.score is not None
            score = replace(result.score, value=result.score.value + 0.1 * epoch)
            done.append(replace(result, epoch=epoch, score=score))
    assert all(abs(v.delta or 0) < 0.02 for v in sweep.decide(done).conclusion.verdicts)


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


def test_a_figure_beside_a_change_agrees_with_it_whatever_drifts() -> None:
    """Baselines and profiles ran at other times: a step of 8 % lies between them."""
    sweep, run = study(), cluster({"p3": 0.03, "p4": 0.02})

    def drifting(trial: Trial) -> TrialResult:
        score = run(trial).score
        assert score is not None
        return measured(trial, score.value + (math.log(0.92) if trial.block else 0.0))

    found = sweep.decide(history(drifting, of=sweep)).conclusion
    for each in found.verdicts:
        assert each.delta is not None
        assert each.tgs == pytest.approx((found.baseline.tgs or 0.0) * (1 + each.delta))
        assert each.step_s == pytest.approx(28672 / (each.tgs or math.nan))


def test_a_winner_is_told_with_what_is_likely_where_its_change_is_small() -> None:
    found = study().decide(history({"p7": 0.02}, 0.006, of=study(), seed=2)).conclusion
    best = found.winner
    assert best is not None
    assert best.likely is not None
    assert best.ci95 is not None
    assert best.delta is not None
    likely, low, high = best.likely
    assert low < likely < high
    assert 0 < likely < best.delta, "shrunk toward no effect"
    assert best.delta - best.ci95[0] > best.ci95[1] - best.delta, "the best of several is too high"
    assert f"likely {100 * likely:+.1f} % (95 % interval [" in headline(found)
    large = study().decide(history({"p7": 0.30}, 0.006, of=study())).conclusion
    assert large.winner is not None
    assert large.winner.likely is None
    assert "likely" not in headline(large)


MICRO = profile("mb-16", overrides={"num_microbatches": "16"}, wave="wave2")
RING = profile("ring", env={"NCCL_ALGO": "Ring"}, wave="wave2")
FLAG = profile("flag", "--xla_gpu_own=1", wave="wave2")
BOTH = profile("both", env={"HSA_X": "1"}, overrides={"num_microbatches": "16"}, wave="wave2")
OVERLAP = profile("overlap-2", "--xla_gpu_overlap=2", wave="wave2")


@pytest.mark.parametrize(
    ("own", "effects"),
    [
        pytest.param(MICRO, {}, id="a trainer that prints the key"),
        pytest.param(MICRO, {"num_microbatches": Effect.ASKED}, id="a trainer that prints no keys"),
        pytest.param(RING, {"NCCL_ALGO": Effect.ASKED}, id="NCCL prints nothing"),
        pytest.param(FLAG, {"xla_gpu_own": Effect.NOT_SEEN}, id="XLA lists others"),
        pytest.param(BOTH, {"HSA_X": Effect.ASKED}, id="one of two settings"),
    ],
)
def test_what_nothing_shows_does_not_win_however_fast_it_is(
    own: Profile, effects: Mapping[str, Effect]
) -> None:
    sweep = study(profiles=(own, OVERLAP, *knobs(20)))
    run = with_settings(cluster({own.id: 0.30, "overlap-2": 0.08}), effects, Effect.IN_EFFECT)
    found = sweep.decide(history(run, of=sweep)).conclusion
    best, text = verdict(found, own.id), headline(found)
    assert best.kind is VerdictKind.FASTER
    assert found.winner is not None
    assert (best.effect is Effect.IN_EFFECT) is not bool(effects)
    assert [name.lstrip("-") for name in best.unproved] == [*effects]
    assert found.winner.arm == ("overlap-2" if effects else own.id)
    stopped = [sentence(e).split()[0] for e in found.notes if "you may stop" in sentence(e)]
    assert (own.id in stopped) is not bool(effects), "only what can win stops a sweep"
    assert all(f"nothing shows that `{name}` was" in text for name in best.unproved)
    assert (f"`{own.id}` is at +" in text) is bool(effects)


def faster(name: str, delta: float, *ends: float, **more: Any) -> Verdict:
    low, high = ends or (delta - 0.01, delta + 0.01)
    values = {"kind": VerdictKind.FASTER, "n": 4, "delta": delta, "ci95": (low, high), **more}
    return Verdict(arm=name, **values)


@pytest.mark.parametrize(
    ("verdicts", "words", "wins"),
    [
        pytest.param([faster("a", 0.264, 0.003, 0.483, likely=(0.003, -0.019, 0.021))], "", "",
                     id="+26.4 % at a flag that nothing reads, and likely nothing"),
        pytest.param([faster("a", 0.015, 0.0, 0.028, likely=(0.01, 0.001, 0.02))], "", "",
                     id="its low end is nothing"),
        pytest.param([faster("a", 0.02, 0.006, 0.03, likely=(0.016, 0.003, 0.026))], "", "a",
                     id="an effect in both intervals"),
        pytest.param([faster("a", 0.3, 0.25, 0.34)], "", "a", id="too large for small effects"),
        pytest.param([faster("a", 0.04), faster("abc", 0.05)],
                     "[+4.0, +6.0]), and no winner: the recipe", "a",
                     id="the largest is larger than the recipe"),
        pytest.param([faster("a", 0.04), faster("abc", 0.05), faster("ab", 0.045)],
                     "[+3.5, +5.5]), and no winner: the recipe", "a", id="one between is larger"),
        pytest.param([faster("a", 0.04), faster("abc", 0.05), faster("xy", 0.06)],
                     "`xy` is at +6.0 % (95 % interval [+5.0, +7.0]), and no winner: the",
                     "a", id="one whose parts were not measured"),
        pytest.param([faster("a", 0.04), faster("low", 0.01)], "", "a", id="a smaller one"),
        pytest.param([faster("b", 0.05, kind=VerdictKind.INCONCLUSIVE,
                             reasons=(verbatim("9 of its 40 steps are slow"),))],
                     "`b` is at +5.0 % (95 % interval [+4.0, +6.0])", "", id="a gain is withheld"),
    ],
)  # fmt: skip
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
    for reason in (sentence(each) for told in verdicts for each in told.reasons):
        assert f"{reason}." in text
