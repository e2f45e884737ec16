"""The playbook: class -> what follows, by status and never by value."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from pytest_xlatune.campaign import playbook as recovery
from pytest_xlatune.campaign.playbook import Facts, decide
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Next, RetryPolicy, RetryRule
from pytest_xlatune.model.result import Action, Blamed, BlamedAt, Finding, Outcome, State

OK = Outcome(state=State.COMPLETED, exit_code=0)
FAILED = Outcome(state=State.FAILED, exit_code=1)


def finding(cls: str, action: Action = Action.RETRY, text: str = "the line") -> Finding:
    return Finding(cls=cls, action=action, text=text)


@pytest.mark.parametrize(
    ("outcome", "cause", "earlier", "expected"),
    [
        pytest.param(OK, None, (), Next.ACCEPT, id="a clean end is scored"),
        pytest.param(
            FAILED, finding("soft-success", Action.SUCCESS), (), Next.ACCEPT,
            id="exit 143 after the last step is success",
        ),
        pytest.param(OK, finding("note", Action.NONE), (), Next.ACCEPT, id="a note alone"),
        pytest.param(
            FAILED, finding("unknown-flag", Action.DROP), (), Next.DROP, id="bad flag drops"
        ),
        pytest.param(FAILED, finding("oom-gpu", Action.DROP), (), Next.DROP, id="OOM drops"),
        pytest.param(
            OK, finding("numerical-failure", Action.DROP), (), Next.DROP,
            id="NaN drops though the exit code is 0",
        ),
        pytest.param(FAILED, finding("hang-init"), (), Next.RETRY, id="a first init flake"),
        pytest.param(FAILED, finding("hang-init"), ("hang-init",), Next.RETRY, id="and a second"),
        pytest.param(
            FAILED, finding("github-5xx", Action.WAIT), ("github-5xx",) * 40, Next.RETRY,
            id="an outage of GitHub is waited out, however long",
        ),
        pytest.param(
            FAILED, finding("killed"), ("github-5xx",) * 9, Next.RETRY,
            id="and takes no attempt from other trouble",
        ),
        pytest.param(
            FAILED, finding("hang-init"), ("hang-init",) * 2, Next.DROP,
            id="a third init flake drops the profile",
        ),
        pytest.param(
            FAILED, finding("jax-coord-timeout"), ("jax-coord-timeout",), Next.STOP,
            id="a second coordinator timeout in a row stops",
        ),
        pytest.param(
            FAILED, finding("jax-coord-timeout"), ("jax-coord-timeout", "killed"), Next.RETRY,
            id="one that is not in a row does not",
        ),
        pytest.param(
            Outcome(state=State.NODE_FAIL), None, (), Next.RETRY, id="a dead node is resumed"
        ),
        pytest.param(
            Outcome(state=State.NODE_FAIL), None, ("node-fail",) * 2, Next.STOP,
            id="a node that dies three times stops",
        ),
        pytest.param(
            Outcome(state=State.FAILED, signal=9), None, (), Next.RETRY, id="kill -9 is retried"
        ),
        pytest.param(FAILED, None, (), Next.RETRY, id="an unexplained exit code once more"),
        pytest.param(FAILED, None, ("exit-code",), Next.GIVE_UP, id="and then not"),
        pytest.param(
            Outcome(state=State.TIMEOUT), None, (), Next.GIVE_UP, id="a time limit is not retried"
        ),
        pytest.param(
            Outcome(state=State.TIMEOUT, signal=15), None, (), Next.GIVE_UP,
            id="nor is a deadline at which we sent the signal",
        ),
        pytest.param(
            Outcome(state=State.CANCELLED), None, (), Next.GIVE_UP, id="scancel is not retried"
        ),
        pytest.param(Outcome(state=State.LOST), None, (), Next.RETRY, id="a lost job once more"),
        pytest.param(
            FAILED, finding("killed"), ("exit-code", "lost", "killed"), Next.GIVE_UP,
            id="four attempts are enough",
        ),
        pytest.param(FAILED, finding("mystery", Action.STOP), (), Next.STOP, id="a stop is a stop"),
    ],
)  # fmt: skip
def test_playbook(
    outcome: Outcome, cause: Finding | None, earlier: tuple[str, ...], expected: Next
) -> None:
    decision = decide(outcome, cause, Facts(earlier=earlier))
    assert decision.next is expected
    assert recovery.Ruling.from_json(decision.to_json()) == decision
    if expected is not Next.ACCEPT:
        assert decision.cls
        assert decision.cls in sentence(decision.why)


BLAMED = Blamed(program="fast", at=BlamedAt.TURN, cls="killed", attempt=1)
FIRST = Facts(is_first_rotation=True)
LATE = Outcome(state=State.TIMEOUT)
LOST_NODE = Outcome(state=State.NODE_FAIL)


@pytest.mark.parametrize(
    ("outcome", "cause", "earlier", "facts", "expected"),
    [
        pytest.param(
            FAILED, finding("xla-check-fail", Action.DROP), (), Facts(blamed=BLAMED), Next.RETRY,
            id="a rotation goes on without what it died of",
        ),
        pytest.param(
            LATE, None, (), Facts(has_enough_turns=True), Next.ACCEPT,
            id="a rotation that the limit ended counts with enough turns",
        ),
        pytest.param(
            FAILED, None, ("exit-code",), Facts(has_enough_turns=True), Next.GIVE_UP,
            id="one that ended by itself does not",
        ),
        pytest.param(
            LATE, None, (), FIRST, Next.STOP, id="a first rotation that was ended from outside"
        ),
        pytest.param(
            FAILED, None, ("exit-code",), FIRST, Next.DROP,
            id="a first rotation that ends by itself again",
        ),
        pytest.param(
            FAILED, finding("filesystem", Action.STOP), (), Facts(is_over=True), Next.RETRY,
            id="the site's trouble of an earlier session",
        ),
        pytest.param(
            FAILED, finding("nic-fault"), (), Facts(is_unready=True), Next.STOP,
            id="a retry that lacks what it needs first",
        ),
        pytest.param(
            LOST_NODE, None, ("node-fail",) * 2, Facts(ends_with_nodes=True), Next.GIVE_UP,
            id="a study that goes on without a node",
        ),
        pytest.param(
            FAILED, finding("hub"), ("hub",) * 3, Facts(ends_with_nodes=True), Next.STOP,
            id="which no other trouble is",
        ),
    ],
)  # fmt: skip
def test_what_an_attempt_itself_changes(
    outcome: Outcome, cause: Finding | None, earlier: tuple[str, ...], facts: Facts, expected: Next
) -> None:
    assert decide(outcome, cause, replace(facts, earlier=earlier)).next is expected


def test_a_retry_says_what_comes_first_and_how_long_it_waits() -> None:
    nic = decide(FAILED, finding("nic-fault"))
    assert (nic.next, nic.before) == (Next.RETRY, Action.HOOK)
    down = decide(FAILED, finding("slurm-controller-down", Action.WAIT))
    assert down.backoff_s == 300
    over = decide(
        FAILED,
        finding("slurm-controller-down", Action.WAIT),
        Facts(earlier=("slurm-controller-down",) * 3),
    )
    assert (over.next, over.backoff_s) == (Next.STOP, 0.0)
    assert decide(FAILED, finding("nic-fault"), Facts(earlier=("nic-fault",))).before is Action.NONE
    outage = finding("github-5xx", Action.WAIT)
    waits_s = [
        decide(FAILED, outage, Facts(earlier=("github-5xx",) * n)).backoff_s for n in range(3)
    ]
    assert waits_s == [300, 3600, 3600]


def test_a_site_rule_comes_first_but_never_softens_a_drop() -> None:
    policy = RetryPolicy(rules={"nic-fault": RetryRule(retries=0, then=Next.STOP)})
    assert decide(FAILED, finding("nic-fault"), Facts(policy=policy)).next is Next.STOP
    soft = RetryPolicy(rules={"oom-gpu": RetryRule(retries=9)})
    assert decide(FAILED, finding("oom-gpu", Action.DROP), Facts(policy=soft)).next is Next.DROP
    # nor does the playbook's own rule of a class, where the line itself asks for an end
    assert decide(FAILED, finding("killed", Action.STOP)).next is Next.STOP


def test_the_evidence_is_the_line_or_the_schedulers_words() -> None:
    assert decide(FAILED, finding("killed", text="Killed")).evidence == "Killed"
    noted = decide(FAILED, finding("note", Action.NONE, text="a warning"))
    assert (noted.cls, noted.evidence) == ("exit-code", "a warning")
    told = decide(Outcome(state=State.TIMEOUT, reason="DUE TO TIME LIMIT"), None)
    assert told.evidence == "DUE TO TIME LIMIT"


def test_no_decision_can_see_a_measured_value() -> None:
    seen = set(inspect.signature(decide).parameters)
    assert seen == {"outcome", "cause", "facts"}
    fields = {*Outcome.__struct_fields__, *recovery.Facts.__dataclass_fields__}
    assert not fields & {"score", "tgs", "steps"}


def test_a_policy_without_attempts_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_attempts is 0"):
        RetryPolicy(max_attempts=0)
