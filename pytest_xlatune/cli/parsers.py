"""Declare the arguments of commands by `commands.toml`, and read the options of a sweep.

This module must not know what a command does.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pytest_xlatune.cli.show import complain
from pytest_xlatune.model.errors import shown
from pytest_xlatune.sweep.groups import EVERY, FLAG, OPTIONS, RunSettings, is_daily
from pytest_xlatune.sweep.settings import resolve_options

AGAINST = "--against"  # an option of `drill`

# messages of argparse:
#   invalid choice: 'step' (choose from 'steps', 'triage')
#   unrecognized arguments: --jsn
_WRONG_CHOICE = re.compile(r"invalid choice: '(?P<typed>[^']*)' \(choose from (?P<known>.*)\)")
_WRONG_OPTION = re.compile(r"unrecognized arguments: (?P<typed>--[\w-]+)")


class Commands(argparse.ArgumentParser):
    """A parser that suggests the nearest command or option for a mistyped one."""

    command: argparse.ArgumentParser | None = None  # the requested command

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with 2."""
        known: list[str] = []
        if (match := _WRONG_CHOICE.search(message)) is not None:
            known = re.findall(r"[\w-]+", match["known"])
        elif (match := _WRONG_OPTION.search(message)) is not None and self.command is not None:
            known = [*self.command._option_string_actions]  # noqa: SLF001 - help hides some
        near = difflib.get_close_matches(match["typed"], known, n=1) if match else []
        hint = f"; did you mean {near[0]}?" if near else ""
        if message.endswith(("required: COMMAND", "required: ACTION")):
            hint = f"; `{self.prog} --help` lists them"
        # a wrong option shows the usage of its command, not that of all commands
        parser = (self.command or self) if message.startswith("unrecognized") else self
        argparse.ArgumentParser.error(parser, shown(message + hint))


def add_commands(
    parser: argparse.ArgumentParser, lines: Mapping[str, str], *, metavar: str
) -> dict[str, argparse.ArgumentParser]:
    """Add subcommands, one of which is required; return name -> its parser.

    Args:
        parser: gets the subcommands.
        lines: name -> description for the list and for the help of the subcommand.
        metavar: stands for the name of a subcommand in the usage.
    """
    # without `prog`, argparse would spend time on formatting the usage of `parser`
    subparsers = parser.add_subparsers(required=True, metavar=metavar, prog=parser.prog)
    return {
        name: subparsers.add_parser(
            name,
            help=line.replace("%", "%%"),
            description=f"{line[0].upper()}{line[1:]}.",
        )
        for name, line in lines.items()
    }


SESSION_OPTIONS = frozenset({"notify-file", "negative"})  # have no effect outside pytest


def add_options(
    parser: argparse.ArgumentParser,
    only: Collection[str] = (),
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Add the options of a sweep to a command: all, or those in `only`, without `leave_out`.

    The help shows each option in `only`. Without `only` it shows the most common options and says
    where all are listed.
    """
    for option in OPTIONS:
        if (not only or option.name in only) and option.name not in leave_out:
            help_text = option.help if only or is_daily(option.flag) else argparse.SUPPRESS
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=help_text
            )
    if not only:
        hint = (
            f"All other settings of a sweep are options here too, as --NAME; `{EVERY}` lists them "
            f"as {FLAG}NAME."
        )
        parser.epilog = f"{parser.epilog}\n\n{hint}" if parser.epilog else hint


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected a whole number from 1 on")
    return count


_TYPES = {"path": Path, "int": int, "float": float, "positive": positive}


def declare(parser: argparse.ArgumentParser, row: Mapping[str, Any], *, package: str) -> None:
    """Declare the arguments of a command by its row of `commands.toml`.

    `package` has the modules that the row names; no other module of it is loaded.
    """

    def function_at(place: str) -> Callable[..., Any]:
        # a place:  report:run_report
        module, _, name = place.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"{package}.{module}"), name)
        return function

    for argument in row.get("arguments", ()):
        is_shared = isinstance(argument, str)
        keywords = dict(command_table()["arguments"][argument] if is_shared else argument)
        names = keywords.pop("name")
        if "type" in keywords:
            keywords["type"] = _TYPES[keywords["type"]]
        parser.add_argument(*names, **keywords)
    if "settings" in row:
        add_options(parser, **row["settings"])
    parser.epilog = row.get("epilog", parser.epilog)
    if "add" in row:
        function_at(row["add"])(parser)
    if "run" in row:
        parser.set_defaults(run=function_at(row["run"]))
    rows = row.get("commands", {})
    if rows:
        lines = {name: subcommand["line"] for name, subcommand in rows.items()}
        for name, subparser in add_commands(parser, lines, metavar=row["metavar"]).items():
            declare(subparser, rows[name], package=package)
            subparser.description = rows[name].get("description", subparser.description)


@functools.cache
def command_table() -> dict[str, dict[str, Any]]:
    """Return `commands.toml`: `commands`, and `arguments`, which several commands share."""
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")


def options_of(arguments: argparse.Namespace) -> RunSettings:
    """Return the options of a sweep from the command line, the environment and xlatune.toml.

    Raises:
        ConfigError: an option is misspelt or malformed.
    """
    options = resolve_options(vars(arguments), os.environ, {}, root=Path.cwd(), prefix="--")
    complain(filter(None, [options.said.passed_over]))
    return options
