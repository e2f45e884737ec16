"""`xlatune history`: all that was measured, or the course of one cell over its sweeps and gates."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import add_html, add_json, add_options, options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.report.history import by_date, history
from pytest_xlatune.tasks.measured import studies_below


def add_history(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="a work directory, or a folder that holds several (default: --workdir)",
    )
    parser.add_argument(
        "--cell",
        metavar="CELL",
        help="show how one cell changed over time: give its label, a part of it (`llama2-70b "
        "FSDP=8`, `FSDP=8`), its id, or the sweep's name",
    )
    add_json(parser)
    add_html(parser)
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_history)


def _history(arguments: argparse.Namespace) -> Output:
    workdir = arguments.folder or options_of(arguments).workdir
    found = studies_below(workdir, arguments.cell)
    past = found.past
    if arguments.cell is not None and not past:
        unknown = ConfigError.unknown(
            "cell", arguments.cell, valid=found.names, where="the ledgers"
        )
        return Output(problems=(*found.problems, str(unknown)))
    return Output(
        documents=(history(past, is_course=arguments.cell is not None),),
        json=lambda: [study.to_json() for study in by_date(past)],
        source="the ledgers",
        problems=found.problems,
        problem_status=Exit.INTERNAL,
    )
