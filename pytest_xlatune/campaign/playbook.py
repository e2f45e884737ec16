"""The failure playbook: what follows when an attempt has ended, or cannot start.

The class of a failure is that of the root cause in the attempt's log, or else that of the state
which the scheduler reports. Its rule and the number of tries so far give the decision. Then
`with_exceptions` may replace it: a rotation, for example, goes on without the program that ended
it.

A decision depends on the status of a trial's attempts and on their findings, never on a measured
value, because repeating slow runs would make winners of noise. Nodes are never swapped. This module
only decides: it starts and cancels nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from msgspec.structs import replace

from pytest_xlatune.ledger import Cannot, Decided
from pytest_xlatune.model.failure import CLASS_OF_STATE, Blame, FailureClass, blamed_on
from pytest_xlatune.model.message import say
from pytest_xlatune.model.resources import ENDLESS, Next, RetryPolicy, RetryRule
from pytest_xlatune.model.result import Action, Blamed, Finding, Outcome, State

# class -> rule; other classes follow the action of the finding, see ACTION_RULES
CLASS_RULES: Mapping[str, RetryRule] = {
    # the profile is dropped after three failures; a flaky start says nothing about other profiles
    FailureClass.HANG_INIT: RetryRule(retries=2, then=Next.DROP),
    # a second timeout in a row means that the cluster's coordination service is in trouble
    FailureClass.JAX_COORD_TIMEOUT: RetryRule(retries=1, then=Next.STOP),
    FailureClass.GPU_HARDWARE: RetryRule(retries=1, backoff_s=90, then=Next.STOP),
    FailureClass.NODE_DRAIN: RetryRule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    FailureClass.OOM_HOST: RetryRule(retries=1, then=Next.STOP),
    FailureClass.DRIVER: RetryRule(retries=1, backoff_s=60, then=Next.STOP),
    # the next two may also come from the profile's settings, so other profiles go on
    FailureClass.NETWORK: RetryRule(retries=2, backoff_s=60),
    FailureClass.RAY_ACTOR: RetryRule(retries=1, backoff_s=60),
    FailureClass.IMAGE_MISSING: RetryRule(retries=0, then=Next.STOP),
    # a global outage clears by itself
    FailureClass.GITHUB_5XX: RetryRule(retries=ENDLESS, backoff_s=300, before=Action.WAIT),
    # a link or a host that failed twice on the same nodes will fail again
    FailureClass.NETWORK_LINK: RetryRule(retries=1, then=Next.STOP),
    FailureClass.HOST_STUCK: RetryRule(retries=1, then=Next.STOP),
    FailureClass.KILLED: RetryRule(retries=2),
    # preemption recurs while other users have priority, and says nothing about the program
    FailureClass.PREEMPTED: RetryRule(retries=3),
    # a person's decision, which says nothing about the program
    FailureClass.REQUEUED: RetryRule(retries=3),
}
# Until the reference has run once, it is retried only once after these failures: it would end every
# profile.
_FIRST_RETRIED_ONCE = (FailureClass.KILLED, FailureClass.HANG_INIT)
# For classes that may be the fault of the profile or of the site. Only a failure that recurs counts
# as the profile's, because a connection reset or one ECC error must not drop a profile.
_UNKNOWN_RULE = RetryRule(retries=1, then=Next.DROP)

_LATER_OUTAGE_S = 3600.0  # seconds before the second and later ones of `ENDLESS` retries

ACTION_RULES: Mapping[Action, RetryRule] = {
    Action.RETRY: RetryRule(retries=1),
    Action.RESUME_NODE: RetryRule(retries=2, then=Next.STOP, before=Action.RESUME_NODE),
    Action.HOOK: RetryRule(retries=1, then=Next.STOP, before=Action.HOOK),
    Action.WAIT: RetryRule(retries=3, backoff_s=300, then=Next.STOP, before=Action.WAIT),
    Action.DROP: RetryRule(retries=0, then=Next.DROP),
    Action.STOP: RetryRule(retries=0, then=Next.STOP),
}

# classes of ends and hangs that no known line of the log explains
_ENDS_WITHOUT_REASON = frozenset(
    {
        *(FailureClass.EXIT_CODE, FailureClass.KILLED, FailureClass.SIGNAL_KILL),
        *(FailureClass.NODE_EXIT, FailureClass.UNKNOWN_DEATH, FailureClass.HANG_MID_TRAINING),
        FailureClass.STEP_ABORTED,
    }
)
# classes of attempts that ran to their end without an error, but have no score
_UNSCORED = (FailureClass.NO_SCORE, FailureClass.TOO_FEW_STEPS)

# classes of ends that no program and no trainer causes, besides those of sites and nodes
_FROM_OUTSIDE = frozenset(
    {
        *(FailureClass.CANCELLED, FailureClass.TIME_LIMIT, FailureClass.LOST),
        *(FailureClass.NOT_STARTED, FailureClass.LOG_UNREADABLE, FailureClass.OUTCOME_UNREADABLE),
        *(FailureClass.TRAIN_TIMEOUT, FailureClass.PREEMPTION_NOTICE),
    }
)
# classes whose findings are quoted in full as the reason of a decision
_QUOTED = (
    *(FailureClass.FLAGS_NOT_EFFECTIVE, FailureClass.NO_SCORE, FailureClass.OTHER_DEVICE),
    FailureClass.LOG_UNREADABLE,
)


def is_from_outside(cls: str) -> bool:
    """Return whether an end of this class says nothing about the trainer and its programs."""
    return cls in _FROM_OUTSIDE or cls in blamed_on(Blame.SITE, Blame.NODE)


class Ruling(Decided, frozen=True, kw_only=True):
    """A decision after an attempt; only its event names the attempt."""

    trial_id: str = ""
    attempt: int = 0
    backoff_s: float = 0.0  # seconds before the next attempt
    before: Action = Action.NONE  # what must be done before the next attempt
    is_of_node: bool = False  # whether a node is the reason, not the program

    @property
    def event(self) -> Decided:
        """The event that records this ruling."""
        return Decided(**{name: getattr(self, name) for name in Decided.__struct_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules need to know of an attempt besides its outcome and its finding."""

    earlier: Sequence[str] = ()  # classes of its trial's attempts that were retried, in order
    policy: RetryPolicy = field(default_factory=RetryPolicy)  # the rules of the site
    is_reference: bool = False  # whether the attempt belongs to the reference
    reference_runs: bool = True  # a trial of the reference was measured, or there is no reference
    blamed: Blamed | None = None  # the program of a rotation that the attempt died of
    has_enough_turns: bool = False  # for a score of a rotation that a time limit ended
    is_first_rotation: bool = False  # rotation 0 or 1, on which all later ones depend
    ends_with_nodes: bool = False  # whether the study goes on without a trial whose nodes fail
    nodes: tuple[str, ...] = ()  # the nodes of the trial


_NO_FACTS = Facts()


def rule_for(policy: RetryPolicy, finding: Finding) -> RetryRule:
    """Return the rule for a finding: the site's, the playbook's, or that of its action."""
    rule = policy.rules.get(finding.cls)
    if rule is not None and not rule.retries:
        return rule
    unknown_rule = _UNKNOWN_RULE if finding.cls in blamed_on(Blame.UNKNOWN) else None
    rule = rule or CLASS_RULES.get(finding.cls) or unknown_rule
    # a finding whose action is DROP or STOP is never retried because of its class
    if rule is None or finding.action in (Action.DROP, Action.STOP):
        return ACTION_RULES.get(finding.action, RetryRule(retries=0))
    return rule


def decide(outcome: Outcome, cause: Finding | None, facts: Facts = _NO_FACTS) -> Ruling:
    """Decide what follows from an ended attempt; `cause` is the root cause in its log, or None."""
    return with_exceptions(rule_decision(outcome, cause, facts), facts)


def rule_decision(outcome: Outcome, cause: Finding | None, facts: Facts = _NO_FACTS) -> Ruling:
    """Return the decision by the rule of a failure and the number of tries, without exceptions.

    A failure that may be the site's fault, and that recurs, drops the profile only if the reference
    has run; if not, the trial could not be measured. A reference that can never be measured stops
    the sweep.
    """
    if cause is None or cause.action is Action.NONE:
        if outcome.state is State.COMPLETED:
            return Ruling(next=Next.ACCEPT)
        end, detail = CLASS_OF_STATE.get(outcome.state, FailureClass.EXIT_CODE), outcome.reason
        if outcome.exit_code:
            detail = f"exit {outcome.exit_code}"
        if outcome.signal and outcome.state is State.FAILED:  # in other states, we or Slurm sent it
            end, detail = FailureClass.KILLED, f"signal {outcome.signal}"
        text = (cause.text if cause else "") or detail
        cause = Finding(cls=end, action=end.action or Action.RETRY, text=text, detail=detail)
    policy, cls, rule = facts.policy, cause.cls, rule_for(facts.policy, cause)
    is_first = facts.is_reference and not facts.reference_runs
    if is_first and cls in _FIRST_RETRIED_ONCE and cls not in policy.rules:
        rule = replace(rule, retries=min(rule.retries, 1))
    # Only failures count, never a score: when arms below the baseline were repeated and the better
    # run was kept, 18 % of simulated sweeps without an effect had a winner instead of 5 %.
    tried = sum(1 for _ in takewhile(lambda former: former == cls, reversed(facts.earlier)))
    is_endless = rule.retries == ENDLESS
    ruling = Ruling(
        next=Next.ACCEPT if cause.action is Action.SUCCESS else Next.RETRY,
        cls=cls,
        detail=cause.detail,
        found=cause.why if cls in _QUOTED else None,
        tried=tried,
        evidence=cause.text or ("" if cause.why else outcome.reason),
        shown=cause.why,
        backoff_s=_LATER_OUTAGE_S if is_endless and tried else rule.backoff_s,
        before=rule.before,
        is_of_node=cls in blamed_on(Blame.NODE)
        or cause.action in (Action.RESUME_NODE, Action.HOOK),
    )
    # attempts whose class is retried without end do not count towards `max_attempts`
    rules = {**CLASS_RULES, **policy.rules}
    counted = [
        former for former in facts.earlier if rules.get(former, _UNKNOWN_RULE).retries != ENDLESS
    ]
    has_tries = tried < rule.retries and len(counted) + 1 < policy.max_attempts
    if ruling.next is Next.ACCEPT or is_endless or has_tries:
        return ruling
    # the failure recurs only if the attempt just before failed in the same way
    recurs = bool(tried) and (facts.reference_runs or facts.is_reference)
    then = rule.then
    if then is Next.DROP and cls in blamed_on(Blame.UNKNOWN) and not recurs:
        then = Next.GIVE_UP
    cannot = None
    if facts.is_reference:
        # A failure without a known reason counts only if the reference has never run, because it
        # would then end every profile too.
        ends_every_profile = cls in _ENDS_WITHOUT_REASON and not facts.reference_runs
        is_final = ends_every_profile or cls in (*_UNSCORED, FailureClass.NOT_STARTED)
        if then is Next.DROP or (then is Next.GIVE_UP and is_final):
            then = Next.STOP
            cannot = Cannot.BE_SCORED if cls in _UNSCORED else Cannot.RUN
    return replace(ruling, next=then, cannot=cannot, backoff_s=0.0, before=Action.NONE)


def with_exceptions(ruling: Ruling, facts: Facts) -> Ruling:
    """Return the ruling, or what replaces it for a rotation and for nodes that fail."""
    blamed = facts.blamed
    if blamed is not None:
        ruling = replace(ruling, next=Next.RETRY)
        if not blamed.is_suspect:  # a suspect stays in the rotation
            found = say("it died of {program}, and goes on without it", program=blamed.program)
            ruling = replace(ruling, tried=0, backoff_s=0.0, before=Action.NONE, found=found)
    elif facts.has_enough_turns and ruling.cls == FailureClass.TIME_LIMIT:
        return Ruling(next=Next.ACCEPT)
    # All rotations depend on the first one. If an outside cause ended it, the sweep stops, and the
    # next session retries it. If the trainer keeps ending by itself, it cannot rotate.
    if facts.is_first_rotation and ruling.next is Next.GIVE_UP:
        ruling = replace(ruling, next=Next.STOP if is_from_outside(ruling.cls) else Next.DROP)
    if facts.ends_with_nodes and ruling.is_of_node and ruling.next is Next.STOP:
        ruling = replace(ruling, next=Next.GIVE_UP, nodes=ruling.nodes or facts.nodes)
    return ruling
