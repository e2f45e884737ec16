"""A calibration of node slots: what it plans, what it finds, how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome, Score, State, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.noise import SlotTrial, slot_noise
from pytest_xlatune.studies.calibration import Calibrated, CalibrationStudy, found_by

SLOTS = (("node001", "node002"), ("node003", "node004"), ("node005", "node006"))
CELL = Cell(
    model_tag="m", parallelism=Parallelism.parse("FSDP=2"), protocol=Protocol(), nodelist=SLOTS[0]
)
SIGMA = 0.004
TOOK_S = 700.0


def result(trial: Trial, value: float, *, start_s: float) -> TrialResult:
    score = Score(
        value=math.log(1000.0) + value, tgs=1000.0 * math.exp(value), step_s=10.0, n_steps=9,
        window=(5, 14), timings=tuple((step, 10.0) for step in range(15)),
    )  # fmt: skip
    outcome = Outcome(state=State.COMPLETED, start_s=start_s, end_s=start_s + TOOK_S)
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score, outcome=outcome)


def steps_of(study: CalibrationStudy) -> Iterator[tuple[Trial, ...]]:
    """What is proposed at a time, each step measured before the next."""
    history: list[TrialResult] = []
    while step := study.decide(history).due:
        yield step
        history += [result(each, 0.0, start_s=0.0) for each in step]


def run(
    study: CalibrationStudy,
    seed: int,
    *,
    slots: Sequence[float] = (0.0, 0.0, 0.0),
    busy: float = 0.0,
) -> Calibrated:
    """Run a calibration in a world of this truth."""
    random = np.random.default_rng([seed, 5])
    digests = [each.digest for each in study.cells]
    history: list[TrialResult] = []
    now_s = 1000.0
    while step := study.decide(history).due:
        for trial in step:
            value = random.normal(0, SIGMA)
            value += slots[digests.index(trial.cell_digest)] + busy * (len(step) > 1)
            history.append(result(trial, value, start_s=now_s))
        now_s += TOOK_S
    assert study.decide(history).conclusion.complete
    assert study.outlook(history).left == study.outlook(history).rounds == 0
    return found_by(study, history)


def test_a_trial_runs_alone_or_beside_all_others() -> None:
    study = CalibrationStudy(cell=CELL, starts=3, slots=SLOTS)
    steps = list(steps_of(study))
    sizes = [len(step) for step in steps]
    assert set(sizes) == {1, 3}
    assert sizes.count(3) == 3
    assert study.outlook(()).rounds == len(steps) == 9
    alone = [step[0].cell_digest for step in steps if len(step) == 1]
    assert {*alone} == {each.digest for each in study.cells}, "each slot once at least"
    assert len({each.id for step in steps for each in step}) == sum(sizes) == study.outlook(()).left
    many = tuple((f"n{at}",) for at in range(8))
    wide = CalibrationStudy(cell=replace(CELL, nodelist=many[0]), starts=3, slots=many)
    alone = [each.cell_digest for each in wide.outlook(()).ahead if each.stage == "alone"]
    assert {*alone} == {each.digest for each in wide.cells}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"starts": 1, "slots": SLOTS}, "1 start of each slot: two are the least"),
    ],
)
def test_what_can_tell_nothing_is_refused(said: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CalibrationStudy(cell=CELL, **said)  # type: ignore[arg-type]


WORLDS = 200


def test_a_slot_that_is_slower_is_told_by_how_much() -> None:
    study = CalibrationStudy(cell=CELL, starts=4, slots=SLOTS)
    found = run(study, 3, slots=(0.0, -0.03, 0.0))
    assert found.slots is not None
    assert found.slots.slower == (1,)
    assert found.slots.effects[1] == pytest.approx(-0.03, abs=0.006)
    (told,) = (each for each in map(sentence, found.told) if "slower" in each)
    assert told.startswith("slot 2 (node[003-004]) is slower than the others by ")
    assert found.noise is not None
    assert found.noise.sigma_job == pytest.approx(SIGMA, rel=0.5), "a slow slot is no noise"


@pytest.mark.parametrize("busy", [-0.02, 0.0])
def test_what_neighbours_cost_is_told(busy: float) -> None:
    study = CalibrationStudy(cell=CELL, starts=4, slots=SLOTS)
    found = run(study, 4, busy=busy, slots=(0.01, 0.0, -0.01))
    assert found.slots is not None
    assert found.slots.busy == pytest.approx(busy, abs=0.006)
    assert found.slots.disturbs is bool(busy)
    word = "slow each other down: -" if busy else "do not disturb each other by more than noise"
    assert [each for each in map(sentence, found.told) if word in each]
    assert found.noise is not None
    assert found.noise.sigma_job == pytest.approx(SIGMA, rel=0.5), "neighbours are no noise"


def test_neither_a_slot_nor_neighbours_are_accused_more_often_than_said() -> None:
    study = CalibrationStudy(cell=CELL, starts=3, slots=SLOTS)
    accused = disturbed = 0
    for seed in range(WORLDS):
        found = run(study, seed).slots
        assert found is not None
        accused += bool(found.slower)
        disturbed += found.disturbs
    most = WORLDS * 0.05 + 3 * math.sqrt(WORLDS * 0.05 * 0.95)
    assert accused <= most  # one side of intervals that hold together: about 2.5 %
    assert 0 < disturbed <= most


def trial(slot: int, start_s: float, value: float = 0.0) -> SlotTrial:
    return SlotTrial(slot=slot, start_s=start_s, end_s=start_s + 10, value=value)


def test_what_counts_is_how_long_the_others_really_ran() -> None:
    # planned beside each other, but the queue let slot 1 begin when slot 0 was half over
    alone = [trial(at % 2, 20.0 * at, 0.001 * (-1) ** (at // 2)) for at in range(6)]
    half = [
        trial(slot, 200 + 40 * at + 5 * slot, -0.01 + 0.001 * (-1) ** at)
        for at in range(6)
        for slot in (0, 1)
    ]
    found = slot_noise([*alone, *half], slots=2)
    assert found is not None
    assert found.busy == pytest.approx(-0.02, abs=0.004), "half of the time costs half"
    never = slot_noise(alone + [trial(at % 2, 500 + 20.0 * at) for at in range(6)], slots=2)
    assert never is not None
    assert never.busy is None
    assert "never ran at the same time" in sentence(never.found(["a", "b"])[-1])


def test_slots_that_cannot_be_told_apart_say_nothing() -> None:
    assert slot_noise([trial(0, 0), trial(0, 20), trial(0, 40), trial(0, 60)], slots=2) is None
    assert slot_noise([trial(0, 0), trial(1, 20), trial(0, 40)], slots=2) is None
    study = CalibrationStudy(cell=CELL, starts=2, slots=SLOTS)
    assert tuple(map(sentence, found_by(study, ()).told)) == (
        "cannot tell what slots differ by: a slot has no score, or too few trials have",
    )
