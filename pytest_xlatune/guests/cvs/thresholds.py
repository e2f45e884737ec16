"""The study of whether a deployed cell meets thresholds: some jobs, and a verdict for each metric.

A threshold is an absolute demand, e.g. at least 800 tokens/s for each device. The value of a job is
one observation: the mean over the jobs is tested against the limit, one-sided at 5 % in either
direction. If neither test rejects, the verdict is "cannot tell". All jobs must have a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from statistics import fmean, stdev
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID
from pytest_xlatune.model.record import Real, Record, digest
from pytest_xlatune.model.result import (
    Conclusion,
    NoiseRecord,
    Score,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.compare import against_level
from pytest_xlatune.stats.design import MIN_DF
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    Traits,
)
from pytest_xlatune.studies.trials import Orders, Past, usable
from pytest_xlatune.studies.verdicts import (
    PlannedStudy,
    deployed,
    job_ids_of,
    reference,
    score_flags,
    unmeasured,
    with_figures,
)

KIND = "thresholds"
JOBS = 5  # the default number of jobs
_BOUNDS = {"min": "at least", "max": "at most"}
# metrics that have the same values each time if the training is deterministic
_LOSS_METRICS = ("final_loss", "loss_decreased")

# metric -> a function that returns its value for one job; None if the job does not give it
_METRICS: Mapping[str, Callable[[Score, Cell], float | None]] = {
    "tokens_per_sec_per_gpu": lambda score, _: score.tgs,
    "tokens_per_sec_total": lambda score, cell: score.tgs and score.tgs * cell.devices,
    "tflops_per_sec_per_gpu": lambda score, _: score.tflops,
    "step_time_seconds": lambda score, _: score.step_s,
    "step_time_mean_ms": lambda score, _: score.step_s and 1000 * score.step_s,
    "step_time_p50_ms": lambda score, _: _percentile_ms(score, 0.50),
    "step_time_p95_ms": lambda score, _: _percentile_ms(score, 0.95),
    "final_loss": lambda score, _: score.loss,
    "loss_decreased": lambda score, _: _has_loss_decreased(score),
}
_RELATIVE_ROUNDING = 1e-12  # values that differ by no more than this share are the same


def _percentile_ms(score: Score, share: float) -> float | None:
    """Return the smallest step time that at least this share of the steps does not exceed."""
    first, last = score.window
    steps_s = sorted(seconds for step, seconds in score.timings if first <= step <= last)
    if not steps_s:
        return None
    return 1000 * steps_s[max(math.ceil(share * len(steps_s)) - 1, 0)]


def _has_loss_decreased(score: Score) -> float | None:
    """Return 1 if the loss has decreased, 0 if not, and None if it is unknown."""
    if score.loss is None or score.first_loss is None:
        return None
    return float(score.loss < score.first_loss)


class Demand(Record, frozen=True, kw_only=True):
    """A demand on the mean of a metric over the jobs.

    Attributes:
        metric: the name of the metric in CVS, without the beginning `training.`.
        bound: `min` or `max`; "" if the metric is only recorded.
        value: the limit; None if the metric is only recorded.
    """

    metric: str
    bound: str = ""
    value: Real | None = None

    @property
    def words(self) -> str:
        """The demand as text, such as `at least 800`."""
        return "recorded" if self.value is None else f"{_BOUNDS[self.bound]} {self.value:g}"

    def figure(self, score: Score, cell: Cell) -> float | None:
        """Return the value of the metric in a job; None if the job does not give it."""
        value_of = _METRICS.get(self.metric)
        figure = value_of(score, cell) if value_of else None
        return figure if figure is not None and math.isfinite(figure) else None


class Thresholds(DeclaredStudy, frozen=True, kw_only=True):
    """The declaration of a study of whether the deployed cell meets demands.

    Attributes:
        demands: the demands, one for each metric.
        jobs: the number of jobs of the cell.
    """

    kind: ClassVar[str] = KIND
    demands: tuple[Demand, ...]
    jobs: int = JOBS

    def __post_init__(self) -> None:
        if self.jobs <= MIN_DF:
            raise ConfigError(
                f"thresholds: {self.jobs} jobs are too few to test a threshold; at least "
                f"{MIN_DF + 1} are needed"
            )

    def study(self, asked: Asked) -> ThresholdStudy:
        """Return the study of the sweep's cell."""
        return ThresholdStudy(cell=asked.cell, demands=self.demands, jobs=self.jobs)


class ThresholdStudy(PlannedStudy, frozen=True, kw_only=True, dict=True):
    """A number of jobs of the deployed cell, and a verdict for each metric."""

    traits: ClassVar[Traits] = Traits(aim=Aim.GATES)
    cell: Cell
    demands: tuple[Demand, ...]
    jobs: int = JOBS

    @cached_property
    def name(self) -> str:
        """The kind of the study, and a digest of the number of jobs, but not of the thresholds."""
        return f"{KIND}-{digest([self.jobs], length=8)}"

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The cell as deployed, and an arm for each metric: a verdict needs an arm."""
        reference = deployed(self.cell)
        return (reference, *(replace(reference, id=demand.metric) for demand in self.demands))

    def lines(self, due: Sequence[Trial]) -> tuple[Message, ...]:
        """Return a line of a plan on the trials that are still to run."""
        limits = sum(demand.value is not None for demand in self.demands)
        trials = counted(len(due), "trial")
        text = f"{trials} of the cell as deployed, compared with {counted(limits, 'threshold')}"
        return (verbatim(text),)

    def concluded(self, past: Past, planned: Sequence[Trial], due: Sequence[Trial]) -> Conclusion:
        """Return a verdict for each metric; none passes before all jobs are over."""
        del planned
        scores = filter(None, map(usable, past.screens_of(BASELINE_ID)))
        log_values = [score.value for score in scores]
        return Conclusion(
            verdicts=tuple(
                self._verdict(past, demand, is_complete=not due) for demand in self.demands
            ),
            reference=reference(past),
            record=NoiseRecord(sigma=stdev(log_values) if len(log_values) > MIN_DF else None),
            complete=not due,
            first_step=past.window.moved_to,
            notes=tuple(filter(None, [past.window.note])),
        )

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The jobs of the cell as deployed."""
        orders = Orders(cell=self.cell, seed=0, study=self.name)
        return tuple(
            orders.trial(BASELINE, KIND, position=position) for position in range(self.jobs)
        )

    def _verdict(self, past: Past, demand: Demand, *, is_complete: bool) -> Verdict:
        trials = past.screens_of(BASELINE_ID)
        base = Verdict(
            arm=demand.metric,
            kind=VerdictKind.INCONCLUSIVE,
            job_ids=job_ids_of(trials),
            reasons=score_flags(trials),
        )
        scored = [score for result in trials if (score := usable(result))]
        if not is_complete:
            over = sum(result.status.is_final for result in trials)
            return _with_reasons(base, f"cannot tell yet: {over} of {self.jobs} jobs are over")
        if not scored:
            return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
        base = replace(with_figures(base, trials), arm=demand.metric)
        figures = [demand.figure(score, self.cell) for score in scored]
        values = [figure for figure in figures if figure is not None]
        if not values:
            return _with_reasons(base, f"cannot tell: no job gives {demand.metric}")
        kind, text = threshold_verdict(values, demand)
        missing = self.jobs - len(values)
        reasons = [text]
        if missing:
            reasons.append(f"cannot tell: {missing} of {self.jobs} jobs do not give it")
            if kind is VerdictKind.EQUIVALENT:
                kind = VerdictKind.INCONCLUSIVE
        method = f"mean of {len(values)} jobs against the threshold, one-sided 5 % either way"
        verdict = _with_reasons(base, *reasons)
        return replace(
            verdict,
            kind=kind,
            word=_VERDICT_NAMES[kind].upper(),
            n=len(values),
            method=verbatim(method),
        )


# The kind of a verdict -> the word for a demand. The kinds are made for comparisons: here
# EQUIVALENT means that the demand is met, and SLOWER that it is not.
_VERDICT_NAMES = {
    VerdictKind.EQUIVALENT: "pass",
    VerdictKind.SLOWER: "fail",
    VerdictKind.INCONCLUSIVE: "cannot tell",
}


def threshold_word(verdict: Verdict) -> str:
    """Return the word for a verdict: pass, fail or cannot tell."""
    return _VERDICT_NAMES.get(verdict.kind, "cannot tell")


def _with_reasons(verdict: Verdict, *reasons: str) -> Verdict:
    return replace(verdict, reasons=(*map(verbatim, reasons), *verdict.reasons))


def threshold_verdict(values: Sequence[float], demand: Demand) -> tuple[VerdictKind, str]:
    """Return the kind of verdict on the values of the jobs, and a sentence."""
    mean = fmean(values)
    text = f"{demand.metric} is {mean:.6g} in the mean of {counted(len(values), 'job')}"
    if demand.value is None:
        return VerdictKind.EQUIVALENT, text
    text = f"{text}, the demand is {demand.words}"
    sign = 1.0 if demand.bound == "min" else -1.0
    is_same = max(values) - min(values) <= _RELATIVE_ROUNDING * abs(mean)
    if is_same and demand.metric in _LOSS_METRICS:
        # deterministic training repeats its loss, so there is no noise to allow for
        is_met = sign * (mean - demand.value) >= 0
        kind = VerdictKind.EQUIVALENT if is_met else VerdictKind.SLOWER
        return kind, f"{_VERDICT_NAMES[kind]}: {text}; every job has the same value"
    # A job counts as one value. If each step were compared with a limit of two standard deviations
    # below the mean, 43 % of healthy runs of 24 steps would fail.
    kind = against_level([sign * value for value in values], sign * demand.value)
    return kind, f"{_VERDICT_NAMES[kind]}: {text}"
