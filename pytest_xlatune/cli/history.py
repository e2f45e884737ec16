"""`xlatune history`: show all that was measured, or one cell in all its sweeps and gates."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.report.history import by_date, history
from pytest_xlatune.tasks.measured import studies_below


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
        problems=studies.problems,
        problem_status=Exit.INTERNAL,
    )
