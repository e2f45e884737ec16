"""A sweep file of SWEEP and one line has the tests of its waves, and may write some itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS

LINE = "tests = standard_tests(SWEEP)\n"
GATE = "    gate=Gate(margin=0.01, blocks=4, block_baselines=1),\n"
WAVES = """\
        profile("early", "--xla_early=1", wave="wave1"),
        profile("fast", "--xla_fast=1"),
"""


@pytest.fixture
def standard(folder: Any, sweep_file: str) -> Any:
    head = sweep_file.partition("@pytest.mark")[0]
    names = "    Around,\n    Gate,\n    NoEnv,\n    Stacks,\n    standard_tests,\n"
    head = head.replace("    profile,\n", f"    profile,\n{names}", 1)
    folder.head = head.rstrip() + "\n\n"
    folder.write(profiles=WAVES, text=folder.head + LINE)
    return folder


def collected(folder: Any, *options: str) -> list[str]:
    lines = folder.run("--collect-only", "-q", *options).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_each_wave_is_a_test_that_names_wave_and_profile(standard: Any) -> None:
    assert collected(standard) == [
        "test_baseline",
        "test_wave1[early]",
        "test_wave2[fast]",
        "test_finalist[finalist-1]",
        "test_finalist[finalist-2]",
    ]
    assert collected(standard, "-m", "wave2") == ["test_wave2[fast]"]
    assert collected(standard, "-m", "wave1") == ["test_baseline", "test_wave1[early]"]
    assert collected(standard, "-k", "fast") == ["test_wave2[fast]"]


def test_what_a_sweep_declares_has_its_test(standard: Any) -> None:
    more = (
        '    no_env=NoEnv(defaults={"xla_deployed": "0"}),\n'
        '    derived=(Stacks(wave="wave3", slots=1),),\n'
        '    config_tags={"dense": {"mode": "dense"}},\n    site='
    )
    head = standard.head.replace("    site=", more).replace('"{trial}"', '"{trial}", "{overrides}"')
    text = head + "tests = standard_tests(SWEEP, evidence=True)\n"
    standard.write(profiles=WAVES, text=text)
    assert collected(standard) == [
        "test_baseline",
        "test_without_env",
        "test_wave1[early]",
        "test_evidence",
        "test_wave2[fast]",
        "test_wave3_derived[stack-1]",
        "test_finalist[finalist-1]",
        "test_finalist[finalist-2]",
        "test_why_the_winner_wins",
        "test_elsewhere[dense]",
    ]
    assert collected(standard, "-m", "wave6") == ["test_elsewhere[dense]"]
    assert collected(standard, "-m", "wave1_5") == ["test_evidence"]


def test_a_gate_has_the_test_of_a_gate(standard: Any) -> None:
    standard.write(
        profiles=WAVES, text=standard.head.replace("    site=", f"{GATE}    site=") + LINE
    )
    assert collected(standard, "-m", "gate") == [
        "test_no_regression[early]",
        "test_no_regression[fast]",
    ]


def test_a_test_of_the_file_takes_the_place_of_the_standard_one(standard: Any) -> None:
    own = "\n\n@pytest.mark.wave2\ndef test_wave2(profile):\n    assert profile.id == 'other'\n"
    standard.write(profiles=WAVES, text=standard.head + LINE + own)
    done = standard.run("-m", "wave2")
    done.assert_outcomes(failed=1)
    assert "other" in done.stdout.str()
    assert not standard.submitted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "class TestIt:\n    SWEEP = SWEEP\n    tests = standard_tests(SWEEP)\n",
            "*standard_tests(...) is in a class*",
            id="the line stands in a class",
        ),
        pytest.param(
            "MINE = SWEEP\ndel SWEEP\ntests = standard_tests(MINE)\n",
            "*write tests = standard_tests(SWEEP)*",
            id="the sweep has another name",
        ),
        pytest.param(
            "from msgspec.structs import replace\nSECOND = replace(SWEEP, name='second')\n"
            "more = standard_tests(SECOND)\n",
            "*a module has one sweep*",
            id="a module has two sweeps",
        ),
        pytest.param(
            "from msgspec.structs import replace\nOTHER = replace(SWEEP, name='other')\n"
            "tests = standard_tests(OTHER)\n",
            "*write tests = standard_tests(SWEEP)*",
            id="another sweep than the module's",
        ),
        pytest.param(
            "tests = standard_tests(None)\n",
            "*standard_tests(None): expected a Sweep*",
            id="there is no sweep",
        ),
    ],
)
def test_a_line_at_the_wrong_place_is_told_what_to_do(
    standard: Any, text: str, message: str
) -> None:
    standard.write(profiles=WAVES, text=standard.head + text)
    done = standard.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines([message])


# the flags of a pretending trainer are none of XLA's
LOOKS_AWAY = """\
import pytest
from pytest_xlatune.prepare.preflight import Preflight
@pytest.fixture(scope="module")
def preflight():
    return Preflight()
"""


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_the_standard_tests_end_as_written_ones(standard: Any, run: str) -> None:
    (standard.path / "conftest.py").write_text(LOOKS_AWAY)
    profiles = '        profile("fast", "--xla_fast=1"),\n        profile("no", "--xla_bogus=1"),\n'
    standard.write(profiles=profiles, text=standard.head + LINE)
    done = getattr(standard, run)()
    done.assert_outcomes(passed=3, xfailed=1, skipped=1)


def test_a_standard_gate_fails_with_its_claim(standard: Any) -> None:
    text = standard.head.replace("    site=", f"{GATE}    site=") + LINE
    standard.write(profiles='        profile("slow", "--xla_slow=1"),\n', text=text)
    done = standard.run()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*Failed: regression: slow*"])
    for line in ("def no_regression*", "*Captured log*"):  # the verdict alone
        done.stdout.no_fnmatch_line(line)


def test_a_fixture_of_the_conftest_is_taken(standard: Any) -> None:
    (standard.path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef measure():\n    pytest.fail('overridden')\n"
    )
    done = standard.run("-m", "wave2")
    done.stdout.fnmatch_lines(["*overridden*"])
    assert not standard.submitted
