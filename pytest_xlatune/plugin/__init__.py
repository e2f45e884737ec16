"""What every pytest run loads where the package is installed: options, help, markers.

Everything else is `collect`, and is loaded when a file has imported the class of a sweep, where the
command line or a settings file says something of ours, and in the controller of xdist.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError, help_lines
from pytest_xlatune.plugin import hooks
from pytest_xlatune.sweep.groups import (
    DAILY,
    EVERY,
    OPTIONS,
    SWITCHES,
    is_daily,
)
from pytest_xlatune.sweep.registry import KINDS, kind_names, markers

COLLECT = "pytest_xlatune.plugin.collect"  # its module, and its name among the plugins


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks of `pytest_xlatune.plugin.hooks`."""
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options; those with a value are ini keys too."""
    count = len(OPTIONS) + len(SWITCHES)
    says = f"{len(DAILY)} for daily use; `{EVERY}` lists all {count}"
    group = parser.getgroup("xlatune", f"sweeps of XLA flags and NCCL variables ({says})")
    for option in OPTIONS:
        shown = option.help if is_daily(option.flag) else argparse.SUPPRESS
        group.addoption(
            option.flag, dest=option.key, metavar=option.metavar, help=shown, default=None
        )
    for name, (_, text) in SWITCHES.items():
        shown = text if is_daily(f"--{name}") else argparse.SUPPRESS
        group.addoption(f"--{name}", action="store_true", help=shown, default=False)
    pluginmanager.register(_IniKeys(parser), "xlatune-ini-keys")


class _IniKeys:
    """Declares the ini keys when it is known what the session does: help lists all it knows."""

    def __init__(self, parser: pytest.Parser) -> None:
        self.parser = parser

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Declare them; where help is asked for those alone that it shows."""
        is_brief = config.option.help and config.option.verbose < 1
        for option in OPTIONS:
            if not is_brief or is_daily(option.flag):
                text = f"{option.help} (as {option.flag})"
                self.parser.addini(option.key, text, type="string", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of studies; load the rest where something of ours is said.

    Where `pytest --markers` asks, those of other distributions are among them. Else one of them has
    its markers from the line on that names it in a sweep file.
    """
    if config.option.help:  # nothing runs, and not all ini keys are declared
        return
    try:
        for name in kind_names() if config.option.markers else ():
            KINDS[name]
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    for name, text in markers().items():
        config.addinivalue_line("markers", f"{name}: {text} (pytest-xlatune)")
    if _is_said(config):
        loaded(config)


def _is_said(config: pytest.Config) -> bool:
    """Whether a place outside the sweep files speaks of sweeps; xdist's controller sees no file."""
    root = hooks.root_of(config)
    return (
        config.getoption("dist", "no") != "no"
        or any(vars(config.option)[name.replace("-", "_")] for name in SWITCHES)
        or any(vars(config.option)[each.key] or config.getini(each.key) for each in OPTIONS)
        or any(os.path.isfile(each / "xlatune.toml") for each in (root, *root.parents))  # noqa: PTH113 - false where we may not look
    )


def loaded(config: pytest.Config) -> Any:
    """Return the module `collect`, loaded and registered."""
    if not config.pluginmanager.hasplugin(COLLECT):
        config.pluginmanager.register(import_module(COLLECT), COLLECT)
    return config.pluginmanager.getplugin(COLLECT)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item | pytest.Collector] | None:
    """Load the rest behind the first import of a sweep's class; give standard tests."""
    if hooks.SWEEPS not in sys.modules:
        return None
    found: list[pytest.Item | pytest.Collector] | None
    found = loaded(collector.config).made_item(collector, name, obj)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Make one message of a fault in a sweep file or its inputs, in workers too."""
    report = yield
    call = vars(report).get("call")
    error = getattr(getattr(call, "excinfo", None), "value", None)
    if hooks.SWEEPS in sys.modules or isinstance(error, ConfigError):
        loaded(collector.config).check_collected(collector, report, error)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Make a plan a kind of collection: nothing runs, and xdist starts no workers.

    Pytest's help has no place for exit statuses: they stand at its end.
    """
    if config.option.xlatune_plan:
        config.option.collectonly = True
    status = yield
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if config.option.help and reporter is not None:
        more = _further_options() if config.option.verbose > 0 else ()
        for line in (*more, "", "exit statuses (pytest-xlatune):", *help_lines()):
            reporter.write_line(line)
    return status


def _further_options() -> Iterator[str]:
    """Yield the options that help leaves out, as argparse would write them."""
    yield from ("", "further options (pytest-xlatune):")
    said = {f"{each.flag}={each.metavar}": each.help for each in OPTIONS}
    said |= {f"--{name}": text for name, (_, text) in SWITCHES.items()}
    for flag, text in said.items():
        if not is_daily(flag.partition("=")[0]):
            yield f"  {flag}"
            yield from textwrap.wrap(text, 80, initial_indent=" " * 24, subsequent_indent=" " * 24)
