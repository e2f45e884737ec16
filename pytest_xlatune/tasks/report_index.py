"""The index of a reports folder: one page that leads to every report and tuning document in it.

Made from the files that lie there, whichever sessions and users wrote them; one that cannot be read
is named with its reason. It must not know a ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.result import Conclusion, reads_record
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.covered import measured_cells
from pytest_xlatune.report.document import literal, plain
from pytest_xlatune.report.history import answer_of
from pytest_xlatune.report.page import Link, Links, Page, html, index_page
from pytest_xlatune.sweep.registry import KINDS, kind_of
from pytest_xlatune.tasks.files import INDEX, write_all

_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)
_TUNING = "-tuning.json"
_FORMS = (".html", ".md", ".zh.md", ".json", ".patch")  # a reader wants the first that is there


def report_index(reports: Path) -> Page:
    """Return the page of a reports folder, the newest report first."""
    studies = sorted(_studies(reports), key=lambda each: each[0], reverse=True)
    return index_page(
        "Reports",
        [
            (
                "Studies",
                Links(links=tuple(link for _, link in studies), none="No report lies here."),
            ),
            (
                "Tuning documents",
                Links(links=tuple(_documents(reports)), none="No cell has one yet."),
            ),
        ],
        source="the reports of this folder",
    )


def write_index(reports: Path) -> Path:
    """Write the index; return its file. The caller holds the folder alone.

    Raises:
        OSError: it cannot be written.
    """
    path = reports / INDEX
    write_all({path: html(report_index(reports))})
    return path


def _studies(reports: Path) -> Iterator[tuple[str, Link]]:
    """Yield when each study was written, and its line."""
    for path in sorted(reports.glob("*/*.json")):
        # gate.mlflow.json beside gate.json is of another program
        if "." in path.stem or not path.with_suffix(".md").exists():
            continue
        text = f"{path.parent.name}: {path.stem}"
        try:
            data = json.loads(secure_files.read_shown(path))
            # what reads a study's record is loaded with it, and an index may be made by itself
            kind = str((data["conclusion"].get("record") or {}).get("kind"))
            if not reads_record(kind) and kind in KINDS:
                _ = kind_of(kind).cls
            cell, found = Cell.from_json(data["cell"]), Conclusion.from_json(data["conclusion"])
            when = str(data["written"])
        except (*_UNREADABLE, LedgerError) as error:
            yield "", _link(reports, path, text, f"cannot be read: {plain(repr(error))[:200]}")
            continue
        state = "complete" if found.complete else "preliminary"
        said = f"{plain(cell.label)}, {when[:16].replace('T', ' ')} UTC, {state}: "
        yield when, _link(reports, path, text, said + answer_of(found))


def _documents(reports: Path) -> Iterator[Link]:
    for path in sorted(reports.glob(f"*{_TUNING}")):
        try:
            cells = measured_cells(secure_files.read_shown(path), where=path.name)
            labels = dict.fromkeys(literal(cell.label) for cell in cells)
            said = f"{counted(len(cells), 'cell')}: {', '.join(labels)}"
        except (OSError, ValueError, TypeError, KeyError, LedgerError) as error:
            said = f"cannot be read: {plain(repr(error))[:200]}"
        yield _link(reports, path, path.name.removesuffix(_TUNING), said)


def _link(reports: Path, path: Path, text: str, said: str) -> Link:
    """Return a line that leads to the page, with the other forms of the report behind it."""
    found = [path.with_suffix(each) for each in _FORMS if path.with_suffix(each).exists()]
    names = [str(each.relative_to(reports)) for each in found]
    others = tuple((name.removeprefix(names[0].partition(".")[0])[1:], name) for name in names[1:])
    return Link(text=text, href=names[0], said=said, others=others)
