"""What a test may assert of a verdict, and how the claim explains itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.result import Effect, Verdict, VerdictKind
from pytest_xlatune.report.claims import Claim, faster, faster_by, no_regression

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
LOSS = replace(GAIN, kind=VerdictKind.SLOWER, delta=-0.03, ci95=(-0.04, -0.02))
ONCE = Verdict(arm="overlap-2", kind=VerdictKind.SCREENED, delta=0.09, n=1)
BROKEN = Verdict(arm="overlap-2", kind=VerdictKind.INVALID, reasons=(verbatim("out of memory"),))


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        pytest.param(faster, (True, False, False), id="faster"),
        pytest.param(lambda v: faster_by(v, 0.02), (True, False, False), id="faster by 2 %"),
        pytest.param(lambda v: faster_by(v, 0.025), (False, False, False), id="faster by 2.5 %"),
        pytest.param(no_regression, (True, True, False), id="no regression"),
    ],
)
def test_a_claim_holds_only_of_a_verdict_that_shows_it(
    claim: Callable[[Verdict], Claim], expected: tuple[bool, ...]
) -> None:
    assert tuple(bool(claim(verdict)) for verdict in (GAIN, LEVEL, WIDE)) == expected
    with pytest.raises(TypeError, match="say faster_by"):
        claim(GAIN)(by=0.02)
    for refused, reason in ((ONCE, "n = 1"), (BROKEN, "out of memory")):
        assert not claim(refused)
        assert reason in repr(claim(refused))
    # pytest cuts the middle out of 240 characters and more
    words = verbatim("r" * 300)
    shown = repr(claim(replace(GAIN, arm="p" * 64, method=words, reasons=(words,))))
    assert len(shown) <= 240
    for figure in ("+3.0 %", "[+2.1, +3.9]", "n = 4", "FASTER"):
        assert figure in shown[:200]


ASKED = replace(GAIN, effect=Effect.ASKED, unproved=("NCCL_ALGO",))


def test_a_gate_says_first_what_it_decides() -> None:
    for verdict in (WIDE, replace(LEVEL, n=1), ASKED):
        assert no_regression(verdict).text.startswith("cannot tell: ")
    # a loss is a loss, whatever caused it
    for verdict in (LOSS, replace(LOSS, effect=Effect.ASKED, unproved=("NCCL_ALGO",))):
        assert no_regression(verdict).text.startswith("regression: ")


def test_settings_that_nothing_shows_in_effect_support_no_claim() -> None:
    assert not ASKED.wins
    for claim in (faster(ASKED), faster_by(ASKED, 0.01)):
        assert (bool(claim), claim.is_undecided) == (False, True)
    assert faster(replace(GAIN, effect=Effect.ASKED)), "declared as not to be seen"
