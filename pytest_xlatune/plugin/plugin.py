"""The pytest side: options, markers, collection. The fixtures have a room beside this one.

Thin on purpose: a test awaits its part of a conclusion and asserts on it; what runs, when, and with
which verdict is decided below this floor. Nothing heavy is imported before a sweep is collected,
for this module is loaded by every pytest run of whoever has the package installed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.notify import Notifier, read_targets
from pytest_xlatune.plugin import fixtures, hooks
from pytest_xlatune.plugin.controller import CONTROLLER, IS_USAGE, Controller, new_session_id
from pytest_xlatune.plugin.fixtures import OPTIONS_KEY, SESSION_KEY, sweep_of
from pytest_xlatune.plugin.parametrise import check_markers, keep_own_wave, parametrise
from pytest_xlatune.plugin.root import root_of
from pytest_xlatune.settings.folders import check_folder
from pytest_xlatune.settings.options import OPTIONS, SWITCHES, Options
from pytest_xlatune.settings.resolving import resolve_options

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_xlatune.sweep.sweep import Sweep

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


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks of `pytest_xlatune.plugin.hooks`."""
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
            root=root_of(config),
        )
        targets = read_targets(os.environ, options.notify_file, variable=options.notify_variable)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[OPTIONS_KEY] = options
    config.pluginmanager.register(fixtures, "xlatune-fixtures")
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
    if not config.option.xlatune_plan or SESSION_KEY not in config.stash:
        return []
    from pytest_xlatune.plan.plan import plan_of  # noqa: PLC0415
    from pytest_xlatune.report import terminal  # noqa: PLC0415

    workdir = config.stash[OPTIONS_KEY].workdir
    return [
        line
        for resolved, study in config.stash[SESSION_KEY].studies()
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
    options = collector.config.stash[OPTIONS_KEY]
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


def _check_sweep(sweep: Sweep | None, config: pytest.Config, options: Options) -> None:
    """Find out whether the sweep of a module can run, before anything of it does."""
    if sweep is None:
        return
    from pytest_xlatune.sweep.sweep import inputs_of  # noqa: PLC0415

    if not config.option.collectonly:
        check_folder(options.workdir, option="--xlatune-workdir")
        check_folder(options.reports, option="--xlatune-reports")
    sweep.resolve(inputs_of(options, root_of(config))).check()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise what stands for one of several: profiles, slots, finalists, config tags."""
    sweep = sweep_of(metafunc.module)
    if sweep is not None:
        check_markers(metafunc)
        options = metafunc.config.stash[OPTIONS_KEY]
        budget = options.sweeps.get(sweep.name, options).budget
        parametrise(metafunc, sweep, waves=WAVES, budget=budget)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-m wave2` select the profiles of wave 2 alone, where one test is for several waves."""
    if sweep_of(getattr(item, "module", None)) is not None:
        keep_own_wave(item, WAVES)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the sweeps if asked to; else see what the selected tests ask of each."""
    options = config.stash[OPTIONS_KEY]
    sweeping = {item: sweep for item in items if (sweep := sweep_of(getattr(item, "module", None)))}
    if options.is_off and sweeping:
        config.hook.pytest_deselected(items=list(sweeping))
        items[:] = [item for item in items if item not in sweeping]
    if options.is_off or not sweeping:
        return
    from pytest_xlatune.plugin.session import Session  # noqa: PLC0415

    session = Session(options, _session_id(config), config=config)
    try:
        session.select(sweeping)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SESSION_KEY] = session


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say that this process waits for nothing any more, before the controller ends what runs."""
    if SESSION_KEY in session.config.stash:
        session.config.stash[SESSION_KEY].close()


def _session_id(config: pytest.Config) -> str:
    if is_worker(config):
        return str(config.workerinput[CONTROLLER])  # type: ignore[attr-defined]
    return str(config.pluginmanager.getplugin(CONTROLLER).session_id)
