"""Several node slots of one cell: where trials lie, what a dead slot takes along, who is slower."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.components import PlacedScore, fit_components
from pytest_xlatune.studies import Ask, Question
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.benchmarks import load
from tests.helpers.history import lost
from tests.helpers.words import with_values

_SIMULATED: Any = load("simcluster")
World, Cluster = _SIMULATED.World, _SIMULATED.Cluster
drive, study_of = _SIMULATED.drive, _SIMULATED.study_of

EIGHT = World(name="eight slots", effects=(0.05,), node_slots=8, budget=65)
DEAD = FailureClass.NODE_DRAIN


def run_with_dead(study: TuningStudy, cluster: Any, dead: str, *, after: int) -> list[TrialResult]:
    """Run to the end; a slot takes no trial any more after so many rounds."""
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        firsts = {each.cell_digest: each for each in reversed(trials)}
        jobs = list(firsts.values())
        cluster.rounds += 1
        if cluster.rounds > after:
            history += [lost(each, DEAD) for each in jobs if each.cell_digest == dead]
            jobs = [each for each in jobs if each.cell_digest != dead]
        history += cluster.run(jobs) if jobs else []
    return history


@pytest.mark.parametrize(
    ("profiles", "slots", "baselines", "longest"),
    [
        pytest.param(24, 8, 8, 4, id="where the rounds are full"),
        pytest.param(25, 8, 7, 4, id="but one where that saves a round"),
        pytest.param(25, 4, 4, 8, id="of a few slots always"),
    ],
)
def test_slots_have_a_baseline_each_and_a_fair_share_of_the_screen(
    profiles: int, slots: int, baselines: int, longest: int
) -> None:
    study = study_of(dataclasses.replace(EIGHT, profiles=profiles, node_slots=slots), 0)
    trials = study.decide([]).due
    of_slots = Counter(each.cell_digest for each in trials if each.is_baseline)
    assert len(of_slots) == baselines
    assert set(of_slots.values()) == {1}
    loads = Counter(each.cell_digest for each in trials)
    assert len(trials) == profiles + baselines
    assert (len(loads), max(loads.values())) == (slots, longest)
    assert min(loads.values()) >= longest - 1


def test_no_profile_lies_on_a_slot_without_a_baseline_by_the_end_of_its_wave() -> None:
    one = study_of(EIGHT, 0)
    halves = [
        replace(each, wave="wave3" if number % 2 else "wave2")
        for number, each in enumerate(one.profiles)
    ]
    study = replace(one, profiles=tuple(halves), screen_baselines=3)
    trials = study.decide([]).due
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
    assert len(set.union(*blocks.values())) == len(blocks) == 5
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "p000"
    # four rounds of the screen, one of second runs, five of the blocks
    assert cluster.rounds == 10
    assert len(history) == 65


def upto(study: TuningStudy, cluster: Any, stage: str) -> tuple[list[TrialResult], list[Trial]]:
    """Run until a stage is proposed; return what ran, and its trials."""
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        if trials[0].stage == stage:
            return history, list(trials)
        history += cluster.run(trials)
    raise AssertionError(stage)


def concluded(study: TuningStudy, cluster: Any, history: list[TrialResult]) -> Conclusion:
    """Run what is left of a study behind this history; return what it comes to."""
    while trials := study.decide(history).due:
        history += cluster.run(trials)
    return study.decide(history).conclusion


def test_the_best_of_the_screen_run_once_more_on_other_slots_and_give_the_finalists() -> None:
    study, cluster = study_of(EIGHT, 3), Cluster(EIGHT, 3)
    history, again = upto(study, cluster, "again")
    assert study.outlook(history).left == 8 + 25
    assert study.outlook(history).rounds == 1 + 5
    first = {each.trial.arm: each.trial.cell_digest for each in history}
    ranked = [each.arm for each in study.decide(history).conclusion.verdicts]
    assert {each.arm for each in again} == set(ranked[:8])
    assert len({each.cell_digest for each in again}) == 8
    assert sum(first[each.arm] == each.cell_digest for each in again) <= 1
    assert study.decide(history).conclusion.tuning.finalists == ()

    # the worst of the eight is far ahead in its second run
    after = cluster.run(again)
    high = next(each for each in after if each.trial.arm == ranked[7])
    assert high.score is not None
    lifted = replace(high, score=replace(high.score, value=high.score.value + 0.2))
    history += [lifted if each is high else each for each in after]
    finalists = study.decide(history).conclusion.tuning.finalists
    assert ranked[7] == finalists[0]
    assert len(finalists) == 4
    assert set(finalists) <= set(ranked[:8])
    told = study.decide(history).conclusion.verdict(ranked[7])
    assert told is not None
    assert (told.kind, told.n) == (VerdictKind.SCREENED, 2)


def test_second_runs_move_no_line_of_the_screen() -> None:
    study, cluster = study_of(EIGHT, 3), Cluster(EIGHT, 3)
    history, again = upto(study, cluster, "again")
    once = {each.arm: each.delta for each in study.decide(history).conclusion.verdicts}
    history += cluster.run(again)
    twice = {each.arm: each.delta for each in study.decide(history).conclusion.verdicts}
    moved = {arm for arm, delta in twice.items() if delta != once[arm]}
    assert moved == {each.arm for each in again}


def test_a_sweep_whose_blocks_began_without_second_runs_goes_on_as_it_began() -> None:
    older = replace(study_of(EIGHT, 2), finalists=6, blocks=4, block_baselines=2)
    cluster = Cluster(EIGHT, 2)
    history, blocks = upto(older, cluster, "confirm")
    assert len(blocks) == 4 * 8
    # some of them were planned when it was cut off
    rest = study_of(EIGHT, 2).decide([*history, *cluster.run(blocks[:11])]).due
    assert {each.id for each in rest} == {each.id for each in blocks[11:]}


def test_a_profile_that_joins_amid_second_runs_costs_no_leader_its_own_and_no_budget() -> None:
    study, cluster = study_of(EIGHT, 3), Cluster(EIGHT, 3)
    history, again = upto(study, cluster, "again")
    at = next(at for at, each in enumerate(again) if each.arm == "p000")
    history += cluster.run([*again[:at], *again[at + 1 :]][:4])  # the winner's is not among them
    more = study_of(dataclasses.replace(EIGHT, profiles=27), 3)
    conclusion = concluded(more, cluster, history)
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "p000"
    assert sum(each.trial.stage == "again" for each in history) == 8
    assert len(history) <= EIGHT.budget


def test_a_second_run_that_cannot_run_makes_no_other_profile_late() -> None:
    study, cluster = study_of(EIGHT, 3), Cluster(EIGHT, 3)
    history, again = upto(study, cluster, "again")
    lost_one = next(each for each in again if each.arm != "p000")
    oom = TrialResult(trial=lost_one, status=TrialStatus.DROPPED, reason=verbatim("oom"))
    history += [oom, *cluster.run([each for each in again if each is not lost_one])]
    conclusion = concluded(study, cluster, history)
    assert conclusion.complete
    assert lost_one.arm not in conclusion.tuning.finalists
    assert with_values(conclusion.notes, "arms") == [], "none would be one by now"


@pytest.mark.parametrize("shift", [-0.05, 0.05], ids=["slower", "faster"])
def test_second_runs_of_another_day_tell_their_order_and_no_level(shift: float) -> None:
    study, cluster = study_of(EIGHT, 3), Cluster(EIGHT, 3)
    history, again = upto(study, cluster, "again")
    usual = cluster.run(again)
    later = [
        replace(
            each,
            score=replace(each.score, value=each.score.value + shift),
            outcome=replace(each.outcome, start_s=each.outcome.start_s + 86400.0),
        )
        for each in usual
    ]
    one, other = (
        study.decide([*history, *usual]).conclusion,
        study.decide([*history, *later]).conclusion,
    )
    assert other.tuning.finalists == one.tuning.finalists
    arms = {each.arm for each in again}
    once = [each.delta for each in study.decide(history).conclusion.verdicts if each.arm in arms]
    twice = [each.delta for each in other.verdicts if each.arm in arms]
    assert sum(twice) == pytest.approx(sum(once), abs=0.01), "eight of them, not eight shifts"


def test_a_test_of_the_last_wave_says_that_second_runs_may_follow() -> None:
    study, cluster = study_of(EIGHT, 3), Cluster(EIGHT, 3)
    history, again = upto(study, cluster, "again")
    question = Question(about=Ask.SCREENED, name=again[0].arm, wave="wave2")
    before = study.answer(history, question)
    assert before.verdict is not None
    assert before.verdict.up_to == "wave2"
    history += cluster.run(again)
    for wave in ("wave2", ""):
        after = study.answer(history, replace(question, wave=wave)).verdict
        assert after is not None
        assert (after.n, after.delta) == (1, before.verdict.delta), "the same in a later run"


def test_runs_of_an_arm_that_drops_out_in_its_blocks_count_against_the_budget() -> None:
    world = dataclasses.replace(EIGHT, effects=(), other=0.005)
    study, cluster = study_of(world, 3), Cluster(world, 3)
    history, blocks = upto(study, cluster, "confirm")
    arm = next(each.arm for each in blocks if not each.is_baseline)
    for each in blocks:
        oom = TrialResult(trial=each, status=TrialStatus.DROPPED, reason=verbatim("oom"))
        history += [oom] if each.arm == arm else cluster.run([each])
    assert concluded(study, cluster, history).complete
    assert len(history) <= world.budget


def test_no_wave_has_the_name_of_second_runs() -> None:
    study = study_of(EIGHT, 0)
    named = replace(study.profiles[0], wave="again")
    with pytest.raises(ConfigError, match=r"a wave is called 'again'.*another name"):
        replace(study, profiles=(named, *study.profiles[1:]))


@pytest.mark.parametrize(
    ("world", "change"),
    [
        pytest.param(
            dataclasses.replace(EIGHT, node_slots=4), {}, id="on too few slots for its blocks"
        ),
        pytest.param(dataclasses.replace(EIGHT, profiles=15), {}, id="of few profiles"),
        pytest.param(EIGHT, {"finalists": 3}, id="where the sweep states its finalists"),
        pytest.param(EIGHT, {"confirm": False}, id="where nothing is confirmed"),
        pytest.param(
            dataclasses.replace(EIGHT, effects=(0.05, *(-0.05,) * 24)),
            {},
            id="of no more than finalists",
        ),
    ],
)
def test_nothing_runs_a_second_time(world: Any, change: dict[str, Any]) -> None:
    study, cluster = replace(study_of(world, 0), **change), Cluster(world, 0)
    _, history = drive(study, cluster, 0)
    assert "again" not in {each.trial.stage for each in history}


def test_trials_that_exist_stay_on_their_slot_when_a_profile_is_added() -> None:
    study = study_of(EIGHT, 0)
    history = Cluster(EIGHT, 0).run(study.decide([]).due[:9])
    more = replace(study, profiles=(*study.profiles, replace(study.profiles[0], id="late")))
    proposed = more.decide(history).due
    assert {each.trial.id for each in history}.isdisjoint(each.id for each in proposed)
    assert "late" in {each.arm for each in proposed}


@pytest.mark.parametrize(
    "after", [2, 4, 7], ids=["in the screen", "in the second runs", "in a block"]
)
def test_a_slot_that_dies_takes_its_block_along_and_the_others_go_on(after: int) -> None:
    study, cluster = study_of(EIGHT, 1), Cluster(EIGHT, 1)
    blocks = drive(study, Cluster(EIGHT, 1), 1)[1]
    dead = next(each.trial.cell_digest for each in blocks if each.trial.block == 1)
    history = run_with_dead(study, cluster, dead, after=after)
    conclusion = study.decide(history).conclusion
    assert conclusion.complete
    assert [each.arm for each in conclusion.verdicts if each.kind is VerdictKind.FASTER] == ["p000"]
    whole = Counter(
        each.trial.block for each in history if each.score and each.trial.cell_digest != dead
    )
    assert [whole[number] for number in (1, 2, 3, 4, 5)] == [5, 5, 5, 5, 5]
    screened = Counter(each.trial.stage for each in history if each.score and not each.trial.block)
    assert screened == {"wave2": 32, "again": 8}
    assert any("takes no trial: " in sentence(note) for note in conclusion.notes)


def test_an_arm_that_is_lost_on_two_slots_kills_neither() -> None:
    study = study_of(EIGHT, 0)
    first = next(each for each in study.decide([]).due if not each.is_baseline)
    history = [lost(first, DEAD)]
    assert first.cell_digest not in {each.cell_digest for each in study.decide(history).due}
    again = next(each for each in study.decide(history).due if each.arm == first.arm)
    assert again.cell_digest != first.cell_digest
    history.append(lost(again, DEAD))
    proposed = study.decide(history).due
    assert first.arm not in {each.arm for each in proposed}
    assert {first.cell_digest, again.cell_digest} <= {each.cell_digest for each in proposed}


def test_no_slot_is_left_and_nothing_is_proposed() -> None:
    study = study_of(EIGHT, 0)
    firsts = {each.cell_digest: each for each in study.decide([]).due}
    assert len(firsts) == 8
    assert study.decide([lost(each, DEAD) for each in firsts.values()]).due == ()


def test_a_slot_that_is_slower_is_told() -> None:
    study, cluster = study_of(EIGHT, 0), Cluster(EIGHT, 0)
    usual = drive(study_of(EIGHT, 0), Cluster(EIGHT, 0), 0)[0]
    assert with_values(usual.notes, "slot", "nodes", "loss") == []
    cluster.of_slots[2] = -0.06
    (told,) = with_values(drive(study, cluster, 0)[0].notes, "slot", "nodes", "loss")
    assert (told.values["slot"], told.values["nodes"]) == (3, "s2")


@pytest.mark.parametrize("is_on_slow", [False, True])
def test_a_good_profile_of_a_few_is_no_drift(is_on_slow: bool) -> None:
    """Two slots of three jobs, the second 10 % slower, wherever their baselines stand."""
    fast, slow = 0.095, -0.105
    for stands in itertools.product(range(3), repeat=2):
        jobs: dict[str, PlacedScore] = {}
        for slot, place in enumerate(stands):
            effects = [fast if slot == is_on_slow else 0.0, 0.0]
            effects.insert(place, 0.0)
            noise = itertools.cycle((0.001, -0.002, 0.0015, -0.0005))
            for at, effect in enumerate(effects):
                value = slow * slot + effect + next(noise)
                name = f"{slot}.{at}" if effect else f"other {slot}.{at}"
                jobs[name] = PlacedScore(slot=slot, place=at, value=value, is_baseline=at == place)
        lines = fit_components(list(jobs.values()))
        assert lines is not None
        found = {
            name: job.value - lines.expected(job.slot, job.place)
            for name, job in jobs.items()
            if not job.is_baseline
        }
        best, second, *_ = sorted(found.values(), reverse=True)
        assert not max(found, key=found.__getitem__).startswith("other"), (stands, found)
        assert best - second > 0.03, (stands, found)


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"budget": 50}, "with 65 jobs (--xlatune-budget 65) the best 8", id="too few"),
        pytest.param({}, "", id="enough"),
        pytest.param({"budget": 50, "blocks": 3}, "", id="blocks that the sweep states"),
    ],
)
def test_a_plan_says_with_how_many_jobs_it_would_find_more(
    change: dict[str, Any], said: str
) -> None:
    study = replace(study_of(EIGHT, 0), **change)
    hints = [each for each in map(sentence, study.outlook([]).lines) if "a second time" in each]
    assert len(hints) == bool(said)
    for each in hints:
        assert each.startswith(said)
        again: Any = replace(study, budget=int(re.findall("[0-9]+", each)[0])).layout
        planned: Any = study.layout
        assert again.again == 8
        assert again.from_start80(0.006) < planned.from_start80(0.006)
