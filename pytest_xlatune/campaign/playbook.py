"""The failure playbook: what follows from the end of an attempt, or from one that cannot start.

The tables are applied in order: how the scheduler says that the attempt ended (`CLASS_OF_STATE`),
what its log says (`CLASS_RULES`, `ACTION_RULES`), how often it was tried, and special cases
(`CASES`): a rotation, for example, goes on without the program that ended it. Only `decide` applies
them. A decision depends on the status of a trial's attempts and on their findings, never on a
measured value, because repeating slow runs would make winners of noise. Nodes are never swapped.
This module decides; it starts, cancels and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from pytest_xlatune.ledger import Cannot, Decided
from pytest_xlatune.model.failure import CLASS_OF_STATE, Blame, FailureClass, blamed_on
from pytest_xlatune.model.message import say
from pytest_xlatune.model.resources import ENDLESS, Next, RetryPolicy, RetryRule
from pytest_xlatune.model.result import Action, Blamed, BlamedAt, Finding, Outcome, State

# class -> rule; other classes follow the action of the finding, see ACTION_RULES
CLASS_RULES: Mapping[str, RetryRule] = {
    # the profile is dropped after three failures; a flaky start says nothing about other profiles
    FailureClass.HANG_INIT: RetryRule(retries=2, then=Next.DROP),
    # twice in a row means that the cluster's coordination service is in trouble
    FailureClass.JAX_COORD_TIMEOUT: RetryRule(retries=1, then=Next.STOP),
    FailureClass.NIC_FAULT: RetryRule(retries=1, then=Next.STOP, before=Action.HOOK),
    FailureClass.GPU_HARDWARE: RetryRule(retries=1, backoff_s=90, then=Next.STOP),
    FailureClass.NODE_FAIL: RetryRule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    FailureClass.NODE_DRAIN: RetryRule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    FailureClass.OOM_HOST: RetryRule(retries=1, then=Next.STOP),
    FailureClass.DRIVER: RetryRule(retries=1, backoff_s=60, then=Next.STOP),
    # both may also come from the profile's settings, so the others go on
    FailureClass.NETWORK: RetryRule(retries=2, backoff_s=60),
    FailureClass.RAY_ACTOR: RetryRule(retries=1, backoff_s=60),
    FailureClass.HUB: RetryRule(retries=3, backoff_s=300, then=Next.STOP, before=Action.WAIT),
    FailureClass.IMAGE_MISSING: RetryRule(retries=0, then=Next.STOP),
    FailureClass.CHECKOUT_FAIL: RetryRule(retries=0, then=Next.STOP),
    FailureClass.SLURM_CONTROLLER_DOWN: RetryRule(
        retries=3, backoff_s=300, then=Next.STOP, before=Action.WAIT
    ),
    # a global outage clears by itself
    FailureClass.GITHUB_5XX: RetryRule(retries=ENDLESS, backoff_s=300, before=Action.WAIT),
    FailureClass.HANG_MID_TRAINING: RetryRule(retries=1),
    # a link or a host that failed twice on the same nodes will fail again
    FailureClass.NETWORK_LINK: RetryRule(retries=1, then=Next.STOP),
    FailureClass.HOST_STUCK: RetryRule(retries=1, then=Next.STOP),
    FailureClass.KILLED: RetryRule(retries=2),
    # it recurs while other users have priority, and says nothing about the program
    FailureClass.PREEMPTED: RetryRule(retries=3),
    # a person's decision, which says nothing about the program
    FailureClass.REQUEUED: RetryRule(retries=3),
    FailureClass.LOST: RetryRule(retries=1),
}
# For classes that may be the profile's or the site's fault: the profile's if the failure recurs,
# see `decide`. Otherwise a connection reset or one night's ECC error dropped profiles for good.
_UNKNOWN_RULE = RetryRule(retries=1, then=Next.DROP)

_OUTAGE_S = 3600.0  # seconds between later attempts of `ENDLESS` retries

# for the reference until it has run: what ends it would end every profile
FIRST_RULES: Mapping[str, RetryRule] = {
    FailureClass.KILLED: RetryRule(retries=1),
    FailureClass.HANG_INIT: RetryRule(retries=1, then=Next.DROP),
}

ACTION_RULES: Mapping[Action, RetryRule] = {
    Action.RETRY: RetryRule(retries=1),
    Action.RESUME_NODE: RetryRule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    Action.HOOK: RetryRule(retries=1, then=Next.STOP, before=Action.HOOK),
    Action.WAIT: RetryRule(retries=3, backoff_s=300, then=Next.STOP, before=Action.WAIT),
    Action.DROP: RetryRule(retries=0, then=Next.DROP),
    Action.STOP: RetryRule(retries=0, then=Next.STOP),
}

# ends of a program, or hangs, without a known line in its log
_OWN_ENDS = frozenset(
    {
        *(FailureClass.EXIT_CODE, FailureClass.KILLED, FailureClass.SIGNAL_KILL),
        *(FailureClass.NODE_EXIT, FailureClass.UNKNOWN_DEATH, FailureClass.HANG_MID_TRAINING),
        FailureClass.STEP_ABORTED,
    }
)
# it ran to its end without an error
_UNSCORED = (FailureClass.NO_SCORE, FailureClass.TOO_FEW_STEPS)


# ends from outside, besides trouble of sites and nodes: no program and no trainer causes them
_FROM_OUTSIDE = frozenset(
    {
        *(FailureClass.CANCELLED, FailureClass.TIME_LIMIT, FailureClass.LOST),
        *(FailureClass.NOT_STARTED, FailureClass.LOG_UNREADABLE, FailureClass.OUTCOME_UNREADABLE),
        *(FailureClass.TRAIN_TIMEOUT, FailureClass.PREEMPTION_NOTICE),
    }
)
# findings of these classes are quoted in full
_TOLD_WHOLE = (FailureClass.FLAGS_NOT_EFFECTIVE, FailureClass.NO_SCORE, FailureClass.OTHER_DEVICE)


def is_from_outside(cls: str) -> bool:
    """Return whether an end of this class says nothing about the trainer and its programs."""
    return cls in _FROM_OUTSIDE or cls in blamed_on(Blame.SITE, Blame.NODE)


class Reference(StrEnum):
    """The state of the reference from the point of view of an attempt."""

    RUNS = "runs"  # one of its trials was measured, or there is no reference
    UNKNOWN = "unknown"  # none of its trials has been measured yet
    ITSELF = "itself"  # the attempt belongs to the reference, which has run before
    FIRST = "first"  # the attempt belongs to the reference, which has never run


class Ruling(Decided, frozen=True, kw_only=True):
    """A decision after an attempt; `as_event` returns the event that records it.

    Attributes:
        trial_id, attempt: empty; only the event names the attempt.
        backoff_s: seconds before the next attempt.
        before: what must be done before the next attempt.
        is_of_node: whether the failure is that of a node, not of the program.
    """

    trial_id: str = ""
    attempt: int = 0
    backoff_s: float = 0.0
    before: Action = Action.NONE
    is_of_node: bool = False

    def as_event(self, trial_id: str, attempt: int, *, not_before_s: float = 0.0) -> Decided:
        """Return the event for an attempt."""
        kept = {name: getattr(self, name) for name in Decided.__struct_fields__}
        identity = {"trial_id": trial_id, "attempt": attempt, "not_before_s": not_before_s}
        return Decided(**(kept | identity))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the table asks of an attempt beside its outcome and its finding.

    Attributes:
        earlier: the classes of the earlier attempts of its trial that were tried again, in order.
        policy: the rules of the site.
        reference: where the arm stands that it is compared with.
        blamed: the program of a rotation that it died of; None if it died of none.
        has_enough_turns: whether a rotation that was ended early counts with the turns it had.
        is_first_rotation: whether it is the look, or the first rotation, on which the others rest.
        is_over: whether it ended before this session began.
        is_unready: whether the preparation of the next attempt failed.
        is_for_nodes: whether the reason that it cannot start is in its nodes.
        ends_with_nodes: whether a trial whose nodes fail ends, and the study goes on without it.
        nodes: the nodes of the trial.
    """

    earlier: Sequence[str] = ()
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    reference: Reference = Reference.RUNS
    blamed: Blamed | None = None
    has_enough_turns: bool = False
    is_first_rotation: bool = False
    is_over: bool = False
    is_unready: bool = False
    is_for_nodes: bool = False
    ends_with_nodes: bool = False
    nodes: tuple[str, ...] = ()


_NO_FACTS = Facts()


class EndCase(NamedTuple):
    """A row of `CASES`.

    Attributes:
        follows: decisions so far to which the row applies; () for any.
        fits: returns whether the row applies to this attempt.
        then: the decision that replaces the one so far.
        changed: returns other fields of the ruling that change.
    """

    follows: tuple[Next, ...]
    fits: Callable[[Ruling, Facts], bool]
    then: Next
    changed: Callable[[Ruling, Facts], dict[str, Any]] = lambda *_: {}


def _without_blamed(_: Ruling, facts: Facts) -> dict[str, Any]:
    """Return how a rotation goes on: without the blamed program, or as it is with a suspect."""
    if facts.blamed is None or facts.blamed.is_suspect:
        return {}
    kinds = {
        BlamedAt.COMPILING: "it ended while it compiled {program}, and goes on without it",
        BlamedAt.TURN: "it ended in the turn of {program}, and goes on without it",
    }
    why = say(kinds[facts.blamed.at], program=facts.blamed.program)
    return {"tried": 0, "backoff_s": 0.0, "before": Action.NONE, "found": why}


# Exceptions to the decision for a class. Each row that applies replaces the decision so far.
CASES: tuple[EndCase, ...] = (
    EndCase((), lambda _, facts: facts.blamed is not None, Next.RETRY, _without_blamed),
    EndCase(
        (),
        lambda ruling, facts: (
            facts.has_enough_turns
            and facts.blamed is None
            and ruling.cls == FailureClass.TIME_LIMIT
        ),
        Next.ACCEPT,
    ),
    # All rotations depend on the first. What ended it from outside is retried in the next session;
    # a trainer that keeps ending by itself cannot rotate.
    EndCase(
        (Next.GIVE_UP,),
        lambda ruling, facts: facts.is_first_rotation and is_from_outside(ruling.cls),
        Next.STOP,
    ),
    EndCase((Next.GIVE_UP,), lambda _, facts: facts.is_first_rotation, Next.DROP),
    # the earlier session could not record the job's end, for example because the disk was full
    EndCase(
        (Next.STOP,),
        lambda ruling, facts: (
            facts.is_over and ruling.cannot is None and ruling.cls in blamed_on(Blame.SITE)
        ),
        Next.RETRY,
    ),
    EndCase(
        (Next.RETRY,),
        lambda _, facts: facts.is_unready,
        Next.STOP,
        lambda ruling, _: {"needed": ruling.before},
    ),
    EndCase(
        (Next.STOP,),
        lambda ruling, facts: facts.ends_with_nodes and (ruling.is_of_node or facts.is_for_nodes),
        Next.GIVE_UP,
        lambda ruling, facts: {"nodes": ruling.nodes or facts.nodes},
    ),
)


def rule_for(policy: RetryPolicy, finding: Finding) -> RetryRule:
    """Return the rule for a finding: the site's, the playbook's, or that of its action."""
    named = policy.rules.get(finding.cls)
    if named is not None and not named.retries:
        return named
    by_class = named or CLASS_RULES.get(finding.cls)
    if by_class is None and finding.cls in blamed_on(Blame.UNKNOWN):
        by_class = _UNKNOWN_RULE
    # DROP or STOP of a finding is never softened into a retry by its class
    if by_class is None or finding.action in (Action.DROP, Action.STOP):
        return ACTION_RULES.get(finding.action, RetryRule(retries=0))
    return by_class


def _retries(policy: RetryPolicy, cls: str) -> int:
    """Return the number of retries in a class's own rule; 0 if it has none."""
    rule = policy.rules.get(cls) or CLASS_RULES.get(cls)
    return rule.retries if rule is not None else 0


def decide(outcome: Outcome, cause: Finding | None, facts: Facts = _NO_FACTS) -> Ruling:
    """Decide what follows from an attempt, given the root cause in its log, if any."""
    return in_case(by_rule(outcome, cause, facts), facts)


def by_rule(outcome: Outcome, cause: Finding | None, facts: Facts = _NO_FACTS) -> Ruling:
    """Return what the class of an end asks for, after so many tries; `CASES` may change it.

    An unknown failure that comes again is the profile's only where the reference runs; else the
    trial could not be measured. A reference that can never be measured stops the sweep.
    """
    if cause is not None and cause.action is Action.SUCCESS:
        return Ruling(
            next=Next.ACCEPT,
            cls=cause.cls,
            evidence=cause.text,
            shown=cause.why,
            detail=cause.detail,
        )
    if cause is None or cause.action is Action.NONE:
        if outcome.state is State.COMPLETED:
            return Ruling(next=Next.ACCEPT)
        cause = _from_state(outcome, cause)
    earlier, policy, reference = facts.earlier, facts.policy, facts.reference
    rule, cls = rule_for(policy, cause), cause.cls
    if reference is Reference.FIRST and cls not in policy.rules:
        rule = FIRST_RULES.get(cls, rule)
    # Only the status counts: when arms below the baseline were repeated and the better run was
    # kept, 18 % of simulated sweeps without an effect had a winner instead of 5 %.
    tried = sum(1 for _ in takewhile(lambda earlier_cls: earlier_cls == cls, reversed(earlier)))
    is_endless = rule.retries == ENDLESS
    counted = [earlier_cls for earlier_cls in earlier if _retries(policy, earlier_cls) != ENDLESS]
    again = is_endless or (tried < rule.retries and len(counted) + 1 < policy.max_attempts)
    # after other trouble in between, the failure does not count as recurring
    is_doubtful = cls in blamed_on(Blame.UNKNOWN) and (reference is Reference.UNKNOWN or not tried)
    then = Next.GIVE_UP if rule.then is Next.DROP and is_doubtful else rule.then
    cannot = None if again else _cannot(cls, then, reference)
    return Ruling(
        next=Next.RETRY if again else then if cannot is None else Next.STOP,
        cannot=cannot,
        cls=cause.cls,
        detail=cause.detail,
        found=cause.why if cls in _TOLD_WHOLE else None,
        tried=tried,
        evidence=cause.text or ("" if cause.why else outcome.reason),
        shown=cause.why,
        backoff_s=_OUTAGE_S if is_endless and tried else rule.backoff_s if again else 0.0,
        before=rule.before if again else Action.NONE,
        is_of_node=cause.cls in blamed_on(Blame.NODE)
        or cause.action in (Action.RESUME_NODE, Action.HOOK),
    )


def in_case(ruling: Ruling, facts: Facts) -> Ruling:
    """Return the ruling after the exceptions in `CASES`.

    `decide` applies it to an attempt that ended. Callers apply it to an attempt that cannot start,
    or whose preparation failed, with the decision so far.
    """
    for case in CASES:
        if (not case.follows or ruling.next in case.follows) and case.fits(ruling, facts):
            if case.then is Next.ACCEPT:
                ruling = Ruling(next=Next.ACCEPT)
            else:
                ruling = replace(ruling, next=case.then, **case.changed(ruling, facts))
    return ruling


def _cannot(cls: str, then: Next, reference: Reference) -> Cannot | None:
    """Return what is wrong with the reference if its end leaves nothing to compare with.

    If the reference never ran, an end without a known reason that recurs would end every profile.
    """
    if reference not in (Reference.ITSELF, Reference.FIRST):
        return None
    never = cls in _OWN_ENDS and reference is Reference.FIRST
    was_tried = cls in (*_UNSCORED, FailureClass.NOT_STARTED)
    if then is Next.DROP or (then is Next.GIVE_UP and (never or was_tried)):
        return Cannot.BE_SCORED if cls in _UNSCORED else Cannot.RUN
    return None


def _from_state(outcome: Outcome, cause: Finding | None) -> Finding:
    is_failed = outcome.state is State.FAILED
    unknown = FailureClass.EXIT_CODE if is_failed else FailureClass.UNKNOWN_DEATH
    cls = CLASS_OF_STATE.get(outcome.state, unknown)
    detail = f"exit {outcome.exit_code}" if outcome.exit_code else outcome.reason
    if outcome.signal and is_failed:
        # after a deadline or a cancel, the signal was ours
        detail = f"signal {outcome.signal}"
        cls = FailureClass.KILLED
    text = cause.text if cause else ""
    return Finding(cls=cls, action=cls.action or Action.RETRY, text=text or detail, detail=detail)
