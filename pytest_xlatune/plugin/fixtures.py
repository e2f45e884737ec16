"""The fixtures of a sweep: each waits for its part of a conclusion and returns it.

This module is thin on purpose: other modules decide what runs, when, and with which verdict.
`collect` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError, Exit, XlatuneError, worst
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.resources import RetryPolicy
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.trial import Arm
from pytest_xlatune.plugin.hooks import (
    CLAIM,
    CONTROLLER,
    EXIT,
    NO_TAG,
    OPENING_KEY,
    OPTIONS_KEY,
    REFUSED,
    SESSION_KEY,
    sweep_of,
)
from pytest_xlatune.prepare.preflight import Preflight
from pytest_xlatune.studies import Aim
from pytest_xlatune.studies.calibration import JOBS
from pytest_xlatune.studies.derived import Slot
from pytest_xlatune.studies.gate import Gate
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.earlier import Calibration
from pytest_xlatune.tasks import answers as awaiting
from pytest_xlatune.tasks.answers import Measured
from pytest_xlatune.tasks.artifacts import Recorded
from pytest_xlatune.tasks.runs import calibrate, record, study_of_profile

# the results that a test has used
MEASURED_KEY: pytest.StashKey[list[Measured]] = pytest.StashKey()
# the timer of pytest-timeout while it runs
TIMER_KEY = pytest.StashKey[tuple[pytest.Item, object]]()
T = TypeVar("T")


@pytest.fixture(scope="module")
def sweep(request: pytest.FixtureRequest) -> Sweep:
    """The sweep that this module declares as SWEEP."""
    declared = sweep_of(request.module)
    if declared is None:
        pytest.fail(f"{request.module.__name__} declares no SWEEP = Sweep(...)", pytrace=False)
    return declared


@pytest.fixture(scope="module")
def cell(request: pytest.FixtureRequest, sweep: Sweep) -> Cell:
    """The sweep's cell with the user's inputs; it stays fixed."""
    return request.config.stash[SESSION_KEY].selection(sweep).sweep.cell


@pytest.fixture(scope="module")
def pinned_nodes(request: pytest.FixtureRequest, sweep: Sweep) -> tuple[str, ...]:
    """The pinned nodes of the cell; () for this machine.

    A project's own fixture of this name chooses the nodes.
    """
    if request.config.stash[OPENING_KEY]:
        return request.config.stash[SESSION_KEY].selection(sweep).sweep.nodelist
    campaign: Campaign = request.getfixturevalue("campaign")
    return guarded(request, lambda tick: campaign.wait_for_nodes(on_turn=tick))


@pytest.fixture(scope="module")
def preflight(request: pytest.FixtureRequest, sweep: Sweep) -> Preflight:
    """The result of checking nodes, files and flags; an error if the sweep cannot run.

    A project's own fixture of this name replaces the check before anything is submitted.
    """
    session, opening = request.config.stash[SESSION_KEY], request.config.stash[OPENING_KEY]
    return guarded(request, lambda _: session.preflight(sweep, is_opening=bool(opening)))


@pytest.fixture(scope="module")
def retry_policy(sweep: Sweep) -> RetryPolicy:
    """The site's retry rules; a project's own fixture of this name replaces them."""
    return sweep.site.retry_policy


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest, sweep: Sweep) -> Campaign:
    """The campaign of the cell, opened by whichever process comes first."""
    _take_overrides(request, sweep)
    return guarded(request, lambda _: request.config.stash[SESSION_KEY].campaign(sweep))


def _take_overrides(request: pytest.FixtureRequest, sweep: Sweep) -> None:
    """Pass the values of the project's own fixtures on to the session.

    Our own `pinned_nodes` and `preflight` need an open campaign, so only a project's are used here.
    """
    session, opening = request.config.stash[SESSION_KEY], request.config.stash[OPENING_KEY]
    if sweep.name in session.overridden:
        return
    opening.append(sweep.name)
    try:
        nodes = _overridden(request, "pinned_nodes")
        checked = _overridden(request, "preflight")
        policy: RetryPolicy = request.getfixturevalue("retry_policy")
    finally:
        opening.pop()
    guarded(
        request,
        lambda _: session.override(sweep, retry_policy=policy, nodes=nodes, checked=checked),
    )


def _overridden(request: pytest.FixtureRequest, name: str) -> Any:
    """Return the value of a project's own fixture of this name; None if there is none."""
    manager = request.session._fixturemanager  # noqa: SLF001 - pytest gives no other way
    definitions = manager.getfixturedefs(name, request.node) or ()
    if not definitions or definitions[-1].func.__module__ == __name__:
        return None
    return request.getfixturevalue(name)


@pytest.fixture(scope="module")
def baseline_deployed(request: pytest.FixtureRequest, campaign: Campaign) -> Measured:
    """All baseline trials of the selected waves, once these waves are over.

    A run that selects only a wave with a single baseline trial has only that one.
    """
    return guarded(request, lambda tick: awaiting.baseline(campaign, tick))


@pytest.fixture
def baseline_no_env(request: pytest.FixtureRequest, sweep: Sweep) -> Profile:
    """The cell with every deployed flag at its default; skips if that is not possible."""
    resolved = request.config.stash[SESSION_KEY].selection(sweep).sweep
    if not resolved.has_no_env:
        why = resolved.no_env or "the sweep declares none (no_env)"
        pytest.skip(f"no baseline-no-env: {why}")
    restored: Profile = resolved.sweep.find("baseline-no-env")
    return restored


@pytest.fixture
def calibration(request: pytest.FixtureRequest, sweep: Sweep) -> Calibration:
    """The noise of the cell, stored for planning its next sweeps."""
    _take_overrides(request, sweep)
    session = request.config.stash[SESSION_KEY]
    marker = request.node.get_closest_marker("calibrate")
    jobs = marker.kwargs.get("jobs", JOBS) if marker is not None else JOBS
    resolved = session.selection(sweep).sweep
    return guarded(
        request,
        lambda tick: calibrate(session.run(resolved, resolved.calibration(jobs)), tick),
    )


@pytest.fixture
def finalist(request: pytest.FixtureRequest, campaign: Campaign) -> Profile:
    """One of the profiles that enter the confirmation, after the last block."""
    number: int = request.param
    profile = guarded(request, lambda tick: awaiting.finalist(campaign, number, tick))
    if profile is None:
        pytest.skip(f"fewer than {number + 1} profiles looked promising after the screen")
    return profile


@pytest.fixture
def derived(request: pytest.FixtureRequest, campaign: Campaign) -> Profile:
    """One of the profiles that a wave derives from earlier waves, once it is over."""
    slot: Slot = request.param
    profile = guarded(request, lambda tick: awaiting.derived(campaign, slot, tick))
    if profile is None:
        pytest.skip(f"{slot.name} stayed empty: no further profile led before {slot.wave}")
    return profile


@pytest.fixture
def winner(request: pytest.FixtureRequest, campaign: Campaign) -> Profile:
    """The profile that the blocks show to be fastest, after the last block; skips if none is."""
    best = guarded(request, lambda tick: awaiting.winners(campaign, tick))
    if not best:
        pytest.skip("no profile is confirmed to be faster than the baseline")
    return best[0]


@pytest.fixture
def winner_elsewhere(request: pytest.FixtureRequest, campaign: Campaign, sweep: Sweep) -> Measured:
    """The winner, beside the second best, in a gate on another configuration of the model.

    It skips if there is no winner yet.
    """
    tag = _tag(request, sweep)
    session = request.config.stash[SESSION_KEY]
    selection = session.selection(sweep)
    best_two = guarded(
        request,
        lambda tick: awaiting.winners(campaign, tick, most=2, is_confirming=selection.confirm),
    )
    if not best_two:
        pytest.skip("no profile is confirmed to be faster yet: run the tests marked confirm first")
    marker = request.node.get_closest_marker("wave6")
    gate = Gate(**marker.kwargs) if marker is not None else Gate()
    other = selection.sweep.elsewhere(tag, best_two, gate)
    measured = guarded(
        request,
        lambda tick: awaiting.confirmed(session.run(other, other.study()), best_two[0], tick),
    )
    _attach(request, measured)
    return measured


@pytest.fixture
def no_env_elsewhere(request: pytest.FixtureRequest, sweep: Sweep) -> Measured:
    """The pair of wave 1 on another configuration of the model; skips where a default is unknown.

    Two jobs run that cell as deployed, and two run it without the deployed flags.
    """
    _take_overrides(request, sweep)
    tag = _tag(request, sweep)
    session = request.config.stash[SESSION_KEY]
    resolved = session.selection(sweep).sweep
    restored = resolved.no_env_on(tag)
    if restored.is_baseline:
        pytest.skip(f"no baseline-no-env with {tag}: {restored.note}")
    other = resolved.elsewhere(tag, (restored,))
    study = other.study(confirm=False)
    measured = guarded(
        request, lambda tick: awaiting.screened(session.run(other, study), restored, tick)
    )
    _attach(request, measured)
    return measured


def _tag(request: pytest.FixtureRequest, sweep: Sweep) -> str:
    """Return the configuration with which a test is parametrised; skip if there is none."""
    if request.param == NO_TAG:
        pytest.skip(f"sweep {sweep.name!r} has no other configuration: it declares no config_tags")
    return str(request.param)


@pytest.fixture
def evidence(request: pytest.FixtureRequest, sweep: Sweep) -> Callable[[Profile | str], Recorded]:
    """Return a function that runs a profile once with profiler and dump, without a score.

    The function returns where both files are and what they show; a recorded run is not repeated.
    """
    _take_overrides(request, sweep)
    session = request.config.stash[SESSION_KEY]
    resolved = session.selection(sweep).sweep

    def evidence_of(profile: Profile | str) -> Recorded:
        return guarded(
            request,
            lambda tick: record(session.run(resolved, study_of_profile(resolved, profile)), tick),
        )

    return evidence_of


@pytest.fixture
def conclusion(request: pytest.FixtureRequest, campaign: Campaign) -> Conclusion:
    """The conclusion of a study other than tuning, once its last trial is over."""
    concluded = guarded(request, lambda tick: awaiting.concluded(campaign, tick))
    if concluded.facts.summary:
        summary = "; ".join(map(sentence, concluded.facts.summary))
        request.node.user_properties.append(("xlatune.conclusion", summary))
    return concluded


@pytest.fixture
def measure(
    request: pytest.FixtureRequest, campaign: Campaign, sweep: Sweep
) -> Callable[[Profile | Arm | str], Measured]:
    """Return a function that waits for the trials of a profile or arm and returns its verdict.

    The fixture waits for the test's own parameter before the test begins, so that a trial that
    could not be measured is an error of the test and not a failure. A profile that cannot run makes
    the test xfail, or fail in a gate.
    """
    declared = sweep.declared
    is_gate = request.node.get_closest_marker("gate") is not None
    aim = Aim.GATES if is_gate else sweep.traits.aim
    is_confirming = declared is not None or "finalist" in request.fixturenames
    negative = request.config.stash[OPTIONS_KEY].negative

    def measured_of(subject: Profile | Arm | str) -> Measured:
        if isinstance(subject, str):
            subject = sweep.find(subject) if declared is None else _arm_of(campaign, subject)
        if is_confirming:
            return guarded(request, lambda tick: awaiting.confirmed(campaign, subject, tick))
        profile = subject.profile if isinstance(subject, Arm) else subject
        return guarded(request, lambda tick: awaiting.screened(campaign, profile, tick))

    def measure(subject: Profile | Arm | str) -> Measured:
        # results of the test's parameters are there already
        measured = known.pop(id(subject), None) or measured_of(subject)
        _attach(request, measured)
        if measured.cannot_run and aim not in (Aim.GATES, Aim.ACCUSES):
            pytest.xfail(measured.paragraph)
        if not measured.not_slower and negative == "xfail" and aim not in (Aim.GATES, Aim.RANKS):
            pytest.xfail(measured.paragraph)
        return measured

    params = getattr(getattr(request.node, "callspec", None), "params", {})
    subjects = [params[name] for name in {"profile", "arm"} & params.keys()]
    fixtures = {"baseline_no_env", "derived"} & set(request.fixturenames)
    subjects += map(request.getfixturevalue, fixtures)
    known = {id(subject): measured_of(subject) for subject in subjects}
    return measure


def _attach(request: pytest.FixtureRequest, measured: Measured) -> None:
    """Attach a result to the test that uses it, for junit and for the exit status."""
    request.node.user_properties.extend(measured.properties())
    request.node.stash.setdefault(MEASURED_KEY, []).append(measured)


def _arm_of(campaign: Campaign, name: str) -> Arm:
    arms = {arm.id: arm for arm in campaign.study.decide(()).arms}
    if name not in arms:
        where = f"sweep {campaign.resolved.sweep.name!r}"
        raise ConfigError.unknown("arm", name, valid=arms, where=where)
    return arms[name]


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> None:
    """Remember the timer with which pytest-timeout limits the test."""
    item.config.stash[TIMER_KEY] = item, settings


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Forget the timer, which pytest-timeout itself removes."""
    if TIMER_KEY in item.config.stash:
        del item.config.stash[TIMER_KEY]


@contextmanager
def untimed(config: pytest.Config) -> Generator[None]:
    """Exclude the time in this context from pytest-timeout's limit.

    A trial has its own deadline, and a queue may take any time. With `timeout = 300` in an ini
    file, each test that waits for a job would end as if it had found a regression.
    """
    if TIMER_KEY not in config.stash:
        yield
        return
    item, settings = config.stash[TIMER_KEY]
    hook = config.pluginmanager.hook
    hook.pytest_timeout_cancel_timer(item=item)
    try:
        yield
    finally:
        hook.pytest_timeout_set_timer(item=item, settings=settings)


def guarded(request: pytest.FixtureRequest, wait: Callable[[Callable[[], None]], T]) -> T:
    """Return the result of `wait`; our errors become failures without a traceback.

    `wait` gets a function to call while it waits, which prints live lines if this process has the
    terminal.
    """
    controller = request.config.pluginmanager.getplugin(CONTROLLER)
    try:
        with untimed(request.config):
            # an xdist worker has no terminal
            return wait(controller.tick if controller is not None else lambda: None)
    except XlatuneError as error:
        failed = pytest.fail.Exception(str(error), pytrace=False)
        vars(failed)[REFUSED] = type(error).__name__
        vars(failed)[EXIT] = int(error.exit)
    raise failed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the exit status of the run to the report of a failed test, and our error's class."""
    report = yield
    if call.excinfo is None or not report.failed:
        return report
    error = call.excinfo.value
    results = item.stash.get(MEASURED_KEY, [])
    refused, is_standard = vars(error).get(REFUSED), CLAIM in vars(error)
    if refused is not None or (results and is_standard):
        # captured log lines, also in a file beside the ledger, would hide the verdict or reason
        report.sections = [
            section for section in report.sections if "Captured log" not in section[0]
        ]
    if refused is not None:
        report.user_properties.append((REFUSED, refused))
        vars(report)[EXIT] = vars(error)[EXIT]
    elif results:
        statuses: list[Exit] = []
        if call.when == "call" and (is_standard or isinstance(error, AssertionError)):
            statuses = [measured.exit for measured in results if not all(measured.claims)]
        vars(report)[EXIT] = int(worst(statuses) or Exit.NEGATIVE)
    return report
