"""What a test holds in its hand reads as an assertion and never claims from a single run."""

from __future__ import annotations

import json
import math

import pytest

from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.tasks.answers import Measured
from tests.helpers.sessions import run_inside

GAIN = Measured(
    Verdict(
        arm="overlap-2",
        kind=VerdictKind.FASTER,
        delta=0.03,
        ci95=(0.021, 0.039),
        n=4,
        tgs=1030.0,
        mde80=0.013,
        method=verbatim("Dunnett, K=3"),
        job_ids=("7", "9"),
    )
)
ONCE = Measured(Verdict(arm="overlap-2", kind=VerdictKind.SCREENED, delta=0.09, n=1))


def test_the_claims_of_a_confirmed_gain() -> None:
    assert GAIN.faster
    assert GAIN.faster_by(0.02)
    assert GAIN.not_slower_than(0.01)
    assert GAIN.no_regression
    assert not GAIN.within(0.01)
    assert not GAIN.faster_by(math.nan)


def test_a_single_run_claims_nothing_and_is_not_slower() -> None:
    claims = (
        ONCE.faster, ONCE.faster_by(0.01), ONCE.not_slower_than(0.01), ONCE.within(0.5),
        ONCE.no_regression,
    )  # fmt: skip
    assert not any(claims)
    assert all("n = 1" in repr(claim) for claim in claims)
    assert ONCE.not_slower


def test_a_failed_assertion_explains_itself(loaded: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_xlatune.tasks.answers import Measured
        from pytest_xlatune.model.message import MessageCode, coded, say, verbatim
        from pytest_xlatune.model.result import Verdict, VerdictKind

        def test_gain():
            measured = Measured(Verdict(
                arm="overlap-2", kind=VerdictKind.INCONCLUSIVE, delta=0.004,
                ci95=(-0.015, 0.024), n=4, mde80=0.013, method=verbatim("Dunnett, K=3")))
            assert measured.faster_by(0.02)
        """
    )
    done = run_inside(pytester, plugin="no:xlatune")
    done.assert_outcomes(failed=1)
    figures = "delta +0.4 %, 95 % [-1.5, +2.4], n = 4, INCONCLUSIVE, 80 % power at 1.3 %"
    said = f"overlap-2 is faster by more than 2.0 %: not shown, {figures}; Dunnett, K=3"
    done.stdout.fnmatch_lines([f"E *{said.replace('[', '[[]')}*"])


def test_what_junit_gets_are_short_strings_and_one_json() -> None:
    said = dict(GAIN.properties())
    assert said["xlatune.verdict"] == "FASTER"
    assert said["xlatune.delta_pct"] == "+3.000"
    assert said["xlatune.ci95"] == "[+2.100, +3.900]"
    assert said["xlatune.jobs"] == "7,9"
    assert Verdict.from_json(json.loads(said["xlatune"])) == GAIN.verdict
    assert "xlatune.ci95" not in dict(ONCE.properties())
