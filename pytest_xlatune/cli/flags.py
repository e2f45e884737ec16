"""The commands about settings: `xlatune flags list | show | lint | diff`. Parsers, no printing.

    list    the catalog; of an axis, the profiles that a wave would take
    show    everything known of a flag or a variable
    lint    what is wrong with profiles, by the rules and by the target's own XLA
    diff    the options that two texts of XLA_FLAGS set otherwise

Each parser sets `show`: arguments and options to what is to be printed. Exit codes: 0 clean or the
same, 1 where something was found, 2 for wrong input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli.commands import Commands
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.settings.options import Options

if TYPE_CHECKING:
    from pytest_xlatune.catalog import Ground
    from pytest_xlatune.cli.inspecting import Shown
    from pytest_xlatune.profiles import Profile


COMMAND = "flags"


class SyntaxRefusedError(ConfigError):
    """The text to lint is what is wrong: a finding, not a misuse of the command."""


def as_words(given: Sequence[str]) -> list[str]:
    """Return a command line on which argparse takes `--xla_...` for a word, not for an option."""
    return [f" {each}" if each.startswith("--xla_") else each for each in given]


def add_flags(commands: Commands) -> Iterator[tuple[argparse.ArgumentParser, bool]]:
    """Add the commands; yield each parser and whether it takes the options of a sweep."""
    flags = commands.add_parser(COMMAND, what="settings: the catalog, and what is wrong with some")
    kinds = Commands(flags, metavar="KIND")

    listed = kinds.add_parser("list", what="the catalog; of an axis, the profiles of a wave")
    listed.add_argument("--axis", metavar="AXIS", help="e.g. FSDP: what is worth a trial there")
    _add_ground(listed)
    listed.add_argument("--markdown", action="store_true", help="the tables of docs/flags.md")
    listed.add_argument("--json", action="store_true", help="one JSON document")
    listed.set_defaults(show=_list)
    yield listed, False

    shown = kinds.add_parser("show", what="everything known of settings")
    shown.add_argument("names", nargs="+", metavar="NAME", help="a flag, a variable, or its slug")
    shown.add_argument("--json", action="store_true", help="one JSON document")
    shown.set_defaults(show=_show)
    yield shown, False

    linted = kinds.add_parser("lint", what="what is wrong with profiles; exit code 1 if something")
    linted.add_argument(
        "what", nargs="+", metavar="SWEEP_FILE|TEXT", help="a sweep file; or flags and NAME=value"
    )
    linted.add_argument("--python", metavar="PATH", help="the interpreter whose XLA is asked")
    linted.add_argument("--dump", type=Path, metavar="DUMP", help="of the program as deployed")
    _add_ground(linted)
    linted.add_argument("--json", action="store_true", help="one JSON document")
    linted.set_defaults(show=_lint)
    yield linted, True

    diff = kinds.add_parser("diff", what="what two texts of XLA_FLAGS set otherwise")
    diff.add_argument("a", metavar="A", help="'' is every default")
    diff.add_argument("b", metavar="B")
    diff.add_argument("--python", metavar="PATH", help="the interpreter whose XLA is asked")
    diff.add_argument("--json", action="store_true", help="one JSON document")
    diff.set_defaults(show=_diff)
    yield diff, False


def _add_ground(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deployed", metavar="TEXT", default="", help="flags and NAME=value below the profiles"
    )
    parser.add_argument(
        "--jaxlib", metavar="VERSION", default="", help="of the target; asks no XLA"
    )
    parser.add_argument("--device", metavar="NAME", default="", help="e.g. sm_90, gfx942, cpu")


def _list(arguments: argparse.Namespace, _: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.flagging import deployed_ground, show_list  # noqa: PLC0415

    ground = deployed_ground(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    yield show_list(
        axis=arguments.axis,
        ground=ground,
        as_json=arguments.json,
        as_markdown=arguments.markdown,
    )


def _show(arguments: argparse.Namespace, _: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.flagging import show_entries  # noqa: PLC0415

    yield show_entries(arguments.names, as_json=arguments.json)


def _lint(arguments: argparse.Namespace, options: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.flagging import shape_of, show_lint, show_refused  # noqa: PLC0415

    if arguments.python and arguments.jaxlib:
        raise ConfigError("--python asks that XLA, --jaxlib asks none; give one of them")
    try:
        profiles, ground, python = _profiles(arguments, options)
    except SyntaxRefusedError as error:
        yield show_refused(error, as_json=arguments.json)
        return
    if arguments.dump:
        ground = dataclasses.replace(ground, program=shape_of(arguments.dump))
    yield show_lint(
        profiles,
        ground,
        python="" if arguments.jaxlib else arguments.python or python,
        environ=os.environ,
        as_json=arguments.json,
    )


def _profiles(
    arguments: argparse.Namespace, options: Options
) -> tuple[Sequence[Profile], Ground, str]:
    """Return the profiles, their ground, and the interpreter that is theirs."""
    from pytest_xlatune.cli.flagging import (  # noqa: PLC0415
        deployed_ground,
        sweep_ground,
        text_profile,
    )

    said = deployed_ground(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    first = arguments.what[0]
    if not first.strip().endswith(".py"):
        try:
            return (text_profile(arguments.what),), said, sys.executable
        except ConfigError as error:
            raise SyntaxRefusedError(str(error)) from None
    from pytest_xlatune.sweep.file import load_sweep  # noqa: PLC0415
    from pytest_xlatune.sweep.sweep import inputs_of  # noqa: PLC0415

    if len(arguments.what) > 1:
        raise ConfigError(
            f"{first} is a sweep file; its profiles are linted by themselves, without "
            f"{arguments.what[1].strip()!r}"
        )
    resolved = load_sweep(Path(first)).resolve(inputs_of(options, Path.cwd()))
    own = sweep_ground(resolved)
    ground = dataclasses.replace(
        own,
        deployed=(*own.deployed, *said.deployed),
        env={**own.env, **said.env},
        jaxlib=said.jaxlib,
        device=said.device,
    )
    return resolved.sweep.profiles, ground, resolved.sweep.launcher.interpreter


def _diff(arguments: argparse.Namespace, _: Options) -> Iterator[Shown]:
    from pytest_xlatune.cli.flagging import show_diff  # noqa: PLC0415

    yield show_diff(
        arguments.a,
        arguments.b,
        python=arguments.python or sys.executable,
        environ=os.environ,
        as_json=arguments.json,
    )
