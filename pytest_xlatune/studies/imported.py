"""Rank the profiles of a table of jobs that others ran, and say how much of the order is noise.

These jobs were not randomised, and it is not known what else changed between them, so no verdict
goes beyond SCREENED, whatever the difference. The noise is estimated from runs with equal settings.
The baseline, its repeats and the profiles known to do nothing form one control group, because a
baseline that ran once may be slow by chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import say
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
        return Decision(due=(), arms=arms, concluded=lambda: self._concluded(runs))

    def outlook(self, history: History) -> Outlook:
        """Return an outlook without trials."""
        del history
        return Outlook.of((), lines=(say("nothing is run: the jobs of the table are over"),))

    @cached_property
    def groups(self) -> Mapping[str, Hashable]:
        """Profile id -> its group of equal settings; that of the baseline is the control group."""
        effective = Effective(self.cell.deployed)
        control = effective.key(BASELINE)
        groups: dict[str, Hashable] = {BASELINE_ID: control}
        for profile in self.profiles:
            # a profile of which the table names no setting is no repeat of the baseline
            group = profile.id if profile.is_baseline else effective.key(profile)
            groups[profile.id] = control if profile.id in self.no_ops else group
        return groups

    def _concluded(self, runs: Sequence[TrialResult]) -> Conclusion:
        """Return the order of the profiles, and the noise between runs of equal settings."""
        scores: dict[Hashable, list[float]] = defaultdict(list)
        for result in runs:
            if (score := usable(result)) is not None:
                scores[self.groups[result.trial.arm]].append(score.value)
        control = scores[self.groups[BASELINE_ID]]
        df = sum(len(group) - 1 for group in scores.values() if group)
        squares = [(value - fmean(group)) ** 2 for group in scores.values() for value in group]
        sigma = math.sqrt(math.fsum(squares) / df) if df else None

        def verdict(name: str) -> Verdict:
            """Return the SCREENED verdict on a profile: its change against the control group."""
            trials = [result for result in runs if result.trial.arm == name]
            values = [score.value for result in trials if (score := usable(result)) is not None]
            if not values:
                return Verdict(
                    arm=name,
                    kind=VerdictKind.INVALID,
                    can_run=all(result.status is not TrialStatus.DROPPED for result in trials),
                    reasons=tuple(dict.fromkeys(run.reason for run in trials if run.reason)),
                    job_ids=job_ids_of(trials),
                )
            line = with_figures(Verdict(arm=name, kind=VerdictKind.SCREENED), trials)
            if not control:
                return line
            change = fmean(values) - fmean(control)
            if self.groups[name] == self.groups[BASELINE_ID]:
                why = say("does what the baseline does: part of the control group")
            elif sigma is None:
                why = say("nothing in the table was run twice: its noise is not known")
            else:
                # the largest change without an effect, over all profiles, in 95 of 100 tables
                error = sigma * math.sqrt(1 / len(values) + 1 / len(control))
                most = t_quantile(1 - 0.025 / len(self.profiles), df) * error
                text = "inside the noise of all comparisons ({most:size})"
                if abs(change) > most:
                    text = "outside the noise of all comparisons ({most:size}): worth a sweep"
                why = say(text, most=relative(most))
            return replace(line, delta=relative(change), reasons=(why,))

        return Conclusion(
            # the largest change first, profiles without one last
            verdicts=tuple(
                sorted(
                    (verdict(profile.id) for profile in self.profiles),
                    key=lambda verdict: (verdict.delta is None, -(verdict.delta or 0.0)),
                )
            ),
            reference=verdict(BASELINE_ID),
            record=NoiseRecord(sigma=sigma),
            complete=True,
            notes=(
                say(
                    "imported: the order of the jobs was not randomised; single runs rank, no more"
                ),
            ),
        )
