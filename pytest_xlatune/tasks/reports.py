"""Write the files that people read, from a ledger: reports of a study, and the tuning document.

    <sweep>/leaderboard.md     a study's document; gate.md, calibration.md, evidence.md likewise
    <sweep>/leaderboard.html   the same with plots, where jinja2 is installed (the extra `page`)
    <MODEL_TAG>-tuning.json    the measured cells; the next sweep adds its own
    <MODEL_TAG>-tuning.md      written from them
    <MODEL_TAG>-tuning.zh.md   the same in Chinese, on request, or where the file exists
    <MODEL_TAG>-tuning.patch   the recipes for `git apply`; absent without any

Everything is made only from the ledger, so the terminal, reports and the command line agree, and
all files can be written again. Sweeps of one model may end at the same time, so a process locks the
folder while it adds its cell. The gate of a winner in another configuration is a cell with a ledger
of its own, `.xlatune/<sweep>-<tag>/<cell>/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.report.deployment import patch_of, recommended_patch
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.exports import export_of, exported
from pytest_xlatune.report.language import Language
from pytest_xlatune.report.leaderboard import leaderboard_json
from pytest_xlatune.report.measured_cell import MeasuredCell, extended, read_cells, write_cells
from pytest_xlatune.report.page import Live, html, page_of
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.launcher_files import with_recipes
from pytest_xlatune.tasks.cell_report import CellReport, known_now
from pytest_xlatune.tasks.files import has_pages, made_folder, read_ours, write_all


def add_to_document(reports: Path, covered: MeasuredCell, *, zh: bool = False) -> tuple[Path, ...]:
    """Add a cell to the tuning document of its model; return the files that were written.

    The caller holds the lock of `reports`.

    Raises:
        LedgerError: the data of the document cannot be read.
        OSError: the files cannot be written.
    """
    stem = reports / f"{covered.cell.model_tag}-tuning"
    english, data, chinese, patch, by_hand = (
        stem.with_name(f"{stem.name}{suffix}")
        for suffix in (".md", ".json", ".zh.md", ".patch", ".by-hand.md")
    )
    kept: tuple[MeasuredCell, ...] = ()
    if data.exists():
        kept = read_cells(read_ours(data), where=str(data))
    elif english.exists() and not by_hand.exists():
        english.rename(by_hand)  # a person wrote it, since our data is missing
    handwritten = by_hand.name if by_hand.exists() else ""
    cells = extended(kept, covered)
    document = tuning(cells, handwritten=handwritten)
    texts = {english: markdown(document), data: write_cells(cells)}
    if zh or chinese.exists():
        texts[chinese] = markdown(tuning(cells, Language.CHINESE, handwritten=handwritten))
    diff = patch_of(cells).text
    if diff:
        texts[patch] = diff
    else:
        patch.unlink(missing_ok=True)  # the recipe of an earlier patch may be gone
    write_all(texts)
    return tuple(texts)


@contextlib.contextmanager
def writing() -> Iterator[None]:
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
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder of reports, which has to be ours; the lock leaves no file in it."""
    with made_folder(folder) as held:
        # NFS cannot lock a folder; the last of two writers at the same moment then wins
        with contextlib.suppress(OSError):
            fcntl.flock(held.fd, fcntl.LOCK_EX)
        yield


def _texts(known: CellReport, document: Document, stem: Path) -> dict[Path, str]:
    """Return path -> text of a study's report, as text and as JSON."""
    return {
        stem.with_name(f"{stem.name}.md"): markdown(document),
        stem.with_name(f"{stem.name}.json"): leaderboard_json(known.facts),
    }


def write_so_far(folder: Path, reports: Path, live: Live, known: CellReport | None = None) -> None:
    """Write the report of a running study: its own files, but no tuning document and no export.

    `known` is the state that was read last.

    Raises:
        LedgerError: the ledger cannot be read, or a file cannot be written.
    """
    with writing(), alone(reports):
        known = known_now(folder, known)
        live = dataclasses.replace(live, event_s=known.at_s)
        stem, document = reports / known.sweep / known.kind.file_name, known.document
        texts = _texts(known, document, stem)
        write_all(texts | _page(known.facts, document, stem, tuple(texts), live))


def _page(
    facts: MeasuredCell,
    document: Document,
    stem: Path,
    files: Sequence[Path],
    live: Live | None,
) -> dict[Path, str]:
    """Return path -> text of the page next to a report's files; {} if no page can be made."""
    if not has_pages():
        return {}
    page = page_of(document, facts, files=[path.name for path in files], live=live)
    return {stem.with_name(f"{stem.name}.html"): html(page)}


def publish(
    folder: Path,
    reports: Path,
    *,
    zh: bool = False,
    exports: Sequence[str] = (),
    known: CellReport | None = None,
) -> tuple[Path, ...]:
    """Write the reports of the cell whose ledger is in a folder; return the files.

    They are `<sweep>/leaderboard.md`, `.json` and, if pages can be written, `.html`, and the cell's
    part of `<MODEL_TAG>-tuning.md`, with `zh` also in Chinese. For a cell that was read
    from a launcher's file, a copy of that file with the recipe is written. Gates, calibrations and
    evidence runs write their own files, and no tuning document; a study that recommends one setting
    writes its patch. `exports` are formats of other programs. Sessions of one model may end at the
    same time, so they write one by one, from the current ledger. `known` is the state that was read
    last; it is read again if the ledger has grown.

    Raises:
        LedgerError: the folder cannot be written, or the program of a format refuses the figures;
            the ledger itself is complete.
    """
    with writing(), alone(reports):
        known = known_now(folder, known)
        stem, document = reports / known.sweep / known.kind.file_name, known.document
        texts = _texts(known, document, stem)
        files, facts = tuple(texts), known.facts
        record = known.conclusion.facts
        if known.conclusion.complete:
            texts |= {folder.parents[1] / name: text for name, text in record.files.items()}
        patch = stem.with_name(f"{stem.name}.patch")
        if text := recommended_patch(facts):
            texts[patch] = text
        elif record.setting is not None:
            patch.unlink(missing_ok=True)  # it was made for another recommendation
        write_all(texts)
        written = tuple(texts)
        if known.study.traits.is_deployed:
            facts = known.deployed_facts
            made = with_recipes(known.state.files, facts)
            patched = {reports / known.sweep / name: text for name, text in made.items()}
            write_all(patched)
            written += tuple(patched)
            written += add_to_document(reports, facts, zh=zh)
        at_s = known.at_s
        running = Live(written_s=at_s, alive_s=at_s, event_s=at_s)
        live = None if known.conclusion.complete else running
        page = _page(facts, document, stem, files, live)
        write_all(page)
        written += tuple(page)
    if not exports:
        return written
    # programs and servers get what is in the file, in which secrets are hidden
    report = exported(
        hide_kept(texts[stem.with_name(f"{stem.name}.json")]),
        sweep=known.sweep,
        study=known.study.name.partition("-")[0],
    )
    # the key is the same for this ledger in all sessions, and changes when it is started anew
    ledger_id = f"{known.cell.digest} {known.state.opened[0].session}"
    key = f"{known.sweep} {known.study.name} {ledger_id}"
    problems = []
    for export in map(export_of, exports):
        # A server may be slow, so sessions of other ledgers can write meanwhile. Two sessions of
        # this ledger that find no run of a study would both make one.
        try:
            with writing(), alone(folder):
                more = {
                    stem.with_name(stem.name + suffix): text
                    for suffix, text in export.texts(report, key=key).items()
                }
                write_all(more)
        except LedgerError as error:  # the other programs still get theirs
            problems.append(str(error))
        else:
            written += tuple(more)
    if problems:
        raise LedgerError("; ".join(problems))
    return written
