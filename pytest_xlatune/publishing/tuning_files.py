"""The files of a model's tuning document: data, markdown, the Chinese sibling, the patch.

    <MODEL_TAG>-tuning.json    the measured cells; the next sweep is added to these
    <MODEL_TAG>-tuning.md      made of them
    <MODEL_TAG>-tuning.zh.md   the same in Chinese, when asked, or where there is one
    <MODEL_TAG>-tuning.patch   what is recommended, for `git apply`; absent where nothing is

Sweeps of one model may end at the same time: whoever reads, adds and writes holds the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_xlatune.errors import LedgerError
from pytest_xlatune.report import markdown
from pytest_xlatune.report.covered import Covered, extended, read_cells, write_cells
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.phrases import Language
from pytest_xlatune.report.tuning import tuning


def add_to_document(reports: Path, covered: Covered, *, zh: bool = False) -> tuple[Path, ...]:
    """Add a cell to the tuning document of its model; return the files that were written.

    The caller holds `reports` alone.

    Raises:
        LedgerError: the document's data cannot be read.
        OSError: its files cannot be written.
    """
    stem = reports / f"{covered.cell.model_tag}-tuning"
    data, chinese, patch = (
        stem.with_name(f"{stem.name}{suffix}") for suffix in (".json", ".zh.md", ".patch")
    )
    kept = read_cells(data.read_text("utf-8"), where=str(data)) if data.exists() else ()
    cells = extended(kept, covered)
    texts = {
        stem.with_name(f"{stem.name}.md"): markdown.render(tuning(cells)),
        data: write_cells(cells),
    }
    if zh or chinese.exists():
        texts[chinese] = markdown.render(tuning(cells, Language.CHINESE))
    diff = patch_of(cells).text
    if diff:
        texts[patch] = diff
    else:
        patch.unlink(missing_ok=True)  # what was recommended before no longer is
    write_all(texts)
    return tuple(texts)


def write_all(texts: Mapping[Path, str]) -> None:
    """Write each file whole or not at all.

    Raises:
        OSError: a directory cannot be made or a file not be written.
    """
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)  # half a file, where space is short
            raise


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Say of an error of the file system what it means here.

    Raises:
        LedgerError: with what to do.
    """
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"reports cannot be written: {error}; the ledger is whole, so after mending that "
            "`xlatune report` writes them"
        ) from error


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder for oneself; no file is left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # NFS locks no directory: there the last of two writers at the same moment wins
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
