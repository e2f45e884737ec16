"""`xlatune compare`: compare two directories with logs of any jobs."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.read_logs import pattern_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import of_command
from pytest_xlatune.tasks.compare_logs import compare_sides, compared_document


def run_compare(arguments: argparse.Namespace) -> Output:
    """Return the comparison of the logs in two folders, A and B."""
    comparison = compare_sides(
        arguments.a,
        arguments.b,
        margin=arguments.gate,
        pattern=pattern_of(arguments),
        tokens=arguments.tokens,
    )
    return Output(
        documents=(compared_document(comparison),),
        status=of_command(comparison.exit),
    )
