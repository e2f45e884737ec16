"""Measure how noisy a cell is: run the baseline a dozen times, on its node slots in turn.

This is an A/A study: a block of baselines on each slot, and one fit of the noise of jobs, slots and
allocations (`stats/components.py`). It compares no arms, so it spends no alpha. A sweep never uses
its trials as baselines. This module must not know of executors or logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import Conclusion, NoiseRecord, TrialResult
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.design import outlook
from pytest_xlatune.stats.noise import MIN_SCORES, Noise, estimate_noise
from pytest_xlatune.studies import History, Study, Traits
from pytest_xlatune.studies.trials import Orders, Past, allocation_of, usable
from pytest_xlatune.studies.verdicts import PlannedStudy, deployed, reference

KIND = "calibration"
JOBS = 12  # estimates the noise to within a quarter
_LEAST_JOBS_OF_SLOT = 2  # fewer jobs on a slot show no noise


class CalibrationStudy(PlannedStudy, frozen=True, kw_only=True, dict=True):
    """A number of jobs of the cell as deployed.

    Attributes:
        cell: the cell whose noise is measured.
        jobs: how many jobs of the baseline run.
        slots: the nodes of each node slot, the cell's own first; () means the cell's own only. Only
            slots that get two jobs or more are used.
    """

    traits: ClassVar[Traits] = Traits(about_cell=True)
    cell: Cell
    jobs: int = JOBS
    slots: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.jobs < MIN_SCORES:
            raise ConfigError(
                f"a calibration of {self.jobs} jobs is too small: {MIN_SCORES} are the least, "
                f"{JOBS} give the noise to within a quarter"
            )

    @property
    def name(self) -> str:
        """The kind of study."""
        return KIND

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cell on each node slot that it uses."""
        used = self.slots[: self.jobs // _LEAST_JOBS_OF_SLOT]
        return tuple(replace(self.cell, nodelist=nodes) for nodes in used) or (self.cell,)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The jobs, dealt to the slots in turn."""
        orders = [Orders(cell=cell, seed=0, study=KIND) for cell in self.cells]
        return tuple(
            orders[at % len(orders)].trial(BASELINE, KIND, position=at) for at in range(self.jobs)
        )

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Only the cell as deployed."""
        return (deployed(self.cell),)

    def lines(self, due: Sequence[Trial]) -> tuple[Message, ...]:
        """Return the lines of a plan about the study."""
        del due
        return (say("{trials:+trial} of the cell as deployed", trials=self.jobs),)

    def concluded(self, past: Past, planned: Sequence[Trial], due: Sequence[Trial]) -> Conclusion:
        """Return the baseline's line, the job noise, and what budgets could detect with it."""
        del planned
        noise = noise_of(_scored(past))
        notes = [outlook(noise.sigma_job) if noise else None, past.window.note]
        return Conclusion(
            verdicts=(),
            reference=reference(past),
            record=NoiseRecord(sigma=noise.sigma_job if noise else None),
            complete=not due,
            first_step=past.window.moved_to,
            notes=tuple(filter(None, notes)),
        )


def jobs_of(study: Study, history: History) -> list[TrialResult]:
    """Return the jobs of a calibration that have a score, in the order in which they ran.

    Raises:
        TypeError: the study is no calibration.
    """
    if not isinstance(study, CalibrationStudy):
        raise TypeError(f"{study.name} is no calibration")
    return _scored(study.past(history))


def _scored(past: Past) -> list[TrialResult]:
    jobs = [result for result in past.screen.values() if usable(result) is not None]
    return sorted(jobs, key=lambda job: (job.start_s or 0.0, job.trial.position))


def noise_of(jobs: History) -> Noise | None:
    """Estimate the noise of scored jobs in the order in which they ran; None if there are few."""
    return estimate_noise(
        [score for job in jobs if (score := usable(job)) is not None],
        [(job.trial.cell_digest, allocation_of(job)) for job in jobs],
    )
