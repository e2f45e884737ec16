"""Declare the arguments of commands by `commands.toml`.

This module must not know what a command does.
"""

from __future__ import annotations

import argparse
import functools
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pytest_xlatune.model.errors import shown

AGAINST = "--against"  # an option of `drill`


class Parser(argparse.ArgumentParser):
    """A parser whose messages show no secret."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with 2."""
        super().error(shown(message))


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


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected a whole number from 1 on")
    return count


_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_TYPES = {"path": Path, "int": int, "float": float, "positive": positive}


def load_function(place: str) -> Callable[..., Any]:
    """Return the function at a place such as `pytest_xlatune.cli.report:run_report`.

    Its module is loaded now, so that a command loads what it needs and nothing else.
    """
    module, _, name = place.partition(":")
    # OpenBLAS starts a thread for each core when numpy is loaded. No command needs them, and login
    # nodes limit the processes of a user. Jobs of the command must not inherit the variable.
    is_set = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    finally:
        if not is_set:
            del os.environ[_BLAS_THREADS]
    return function


def declare(
    parser: argparse.ArgumentParser, row: Mapping[str, Any], words: Sequence[str] = ()
) -> None:
    """Declare the arguments of a command by its row of `commands.toml`.

    `words` are the words after the command. If the first of them names a subcommand, only this
    subcommand is declared, so that only its module is loaded.
    """
    for argument in row.get("arguments", ()):
        is_shared = isinstance(argument, str)
        keywords = dict(command_table()["arguments"][argument] if is_shared else argument)
        names = keywords.pop("name")
        if "type" in keywords:
            keywords["type"] = _TYPES[keywords["type"]]
        parser.add_argument(*names, **keywords)
    if "settings" in row:
        load_function(f"{__package__}.options:add_options")(parser, **row["settings"])
    parser.epilog = row.get("epilog", parser.epilog)
    if "add" in row:
        load_function(f"{__package__}.{row['add']}")(parser)
    if "run" in row:
        parser.set_defaults(run=load_function(f"{__package__}.{row['run']}"))
    rows = row.get("commands", {})
    if rows:
        requested = [word for word in words[:1] if word in rows]
        lines = {name: rows[name]["line"] for name in requested or rows}
        for name, subparser in add_commands(parser, lines, metavar=row["metavar"]).items():
            declare(subparser, rows[name], words[1:])
            subparser.description = rows[name].get("description", subparser.description)


@functools.cache
def command_table() -> dict[str, dict[str, Any]]:
    """Return `commands.toml`: `commands`, and `arguments`, which several commands share."""
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")
