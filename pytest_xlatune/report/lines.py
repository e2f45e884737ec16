"""What is said of one verdict or one trial in a few words, a line, a paragraph.

The same words stand in a test's message, in junit, in the terminal and in the reports. This module
must not know which of them is asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pytest_xlatune.cells import Cell, Stage
from pytest_xlatune.profiles import BASELINE_ID
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.figures import (
    ABSENT,
    duration,
    interval,
    percent,
    rate,
    significant,
    size,
)
from pytest_xlatune.results import TrialResult, TrialStatus, Verdict, VerdictKind


def is_pending(verdict: Verdict) -> bool:
    """Whether there is nothing to say yet: no trial of the profile is over."""
    return verdict.kind is VerdictKind.INCONCLUSIVE and not verdict.n


def words(verdict: Verdict) -> str:
    """Say a verdict in the few words of a table's cell or a test's status."""
    match verdict.kind:
        case VerdictKind.SCREENED:
            return f"screened {percent(verdict.delta)} (n={verdict.n})"
        case VerdictKind.INCONCLUSIVE if is_pending(verdict):
            return "not measured yet"
        case VerdictKind.INCONCLUSIVE if verdict.mde80 is not None:
            return f"inconclusive (80 % power at {size(verdict.mde80)})"
        case VerdictKind.INCONCLUSIVE:
            return "inconclusive"
        case VerdictKind.INVALID if verdict.is_needless:
            return "not run"
        case VerdictKind.INVALID if not verdict.can_run:
            return "dropped"
        case VerdictKind.INVALID:
            return "not comparable" if verdict.n else "not measured"
        case _:
            return verdict.kind.value


def paragraph(verdict: Verdict) -> str:
    """Say all that is known of a profile in one plain paragraph.

    Delta, interval, n, method, the smallest effect that would have been found, the reasons and the
    jobs: the message of a failed test, and the profile's paragraph in a report.
    """
    is_baseline = verdict.profile == BASELINE_ID
    kind = "(the cell as deployed)" if is_baseline else str(verdict.kind)
    if verdict.kind is VerdictKind.INVALID:
        kind = f"{verdict.kind} ({words(verdict)})"
    reasons = "; ".join(plain(each).rstrip(".") for each in verdict.reasons)
    sentences = [f"{verdict.profile} {kind}" + (f": {reasons}" if reasons else "")]
    if verdict.tgs is not None:
        sentences.append(f"{rate(verdict.tgs)} TGS, {significant(verdict.step_s)} s/step")
    if verdict.delta is not None and not is_baseline:
        ends = f"95 % interval {interval(verdict.ci95)}" if verdict.ci95 else "no interval"
        sentences.append(f"Delta {percent(verdict.delta)} against baseline-deployed, {ends}")
    if verdict.n:
        sentences.append(f"n = {verdict.n}" + (f" ({verdict.method})" if verdict.method else ""))
    if verdict.mde80 is not None:
        sentences.append(f"Smallest effect found with 80 % power: {size(verdict.mde80)}")
    if verdict.job_ids:
        sentences.append(f"Jobs: {', '.join(verdict.job_ids)}")
    return " ".join(f"{sentence}." for sentence in sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a sweep stands.

    Attributes:
        screened, to_screen: profiles through the screen, of how many.
        confirmed, to_confirm: trials of the confirmation that are over, of how many.
        running: trials that run now.
        step, steps: last step of one that runs, of how many; None where no step is known yet.
        left_s: seconds that the rest may take; None where nothing is known.
    """

    screened: int
    to_screen: int
    confirmed: int = 0
    to_confirm: int = 0
    running: int = 0
    step: int | None = None
    steps: int | None = None
    left_s: float | None = None

    @classmethod
    def of(
        cls,
        history: Sequence[TrialResult],
        *,
        step: int | None = None,
        left_s: float | None = None,
    ) -> Self:
        """Count a history that holds every trial that is planned so far."""
        screen = [
            each
            for each in history
            if each.trial.stage is Stage.SCREEN and not each.trial.is_baseline
        ]
        confirm = [each for each in history if each.trial.stage is Stage.CONFIRM]
        running = [each for each in history if each.status is TrialStatus.RUNNING]
        return cls(
            screened=sum(each.status.is_final for each in screen),
            to_screen=len(screen),
            confirmed=sum(each.status.is_final for each in confirm),
            to_confirm=len(confirm),
            running=len(running),
            step=step,
            steps=running[0].trial.protocol.steps if running else None,
            left_s=left_s,
        )

    def __str__(self) -> str:
        parts = []
        if self.to_screen or not (self.to_confirm or self.left_s is not None):
            parts.append(f"{self.screened}/{self.to_screen} screened")
        if self.to_confirm:
            parts.append(f"{self.confirmed}/{self.to_confirm} confirmation trials")
        if self.running:
            at = f" step {self.step}/{self.steps}" if self.step is not None and self.steps else ""
            parts.append(f"{self.running} running{at}")
        if self.left_s is not None:
            parts.append(f"about {duration(self.left_s)} left")
        return ", ".join(parts)


def live_line(
    result: TrialResult, *, cell: Cell, verdict: Verdict | None, progress: Progress
) -> str:
    """Say in one line that a trial has landed, and where the sweep stands."""
    job = f" (job {result.job_ids[-1]})" if result.job_ids else ""
    head = f"{cell.label} {result.trial.profile.id}{job}"
    return f"{head} {_landed(result, verdict)} | {progress}"


def evidence_line(result: TrialResult, *, cell: Cell) -> str:
    """Say in one line that an evidence run is over: it has no figure."""
    job = f" (job {result.job_ids[-1]})" if result.job_ids else ""
    is_there = result.status is TrialStatus.MEASURED
    said = "ran with profiler and dump" if is_there else f"left no evidence: {result.reason}"
    return f"{cell.label} {result.trial.profile.id}{job} {plain(said)}"


def _landed(result: TrialResult, verdict: Verdict | None) -> str:
    if result.score is None:
        status = "dropped" if result.status is TrialStatus.DROPPED else "not measured"
        return f"{status}: {plain(result.reason) or ABSENT}"
    figures = f"{rate(result.score.tgs)} TGS {significant(result.score.step_s)} s/step"
    return f"{figures} {_standing(result, verdict)}"


def _standing(result: TrialResult, verdict: Verdict | None) -> str:
    trial = result.trial
    if trial.is_baseline:
        return "baseline" + (f" of block {trial.block}" if trial.stage is Stage.CONFIRM else "")
    if trial.stage is Stage.EVIDENCE:
        return "evidence"
    if result.status is TrialStatus.DROPPED:
        return f"dropped: {plain(result.reason)}"
    if trial.stage is Stage.SCREEN:
        return f"screened {percent(verdict.delta)}" if verdict else "screened"
    if verdict is None or verdict.kind is VerdictKind.SCREENED or verdict.delta is None:
        return f"confirm block {trial.block}"
    return f"{words(verdict)} {percent(verdict.delta)}, n = {verdict.n}"


def tally(verdicts: Sequence[Verdict]) -> str:
    """Count verdicts by kind, e.g. `1 FASTER, 2 SLOWER, 9 SCREENED`, or say there are none."""
    names = [*VerdictKind, "not measured yet"]
    found = ["not measured yet" if is_pending(each) else each.kind for each in verdicts]
    counts = {name: found.count(name) for name in names}
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "no verdict"
