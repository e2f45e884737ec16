"""The log of what a session did: `xlatune.log` beside the ledger.

Every package has a logger below `pytest_xlatune`, silent by default. The ledger says what happened
to trials; the log says what a process asked, saw and waited for, and why it submits nothing. No
secret is in it: the values of the cells and the profiles are hidden in every line.
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
    """A line without the values that no text may show, a traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


class _LogFile(logging.FileHandler):
    """The file of one campaign; that it cannot be written is said once, and ends nothing."""

    is_written = True

    def _open(self) -> IO[str]:  # type: ignore[override]
        """Open it to whom its folder is, and never more."""

        def opener(name: str, flags: int) -> int:
            return secure_files.open_file(Path(name), flags)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=opener)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - its name
        if self.is_written:
            self.is_written = False
            _warn(self.baseFilename, sys.exception())


def _warn(path: Path | str, error: BaseException | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # never an error, whatever the session makes of warnings
        text = f"{path} cannot be written: {error}; the sweep goes on, what it does is not logged"
        warnings.warn(text, stacklevel=2)


@contextlib.contextmanager
def write_log(folder: Path, level: LogLevel) -> Iterator[Path]:
    """Append what this process does to the log of a campaign, as long as the context lasts.

    Processes of one session write into the same file, each line with its process id; lines below
    `level` are left out, and no line shows a value of `redact.keep_secret`. A file that cannot be
    written is warned of, once.
    """
    path = folder / LOG
    try:
        secure_files.make_folder(folder)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        _warn(path, error)
        yield path
        return
    number = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(number)
    handler.setFormatter(_Hiding(_FORM))
    handler.addFilter(lambda _: _about.get() in (None, folder))
    before, was_passed_on = _ROOT.level, _ROOT.propagate
    _ROOT.setLevel(min(number, before) if before else number)
    _ROOT.propagate = False  # other handlers hide nothing, pytest's report of a failed test too
    _ROOT.addHandler(handler)
    try:
        yield path
    finally:
        _ROOT.removeHandler(handler)
        _ROOT.setLevel(before)
        _ROOT.propagate = was_passed_on
        with contextlib.suppress(OSError):  # what could not be written is flushed once more
            handler.close()
