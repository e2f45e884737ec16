"""Open the campaign that runs a study, and wait for a calibration or an evidence run.

A pytest session and the command line both enter here. The site is checked before a campaign submits
its first trial, and one playbook handles its failures. A calibration and an evidence run are
studies like any other, in the ledger of the same cell: the first leaves its estimates beside the
ledger, the second has no score and leaves a dump and captures. This module prints nothing and knows
nothing of pytest; the caller hands in the ways to repair nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pytest_xlatune.campaign import Campaign, Setup, View, by_digest, versions
from pytest_xlatune.campaign.assess import Assessment
from pytest_xlatune.campaign.jobs import executor_named
from pytest_xlatune.ledger import Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.compilers import not_compiled
from pytest_xlatune.prepare.lint import look_at_rules
from pytest_xlatune.prepare.preflight import look_at_keys
from pytest_xlatune.report.document import Document
from pytest_xlatune.stats.design import outlook
from pytest_xlatune.stats.noise import MIN_SCORES
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.calibration import noise_of, scored
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.sweep.deployed import context_of, deployed_files
from pytest_xlatune.sweep.earlier import Calibration, write_calibration
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.artifacts import Recorded, as_recorded, read_new

Recover = Callable[[Assessment, tuple[str, ...]], bool]


def site_of(
    resolved: ResolvedSweep, workdir: Path, *, is_first: bool, is_busy: bool
) -> preflight.Site:
    """Return the site that the preflight checks: where the trials of a sweep run."""
    return preflight.Site(
        cell=resolved.cell,
        launcher=resolved.sweep.launcher,
        resources=resolved.sweep.site.resources,
        executor=resolved.sweep.site.executor,
        folder=workdir / resolved.folder,
        is_first=is_first,
        is_busy=is_busy,
    )


def open_campaign(
    resolved: ResolvedSweep,
    study: Study,
    *,
    workdir: Path,
    session: str,
    recover: Recover | None = None,
    fresh: bool = False,
) -> Campaign:
    """Return the campaign of a study, joined or begun.

    Args:
        resolved: the sweep with the cell.
        study: the question about the cell.
        workdir: the folder above the cells' folders.
        session: id of the session, shared by all its processes.
        recover: repairs nodes with a person's rights; None without such a person.
        fresh: whether the session's first process moves the measured trials aside.

    Raises:
        ConfigError: the site is not ready, with all faults; or the ledger belongs to another
            cell.
        LedgerError: the ledger cannot be read or written.
    """
    folder = workdir / resolved.folder

    def is_ready(state: LedgerState) -> tuple[str, ...]:
        # an intended attempt may run too: its session may have died before it recorded the job
        is_busy = bool(state.in_flight() or state.unresolved())
        site = site_of(resolved, workdir, is_first=not state.opened, is_busy=is_busy)
        found = preflight.look(site)
        keys = look_at_keys(
            resolved.sweep.launcher, resolved.cell, resolved.sweep.profiles, environ=os.environ
        )
        context = context_of(resolved.cell, resolved.sweep.launcher)
        rules = look_at_rules(resolved.sweep.profiles, context)
        found = preflight.Preflight(
            faults=(*found.faults, *keys.faults, *rules.faults), notes=(*found.notes, *keys.notes)
        )
        found.raise_faults(f"sweep {resolved.sweep.name!r}")
        return (*found.notes, *not_compiled(resolved, study))

    setup = Setup(
        sweep=resolved.sweep.name,
        cells=by_digest(study.cells),
        launcher=resolved.sweep.launcher,
        executor=executor_named(resolved.sweep.site.executor),
        resources=resolved.sweep.site.resources,
        folder=folder,
        session=session,
        policy=resolved.sweep.site.retry_policy,
        files=deployed_files(
            resolved.sweep.launcher,
            resolved.cell,
            env_file=resolved.sweep.site.env_file,
            root=Path.cwd(),
        ),
        limits=resolved.sweep.limits,
        versions=versions(),
        settings=dict(resolved.settings),
        recover=recover,
        check=is_ready,
        compile_check=_compile_step(resolved, study, folder),
        read=partial(read_new, folder=folder),
    )
    campaign = Campaign(setup, study)
    campaign.open(fresh=fresh)
    return campaign


def open_alone(resolved: ResolvedSweep, study: Study, *, workdir: Path) -> Campaign:
    """Return the campaign that runs a study outside of any pytest session.

    A fault that only a person with more rights can mend stops it.

    Raises:
        ConfigError, LedgerError: it cannot begin.
    """
    session = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    return open_campaign(resolved, study, workdir=workdir, session=session)


def _compile_step(
    resolved: ResolvedSweep, study: Study, folder: Path
) -> Callable[[LedgerState, Sequence[Trial], Sequence[Trial]], tuple[Event, ...]] | None:
    """Return the step that compiles profiles before any trial; None unless the sweep asks."""
    check = resolved.compile_check
    if check is None or not study.policy.compiles_first:
        return None
    from pytest_xlatune.prepare.compile_check import Step
    from pytest_xlatune.prepare.compilers import compiler_for

    compiler = compiler_for(resolved, check)
    step = Step(compiler, resolved.sweep.profiles, controls=check.controls)
    return partial(step.next, folder=folder)


class NotCalibrated(XlatuneError):  # noqa: N818 - it is no error of the harness
    """Too few jobs have a score; the message says why."""


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
    noise = noise_of(view.history, _cell(campaign))
    if noise is None:
        raise NotCalibrated(_too_few(view, len(jobs)))
    found = Calibration(
        cell_digest=_cell(campaign).digest,
        noise=noise,
        outlook=outlook(noise.sigma_job),
        trial_ids=tuple(each.trial.id for each in jobs),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_calibration(folder, found)
    return found


def document_of(campaign: Campaign, found: Calibration) -> Document:
    """Return the document of a calibration."""
    from pytest_xlatune.report.study_documents import Subject, calibration

    history = campaign.view().history
    return calibration(
        Subject(
            conclusion=campaign.conclude(),
            cells=campaign.study.cells,
            profiles=(),
            history=history,
            raw=history,
            now=datetime.fromisoformat(found.written),
            figures=found.figures,
        )
    )


def _cell(campaign: Campaign) -> Cell:
    """Return the one cell of a calibration."""
    (cell,) = campaign.study.cells
    return cell


def _too_few(view: View, scores: int) -> str:
    reasons = list(dict.fromkeys(each.reason for each in view.history if each.reason))
    return (
        f"{scores} jobs of the calibration have a score, {MIN_SCORES} are needed"
        f"{': ' + '; '.join(reasons) if reasons else ''}. Mend the cause and calibrate again"
    )


class NotRecorded(XlatuneError):  # noqa: N818 - it is no error of the harness
    """The run ended without evidence; the message says why."""


def study_of_profile(resolved: ResolvedSweep, profile: Profile | str) -> Study:
    """Return the study that records a profile of a sweep, or its cell as deployed.

    An id names a declared profile; a `Profile` may also come from a derived wave.

    Raises:
        ConfigError: the sweep has no such profile; names the nearest.
    """
    if isinstance(profile, str):
        profile = BASELINE if profile == BASELINE_ID else resolved.sweep.find(profile)
    return EvidenceStudy(cell=resolved.cell, profile=profile)


def record(campaign: Campaign, tick: Callable[[], None]) -> Recorded:
    """Wait for the evidence run and return its artifacts; a recorded run does not run again.

    Raises:
        NotRecorded: the run failed or left no artifact.
        CampaignStopped: the playbook stopped it.
        LedgerError: the ledger cannot be written.
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
        why = "; ".join(found.problems) or "the run left no dump and no capture"
        if lost:
            why = (
                f"{lost[0]} was recorded and is gone; --xlatune-fresh records it again, and runs "
                "all other trials again too"
            )
        raise NotRecorded(f"{found.profile}: {why}")
    return found
