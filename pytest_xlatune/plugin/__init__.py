"""The part of the plugin that every pytest run loads: the markers, and when to load more.

`options` is loaded if pytest has to list its options or markers, or if the command line,
PYTEST_ADDOPTS or the ini file names an option. Everything else is in `collect`. It is loaded if a
file has imported the class of a sweep, an option has a value, there is a settings file, or this is
the controller of xdist, which imports no test file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from importlib import import_module
from typing import Any

import pytest

from pytest_xlatune.plugin import hooks
from pytest_xlatune.sweep.markers import MARKERS, registered_as

OPTIONS = "pytest_xlatune.plugin.options"  # the module, which is also its name among the plugins
COLLECT = "pytest_xlatune.plugin.collect"
_ERRORS = "pytest_xlatune.model.errors"
# an option or ini key of ours, a file of arguments, or an option that lists options or markers:
# --xlatune-plan    xlatune_workdir    @args.txt    -vh    --markers
_NEEDS_OPTIONS = re.compile(r"--(no-)?xlatune|\bxlatune_|^@|^-[a-z]*h|^--(help|markers)$")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks of `pytest_xlatune.plugin.hooks`."""
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options if one is named, or if pytest is asked to list them."""
    config = pluginmanager.getplugin("pytestconfig")
    if any(map(_NEEDS_OPTIONS.search, _words_of(config))):
        pluginmanager.register(import_module(OPTIONS), OPTIONS)


def _words_of(config: pytest.Config) -> list[str]:
    """Return pytest's arguments, as far as they are known before pytest has parsed them."""
    words = [*map(str, config.invocation_params.args)]
    words += os.environ.get("PYTEST_ADDOPTS", "").split()
    if config.inipath is not None:
        words.append(config.inipath.read_text(encoding="utf-8", errors="replace"))
    return words


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of our studies; load the rest if a sweep may run."""
    if config.option.help:
        return
    for line in registered_as(MARKERS.values()):
        config.addinivalue_line("markers", line)
    root = hooks.root_of(config)
    has_settings_file = any(
        os.path.isfile(folder / "xlatune.toml")  # noqa: PTH113 - false where we may not look
        for folder in (root, *root.parents)
    )
    if has_settings_file or config.getoption("dist", "no") != "no":
        load_collect(config)


def load_collect(config: pytest.Config) -> Any:
    """Return the module `collect`; load and register it on first use."""
    if not config.pluginmanager.hasplugin(COLLECT):
        config.pluginmanager.register(import_module(COLLECT), COLLECT)
    return config.pluginmanager.getplugin(COLLECT)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item | pytest.Collector] | None:
    """Load the rest after a file has imported a sweep's class; add the standard tests."""
    if hooks.SWEEPS not in sys.modules:
        return None
    items: list[pytest.Item | pytest.Collector] | None
    items = load_collect(collector.config).made_item(collector, name, obj)
    return items


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report an error in a sweep file or its inputs as one message, in workers too."""
    report = yield
    call = vars(report).get("call")
    error = getattr(getattr(call, "excinfo", None), "value", None)
    errors = sys.modules.get(_ERRORS)
    if hooks.SWEEPS in sys.modules or (errors and isinstance(error, errors.ConfigError)):
        load_collect(collector.config).check_collected(collector, report, error)
    return report
