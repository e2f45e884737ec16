"""`xlatune hlo`: show what the compiler made of a program, or what differs between two."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.parsers import (
    TRIAL,
    add_json,
    add_options,
    options_of,
)
from pytest_xlatune.cli.show import Output
from pytest_xlatune.tasks.artifacts import dump_of
from pytest_xlatune.tasks.programs import program_document, programs_json, read_programs


def add_hlo(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("dump", metavar="DUMP", help=f"folder that --xla_dump_to wrote; {TRIAL}")
    parser.add_argument(
        "other", nargs="?", metavar="DUMP2", help="a second dump: show what changed"
    )
    add_json(parser)
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_hlo)


def _hlo(arguments: argparse.Namespace) -> Output:
    named = filter(None, [arguments.dump, arguments.other])
    programs, problems = read_programs(
        [dump_of(path, lambda: options_of(arguments).workdir) for path in named]
    )
    return Output(
        documents=(program_document(*programs),),
        json=lambda: programs_json(*programs),
        problems=problems,
    )
