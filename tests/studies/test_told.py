"""What a sweep tells beside its verdicts: one number an arm, a winner's own figure, no silence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import say, sentence, verbatim
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, profile
from pytest_xlatune.model.result import (
    Conclusion,
    Effect,
    Recipe,
    SettingKind,
    TrialResult,
    TrialSetting,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.leaderboard import headline
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.batch_size import BatchRecord
from pytest_xlatune.studies.gate import Gate, GateStudy
from pytest_xlatune.studies.verdicts import level_kind
from tests.helpers import cells
from tests.helpers.history import CELL, Answer, cluster, history, knobs, measured, study, verdict

ASKED, SILENT = Effect.ASKED, Effect.NOT_SEEN


def telling(run: Answer, effects: Mapping[str, Effect]) -> Answer:
    """Return the answers of a machine that tells of settings by their names; of flags all."""

    def told(trial: Trial) -> TrialResult:
        own = trial.profile
        kinds = (
            (SettingKind.FLAG, {each.name: str(each.value) for each in own.flags}),
            (SettingKind.VARIABLE, own.env),
            (SettingKind.OVERRIDE, own.overrides),
        )
        settings = tuple(
            TrialSetting(
                name=name, kind=kind, asked=value, effect=effects.get(name, Effect.IN_EFFECT)
            )
            for kind, named in kinds
            for name, value in named.items()
        )
        return replace(run(trial), settings=settings)

    return told


def swept(*own: Profile, gains: Mapping[str, float], effects: Mapping[str, Effect]) -> Conclusion:
    """Return the conclusion of a sweep of these profiles among others that do nothing."""
    sweep = study(profiles=(*own, *knobs(20)))
    return sweep.decide(history(telling(cluster(gains), effects), of=sweep)).conclusion


MICRO = profile("mb-16", overrides={"num_microbatches": "16"}, wave="wave2")
RING = profile("ring", env={"NCCL_ALGO": "Ring"}, wave="wave2")
FLAG = profile("flag", "--xla_gpu_own=1", wave="wave2")
HOST = profile("host", env={"HSA_X": "1"}, wave="wave2")
BOTH = profile("both", env={"HSA_X": "1"}, overrides={"num_microbatches": "16"}, wave="wave2")
OVERLAP = profile("overlap-2", "--xla_gpu_overlap=2", wave="wave2")


@pytest.mark.parametrize(
    ("own", "effects", "wins"),
    [
        pytest.param(MICRO, {}, True, id="a trainer that prints the key"),
        pytest.param(MICRO, {"num_microbatches": ASKED}, False, id="a trainer that prints no keys"),
        pytest.param(MICRO, {"num_microbatches": SILENT}, False, id="a trainer that prints others"),
        pytest.param(HOST, {"HSA_X": ASKED}, False, id="a variable of another library"),
        pytest.param(RING, {"NCCL_ALGO": ASKED}, False, id="NCCL prints nothing"),
        pytest.param(RING, {"NCCL_ALGO": SILENT}, False, id="NCCL lists others"),
        pytest.param(FLAG, {"xla_gpu_own": SILENT}, False, id="XLA lists others"),
        pytest.param(BOTH, {"HSA_X": ASKED}, False, id="two settings"),
    ],
)  # fmt: skip
def test_what_nothing_shows_does_not_win_however_fast_it_is(
    own: Profile, effects: Mapping[str, Effect], *, wins: bool
) -> None:
    gains = {own.id: 0.30, "overlap-2": 0.08}
    found = swept(own, OVERLAP, gains=gains, effects=effects)
    best, said = verdict(found, own.id), headline(found)
    assert best.kind is VerdictKind.FASTER
    assert found.winner is not None
    stop_rule = [
        sentence(note).split()[0] for note in found.notes if "you may stop" in sentence(note)
    ]
    if wins:
        assert (best.effect, best.unproved) == (Effect.IN_EFFECT, ())
        assert found.winner.arm == own.id
        assert own.id in stop_rule
        assert "passed over" not in said
        return
    assert found.winner.arm == "overlap-2"
    assert stop_rule == ["overlap-2"], "only what can win stops a sweep"
    names = ", ".join(f"`{each}`" for each in best.unproved)
    assert f"`{own.id}` is faster by +" in said
    assert f"nothing shows that {names} was" in said
    assert "`SiteSettings(unseen=...)`" in said


def test_a_gate_that_excludes_a_loss_alone_calls_nothing_the_same() -> None:
    gate = GateStudy(cell=CELL, profiles=(MICRO,), gate=Gate(blocks=4, block_baselines=2))
    words = []
    for seed in range(12):
        run = cluster({"mb-16": 0.001 * seed}, sigma=0.006, seed=seed)
        found = verdict(
            gate.decide([run(trial) for trial in gate.decide([]).due]).conclusion, "mb-16"
        )
        if found.kind is VerdictKind.EQUIVALENT and found.ci95 is not None:
            is_inside = found.ci95[0] > -0.01 and found.ci95[1] < 0.01
            is_outside = found.ci95[1] > 0.015
            words += [(found.word, is_inside, is_outside)]
    assert {("NO REGRESSION", False, True), ("", True, False)} <= set(words)
    assert not {("NO REGRESSION", True, False), ("", False, True)} & set(words)


def test_a_figure_beside_a_change_agrees_with_it_whatever_drifts() -> None:
    """Baselines and profiles ran at other times: a step of 8 % lies between them."""
    sweep, run = study(), cluster({"p3": 0.03, "p4": 0.02})

    def drifting(trial: Trial) -> TrialResult:
        found, lower = run(trial), math.log(0.92) if trial.block else 0.0
        assert found.score is not None
        value = found.score.value + lower
        tgs = math.exp(value)
        return replace(
            found, score=replace(found.score, value=value, tgs=tgs, step_s=28672 / tgs)
        )  # fmt: skip

    found = sweep.decide(history(drifting, of=sweep)).conclusion
    base = found.baseline
    assert base.tgs is not None
    for each in found.verdicts:
        assert each.delta is not None
        assert each.tgs == pytest.approx(base.tgs * (1 + each.delta))
        assert each.step_s == pytest.approx(28672 / (each.tgs or math.nan))


@pytest.mark.parametrize("seed", range(6))
def test_m_excludes_nothing_that_the_page_allows(seed: int) -> None:
    sweep = study(12, budget=65, sigma_prior=0.01)
    found = sweep.decide(history({"p1": -0.02}, 0.01, of=sweep, seed=seed)).conclusion
    bound = found.tuning.bound
    if bound is None:
        assert any(each.kind is VerdictKind.FASTER for each in found.verdicts)
        return
    for each in found.verdicts:
        high = each.ci95[1] if each.ci95 else each.delta or 0.0
        assert high <= bound + 1e-12, each.arm


def test_an_arm_in_a_spare_block_has_one_figure_of_all_its_runs() -> None:
    spared = 0
    for seed in range(6):
        sweep = study(12, budget=65, sigma_prior=0.01)
        results = history({}, 0.01, of=sweep, seed=seed)
        found = sweep.decide(results).conclusion
        for arm in found.tuning.finalists:
            own = [r for r in results if r.trial.arm == arm and r.trial.block]
            each = verdict(found, arm)
            has_spare = any(r.trial.design and r.trial.design.look == 3 for r in own)
            if each.ci95 is None or not has_spare:
                continue
            spared += 1
            assert each.n == len(own)
            low, high = each.ci95
            assert f"{100 * low:+.1f} % to {100 * high:+.1f} %" in sentence(each.reasons[0])
    assert spared


def test_a_winner_is_told_with_what_is_likely() -> None:
    found = study().decide(history({"p7": 0.02}, 0.006, of=study(), seed=2)).conclusion
    best = found.winner
    assert best is not None
    assert best.likely is not None
    assert best.ci95 is not None
    likely, low, high = best.likely
    assert best.delta is not None
    assert low < likely < high
    assert 0 < likely < best.delta, "shrunk toward no effect"
    assert best.delta - best.ci95[0] > best.ci95[1] - best.delta, "the best of several is too high"
    assert f"likely {100 * likely:+.1f} % (95 % interval [" in headline(found)


@pytest.mark.parametrize(
    ("delta", "ci95", "likely", "wins"),
    [
        pytest.param(0.264, (0.003, 0.483), (0.003, -0.019, 0.021), False, id="likely nothing"),
        pytest.param(0.015, (0.0, 0.028), (0.01, 0.001, 0.02), False, id="its low end is nothing"),
        pytest.param(0.02, (0.006, 0.03), (0.016, 0.003, 0.026), True, id="both are above it"),
        pytest.param(0.3, (0.25, 0.34), None, True, id="too large for small effects"),
    ],
)
def test_a_star_needs_an_effect_in_each_interval_that_is_corrected_for_the_choice(
    delta: float,
    ci95: tuple[float, float],
    likely: tuple[float, float, float] | None,
    wins: bool,
) -> None:
    faster = Verdict(arm="p7", kind=VerdictKind.FASTER, n=4, delta=delta, ci95=ci95, likely=likely)
    found = Conclusion(verdicts=(faster,), record=TuningRecord())
    assert (found.winner is not None) is wins
    assert headline(found).startswith("★") is wins


def test_what_is_likely_is_not_told_of_a_change_that_is_no_small_one() -> None:
    found = study().decide(history({"p7": 0.30}, 0.006, of=study())).conclusion
    assert found.winner is not None
    assert found.winner.likely is None
    assert "likely" not in headline(found)


def test_the_baselines_of_a_small_first_wave_are_a_set_with_those_of_the_next() -> None:
    first = replace(profile(NO_ENV_ID, "--xla_gpu_autotune_level=0"), wave="wave1")
    sweep = study(profiles=(first, *knobs(24)))
    results: list[TrialResult] = []
    question, run = Question(about=Ask.REFERENCE), cluster({})
    for trial in sweep.decide([]).due:
        assert sweep.answer(results, question).state is Answered.NOT_YET
        results.append(run(trial))
    answer = sweep.answer(results, question)
    assert answer.verdict is not None
    assert answer.verdict.n >= 2
    done = history(run, of=sweep, after=results)
    assert sweep.answer(done, question) == answer, "the same in every later run"


@pytest.mark.parametrize(
    ("losses", "sigma", "expected"),
    [
        pytest.param((0.0, 0.04, 0.05), 0.003, ("FASTER", "SLOWER", "SCREENED"), id="one leads"),
        pytest.param((0.0, 0.001, 0.05), 0.001, ("INCONCLUSIVE", "EQUIVALENT", "SCREENED"),
                     id="two are level"),
        pytest.param((0.0, 0.004, 0.02), 0.02, ("INCONCLUSIVE",) * 3, id="noise hides all"),
    ],
)  # fmt: skip
def test_the_same_is_what_excludes_a_difference_and_faster_has_a_change(
    losses: tuple[float, float, float], sigma: float, expected: tuple[str, ...]
) -> None:
    asked = cells.batch(sizes=(4, 8, 12), budget=30)
    random = Random(1)

    def run(trial: Trial) -> TrialResult:
        loss = losses[(4.0, 8.0, 12.0).index(cells.size_in(trial))]
        return measured(trial, 7.0 - loss + random.gauss(0, sigma if trial.block else 0.0))

    concluded = cells.drive(asked, run).conclusion
    found = [verdict(concluded, f"pdbs-{size}") for size in (4, 8, 12)]
    assert tuple(map(str, (each.kind for each in found))) == expected
    for each in found:
        low, high = each.ci95 or (-1.0, 1.0)
        if each.kind is VerdictKind.FASTER:
            assert each.delta is not None
            assert 0 < low < each.delta < high
            assert sentence(each.against) == "the next, 8"
        elif each.kind is VerdictKind.EQUIVALENT:
            assert -0.013 < low < high < 0.013
    best = verdict(concluded, concluded.found(BatchRecord).arm)
    for each in found:
        if each.against == say("the best") and each.delta is not None:
            assert each.tgs == pytest.approx((best.tgs or 0.0) * (1 + each.delta))


@pytest.mark.parametrize(
    ("n", "ci95", "kind"),
    [
        pytest.param(5, (-0.004, 0.006), VerdictKind.EQUIVALENT, id="a difference of 1 % excluded"),
        pytest.param(5, (-0.03, 0.035), VerdictKind.SCREENED, id="a control that is not low"),
        pytest.param(1, None, VerdictKind.SCREENED, id="a single run"),
    ],
)
def test_what_is_not_accused_passes_and_is_the_same_only_where_that_is_shown(
    n: int, ci95: tuple[float, float] | None, kind: VerdictKind
) -> None:
    """A check of nodes that accuses one must not end as one that cannot tell of the others."""
    found = Verdict(arm="n1", kind=VerdictKind.SCREENED, n=n, delta=0.001, ci95=ci95)
    assert level_kind(found) is kind


@pytest.mark.parametrize(
    ("others", "said"),
    [
        pytest.param({"abc": 0.05}, "`abc` has a larger figure, +5.0 %: the recipe", id="largest"),
        pytest.param({"abc": 0.05, "ab": 0.045}, "`ab` has a larger figure, +4.5 %", id="between"),
        pytest.param({"abc": 0.05, "xy": 0.06}, "`xy` is faster by +6.0 % (95 % interval "
"[+5.0, +7.0]) and is passed over", id="no part measured"),
        pytest.param({"abc": 0.05, "low": 0.01}, "", id="a smaller one"),
    ],
)  # fmt: skip
def test_what_is_faster_than_the_recipe_is_named_with_the_reason(
    others: Mapping[str, float], said: str
) -> None:
    verdicts = tuple(
        Verdict(arm=arm, kind=VerdictKind.FASTER, n=4, delta=gain, ci95=(gain - 0.01, gain + 0.01))
        for arm, gain in {"a": 0.04, **others}.items()
    )
    record = TuningRecord(recipe=Recipe(arm="a", largest="abc"))
    text = headline(Conclusion(verdicts=verdicts, record=record))
    assert said in text
    assert "`low`" not in text


def test_a_gain_that_is_withheld_is_named_with_its_reason() -> None:
    why = "9 of its 40 steps are slow"
    withheld = Verdict(
        arm="b",
        kind=VerdictKind.INCONCLUSIVE,
        n=4,
        delta=0.05,
        ci95=(0.04, 0.06),
        reasons=(verbatim(why),),
    )
    text = headline(Conclusion(verdicts=(withheld,), record=TuningRecord()))
    assert "`b` is at +5.0 % (95 % interval [+4.0, +6.0])" in text
    assert f"{why}." in text
