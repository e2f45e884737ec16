"""The log of what a session did: `xlatune.log` beside the ledger.

Every package has a logger below `pytest_xlatune`, which is silent by default. The ledger records
what happened to trials. The log records what a process asked the scheduler and submitted. Secrets
of cells and profiles are hidden in every line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import shown

LOG = "xlatune.log"
_FORM = "%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"
_ROOT = logging.getLogger("pytest_xlatune")
_ROOT.addHandler(logging.NullHandler())


class _LogFile(logging.StreamHandler):  # type: ignore[type-arg]
    """The log file of one campaign; a line that cannot be written is lost.

    Secrets are hidden, also in tracebacks.
    """

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name
        del record


@contextlib.contextmanager
def write_log(folder: Path) -> Iterator[Path]:
    """Append what this process does to the log of a campaign while the context lasts.

    Processes of one session write to the same file, with their process id in each line. Secrets of
    `redact.keep_secret` are hidden. If the file cannot be opened, it warns.
    """
    path = folder / LOG
    try:
        secure_files.make_folder(folder)
        descriptor = secure_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # a filter of the session could make an error of it
            warnings.warn(f"{error}; the sweep goes on without a log", stacklevel=3)
        yield path
        return
    file = os.fdopen(descriptor, "a", encoding="utf-8")
    handler = _LogFile(file)
    handler.setFormatter(logging.Formatter(_FORM))
    before, was_passed_on = _ROOT.level, _ROOT.propagate
    _ROOT.setLevel(min(logging.INFO, before) if before else logging.INFO)  # 0: no level is set
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
            file.close()
