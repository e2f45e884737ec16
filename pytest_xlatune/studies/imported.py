"""What a table of somebody else's jobs can tell: an order, and how much of it is noise.

Nobody randomised these jobs and nobody knows what else changed between them, so no verdict goes
beyond SCREENED, whatever the difference. What runs of the same settings differ by is the noise; the
baseline, its repeats and the profiles that are known to do nothing are one control group, for a
baseline that ran once is as likely the slowest of them as any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from pytest_xlatune.cells import Cell, Trial
from pytest_xlatune.profiles import BASELINE_ID, Profile, parse_flags, settings_digest
from pytest_xlatune.records import Record, canonical
from pytest_xlatune.results import (
    Conclusion,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.stats.critical import t_quantile
from pytest_xlatune.studies import History

KIND = "imported"
CONTRADICTS = "invariant-violated"  # flag of a score whose TGS times seconds is not the cell's
_POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class ImportedStudy(Record):
    """The jobs of a table, and which of its profiles are known to do nothing.

    Not slotted, for what is derived from the fields is computed once.

    Attributes:
        cell: what the table says was held fixed.
        profiles: in the table's order, the baseline left out.
        no_ops: ids of profiles that do what the baseline does, as somebody said.
        idle: profile -> why it does what the baseline does, as the catalog knows.
        tokens: of one device in a step, which TGS times seconds must be; None where nobody said.
    """

    cell: Cell
    profiles: tuple[Profile, ...]
    no_ops: tuple[str, ...] = ()
    tokens: float | None = None
    idle: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The study's word."""
        return KIND

    def whole(self) -> ImportedStudy:
        """Return itself."""
        return self

    def left(self, history: History) -> int:  # noqa: ARG002 - the contract of a study
        """Return 0: what is imported is over."""
        return 0

    def propose(self, history: History) -> tuple[Trial, ...]:  # noqa: ARG002 - as above
        """Return nothing: what is imported cannot be repeated."""
        return ()

    def conclude(self, history: History) -> Conclusion:
        """Return the order of the profiles against the control group, and what noise allows."""
        ours = [each for each in history if each.trial.study == KIND]
        scores: dict[str, list[float]] = {}
        for each in ours:
            if each.score is not None and each.status is TrialStatus.MEASURED:
                scores.setdefault(each.trial.profile.id, []).append(each.score.value)
        control = [value for each in self._control for value in scores.get(each, [])]
        noise = _noise(self._groups(scores))
        verdicts = [
            self._verdict(each.id, ours, scores.get(each.id, []), control, noise)
            for each in self.profiles
        ]
        return Conclusion(
            verdicts=tuple(sorted(verdicts, key=_standing)),
            baseline=self._verdict(BASELINE_ID, ours, scores.get(BASELINE_ID, []), control, noise),
            sigma=noise.sigma if noise else None,
            mde80=noise.mde80(len(control)) if noise and control else None,
            complete=True,
            notes=tuple(self._notes(ours, scores, control, noise)),
        )

    @cached_property
    def _settings(self) -> Mapping[str, tuple[str, str]]:
        """Profile id -> what it comes to on top of what is deployed."""
        deployed = dict(self.cell.deployed)
        flags = parse_flags(deployed.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        return {
            BASELINE_ID: (settings_digest(flags, deployed), canonical({})),
            **{
                each.id: (
                    settings_digest((*flags, *each.flags), {**deployed, **each.env}),
                    canonical(each.overrides),
                )
                for each in self.profiles
            },
        }

    @cached_property
    def _control(self) -> tuple[str, ...]:
        """The baseline, what has its settings, and what is known to do nothing."""
        same = self._settings[BASELINE_ID]
        return tuple(
            each
            for each, settings in self._settings.items()
            if settings == same or each in self.no_ops or each in self.idle
        )

    def _groups(self, scores: Mapping[str, Sequence[float]]) -> list[list[float]]:
        """Return the scores of runs that should be equal, group by group."""
        groups: dict[tuple[str, str], list[float]] = {}
        for profile_id, found in scores.items():
            key = ("control", "") if profile_id in self._control else self._settings[profile_id]
            groups.setdefault(key, []).extend(found)
        return list(groups.values())

    def _verdict(
        self,
        profile_id: str,
        ours: Sequence[TrialResult],
        scores: Sequence[float],
        control: Sequence[float],
        noise: _Noise | None,
    ) -> Verdict:
        if not scores:
            trials = [each for each in ours if each.trial.profile.id == profile_id]
            dropped = any(each.status is TrialStatus.DROPPED for each in trials)
            return Verdict(
                profile=profile_id,
                kind=VerdictKind.INVALID,
                can_run=not dropped,
                reasons=tuple(dict.fromkeys(each.reason for each in trials if each.reason)),
                job_ids=tuple(job for each in trials for job in each.job_ids),
            )
        line = _line(profile_id, ours, kind=VerdictKind.SCREENED)
        if not control:
            return line
        difference = fmean(scores) - fmean(control)
        return Verdict.from_json(
            line.to_json()
            | {
                "delta": relative(difference),
                "reasons": self._reasons(profile_id, difference, len(scores), control, noise),
            }
        )

    def _reasons(
        self,
        profile_id: str,
        difference: float,
        runs: int,
        control: Sequence[float],
        noise: _Noise | None,
    ) -> list[str]:
        if profile_id in self._control:
            return ["does what the baseline does: part of the control group"]
        if noise is None:
            return ["nothing in the table was run twice: its noise is not known"]
        one = noise.reach(runs, len(control), comparisons=1)
        all_of_them = noise.reach(runs, len(control), comparisons=len(self.profiles))
        if abs(difference) <= one:
            return [f"inside the noise: two equal settings differ by up to {_percent(one)}"]
        if abs(difference) <= all_of_them:
            return [
                (
                    f"outside the noise of one comparison ({_percent(one)}), inside that of all "
                    f"{len(self.profiles)} ({_percent(all_of_them)})"
                )
            ]
        return [f"outside the noise of all comparisons ({_percent(all_of_them)}): worth a sweep"]

    def _notes(
        self,
        ours: Sequence[TrialResult],
        scores: Mapping[str, Sequence[float]],
        control: Sequence[float],
        noise: _Noise | None,
    ) -> list[str]:
        notes = ["imported: the order of the jobs was not randomised; single runs rank, no more"]
        if noise is not None:
            notes.append(
                f"noise from runs of equal settings: {100 * noise.sigma:.2f} % between jobs, "
                f"{noise.df} degrees of freedom"
            )
        notes += [
            f"{name} is a control, for the catalog says: {why}" for name, why in self.idle.items()
        ]
        base = scores.get(BASELINE_ID, [])
        if base and len(control) > len(base):
            shift = relative(fmean(base) - fmean(control))
            notes.append(
                f"changes are against the mean of the {len(control)} runs that do what the "
                f"baseline does; the baseline's own runs are {100 * shift:+.2f} % from it"
            )
        elif len(base) == 1:
            notes.append("one baseline run: every change has its error in it, the same for all")
        for each in ours:
            if each.score is not None and CONTRADICTS in each.score.flags:
                product = each.score.tgs * each.score.step_s
                expected = "that of most" if self.tokens is None else f"{self.tokens:g}"
                notes.append(
                    f"contradiction: job {', '.join(each.job_ids)} ({each.trial.profile.id}) has "
                    f"{each.score.tgs:g} TGS x {each.score.step_s:g} s = {product:.6g} tokens a "
                    f"step, expected {expected}: one of the two figures is wrong"
                )
        return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """Standard deviation of a job's score between jobs, and what it rests on."""

    sigma: float
    df: int

    def reach(self, runs: int, control: int, *, comparisons: int) -> float:
        """Return how far equal settings come apart in 95 of 100 tables, as a log ratio."""
        tail = 0.025 / comparisons
        return t_quantile(1 - tail, self.df) * self.sigma * math.sqrt(1 / runs + 1 / control)

    def mde80(self, control: int) -> float:
        """Return the change that a single run shows with 80 % power, in one comparison."""
        t = t_quantile(0.975, self.df) + t_quantile(_POWER, self.df)
        return relative(t * self.sigma * math.sqrt(1 + 1 / control))


def _noise(groups: Sequence[Sequence[float]]) -> _Noise | None:
    """Pool the noise inside the groups; None where no group has two runs."""
    repeated = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in repeated)
    if not df:
        return None
    squares = sum((value - fmean(group)) ** 2 for group in repeated for value in group)
    return _Noise(sigma=math.sqrt(squares / df), df=df)


def _line(profile_id: str, ours: Sequence[TrialResult], *, kind: VerdictKind) -> Verdict:
    """Return the geometric means and the jobs of a profile's scored runs."""
    found = [
        (each, each.score)
        for each in ours
        if each.trial.profile.id == profile_id and each.score is not None
    ]
    if not found:
        return Verdict(profile=profile_id, kind=VerdictKind.INCONCLUSIVE)
    return Verdict(
        profile=profile_id,
        kind=kind,
        n=len(found),
        tgs=math.exp(fmean(score.value for _, score in found)),
        step_s=math.exp(fmean(math.log(score.step_s) for _, score in found)),
        job_ids=tuple(job for each, _ in found for job in each.job_ids),
    )


def _standing(verdict: Verdict) -> tuple[int, float]:
    delta = verdict.delta
    return (1, 0.0) if delta is None else (0, -delta)


def _percent(log_ratio: float) -> str:
    return f"{100 * relative(log_ratio):.1f} %"
