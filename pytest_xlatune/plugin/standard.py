"""The standard tests of every sweep: a sweep file consists of its SWEEP and one line.

    tests = standard_tests(SWEEP)

Each wave has its own function, so that a node id names wave and profile:
`test_pp8.py::test_wave2[overlap-2]`. A test with the same name in the file replaces the standard
test. The tests are added to the module when it is collected, and use the sweep only through
fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.trial import Arm
from pytest_xlatune.plugin.hooks import CLAIM
from pytest_xlatune.prepare.preflight import Preflight
from pytest_xlatune.studies import Aim
from pytest_xlatune.studies.trials import wave_order
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.registry import KINDS
from pytest_xlatune.tasks.answers import Measured
from pytest_xlatune.tasks.artifacts import Recorded

_EVIDENCE_WAVE = "wave1_5"


Measure = Callable[["Profile | Arm"], "Measured"]
Evidence = Callable[["Profile | str"], "Recorded"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StandardTests:
    """The tests of one sweep by name, in the order in which they are collected."""

    sweep: Sweep
    tests: Mapping[str, FunctionType]


def standard_tests(sweep: Sweep, *, evidence: bool = False) -> StandardTests:
    """Return the tests of a sweep; its module must call them `tests`.

    Args:
        sweep: the module's SWEEP.
        evidence: whether the baseline (wave 1.5) and the winner (confirmation) each run once more
            with profiler and dump; the trainer must be able to write both.

    Raises:
        ConfigError: the argument is no sweep.
    """
    if not isinstance(sweep, Sweep):
        raise ConfigError(f"standard_tests({sweep!r:.80}): expected a Sweep: standard_tests(SWEEP)")
    if sweep.declared is not None:
        marker, aim = next(iter(KINDS[sweep.kind].markers)), sweep.traits.aim
        tests: dict[str, FunctionType] = {}
        if aim is Aim.GATES:
            name = "test_no_regression" if marker == "gate" else f"test_{marker}"
            tests[name] = _copy(no_regression, marker)
            return StandardTests(sweep=sweep, tests=tests)
        if sweep.declared.names_arms:  # the arms of a search are not known in advance
            tests["test_arm"] = _copy(each_value if aim is Aim.RANKS else each_arm, marker)
        tests["test_conclusion"] = _copy(the_conclusion, marker)
        return StandardTests(sweep=sweep, tests=tests)
    declared_waves = {profile.wave for profile in sweep.profiles}
    derived_waves = {slot.wave for slot in sweep.slots()}
    evidence_waves = {_EVIDENCE_WAVE} if evidence else set()
    tests = {"test_baseline": _copy(baseline, "wave1")}
    if sweep.no_env is not None:
        tests["test_without_env"] = _copy(without_env, "wave1")
    for wave in sorted(declared_waves | derived_waves | evidence_waves, key=wave_order):
        if wave in evidence_waves:
            tests["test_evidence"] = _copy(evidence_of_baseline, wave)
        if wave in declared_waves:
            tests[f"test_{wave}"] = _copy(each_profile, wave)
        if wave in derived_waves:
            tests[f"test_{wave}_derived"] = _copy(each_derived, wave)
    tests["test_finalist"] = _copy(each_finalist, "confirm")
    if evidence:
        tests["test_why_the_winner_wins"] = _copy(evidence_of_winner, "confirm")
    if sweep.config_tags:
        tests["test_elsewhere"] = _copy(elsewhere, "wave6")
    return StandardTests(sweep=sweep, tests=tests)


def _copy(test: Any, marker: str) -> FunctionType:
    """Return a copy of a test with a marker, because `made_item` writes a module's name into it."""
    copy = FunctionType(test.__code__, test.__globals__)
    copy.__doc__ = test.__doc__
    return getattr(pytest.mark, marker)(copy)  # type: ignore[no-any-return]


def baseline(
    preflight: Preflight, pinned_nodes: tuple[str, ...], baseline_deployed: Measured
) -> None:
    """The site is ready and the cell as deployed trains."""
    verdict = baseline_deployed.verdict
    if verdict.n < 1:
        why = "; ".join(map(sentence, verdict.reasons)) or "it has no score"
        site = ", ".join((*preflight.notes, *pinned_nodes))
        on_site = f" (site: {site})" if site else ""
        _fail(f"{verdict.arm}: {why}{on_site}")


def without_env(measure: Measure, baseline_no_env: Profile) -> None:
    """The cell without its deployed flags; skipped if their defaults are not known."""
    _not_slower(measure(baseline_no_env))


def evidence_of_baseline(evidence: Evidence) -> None:
    """Profiler and dump of the cell as deployed, in a separate run without a score."""
    _recorded(evidence(BASELINE_ID))


def each_profile(measure: Measure, profile: Profile) -> None:
    """Each profile once: it ranks, and proves nothing."""
    _not_slower(measure(profile))


def each_derived(measure: Measure, derived: Profile) -> None:
    """Profiles that follow from evidence and earlier waves, each once."""
    _not_slower(measure(derived))


def each_finalist(measure: Measure, finalist: Profile) -> None:
    """The best of the screen, again in fresh blocks: only this decides."""
    _not_slower(measure(finalist))


def evidence_of_winner(evidence: Evidence, winner: Profile) -> None:
    """Profiler and dump of the proven winner; the tuning document compares both runs."""
    _recorded(evidence(winner))


def elsewhere(winner_elsewhere: Measured) -> None:
    """The winner on the model's other configurations, each in a gate."""
    if not winner_elsewhere.no_regression:
        _fail(winner_elsewhere.paragraph)


def each_arm(measure: Measure, arm: Arm) -> None:
    """Each arm of another study than tuning, once all its trials are over."""
    measured = measure(arm)
    if not measured.not_slower or measured.cannot_run:
        _fail(measured.paragraph)


def each_value(measure: Measure, arm: Arm) -> None:
    """Each value of a list; the test passes even if the value is worse or does not fit."""
    measured = measure(arm)
    if not measured.n:
        pytest.skip(measured.paragraph)


def the_conclusion(conclusion: Conclusion) -> None:
    """What follows from all arms together, once the last trial is over."""
    if objection := conclusion.facts.objection:
        _fail("; ".join(map(sentence, objection)))


def no_regression(measure: Measure, profile: Profile) -> None:
    """A loss of the margin or more is excluded; the test fails if the trials cannot tell."""
    claim = measure(profile).no_regression
    if not claim:
        _fail(repr(claim))


def _not_slower(measured: Measured) -> None:
    if not measured.not_slower:
        _fail(measured.paragraph)


def _recorded(recorded: Recorded) -> None:
    if recorded.dump is None or not recorded.captures:
        _fail(f"{recorded.problems}")


def _fail(message: str) -> NoReturn:
    """Fail with the message alone, because our source code would not help a reader."""
    failed = pytest.fail.Exception(message, pytrace=False)
    vars(failed)[CLAIM] = True
    raise failed
