"""The log of what a session did: `xlatune.log` beside the ledger.

Every package has a logger below `pytest_xlatune`, which is silent by default. The ledger records
what happened to trials. The log records what a process asked the scheduler, what it waited for, and
why it submits nothing. Secrets of cells and profiles are hidden in every line.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import shown
from pytest_xlatune.sweep.groups import LogLevel

LOG = "xlatune.log"
_FORM = "%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"
_ROOT = logging.getLogger("pytest_xlatune")
_ROOT.addHandler(logging.NullHandler())
# the folder of the campaign that this context works on; None if lines are about no campaign
_about: contextvars.ContextVar[Path | None] = contextvars.ContextVar("folder", default=None)


@contextlib.contextmanager
def lines_about(folder: Path) -> Iterator[None]:
    """Keep the lines of this context out of the logs of other campaigns."""
    before = _about.set(folder)
    try:
        yield
    finally:
        _about.reset(before)


class _Hiding(logging.Formatter):
    """A formatter that hides secrets, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


class _LogFile(logging.FileHandler):
    """The log file of one campaign. If it cannot be written, it warns once and goes on."""

    is_written = True  # whether every line so far could be written

    def _open(self) -> IO[str]:  # type: ignore[override]
        """Open the file with the rights of its folder at most."""

        def opener(name: str, flags: int) -> int:
            return secure_files.open_file(Path(name), flags)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=opener)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - its name
        if self.is_written:
            self.is_written = False
            _warn(self.baseFilename, sys.exception())


def _warn(path: Path | str, error: BaseException | None) -> None:
    """Warn that a log cannot be written, whatever the filters of the session say."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # a filter of the session could make an error of it
        text = f"{path} cannot be written: {error}; the sweep goes on without a log"
        warnings.warn(text, stacklevel=2)


@contextlib.contextmanager
def write_log(folder: Path, level: LogLevel) -> Iterator[Path]:
    """Append what this process does to the log of a campaign while the context lasts.

    Processes of one session write to the same file, with their process id in each line. Lines below
    `level` are left out, and secrets of `redact.keep_secret` are hidden. If the file cannot be
    written, it warns once.
    """
    path = folder / LOG
    try:
        secure_files.make_folder(folder)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        _warn(path, error)
        yield path
        return
    least = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(least)
    handler.setFormatter(_Hiding(_FORM))
    handler.addFilter(lambda _: _about.get() in (None, folder))
    before, was_passed_on = _ROOT.level, _ROOT.propagate
    _ROOT.setLevel(min(least, before) if before else least)  # a level of 0 is none
    # other handlers, such as pytest's report of a failed test, hide no secrets
    _ROOT.propagate = False
    _ROOT.addHandler(handler)
    try:
        yield path
    finally:
        _ROOT.removeHandler(handler)
        _ROOT.setLevel(before)
        _ROOT.propagate = was_passed_on
        # closing the file tries once more to write lines that could not be written
        with contextlib.suppress(OSError):
            handler.close()
