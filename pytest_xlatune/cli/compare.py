"""`xlatune compare`: compare two directories with logs of any jobs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import add_json
from pytest_xlatune.cli.read_logs import add_reading, pattern_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import of_command
from pytest_xlatune.report.log_tables import compared
from pytest_xlatune.tasks.compare_logs import compare_sides


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", type=Path, metavar="A", help="folder with logs of the baseline's jobs")
    parser.add_argument("b", type=Path, metavar="B", help="folder with the logs of the other jobs")
    add_reading(parser)
    add_json(parser)
    parser.add_argument(
        "--gate",
        type=float,
        metavar="MARGIN",
        help="exit with 1 where B is slower by MARGIN (0.01 is 1 %%), with 10 if these logs "
        "cannot tell",
    )
    parser.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> Output:
    comparison = compare_sides(
        arguments.a,
        arguments.b,
        margin=arguments.gate,
        pattern=pattern_of(arguments),
        tokens=arguments.tokens,
    )
    sides = (("A", comparison.a), ("B", comparison.b))
    document = compared(
        comparison.verdict,
        ratio=comparison.ratio,
        jobs=[(name, job.path, job.score) for name, side in sides for job in side.jobs],
        left_out=[(name, *out) for name, side in sides for out in side.left_out],
        gate=comparison.gate,
    )
    return Output(
        documents=(document,), json=comparison.to_json, status=of_command(comparison.exit)
    )
