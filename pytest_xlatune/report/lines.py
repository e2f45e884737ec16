"""A verdict, a trial or a whole sweep in a few words, in a line, in a message.

A test's message, junit, the terminal, the reports and the messages to people use the same words.
The form of the stop message is that of the tuning playbook, so a reader recognises it in a chat at
night. This module sends nothing and must not know its readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Conclusion, TrialResult, TrialStatus, Verdict, VerdictKind
from pytest_xlatune.model.text import (
    ABSENT,
    duration,
    interval,
    percent,
    rate,
    significant,
    size,
)
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.language import ENGLISH, N_, Say


def is_pending(verdict: Verdict) -> bool:
    """Whether no trial of the profile is over yet."""
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


def paragraph(verdict: Verdict, *, reference: str = BASELINE_ID) -> str:
    """Describe a profile's verdict in one plain paragraph.

    Delta, interval, n, method, the smallest effect that would have been found, the reasons and the
    jobs: the message of a failed test, and the profile's paragraph in a report.
    """
    is_deployed = verdict.arm == BASELINE_ID
    kind = "(the cell as deployed)" if is_deployed else str(verdict.kind)
    if verdict.kind is VerdictKind.INVALID:
        kind = f"{verdict.kind} ({words(verdict)})"
    reasons = "; ".join(plain(each).rstrip(".") for each in verdict.reasons)
    sentences = [f"{verdict.arm} {kind}" + (f": {reasons}" if reasons else "")]
    if verdict.tgs is not None:
        sentences.append(f"{rate(verdict.tgs)} TGS, {significant(verdict.step_s)} s/step")
    if verdict.delta is not None and verdict.arm != reference:
        ends = f"95 % interval {interval(verdict.ci95)}" if verdict.ci95 else "no interval"
        sentences.append(f"Delta {percent(verdict.delta)} against {reference}, {ends}")
    if verdict.n:
        sentences.append(f"n = {verdict.n}" + (f" ({verdict.method})" if verdict.method else ""))
    if verdict.mde80 is not None:
        sentences.append(f"Smallest effect found with 80 % power: {size(verdict.mde80)}")
    if verdict.job_ids:
        sentences.append(f"Jobs: {', '.join(verdict.job_ids)}")
    return " ".join(f"{sentence}." for sentence in sentences)


def standing(
    history: Sequence[TrialResult], *, step: int | None = None, left_s: float | None = None
) -> str:
    """Say where a sweep stands: trials over and running, and the time that is left.

    Args:
        history: of all trials that are planned so far.
        step: the last step of the trial that runs; None where unknown.
        left_s: seconds that the rest may take; None where unknown.
    """
    screen = [each for each in history if each.trial.is_screened and not each.trial.is_baseline]
    confirm = [each for each in history if each.trial.block]
    running = [each for each in history if each.status is TrialStatus.RUNNING]
    parts = []
    if screen or not (confirm or left_s is not None):
        parts.append(f"{sum(each.status.is_final for each in screen)}/{len(screen)} screened")
    if confirm:
        done = sum(each.status.is_final for each in confirm)
        parts.append(f"{done}/{len(confirm)} confirmation trials")
    if running:
        at = "" if step is None else f" step {step}/{running[0].trial.protocol.steps}"
        parts.append(f"{len(running)} running{at}")
    if left_s is not None:
        parts.append(f"about {duration(left_s)} left")
    return ", ".join(parts)


def live_line(result: TrialResult, *, cell: Cell, verdict: Verdict | None, progress: str) -> str:
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
    return f"{figures} {_place(result, verdict)}"


def _place(result: TrialResult, verdict: Verdict | None) -> str:
    trial = result.trial
    if trial.is_baseline:
        return "baseline" + (f" of block {trial.block}" if trial.block else "")
    if not trial.protocol.is_scored:
        return "evidence"
    if result.status is TrialStatus.DROPPED:
        return f"dropped: {plain(result.reason)}"
    if not trial.block:
        return f"screened {percent(verdict.delta)}" if verdict else "screened"
    if verdict is None or verdict.kind is VerdictKind.SCREENED or verdict.delta is None:
        return f"confirm block {trial.block}"
    return f"{words(verdict)} {percent(verdict.delta)}, n = {verdict.n}"


def tally(verdicts: Sequence[Verdict]) -> str:
    """Count verdicts by kind, e.g. `1 FASTER, 2 SLOWER, 9 SCREENED`, or `no verdict`."""
    names = [*VerdictKind, "not measured yet"]
    found = ["not measured yet" if is_pending(each) else each.kind for each in verdicts]
    counts = {name: found.count(name) for name in names}
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "no verdict"


_TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a sweep was stopped.

    Attributes:
        reason: of the decision that stopped it, one sentence.
        is_failure: whether something failed; False where a limit of the sweep was reached.
        nodes: that failed, as far as that is known.
        evidence: the line that it was taken on.
        recovery: what was done to nodes before, in order, one sentence each.
    """

    reason: str
    is_failure: bool = True
    nodes: tuple[str, ...] = ()
    evidence: str = ""
    recovery: tuple[str, ...] = ()


def stop_message(
    *,
    cell: Cell,
    stop: Stop,
    conclusion: Conclusion,
    history: Sequence[TrialResult],
    artifacts: str,
) -> str:
    """Return the message of a sweep that was stopped.

    Args:
        cell: the measured cell.
        stop: why the sweep was stopped.
        conclusion: the verdicts so far.
        history: the planned trials, in order.
        artifacts: the folder of the jobs' files.
    """
    tested = _ranked(conclusion)
    pending = [each.trial.profile.id for each in history if not each.status.is_final]
    outcome = (
        f"recovery attempted: {plain('; '.join(stop.recovery)) or 'none'}; "
        f"outcome: {plain(stop.evidence) or 'no evidence line'}"
    )
    lines = [
        f"[xla-tuning STOP] {cell.model_tag} {cell.parallelism} sweep halted",
        f"Reason: {plain(stop.reason)}",
        *(
            [f"Failing node(s): {', '.join(stop.nodes) or 'not known'}; {outcome}"]
            if stop.is_failure
            else []
        ),
        "Sweep state at stop:",
        f"- Nodelist: {','.join(cell.nodelist) or 'this machine'}",
        f"- Profiles tested so far: {len(tested)}",
        *best_lines(conclusion),
        f"- Pending profiles in queue: {', '.join(dict.fromkeys(pending)) or 'none'}",
        f"Artifacts: {artifacts}{_jobs(history)}",
        "All measured trials are kept. Run the same command again to go on.",
    ]
    return "\n".join(lines)


def summary_message(*, cell: Cell, conclusion: Conclusion, history: Sequence[TrialResult]) -> str:
    """Return the message at the end of a session: tally, ending and leading profiles."""
    state = "complete" if conclusion.complete else "not complete"
    lines = [f"[xla-tuning] {cell.label}: {state}, {tally(conclusion.verdicts)}"]
    lines.append(ending_text(ENGLISH, conclusion, history=history, stopped=""))
    return "\n".join([*lines, *best_lines(conclusion)])


def best_lines(conclusion: Conclusion) -> list[str]:
    """Return the leading profiles so far, at most three lines."""
    reference = conclusion.reference.arm if conclusion.reference else ""
    lines: list[str] = []
    for each in _ranked(conclusion)[:_TOP]:
        head = "Best so far: " if not lines else ""
        delta = f"{percent(each.delta)} vs {reference}, " if each.delta is not None else ""
        standing = f"{delta}{each.kind}, n = {each.n}"
        lines.append(f"- {head}{each.arm} @ {rate(each.tgs)} TGS ({standing})")
    return lines


def _ranked(conclusion: Conclusion) -> list[Verdict]:
    tested = [
        each
        for each in conclusion.verdicts
        if each.tgs is not None and each.kind is not VerdictKind.INVALID
    ]
    return sorted(tested, key=lambda each: -(each.delta or 0.0))


def _jobs(history: Sequence[TrialResult]) -> str:
    ids = [job for each in history for job in each.job_ids]
    return f", jobs {ids[0]} to {ids[-1]}" if ids else ""


BOUNDED = 0.02  # no profile beats the baseline by more: these flags have no more to give


class Ending(StrEnum):
    """How a sweep stands at its end."""

    STOPPED = "stopped"  # by the playbook or a budget; what was measured is kept
    RUNNING = "running"  # trials are still to come
    WINNER = "winner"
    BOUNDED = "bounded"
    UNDECIDED = "undecided"


def ending(conclusion: Conclusion, *, stopped: str = "") -> Ending:
    """Return how the sweep stands; `stopped` is the recorded reason of a stop, "" without one."""
    if conclusion.complete:
        if any(each.kind is VerdictKind.FASTER for each in conclusion.verdicts):
            return Ending.WINNER
        is_bounded = conclusion.tuning.bound is not None and conclusion.tuning.bound < BOUNDED
        return Ending.BOUNDED if is_bounded else Ending.UNDECIDED
    return Ending.STOPPED if stopped else Ending.RUNNING


_ENDINGS: Mapping[Ending, str] = {
    Ending.STOPPED: N_(
        "The sweep was stopped, so this report is preliminary. The recorded reason: {reason}"
    ),
    Ending.RUNNING: N_("The sweep is not over: {left} still to run. This report is preliminary."),
    Ending.WINNER: N_("The sweep ended with a winner: fresh blocks in random order decided it."),
    Ending.BOUNDED: N_(
        "The sweep ended structurally bounded: no measured profile beats the baseline by more than "
        "{bound} (M, at 95 %), which is below {limit}."
    ),
    Ending.UNDECIDED: N_(
        "The sweep ended with all its trials: it confirmed no winner and cannot exclude one."
    ),
}


# a session that asked for some waves only leaves the others unplanned
_PARTLY = N_(
    "The sweep is not over: every trial asked for so far is measured, and others follow. This "
    "report is preliminary."
)


def ending_text(
    say: Say, conclusion: Conclusion, *, history: Sequence[TrialResult], stopped: str
) -> str:
    """Return the sentence that says how the sweep stands."""
    left = sum(not each.status.is_final for each in history)
    how = ending(conclusion, stopped=stopped)
    is_partly = how is Ending.RUNNING and not left
    return say(
        _PARTLY if is_partly else _ENDINGS[how],
        bound=size(conclusion.tuning.bound),
        limit=size(BOUNDED),
        reason=plain(stopped),
        left=say.count(left, "{n} trial", "{n} trials"),
    )
