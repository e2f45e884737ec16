"""Why a sweep ended, or that it has not: the stop conditions of a tuning sweep.

A winner is what the statistics call FASTER, never a point estimate. "Structurally bounded" is a
claim about all measured profiles at once, by M. What stops a sweep early (the playbook, a budget of
node-hours or of hours in the queue) is recorded in the ledger; here it is only told.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pytest_xlatune.report.document import plain
from pytest_xlatune.report.figures import size
from pytest_xlatune.report.phrases import Say
from pytest_xlatune.results import Conclusion, TrialResult, VerdictKind

BOUNDED = 0.02  # no profile beats the baseline by more: what is left is not among these flags


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
        is_bounded = conclusion.bound is not None and conclusion.bound < BOUNDED
        return Ending.BOUNDED if is_bounded else Ending.UNDECIDED
    return Ending.STOPPED if stopped else Ending.RUNNING


def ending_text(
    say: Say, conclusion: Conclusion, *, history: Sequence[TrialResult], stopped: str
) -> str:
    """Return the sentence that says how the sweep stands."""
    left = sum(not each.status.is_final for each in history)
    how = ending(conclusion, stopped=stopped)
    # a session that asked for some waves only leaves the others unplanned
    is_partly = how is Ending.RUNNING and not left
    return say(
        "ended-partly" if is_partly else f"ended-{how}",
        bound=size(conclusion.bound),
        limit=size(BOUNDED),
        reason=plain(stopped),
        left=say.count(left, "trial"),
    )
