"""Several node slots of one cell: where trials lie, what a dead slot takes along, who is slower."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.result import Conclusion, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.benchmarks import load
from tests.helpers.history import lost

_SIMULATED: Any = load("simcluster")
World, Cluster = _SIMULATED.World, _SIMULATED.Cluster
drive, study_of = _SIMULATED.drive, _SIMULATED.study_of

EIGHT = World(name="eight slots", effects=(0.05,), node_slots=8, budget=65)
DEAD = FailureClass.NODE_DRAIN


def oom(trial: Trial) -> TrialResult:
    return TrialResult(trial=trial, status=TrialStatus.DROPPED, reason=verbatim("oom"))


def upto(
    stage: str, seed: int = 3, *, world: Any = EIGHT, **changes: Any
) -> tuple[TuningStudy, Any, list[TrialResult], list[Trial]]:
    """Run until a stage is proposed; return the study, its cluster, what ran, and its trials."""
    study, cluster = replace(study_of(world, seed), **changes), Cluster(world, seed)
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        if trials[0].stage == stage:
            return study, cluster, history, list(trials)
        history += cluster.run(trials)
    raise AssertionError(stage)


def concluded(study: TuningStudy, cluster: Any, history: list[TrialResult]) -> Conclusion:
    """Run what is left of a study behind this history; return what it comes to."""
    while trials := study.decide(history).due:
        history += cluster.run(trials)
    return study.decide(history).conclusion


def slots(trials: Any) -> set[str]:
    return {each.cell_digest for each in trials}


@pytest.mark.parametrize(
    ("profiles", "count", "baselines", "longest"),
    [
        pytest.param(25, 8, 7, 4, id="but one of eight"),
        pytest.param(25, 4, 4, 8, id="of a few slots always"),
    ],
)
def test_slots_have_a_baseline_each_and_a_fair_share_of_the_screen(
    profiles: int, count: int, baselines: int, longest: int
) -> None:
    study = study_of(dataclasses.replace(EIGHT, profiles=profiles, node_slots=count), 0)
    trials = study.decide([]).due
    levels = Counter(each.cell_digest for each in trials if each.is_baseline)
    assert (len(levels), set(levels.values())) == (baselines, {1})
    loads = Counter(each.cell_digest for each in trials)
    assert len(trials) == profiles + baselines
    assert (len(loads), max(loads.values())) == (count, longest)
    assert min(loads.values()) >= longest - 1
    # trials that exist stay on their slot when a profile is added
    history = Cluster(EIGHT, 0).run(trials[:9])
    more = replace(study, profiles=(*study.profiles, replace(study.profiles[0], id="late")))
    proposed = more.decide(history).due
    assert {each.trial.id for each in history}.isdisjoint(each.id for each in proposed)
    assert "late" in {each.arm for each in proposed}


def test_a_block_lies_on_one_slot_and_blocks_lie_on_several() -> None:
    cluster = Cluster(EIGHT, 0)
    conclusion, history = drive(study_of(EIGHT, 0), cluster, 0)
    blocks: dict[int, set[str]] = {}
    for each in history:
        if each.trial.block:
            blocks.setdefault(each.trial.block, set()).add(each.trial.cell_digest)
    assert {len(each) for each in blocks.values()} == {1}
    assert len(set.union(*blocks.values())) == len(blocks) == 5
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "p000"
    # four rounds of the screen, one of second runs, five of the blocks
    assert (cluster.rounds, len(history)) == (10, 65)


def test_the_best_of_the_screen_run_once_more_on_other_slots_and_give_the_finalists() -> None:
    study, cluster, history, again = upto("again")
    assert study.outlook(history).left == 8 + 25
    before = study.decide(history).conclusion
    first = {each.trial.arm: each.trial.cell_digest for each in history}
    ranked = [each.arm for each in before.verdicts]
    assert {each.arm for each in again} == set(ranked[:8])
    assert len(slots(again)) == 8
    assert sum(first[each.arm] == each.cell_digest for each in again) <= 1
    assert before.tuning.finalists == ()
    after = cluster.run(again)
    once = {each.arm: each.delta for each in before.verdicts}
    twice = study.decide([*history, *after]).conclusion.verdicts
    moved = {each.arm for each in twice if each.delta != once[each.arm]}
    assert moved == {each.arm for each in again}, "they move no line of the screen"
    # the worst of the eight is far ahead in its second run
    high = next(each for each in after if each.trial.arm == ranked[7])
    assert high.score is not None
    lifted = replace(high, score=replace(high.score, value=high.score.value + 0.2))
    history += [lifted if each is high else each for each in after]
    found = study.decide(history).conclusion
    assert ranked[7] == found.tuning.finalists[0]
    assert len(found.tuning.finalists) == 4
    assert set(found.tuning.finalists) <= set(ranked[:8])
    told = found.verdict(ranked[7])
    assert told is not None
    assert (told.kind, told.n) == (VerdictKind.SCREENED, 2)


def test_a_profile_that_joins_amid_second_runs_costs_no_leader_its_own_and_no_budget() -> None:
    _, cluster, history, again = upto("again")
    history += cluster.run([each for each in again if each.arm != "p000"][:4])
    more = study_of(dataclasses.replace(EIGHT, profiles=27), 3)
    conclusion = concluded(more, cluster, history)
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "p000"
    assert sum(each.trial.stage == "again" for each in history) == 8
    assert len(history) <= EIGHT.budget


@pytest.mark.parametrize(
    "after", [2, 4, 7], ids=["in the screen", "in the second runs", "in a block"]
)
def test_a_slot_that_dies_takes_its_block_along_and_the_others_go_on(after: int) -> None:
    study, cluster = study_of(EIGHT, 1), Cluster(EIGHT, 1)
    whole = drive(study, Cluster(EIGHT, 1), 1)[1]
    dead = next(each.trial.cell_digest for each in whole if each.trial.block == 1)
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        jobs = list({each.cell_digest: each for each in reversed(trials)}.values())
        cluster.rounds += 1
        if cluster.rounds > after:
            history += [lost(each, DEAD) for each in jobs if each.cell_digest == dead]
            jobs = [each for each in jobs if each.cell_digest != dead]
        history += cluster.run(jobs) if jobs else []
    conclusion = study.decide(history).conclusion
    assert conclusion.complete
    assert [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER] == ["p000"]
    scored = [each.trial for each in history if each.score]
    blocks = Counter(each.block for each in scored if each.cell_digest != dead)
    assert [blocks[number] for number in (1, 2, 3, 4, 5)] == [5, 5, 5, 5, 5]
    screened = Counter(each.stage for each in scored if not each.block)
    assert screened == {"wave2": 32, "again": 8}
    assert any("takes no trial: " in sentence(note) for note in conclusion.notes)


def test_an_arm_that_is_lost_on_two_slots_kills_neither_and_without_a_slot_nothing_is_due() -> None:
    study = study_of(EIGHT, 0)
    due = study.decide([]).due
    first = next(each for each in due if not each.is_baseline)
    history = [lost(first, DEAD)]
    assert first.cell_digest not in slots(study.decide(history).due)
    again = next(each for each in study.decide(history).due if each.arm == first.arm)
    assert again.cell_digest != first.cell_digest
    history.append(lost(again, DEAD))
    proposed = study.decide(history).due
    assert first.arm not in {each.arm for each in proposed}
    assert {first.cell_digest, again.cell_digest} <= slots(proposed)
    firsts = {each.cell_digest: each for each in due}
    assert len(firsts) == 8
    assert study.decide([lost(each, DEAD) for each in firsts.values()]).due == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"slots": (("s0",), ("s1", "s2"))}, "have 1, 2 nodes", id="unequal sizes"),
        pytest.param({"slots": (("s0",), ("S0",))}, "share s0", id="a shared node"),
        pytest.param({"profiles": (replace(study_of(EIGHT, 0).profiles[0], wave="again"),)},
                     r"a wave is called 'again'.*another name", id="the name of second runs"),
    ],
)  # fmt: skip
def test_slots_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(study_of(EIGHT, 0), **change)
