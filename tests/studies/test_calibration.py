"""The error rates hold, on few sweeps: `benchmarks/error_rates.py` measures them properly.

Deterministic: the seeds are fixed, so a failure here is a change of the procedure, not bad luck.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import pytest
import scipy  # its parts are loaded where they are used

from pytest_xlatune.model.result import Score, VerdictKind
from pytest_xlatune.stats.score import score
from tests.helpers.benchmarks import load

SWEEPS = 150
simcluster = load("simcluster")


def false_winners(world: Any, sweeps: int) -> int:
    """Count the sweeps with a winner that is none."""
    return sum(
        any(
            verdict.kind is VerdictKind.FASTER and world.truth(int(verdict.arm[1:])) <= 0
            for verdict in simcluster.sweep(world, seed)[0].verdicts
        )
        for seed in range(sweeps)
    )


# the bound of a rate follows the count
MORE = pytest.mark.parametrize(
    "sweeps", [SWEEPS // 7, pytest.param(SWEEPS // 3, marks=pytest.mark.part("sweeps"))]
)


def most(sweeps: int, rate: float) -> int:
    """Return the count that a procedure of this rate exceeds once in a thousand tests."""
    return int(scipy.stats.binom.ppf(0.999, sweeps, rate))


@pytest.mark.part("sweeps")
def test_false_winners_are_one_sweep_in_twenty() -> None:
    found = false_winners(simcluster.World(name="null"), SWEEPS)
    assert 0 < found <= most(SWEEPS, 0.055)


@MORE
def test_steps_are_not_the_unit(sweeps: int) -> None:
    """Seven times the steps leave the rate where it was; tests on steps would fail in most."""
    found = false_winners(simcluster.World(name="long", steps=105), sweeps)
    assert found <= most(sweeps, 0.055)


@MORE
def test_three_winners_of_2_percent_are_found_in_50_jobs(sweeps: int) -> None:
    world = simcluster.World(name="three", effects=(0.02,) * 3)
    found = 0
    for seed in range(sweeps):
        conclusion, history = simcluster.sweep(world, seed)
        assert len(history) <= world.budget
        found += sum(
            verdict.kind is VerdictKind.FASTER and verdict.arm in {"p000", "p001", "p002"}
            for verdict in conclusion.verdicts
        )
    assert found / (3 * sweeps) > 0.80 - 3 * math.sqrt(0.8 * 0.2 / (3 * sweeps))


@pytest.mark.parametrize(
    ("pauses", "close"),
    [
        pytest.param(0.0, 1.0, id="without pauses"),
        # a pause at an edge of the window is paid back outside: 3.7 % of 1,100 jobs
        pytest.param(0.1, 0.93, id="pauses that are paid back"),
    ],
)
def test_a_job_score_is_close_to_the_job(pauses: float, close: float) -> None:
    """Neither stragglers nor pauses that are paid back move the score by more than its noise."""
    world = simcluster.World(name="one", sigma_job=0.0, drift="none", pauses=pauses)
    study = simcluster.TuningStudy(cell=world.cell(), profiles=world.declared())
    errors = []
    for number in range(10):
        for records in simcluster.Cluster(world, number).steps(study.decide([]).due):
            found = score(
                records, protocol=study.cell.protocol, tokens_per_device_step=simcluster.TOKENS
            )
            if isinstance(found, Score):
                errors.append(found.value - math.log(simcluster.TOKENS / simcluster.BASE_STEP_S))
    assert len(errors) >= 250
    assert abs(median(errors)) < 0.002
    assert sum(abs(error) < 0.015 for error in errors) >= close * len(errors)
