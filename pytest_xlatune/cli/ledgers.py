"""`xlatune report`, `conclude`, `history`, `show`, `jobs`: the ledgers, without the sweep files.

Reports and verdicts are computed again. `jobs --cancel` ends the jobs that no session waits for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune import owned
from pytest_xlatune.cli import (
    add_html,
    add_json,
    add_options,
    check_page,
    complain,
    options_of,
    show,
    show_document,
    show_json,
    write_page,
)
from pytest_xlatune.ledger import LEDGER, Ledger, find_ledgers
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.errors import ConfigError, Exit, LedgerError
from pytest_xlatune.model.result import Submission
from pytest_xlatune.sweep.groups import RunSettings

if TYPE_CHECKING:
    from pytest_xlatune.report.history import PastStudy


def add_report(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_named_folders(parser, "export")
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


@owned.show_only()
def _report(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    folders = _named_folders(arguments, options)
    from pytest_xlatune.report.exports import check_exports
    from pytest_xlatune.tasks.publish import (
        NO_PAGES,
        document_of,
        has_pages,
        publish,
        read_known,
    )

    check_exports(options.export)
    problems = []
    for folder in folders:
        try:
            known = read_known(folder)
            show_document(document_of(known))
            settings = sorted(known.state.opened[-1].settings.items())
            show(f"{name} was said by {place}" for name, place in settings)
            written = publish(
                folder,
                options.reports,
                zh=options.zh,
                rewrite=options.rewrite,
                exports=options.export,
            )
        except LedgerError as error:  # those of the other ledgers are written all the same
            problems.append(str(error))
        else:
            show(f"written: {os.path.relpath(path)}" for path in written)
    if not has_pages():
        show([NO_PAGES])
    return complain(problems, status=Exit.INTERNAL)


@owned.show_only()
def _conclude(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.tasks.publish import document_of, json_of, read_known

    known = read_known(arguments.ledger)
    if arguments.json:
        show([json_of(known).removesuffix("\n")])
    else:
        show_document(document_of(known))
    return 0


def add_history(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_folder(parser)
    parser.add_argument(
        "--by-load",
        action="store_true",
        help="a table of commits for each model and node count, from all studies",
    )
    parser.set_defaults(run=_history)


def add_show(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "cell",
        metavar="CELL",
        help="its label or a part (`llama2-70b FSDP=8`, `FSDP=8`), its id, or the sweep's name",
    )
    _add_folder(parser)
    add_html(parser)
    parser.set_defaults(run=_show)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="a work directory, or a folder above several; --workdir without one",
    )
    add_json(parser)
    add_options(parser, only=("workdir", "config"))


@owned.show_only()
def _history(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.history import by_date, by_load, history, loads_of

    past, problems = _past(arguments)
    if arguments.by_load and arguments.json:
        loads = loads_of(past).items()
        show_json({name: [each.to_json() for each in rows] for name, rows in loads})
    elif arguments.by_load:
        show_document(by_load(past))
    elif arguments.json:
        show_json([each.to_json() for each in by_date(past)])
    else:
        show_document(history(past))
    return complain(problems, status=Exit.INTERNAL)


@owned.show_only()
def _show(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.report.history import by_date, course

    check_page(arguments.html)
    past, problems = _past(arguments)
    found = [each for each in past if each.is_called(arguments.cell)]
    if not found:
        complain(problems)
        valid = {name for each in past for name in (each.cell.label, each.sweep)}
        raise ConfigError.unknown("cell", arguments.cell, valid=valid, where="the ledgers")
    if arguments.json:
        show_json([each.to_json() for each in by_date(found)])
    else:
        show_document(course(found))
    if arguments.html is not None:
        write_page(course(found), arguments.html, source="the ledgers")
        show([] if arguments.json else [f"written: {arguments.html}"])
    return complain(problems, status=Exit.INTERNAL)


def _past(arguments: argparse.Namespace) -> tuple[list[PastStudy], list[str]]:
    """Return the studies below a folder, and what to say of each ledger that cannot be read.

    Raises:
        ConfigError: the folder holds no ledger.
        LedgerError: none of its ledgers can be read.
    """
    from pytest_xlatune.report.history import PastStudy
    from pytest_xlatune.tasks.publish import read_known
    from pytest_xlatune.tasks.run_record import record_of_study

    root = arguments.folder or options_of(arguments).workdir
    folders = sorted(_ledgers_below(root, _MOST_LEVELS))
    if not folders:
        raise ConfigError(f"no {LEDGER} lies below {root}; run a sweep, or name another FOLDER")
    past, problems = [], []
    for folder in _without_copies(folders):
        try:
            known = read_known(folder)
        except LedgerError as error:
            problems.append(f"not shown: {error}")
            continue
        jobs = [
            attempt.submission
            for progress in known.state.trials.values()
            for attempt in progress.attempts.values()
            if attempt.submission is not None
        ]
        past.append(
            PastStudy(
                folder=str(folder),
                sweep=known.sweep,
                kind=known.study.name.partition("-")[0],
                cells=known.cells,
                digest=known.study.cells[0].digest,
                conclusion=known.conclusion,
                jobs=len(jobs),
                node_hours=record_of_study(known.state, known.study).node_hours,
                ended_s=known.at_s,
                commits=known.commits,
            )
        )
    if not past:
        raise LedgerError("; ".join(problems))
    return past, problems


def _without_copies(folders: list[Path]) -> list[Path]:
    """Leave out the ledgers that a longer one begins with, and say so: they are its copies."""
    kept: list[Path] = []
    by_begin: dict[bytes, list[Path]] = {}
    for folder in sorted(folders, key=lambda each: -(each / LEDGER).stat().st_size):
        longer: list[Path] = []
        with contextlib.suppress(OSError):  # what cannot be read is told with its reason
            with (folder / LEDGER).open("rb") as file:
                begin = file.read(_BEGIN_BYTES)  # with the time and the session that began it
            longer = by_begin.setdefault(begin, []) if begin else []
            own = (folder / LEDGER).read_bytes() if longer else b""
            whole = (each for each in longer if (each / LEDGER).read_bytes().startswith(own))
            if of := next(whole, None):
                complain([f"{folder} is not shown: an earlier copy of {of}"])
                continue
        longer.append(folder)
        kept.append(folder)
    return sorted(kept)


_BEGIN_BYTES = 256
_MOST_LEVELS = 5  # a home, its projects, a project's work directory, its sweeps, their cells


def _ledgers_below(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the folders with a ledger; what lies below one of them is its jobs' files."""
    if (folder / LEDGER).is_file():
        yield folder
    elif levels and folder.is_dir():
        with contextlib.suppress(PermissionError):  # of another user, above several projects
            for each in folder.iterdir():
                if each.is_dir():
                    yield from _ledgers_below(each, levels - 1)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--cancel", action="store_true", help="end the jobs that no session waits for"
    )
    _add_named_folders(parser, "access")
    parser.set_defaults(run=_jobs)


def _jobs(arguments: argparse.Namespace) -> int:
    found, cancelled = 0, 0
    problems = []
    for folder in _named_folders(arguments, options_of(arguments)):
        ended: tuple[Submission, ...] = ()
        try:
            if arguments.cancel:
                from pytest_xlatune.campaign.jobs import cancel_unwaited

                ended = cancel_unwaited(folder)
                cancelled += len(ended)
            state = replay(Ledger(folder / LEDGER).refresh())
            if not state.opened:
                from pytest_xlatune.campaign.jobs import lost_runs, refusal_of

                problems += [refusal_of(folder, lost)] if (lost := lost_runs(folder)) else []
        except LedgerError as error:  # the jobs of the other cells are ended all the same
            problems.append(str(error))
            continue
        for trial_id, progress in state.trials.items():
            for attempt in progress.attempts.values():
                job, outcome = attempt.submission, attempt.outcome
                if job is not None:
                    found += 1
                    how = "in flight" if outcome is None else str(outcome.state)
                    show([f"{job.executor} {job.job_id} {trial_id} {how}"])
        show(f"ended {each.executor} {each.job_id} {each.trial_id}" for each in ended)
    if not found and not problems:
        show(["no job was submitted so far"])
    elif arguments.cancel and not cancelled:
        show(["ended no job: none runs that no session waits for"])
    return complain(problems, status=Exit.INTERNAL)


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


def _add_named_folders(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add what `_named_folders` reads, and `more` options."""
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="names; all without one")
    add_options(parser, only=("workdir", "reports", "config", *more))
