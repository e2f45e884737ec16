"""A wave whose values are searched: what is asked, round by round, and what of it decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.stats import search as sampler
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.stats.search import ask, count_points
from pytest_xlatune.studies.derived import Search, Stacks
from pytest_xlatune.studies.trials import TURNS
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from tests.helpers.history import history
from tests.helpers.turn_answers import NCCL, RULE, Machine, turning
from tests.helpers.words import with_values

AR = "xla_gpu_all_reduce_combine_threshold_bytes"
AG = "xla_gpu_all_gather_combine_threshold_bytes"
SWITCH = "xla_gpu_enable_while_loop_double_buffering"
DOUBLED = tuple(str(1 << at) for at in range(24, 31))
RULES = Search(
    space={AR: DOUBLED, AG: DOUBLED, SWITCH: ("false", "true")},
    slots=36,
)


def gain(name: str, *, at: int = 4) -> float:
    """What a candidate is worth: +3 % at one threshold, +1 % at another, -1 % of the switch."""
    point = RULES.points_by_id[name]
    first = 0.03 * math.exp(-0.5 * (point[0] - at) ** 2) if point[0] >= 0 else 0.0
    return first + 0.01 * (point[1] == 1) - 0.01 * (point[2] == 1)


@dataclass
class Hidden(Machine):
    """A machine on which values of the space gain, or none does."""

    helps: bool = True

    def effect(self, name: str, effects: Any) -> float:
        if name not in RULES.points_by_id:
            return super().effect(name, effects)
        return gain(name) if self.helps else 0.0


def searching(count: int = 6, **changes: Any) -> TuningStudy:
    return turning(count, **({"derived": (RULES,)} | changes))


def asked(done: Sequence[TrialResult]) -> list[list[str]]:
    """Return the candidates of each round."""
    trials = [each.trial for each in done if each.trial.stage == TURNS and not each.trial.block]
    found = [
        [each.id for each in trial.rotation.spec.programs if each.id in RULES.points_by_id]
        for trial in trials
        if trial.rotation
    ]
    return [each for each in found if each]


def test_three_rounds_find_what_jobs_then_prove() -> None:
    sweep = searching(rotation=RotationRule(is_usual=True))
    assert sweep.outlook(()).left == 1 + 1 + 3 + 22
    done = history(Hidden(), of=sweep)
    rounds = asked(done)
    assert [len(each) for each in rounds] == [12, 12, 12]
    assert len({name for each in rounds for name in each}) == 36
    values = [sum(map(gain, each)) / len(each) for each in rounds]
    assert values[0] < values[1], "the second round knows what the first one measured"
    found = sweep.decide(done).conclusion
    assert found.complete
    assert found.alpha == 0.05
    best = found.verdicts[0]
    assert best.kind is VerdictKind.FASTER
    assert gain(best.arm) > 0.035
    # rounds ranked it: only ordinary jobs count
    deciding = [each for each in done if each.trial.block and each.trial.arm == best.arm]
    assert best.n == len(deciding) >= 3
    origin = next(
        each.origin for each in sweep.state(done).ranked.arms.slots.values() if each.id == best.arm
    )
    assert origin is not None
    assert "wave4" in sentence(origin)
    (told,) = with_values(found.notes, "wave", "tried", "points")
    assert (told.values["tried"], told.values["points"]) == (36, len(RULES.points_by_id))
    assert TuningStudy.from_json(sweep.to_json()) == sweep


def test_a_sampler_that_would_ask_otherwise_today_keeps_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = searching(0)
    run = Hidden()
    done = [run(sweep.decide(()).due[0])]
    first = sweep.decide(done).due
    running = [*done, *(TrialResult(trial=e, status=TrialStatus.RUNNING) for e in first)]

    def otherwise(rule: Search, *_: object, count: int, excluded: Any, **__: object) -> Any:
        points = (each for each in reversed([*rule.points_by_id.values()]) if each not in excluded)
        return tuple(map(rule.at, points))[:count]

    monkeypatch.setattr(Search, "next_candidates", otherwise)
    other = searching(0, seed=sweep.seed)
    assert [each.id for each in other.decide(running).due] == [each.id for each in first]
    done += [run(each) for each in first]
    names = {each.id for each in other.state(done).ranked.arms.slots.values()}
    assert set(asked(done)[0]) <= names, "what was measured keeps its row"
    again = history(run, of=other, after=done)
    assert [len(each) for each in asked(again)] == [12, 12, 12]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"space": {"NCCL_PROTO": ("LL",)}}, "no option of a comp", id="variable"),
        pytest.param({"space": {AR: ("1",)}, "slots": 2}, "2 candidates in 3", id="too few"),
        pytest.param({"space": {f"xla_f{at}": tuple(map(str, range(31))) for at in range(8)}},
                     "at most 20000", id="too many points"),
        pytest.param({"space": {AR: ("a_b", "a-b")}}, "have one name", id="one name"),
    ],
)  # fmt: skip
def test_a_search_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Search(**given)


def test_values_and_names() -> None:
    assert list(RULES.points_by_id)[:2] == ["arctb-16m", "arctb-32m"]
    pair = "arctb-1g+ewldb-true"
    found = RULES.find(pair)
    assert found is not None
    assert (found.id, found.wave) == (pair, "wave4")
    assert [str(each) for each in found.flags] == [f"--{AR}={1 << 30}", f"--{SWITCH}=true"]
    assert RULES.find("arctb-3m") is None
    assert len(RULES.points_by_id) == count_points((7, 7, 2))
    assert len(RULES.singles) == 16


def test_a_search_needs_jobs_behind_its_rounds_and_none_for_its_candidates() -> None:
    assert isinstance(searching(0, budget=12).layout, Refusal)
    assert isinstance(searching(0, budget=26).layout, Plan)
    # it is not worth less than jobs: no job can search
    assert searching(0, rotation=replace(RULE, must_save=True)).rotates
    wide = replace(RULES, slots=90)
    assert isinstance(searching(6, derived=(wide,)).layout, Plan)


def test_profiles_that_stay_jobs_are_ranked_beside_candidates_and_alone_without_a_step() -> None:
    sweep = searching(profiles=(NCCL, *searching().profiles[:5]))
    found = sweep.decide(history(Hidden({"channels": 0.05}), of=sweep)).conclusion
    assert found.winner
    assert found.winner.arm == "channels"
    assert {*found.tuning.finalists} & {*RULES.points_by_id}
    done = history(Hidden(finds=False), of=sweep)
    assert not asked(done)
    found = sweep.decide(done).conclusion
    assert found.complete
    assert not any(each.arm in RULES.points_by_id for each in found.verdicts)


def test_stacks_of_a_later_wave_may_hold_what_was_found() -> None:
    sweep = searching(derived=(RULES, Stacks(wave="wave5", slots=2)))
    done = history(Hidden({"p3": 0.03}), of=sweep)
    # a stack of two that were found may lie in the space, and takes turns after the rounds
    assert [len(each) for each in asked(done)][:3] == [12, 12, 12]
    slots = sweep.state(done).ranked.arms.slots.items()
    stacks = [each.id for slot, each in slots if slot.startswith("stack")]
    assert any("p3" in each and "ctb-" in each for each in stacks)
    assert sweep.decide(history(Hidden(finds=False), of=sweep)).conclusion.complete


SIZES, ORDERED = (10, 10, 2), (True, True, False)


def ran(worth: Callable[[sampler.Point], float], *, rounds: int = 3) -> dict[sampler.Point, float]:
    told: dict[sampler.Point, float] = {}
    for _ in range(rounds):
        found = ask(SIZES, ORDERED, told, count=15, rng_seed="1")
        assert not told.keys() & set(found)
        told |= {point: worth(point) for point in found}
    return told


@pytest.mark.parametrize(
    ("worth", "least"),
    [
        pytest.param(
            lambda p: 0.02 * (abs(p[0] - 6) < 2) + 0.01 * (p[1] == 3), 0.029, id="two that add up"
        ),
        pytest.param(
            lambda p: 0.03 * (p[0] > 3 and p[1] > 3) - 0.01 * ((p[0] < 0) != (p[1] < 0)),
            0.029,
            id="two that gain together alone",
        ),
    ],
)
def test_it_finds_what_is_hidden(worth: Callable[[sampler.Point], float], least: float) -> None:
    assert max(ran(worth).values()) >= least


def test_half_of_a_later_round_is_what_promises_and_the_rest_is_drawn() -> None:
    first = [set(ask(SIZES, ORDERED, {}, count=15, rng_seed=each)) for each in "12"]
    assert first[0] != first[1]
    told = {point: 0.02 * (point[0] == 6) + 0.001 * point[1] for point in first[0]}
    later = [ask(SIZES, ORDERED, told, count=15, rng_seed=each) for each in "12"]
    assert set(later[0][:8]) == set(later[1][:8])
    assert set(later[0][8:]) != set(later[1][8:])
