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
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from tests.helpers.benchmarks import load
from tests.helpers.history import lost

_SIMULATED: Any = load("simcluster")
World, Cluster = _SIMULATED.World, _SIMULATED.Cluster
drive, study_of = _SIMULATED.drive, _SIMULATED.study_of

EIGHT = World(name="eight slots", effects=(0.05,), node_slots=8, budget=65)
DEAD = FailureClass.NODE_DRAIN


def oom(trial: Trial) -> TrialResult:
    return TrialResult(trial=trial, status=TrialStatus.DROPPED, reason=verbatim("oom"))


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
    assert len(set.union(*blocks.values())) == len(blocks) == 4
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "p000"
    # four rounds of the screen, eight of the blocks
    assert (cluster.rounds, len(history)) == (12, 64)


@pytest.mark.parametrize("after", [2, 6], ids=["in the screen", "in a block"])
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
    assert [blocks[number] for number in (1, 2, 3, 4)] == [8, 8, 8, 8]
    screened = Counter(each.stage for each in scored if not each.block)
    assert screened == {"wave2": 32}
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
