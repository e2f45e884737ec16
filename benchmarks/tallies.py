"""What sweeps of one world came to: false winners, winners found, intervals that hold the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from simcluster import World, sweep

from pytest_xlatune.model.result import TrialResult, VerdictKind


@dataclass(kw_only=True)
class Tally:
    """Counts over sweeps of one world."""

    sweeps: int = 0
    false_sweeps: int = 0
    true_winners: int = 0
    found: int = 0
    any_found: int = 0
    confirmed: int = 0
    covered: int = 0
    covered_winners: int = 0
    bias: list[float] = field(default_factory=list)
    most_jobs: int = 0
    stopped: int = 0
    bounded: int = 0
    bound_holds: int = 0
    with_bound: int = 0
    slower: int = 0
    false_slower: int = 0
    wordless: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the same world."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            merged = max(mine, theirs) if each.name == "most_jobs" else mine + theirs
            setattr(self, each.name, merged)

    @property
    def false_rate(self) -> float:
        """Share of sweeps with at least one false winner."""
        return self.false_sweeps / self.sweeps

    @property
    def power(self) -> float:
        """Share of true winners that are found."""
        return self.found / self.true_winners if self.true_winners else math.nan

    @property
    def any_rate(self) -> float:
        """Share of sweeps that find at least one."""
        return self.any_found / self.sweeps if self.true_winners else math.nan

    @property
    def coverage(self) -> float:
        """Share of 95 % intervals of confirmed deltas that hold the truth."""
        return self.covered / self.confirmed if self.confirmed else math.nan

    @property
    def winner_coverage(self) -> float:
        """The same, given that it was found."""
        return self.covered_winners / self.found if self.found else math.nan

    @property
    def mean_bias(self) -> float:
        """Mean error of the delta of those found."""
        return math.fsum(self.bias) / len(self.bias) if self.bias else math.nan


def measure(world: World, seeds: range) -> Tally:
    """Run the sweeps of these seeds and count."""
    tally = Tally()
    for seed in seeds:
        conclusion, history = sweep(world, seed)
        tally.sweeps += 1
        # an evidence run is a job beside the budget
        jobs = [each for each in history if each.trial.protocol.is_scored]
        tally.most_jobs = max(tally.most_jobs, len(jobs))
        # what got no slot could not be found
        screened = (each.trial for each in jobs if each.trial.is_screened)
        singles = {each.profile.id for each in screened if not each.is_baseline}
        tally.true_winners += sum(world.truth_of(each) > 0 for each in singles if "+" not in each)
        false, found, harmless = 0, 0, 0
        for verdict in conclusion.verdicts:
            if verdict.ci95 is None or verdict.delta is None:
                continue
            truth = world.truth_of(verdict.arm)
            is_covered = verdict.ci95[0] <= truth <= verdict.ci95[1]
            tally.confirmed += 1
            tally.covered += is_covered
            tally.slower += verdict.kind is VerdictKind.SLOWER
            harmless += verdict.kind is VerdictKind.SLOWER and truth >= 0
            lost = _lost_runs(verdict.arm, jobs)
            is_told = verdict.lost is not None and verdict.lost.lost == lost and verdict.n > 2
            tally.wordless += verdict.kind is VerdictKind.FASTER and lost > 0 and not is_told
            if verdict.kind is VerdictKind.FASTER and truth > 0:
                found += 1
                tally.covered_winners += is_covered
                tally.bias.append(verdict.delta - truth)
            elif verdict.kind is VerdictKind.FASTER:
                false += 1
        tally.false_sweeps += false > 0
        tally.false_slower += harmless > 0
        tally.found += found
        tally.any_found += found > 0
        tally.stopped += any(
            note.text
            == (
                "{arm} gains {change:percent} and its lower bound is above {excluded:percent}: "
                "you may stop here"
            )
            for note in conclusion.notes
        )
        if conclusion.tuning.bound is not None:
            tally.with_bound += 1
            tally.bounded += conclusion.tuning.bound < 0.02
            measured = [world.truth_of(each.arm) for each in conclusion.verdicts]
            tally.bound_holds += conclusion.tuning.bound >= max(*measured, 0.0)
    return tally


def _lost_runs(arm: str, jobs: Sequence[TrialResult]) -> int:
    own = [each for each in jobs if each.trial.arm == arm and each.trial.block]
    return sum(each.score is None for each in own)
