"""The sweeps of a session: settings, plans, and the parameters of the tests of a sweep.

This module is thin on purpose: a test waits for its part of a conclusion and asserts on it, and
other modules decide what runs, when, and with which verdict. All parameters (profiles, slots,
finalists, tags) are known when tests are collected, and are the same in every process.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping

import pytest

from pytest_xlatune.model.errors import ConfigError, hide_secrets_of
from pytest_xlatune.model.text import printable
from pytest_xlatune.plugin import OPTIONS as DECLARES_OPTIONS
from pytest_xlatune.plugin import fixtures
from pytest_xlatune.plugin.controller import Controller
from pytest_xlatune.plugin.hooks import (
    CONTROLLER,
    IS_USAGE,
    NO_TAG,
    OPENING_KEY,
    OPTIONS_KEY,
    SESSION_KEY,
    root_of,
    sweep_of,
)
from pytest_xlatune.plugin.session import Session
from pytest_xlatune.plugin.standard import StandardTests
from pytest_xlatune.report.document import terminal
from pytest_xlatune.report.exports import check_exports
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import OPTIONS, RunSettings
from pytest_xlatune.sweep.registry import ON_LOADED, StudyKind, markers
from pytest_xlatune.sweep.settings import check_folders, resolve_options
from pytest_xlatune.tasks import new_session_id
from pytest_xlatune.tasks.notify import Notifier, read_targets
from pytest_xlatune.tasks.plan import plan_of


def pytest_configure(config: pytest.Config) -> None:
    """Read all options, and register what this process needs; called when pytest loads this."""
    # messages may quote options of a launcher, such as `--password`
    hide_secrets_of(os.environ)
    try:
        _register_markers_later(config)
        options = resolve_options(
            vars(config.option),
            os.environ,
            _ini_values(config),
            root=root_of(config),
        )
        if options.export and not (options.is_off or is_worker(config)):
            check_exports(options.export)
        config.stash[OPTIONS_KEY] = options
        config.stash[OPENING_KEY] = []
        _register_fixtures(config)
        # xdist's controlling process collects nothing, but its workers need our session's id
        is_distributing = config.getoption("dist", "no") != "no"
        if is_distributing or options.export or options.notify_file:
            _register_controller(config)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def _ini_values(config: pytest.Config) -> dict[str, str]:
    """Return the ini value of each option; pytest knows the keys only if a file names one."""
    if not config.pluginmanager.hasplugin(DECLARES_OPTIONS):
        return {}
    return {option.key: config.getini(option.key) for option in OPTIONS}


def _register_fixtures(config: pytest.Config) -> None:
    """Register the fixtures as if they had been there from the start.

    Fixtures that a project or another plugin has registered before take precedence over them.
    """
    config.pluginmanager.register(fixtures, "xlatune-fixtures")
    manager = config.pluginmanager.getplugin("funcmanage")
    if manager is None:
        return
    # after the session began, pytest has no public way to add fixtures of lower precedence
    tables = vars(manager)
    for by_node in tables.get("_arg2node2fixturedefs", {}).values():  # pytest 9.1
        for definitions in by_node.values():  # the first definition has precedence
            definitions.sort(key=lambda definition: definition.func.__module__ == fixtures.__name__)
    for definitions in tables.get("_arg2fixturedefs", {}).values():  # pytest 9.0: the last one
        definitions.sort(key=lambda definition: definition.func.__module__ != fixtures.__name__)


def _register_controller(config: pytest.Config) -> None:
    """Register the controller if this process has the terminal, and none is registered.

    Raises:
        ConfigError: the addresses for notifications cannot be read.
    """
    options, manager = config.stash[OPTIONS_KEY], config.pluginmanager
    if manager.hasplugin(CONTROLLER) or is_worker(config) or options.is_off:
        return
    notifier = Notifier(read_targets(os.environ, options.notify_file))
    controller = Controller(config, options, new_session_id(), notifier)
    manager.register(controller, CONTROLLER)


def _register_markers_later(config: pytest.Config) -> None:
    """Register the markers of another distribution's study once a sweep file names it."""

    def register_markers(kind: StudyKind) -> None:
        for name, text in kind.markers.items():
            config.addinivalue_line("markers", f"{name}: {text} (pytest-xlatune)")

    ON_LOADED.append(register_markers)
    config.add_cleanup(lambda: ON_LOADED.remove(register_markers))


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the lines about the settings file that was read, and about one that was ignored."""
    options = config.stash[OPTIONS_KEY]
    if options.is_off:
        return []
    user_options = options.for_sweeps
    lines = [f"xlatune: settings of {user_options.file}"] if user_options.file else []
    if user_options.ignored_file:
        lines.append(f"xlatune: {user_options.ignored_file}")
    return lines


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Return the lines of the plans, if the options ask for plans."""
    options = config.stash[OPTIONS_KEY]
    if not options.plan or SESSION_KEY not in config.stash:
        return []
    studies = config.stash[SESSION_KEY].studies()
    lines = [
        line
        for resolved, study in studies
        for line in terminal(plan_of(resolved, study, workdir=options.workdir))
    ]
    return [*map(printable, lines)]


def made_item(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item | pytest.Collector] | None:
    """Add the standard tests of a sweep to its module, if `obj` is their declaration."""
    _register_controller(collector.config)
    if not isinstance(obj, StandardTests):
        return None
    module = collector.obj
    line = f"{name} = standard_tests"
    if isinstance(collector, pytest.Class):
        raise ConfigError(f"{line}(...) is in a class: move it to the module's top level")
    declared = sweep_of(module)
    if declared is None:
        raise ConfigError(f"{line}(...): call the sweep SWEEP and write {line}(SWEEP)")
    if declared is not obj.sweep:
        raise ConfigError(
            f"{line}(...) names another sweep than SWEEP, and a module has one sweep: move the "
            f"other into a file of its own, or write {line}(SWEEP)"
        )
    items: list[pytest.Item | pytest.Collector] = []
    for test_name, test in obj.tests.items():
        if test_name in vars(module):  # the file's own test of this name
            continue
        test.__module__ = module.__name__
        test.__name__ = test.__qualname__ = test_name
        setattr(module, test_name, test)
        collected = collector.ihook.pytest_pycollect_makeitem(
            collector=collector, name=test_name, obj=test
        )
        items += collected if isinstance(collected, list) else [collected]
    return items


def check_collected(
    collector: pytest.Collector, report: pytest.CollectReport, error: BaseException | None
) -> None:
    """Report an error in a sweep file or its inputs as one message.

    `error` is the exception that ended the collection; None if it did not fail.
    """
    options = collector.config.stash[OPTIONS_KEY]
    if report.passed and isinstance(collector, pytest.Module) and not options.is_off:
        try:
            _check_sweep(sweep_of(collector.obj), collector.config, options)
        except ConfigError as wrong:
            error = wrong
    if isinstance(error, ConfigError):
        _register_controller(collector.config)
        report.outcome, report.result = "failed", []
        report.longrepr = f"{collector.nodeid}: {error}"
        vars(report)[IS_USAGE] = True


def _check_sweep(sweep: Sweep | None, config: pytest.Config, options: RunSettings) -> None:
    if sweep is None:
        return
    _check_mark_expression(config)
    if not config.option.collectonly:
        check_folders(
            (("--xlatune-workdir", options.workdir), ("--xlatune-reports", options.reports))
        )
    resolved = sweep.resolve(options.for_sweeps)
    # refused here, before the sweep spends its jobs
    if not (config.option.collectonly or options.yes) and (why := resolved.only_ranks):
        raise ConfigError(
            f"sweep {sweep.name!r} could only rank its profiles: {why}. Raise --xlatune-budget, "
            "take profiles out, or use --xlatune-yes to get only a ranking"
        )
    resolved.check()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures of a sweep: profile, derived, arm, finalist, other configurations.

    Raises:
        ConfigError: a marker names a wave or a profile that the sweep does not have.
    """
    sweep = sweep_of(metafunc.module)
    if sweep is None:
        return
    _check_markers(metafunc)
    fixture_names, waves = set(metafunc.fixturenames), _waves_of(metafunc)
    if fixture_names & {"arm", "finalist"}:
        resolved = sweep.resolve(metafunc.config.stash[OPTIONS_KEY].for_sweeps)
    if "profile" in fixture_names:
        in_waves = [profile for wave in waves for profile in sweep.wave_profiles(wave)]
        profiles = in_waves or sweep.profiles
        metafunc.parametrize("profile", profiles, ids=[profile.id for profile in profiles])
    if "derived" in fixture_names:
        slots = sweep.slots(*waves)
        if not slots:
            raise ConfigError(
                f"{metafunc.function.__name__} takes `derived`, but sweep {sweep.name!r} derives "
                f"nothing in {', '.join(waves) or 'any wave'}; add a rule to the sweep: "
                "derived=(Stacks(...), Around(...))"
            )
        _parametrize(metafunc, "derived", {slot.name: slot for slot in slots})
    if "arm" in fixture_names:
        arms = resolved.study().decide(()).arms
        metafunc.parametrize("arm", arms, ids=[arm.id for arm in arms])
    if "finalist" in fixture_names:
        # The planned count, not the present one: all xdist workers must collect the same tests.
        numbers = range(resolved.finalist_count)
        _parametrize(metafunc, "finalist", {f"finalist-{k + 1}": k for k in numbers})
    tags = {tag: tag for tag in sweep.config_tags} or {"no-tag": NO_TAG}
    for name in ("winner_elsewhere", "no_env_elsewhere"):  # xdist workers need one order
        if name in fixture_names:
            _parametrize(metafunc, name, tags)


def _parametrize(metafunc: pytest.Metafunc, name: str, by_id: Mapping[str, object]) -> None:
    metafunc.parametrize(name, list(by_id.values()), ids=list(by_id), indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-m wave2` select only the profiles of wave 2 if a test function is for several waves.

    Of its wave markers, a test keeps only that of its profile's wave.
    """
    if sweep_of(getattr(item, "module", None)) is None:
        return
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    wave = getattr(params.get("profile") or params.get("derived"), "wave", "")
    if any(mark.name == wave for mark in item.own_markers):
        item.own_markers[:] = [
            mark for mark in item.own_markers if mark.name == wave or not _is_wave(mark)
        ]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the sweeps if xlatune is off; else record what the selected tests need."""
    options = config.stash[OPTIONS_KEY]
    sweeps: dict[pytest.Item, Sweep] = {}
    for item in items:
        sweep = sweep_of(getattr(item, "module", None))
        if sweep is not None:
            sweeps[item] = sweep
    if options.is_off and sweeps:
        config.hook.pytest_deselected(items=list(sweeps))
        items[:] = [item for item in items if item not in sweeps]
    if options.is_off or not sweeps:
        return
    session = Session(options, _session_id(config), config=config)
    try:
        session.select(sweeps)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SESSION_KEY] = session


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record that this process waits for no job, before the controller ends unneeded jobs."""
    if SESSION_KEY in session.config.stash:
        session.config.stash[SESSION_KEY].close()


def _session_id(config: pytest.Config) -> str:
    if is_worker(config):
        return str(config.workerinput[CONTROLLER])  # type: ignore[attr-defined]
    return str(config.pluginmanager.getplugin(CONTROLLER).session_id)


# names of markers in an expression:  wave2 or (gate and not calibrate(jobs=4))
_NAME = r"(?<![\w.\"'=])[A-Za-z_]\w*(?!\s*=)"
_OPERATORS = frozenset({"and", "or", "not", "True", "False", "None"})


def _check_mark_expression(config: pytest.Config) -> None:
    """Refuse a misspelt wave in `-m`, which would silently deselect every test."""
    names = set(re.findall(_NAME, config.option.markexpr)) - _OPERATORS
    registered = _registered(config)
    for name in sorted(names - registered):
        near = difflib.get_close_matches(name, registered, n=1, cutoff=0.8)
        if set(near) & markers().keys() or re.match(r"wave\d", name):
            raise ConfigError.unknown("marker", name, valid=markers(), where="-m")


def _registered(config: pytest.Config) -> set[str]:
    # a registered marker:  wave6: the best two on the other config tags; takes margin=0.01
    return {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}


def _check_markers(metafunc: pytest.Metafunc) -> None:
    """Refuse a misspelt marker, because its test would run the profiles of every wave."""
    registered = _registered(metafunc.config)
    for name in {marker.name for marker in metafunc.definition.iter_markers()} - registered:
        near = difflib.get_close_matches(name, registered, n=1, cutoff=0.8)
        if near or name.startswith("wave"):
            where = f"{metafunc.function.__name__}, where the ini file does not register it"
            raise ConfigError.unknown("marker", name, valid=registered, where=where)


def _is_wave(marker: pytest.Mark) -> bool:
    return marker.name.startswith("wave") and marker.name in markers()


def _waves_of(metafunc: pytest.Metafunc) -> list[str]:
    """Return the name of each wave marker; a misspelt argument of one is an error."""
    waves = [marker for marker in metafunc.definition.iter_markers() if _is_wave(marker)]
    for marker in waves:
        valid = ["margin", "blocks"] if marker.name == "wave6" else []
        unknown = [*sorted(marker.kwargs.keys() - set(valid)), *map(repr, marker.args)]
        if unknown:
            where = f"@pytest.mark.{marker.name}"
            raise ConfigError.unknown("argument", unknown[0], valid=valid, where=where)
    return [marker.name for marker in waves]
