"""From a ledger to the files that people read: the study's own, and the model's tuning document.

    <sweep>/leaderboard.md     a study's document; gate.md, calibration.md, evidence.md likewise
    <sweep>/leaderboard.html   the same with plots, where jinja2 is installed (the extra `page`)
    <MODEL_TAG>-tuning.json    the measured cells; the next sweep adds its own
    <MODEL_TAG>-tuning.md      written from them
    <MODEL_TAG>-tuning.zh.md   the same in Chinese, on request, or where the file exists
    <MODEL_TAG>-tuning.patch   the recipes for `git apply`; absent without any

Everything is made from the ledger alone, so terminal, reports and command line agree, and a user
can write all files again. Sweeps of one model may end at the same time: a process that adds its
cell locks the folder. A gate of a winner on another configuration is a cell with a ledger of its
own, `.xlatune/<sweep>-<tag>/<cell>/`.
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

    The caller holds `reports` alone.

    Raises:
        LedgerError: the document's data cannot be read.
        OSError: its files cannot be written.
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
        patch.unlink(missing_ok=True)  # an earlier recipe may be gone
    write_all(texts)
    return tuple(texts)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Turn an error of the file system into one that says what to do.

    Raises:
        LedgerError: with what to do.
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
        # NFS locks no directory: there the last of two writers at the same moment wins
        with contextlib.suppress(OSError):
            fcntl.flock(held.fd, fcntl.LOCK_EX)
        yield


def _texts(known: CellReport, document: Document, stem: Path) -> dict[Path, str]:
    """Return the report of a study as text and as JSON, by path."""
    return {
        stem.with_name(f"{stem.name}.md"): markdown(document),
        stem.with_name(f"{stem.name}.json"): leaderboard_json(known.facts),
    }


def write_so_far(
    folder: Path, reports: Path, live: Live, known: CellReport | None = None
) -> CellReport:
    """Write the report of a study while it runs: its own files, no tuning document, no export.

    `known` is what was read of it before; return what it was made of.

    Raises:
        LedgerError: the ledger cannot be read, or a file not be written.
    """
    with writing(), alone(reports):
        known = known_now(folder, known)
        live = dataclasses.replace(live, event_s=known.at_s)
        stem, document = reports / known.sweep / known.kind.file_name, known.document
        texts = _texts(known, document, stem)
        write_all(texts | _page(known.facts, document, stem, tuple(texts), live))
    return known


def _page(
    facts: MeasuredCell,
    document: Document,
    stem: Path,
    files: Sequence[Path],
    live: Live | None,
) -> dict[Path, str]:
    """Return the page beside the files of a report; nothing where no page can be made."""
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
    """Write the reports of the cell whose ledger a folder holds; return the files.

    They are `<sweep>/leaderboard.md`, `.json` and, where pages can be written, `.html`, and the
    cell's part of `<MODEL_TAG>-tuning.md`, with `zh` in Chinese too. A recipe over a
    launcher's own file is that file with it.
    A gate, a calibration and an evidence run write their own files, and no tuning document; a study
    that recommends one setting writes the patch of it. `exports` are formats of other programs.
    Sessions of one model may end at the same time: one of them writes at a time, from the ledger of
    that moment. `known` is what was read of it before: read again only where it has grown since.

    Raises:
        LedgerError: the directory cannot be written, or a format's program does not take the
            figures; the ledger itself is complete.
    """
    with writing(), alone(reports):
        known = known_now(folder, known)
        stem, document = reports / known.sweep / known.kind.file_name, known.document
        texts = _texts(known, document, stem)
        files, facts = tuple(texts), known.facts
        of_study = known.conclusion.facts
        if known.conclusion.complete:
            texts |= {folder.parents[1] / name: text for name, text in of_study.files.items()}
        patch = stem.with_name(f"{stem.name}.patch")
        if text := recommended_patch(facts):
            texts[patch] = text
        elif of_study.setting is not None:
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
        still = Live(written_s=at_s, alive_s=at_s, event_s=at_s)
        live = None if known.conclusion.complete else still
        page = _page(facts, document, stem, files, live)
        write_all(page)
        written += tuple(page)
    if not exports:
        return written
    # a program or a server is given what the file says, which hides what is secret
    report = exported(
        hide_kept(texts[stem.with_name(f"{stem.name}.json")]),
        sweep=known.sweep,
        study=known.study.name.partition("-")[0],
    )
    # the same for this ledger in each of its sessions, and another once it was started over
    began = f"{known.cell.digest} {known.state.opened[0].session}"
    key = f"{known.sweep} {known.study.name} {began}"
    problems = []
    for export in map(export_of, exports):
        # a server may take its time: sessions of other ledgers write meanwhile; two of this one
        # that find no run of a study would both make one
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
