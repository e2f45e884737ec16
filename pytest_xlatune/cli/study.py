"""`xlatune study KIND SWEEP_FILE`: the study that a sweep file declares, without pytest.

The command has the campaign, live lines, reports and exit statuses of `pytest SWEEP_FILE -m KIND`,
and shares its ledger. It prints what would fail a standard test there. This module knows no kind of
study by name: it asks the registry.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from pytest_xlatune.cli.parsers import add_options, options_of
from pytest_xlatune.cli.running import end_jobs, say_interrupted, ticks
from pytest_xlatune.cli.show import Output, complain, show
from pytest_xlatune.cli.sweep_file import resolved_sweep
from pytest_xlatune.model.errors import ConfigError, Exit, XlatuneError, of_command
from pytest_xlatune.prepare.compilers import check_sweep
from pytest_xlatune.report.document import Document, brief, lines
from pytest_xlatune.report.exports import check_exports
from pytest_xlatune.report.lines import summary_message
from pytest_xlatune.sweep.groups import SWITCHES, RunSettings, is_daily
from pytest_xlatune.sweep.registry import KINDS, kind_names
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.sweep.settings import check_folders
from pytest_xlatune.tasks import new_session_id
from pytest_xlatune.tasks.answers import judged
from pytest_xlatune.tasks.notify import Notifier, read_targets
from pytest_xlatune.tasks.plan import plan_of
from pytest_xlatune.tasks.publish import add_step_summary, document_of, publish, read_known
from pytest_xlatune.tasks.runs import Runs

_OF_TUNING = frozenset(  # switches that act on sweeps of flags, or on pytest itself
    {"no-xlatune", "xlatune-rewrite", "xlatune-zh"}
)


def add_study(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    # a kind of another distribution exists to be declared, so it is listed without being loaded
    others = {name for name, kind in KINDS.items() if not kind.is_declared}
    kinds = [each for each in kind_names() if each not in others]
    parser.add_argument("kind", metavar="KIND", choices=kinds, help=", ".join(kinds))
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP_FILE", help="the test file that declares SWEEP"
    )
    for name, (_, text) in SWITCHES.items():
        if name not in _OF_TUNING:
            parser.add_argument(
                f"--{name.removeprefix('xlatune-')}",
                dest=name.replace("-", "_"),
                action="store_true",
                help=text if is_daily(f"--{name}") else argparse.SUPPRESS,
            )
    add_options(parser)
    parser.set_defaults(run=_study)


def _study(arguments: argparse.Namespace) -> Output:
    options = options_of(arguments)
    resolved = resolved_sweep(arguments.sweep, options)
    _refuse_another(resolved.sweep.kind, arguments.kind, arguments.sweep)
    if arguments.xlatune_plan:
        return Output(documents=(plan_of(resolved, resolved.study(), workdir=options.workdir),))
    targets = read_targets(os.environ, options.notify_file)
    exports, missing = check_exports(options.export)
    complain(missing)
    options = msgspec.structs.replace(options, export=exports)
    check_folders((("--workdir", options.workdir), ("--reports", options.reports)))
    check_sweep(resolved)
    show(options.said.unread([resolved.sweep.name]))
    return _run(resolved, options, targets)


def _refuse_another(found: str, asked: str, path: Path) -> None:
    """Refuse a sweep that declares another kind of study than the command names."""
    if found != asked:
        how = f"xlatune study {found} {path}" if KINDS[found].is_declared else f"pytest {path}"
        raise ConfigError(
            f"{path} declares a study of kind {found!r}, not {asked!r}; run it: {how}"
        )


def _run(resolved: ResolvedSweep, options: RunSettings, targets: tuple[str, ...]) -> Output:
    """Run the study, and write the report whatever ends the run."""
    folder = options.workdir / resolved.folder
    session, notifier = new_session_id(), Notifier(targets)

    def tell(message: str) -> None:
        warning = notifier.send_text(message)
        show([f"xlatune: {warning}"] if warning else [])

    tick = ticks(folder, session, options.reports, tell)
    problems: tuple[str, ...] = ()
    is_open, end = False, Exit.OK
    try:
        with Runs(options, session=session) as runs:
            campaign = runs.open(resolved, resolved.study())
            is_open = True
            found, end = judged(campaign, tick, negative=options.negative)
            tick()
    except KeyboardInterrupt:
        end, found = Exit.INTERRUPTED, ()
        say_interrupted(keep=options.keep_jobs)
    except XlatuneError as error:
        if not is_open:
            raise
        end, found, problems = error.exit, (), (str(error),)
    if not options.keep_jobs:
        end_jobs(folder)
    told = [f"FAILED {each.message}" for each in found if each.exit is not Exit.OK]
    if end is not Exit.OK:
        told.append(f"exit status {of_command(end)}: {end.meaning}")
    return Output(
        documents=_documents(folder, options, tell, ending=told),
        problems=problems,
        problem_status=end,
        status=of_command(end),
    )


def _documents(
    folder: Path, options: RunSettings, tell: Callable[[str], None], *, ending: Sequence[str]
) -> Iterator[Document]:
    """Yield the report, write it, send its summary, and say how the run ended."""
    known = read_known(folder)
    document = document_of(known)
    yield document
    yield brief("Stopped", lines(*known.stopped.splitlines()))
    written = publish(folder, options.reports, exports=options.export, known=known)
    told = [f"written: {os.path.relpath(path)}" for path in written]
    warning = add_step_summary(document, os.environ)
    told += [f"xlatune: {warning}"] if warning else []
    yield brief("Files", lines(*told))
    tell(
        known.stopped
        or summary_message(cell=known.cell, conclusion=known.conclusion, history=known.history)
    )
    yield brief("End", lines(*ending))
