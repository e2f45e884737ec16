"""How noisy a cell is: the baseline against itself, a dozen times.

An A/A study. It compares nothing, so it spends no alpha; its trials are its own, and no sweep takes
them for baselines measured beside its profiles. This module must not know of executors or logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import Conclusion, NoiseRecord, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import outlook
from pytest_xlatune.stats.noise import MIN_SCORES, Noise, estimate_noise
from pytest_xlatune.studies import Answer, History, Question
from pytest_xlatune.studies.trials import Past, read, usable
from pytest_xlatune.studies.verdicts import OneCell, answered, reference

KIND = "calibration"
JOBS = 12  # gives the noise to within a quarter


@dataclass(frozen=True, kw_only=True)
class CalibrationStudy(OneCell):
    """So many jobs of a cell as deployed."""

    cell: Cell
    jobs: int = JOBS

    def __post_init__(self) -> None:
        if self.jobs < MIN_SCORES:
            raise ConfigError(
                f"a calibration of {self.jobs} jobs says nothing: {MIN_SCORES} are the least, "
                f"{JOBS} give the noise to within a quarter"
            )

    @property
    def name(self) -> str:
        """The study's word."""
        return KIND

    def answer(self, history: History, question: Question) -> Answer:
        """Return what a waiting test asks, once all jobs are over."""
        return answered(self, history, question)

    def outline(self, history: History) -> tuple[str, ...]:
        """Return what a plan says of it."""
        return (f"{len(self.propose(history))} trials of the cell as deployed",)

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the jobs that are not over."""
        past = _read(history, self.cell)
        return tuple(trial for trial in self._trials if not past.is_final(trial))

    def conclude(self, history: History) -> Conclusion:
        """Return the baseline's line, the job noise, and what budgets could see with it."""
        past = _read(history, self.cell)
        noise = _noise(past)
        window = past.window
        return Conclusion(
            verdicts=(),
            reference=reference(past),
            record=NoiseRecord(sigma=noise.sigma_job if noise else None),
            complete=not self.propose(history),
            first_step=window.moved_to,
            notes=(*((outlook(noise.sigma_job),) if noise else ()), *filter(None, [window.note])),
        )

    @cached_property
    def _trials(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(
                cell_digest=self.cell.digest,
                profile=BASELINE,
                protocol=self.cell.protocol,
                study=KIND,
                stage=KIND,
                position=at,
            )
            for at in range(self.jobs)
        )


def noise_of(history: History, cell: Cell) -> Noise | None:
    """Return what the jobs of a calibration differ by; None with too few scores."""
    return _noise(_read(history, cell))


def scored(history: History) -> list[TrialResult]:
    """Return the jobs of a calibration that have a score, in the order they ran."""
    found = [each for each in history if each.trial.study == KIND and usable(each) is not None]
    starts = [each.outcome.start_s if each.outcome else None for each in found]
    if None in starts:
        return sorted(found, key=lambda each: each.trial.position)
    return [each for _, each in sorted(zip(starts, found, strict=True), key=_start)]


def _start(pair: tuple[float | None, TrialResult]) -> tuple[float, int]:
    start_s, result = pair
    return start_s or 0.0, result.trial.position


def _read(history: History, cell: Cell) -> Past:
    return read(history, protocols={cell.digest: cell.protocol}, declared={}, study=KIND)


def _noise(past: Past) -> Noise | None:
    jobs = scored(tuple(past.screen.values()))
    return estimate_noise([score for each in jobs if (score := usable(each)) is not None])
