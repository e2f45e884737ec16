"""The failure playbook: what follows from how an attempt ended.

A decision depends on the status of the attempts of a trial and on their findings, never on a
measured value: re-running what came out slow would make winners of noise. Nodes are never swapped.
This module decides; it starts, cancels and sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.records import Record
from pytest_xlatune.results import Action, Finding, Outcome, State


class Next(StrEnum):
    """What happens to the trial."""

    ACCEPT = "accept"  # it ran: score it
    RETRY = "retry"  # another attempt, the same nodes
    DROP = "drop"  # the profile cannot run here
    GIVE_UP = "give-up"  # nobody could measure it; the sweep goes on
    STOP = "stop"  # the sweep cannot go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Record):
    """How often a failure class is retried, and what follows when that did not help.

    Attributes:
        retries: further attempts after the first of this class.
        backoff_s: seconds to wait before each.
        then: what happens after the last.
        before: what must be done before the next attempt.
    """

    retries: int = 1
    backoff_s: float = 0.0
    then: Next = Next.GIVE_UP
    before: Action = Action.NONE


# class -> rule; a class that is not named follows its finding's action, see ACTION_RULES
CLASS_RULES: Mapping[str, Rule] = {
    # three strikes: an init flake of one profile says nothing of the others
    "hang-init": Rule(retries=2, then=Next.DROP),
    # twice in a row: the cluster's coordination service is sick
    "jax-coord-timeout": Rule(retries=1, then=Next.STOP),
    "nic-fault": Rule(retries=1, then=Next.STOP, before=Action.HOOK),
    "gpu-hardware": Rule(retries=1, backoff_s=90, then=Next.STOP),
    "node-fail": Rule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    "node-drain": Rule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    "oom-host": Rule(retries=1, then=Next.STOP),
    "image-missing": Rule(retries=0, then=Next.STOP),
    "slurm-controller-down": Rule(retries=3, backoff_s=300, then=Next.STOP, before=Action.WAIT),
    # a global outage clears by itself
    "github-5xx": Rule(retries=8, backoff_s=300, then=Next.STOP, before=Action.WAIT),
    "hang-mid-training": Rule(retries=1),
    "killed": Rule(retries=2),
    "lost": Rule(retries=1),
}

ACTION_RULES: Mapping[Action, Rule] = {
    Action.RETRY: Rule(retries=1),
    Action.RESUME_NODE: Rule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    Action.HOOK: Rule(retries=1, then=Next.STOP, before=Action.HOOK),
    Action.WAIT: Rule(retries=3, backoff_s=300, then=Next.STOP, before=Action.WAIT),
    Action.DROP: Rule(retries=0, then=Next.DROP),
    Action.STOP: Rule(retries=0, then=Next.STOP),
}

# what an outcome means where the log says nothing
STATE_CLASSES: Mapping[State, tuple[str, Action]] = {
    State.NODE_FAIL: ("node-fail", Action.RESUME_NODE),
    State.LOST: ("lost", Action.RETRY),
    State.TIMEOUT: ("time-limit", Action.NONE),
    State.CANCELLED: ("cancelled", Action.NONE),
    State.FAILED: ("exit-code", Action.RETRY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy(Record):
    """The rules of a site: the playbook's, with its own on top.

    Attributes:
        max_attempts: of one trial, whatever the classes.
        rules: class -> rule, before the playbook's own.
    """

    max_attempts: int = 4
    rules: dict[str, Rule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"retry policy: max_attempts is {self.max_attempts}, expected >= 1")

    def rule(self, finding: Finding) -> Rule:
        """Return the rule for a finding: the site's, the playbook's, or that of its action."""
        by_class = self.rules.get(finding.cls) or CLASS_RULES.get(finding.cls)
        # a finding that says DROP or STOP is never softened into a retry by its class
        if by_class is None or finding.action in (Action.DROP, Action.STOP):
            return ACTION_RULES.get(finding.action, Rule(retries=0))
        return by_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Record):
    """What was decided after an attempt, with the evidence; kept in the ledger.

    Attributes:
        next: what happens to the trial.
        cls: the failure class; "" when the attempt simply ended well.
        reason: one sentence.
        evidence: the line of the log, or the scheduler's words.
        backoff_s: seconds before the next attempt.
        before: what must be done before the next attempt.
    """

    next: Next
    cls: str = ""
    reason: str = ""
    evidence: str = ""
    backoff_s: float = 0.0
    before: Action = Action.NONE


def decide(
    outcome: Outcome,
    cause: Finding | None,
    *,
    earlier: Sequence[str] = (),
    policy: RetryPolicy | None = None,
) -> Decision:
    """Decide what follows from an attempt.

    Args:
        outcome: how it ended.
        cause: the primary finding, the root cause; None where the log tells none.
        earlier: classes of the earlier attempts of this trial, in order.
        policy: the site's rules.
    """
    policy = policy or RetryPolicy()
    if cause is not None and cause.action is Action.SUCCESS:
        return Decision(next=Next.ACCEPT, cls=cause.cls, evidence=cause.text, reason=_why(cause))
    if cause is None or cause.action is Action.NONE:
        if outcome.state is State.COMPLETED:
            return Decision(next=Next.ACCEPT)
        cause = _from_state(outcome, cause)
    rule = policy.rule(cause)
    tried = _consecutive(earlier, cause.cls)
    again = tried < rule.retries and len(earlier) + 1 < policy.max_attempts
    following = Next.RETRY if again else rule.then
    return Decision(
        next=following,
        cls=cause.cls,
        reason=_why(cause, following, tried),
        evidence=cause.text or outcome.reason,
        backoff_s=rule.backoff_s if again else 0.0,
        before=rule.before if again else Action.NONE,
    )


def _from_state(outcome: Outcome, cause: Finding | None) -> Finding:
    cls, action = STATE_CLASSES.get(outcome.state, ("unknown-death", Action.RETRY))
    told = f"exit code {outcome.exit_code}" if outcome.exit_code else outcome.reason
    if outcome.signal and outcome.state is State.FAILED:
        # at a deadline or a cancel the signal was ours
        told = f"signal {outcome.signal}"
        cls, action = "killed", Action.RETRY
    text = cause.text if cause else ""
    return Finding(cls=cls, action=action, text=text or told, detail=told)


def _consecutive(earlier: Sequence[str], cls: str) -> int:
    count = 0
    for each in reversed(earlier):
        if each != cls:
            break
        count += 1
    return count


def _why(cause: Finding, following: Next = Next.ACCEPT, tried: int = 0) -> str:
    detail = f" ({cause.detail})" if cause.detail else ""
    times = f", {tried + 1} times in a row" if tried else ""
    words = {
        Next.ACCEPT: "counts as success",
        Next.RETRY: "retried on the same nodes",
        Next.DROP: "the profile is dropped",
        Next.GIVE_UP: "not measured",
        Next.STOP: "the sweep stops",
    }
    return f"{cause.cls}{detail}{times}: {words[following]}"
