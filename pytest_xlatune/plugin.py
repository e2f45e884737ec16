"""The pytest side: options, markers, parametrisation, fixtures and outcomes.

Thin on purpose: a test awaits its part of a conclusion and asserts on it; what runs, when, and with
which verdict is decided below this floor. Nothing heavy is imported before a sweep is collected,
for this module is loaded by every pytest run of whoever has the package installed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_xlatune import hooks
from pytest_xlatune.controller import CONTROLLER, IS_USAGE, Controller, new_session_id
from pytest_xlatune.errors import ConfigError, XlatuneError
from pytest_xlatune.notify import Notifier, read_targets
from pytest_xlatune.options import OPTIONS, SWITCHES, Options, resolve_options
from pytest_xlatune.parametrise import NO_TAG, keep_own_wave, parametrise

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_xlatune.campaign import Campaign
    from pytest_xlatune.cells import Cell
    from pytest_xlatune.earlier import Calibration
    from pytest_xlatune.measured import Measured
    from pytest_xlatune.preflight import Preflight
    from pytest_xlatune.profiles import Profile
    from pytest_xlatune.recorded import Recorded
    from pytest_xlatune.recovery import RetryPolicy
    from pytest_xlatune.session import Session
    from pytest_xlatune.studies.derived import Slot
    from pytest_xlatune.sweep import Sweep

MARKERS = {
    "wave1": "the baseline, and what the image alone gives",
    "wave1_5": "an evidence run with profiler and dump",
    "wave2": "single flags of the dominant axis",
    "wave3": "stacks of what led",
    "wave4": "values around the leaders, flags of the second axis",
    "wave5": "pipeline parameters",
    "wave6": "the winner on the other config tags, in a gate; takes margin=0.01, blocks=4",
    "confirm": "the finalists in fresh randomised blocks",
    "gate": "a regression gate on TGS",
    "calibrate": "the baseline against itself: the noise of the cell; takes jobs=12",
}
WAVES = tuple(name for name in MARKERS if name.startswith("wave"))
T = TypeVar("T")
_OPTIONS = pytest.StashKey[Options]()
_SESSION: pytest.StashKey[Session] = pytest.StashKey()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks of `pytest_xlatune.hooks`."""
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; those with a value are ini keys too."""
    group = parser.getgroup("xlatune", "sweeps of XLA flags and NCCL variables")
    for option in OPTIONS:
        group.addoption(
            option.flag, dest=option.key, metavar=option.metavar, help=option.help, default=None
        )
        parser.addini(option.key, f"{option.help} (as {option.flag})", type="string", default="")
    for name, text in SWITCHES.items():
        group.addoption(f"--{name}", action="store_true", help=text, default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, read all options at once, and take this process's role."""
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text} (pytest-xlatune)")
    try:
        options = resolve_options(
            vars(config.option),
            os.environ,
            {option.key: config.getini(option.key) for option in OPTIONS},
            root=config.rootpath,
        )
        targets = read_targets(os.environ, options.notify_file, variable=options.notify_variable)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_OPTIONS] = options
    if not is_worker(config) and not options.is_off:
        controller = Controller(config, options, new_session_id(), Notifier(targets))
        config.pluginmanager.register(controller, CONTROLLER)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Make a plan a kind of collection: nothing runs, and xdist starts no workers."""
    if config.option.xlatune_plan:
        config.option.collectonly = True


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Show the plans, if that is what was asked for."""
    if not config.option.xlatune_plan or _SESSION not in config.stash:
        return []
    from pytest_xlatune.plan import plan_of  # noqa: PLC0415
    from pytest_xlatune.report import terminal  # noqa: PLC0415

    workdir = config.stash[_OPTIONS].workdir
    return [
        line
        for resolved, study in config.stash[_SESSION].studies()
        for line in terminal.render(plan_of(resolved, study, workdir=workdir))
    ]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn what is wrong with a sweep file or its inputs into one message, in workers too."""
    report = yield
    call = vars(report).get("call")
    error = getattr(getattr(call, "excinfo", None), "value", None)
    options = collector.config.stash[_OPTIONS]
    if report.passed and isinstance(collector, pytest.Module) and not options.is_off:
        try:
            _check_sweep(sweep_of(collector.obj), collector.config, options)
        except ConfigError as found:
            error = found
    if isinstance(error, ConfigError):
        report.outcome, report.result = "failed", []
        report.longrepr = f"{collector.nodeid}: {error}"
        vars(report)[IS_USAGE] = True
    return report


def sweep_of(module: object) -> Sweep | None:
    """Return the sweep that a test module declares as SWEEP; a SWEEP of another kind is none."""
    # who declares a sweep has imported its class; nobody else has to
    home = sys.modules.get("pytest_xlatune.sweep")
    found = getattr(module, "SWEEP", None)
    return found if home is not None and isinstance(found, home.Sweep) else None


def _check_sweep(sweep: Sweep | None, config: pytest.Config, options: Options) -> None:
    """Find out whether the sweep of a module can run, before anything of it does."""
    if sweep is None:
        return
    from pytest_xlatune.sweep import inputs_of  # noqa: PLC0415

    sweep.resolve(inputs_of(options, config.rootpath)).check()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise what stands for one of several: profiles, slots, finalists, config tags."""
    sweep = sweep_of(metafunc.module)
    if sweep is not None:
        options = metafunc.config.stash[_OPTIONS]
        budget = options.sweeps.get(sweep.name, options).budget
        parametrise(metafunc, sweep, waves=WAVES, budget=budget)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-m wave2` select the profiles of wave 2 alone, where one test is for several waves."""
    if sweep_of(getattr(item, "module", None)) is not None:
        keep_own_wave(item, WAVES)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the sweeps if asked to; else see what the selected tests ask of each."""
    options = config.stash[_OPTIONS]
    sweeping = {item: sweep for item in items if (sweep := sweep_of(getattr(item, "module", None)))}
    if options.is_off and sweeping:
        config.hook.pytest_deselected(items=list(sweeping))
        items[:] = [item for item in items if item not in sweeping]
    if options.is_off or not sweeping:
        return
    from pytest_xlatune.session import Session  # noqa: PLC0415

    session = Session(options, _session_id(config), config=config)
    try:
        session.select(sweeping)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_SESSION] = session


def _session_id(config: pytest.Config) -> str:
    if is_worker(config):
        return str(config.workerinput[CONTROLLER])  # type: ignore[attr-defined]
    return str(config.pluginmanager.getplugin(CONTROLLER).session_id)


@pytest.fixture(scope="module")
def sweep(request: pytest.FixtureRequest) -> Sweep:
    """The sweep that this module declares as SWEEP."""
    found = sweep_of(request.module)
    if found is None:
        pytest.fail(f"{request.module.__name__} declares no SWEEP = Sweep(...)", pytrace=False)
    return found


@pytest.fixture(scope="module")
def cell(request: pytest.FixtureRequest, sweep: Sweep) -> Cell:
    """What is held fixed: the sweep's cell with the user's inputs."""
    return request.config.stash[_SESSION].selection(sweep).sweep.cell


@pytest.fixture(scope="module")
def pinned_nodes(request: pytest.FixtureRequest, campaign: Campaign) -> tuple[str, ...]:
    """The frozen nodes of the cell, looked at before anything is submitted; () is this machine."""
    return _guarded(request, lambda tick: campaign.wait_for_nodes(on_turn=tick))


@pytest.fixture(scope="module")
def preflight(request: pytest.FixtureRequest, sweep: Sweep) -> Preflight:
    """What a look at nodes, files and flags found; what forbids the sweep is an error."""
    return _guarded(request, lambda _: request.config.stash[_SESSION].preflight(sweep))


@pytest.fixture(scope="module")
def retry_policy(sweep: Sweep) -> RetryPolicy:
    """The site's retry rules on top of the playbook."""
    return sweep.retry_policy


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest, sweep: Sweep) -> Campaign:
    """The cell's ledger and what runs into it, opened by whichever process comes first."""
    return _guarded(request, lambda _: request.config.stash[_SESSION].campaign(sweep))


@pytest.fixture(scope="module")
def baseline_deployed(request: pytest.FixtureRequest, campaign: Campaign) -> Measured:
    """All baseline trials of the first wave: a set, never one job."""
    from pytest_xlatune import awaiting  # noqa: PLC0415

    return _guarded(request, lambda tick: awaiting.baseline(campaign, tick))


@pytest.fixture
def calibration(request: pytest.FixtureRequest, sweep: Sweep) -> Calibration:
    """The noise of the cell, kept for the planning of its next sweeps."""
    from pytest_xlatune.calibrating import calibrate  # noqa: PLC0415
    from pytest_xlatune.studies.calibration import JOBS  # noqa: PLC0415

    session = request.config.stash[_SESSION]
    marker = request.node.get_closest_marker("calibrate")
    jobs = marker.kwargs.get("jobs", JOBS) if marker is not None else JOBS
    resolved = session.selection(sweep).sweep
    return _guarded(
        request,
        lambda tick: calibrate(session.run(resolved, resolved.calibration(jobs)), tick),
    )


@pytest.fixture
def finalist(request: pytest.FixtureRequest, campaign: Campaign) -> Profile:
    """One of the K profiles that the screen sends to confirmation, after the last block."""
    from pytest_xlatune import awaiting  # noqa: PLC0415

    number: int = request.param
    found = _guarded(request, lambda tick: awaiting.finalist(campaign, number, tick))
    if found is None:
        pytest.skip(f"fewer than {number + 1} profiles were of interest after the screen")
    return found


@pytest.fixture
def derived(request: pytest.FixtureRequest, campaign: Campaign) -> Profile:
    """One of the profiles that a wave derives from earlier ones, after its wave is over."""
    from pytest_xlatune import awaiting  # noqa: PLC0415

    slot: Slot = request.param
    found = _guarded(request, lambda tick: awaiting.derived(campaign, slot, tick))
    if found is None:
        pytest.skip(f"{slot.name} stayed empty: nothing more of the waves before {slot.wave} led")
    return found


@pytest.fixture
def winner(request: pytest.FixtureRequest, campaign: Campaign) -> Profile:
    """The profile that the blocks prove fastest, after the last of them; skips where none is."""
    from pytest_xlatune import awaiting  # noqa: PLC0415

    found = _guarded(request, lambda tick: awaiting.winner(campaign, tick))
    if found is None:
        pytest.skip("no profile is confirmed to be faster than the baseline")
    return found


@pytest.fixture
def winner_elsewhere(request: pytest.FixtureRequest, campaign: Campaign, sweep: Sweep) -> Measured:
    """The winner in a gate on another of the model's configurations; skips where none is yet."""
    from pytest_xlatune import awaiting  # noqa: PLC0415
    from pytest_xlatune.studies.gate import Gate  # noqa: PLC0415

    tag: str = request.param
    if tag == NO_TAG:
        pytest.skip(f"sweep {sweep.name!r} has no other configuration: it declares no config_tags")
    session = request.config.stash[_SESSION]
    selection = session.selection(sweep)
    wait = awaiting.winner if selection.confirm else awaiting.proven
    found = _guarded(request, lambda tick: wait(campaign, tick))
    if found is None:
        pytest.skip("no profile is confirmed to be faster yet: run the tests marked confirm first")
    marker = request.node.get_closest_marker("wave6")
    gate = Gate(**marker.kwargs) if marker is not None else Gate()
    there = selection.sweep.elsewhere(tag, found, gate)
    measured = _guarded(
        request, lambda tick: awaiting.confirmed(session.run(there, there.study()), found, tick)
    )
    request.node.user_properties.extend(measured.properties())
    return measured


@pytest.fixture
def evidence(request: pytest.FixtureRequest, sweep: Sweep) -> Callable[[Profile | str], Recorded]:
    """Return a function that runs a profile once with profiler and dump, in a trial without score.

    It gives where both lie and what they say; what was recorded before is not run again. The
    profile that the test is parametrised with is recorded before the test begins.
    """
    from pytest_xlatune.recording import record, study_of_profile  # noqa: PLC0415

    session = request.config.stash[_SESSION]
    resolved = session.selection(sweep).sweep

    def evidence_of(profile: Profile | str) -> Recorded:
        name = profile if isinstance(profile, str) else profile.id
        return _guarded(
            request,
            lambda tick: record(session.run(resolved, study_of_profile(resolved, name)), tick),
        )

    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "profile" in callspec.params:
        evidence_of(callspec.params["profile"])
    return evidence_of


@pytest.fixture
def measure(
    request: pytest.FixtureRequest, campaign: Campaign, sweep: Sweep
) -> Callable[[Profile | str], Measured]:
    """Return a function that gives a profile's verdict, waiting for the trials it needs.

    The profile that the test is parametrised with is awaited here, before the test begins: what
    nobody could measure is an error of the test, not its failure. A profile that cannot run ends
    the test as xfailed, in a gate as failed.
    """
    from pytest_xlatune import awaiting  # noqa: PLC0415

    is_gate = sweep.gate is not None or request.node.get_closest_marker("gate") is not None
    is_confirming = sweep.gate is not None or "finalist" in request.fixturenames
    negative = request.config.stash[_OPTIONS].negative

    def measured_of(profile: Profile | str) -> Measured:
        each = sweep.find(profile) if isinstance(profile, str) else profile
        ask = awaiting.confirmed if is_confirming else awaiting.screened
        return _guarded(request, lambda tick: ask(campaign, each, tick))

    def measure(profile: Profile | str) -> Measured:
        measured = measured_of(profile)
        request.node.user_properties.extend(measured.properties())
        if measured.cannot_run and not is_gate:
            pytest.xfail(measured.paragraph)
        if not measured.not_slower and negative == "xfail" and not is_gate:
            pytest.xfail(measured.paragraph)
        return measured

    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "profile" in callspec.params:
        measured_of(callspec.params["profile"])
    if "derived" in request.fixturenames:
        measured_of(request.getfixturevalue("derived"))
    return measure


def _guarded(request: pytest.FixtureRequest, ask: Callable[[Callable[[], None]], T]) -> T:
    """Wait for an answer, with live lines if this is the process that prints them."""
    controller = request.config.pluginmanager.getplugin(CONTROLLER)
    try:
        return ask(controller.tick if controller is not None else _no_tick)
    except XlatuneError as error:
        message = str(error)
    pytest.fail(message, pytrace=False)


def _no_tick() -> None:
    """Do nothing: an xdist worker has no terminal."""
