"""Open the campaign that runs a study, and wait for a calibration or an evidence run.

A pytest session and the command line both call this module. The site is checked before a campaign
submits its first trial, and one playbook handles its failures. A calibration and an evidence run
are ordinary studies, in the ledger of the same cell. A calibration leaves its estimates next to the
ledger; an evidence run has no score, and leaves a dump and captures. This module prints nothing and
does not know pytest. The caller may pass a function that repairs nodes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.campaign import Campaign, Recover, history_of
from pytest_xlatune.campaign.log import write_log
from pytest_xlatune.executors import class_named
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError, LedgerError, NotMeasured
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.redact import command_without_secrets
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.preflight import COSTLY, check_keys, check_rules, check_shape
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.study_documents import calibration
from pytest_xlatune.stats.design import outlook
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.calibration import jobs_of, noise_of
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.sweep import checkouts
from pytest_xlatune.sweep.deployed import context_of, deployed_files
from pytest_xlatune.sweep.earlier import Calibration, write_calibration
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.sweep.settings import check_folders
from pytest_xlatune.tasks.artifacts import Recorded, read_new
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.measured import measured_elsewhere


def run_preflight(
    resolved: ResolvedSweep,
    folder: Path,
    *,
    is_first: bool,
    is_busy: bool,
    cells: Sequence[Cell] | None = None,
) -> preflight.Preflight:
    """Return all that prevents a sweep from starting: faults of the site, of keys, and of rules.

    The site is checked for each of `cells`; None stands for all cells that are measured first.
    """
    chosen = cells if cells is not None else resolved.first_cells
    if resolved.slots:
        chosen = [msgspec.structs.replace(resolved.cell, nodelist=resolved.nodelist)]
    looks = [
        preflight.check_site(resolved, folder, cell, is_first=is_first, is_busy=is_busy)
        for cell in chosen
    ]
    profiles, launcher = resolved.sweep.profiles, resolved.sweep.launcher
    # overrides that a study varies are not in `resolved.cell`, only in the cells of the study
    overrides = {
        key: value for cell in resolved.study().cells for key, value in cell.overrides.items()
    }
    cell_with_all_keys = msgspec.structs.replace(resolved.cell, overrides=overrides)
    keys = check_keys(launcher, cell_with_all_keys, profiles, environ=os.environ)
    named = resolved.sweep.named_profiles
    rules = check_rules(named, context_of(resolved.cell, launcher), notes=COSTLY)
    files = deployed_files(
        launcher, resolved.cell, env_file=resolved.sweep.site.env_file, root=Path.cwd()
    )
    shape = check_shape(launcher, resolved.cell, profiles, files=files)
    return preflight.merged([*looks, keys, rules, shape])


def open_folder(options: RunSettings, name: Path | str) -> Path:
    """Make and return a folder below the work directory, with the permissions of `access`.

    Raises:
        ConfigError: the folder cannot be made, or another user could replace it.
    """
    check_folders([("--xlatune-workdir", options.workdir / name)])
    try:
        return secure_files.make_folder_for(options.workdir, name, options.access)
    except secure_files.NotOursError as error:
        raise ConfigError(str(error)) from None


class Runs(ExitStack):
    """The campaigns that one process drives until the context ends; each folder has a log.

    Attributes:
        folders: the folders of the campaigns.
    """

    def __init__(self, options: RunSettings, *, session: str, command: Sequence[str] = ()) -> None:
        """Drive campaigns for a session, whose processes share its id; `command` started it."""
        super().__init__()
        program, *words = command or sys.argv
        # with `python -m pytest` the program is pytest/__main__.py
        path = Path(program)
        name = path.parent.name if path.stem == "__main__" else path.name
        shown = command_without_secrets([name, *words])
        self._command = shlex.join(shown)
        self._options = options
        self._session = session
        self.folders: set[Path] = set()
        self._logged: set[Path] = set()  # folders whose log was opened, even without success

    def open(
        self,
        resolved: ResolvedSweep,
        study: Study,
        *,
        recover: Recover | None = None,
        preflight_result: preflight.Preflight | None = None,
    ) -> Campaign:
        """Return the campaign that runs a study, with the ledger of the sweep's cell.

        `recover` repairs nodes in a way that the user has supplied; without it, a fault that only a
        person can repair stops the campaign. If `preflight_result` is None, the preflight runs now.

        Raises:
            ConfigError: the site is not ready (the message has all faults); another user could
                replace the folder; or the ledger belongs to another cell.
            LedgerError: the ledger cannot be read or written.
        """
        folder = open_folder(self._options, resolved.folder)
        if folder not in self._logged:
            self._logged.add(folder)
            self.enter_context(write_log(folder))
        campaign = Campaign(
            resolved,
            class_named(resolved.sweep.site.executor)(),
            Ledger(folder / LEDGER),
            study=study,
            session=self._session,
            command=self._command,
            recover=recover,
            read_evidence=read_new,
        )
        campaign.open(
            fresh=self._options.fresh,
            check=partial(self._check, resolved, folder, preflight_result),
        )
        self.folders.add(folder)
        self.enter_context(campaign.attending())
        return campaign

    def _check(
        self,
        resolved: ResolvedSweep,
        folder: Path,
        preflight_result: preflight.Preflight | None,
        state: LedgerState,
    ) -> tuple[str, ...]:
        """Check the site before a session submits anything; return remarks for the user.

        Raises:
            ConfigError: the site is not ready.
        """
        # an unresolved attempt may run too: its session may have died before it recorded the job
        is_busy = bool(state.in_flight() or state.unresolved())
        checkouts.make(resolved.sweep.launcher, resolved.first_cells)
        checkouts.refuse_shadowed(resolved.sweep.launcher, resolved.cell)
        findings = preflight_result or run_preflight(
            resolved, folder, is_first=not state.opened, is_busy=is_busy, cells=resolved.first_cells
        )
        findings.raise_faults(f"sweep {resolved.sweep.name!r}")
        elsewhere = measured_elsewhere(resolved.folder, self._options.workdir)
        return (*findings.notes, *elsewhere)


def calibrate(campaign: Campaign, tick: Callable[[], None]) -> Calibration:
    """Wait for the jobs, estimate the noise, and keep it for the cell's later sweeps.

    Raises:
        NotMeasured: too few jobs have a score; at least four are needed.
        CampaignStopped: the playbook stopped the campaign.
        LedgerError: the estimate cannot be written.
    """
    folder = campaign.folder
    view = campaign.wait(lambda view: not view.pending, on_turn=tick)
    jobs, cell = jobs_of(campaign.study, view.history), campaign.study.cells[0]
    noise = noise_of(jobs)
    if noise is None:
        reasons = dict.fromkeys(sentence(result.reason) for result in view.history if result.reason)
        raise NotMeasured(
            f"{len(jobs)} jobs of the calibration have a score, too few for its slots"
            f"{': ' + '; '.join(reasons) if reasons else ''}. Mend the cause and calibrate again"
        )
    calibration = Calibration(
        cell_digest=cell.digest,
        noise=noise,
        outlook=outlook(noise.sigma_job),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_calibration(folder, calibration)
    return calibration


def document_of(campaign: Campaign, calibrated: Calibration) -> Document:
    """Return the document of a calibration."""
    return calibration(
        MeasuredCell(
            conclusion=campaign.conclude(),
            cells=campaign.study.cells,
            history=campaign.view().history,
            written_s=datetime.fromisoformat(calibrated.written).timestamp(),
            known=calibrated.figures,
        )
    )


def study_of_profile(resolved: ResolvedSweep, profile: Profile | str) -> Study:
    """Return the study that records the evidence of a profile, or of the deployed cell.

    The id of a profile is enough if the sweep declares the profile.

    Raises:
        ConfigError: the sweep has no such profile; the message names the nearest one.
    """
    if isinstance(profile, str):
        profile = BASELINE if profile == BASELINE_ID else resolved.sweep.find(profile)
    return EvidenceStudy(cell=resolved.cell, profile=profile)


def profiles_to_record(
    resolved: ResolvedSweep, folder: Path, ids: Sequence[str]
) -> list[Profile | str]:
    """Return the profiles to record; without ids, the baseline and the winner if there is one.

    A profile that a wave derived from results is read from the ledger in `folder`, and returned as
    a `Profile`; every other profile is returned as its id.
    """
    try:
        cell_report = read_cell_report(folder)
    except LedgerError:  # nothing was measured yet
        return [*(ids or [BASELINE_ID])]
    best = cell_report.conclusion.winner
    derived: dict[str, Profile] = {}
    if resolved.sweep.gate is None:
        profiles = (
            resolved.tuning().decide(history_of(cell_report.state, cell_report.study)).profiles
        )
        derived = {
            profile.id: profile for profile in profiles if profile not in resolved.sweep.profiles
        }
    ids = ids or [BASELINE_ID, *([best.arm] if best else [])]
    return [derived.get(name, name) for name in ids]


def record(campaign: Campaign, tick: Callable[[], None]) -> Recorded:
    """Wait for the evidence run and return its artifacts; a run in the ledger is not repeated.

    Raises:
        NotMeasured: the run failed, or it left no artifact.
        CampaignStopped: the playbook stopped the campaign.
        LedgerError: the ledger cannot be written.
    """
    folder = campaign.folder
    view = campaign.wait(lambda view: not view.pending, on_turn=tick)
    result = view.history[-1]
    known = view.state.recorded.get(result.trial.id)
    if known is None:
        raise NotMeasured(f"{result.trial.profile.id} left no evidence: {sentence(result.reason)}")
    recorded = Recorded(
        profile=result.trial.profile.id,
        trial_id=known.trial_id,
        dump=folder / known.dump if known.dump else None,
        captures=tuple(folder / capture for capture in known.captures),
        pgle=Path(known.pgle) if known.pgle else None,
        facts=known.facts,
        problems=known.problems,
    )
    lost = [path for path in (recorded.dump, *recorded.captures) if path and not path.exists()]
    if lost or not (recorded.dump or recorded.captures):
        why = "; ".join(recorded.problems) or "the run left no dump and no capture"
        if lost:
            why = (
                f"{lost[0]} was recorded and is gone; --xlatune-fresh records it again, and runs "
                "all other trials again too"
            )
        raise NotMeasured(f"{recorded.profile}: {why}")
    return recorded
