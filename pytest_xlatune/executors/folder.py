"""The folder of an attempt: writes its spec, reads what the payload wrote. Asks no scheduler."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.executors import payload
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.record import Json, Record
from pytest_xlatune.model.result import Outcome
from pytest_xlatune.model.trial import LaunchSpec

_PARTS = 4  # below the work directory: sweep, cell, session, attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord(Record):
    """A process, told from any later one of the same id."""

    host: str  # where it runs
    boot_id: str  # of the kernel that it runs under
    pid: int  # its id
    start_ticks: int  # when it started, in clock ticks since boot
    at_s: float  # seconds since the epoch when this was written down, by the host's clock

    @property
    def is_here(self) -> bool:
        """Whether this machine can tell if the process runs."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs here and now."""
        return (
            payload.boot() == (self.host, self.boot_id)
            and payload.start_ticks(self.pid) == self.start_ticks
        )


def write_spec(folder: Path, spec: LaunchSpec) -> None:
    """Create the folder with the `spec.json` that the payload reads."""
    folder.mkdir(parents=True, exist_ok=True)
    payload.write_json(folder / payload.SPEC, spec.to_json())


def read_claim(folder: Path) -> ProcessRecord | None:
    """Return which payload runs rank 0; None before there is one."""
    return _process(folder, "claimed")


def read_started(folder: Path) -> ProcessRecord | None:
    """Return the trainer of rank 0; None before it is started."""
    return _process(folder, "started")


def read_outcomes(folder: Path) -> Mapping[int, Outcome]:
    """Return how each rank ended that has ended so far, by rank; 0 is the first."""
    paths = {0: folder / payload.name_of("outcome")} | _by_rank(folder.glob("outcome.*.json"))
    found = ((rank, _read(path)) for rank, path in sorted(paths.items()))
    return {rank: Outcome.from_json(data) for rank, data in found if data is not None}


def is_same_attempt(one: Path, other: Path) -> bool:
    """Whether two paths name one attempt; hosts may see the work directory under other names."""
    return one.parts[-_PARTS:] == other.parts[-_PARTS:]


def log_files(folder: Path) -> Mapping[int, Path]:
    """Return the logs that exist, by rank."""
    return dict(sorted(_by_rank(folder.glob("log.*.txt")).items()))


def _by_rank(paths: Iterable[Path]) -> dict[int, Path]:
    # a file of a rank:  log.12.txt    outcome.12.json
    found = ((path.name.split(".")[1], path) for path in paths)
    return {int(rank): path for rank, path in found if rank.isdigit()}


def _process(folder: Path, kind: str) -> ProcessRecord | None:
    data = _read(folder / payload.name_of(kind))
    return None if data is None else ProcessRecord.from_json(data)


def _read(path: Path) -> Json | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError:
        if path.name.startswith("claimed"):
            return None  # its writer is at it: a claim appears before its content
        raise LedgerError(
            f"{path}: found {text[:60]!r}, expected JSON; the file was damaged after it was written"
        ) from None
