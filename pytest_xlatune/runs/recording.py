"""Record evidence: run a profile once with profiler and dump, and write down where both lie.

The trial is opened, queued and looked after like any other, in the ledger of the same cell; it has
no score. What it left is read once, so that what cannot be read is known while it can be run again.
This module prints nothing and knows nothing of pytest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.campaign.campaign import Campaign
from pytest_xlatune.errors import XlatuneError
from pytest_xlatune.evidence.difference import plural, size
from pytest_xlatune.evidence.drill import Drill
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence_files import Window, captures_below, read_program, read_window
from pytest_xlatune.launchers.program import DUMP_FOLDER
from pytest_xlatune.ledger import EvidenceRecorded
from pytest_xlatune.profiles import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.results import TrialResult, TrialStatus
from pytest_xlatune.runs.opening import open_campaign
from pytest_xlatune.runs.recorded import Recorded, as_recorded
from pytest_xlatune.studies.evidence import EvidenceStudy
from pytest_xlatune.sweep.sweep import ResolvedSweep

_PS = 1e-9  # milliseconds of a picosecond


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
        if result.status is not TrialStatus.MEASURED:
            raise NotRecorded(f"{result.trial.profile.id} left no evidence: {result.reason}")
        submission = _last_folder(campaign, result)
        known = _read(result.trial.id, folder, submission)
        campaign.journal(known)
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


def _last_folder(campaign: Campaign, result: TrialResult) -> str:
    attempts = campaign.view().state.trials[result.trial.id].attempts
    submission = attempts[max(attempts)].submission
    if submission is None:
        raise NotRecorded(f"{result.trial.profile.id}: its last attempt was never submitted")
    return submission.folder


def _read(trial_id: str, folder: Path, attempt: str) -> EvidenceRecorded:
    """Read what an attempt left; its folder is `attempt` below the ledger's."""
    facts: list[str] = []
    problems: list[str] = []
    dump = f"{attempt}/{DUMP_FOLDER}"
    try:
        facts.append(program_fact(read_program(folder / dump)))
    except XlatuneError as error:
        problems.append(str(error))
        dump = ""
    captures: tuple[Path, ...] = ()
    try:
        captures = captures_below(folder / attempt)
        drilled, left_out = read_window(captures, Window())
        facts.append(drill_fact(drilled))
        problems += left_out
    except XlatuneError as error:
        problems.append(str(error))
    return EvidenceRecorded(
        trial_id=trial_id,
        dump=dump,
        captures=tuple(str(each.relative_to(folder)) for each in captures),
        facts=tuple(facts),
        problems=tuple(each.replace(f"{folder}/", "") for each in problems),
    )


def program_fact(program: Program) -> str:
    """Say in a sentence what the compiler made."""
    in_loop = sum(each.in_loop for each in program.collectives)
    memory = "" if program.memory_bytes is None else f", memory {size(program.memory_bytes)}"
    return (
        f"{program.module} for {program.target}: {plural(program.instructions, 'instruction')}, "
        f"{plural(len(program.collectives), 'collective')}, {in_loop} of them in a loop, "
        f"{plural(len(program.loops), 'loop')}{memory}"
    )


def drill_fact(found: Drill) -> str:
    """Say in a sentence where the time of a step went."""
    total, by = found.total, max(1, found.gpu_steps)
    parts = {
        "compute": total.compute_ps,
        "exposed communication": total.exposed_communication_ps,
        "exposed memory": total.exposed_memory_ps,
        "idle": total.idle_ps,
    }
    said = ", ".join(f"{name} {_PS * part / by:.3f}" for name, part in parts.items())
    return (
        f"{plural(len(found.gpus), 'device')}, {plural(found.divided_by, 'step')}: a step spans "
        f"{_PS * total.span_ps / by:.3f} ms: {said}"
    )
