"""The study whether a deployed cell meets thresholds: a number of jobs, a verdict for each metric.

A threshold is an absolute demand, e.g. at least 800 tokens/s for each device. The unit is the job:
the mean over the jobs is tested against the limit, one-sided at 5 % in either direction. If neither
test rejects, the verdict is "cannot tell". All jobs must have a score. This module must not know
executors, logs, or the kind of files that have the thresholds.
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
JOBS = 5
_BOUNDS = {"min": "at least", "max": "at most"}
_OF_LOSS = ("final_loss", "loss_decreased")  # deterministic training repeats these values exactly

# metric -> a function that returns its value for one job; None if the job does not give it
_FIGURES: Mapping[str, Callable[[Score, Cell], float | None]] = {
    "tokens_per_sec_per_gpu": lambda score, _: score.tgs,
    "tokens_per_sec_total": lambda score, cell: score.tgs and score.tgs * cell.devices,
    "tflops_per_sec_per_gpu": lambda score, _: score.tflops,
    "step_time_seconds": lambda score, _: score.step_s,
    "step_time_mean_ms": lambda score, _: score.step_s and 1000 * score.step_s,
    "step_time_p50_ms": lambda score, _: _percentile_ms(score, 0.50),
    "step_time_p95_ms": lambda score, _: _percentile_ms(score, 0.95),
    "final_loss": lambda score, _: score.loss,
    "loss_decreased": lambda score, _: _fell(score),
}
_ROUNDING = 1e-12


def _percentile_ms(score: Score, share: float) -> float | None:
    first, last = score.window
    inside = sorted(seconds for step, seconds in score.timings if first <= step <= last)
    return 1000 * inside[max(math.ceil(share * len(inside)) - 1, 0)] if inside else None


def _fell(score: Score) -> float | None:
    if score.loss is None or score.first_loss is None:
        return None
    return float(score.loss < score.first_loss)


class Demand(Record, frozen=True, kw_only=True):
    """A demand on the mean of a metric: `min` or `max`, and a value; "" and None only record it."""

    metric: str
    bound: str = ""
    value: Real | None = None

    @property
    def words(self) -> str:
        """The demand as text, such as `at least 800`."""
        return "recorded" if self.value is None else f"{_BOUNDS[self.bound]} {self.value:g}"

    def figure(self, score: Score, cell: Cell) -> float | None:
        """Return the value of the metric in a job; None if the job does not give it."""
        known = _FIGURES.get(self.metric)
        figure = known(score, cell) if known else None
        return figure if figure is not None and math.isfinite(figure) else None


class Thresholds(DeclaredStudy, frozen=True, kw_only=True):
    """The question of a sweep whether the deployed cell meets demands.

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
        """The word of the study and the number of its jobs; the thresholds are no part of it."""
        return f"{KIND}-{digest([self.jobs], length=8)}"

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The cell as deployed, and an arm for each metric, which gives its verdict a name."""
        reference = deployed(self.cell)
        return (reference, *(replace(reference, id=demand.metric) for demand in self.demands))

    def lines(self, due: Sequence[Trial]) -> tuple[Message, ...]:
        """Return the forecast of the jobs that are still to run."""
        gated = sum(demand.value is not None for demand in self.demands)
        jobs = counted(len(due), "trial")
        text = f"{jobs} of the cell as deployed, compared with {counted(gated, 'threshold')}"
        return (verbatim(text),)

    def concluded(self, past: Past, planned: Sequence[Trial], due: Sequence[Trial]) -> Conclusion:
        """Return a verdict for each metric; none passes before all jobs are over."""
        del planned
        logs = [s.value for result in past.screens_of(BASELINE_ID) if (s := usable(result))]
        return Conclusion(
            verdicts=tuple(
                self._verdict(past, demand, is_complete=not due) for demand in self.demands
            ),
            reference=reference(past),
            record=NoiseRecord(sigma=stdev(logs) if len(logs) > MIN_DF else None),
            complete=not due,
            first_step=past.window.moved_to,
            notes=tuple(filter(None, [past.window.note])),
        )

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The jobs of the cell as deployed."""
        orders = Orders(cell=self.cell, seed=0, study=self.name)
        return tuple(orders.trial(BASELINE, KIND, position=at) for at in range(self.jobs))

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
            return _because(base, f"cannot tell yet: {over} of {self.jobs} jobs are over")
        if not scored:
            return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
        base = replace(with_figures(base, trials), arm=demand.metric)
        figures = [demand.figure(score, self.cell) for score in scored]
        values = [figure for figure in figures if figure is not None]
        if not values:
            return _because(base, f"cannot tell: no job gives {demand.metric}")
        kind, text = held(values, demand)
        short = self.jobs - len(values)
        if short and kind is VerdictKind.EQUIVALENT:
            kind = VerdictKind.INCONCLUSIVE
        lost = [f"cannot tell: {short} of {self.jobs} jobs do not give it"] if short else []
        method = f"mean of {len(values)} jobs against the threshold, one-sided 5 % either way"
        verdict = _because(base, text, *lost)
        return replace(
            verdict, kind=kind, word=_TERMS[kind].upper(), n=len(values), method=verbatim(method)
        )


# the kinds of verdict are those of a comparison, and say nothing about a demand
_TERMS = {
    VerdictKind.EQUIVALENT: "pass",
    VerdictKind.SLOWER: "fail",
    VerdictKind.INCONCLUSIVE: "cannot tell",
}


def our_word(verdict: Verdict) -> str:
    """Return the word for a verdict: pass, fail or cannot tell."""
    return _TERMS.get(verdict.kind, "cannot tell")


def _because(verdict: Verdict, *reasons: str) -> Verdict:
    return replace(verdict, reasons=(*map(verbatim, reasons), *verdict.reasons))


def held(values: Sequence[float], demand: Demand) -> tuple[VerdictKind, str]:
    """Return the verdict on the values of the jobs, in the words of `_TERMS`, and a sentence."""
    mean = fmean(values)
    shown = f"{demand.metric} is {mean:.6g} in the mean of {counted(len(values), 'job')}"
    if demand.value is None:
        return VerdictKind.EQUIVALENT, shown
    shown = f"{shown}, the demand is {demand.words}"
    sign = 1.0 if demand.bound == "min" else -1.0
    is_same = max(values) - min(values) <= _ROUNDING * abs(mean)
    if is_same and demand.metric in _OF_LOSS:
        # deterministic training repeats its loss, so there is no noise to allow for
        holds = sign * (mean - demand.value) >= 0
        kind = VerdictKind.EQUIVALENT if holds else VerdictKind.SLOWER
        return kind, f"{_TERMS[kind]}: {shown}; every job has the same value"
    # A job counts as one value. If single steps counted, a limit two standard deviations of a step
    # below the mean would fail 43 % of healthy runs of 24 steps.
    kind = against_level([sign * value for value in values], sign * demand.value)
    return kind, f"{_TERMS[kind]}: {shown}"
