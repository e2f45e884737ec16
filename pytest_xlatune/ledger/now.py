"""Where the jobs in flight stand at this moment: a small file beside the ledger, for people.

The process that drives a campaign writes it, and whatever shows a sweep reads it, from any machine
of the same file system. Nothing is decided by it, so it may be missing, old or cut short: it is
read as absent then. The ledger alone says what was measured.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.ledger import without_secrets
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.record import Record, Time, read_json
from pytest_xlatune.model.result import Outcome

NOW = "now.json"


class Now(Record, frozen=True, kw_only=True):
    """What the executor said last.

    Attributes:
        at_s: when, seconds since the epoch; a driving process renews it twice a minute.
        jobs: job id -> where it stands. Of a pending one `start_s` is when the scheduler expects
            to start it, None where it does not say, and `reason` is why it waits.
    """

    at_s: Time = 0.0
    jobs: dict[str, Outcome] = msgspec.field(default_factory=dict)


def read_now(folder: Path) -> Now:
    """Return what stands beside the ledger of a folder; nothing where that cannot be read."""
    try:
        return Now.from_json(read_json(secure_files.read_named(folder / NOW)))
    except (OSError, ValueError, LedgerError):
        return Now()


def write_now(folder: Path, now: Now) -> None:
    """Replace the file. One that cannot be written is left as it is: no figure is in it."""
    with contextlib.suppress(OSError):
        secure_files.write_json(folder / NOW, without_secrets(now.to_json()))
