"""Record evidence: run a profile once with profiler and dump, and write down where both lie.

The trial is opened, queued and looked after like any other, in the ledger of the same cell; it has
no score. What it left is read once, by the campaign in one of its turns, whoever else waits for it;
so what cannot be read is known while it can be run again.
This module prints nothing and knows nothing of pytest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.campaign.campaign import Campaign
from pytest_xlatune.errors import XlatuneError
from pytest_xlatune.profiles import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.runs.opening import open_campaign
from pytest_xlatune.runs.recorded import Recorded, as_recorded
from pytest_xlatune.studies.evidence import EvidenceStudy
from pytest_xlatune.sweep.sweep import ResolvedSweep


class NotRecorded(XlatuneError):  # noqa: N818 - it is no error of the harness
    """The run ended without evidence; the message says why."""


def study_of_profile(resolved: ResolvedSweep, profile: Profile | str) -> EvidenceStudy:
    """Return the study that records a profile of a sweep, or its cell as deployed.

    An id is that of a declared one; a profile may be one that a wave derived.

    Raises:
        ConfigError: the sweep has no such profile; names the nearest.
    """
    if isinstance(profile, str):
        profile = BASELINE if profile == BASELINE_ID else resolved.sweep.find(profile)
    return EvidenceStudy(cell=resolved.cell, profile=profile)


def open_recording(resolved: ResolvedSweep, profile: Profile | str, *, workdir: Path) -> Campaign:
    """Return the campaign that records a profile, outside of any pytest session.

    Raises:
        ConfigError, LedgerError: it cannot begin.
    """
    session = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    study = study_of_profile(resolved, profile)
    return open_campaign(resolved, study, workdir=workdir, session=session)


def record(campaign: Campaign, tick: Callable[[], None]) -> Recorded:
    """Wait for the evidence run, and write down where its dump and captures lie.

    What was recorded before is read from the ledger, and not run again.

    Raises:
        NotRecorded: the run left nothing behind, or nobody could run it.
        CampaignStopped: the playbook stopped it.
        LedgerError: it cannot be written down.
    """
    folder = campaign.setup.folder
    view = campaign.wait(lambda view: not view.pending, on_turn=tick)
    result = view.history[-1]
    known = view.state.recorded.get(result.trial.id)
    if known is None:
        raise NotRecorded(f"{result.trial.profile.id} left no evidence: {result.reason}")
    found = as_recorded(known, result.trial, view.state, folder)
    lost = [each for each in (found.dump, *found.captures) if each and not each.exists()]
    if lost or not (found.dump or found.captures):
        raise NotRecorded(_nothing_left(found, lost))
    return found


def _nothing_left(found: Recorded, lost: list[Path]) -> str:
    if lost:
        return (
            f"{found.profile}: {lost[0]} was recorded and is gone; with --xlatune-fresh it is "
            "recorded again, like everything else"
        )
    return f"{found.profile}: {'; '.join(found.problems) or 'the run left no dump and no capture'}"
