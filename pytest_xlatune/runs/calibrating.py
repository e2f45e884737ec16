"""Run the calibration of a cell, and keep what it found beside the ledger.

The trials are opened and run like those of any study, and what happens inside a job stands in the
ledger with its score. This module prints nothing and knows nothing of pytest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pytest_xlatune.campaign.campaign import Campaign, View
from pytest_xlatune.errors import XlatuneError
from pytest_xlatune.report.calibration import calibration as document
from pytest_xlatune.report.document import Document
from pytest_xlatune.runs.opening import open_campaign
from pytest_xlatune.stats.capacity import outlook
from pytest_xlatune.stats.noise import MIN_SCORES
from pytest_xlatune.studies.calibration import CalibrationStudy, noise_of, scored
from pytest_xlatune.sweep.earlier import Calibration, write_calibration
from pytest_xlatune.sweep.sweep import ResolvedSweep


class NotCalibrated(XlatuneError):  # noqa: N818 - it is no error of the harness
    """Too few jobs have a score; the message says why."""


def open_calibration(
    resolved: ResolvedSweep, study: CalibrationStudy, *, workdir: Path
) -> Campaign:
    """Return the campaign that calibrates a sweep's cell, outside of any pytest session.

    Nobody is there to ask for what needs a person's rights, so a fault that does stops it.

    Raises:
        ConfigError, LedgerError: it cannot begin.
    """
    session = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    resolved.check()
    return open_campaign(resolved, study, workdir=workdir, session=session)


def calibrate(campaign: Campaign, tick: Callable[[], None]) -> Calibration:
    """Wait for the jobs, estimate the noise, and keep it as the prior of the cell's next sweeps.

    Raises:
        NotCalibrated: fewer than four jobs have a score.
        CampaignStopped: the playbook stopped it.
        LedgerError: it cannot be kept.
    """
    folder = campaign.setup.folder
    view = campaign.wait(lambda view: not view.pending, on_turn=tick)
    jobs = scored(view.history)
    noise = noise_of(view.history, campaign.setup.cell)
    if noise is None:
        raise NotCalibrated(_too_few(view, len(jobs)))
    found = Calibration(
        cell_digest=campaign.setup.cell.digest,
        noise=noise,
        outlook=outlook(noise.sigma_job),
        trial_ids=tuple(each.trial.id for each in jobs),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_calibration(folder, found)
    return found


def document_of(campaign: Campaign, found: Calibration) -> Document:
    """Return what a calibration found as a document."""
    return document(
        campaign.conclude(),
        cell=campaign.setup.cell,
        history=campaign.view().history,
        now=datetime.fromisoformat(found.written),
        figures=found.figures,
    )


def _too_few(view: View, scores: int) -> str:
    reasons = list(dict.fromkeys(each.reason for each in view.history if each.reason))
    return (
        f"{scores} jobs of the calibration have a score, {MIN_SCORES} are needed"
        f"{': ' + '; '.join(reasons) if reasons else ''}. Mend that and calibrate again"
    )
