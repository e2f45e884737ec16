"""Whether a cell as deployed meets thresholds: so many jobs of it, one verdict for each metric.

A threshold is an absolute demand, e.g. at least 800 tokens/s a device, or a band around a value.
The job is the unit: the mean over jobs is held against each limit, one-sided at 5 % either way.
What neither excludes is "cannot tell", with the number of jobs that would decide it. All jobs must
have a score. This module must not know of executors or logs, nor of whose files the thresholds are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean, stdev
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID
from pytest_xlatune.model.reason import Reason, verbatim
from pytest_xlatune.model.record import Record, dataclass, digest
from pytest_xlatune.model.result import (
    Conclusion,
    NoiseRecord,
    Score,
    TrialResult,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.compare import above, reach_of
from pytest_xlatune.stats.design import MIN_DF, t_quantile
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    History,
    Traits,
)
from pytest_xlatune.studies.trials import Past, read, usable
from pytest_xlatune.studies.verdicts import (
    OneCell,
    deployed,
    job_ids_of,
    measured,
    reference,
    score_flags,
    unmeasured,
)

KIND = "thresholds"
JOBS = 5
_MOST_JOBS = 200
_LEAST, _MOST, _WITHIN = "min", "max", "within"
# a training without chance repeats these exactly
_OF_LOSS = ("final_loss", "loss_decreased", "loss_slope", "steps_to_target")

# metric -> its figure of one job; None where the job does not tell it
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
    "scaling_efficiency_pct": lambda score, _: score.tgs,
}
METRICS = tuple(_FIGURES)
_ROUNDING = 1e-12
_BY_FACTOR = "scaling_efficiency_pct"  # only a baseline makes a percentage of it


def _percentile_ms(score: Score, share: float) -> float | None:
    first, last = score.window
    inside = sorted(seconds for step, seconds in score.timings if first <= step <= last)
    return 1000 * inside[max(math.ceil(share * len(inside)) - 1, 0)] if inside else None


def _fell(score: Score) -> float | None:
    if score.loss is None or score.first_loss is None:
        return None
    return float(score.loss < score.first_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigure(Record):
    """A metric of one job."""

    job: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFound(Record):
    """A metric, and what it is held against, in the metric's own unit.

    Attributes:
        metric: its name; that of a verdict of the conclusion too.
        demand: in words: `at least 800`, or `recorded` where there is none.
        least, most: the limits of the mean; None without one.
        jobs: the figure of every job that tells it.
        mean: of those jobs; None without any.
        low, high: the 90 % interval of the mean; None of too few jobs, or of equal ones.
    """

    metric: str
    demand: str
    least: float | None = None
    most: float | None = None
    jobs: tuple[JobFigure, ...] = ()
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRecord(NoiseRecord):
    """What the jobs of a cell showed of each metric, whatever its verdict."""

    kind: ClassVar[str] = "thresholds"
    metrics: tuple[ThresholdFound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Record):
    """The demand on one metric.

    Attributes:
        metric: one of `METRICS`.
        bound: `min`, `max`, `within`, or "" where it is only recorded.
        value: the threshold; None where it is only recorded.
        tolerance_pct: of `within`: how far from the value the mean may be, in percent of it.
        of: another of `METRICS`, whose multiple of it in the same job is demanded; "" is none.
        factor: what makes the metric of its figure, e.g. percent of a baseline; None is 1.
    """

    metric: str
    bound: str = ""
    value: float | None = None
    tolerance_pct: float | None = None
    of: str = ""
    factor: float | None = None

    @property
    def words(self) -> str:
        """The demand as text: `at least 800`."""
        if self.value is None:
            return "recorded"
        if self.bound == _WITHIN:
            return f"{self.value:g} within {self.tolerance_pct or 0:g} %"
        least = "at least" if self.bound == _LEAST else "at most"
        return f"{least} {self.value:g}" + (f" times {self.of}" if self.of else "")

    @property
    def limits(self) -> tuple[tuple[float, float], ...]:
        """Each limit with its sign: 1 is a least value, -1 a largest."""
        if self.value is None:
            return ()
        if self.bound == _WITHIN:
            reach = abs(self.value) * (self.tolerance_pct or 0.0) / 100
            return ((1.0, self.value - reach), (-1.0, self.value + reach))
        return ((1.0 if self.bound == _LEAST else -1.0, self.value),)

    def figure(self, score: Score, cell: Cell) -> float | None:
        """Return what a job tells of it; None where it does not."""
        found = _figure(self.metric, score, cell)
        if found is None or (self.metric == _BY_FACTOR and self.factor is None):
            return None
        found *= 1.0 if self.factor is None else self.factor
        if not self.of:
            return found
        other = _figure(self.of, score, cell)
        return found / other if other else None


def _figure(metric: str, score: Score, cell: Cell) -> float | None:
    known = _FIGURES.get(metric)
    found = known(score, cell) if known else None
    return found if found is not None and math.isfinite(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds(DeclaredStudy):
    """A sweep's question: does the cell as deployed meet these demands?

    Attributes:
        demands: each metric once.
        jobs: of the cell.
        key: tells this run from the last, e.g. a commit; jobs of another key are never used.
    """

    kind: ClassVar[str] = KIND
    demands: tuple[Demand, ...]
    jobs: int = JOBS
    key: str = ""

    def __post_init__(self) -> None:
        if self.jobs <= MIN_DF:
            raise ConfigError(
                f"thresholds: {self.jobs} jobs cannot be held against a threshold, {MIN_DF + 1} "
                "are the least"
            )
        for each in self.demands:
            bounds = (_LEAST, _MOST, _WITHIN, "")
            if each.bound not in bounds or (each.bound == "") != (each.value is None):
                raise ConfigError(
                    f"thresholds: {each.metric} has bound {each.bound!r} and value {each.value}, "
                    "expected min, max or within and a number, or neither"
                )
            if each.bound == _WITHIN and not (each.tolerance_pct or 0) > 0:
                raise ConfigError(
                    f"thresholds: {each.metric} has tolerance_pct {each.tolerance_pct}, expected "
                    "percent above 0"
                )
            if each.of and each.of not in METRICS:
                raise ConfigError.unknown("metric", each.of, valid=METRICS, where="thresholds")

    def study(self, asked: Asked) -> ThresholdStudy:
        """Return the study of the sweep's cell."""
        return ThresholdStudy(cell=asked.cell, demands=self.demands, jobs=self.jobs, key=self.key)


@dataclass(frozen=True, kw_only=True)
class ThresholdStudy(OneCell):
    """So many jobs of a cell as deployed, and a verdict for each metric."""

    traits: ClassVar[Traits] = Traits(aim=Aim.GATES)
    cell: Cell
    demands: tuple[Demand, ...]
    jobs: int = JOBS
    key: str = ""

    @cached_property
    def name(self) -> str:
        """The study's word and which jobs it has; a changed threshold asks the same jobs."""
        return f"{KIND}-{digest([self.key, self.jobs], length=8)}"

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the cell as deployed, then one arm for each metric: a name for its verdict."""
        del history
        own = deployed(self.cell)
        return (own, *(replace(own, id=each.metric) for each in self.demands))

    def outline(self, history: History) -> tuple[Reason, ...]:
        """Return what a plan says of it."""
        gated = sum(each.value is not None for each in self.demands)
        jobs = counted(len(self.propose(history)), "trial")
        text = f"{jobs} of the cell as deployed, held against {counted(gated, 'threshold')}"
        return (verbatim(text),)

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the jobs that are not over."""
        past = self._past(history)
        return tuple(trial for trial in self._trials if not past.is_final(trial))

    def conclude(self, history: History) -> Conclusion:
        """Return a verdict for each metric; none passes before all jobs are over."""
        past = self._past(history)
        is_complete = not self.propose(history)
        scored = [(each, s) for each in past.screens_of(BASELINE_ID) if (s := usable(each))]
        logs = [score.value for _, score in scored]
        return Conclusion(
            verdicts=tuple(
                self._verdict(past, each, is_complete=is_complete) for each in self.demands
            ),
            reference=reference(past),
            record=ThresholdRecord(
                sigma=stdev(logs) if len(logs) > MIN_DF else None,
                metrics=tuple(self._found(each, scored) for each in self.demands),
            ),
            complete=is_complete,
            first_step=past.window.moved_to,
            notes=tuple(filter(None, [past.window.note])),
        )

    def _past(self, history: History) -> Past:
        protocols = {self.cell.digest: self.cell.protocol}
        return read(history, protocols=protocols, declared={}, study=self.name)

    @cached_property
    def _trials(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(
                cell_digest=self.cell.digest,
                profile=BASELINE,
                protocol=self.cell.protocol,
                study=self.name,
                stage=KIND,
                position=at,
            )
            for at in range(self.jobs)
        )

    def _found(self, demand: Demand, scored: Sequence[tuple[TrialResult, Score]]) -> ThresholdFound:
        jobs = tuple(
            JobFigure(job=", ".join(trial.job_ids), value=value)
            for trial, score in scored
            if (value := demand.figure(score, self.cell)) is not None
        )
        values = [each.value for each in jobs]
        mean, reach = fmean(values) if values else math.nan, reach_of(values)
        return ThresholdFound(
            metric=demand.metric,
            demand=demand.words,
            least=max((level for sign, level in demand.limits if sign > 0), default=None),
            most=min((level for sign, level in demand.limits if sign < 0), default=None),
            jobs=jobs,
            mean=mean if values else None,
            low=None if reach is None else mean - reach,
            high=None if reach is None else mean + reach,
        )

    def _verdict(self, past: Past, demand: Demand, *, is_complete: bool) -> Verdict:
        trials = past.screens_of(BASELINE_ID)
        base = Verdict(
            arm=demand.metric,
            kind=VerdictKind.INCONCLUSIVE,
            job_ids=job_ids_of(trials),
            reasons=score_flags(trials),
        )
        scored = [score for each in trials if (score := usable(each))]
        if not is_complete:
            over = sum(each.status.is_final for each in trials)
            return _because(base, f"cannot tell yet: {over} of {self.jobs} jobs are over")
        if not scored:
            return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
        base = replace(measured(base, trials), arm=demand.metric)
        found = [demand.figure(score, self.cell) for score in scored]
        values = [each for each in found if each is not None]
        if not values:
            return _because(base, f"cannot tell: no job tells {demand.metric}")
        kind, text = held(values, demand)
        short = self.jobs - len(values)
        if short and kind is VerdictKind.EQUIVALENT:
            kind = VerdictKind.INCONCLUSIVE
        lost = [f"cannot tell: {short} of {self.jobs} jobs do not tell it"] if short else []
        method = f"mean of {len(values)} jobs against the threshold, one-sided 5 % either way"
        told = _because(base, text, *lost)
        return replace(told, kind=kind, word=WORDS[kind], n=len(values), method=verbatim(method))


HELD = {VerdictKind.EQUIVALENT: "pass", VerdictKind.SLOWER: "fail"}


def our_word(verdict: Verdict) -> str:
    """Return a verdict in a word: pass, fail, cannot tell."""
    return HELD.get(verdict.kind, "cannot tell")


# a demand that is met says nothing of a difference
WORDS = {
    VerdictKind.EQUIVALENT: "PASS",
    VerdictKind.SLOWER: "FAIL",
    VerdictKind.INCONCLUSIVE: "CANNOT TELL",
}


def _because(verdict: Verdict, *reasons: str) -> Verdict:
    return replace(verdict, reasons=(*map(verbatim, reasons), *verdict.reasons))


def held(values: Sequence[float], demand: Demand) -> tuple[VerdictKind, str]:
    """Return the verdict on the values of the jobs, and its sentence.

    EQUIVALENT is a pass, SLOWER a fail, INCONCLUSIVE cannot tell.
    """
    mean = fmean(values)
    of = f" / {demand.of}" if demand.of else ""
    shown = f"{demand.metric}{of} is {mean:.6g} in the mean of {counted(len(values), 'job')}"
    if demand.value is None:
        return VerdictKind.EQUIVALENT, shown
    shown = f"{shown}, {demand.words} is demanded"
    limits = demand.limits
    is_same = max(values) - min(values) <= _ROUNDING * abs(mean)
    if is_same and (demand.of or demand.metric in _OF_LOSS):
        # a training without chance repeats its loss, and two figures of a job may be one number:
        # there is no noise to allow for
        holds = all(sign * (mean - level) >= 0 for sign, level in limits)
        kind = VerdictKind.EQUIVALENT if holds else VerdictKind.SLOWER
        return kind, f"{'pass' if holds else 'fail'}: {shown}; every job has the same"
    # a job has one score: judged step by step, a minimum two deviations of a step below the mean
    # fails 43 % of healthy runs of 24 steps
    kinds = {level: above([sign * each for each in values], sign * level) for sign, level in limits}
    if VerdictKind.SLOWER in kinds.values():
        return VerdictKind.SLOWER, f"fail: {shown}"
    unsure = [level for level, kind in kinds.items() if kind is not VerdictKind.EQUIVALENT]
    if not unsure:
        return VerdictKind.EQUIVALENT, f"pass: {shown}{_toothless(mean, values, demand)}"
    nearest = min(unsure, key=lambda level: abs(mean - level))
    return VerdictKind.INCONCLUSIVE, f"cannot tell: {shown}; {_enough(values, nearest)}"


_BITE = 0.8


def _toothless(mean: float, values: Sequence[float], demand: Demand) -> str:
    """Say where a threshold is far below, or so close that one healthy job misses it."""
    if demand.bound != _LEAST or demand.value is None or mean <= 0:
        return ""
    if demand.value < _BITE * mean:
        return f"; toothless: a loss of {1 - demand.value / mean:.0%} would pass"
    spread = stdev(values)
    if spread and demand.value > mean - 2 * spread:
        share = 0.5 * math.erfc((mean - demand.value) / spread / math.sqrt(2))
        return f"; a healthy job misses it in {share:.0%} of the runs"
    return ""


def _enough(values: Sequence[float], level: float) -> str:
    """Say how many jobs would decide it with 80 % power, were mean and noise as seen."""
    spread = stdev(values) if len(values) > 1 else 0.0
    distance = abs(fmean(values) - level)
    if not spread:
        return "the jobs do not differ at all, which no measurement of speed does"
    for jobs in range(MIN_DF + 1, _MOST_JOBS + 1):
        reach = t_quantile(0.95, jobs - 1) + t_quantile(0.8, jobs - 1)
        if distance > reach * spread / math.sqrt(jobs):
            return f"{jobs} jobs would decide it with 80 % power at the noise seen"
    return "no reasonable number of jobs would decide it: the mean is too close to the threshold"
