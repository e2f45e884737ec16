"""A gate passes only on evidence, says what it cannot tell, and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.model.result import (
    Conclusion,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.claims import no_regression
from pytest_xlatune.studies import all_selected
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.gate import Gate, GateStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.registry import study_of
from tests.helpers.history import measured

CELL = Cell(model_tag="pretend", parallelism=Parallelism.parse("FSDP=4"))
NEW = profile("new", "--xla_new=1")
STUDY = GateStudy(cell=CELL, profiles=(NEW,), gate=Gate(margin=0.01, blocks=4, block_baselines=2))
PASSES = (VerdictKind.FASTER, VerdictKind.EQUIVALENT)

Tgs = Callable[[Trial, int], float]


def result(trial: Trial, tgs: float, *, loss: float = 7.0, stragglers: int = 0) -> TrialResult:
    return measured(
        trial, math.log(tgs), loss=loss, n_steps=10 - stragglers, stragglers=stragglers,
        dropped=tuple(range(5, 5 + stragglers)), window_tgs=tgs / (1 + 0.1 * stragglers),
    )  # fmt: skip


def noisy(effect: float, *, sigma: float = 0.002, seed: int = 4) -> Tgs:
    """Give TGS about 1000, the candidates' times 1 + effect."""
    random = Random(seed)
    return lambda trial, _: (
        1000 * (1 if trial.is_baseline else 1 + effect) * math.exp(random.gauss(0, sigma))
    )


def history(study: GateStudy, tgs: Tgs) -> list[TrialResult]:
    return [result(trial, tgs(trial, at)) for at, trial in enumerate(study.decide([]).due)]


def concluded(study: GateStudy, tgs: Tgs) -> Conclusion:
    return study.decide(history(study, tgs)).conclusion


@pytest.mark.parametrize(
    ("tgs", "kind", "words"),
    [
        pytest.param(noisy(0.05), "FASTER", "faster by at least", id="faster"),
        pytest.param(noisy(0.0), "EQUIVALENT", "margin is 1.0 %", id="level"),
        pytest.param(noisy(-0.05), "SLOWER", "regression: ", id="slower"),
        pytest.param(noisy(0.0, sigma=0.02), "INCONCLUSIVE", "cannot tell: ", id="too noisy"),
        pytest.param(lambda *_: 1000.0, "INCONCLUSIVE", "are exactly equal", id="copies"),
        pytest.param(
            lambda trial, at: math.nan if at == 3 else 1000.0 + at,
            "INCONCLUSIVE", "trials have no score", id="a score is not a number",
        ),
    ],
)  # fmt: skip
def test_the_verdicts_of_a_gate(tgs: Tgs, kind: str, words: str) -> None:
    conclusion = concluded(STUDY, tgs)
    (verdict,) = conclusion.verdicts
    assert verdict.kind == kind
    assert words in sentence(verdict.reasons[0])
    assert conclusion.complete
    assert bool(no_regression(verdict)) == (verdict.kind in PASSES)


def test_what_cannot_be_told_says_how_many_trials_would_decide_it() -> None:
    (verdict,) = concluded(STUDY, noisy(0.0, sigma=0.008, seed=8)).verdicts
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "decide it with 80 % power" in sentence(verdict.reasons[0])
    blocks = int(sentence(verdict.reasons[0]).split(" blocks would decide")[0].rsplit(" ", 1)[1])
    assert blocks > STUDY.gate.blocks
    enough = replace(STUDY, gate=replace(STUDY.gate, blocks=blocks), budget=200)
    passed = sum(
        concluded(enough, noisy(0.0, sigma=0.008, seed=seed)).verdicts[0].kind in PASSES
        for seed in range(40)
    )
    assert passed >= 20


def test_a_change_at_the_margin_is_told_by_no_reasonable_number() -> None:
    values = iter((1.0, -1.0, 1.0, -1.0) * 3)
    (verdict,) = concluded(
        STUDY,
        lambda trial, _: 1000 * (1 if trial.is_baseline else 0.9901) * (1 + 0.01 * next(values)),
    ).verdicts
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "too close" in sentence(verdict.reasons[0])


def test_nothing_passes_before_all_is_over_or_with_a_trial_missing() -> None:
    every = history(STUDY, noisy(0.05))
    for count in range(len(every)):
        conclusion = STUDY.decide(every[:count]).conclusion
        assert conclusion.verdicts[0].kind is VerdictKind.INCONCLUSIVE
        assert not conclusion.complete
        assert STUDY.outlook(every[:count]).left == len(every) - count
    for at, each in enumerate(every):
        gone = TrialResult(
            trial=each.trial, status=TrialStatus.UNMEASURED, reason=verbatim("node-fail")
        )
        (verdict,) = STUDY.decide([*every[:at], gone, *every[at + 1 :]]).conclusion.verdicts
        assert verdict.kind is VerdictKind.INCONCLUSIVE
        assert "1 of 12 trials have no score (node-fail)" in sentence(verdict.reasons[0])


@given(
    effect=st.floats(-0.1, 0.1),
    sigma=st.sampled_from([0.0, 1e-12, 0.002, 0.01, math.nan]),
    lost=st.sets(st.integers(0, 11)),
    seed=st.integers(0, 99),
)
def test_a_gate_passes_only_on_enough_that_varies(
    effect: float, sigma: float, lost: set[int], seed: int
) -> None:
    random = Random(seed)
    every = [
        result(trial, 1000 * (1 if trial.is_baseline else 1 + effect)
               * (1 + sigma * random.uniform(-1, 1)))
        for trial in STUDY.decide([]).due
    ]  # fmt: skip
    kept = [
        TrialResult(trial=each.trial, status=TrialStatus.UNMEASURED) if at in lost else each
        for at, each in enumerate(every)
    ]
    (verdict,) = STUDY.decide(kept).conclusion.verdicts
    if verdict.kind in PASSES:
        assert not lost
        assert sigma > 1e-12
        assert verdict.n == 4
        assert verdict.ci95 is not None


def test_the_rate_of_false_passes_is_one_in_twenty() -> None:
    sweeps = 400
    margin = replace(STUDY, gate=Gate(margin=0.01, blocks=4, block_baselines=1))
    passed = sum(
        concluded(margin, noisy(-0.01, sigma=0.003, seed=seed)).verdicts[0].kind in PASSES
        for seed in range(sweeps)
    )
    assert 0 < passed <= 0.05 * sweeps + 3 * math.sqrt(0.05 * 0.95 * sweeps)


def test_a_candidate_that_cannot_run_ends_its_trials_and_never_passes() -> None:
    other = profile("other", "--xla_other=1")
    study = replace(STUDY, profiles=(NEW, other))
    first = next(trial for trial in study.decide([]).due if trial.profile.id == "new")
    dropped = TrialResult(trial=first, status=TrialStatus.DROPPED, reason=verbatim("oom-gpu"))
    left = study.decide([dropped]).due
    assert {trial.profile.id for trial in left} == {BASELINE_ID, "other"}
    tgs = noisy(0.0)
    every = [dropped, *(result(trial, tgs(trial, 0)) for trial in left)]
    conclusion = study.decide(every).conclusion
    verdict = conclusion.verdict("new")
    assert verdict is not None
    assert (verdict.kind, verdict.can_run, verdict.reasons) == (
        "INVALID", False, (verbatim("oom-gpu"),)
    )  # fmt: skip
    assert conclusion.complete


def test_another_loss_is_no_pass_however_fast() -> None:
    tgs = noisy(0.05)
    every = [
        result(trial, tgs(trial, 0), loss=7.0 if trial.is_baseline else 9.0)
        for trial in STUDY.decide([]).due
    ]
    (verdict,) = STUDY.decide(every).conclusion.verdicts
    assert verdict.kind is VerdictKind.INVALID
    assert "loss" in sentence(verdict.reasons[0])


@pytest.mark.parametrize(
    ("slow", "cost", "kind"),
    [
        pytest.param((1, 0, 0, 0), 0.2, "EQUIVALENT", id="one slow step is no significant number"),
        pytest.param((2, 2, 2, 2), 0.002, "EQUIVALENT", id="many within what the margin spares"),
        pytest.param((2, 2, 2, 2), 0.009, "INCONCLUSIVE", id="many beyond what is left of it"),
    ],
)
def test_a_pass_is_withheld_only_where_many_slow_steps_may_use_up_the_margin(
    slow: tuple[int, ...], cost: float, kind: str
) -> None:
    tgs, left = noisy(0.0, sigma=0.001), list(slow)
    every = []
    for trial in STUDY.decide([]).due:
        each = result(trial, tgs(trial, 0), stragglers=0 if trial.is_baseline else left.pop())
        assert each.score is not None
        window_tgs = math.exp(each.score.value) * (1 - cost * (each.score.stragglers > 0))
        every.append(replace(each, score=replace(each.score, window_tgs=window_tgs)))
    (verdict,) = STUDY.decide(every).conclusion.verdicts
    assert verdict.kind == kind
    assert any("straggle" in sentence(reason) for reason in verdict.reasons) is (
        kind == "INCONCLUSIVE"
    )


def test_the_scores_of_a_candidate_that_turned_out_unable_to_run_count_for_nothing() -> None:
    other = profile("other", "--xla_other=1")
    study, tgs = replace(STUDY, profiles=(NEW, other)), noisy(0.0)
    every = history(study, tgs)
    *_, last = [each for each in every if each.trial.profile.id == "new"]
    oom = TrialResult(trial=last.trial, status=TrialStatus.DROPPED, reason=verbatim("oom-gpu"))
    mixed = [oom if each is last else each for each in every]
    without = [each for each in mixed if each is oom or each.trial.profile.id != "new"]
    found = study.decide(mixed).conclusion
    assert found.verdict("other") == study.decide(without).conclusion.verdict("other")
    assert found.noise.sigma == study.decide(without).conclusion.noise.sigma


def test_candidates_share_the_risk_of_a_false_claim() -> None:
    study = replace(STUDY, profiles=(NEW, profile("other", "--xla_other=1")))
    assert all("K=2," in sentence(each.method) for each in concluded(study, noisy(0.0)).verdicts)
    assert "K=1," in sentence(concluded(STUDY, noisy(0.0)).verdicts[0].method)


def test_another_key_candidate_or_layout_is_another_gate() -> None:
    others = [
        replace(STUDY, gate=replace(STUDY.gate, key="abc123")),
        replace(STUDY, profiles=(profile("new", "--xla_new=2"),)),
        replace(STUDY, gate=replace(STUDY.gate, blocks=5)),
        replace(STUDY, seed=1),
    ]
    assert len({each.name for each in (STUDY, *others)}) == 5
    every = history(STUDY, noisy(0.05))
    assert not STUDY.decide(every).due
    for other in others:
        assert other.decide(every).due == other.decide([]).due
    reordered = replace(STUDY, gate=replace(STUDY.gate, margin=0.02))
    assert reordered.name == STUDY.name, "the same trials answer to another margin"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"profiles": ()}, "no candidate", id="no candidate"),
        pytest.param({"budget": 11}, "needs 12 jobs, the budget is 11", id="over the budget"),
        pytest.param({"gate": Gate(blocks=1)}, "degrees of freedom", id="one block"),
    ],
)
def test_what_a_gate_refuses(change: dict[str, object], message: str) -> None:
    assert len(replace(STUDY, budget=12).decide([]).due) == 12, "it may cost all of its budget"
    with pytest.raises(ConfigError, match=message):
        replace(STUDY, **change)


@pytest.mark.parametrize(
    ("demands", "message"),
    [
        pytest.param({"margin": 1.0}, "the margin is 1.0", id="a margin in percent"),
        pytest.param({"margin": math.nan}, "the margin is nan", id="no margin"),
    ],
)
def test_demands_that_mean_nothing(demands: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Gate(**demands)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "study",
    [STUDY, CalibrationStudy(cell=CELL), TuningStudy(cell=CELL, profiles=(NEW,))],
    ids=lambda study: study.name.partition("-")[0],
)
def test_a_declared_study_is_read_back(
    study: GateStudy | CalibrationStudy | TuningStudy,
) -> None:
    assert study_of(study.name, study.to_json()) == study
    assert all_selected(study) == study
    with pytest.raises(LedgerError, match="another version"):
        study_of("phase-of-the-moon", study.to_json())


def test_a_calibration_measures_the_baseline_alone() -> None:
    study = CalibrationStudy(cell=CELL, jobs=12)
    trials = study.decide([]).due
    assert len(trials) == 12
    assert all(trial.is_baseline and trial.is_screened for trial in trials)
    random = Random(5)
    every = [
        replace(
            result(trial, 1000 * math.exp(random.gauss(0, 0.006))),
            outcome=Outcome(state=State.COMPLETED, start_s=float(trial.position)),
        )
        for trial in trials
    ]
    conclusion = study.decide(every).conclusion
    assert conclusion.noise.sigma == pytest.approx(0.006, rel=0.5)
    assert "36 jobs" in sentence(conclusion.notes[0])
    assert conclusion.complete
    assert study.decide(every[:3]).conclusion.noise.sigma is None
    # a sweep does not take them for its own baselines
    sweep = TuningStudy(cell=CELL, profiles=(NEW,))
    assert sweep.decide(every).due == sweep.decide([]).due
    with pytest.raises(ConfigError, match="4 are the least"):
        CalibrationStudy(cell=CELL, jobs=3)
