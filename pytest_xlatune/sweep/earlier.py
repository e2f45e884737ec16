"""What earlier sessions stored about a cell: its calibration, its trials, the pace of its jobs.

A calibration is only used for planning, and only for the same cell. This module measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.ledger import LEDGER, CampaignOpened, Ledger, LedgerEntry
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Record, read_json
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import ABSENT, fine_percent, percent
from pytest_xlatune.stats.noise import Noise
from pytest_xlatune.stats.rotations import JobPace
from pytest_xlatune.studies.trials import pace_of

CALIBRATION = "calibration.json"  # beside the ledger of the cell
SCHEMA = 1


class Calibration(Record, frozen=True, kw_only=True):
    """The measured noise of a cell.

    Attributes:
        cell_digest: the digest of the cell.
        noise: the noise of its jobs and steps, as fractions.
        outlook: which changes budgets of jobs can detect with this noise.
        written: the time of writing, in ISO 8601.
        schema: version of the format.
    """

    cell_digest: str
    noise: Noise
    outlook: Message
    written: str
    schema: int = SCHEMA

    @property
    def figures(self) -> tuple[str, ...]:
        """The results, one line each."""
        noise = self.noise
        sigma, low, high = map(fine_percent, (noise.sigma_job, noise.sigma_low, noise.sigma_high))
        inside = fine_percent(noise.step_sd)
        lag1 = ABSENT if noise.lag1 is None else f"{noise.lag1:.2f}"
        further = [
            f"in addition, {groups} differ by {fine_percent(size)}"
            for groups, size in (
                ("node slots", noise.slot_sd),
                ("allocations", noise.allocation_sd),
            )
            if size is not None
        ]
        steady = "unknown: fewer than 12 jobs, or no job levels off"
        if noise.steady_from is not None:
            steady = f"step {noise.steady_from}"
        return (
            f"job noise: {sigma} (95 % interval {low} to {high})",
            *further,
            f"step noise inside a job: {inside}, correlation of neighbours {lag1}",
            f"slow steps: {fine_percent(noise.straggler_rate)} of the window",
            f"drift from the first job to the last: {percent(noise.drift)}",
            f"steady state begins at: {steady}",
        )


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Write a calibration beside the ledger in `folder`, atomically.

    Raises:
        LedgerError: it cannot be written.
    """
    path = folder / CALIBRATION
    text = json.dumps(calibration.to_json(), indent=2, sort_keys=True, allow_nan=False)
    try:
        secure_files.write_bytes(path, f"{text}\n".encode())
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error}") from error
    return path


def recorded_trials(folder: Path, *, session: str = "") -> tuple[TrialResult, ...]:
    """Return the trials of a ledger, final or not, in the order of the plan; () if none.

    Args:
        folder: the folder of the campaign; it need not exist.
        session: events from this session on are ignored; "" reads all.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    entries = []
    for entry in Ledger(folder / LEDGER).refresh():
        if session and isinstance(entry.event, CampaignOpened) and entry.event.session == session:
            break
        entries.append(entry)
    return tuple(progress.result for progress in replay(entries).trials.values())


def pace_in(entries: Iterable[LedgerEntry], cell: Cell) -> JobPace | None:
    """Return the pace of a cell's jobs in a ledger, over all studies; None if unknown."""
    results = (progress.ended for progress in replay(entries).trials.values())
    return pace_of(
        result for result in results if result and result.trial.cell_digest == cell.digest
    )


def read_calibration(folder: Path, cell: Cell) -> Calibration | None:
    """Return the calibration in a folder; None if it has none of exactly this cell.

    Raises:
        LedgerError: there is one, but it cannot be read.
    """
    path = folder / CALIBRATION
    try:
        data = read_json(secure_files.read_bytes(path), is_strict=True)
        calibration = Calibration.from_json(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LedgerError) as error:
        raise LedgerError(
            f"{path} cannot be read: {error}; calibrate again, or remove it"
        ) from error
    return calibration if calibration.cell_digest == cell.digest else None
