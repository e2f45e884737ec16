"""How noisy a cell is: the baseline is run a dozen times and compared with itself.

This is an A/A study. It compares no arms, so it spends no alpha. A sweep never takes its trials for
baselines of its own. This module must not know of executors or logs.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import Conclusion, NoiseRecord, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import outlook
from pytest_xlatune.stats.noise import MIN_SCORES, Noise, estimate_noise
from pytest_xlatune.studies import Decision, History, Outlook, Study, Traits, remembered
from pytest_xlatune.studies.look import not_over
from pytest_xlatune.studies.trials import Past, read, start_of, usable
from pytest_xlatune.studies.verdicts import OneCell, deployed, reference

KIND = "calibration"
JOBS = 12  # estimates the noise to within a quarter


class CalibrationStudy(OneCell, frozen=True, kw_only=True, dict=True):
    """A number of jobs of the cell as deployed.

    Attributes:
        cell: the cell whose noise is measured.
        jobs: how many jobs of the baseline run.
    """

    traits: ClassVar[Traits] = Traits(about_cell=True)
    cell: Cell
    jobs: int = JOBS

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
    def trials(self) -> tuple[Trial, ...]:
        """All trials that it plans."""
        return tuple(
            Trial(
                cell_digest=self.cell.digest,
                profile=BASELINE,
                protocol=self.cell.protocol,
                study=KIND,
                stage=KIND,
                position=position,
            )
            for position in range(self.jobs)
        )

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the jobs that are still to run, and the noise so far."""
        past = self.past(history)
        due = not_over(past, self.trials)
        return Decision(
            due=due,
            arms=(deployed(self.cell),),
            concluded=lambda: conclusion(past, is_over=not due),
        )

    def outlook(self, history: History) -> Outlook:
        """Return what is still to come."""
        line = say("{trials:+trial} of the cell as deployed", trials=self.jobs)
        return Outlook.of(self.decide(history).due, lines=(line,))

    def past(self, history: History) -> Past:
        """Return the study's own trials of a history."""
        protocols = {self.cell.digest: self.cell.protocol}
        return read(history, protocols=protocols, declared={}, study=KIND)


def conclusion(past: Past, *, is_over: bool) -> Conclusion:
    """Return the baseline's verdict, the noise of jobs, and what budgets could detect with it."""
    noise = noise_of(scored(past))
    return Conclusion(
        verdicts=(),
        reference=reference(past),
        record=NoiseRecord(sigma=noise.sigma_job if noise else None),
        complete=is_over,
        first_step=past.window.moved_to,
        notes=(*((outlook(noise.sigma_job),) if noise else ()), *filter(None, [past.window.note])),
    )


def jobs_of(study: Study, history: History) -> list[TrialResult]:
    """Return the jobs of a calibration that have a score, in the order in which they ran.

    Raises:
        TypeError: the study is no calibration.
    """
    if not isinstance(study, CalibrationStudy):
        raise TypeError(f"{study.name} is no calibration")
    return scored(study.past(history))


def scored(past: Past) -> list[TrialResult]:
    """Return the jobs that have a score, in the order in which they ran."""
    jobs = [result for result in past.screen.values() if usable(result) is not None]
    starts = {id(result): start_of(result) for result in jobs}
    if None in starts.values():
        return sorted(jobs, key=lambda job: job.trial.position)
    return sorted(jobs, key=lambda job: (starts[id(job)], job.trial.position))


def noise_of(jobs: History) -> Noise | None:
    """Estimate the noise of jobs in the order in which they ran; None if there are too few."""
    return estimate_noise([score for job in jobs if (score := usable(job)) is not None])
