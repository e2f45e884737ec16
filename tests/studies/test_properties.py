"""What must not change a verdict: units, names, order, repetition; and what a study must hold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, sentence, verbatim
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import all_selected
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.examples import tried
from tests.helpers.history import history, lost, measured

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
NAMES = ("a", "b", "c", "d", "e", "f")
FEW = settings(max_examples=tried(25), deadline=None)

seeds = st.integers(0, 10_000)
effects = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.03, -0.02]), min_size=6, max_size=6)


def study(names: Sequence[str] = NAMES, **changes: object) -> TuningStudy:
    profiles = tuple(profile(name, f"--xla_gpu_knob={at}") for at, name in enumerate(names))
    values = {"cell": CELL, "profiles": profiles, "budget": 30} | changes
    return TuningStudy(**values)  # type: ignore[arg-type]


def run(trial: Trial, seed: int, truth: Sequence[float], sigma: float = 0.006) -> TrialResult:
    uniform = [int(digest([seed, trial.id, at], length=8), 16) / 16**8 for at in range(6)]
    if uniform[0] < 0.03:
        return lost(trial, FailureClass.NODE_FAIL)
    knob = trial.profile.flags[0].value if trial.profile.flags else None
    effect = truth[int(knob)] if knob else 0.0
    value = 6.9 + effect + sigma * math.sqrt(2) * (sum(uniform) - 3)
    return measured(trial, value)


@cache
def sweep(seed: int, truth: tuple[float, ...], sigma: float = 0.006) -> tuple[TrialResult, ...]:
    return tuple(history(lambda trial: run(trial, seed, truth, sigma), of=study(seed=seed)))


def told(reasons: Sequence[Message]) -> list[str]:
    """The sentences: their figures are rounded, and another order of sums shows in no digit."""
    return list(map(sentence, reasons))


def same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts say the same of a profile whatever it is called and measured in."""
    if (one.kind, one.n, one.can_run, told(one.reasons), one.delta is None) != (
        other.kind, other.n, other.can_run, told(other.reasons), other.delta is None,
    ):  # fmt: skip
        return False
    ends = zip((one.delta, *(one.ci95 or ())), (other.delta, *(other.ci95 or ())), strict=True)
    return all(math.isclose(x or 0, y or 0, abs_tol=1e-9) for x, y in ends)


def agree(one: Conclusion, other: Conclusion) -> bool:
    pairs = zip(one.verdicts, other.verdicts, strict=True)
    return (
        all(same(x, y) for x, y in pairs)
        and math.isclose(one.tuning.bound or 0, other.tuning.bound or 0, abs_tol=1e-9)
        and (told(one.notes), one.alpha) == (told(other.notes), other.alpha)
    )


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
    assert [of[v.arm].id for v in whole.decide(done).conclusion.verdicts] == [
        v.arm for v in renamed.decide(other).conclusion.verdicts
    ]
    found = whole.decide(done).conclusion
    # notes:  ... : the interval of f, which was ...    f has no score    a tie: e and f are both
    named = re.compile(
        r"(?:^|(?<= of )|(?<=tie: )|(?<= and ))[a-f](?=,| and | are | has | reaches | gains |$)"
    )
    notes = [named.sub(lambda m: of[m[0]].id, each) for each in told(found.notes)]
    assert agree(
        replace(found, notes=tuple(map(verbatim, notes))), renamed.decide(other).conclusion
    )
    for cut in range(0, len(done), 7):
        assert [of.get(t.profile.id, t.profile) for t in whole.decide(done[:cut]).due] == [
            t.profile for t in renamed.decide(other[:cut]).due
        ]


@FEW
@given(seed=seeds, truth=effects, data=st.data())
def test_order_and_repetition_do_not_matter(
    seed: int, truth: list[float], data: st.DataObject
) -> None:
    done = sweep(seed, tuple(truth))
    shuffled = data.draw(st.permutations([*done, *done[::3]]))
    all_of_it = study(seed=seed)
    assert all_of_it.decide(shuffled).conclusion == all_of_it.decide(done).conclusion
    assert all_of_it.decide(shuffled).due == all_of_it.decide(done).due


@FEW
@given(seed=seeds, truth=effects, data=st.data())
def test_any_part_of_a_history_concludes(
    seed: int, truth: list[float], data: st.DataObject
) -> None:
    done = sweep(seed, tuple(truth))
    part = data.draw(st.lists(st.sampled_from(done), unique=True))
    conclusion = study(seed=seed).decide(part).conclusion
    assert {v.arm for v in conclusion.verdicts} == set(NAMES)
    assert all(v.ci95 is None for v in conclusion.verdicts if v.kind is VerdictKind.SCREENED)
    assert all(v.kind is not VerdictKind.FASTER or v.n > 1 for v in conclusion.verdicts)


@FEW
@given(seed=seeds, truth=effects, cut=st.integers(0, 30))
def test_proposing_is_idempotent(seed: int, truth: list[float], cut: int) -> None:
    done = list(sweep(seed, tuple(truth))[:cut])
    whole = study(seed=seed)
    trials = whole.decide(done).due
    planned = [TrialResult(trial=trial, status=TrialStatus.PLANNED) for trial in trials]
    assert whole.decide([*done, *planned]).due == trials
    assert len({trial.id for trial in trials}) == len(trials)
    assert not {t.id for t in trials} & {r.trial.id for r in done}


@FEW
@given(seed=seeds, chosen=st.sets(st.sampled_from(NAMES)))
def test_a_selection_is_a_filter(seed: int, chosen: set[str]) -> None:
    everything = study(seed=seed).decide([]).due
    some = study(seed=seed, selected=frozenset(chosen)).decide([]).due
    assert list(some) == [t for t in everything if t.is_baseline or t.profile.id in chosen]


@FEW
@given(seed=seeds, truth=effects, cut=st.integers(0, 30))
def test_who_selects_all_asks_for_the_whole_sweep(seed: int, truth: list[float], cut: int) -> None:
    done, all_of_it = list(sweep(seed, tuple(truth))[:cut]), study(seed=seed)
    every = study(seed=seed, selected=frozenset(NAMES))
    assert all_selected(every) == all_selected(all_of_it) == all_of_it
    assert every.decide(done).due == all_of_it.decide(done).due
    assert every.decide(done).conclusion == all_of_it.decide(done).conclusion
    for other in ({"selected": frozenset(NAMES[1:])}, {"confirm": False}):
        part = study(seed=seed, **{"selected": frozenset(NAMES)} | other)
        assert all_selected(part) == all_of_it


@FEW
@given(seed=seeds, truth=effects)
def test_no_sweep_exceeds_its_budget(seed: int, truth: list[float]) -> None:
    assert len(sweep(seed, tuple(truth))) <= 30


@FEW
@given(seed=seeds, truth=effects, factor=st.sampled_from([2.0, 5.0, 20.0]))
def test_more_noise_at_equal_means_never_makes_a_winner(
    seed: int, truth: list[float], factor: float
) -> None:
    """Residuals of the blocks grow, the means of every arm stay."""
    whole = study(seed=seed)
    done = sweep(seed, tuple(truth))
    blocks = [r for r in done if r.trial.block and r.score is not None]
    arms = {r.trial.profile.id for r in blocks}
    # only a complete stage has arm means that this transformation keeps
    numbers = {r.trial.block for r in blocks}
    if len(blocks) != len(numbers) * (len(arms) + 1):
        return
    mean = {
        arm: sum(r.score.value for r in blocks if r.score and r.trial.profile.id == arm)
        / sum(r.trial.profile.id == arm for r in blocks)
        for arm in arms
    }

    def noisier(result: TrialResult) -> TrialResult:
        score = result.score
        if score is None or result not in blocks:
            return result
        level = mean[result.trial.profile.id]
        return replace(result, score=replace(score, value=level + factor * (score.value - level)))

    before, after = (
        whole.decide(done).conclusion,
        whole.decide([noisier(each) for each in done]).conclusion,
    )
    for one in before.verdicts:
        other = after.verdict(one.arm)
        assert other is not None
        if one.kind is VerdictKind.INCONCLUSIVE:
            assert other.kind is not VerdictKind.FASTER
        if one.ci95 is not None:
            assert other.delta == pytest.approx(one.delta, abs=1e-9)
