"""Orders of turns are even, turns are read from lines that come late, and a fit knows its truth."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.model.result import StepRecord
from pytest_xlatune.model.rotation import RotatedProgram, RotationSpec
from pytest_xlatune.model.rotation_score import (
    MeasuredTurn,
    NoTurns,
    RotationScore,
    copies,
    is_baseline,
)
from pytest_xlatune.stats.rounds import draw_turns, fit_turns, read_turns
from tests.helpers.scripted import at_call


@given(
    copies=st.integers(1, 4),
    others=st.integers(0, 12),
    rounds=st.integers(1, 5),
    seed=st.text(max_size=5),
)
def test_each_round_has_one_turn_of_each_and_spreads_the_baseline(
    copies: int, others: int, rounds: int, seed: str
) -> None:
    programs = copies + others
    order = draw_turns(programs, copies, rounds, seed)
    assert order == draw_turns(programs, copies, rounds, seed)
    for at in range(rounds):
        own = order[at * programs : (at + 1) * programs]
        assert sorted(own) == list(range(programs))
        places = [place for place, index in enumerate(own) if index < copies]
        # each copy in its part, so that no part of a round is without a baseline for long
        most = 2 * -(-others // copies) + 1
        assert all(later - place <= most for place, later in pairwise([-1, *places, programs]))


def spec(order: tuple[int, ...] = (0, 2, 1), turn_steps: int = 5) -> RotationSpec:
    return RotationSpec(
        programs=(*(RotatedProgram(id=each) for each in copies(2)), RotatedProgram(id="fast")),
        order=order,
        turn_steps=turn_steps,
    )


def lines(own: RotationSpec, *, calls: int, late: int, first: int = 0) -> list[StepRecord]:
    """Step lines whose seconds are those of the call `late` calls before."""
    programs = [at_call(own, max(call - late, 0)) for call in range(calls)]
    seconds = (0.5 if each == "fast" else 1.0 for each in programs)
    return [StepRecord(step=at, step_s=each) for at, each in enumerate(seconds, start=first)]


def measured_turns(
    own: RotationSpec, told: list[StepRecord], *, left_out: Collection[int] = ()
) -> tuple[MeasuredTurn, ...]:
    """Read turns from these lines, of a worker that said which program had which calls."""
    size, first = own.turn_steps, told[0].step
    turns = [
        (at_call(own, at), first + at, min(size, len(told) - at))
        for at in range(own.first_step, len(told), size)
    ]
    found = read_turns(turns, told, programs=len(own.programs), left_out=left_out)
    assert not isinstance(found, NoTurns)
    return found


@pytest.mark.parametrize(("late", "first"), [(0, 0), (1, 0), (1, 120)])
def test_turns_are_read_from_lines_that_may_be_a_step_late(late: int, first: int) -> None:
    own = spec()
    found = measured_turns(own, lines(own, calls=34, late=late, first=first))
    # the last turn has one step, of which nothing is left
    assert [each.program for each in found] == [*copies(1), "fast", "baseline-deployed~2"] * 2
    assert [each.before for each in found][:3] == ["", "baseline-deployed", "fast"]
    assert [each.round for each in found] == [0, 0, 0, 1, 1, 1]
    assert [each.first_step for each in found] == [first + 3 + 5 * at for at in range(6)]
    for each in found:
        assert math.exp(each.log_step_s) == (0.5 if each.program == "fast" else 1.0)
        assert each.steps == 3


def test_a_stall_and_steps_of_other_things_leave_the_median_of_the_others() -> None:
    own = spec(turn_steps=7)
    told = lines(own, calls=24, late=1)
    told[7] = StepRecord(step=7, step_s=9.0)
    assert measured_turns(own, told)[0].log_step_s == 0.0
    left = measured_turns(own, told, left_out={5, 6, 7, 8})
    assert [each.program for each in left] == ["fast", "baseline-deployed~2"]
    assert left[0].before == "baseline-deployed"


def turns(
    effects: dict[str, float],
    *,
    rounds: int,
    seed: int = 1,
    noise: float = 0.002,
    left: dict[str, float] | None = None,
    drift: float = 0.0,
) -> list[MeasuredTurn]:
    """Turns of a rotation whose truth is known; `left` is what a program costs its successor."""
    names = [*copies(3), *effects]
    drawn = random.Random(seed)
    order = [names[index] for index in draw_turns(len(names), 3, rounds, str(seed))]
    found = []
    for at, (before, name) in enumerate(zip(["", *order[:-1]], order, strict=True)):
        gain = effects.get(name, 0.0) + drawn.gauss(0, noise) + (left or {}).get(before, 0.0)
        turn = {"program": name, "before": before, "round": at // len(names), "steps": 2}
        turn |= {"first_step": 4 * at, "log_step_s": 0.5 - gain - drift * at / len(order)}
        found.append(MeasuredTurn.from_json(turn))
    return found


EFFECTS = {"a": 0.03, "b": -0.20, **{f"n{at}": 0.0 for at in range(6)}}


def scored(found: list[MeasuredTurn]) -> RotationScore:
    score = fit_turns(found)
    assert isinstance(score, RotationScore)
    assert RotationScore.from_json(score.to_json()) == score
    return score


def test_without_noise_the_fit_is_the_truth() -> None:
    score = scored(turns(EFFECTS, rounds=4, noise=0.0))
    assert score.level == pytest.approx(-0.5, abs=1e-6)
    for each in score.programs:
        assert each.change == pytest.approx(EFFECTS.get(each.program, 0.0), abs=1e-6)
        assert each.turns == 4
    assert [each.program for each in score.programs][:3] == list(copies(3))
    once = scored(turns(EFFECTS, rounds=1))
    assert all(each.error is None for each in once.programs), "one round has no errors"
    assert isinstance(
        fit_turns([e for e in turns(EFFECTS, rounds=2) if e.program in EFFECTS]), NoTurns
    )


# two rounds leave eight degrees of freedom, and weights take from them
@pytest.mark.parametrize(("rounds", "most"), [(2, 1.4), (4, 1.25)])
def test_errors_of_changes_are_what_changes_are_off_by(rounds: int, most: float) -> None:
    off, count = 0.0, 0
    for seed in range(80):
        score = scored(turns(EFFECTS, rounds=rounds, seed=seed, drift=0.01))
        for each in score.programs:
            if not is_baseline(each.program):
                assert each.error is not None
                off += ((each.change - EFFECTS[each.program]) / each.error) ** 2
                count += 1
    assert 0.8 < math.sqrt(off / count) < most


def test_a_profile_that_slows_its_successor_gains_nothing_by_that() -> None:
    slow = [turns(EFFECTS, rounds=8, seed=seed, left={"n0": -0.05}) for seed in range(20)]
    changes = [scored(each).of("n0") for each in slow]
    # of the mean of all others 0.5 % is missing, for each follows n0 once in ten turns
    assert abs(sum(each.change for each in changes if each)) / 20 < 0.001


def test_one_turn_far_off_moves_a_change_by_little() -> None:
    found = turns(EFFECTS, rounds=8)
    before = scored(found).of("n3")
    at = next(at for at, each in enumerate(found) if each.program == "n3")
    found[at] = MeasuredTurn.from_json({**found[at].to_json(), "log_step_s": 2.0})
    after = scored(found).of("n3")
    assert before
    assert after
    assert abs(after.change - before.change) < 0.003  # the plain mean moves by 0.19


# seconds of the four steps of a turn on an H200, to the millisecond: the first turn of a program,
# in which its graphs are recorded, and all later ones
COLD, WARM = (0.090, 0.003, 0.002, 0.027), (0.027, 0.027, 0.027, 0.027)


def of_seconds(own: RotationSpec, seconds: dict[int, tuple[float, ...]]) -> RotationScore:
    """What a rotation comes to whose turns, by number, took these seconds; WARM those not named."""
    told = [0.027] * own.first_step
    for at in range(len(own.order)):
        told += seconds.get(at, WARM)
    steps = [StepRecord(step=at, step_s=each) for at, each in enumerate(told)]
    return scored([*measured_turns(own, steps)])


def test_a_turn_in_which_a_gpu_records_graphs_does_not_count() -> None:
    own = spec(order=draw_turns(3, 2, 6, "cold"), turn_steps=4)
    first = {each: own.order.index(each) for each in range(3)}
    found = of_seconds(own, dict.fromkeys(first.values(), COLD))
    assert [each.turns for each in found.programs] == [5, 5, 5]
    assert max(abs(each.change) for each in found.programs) < 0.001
    assert math.exp(-found.level) == pytest.approx(0.027, rel=0.001)


def test_a_step_more_than_a_fifth_off_its_program_is_left_out_of_a_turn() -> None:
    own = spec(order=draw_turns(3, 2, 6, "cold"), turn_steps=5)
    stalled = (0.027, 0.027, 0.27, 0.027, 0.028)
    usual: dict[int, tuple[float, ...]] = dict.fromkeys(range(len(own.order)), (0.027,) * 5)
    found = of_seconds(own, usual | {4: stalled, 7: stalled})
    assert {each.steps for each in found.turns} == {2, 3}
    assert max(abs(each.change) for each in found.programs) < 0.02
    assert sum(each.turns for each in found.programs) == len(own.order)
