"""`xlatune compare`: compare two directories with logs of any jobs."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.read_logs import pattern_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import of_command
from pytest_xlatune.report.log_tables import compared
from pytest_xlatune.tasks.compare_logs import compare_sides


def run_compare(arguments: argparse.Namespace) -> Output:
    """Return the comparison of the logs in two folders, A and B."""
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
        left_out=[(name, *omission) for name, side in sides for omission in side.left_out],
        gate=comparison.gate,
    )
    return Output(
        documents=(document,), json=comparison.to_json, status=of_command(comparison.exit)
    )
