"""The options and ini keys of pytest, made from the settings of a sweep, and their help."""

from __future__ import annotations

import difflib
from collections.abc import Generator

import pytest

from pytest_xlatune import plugin
from pytest_xlatune.model.errors import ConfigError, help_lines
from pytest_xlatune.sweep.groups import OPTIONS, SWITCHES
from pytest_xlatune.sweep.markers import MARKERS, registered_as
from pytest_xlatune.sweep.registry import KINDS, kind_names


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options; those with a value are ini keys too."""
    config = pluginmanager.getplugin("pytestconfig")
    flags = [*(option.flag for option in OPTIONS), *(f"--{name}" for name in SWITCHES)]
    for word in map(str, config.invocation_params.args):
        name = word.partition("=")[0]
        # an option that is unlike ours may be that of another plugin
        is_near = name.startswith("--xlatune-") and difflib.get_close_matches(name, flags, 1, 0.8)
        if is_near and name not in flags:
            error = ConfigError.unknown("option", name, valid=flags, where="the command line")
            raise pytest.UsageError(str(error))
    group = parser.getgroup("xlatune", "sweeps of XLA flags and NCCL variables")
    for option in OPTIONS:
        group.addoption(
            option.flag, dest=option.key, metavar=option.metavar, help=option.help, default=None
        )
        text = f"{option.help} (as {option.flag})"
        parser.addini(option.key, text, type="string", default="")
    for name, (_, text) in SWITCHES.items():
        group.addoption(f"--{name}", action="store_true", help=text, default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Load the rest of the plugin if an option has a value.

    For `pytest --markers` it also registers the markers of other distributions, which are otherwise
    registered when a sweep file names the study.
    """
    if config.option.help:
        return
    if config.option.markers:
        try:
            others = [KINDS[name].markers for name in kind_names() if name not in MARKERS]
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from None
        for line in registered_as(others):
            config.addinivalue_line("markers", line)
    names = [*(option.key for option in OPTIONS), *(name.replace("-", "_") for name in SWITCHES)]
    is_named = any(getattr(config.option, name) for name in names)
    if is_named or any(config.getini(option.key) for option in OPTIONS):
        plugin.load_collect(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Treat `--xlatune-plan` like `--collect-only`: nothing runs, and xdist starts no workers.

    It also prints our exit statuses after pytest's help.
    """
    if config.option.xlatune_plan:
        config.option.collectonly = True
    status = yield
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if config.option.help and reporter is not None:
        for line in ("", "exit statuses (pytest-xlatune):", *help_lines()):
            reporter.write_line(line)
    return status
