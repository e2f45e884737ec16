"""`xlatune steps`, `triage` and `compare`: what the logs of any jobs say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli.parsers import add_json, add_options, options_of
from pytest_xlatune.cli.show import complain, show, show_document, show_json
from pytest_xlatune.model.errors import ConfigError, of_command
from pytest_xlatune.model.failure import MEGASCALE

if TYPE_CHECKING:
    from pytest_xlatune.logs.patterns import StepPattern
    from pytest_xlatune.tasks.read_logs import Read


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_logs(parser)
    parser.set_defaults(run=_steps)


def add_triage(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_logs(parser)
    parser.set_defaults(run=_triage)
    parser.epilog = (
        "Exit status: 0 all jobs are healthy, 1 one failed, 3 none failed and one is unfinished, "
        "2 a file is no log."
    )


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs",
        nargs="+",
        type=Path,
        metavar="LOG",
        help="a file, gzipped or not; a folder of one job or more; a job's number; or -",
    )
    _add_reading(parser)
    add_json(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ("step-pattern",))
    parser.add_argument(
        "--tokens", type=float, metavar="N", help="tokens of a device in a step, for such a trainer"
    )


def _pattern(arguments: argparse.Namespace) -> StepPattern | None:
    """Return the step pattern of the command line, the environment or xlatune.toml."""
    from pytest_xlatune.logs.patterns import step_pattern

    said = options_of(arguments).said.values.get("step_pattern")
    return step_pattern(said) if said else None


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", type=Path, metavar="A", help="the baseline's jobs; or a ledger")
    parser.add_argument("b", type=Path, metavar="B", help="the others; or a later ledger")
    _add_reading(parser)
    add_json(parser)
    parser.add_argument(
        "--gate",
        type=float,
        metavar="MARGIN",
        help="exit with 1 where B is slower by MARGIN (0.01 is 1 %%), 10 where it cannot be told",
    )
    parser.set_defaults(run=_compare)


def _steps(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.log_tables import steps_of_log
    from pytest_xlatune.tasks.read_logs import SCHEMA

    read, exit_code = _read_all(arguments)
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
    from pytest_xlatune.tasks.read_logs import SCHEMA, Health

    read, exit_code = _read_all(arguments)
    if arguments.json:
        show_json({"schema": SCHEMA, "logs": [each.to_json() for each in read]})
    else:
        for each in read:
            show_document(
                triage_of_log(
                    str(each.path),
                    status=each.status,
                    findings=each.findings,
                    reached=each.reached,
                )
            )
            show(_digests(each))
    found = {each.health for each in read}
    return exit_code or next((code for health, code in _EXITS if Health(health) in found), 0)


_EXITS = (("failed", 1), ("unfinished", 3))


def _digests(read: Read) -> list[str]:
    """Return what the Megascale digests of a log say, where a finding tells that it has one."""
    if not any(each.cls in MEGASCALE for each in read.findings):
        return []
    from pytest_xlatune.cli.megascale import report_lines
    from pytest_xlatune.tasks.read_megascale import read_megascale

    return list(report_lines(str(read.path), read.megascale or read_megascale(read.path).report))


def _compare(arguments: argparse.Namespace) -> int:
    ledgers = [_is_ledger(each) for each in (arguments.a, arguments.b)]
    if any(ledgers):
        return _compare_sweeps(arguments, are_ledgers=all(ledgers))
    from pytest_xlatune.report.log_tables import compared
    from pytest_xlatune.tasks.compare_logs import compare_sides

    found = compare_sides(
        arguments.a,
        arguments.b,
        margin=arguments.gate,
        pattern=_pattern(arguments),
        tokens=arguments.tokens,
    )
    if arguments.json:
        show_json(found.to_json())
        return of_command(found.exit)
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
    return of_command(found.exit)


_HEAD_BYTES = 4096
_LEDGER = "ledger.jsonl"  # as `ledger` has it, which takes longer to load than logs to compare


def _is_ledger(path: Path) -> bool:
    """Whether a path is a ledger, an empty one too, or holds one.

    The metrics of a trainer are JSON lines too.
    """
    if (path / _LEDGER).is_file() or (path.name == _LEDGER and path.is_file()):
        return True
    below = ("*.jsonl", "*/*.jsonl", "*/*/*.jsonl")
    files = [path] if path.suffix == ".jsonl" else [f for each in below for f in path.glob(each)]
    for each in files:
        if each.is_file():
            with each.open("rb") as file:
                if b'"campaign-opened"' in file.read(_HEAD_BYTES):
                    return True
    return False


def _compare_sweeps(arguments: argparse.Namespace, *, are_ledgers: bool) -> int:
    from pytest_xlatune.report.history import then_now
    from pytest_xlatune.tasks.compare_sweeps import compare_sweeps

    if not are_ledgers:
        raise ConfigError(
            f"of {arguments.a} and {arguments.b} one is a ledger and the other is none; name two "
            "ledgers (.xlatune/SWEEP/CELL), or two directories of logs"
        )
    if arguments.gate is not None or arguments.tokens is not None:
        raise ConfigError(
            "--gate and --tokens are of logs, and these are ledgers; a gate over an earlier ledger "
            "is Gate(stored=...) in a sweep file"
        )
    found = compare_sweeps(arguments.a, arguments.b)
    if arguments.json:
        show_json(found.to_json())
    else:
        show_document(then_now(found))
    return 0


def _read_all(arguments: argparse.Namespace) -> tuple[list[Read], int]:
    """Read the logs that can be read; say of each of the others why it cannot."""
    from pytest_xlatune.tasks.read_logs import logs_of, read_one

    pattern = _pattern(arguments)
    read, exit_code = [], 0
    for path in arguments.logs:
        try:
            logs = logs_of(path)
        except ConfigError as error:
            exit_code = complain([str(error)])
            continue
        for log in logs:
            try:
                read.append(read_one(log, pattern=pattern, tokens=arguments.tokens))
            except ConfigError as error:
                exit_code = complain([str(error)])
    return read, exit_code
