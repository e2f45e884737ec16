"""Describe a verdict, a trial or a whole sweep in a few words, in a line, or in a message.

Failed tests, junit, the terminal, reports and messages to people all use these texts. The stop
message has the form of the tuning playbook, so that its readers recognise it. This module sends
nothing and must not know who reads its texts.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import Message, first, sentence
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import (
    Conclusion,
    Effect,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.rotation_score import is_baseline
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    duration,
    interval,
    percent,
    rate,
    significant,
    size,
)
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.language import ENGLISH, Translator, plainly


def is_pending(verdict: Verdict) -> bool:
    """Return whether no trial of the profile is over yet."""
    return verdict.kind is VerdictKind.INCONCLUSIVE and not verdict.n


def words(verdict: Verdict) -> str:
    """Return a verdict in a few words for a test's status, with the change of a single run."""
    text = words_beside(verdict)
    if verdict.kind is not VerdictKind.SCREENED or verdict.word or not verdict.n:
        return text
    change = f"screened {percent(verdict.delta)} (n={verdict.n})"
    return f"{change}{text.removeprefix('screened')}"


def words_beside(verdict: Verdict, say: Translator = ENGLISH) -> str:
    """Return a verdict in words for a table that has its change and its n in other columns.

    In other languages than English they are the name of its kind, e.g. `SCREENED`.
    """
    lost = f", {plainly(verdict.lost.message, say)}" if verdict.lost else ""
    slower = say(", very likely slower") if verdict.is_likely_slower else ""
    match verdict.kind:
        case VerdictKind.SCREENED if not verdict.n:
            return say("not run")
        case _ if not say.is_english:
            return f"{verdict.kind}{slower}{lost}"
        case _ if verdict.word:
            text = verdict.word
        case VerdictKind.SCREENED:
            text = f"screened{slower}"
        case VerdictKind.INCONCLUSIVE if is_pending(verdict):
            text = "not measured yet"
        case VerdictKind.INCONCLUSIVE if verdict.mde80 is not None:
            text = f"inconclusive (80 % power at {size(verdict.mde80)})"
        case VerdictKind.INCONCLUSIVE:
            text = "inconclusive"
        case VerdictKind.INVALID if not verdict.can_run:
            text = "dropped"
        case VerdictKind.INVALID:
            text = "not comparable" if verdict.n else "not measured"
        case _:
            text = verdict.kind.value
    return text + lost


def effect_words(verdict: Verdict, say: Translator = ENGLISH) -> str:
    """Return how well it is known that an arm's settings were in effect; a dash if it has none.

    Settings that are not proved to be in effect are named.
    """
    if verdict.effect is None:
        return ABSENT
    names = f": {', '.join(verdict.unproved)}" if verdict.unproved else ""
    is_shown = verdict.effect is Effect.IN_EFFECT
    # settings that the user has declared with SiteSettings(unseen=...) count as proved
    declared = "" if names or is_shown or not say.is_english else " (declared unseen)"
    return f"{say.text_of(str(verdict.effect))}{declared}{names}"


def figure(scored: Verdict | Score | None) -> str:
    """Return a figure without its unit, as text in a table; a dash if there is none."""
    if scored is None or scored.figure is None:
        return rate(scored.tgs if scored else None)
    return significant(scored.figure.value)


def speed(scored: Verdict | Score) -> str:
    """Return a figure with its unit, e.g. `994.9 TGS` or `first step 12.30 s`."""
    return scored.figure.words if scored.figure else f"{rate(scored.tgs)} TGS"


def step(scored: Verdict | Score, before: str) -> str:
    """Return `before`, followed by the seconds of a step; "" if the score is not TGS."""
    return "" if scored.figure else f"{before}{significant(scored.step_s)} s/step"


def paragraph(verdict: Verdict, *, reference: str = BASELINE_ID) -> str:
    """Return a profile's verdict as one plain paragraph, for a failed test and for a report.

    It has delta, interval, n, method, the smallest effect that could be found, the reasons and the
    jobs. `reference` is the arm with which the profile was compared.
    """
    against = sentence(verdict.against) or reference
    kind = verdict.word or str(verdict.kind)
    if verdict.kind is VerdictKind.INVALID and not verdict.word:
        kind = f"{verdict.kind} ({words(verdict)})"
    elif verdict.arm == BASELINE_ID:
        kind = "(the cell as deployed)"
    reasons = "; ".join(plainly(message).rstrip(".") for message in verdict.reasons)
    sentences = [f"{verdict.arm} {kind}" + (f": {reasons}" if reasons else "")]
    if verdict.tgs is not None or verdict.figure is not None:
        sentences.append(speed(verdict) + step(verdict, ", "))
    if verdict.delta is not None and verdict.arm != reference:
        ci95 = f"95 % interval {interval(verdict.ci95)}" if verdict.ci95 else "no interval"
        sentences.append(f"Delta {percent(verdict.delta)} against {against}, {ci95}")
    if verdict.n:
        method = f" ({sentence(verdict.method)})" if verdict.method else ""
        sentences.append(f"n = {verdict.n}{method}")
    if verdict.mde80 is not None:
        sentences.append(f"Smallest effect found with 80 % power: {size(verdict.mde80)}")
    if verdict.effect is not None:
        sentences.append(f"Settings {effect_words(verdict)}")
    if verdict.kind is VerdictKind.FASTER and verdict.unproved:
        sentences.append("It is no winner: nothing shows that its settings were in effect")
    elif verdict.kind is VerdictKind.FASTER and not verdict.wins:
        sentences.append("It is no winner: corrected for the choice, its gain may be nothing")
    if verdict.job_ids:
        sentences.append(f"Jobs: {', '.join(verdict.job_ids)}")
    return " ".join(f"{text}." for text in sentences)


def progress_text(
    history: Sequence[TrialResult], *, left: tuple[int, int], trial_s: float | None
) -> str:
    """Return how far a sweep is: its jobs as a plan counts them, and the time that is left.

    Args:
        history: the results of its trials.
        left: the jobs that are left, as planned and at most.
        trial_s: the seconds that each trial took so far; None if they are not known.
    """
    # a result with `memory` is of a compilation on this machine, not of a job
    history = [result for result in history if result.memory is None]
    running = sum(result.status is TrialStatus.RUNNING for result in history)
    over = sum(result.status.is_final for result in history)
    planned, most = left
    total = f"{over + planned}" if planned == most else f"{over + planned} to {over + most}"
    parts = [f"{over} of {total} jobs"]
    if running:
        parts.append(f"{running} running")
    if trial_s is not None and most:
        up_to = f" to {duration(trial_s * most)}" if most > planned else ""
        parts.append(f"about {duration(trial_s * planned)}{up_to} left")
    return ", ".join(parts)


def live_line(
    result: TrialResult,
    *,
    verdict: Verdict | None,
    progress: str,
    place: Message | None = None,
) -> str:
    """Return a line that says that a trial has ended, and how far the sweep is.

    Args:
        result: the result of the trial.
        verdict: the current verdict on its arm; None if there is none.
        progress: how far the sweep is.
        place: the trial's place in its study, if the study names it.
    """
    trial, rotation, score = result.trial, result.rotation, result.score
    if rotation is not None and rotation.is_found:
        if trial.rotation is not None and trial.rotation.is_look:
            outcome = "the step's program is found: profiles can take turns"
        elif rotation.score is None:
            outcome = f"not measured: {plainly(first([rotation.reason, result.reason])) or ABSENT}"
        else:
            arms = [arm for arm in rotation.score.programs if not is_baseline(arm.program)]
            outcome = f"{counted(len(rotation.score.turns), 'turn')} of "
            outcome += counted(len(arms), "profile")
            if best := max(arms, key=lambda arm: arm.change, default=None):
                outcome += f", best {best.program} {percent(math.expm1(best.change))}"
    elif score is None or result.status is TrialStatus.DROPPED:
        status = "dropped" if result.status is TrialStatus.DROPPED else "not measured"
        outcome = f"{status}: {plainly(result.reason) or ABSENT}"
    elif trial.rotation is not None and trial.rotation.is_look:
        reason = plainly(rotation.reason if rotation is not None else None) or ABSENT
        outcome = f"profiles cannot take turns here, so each is a job: {reason}"
    else:
        delta = verdict.delta if verdict is not None else None
        if place is not None:
            where = (f"{percent(delta)} so far, " if delta else "") + sentence(place)
        elif trial.is_baseline or verdict is None or delta is None:
            name = "baseline" if trial.is_baseline else trial.stage
            where = f"{name} block {trial.block}" if trial.block else name
        else:
            where = f"{words_beside(verdict)} {percent(delta)} so far"
            where += f", n = {verdict.n}" if trial.block else ""
        outcome = f"{speed(score)}{step(score, ' ')} {where}"
    return f"{_trial_and_job(result)} {outcome} | {progress}"


_COLUMNS = 80  # characters in a line of a terminal, and of the log of a pipeline


def in_columns(line: str) -> str:
    """Wrap a live line at 80 columns; the state of the sweep begins on a new line.

    No word, such as a path or a flag, is cut.
    """
    if len(line) <= _COLUMNS:
        return line
    trial, bar, progress = line.rpartition(" | ")
    wrapper = textwrap.TextWrapper(
        _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(map(wrapper.fill, [trial, f"  {progress}"] if bar else [line]))


def evidence_line(result: TrialResult) -> str:
    """Return a line that says that an evidence run is over; it has no figure."""
    outcome = "ran with profiler and dump"
    if result.status is not TrialStatus.MEASURED:
        outcome = f"left no evidence: {plainly(result.reason)}"
    return f"{_trial_and_job(result)} {outcome}"


def _trial_and_job(result: TrialResult) -> str:
    job = f" (job {result.job_ids[-1]})" if result.job_ids else ""
    return f"{result.trial.label}{job}"


def tally(verdicts: Sequence[Verdict], say: Translator = ENGLISH) -> str:
    """Return the count of verdicts of each kind, e.g. `1 FASTER, 9 SCREENED`, or `no verdict`."""
    pending = say("not measured yet")
    counts = Counter(
        verdict.word or (pending if is_pending(verdict) else verdict.kind) for verdict in verdicts
    )
    names = dict.fromkeys([*filter(None, (v.word for v in verdicts)), *VerdictKind, pending])
    shown = (f"{counts[name]} {name}" for name in names if counts[name])
    return ", ".join(shown) or say("no verdict")


_LEADERS = 3  # profiles in a message


def stop_message(
    *,
    cell: Cell,
    reason: str,
    conclusion: Conclusion,
    history: Sequence[TrialResult],
    artifacts: str,
    is_failure: bool = True,
    nodes: Sequence[str] = (),
    evidence: str = "",
    recovery: Sequence[str] = (),
) -> str:
    """Return the message about a sweep that was stopped.

    Args:
        cell: the cell.
        reason: why the sweep was stopped.
        conclusion: the verdicts so far.
        history: the results so far.
        artifacts: the folder with the files of the jobs.
        is_failure: whether something failed; if not, a limit of the sweep was reached.
        nodes: the nodes that are known to have failed.
        evidence: the log line that shows the failure; "" if there is none.
        recovery: what was done to nodes before the stop, in order.
    """
    pending = [result.trial.arm for result in history if not result.status.is_final]
    jobs = [job for result in history for job in result.job_ids]
    failed = (
        f"Failing node(s): {', '.join(nodes) or 'not known'}; "
        f"recovery attempted: {plain('; '.join(recovery)) or 'none'}; "
        f"outcome: {plain(evidence) or 'no evidence line'}"
    )
    lines = [
        f"[xla-tuning STOP] {cell.model_tag} {cell.parallelism} sweep halted",
        f"Reason: {plain(reason)}",
        *([failed] if is_failure else []),
        "Sweep state at stop:",
        f"- Nodelist: {','.join(cell.nodelist) or 'this machine'}",
        f"- Profiles tested so far: {len(_tested(conclusion))}",
        *best_lines(conclusion),
        f"- Pending profiles in queue: {', '.join(dict.fromkeys(pending)) or 'none'}",
        f"Artifacts: {artifacts}" + (f", jobs {jobs[0]} to {jobs[-1]}" if jobs else ""),
        "All measured trials are kept. Run the same command again to continue.",
    ]
    return "\n".join(lines)


def summary_message(*, label: str, conclusion: Conclusion) -> str:
    """Return the message at the end of a session: tally, ending and leading profiles."""
    state = "complete" if conclusion.complete else "not complete"
    lines = [
        f"[xla-tuning] {label}: {state}, {tally(conclusion.verdicts)}",
        ending_text(ENGLISH, conclusion, stopped=""),
        *best_lines(conclusion),
    ]
    return "\n".join(lines)


def best_lines(conclusion: Conclusion) -> list[str]:
    """Return the leading profiles so far, in at most three lines.

    The recommended profile comes first, and profiles that blocks decided come before single runs.
    """
    if summary := conclusion.facts.summary:
        return [f"- {sentence(message)}" for message in summary]
    reference = conclusion.reference.arm if conclusion.reference else ""
    best = conclusion.winner
    ranked = sorted(
        _tested(conclusion),
        key=lambda verdict: (
            verdict is not best,
            verdict.delta is None,
            verdict.kind is VerdictKind.SCREENED,
            -(verdict.delta or 0.0),
        ),
    )
    lines: list[str] = []
    for verdict in ranked[:_LEADERS]:
        head = "" if lines else "Best so far: "
        delta = f"{percent(verdict.delta)} vs {reference}, " if verdict.delta is not None else ""
        figures = f"{speed(verdict)} ({delta}{verdict.kind}, n = {verdict.n})"
        lines.append(f"- {head}{verdict.arm} @ {figures}")
    return lines


def _tested(conclusion: Conclusion) -> list[Verdict]:
    return [
        verdict
        for verdict in conclusion.verdicts
        if (verdict.tgs is not None or verdict.figure) and verdict.kind is not VerdictKind.INVALID
    ]


# A sweep ends "structurally bounded" if it excludes a gain of this share over the baseline: its
# flags have no more to give.
BOUNDED = 0.02


def ending_text(say: Translator, conclusion: Conclusion, *, stopped: str) -> str:
    """Return the sentence that says how the sweep ended, or how far it is.

    `stopped` is the recorded reason for a stop, by the playbook or a budget; "" if there was none.
    The reason is in English, and shown in English only.
    """
    if conclusion.complete and (summary := conclusion.facts.summary):
        return f"{sentence(summary[0], say.text_of)}."
    bound = conclusion.tuning.bound
    if not conclusion.complete and not stopped:
        return say("The sweep is not over, so this report is preliminary.")
    if not conclusion.complete:
        reason = f" The recorded reason: {plain(stopped)}" if say.is_english else ""
        return say("The sweep was stopped, so this report is preliminary.") + reason
    if conclusion.nothing_in_effect:
        text = say(
            "The sweep ended with all its trials, and proves nothing about any setting: no setting "
            "is known to have been in effect."
        )
    elif any(verdict.wins for verdict in conclusion.verdicts):
        text = say("The sweep ended with a winner: fresh blocks in random order decided it.")
    elif bound is None:
        text = say(
            "The sweep ended with all its trials and no winner. Too few runs were decided to say "
            "how large a gain may have been missed (M)."
        )
    elif bound >= BOUNDED:
        text = say(
            "The sweep ended with all its trials and no winner. We can rule out (95 %) that any "
            "tested setting gains more than {bound} (M).",
            bound=size(bound),
        )
    elif bound >= 0:
        text = say(
            "The sweep ended structurally bounded: no measured profile beats the baseline by more "
            "than {bound} (M, at 95 %), which is below {limit}.",
            bound=size(bound),
            limit=size(BOUNDED),
        )
    else:
        text = say(
            "The sweep ended structurally bounded: every setting that was decided is slower, by "
            "{loss} at least (95 %).",
            loss=size(-bound),
        )
    return text
