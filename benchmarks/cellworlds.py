"""What simulated studies of cells have in common: noisy jobs, and a study that is run to its end.

Jobs differ by `sigma`, and in worlds with bad jobs 3 % of all jobs are 2 to 5 % slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Study

CELL = Cell(model_tag="simulated", parallelism=Parallelism.parse("FSDP=8"), protocol=Protocol())
LEVEL = 7.5  # log score of a job without an effect


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise of jobs: sizes are fractions."""

    sigma: float = 0.006
    bad_jobs: float = 0.0

    @property
    def words(self) -> str:
        """The noise, as the tables say it."""
        return f"{100 * self.sigma:.1f} %" + (", 3 % bad jobs" if self.bad_jobs else "")

    def measured(self, trial: Trial, effect: float, random: np.random.Generator) -> TrialResult:
        """Return the result of a job of this log effect."""
        value = LEVEL + effect + random.normal(0, self.sigma)
        if random.random() < self.bad_jobs:
            value += math.log1p(-random.uniform(0.02, 0.05))
        value = float(value)
        score = Score(value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14))
        return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)


def drive(
    study: Study,
    run: Callable[[Trial], TrialResult],
    waves_of: Callable[[Sequence[Trial]], int] = lambda _: 1,
) -> tuple[list[TrialResult], int]:
    """Run a study to its end; return its history, and how many waves of jobs it took."""
    history: list[TrialResult] = []
    waves = 0
    while trials := study.decide(history).due:
        history += map(run, trials)
        waves += waves_of(trials)
    return history, waves
