"""`xlatune compare`: two directories of logs of any jobs, or two ledgers."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import add_json
from pytest_xlatune.cli.read_logs import add_reading, pattern_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError, of_command


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "a", type=Path, metavar="A", help="folder with the logs of the baseline's jobs, or a ledger"
    )
    parser.add_argument(
        "b",
        type=Path,
        metavar="B",
        help="folder with the logs of the other jobs, or a later ledger",
    )
    add_reading(parser)
    add_json(parser)
    parser.add_argument(
        "--gate",
        type=float,
        metavar="MARGIN",
        help="exit with 1 where B is slower by MARGIN (0.01 is 1 %%), with 10 where these logs "
        "cannot tell",
    )
    parser.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> Output:
    from pytest_xlatune.report.log_tables import compared
    from pytest_xlatune.tasks.compare_logs import compare_sides, is_ledger

    ledgers = [is_ledger(each) for each in (arguments.a, arguments.b)]
    if any(ledgers):
        return _compare_sweeps(arguments, are_ledgers=all(ledgers))
    found = compare_sides(
        arguments.a,
        arguments.b,
        margin=arguments.gate,
        pattern=pattern_of(arguments),
        tokens=arguments.tokens,
    )
    sides = (("A", found.a), ("B", found.b))
    document = compared(
        found.verdict,
        ratio=found.ratio,
        jobs=[(name, job.path, job.score) for name, side in sides for job in side.jobs],
        left_out=[(name, *out) for name, side in sides for out in side.left_out],
        gate=found.gate,
    )
    return Output(documents=(document,), json=found.to_json, status=of_command(found.exit))


def _compare_sweeps(arguments: argparse.Namespace, *, are_ledgers: bool) -> Output:
    from pytest_xlatune.report.history import then_now
    from pytest_xlatune.tasks.compare_sweeps import compare_sweeps

    if not are_ledgers:
        raise ConfigError(
            f"{arguments.a} and {arguments.b}: one of them is a ledger, the other is not; name "
            "two ledgers (.xlatune/SWEEP/CELL), or two directories of logs"
        )
    if arguments.gate is not None or arguments.tokens is not None:
        raise ConfigError(
            "--gate and --tokens work on logs, and these are ledgers. For a gate against an "
            "earlier ledger, write Gate(stored=...) in a sweep file"
        )
    found = compare_sweeps(arguments.a, arguments.b)
    return Output(documents=(then_now(found),), json=found.to_json)
