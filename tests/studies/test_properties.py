"""What must not change a verdict: units, names, order, repetition; and what a study must hold."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import fmean
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Ask, Question, all_selected, engine, tuning
from pytest_xlatune.studies.derived import Search, Stacks
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from tests.helpers import history as helper
from tests.helpers.examples import tried
from tests.helpers.history import Answer, cluster, history, lost, verdict
from tests.helpers.tuned import Machine, turning

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
NAMES = ("a", "b", "c", "d", "e", "f")
FEW = settings(max_examples=tried(25), deadline=None)

seeds = st.integers(0, 10_000)
effects = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.03, -0.02]), min_size=6, max_size=6)


def study(names: Sequence[str] = NAMES, **changes: object) -> TuningStudy:
    profiles = tuple(profile(name, f"--xla_gpu_knob={at}") for at, name in enumerate(names))
    values = {"cell": CELL, "profiles": profiles, "budget": 30} | changes
    return TuningStudy(**values)  # type: ignore[arg-type]


@cache
def sweep(seed: int, truth: tuple[float, ...]) -> tuple[TrialResult, ...]:
    runs = cluster(dict(zip(NAMES, truth, strict=True)), 0.006, seed=seed)

    def answer(trial: Trial) -> TrialResult:
        is_lost = int(digest([seed, trial.id], length=2), 16) < 8
        return lost(trial, FailureClass.NODE_FAIL) if is_lost else runs(trial)

    done = tuple(history(answer, of=study(seed=seed)))
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
    whole, renamed = study(seed=seed), study(names, seed=seed)
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
    one, other = study(seed=seed).decide(shuffled), study(seed=seed).decide(done)
    assert (one.conclusion, one.due) == (other.conclusion, other.due)


@FEW
@given(seed=seeds, truth=effects, cut=st.integers(0, 30), data=st.data())
def test_any_part_of_a_history_concludes_and_proposes_the_same_again(
    seed: int, truth: list[float], cut: int, data: st.DataObject
) -> None:
    done, whole = list(sweep(seed, tuple(truth))), study(seed=seed)
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
    done, whole = list(sweep(seed, tuple(truth))[:cut]), study(seed=seed)
    some = study(seed=seed, selected=frozenset(chosen)).decide([]).due
    due = whole.decide([]).due
    assert list(some) == [t for t in due if t.is_baseline or t.profile.id in chosen]
    every = study(seed=seed, selected=frozenset(NAMES))
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
    whole = study(seed=seed)
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
USUAL = RotationRule(is_usual=True)


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        pytest.param(helper.study, cluster({"p7": 0.05, "p8": 0.05, "p9": 0.05}), id="jobs"),
        pytest.param(partial(turning, 12, rotation=USUAL), Machine({"p3": 0.03}), id="rotations"),
        pytest.param(partial(turning, derived=(SEARCH,)), Machine(), id="a search"),
        pytest.param(partial(helper.study, 12, derived=(Stacks(wave="wave3", slots=2),)),
                     cluster({"p3": 0.03, "p4": 0.03}), id="stacks"),
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


# --- what a study says of a history is worked out once, however many tests ask (fault S14) --------


def counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> dict[str, Mock]:
    mocks = {name: Mock(wraps=getattr(module, name)) for name in names}
    for name, mock in mocks.items():
        monkeypatch.setattr(module, name, mock)
    return mocks


def test_a_sweep_is_concluded_once_for_all_tests_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    results = history({"p7": 0.05}, of=helper.study())
    decisions = counted(monkeypatch, tuning, "decide", "conclusion", "belongs_to_wave")
    blocks = counted(monkeypatch, engine, "confirm")
    asked = helper.study(loss_tolerance=0.03)  # equal studies share what was worked out
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
    assert decisions["belongs_to_wave"].call_count <= len(results), "each trial is looked at once"


def test_what_is_remembered_is_never_told_of_another_history() -> None:
    done = history({"p1": 0.03}, of=helper.study(6, budget=40))
    asked = helper.study(6, budget=40)
    cuts = [*range(0, len(done) + 1, 4), len(done)] * 3
    random.Random(7).shuffle(cuts)
    for at, cut in enumerate(cuts, start=1):
        fresh = helper.study(6, budget=40, loss_tolerance=0.02 + at / 1e6)  # shares nothing
        assert asked.decide(done[:cut]).conclusion == fresh.decide(done[:cut]).conclusion
        assert asked.decide(done[:cut]).due == fresh.decide(done[:cut]).due
