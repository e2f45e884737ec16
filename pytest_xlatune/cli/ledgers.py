"""`xlatune report`, `conclude` and `jobs`: what the ledgers hold, without the sweep files.

Reports and verdicts are computed again. `jobs --cancel` ends the jobs that no session waits for.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_xlatune.cli import add_json, add_options, options_of, show, show_document
from pytest_xlatune.ledger import LEDGER, Ledger, find_ledgers
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.result import Submission
from pytest_xlatune.sweep.groups import RunSettings


def add_report(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_named_folders(parser)
    parser.add_argument(
        "--zh",
        dest="xlatune_zh",
        action="store_true",
        help="the tuning document in Chinese too",
    )
    parser.add_argument(
        "--rewrite",
        dest="xlatune_rewrite",
        action="store_true",
        help="let the patch take out comments that a line it changes makes untrue",
    )
    parser.set_defaults(run=_report)


def add_conclude(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("ledger", type=Path, metavar="LEDGER", help="the file, or its folder")
    add_json(parser)
    parser.set_defaults(run=_conclude)


def _report(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    folders = _named_folders(arguments, options)
    from pytest_xlatune.tasks.publish import (
        NO_PAGES,
        document_of,
        has_pages,
        publish,
        read_known,
    )

    for folder in folders:
        known = read_known(folder)
        show_document(document_of(known))
        settings = sorted(known.state.opened[-1].settings.items())
        show(f"{name} was said by {place}" for name, place in settings)
        written = publish(folder, options.reports, zh=options.zh, rewrite=options.rewrite)
        show(f"written: {os.path.relpath(path)}" for path in written)
    if not has_pages():
        show([NO_PAGES])
    return 0


def _conclude(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.tasks.publish import document_of, json_of, read_known

    known = read_known(arguments.ledger)
    if arguments.json:
        show([json_of(known).removesuffix("\n")])
    else:
        show_document(document_of(known))
    return 0


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--cancel", action="store_true", help="end the jobs that no session waits for"
    )
    _add_named_folders(parser)
    parser.set_defaults(run=_jobs)


def _jobs(arguments: argparse.Namespace) -> int:
    for folder in _named_folders(arguments, options_of(arguments)):
        ended: tuple[Submission, ...] = ()
        if arguments.cancel:
            from pytest_xlatune.campaign.jobs import cancel_unwaited

            ended = cancel_unwaited(folder)
        state = replay(Ledger(folder / LEDGER).refresh())
        for trial_id, progress in state.trials.items():
            for attempt in progress.attempts.values():
                job, outcome = attempt.submission, attempt.outcome
                if job is not None:
                    how = "in flight" if outcome is None else str(outcome.state)
                    show([f"{job.executor} {job.job_id} {trial_id} {how}"])
        show(f"ended {each.executor} {each.job_id} {each.trial_id}" for each in ended)
    return 0


def _named_folders(arguments: argparse.Namespace, options: RunSettings) -> list[Path]:
    """Return the folders of the sweeps that are named, of all without a name.

    Raises:
        ConfigError: there is none of a name, or none at all.
    """
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


def _add_named_folders(parser: argparse.ArgumentParser) -> None:
    """Add what `_named_folders` reads."""
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="names; all without one")
    add_options(parser, only=("workdir", "reports", "config"))
