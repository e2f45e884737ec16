"""`xlatune study KIND SWEEP_FILE`: the study that a sweep file declares, without pytest.

The same campaign, live lines, reports and exit statuses as `pytest SWEEP_FILE -m KIND`: what fails
a standard test there is told here, and both share one ledger. Of the kinds of study this module
knows what the registry says, and none by its name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.cli import (
    add_options,
    complain,
    end_jobs,
    options_of,
    resolved_sweep,
    say_interrupted,
    show,
    show_document,
)
from pytest_xlatune.model.errors import ConfigError, Exit, XlatuneError, of_command
from pytest_xlatune.sweep.groups import SWITCHES, RunSettings, is_daily
from pytest_xlatune.sweep.registry import KINDS
from pytest_xlatune.sweep.resolved import ResolvedSweep

_OF_TUNING = frozenset(  # switches that act on sweeps of flags, or on pytest itself
    {"no-xlatune", "xlatune-rewrite", "xlatune-zh"}
)


def add_study(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    kinds = [name for name, kind in KINDS.items() if kind.is_declared]
    parser.add_argument("kind", metavar="KIND", choices=kinds, help=", ".join(kinds))
    parser.add_argument("sweep", type=Path, metavar="SWEEP_FILE")
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


def _study(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.prepare.compilers import check_sweep
    from pytest_xlatune.sweep.settings import check_folders
    from pytest_xlatune.tasks.mlflow_runs import check_exports
    from pytest_xlatune.tasks.notify import read_targets

    options = options_of(arguments)
    resolved = resolved_sweep(arguments.sweep, options)
    _refuse_another(resolved.sweep.kind, arguments.kind, arguments.sweep)
    if arguments.xlatune_plan:
        from pytest_xlatune.tasks.plan import plan_of

        show_document(plan_of(resolved, resolved.study(), workdir=options.workdir))
        return 0
    targets = read_targets(os.environ, options.notify_file)
    check_exports(options.export)
    check_folders((("--workdir", options.workdir), ("--reports", options.reports)))
    check_sweep(resolved)
    show(options.said.unread([resolved.sweep.name]))
    return of_command(_run(resolved, options, targets))


def _refuse_another(found: str, asked: str, path: Path) -> None:
    """Refuse a sweep that asks another question than the one that is named."""
    if found != asked:
        how = f"xlatune study {found} {path}" if KINDS[found].is_declared else f"pytest {path}"
        raise ConfigError(
            f"{path} declares a study of kind {found!r}, not {asked!r}; run it: {how}"
        )


def _run(resolved: ResolvedSweep, options: RunSettings, targets: tuple[str, ...]) -> Exit:
    """Run to the end, show and write the report; whatever ends the run, the report is written."""
    from pytest_xlatune.tasks import new_session_id
    from pytest_xlatune.tasks.answers import judged
    from pytest_xlatune.tasks.live import Feed
    from pytest_xlatune.tasks.notify import Notifier
    from pytest_xlatune.tasks.runs import Runs

    folder = options.workdir / resolved.folder
    session, notifier = new_session_id(), Notifier(targets)
    feed = Feed(folder, session_id=session)

    def tell(message: str) -> None:
        title, _, body = message.partition("\n")
        warning = notifier.send(title=title, body=body or title)
        show([f"xlatune: {warning}"] if warning else [])

    def tick() -> None:
        for landed in feed.landed():
            show([landed.line] if landed.line else [])
            for message in landed.messages:
                tell(message)

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
        end, found = error.exit, ()
        complain([str(error)], status=end)
    if not options.keep_jobs:
        end_jobs(folder)
    _report(folder, options, tell)
    for each in found:
        if each.exit is not Exit.OK:
            show([f"FAILED {each.message}"])
    if end is not Exit.OK:
        show([f"exit status {of_command(end)}: {end.meaning}"])
    return end


def _report(folder: Path, options: RunSettings, tell: Callable[[str], None]) -> None:
    """Show the report, write it, and send its summary."""
    from pytest_xlatune.report.lines import summary_message
    from pytest_xlatune.tasks.publish import add_step_summary, document_of, publish, read_known

    known = read_known(folder)
    document = document_of(known)
    show_document(document)
    show(known.stopped.splitlines())
    written = publish(folder, options.reports, exports=options.export)
    show(f"written: {os.path.relpath(path)}" for path in written)
    warning = add_step_summary(document, os.environ)
    show([f"xlatune: {warning}"] if warning else [])
    tell(
        known.stopped
        or summary_message(cell=known.cell, conclusion=known.conclusion, history=known.history)
    )
