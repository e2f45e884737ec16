"""What a test may assert of a verdict, and how the claim explains itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.result import Effect, Verdict, VerdictKind
from pytest_xlatune.model.text import interval, percent
from pytest_xlatune.report.claims import (
    Claim,
    faster,
    faster_by,
    no_regression,
    not_slower_than,
    within,
)

GAIN = Verdict(
    arm="overlap-2",
    kind=VerdictKind.FASTER,
    delta=0.03,
    ci95=(0.021, 0.039),
    n=4,
    mde80=0.013,
    method=verbatim("Dunnett, K=3"),
)
LEVEL = replace(GAIN, kind=VerdictKind.EQUIVALENT, delta=0.001, ci95=(-0.006, 0.008))
WIDE = replace(GAIN, kind=VerdictKind.INCONCLUSIVE, delta=0.004, ci95=(-0.015, 0.024))
ONCE = Verdict(arm="overlap-2", kind=VerdictKind.SCREENED, delta=0.09, n=1)
BROKEN = Verdict(arm="overlap-2", kind=VerdictKind.INVALID, reasons=(verbatim("out of memory"),))


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        pytest.param(faster, (True, False, False), id="faster"),
        pytest.param(lambda v: faster_by(v, 0.02), (True, False, False), id="faster by 2 %"),
        pytest.param(lambda v: faster_by(v, 0.025), (False, False, False), id="faster by 2.5 %"),
        pytest.param(lambda v: not_slower_than(v, 0.01), (True, True, False), id="not slower"),
        pytest.param(lambda v: within(v, 0.01), (False, True, False), id="within 1 %"),
    ],
)
def test_claims(claim: Callable[[Verdict], Claim], expected: tuple[bool, ...]) -> None:
    assert tuple(bool(claim(verdict)) for verdict in (GAIN, LEVEL, WIDE)) == expected
    for refused in (ONCE, BROKEN):
        assert not claim(refused)
        assert "refused" in repr(claim(refused))


def test_a_claim_says_what_it_rests_on() -> None:
    assert repr(not_slower_than(WIDE, 0.01)) == (
        "overlap-2 is not slower by 1.0 % or more: not shown, delta +0.4 %, 95 % [-1.5, +2.4], "
        "n = 4, INCONCLUSIVE, 80 % power at 1.3 %; Dunnett, K=3"
    )
    assert "out of memory" in repr(faster(BROKEN))
    assert "n = 1" in repr(faster(ONCE))


@pytest.mark.parametrize(
    "claim",
    [faster, lambda v: faster_by(v, 0.02), lambda v: within(v, 0.01), no_regression],
    ids=["faster", "faster by", "within", "no regression"],
)
@pytest.mark.parametrize("verdict", [GAIN, LEVEL, WIDE], ids=["gain", "level", "wide"])
def test_what_an_assertion_shows_holds_the_figures(
    claim: Callable[[Verdict], Claim], verdict: Verdict
) -> None:
    """pytest cuts the middle out of a text of more than 240 characters."""
    long = replace(
        verdict, arm="p" * 64, method=verbatim("m" * 300), reasons=(verbatim("r" * 300),)
    )
    shown = repr(claim(long))
    assert len(shown) <= 240
    low, high = verdict.ci95 or (0, 0)
    for figure in (percent(verdict.delta), interval((low, high)), "n = 4", verdict.kind):
        assert figure in shown[:200]
    assert len(claim(long).text) > 240


def test_a_gate_says_pass_regression_or_cannot_tell_first() -> None:
    loss = replace(GAIN, kind=VerdictKind.SLOWER, delta=-0.03, ci95=(-0.04, -0.02))
    said = {
        "no regression: ": (GAIN, LEVEL),
        "regression: ": (loss,),
        "cannot tell: ": (WIDE, ONCE, replace(LEVEL, n=1), replace(LEVEL, ci95=None)),
    }
    for head, verdicts in said.items():
        for verdict in verdicts:
            claim = no_regression(verdict)
            assert claim.text.startswith(head)
            assert bool(claim) == (head == "no regression: ")
    assert "invalid: out of memory" in repr(no_regression(BROKEN))


def test_settings_that_nothing_shows_in_effect_support_no_claim() -> None:
    asked = replace(GAIN, effect=Effect.ASKED, unproved=("NCCL_ALGO",))
    assert not asked.wins
    for claim in (faster(asked), not_slower_than(asked, 0.01), no_regression(asked)):
        assert not claim
        assert claim.is_undecided
        assert "that NCCL_ALGO was" in repr(claim)
    declared = replace(GAIN, effect=Effect.ASKED)
    assert declared.wins
    assert faster(declared)
    slower = replace(asked, kind=VerdictKind.SLOWER, delta=-0.05, ci95=(-0.06, -0.04))
    assert "regression" in repr(no_regression(slower)), "a loss is a loss, whatever caused it"
