"""What a sweep would run, found out without running anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_xlatune.campaign.deployed_files import deployed_files
from pytest_xlatune.campaign.jobs import LEDGER
from pytest_xlatune.cells import Stage, Trial
from pytest_xlatune.ledger import Ledger, replay
from pytest_xlatune.plan.scripts import scripts_of
from pytest_xlatune.profiles import BASELINE
from pytest_xlatune.publishing.settled import Foreseen, foresee
from pytest_xlatune.report.bubbles import bubbles
from pytest_xlatune.report.document import Bullets, Document, Section
from pytest_xlatune.report.figures import counted, size
from pytest_xlatune.report.plan import plan
from pytest_xlatune.results import TrialResult
from pytest_xlatune.stats.capacity import Plan
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.chosen import evidence_of, kinds_of
from pytest_xlatune.studies.derived import Rule
from pytest_xlatune.studies.evidence import EvidenceStudy
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.singles import Singles
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.studies.tuning_reading import DEFAULT_SIGMA, NOT_CALIBRATED
from pytest_xlatune.sweep.sweep import ResolvedSweep

_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell


def plan_of(resolved: ResolvedSweep, study: Study, *, workdir: Path) -> Document:
    """Return the plan of a sweep that has measured nothing yet, and where its settings stand.

    Of the ledger below `workdir` it takes what compiling and evidence said, and nothing else.

    Raises:
        ConfigError: a trial cannot be spelled.
        LedgerError: the ledger cannot be read.
    """
    trials, foreseen = study.propose(()), None
    filled: tuple[str, ...] = ()
    if isinstance(study, TuningStudy):
        trials, filled = _ahead(study, workdir / resolved.folder)
        foreseen = foresee(resolved, workdir / resolved.folder, pending=trials)
    launcher = resolved.sweep.launcher
    profiles = {trial.profile.id: trial.profile for trial in trials} | {BASELINE.id: BASELINE}
    launches = [
        (each, launcher.launch(_trial_of(each.id, trials), resolved.cell))
        for each in sorted(profiles.values(), key=lambda each: not each.is_baseline)
        if any(trial.profile.id == each.id for trial in trials)
    ]
    capacity = [*_capacity(study, trials), *filled]
    said = (*_bubbles(resolved, study), *_settings(resolved.settings))
    if foreseen is None:
        document = plan(
            cell=resolved.cell,
            trials=trials,
            launches=launches,
            capacity=capacity,
            scripts=scripts_of(resolved, trials, workdir=workdir),
        )
        return replace(document, sections=(*document.sections, *said))
    left = tuple(each for each in trials if each.profile.id not in foreseen.settled)
    document = plan(
        cell=resolved.cell,
        trials=left,
        launches=[each for each in launches if each[0].id not in foreseen.settled],
        capacity=[*capacity, *_compiling(foreseen, study, saved=len(trials) - len(left))],
        scripts=scripts_of(resolved, left, workdir=workdir),
    )
    sections = document.sections
    section = [foreseen.section] if foreseen.section else []
    return replace(document, sections=(*sections[:1], *section, *sections[1:], *said))


def _bubbles(resolved: ResolvedSweep, study: Study) -> tuple[Section, ...]:
    """Say what the profiles do to the bubble of a pipeline, where there is one."""
    files = deployed_files(
        resolved.sweep.launcher,
        resolved.cell,
        env_file=resolved.sweep.env_file,
        root=Path.cwd(),
    )
    section = bubbles(resolved.cell, study.profiles, files=files)
    return () if section is None else (section,)


def _settings(places: Mapping[str, str]) -> tuple[Section, ...]:
    """Say which place decided what; what nobody says is the sweep file's and is not listed."""
    if not places:
        return ()
    lines = tuple(f"{name}: {places[name]}" for name in sorted(places))
    return (Section(title="Where settings stand", blocks=(Bullets(items=lines),)),)


def _compiling(foreseen: Foreseen, study: Study, *, saved: int) -> list[str]:
    """Say what is compiled before anything is queued, and what that saves."""
    lines = []
    if foreseen.unknown:
        count = counted(len(foreseen.unknown), "profile")
        lines.append(f"{count} will be compiled before anything is queued, by {foreseen.by}")
    rules = study.rules if isinstance(study, TuningStudy) else ()
    if any(not isinstance(rule, Singles) for rule in rules):
        lines.append("what later waves derive is compiled once it is known, before it is queued")
    if saved:
        lines.append(f"{counted(saved, 'trial')} of the screen will not be run: compiling said why")
    return lines


def _ahead(study: TuningStudy, folder: Path) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """Return the trials of a study that has measured nothing, and how slots are filled so far."""
    recorded: tuple[TrialResult, ...] = ()
    if study.reads_evidence:
        recorded = replay(Ledger(folder / LEDGER).refresh()).evidence()
    ahead, first = study.foreseen(recorded), study.propose(recorded)
    later = (each for each in ahead.propose(recorded) if each not in first)
    return (*first, *later), (*ahead.filled(recorded), *_held(study, recorded))


def _held(study: TuningStudy, recorded: Sequence[TrialResult]) -> tuple[str, ...]:
    """Say what the catalog's rules know of the program that derived profiles act on."""
    if not study.rules or study.ground is None:
        return ()
    run = EvidenceStudy(cell=study.cell, profile=BASELINE).trial
    kinds = kinds_of(evidence_of(recorded, run))
    if kinds is not None:
        named = ", ".join(kinds) or "none"
        return (f"what is derived must act on the collectives of the baseline's program: {named}",)
    is_run = any(each.evidence for each in study.singles)
    how = "" if is_run else ": `xlatune evidence SWEEP_FILE`"
    unknown = "which derived settings do nothing to the program is known once an evidence run"
    return (f"{unknown} of the baseline has named its collectives{how}",)


def _known_when(rule: Rule) -> str:
    if not isinstance(rule, Singles):
        return "what fills them is known when those are over"
    if not rule.evidence:
        return "those that are left out, or need no run, make room for the next"
    return "shown in declared order where that has not been run yet; it is one job more"


def _trial_of(profile_id: str, trials: tuple[Trial, ...]) -> Trial:
    return next(trial for trial in trials if trial.profile.id == profile_id)


def _capacity(study: Study, trials: tuple[Trial, ...]) -> list[str]:
    if isinstance(study, GateStudy):
        design, margin = study.design, study.gate.margin
        block = f"{design.arms} candidates + {design.baselines} baselines"
        power = f"with 80 % power up to a job noise of {100 * design.noise(margin):.2f} %"
        return [
            f"{design.trials} trials: {design.blocks} blocks of {block}",
            f"an equal candidate passes at a margin of {size(margin)} {power}",
        ]
    if not isinstance(study, TuningStudy):
        return [f"{len(trials)} trials of the cell as deployed"]
    screened = sum(trial.stage is Stage.SCREEN for trial in trials)
    layout = study.layout
    slots = [
        f"{rule.wave}: {counted(rule.slots, 'slot')} for {rule.words}; {_known_when(rule)}"
        for rule in study.rules
    ]
    is_later = any(not isinstance(rule, Singles) for rule in study.rules)
    more = ", then waves that are derived with their baselines" if is_later else ""
    if not isinstance(layout, Plan):
        return [f"{screened} trials{more}", *slots, f"{layout.what}: {layout.why}"]
    blocks = f"{layout.blocks} blocks of {layout.finalists} + {layout.block_baselines} baselines"
    # of this cell where it is known
    sigmas = _SIGMAS if study.sigma_prior is None else (study.sigma_prior,)
    seen = ", ".join(f"{size(layout.mde80(sigma))} at {size(sigma)} job noise" for sigma in sigmas)
    if study.sigma_prior is None:
        seen += f"; {size(DEFAULT_SIGMA)} is assumed, for {NOT_CALIBRATED}"
    jobs = f"{layout.jobs} jobs of {study.budget}"
    return [
        f"{screened} trials of the screen{more}, then {blocks}: {jobs}",
        *slots,
        f"smallest effect confirmed with 80 % power: {seen}",
    ]
