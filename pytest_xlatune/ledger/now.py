"""Where the jobs in flight stand at this moment: a small file beside the ledger, for people.

The process that drives a campaign writes it, and whatever shows a sweep reads it, from any machine
of the same file system. Nothing is decided by it, so it may be missing, old or cut short: it is
read as absent then. The ledger alone says what was measured.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.record import TIME, Record, read_json
from pytest_xlatune.model.result import Outcome

NOW = "now.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Now(Record):
    """What the executor said last.

    Attributes:
        at_s: when, seconds since the epoch; a driving process renews it twice a minute.
        jobs: job id -> where it stands. Of a pending one `start_s` is when the scheduler expects
            to start it, None where it does not say, and `reason` is why it waits.
    """

    at_s: float = field(default=0.0, metadata=TIME)
    jobs: dict[str, Outcome] = field(default_factory=dict)


def read_now(folder: Path) -> Now:
    """Return what stands beside the ledger of a folder; nothing where that cannot be read."""
    try:
        return Now.from_json(read_json((folder / NOW).read_bytes()))
    except (OSError, ValueError, LedgerError):
        return Now()


def write_now(folder: Path, now: Now) -> None:
    """Replace the file. One that cannot be written is left as it is: no figure is in it."""
    aside = folder / f".{NOW}.{os.getpid()}"
    with contextlib.suppress(OSError):
        try:
            mode = folder.stat().st_mode & 0o666  # as the ledger: of the folder, without execute
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(now.to_json(), file)
            aside.replace(folder / NOW)
        finally:
            aside.unlink(missing_ok=True)
