"""The simulated cluster says what it means: its log text, its noise, its failures."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.logs import read_log
from pytest_xlatune.model.result import Score
from pytest_xlatune.stats.noise import Noise, estimate_noise
from pytest_xlatune.stats.score import score
from pytest_xlatune.studies.calibration import CalibrationStudy
from tests.helpers.benchmarks import load
from tests.helpers.words import with_values

simulated: Any = load("simcluster")


def jobs(count: int, **truth: Any) -> list[Score]:
    """Baseline jobs of a world, those with a score."""
    world = simulated.World(name="any", budget=count, **truth)
    study = simulated.TuningStudy(cell=world.cell(), profiles=world.declared(), budget=50)
    baseline = study.decide([]).due[0]
    logs = simulated.Cluster(world, 5).steps([baseline] * count)
    protocol = study.cell.protocol
    found = [score(each, protocol=protocol, tokens_per_device_step=28672.0) for each in logs]
    return [each for each in found if isinstance(each, Score)]


def estimated(count: int, **truth: Any) -> Noise:
    found = estimate_noise(jobs(count, **truth))
    assert found is not None
    return found


@pytest.mark.parametrize("rank", ["", "0"])
def test_log_text_scores_like_the_records(rank: str) -> None:
    world = simulated.World(name="any", stragglers=0.1)
    study = simulated.TuningStudy(cell=world.cell(), profiles=world.declared())
    for records in simulated.Cluster(world, 2).steps(study.decide([]).due[:5]):
        text = simulated.render(records, rank=rank).encode()
        read = read_log([text]).steps
        assert len(read) == len(records)
        one, other = (
            score(each, protocol=study.cell.protocol, tokens_per_device_step=None)
            for each in (records, read)
        )
        assert isinstance(one, Score)
        assert isinstance(other, Score)
        assert other.value == pytest.approx(one.value, abs=1e-6)
        assert other.dropped == one.dropped


def test_noise_is_recovered() -> None:
    found = estimated(300, drift="linear", drift_size=0.01, sigma_job=0.006)
    assert found.sigma_job == pytest.approx(0.0066, rel=0.12)
    assert found.sigma_low < found.sigma_job < found.sigma_high
    assert found.step_sd == pytest.approx(0.005, rel=0.2)
    assert found.lag1 == pytest.approx(0.5, abs=0.12)
    assert found.straggler_rate == pytest.approx(0.03, abs=0.01)
    assert abs(found.drift) == pytest.approx(0.01, abs=0.003)
    assert found.steady_from in {4, 5}


@pytest.mark.parametrize(
    ("slots", "allocations", "apart"),
    [
        pytest.param(1, 1, 0.0, id="one slot"),
        pytest.param(4, 1, 0.01, id="slots that differ"),
        pytest.param(1, 3, 0.01, id="allocations that differ"),
        pytest.param(4, 3, 0.005, id="both"),
    ],
)
def test_what_slots_and_allocations_add_is_no_noise_of_a_job(
    slots: int, allocations: int, apart: float
) -> None:
    """Twelve jobs each; one line through all of them tells .8 to 1.1 % where the noise is .6 %."""
    drawn, seen = random.Random(5), []
    plain = jobs(12, sigma_job=0.0)[0]
    for _ in range(200):
        levels = {name: drawn.gauss(0, apart) for name in (*range(slots), *"abc")}
        places = [(at % slots, "abc"[at * allocations // 12]) for at in range(12)]
        values = [levels[slot] + levels[name] + drawn.gauss(0, 0.006) for slot, name in places]
        found = estimate_noise([replace(plain, value=value) for value in values], places)
        assert found is not None
        assert (found.slot_sd is None, found.allocation_sd is None) == (slots < 2, allocations < 2)
        seen.append(found)
    assert rms([noise.sigma_job for noise in seen]) == pytest.approx(0.006, rel=0.1)
    for sizes in ([n.slot_sd for n in seen], [n.allocation_sd for n in seen]):
        if None not in sizes:
            assert rms(sizes) == pytest.approx(apart, rel=0.25)


def rms(values: Sequence[Any]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def test_a_calibration_deals_its_jobs_to_slots_of_two_jobs_or_more() -> None:
    nodes = tuple((f"n{at}",) for at in range(8))
    cell = simulated.World(name="any", node_slots=2).cell()
    study = CalibrationStudy(cell=replace(cell, nodelist=nodes[0]), jobs=12, slots=nodes)
    assert [cell.nodelist for cell in study.cells] == list(nodes[:6])
    assert {*Counter(trial.cell_digest for trial in study.decide(()).due).values()} == {2}


def test_a_dozen_jobs_bracket_sigma() -> None:
    found = estimated(12, drift="none")
    assert found.sigma_low < 0.0066 < found.sigma_high
    assert found.sigma_high < 2 * found.sigma_job


def test_without_steps_the_inside_of_a_job_is_unknown() -> None:
    found = estimate_noise([replace(each, timings=()) for each in jobs(8)])
    assert found is not None
    assert (found.step_sd, found.lag1, found.steady_from) == (None, None, None)


def test_a_moved_window_changes_nothing_else_that_must_not_change() -> None:
    """Units, order and a trip through the ledger; and the same digits whenever it is asked."""
    world = simulated.World(name="any", effects=(0.03,), long_warm=1.0, steps=25, profiles=12)
    conclusion, history = simulated.sweep(world, 3)
    assert conclusion.first_step is not None
    assert conclusion.first_step > 5
    study = simulated.TuningStudy(
        cell=world.cell(), profiles=world.declared(), budget=world.budget, seed=3
    )
    assert study.decide(list(reversed(history))).conclusion == conclusion
    assert (
        study.decide([type(each).from_json(each.to_json()) for each in history]).conclusion
        == conclusion
    )

    def scaled(result: Any, factor: float) -> Any:
        if result.score is None:
            return result
        score = result.score
        moved = replace(score, value=score.value + math.log(factor), tgs=score.tgs * factor,
                        window_tgs=score.window_tgs * factor)  # fmt: skip
        return replace(result, score=moved)

    other = study.decide([scaled(each, 1e-3) for each in history]).conclusion
    assert (other.first_step, other.notes) == (conclusion.first_step, conclusion.notes)
    for one, two in zip(conclusion.verdicts, other.verdicts, strict=True):
        assert (one.arm, one.kind) == (two.arm, two.kind)
        assert two.delta == pytest.approx(one.delta, abs=1e-9)


def test_a_profile_that_warms_up_longer_is_told() -> None:
    """Its score is low by what its early steps are slow; the verdict says so, and why."""
    world = simulated.World(
        name="any", effects=(0.03,), warming={0: 2.5}, profiles=8, sigma_job=0.002
    )
    conclusion, _ = simulated.sweep(world, 2)
    (told,) = (each for each in conclusion.verdicts if each.arm == "p000")
    (why,) = with_values(told.reasons, "excess")
    assert "understated" in why.text
    (note,) = with_values(conclusion.notes, "arms", "step")
    assert note.values["arms"][0] == "p000"
    plain, _ = simulated.sweep(dataclasses.replace(world, warming={}), 2)
    assert not any(with_values(each.reasons, "excess") for each in plain.verdicts)


@pytest.mark.parametrize(
    # 5 % of sweeps by design: more than these would be seen in 1 of 100 such tests
    ("sweeps", "most"),
    [(20, 4), pytest.param(60, 7, marks=pytest.mark.part("sweeps"))],
)
def test_stacks_of_noise_win_no_more_often_than_anything_else(sweeps: int, most: int) -> None:
    world = simulated.World(name="any", stacks=4)
    winners = arms = 0
    for seed in range(sweeps):
        conclusion, history = simulated.sweep(world, seed)
        assert len(history) <= world.budget
        arms += sum("+" in each for each in conclusion.tuning.finalists)
        winners += any(each.kind == "FASTER" for each in conclusion.verdicts)
    assert winners <= most
    assert arms > sweeps / 6  # they were among what was confirmed


@pytest.mark.parametrize("sweeps", [10, pytest.param(20, marks=pytest.mark.part("sweeps"))])
def test_stacks_find_what_adds_up(sweeps: int) -> None:
    world = simulated.World(name="any", effects=(0.02, 0.02, 0.02), stacks=4)
    found = []
    for seed in range(sweeps):
        conclusion, _ = simulated.sweep(world, seed)
        found += [each for each in conclusion.verdicts if each.kind == "FASTER"]
    truths = [world.truth_of(each.arm) for each in found]
    assert max(truths) == pytest.approx(1.02**3 - 1)
    # beside the stacks stand their parts
    assert sum(truth > 0.039 for truth in truths) > 1.25 * sweeps
    inside = [e.ci95[0] <= t <= e.ci95[1] for e, t in zip(found, truths, strict=True)]
    assert sum(inside) / len(inside) > 0.85


def test_evidence_chooses_what_is_measured_and_is_no_job_of_the_budget() -> None:
    world = simulated.World(name="chosen", profiles=75, slots=25)
    conclusion, history = simulated.sweep(world, 3)
    runs = [each for each in history if not each.trial.protocol.is_scored]
    screened = {each.trial.profile.id for each in history if each.trial.is_screened}
    assert len(runs) == 1
    assert world.budget - 1 <= len(history) <= 1 + world.budget
    assert len(screened - {"baseline-deployed"}) == world.slots
    assert screened != {"baseline-deployed", *(f"p{at:03d}" for at in range(25))}
    assert simulated.sweep(world, 3)[0] == conclusion
    others = {each.trial.profile.id for each in simulated.sweep(world, 4)[1]}
    assert others != {each.trial.profile.id for each in history}
