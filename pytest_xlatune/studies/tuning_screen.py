"""The screen of a tuning sweep: every profile measured once against the line of its baselines.

What comes out ranks and bounds; nothing here is a verdict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.cells import Stage
from pytest_xlatune.results import TrialResult
from pytest_xlatune.stats.line import Line, combine, fit_line
from pytest_xlatune.studies.tuning_history import Past, place, usable
from pytest_xlatune.studies.tuning_layout import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A screened profile: log ratio to the line, its variance in units of sigma^2."""

    estimate: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What the screen says.

    Attributes:
        standings: by profile id.
        squares: sum of squared residuals of all baseline lines.
        df: their degrees of freedom.
        baselines: how many baselines were scored.
    """

    standings: Mapping[str, Standing]
    squares: float
    df: int
    baselines: int

    @property
    def sigma(self) -> float | None:
        """Standard deviation of one job's score, from the baselines alone."""
        return math.sqrt(self.squares / self.df) if self.df > 0 and self.squares > 0 else None


def screen(past: Past, segments: Iterable[Segment]) -> Screen:
    """Fit one line per wave and epoch and read every scored profile against its own."""
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    lines: list[Line] = []
    for segment in segments:
        for epoch in _by_epoch(past, segment):
            line = fit_line([(at, value) for each, at, value in epoch if each.trial.is_baseline])
            if line is None:
                continue
            lines.append(line)
            for each, at, value in epoch:
                if not each.trial.is_baseline:
                    runs[each.trial.profile.id].append((value - line.at(at), line.leverage(at)))
    combined = {profile_id: combine(found) for profile_id, found in runs.items()}
    return Screen(
        standings={
            profile_id: Standing(estimate=estimate, variance=variance)
            for profile_id, (estimate, variance) in combined.items()
        },
        squares=math.fsum(line.squares for line in lines),
        df=sum(line.df for line in lines),
        baselines=sum(line.n for line in lines),
    )


_Slotted = tuple[TrialResult, float, float]  # trial, slot, score


def _by_epoch(past: Past, segment: Segment) -> Sequence[Sequence[_Slotted]]:
    """Return the scored trials of a wave, apart where scores stopped being comparable."""
    planned = {place(trial): at for at, trial in enumerate(segment.trials)}
    scored = [
        (result, score.value)
        for key, result in past.screen.items()
        if (key in planned or (key[0] == segment.wave and result.trial.is_baseline))
        and result.trial.stage is Stage.SCREEN
        and (score := usable(result)) is not None
    ]
    slots = _slots([result for result, _ in scored], planned)
    epochs: dict[int, list[_Slotted]] = defaultdict(list)
    for result, value in scored:
        slot = slots.get(place(result.trial))
        if slot is not None:
            epochs[result.epoch].append((result, slot, value))
    return [epochs[epoch] for epoch in sorted(epochs)]


def _slots(
    results: Sequence[TrialResult], planned: Mapping[tuple[str, int, str, int], int]
) -> Mapping[tuple[str, int, str, int], float]:
    """Return each trial's slot: its rank by the time it started, or its planned place."""
    starts = {
        place(each.trial): each.outcome.start_s
        for each in results
        if each.outcome is not None and each.outcome.start_s is not None
    }
    if len(starts) < len(results):
        return {key: float(at) for key, at in planned.items()}
    return {key: float(at) for at, key in enumerate(sorted(starts, key=lambda k: (starts[k], k)))}
