"""A gate passes only on evidence, says what it cannot tell, and what would settle it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
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
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.studies import all_selected
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.gate import Gate, GateStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.registry import study_of
from tests.helpers.history import Answer, Machine, arm, changed, failing, history, measured

CELL = Cell(model_tag="pretend", parallelism=Parallelism.parse("FSDP=4"))
NEW, OTHER = profile("new", "--xla_new=1"), profile("other", "--xla_other=1")
STUDY = GateStudy(cell=CELL, profiles=(NEW,), gate=Gate(margin=0.01, blocks=4, block_baselines=2))
TWO = replace(STUDY, profiles=(NEW, OTHER))
PASSES = (VerdictKind.FASTER, VerdictKind.EQUIVALENT)
IS_NEW = arm("new")


def noisy(effect: float, *, sigma: float = 0.002, seed: int = 4) -> Answer:
    return Machine({"new": effect}, sigma, seed=seed)


def concluded(study: GateStudy, run: Answer) -> Conclusion:
    return study.decide(history(run, of=study)).conclusion


def at_the_margin() -> Answer:
    noise = itertools.cycle((math.log(1.01), math.log(0.99)))
    levels = {True: math.log(1000.0), False: math.log(990.1)}
    return lambda trial: measured(trial, levels[trial.is_baseline] + next(noise))


# two steps of the candidate straggle in each run, and cost more than is left of the margin
SLOWED = changed(
    noisy(0.0, sigma=0.001), IS_NEW, stragglers=2, dropped=(5, 6), n_steps=8,
    window_tgs=lambda score: math.exp(score.value) * (1 - 0.009),
)  # fmt: skip


def unseen(trial: Trial) -> TrialResult:
    run = noisy(0.05)(trial)
    return replace(run, settings=judge_settings(NEW, Witnesses())) if IS_NEW(trial) else run


@pytest.mark.parametrize(
    ("run", "kind", "words"),
    [
        pytest.param(noisy(0.05), "FASTER", "no regression: +", id="faster"),
        pytest.param(noisy(0.0), "EQUIVALENT", "margin is 1.0 %", id="level"),
        pytest.param(noisy(-0.05), "SLOWER", "regression: ", id="slower"),
        pytest.param(noisy(0.0, sigma=0.008, seed=2), "INCONCLUSIVE",
                     "14 blocks would decide it with 80 % power", id="too noisy"),
        pytest.param(lambda trial: measured(trial, 6.9), "INCONCLUSIVE", "are exactly equal",
                     id="copies"),
        pytest.param(changed(noisy(0.0), lambda trial: trial.block == 3, value=math.nan),
                     "INCONCLUSIVE", "trials have no score", id="a score is NaN"),
        pytest.param(at_the_margin(), "INCONCLUSIVE", "too close", id="a change at the margin"),
        pytest.param(changed(noisy(0.05), IS_NEW, loss=8.0), "INVALID", "loss",
                     id="another loss is no pass however fast"),
        pytest.param(SLOWED, "INCONCLUSIVE", "straggle", id="many slow steps"),
        pytest.param(unseen, "INCONCLUSIVE", "nothing shows that --xla_new was in effect",
                     id="a flag that nothing shows"),
    ],
)  # fmt: skip
def test_the_verdicts_of_a_gate(run: Answer, kind: str, words: str) -> None:
    conclusion = concluded(STUDY, run)
    (verdict,) = conclusion.verdicts
    assert verdict.kind == kind
    assert words in "; ".join(map(sentence, verdict.reasons))
    assert conclusion.complete
    assert bool(no_regression(verdict)) == (verdict.kind in PASSES)


def test_nothing_passes_before_all_is_over_or_with_a_trial_missing() -> None:
    every = history(noisy(0.05), of=STUDY)
    for count in range(len(every)):
        conclusion = STUDY.decide(every[:count]).conclusion
        assert conclusion.verdicts[0].kind is VerdictKind.INCONCLUSIVE
        assert not conclusion.complete
        assert STUDY.outlook(every[:count]).left == len(every) - count
    gone = failing(noisy(0.05), lambda _: True, why="node-fail")(every[5].trial)
    (verdict,) = STUDY.decide([*every[:5], gone, *every[6:]]).conclusion.verdicts
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
    kept = []
    for at, trial in enumerate(STUDY.decide([]).due):
        tgs = 1000 * (1 if trial.is_baseline else 1 + effect) * (1 + sigma * random.uniform(-1, 1))
        is_lost = TrialResult(trial=trial, status=TrialStatus.UNMEASURED)
        kept.append(is_lost if at in lost else measured(trial, math.log(tgs)))
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


def test_a_pass_that_excludes_a_loss_alone_calls_nothing_the_same() -> None:
    words = set()
    for seed in range(12):
        (found,) = concluded(STUDY, noisy(0.001 * seed, sigma=0.006, seed=seed)).verdicts
        if found.kind is VerdictKind.EQUIVALENT and found.ci95 is not None:
            is_inside = found.ci95[0] > -0.01 and found.ci95[1] < 0.01
            words.add((found.word, is_inside, found.ci95[1] > 0.015))
    assert {("NO REGRESSION", False, True), ("", True, False)} <= words
    assert not {("NO REGRESSION", True, False), ("", False, True)} & words


def test_a_candidate_that_cannot_run_ends_its_trials_never_passes_and_counts_for_nothing() -> None:
    due = TWO.decide([]).due
    first, *_, last = (trial for trial in due if IS_NEW(trial))
    oom = failing(noisy(0.0), IS_NEW, TrialStatus.DROPPED, "oom-gpu")
    left = TWO.decide([oom(first)]).due
    assert {trial.profile.id for trial in left} == {BASELINE_ID, "other"}
    conclusion = TWO.decide([oom(first), *map(noisy(0.0), left)]).conclusion
    (verdict,) = (each for each in conclusion.verdicts if each.arm == "new")
    assert (verdict.kind, verdict.can_run) == ("INVALID", False)
    assert verdict.reasons == (verbatim("oom-gpu"),)
    assert conclusion.complete
    mixed = [oom(last) if r.trial == last else r for r in history(noisy(0.0), of=TWO)]
    without = [r for r in mixed if r.score is None or not IS_NEW(r.trial)]
    one, other = (TWO.decide(each).conclusion for each in (mixed, without))
    assert one.verdict("other") == other.verdict("other")
    assert one.noise.sigma == other.noise.sigma
    # candidates share the risk of a false claim
    for study, words in ((TWO, "K=2,"), (STUDY, "K=1,")):
        verdicts = concluded(study, noisy(0.0)).verdicts
        assert all(words in sentence(each.method) for each in verdicts)


def test_another_key_candidate_or_layout_is_another_gate() -> None:
    others = [
        replace(STUDY, gate=replace(STUDY.gate, key="abc123")),
        replace(STUDY, profiles=(profile("new", "--xla_new=2"),)),
        replace(STUDY, gate=replace(STUDY.gate, blocks=5)),
        replace(STUDY, seed=1),
    ]
    assert len({each.name for each in (STUDY, *others)}) == 5
    every = history(noisy(0.05), of=STUDY)
    assert [each.decide(every).due for each in others] == [each.decide([]).due for each in others]
    other_margin = replace(STUDY, gate=replace(STUDY.gate, margin=0.02))
    assert other_margin.name == STUDY.name, "the same trials answer to another margin"
    assert other_margin.decide(every).due == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(STUDY, profiles=()), "no candidate"),
        (lambda: replace(STUDY, budget=11), "needs 12 jobs, the budget is 11"),
        (lambda: replace(STUDY, gate=Gate(blocks=1)), "degrees of freedom"),
        (lambda: Gate(margin=1.0), "the margin is 1.0"),
        (lambda: Gate(margin=math.nan), "the margin is nan"),
        (lambda: CalibrationStudy(cell=CELL, jobs=3), "4 are the least"),
    ],
)
def test_what_a_gate_refuses(make: Callable[[], object], message: str) -> None:
    assert len(replace(STUDY, budget=12).decide([]).due) == 12, "it may cost all of its budget"
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_calibration_measures_the_baseline_alone() -> None:
    study = CalibrationStudy(cell=CELL, jobs=12)
    trials = study.decide([]).due
    assert [trial.is_baseline and trial.is_screened for trial in trials] == [True] * 12
    run = noisy(0.0, sigma=0.006, seed=5)
    ends = [Outcome(state=State.COMPLETED, start_s=float(each.position)) for each in trials]
    every = [replace(run(each), outcome=end) for each, end in zip(trials, ends, strict=True)]
    conclusion = study.decide(every).conclusion
    assert conclusion.noise.sigma == pytest.approx(0.006, rel=0.5)
    assert "36 jobs" in sentence(conclusion.notes[0])
    assert conclusion.complete
    assert study.decide(every[:3]).conclusion.noise.sigma is None
    # each slot has two jobs or more
    nodes = tuple((f"n{at}",) for at in range(8))
    study = CalibrationStudy(cell=replace(CELL, nodelist=nodes[0]), jobs=12, slots=nodes)
    assert [cell.nodelist for cell in study.cells] == list(nodes[:6])
    assert {*Counter(trial.cell_digest for trial in study.decide(()).due).values()} == {2}
    # a declared study is read back
    for each in (STUDY, study, TuningStudy(cell=CELL, profiles=(NEW,))):
        assert study_of(each.name, each.to_json()) == all_selected(each) == each
    with pytest.raises(LedgerError, match="another version"):
        study_of("phase-of-the-moon", STUDY.to_json())
    # a sweep does not take its jobs for baselines of its own
    sweep = TuningStudy(cell=CELL, profiles=(NEW,))
    assert sweep.decide(every).due == sweep.decide([]).due
