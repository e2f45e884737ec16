"""The screen of a tuning sweep: every profile is measured once and compared with baselines.

The screen ranks and bounds; it gives no verdict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median

from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.stats.blocks import (
    Estimate,
    Line,
    combine,
    fit_lines,
    is_apart,
    main_group,
)
from pytest_xlatune.stats.components import PlacedScore, fit_components
from pytest_xlatune.stats.rotations import COPIES
from pytest_xlatune.studies.trials import AGAIN, Past, Place, Segment, place, usable


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The result of the screen.

    Attributes:
        standings: profile id -> its log ratio to the baselines, for the profiles with a score.
        squares: sum of squared residuals over all lines of baselines.
        df: the degrees of freedom of the residuals.
        turned: ids of the profiles that only rotations have measured so far.
    """

    standings: Mapping[str, Estimate]
    squares: float
    df: int
    turned: frozenset[str] = frozenset()

    @property
    def sigma(self) -> float | None:
        """Standard deviation of a job's score, from the baselines alone; None if there are few."""
        return math.sqrt(self.squares / self.df) if self.df > 0 and self.squares > 0 else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of a job's score, from the profiles that differ only by noise.

        None if there are few profiles.
        """
        scaled = [
            screened.estimate / math.sqrt(screened.variance) for screened in self.standings.values()
        ]
        if len(scaled) < _ENOUGH:
            return None
        return main_group([scaled])[1] or None

    @property
    def level(self) -> float:
        """Estimated log ratio of a profile without effect, to the baselines.

        It is 0, or the middle of the profiles if that is lower: a few baselines may all err in one
        direction, but many profiles without effect do not.
        """
        estimates = [screened.estimate for screened in self.standings.values()]
        if len(estimates) < _ENOUGH:
            return 0.0
        (middle,), _ = main_group([estimates])
        return min(0.0, middle)


_ENOUGH = 10  # with so many profiles, their spread shows the noise
_ANOTHER_SESSION = 4.0  # a pause above so many median pauses begins another session


# The turns of a rotation do not show all variance of a program's change: programs of one process
# differ, and so do the baseline's copies. This is the rest, in units of a job's variance. Half of a
# job's variance is assumed to be between programs; they share the other half.
_VARIANCE_BETWEEN_PROGRAMS = 0.5 * (1 + 1 / COPIES)


def screen(
    past: Past, segments: Iterable[Segment], *, sigma: float, has_second: bool = False
) -> Ranking:
    """Fit one line through all baselines of an epoch and compare every scored profile with it.

    The line covers all waves; its slope comes from baselines and profiles together. A wave that was
    measured in another session gets its own level if a test shows that its baselines differ.
    Several node slots have a level each, and share the slope over time. A profile's changes in
    rotations are combined with its change from the line; their variance is expressed in `sigma`,
    the noise of a job.

    If `has_second`, profiles that ran twice have the mean of their runs. The lines come from first
    runs in any case, because only the best ran twice.
    """
    segments = tuple(segments)
    if past.is_split:
        return _screen_on_slots(past, segments, has_second=has_second)
    runs: dict[str, list[Estimate]] = defaultdict(list)
    lines: list[Line] = []
    waves = {segment.wave for segment in segments}
    # All waves share a line, because one wave alone has two baselines: with a line for each of four
    # waves, a sweep finds 71.6 % of winners instead of 79.7 %.
    for _, queue in _queues(past, segments, waves):
        for line, part in _parts_with_lines(queue):
            lines.append(line)
            for result, time, value in part:
                if not result.trial.is_baseline:
                    change = Estimate(value - line.expected(time), line.leverage(time))
                    runs[result.trial.profile.id].append(change)
    in_rotations: dict[str, list[Estimate]] = defaultdict(list)
    for key, result in past.screen.items():
        turns = result.rotation.score if result.rotation is not None else None
        if key.stage in waves and turns is not None and usable(result) is not None:
            for program in turns.programs:
                error = sigma if program.error is None else program.error
                variance = _VARIANCE_BETWEEN_PROGRAMS + (error / sigma) ** 2
                in_rotations[key.arm].append(Estimate(program.change, variance))
    turned = frozenset(in_rotations.keys() - runs.keys())
    for profile_id, changes in in_rotations.items():
        runs[profile_id] += changes
    standings = {profile_id: combine(parts) for profile_id, parts in runs.items()}
    if has_second:
        standings |= _second_run_means(past, standings)
    return Ranking(
        standings=standings,
        squares=math.fsum(line.squares for line in lines),
        df=sum(line.df for line in lines),
        turned=turned,
    )


def _screen_on_slots(past: Past, segments: Sequence[Segment], *, has_second: bool) -> Ranking:
    """Fit the lines of all slots together; a slot whose nodes were replaced counts as two.

    With one baseline on each slot, only the blocks can show the noise.
    """
    stages = {segment.wave for segment in segments} | ({AGAIN} if has_second else set())
    jobs = [
        (
            result,
            PlacedScore(slot=slot, place=time, value=value, is_baseline=result.trial.is_baseline),
        )
        for slot, queue in _queues(past, segments, stages)
        for result, time, value in queue
    ]
    # second runs are of the best alone, and would bend the lines
    lines = fit_components([job for result, job in jobs if result.trial.stage != AGAIN])
    runs: dict[str, list[Estimate]] = defaultdict(list)
    for result, job in jobs:
        if lines is not None and not job.is_baseline and job.slot in lines.levels:
            change = job.value - lines.expected(job.slot, job.place)
            estimate = Estimate(change, lines.leverage(job.slot, job.place))
            runs[result.trial.profile.id].append(estimate)
    standings = {name: combine(estimates) for name, estimates in runs.items()}
    return Ranking(standings=standings, squares=0.0, df=0)


def _second_run_means(past: Past, first: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return profile -> mean of its two runs, and the variance of that, for one slot.

    No baseline runs beside second runs, so in each epoch their mean is set to that of the first
    runs of the same profiles. The baselines' error is in both runs, so a second run halves only the
    variance of the job.

    `first` is profile -> log ratio of its first run, and its variance in sigma^2.
    """
    second_scores: dict[int, dict[str, float]] = defaultdict(dict)
    for key, result in past.screen.items():
        if key.stage == AGAIN and (score := usable(result)) is not None and key.arm in first:
            second_scores[result.epoch][key.arm] = score.value
    means = {}
    for scores in second_scores.values():
        shift = fmean(value - first[arm].estimate for arm, value in scores.items())
        for arm, value in scores.items():
            first_change, variance = first[arm]
            means[arm] = Estimate((first_change + value - shift) / 2, variance - 1 / 2)
    return means


_Job = tuple[TrialResult, float, float]  # trial, place in time, score


def _queues(
    past: Past, segments: Sequence[Segment], stages: Collection[str]
) -> Iterator[tuple[tuple[str, int], list[_Job]]]:
    """Yield each cell and epoch with its scored jobs of these stages, in the order of their starts.

    If the start of one is unknown, they are in the order of the plan.
    """
    planned = {
        place(trial): at
        for at, trial in enumerate(trial for segment in segments for trial in segment.trials)
    }
    queues: dict[tuple[str, int], list[tuple[Place, TrialResult, float]]] = defaultdict(list)
    for key, result in past.screen.items():
        score = usable(result)
        if key.stage in stages and result.rotation is None and score is not None:
            queues[result.trial.cell_digest, result.epoch].append((key, result, score.value))
    for slot, queue in sorted(queues.items(), key=itemgetter(0)):
        queue.sort(key=lambda job: (planned.get(job[0], len(planned)), job[0]))
        are_known = all(result.start_s is not None for _, result, _ in queue)
        if are_known:
            queue.sort(key=lambda job: job[1].start_s or 0.0)
        # a job that was lost leaves a gap in the plan of the only slot
        keys = None if are_known or past.is_split else planned
        yield (
            slot,
            [
                (result, float(at if keys is None else keys.get(key, at)), value)
                for at, (key, result, value) in enumerate(queue)
            ],
        )


def _parts_with_lines(queue: Sequence[_Job]) -> Iterator[tuple[Line, Sequence[_Job]]]:
    """Yield the line of each part of a queue, and the part; parts without a baseline have none.

    A part is one session, or several whose baselines do not differ.
    """
    parts: list[list[_Job]] = []
    for session in _sessions(queue):
        if parts and not is_apart(_baselines(parts[-1]), _baselines(session)):
            parts[-1] += session
        else:
            parts.append(session)
    with_line = [part for part in parts if _baselines(part)]
    # profiles of each wave have their own level, so that a good wave does not tilt the line
    profile_points: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for number, part in enumerate(with_line):
        for result, time, value in part:
            if not result.trial.is_baseline:
                profile_points[number, result.trial.stage].append((time, value))
    lines = fit_lines(
        [_baselines(part) for part in with_line], others=list(profile_points.values())
    )
    yield from zip(lines, with_line, strict=True)


def _baselines(jobs: Sequence[_Job]) -> list[tuple[float, float]]:
    return [(time, value) for result, time, value in jobs if result.trial.is_baseline]


def _sessions(queue: Sequence[_Job]) -> list[list[_Job]]:
    """Return the jobs of a queue, divided where a wave began after a long pause.

    If the start of any trial is unknown, they are not divided.
    """
    starts = [result.start_s for result, _, _ in queue if result.start_s is not None]
    # one or two pauses never exceed this multiple of their median
    if len(starts) < max(len(queue), _ANOTHER_SESSION):
        return [[*queue]]
    pauses = [after - before for before, after in pairwise(starts)]
    long_pause = _ANOTHER_SESSION * median(pauses)
    sessions = [[queue[0]]]
    for pause, (before, job) in zip(pauses, pairwise(queue), strict=True):
        if pause > long_pause and job[0].trial.stage != before[0].trial.stage:
            sessions.append([])
        sessions[-1].append(job)
    return sessions
