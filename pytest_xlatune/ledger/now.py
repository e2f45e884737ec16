"""The state of the jobs in flight: a small file beside the ledger, for people.

The process that drives a campaign writes it, and every display of a sweep reads it, on any machine
with the same file system. Nothing is decided by it, so it may be missing or old; one that cannot be
read counts as empty. Measurements are only in the ledger.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.ledger import without_secrets
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.record import Record, Time, read_json
from pytest_xlatune.model.result import Outcome

NOW = "now.json"


class Now(Record, frozen=True, kw_only=True):
    """The last report of the executor.

    Attributes:
        at_s: time of the report, in seconds since 1970; the driving process renews it twice a
            minute. 0 if there is no report.
        jobs: job id -> state of the job. For a pending job, `start_s` is the start that the
            scheduler expects (None if unknown), and `reason` is why it waits.
    """

    at_s: Time = 0.0
    jobs: dict[str, Outcome] = msgspec.field(default_factory=dict)


def read_now(folder: Path) -> Now:
    """Return the state of jobs beside the ledger in a folder; an empty one if it cannot be read."""
    try:
        return Now.from_json(read_json(secure_files.read_named(folder / NOW)))
    except (OSError, ValueError, LedgerError):
        return Now()


def write_now(folder: Path, now: Now) -> None:
    """Replace the file. If it cannot be written, the old one stays: it contains no measurement."""
    with contextlib.suppress(OSError):
        text = json.dumps(without_secrets(now.to_json()))
        secure_files.write_bytes(folder / NOW, text.encode("ascii"))
