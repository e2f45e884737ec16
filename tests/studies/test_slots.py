"""Several node slots of one cell: where trials lie, what a dead slot takes along, who is slower."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, Finding, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.tuning import TuningStudy
from tests.benchmarks import load

_SIMULATED: Any = load("simcluster")
World, Cluster = _SIMULATED.World, _SIMULATED.Cluster
drive, study_of = _SIMULATED.drive, _SIMULATED.study_of

EIGHT = World(name="eight slots", effects=(0.05,), node_slots=8, budget=65)
DEAD = Finding(cls=FailureClass.NODE_DRAIN, action=Action.NONE, text="drained")


def lost(trial: Trial, finding: Finding = DEAD) -> TrialResult:
    return TrialResult(
        trial=trial, status=TrialStatus.UNMEASURED, reason="drained", findings=(finding,)
    )


def run_with_dead(study: TuningStudy, cluster: Any, dead: str, *, after: int) -> list[TrialResult]:
    """Run to the end; a slot takes no trial any more after so many rounds."""
    history: list[TrialResult] = []
    while trials := study.propose(history):
        firsts = {each.cell_digest: each for each in reversed(trials)}
        jobs = list(firsts.values())
        cluster.rounds += 1
        if cluster.rounds > after:
            history += [lost(each) for each in jobs if each.cell_digest == dead]
            jobs = [each for each in jobs if each.cell_digest != dead]
        history += cluster.run(jobs) if jobs else []
    return history


def test_a_study_of_one_slot_is_written_as_it_always_was() -> None:
    study = study_of(World(name="one"), 0)
    assert "slots" not in study.to_json()
    assert study.cells == (study.cell,)


def test_each_slot_has_a_baseline_and_a_fair_share_of_the_screen() -> None:
    study = study_of(EIGHT, 0)
    trials = study.propose([])
    assert Counter(each.cell_digest for each in trials if each.is_baseline) == dict.fromkeys(
        (each.digest for each in study.cells), 1
    )
    loads = Counter(each.cell_digest for each in trials)
    assert len(trials) == 33
    assert max(loads.values()) == 5
    assert min(loads.values()) >= 4


def test_no_profile_lies_on_a_slot_without_a_baseline_by_the_end_of_its_wave() -> None:
    one = study_of(EIGHT, 0)
    halves = [
        replace(each, wave="wave3" if number % 2 else "wave2")
        for number, each in enumerate(one.profiles)
    ]
    study = replace(one, profiles=tuple(halves), screen_baselines=3)
    trials = study.propose([])
    early = [each for each in trials if each.stage == "wave2"]
    assert len(early) == 13 + 3
    for some in (early, trials):
        level = {each.cell_digest for each in some if each.is_baseline}
        assert {each.cell_digest for each in some} == level
    assert len({each.cell_digest for each in early}) == 3
    assert len({each.cell_digest for each in trials}) == 6


def test_a_block_lies_on_one_slot_and_blocks_lie_on_several() -> None:
    study, cluster = study_of(EIGHT, 0), Cluster(EIGHT, 0)
    conclusion, history = drive(study, cluster, 0)
    blocks: dict[int, set[str]] = {}
    for each in history:
        if each.trial.block:
            blocks.setdefault(each.trial.block, set()).add(each.trial.cell_digest)
    assert {len(each) for each in blocks.values()} == {1}
    assert len(set.union(*blocks.values())) == len(blocks) == 4
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "p000"
    # five rounds of the screen, eight of the blocks
    assert cluster.rounds == 13
    assert len(history) <= 65


def test_trials_that_exist_stay_on_their_slot_when_a_profile_is_added() -> None:
    study = study_of(EIGHT, 0)
    history = Cluster(EIGHT, 0).run(study.propose([])[:9])
    more = replace(study, profiles=(*study.profiles, replace(study.profiles[0], id="late")))
    proposed = more.propose(history)
    assert {each.trial.id for each in history}.isdisjoint(each.id for each in proposed)
    assert "late" in {each.arm for each in proposed}


@pytest.mark.parametrize("after", [2, 7], ids=["in the screen", "in a block"])
def test_a_slot_that_dies_takes_its_block_along_and_the_others_go_on(after: int) -> None:
    study, cluster = study_of(EIGHT, 1), Cluster(EIGHT, 1)
    blocks = drive(study, Cluster(EIGHT, 1), 1)[1]
    dead = next(each.trial.cell_digest for each in blocks if each.trial.block == 1)
    history = run_with_dead(study, cluster, dead, after=after)
    conclusion = study.conclude(history)
    assert conclusion.complete
    assert [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER] == ["p000"]
    whole = Counter(
        each.trial.block for each in history if each.score and each.trial.cell_digest != dead
    )
    assert [whole[number] for number in (1, 2, 3, 4)] == [8, 8, 8, 8]
    screened = {each.trial.arm for each in history if each.score and not each.trial.block}
    assert len(screened) == 26
    assert any("takes no trial: drained" in note for note in conclusion.notes)


def test_an_arm_that_is_lost_on_two_slots_kills_neither() -> None:
    study = study_of(EIGHT, 0)
    first = next(each for each in study.propose([]) if not each.is_baseline)
    history = [lost(first)]
    assert first.cell_digest not in {each.cell_digest for each in study.propose(history)}
    again = next(each for each in study.propose(history) if each.arm == first.arm)
    assert again.cell_digest != first.cell_digest
    history.append(lost(again))
    proposed = study.propose(history)
    assert first.arm not in {each.arm for each in proposed}
    assert {first.cell_digest, again.cell_digest} <= {each.cell_digest for each in proposed}


def test_no_slot_is_left_and_nothing_is_proposed() -> None:
    study = study_of(EIGHT, 0)
    history = [lost(each) for each in study.propose([]) if each.is_baseline]
    assert study.propose(history) == ()


def test_a_slot_that_is_slower_is_told() -> None:
    study, cluster = study_of(EIGHT, 0), Cluster(EIGHT, 0)
    usual = drive(study_of(EIGHT, 0), Cluster(EIGHT, 0), 0)[0]
    assert not any("is slower than the others" in note for note in usual.notes)
    cluster.of_slots[2] = -0.06
    told = [
        note for note in drive(study, cluster, 0)[0].notes if "is slower than the others by" in note
    ]
    assert len(told) == 1
    assert told[0].startswith("slot 3 (s2) ")


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        pytest.param((("s0",), ("s1", "s2")), "have 1, 2 nodes", id="of unequal size"),
        pytest.param((("s0",), ("S0",)), "share s0", id="that share a node"),
        pytest.param((("s0",),), "found 1 node slot", id="that are one"),
    ],
)
def test_slots_are_refused(slots: tuple[tuple[str, ...], ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(study_of(EIGHT, 0), slots=slots)


def test_a_plan_says_how_many_trials_follow_one_another() -> None:
    (said,) = [each for each in study_of(EIGHT, 0).outline([]) if "side by side" in each]
    assert "8 slots of 1 node side by side: 5 rounds of the screen and 8 of the blocks" in said
    assert "13 trials follow one another" in said
