"""The command line, `xlatune COMMAND ...`.

`commands.toml` declares the commands and their arguments. A file here has the function that runs
one command, or the functions of a few similar ones; only the file of the requested command is
loaded. The function returns an `Output`, which `show` prints in the requested form. What a command
computes or decides is a use case in `tasks`.

Other distributions bring commands: an entry point of `pytest_xlatune.commands` names a
`Subcommand`. They are searched only for an unknown command, and for the list of commands.

Exit statuses are those of `model.errors`: wrong usage is 2, an interrupt 130. `flags lint` ends
with 1 if it finds a fault.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from pytest_xlatune import __version__
from pytest_xlatune.cli.parsers import (
    AGAINST,
    OF_A_SESSION,
    Commands,
    add_commands,
    add_json,
    add_options,
    declare,
    options_of,
    table,
)
from pytest_xlatune.cli.show import (
    Output,
    check_page,
    complain,
    present,
    refused,
    show,
    show_json,
    write_files,
)
from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import (
    ConfigError,
    Exit,
    XlatuneError,
    help_lines,
    hide_secrets_of,
)
from pytest_xlatune.sweep.settings import refuse_misspelt

__all__ = [  # names that a command of an entry point may use
    "OF_A_SESSION",
    "Output",
    "Subcommand",
    "add_commands",
    "add_json",
    "add_options",
    "complain",
    "main",
    "options_of",
    "show",
    "show_json",
    "write_files",
]


class Subcommand(NamedTuple):
    """A command of `xlatune`, without the module that runs it.

    Attributes:
        line: its line in the list of commands and at the head of its help; it begins in lower case.
        add: `module:function`; the function declares the arguments of a parser and sets `run`.
        examples: what to type, shown below its help.
    """

    line: str
    add: str
    examples: tuple[str, ...] = ()


BROUGHT = EntryPointGroup("pytest_xlatune.commands", kind="command")
# our commands, in the order of the list
COMMANDS = {
    name: Subcommand(line=row["line"], add="", examples=tuple(row["examples"]))
    for name, row in table()["commands"].items()
}
_WIDTH = 78
# Flags of XLA and libtpu have underscores in their names; no option of ours has one:
# --xla_gpu_autotune_level=0      --megascale_abort_on_hangs=true
_IS_FLAG = re.compile(r"--[A-Za-z0-9]+_\w")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    hide_secrets_of(os.environ)
    _escape_what_cannot_be_shown()
    name = given[0] if given else ""
    if name == "drill":  # argparse would drop the `--` between the variants
        given = [AGAINST if word == "--" else word for word in given]
    if name in ("flags", "init"):  # to argparse, a word that begins with a blank is no option
        given = [f" {word}" if _IS_FLAG.match(word) else word for word in given]
    arguments = argparse.Namespace()
    try:
        try:
            _parser(name).parse_args(given, arguments)
            if any(variable.startswith("XLATUNE_") for variable in os.environ):
                # every command refuses a misspelt variable, even one that reads no setting
                refuse_misspelt(os.environ)
            check_page(vars(arguments).get("html"))
            output: Output | int = arguments.run(arguments)
            # a guest's command may have shown everything, and then returns its exit code
            return output if isinstance(output, int) else present(output, arguments)
        finally:
            if sys.stdout is not None:  # it is None under `>&-`
                # a closed pipe is reported here, and not when Python ends
                sys.stdout.flush()
    except XlatuneError as error:
        return complain([_as_typed(str(error), arguments)], status=error.exit)
    except KeyboardInterrupt:
        return complain(["interrupted"], status=Exit.INTERRUPTED)
    except OSError as error:
        if error.filename is not None:  # it concerns a file: an error of the output names none
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            message = f"{os.fsdecode(error.filename)}: {error.strerror}"
            return complain([message], status=Exit.INTERNAL)
        return refused(error)


def _escape_what_cannot_be_shown() -> None:
    """Write a number in place of each character that a terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        # a closed stream and a test's stream have other types
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _as_typed(message: str, arguments: argparse.Namespace) -> str:
    """Return a message with options as this command spells them, without pytest's `xlatune-`."""

    def typed(option: re.Match[str]) -> str:
        is_ours = f"xlatune_{option[1].replace('-', '_')}" in arguments
        return f"--{option[1]}" if is_ours else option[0]

    # options of pytest:  --xlatune-budget
    return re.sub(r"--xlatune-([a-z]+(?:-[a-z]+)*)", typed, message)


def _parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the requested one has its arguments."""
    parser = Commands(
        prog="xlatune",
        description="Sweeps of XLA flags and NCCL variables: logs, ledgers, plans.",
        epilog="\n".join(
            [
                "`xlatune COMMAND --help` has examples.",
                "",
                "exit statuses:",
                *help_lines(of_command_line=True),
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    known = commands(name)
    # if a command is named, nothing lists the others, so they need no parsers
    listed = [name] if name in known else [*known]
    added = add_commands(
        parser, {command: known[command].line for command in listed}, metavar="COMMAND"
    )
    if name in known:
        asked_parser, subcommand = added[name], known[name]
        parser.command = asked_parser
        if name in COMMANDS:
            declare(asked_parser, table()["commands"][name], package=__name__)
        else:
            module, _, add = subcommand.add.partition(":")
            getattr(import_module(module), add)(asked_parser)
        if subcommand.examples:
            lines = ["examples:", *(f"  {example}" for example in subcommand.examples)]
            if asked_parser.epilog:
                lines += ["", *textwrap.wrap(asked_parser.epilog, _WIDTH)]
            asked_parser.epilog = "\n".join(lines)
            asked_parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def commands(asked: str = "") -> dict[str, Subcommand]:
    """Return name -> command: ours, and those of other distributions if `asked` is none of ours.

    A command that cannot be loaded says so in its line of the list.

    Raises:
        ConfigError: the requested command cannot be loaded.
    """
    subcommands = dict(COMMANDS)
    for name in () if asked in subcommands else BROUGHT:
        if name in subcommands:  # ours has precedence
            continue
        try:
            subcommands[name] = _brought(name)
        except ConfigError as error:
            if name == asked:
                raise
            subcommands[name] = Subcommand(line=str(error), add="")
    return subcommands


def _brought(name: str) -> Subcommand:
    subcommand = BROUGHT.load(name, where="the command line")
    if not isinstance(subcommand, Subcommand):
        raise ConfigError(
            f"command {name!r} of {BROUGHT.source(name)} is {type(subcommand).__name__}, expected "
            "a pytest_xlatune.cli.Subcommand"
        )
    return subcommand
