"""The options and ini keys of pytest, made from the settings of a sweep, and their help."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Generator, Iterator

import pytest

from pytest_xlatune import plugin
from pytest_xlatune.model.errors import ConfigError, help_lines
from pytest_xlatune.sweep.groups import BRIEF_HELP, LIST_ALL, OPTIONS, SWITCHES, is_in_brief_help
from pytest_xlatune.sweep.markers import MARKERS, registered_as
from pytest_xlatune.sweep.registry import KINDS, kind_names


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options; those with a value are ini keys too. The brief help has the daily ones."""
    config = pluginmanager.getplugin("pytestconfig")
    flags = [*(option.flag for option in OPTIONS), *(f"--{name}" for name in SWITCHES)]
    for word in map(str, config.invocation_params.args):
        name = word.partition("=")[0]
        # an option that is unlike ours may be that of another plugin
        is_near = name.startswith("--xlatune-") and difflib.get_close_matches(name, flags, 1, 0.8)
        if is_near and name not in flags:
            error = ConfigError.unknown("option", name, valid=flags, where="the command line")
            raise pytest.UsageError(str(error))
    arguments = config.known_args_namespace
    is_brief = arguments.help and arguments.verbose < 1
    count = len(OPTIONS) + len(SWITCHES)
    title = f"{len(BRIEF_HELP)} for daily use; `{LIST_ALL}` lists all {count}"
    group = parser.getgroup("xlatune", f"sweeps of XLA flags and NCCL variables ({title})")
    for option in OPTIONS:
        shown = option.help if is_in_brief_help(option.flag) else argparse.SUPPRESS
        group.addoption(
            option.flag, dest=option.key, metavar=option.metavar, help=shown, default=None
        )
        if not is_brief or is_in_brief_help(option.flag):
            text = f"{option.help} (as {option.flag})"
            parser.addini(option.key, text, type="string", default="")
    for name, (_, text) in SWITCHES.items():
        shown = text if is_in_brief_help(f"--{name}") else argparse.SUPPRESS
        group.addoption(f"--{name}", action="store_true", help=shown, default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Load the rest of the plugin if an option has a value.

    For `pytest --markers` it also registers the markers of other distributions, which are otherwise
    registered when a sweep file names the study.
    """
    if config.option.help:  # nothing runs, and not all ini keys are declared
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
        more = _further_options() if config.option.verbose > 0 else ()
        for line in (*more, "", "exit statuses (pytest-xlatune):", *help_lines()):
            reporter.write_line(line)
    return status


def _further_options() -> Iterator[str]:
    yield from ("", "further options (pytest-xlatune):")
    texts = {f"{option.flag}={option.metavar}": option.help for option in OPTIONS}
    texts |= {f"--{name}": text for name, (_, text) in SWITCHES.items()}
    for flag, text in texts.items():
        if not is_in_brief_help(flag.partition("=")[0]):
            yield f"  {flag}"
            yield from textwrap.wrap(text, 80, initial_indent=" " * 24, subsequent_indent=" " * 24)
