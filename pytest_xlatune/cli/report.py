"""`xlatune report`: the reports of ledgers, computed again without the sweep files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune import owned
from pytest_xlatune.cli.parsers import add_json, add_options, options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import Exit, LedgerError
from pytest_xlatune.model.record import read_json
from pytest_xlatune.report.document import Document, brief, lines
from pytest_xlatune.tasks.measured import folders_of

if TYPE_CHECKING:
    from pytest_xlatune.tasks.publish import Known


def add_report(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "sweeps",
        nargs="*",
        metavar="SWEEP",
        help="names of sweeps, or ledgers by their paths; all of the work directory without one",
    )
    parser.add_argument("--no-files", action="store_true", help="show them, and write no file")
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
    add_json(parser, "one JSON document of a ledger, a list of several; no file is written")
    add_options(parser, only=("workdir", "reports", "config", "export"))
    parser.set_defaults(run=_report)


@owned.show_only()
def _report(arguments: argparse.Namespace) -> Output:
    options = options_of(arguments)
    paths = [Path(each) for each in arguments.sweeps if "/" in each]
    names = [each for each in arguments.sweeps if "/" not in each]
    folders = [*paths, *(folders_of(options.workdir, names) if names or not paths else ())]
    from pytest_xlatune.tasks.files import NO_PAGES, has_pages
    from pytest_xlatune.tasks.mlflow_runs import check_exports
    from pytest_xlatune.tasks.publish import document_of, json_of, publish, read_known

    check_exports(options.export)
    writes = not (arguments.no_files or arguments.json)
    found: list[Known] = []
    told: list[Document] = []
    problems = []
    for folder in folders:
        try:
            known = read_known(folder)
            found.append(known)
            if arguments.json:
                continue
            told.append(document_of(known))
            if writes:
                written = publish(
                    folder,
                    options.reports,
                    zh=options.zh,
                    rewrite=options.rewrite,
                    exports=options.export,
                )
                told.append(brief("Files", lines(*_said(known), *map(_written, written))))
        except LedgerError as error:  # those of the other ledgers are written all the same
            problems.append(str(error))
    if writes and not has_pages():
        told.append(brief("Pages", lines(NO_PAGES)))
    values = [read_json(json_of(each)) for each in found] if arguments.json else []
    return Output(
        documents=tuple(told),
        json=(lambda: values[0] if len(folders) == 1 else values) if values else None,
        problems=tuple(problems),
        problem_status=Exit.INTERNAL,
    )


def _said(known: Known) -> list[str]:
    settings = sorted(known.state.opened[-1].settings.items())
    return [f"{name} was said by {place}" for name, place in settings]


def _written(path: Path) -> str:
    return f"written: {os.path.relpath(path)}"
