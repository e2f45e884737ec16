"""What an earlier time left in a file: the calibration of a cell.

A calibration is a prior for planning alone, and of the same cell. This module measures nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.ledger import LEDGER, CampaignOpened, EnvironmentSeen, Ledger, LedgerEntry
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Record, read_json
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import ABSENT, fine, percent
from pytest_xlatune.stats.noise import Noise
from pytest_xlatune.stats.rotations import JobPace
from pytest_xlatune.studies.trials import pace_of

CALIBRATION = "calibration.json"  # beside the ledger of the cell
SCHEMA = 1


class Calibration(Record, frozen=True, kw_only=True):
    """How noisy a cell was found to be.

    Attributes:
        cell_digest: which cell.
        noise: of its jobs and steps, as fractions.
        outlook: what budgets of jobs could see with it.
        trial_ids: of the jobs behind it, in the order they ran.
        written: when, ISO 8601.
        schema: raised when a field changes its meaning.
    """

    cell_digest: str
    noise: Noise
    outlook: Message
    trial_ids: tuple[str, ...]
    written: str
    schema: int = SCHEMA

    def check(self) -> None:
        """Refuse a noise that no jobs have.

        Raises:
            LedgerError: names it.
        """
        level = self.noise.sigma_job
        if not 0 <= level < math.inf:
            raise LedgerError(f"noise.sigma_job is {level}, expected a fraction")

    @property
    def figures(self) -> tuple[str, ...]:
        """What was found, one sentence each."""
        noise = self.noise
        level, low, high = map(fine, (noise.sigma_job, noise.sigma_low, noise.sigma_high))
        inside, lag1 = fine(noise.step_sd), ABSENT if noise.lag1 is None else f"{noise.lag1:.2f}"
        steady = "unknown: fewer than 12 jobs, or no job levels off"
        if noise.steady_from is not None:
            steady = f"step {noise.steady_from}"
        return (
            f"job noise: {level} (95 % interval {low} to {high})",
            f"step noise inside a job: {inside}, correlation of neighbours {lag1}",
            f"slow steps: {fine(noise.straggler_rate)} of the window",
            f"drift from the first job to the last: {percent(noise.drift)}",
            f"steady state begins at: {steady}",
        )


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Put a calibration beside the ledger in `folder`, whole or not at all.

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


def recorded_jaxlib(folder: Path, cell: Cell, *, session: str = "") -> str:
    """Return the release of jaxlib that the last trial of a cell ran with; "" where none told it.

    Args:
        folder: of the campaign; need not exist.
        cell: whose trials.
        session: whose own trials are left out; "" leaves none out.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    recorded = ""
    for entry in Ledger(folder / LEDGER).refresh():
        match entry.event:
            case CampaignOpened(session=opened) if session and opened == session:
                break
            case EnvironmentSeen(cell_digest=seen, nodes=nodes) if seen == cell.digest:
                versions = (environment.packages.get("jaxlib", "") for environment in nodes)
                recorded = next(filter(None, versions), recorded)
            case _:
                pass
    return recorded


def recorded_trials(folder: Path, *, session: str = "") -> tuple[TrialResult, ...]:
    """Return the trials of a ledger as far as each is, in plan order; () where there is none.

    Args:
        folder: of the campaign; need not exist.
        session: up to which its ledger is read; "" is all of it.

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
    """Return the pace of a cell's jobs, of any study, in a ledger; None where none tells."""
    results = (progress.ended for progress in replay(entries).trials.values())
    return pace_of(
        result for result in results if result and result.trial.cell_digest == cell.digest
    )


def read_calibration(folder: Path, cell: Cell) -> Calibration | None:
    """Return the calibration in a cell's folder; None where there is none of this very cell.

    Raises:
        LedgerError: there is one that cannot be read.
    """
    path = folder / CALIBRATION
    try:
        calibration = Calibration.from_json(read_json(secure_files.read_bytes(path), is_ours=True))
        calibration.check()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LedgerError) as error:
        raise LedgerError(
            f"{path} cannot be read: {error}; calibrate again, or remove it"
        ) from error
    return calibration if calibration.cell_digest == cell.digest else None
