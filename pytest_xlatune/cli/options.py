"""Declare the options of a sweep for a command, and read them.

Only commands that have such options load this module, because it loads all settings of a sweep.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from pathlib import Path

from pytest_xlatune.cli.show import complain
from pytest_xlatune.sweep.groups import OPTIONS, RunSettings
from pytest_xlatune.sweep.settings import resolve_options

SESSION_OPTIONS = frozenset({"notify-file", "negative"})  # have no effect outside pytest


def add_options(
    parser: argparse.ArgumentParser,
    only: Collection[str] = (),
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Add the options of a sweep to a command: all, or those in `only`, without `leave_out`."""
    for option in OPTIONS:
        if (not only or option.name in only) and option.name not in leave_out:
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=option.help
            )


def options_of(arguments: argparse.Namespace) -> RunSettings:
    """Return the options of a sweep from the command line, the environment and xlatune.toml.

    Raises:
        ConfigError: an option is misspelt or malformed.
    """
    options = resolve_options(vars(arguments), os.environ, {}, root=Path.cwd(), prefix="--")
    complain(filter(None, [options.for_sweeps.ignored_file]))
    return options
