"""`xlatune steps`, `triage` and `compare`: what the logs of any jobs say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli import add_json, complain, show_document, show_json
from pytest_xlatune.model.errors import ConfigError

if TYPE_CHECKING:
    from pytest_xlatune.tasks.read_logs import Read


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    add_json(parser)
    parser.set_defaults(run=_steps)


def add_triage(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    parser.set_defaults(run=_triage)


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", type=Path, metavar="A", help="the baseline's jobs")
    parser.add_argument("b", type=Path, metavar="B", help="the others")
    add_json(parser)
    parser.add_argument(
        "--gate",
        type=float,
        metavar="MARGIN",
        help="exit with 1 where B is slower by MARGIN (0.01 is 1 %%), 4 where it cannot be told",
    )
    parser.set_defaults(run=_compare)


def _steps(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.log_tables import steps_of_log
    from pytest_xlatune.tasks.read_logs import SCHEMA

    read, exit_code = _read_all(arguments.logs)
    if arguments.json:
        show_json({"schema": SCHEMA, "logs": [each.to_json() for each in read]})
        return exit_code
    for each in read:
        report = each.report
        show_document(
            steps_of_log(str(each.path), steps=report.steps, score=each.score, notes=report.notes)
        )
    return exit_code


def _triage(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.log_tables import triage_of_log

    read, exit_code = _read_all(arguments.logs)
    for each in read:
        report = each.report
        steps = "no step" if report.last_step is None else f"last step {report.last_step}"
        reached = f"{report.lines} lines, phase {report.phase}, {steps}"
        show_document(
            triage_of_log(
                str(each.path), status=each.status, findings=report.findings, reached=reached
            )
        )
    return exit_code


def _compare(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.log_tables import compared
    from pytest_xlatune.tasks.compare_logs import compare_sides

    found = compare_sides(arguments.a, arguments.b, margin=arguments.gate)
    if arguments.json:
        show_json(found.to_json())
        return found.exit_code
    sides = (("A", found.a), ("B", found.b))
    show_document(
        compared(
            found.verdict,
            ratio=found.ratio,
            jobs=[(name, job.path, job.score) for name, side in sides for job in side.jobs],
            left_out=[(name, *out) for name, side in sides for out in side.left_out],
            gate=found.gate,
        )
    )
    return found.exit_code


def _read_all(paths: Sequence[Path]) -> tuple[list[Read], int]:
    """Read the logs that can be read; say of each of the others why it cannot."""
    from pytest_xlatune.tasks.read_logs import read_one

    read, exit_code = [], 0
    for path in paths:
        try:
            read.append(read_one(path))
        except ConfigError as error:
            exit_code = complain([str(error)])
    return read, exit_code
