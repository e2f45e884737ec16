"""Write the files that people read, from a ledger: reports of a study, and the tuning document.

    <sweep>/leaderboard.md     a study's document; gate.md, calibration.md, evidence.md likewise
    <sweep>/leaderboard.html   the same with plots, if jinja2 is installed (the extra `page`)
    <MODEL_TAG>-tuning.json    the measured cells of a model; each sweep adds its cell
    <MODEL_TAG>-tuning.md      the tuning document, made from the cells in that file
    <MODEL_TAG>-tuning.zh.md   the same in Chinese, on request, or if the file exists
    <MODEL_TAG>-tuning.patch   the recipes for `git apply`; absent if no cell has a recipe

All files are made from the ledger only, so they agree with the terminal and the command line, and
can be written again. Sweeps of one model may end at the same time, so a process locks the folder
while it adds its cell. The gate of a winner in another configuration is another cell, with its
ledger in `.xlatune/<sweep>-<tag>/<cell>/`.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.document import markdown
from pytest_xlatune.report.exports import export_of, exported
from pytest_xlatune.report.language import Language
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.report.measured_cell import MeasuredCell, extended, read_cells, write_cells
from pytest_xlatune.report.page import Live, html
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.tasks.cell_report import CellReport, current_cell_report
from pytest_xlatune.tasks.files import has_pages, made_folder, read_ours, write_all


def add_to_document(reports: Path, covered: MeasuredCell, *, zh: bool = False) -> tuple[Path, ...]:
    """Add a cell to the tuning document of its model; return the files that were written.

    The caller holds the lock of `reports`.

    Raises:
        LedgerError: the data of the document cannot be read.
        OSError: the files cannot be written.
    """
    stem = f"{covered.cell.model_tag}-tuning"
    english, data, chinese, patch, by_hand = (
        reports / f"{stem}{suffix}"
        for suffix in (".md", ".json", ".zh.md", ".patch", ".by-hand.md")
    )
    earlier: tuple[MeasuredCell, ...] = ()
    if data.exists():
        earlier = read_cells(read_ours(data), where=str(data))
    elif english.exists() and not by_hand.exists():
        english.rename(by_hand)  # a person wrote it: we never write it without the data
    handwritten = by_hand.name if by_hand.exists() else ""
    cells = extended(earlier, covered)
    document = tuning(cells, handwritten=handwritten)
    texts = {english: markdown(document), data: write_cells(cells)}
    if zh or chinese.exists():
        texts[chinese] = markdown(tuning(cells, Language.CHINESE, handwritten=handwritten))
    if diff := patch_of(cells).text:
        texts[patch] = diff
    else:
        patch.unlink(missing_ok=True)  # an older patch has a recipe that no longer holds
    write_all(texts)
    return tuple(texts)


@contextlib.contextmanager
def _reporting_write_errors() -> Iterator[None]:
    """Turn an error of the file system into one that says what to do.

    Raises:
        LedgerError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"reports cannot be written: {error}; the ledger is complete: mend the cause, then run "
            "`xlatune report`"
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder of reports, which has to be ours; the lock leaves no file in it."""
    with made_folder(folder) as opened:
        # NFS cannot lock a folder; of two processes that write at once, the last then wins
        with contextlib.suppress(OSError):
            fcntl.flock(opened.fd, fcntl.LOCK_EX)
        yield


def _texts(cell_report: CellReport, stem: Path) -> dict[Path, str]:
    """Return path -> text of a study's report, as text and as JSON."""
    return {
        stem.with_name(f"{stem.name}.md"): markdown(cell_report.document),
        stem.with_name(f"{stem.name}.json"): leaderboard_json(cell_report.facts),
    }


def _page(
    cell_report: CellReport, facts: MeasuredCell, stem: Path, live: Live | None
) -> dict[Path, str]:
    """Return path -> text of the page next to a report's files; {} if no page can be made."""
    if not has_pages():
        return {}
    files = [f"{stem.name}.md", f"{stem.name}.json"]
    page = html(cell_report.document, facts, files=files, live=live)
    return {stem.with_name(f"{stem.name}.html"): page}


def write_so_far(
    folder: Path, reports: Path, live: Live, cell_report: CellReport | None = None
) -> None:
    """Write the report of a running study, but no tuning document and no export.

    `cell_report` is what was read of the ledger last; it is read again if the ledger has grown.

    Raises:
        LedgerError: the ledger cannot be read, or a file cannot be written.
    """
    with _reporting_write_errors(), locked(reports):
        cell_report = current_cell_report(folder, cell_report)
        stem = reports / cell_report.sweep / cell_report.kind.file_name
        page = _page(cell_report, cell_report.facts, stem, live)
        write_all(_texts(cell_report, stem) | page)


def publish(
    folder: Path,
    reports: Path,
    *,
    zh: bool = False,
    exports: Sequence[str] = (),
    cell_report: CellReport | None = None,
) -> tuple[Path, ...]:
    """Write the reports of the cell whose ledger is in a folder; return the files.

    They are `<sweep>/leaderboard.md`, `.json` and, if pages can be written, `.html`, and the cell's
    part of `<MODEL_TAG>-tuning.md`. Gates, calibrations and evidence runs have files of other
    names, and no tuning document.

    Args:
        folder: the folder with the ledger.
        reports: the folder of all reports.
        zh: write the tuning document in Chinese too.
        exports: formats of other programs.
        cell_report: what was read of the ledger last; it is read again if the ledger has grown.

    Raises:
        LedgerError: the folder cannot be written, or the program of a format refuses the figures;
            the ledger itself is complete.
    """
    with _reporting_write_errors(), locked(reports):
        cell_report = current_cell_report(folder, cell_report)
        stem = reports / cell_report.sweep / cell_report.kind.file_name
        facts, conclusion = cell_report.facts, cell_report.conclusion
        texts = _texts(cell_report, stem)
        if conclusion.complete:
            files = conclusion.facts.files
            texts |= {folder.parents[1] / name: text for name, text in files.items()}
        write_all(texts)
        written = tuple(texts)
        if cell_report.study.traits.is_deployed:
            facts = cell_report.facts_to_deploy
            written += add_to_document(reports, facts, zh=zh)
        # the page comes last: what is wrong with it costs no other file
        live = None if conclusion.complete else Live(at_s=cell_report.at_s)
        page = _page(cell_report, facts, stem, live)
        write_all(page)
        written += tuple(page)
    if not exports:
        return written
    # other programs and servers get the text of the file, in which secrets are hidden
    report = exported(
        hide_kept(texts[stem.with_name(f"{stem.name}.json")]),
        sweep=cell_report.sweep,
        study=cell_report.study.name.partition("-")[0],
    )
    # the key is the same in all sessions of this ledger; a new ledger for the cell has another
    ledger_id = f"{cell_report.cell.digest} {cell_report.state.opened[0].session}"
    key = f"{cell_report.sweep} {cell_report.study.name} {ledger_id}"
    problems = []
    for export in map(export_of, exports):
        # The ledger's folder is locked, and not the reports: a server may be slow, and sessions of
        # other ledgers must not wait for it. Without the lock, two sessions of this ledger could
        # both find no run of the study on the server, and both make one.
        try:
            with _reporting_write_errors(), locked(folder):
                exported_texts = {
                    stem.with_name(stem.name + suffix): text
                    for suffix, text in export.texts(report, key=key).items()
                }
                write_all(exported_texts)
        except LedgerError as error:  # go on with the other formats
            problems.append(str(error))
        else:
            written += tuple(exported_texts)
    if problems:
        raise LedgerError("; ".join(problems))
    return written
