"""`xlatune history`: show all that was measured, or one cell in all its sweeps and gates."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output, write_file
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.history import by_date, history
from pytest_xlatune.report.page import document_page, html
from pytest_xlatune.tasks.measured import studies_below


def add_history(parser: argparse.ArgumentParser) -> None:
    """Set the function that `show.present` calls for `--html`."""
    parser.set_defaults(write_page=write_page)


def write_page(document: Document, path: Path, source: str) -> None:
    """Write a document as a page; `source` says where its figures come from.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        write_file(path, html(document_page(document, source=source)))
    except OSError as error:
        raise ConfigError(f"{path}: the page cannot be written: {error.strerror}") from None


def run_history(arguments: argparse.Namespace) -> Output:
    """Return all studies below a folder, or those of one cell."""
    folder, cell = arguments.folder, arguments.cell
    is_name = folder is not None and folder.name == str(folder) and not folder.exists()
    if folder is not None and is_name and cell is None:
        cell, folder = folder.name, None  # the name of a sweep, as `report` and `watch` take it
    studies = studies_below(folder or options_of(arguments).workdir, cell)
    past = studies.past
    if cell is not None and not past:
        unknown = ConfigError.unknown("cell", cell, valid=studies.names, where="the ledgers")
        return Output(problems=(*studies.problems, str(unknown)))
    return Output(
        documents=(history(past, is_one_cell=cell is not None),),
        json=lambda: [study.to_json() for study in by_date(past)],
        source="the ledgers",
        problems=studies.problems,
        problem_status=Exit.INTERNAL,
    )
