"""The declaration and the meaning of arguments that several commands share.

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
_WRONG_CHOICE = re.compile(r"invalid choice: '(?P<said>[^']*)' \(choose from (?P<known>.*)\)")
_WRONG_OPTION = re.compile(r"unrecognized arguments: (?P<said>--[\w-]+)")


class Commands(argparse.ArgumentParser):
    """A parser that suggests the nearest command or option for a mistyped one."""

    command: argparse.ArgumentParser | None = None  # the requested command

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with 2."""
        known: list[str] = []
        if (match := _WRONG_CHOICE.search(message)) is not None:
            known = re.findall(r"[\w-]+", match["known"])
        elif (match := _WRONG_OPTION.search(message)) is not None and self.command is not None:
            known = [*self.command._option_string_actions]  # noqa: SLF001 - help lacks some
        near = difflib.get_close_matches(match["said"], known, n=1) if match else []
        more = f"; did you mean {near[0]}?" if near else ""
        if message.endswith(("required: COMMAND", "required: ACTION")):
            more = f"; `{self.prog} --help` lists them"
        # show the usage of the command, not that of all commands
        one = (self.command or self) if message.startswith("unrecognized") else self
        argparse.ArgumentParser.error(one, shown(message + more))


def add_commands(
    parser: argparse.ArgumentParser, lines: Mapping[str, str], *, metavar: str
) -> dict[str, argparse.ArgumentParser]:
    """Add commands of which one must be given: name -> its line in the list and its help."""
    # with `prog` given, argparse needs no formatted usage
    added = parser.add_subparsers(required=True, metavar=metavar, prog=parser.prog)
    return {
        name: added.add_parser(
            name,
            help=line.replace("%", "%%"),
            description=f"{line[0].upper()}{line[1:]}.",
        )
        for name, line in lines.items()
    }


OF_A_SESSION = frozenset({"notify-file", "negative"})  # options of commands that run trials


def add_options(
    parser: argparse.ArgumentParser,
    only: Collection[str] = (),
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Add the options of a sweep to a command: those in `only` if given, none in `leave_out`.

    The help shows those in `only`, else the most common ones, and says where others are listed.
    """
    for option in OPTIONS:
        if (not only or option.name in only) and option.name not in leave_out:
            help_text = option.help if only or is_daily(option.flag) else argparse.SUPPRESS
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=help_text
            )
    if not only:
        more = (
            f"All other settings of a sweep are options here too, as --NAME; `{EVERY}` lists them "
            f"as {FLAG}NAME."
        )
        parser.epilog = f"{parser.epilog}\n\n{more}" if parser.epilog else more


def positive(text: str) -> int:
    """Return the number in a text, which must be a whole number of at least 1."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected a whole number from 1 on")
    return count


_TYPES = {"path": Path, "int": int, "float": float, "positive": positive}


def declare(parser: argparse.ArgumentParser, row: Mapping[str, Any], *, package: str) -> None:
    """Declare the arguments of a command by its row of `commands.toml`.

    Only the modules in `package` that the row names are loaded.
    """

    def named(place: str) -> Callable[..., Any]:
        module, _, name = place.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"{package}.{module}"), name)
        return function

    for argument in row.get("arguments", ()):
        keywords = dict(table()["arguments"][argument] if isinstance(argument, str) else argument)
        names = keywords.pop("name")
        if "type" in keywords:
            keywords["type"] = _TYPES[keywords["type"]]
        parser.add_argument(*names, **keywords)
    if "settings" in row:
        add_options(parser, **row["settings"])
    parser.epilog = row.get("epilog", parser.epilog)
    if "add" in row:
        named(row["add"])(parser)
    if "run" in row:
        parser.set_defaults(run=named(row["run"]))
    rows = row.get("commands", {})
    if rows:
        lines = {name: below["line"] for name, below in rows.items()}
        for name, below in add_commands(parser, lines, metavar=row["metavar"]).items():
            declare(below, rows[name], package=package)
            below.description = rows[name].get("description", below.description)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Return what `commands.toml` says: `commands`, and the `arguments` that several share."""
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")


def options_of(arguments: argparse.Namespace) -> RunSettings:
    """Return the options of a sweep from the command line, the environment and files.

    Raises:
        ConfigError: an option is misspelt or malformed.
    """
    options = resolve_options(vars(arguments), os.environ, {}, root=Path.cwd(), prefix="--")
    complain(filter(None, [options.said.passed_over]))
    return options
