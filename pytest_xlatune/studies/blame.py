"""Which failed runs say something of the nodes they ran on; shared by the checks of hardware.

A run that a person cancelled, or that the scheduler or a hub lost, accuses no node. Plans nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, State, TrialResult

MAD = 1.4826  # median absolute deviations in a standard deviation of a normal distribution

# a trial that ended so says nothing of its node
_NOT_THE_NODE = frozenset(
    {
        *(FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.LOST),
        *(FailureClass.HUB, FailureClass.GITHUB_5XX, FailureClass.SLURM_CONTROLLER_DOWN),
        *(FailureClass.QUEUE_LIMIT, FailureClass.SUBMISSION_REFUSED, FailureClass.BUDGET),
        *(FailureClass.LOG_UNREADABLE, FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR),
    }
)
_NOT_THE_NODE_STATES = (State.CANCELLED, State.PREEMPTED, State.LOST)


def is_excused(result: TrialResult) -> bool:
    """Whether a trial without a score says nothing of its nodes."""
    outcome = result.outcome
    if outcome is not None and outcome.state in _NOT_THE_NODE_STATES:
        return True
    asked = [each for each in result.findings if each.action not in (Action.NONE, Action.SUCCESS)]
    if asked:
        return asked[-1].cls in _NOT_THE_NODE
    return bool(result.findings) and result.findings[-1].cls in _NOT_THE_NODE


def spread_of(values: Sequence[float]) -> float:
    """Return the standard deviation of most of the values, those far off hardly counted."""
    level = median(values)
    return MAD * median(abs(each - level) for each in values)
