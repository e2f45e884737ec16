"""The command line: `xlatune steps | triage | hlo | drill | compare | conclude | report | ...`.

Parses, calls one function, prints. Exit codes: 0, or that of the error: 2 for wrong input, 3 for a
ledger or a scheduler that cannot be used; `compare --gate`: 1 for a regression, 4 for cannot tell.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli.commands import Commands
from pytest_xlatune.cli.evidence import AGAINST, add_evidence
from pytest_xlatune.cli.flags import COMMAND as FLAGS
from pytest_xlatune.cli.flags import add_flags, as_words
from pytest_xlatune.cli.tables import add_import
from pytest_xlatune.errors import ConfigError, XlatuneError
from pytest_xlatune.settings.options import OPTIONS, Options
from pytest_xlatune.settings.resolving import resolve_options

if TYPE_CHECKING:
    from pytest_xlatune.reading.reading import Read
    from pytest_xlatune.report.document import Document

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["drill"]:  # argparse drops the `--` between the variants
        given = [AGAINST if each == "--" else each for each in given]
    if given[:1] == [FLAGS]:
        given = as_words(given)
    arguments = parser.parse_args(given)
    command: Command = arguments.command
    try:
        try:
            return command(arguments)
        finally:
            sys.stdout.flush()  # a reader that has gone is told here, not when Python ends
    except XlatuneError as error:
        print(f"xlatune: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # `xlatune steps ... | head`: what was asked for was shown
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xlatune", description="Sweeps of XLA flags and NCCL variables: logs, ledgers, plans."
    )
    commands = Commands(parser, metavar="COMMAND")

    steps = commands.add_parser("steps", what="steps and score of logs that anybody ran")
    steps.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    steps.add_argument("--json", action="store_true", help="one JSON document")
    steps.set_defaults(command=_steps)

    triage = commands.add_parser("triage", what="what went wrong in a log, root cause first")
    triage.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    triage.set_defaults(command=_triage)

    added = (*add_evidence(commands), *add_flags(commands), *add_import(commands))
    for each, is_of_a_sweep in added:
        each.set_defaults(command=_print)
        (_add_options if is_of_a_sweep else _add_workdir)(each)

    report = commands.add_parser("report", what="show and write the reports of measured cells")
    _add_places(report)
    report.add_argument(
        "--zh",
        dest="xlatune_zh",
        action="store_true",
        help="the tuning document in Chinese too",
    )
    report.set_defaults(command=_report)

    conclude = commands.add_parser("conclude", what="every verdict of a ledger, computed again")
    conclude.add_argument("ledger", type=Path, metavar="LEDGER", help="the file, or its folder")
    conclude.add_argument("--json", action="store_true", help="as the sweep's own report has it")
    conclude.set_defaults(command=_conclude)

    compare = commands.add_parser("compare", what="two directories of logs, one job per log")
    compare.add_argument("a", type=Path, metavar="A", help="the baseline's jobs")
    compare.add_argument("b", type=Path, metavar="B", help="the others")
    compare.add_argument("--json", action="store_true", help="one JSON document")
    compare.add_argument(
        "--gate",
        type=float,
        metavar="MARGIN",
        help="exit with 1 where B is slower by MARGIN (0.01 is 1 %%), 4 where it cannot be told",
    )
    compare.set_defaults(command=_compare)

    calibrate = commands.add_parser("calibrate", what="how noisy a sweep's cell is; runs trials")
    calibrate.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    calibrate.add_argument("--jobs", type=int, default=12, metavar="N", help="how many (12)")
    _add_options(calibrate)
    calibrate.set_defaults(command=_calibrate)

    jobs = commands.add_parser("jobs", what="list the jobs in the ledgers, or end them")
    jobs.add_argument("--cancel", action="store_true", help="end what runs and nobody waits for")
    _add_places(jobs)
    jobs.set_defaults(command=_jobs)

    plan = commands.add_parser("plan", what="what a sweep would run; nothing is submitted")
    plan.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    _add_options(plan)
    plan.set_defaults(command=_plan)
    return parser


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="names; all without one")
    for option in OPTIONS:
        if option.name in ("workdir", "reports", "config"):
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=option.help
            )


def _add_workdir(parser: argparse.ArgumentParser) -> None:
    for option in OPTIONS:
        if option.name in ("workdir", "config"):
            parser.add_argument(
                f"--{option.name}", dest=option.key, metavar=option.metavar, help=option.help
            )


def _add_options(parser: argparse.ArgumentParser) -> None:
    for option in OPTIONS:
        parser.add_argument(
            f"--{option.name}", dest=option.key, metavar=option.metavar, help=option.help
        )


def _options(arguments: argparse.Namespace) -> Options:
    return resolve_options(vars(arguments), os.environ, {}, root=Path.cwd())


def _steps(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.reading.reading import SCHEMA  # noqa: PLC0415
    from pytest_xlatune.report.logs import steps_of_log  # noqa: PLC0415

    read, exit_code = _read_all(arguments.logs)
    if arguments.json:
        document = {"schema": SCHEMA, "logs": [each.to_json() for each in read]}
        print(json.dumps(document, indent=2, allow_nan=False))
        return exit_code
    for each in read:
        report = each.report
        _show(
            steps_of_log(str(each.path), steps=report.steps, score=each.score, notes=report.notes)
        )
    return exit_code


def _triage(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.logs import triage_of_log  # noqa: PLC0415

    read, exit_code = _read_all(arguments.logs)
    for each in read:
        report = each.report
        steps = "no step" if report.last_step is None else f"last step {report.last_step}"
        reached = f"{report.lines} lines, phase {report.phase}, {steps}"
        _show(
            triage_of_log(
                str(each.path), status=each.status, findings=report.findings, reached=reached
            )
        )
    return exit_code


def _report(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.publishing.publish import document_of, publish, read_known  # noqa: PLC0415

    options = _options(arguments)
    for folder in _folders(arguments, options):
        known = read_known(folder)
        _show(document_of(known))
        for name, place in sorted(known.state.opened[-1].settings.items()):
            print(f"{name} was said by {place}")
        for path in publish(folder, options.reports, zh=options.zh):
            print(f"written: {os.path.relpath(path)}")
    return 0


def _conclude(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.publishing.publish import document_of, json_of, read_known  # noqa: PLC0415

    known = read_known(arguments.ledger)
    if arguments.json:
        print(json_of(known), end="")
    else:
        _show(document_of(known))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.reading.sides import compare_sides  # noqa: PLC0415
    from pytest_xlatune.report.compared import compared  # noqa: PLC0415

    found = compare_sides(arguments.a, arguments.b, margin=arguments.gate)
    if arguments.json:
        print(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        sides = (("A", found.a), ("B", found.b))
        _show(
            compared(
                found.verdict,
                ratio=found.ratio,
                jobs=[(name, job.path, job.score) for name, side in sides for job in side.jobs],
                left_out=[(name, *out) for name, side in sides for out in side.left_out],
                gate=found.gate,
            )
        )
    return found.exit_code


def _calibrate(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.campaign.jobs import cancel_unwaited  # noqa: PLC0415
    from pytest_xlatune.publishing.feed import Feed  # noqa: PLC0415
    from pytest_xlatune.runs.calibrating import calibrate, document_of, open_calibration  # noqa: PLC0415
    from pytest_xlatune.sweep.earlier import CALIBRATION  # noqa: PLC0415
    from pytest_xlatune.sweep.file import load_sweep  # noqa: PLC0415
    from pytest_xlatune.sweep.sweep import inputs_of  # noqa: PLC0415

    options = _options(arguments)
    resolved = load_sweep(arguments.sweep).resolve(inputs_of(options, Path.cwd()))
    study = resolved.calibration(arguments.jobs)
    campaign = open_calibration(resolved, study, workdir=options.workdir)
    folder = campaign.setup.folder
    feed = Feed(folder, session_id=campaign.setup.session)

    def tick() -> None:
        for landed in feed.landed():
            if landed.line:
                print(landed.line, flush=True)

    try:
        found = calibrate(campaign, tick)
    finally:
        cancel_unwaited(folder)
    _show(document_of(campaign, found))
    print(f"written: {os.path.relpath(folder / CALIBRATION)}")
    return 0


def _jobs(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.campaign.jobs import LEDGER, cancel_unwaited, list_jobs  # noqa: PLC0415
    from pytest_xlatune.ledger import Ledger, replay  # noqa: PLC0415

    for folder in _folders(arguments, _options(arguments)):
        ended = cancel_unwaited(folder) if arguments.cancel else ()
        for job in list_jobs(replay(Ledger(folder / LEDGER).refresh())):
            state = "in flight" if job.outcome is None else str(job.outcome.state)
            print(f"{job.submission.executor} {job.submission.job_id} {job.trial.id} {state}")
        for submission in ended:
            print(f"ended {submission.executor} {submission.job_id} {submission.trial_id}")
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.plan.plan import plan_of  # noqa: PLC0415
    from pytest_xlatune.sweep.earlier import read_calibration  # noqa: PLC0415
    from pytest_xlatune.sweep.file import load_sweep  # noqa: PLC0415
    from pytest_xlatune.sweep.sweep import inputs_of  # noqa: PLC0415

    options = _options(arguments)
    resolved = load_sweep(arguments.sweep).resolve(inputs_of(options, Path.cwd()))
    known = read_calibration(options.workdir / resolved.folder, resolved.cell)
    sigma = known.noise.sigma_job if known else None
    _show(plan_of(resolved, resolved.study(sigma=sigma), workdir=options.workdir))
    return 0


def _read_all(paths: Sequence[Path]) -> tuple[list[Read], int]:
    """Read what can be read; say of each of the others what is wrong with it."""
    from pytest_xlatune.reading.reading import read_one  # noqa: PLC0415

    read, exit_code = [], 0
    for path in paths:
        try:
            read.append(read_one(path))
        except ConfigError as error:
            print(f"xlatune: {error}", file=sys.stderr)
            exit_code = error.exit_code
    return read, exit_code


def _folders(arguments: argparse.Namespace, options: Options) -> list[Path]:
    """Return the folders of the sweeps that are named, of all without a name."""
    from pytest_xlatune.campaign.jobs import find_ledgers  # noqa: PLC0415

    folders = find_ledgers(options.workdir)
    names = {folder.parent.name for folder in folders}
    for name in arguments.sweeps:
        if name not in names:
            raise ConfigError.unknown("sweep", name, valid=names, where=str(options.workdir))
    if not folders:
        raise ConfigError(
            f"no sweep was measured below {options.workdir}; run one, or name another --workdir"
        )
    return [
        each for each in folders if not arguments.sweeps or each.parent.name in arguments.sweeps
    ]


def _show(document: Document) -> None:
    from pytest_xlatune.report import terminal  # noqa: PLC0415

    width = shutil.get_terminal_size().columns
    print("\n".join(terminal.render(document, width=width)), end="\n\n")


def _print(arguments: argparse.Namespace) -> int:
    """Print the lines of an evidence command as they come, and what could not be read."""
    exit_code = 0
    for shown in arguments.show(arguments, _options(arguments)):
        exit_code = max(exit_code, shown.exit_code)
        if shown.text is not None:
            print(shown.text, flush=True)
        for problem in shown.problems:
            print(f"xlatune: {problem}", file=sys.stderr)
            exit_code = ConfigError.exit_code
    return exit_code
