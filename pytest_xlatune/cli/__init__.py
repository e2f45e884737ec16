"""The command line: `xlatune COMMAND ...`. A command and what it prints are one file here.

Each file has the arguments of a command, or of a few that are alike: `add_NAME` declares them and
sets `run` to a function that returns an `Output`. `show` prints it in the form that is asked for.
What a command computes or decides is a use case in `tasks`. Only the file of the command that is
asked for is loaded.

Other distributions bring commands: an entry point of `pytest_xlatune.commands` names a
`Subcommand`. They are looked for where one is asked for that is none of ours, and for the list.

Exit statuses: those of `model.errors`, where wrong usage is 2 and an interrupt 130. `flags lint`
ends with 1 where it finds something.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pytest_xlatune import __version__
from pytest_xlatune.cli.parsers import (
    AGAINST,
    OF_A_SESSION,
    Commands,
    add_commands,
    add_json,
    add_options,
    options_of,
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

__all__ = [  # what a command that comes in by an entry point may use
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
        line: in the list of all, and at the head of its help: begins in lower case.
        add: `module:function`, which declares the arguments of a parser and sets `run`.
        examples: what to type, below its help.
    """

    line: str
    add: str
    examples: tuple[str, ...] = ()


BROUGHT = EntryPointGroup("pytest_xlatune.commands", kind="command")
# ours, in the order of their list; each with its file, its line and its examples
COMMANDS = {
    name: Subcommand(
        line=row["line"], add=f"{__name__}.{row['add']}", examples=tuple(row["examples"])
    )
    for name, row in tomllib.loads(
        Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
    ).items()
}
_WIDTH = 78
# A flag of XLA or libtpu has an underscore in its name; no option of ours has one.
#   --xla_gpu_autotune_level=0      --megascale_abort_on_hangs=true
_IS_FLAG = re.compile(r"--[A-Za-z0-9]+_\w")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    hide_secrets_of(os.environ)
    _take_any_sign()
    name = given[0] if given else ""
    if name == "drill":  # argparse drops the `--` between the variants
        given = [AGAINST if word == "--" else word for word in given]
    if name in ("flags", "init"):  # a word that begins with a blank is no option for argparse
        given = [f" {word}" if _IS_FLAG.match(word) else word for word in given]
    arguments = argparse.Namespace()
    try:
        try:
            _parser(name).parse_args(given, arguments)
            if any(variable.startswith("XLATUNE_") for variable in os.environ):
                # every command refuses it, also one that reads no setting
                refuse_misspelt(os.environ)
            check_page(vars(arguments).get("html"))
            output: Output | int = arguments.run(arguments)
            # a guest's command may have shown all itself, and tells its exit code
            return output if isinstance(output, int) else present(output, arguments)
        finally:
            if sys.stdout is not None:  # it is None under `>&-`
                # that the reader has gone is reported here, not when Python ends
                sys.stdout.flush()
    except XlatuneError as error:
        return complain([_as_typed(str(error), arguments)], status=error.exit)
    except KeyboardInterrupt:
        return complain(["interrupted"], status=Exit.INTERRUPTED)
    except OSError as error:
        if error.filename is not None:  # it is a file: the output has no name here
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            message = f"{os.fsdecode(error.filename)}: {error.strerror}"
            return complain([message], status=Exit.INTERNAL)
        return refused(error)


def _take_any_sign() -> None:
    """Show what a terminal has no sign for by its number, as under PYTHONIOENCODING=ascii."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a closed stream or one of a test is none
            stream.reconfigure(errors="backslashreplace")


def _as_typed(message: str, arguments: argparse.Namespace) -> str:
    """Name the command's own options as they are typed here: without the `xlatune-` of pytest."""

    def typed(option: re.Match[str]) -> str:
        is_ours = f"xlatune_{option[1].replace('-', '_')}" in arguments
        return f"--{option[1]}" if is_ours else option[0]

    # --xlatune-budget
    return re.sub(r"--xlatune-([a-z]+(?:-[a-z]+)*)", typed, message)


def _parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the one that is asked for has its arguments."""
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
    # nothing lists the other commands where one is named: their parsers are made for the list alone
    listed = [name] if name in known else [*known]
    added = add_commands(
        parser, {command: known[command].line for command in listed}, metavar="COMMAND"
    )
    if name in known:
        one, subcommand = added[name], known[name]
        parser.command = one
        module, _, add = subcommand.add.partition(":")
        getattr(import_module(module), add)(one)
        if subcommand.examples:
            lines = ["examples:", *(f"  {example}" for example in subcommand.examples)]
            if one.epilog:
                lines += ["", *textwrap.wrap(one.epilog, _WIDTH)]
            one.epilog = "\n".join(lines)
            one.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def commands(asked: str = "") -> dict[str, Subcommand]:
    """Return the commands by name: ours, and those of other distributions where `asked` is none.

    One that cannot be loaded says so in its line, unless it is the one that is asked for.

    Raises:
        ConfigError: the command that is asked for cannot be loaded.
    """
    subcommands = dict(COMMANDS)
    for name in () if asked in subcommands else BROUGHT:
        if name in subcommands:  # ours comes first
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
