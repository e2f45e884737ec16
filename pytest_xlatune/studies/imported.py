"""Rank the profiles of a table of jobs that others ran, and say how much of the order is noise.

These jobs were not randomised, and it is not known what else changed between them, so no verdict
goes beyond SCREENED, whatever the difference. The noise is estimated from runs with equal settings.
The baseline, its repeats and the profiles known to do nothing form one control group, because a
baseline that ran once may be slow by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Effective, Profile
from pytest_xlatune.model.result import (
    Conclusion,
    NoiseRecord,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.studies import Decision, History, Outlook, remembered
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import OneCell, deployed, job_ids_of, with_figures

KIND = "imported"
# the first part of the key of a profile whose settings the table does not name
_UNKNOWN = "the settings of"


class ImportedStudy(OneCell, frozen=True, kw_only=True, dict=True):
    """The jobs of a table, and which of its profiles are known to do nothing.

    Attributes:
        cell: what the table says was held fixed.
        profiles: the profiles in the order of the table, without the baseline.
        no_ops: ids of the profiles that do nothing, according to the user.
    """

    cell: Cell
    profiles: tuple[Profile, ...]
    no_ops: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kind of study."""
        return KIND

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the order of the profiles relative to the control group; nothing is run."""
        runs = [result for result in history if result.trial.study == KIND]
        arms = tuple(deployed(self.cell, profile) for profile in (BASELINE, *self.profiles))
        return Decision(due=(), arms=arms, concluded=lambda: _conclusion(self, runs))

    def outlook(self, history: History) -> Outlook:
        """Return an outlook without trials."""
        del history
        return Outlook.of((), lines=(say("nothing is run: the jobs of the table are over"),))

    @cached_property
    def settings(self) -> Mapping[str, tuple[str, str]]:
        """Profile id -> a key that is equal for equal effective settings."""
        effective = Effective(self.cell.deployed)
        return {
            profile.id: (_UNKNOWN, profile.id)
            if profile.id in self.without_settings
            else effective.key(profile)
            for profile in (BASELINE, *self.profiles)
        }

    @cached_property
    def without_settings(self) -> frozenset[str]:
        """The profiles of which the table names no setting."""
        return frozenset(
            profile.id
            for profile in self.profiles
            if not (profile.flags or profile.env or profile.overrides)
        )

    @cached_property
    def controls(self) -> tuple[str, ...]:
        """The baseline, profiles with the same settings, and those known to do nothing."""
        same = self.settings[BASELINE_ID]
        return tuple(
            name
            for name, settings in self.settings.items()
            if settings == same or name in self.no_ops
        )


def _conclusion(study: ImportedStudy, runs: Sequence[TrialResult]) -> Conclusion:
    """Return the order of the profiles relative to the control group, and what noise allows."""
    scores: dict[str, list[float]] = {}
    for result in runs:
        if (score := usable(result)) is not None:
            scores.setdefault(result.trial.arm, []).append(score.value)
    control = [value for name in study.controls for value in scores.get(name, [])]
    noise = _noise(study, scores)

    def verdict(name: str) -> Verdict:
        """Return the SCREENED verdict on a profile: its change against the control group."""
        trials = [result for result in runs if result.trial.arm == name]
        if name not in scores:
            return Verdict(
                arm=name,
                kind=VerdictKind.INVALID,
                can_run=all(result.status is not TrialStatus.DROPPED for result in trials),
                reasons=tuple(dict.fromkeys(result.reason for result in trials if result.reason)),
                job_ids=job_ids_of(trials),
            )
        line = with_figures(Verdict(arm=name, kind=VerdictKind.SCREENED), trials)
        if not control:
            return line
        difference = fmean(scores[name]) - fmean(control)
        if name in study.controls:
            why = say("does what the baseline does: part of the control group")
        elif noise is None:
            why = say("nothing in the table was run twice: its noise is not known")
        else:
            why = noise.explain(
                abs(difference), len(scores[name]), len(control), profiles=len(study.profiles)
            )
        return replace(line, delta=relative(difference), reasons=(why,))

    return Conclusion(
        verdicts=tuple(sorted((verdict(profile.id) for profile in study.profiles), key=_place)),
        reference=verdict(BASELINE_ID),
        record=NoiseRecord(
            sigma=noise.sigma if noise else None,
            mde80=noise.mde80(len(control)) if noise and control else None,
        ),
        complete=True,
        notes=tuple(_notes(study, noise)),
    )


def _notes(study: ImportedStudy, noise: _Noise | None) -> Iterator[Message]:
    """Yield what a reader of the table should know."""
    yield say("imported: the order of the jobs was not randomised; single runs rank, no more")
    if noise is not None:
        yield say(
            "noise from runs of equal settings: {sigma:.2%} between jobs, {df:+degree} of freedom",
            sigma=noise.sigma,
            df=noise.df,
        )
    unknown = sorted(study.without_settings - {*study.controls})
    if unknown:
        yield say(
            "the table does not name the settings of {profiles}: each is a profile of "
            "its own; name the ones that do nothing with --no-op",
            profiles=unknown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """Standard deviation of a score between jobs, and its degrees of freedom."""

    sigma: float
    df: int

    def explain(self, difference: float, runs: int, control: int, *, profiles: int) -> Message:
        """Return whether noise explains a difference, in one comparison or in all of them.

        Args:
            difference: the absolute difference of two means of log scores.
            runs: number of runs of the profile.
            control: number of runs of the control group.
            profiles: number of profiles, each of which is compared.
        """

        def largest_by_noise(comparisons: int) -> float:
            """Return the largest difference of equal settings in 95 of 100 tables."""
            error = self.sigma * math.sqrt(1 / runs + 1 / control)
            return t_quantile(1 - 0.025 / comparisons, self.df) * error

        in_one, in_all = largest_by_noise(1), largest_by_noise(profiles)
        if difference <= in_one:
            text = "inside the noise: two equal settings differ by up to {one:size}"
            return say(text, one=relative(in_one))
        if difference <= in_all:
            return say(
                "outside the noise of one comparison ({one:size}), inside that of all "
                "{profiles} ({every:size})",
                one=relative(in_one),
                every=relative(in_all),
                profiles=profiles,
            )
        text = "outside the noise of all comparisons ({every:size}): worth a sweep"
        return say(text, every=relative(in_all))

    def mde80(self, control: int) -> float:
        """Return the change that a single run shows with 80 % power, in one comparison."""
        t = t_quantile(0.975, self.df) + t_quantile(0.8, self.df)
        return relative(t * self.sigma * math.sqrt(1 + 1 / control))


def _noise(study: ImportedStudy, scores: Mapping[str, Sequence[float]]) -> _Noise | None:
    """Return the noise between runs of equal settings; None if no group has two runs."""
    groups: dict[tuple[str, str], list[float]] = {}
    for name, run_scores in scores.items():
        key = ("control", "") if name in study.controls else study.settings[name]
        groups.setdefault(key, []).extend(run_scores)
    repeated = [group for group in groups.values() if len(group) > 1]
    df = sum(len(group) - 1 for group in repeated)
    squares = sum((value - fmean(group)) ** 2 for group in repeated for value in group)
    return _Noise(sigma=math.sqrt(squares / df), df=df) if df else None


def _place(verdict: Verdict) -> tuple[int, float]:
    """Return a sort key: the largest change first, profiles without one last."""
    return (1, 0.0) if verdict.delta is None else (0, -verdict.delta)
