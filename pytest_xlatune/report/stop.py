"""What people are told when a sweep stops, or is over: one plain text, enough to decide on.

The form of the stop message is that of the tuning playbook, so that whoever reads it in a chat at
night knows it. This module sends nothing and must not know to whom it goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.cells import Cell
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.ending import ending_text
from pytest_xlatune.report.figures import percent, rate
from pytest_xlatune.report.lines import tally
from pytest_xlatune.report.phrases import ENGLISH
from pytest_xlatune.results import Conclusion, TrialResult, Verdict, VerdictKind

BUDGET = "budget:"  # how the reason of a stop begins that nothing failed in
_TOP = 3


def stop_message(
    *,
    cell: Cell,
    nodes: Sequence[str],
    reason: str,
    evidence: str,
    recovery: Sequence[str],
    conclusion: Conclusion,
    history: Sequence[TrialResult],
    artifacts: str,
) -> str:
    """Return the message of a sweep that was stopped.

    Args:
        cell: what was measured.
        nodes: where.
        reason: of the decision that stopped it.
        evidence: the line that it was taken on.
        recovery: what was tried before, in order.
        conclusion: what is known so far.
        history: the planned trials, in order.
        artifacts: where the jobs left their files.
    """
    failing = [node for node in nodes if node in f"{reason} {evidence}"]
    is_planned = reason.startswith(BUDGET)
    tested = _ranked(conclusion)
    pending = [each.trial.profile.id for each in history if not each.status.is_final]
    outcome = (
        f"recovery attempted: {plain('; '.join(recovery)) or 'none'}; "
        f"outcome: {plain(evidence) or 'no evidence line'}"
    )
    lines = [
        f"[xla-tuning STOP] {cell.model_tag} {cell.parallelism} sweep halted",
        f"Reason: {plain(reason)}",
        *(
            []
            if is_planned
            else [f"Failing node(s): {', '.join(failing) or 'not known'}; {outcome}"]
        ),
        "Sweep state at stop:",
        f"- Nodelist: {','.join(nodes) or 'this machine'}",
        f"- Profiles tested so far: {len(tested)}",
        *_best(tested),
        f"- Pending profiles in queue: {', '.join(dict.fromkeys(pending)) or 'none'}",
        f"Artifacts: {artifacts}{_jobs(history)}",
        "Nothing measured is lost. Run the same command again to go on.",
    ]
    return "\n".join(lines)


def summary_message(*, cell: Cell, conclusion: Conclusion, history: Sequence[TrialResult]) -> str:
    """Return what is told at the end of a session: the tally, how it ended, and what leads."""
    state = "complete" if conclusion.complete else "not complete"
    lines = [f"[xla-tuning] {cell.label}: {state}, {tally(conclusion.verdicts)}"]
    lines.append(ending_text(ENGLISH, conclusion, history=history, stopped=""))
    return "\n".join([*lines, *best_lines(conclusion)])


def best_lines(conclusion: Conclusion) -> list[str]:
    """Return what leads so far, at most three lines."""
    return _best(_ranked(conclusion))


def _ranked(conclusion: Conclusion) -> list[Verdict]:
    tested = [
        each
        for each in conclusion.verdicts
        if each.tgs is not None and each.kind is not VerdictKind.INVALID
    ]
    return sorted(tested, key=lambda each: -(each.delta or 0.0))


def _best(tested: Sequence[Verdict]) -> list[str]:
    lines: list[str] = []
    for each in tested[:_TOP]:
        head = "Best so far: " if not lines else ""
        delta = f"{percent(each.delta)} vs baseline-deployed, " if each.delta is not None else ""
        standing = f"{delta}{each.kind}, n = {each.n}"
        lines.append(f"- {head}{each.profile} @ {rate(each.tgs)} TGS ({standing})")
    return lines


def _jobs(history: Sequence[TrialResult]) -> str:
    ids = [job for each in history for job in each.job_ids]
    return f", jobs {ids[0]} to {ids[-1]}" if ids else ""
