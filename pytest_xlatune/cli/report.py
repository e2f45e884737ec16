"""`xlatune report`: compute the reports of ledgers again, without the sweep files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.model.errors import Exit, LedgerError
from pytest_xlatune.model.record import Json, read_json
from pytest_xlatune.report.document import Document, brief, lines
from pytest_xlatune.report.exports import check_exports
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.files import NO_PAGES, has_pages
from pytest_xlatune.tasks.measured import folders_of
from pytest_xlatune.tasks.reports import publish


def run_report(arguments: argparse.Namespace) -> Output:
    """Return the reports of ledgers."""
    options = options_of(arguments)
    paths = [path for path in map(Path, arguments.sweeps) if _is_ledger(path)]
    names = [sweep for sweep in arguments.sweeps if Path(sweep) not in paths]
    folders = [*paths, *(folders_of(options.workdir, names) if names or not paths else ())]
    problems: list[str] = []
    if not arguments.json:
        documents = documents_of(folders, options, problems, writes=not arguments.no_files)
        return Output(documents=documents, problems=problems, problem_status=Exit.INTERNAL)
    values: list[Json] = []
    for folder in folders:
        try:
            values.append(read_json(leaderboard_json(read_cell_report(folder).facts)))
        except LedgerError as error:  # go on: the other ledgers have reports
            problems.append(str(error))
    return Output(
        json=(lambda: values[0] if len(folders) == 1 else values) if values else None,
        problems=problems,
        problem_status=Exit.INTERNAL,
    )


def _is_ledger(path: Path) -> bool:
    """Return whether the user means the path of a ledger, not the name of a sweep.

    The path may be missing: then a message names it.
    """
    is_file = path.is_file() and path.suffix != ".py"  # a .py file is a sweep file
    return "/" in str(path) or is_file or (path / LEDGER).is_file()


def documents_of(
    folders: Sequence[Path], options: RunSettings, problems: list[str], *, writes: bool
) -> Iterator[Document]:
    """Yield the report of each ledger, and the names of its files once they are written."""
    check_exports(options.export)
    for folder in folders:
        try:
            cell_report = read_cell_report(folder)
            yield cell_report.document
            if writes:
                written = publish(
                    folder,
                    options.reports,
                    zh=options.zh,
                    exports=options.export,
                    cell_report=cell_report,
                )
                texts = [f"written: {os.path.relpath(path)}" for path in written]
                yield brief("Files", lines(*texts))
        except LedgerError as error:
            problems.append(str(error))
    if writes and not has_pages():
        yield brief("Pages", lines(NO_PAGES))
