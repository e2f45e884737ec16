"""The command line, `xlatune COMMAND ...`.

`commands.toml` declares the commands and their arguments. A file of this package has the function
that runs one command, or the functions of a few similar commands; only the file of the requested
command is loaded. The function returns an `Output`, which `show` prints in the requested form.
What a command computes or decides is a use case in `tasks`.

Other distributions can add commands: an entry point of `pytest_xlatune.commands` names a
`Subcommand`. These entry points are read only for an unknown command and for the list of commands.

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
from typing import NamedTuple

from pytest_xlatune import __version__
from pytest_xlatune.cli.parsers import (
    AGAINST,
    Parser,
    add_commands,
    add_json,
    command_table,
    declare,
    load_function,
)
from pytest_xlatune.cli.show import (
    Output,
    complain,
    present,
    refused_output,
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

__all__ = [  # names that a command of an entry point may use, beside those in `options`
    "Output",
    "Subcommand",
    "add_commands",
    "add_json",
    "complain",
    "main",
    "show",
    "show_json",
    "write_files",
]


# an error with another number is a fault of ours, and keeps its traceback
_SITE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


class Subcommand(NamedTuple):
    """A command of `xlatune`, without the module that runs it.

    Attributes:
        line: a description for the list of commands and the head of the help; it begins in lower
            case.
        add: `module:function`; the function declares the arguments of a parser and sets `run`.
            Empty for our own commands, which `commands.toml` declares.
        examples: command lines, shown below the help.
    """

    line: str
    add: str
    examples: tuple[str, ...] = ()


_GUEST_COMMANDS = EntryPointGroup("pytest_xlatune.commands", kind="command")
# our commands, in the order of the list
COMMANDS = {
    name: Subcommand(line=row["line"], add="", examples=tuple(row["examples"]))
    for name, row in command_table()["commands"].items()
}
_WIDTH = 78  # characters in a line of the help
# Flags of XLA and libtpu have underscores in their names; no option of ours has one:
# --xla_gpu_autotune_level=0      --megascale_abort_on_hangs=true
_IS_FLAG = re.compile(r"--[A-Za-z0-9]+_\w")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    hide_secrets_of(os.environ)
    _escape_unprintable_characters()
    name = words[0] if words else ""
    if name == "drill":  # argparse would drop the `--` between the variants
        words = [AGAINST if word == "--" else word for word in words]
    if name in ("flags", "init"):
        # argparse takes a flag of XLA for an option, unless the word begins with a blank
        words = [f" {word}" if _IS_FLAG.match(word) else word for word in words]
    arguments = argparse.Namespace()
    try:
        try:
            _parser(name, words[1:]).parse_args(words, arguments)
            output: Output | int = arguments.run(arguments)
            # a command of another distribution may print by itself, and then returns an exit code
            return output if isinstance(output, int) else present(output, arguments)
        finally:
            if sys.stdout is not None:  # the shell's `>&-` makes it None
                # a closed pipe must fail here, where the error is caught, and not when Python ends
                sys.stdout.flush()
    except XlatuneError as error:
        return complain([_in_spelling_of(arguments, str(error))], status=error.exit)
    except KeyboardInterrupt:
        return complain(["interrupted"], status=Exit.INTERRUPTED)
    except OSError as error:
        if error.filename is not None:  # an error of stdout has no file name
            if error.errno not in _SITE_ERRORS:
                raise
            message = f"{os.fsdecode(error.filename)}: {error.strerror}"
            return complain([message], status=Exit.INTERNAL)
        return refused_output(error)


def _escape_unprintable_characters() -> None:
    """Make the output escape each character that its encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        # a closed stream and the stream of a test have other types, without `reconfigure`
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _in_spelling_of(arguments: argparse.Namespace, message: str) -> str:
    """Return a message with options as this command spells them, without pytest's `xlatune-`."""

    def spelled(option: re.Match[str]) -> str:
        is_ours = f"xlatune_{option[1].replace('-', '_')}" in arguments
        return f"--{option[1]}" if is_ours else option[0]

    # options of pytest:  --xlatune-budget
    return re.sub(r"--xlatune-([a-z]+(?:-[a-z]+)*)", spelled, message)


def _parser(name: str, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the command `name` gets its arguments.

    `words` are the words after the name; the first of them may name a subcommand.
    """
    parser = Parser(
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
    # a known command shows no list of all commands, so the other commands need no parsers
    listed = [name] if name in known else [*known]
    parsers = add_commands(
        parser, {command: known[command].line for command in listed}, metavar="COMMAND"
    )
    if name in known:
        command_parser, subcommand = parsers[name], known[name]
        if name in COMMANDS:
            declare(command_parser, command_table()["commands"][name], words)
        else:
            load_function(subcommand.add)(command_parser)
        if subcommand.examples:
            lines = ["examples:", *(f"  {example}" for example in subcommand.examples)]
            if command_parser.epilog:
                lines += ["", *textwrap.wrap(command_parser.epilog, _WIDTH)]
            command_parser.epilog = "\n".join(lines)
            command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def commands(requested: str = "") -> dict[str, Subcommand]:
    """Return name -> command.

    The commands of other distributions are among them unless `requested` is one of our commands.
    If a command cannot be loaded, its line in the list says why.

    Raises:
        ConfigError: the requested command cannot be loaded.
    """
    subcommands = dict(COMMANDS)
    if requested in subcommands:
        return subcommands
    for name in _GUEST_COMMANDS:
        if name in subcommands:  # our command has precedence
            continue
        try:
            subcommands[name] = _GUEST_COMMANDS.load_as(name, Subcommand, where="the command line")
        except ConfigError as error:
            if name == requested:
                raise
            subcommands[name] = Subcommand(line=str(error), add="")
    return subcommands
