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

from pytest_xlatune.errors import ConfigError, XlatuneError
from pytest_xlatune.options import OPTIONS, Options, resolve_options

if TYPE_CHECKING:
    from pytest_xlatune.inspecting import Shown
    from pytest_xlatune.reading import Read
    from pytest_xlatune.report.document import Document

Command = Callable[[argparse.Namespace], int]
AGAINST = "--against"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["drill"]:  # argparse drops the `--` between the variants
        given = [AGAINST if each == "--" else each for each in given]
    arguments = parser.parse_args(given)
    command: Command = arguments.command
    try:
        return command(arguments)
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
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    steps = commands.add_parser("steps", help="steps and score of logs that anybody ran")
    steps.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    steps.add_argument("--json", action="store_true", help="one JSON document")
    steps.set_defaults(command=_steps)

    triage = commands.add_parser("triage", help="what went wrong in a log, root cause first")
    triage.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    triage.set_defaults(command=_triage)

    _add_evidence(commands)

    report = commands.add_parser("report", help="show and write the reports of measured cells")
    _add_places(report)
    report.set_defaults(command=_report)

    conclude = commands.add_parser("conclude", help="every verdict of a ledger, computed again")
    conclude.add_argument("ledger", type=Path, metavar="LEDGER", help="the file, or its folder")
    conclude.add_argument("--json", action="store_true", help="as the sweep's own report has it")
    conclude.set_defaults(command=_conclude)

    compare = commands.add_parser("compare", help="two directories of logs, one job per log")
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

    calibrate = commands.add_parser("calibrate", help="how noisy a sweep's cell is; runs trials")
    calibrate.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    calibrate.add_argument("--jobs", type=int, default=12, metavar="N", help="how many (12)")
    _add_options(calibrate)
    calibrate.set_defaults(command=_calibrate)

    jobs = commands.add_parser("jobs", help="list the jobs in the ledgers, or end them")
    jobs.add_argument("--cancel", action="store_true", help="end what runs and nobody waits for")
    _add_places(jobs)
    jobs.set_defaults(command=_jobs)

    plan = commands.add_parser("plan", help="what a sweep would run; nothing is submitted")
    plan.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    _add_options(plan)
    plan.set_defaults(command=_plan)
    return parser


def _add_evidence(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that read programs and traces."""
    hlo = commands.add_parser("hlo", help="what the compiler made of a program, or of two")
    hlo.add_argument("dump", type=Path, metavar="DUMP", help="a folder of --xla_dump_to")
    hlo.add_argument("other", nargs="?", type=Path, metavar="DUMP2", help="shows what changed")
    hlo.add_argument("--json", action="store_true", help="one JSON document")
    hlo.set_defaults(command=_hlo)

    drill = commands.add_parser("drill", help="where the time of a step went, from its traces")
    drill.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders or captures")
    drill.add_argument(
        AGAINST, nargs="+", type=Path, metavar="PATH", help="a second variant; `--` says the same"
    )
    for name in ("nodes", "gpus-per-node", "steps"):
        drill.add_argument(f"--{name}", type=_count, metavar="N", help="refused where it differs")
    drill.add_argument(
        "--step-time",
        action="append",
        type=float,
        default=[],
        metavar="SECONDS",
        help="of a run without profiler; once per variant",
    )
    drill.add_argument("--families", type=Path, metavar="FILE", help="JSON: name, kind, pattern")
    drill.add_argument("--json", action="store_true", help="one JSON document")
    drill.set_defaults(command=_drill)

    screen = commands.add_parser("screen", help="compile a sweep's profiles; nothing is measured")
    screen.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
    for name, metavar, what in (
        ("program", "MODULE:FUNCTION", "to compile instead of the sweep's own trainer"),
        ("topology", "PxHxD", "partitions x hosts x devices for it (1x1x1)"),
        ("python", "PATH", "the interpreter whose JAX compiles it"),
    ):
        screen.add_argument(f"--{name}", metavar=metavar, help=what)
    screen.add_argument("--target", type=Path, metavar="FILE", help="a gpu_target_config.pbtxt")
    screen.add_argument("--memory-limit", type=float, metavar="GIB", help="of a device")
    screen.add_argument("--keep", type=Path, metavar="FOLDER", help="for logs and dumps")
    screen.add_argument("--json", action="store_true", help="one JSON document")
    _add_options(screen)
    screen.set_defaults(command=_screen)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="names; all without one")
    for option in OPTIONS:
        if option.name in ("workdir", "reports"):
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
    from pytest_xlatune.reading import SCHEMA  # noqa: PLC0415
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
        reached = f"{report.lines} lines, phase {report.phase}, last step {report.last_step}"
        _show(
            triage_of_log(
                str(each.path), status=each.status, findings=report.findings, reached=reached
            )
        )
    return exit_code


def _hlo(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.inspecting import show_hlo  # noqa: PLC0415

    dumps = [arguments.dump, *filter(None, [arguments.other])]
    return _print(show_hlo(dumps, as_json=arguments.json))


def _drill(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.inspecting import show_drill  # noqa: PLC0415

    return _print(
        show_drill(
            [arguments.paths, *filter(None, [arguments.against])],
            nodes=arguments.nodes,
            gpus_per_node=arguments.gpus_per_node,
            steps=arguments.steps,
            step_times_s=arguments.step_time,
            families=arguments.families,
            as_json=arguments.json,
        )
    )


def _report(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.publish import document_of, publish, read_known  # noqa: PLC0415

    options = _options(arguments)
    for folder in _folders(arguments, options):
        known = read_known(folder)
        _show(document_of(known))
        for path in publish(known, options.reports):
            print(f"written: {os.path.relpath(path)}")
    return 0


def _conclude(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.publish import document_of, json_of, read_known  # noqa: PLC0415

    known = read_known(arguments.ledger)
    if arguments.json:
        print(json_of(known), end="")
    else:
        _show(document_of(known))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.compared import compared  # noqa: PLC0415
    from pytest_xlatune.sides import compare_sides  # noqa: PLC0415

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
    from pytest_xlatune.calibrating import calibrate, document_of, open_calibration  # noqa: PLC0415
    from pytest_xlatune.earlier import CALIBRATION  # noqa: PLC0415
    from pytest_xlatune.feed import Feed  # noqa: PLC0415
    from pytest_xlatune.jobs import cancel_unwaited  # noqa: PLC0415
    from pytest_xlatune.sweep import inputs_of, load_sweep  # noqa: PLC0415

    options = _options(arguments)
    resolved = load_sweep(arguments.sweep).resolve(inputs_of(options, Path.cwd()))
    study = resolved.calibration(arguments.jobs)
    campaign = open_calibration(resolved, study, workdir=options.workdir)
    folder = campaign.setup.folder
    feed = Feed(folder, session_id=campaign.setup.session)

    def tick() -> None:
        for landed in feed.landed():
            print(landed.line, flush=True)

    try:
        found = calibrate(campaign, tick)
    finally:
        cancel_unwaited(folder)
    _show(document_of(campaign, found))
    print(f"written: {os.path.relpath(folder / CALIBRATION)}")
    return 0


def _jobs(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.jobs import LEDGER, cancel_unwaited, list_jobs  # noqa: PLC0415
    from pytest_xlatune.ledger import Ledger, replay  # noqa: PLC0415

    for folder in _folders(arguments, _options(arguments)):
        ended = cancel_unwaited(folder) if arguments.cancel else ()
        for job in list_jobs(replay(Ledger(folder / LEDGER).refresh())):
            state = "in flight" if job.outcome is None else str(job.outcome.state)
            print(f"{job.submission.executor} {job.submission.job_id} {job.trial.id} {state}")
        for submission in ended:
            print(f"ended {submission.executor} {submission.job_id} {submission.trial_id}")
    return 0


def _screen(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.inspecting import show_screening  # noqa: PLC0415
    from pytest_xlatune.sweep import inputs_of, load_sweep  # noqa: PLC0415

    resolved = load_sweep(arguments.sweep).resolve(inputs_of(_options(arguments), Path.cwd()))
    for line in show_screening(
        resolved,
        program=arguments.program,
        target=arguments.target,
        topology=arguments.topology or "1x1x1",
        python=arguments.python or sys.executable,
        memory_limit_gib=arguments.memory_limit,
        keep=arguments.keep,
        as_json=arguments.json,
    ):
        print(line, flush=True)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.earlier import read_calibration  # noqa: PLC0415
    from pytest_xlatune.plan import plan_of  # noqa: PLC0415
    from pytest_xlatune.sweep import inputs_of, load_sweep  # noqa: PLC0415

    options = _options(arguments)
    resolved = load_sweep(arguments.sweep).resolve(inputs_of(options, Path.cwd()))
    known = read_calibration(options.workdir / resolved.folder, resolved.cell)
    sigma = known.noise.sigma_job if known else None
    _show(plan_of(resolved, resolved.study(sigma=sigma)))
    return 0


def _read_all(paths: Sequence[Path]) -> tuple[list[Read], int]:
    """Read what can be read; say of each of the others what is wrong with it."""
    from pytest_xlatune.reading import read_one  # noqa: PLC0415

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
    from pytest_xlatune.jobs import find_ledgers  # noqa: PLC0415

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


def _print(shown: Shown) -> int:
    print(shown.text)
    for problem in shown.problems:
        print(f"xlatune: {problem}", file=sys.stderr)
    return ConfigError.exit_code if shown.problems else 0


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count; give 1 or more")
    return count
